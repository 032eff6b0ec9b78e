//! Which services peak together, and so had better not share nodes: the affinity generator of SHOWAR (SoCC'21).
//!
//! Every few minutes the usage of all services is looked at on one grid of times (a [`Window`]), and Pearson's correlation is
//! computed for each pair, of CPU, memory and network each. A pair that stays correlated window after window becomes a
//! [`Hint`]: peaks at the same time are to be kept apart, peaks at opposite times fit together, which weighs half. Few points
//! correlate easily by chance, so one window alone says nothing; and a hint that is not confirmed any more fades, and goes.
//!
//! Whoever has the usage makes one window after the other, gives each to [`Correlations::observe`], and hands
//! [`Correlations::hints`] on to the scheduler as hints (`Scheduler::hints_changed`), with the selectors of the
//! workloads that the services are.
//!
//! Deterministic: services go by their names. May not know: kube, tokio, clocks, nodes, pods.

mod links;
mod settings;
mod window;

#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use links::{Correlations, Pass};
pub use settings::Settings;
pub use window::{POINTS_MAX, Window, WindowError};

/// What is correlated with the same of another service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    Cpu,
    Memory,
    Network,
}

impl Resource {
    pub const ALL: [Resource; 3] = [Resource::Cpu, Resource::Memory, Resource::Network];
}

/// Where pods of two services had better be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// On different nodes: they peak at the same time.
    Apart,
    /// On the same nodes: one rests while the other peaks.
    Together,
}

/// One preference of a service's pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hint {
    pub service: Arc<str>,
    /// Whose pods it is about.
    pub other: Arc<str>,
    pub direction: Direction,
    /// 1 to 100: a hundred times the correlation, half of that for being together; less while it is not confirmed.
    pub weight: u8,
    /// Of what the correlation is the strongest.
    pub resource: Resource,
}
