//! Pods of a node, and which of them may be moved.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use super::Move;
use crate::class::Class;
use crate::inventory::{Held, NodeId, Revision};
use crate::objects::{Budgets, Spending};
use berth_model::{Holding, PodRef};

/// Source of the pods on nodes.
pub trait Residents {
    /// Returns the node's pods, sorted by uid. `None`: the node has changed since this revision.
    fn on(&mut self, node: NodeId, revision: Revision) -> Option<Vec<Resident>>;
    /// Returns the class of the replacement of this pod. `None`: it is gone, or invalid.
    fn class_of(&mut self, uid: &str) -> Option<Arc<Class>>;
}

/// A pod on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resident {
    pub pod: PodRef,
    pub holding: Holding,
    /// Reason why it cannot be moved, independent of other moves.
    pub fixed: Option<Fixed>,
    /// The gang it is a member of.
    pub gang: Option<Gang>,
}

/// The gang of a bound pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gang {
    pub name: Arc<str>,
    /// The index of the pod's role in the gang.
    pub role: usize,
    /// Number of members of its role that may leave alone.
    pub spare: u32,
}

/// Reason why a pod cannot be moved.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fixed {
    /// No controller would recreate it.
    NoController,
    /// It would return to the same node.
    DaemonSet,
    /// The kubelet runs it from a manifest file.
    Static,
    Terminating,
    /// It would lose its data in an `emptyDir` or `hostPath`.
    LocalStorage,
    /// `cluster-autoscaler.kubernetes.io/safe-to-evict: "false"`.
    NotSafeToEvict,
    /// Its spec is invalid, so its feasible nodes are unknown.
    NotUnderstood,
    /// Its gang would drop below its minimum.
    Gang(Arc<str>),
    /// A disruption budget allows no more disruptions.
    Budget(Arc<str>),
}

impl fmt::Display for Fixed {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Fixed::NoController => f.write_str("have no controller that would recreate them"),
            Fixed::DaemonSet => f.write_str("belong to DaemonSets"),
            Fixed::Static => f.write_str("are static pods"),
            Fixed::Terminating => f.write_str("are terminating already"),
            Fixed::LocalStorage => f.write_str("have local storage"),
            Fixed::NotSafeToEvict => f.write_str("are annotated as not safe to evict"),
            Fixed::NotUnderstood => f.write_str("have an invalid spec"),
            Fixed::Gang(name) => write!(f, "are needed by the other members of {name}"),
            Fixed::Budget(name) => write!(f, "are protected by the disruption budget {name}"),
        }
    }
}

/// Budgets and spare members left after some moves.
pub(super) struct Freedom<'a> {
    spending: Spending<'a>,
    /// Number of members moved, by gang and role.
    moved: BTreeMap<(Arc<str>, usize), u32>,
    uids: BTreeSet<Arc<str>>,
}

impl<'a> Freedom<'a> {
    pub(super) fn new(budgets: &'a Budgets, moves: &[Move]) -> Self {
        let mut freedom =
            Freedom { spending: budgets.spending(), moved: BTreeMap::new(), uids: BTreeSet::new() };
        for step in moves {
            freedom.uids.insert(step.resident.pod.uid.clone());
            freedom.take(&step.resident);
        }
        freedom
    }

    pub(super) fn has_moved(&self, uid: &str) -> bool {
        self.uids.contains(uid)
    }

    /// Returns the reason why this pod cannot also be moved.
    pub(super) fn refuses(&self, resident: &Resident) -> Option<Fixed> {
        if let Some(fixed) = &resident.fixed {
            return Some(fixed.clone());
        }
        if let Some(gang) = &resident.gang {
            let moved = self.moved.get(&(gang.name.clone(), gang.role)).copied().unwrap_or(0);
            if moved >= gang.spare {
                return Some(Fixed::Gang(gang.name.clone()));
            }
        }
        let pod = &resident.pod;
        let budget = self.spending.exhausted(&pod.namespace, &pod.name, &resident.holding.peer.identity)?;
        Some(Fixed::Budget(format!("{}/{}", budget.namespace, budget.name).into()))
    }

    /// Returns whether all these pods can be moved together.
    pub(super) fn allows(&self, residents: &[&Resident]) -> bool {
        let mut more =
            Freedom { spending: self.spending.clone(), moved: self.moved.clone(), uids: BTreeSet::new() };
        residents.iter().all(|resident| {
            let allowed = more.refuses(resident).is_none();
            more.take(resident);
            allowed
        })
    }

    fn take(&mut self, resident: &Resident) {
        let pod = &resident.pod;
        self.spending.violates(&pod.namespace, &pod.name, &resident.holding.peer.identity);
        if let Some(gang) = &resident.gang {
            *self.moved.entry((gang.name.clone(), gang.role)).or_default() += 1;
        }
    }
}

/// Returns the total of what these pods use.
pub(super) fn held<'a>(residents: impl Iterator<Item = &'a Resident>) -> Held {
    let mut held = Held::default();
    for resident in residents {
        held.add(&resident.holding.usage);
    }
    held
}
