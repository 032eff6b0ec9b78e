//! What can be set of Autopilot's recommenders.

use std::time::Duration;

use berth_model::PerResource;

const HOUR: Duration = Duration::from_secs(3600);

/// What the moving window says of the past.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Statistic {
    /// The mean, newer usage weighing more: batch jobs.
    Average,
    /// The percentile (0 to 1) of the load: a bucket weighs as much as was used there, not as long. Serving jobs: 0.95, or
    /// 0.9 where latency matters less; memory with low tolerance of kills: 0.98.
    Percentile(f64),
    /// The highest of the last so many intervals: memory with the least tolerance.
    Max,
    /// The higher of a percentile and half of the maximum: memory between the two (the paper's percentile is 0.6).
    PercentileOrHalfMax(f64),
}

/// Of the moving window, for one resource.
#[derive(Debug, Clone, PartialEq)]
pub struct WindowSettings {
    pub statistic: Statistic,
    /// Usage weighs half after so long.
    pub half_life: Duration,
    /// How far the maximum looks back.
    pub reach: Duration,
    /// Share that is added (the paper: 10 to 15 %, less for large limits)…
    pub margin: f64,
    /// …and the share of what is above `large`.
    pub margin_large: f64,
    /// Cores or bytes.
    pub large: f64,
    /// The highest of all that was said in so long a time counts.
    pub hold: Duration,
}

/// Of the ensemble, for one resource. Weights are against shares of samples: 1 is what it costs when all of them are above
/// the limit. What matters is their proportion.
#[derive(Debug, Clone, PartialEq)]
pub struct EnsembleSettings {
    /// A model for each of these half-lives (the paper's `d_m`: `1 - 2^(-5 min / half-life)`)…
    pub half_lives: Vec<Duration>,
    /// …and each of these safety margins (`M_m`), shares of the limit, which is rounded up to the end of a bucket.
    pub margins: Vec<f64>,
    /// `w_o`: samples above the limit.
    pub overrun: f64,
    /// `w_u`: samples below it.
    pub underrun: f64,
    /// `w_dL`: the limit changes.
    pub limit_change: f64,
    /// `w_dm`: another model is followed.
    pub model_change: f64,
    /// The cost of a model is remembered with this half-life (the paper's `d`).
    pub cost_half_life: Duration,
}

impl WindowSettings {
    pub fn defaults() -> PerResource<WindowSettings> {
        let cpu = WindowSettings {
            statistic: Statistic::Percentile(0.95),
            half_life: 12 * HOUR,
            reach: 7 * 24 * HOUR,
            margin: 0.15,
            margin_large: 0.1,
            large: 4.0,
            hold: HOUR,
        };
        let memory = WindowSettings {
            statistic: Statistic::Percentile(0.98),
            half_life: 48 * HOUR,
            large: 8.0 * 1024.0 * 1024.0 * 1024.0,
            ..cpu.clone()
        };
        PerResource { cpu, memory }
    }
}

impl EnsembleSettings {
    /// Throttling is ten times as bad as idling, and a kill fifty times.
    pub fn defaults() -> PerResource<EnsembleSettings> {
        let cpu = EnsembleSettings {
            half_lives: vec![HOUR, 6 * HOUR, 24 * HOUR, 72 * HOUR],
            margins: vec![0.0, 0.1, 0.2, 0.4],
            overrun: 1.0,
            underrun: 0.1,
            limit_change: 0.05,
            model_change: 0.02,
            cost_half_life: 4 * HOUR,
        };
        let memory = EnsembleSettings {
            half_lives: vec![6 * HOUR, 24 * HOUR, 72 * HOUR],
            margins: vec![0.1, 0.2, 0.4],
            underrun: 0.02,
            limit_change: 0.02,
            model_change: 0.01,
            ..cpu.clone()
        };
        PerResource { cpu, memory }
    }
}

/// How much is left of a weight after `elapsed_ns`; 0 to 1.
pub(super) fn left(half_life: Duration, elapsed_ns: i64) -> f64 {
    let half_life = crate::recommend::time::nanos(half_life).max(1);
    (-(elapsed_ns.max(0) as f64) / half_life as f64).exp2()
}
