//! Selection of the pods of a VPA to update now, their order, and the way of updating.
//!
//! Upstream: `pkg/updater/priority/update_priority_calculator.go`, `scaling_direction_pod_eviction_admission.go`
//! and `pkg/updater/restriction`. A round is created for one VPA and queried for each candidate in turn, because
//! each action affects the decision about the next candidate.

use std::collections::{BTreeMap, BTreeSet};

use super::boost::{self, BoostState};
use super::budget::Budget;
use super::change::{changes, recommended};
use super::hold::Hold;
use super::in_place::{self, DEFERRED_MAX, ResizeAdvice};
use super::limit_range::Ranges;
use super::memory::UpdaterMemory;
use super::mode::Mode;
use super::pod::SizeChange;
use super::pod::SizedPod;
use super::qos;
use crate::recommend::amount::Amount;
use crate::recommend::change::{SizeDifference, difference};
use crate::recommend::time::NEVER;
use crate::recommend::{LastEviction, OptionalAmounts, OwnerRef, Recommendation, UnixNanos, Vpa};

const SECOND_NS: i64 = 1_000_000_000;
const MINUTE_NS: i64 = 60 * SECOND_NS;
/// Backoff for evictions after a PodDisruptionBudget has refused one.
const REFUSED_REST: i64 = 5 * 60 * SECOND_NS;

/// Backoff for evictions after evicted pods have come back unchanged: nothing was gained by them.
const UNCHANGED_REST: i64 = 24 * 3_600 * SECOND_NS;

/// Rules for when and how far pods may be disturbed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DisruptionRules {
    /// Minimum number of pods of a controller for updates that restart them.
    pub min_replicas: i64,
    /// Share of a controller's pods that may be missing.
    pub tolerance: f64,
    /// Maximum number of evictions within a minute, of all controllers.
    pub evictions_per_minute: u32,
    /// Whether running pods may be evicted and containers restarted now.
    pub may_disrupt: bool,
    /// Minimum age in nanoseconds before a pod within its bounds is updated, …
    pub min_age: i64,
    /// … and minimum difference for it, as a share.
    pub min_difference: f64,
    /// A container OOM-killed within this time of its start is updated immediately, in nanoseconds.
    pub quick_oom: i64,
    /// Whether resizes that restart nothing need no budget.
    pub free_in_place: bool,
    /// Whether a webhook sets the recommended resources of new pods.
    pub has_webhook: bool,
}

impl Default for DisruptionRules {
    fn default() -> Self {
        DisruptionRules {
            min_replicas: 2,
            tolerance: 0.5,
            evictions_per_minute: 30,
            may_disrupt: true,
            min_age: 12 * 3_600 * SECOND_NS,
            min_difference: 0.1,
            quick_oom: 600 * SECOND_NS,
            free_in_place: false,
            has_webhook: true,
        }
    }
}

/// Pod that should be updated.
#[derive(Debug, Clone, PartialEq)]
pub struct UpdateCandidate {
    /// Index among the pods of the round.
    pub pod: usize,
    pub difference: SizeDifference,
    /// Whether it is OOM-killed repeatedly.
    pub is_urgent: bool,
    /// Whether the changes only take back what it got for its start.
    pub ends_boost: bool,
    pub changes: Vec<SizeChange>,
}

/// Action for a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpdateStep {
    Resize,
    Evict,
    Hold(Hold),
}

/// Update round over the current pods of one VPA.
pub struct Round<'a> {
    vpa: &'a Vpa,
    mode: Mode,
    pods: &'a [SizedPod],
    ranges: &'a Ranges,
    rules: DisruptionRules,
    memory: &'a mut UpdaterMemory,
    now: UnixNanos,
    groups: BTreeMap<&'a OwnerRef, Result<Budget, Hold>>,
}

impl<'a> Round<'a> {
    /// Creates a round. `pods` are those that the VPA controls and that are not finished. `replicas` is the desired
    /// number of pods of each controller, where known.
    pub fn new(
        (vpa, pods): (&'a Vpa, &'a [SizedPod]),
        ranges: &'a Ranges,
        replicas: &BTreeMap<OwnerRef, usize>,
        rules: DisruptionRules,
        memory: &'a mut UpdaterMemory,
        now: UnixNanos,
    ) -> Round<'a> {
        let mut counts: BTreeMap<&OwnerRef, (usize, usize)> = BTreeMap::new();
        for pod in pods.iter().filter(|pod| !pod.is_deleting) {
            if let Some(owner) = &pod.owner {
                let (there, running) = counts.entry(owner).or_default();
                *there += 1;
                *running += usize::from(!pod.is_pending);
            }
        }
        let least = vpa.update.min_replicas.unwrap_or(rules.min_replicas);
        let budget = |owner: &OwnerRef, (there, running): (usize, usize)| {
            let configured = replicas.get(owner).ok_or(Hold::UnknownReplicas)?;
            let is_too_small = i64::try_from(there).is_ok_and(|there| there < least);
            Ok(Budget { is_too_small, ..Budget::new(*configured, running, rules.tolerance) })
        };
        let groups = counts.into_iter().map(|(owner, counts)| (owner, budget(owner, counts))).collect();
        Round { vpa, mode: Mode::of(&vpa.update_mode), pods, ranges, rules, memory, now, groups }
    }

    /// Returns the pods to update, those that need more first, then by difference; and the pods that should be
    /// updated but cannot be, with the reason.
    pub fn candidates(&self) -> (Vec<UpdateCandidate>, Vec<(usize, Hold)>) {
        let (mut candidates, mut held) = (Vec::new(), Vec::new());
        for (index, pod) in self.pods.iter().enumerate().filter(|(_, pod)| !pod.is_deleting) {
            match boost::state(pod, self.vpa, self.ranges, self.now) {
                BoostState::Over if self.mode.updates() => {}
                BoostState::Over => continue,
                // It may never become ready without more memory.
                BoostState::Lasts if self.mode.updates() && self.is_killed(pod) => {}
                BoostState::Lasts => {
                    held.push((index, Hold::StartupBoost));
                    continue;
                }
                BoostState::Ends(changes) => {
                    let difference = SizeDifference::default();
                    candidates.push(UpdateCandidate {
                        pod: index,
                        difference,
                        is_urgent: false,
                        ends_boost: true,
                        changes,
                    });
                    continue;
                }
            }
            let Some((difference, is_urgent)) = self.is_due(pod) else { continue };
            match changes(pod, self.vpa, self.ranges) {
                Ok(changes) => {
                    let ends_boost = false;
                    candidates.push(UpdateCandidate {
                        pod: index,
                        difference,
                        is_urgent,
                        ends_boost,
                        changes,
                    })
                }
                Err(why) => held.push((index, why)),
            }
        }
        let name = |it: &UpdateCandidate| &self.pods[it.pod].name;
        candidates.sort_by(|a, b| {
            let (of_a, of_b) = (&a.difference, &b.difference);
            let by_share = || of_b.share.total_cmp(&of_a.share);
            of_b.is_scale_up.cmp(&of_a.is_scale_up).then_with(by_share).then_with(|| name(a).cmp(name(b)))
        });
        (candidates, held)
    }

    /// Returns the controllers of candidates whose desired number of pods is needed and unknown.
    pub fn unknown_replicas(&self) -> BTreeSet<OwnerRef> {
        let (candidates, _) = self.candidates();
        let owners = candidates
            .iter()
            .filter(|candidate| !candidate.ends_boost)
            .filter_map(|candidate| self.pods[candidate.pod].owner.as_ref());
        owners.filter(|owner| self.groups.get(owner) == Some(&Err(Hold::UnknownReplicas))).cloned().collect()
    }

    /// Returns the difference if it is large enough for an update now, and whether the pod is OOM-killed
    /// repeatedly.
    fn is_due(&self, pod: &SizedPod) -> Option<(SizeDifference, bool)> {
        let recommended = recommended(pod, self.vpa, self.ranges);
        let seen = recommended.iter().filter_map(|(index, recommendation, _)| {
            let container = pod.containers.get(*index)?;
            pod.is_observed(&container.name).then_some((container.now().requests, recommendation))
        });
        let difference = difference(seen);
        if difference.share == 0.0 && !difference.is_outside {
            return None;
        }
        let is_urgent = self.is_killed(pod) && difference.share > 0.0;
        let is_old = || pod.started.is_some_and(|at| self.now.saturating_sub(at) >= self.rules.min_age);
        let is_far = difference.share >= self.rules.min_difference;
        (difference.is_outside || is_urgent || (is_far && is_old())).then_some((difference, is_urgent))
    }

    fn is_killed(&self, pod: &SizedPod) -> bool {
        let own = self.vpa.update.evict_after_oom_s.filter(|seconds| *seconds > 0);
        let within = own.map_or(self.rules.quick_oom, |seconds| seconds.saturating_mul(SECOND_NS));
        pod.containers.iter().any(|container| {
            pod.is_observed(&container.name)
                && self.vpa.controlled(&container.name).is_some()
                && container.oom_after.is_some_and(|after| after < within)
        })
    }

    /// Returns the action for this candidate now.
    pub fn step(&mut self, candidate: &UpdateCandidate) -> UpdateStep {
        let pods = self.pods;
        let pod = &pods[candidate.pod];
        if candidate.ends_boost {
            return self.end_boost(candidate);
        }
        if let Err(why) = self.budget(pod) {
            return UpdateStep::Hold(why);
        }
        if !self.is_wanted(pod) {
            return UpdateStep::Hold(Hold::Requirements);
        }
        if self.mode == Mode::Recreate {
            return self.evict(candidate);
        }
        let (mode, now) = (self.mode, self.now);
        let known = self.memory.pod(&pod.uid);
        match in_place::advise(mode, pod, &candidate.changes, candidate.is_urgent, known, now) {
            ResizeAdvice::Hold(why) => UpdateStep::Hold(why),
            ResizeAdvice::Evict => self.evict(candidate),
            ResizeAdvice::Resize if !qos::is_kept(pod, &candidate.changes) => {
                self.instead(candidate, Hold::QosClass)
            }
            ResizeAdvice::Resize if self.rules.free_in_place && !restarts(pod, &candidate.changes) => {
                UpdateStep::Resize
            }
            ResizeAdvice::Resize if !self.rules.may_disrupt && restarts(pod, &candidate.changes) => {
                UpdateStep::Hold(Hold::OutsideWindows)
            }
            ResizeAdvice::Resize => match self.budget(pod) {
                Ok(budget) if budget.is_too_small && restarts(pod, &candidate.changes) => {
                    UpdateStep::Hold(Hold::TooFewReplicas)
                }
                Ok(budget) if budget.allows() => UpdateStep::Resize,
                Ok(_) => UpdateStep::Hold(Hold::Budget),
                Err(why) => UpdateStep::Hold(why),
            },
        }
    }

    /// Returns the action that takes back what the pod got for its start: it restarts nothing, and needs no budget.
    fn end_boost(&mut self, candidate: &UpdateCandidate) -> UpdateStep {
        let (pods, now) = (self.pods, self.now);
        let pod = &pods[candidate.pod];
        let asked = self.memory.pod(&pod.uid).asked;
        if asked.is_some_and(|asked| now.saturating_sub(asked) < in_place::REST) {
            return UpdateStep::Hold(Hold::JustResized);
        }
        match qos::is_kept(pod, &candidate.changes) {
            true => UpdateStep::Resize,
            false => UpdateStep::Hold(Hold::QosClass),
        }
    }

    /// Returns the action when the node has no room for the resize. No request was sent.
    pub fn without_room(&mut self, candidate: &UpdateCandidate) -> UpdateStep {
        let (pods, now) = (self.pods, self.now);
        let since = *self.memory.pod(&pods[candidate.pod].uid).without_room.get_or_insert(now);
        match now.saturating_sub(since) > DEFERRED_MAX && !candidate.ends_boost {
            true => self.instead(candidate, Hold::NodeRoom),
            false => UpdateStep::Hold(Hold::NodeRoom),
        }
    }

    /// Returns the action when the API server refused the resize.
    pub fn refused(&mut self, candidate: &UpdateCandidate) -> UpdateStep {
        self.note_requested(candidate);
        match candidate.ends_boost {
            true => UpdateStep::Hold(Hold::Refused),
            false => self.instead(candidate, Hold::Refused),
        }
    }

    /// Records that the pod's resize was accepted.
    pub fn resized(&mut self, candidate: &UpdateCandidate) {
        self.note_requested(candidate);
        if !candidate.ends_boost {
            self.note_disturbed(candidate);
        }
    }

    /// Records that the pod was evicted. Returns what the next leader must know of it.
    pub fn evicted(&mut self, candidate: &UpdateCandidate) -> LastEviction {
        let newest_pod = self.pods.iter().filter_map(|pod| pod.created).max().unwrap_or(NEVER);
        let last = LastEviction { at: self.now, newest_pod };
        self.memory.vpa(&self.vpa.uid).evicted = Some(last);
        self.memory.note_eviction(self.now);
        self.note_disturbed(candidate);
        last
    }

    /// Records that a PodDisruptionBudget refused the eviction.
    pub fn eviction_refused(&mut self) {
        self.memory.vpa(&self.vpa.uid).refused = Some(self.now);
    }

    fn note_requested(&mut self, candidate: &UpdateCandidate) {
        let (pods, now) = (self.pods, self.now);
        let known = self.memory.pod(&pods[candidate.pod].uid);
        (known.asked, known.without_room) = (Some(now), None);
    }

    fn note_disturbed(&mut self, candidate: &UpdateCandidate) {
        let pods = self.pods;
        if let Some(Ok(budget)) = pods[candidate.pod].owner.as_ref().and_then(|it| self.groups.get_mut(it)) {
            budget.disturbed += 1;
        }
    }

    fn budget(&self, pod: &SizedPod) -> Result<Budget, Hold> {
        let owner = pod.owner.as_ref().ok_or(Hold::NoController)?;
        self.groups.get(owner).copied().unwrap_or(Err(Hold::UnknownReplicas))
    }

    /// Returns the action when an in-place resize is impossible: the pod is evicted, or left alone for this reason.
    fn instead(&mut self, candidate: &UpdateCandidate, why: Hold) -> UpdateStep {
        if self.mode.evicts() { self.evict(candidate) } else { UpdateStep::Hold(why) }
    }

    fn evict(&mut self, candidate: &UpdateCandidate) -> UpdateStep {
        let (pods, now) = (self.pods, self.now);
        let pod = &pods[candidate.pod];
        if !self.rules.has_webhook {
            return UpdateStep::Hold(Hold::NoWebhook);
        }
        let known = *self.memory.vpa(&self.vpa.uid);
        if known.refused.is_some_and(|at| now.saturating_sub(at) < REFUSED_REST) {
            return UpdateStep::Hold(Hold::DisruptionBudget);
        }
        // A former leader's, unless its clock was wrong.
        let noted = self.vpa.last_eviction.filter(|last| last.at <= now);
        let is_recent = |last: &LastEviction| now.saturating_sub(last.at) < UNCHANGED_REST;
        if known.evicted.or(noted).is_some_and(|last| is_recent(&last) && self.came_back_unchanged(&last)) {
            return UpdateStep::Hold(Hold::WebhookNotCalled);
        }
        match self.budget(pod) {
            Err(why) => UpdateStep::Hold(why),
            Ok(budget) if budget.is_too_small => UpdateStep::Hold(Hold::TooFewReplicas),
            Ok(_) if !self.rules.may_disrupt && !pod.is_pending => UpdateStep::Hold(Hold::OutsideWindows),
            Ok(budget) if !budget.allows() && !pod.is_pending => UpdateStep::Hold(Hold::Budget),
            Ok(_) if self.memory.evictions_since(now - MINUTE_NS) >= self.rules.evictions_per_minute => {
                UpdateStep::Hold(Hold::EvictionRate)
            }
            Ok(_) => UpdateStep::Evict,
        }
    }

    /// Returns whether all pods created since then were not seen by a webhook, and there is at least one.
    fn came_back_unchanged(&self, last: &LastEviction) -> bool {
        let is_new = |pod: &&SizedPod| pod.created.is_some_and(|at| at > last.newest_pod);
        let mut new = self.pods.iter().filter(is_new).peekable();
        new.peek().is_some() && new.all(|pod| pod.observed.is_none())
    }

    /// Returns whether the VPA's requirements are met for some container.
    fn is_wanted(&self, pod: &SizedPod) -> bool {
        if self.vpa.update.requirements.is_empty() {
            return true;
        }
        recommended(pod, self.vpa, self.ranges).iter().any(|(index, recommendation, _)| {
            let Some(container) = pod.containers.get(*index) else { return false };
            self.fulfils(container.now().requests, recommendation)
        })
    }

    fn fulfils(&self, requests: OptionalAmounts, recommendation: &Recommendation) -> bool {
        let (Some(cpu), Some(memory)) = (requests.cpu, requests.memory) else { return true };
        let target = recommendation.target.map(Option::unwrap_or_default);
        let changes = |change: &str, target: Amount, request: Amount| match change {
            "TargetHigherThanRequests" => target > request,
            "TargetLowerThanRequests" => target < request,
            _ => false,
        };
        self.vpa.update.requirements.iter().all(|it| {
            (it.resources.cpu && changes(&it.change, target.cpu, cpu))
                || (it.resources.memory && changes(&it.change, target.memory, memory))
        })
    }
}

/// Returns whether a resize restarts a container.
fn restarts(pod: &SizedPod, changes: &[SizeChange]) -> bool {
    changes.iter().any(|change| {
        pod.containers.get(change.container).is_none_or(|it| it.restarts.cpu || it.restarts.memory)
    })
}
