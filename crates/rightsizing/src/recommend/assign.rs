//! Assignment of workloads to VPAs, and of past pods to workloads.
//!
//! Upstream matches the labels of every pod against every VPA; here a pod and a VPA are matched by their workload.

use std::collections::BTreeMap;

use super::store::Workload;
use super::vpa::Vpa;

/// Returns the VPA that controls each workload: the oldest one that targets it, then the first by name.
///
/// Values are indexes into `vpas`.
pub fn controlling<'a>(vpas: impl IntoIterator<Item = &'a Vpa>) -> BTreeMap<Workload, usize> {
    let mut chosen: BTreeMap<Workload, (usize, &Vpa)> = BTreeMap::new();
    for (index, vpa) in vpas.into_iter().enumerate() {
        let Some(workload) = vpa.workload() else { continue };
        let best = chosen.entry(workload).or_insert((index, vpa));
        if (vpa.created, &vpa.name) < (best.1.created, &best.1.name) {
            *best = (index, vpa);
        }
    }
    chosen.into_iter().map(|(workload, (index, _))| (workload, index)).collect()
}

/// Returns the workload that created a pod of this name, judged by the naming schemes of controllers; if several
/// match, the one with the longest name. Only for deleted pods: existing pods have owner references.
pub fn by_pod_name<'a>(pod: &str, workloads: impl IntoIterator<Item = &'a Workload>) -> Option<&'a Workload> {
    let fits = |workload: &&Workload| {
        let rest = pod.strip_prefix(&*workload.name).and_then(|rest| rest.strip_prefix('-'));
        rest.is_some_and(|rest| is_suffix(&workload.kind, rest))
    };
    workloads.into_iter().filter(fits).max_by_key(|workload| (workload.name.len(), *workload))
}

/// Returns whether a pod's name may end with this after its controller's name: a hash, an ordinal, or random
/// letters.
fn is_suffix(kind: &str, rest: &str) -> bool {
    const RANDOM_LEN: usize = 5;
    let is_safe = |text: &str| text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let is_random = |text: &str| text.len() == RANDOM_LEN && is_safe(text);
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let is_hash = |text: &str| (5..=10).contains(&text.len()) && is_safe(text);
    match kind {
        "StatefulSet" => is_number(rest),
        "ReplicaSet" | "DaemonSet" | "ReplicationController" | "Job" => is_random(rest),
        "CronJob" => rest.split_once('-').is_some_and(|(time, random)| is_number(time) && is_random(random)),
        // Deployments, and custom kinds that work like them or create pods directly.
        _ => match rest.split_once('-') {
            Some((hash, random)) => is_hash(hash) && is_random(random),
            None => kind != "Deployment" && (is_random(rest) || is_number(rest)),
        },
    }
}
