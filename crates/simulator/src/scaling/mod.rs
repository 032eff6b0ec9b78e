//! `berth simulate --scaling`: comparison of scalers on services whose load changes.
//!
//! A model of services in steps of a second ([`service`]) closes the loop: a scaler's input depends on its actions.
//! The load ([`load`]) and all random numbers are the same for all scalers, and so are the metrics they may read:
//! usage of pods every 15 s, OOM kills, and request wait times. `docs/scaling-simulation.md` lists the model's
//! assumptions. Deterministic by seed. May not know: kube, tokio, clocks.

pub mod figures;
pub mod latency;
pub mod load;
pub mod report;
pub mod run;
pub mod scalers;
pub mod service;

#[cfg(test)]
mod tests;

pub use figures::{ScalingFigures, ScalingOutcome, ScalingSlice};
pub use load::{ServiceLoads, SimulatedService, SyntheticTraffic};
pub use run::{Scenario, run};
pub use scalers::{ScalerKind, Tuning};
