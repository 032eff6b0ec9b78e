//! Reservation of resources for in-place pod resizes. The kubelet learns about a resize from the API server; the ledger
//! must know earlier, so that the resources are not given to another pod.

use std::sync::Arc;

use super::Scheduler;
use berth_model::{NodeSize, Usage};

/// Increase charged for a pod until its watch reports the resize.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Growth {
    /// Its number among all of the scheduler.
    pub(crate) number: u64,
    before: Arc<Usage>,
    after: Arc<Usage>,
}

/// Reason why a pod cannot grow on its node now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrowthError {
    #[error("berth has not observed the pod on its node yet")]
    UnknownPod,
    #[error("the pod's node is not in berth's cache")]
    UnknownNode,
    #[error("it would request {more} more {unit}, but only {free} are free on node {node}")]
    Insufficient { more: i64, unit: &'static str, free: i64, node: Arc<str> },
}

impl Scheduler {
    /// Charges a pod for an increase on its node if it fits beside all charges and reservations there. The next watch
    /// event of the pod replaces the charge; [`Scheduler::take_growth_back`] reverts it if the resize fails.
    ///
    /// # Errors
    /// The reason why the increase does not fit: the pod must keep its size.
    pub fn grow_in_place(&mut self, uid: &Arc<str>, more: NodeSize) -> Result<Growth, GrowthError> {
        let charge = self.cluster.ledger.charge_of(uid).ok_or(GrowthError::UnknownPod)?;
        let (node, priority, before) = (charge.node, charge.holding.priority, charge.holding.usage.clone());
        let row = self.inventory().row(node);
        if row.node.is_none() {
            return Err(GrowthError::UnknownNode);
        }
        let with_reservations = row.with_reservations(priority);
        let row = with_reservations.as_ref().unwrap_or(row);
        let host = self.inventory().name(node);
        let lacks = |unit, has: i64, requested: i64, more: i64| {
            let free = has.saturating_sub(requested);
            (more > 0 && more > free).then(|| {
                let (free, node) = (free.max(0), host.clone());
                GrowthError::Insufficient { more, unit, free, node }
            })
        };
        let (has, requested) = (&row.allocatable, &row.requested);
        let lacking = [
            lacks("millicores of CPU", has.cpu_milli, requested.cpu_milli, more.cpu),
            lacks("bytes of memory", has.memory, requested.memory, more.memory),
        ];
        if let Some(error) = lacking.into_iter().flatten().next() {
            return Err(error);
        }
        let mut after = (*before).clone();
        let add = |sum: &mut i64, more: i64| *sum = sum.saturating_add(more.max(0));
        add(&mut after.requests.cpu_milli, more.cpu);
        add(&mut after.requests.memory, more.memory);
        add(&mut after.nonzero_cpu_milli, more.cpu);
        add(&mut after.nonzero_memory, more.memory);
        let after = Arc::new(after);
        self.cluster.ledger.resize(uid, after.clone());
        self.growths += 1;
        Ok(Growth { number: self.growths, before, after })
    }

    /// Does the same as [`Scheduler::grow_in_place`] after an earlier request with unknown outcome turned out not to be
    /// carried out: its charge is reverted first.
    ///
    /// # Errors
    /// As for [`Scheduler::grow_in_place`].
    pub fn grow_instead(
        &mut self,
        uid: &Arc<str>,
        unsettled: &Growth,
        more: NodeSize,
    ) -> Result<Growth, GrowthError> {
        self.take_growth_back(uid, unsettled);
        self.grow_in_place(uid, more)
    }

    /// Reverts the charge of a resize that did not happen. A newer state reported by a watch is kept.
    pub fn take_growth_back(&mut self, uid: &Arc<str>, growth: &Growth) {
        let is_ours = |usage: &Arc<Usage>| Arc::ptr_eq(usage, &growth.after);
        if self.cluster.ledger.charge_of(uid).is_some_and(|charge| is_ours(&charge.holding.usage)) {
            self.cluster.ledger.resize(uid, growth.before.clone());
            self.wake_for_parked();
        }
    }
}
