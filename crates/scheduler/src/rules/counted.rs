//! What domain-scoped rules count: which pods, over which topology, on which nodes. The counts themselves are kept by whoever
//! evaluates the rules (`agent`), which shares equal ones among classes.

use std::sync::Arc;

use super::{node_affinity, taint_toleration};
use berth_model::{Identity, Labels, Node, NodeSelectorTerm, Peer, PodSelector, Toleration};

/// One count: for each domain of the topology, the sum of what the pods there count for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Counted {
    pub what: What,
    pub topology: TopologyKey,
    /// `None`: pods count wherever they are.
    pub nodes: Option<Box<Eligible>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TopologyKey {
    /// Nodes with the same value of this label are one domain; nodes without it are in none.
    Label(Arc<str>),
    /// Every node that has this label is a domain of its own, whatever the value.
    EachNode(Arc<str>),
}

impl TopologyKey {
    /// The domain the node is in.
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

/// What a pod counts for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum What {
    /// 1 if all of these select it.
    Selected { by: Box<[PodSelector]>, terminating: bool },
    /// The number of its required anti-affinity terms over this topology that select such a pod.
    Refuses(Identity),
    /// The weights of its terms over this topology that select such a pod: preferred ones, and 1 for each required affinity
    /// term (upstream: `hardPodAffinityWeight`).
    Prefers(Identity),
}

/// Which nodes make up the topology of a spread constraint.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Eligible {
    /// They have all these labels.
    pub labels: Box<[Arc<str>]>,
    /// They match this selector and these required terms; `None`: node affinity is ignored.
    pub affinity: Option<(Labels, Option<Box<[NodeSelectorTerm]>>)>,
    /// These tolerate all their hard taints; `None`: taints are ignored.
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
    /// What one such pod counts for.
    pub fn weight(&self, peer: &Peer) -> i64 {
        let over_this = |key: &Arc<str>| self.topology.label() == key;
        match &self.what {
            What::Selected { by, terminating } => {
                let selected = (*terminating || !peer.terminating)
                    && by.iter().all(|selector| selector.matches(&peer.identity));
                i64::from(selected)
            }
            What::Refuses(pod) => {
                let refuses = peer.affinity.required_anti.iter().filter(|term| over_this(&term.topology_key));
                refuses.filter(|term| term.selector.matches(pod)).count() as i64
            }
            What::Prefers(pod) => {
                let affinity = &peer.affinity;
                let required = affinity.required.iter().map(|term| (term, 1));
                let preferred =
                    affinity.preferred.iter().map(|weighted| (&weighted.term, i64::from(weighted.weight)));
                (required.chain(preferred))
                    .filter(|(term, _)| over_this(&term.topology_key) && term.selector.matches(pod))
                    .map(|(_, weight)| weight)
                    .sum()
            }
        }
    }
}
