//! Slices of what a page for people shows. Change nothing.

use super::{Engine, Operation};
use crate::gang::{AllocationName, GangStatus};
use crate::inventory::Revision;
use crate::scheduler::{NodeOverview, Totals, WaitingOverview};

impl Engine {
    /// Calls `visit` with each row that has changed after `seen`, and returns the revision to go on from the next time. Takes the lock
    /// for [`OVERVIEW_SLICE`](crate::scheduler::OVERVIEW_SLICE) rows at a time.
    pub fn visit_changed_nodes(&self, mut seen: Revision, mut visit: impl FnMut(NodeOverview)) -> Revision {
        // Rows that change meanwhile are for the next time: otherwise this would not end while every row changes all the time.
        let newest = self.read(Operation::Snapshot, |scheduler, _| scheduler.inventory().revision());
        while seen < newest
            && let Some((rows, last)) =
                self.read(Operation::Snapshot, |scheduler, _| scheduler.changed_nodes(seen))
        {
            rows.into_iter().for_each(&mut visit);
            seen = last;
        }
        seen
    }

    /// Calls `visit` with each waiting pod, in the order of their arrival. Takes the lock for
    /// [`OVERVIEW_SLICE`](crate::scheduler::OVERVIEW_SLICE) pods at a time.
    pub fn visit_waiting(&self, mut visit: impl FnMut(WaitingOverview)) {
        let mut from = 0;
        while let Some((pods, next)) =
            self.read(Operation::Snapshot, |scheduler, _| scheduler.waiting_from(from))
        {
            pods.into_iter().for_each(&mut visit);
            from = next;
        }
    }

    /// Calls `visit` with each status of an allocation that this process has written. Takes the lock for
    /// [`OVERVIEW_SLICE`](crate::scheduler::OVERVIEW_SLICE) allocations at a time.
    pub fn visit_gangs(&self, mut visit: impl FnMut(GangStatus)) {
        let mut after: Option<AllocationName> = None;
        while let Some((statuses, last)) =
            self.read(Operation::Snapshot, |scheduler, _| scheduler.gangs_after(after.as_ref()))
        {
            statuses.into_iter().for_each(&mut visit);
            after = Some(last);
        }
    }

    /// Returns counters and sizes. Bounded by the number of agents.
    pub fn totals(&self) -> Totals {
        self.read(Operation::Snapshot, |scheduler, _| scheduler.totals())
    }
}
