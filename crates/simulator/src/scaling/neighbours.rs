//! Nodes that other pods fill at times.

use super::load::{seeded, unit};
use berth_scheduler::agent::Rng;

/// Mean time in seconds for which a node is full.
const FULL_S: f64 = 600.0;

/// Whether the node of some replicas of a service is full. The same for all scalers.
pub struct Neighbours {
    draws: Rng,
    /// Probability per second that a node becomes full.
    begins: f64,
    full: bool,
}

impl Neighbours {
    /// `share`: share of time in which a node is full, below 1.
    pub fn new(seed: u64, service: u64, share: f64) -> Self {
        Self { draws: seeded(seed, 5, service), begins: share / (1.0 - share) / FULL_S, full: false }
    }

    /// Moves to the next second.
    pub fn next_second(&mut self) -> bool {
        let draw = unit(&mut self.draws);
        self.full = if self.full { draw >= 1.0 / FULL_S } else { draw < self.begins };
        self.full
    }
}
