//! `berth simulate --scaling`: ways of scaling compared on services whose load changes.
//!
//! A model of services in steps of a second ([`service`]) closes the loop: what a scaler sees depends on what it did. The
//! load ([`load`]) and everything random is the same for all scalers, and so is what they may see: usage of pods every 15
//! s, kills, and how long requests wait. `docs/scaling-simulation.md` names what the model assumes. Deterministic by seed.
//! May not know: kube, tokio, clocks.

pub mod figures;
pub mod latency;
pub mod load;
pub mod report;
pub mod run;
pub mod scalers;
pub mod service;

#[cfg(test)]
mod tests;

pub use figures::{Figures, Outcome, Slice};
pub use load::{Load, Service, Synthetic};
pub use run::{Scenario, run};
pub use scalers::{ScalerKind, Tuning};
