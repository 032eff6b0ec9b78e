//! Usage that can be true. Prometheus may lie: one sample that is a thousand times too large would be the peak of a day, with a size
//! that fits on no node.

use berth_model::PerResource;
use berth_rightsizing::apply::{SizedContainer, SizedPod};
use berth_rightsizing::scaling::{MeasuredKind, Point, Windows};

/// No usage is more than this multiple of its limit: rates over short windows exceed a limit by less, and so does memory whose limit was
/// lowered.
const OVER_LIMIT: f64 = 2.0;
/// Millicores that every CPU limit allows: the kernel has no smaller quota.
const CPU_LIMIT_MIN: i64 = 10;
/// Memory of more than this multiple of the request may be more than any node has.
const OVER_REQUEST: f64 = 2.0;

/// Returns the samples of a container; those that cannot be true, such as no memory at all, are not a number. `possible_memory`: of the
/// largest node, if known.
pub(super) fn samples<'a>(
    (namespace, pod): (&str, &SizedPod),
    container: &SizedContainer,
    kind: MeasuredKind,
    possible_memory: Option<i64>,
    windows: &'a Windows,
) -> impl Iterator<Item = Point> + use<'a> {
    let most = most(container, kind, possible_memory);
    let points = windows.of((namespace, &pod.name, &container.name), kind);
    let is_true = move |value: f64| value <= most && (kind != MeasuredKind::Memory || value > 0.0);
    points.map(move |point| if is_true(point.value) { point } else { Point { value: f64::NAN, ..point } })
}

fn most(container: &SizedContainer, kind: MeasuredKind, possible_memory: Option<i64>) -> f64 {
    // A limit of 0 is none.
    let of = |limits: PerResource<Option<i64>>| match kind {
        MeasuredKind::Cpu => limits.cpu.filter(|limit| *limit > 0).map(|limit| limit.max(CPU_LIMIT_MIN)),
        MeasuredKind::Memory => limits.memory.filter(|limit| *limit > 0),
        MeasuredKind::Network => None,
    };
    let resources = [Some(container.wanted), container.actual].into_iter().flatten();
    let limits: Option<Vec<i64>> = resources.map(|resources| of(resources.limits)).collect();
    let by_limit = limits.and_then(|limits| limits.into_iter().max()).map(|limit| limit as f64 * OVER_LIMIT);
    let by_node = possible_memory.filter(|_| kind == MeasuredKind::Memory).map(|bytes| bytes as f64);
    by_limit.into_iter().chain(by_node).fold(f64::INFINITY, f64::min)
}

/// Returns whether a container seems to use so much memory that the largest node matters.
pub(in crate::scaler) fn is_heavy(namespace: &str, pods: &[SizedPod], windows: &Windows) -> bool {
    pods.iter().flat_map(|pod| pod.containers.iter().map(move |container| (pod, container))).any(
        |(pod, container)| {
            // Without a request its memory is not sized.
            let Some(request) = container.wanted.requests.memory else { return false };
            let mut used = windows.of((namespace, &pod.name, &container.name), MeasuredKind::Memory);
            used.any(|point| point.value > request as f64 * OVER_REQUEST)
        },
    )
}
