//! Affinity generator of SHOWAR (SoCC'21): services whose usage peaks together should not share nodes.
//!
//! At an interval of some minutes, the usage of all services is put on one time grid (a [`Window`]), and Pearson's
//! correlation is computed for each pair, separately for CPU, memory and network. A pair that stays correlated over
//! several windows becomes a [`CorrelationHint`]: services that peak at the same time are kept apart; services that peak at
//! opposite times fit together, with half the weight. Short series are easily correlated by chance, so one window
//! alone is not enough; a hint that is no longer confirmed loses weight, and is then removed.
//!
//! The caller builds one window after the other from the usage, passes each to [`Correlations::observe`], and
//! passes [`Correlations::hints`] to the scheduler as hints (`Scheduler::hints_changed`), with
//! the selectors of the services' workloads.
//!
//! Deterministic: services are ordered by name. May not know: kube, tokio, clocks, nodes, pods.

mod links;
mod settings;
mod window;

#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use links::{CorrelationPass, Correlations};
pub use settings::CorrelationSettings;
pub use window::{POINTS_MAX, Window, WindowError};

/// Resource whose usage is correlated between services.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CorrelatedResource {
    Cpu,
    Memory,
    Network,
}

impl CorrelatedResource {
    pub const ALL: [CorrelatedResource; 3] =
        [CorrelatedResource::Cpu, CorrelatedResource::Memory, CorrelatedResource::Network];
}

/// Preferred relative placement of the pods of two services.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// On different nodes: they peak at the same time.
    Apart,
    /// On the same nodes: one rests while the other peaks.
    Together,
}

/// Placement preference of a service's pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CorrelationHint {
    pub service: Arc<str>,
    /// Service whose pods are to be near or apart.
    pub other: Arc<str>,
    pub direction: Direction,
    /// 1 to 100: a hundred times the correlation, half of that for being together; less while it is not confirmed.
    pub weight: u8,
    /// Resource with the strongest correlation.
    pub resource: CorrelatedResource,
}
