//! Quotas: pods for which there is no room in theirs wait in its line, are told why, and are woken in order when there is.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::{Action, Scheduler, State};
use crate::invariants::{Checked, ensure};
use crate::objects::ObjectName;
use crate::queue::Place;
use crate::quota::{Change, Lack, Lines, Quota, QuotaStatus, Standing, Sums, statuses};
use berth_model::Usage;

/// Statuses are computed at most this often, and each is written when it is another one.
const STATUS_PACE: Duration = Duration::from_secs(1);
/// Autoscalers add nodes for pods that are `Unschedulable`; a new node would not help these.
const REASON: &str = "QuotaExceeded";

/// What is known of quotas beside their definitions, which are with the other objects, and what they hold, which the ledger
/// counts.
#[derive(Debug, Default)]
pub(super) struct Quotas {
    lines: Lines,
    /// Somebody joined the line, or there may be room: it is to be looked at.
    due: BTreeSet<Arc<str>>,
    /// Pods that joined a line and have not been told yet, by uid.
    fresh: BTreeSet<Arc<str>>,
    /// Pods that were preempted since the start for a guarantee, by their quota.
    reclaimed: BTreeMap<Arc<str>, u64>,
    told: BTreeMap<Arc<str>, QuotaStatus>,
    looked_at: Option<Duration>,
    /// When all that wait were last told the numbers of that time.
    refreshed_at: Duration,
    /// Statuses may be others than what was told.
    news: bool,
    /// Of the accounts when statuses were last computed.
    version: u64,
}

/// How much of a quota is used, and how many wait for it.
#[derive(Debug, Clone)]
pub struct QuotaStanding {
    pub name: Arc<str>,
    pub standing: Vec<Standing>,
    pub waiting: usize,
    /// Pods that were preempted since the start for a guarantee.
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

    /// One of its pods is preempted for somebody's guarantee.
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
        let change = self.objects.quotas.apply(quota);
        self.heed_quota(&name, change);
    }

    pub(super) fn delete_quota(&mut self, name: &Arc<str>) {
        let change = self.objects.quotas.delete(name);
        self.quotas.told.remove(name);
        self.quotas.reclaimed.remove(name);
        self.heed_quota(name, change);
    }

    pub(super) fn retain_quotas(&mut self, listed: &HashSet<ObjectName>) {
        for name in self.objects.quotas.unlisted(listed) {
            self.delete_quota(&name);
        }
    }

    fn heed_quota(&mut self, name: &Arc<str>, change: Change) {
        match change {
            Change::Nothing => return,
            Change::Limits => {}
            Change::Pods => {
                let objects = &mut self.objects;
                self.ledger.rehold(|holding| {
                    let quota = objects.quotas.find(&holding.peer.identity);
                    (quota != holding.quota.as_ref()).then(|| objects.renewed(holding))
                });
                self.stale.everyone = true;
            }
        }
        self.preemption.hope_again();
        self.quotas.news = true;
        self.quotas.due.insert(name.clone());
        self.wake_all();
    }

    // Waiting.

    /// What a pod with this usage lacks in this quota now.
    pub(super) fn over_quota(&self, quota: Option<&Arc<str>>, usage: &Usage) -> Option<Lack> {
        let quota = self.objects.quotas.get(quota?)?;
        self.ledger.accounts().of(&quota.name).lacks_for(&quota.valid()?.maximum, usage)
    }

    /// The same for some pods together.
    pub(super) fn together_over_quota(&self, quota: &str, wanted: &Sums) -> Option<Lack> {
        let quota = self.objects.quotas.get(quota)?;
        self.ledger.accounts().of(&quota.name).lacks(&quota.valid()?.maximum, wanted)
    }

    /// What the waiting pod `uid` lacks in its quota now.
    pub(super) fn lacks_quota(&self, uid: &str) -> Option<Lack> {
        let holding = &self.waiting.get(uid)?.holding;
        self.over_quota(holding.quota.as_ref(), &holding.usage)
    }

    /// Puts a pod into the line of its quota if there is no room in it, or if others were there before. Returns whether it waits.
    pub(super) fn queue_for_quota(&mut self, uid: &Arc<str>) -> bool {
        let Some(waiting) = self.waiting.get(uid) else {
            return false;
        };
        let Some(quota) = &waiting.holding.quota else {
            return false;
        };
        let behind = !waiting.admitted && self.quotas.lines.is_before(quota, waiting.place());
        if !behind && self.lacks_quota(uid).is_none() {
            return false;
        }
        self.wait_for_quota(uid);
        true
    }

    /// The pod, wherever it is, waits for room in its quota.
    pub(super) fn wait_for_quota(&mut self, uid: &Arc<str>) {
        self.withdraw(uid);
        let Some(waiting) = self.waiting.get_mut(uid) else {
            return;
        };
        let Some(quota) = waiting.holding.quota.clone() else {
            debug_assert!(false, "only pods of a quota lack room in it");
            return;
        };
        waiting.state = State::OverQuota;
        waiting.admitted = false;
        let (wanted, place) = (Sums::from(&*waiting.holding.usage), waiting.place());
        self.quotas.lines.join(&quota, uid, wanted, place);
        self.quotas.fresh.insert(uid.clone());
        self.line_due(&quota);
        // No room is kept for what may not be placed.
        self.end_nomination(uid, true);
    }

    /// A gang waits for room in this quota, for so much at once.
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
            // What was set aside for it is free.
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

    /// Something may have become free in a quota that pods wait for.
    pub(super) fn wake_for_quotas(&mut self) {
        if self.ledger.accounts().has_freed() && !self.quotas.lines.is_empty() {
            self.actions.push(Action::WakeAgent(0));
        }
    }

    /// Lets go who has room in its quota now, and tells the others.
    pub(super) fn look_after_quotas(&mut self, now: Duration) {
        if self.ledger.accounts().has_freed() {
            let freed = self.ledger.take_freed_quotas();
            self.quotas.due.extend(freed);
        }
        if !self.synced() {
            return;
        }
        for quota in std::mem::take(&mut self.quotas.due) {
            self.release_from(&quota, now);
        }
        if self.leading {
            for uid in std::mem::take(&mut self.quotas.fresh) {
                self.tell_why(&uid, true);
            }
        }
    }

    fn release_from(&mut self, name: &Arc<str>, now: Duration) {
        if self.quotas.lines.waiting(name) == 0 {
            return;
        }
        let quota = self.objects.quotas.get(name).cloned();
        let nothing = crate::quota::Limit::default();
        // Without a quota, or with an invalid one, nothing is limited.
        let maximum =
            quota.as_ref().and_then(|quota| quota.valid()).map_or(&nothing, |limits| &limits.maximum);
        let released = self.quotas.lines.release(name, maximum, self.ledger.accounts().of(name));
        if !released.is_empty() {
            self.quotas.news = true;
        }
        for key in released {
            self.quotas.fresh.remove(&key);
            if let Some(waiting) = self.waiting.get_mut(&key) {
                // Should it fit nowhere, it is to know that and not this.
                (waiting.told, waiting.admitted) = (None, true);
                self.enter(&key, now);
            } else {
                self.gang_has_quota(&key, now);
            }
        }
    }

    /// What a pod that waits for room in its quota is told.
    pub(super) fn tell_quota(&mut self, uid: &Arc<str>, event: bool) {
        let Some((quota, wanted)) = self.quotas.lines.standing(uid) else {
            return;
        };
        let message = match self.together_over_quota(quota, wanted) {
            Some(lack) => lack.message(quota),
            None => {
                format!("quota {quota}: there is room, but it is kept for pods that wait before this one")
            }
        };
        self.tell(uid, REASON, message.into(), event);
    }

    /// The same for a gang's members, who stand in the line together.
    pub(super) fn gang_quota_message(&self, quota: &str, wanted: &Sums) -> String {
        match self.together_over_quota(quota, wanted) {
            Some(lack) => format!("{} (for the pods that must be placed together)", lack.message(quota)),
            None => {
                format!("quota {quota}: there is room, but it is kept for pods that wait before this one")
            }
        }
    }

    pub(super) fn tell_quota_reason(&mut self, uid: &Arc<str>, message: Arc<str>) {
        self.tell(uid, REASON, message, true);
    }

    // Statuses.

    pub(super) fn tell_quotas(&mut self, now: Duration) {
        if !self.synced() || self.objects.quotas.is_empty() {
            return;
        }
        self.refresh_lines(now);
        let early = self.quotas.looked_at.is_some_and(|at| now.saturating_sub(at) < STATUS_PACE);
        let version = self.ledger.accounts().version();
        if early || !self.quotas.news && self.quotas.version == version {
            return;
        }
        (self.quotas.news, self.quotas.version, self.quotas.looked_at) = (false, version, Some(now));
        self.hunt_for_quotas();
        let mut namespaces: Vec<_> = self.objects.namespaces().collect();
        namespaces.sort_unstable_by_key(|(name, _)| *name);
        let mut news = statuses(
            &self.objects.quotas,
            self.ledger.accounts(),
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

    /// What all nodes have.
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

    /// Now and then those that wait are told the numbers of the time.
    fn refresh_lines(&mut self, now: Duration) {
        if now.saturating_sub(self.quotas.refreshed_at) < self.config.refresh {
            return;
        }
        self.quotas.refreshed_at = now;
        let quotas: Vec<_> = self.quotas.lines.quotas().cloned().collect();
        for quota in quotas {
            let is_pod =
                |key: &&Arc<str>| self.waiting.get(*key).is_some_and(|pod| pod.state == State::OverQuota);
            // Gangs tell their members.
            let pods: Vec<_> = self.quotas.lines.all(&quota).filter(is_pod).cloned().collect();
            pods.iter().for_each(|uid| self.tell_quota(uid, false));
        }
    }

    /// How much of each quota is used, and how many wait; for metrics. By name, at most `most`.
    pub fn quota_standings(&self, most: usize) -> Vec<QuotaStanding> {
        let of = |quota: &Arc<Quota>| {
            let (name, standing) = (quota.name.clone(), Standing::of(quota, self.ledger.accounts()));
            let reclaimed = self.quotas.reclaimed.get(&quota.name).copied().unwrap_or(0);
            QuotaStanding { name, standing, waiting: self.quotas.lines.waiting(&quota.name), reclaimed }
        };
        self.objects.quotas.iter().take(most).map(of).collect()
    }

    /// I12: what a pod that was just placed asks for is within the maximum of its quota.
    pub(super) fn within_quota(&self, uid: &str) -> Checked {
        let Some(holding) = self.ledger.charge_of(uid).map(|charge| &charge.holding) else {
            return Ok(());
        };
        let Some(quota) = holding.quota.as_ref().and_then(|name| self.objects.quotas.get(name)) else {
            return Ok(());
        };
        let Some(limits) = quota.valid() else { return Ok(()) };
        crate::invariants::within_maximum(
            &quota.name,
            &limits.maximum,
            self.ledger.accounts().of(&quota.name),
            &holding.usage,
        )
    }

    /// Who stands in a line is there, and the other way round.
    pub(super) fn check_lines(&self) -> Checked {
        let pods = self.waiting.values().filter(|pod| pod.state == State::OverQuota).count();
        let gangs = self.gangs.over_quota();
        let lines = self.quotas.lines.len();
        ensure(1, pods + gangs == lines, || {
            format!("{pods} pods and {gangs} gangs wait for quotas, but {lines} stand in a line")
        })
    }
}
