//! Quota queues: pods that exceed their quota wait in its queue, report why, and are admitted in order when resources
//! are freed.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::{Action, Scheduler, State};
use crate::invariants::{Checked, ensure};
use crate::objects::ObjectName;
use crate::queue::Place;
use crate::quota::{Change, Lines, Quota, QuotaStatus, Standing, Sums, statuses};

/// Minimum interval between computations of statuses; each is written when it has changed.
const STATUS_PACE: Duration = Duration::from_secs(1);
/// Autoscalers add nodes for pods that are `Unschedulable`; a new node would not help these.
const REASON: &str = "QuotaExceeded";

/// Queues and statuses of quotas. Their definitions are with the other objects; their usage is counted by the ledger.
#[derive(Debug, Default)]
pub(super) struct Quotas {
    lines: Lines,
    /// Quotas to check: a pod joined the queue, or resources may have been freed.
    due: BTreeSet<Arc<str>>,
    /// Uids of pods that joined a queue and have no condition yet.
    fresh: BTreeSet<Arc<str>>,
    /// Number of pods preempted for a guarantee since the start, by their quota.
    reclaimed: BTreeMap<Arc<str>, u64>,
    told: BTreeMap<Arc<str>, QuotaStatus>,
    looked_at: Option<Duration>,
    /// Time when the conditions of all waiting pods were last refreshed.
    refreshed_at: Duration,
    /// Statuses may have changed.
    news: bool,
    /// Version of the accounts when statuses were last computed.
    version: u64,
}

/// Usage of a quota, and the number of pods and gangs that wait for it.
#[derive(Debug, Clone)]
pub struct QuotaStanding {
    pub name: Arc<str>,
    pub standing: Vec<Standing>,
    pub waiting: usize,
    /// Number of pods preempted for a guarantee since the start.
    pub reclaimed: u64,
}

impl Quotas {
    pub(super) fn lines(&self) -> &Lines {
        &self.lines
    }

    pub(super) fn namespace_changed(&mut self) {
        self.news = true;
    }

    pub(super) fn tell_again(&mut self) {
        self.told.clear();
        self.news = true;
    }

    /// Counts a pod of the quota that is preempted for another quota's guarantee.
    pub(super) fn reclaimed(&mut self, quota: &Arc<str>) {
        *self.reclaimed.entry(quota.clone()).or_default() += 1;
        self.news = true;
    }

    pub(super) fn is_fresh(&self, uid: &str) -> bool {
        self.fresh.contains(uid)
    }
}

impl Scheduler {
    // Definitions.

    pub(super) fn apply_quota(&mut self, quota: Quota) {
        let name = quota.name.clone();
        let change = self.cluster.objects.quotas.apply(quota);
        self.heed_quota(&name, change);
    }

    pub(super) fn delete_quota(&mut self, name: &Arc<str>) {
        let change = self.cluster.objects.quotas.delete(name);
        self.quotas.told.remove(name);
        self.quotas.reclaimed.remove(name);
        self.heed_quota(name, change);
    }

    pub(super) fn retain_quotas(&mut self, listed: &HashSet<ObjectName>) {
        for name in self.cluster.objects.quotas.unlisted(listed) {
            self.delete_quota(&name);
        }
    }

    fn heed_quota(&mut self, name: &Arc<str>, change: Change) {
        match change {
            Change::Nothing => return,
            Change::Limits => {}
            Change::Pods => {
                let objects = &mut self.cluster.objects;
                self.cluster.ledger.rehold(|holding| {
                    let quota = objects.quotas.find(&holding.peer.identity);
                    (quota != holding.quota.as_ref()).then(|| objects.renewed(holding))
                });
                self.stale.mark_all();
            }
        }
        self.preemption.hope_again();
        self.quotas.news = true;
        self.quotas.due.insert(name.clone());
        self.wake_all();
    }

    // Waiting.

    /// Queues a pod at its quota if that lacks resources, or if other pods are queued before it. Returns whether it
    /// waits.
    pub(super) fn queue_for_quota(&mut self, uid: &Arc<str>) -> bool {
        let Some(waiting) = self.cluster.waiting.get(uid) else {
            return false;
        };
        let Some(quota) = &waiting.holding.quota else {
            return false;
        };
        let behind = !waiting.admitted && self.quotas.lines.is_before(quota, waiting.place());
        if !behind && self.cluster.lacks_quota(uid).is_none() {
            return false;
        }
        self.wait_for_quota(uid);
        true
    }

    /// Moves the pod from any queue to that of its quota.
    pub(super) fn wait_for_quota(&mut self, uid: &Arc<str>) {
        self.withdraw(uid);
        let Some(waiting) = self.cluster.waiting.get_mut(uid) else {
            return;
        };
        let Some(quota) = waiting.holding.quota.clone() else {
            debug_assert!(false, "only pods with a quota can exceed it");
            return;
        };
        waiting.state = State::OverQuota;
        waiting.admitted = false;
        let (wanted, place) = (Sums::from(&*waiting.holding.usage), waiting.place());
        self.quotas.lines.join(&quota, uid, wanted, place);
        self.quotas.fresh.insert(uid.clone());
        self.line_due(&quota);
        // A pod that may not be placed keeps no reservation.
        self.end_nomination(uid, true);
    }

    /// Queues a gang at this quota, for this much at once.
    pub(super) fn gang_waits_for_quota(
        &mut self,
        key: &Arc<str>,
        quota: &Arc<str>,
        wanted: Sums,
        place: Place,
    ) {
        self.quotas.lines.join(quota, key, wanted, place);
        self.line_due(quota);
    }

    pub(super) fn leave_line(&mut self, key: &str) {
        self.quotas.fresh.remove(key);
        if let Some((quota, _)) = self.quotas.lines.standing(key) {
            // The resources set aside for it are free.
            let quota = quota.clone();
            self.quotas.lines.leave(key);
            self.line_due(&quota);
        }
    }

    fn line_due(&mut self, quota: &Arc<str>) {
        self.quotas.news = true;
        if self.quotas.due.insert(quota.clone()) {
            self.actions.push(Action::WakeAgent(0));
        }
    }

    /// Wakes an agent if resources may have been freed in a quota with waiting pods.
    pub(super) fn wake_for_quotas(&mut self) {
        if self.cluster.ledger.accounts().has_freed() && !self.quotas.lines.is_empty() {
            self.actions.push(Action::WakeAgent(0));
        }
    }

    /// Admits pods and gangs that fit their quota now, and reports to newly queued ones.
    pub(super) fn look_after_quotas(&mut self, now: Duration) {
        if self.cluster.ledger.accounts().has_freed() {
            let freed = self.cluster.ledger.take_freed_quotas();
            self.quotas.due.extend(freed);
        }
        if !self.synced() {
            return;
        }
        for quota in std::mem::take(&mut self.quotas.due) {
            self.release_from(&quota, now);
        }
        if self.cluster.leading {
            for uid in std::mem::take(&mut self.quotas.fresh) {
                self.tell_why(&uid, true);
            }
        }
    }

    fn release_from(&mut self, name: &Arc<str>, now: Duration) {
        if self.quotas.lines.waiting(name) == 0 {
            return;
        }
        let quota = self.cluster.objects.quotas.get(name).cloned();
        let nothing = crate::quota::Limit::default();
        // Without a quota, or with an invalid one, there is no limit.
        let maximum =
            quota.as_ref().and_then(|quota| quota.valid()).map_or(&nothing, |limits| &limits.maximum);
        let released = self.quotas.lines.release(name, maximum, self.cluster.ledger.accounts().of(name));
        if !released.is_empty() {
            self.quotas.news = true;
        }
        for key in released {
            self.quotas.fresh.remove(&key);
            if let Some(waiting) = self.cluster.waiting.get_mut(&key) {
                // If it fits nowhere, that must be reported instead of this.
                (waiting.told, waiting.admitted) = (None, true);
                self.enter(&key, now);
            } else {
                self.gang_has_quota(&key, now);
            }
        }
    }

    /// Reports to a pod why it waits for its quota.
    pub(super) fn tell_quota(&mut self, uid: &Arc<str>, event: bool) {
        let Some((quota, wanted)) = self.quotas.lines.standing(uid) else {
            return;
        };
        let message = match self.cluster.together_over_quota(quota, wanted) {
            Some(lack) => lack.message(quota),
            None => {
                format!(
                    "quota {quota}: there is free capacity, but it is reserved for pods queued before this one"
                )
            }
        };
        self.tell(uid, REASON, message.into(), event);
    }

    /// Returns the message for a gang's members, which are queued together.
    pub(super) fn gang_quota_message(&self, quota: &str, wanted: &Sums) -> String {
        match self.cluster.together_over_quota(quota, wanted) {
            Some(lack) => format!("{} (for the pods that must be placed together)", lack.message(quota)),
            None => {
                format!(
                    "quota {quota}: there is free capacity, but it is reserved for pods queued before this one"
                )
            }
        }
    }

    pub(super) fn tell_quota_reason(&mut self, uid: &Arc<str>, message: Arc<str>) {
        self.tell(uid, REASON, message, true);
    }

    // Statuses.

    pub(super) fn tell_quotas(&mut self, now: Duration) {
        if !self.synced() || self.cluster.objects.quotas.is_empty() {
            return;
        }
        self.refresh_lines(now);
        let early = self.quotas.looked_at.is_some_and(|at| now.saturating_sub(at) < STATUS_PACE);
        let version = self.cluster.ledger.accounts().version();
        if early || !self.quotas.news && self.quotas.version == version {
            return;
        }
        (self.quotas.news, self.quotas.version, self.quotas.looked_at) = (false, version, Some(now));
        self.preemption.hunt_for_quotas(&self.cluster, &self.parked, &mut self.actions);
        let mut namespaces: Vec<_> = self.cluster.objects.namespaces().collect();
        namespaces.sort_unstable_by_key(|(name, _)| *name);
        let mut news = statuses(
            &self.cluster.objects.quotas,
            self.cluster.ledger.accounts(),
            &self.quotas.lines,
            &self.quotas.reclaimed,
            &namespaces,
            &self.cluster_has(),
        );
        news.retain(|status| self.quotas.told.get(&status.name) != Some(status));
        for status in news {
            self.quotas.told.insert(status.name.clone(), status.clone());
            self.actions.push(Action::TellQuota(Box::new(status)));
        }
    }

    /// Returns the allocatable resources of all nodes.
    fn cluster_has(&self) -> Sums {
        let mut sums = Sums::default();
        for row in self.inventory().rows() {
            let Some(node) = &row.node else { continue };
            sums.add_amounts(&row.allocatable);
            for (name, amount) in node.extended.iter() {
                sums.change(crate::quota::Resource::Extended(name.clone()), amount.into());
            }
        }
        sums
    }

    /// Refreshes the conditions of waiting pods once per refresh interval.
    fn refresh_lines(&mut self, now: Duration) {
        if now.saturating_sub(self.quotas.refreshed_at) < self.cluster.config.refresh {
            return;
        }
        self.quotas.refreshed_at = now;
        let quotas: Vec<_> = self.quotas.lines.quotas().cloned().collect();
        for quota in quotas {
            let is_pod = |key: &&Arc<str>| {
                self.cluster.waiting.get(*key).is_some_and(|pod| pod.state == State::OverQuota)
            };
            // Gangs report to their members themselves.
            let pods: Vec<_> = self.quotas.lines.all(&quota).filter(is_pod).cloned().collect();
            pods.iter().for_each(|uid| self.tell_quota(uid, false));
        }
    }

    /// Returns usage and queue length of each quota, for metrics. By name, at most `most`.
    pub fn quota_standings(&self, most: usize) -> Vec<QuotaStanding> {
        let of = |quota: &Arc<Quota>| {
            let (name, standing) = (quota.name.clone(), Standing::of(quota, self.cluster.ledger.accounts()));
            let reclaimed = self.quotas.reclaimed.get(&quota.name).copied().unwrap_or(0);
            QuotaStanding { name, standing, waiting: self.quotas.lines.waiting(&quota.name), reclaimed }
        };
        self.cluster.objects.quotas.iter().take(most).map(of).collect()
    }

    /// Checks that exactly the pods and gangs in the state `OverQuota` are queued at quotas.
    pub(super) fn check_lines(&self) -> Checked {
        let pods = self.cluster.waiting.values().filter(|pod| pod.state == State::OverQuota).count();
        let gangs = self.gangs.over_quota();
        let lines = self.quotas.lines.len();
        ensure(1, pods + gangs == lines, || {
            format!("{pods} pods and {gangs} gangs wait for quotas, but the queues have {lines}")
        })
    }
}
