//! Quota queues: pods that exceed their quota wait in its queue, report why, and are admitted in order when resources
//! are freed.
//!
//! [`Quotas`] reads the cluster and changes only itself; the scheduler moves the pods and gangs that it releases.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::charge_walks::Charged;
use super::cluster::Cluster;
use super::{Action, Scheduler, State};
use crate::invariants::{Checked, ensure};
use crate::objects::ObjectName;
use crate::queue::Place;
use crate::quota::{Limit, Quota, QuotaChange, QuotaLines, QuotaReport, QuotaUsage, Sums, statuses};

/// Minimum interval between computations of statuses; each is written when it has changed.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of waiting pods whose conditions one slice refreshes.
const REFRESHED_MAX: usize = 256;
/// Autoscalers add nodes for pods that are `Unschedulable`; a new node would not help these.
pub(super) const REASON: &str = "QuotaExceeded";

/// Queues and statuses of quotas. Their definitions are with the other objects; their usage is counted by the ledger.
#[derive(Debug, Default)]
pub(super) struct Quotas {
    lines: QuotaLines,
    /// Quotas to check: a pod joined the queue, or resources may have been freed.
    due: BTreeSet<Arc<str>>,
    /// Uids of pods that joined a queue and have no condition yet.
    fresh: BTreeSet<Arc<str>>,
    /// Number of pods preempted for a guarantee since the start, by their quota.
    reclaimed: BTreeMap<Arc<str>, u64>,
    /// Statuses last written.
    written: BTreeMap<Arc<str>, QuotaReport>,
    /// Time when statuses were last computed.
    computed_at: Option<Duration>,
    /// Time when the conditions of all waiting pods were last refreshed.
    refreshed_at: Duration,
    /// The last entry of the refresh that is under way.
    refreshed: Option<(Arc<str>, Sums, Place)>,
    /// Statuses may have changed.
    news: bool,
    /// Version of the accounts when statuses were last computed.
    version: u64,
}

/// Usage of a quota, and the number of pods and gangs that wait for it.
#[derive(Debug, Clone)]
pub struct QuotaStanding {
    pub name: Arc<str>,
    pub standing: Vec<QuotaUsage>,
    pub waiting: usize,
    /// Number of pods preempted for a guarantee since the start.
    pub reclaimed: u64,
}

impl Quotas {
    pub(super) fn lines(&self) -> &QuotaLines {
        &self.lines
    }

    pub(super) fn namespace_changed(&mut self) {
        self.news = true;
    }

    pub(super) fn rewrite_all(&mut self) {
        self.written.clear();
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

    fn changed(&mut self, quota: &Arc<str>) {
        self.news = true;
        self.due.insert(quota.clone());
    }

    fn all_changed(&mut self) {
        self.news = true;
        self.due.extend(self.lines.quotas().cloned());
    }

    fn deleted(&mut self, quota: &str) {
        self.written.remove(quota);
        self.reclaimed.remove(quota);
    }

    /// Marks the queue to be checked. Returns whether it was not.
    fn line_changed(&mut self, quota: &Arc<str>) -> bool {
        self.news = true;
        self.due.insert(quota.clone())
    }

    /// Queues a pod or a gang for this much at once. Returns whether an agent must be woken for it.
    fn join(&mut self, quota: &Arc<str>, key: &Arc<str>, wanted: Sums, place: Place) -> bool {
        self.lines.join(quota, key, wanted, place);
        self.line_changed(quota)
    }

    /// Removes a pod or a gang from its queue. Returns whether an agent must be woken.
    fn leave(&mut self, key: &str) -> bool {
        self.fresh.remove(key);
        let Some(quota) = self.lines.standing(key).map(|(quota, _)| quota.clone()) else {
            return false;
        };
        // The resources set aside for it are free.
        self.lines.leave(key);
        self.line_changed(&quota)
    }

    /// Takes the pods and gangs that fit their quota now out of its queue, in order.
    fn release(&mut self, name: &Arc<str>, cluster: &Cluster) -> Vec<Arc<str>> {
        if self.lines.waiting(name) == 0 {
            return Vec::new();
        }
        let nothing = Limit::default();
        // Without a quota, or with an invalid one, there is no limit.
        let quota = cluster.objects.quotas.get(name).and_then(|quota| quota.valid());
        let maximum = quota.map_or(&nothing, |limits| &limits.maximum);
        let released = self.lines.release(name, maximum, cluster.ledger.accounts().of(name));
        self.news |= !released.is_empty();
        released.iter().for_each(|key| {
            self.fresh.remove(key);
        });
        released
    }

    /// Returns why the pod waits for its quota.
    fn message(&self, uid: &str, cluster: &Cluster) -> Option<String> {
        let (quota, wanted) = self.lines.standing(uid)?;
        Some(match cluster.together_over_quota(quota, wanted) {
            Some(lack) => lack.message(quota),
            None => queued_message(quota),
        })
    }

    /// Takes some of the waiting pods whose conditions are to be refreshed, which is once per refresh interval. Gangs
    /// report to their members themselves.
    fn take_refresh(&mut self, cluster: &Cluster, now: Duration) -> Vec<Arc<str>> {
        if self.refreshed.is_none() && now.saturating_sub(self.refreshed_at) < cluster.config.refresh {
            return Vec::new();
        }
        let slice = self.lines.after(self.refreshed.as_ref(), REFRESHED_MAX);
        match slice.last() {
            Some((quota, wanted, place, _)) if slice.len() == REFRESHED_MAX => {
                self.refreshed = Some((quota.clone(), wanted.clone(), *place));
            }
            _ => (self.refreshed, self.refreshed_at) = (None, now),
        }
        let is_pod =
            |key: &Arc<str>| cluster.waiting.get(key).is_some_and(|pod| pod.state == State::OverQuota);
        slice.into_iter().map(|(_, _, _, key)| key).filter(is_pod).collect()
    }

    /// Returns whether statuses are to be computed: something changed, and the last time is long enough ago.
    fn take_news(&mut self, cluster: &Cluster, now: Duration) -> bool {
        let early = self.computed_at.is_some_and(|at| now.saturating_sub(at) < STATUS_INTERVAL);
        let version = cluster.ledger.accounts().version();
        if early || !self.news && self.version == version {
            return false;
        }
        (self.news, self.version, self.computed_at) = (false, version, Some(now));
        true
    }

    /// Returns the statuses that have changed since they were last written.
    fn changed_statuses(&mut self, cluster: &Cluster) -> Vec<QuotaReport> {
        let objects = &cluster.objects;
        let mut namespaces: Vec<_> = objects.namespaces().collect();
        namespaces.sort_unstable_by_key(|(name, _)| *name);
        let accounts = cluster.ledger.accounts();
        let total = cluster.inventory().allocatable();
        let mut news = statuses(&objects.quotas, accounts, &self.lines, &self.reclaimed, &namespaces, total);
        news.retain(|status| self.written.get(&status.name) != Some(status));
        for status in &news {
            self.written.insert(status.name.clone(), status.clone());
        }
        news
    }

    fn standing(&self, quota: &Quota, cluster: &Cluster) -> QuotaStanding {
        QuotaStanding {
            name: quota.name.clone(),
            standing: QuotaUsage::of(quota, cluster.ledger.accounts()),
            waiting: self.lines.waiting(&quota.name),
            reclaimed: self.reclaimed.get(&quota.name).copied().unwrap_or(0),
        }
    }
}

fn queued_message(quota: &str) -> String {
    format!("quota {quota}: there is free capacity, but it is reserved for pods queued before this one")
}

/// Returns the message for a gang's members, which are queued together.
pub(super) fn gang_message(quota: &str, wanted: &Sums, cluster: &Cluster) -> String {
    match cluster.together_over_quota(quota, wanted) {
        Some(lack) => format!("{} (for the pods that must be placed together)", lack.message(quota)),
        None => queued_message(quota),
    }
}

impl Scheduler {
    // Definitions.

    pub(super) fn apply_quota(&mut self, quota: Quota) {
        let name = quota.name.clone();
        let change = self.cluster.objects.quotas.apply(quota);
        self.quota_changed(&name, change);
    }

    pub(super) fn delete_quota(&mut self, name: &Arc<str>) {
        let change = self.cluster.objects.quotas.delete(name);
        self.quotas.deleted(name);
        self.quota_changed(name, change);
    }

    pub(super) fn retain_quotas(&mut self, listed: &HashSet<ObjectName>) {
        for name in self.cluster.objects.quotas.unlisted(listed) {
            self.delete_quota(&name);
        }
    }

    fn quota_changed(&mut self, name: &Arc<str>, change: QuotaChange) {
        match change {
            QuotaChange::Nothing => return,
            QuotaChange::Limits => {}
            QuotaChange::Pods => {
                self.recharge_for_quotas(Charged::All);
                self.stale.mark_all();
            }
        }
        self.preemption.retry_preemption();
        self.crowds.quotas_changed();
        self.quotas.changed(name);
        self.wake_all();
    }

    // Waiting.

    /// Queues a pod at its quota if that lacks resources, or if other pods are queued before it. Returns whether it
    /// waits.
    pub(super) fn queue_for_quota(&mut self, uid: &Arc<str>, now: Duration) -> bool {
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
        self.wait_for_quota(uid, now);
        true
    }

    /// Offers the room that a pod of this quota was admitted to, and does not take now, to those that wait for it.
    pub(super) fn offer_quota_again(&mut self, quota: Option<&Arc<str>>) {
        if let Some(quota) = quota.filter(|quota| self.quotas.lines.waiting(quota) > 0)
            && self.quotas.line_changed(quota)
        {
            self.actions.push(Action::WakeAgent(0));
        }
    }

    /// Moves the pod from any queue to that of its quota.
    pub(super) fn wait_for_quota(&mut self, uid: &Arc<str>, now: Duration) {
        if self.hold_back_again(uid, self.inventory().revision(), now) {
            return;
        }
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
        // Its placements so far may have conflicted; it is queued anew when it is admitted.
        waiting.start_over();
        let (wanted, place) = (Sums::from(&*waiting.holding.usage), waiting.place());
        self.quotas.fresh.insert(uid.clone());
        self.join_line(&quota, uid, wanted, place);
        // A pod that may not be placed keeps no reservation.
        self.end_nomination(uid, true);
    }

    /// Queues a pod or a gang at this quota, for this much at once.
    pub(super) fn join_line(&mut self, quota: &Arc<str>, key: &Arc<str>, wanted: Sums, place: Place) {
        if self.quotas.join(quota, key, wanted, place) {
            self.actions.push(Action::WakeAgent(0));
        }
    }

    pub(super) fn leave_line(&mut self, key: &str) {
        if self.quotas.leave(key) {
            self.actions.push(Action::WakeAgent(0));
        }
    }

    /// Wakes an agent if resources may have been freed in a quota with waiting pods.
    pub(super) fn wake_for_quotas(&mut self) {
        if self.cluster.ledger.accounts().has_freed() && !self.quotas.lines.is_empty() {
            self.actions.push(Action::WakeAgent(0));
        }
    }

    /// Lets pods that waited until all quotas were recounted go on.
    pub(super) fn quotas_recounted(&mut self) {
        self.quotas.all_changed();
        self.crowds.quotas_changed();
        self.preemption.hunt_for_all();
        self.actions.push(Action::WakeAgent(0));
    }

    /// Admits pods and gangs that fit their quota now, and reports to newly queued ones.
    pub(super) fn maintain_quotas(&mut self, now: Duration) {
        if self.cluster.recounting_quotas {
            return;
        }
        if self.cluster.ledger.accounts().has_freed() {
            let freed = self.cluster.ledger.take_freed_quotas();
            self.quotas.due.extend(freed);
        }
        if !self.synced() {
            return;
        }
        for quota in std::mem::take(&mut self.quotas.due) {
            for key in self.quotas.release(&quota, &self.cluster) {
                match self.cluster.waiting.get_mut(&key) {
                    Some(waiting) => {
                        // If it fits nowhere, that must be reported instead of this.
                        (waiting.reported, waiting.admitted) = (None, true);
                        self.enter(&key, now);
                    }
                    None => self.gang_has_quota(&key, now),
                }
            }
        }
        if self.cluster.leading {
            for uid in std::mem::take(&mut self.quotas.fresh) {
                self.report_reason(&uid, true);
            }
        }
    }

    /// Reports to a pod why it waits for its quota.
    pub(super) fn report_quota(&mut self, uid: &Arc<str>, event: bool) {
        if let Some(message) = self.quotas.message(uid, &self.cluster) {
            self.report(uid, REASON, message.into(), event);
        }
    }

    // Statuses.

    pub(super) fn report_quotas(&mut self, now: Duration) {
        if !self.synced() || self.cluster.objects.quotas.is_empty() {
            return;
        }
        for uid in self.quotas.take_refresh(&self.cluster, now) {
            self.report_quota(&uid, false);
        }
        if self.quotas.take_news(&self.cluster, now) {
            self.preemption.hunt_for_quotas(&self.cluster);
            let statuses = self.quotas.changed_statuses(&self.cluster);
            self.actions.extend(statuses.into_iter().map(|status| Action::TellQuota(Box::new(status))));
        }
    }

    /// Returns usage and queue length of each quota, for metrics. By name, at most `most`.
    pub fn quota_standings(&self, most: usize) -> Vec<QuotaStanding> {
        let quotas = self.cluster.objects.quotas.iter().take(most);
        quotas.map(|quota| self.quotas.standing(quota, &self.cluster)).collect()
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
