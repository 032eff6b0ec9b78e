//! The latency estimator: running averages of the cost of an agent's work, by kind of work.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::agent::Part;
use crate::rules::CachedRule;

/// Averages in nanoseconds. Kamino keeps one scalar for a top-level hit and one number per rule for low-level hits and
/// misses (section 4.2.3). Building a ranked list from its rule objects is a separate part here, because it has its own
/// cost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Estimator {
    list_hit: Average,
    list_miss: Average,
    rule_hit: [Average; CachedRule::COUNT],
    rule_miss: [Average; CachedRule::COUNT],
    /// Common lists, and searches. A file of an earlier version has none of them.
    #[serde(default = "guess::common_hit")]
    common_hit: Average,
    #[serde(default = "guess::common_miss")]
    common_miss: Average,
    #[serde(default = "guess::survey")]
    survey: Average,
    #[serde(default = "guess::dry_run")]
    dry_run: Average,
    #[serde(default = "guess::gang_preemption")]
    gang_preemption: Average,
}

/// Guesses for 5,000 nodes; the first measurements replace them.
mod guess {
    use super::Average;

    pub const fn common_hit() -> Average {
        Average::guess(1_000.0)
    }

    pub const fn common_miss() -> Average {
        Average::guess(230_000.0)
    }

    pub const fn survey() -> Average {
        Average::guess(400_000.0)
    }

    pub const fn dry_run() -> Average {
        Average::guess(10_000.0)
    }

    pub const fn gang_preemption() -> Average {
        Average::guess(1_000_000.0)
    }
}

/// Slowly adapting mean: exact over the first [`WINDOW`] samples, then each new one weighs 1/`WINDOW`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Written")]
struct Average {
    ns: f64,
    samples: u32,
}

/// An average as stored in a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    ns: f64,
    samples: u32,
}

impl TryFrom<Written> for Average {
    type Error = String;

    fn try_from(Written { ns, samples }: Written) -> Result<Self, String> {
        match (0.0..=NS_MAX).contains(&ns) {
            true => Ok(Average { ns, samples }),
            false => Err(format!("{ns} ns is not a valid latency: it must be between 0 and {NS_MAX}")),
        }
    }
}

const WINDOW: u32 = 256;

/// One hour. A larger value in a file is corrupt, and it would take too many samples to correct it.
const NS_MAX: f64 = 3_600e9;

impl Average {
    /// Returns an initial guess, which the first sample replaces.
    const fn guess(ns: f64) -> Self {
        Average { ns, samples: 0 }
    }

    fn add(&mut self, sample: Duration) {
        self.samples = self.samples.saturating_add(1).min(WINDOW);
        self.ns += (sample.as_nanos() as f64 - self.ns) / f64::from(self.samples);
    }

    fn get(&self) -> Duration {
        Duration::from_nanos(self.ns as u64)
    }
}

impl Default for Estimator {
    /// Returns guesses of the right order for 5,000 nodes; the first measurements replace them.
    fn default() -> Self {
        Estimator {
            list_hit: Average::guess(1_000.0),
            list_miss: Average::guess(20_000.0),
            rule_hit: [Average::guess(500.0); CachedRule::COUNT],
            rule_miss: [Average::guess(150_000.0); CachedRule::COUNT],
            common_hit: guess::common_hit(),
            common_miss: guess::common_miss(),
            survey: guess::survey(),
            dry_run: guess::dry_run(),
            gang_preemption: guess::gang_preemption(),
        }
    }
}

impl Estimator {
    /// Records the duration of a part of a request.
    pub fn learn(&mut self, part: Part, took: Duration) {
        match part {
            Part::ListHit => self.list_hit.add(took),
            Part::ListMiss => self.list_miss.add(took),
            Part::CommonHit => self.common_hit.add(took),
            Part::CommonMiss => self.common_miss.add(took),
            Part::RuleHit(rule) => self.rule_hit[rule.index()].add(took),
            Part::RuleMiss(rule) => self.rule_miss[rule.index()].add(took),
            Part::Survey => self.survey.add(took),
            Part::DryRun => self.dry_run.add(took),
            Part::GangPreemption => self.gang_preemption.add(took),
        }
    }

    /// Returns the expected duration of a part.
    pub fn estimate(&self, part: Part) -> Duration {
        match part {
            Part::ListHit => self.list_hit.get(),
            Part::ListMiss => self.list_miss.get(),
            Part::CommonHit => self.common_hit.get(),
            Part::CommonMiss => self.common_miss.get(),
            Part::RuleHit(rule) => self.rule_hit[rule.index()].get(),
            Part::RuleMiss(rule) => self.rule_miss[rule.index()].get(),
            Part::Survey => self.survey.get(),
            Part::DryRun => self.dry_run.get(),
            Part::GangPreemption => self.gang_preemption.get(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_sample_replaces_the_guess_and_many_move_the_average_to_the_new_level() {
        let mut estimator = Estimator::default();
        estimator.learn(Part::ListHit, Duration::from_micros(7));
        assert_eq!(estimator.estimate(Part::ListHit), Duration::from_micros(7));
        for _ in 0..10 * WINDOW {
            estimator.learn(Part::ListHit, Duration::from_micros(20));
        }
        let now = estimator.estimate(Part::ListHit).as_nanos();
        assert!((19_900..=20_000).contains(&now), "{now} ns");
    }

    #[test]
    fn what_is_learned_survives_being_written_and_read() {
        let mut estimator = Estimator::default();
        estimator.learn(Part::RuleMiss(CachedRule::NodeAffinity), Duration::from_millis(3));
        let text = serde_json::to_string(&estimator).unwrap();
        assert_eq!(serde_json::from_str::<Estimator>(&text).unwrap(), estimator);
    }

    #[test]
    fn a_file_of_an_earlier_version_is_read_with_guesses_for_what_it_lacks() {
        let mut estimator = Estimator::default();
        estimator.learn(Part::ListHit, Duration::from_micros(3));
        let mut file = serde_json::to_value(&estimator).unwrap();
        for part in ["commonHit", "commonMiss", "survey", "dryRun", "gangPreemption"] {
            assert!(file.as_object_mut().unwrap().remove(part).is_some());
        }
        assert_eq!(serde_json::from_value::<Estimator>(file).unwrap(), estimator);
    }

    #[test]
    fn latencies_that_cannot_be_are_not_believed() {
        let text = serde_json::to_string(&Estimator::default()).unwrap();
        for wrong in ["-1.0", "1e300", "3.7e12"] {
            let text = text.replacen("1000.0", wrong, 1);
            let error = serde_json::from_str::<Estimator>(&text).unwrap_err().to_string();
            assert!(error.contains("is not a valid latency"), "{error}");
        }
    }
}
