//! Load of the agents, and the cost of one extra second of work at that load.

use std::time::Duration;

/// Work and time of the latest requests, with exponentially decaying weights.
#[derive(Debug, Default)]
pub(super) struct Pressure {
    /// Weighted sum of the work per agent, in seconds.
    work_s: f64,
    /// Weighted time between requests, in seconds.
    time_s: f64,
    last: Duration,
}

/// The weight of a request halves after about 180 later ones.
const REMEMBERED: f64 = 1.0 - 1.0 / 256.0;
/// Minimum load that is tracked.
const CALM: f64 = 0.25;
const LEAST: f64 = 1.0;
const MOST: f64 = 16.0;

impl Pressure {
    /// Adds a request and the work it takes, as a share of every agent's time.
    pub fn add(&mut self, work: Duration, now: Duration) {
        self.work_s = self.work_s * REMEMBERED + work.as_secs_f64();
        self.time_s = self.time_s * REMEMBERED + now.saturating_sub(self.last).as_secs_f64();
        self.last = now;
        // A long idle period must not hide the burst after it; at such a low load the price is at its minimum anyway.
        self.time_s = self.time_s.min(self.work_s / CALM);
    }

    /// Returns the cost of one unit of extra work to later requests, in units of its own time.
    ///
    /// At load r, extra work delays r / (1 - r) other requests by the same time on average, until the queue is empty.
    /// The minimum is one charge, for the list that the miss evicts.
    pub fn price(&self) -> f64 {
        let load = if self.time_s > self.work_s { self.work_s / self.time_s } else { 1.0 };
        (load / (1.0 - load)).clamp(LEAST, MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the price after 3,000 requests that each take `work` ms of every agent's time, `every` ms apart.
    fn price(work: u64, every: u64) -> f64 {
        let mut pressure = Pressure::default();
        for at in 1..=3000 {
            pressure.add(Duration::from_millis(work), Duration::from_millis(every * at));
        }
        pressure.price()
    }

    #[test]
    fn the_price_follows_the_load_between_its_limits() {
        assert_eq!(Pressure::default().price(), MOST);
        assert_eq!(price(10, 40), LEAST);
        assert!((price(30, 40) - 3.0).abs() < 0.01, "{}", price(30, 40));
        assert_eq!(price(39, 40), MOST);
        assert_eq!(price(10, 0), MOST);
    }

    #[test]
    fn a_burst_after_a_calm_hour_is_noticed_soon() {
        let mut pressure = Pressure::default();
        pressure.add(Duration::from_millis(1), Duration::from_secs(3600));
        let hour = Duration::from_secs(3600);
        for at in 1..=300 {
            pressure.add(Duration::from_millis(1), hour + Duration::from_millis(at));
        }
        assert_eq!(pressure.price(), MOST);
    }
}
