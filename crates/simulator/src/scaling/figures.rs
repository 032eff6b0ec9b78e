//! Results of a run.

use serde::Serialize;

pub use berth_rightsizing::recommend::surplus::GIB_PER_CORE;

/// Results of one scaler. Numbers of changes are per service and day.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ScalingFigures {
    pub scaler: String,
    /// The measured time: hours since the start, and their number.
    pub from_h: f64,
    pub hours: f64,
    /// Requested by all pods, ready or not: mean over time.
    pub cpu_cores: f64,
    pub memory_gib: f64,
    pub used_cores: f64,
    pub replicas: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub p999_ms: f64,
    /// Share of the requests that exceeded the latency objective, or failed.
    pub slo_violations: f64,
    pub failed: f64,
    pub horizontal_changes: f64,
    pub vertical_changes: f64,
    /// Number of changes in the opposite direction of the previous one.
    pub horizontal_reversals: f64,
    pub vertical_reversals: f64,
    pub oom_kills: f64,
}

impl ScalingFigures {
    fn numbers(&mut self) -> [&mut f64; 14] {
        [
            &mut self.cpu_cores,
            &mut self.memory_gib,
            &mut self.used_cores,
            &mut self.replicas,
            &mut self.p50_ms,
            &mut self.p99_ms,
            &mut self.p999_ms,
            &mut self.slo_violations,
            &mut self.failed,
            &mut self.horizontal_changes,
            &mut self.vertical_changes,
            &mut self.horizontal_reversals,
            &mut self.vertical_reversals,
            &mut self.oom_kills,
        ]
    }

    /// Returns what is paid for, in cores: clouds ask about as much for a core as for [`GIB_PER_CORE`] GiB.
    pub fn cost(&self) -> f64 {
        self.cpu_cores + self.memory_gib / GIB_PER_CORE
    }

    /// Returns the means over runs of one scaler.
    pub fn mean(runs: &[ScalingFigures]) -> ScalingFigures {
        let mut mean = runs.first().cloned().unwrap_or_default();
        let count = runs.len().max(1) as f64;
        for run in runs.iter().skip(1) {
            mean.numbers().into_iter().zip(run.clone().numbers()).for_each(|(sum, more)| *sum += *more);
        }
        mean.numbers().into_iter().for_each(|sum| *sum /= count);
        mean
    }
}

/// All services together, in one time slice.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ScalingSlice {
    pub from_h: f64,
    pub requests_per_s: f64,
    pub cpu_cores: f64,
    pub used_cores: f64,
    pub memory_gib: f64,
    pub replicas: f64,
    pub p99_ms: f64,
}

impl ScalingOutcome {
    /// Returns the mean figures of runs of one scaler, with the timeline of the first.
    pub fn mean(runs: &[ScalingOutcome]) -> ScalingOutcome {
        let mean = |of: fn(&ScalingOutcome) -> Option<&ScalingFigures>| {
            let all: Vec<_> = runs.iter().filter_map(of).cloned().collect();
            (!all.is_empty()).then(|| ScalingFigures::mean(&all))
        };
        ScalingOutcome {
            first: mean(|outcome| outcome.first.as_ref()),
            figures: mean(|outcome| Some(&outcome.figures)).unwrap_or_default(),
            timeline: runs.first().map(|outcome| outcome.timeline.clone()).unwrap_or_default(),
        }
    }
}

/// Result of a run, or of several.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ScalingOutcome {
    /// Of the hours before the measured ones.
    pub first: Option<ScalingFigures>,
    pub figures: ScalingFigures,
    pub timeline: Vec<ScalingSlice>,
}
