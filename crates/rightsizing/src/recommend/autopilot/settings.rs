//! Settings of Autopilot's recommenders.

use std::time::Duration;

use berth_model::PerResource;

const HOUR: Duration = Duration::from_secs(3600);

/// Statistic of the moving window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Statistic {
    /// Mean in which newer usage weighs more: batch jobs.
    Average,
    /// Percentile (0 to 1) of the load: a bucket is weighted by its usage, not by time. Serving jobs: 0.95, or 0.9
    /// where latency matters less; memory with low tolerance of OOM kills: 0.98.
    Percentile(f64),
    /// Maximum of the last N intervals: memory with the lowest tolerance of OOM kills.
    Max,
    /// The higher of a percentile and half of the maximum: memory with medium tolerance (the paper's percentile is
    /// 0.6).
    PercentileOrHalfMax(f64),
}

/// Settings of the moving window, for one resource.
#[derive(Debug, Clone, PartialEq)]
pub struct WindowSettings {
    pub statistic: Statistic,
    /// Half-life of the weight of usage.
    pub half_life: Duration,
    /// Time span of the maximum.
    pub reach: Duration,
    /// Margin as a share of the limit (the paper: 10 to 15 %, less for large limits)…
    pub margin: f64,
    /// …and the margin for the part above `large`.
    pub margin_large: f64,
    /// Cores or bytes.
    pub large: f64,
    /// Time over which the maximum of the computed limits applies.
    pub hold: Duration,
}

/// Settings of the ensemble, for one resource. Weights are relative to shares of samples: 1 is the cost when all
/// samples are above the limit. Only their ratios matter.
#[derive(Debug, Clone, PartialEq)]
pub struct EnsembleSettings {
    /// One model for each of these half-lives (the paper's `d_m`: `1 - 2^(-5 min / half-life)`)…
    pub half_lives: Vec<Duration>,
    /// …and each of these safety margins (`M_m`), shares of the limit, which is rounded up to the end of a bucket.
    pub margins: Vec<f64>,
    /// `w_o`: cost of samples above the limit.
    pub overrun: f64,
    /// `w_u`: cost of samples below it.
    pub underrun: f64,
    /// `w_dL`: cost of changing the limit.
    pub limit_change: f64,
    /// `w_dm`: cost of following another model.
    pub model_change: f64,
    /// Half-life of a model's accumulated cost (the paper's `d`).
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
    /// Returns the defaults: throttling costs ten times as much as idling, an OOM kill fifty times.
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

/// Returns the remaining share of a weight after `elapsed_ns`; 0 to 1.
pub(super) fn left(half_life: Duration, elapsed_ns: i64) -> f64 {
    let half_life = crate::recommend::time::nanos(half_life).max(1);
    (-(elapsed_ns.max(0) as f64) / half_life as f64).exp2()
}
