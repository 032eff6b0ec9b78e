//! Tolerations, host ports and images of a pod.

use std::sync::Arc;

use super::{Interner, Problems};
use crate::lean::{LeanContainer, LeanPodSpec, LeanToleration, LeanVolumeSource};
use berth_model::{Effect, HostPort, Protocol, Toleration, TolerationOperator, taint_number};

pub(super) fn effect(name: &str) -> Option<Effect> {
    Some(match name {
        "NoSchedule" => Effect::NoSchedule,
        "PreferNoSchedule" => Effect::PreferNoSchedule,
        "NoExecute" => Effect::NoExecute,
        _ => return None,
    })
}

pub(super) fn tolerations(
    lean: &[LeanToleration],
    interner: &mut Interner,
    problems: &mut Problems,
) -> Box<[Toleration]> {
    let mut all = Vec::with_capacity(lean.len());
    for (i, lean) in lean.iter().enumerate() {
        let number = || taint_number(lean.value.as_deref().unwrap_or_default());
        let operator = match lean.operator.as_deref().unwrap_or_default() {
            "" | "Equal" => Some(TolerationOperator::Equal),
            "Exists" => Some(TolerationOperator::Exists),
            "Gt" => number().map(TolerationOperator::Gt),
            "Lt" => number().map(TolerationOperator::Lt),
            other => {
                problems.note(
                    || format!("spec.tolerations[{i}].operator"),
                    || format!("{other:?} is none of Equal, Exists, Gt, Lt"),
                );
                continue;
            }
        };
        // Compared with what is no number, which the API server refuses, no taint is tolerated.
        let Some(operator) = operator else { continue };
        let effect = match lean.effect.as_deref().unwrap_or_default() {
            "" => None,
            name => match effect(name) {
                Some(effect) => Some(effect),
                None => {
                    problems.note(
                        || format!("spec.tolerations[{i}].effect"),
                        || format!("{name:?} is none of NoSchedule, PreferNoSchedule, NoExecute"),
                    );
                    continue;
                }
            },
        };
        // `Exists` ignores the value: pods that differ only in it belong to one class.
        let value = match operator {
            TolerationOperator::Equal => lean.value.as_deref().unwrap_or_default(),
            TolerationOperator::Exists | TolerationOperator::Gt(_) | TolerationOperator::Lt(_) => "",
        };
        all.push(Toleration {
            key: interner.text(lean.key.as_deref().unwrap_or_default()),
            operator,
            value: interner.text(value),
            effect,
        });
    }
    all.sort_unstable();
    all.dedup();
    all.into_boxed_slice()
}

/// Returns the host ports of containers and sidecars (upstream: `GetHostPorts`), sorted and without duplicates.
pub(super) fn ports(spec: &LeanPodSpec, interner: &mut Interner, problems: &mut Problems) -> Box<[HostPort]> {
    let sidecars = (spec.init_containers.iter().enumerate())
        .filter(|(_, container)| is_sidecar(container))
        .map(|(i, container)| ("initContainers", i, container));
    let containers = (spec.containers.iter().enumerate()).map(|(i, container)| ("containers", i, container));
    let mut all = Vec::new();
    for (list, c, container) in sidecars.chain(containers) {
        for (p, lean) in container.ports.iter().enumerate() {
            let path = |field: &str| format!("spec.{list}[{c}].ports[{p}].{field}");
            let number = lean.host_port.unwrap_or(0);
            if number <= 0 {
                continue;
            }
            let Ok(port) = u16::try_from(number) else {
                problems.note(|| path("hostPort"), || format!("must be at most 65535, is {number}"));
                continue;
            };
            let protocol = match lean.protocol.as_deref().unwrap_or_default() {
                "" | "TCP" => Protocol::Tcp,
                "UDP" => Protocol::Udp,
                "SCTP" => Protocol::Sctp,
                other => {
                    problems.note(|| path("protocol"), || format!("{other:?} is none of TCP, UDP, SCTP"));
                    continue;
                }
            };
            let ip = lean.host_ip.as_deref();
            all.push(HostPort {
                ip: ip.filter(|ip| !matches!(*ip, "" | "0.0.0.0")).map(|ip| interner.text(ip)),
                protocol,
                port,
            });
        }
    }
    all.sort_unstable();
    all.dedup();
    all.into_boxed_slice()
}

/// Whether it is a sidecar: an init container that keeps running beside the containers.
pub(super) fn is_sidecar(init_container: &LeanContainer) -> bool {
    init_container.restart_policy.as_deref() == Some("Always")
}

/// Returns the images that ImageLocality scores: of all containers and of image volumes.
pub(super) fn images(spec: &LeanPodSpec, interner: &mut Interner) -> Box<[Arc<str>]> {
    let containers = spec.init_containers.iter().chain(&spec.containers);
    let names = (containers.filter_map(|container| container.image.as_deref())).chain(
        spec.volumes.iter().filter_map(|volume| match &volume.source {
            Some(LeanVolumeSource::Image(reference)) => reference.as_deref(),
            _ => None,
        }),
    );
    let mut images: Vec<Arc<str>> = names
        .map(|name| {
            // As upstream's `normalizedImageName`: a colon before the last slash precedes a port, not a tag.
            if name.rfind(':') <= name.rfind('/') {
                interner.text(&format!("{name}:latest"))
            } else {
                interner.text(name)
            }
        })
        .collect();
    images.sort_unstable();
    images.dedup();
    images.into_boxed_slice()
}
