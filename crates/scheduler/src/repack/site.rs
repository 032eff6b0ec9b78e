//! The pods of a node, and which of them could be moved.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use super::Move;
use crate::class::Class;
use crate::inventory::{Held, NodeId, Revision};
use crate::objects::{Budgets, Spending};
use berth_model::{Holding, PodRef};

/// Who knows the pods of nodes.
pub trait Residents {
    /// The pods of this node, sorted by uid. `None`: the node is not as of this revision any more.
    fn on(&mut self, node: NodeId, revision: Revision) -> Option<Vec<Resident>>;
    /// The class of the pod that is made in place of this one. `None`: it is gone, or cannot be understood.
    fn class_of(&mut self, uid: &str) -> Option<Arc<Class>>;
}

/// A pod on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resident {
    pub pod: PodRef,
    pub holding: Holding,
    /// Why it cannot be moved, whatever else moves.
    pub fixed: Option<Fixed>,
    /// The gang that it is a member of.
    pub gang: Option<Gang>,
}

/// The gang of a pod with a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gang {
    pub name: Arc<str>,
    /// The place of the pod's role in it.
    pub role: usize,
    /// Members of its role that it can do without.
    pub spare: u32,
}

/// Why a pod cannot be moved.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fixed {
    /// Nobody would make it again.
    NoController,
    /// It would come back to the same node.
    DaemonSet,
    /// A kubelet runs it from a file.
    Static,
    Terminating,
    /// It would lose what it has written to an `emptyDir` or `hostPath`.
    LocalStorage,
    /// `cluster-autoscaler.kubernetes.io/safe-to-evict: "false"`.
    NotSafeToEvict,
    /// Its spec cannot be understood, so nobody knows where it could go.
    NotUnderstood,
    /// Its gang would have fewer members than its minimum.
    Gang(Arc<str>),
    /// A disruption budget has nothing left.
    Budget(Arc<str>),
}

impl fmt::Display for Fixed {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Fixed::NoController => f.write_str("have no controller that would make them again"),
            Fixed::DaemonSet => f.write_str("belong to DaemonSets"),
            Fixed::Static => f.write_str("are static pods"),
            Fixed::Terminating => f.write_str("are terminating already"),
            Fixed::LocalStorage => f.write_str("have local storage"),
            Fixed::NotSafeToEvict => f.write_str("are annotated as not safe to evict"),
            Fixed::NotUnderstood => f.write_str("have a spec that cannot be understood"),
            Fixed::Gang(name) => write!(f, "are members that {name} cannot do without"),
            Fixed::Budget(name) => write!(f, "are protected by the disruption budget {name}"),
        }
    }
}

/// What may still be moved beside some moves.
pub(super) struct Freedom<'a> {
    spending: Spending<'a>,
    /// By gang and role: members that were moved.
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

    /// Why this pod cannot be moved, too.
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

    /// Whether all of these can be moved together.
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

/// What these pods hold together.
pub(super) fn held<'a>(residents: impl Iterator<Item = &'a Resident>) -> Held {
    let mut held = Held::default();
    for resident in residents {
        held.add(&resident.holding.usage);
    }
    held
}
