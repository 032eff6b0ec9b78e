//! What scalers take at equal latency, seed by seed.
//!
//! Each scaler has a target that moves it along a line between resources and latency. A comparison at default targets compares two points
//! of different lines. Here the target of each baseline, and the size of its pods, are chosen so that its 99th percentile is showar's and
//! it costs as little as possible: with hindsight, on the same load, which favours the baselines.

use super::figures::ScalingOutcome;
use super::run::{Scenario, run};
use super::scalers::{ScalerKind, Tuning};
use crate::experiment::student_t;

/// Relative difference by which the percentile may be higher.
pub const EQUAL: f64 = 0.02;
const STEPS_MAX: u32 = 7;
/// Factor by which a target is at most lower or higher than the default.
const RANGE: f64 = 4.0;

/// A baseline that was set to the latency of showar.
#[derive(Debug, Clone, PartialEq)]
pub struct Matched {
    pub kind: ScalerKind,
    pub start_milli: i64,
    pub target: f64,
    /// Whether the latency is not higher.
    pub equal: bool,
    pub outcome: ScalingOutcome,
}

/// showar, and the baselines at its latency, on one load.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    pub ours: ScalingOutcome,
    /// Of each, the cheapest size of pods.
    pub baselines: Vec<Matched>,
}

/// A mean with its 95 % confidence interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeanInterval {
    pub mean: f64,
    /// Infinite for a single value.
    pub half: f64,
}

impl MeanInterval {
    pub fn of(values: &[f64]) -> MeanInterval {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count.max(1.0);
        if values.len() < 2 {
            return MeanInterval { mean, half: f64::INFINITY };
        }
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
        MeanInterval { mean, half: student_t(values.len() - 1) * (variance / count).sqrt() }
    }
}

/// Compares showar with the baselines, whose pods may have any of these sizes.
pub fn at_equal_p99(scenario: &Scenario, baselines: &[ScalerKind], sizes_milli: &[i64]) -> Comparison {
    let ours = run(scenario, ScalerKind::Showar, &|_| ());
    let of = |kind: &ScalerKind| {
        let sizes = sizes_milli.iter().map(|size| matched(scenario, (*kind, *size), ours.figures.p99_ms));
        sizes.reduce(|best, other| if other.beats(&best) { other } else { best })
    };
    let baselines = baselines.iter().filter_map(of).collect();
    Comparison { ours, baselines }
}

impl Comparison {
    /// Returns the cheapest baseline whose latency is not higher.
    pub fn best(&self) -> Option<&Matched> {
        let equal = self.baselines.iter().filter(|it| it.equal);
        equal.reduce(|best, other| if other.beats(best) { other } else { best })
    }
}

impl Matched {
    fn beats(&self, other: &Matched) -> bool {
        match self.equal == other.equal {
            true => self.outcome.figures.cost() < other.outcome.figures.cost(),
            false => self.equal,
        }
    }
}

fn set(tuning: &mut Tuning, kind: ScalerKind, target: f64) {
    let of = if kind == ScalerKind::Keda { &mut tuning.keda_target } else { &mut tuning.hpa_target };
    *of = target;
}

/// Searches the cheapest target at which a scaler has at most this percentile, from its default.
///
/// Latency grows with the target. The logarithms of both are searched: by larger and larger steps until the percentile is between two
/// known ones, then by interpolation and halving in turn.
fn matched(scenario: &Scenario, (kind, start_milli): (ScalerKind, i64), p99_ms: f64) -> Matched {
    let mut scenario = scenario.clone();
    scenario.tuning.start_milli = start_milli;
    let tuning = &scenario.tuning;
    let first = if kind == ScalerKind::Keda { tuning.setpoint } else { tuning.hpa_target }.ln();
    let mut run_at = |at: f64| {
        let target = at.exp();
        set(&mut scenario.tuning, kind, target);
        let outcome = run(&scenario, kind, &|_| ());
        let off = (outcome.figures.p99_ms / p99_ms).ln();
        (Matched { kind, start_milli, target, equal: off <= EQUAL.ln_1p(), outcome }, off)
    };
    let [mut low, mut high] = [None::<(f64, f64)>; 2];
    let (mut at, mut step) = (first, 0.15_f64);
    let (mut best, mut off) = run_at(at);
    for turn in 1..STEPS_MAX {
        if off.abs() <= EQUAL.ln_1p() {
            break;
        }
        *(if off < 0.0 { &mut low } else { &mut high }) = Some((at, off));
        at = match (low, high) {
            (Some(low), Some(high)) if turn % 2 == 0 => f64::midpoint(low.0, high.0),
            (Some(low), Some(high)) => low.0 + (high.0 - low.0) * (low.1 / (low.1 - high.1)).clamp(0.1, 0.9),
            (Some(low), None) => low.0 + step,
            (None, Some(high)) => high.0 - step,
            (None, None) => break,
        };
        step *= 2.0;
        if (at - first).abs() > RANGE.ln() {
            break;
        }
        let (found, found_off) = run_at(at);
        off = found_off;
        if found.beats(&best) {
            best = found;
        }
    }
    best
}
