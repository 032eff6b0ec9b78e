//! Rate limits for replica changes: the behavior of a HorizontalPodAutoscaler v2, applied to the controller's
//! output.
//!
//! Upstream: `pkg/controller/podautoscaler/horizontal.go` (`convertDesiredReplicasWithBehaviorRate`). Upstream
//! stabilises over past desired replica counts. This controller works in steps and has no desired count: after a
//! change in one direction, the other direction waits.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::observation::Seconds;

/// Maximum number of remembered changes; older ones are dropped.
const MOST_KEPT: usize = 240;

/// Rules for both directions; a direction without rules is not limited.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Behavior {
    pub up: Option<DirectionRules>,
    pub down: Option<DirectionRules>,
}

/// Rules for one direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectionRules {
    /// Time in seconds without a change in this direction after one in the other.
    pub stabilization_s: Seconds,
    pub select: Select,
    pub policies: Vec<RatePolicy>,
}

/// How several policies are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Select {
    /// The policy that allows the largest change.
    Max,
    /// The policy that allows the smallest change.
    Min,
    /// No change in this direction.
    Disabled,
}

/// Maximum change per period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RatePolicy {
    pub amount: StepAmount,
    pub period_s: Seconds,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepAmount {
    Pods(u32),
    Percent(u32),
}

/// Past changes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct History {
    /// Time and difference; positive: replicas were added.
    changes: VecDeque<(Seconds, i64)>,
}

/// Change that the behavior allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedChange {
    pub replicas: u32,
    /// Reason why it differs from the desired count.
    pub because: Option<&'static str>,
}

impl History {
    /// Clamps times in the future to now (they come from another clock, or from this one before it was set back).
    /// Must be called before the history is read.
    pub fn clamp_to_past(&mut self, now: Seconds) {
        self.changes.drain(..self.changes.len().saturating_sub(MOST_KEPT));
        self.changes.iter_mut().for_each(|(at, _)| *at = (*at).min(now));
    }

    /// Records a change of replicas.
    pub fn changed(&mut self, now: Seconds, from: u32, to: u32) {
        if from != to {
            self.changes.push_back((now, i64::from(to) - i64::from(from)));
            self.clamp_to_past(now);
        }
    }

    /// Returns the replicas added and removed in the last `period` seconds.
    fn recent(&self, now: Seconds, period: Seconds) -> (i64, i64) {
        let recent = self.changes.iter().filter(|(at, _)| *at <= now && now.saturating_sub(*at) < period);
        // It may come from an object that any client can write.
        let most = i64::from(u32::MAX);
        let changes = recent.map(|(_, change)| (*change).clamp(-most, most));
        changes.fold((0, 0), |(up, down), change| (up + change.max(0), down + (-change).max(0)))
    }
}

impl Behavior {
    /// Returns the allowed replica count, given the current and the desired one.
    pub fn allow(&self, history: &History, now: Seconds, replicas: u32, wanted: u32) -> AllowedChange {
        let rests = |rules: &Option<DirectionRules>, other: fn((i64, i64)) -> i64| {
            let window = rules.as_ref().map_or(0, |rules| rules.stabilization_s);
            other(history.recent(now, window)) > 0
        };
        let allowed = match wanted {
            wanted if wanted > replicas && rests(&self.up, |(_, down)| down) => None,
            wanted if wanted < replicas && rests(&self.down, |(up, _)| up) => None,
            wanted if wanted > replicas => Some(self.up_to(history, now, replicas, wanted)),
            wanted if wanted < replicas => Some(self.down_to(history, now, replicas, wanted)),
            wanted => Some(wanted),
        };
        match allowed {
            None => AllowedChange {
                replicas,
                because: Some("behavior: stabilization after a change in the other direction"),
            },
            Some(allowed) => {
                let because = (allowed != wanted).then_some("behavior: change limited by the policies");
                AllowedChange { replicas: allowed, because }
            }
        }
    }

    fn up_to(&self, history: &History, now: Seconds, replicas: u32, wanted: u32) -> u32 {
        let limit = limit(&self.up, |policy| {
            let (added, removed) = history.recent(now, policy.period_s);
            let start = (i64::from(replicas) - added + removed).max(0);
            match policy.amount {
                StepAmount::Pods(pods) => start + i64::from(pods),
                StepAmount::Percent(percent) => {
                    start.saturating_add(start.saturating_mul(i64::from(percent)).saturating_add(99) / 100)
                }
            }
        });
        limit.map_or(wanted, |most| wanted.min(clamped(most).max(replicas)))
    }

    fn down_to(&self, history: &History, now: Seconds, replicas: u32, wanted: u32) -> u32 {
        // The largest change down is the fewest replicas.
        let limit = limit(&self.down, |policy| {
            let (added, removed) = history.recent(now, policy.period_s);
            let start = i64::from(replicas) - added + removed;
            -match policy.amount {
                StepAmount::Pods(pods) => start - i64::from(pods),
                StepAmount::Percent(percent) => start * (100 - i64::from(percent.min(100))) / 100,
            }
        });
        limit.map_or(wanted, |least| {
            let least = if least == i64::MIN { replicas } else { clamped(-least).min(replicas) };
            wanted.max(least)
        })
    }
}

/// Combines the policies: `i64::MIN` when no change is allowed, `None` without a limit.
fn limit(rules: &Option<DirectionRules>, allows: impl Fn(&RatePolicy) -> i64) -> Option<i64> {
    let rules = rules.as_ref()?;
    let allowed = rules.policies.iter().map(allows);
    match rules.select {
        Select::Disabled => Some(i64::MIN),
        Select::Max => allowed.max(),
        Select::Min => allowed.min(),
    }
}

fn clamped(replicas: i64) -> u32 {
    u32::try_from(replicas.max(0)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rules(
        stabilization_s: Seconds,
        select: Select,
        policies: &[(StepAmount, Seconds)],
    ) -> Option<DirectionRules> {
        let policies =
            policies.iter().map(|(amount, period_s)| RatePolicy { amount: *amount, period_s: *period_s });
        Some(DirectionRules { stabilization_s, select, policies: policies.collect() })
    }

    #[test]
    fn without_rules_everything_is_allowed() {
        let history = History::default();
        for wanted in [1, 3, 400] {
            let allowed = Behavior::default().allow(&history, 0, 3, wanted);
            assert_eq!(allowed, AllowedChange { replicas: wanted, because: None });
        }
    }

    #[test]
    fn growth_is_limited_by_the_policy_that_allows_most_or_least() {
        let policies = [(StepAmount::Percent(100), 15), (StepAmount::Pods(4), 15)];
        let of = |select| Behavior { up: rules(0, select, &policies), down: None };
        let mut history = History::default();
        assert_eq!(of(Select::Max).allow(&history, 0, 2, 50).replicas, 6);
        assert_eq!(of(Select::Min).allow(&history, 0, 2, 50).replicas, 4);
        let disabled = of(Select::Disabled).allow(&history, 0, 2, 50);
        assert_eq!(
            (disabled.replicas, disabled.because),
            (2, Some("behavior: change limited by the policies"))
        );
        // Additions within the period count: it began with 2.
        history.changed(1, 2, 6);
        assert_eq!(of(Select::Max).allow(&history, 10, 6, 50).replicas, 6);
        assert_eq!(of(Select::Max).allow(&history, 16, 6, 50).replicas, 12);
    }

    #[test]
    fn shrinking_is_limited_the_same_way() {
        let policies = [(StepAmount::Percent(10), 60), (StepAmount::Pods(2), 60)];
        let of = |select| Behavior { up: None, down: rules(0, select, &policies) };
        let mut history = History::default();
        assert_eq!(of(Select::Max).allow(&history, 0, 50, 1).replicas, 45);
        assert_eq!(of(Select::Min).allow(&history, 0, 50, 1).replicas, 48);
        assert_eq!(of(Select::Disabled).allow(&history, 0, 50, 1).replicas, 50);
        history.changed(1, 50, 45);
        assert_eq!(of(Select::Max).allow(&history, 30, 45, 1).replicas, 45);
        assert_eq!(of(Select::Max).allow(&history, 61, 45, 1).replicas, 40);
    }

    #[test]
    fn a_policy_counts_from_what_was_there_when_its_period_began() {
        let one = || rules(0, Select::Max, &[(StepAmount::Pods(1), 60)]);
        let behavior = Behavior { up: one(), down: one() };
        let after = |from, to, wanted| {
            let mut history = History::default();
            history.changed(0, from, to);
            [30, 60].map(|now| behavior.allow(&history, now, to, wanted).replicas)
        };
        assert_eq!(after(10, 6, 50), [11, 7], "four were removed");
        assert_eq!(after(5, 8, 1), [4, 7], "three were added");
    }

    #[test]
    fn a_share_of_few_replicas_is_one_of_them_at_least() {
        let tenth = || rules(0, Select::Max, &[(StepAmount::Percent(10), 60)]);
        let behavior = Behavior { up: tenth(), down: tenth() };
        let of_three = |wanted| behavior.allow(&History::default(), 0, 3, wanted).replicas;
        assert_eq!((of_three(9), of_three(1)), (4, 2));
    }

    #[test]
    fn a_direction_rests_after_a_change_in_the_other() {
        let behavior = Behavior { up: rules(60, Select::Max, &[]), down: rules(300, Select::Max, &[]) };
        let mut history = History::default();
        history.changed(0, 5, 8);
        let ask = |history: &History, now, wanted| behavior.allow(history, now, 8, wanted).replicas;
        assert_eq!((ask(&history, 299, 7), ask(&history, 299, 9)), (8, 9));
        assert_eq!(ask(&history, 300, 7), 7);
        history.changed(300, 9, 8);
        assert_eq!((ask(&history, 359, 9), ask(&history, 359, 7)), (8, 7));
        assert_eq!(ask(&history, 360, 9), 9);
    }

    #[test]
    fn changes_of_a_clock_that_was_ahead_count_and_are_forgotten_in_time() {
        let behavior = Behavior { up: None, down: rules(300, Select::Max, &[]) };
        let mut history = History::default();
        history.changed(10_000, 5, 8);
        let mut ask = |now| {
            history.clamp_to_past(now);
            behavior.allow(&history, now, 8, 7).replicas
        };
        assert_eq!([ask(100), ask(399), ask(400)], [8, 8, 7]);
    }

    #[test]
    fn a_history_that_cannot_be_is_survived() {
        let many: Vec<_> =
            (0..1_000).map(|at| (i64::MIN + at, i64::MIN)).chain([(i64::MAX, i64::MAX)]).collect();
        let text = serde_json::json!({"changes": many}).to_string();
        let mut history: History = serde_json::from_str(&text).unwrap();
        let policies = [(StepAmount::Percent(u32::MAX), i64::MAX), (StepAmount::Pods(u32::MAX), i64::MAX)];
        for select in [Select::Max, Select::Min] {
            let behavior =
                Behavior { up: rules(i64::MIN, select, &policies), down: rules(i64::MIN, select, &policies) };
            for now in [i64::MIN, 0, 1_700_000_000, i64::MAX] {
                for (replicas, wanted) in [(5, 9), (5, 2), (u32::MAX, 1), (1, u32::MAX)] {
                    let allowed = behavior.allow(&history, now, replicas, wanted).replicas;
                    assert!((replicas.min(wanted)..=replicas.max(wanted)).contains(&allowed));
                }
                history.clamp_to_past(now);
                assert!(history.changes.len() <= MOST_KEPT);
            }
        }
    }

    proptest! {
        /// A change never exceeds the desired one, nor goes in the other direction, whatever the history.
        #[test]
        fn what_is_allowed_is_between_what_is_there_and_what_is_wanted(
            steps in prop::collection::vec((0i64..200, 0u32..40), 1..40),
            window in 0i64..120, pods in 1u32..5, percent in 1u32..150, min in any::<bool>(),
        ) {
            let select = if min { Select::Min } else { Select::Max };
            let policies = [(StepAmount::Pods(pods), 30), (StepAmount::Percent(percent), 60)];
            let behavior = Behavior { up: rules(window, select, &policies), down: rules(window, select, &policies) };
            let (mut history, mut now, mut replicas) = (History::default(), 0, 5);
            for (pause, wanted) in steps {
                now += pause;
                let allowed = behavior.allow(&history, now, replicas, wanted).replicas;
                let (low, high) = (replicas.min(wanted), replicas.max(wanted));
                prop_assert!((low..=high).contains(&allowed), "{allowed} of {wanted} from {replicas}");
                history.changed(now, replicas, allowed);
                replicas = allowed;
            }
        }
    }
}
