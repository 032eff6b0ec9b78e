//! `berth simulate --scaling`: comparison of scalers on services whose load changes.
//!
//! A model of services in steps of a second ([`service`]) closes the loop: a scaler's input depends on its actions.
//! The load ([`load`]), its neighbours (`neighbours.rs`) and all random numbers are the same for all scalers. So are the metrics
//! ([`metrics`]): usage as metrics-server and Prometheus report it, OOM kills, and a built-in signal ([`signal`]). [`compare`] sets
//! scalers to the same latency before it compares what they take. `docs/scaling-simulation.md` lists the model's assumptions.
//! Deterministic by seed. May not know: kube, tokio, clocks.

pub mod assumptions;
pub mod compare;
pub mod figures;
pub mod latency;
pub mod load;
pub mod metrics;
mod neighbours;
pub mod report;
pub mod run;
pub mod scalers;
pub mod service;
pub mod signal;

#[cfg(test)]
mod tests;

pub use figures::{ScalingFigures, ScalingOutcome, ScalingSlice};
pub use load::{LoadShape, ServiceLoads, SimulatedService, SyntheticTraffic};
pub use run::{Scenario, run};
pub use scalers::{ScalerKind, Tuning};
pub use signal::BuiltInSignal;
