//! InterPodAffinity: pods that must or would rather be near others, or far from them; the terms of pods that are there
//! already count as much as those of the pod that comes.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Reasons;
use super::counted::{Counted, TopologyKey, What};
use berth_model::{Identity, Peer, PodAffinity, PodTerm, WeightedPodTerm};

/// Pods that match all required terms; one count for each topology key, sorted by key (upstream: a pod counts for a term
/// only if it matches all of them).
pub fn required(affinity: &PodAffinity) -> Vec<Counted> {
    let by: Box<[_]> = affinity.required.iter().map(|term| term.selector.clone()).collect();
    let keys: BTreeSet<_> = affinity.required.iter().map(|term| &term.topology_key).collect();
    keys.into_iter().map(|key| selected(by.clone(), key)).collect()
}

/// Pods that match a required anti-affinity term; one count a term.
pub fn required_anti(affinity: &PodAffinity) -> Vec<Counted> {
    affinity.required_anti.iter().map(of_term).collect()
}

/// Pods that match a preferred term, each with its weight.
pub fn preferred(terms: &[WeightedPodTerm]) -> Vec<(Counted, i64)> {
    terms.iter().map(|weighted| (of_term(&weighted.term), i64::from(weighted.weight))).collect()
}

/// Pods that refuse a pod like this over this topology.
pub fn refusing(pod: &Identity, key: &Arc<str>) -> Counted {
    Counted { what: What::Refuses(pod.clone()), topology: TopologyKey::Label(key.clone()), nodes: None }
}

/// Pods that like or dislike a pod like this over this topology.
pub fn preferring(pod: &Identity, key: &Arc<str>) -> Counted {
    Counted { what: What::Prefers(pod.clone()), topology: TopologyKey::Label(key.clone()), nodes: None }
}

/// The topologies over which a pod of this kind says something about pods like `pod`: hard (it refuses them), and soft.
pub fn topologies<'a>(peer: &'a Peer, pod: &'a Identity) -> impl Iterator<Item = (bool, &'a Arc<str>)> {
    let affinity = &peer.affinity;
    let hard = affinity.required_anti.iter().map(|term| (true, term));
    let soft = affinity.required.iter().chain(affinity.preferred.iter().map(|weighted| &weighted.term));
    (hard.chain(soft.map(|term| (false, term))))
        .filter(|(_, term)| term.selector.matches(pod))
        .map(|(hard, term)| (hard, &term.topology_key))
}

fn of_term(term: &PodTerm) -> Counted {
    selected([term.selector.clone()].into(), &term.topology_key)
}

fn selected(by: Box<[berth_model::PodSelector]>, key: &Arc<str>) -> Counted {
    let what = What::Selected { by, terminating: true };
    Counted { what, topology: TopologyKey::Label(key.clone()), nodes: None }
}

/// Required affinity where this many pods match in the domain; `None`: the node is in no domain. `first`: the pod may be the
/// first of its kind, as no pod anywhere matches and it matches its own terms.
pub fn affinity(here: Option<i64>, first: bool) -> Option<Reasons> {
    match here {
        None => Some(Reasons::POD_AFFINITY),
        Some(pods) => (pods <= 0 && !first).then_some(Reasons::POD_AFFINITY),
    }
}

/// Required anti-affinity, of the pod that comes or of those that are there.
pub fn anti_affinity(here: Option<i64>, reason: Reasons) -> Option<Reasons> {
    here.is_some_and(|pods| pods > 0).then_some(reason)
}
