//! Pod counts of domain-scoped rules: which pods, over which topology, on which nodes. The counts are kept by the
//! module that evaluates the rules (`agent`), which shares equal ones among classes.

use std::sync::Arc;

use super::{node_affinity, taint_toleration};
use crate::live_selectors::SelectorSet;
use berth_model::{Labels, Node, NodeSelectorTerm, Peer, PodSelector, Toleration};

/// One count: the sum of the pods' weights in each domain of the topology.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Counted {
    pub what: CountedWeight,
    pub topology: TopologyKey,
    /// `None`: pods on all nodes count.
    pub nodes: Option<Box<Eligible>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TopologyKey {
    /// Nodes with the same value of this label are one domain; nodes without the label are in none.
    Label(Arc<str>),
    /// Every node with this label is its own domain, whatever the value.
    EachNode(Arc<str>),
}

impl TopologyKey {
    /// Returns the domain of the node.
    pub fn domain<'a>(&self, node: &'a Node) -> Option<&'a str> {
        match self {
            TopologyKey::Label(key) => node.labels.get(key),
            TopologyKey::EachNode(key) => node.labels.get(key).map(|_| &*node.name),
        }
    }

    pub fn label(&self) -> &Arc<str> {
        match self {
            TopologyKey::Label(key) | TopologyKey::EachNode(key) => key,
        }
    }
}

/// How the weight of a pod is computed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum CountedWeight {
    /// 1 if all of these select it.
    Selected { by: Box<[PodSelector]>, terminating: bool },
    /// The number of the counted pod's required anti-affinity terms over this topology with one of these selectors.
    Refuses(SelectorSet),
    /// The sum of weights of the counted pod's terms over this topology with one of these selectors: preferred terms,
    /// and 1 for each required affinity term (upstream: `hardPodAffinityWeight`).
    Prefers(SelectorSet),
}

/// The nodes that are part of the topology of a spread constraint.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Eligible {
    /// Labels that the nodes must have.
    pub labels: Box<[Arc<str>]>,
    /// Node selector and required terms that the nodes must match; `None`: node affinity is ignored.
    pub affinity: Option<(Labels, Option<Box<[NodeSelectorTerm]>>)>,
    /// Tolerations that must cover all hard taints of the nodes; `None`: taints are ignored.
    pub tolerations: Option<Box<[Toleration]>>,
}

impl Eligible {
    pub fn admits(&self, node: &Node) -> bool {
        let tolerates = |tolerations: &[Toleration]| {
            taint_toleration::answer(tolerations, node) != taint_toleration::UNTOLERATED
        };
        self.labels.iter().all(|key| node.labels.get(key).is_some())
            && self.tolerations.as_deref().is_none_or(tolerates)
            && (self.affinity.as_ref()).is_none_or(|(selector, terms)| {
                node_affinity::required_match(selector, terms.as_deref(), node)
            })
    }
}

impl Counted {
    /// Returns the weight of one pod.
    pub fn weight(&self, peer: &Peer) -> i64 {
        let over_this = |key: &Arc<str>| self.topology.label() == key;
        match &self.what {
            CountedWeight::Selected { by, terminating } => {
                let selected = (*terminating || !peer.terminating)
                    && by.iter().all(|selector| selector.matches(&peer.identity));
                i64::from(selected)
            }
            CountedWeight::Refuses(selectors) => {
                let refuses = peer.affinity.required_anti.iter().filter(|term| over_this(&term.topology_key));
                refuses.filter(|term| selectors.contains(&term.selector)).count() as i64
            }
            CountedWeight::Prefers(selectors) => {
                let affinity = &peer.affinity;
                let required = affinity.required.iter().map(|term| (term, 1));
                let preferred =
                    affinity.preferred.iter().map(|weighted| (&weighted.term, i64::from(weighted.weight)));
                (required.chain(preferred))
                    .filter(|(term, _)| over_this(&term.topology_key) && selectors.contains(&term.selector))
                    .map(|(_, weight)| weight)
                    .sum()
            }
        }
    }
}
