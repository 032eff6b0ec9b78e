//! Effective resource requests of a pod: upstream's `PodRequests` (`component-helpers/resource/helpers.go`) as
//! kube-scheduler 1.36 calls it (`calculateResource` in `pkg/scheduler/framework/types.go`).

use super::{Interner, Problems, placing};
use crate::lean::{LeanContainer, LeanContainerStatus, LeanPod, LeanRequirements, ResourceList};
use berth_model::names::is_scalar_resource;
use berth_model::{Amounts, Extended, Quantity, Usage};

/// Defaults that spreading and packing assume for a container without requests (upstream: `schedutil.Default…Request`).
const DEFAULT_CPU: Quantity = Quantity::from_milli(100);
const DEFAULT_MEMORY: Quantity = Quantity::from_units(200 * 1024 * 1024);

/// Cap of a request: larger ones are cut to it, and no node counts as having that much (`node.rs`). So such a pod never
/// fits, and the sums over the pods of a node never saturate; a saturated sum could not be undone when the pod is
/// removed.
pub(super) const COUNTED_MAX: i64 = 1 << 53;

pub(super) fn usage(pod: &LeanPod, interner: &mut Interner, problems: &mut Problems) -> Usage {
    let requests = pod_requests(pod, &[], problems);
    let nonzero = match nonzero_defaults(pod, &requests) {
        defaults if defaults.is_empty() => None,
        defaults => Some(pod_requests(pod, &defaults, problems)),
    };
    let nonzero = nonzero.as_ref().unwrap_or(&requests);

    let mut usage = Usage {
        requests: Amounts { pods: 1, ..Amounts::default() },
        nonzero_cpu_milli: nonzero.get("cpu").milli_value().min(COUNTED_MAX),
        nonzero_memory: nonzero.get("memory").value().min(COUNTED_MAX),
        ports: placing::ports(&pod.spec, interner, problems),
        extended: Extended::default(),
    };
    for &(name, amount) in &requests.0 {
        let units = amount.value().min(COUNTED_MAX);
        match name {
            "cpu" => usage.requests.cpu_milli = amount.milli_value().min(COUNTED_MAX),
            "memory" => usage.requests.memory = units,
            "ephemeral-storage" => usage.requests.ephemeral_storage = units,
            name if is_scalar_resource(name) => usage.extended.add(&interner.text(name), units),
            _ => {}
        }
    }
    usage
}

/// Exact amounts by name, each name once, in no particular order.
#[derive(Clone, Default)]
struct Requests<'a>(Vec<(&'a str, Quantity)>);

impl<'a> Requests<'a> {
    /// Reads the valid entries of `list`; notes a problem for each invalid one.
    fn read(
        list: Option<&'a ResourceList>,
        path: &dyn Fn() -> String,
        problems: &mut Problems,
    ) -> Requests<'a> {
        let list = list.map_or(&[][..], |list| &list.0);
        let mut requests = Requests(Vec::with_capacity(list.len()));
        for (name, amount) in list {
            let field = || format!("{}[{name}]", path());
            match amount {
                Ok(amount) if amount.is_negative() => {
                    problems.note(field, || "must not be negative".into());
                }
                Ok(amount) => *requests.entry(name) = *amount,
                Err(error) => problems.note(field, || error.to_string()),
            }
        }
        requests
    }

    /// Returns the amount of `name`; inserts zero if absent.
    fn entry(&mut self, name: &'a str) -> &mut Quantity {
        let found = self.0.iter().position(|(n, _)| *n == name);
        let at = found.unwrap_or_else(|| {
            self.0.push((name, Quantity::ZERO));
            self.0.len() - 1
        });
        &mut self.0[at].1
    }

    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(n, _)| *n == name)
    }

    fn get(&self, name: &str) -> Quantity {
        let found = self.0.iter().find(|(n, _)| *n == name);
        found.map_or(Quantity::ZERO, |(_, amount)| *amount)
    }

    fn add(&mut self, other: &Requests<'a>) {
        for &(name, amount) in &other.0 {
            let sum = self.entry(name);
            *sum = sum.saturating_add(amount);
        }
    }

    fn raise_to(&mut self, other: &Requests<'a>) {
        for &(name, amount) in &other.0 {
            let greater = self.entry(name);
            *greater = amount.max(*greater);
        }
    }
}

/// Requests to assume of every container that does not name the resource.
type Defaults = [(&'static str, Quantity)];

/// Returns the defaults that apply (upstream: `getNonMissingContainerRequests`). Pod-level requests cover the containers,
/// so with them a default counts only for a resource that no container requests.
fn nonzero_defaults(pod: &LeanPod, requests: &Requests) -> Vec<(&'static str, Quantity)> {
    let mut defaults = vec![("cpu", DEFAULT_CPU), ("memory", DEFAULT_MEMORY)];
    if pod_level(pod).is_some() {
        defaults.retain(|(name, _)| !requests.has(name));
    }
    defaults
}

/// Returns the pod-level requests, if they set a resource supported at pod level (upstream: `IsPodLevelRequestsSet`).
fn pod_level(pod: &LeanPod) -> Option<&LeanRequirements> {
    let resources = pod.spec.resources.as_ref()?;
    let mut requests = resources.requests.iter().flat_map(|list| &list.0);
    requests.any(|(name, _)| is_pod_level(name)).then_some(resources)
}

fn is_pod_level(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || name.starts_with("hugepages-")
}

/// Whether the resources in the status count: during a resize they show what a running pod holds. Only for bound pods.
fn counts_status(pod: &LeanPod) -> bool {
    pod.spec.node_name.as_ref().is_some_and(|name| !name.is_empty())
}

fn pod_requests<'a>(pod: &'a LeanPod, defaults: &Defaults, problems: &mut Problems) -> Requests<'a> {
    let mut total = container_requests(pod, defaults, problems);

    if let Some(level) = pod_level(pod) {
        let spec = Requests::read(level.requests.as_ref(), &|| "spec.resources.requests".into(), problems);
        let resized = match &pod.status.resources {
            Some(actual) if counts_status(pod) => {
                let actual = Requests::read(
                    actual.requests.as_ref(),
                    &|| "status.resources.requests".into(),
                    problems,
                );
                let allocated = Requests::read(
                    Some(&pod.status.allocated_resources),
                    &|| "status.allocatedResources".into(),
                    problems,
                );
                Some(effective(pod, &spec, &actual, &allocated))
            }
            _ => None,
        };
        for &(name, amount) in spec.0.iter().filter(|(name, _)| is_pod_level(name)) {
            *total.entry(name) = resized.as_ref().map_or(amount, |resized| resized.get(name));
        }
    }

    total.add(&Requests::read(Some(&pod.spec.overhead), &|| "spec.overhead".into(), problems));
    total
}

/// Aggregates containers, which run together; init containers, which run one after the other before them; and sidecars,
/// which run beside all later ones (upstream: `AggregateContainerRequests`).
fn container_requests<'a>(pod: &'a LeanPod, defaults: &Defaults, problems: &mut Problems) -> Requests<'a> {
    let mut total = Requests::default();
    for (i, container) in pod.spec.containers.iter().enumerate() {
        let path = || format!("spec.containers[{i}].resources.requests");
        total.add(&one_container(pod, container, true, defaults, &path, problems));
    }
    let mut sidecars = Requests::default();
    let mut init_peak = Requests::default();
    for (i, container) in pod.spec.init_containers.iter().enumerate() {
        let path = || format!("spec.initContainers[{i}].resources.requests");
        let is_sidecar = placing::is_sidecar(container);
        let own = one_container(pod, container, is_sidecar, defaults, &path, problems);
        if is_sidecar {
            total.add(&own);
            sidecars.add(&own);
            init_peak.raise_to(&sidecars);
        } else {
            let mut running = own;
            running.add(&sidecars);
            init_peak.raise_to(&running);
        }
    }
    total.raise_to(&init_peak);
    total
}

fn one_container<'a>(
    pod: &'a LeanPod,
    container: &'a LeanContainer,
    resizable: bool,
    defaults: &Defaults,
    path: &dyn Fn() -> String,
    problems: &mut Problems,
) -> Requests<'a> {
    let mut requests =
        Requests::read(container.resources.as_ref().and_then(|it| it.requests.as_ref()), path, problems);
    let status = (resizable && counts_status(pod)).then(|| container_status(pod, &container.name));
    if let Some((status, actual)) = status.flatten() {
        let field = |field: &str| format!("status of container {:?}: {field}", container.name);
        let actual = Requests::read(actual.requests.as_ref(), &|| field("resources.requests"), problems);
        let allocated =
            Requests::read(Some(&status.allocated_resources), &|| field("allocatedResources"), problems);
        requests = effective(pod, &requests, &actual, &allocated);
    }
    for &(name, amount) in defaults {
        if !requests.has(name) {
            *requests.entry(name) = amount;
        }
    }
    requests
}

/// Returns the status of the container of this name, if it has resources.
fn container_status<'a>(
    pod: &'a LeanPod,
    name: &str,
) -> Option<(&'a LeanContainerStatus, &'a LeanRequirements)> {
    // With several of one name the last one counts, as in upstream's map.
    let mut statuses = (pod.status.container_statuses.iter()).chain(&pod.status.init_container_statuses);
    let status = statuses.rfind(|status| status.name == name)?;
    Some((status, status.resources.as_ref()?))
}

/// Returns the maximum of desired, actual and allocated requests during a resize; an infeasible desired value does not count
/// (upstream: `determineEffectiveRequests`).
fn effective<'a>(
    pod: &LeanPod,
    wanted: &Requests<'a>,
    actual: &Requests<'a>,
    allocated: &Requests<'a>,
) -> Requests<'a> {
    let mut greatest = actual.clone();
    greatest.raise_to(allocated);
    if !pod.status.conditions.resize_infeasible {
        greatest.raise_to(wanted);
    }
    greatest
}
