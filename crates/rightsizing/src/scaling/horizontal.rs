//! Replica count: a PID controller on a saturation signal (SHOWAR, section 3.3).
//!
//! The paper compares the controller's output with the target and its dead band. Here the output is
//! `setpoint × (1 + u)`, where `u` is computed from errors *relative* to the setpoint, so that the gains mean the same for
//! milliseconds and for shares; time is counted in periods. Steps are the paper's. Not in the paper: errors and the
//! integral are bounded, the integral is reset with every step (anti-windup, because a step does what an integral
//! would do), and no action goes against the sign of the error.

use serde::{Deserialize, Serialize};

use super::observation::{Measured, Seconds};
use super::settings::{Gains, Horizontal, ReplicaRule};

/// Maximum error: far above the setpoint, the signal says little about the missing capacity.
const ERROR_MAX: f64 = 3.0;
const INTEGRAL_MAX: f64 = 3.0;
/// Maximum signal as a multiple of the setpoint; larger values are invalid.
const SIGNAL_MAX: f64 = 1e6;
/// Maximum success share: 1, plus rounding errors of float sums.
const SUCCESS_MAX: f64 = 1.01;

/// State of the controller.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Controller {
    pub integral: f64,
    /// Previous error.
    pub error: Option<f64>,
    /// Highest recent signal.
    pub worst: Worst,
}

/// Highest recent value: half of it decays per hold time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Worst {
    pub value: f64,
    /// Time of the last update.
    pub time_s: Option<Seconds>,
}

impl Worst {
    /// Returns the decayed value.
    pub fn at(&self, now: Seconds, hold_s: Seconds) -> f64 {
        let passed = self.time_s.map_or(i64::MAX, |before| now.saturating_sub(before)).max(0);
        let left = self.value * 0.5_f64.powf(passed as f64 / hold_s.max(1) as f64);
        if left.is_finite() { left.max(0.0) } else { 0.0 }
    }

    pub fn observe(&mut self, value: f64, now: Seconds, hold_s: Seconds) {
        *self = Self { value: value.max(self.at(now, hold_s)), time_s: Some(now) };
    }
}

/// Change requested by the controller.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Wish {
    Grow,
    /// The signal is far above the setpoint.
    GrowFast,
    Shrink,
    /// The signal is inside the dead band.
    Stay,
}

/// Reason why a signal is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SignalUnknown {
    #[error("no signal")]
    Missing,
    #[error("signal is {0} s old")]
    Stale(i64),
    #[error("signal is invalid")]
    Absurd,
    #[error("setpoint must be above 0")]
    Setpoint,
}

/// Returns the signal, if it is valid.
///
/// # Errors
/// It is missing, too old, or not a valid number.
pub fn signal(seen: Option<Measured>, now: Seconds, settings: &Horizontal) -> Result<f64, SignalUnknown> {
    if !(settings.setpoint.is_finite() && settings.setpoint > 0.0) {
        return Err(SignalUnknown::Setpoint);
    }
    believe(seen, now, settings.stale_s, SIGNAL_MAX * settings.setpoint)
}

/// Returns the share of successful requests, if it is valid.
pub fn success(seen: Option<Measured>, now: Seconds, settings: &Horizontal) -> Option<f64> {
    believe(seen, now, settings.stale_s, SUCCESS_MAX).ok()
}

fn believe(seen: Option<Measured>, now: Seconds, stale_s: Seconds, most: f64) -> Result<f64, SignalUnknown> {
    let seen = seen.ok_or(SignalUnknown::Missing)?;
    let age = now.saturating_sub(seen.time_s);
    if age > stale_s {
        return Err(SignalUnknown::Stale(age));
    }
    if age < -stale_s.max(30) || !(0.0..=most).contains(&seen.value) {
        return Err(SignalUnknown::Absurd);
    }
    Ok(seen.value)
}

impl Controller {
    /// Clears the past errors.
    pub fn reset(&mut self) {
        self.integral = 0.0;
        self.error = None;
    }

    /// Returns the share of the capacity that would have been enough, judged by the highest recent signal: from one
    /// half to all of it.
    pub fn enough(&self, settings: &Horizontal) -> f64 {
        let steepness =
            if settings.steepness.is_finite() { settings.steepness.clamp(1.0, 100.0) } else { 4.0 };
        let share = (self.worst.value / settings.setpoint).powf(1.0 / steepness);
        if share.is_finite() { share.clamp(0.5, 1.0) } else { 1.0 }
    }

    /// Returns whether the signal alone, without history, requires an immediate change.
    pub fn is_urgent(signal: f64, settings: &Horizontal) -> bool {
        settings.urgent_at >= 1.0 && signal >= settings.urgent_at * settings.setpoint
    }

    /// Runs one period of the controller with a valid signal.
    pub fn turn(&mut self, signal: f64, settings: &Horizontal) -> Wish {
        let error = ((signal - settings.setpoint) / settings.setpoint).clamp(-1.0, ERROR_MAX);
        let before = self.error.filter(|error| error.is_finite()).unwrap_or(error).clamp(-1.0, ERROR_MAX);
        let sum = if self.integral.is_finite() { self.integral } else { 0.0 };
        self.integral = (sum + error).clamp(-INTEGRAL_MAX, INTEGRAL_MAX);
        self.error = Some(error);
        let Gains { proportional, integral, derivative } = settings.gains;
        let output = match settings.rule {
            ReplicaRule::Pid => {
                proportional * error + integral * self.integral + derivative * (error - before)
            }
            ReplicaRule::Proportional => error,
        };
        let half = settings.dead_band.clamp(0.0, 2.0) / 2.0;
        match output {
            _ if Self::is_urgent(signal, settings) => Wish::GrowFast,
            output if output > half && error > 0.0 => Wish::Grow,
            output if output < -half && error < 0.0 => Wish::Shrink,
            _ => Wish::Stay,
        }
    }
}

/// Returns the number of replicas that keeps the signal at its setpoint, if the signal is in inverse proportion to them.
pub fn proportional(replicas: u32, signal: f64, settings: &Horizontal) -> u32 {
    // A float is exact up to 2^53, and the signal is bounded. Rounding errors must not add a replica.
    let wanted = f64::from(replicas) * (signal / settings.setpoint);
    (wanted * (1.0 - 1e-9)).ceil() as u32
}

/// Returns the number of replicas that one step adds or removes.
pub fn step(replicas: u32, share: f64) -> u32 {
    let share = if share.is_finite() { share.clamp(0.0, 10.0) } else { 0.0 };
    ((f64::from(replicas) * share) as u32).max(1)
}
