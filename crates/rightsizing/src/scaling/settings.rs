//! Settings of the scaler.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::observation::Seconds;
use crate::recommend::AMOUNT_MAX;

const MI: i64 = 1 << 20;

/// Settings of both halves. Without the horizontal one, replicas are not managed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ScalingSettings {
    pub vertical: Vertical,
    /// Settings for containers that differ from the default.
    pub containers: BTreeMap<String, Vertical>,
    pub horizontal: Option<Horizontal>,
}

impl ScalingSettings {
    /// Returns the vertical settings of a container.
    pub fn of(&self, container: &str) -> &Vertical {
        self.containers.get(container).unwrap_or(&self.vertical)
    }
}

/// Lower and upper bound. A lower bound above the upper one counts as equal to it.
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

/// Settings of container sizes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Vertical {
    /// Whether CPU is sized.
    pub cpu: bool,
    /// Whether memory is sized.
    pub memory: bool,
    /// Length of the sample window in seconds.
    pub window_s: Seconds,
    /// Interval between size changes in seconds; OOM kills and saturation are handled immediately.
    pub every_s: Seconds,
    /// Number of standard deviations added to the mean.
    pub sigmas: f64,
    /// Minimum relative difference to the current size for a change.
    pub change: f64,
    /// Minimum spare share of a CPU size before it is lowered. Larger than `change`, so that CPU that was removed
    /// is not added back with the next load peak.
    pub spare_min: f64,
    /// Time in seconds after any growth during which no CPU size is lowered.
    pub hold_s: Seconds,
    /// Span of usage in seconds that must have been observed before a size shrinks.
    pub history_s: Seconds,
    /// Minimum number of samples in the window.
    pub points_min: usize,
    /// Maximum age of the newest sample, in seconds.
    pub stale_s: Seconds,
    /// Millicores.
    pub cpu_bounds: Bounds,
    /// Bytes.
    pub memory_bounds: Bounds,
    /// Maximum CPU size of a container in millicores; beyond it replicas are added.
    pub cpu_cap_milli: i64,
    /// Share of the size from which usage counts as throttled: the real need is unknown.
    pub throttled_at: f64,
    /// Memory multiplier after an OOM kill …
    pub oom_bump_ratio: f64,
    /// … or minimum number of bytes added, if that is more.
    pub oom_min_bump: i64,
    /// Share of memory added to the mean and deviations, or to the peak; the VPA's margin.
    pub memory_room: f64,
    /// Number of hours whose highest usage is the minimum for memory, at most 48.
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
            history_s: 86_400,
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

/// How the number of replicas follows the signal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ReplicaRule {
    /// A PID controller, in steps.
    #[default]
    Pid,
    /// In proportion to the signal: for latencies, the sum of the pods' latencies divided by the target.
    Proportional,
}

/// Gains of the PID controller.
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

/// Settings of the replica count.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Horizontal {
    /// Target value of the signal, in its unit; must be above 0.
    pub setpoint: f64,
    pub rule: ReplicaRule,
    pub gains: Gains,
    /// Width of the dead band around the setpoint, as a share of it (half on each side): the paper's alpha.
    pub dead_band: f64,
    /// Share of the replicas added or removed in one step, at least one replica: the paper's beta.
    pub step: f64,
    /// At least 1.
    pub min_replicas: u32,
    pub max_replicas: u32,
    /// Number of replicas up to which replicas are added before CPU grows.
    pub replicas_first: u32,
    /// Interval between replica changes in seconds; urgent signals are handled immediately.
    pub every_s: Seconds,
    /// Time in seconds after any growth during which no replica is removed.
    pub hold_s: Seconds,
    /// Steepness of the signal: the exponent with which it is assumed to rise, at most, with the load per core when
    /// capacity is removed. Not in the paper.
    pub steepness: f64,
    /// Maximum age of the signal, in seconds.
    pub stale_s: Seconds,
    /// Share of successful requests below which a replica is added. 0: never.
    pub success_min: f64,
    /// Multiple of the setpoint from which growth uses `urgent_step` and does not wait for the interval. Not in the
    /// paper. 0: never.
    pub urgent_at: f64,
    /// As `step`, for urgent signals.
    pub urgent_step: f64,
    /// Time in seconds after another client set the replicas during which they stay, unless a signal is urgent.
    pub by_hand_s: Seconds,
    /// Replicas while no signal is known.
    pub fallback: Option<Fallback>,
    /// Whether an idle service has no replica at all: one with 0 replicas is not switched off.
    pub to_zero: bool,
    /// Whether it has replicas now although it is idle.
    pub awake: bool,
}

/// Replicas while no signal is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fallback {
    /// At least as many.
    pub replicas: u32,
    /// Time in seconds without a signal.
    pub after_s: Seconds,
}

impl Default for Horizontal {
    fn default() -> Self {
        Self {
            setpoint: 1.0,
            rule: ReplicaRule::default(),
            gains: Gains::default(),
            dead_band: 0.2,
            step: 0.1,
            min_replicas: 1,
            max_replicas: 10,
            replicas_first: 1,
            every_s: 60,
            hold_s: 300,
            steepness: 4.0,
            stale_s: 120,
            success_min: 0.99,
            urgent_at: 3.0,
            urgent_step: 0.5,
            by_hand_s: 300,
            fallback: None,
            to_zero: false,
            awake: false,
        }
    }
}

impl Horizontal {
    pub fn clamp(&self, replicas: u32) -> u32 {
        let max = self.max_replicas.max(1);
        replicas.clamp(self.min_replicas.clamp(1, max), max)
    }

    /// Returns whether this number of replicas grows before CPU does.
    pub fn comes_first(&self, replicas: u32) -> bool {
        replicas < self.replicas_first.min(self.max_replicas)
    }
}
