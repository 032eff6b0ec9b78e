//! What a page for people shows: nodes that have changed, waiting pods and gangs. Each query returns one slice, so that whoever walks
//! them all never keeps the scheduler from its work.

use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use super::Scheduler;
use crate::class::ClassId;
use crate::gang::{AllocationName, GangStatus};
use crate::inventory::{NodeId, Revision, Row};
use berth_model::{Amounts, Extended, Node, PodOwner};

/// Maximum number of rows, pods or gangs of one slice.
pub const OVERVIEW_SLICE: usize = 256;

/// A row that has changed.
#[derive(Debug, Clone)]
pub struct NodeOverview {
    pub id: NodeId,
    /// `None`: there is no node with this id any more, or not yet.
    pub node: Option<Arc<Node>>,
    /// Requests of bound and assumed pods.
    pub requested: Amounts,
    /// `None`: no extended resources are requested.
    pub extended: Option<Arc<Extended>>,
    /// Sum of the reservations for pods without a node.
    pub reserved: Amounts,
}

/// A pod that waits.
#[derive(Debug, Clone)]
pub struct WaitingOverview {
    pub class: ClassId,
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub scheduler: Arc<str>,
    pub owner: Option<PodOwner>,
    pub state: &'static str,
    pub priority: i32,
    /// Creation time in seconds since 1970.
    pub created_s: i64,
    /// Message of its condition.
    pub message: Option<Arc<str>>,
}

/// Counters that need no walk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Totals {
    pub leading: bool,
    pub nodes: usize,
    /// Charged pods, and those of them that are not yet seen bound.
    pub pods: usize,
    pub assumed: usize,
    pub waiting: usize,
    pub classes: usize,
    pub scheduled: u64,
    pub conflicts: u64,
    pub preemptions: u64,
    pub list_hits: u64,
    pub list_misses: u64,
    /// Requests assigned to each agent.
    pub dispatched: Vec<u64>,
}

impl NodeOverview {
    fn of(id: NodeId, row: &Row) -> NodeOverview {
        let mut reserved = Amounts::default();
        for reservation in row.reserved.iter().flat_map(|all| all.iter()) {
            reserved.add(&reservation.usage.requests);
        }
        NodeOverview {
            id,
            node: row.node.clone(),
            requested: row.requested,
            extended: row.extended.clone(),
            reserved,
        }
    }
}

impl Scheduler {
    /// Returns the next rows that have changed after `seen`, oldest change first, and the revision to go on from; `None`: there are
    /// no more.
    pub fn changed_nodes(&self, seen: Revision) -> Option<(Vec<NodeOverview>, Revision)> {
        let inventory = self.inventory();
        let changes = inventory.changes_after(seen);
        let slice = &changes[..changes.len().min(OVERVIEW_SLICE)];
        let last = slice.last()?.revision;
        let latest = slice.iter().filter(|change| inventory.row(change.id).revision == change.revision);
        Some((latest.map(|change| NodeOverview::of(change.id, inventory.row(change.id))).collect(), last))
    }

    /// Returns the next waiting pods in the order of their arrival, from this number on, and the number to go on from; `None`: there
    /// are no more.
    pub fn waiting_from(&self, from: u64) -> Option<(Vec<WaitingOverview>, u64)> {
        let mut next = None;
        let pods = self.cluster.waiting.arrived_since(None, from).take(OVERVIEW_SLICE).map(|waiting| {
            next = Some(waiting.seq + 1);
            WaitingOverview {
                class: waiting.class.id,
                namespace: waiting.pod.namespace.clone(),
                name: waiting.pod.name.clone(),
                scheduler: waiting.source.scheduler_name.clone(),
                owner: waiting.source.owner.clone(),
                state: waiting.state.name(),
                priority: waiting.priority,
                created_s: waiting.source.created_s,
                message: waiting.reported.clone(),
            }
        });
        let pods = pods.collect();
        Some((pods, next?))
    }

    /// Returns the next statuses that were written, of allocations after this name, and the last name that was visited; `None`: there
    /// are no more.
    pub fn gangs_after(&self, after: Option<&AllocationName>) -> Option<(Vec<GangStatus>, AllocationName)> {
        let slice = self.gangs.from(after.map_or(Unbounded, Excluded)).take(OVERVIEW_SLICE);
        let (names, statuses): (Vec<_>, Vec<_>) = slice.unzip();
        let last = names.last().copied()?.clone();
        Some((statuses.into_iter().flatten().cloned().collect(), last))
    }

    /// Returns counters and sizes. Bounded by the number of agents.
    pub fn totals(&self) -> Totals {
        let (pods, assumed) = self.ledger().counts();
        let stats = self.stats();
        Totals {
            leading: self.leading(),
            nodes: self.inventory().node_count(),
            pods,
            assumed,
            waiting: self.cluster.waiting.len(),
            classes: self.classes(),
            scheduled: stats.scheduled,
            conflicts: stats.conflicts,
            preemptions: stats.preemption_attempts,
            list_hits: stats.list_hits,
            list_misses: stats.list_misses,
            dispatched: stats.dispatched.clone(),
        }
    }
}
