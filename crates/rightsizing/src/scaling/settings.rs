//! What can be set.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::observation::Seconds;
use crate::recommend::AMOUNT_MAX;

const MI: i64 = 1 << 20;

/// Both halves. Without the horizontal one the number of replicas is nobody's business here.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Settings {
    pub vertical: Vertical,
    /// For containers that are not sized as the others.
    pub containers: BTreeMap<String, Vertical>,
    pub horizontal: Option<Horizontal>,
}

impl Settings {
    /// How a container is sized.
    pub fn of(&self, container: &str) -> &Vertical {
        self.containers.get(container).unwrap_or(&self.vertical)
    }
}

/// The least and the most of something. A least above the most counts as the most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Bounds {
    pub min: i64,
    pub max: i64,
}

impl Bounds {
    pub fn clamp(self, value: i64) -> i64 {
        let max = self.max.clamp(1, AMOUNT_MAX);
        value.clamp(self.min.clamp(1, max), max)
    }
}

/// How containers are sized.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Vertical {
    /// Whether CPU is sized at all.
    pub cpu: bool,
    /// Whether memory is.
    pub memory: bool,
    /// Samples of the last so many seconds count.
    pub window_s: Seconds,
    /// Sizes change at most once in so long a time, but for what cannot wait: kills, and saturation.
    pub every_s: Seconds,
    /// A size is the mean and so many standard deviations.
    pub sigmas: f64,
    /// Less than this share of difference to the current size is no reason to act.
    pub change: f64,
    /// CPU is taken from a size only where more than this share of it is spare: more than `change`, so that what went does
    /// not come back with the next wave.
    pub spare_min: f64,
    /// No CPU is taken from a size for so long after anything grew.
    pub hold_s: Seconds,
    /// Fewer samples in the window say nothing.
    pub points_min: usize,
    /// Nor do samples, when the newest is older than this.
    pub stale_s: Seconds,
    /// Millicores.
    pub cpu_bounds: Bounds,
    /// Bytes.
    pub memory_bounds: Bounds,
    /// Beyond so many millicores a container does not grow: replicas are added instead.
    pub cpu_cap_milli: i64,
    /// Usage above this share of the size is throttled usage: nobody knows how much more is wanted.
    pub throttled_at: f64,
    /// After a kill memory is multiplied with this …
    pub oom_bump_ratio: f64,
    /// … or so many bytes are added, if that is more.
    pub oom_min_bump: i64,
    /// So large a share more memory than the mean and the deviations, or the peak; the VPA's margin.
    pub memory_room: f64,
    /// Memory is not less than the highest of so many hours, at most 48.
    pub peak_hours: i64,
}

impl Default for Vertical {
    fn default() -> Self {
        Self {
            cpu: true,
            memory: true,
            window_s: 300,
            every_s: 60,
            sigmas: 3.0,
            change: 0.15,
            spare_min: 0.25,
            hold_s: 3_600,
            points_min: 5,
            stale_s: 120,
            cpu_bounds: Bounds { min: 128, max: AMOUNT_MAX },
            memory_bounds: Bounds { min: 128 * MI, max: AMOUNT_MAX },
            cpu_cap_milli: 1_000,
            throttled_at: 0.95,
            oom_bump_ratio: 1.2,
            oom_min_bump: 100 * MI,
            memory_room: 0.15,
            peak_hours: 24,
        }
    }
}

/// Weights of the parts of the PID controller.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Gains {
    pub proportional: f64,
    pub integral: f64,
    pub derivative: f64,
}

impl Default for Gains {
    fn default() -> Self {
        let third = 1.0 / 3.0;
        Self { proportional: third, integral: third, derivative: third }
    }
}

/// How replicas are counted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Horizontal {
    /// Where the signal should be, in its unit; must be above 0.
    pub setpoint: f64,
    pub gains: Gains,
    /// Within half of this share on both sides of the setpoint nothing is done: the paper's alpha.
    pub dead_band: f64,
    /// Replicas change by this share of them, but by one at least: the paper's beta.
    pub step: f64,
    /// At least 1.
    pub min_replicas: u32,
    pub max_replicas: u32,
    /// Replicas change at most once in so long a time, but for what cannot wait.
    pub every_s: Seconds,
    /// No replica goes for so long after anything grew.
    pub hold_s: Seconds,
    /// How steep the signal is: with this power of the load for each core it is expected to rise, at most, when
    /// capacity is taken away. Not the paper's.
    pub steepness: f64,
    /// A signal older than this says nothing.
    pub stale_s: Seconds,
    /// Below this share of requests that succeed, a replica is added. 0: never.
    pub success_min: f64,
    /// From so many times the setpoint on, what grows grows by `urgent_step`, and without waiting for its turn. Not the
    /// paper's. 0: never.
    pub urgent_at: f64,
    /// As `step`, when it is urgent.
    pub urgent_step: f64,
}

impl Default for Horizontal {
    fn default() -> Self {
        Self {
            setpoint: 1.0,
            gains: Gains::default(),
            dead_band: 0.2,
            step: 0.1,
            min_replicas: 1,
            max_replicas: 10,
            every_s: 60,
            hold_s: 300,
            steepness: 4.0,
            stale_s: 120,
            success_min: 0.99,
            urgent_at: 3.0,
            urgent_step: 0.5,
        }
    }
}

impl Horizontal {
    pub fn clamp(&self, replicas: u32) -> u32 {
        let max = self.max_replicas.max(1);
        replicas.clamp(self.min_replicas.clamp(1, max), max)
    }
}
