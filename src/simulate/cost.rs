//! What an agent's work costs on the virtual clock.

use std::time::Duration;

use crate::agent::{Part, Rng};
use crate::dispatch::Estimator;
use crate::rules::CachedRule;

/// Time by kind of work, and how much it varies.
#[derive(Debug, Clone, PartialEq)]
pub struct Costs {
    pub list_hit: Duration,
    pub list_miss: Duration,
    pub rule_hit: [Duration; CachedRule::COUNT],
    pub rule_miss: [Duration; CachedRule::COUNT],
    /// For each node that changed since the list was last used.
    pub row: Duration,
    /// Standard deviation of the logarithm of a class's own factor: some classes take longer than others, always.
    pub class_spread: f64,
    /// The same of each single request.
    pub request_spread: f64,
}

impl Costs {
    /// Azure's: 14 ms for a hit; 88 ms for a miss of everything and 70 to 80 ms for one that finds its rule objects
    /// (Protean), for three rules. Classes differ up to five times (Kamino, figure 1): about 2.3 standard deviations
    /// to each side.
    pub fn paper() -> Self {
        let ms = Duration::from_millis;
        Costs {
            list_hit: ms(14),
            list_miss: ms(70),
            rule_hit: [ms(1); CachedRule::COUNT],
            rule_miss: [ms(6); CachedRule::COUNT],
            row: Duration::ZERO,
            class_spread: 0.35,
            request_spread: 0.1,
        }
    }

    /// Those that a running berth has measured.
    pub fn measured(estimator: &Estimator) -> Self {
        let by_rule =
            |part: fn(CachedRule) -> Part| CachedRule::ALL.map(|rule| estimator.estimate(part(rule)));
        Costs {
            list_hit: estimator.estimate(Part::ListHit),
            list_miss: estimator.estimate(Part::ListMiss),
            rule_hit: by_rule(Part::RuleHit),
            rule_miss: by_rule(Part::RuleMiss),
            ..Costs::paper()
        }
    }

    pub fn of(&self, part: Part) -> Duration {
        match part {
            Part::ListHit => self.list_hit,
            Part::ListMiss => self.list_miss,
            Part::RuleHit(rule) => self.rule_hit[rule.index()],
            Part::RuleMiss(rule) => self.rule_miss[rule.index()],
        }
    }

    /// What a request takes on average when so many find their list, and the others find nothing else: three rules apply.
    pub fn mean(&self, hits: f64) -> Duration {
        let miss = self.list_miss + self.rule_miss[..3].iter().sum::<Duration>();
        self.list_hit.mul_f64(hits) + miss.mul_f64(1.0 - hits)
    }

    /// What a miss costs that finds all rule objects of `rules`.
    pub fn warm_miss(&self, rules: impl Iterator<Item = CachedRule>) -> Duration {
        self.list_miss + rules.map(|rule| self.rule_hit[rule.index()]).sum::<Duration>()
    }
}

/// A factor with mean 1 whose logarithm is normal, drawn by `key`.
pub fn factor(key: u64, spread: f64) -> f64 {
    if spread == 0.0 {
        return 1.0;
    }
    let mut rng = Rng(key);
    // Irwin and Hall: the sum of twelve uniform numbers is nearly normal, with variance 1.
    let uniform = |rng: &mut Rng| (rng.next() >> 11) as f64 / (1u64 << 53) as f64;
    let normal = (0..12).map(|_| uniform(&mut rng)).sum::<f64>() - 6.0;
    (spread * normal - spread * spread / 2.0).exp()
}
