//! Room for pods that are resized in place. Their kubelet hears of it from the API server; the ledger must know sooner, so that nobody
//! is placed there meanwhile.

use std::sync::Arc;

use super::Scheduler;
use berth_model::NodeSize;
use berth_model::Usage;

/// More that is charged for a pod, until its watch tells of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Growth {
    before: Arc<Usage>,
    after: Arc<Usage>,
}

impl Scheduler {
    /// Charges a pod for so much more on its node, if there is room for that beside everything else that is charged or kept there.
    /// A watch that tells of the pod replaces this by the truth; [`Scheduler::take_growth_back`] ends it when nothing comes of it.
    ///
    /// # Errors
    /// Why it cannot be: the pod must stay as it is.
    pub fn grow_in_place(&mut self, uid: &Arc<str>, more: NodeSize) -> Result<Growth, String> {
        let charge = self.ledger.charge_of(uid).ok_or("berth has not seen it on its node yet")?;
        let (node, priority, before) = (charge.node, charge.holding.priority, charge.holding.usage.clone());
        let row = self.inventory().row(node);
        if row.node.is_none() {
            return Err("berth does not know its node".to_owned());
        }
        let with_reservations = row.with_reservations(priority);
        let row = with_reservations.as_ref().unwrap_or(row);
        let lacks = |what: &str, has: i64, requested: i64, more: i64| {
            let free = has.saturating_sub(requested);
            (more > 0 && more > free)
                .then(|| format!("{more} {what} more than {} that are free", free.max(0)))
        };
        let (has, requested) = (&row.allocatable, &row.requested);
        let lacking = [
            lacks("thousandths of a CPU", has.cpu_milli, requested.cpu_milli, more.cpu),
            lacks("bytes of memory", has.memory, requested.memory, more.memory),
        ];
        if let Some(why) = lacking.into_iter().flatten().next() {
            return Err(format!("it would request {why} on node {}", self.inventory().name(node)));
        }
        let mut after = (*before).clone();
        let add = |sum: &mut i64, more: i64| *sum = sum.saturating_add(more.max(0));
        add(&mut after.requests.cpu_milli, more.cpu);
        add(&mut after.requests.memory, more.memory);
        add(&mut after.nonzero_cpu_milli, more.cpu);
        add(&mut after.nonzero_memory, more.memory);
        let after = Arc::new(after);
        self.ledger.resize(uid, after.clone());
        Ok(Growth { before, after })
    }

    /// As [`Scheduler::grow_in_place`], after a request of which nobody knew whether it was carried out, and that was not: what was
    /// charged for that one counts no more.
    ///
    /// # Errors
    /// As there.
    pub fn grow_instead(
        &mut self,
        uid: &Arc<str>,
        unsettled: &Growth,
        more: NodeSize,
    ) -> Result<Growth, String> {
        self.take_growth_back(uid, unsettled);
        self.grow_in_place(uid, more)
    }

    /// The pod was not resized. What a watch has told of it meanwhile stays.
    pub fn take_growth_back(&mut self, uid: &Arc<str>, growth: &Growth) {
        let is_ours = |usage: &Arc<Usage>| Arc::ptr_eq(usage, &growth.after);
        if self.ledger.charge_of(uid).is_some_and(|charge| is_ours(&charge.holding.usage)) {
            self.ledger.resize(uid, growth.before.clone());
            self.wake_for_parked();
        }
    }
}
