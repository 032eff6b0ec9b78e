//! InterPodAffinity: required and preferred affinity and anti-affinity between pods; the terms of existing pods count
//! as well as those of the incoming pod.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Reasons;
use super::counted::{Counted, CountedWeight, TopologyKey};
use crate::live_selectors::{SelectedBy, SelectorSet};
use berth_model::{Peer, PodAffinity, PodTerm, WeightedPodTerm};

/// Returns the counts of pods that match all required terms, one per topology key, sorted by key (upstream: a pod
/// counts for a term only if it matches all of them).
pub fn required(affinity: &PodAffinity) -> Vec<Counted> {
    let by: Box<[_]> = affinity.required.iter().map(|term| term.selector.clone()).collect();
    let keys: BTreeSet<_> = affinity.required.iter().map(|term| &term.topology_key).collect();
    keys.into_iter().map(|key| selected(by.clone(), key)).collect()
}

/// Returns the counts of pods that match a required anti-affinity term, one per term.
pub fn required_anti(affinity: &PodAffinity) -> Vec<Counted> {
    affinity.required_anti.iter().map(of_term).collect()
}

/// Returns the counts of pods that match a preferred term, each with its weight.
pub fn preferred(terms: &[WeightedPodTerm]) -> Vec<(Counted, i64)> {
    terms.iter().map(|weighted| (of_term(&weighted.term), i64::from(weighted.weight))).collect()
}

/// Returns the count of required anti-affinity terms of existing pods with one of these selectors, over this topology.
pub fn refusing(selectors: &SelectorSet, key: &Arc<str>) -> Counted {
    Counted {
        what: CountedWeight::Refuses(selectors.clone()),
        topology: TopologyKey::Label(key.clone()),
        nodes: None,
    }
}

/// Returns the count of affinity weights of existing pods' terms with one of these selectors, over this topology.
pub fn preferring(selectors: &SelectorSet, key: &Arc<str>) -> Counted {
    Counted {
        what: CountedWeight::Prefers(selectors.clone()),
        topology: TopologyKey::Label(key.clone()),
        nodes: None,
    }
}

/// Returns the topology keys of the peer's terms with one of these selectors: hard (required anti-affinity) and soft
/// ones.
pub fn topologies<'a>(
    peer: &'a Peer,
    selectors: &'a SelectedBy,
) -> impl Iterator<Item = (bool, &'a Arc<str>)> {
    let affinity = &peer.affinity;
    let refusing = affinity.required_anti.iter();
    let hard = refusing.filter(|term| selectors.refusing.contains(&term.selector)).map(|term| (true, term));
    let preferred = affinity.preferred.iter().map(|weighted| &weighted.term);
    let soft = affinity.required.iter().chain(preferred);
    let soft = soft.filter(|term| selectors.preferring.contains(&term.selector)).map(|term| (false, term));
    hard.chain(soft).map(|(hard, term)| (hard, &term.topology_key))
}

fn of_term(term: &PodTerm) -> Counted {
    selected([term.selector.clone()].into(), &term.topology_key)
}

fn selected(by: Box<[berth_model::PodSelector]>, key: &Arc<str>) -> Counted {
    let what = CountedWeight::Selected { by, terminating: true };
    Counted { what, topology: TopologyKey::Label(key.clone()), nodes: None }
}

/// Checks required affinity with this many matching pods in the domain; `None`: the node is in no domain. `first`: the
/// pod may be the first of its kind, as no pod matches anywhere and it matches its own terms.
pub fn affinity(here: Option<i64>, first: bool) -> Option<Reasons> {
    match here {
        None => Some(Reasons::POD_AFFINITY),
        Some(pods) => (pods <= 0 && !first).then_some(Reasons::POD_AFFINITY),
    }
}

/// Checks required anti-affinity, of the incoming pod or of existing pods.
pub fn anti_affinity(here: Option<i64>, reason: Reasons) -> Option<Reasons> {
    here.is_some_and(|pods| pods > 0).then_some(reason)
}
