//! Randomness from a seed.

use std::time::Duration;

use berth_scheduler::agent::Rng;
use berth_scheduler::rules::mix;

pub struct Dice(Rng);

impl Dice {
    /// `purpose` splits one seed into independent sequences.
    pub fn new(seed: u64, purpose: u64) -> Self {
        Dice(Rng(mix(seed.wrapping_mul(64).wrapping_add(purpose + 1))))
    }

    pub fn any(&mut self) -> u64 {
        self.0.next()
    }

    /// 0 to `n - 1`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0.next() % n
    }

    pub fn percent(&mut self, p: u64) -> bool {
        self.below(100) < p
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        match from.len() as u64 {
            0 => None,
            n => Some(&from[self.below(n) as usize]),
        }
    }

    /// Less than this long, to the microsecond.
    pub fn up_to(&mut self, limit: Duration) -> Duration {
        Duration::from_micros(self.below(limit.as_micros().max(1) as u64))
    }
}
