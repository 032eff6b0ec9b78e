//! How many replicas there should be: a PID controller on a measure of saturation (SHOWAR, section 3.3).
//!
//! The paper compares the controller's output with the target and its dead band. Here the output is
//! `setpoint × (1 + u)`, where `u` is made of errors *relative* to the setpoint, so that the gains mean the same for
//! milliseconds and for shares; time is counted in periods. Steps are the paper's. What it says nothing about: errors are
//! bounded, the integral too, and it starts anew with every step (anti-windup), as a step is itself what an integral
//! would do; and nothing is done against the sign of the error.

use serde::{Deserialize, Serialize};

use super::observation::{Measured, Seconds};
use super::settings::{Gains, Horizontal};

/// More above the setpoint is not told apart: how far saturation goes says little about how much is missing.
const ERROR_MAX: f64 = 3.0;
const INTEGRAL_MAX: f64 = 3.0;
/// So many times the setpoint is nothing that was ever measured.
const SIGNAL_MAX: f64 = 1e6;
/// A share, with what adding up floating numbers costs.
const SUCCESS_MAX: f64 = 1.01;

/// What is remembered of the controller.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Controller {
    pub integral: f64,
    /// The error before.
    pub error: Option<f64>,
    /// The highest signal lately.
    pub worst: Worst,
}

/// The highest value lately: half of it is forgotten in each hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Worst {
    pub value: f64,
    /// When it was told last.
    pub time_s: Option<Seconds>,
}

impl Worst {
    /// What is left of it.
    pub fn at(&self, now: Seconds, hold_s: Seconds) -> f64 {
        let passed = self.time_s.map_or(i64::MAX, |before| now.saturating_sub(before)).max(0);
        let left = self.value * 0.5_f64.powf(passed as f64 / hold_s.max(1) as f64);
        if left.is_finite() { left.max(0.0) } else { 0.0 }
    }

    pub fn hear(&mut self, value: f64, now: Seconds, hold_s: Seconds) {
        *self = Self { value: value.max(self.at(now, hold_s)), time_s: Some(now) };
    }
}

/// What the controller wants.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Wish {
    Grow,
    /// Far beyond the setpoint.
    GrowFast,
    Shrink,
    /// Inside the dead band.
    Stay,
}

/// Why a signal says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    #[error("there is no signal")]
    Missing,
    #[error("the signal is {0} s old")]
    Stale(i64),
    #[error("the signal is no number that could be")]
    Absurd,
    #[error("the setpoint is not above 0")]
    Setpoint,
}

/// The signal, when it can be believed.
///
/// # Errors
/// It is missing, too old, or not a number that could be.
pub fn signal(seen: Option<Measured>, now: Seconds, settings: &Horizontal) -> Result<f64, Unknown> {
    if !(settings.setpoint.is_finite() && settings.setpoint > 0.0) {
        return Err(Unknown::Setpoint);
    }
    believe(seen, now, settings.stale_s, SIGNAL_MAX * settings.setpoint)
}

/// The share of requests that succeed, when it can be believed.
pub fn success(seen: Option<Measured>, now: Seconds, settings: &Horizontal) -> Option<f64> {
    believe(seen, now, settings.stale_s, SUCCESS_MAX).ok()
}

fn believe(seen: Option<Measured>, now: Seconds, stale_s: Seconds, most: f64) -> Result<f64, Unknown> {
    let seen = seen.ok_or(Unknown::Missing)?;
    let age = now.saturating_sub(seen.time_s);
    if age > stale_s {
        return Err(Unknown::Stale(age));
    }
    if age < -stale_s.max(30) || !(0.0..=most).contains(&seen.value) {
        return Err(Unknown::Absurd);
    }
    Ok(seen.value)
}

impl Controller {
    /// Errors of before count no more.
    pub fn reset(&mut self) {
        self.integral = 0.0;
        self.error = None;
    }

    /// The share of the capacity that would have done, judged by the worst signal lately: from a half to all of it.
    pub fn enough(&self, settings: &Horizontal) -> f64 {
        let steepness =
            if settings.steepness.is_finite() { settings.steepness.clamp(1.0, 100.0) } else { 4.0 };
        let share = (self.worst.value / settings.setpoint).powf(1.0 / steepness);
        if share.is_finite() { share.clamp(0.5, 1.0) } else { 1.0 }
    }

    /// What the signal says at once, without any history.
    pub fn is_urgent(signal: f64, settings: &Horizontal) -> bool {
        settings.urgent_at >= 1.0 && signal >= settings.urgent_at * settings.setpoint
    }

    /// One period of the controller, with a signal that can be believed.
    pub fn turn(&mut self, signal: f64, settings: &Horizontal) -> Wish {
        let error = ((signal - settings.setpoint) / settings.setpoint).clamp(-1.0, ERROR_MAX);
        let before = self.error.filter(|error| error.is_finite()).unwrap_or(error).clamp(-1.0, ERROR_MAX);
        let sum = if self.integral.is_finite() { self.integral } else { 0.0 };
        self.integral = (sum + error).clamp(-INTEGRAL_MAX, INTEGRAL_MAX);
        self.error = Some(error);
        let Gains { proportional, integral, derivative } = settings.gains;
        let output = proportional * error + integral * self.integral + derivative * (error - before);
        let half = settings.dead_band.clamp(0.0, 2.0) / 2.0;
        match output {
            _ if Self::is_urgent(signal, settings) => Wish::GrowFast,
            output if output > half && error > 0.0 => Wish::Grow,
            output if output < -half && error < 0.0 => Wish::Shrink,
            _ => Wish::Stay,
        }
    }
}

/// By how many replicas one step changes so many.
pub fn step(replicas: u32, share: f64) -> u32 {
    let share = if share.is_finite() { share.clamp(0.0, 10.0) } else { 0.0 };
    ((f64::from(replicas) * share) as u32).max(1)
}
