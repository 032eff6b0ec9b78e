//! Cost model: virtual time of an agent's work.

use std::time::Duration;

use berth_scheduler::agent::{Part, Rng};
use berth_scheduler::dispatch::Estimator;
use berth_scheduler::rules::{CachedRule, unit};

/// Time per kind of work, and its variation.
#[derive(Debug, Clone, PartialEq)]
pub struct Costs {
    pub list_hit: Duration,
    pub list_miss: Duration,
    pub common_hit: Duration,
    pub common_miss: Duration,
    pub rule_hit: [Duration; CachedRule::COUNT],
    pub rule_miss: [Duration; CachedRule::COUNT],
    /// Per node that changed since the list was last used.
    pub row: Duration,
    /// Standard deviation of the logarithm of a class's own factor: some classes always take longer.
    pub class_spread: f64,
    /// Standard deviation of the logarithm of each request's factor.
    pub request_spread: f64,
}

impl Costs {
    /// Protean's simulation costs: 14 ms for a hit, 88 ms for a miss, independent of the rule objects.
    pub fn azure() -> Self {
        Costs {
            list_hit: Duration::from_millis(14),
            list_miss: Duration::from_millis(88),
            common_hit: Duration::ZERO,
            common_miss: Duration::ZERO,
            rule_hit: [Duration::ZERO; CachedRule::COUNT],
            rule_miss: [Duration::ZERO; CachedRule::COUNT],
            row: Duration::ZERO,
            class_spread: 0.0,
            request_spread: 0.0,
        }
    }

    /// The same split by rule: for three rules 88 ms if nothing is cached, and 73 ms with all rule objects (Protean
    /// measured 70 to 80 ms with warm lower caches).
    pub fn azure_rules() -> Self {
        Costs {
            list_miss: Duration::from_millis(70),
            rule_hit: [Duration::from_millis(1); CachedRule::COUNT],
            rule_miss: [Duration::from_millis(6); CachedRule::COUNT],
            ..Costs::azure()
        }
    }

    /// Costs measured by a running berth, or its initial estimates: for about 5,000 nodes.
    pub fn measured(estimator: &Estimator) -> Self {
        let by_rule =
            |part: fn(CachedRule) -> Part| CachedRule::ALL.map(|rule| estimator.estimate(part(rule)));
        Costs {
            list_hit: estimator.estimate(Part::ListHit),
            list_miss: estimator.estimate(Part::ListMiss),
            common_hit: estimator.estimate(Part::CommonHit),
            common_miss: estimator.estimate(Part::CommonMiss),
            rule_hit: by_rule(Part::RuleHit),
            rule_miss: by_rule(Part::RuleMiss),
            // One copied row and one list update.
            row: Duration::from_nanos(300),
            ..Costs::azure()
        }
    }

    pub fn of(&self, part: Part) -> Duration {
        match part {
            Part::ListHit => self.list_hit,
            Part::ListMiss => self.list_miss,
            Part::CommonHit => self.common_hit,
            Part::CommonMiss => self.common_miss,
            Part::RuleHit(rule) => self.rule_hit[rule.index()],
            Part::RuleMiss(rule) => self.rule_miss[rule.index()],
            // Workloads have pods of one priority, which preempt nothing. These are as much work as the closest kinds:
            // a look at all nodes, and at one.
            Part::Survey | Part::GangPreemption => self.list_miss,
            Part::DryRun => self.list_hit,
        }
    }

    /// Returns the average time of a request if the share `hits` finds its list and the remaining requests find
    /// nothing cached: three rules apply.
    pub fn mean(&self, hits: f64) -> Duration {
        let miss = self.list_miss + self.common_miss + self.rule_miss[..3].iter().sum::<Duration>();
        self.list_hit.mul_f64(hits) + miss.mul_f64(1.0 - hits)
    }
}

/// Returns a log-normal factor with mean 1, drawn by `key`.
pub fn factor(key: u64, spread: f64) -> f64 {
    if spread == 0.0 {
        return 1.0;
    }
    let mut rng = Rng(key);
    // Irwin and Hall: the sum of twelve uniform numbers is nearly normal, with variance 1.
    let normal = (0..12).map(|_| unit(rng.next())).sum::<f64>() - 6.0;
    (spread * normal - spread * spread / 2.0).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_have_mean_one_and_the_spread_that_was_asked_for() {
        let factors: Vec<f64> =
            (0..20_000).map(|key| factor(berth_scheduler::rules::mix(key), 0.35)).collect();
        let mean = factors.iter().sum::<f64>() / factors.len() as f64;
        assert!((mean - 1.0).abs() < 0.01, "{mean}");
        let logs: Vec<f64> = factors.iter().map(|factor| factor.ln()).collect();
        let center = logs.iter().sum::<f64>() / logs.len() as f64;
        let variance = logs.iter().map(|log| (log - center).powi(2)).sum::<f64>() / logs.len() as f64;
        assert!((variance.sqrt() - 0.35).abs() < 0.01, "{}", variance.sqrt());
        assert_eq!(factor(3, 0.0), 1.0);
        assert_eq!(factor(3, 0.35), factor(3, 0.35));
    }

    #[test]
    fn the_published_costs_average_to_what_is_published() {
        // 0.8 * 14 ms + 0.2 * 88 ms.
        assert_eq!(Costs::azure().mean(0.8), Duration::from_micros(28_800));
        assert_eq!(Costs::azure_rules().mean(0.8), Duration::from_micros(28_800));
        assert_eq!(Costs::azure_rules().of(Part::ListMiss), Duration::from_millis(70));
    }
}
