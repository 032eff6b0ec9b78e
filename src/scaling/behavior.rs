//! How fast replicas may change: the behaviour of a HorizontalPodAutoscaler v2, on top of what the controller wants.
//!
//! Upstream: `pkg/controller/podautoscaler/horizontal.go` (`stabilizeRecommendationWithBehaviors`,
//! `convertDesiredReplicasWithBehaviorRate`).

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::observation::Seconds;

/// What is remembered of wishes and changes, at most; older ones go.
const MOST_KEPT: usize = 240;

/// Rules for both directions; without rules of a direction it is not limited.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Behavior {
    pub up: Option<Rules>,
    pub down: Option<Rules>,
}

/// Rules for one direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// Of what was wanted in so long a time the most careful counts.
    pub stabilization_s: Seconds,
    pub select: Select,
    pub policies: Vec<Policy>,
}

/// Which of the policies holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Select {
    /// The one that allows most.
    Max,
    /// The one that allows least.
    Min,
    /// No change in this direction.
    Disabled,
}

/// So much change in so long a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    pub amount: Amount,
    pub period_s: Seconds,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    Pods(u32),
    Percent(u32),
}

/// What was wanted and done, to look back at.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct History {
    wanted: VecDeque<(Seconds, u32)>,
    /// Positive: replicas that came.
    changes: VecDeque<(Seconds, i64)>,
}

/// What may be done of what is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowed {
    pub replicas: u32,
    /// Why that is not what is wanted.
    pub because: Option<&'static str>,
}

impl History {
    /// Replicas were changed.
    pub fn changed(&mut self, now: Seconds, from: u32, to: u32) {
        if from != to {
            push(&mut self.changes, (now, i64::from(to) - i64::from(from)));
        }
    }

    /// The changes in the last `period` seconds: those that added, and those that took away.
    fn recent(&self, now: Seconds, period: Seconds) -> (i64, i64) {
        let recent = self.changes.iter().filter(|(at, _)| now - at < period && *at <= now);
        recent.fold((0, 0), |(up, down), (_, change)| (up + (*change).max(0), down + (-*change).max(0)))
    }
}

fn push<T>(queue: &mut VecDeque<T>, value: T) {
    if queue.len() >= MOST_KEPT {
        queue.pop_front();
    }
    queue.push_back(value);
}

impl Behavior {
    /// What may be done now, of `replicas` that there are, when so many are wanted.
    pub fn allow(&self, history: &mut History, now: Seconds, replicas: u32, wanted: u32) -> Allowed {
        let longest = [&self.up, &self.down].into_iter().flatten().map(|rules| rules.stabilization_s);
        let longest = longest.max().unwrap_or(0);
        // A clock that was set back makes the old ones worthless.
        history.wanted.retain(|(at, _)| *at <= now && now - *at <= longest);
        if longest > 0 {
            push(&mut history.wanted, (now, wanted));
        }
        let steady = self.stabilized(history, now, replicas, wanted);
        let rated = match steady {
            steady if steady > replicas => self.up_to(history, now, replicas, steady),
            steady if steady < replicas => self.down_to(history, now, replicas, steady),
            steady => steady,
        };
        let because = match () {
            () if rated == wanted => None,
            () if rated != steady => Some("behavior allows no larger change now"),
            () => Some("stabilization looks back at what was wanted before"),
        };
        Allowed { replicas: rated, because }
    }

    fn stabilized(&self, history: &History, now: Seconds, replicas: u32, wanted: u32) -> u32 {
        let within = |window: Seconds| {
            let recent = history.wanted.iter().filter(move |(at, _)| now - at <= window);
            recent.map(|(_, wanted)| *wanted)
        };
        let window = |rules: &Option<Rules>| rules.as_ref().map_or(0, |rules| rules.stabilization_s);
        let least = within(window(&self.up)).chain([wanted]).min().unwrap_or(wanted);
        let most = within(window(&self.down)).chain([wanted]).max().unwrap_or(wanted);
        // Grow to the least that was wanted, shrink to the most.
        replicas.clamp(least, most)
    }

    fn up_to(&self, history: &History, now: Seconds, replicas: u32, wanted: u32) -> u32 {
        let limit = limit(&self.up, |policy| {
            let (added, removed) = history.recent(now, policy.period_s);
            let start = (i64::from(replicas) - added + removed).max(0);
            match policy.amount {
                Amount::Pods(pods) => start + i64::from(pods),
                Amount::Percent(percent) => start + (start * i64::from(percent) + 99) / 100,
            }
        });
        limit.map_or(wanted, |most| wanted.min(clamped(most).max(replicas)))
    }

    fn down_to(&self, history: &History, now: Seconds, replicas: u32, wanted: u32) -> u32 {
        // The most change is the fewest replicas.
        let limit = limit(&self.down, |policy| {
            let (added, removed) = history.recent(now, policy.period_s);
            let start = i64::from(replicas) - added + removed;
            -match policy.amount {
                Amount::Pods(pods) => start - i64::from(pods),
                Amount::Percent(percent) => start * (100 - i64::from(percent.min(100))) / 100,
            }
        });
        limit.map_or(wanted, |least| {
            let least = if least == i64::MIN { replicas } else { clamped(-least).min(replicas) };
            wanted.max(least)
        })
    }
}

/// What the policies that hold allow, `i64::MIN` when no change is allowed; `None`: anything.
fn limit(rules: &Option<Rules>, allows: impl Fn(&Policy) -> i64) -> Option<i64> {
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

    fn rules(stabilization_s: Seconds, select: Select, policies: &[(Amount, Seconds)]) -> Option<Rules> {
        let policies = policies.iter().map(|(amount, period_s)| Policy { amount: *amount, period_s: *period_s });
        Some(Rules { stabilization_s, select, policies: policies.collect() })
    }

    #[test]
    fn without_rules_everything_is_allowed() {
        let mut history = History::default();
        for wanted in [1, 3, 400] {
            let allowed = Behavior::default().allow(&mut history, 0, 3, wanted);
            assert_eq!(allowed, Allowed { replicas: wanted, because: None });
        }
        assert_eq!(history, History::default());
    }

    #[test]
    fn growth_is_limited_by_the_policy_that_allows_most_or_least() {
        let policies = [(Amount::Percent(100), 15), (Amount::Pods(4), 15)];
        let of = |select| Behavior { up: rules(0, select, &policies), down: None };
        let mut history = History::default();
        assert_eq!(of(Select::Max).allow(&mut history, 0, 2, 50).replicas, 6);
        assert_eq!(of(Select::Min).allow(&mut history, 0, 2, 50).replicas, 4);
        let disabled = of(Select::Disabled).allow(&mut history, 0, 2, 50);
        assert_eq!((disabled.replicas, disabled.because), (2, Some("behavior allows no larger change now")));
        // What came in the period counts: it began with 2.
        history.changed(1, 2, 6);
        assert_eq!(of(Select::Max).allow(&mut history, 10, 6, 50).replicas, 6);
        assert_eq!(of(Select::Max).allow(&mut history, 16, 6, 50).replicas, 12);
    }

    #[test]
    fn shrinking_is_limited_the_same_way() {
        let policies = [(Amount::Percent(10), 60), (Amount::Pods(2), 60)];
        let of = |select| Behavior { up: None, down: rules(0, select, &policies) };
        let mut history = History::default();
        assert_eq!(of(Select::Max).allow(&mut history, 0, 50, 1).replicas, 45);
        assert_eq!(of(Select::Min).allow(&mut history, 0, 50, 1).replicas, 48);
        assert_eq!(of(Select::Disabled).allow(&mut history, 0, 50, 1).replicas, 50);
        history.changed(1, 50, 45);
        assert_eq!(of(Select::Max).allow(&mut history, 30, 45, 1).replicas, 45);
        assert_eq!(of(Select::Max).allow(&mut history, 61, 45, 1).replicas, 40);
    }

    #[test]
    fn stabilization_takes_the_most_careful_of_what_was_wanted() {
        let behavior = Behavior { up: rules(60, Select::Max, &[]), down: rules(300, Select::Max, &[]) };
        let mut history = History::default();
        let mut ask = |now, replicas, wanted| behavior.allow(&mut history, now, replicas, wanted).replicas;
        assert_eq!(ask(0, 5, 5), 5);
        // Not more than what was wanted a minute ago at least.
        assert_eq!(ask(30, 5, 9), 5);
        assert_eq!(ask(61, 5, 8), 8);
        // Not less than the most of five minutes.
        assert_eq!(ask(100, 8, 2), 8);
        assert_eq!(ask(331, 8, 2), 8);
        assert_eq!(ask(362, 8, 2), 2);
    }

    proptest! {
        /// A change never goes beyond what is wanted, nor in the other direction, whatever was before.
        #[test]
        fn what_is_allowed_is_between_what_is_there_and_what_is_wanted(
            steps in prop::collection::vec((0i64..200, 0u32..40), 1..40),
            window in 0i64..120, pods in 1u32..5, percent in 1u32..150, min in any::<bool>(),
        ) {
            let select = if min { Select::Min } else { Select::Max };
            let policies = [(Amount::Pods(pods), 30), (Amount::Percent(percent), 60)];
            let behavior = Behavior { up: rules(window, select, &policies), down: rules(window, select, &policies) };
            let (mut history, mut now, mut replicas) = (History::default(), 0, 5);
            for (pause, wanted) in steps {
                now += pause;
                let allowed = behavior.allow(&mut history, now, replicas, wanted).replicas;
                let (low, high) = (replicas.min(wanted), replicas.max(wanted));
                prop_assert!((low..=high).contains(&allowed), "{allowed} of {wanted} from {replicas}");
                history.changed(now, replicas, allowed);
                replicas = allowed;
            }
        }
    }
}
