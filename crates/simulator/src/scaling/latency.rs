//! Request latency: the model of one second's requests, and their histogram.

/// Histogram resolution: 1/64 of a doubling.
const PARTS_BITS: u32 = 6;
const SHIFT: u32 = 23 - PARTS_BITS;
/// 2^-14 s, 61 µs; faster requests count as this.
const FASTEST: u32 = ((127 - 14) << 23) >> SHIFT;
/// Up to 2^7 s.
const BUCKETS: usize = 21 << PARTS_BITS;
/// CFS period: the kernel's interval for a container's CPU quota.
pub const QUOTA_PERIOD_S: f64 = 0.1;
/// Waits of the requests that wait: their share, and the mean of that part of an exponential distribution.
const WAITS: [(f64, f64); 8] = [
    (0.3, 0.1678),
    (0.3, 0.6105),
    (0.2, 1.2231),
    (0.1, 1.9163),
    (0.06, 2.6917),
    (0.025, 3.6304),
    (0.011, 4.7191),
    (0.004, 6.5215),
];

/// Shares of a normal distribution, and the mean of each. No share ends at a reported percentile.
const STANDARD: [(f64, f64); 10] = [
    (0.3, -1.159),
    (0.2, -0.2562),
    (0.2, 0.2562),
    (0.15, 0.7636),
    (0.08, 1.2361),
    (0.035, 1.6285),
    (0.02, 1.97),
    (0.008, 2.2979),
    (0.005, 2.6294),
    (0.002, 3.1701),
];

/// A histogram of latencies, by number of requests.
#[derive(Debug, Clone)]
pub struct Latencies {
    counts: Vec<f64>,
    pub total: f64,
}

impl Default for Latencies {
    fn default() -> Self {
        Self { counts: vec![0.0; BUCKETS], total: 0.0 }
    }
}

impl Latencies {
    pub fn add(&mut self, seconds: f64, requests: f64) {
        let bits = (seconds.max(0.0) as f32).to_bits() >> SHIFT;
        let at = (bits.saturating_sub(FASTEST) as usize).min(BUCKETS - 1);
        self.counts[at] += requests;
        self.total += requests;
    }

    pub fn merge(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(sum, more)| *sum += more);
        self.total += other.total;
    }

    pub fn clear(&mut self) {
        self.counts.fill(0.0);
        self.total = 0.0;
    }

    /// Returns a percentile in seconds, the upper end of the bucket; 0 without requests.
    pub fn percentile(&self, share: f64) -> f64 {
        let mut below = 0.0;
        let wanted = share * self.total;
        for (at, count) in self.counts.iter().enumerate() {
            below += count;
            if *count > 0.0 && below >= wanted {
                return f64::from(f32::from_bits((at as u32 + 1 + FASTEST) << SHIFT));
            }
        }
        0.0
    }

    /// Returns the approximate share of the requests that took longer than `seconds`.
    pub fn share_above(&self, seconds: f64) -> f64 {
        let bits = (seconds as f32).to_bits() >> SHIFT;
        let at = (bits.saturating_sub(FASTEST) as usize).min(BUCKETS - 1);
        self.counts[at + 1..].iter().sum::<f64>() / self.total.max(f64::MIN_POSITIVE)
    }
}

/// CPU time of a service's requests: a few values that approximate a log-normal distribution.
#[derive(Debug, Clone)]
pub struct Demand {
    pub mean_s: f64,
    /// Variance divided by the square of the mean.
    pub variation: f64,
    /// Share of requests, and their CPU time.
    points: [(f64, f64); STANDARD.len()],
}

impl Demand {
    pub fn new(mean_s: f64, variation: f64) -> Self {
        let sigma2 = (1.0 + variation).ln();
        let sigma = sigma2.sqrt();
        let mut points = STANDARD.map(|(share, z)| (share, (sigma * z).exp()));
        let mean: f64 = points.iter().map(|(share, value)| share * value).sum();
        points.iter_mut().for_each(|(_, value)| *value *= mean_s / mean);
        Self { mean_s, variation, points }
    }
}

/// CPU wait of the requests of one second, in addition to a backlog.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Wait {
    /// Share of the requests that wait.
    pub share: f64,
    /// The mean wait of those, in seconds; waits are exponential.
    pub mean_s: f64,
    /// Wait of all requests for the backlog, in seconds.
    pub backlog_s: f64,
}

impl Wait {
    /// M/G/m with the capacity of a container: Sakasegawa's approximation, which for one server is the
    /// Pollaczek-Khinchine formula. `busy` is the mean utilisation of the capacity.
    pub fn new(demand: &Demand, busy: f64, cores: f64, backlog_s: f64) -> Self {
        // Within one second a queue gets no closer than this to its steady state.
        const BUSY_MAX: f64 = 0.95;
        let busy = busy.clamp(0.0, BUSY_MAX);
        let (servers, speed) = (cores.max(1.0), cores.clamp(1e-3, 1.0));
        let share = busy.powf((2.0 * (servers + 1.0)).sqrt() - 1.0);
        let mean_s = (1.0 + demand.variation) / 2.0 * demand.mean_s / speed / (servers * (1.0 - busy));
        Self { share, mean_s, backlog_s }
    }

    pub fn average(&self) -> f64 {
        self.backlog_s + self.share * self.mean_s
    }

    /// Returns the share of time in which some request waits.
    pub fn pressure(&self, busy: f64) -> f64 {
        if self.backlog_s > 0.0 { 1.0 } else { self.share * busy.clamp(0.0, 1.0) }
    }

    /// Calls `add` with latencies and the number of requests that had them, for a service whose containers have `cores` cores.
    pub fn count(&self, demand: &Demand, cores: f64, requests: f64, mut add: impl FnMut(f64, f64)) {
        for (share, seconds) in demand.points {
            let (requests, alone) = (requests * share, self.backlog_s + alone(seconds, cores));
            add(alone, requests * (1.0 - self.share));
            for (part, factor) in WAITS {
                add(alone + factor * self.mean_s, requests * self.share * part);
            }
        }
    }
}

/// Returns the latency of a request alone in a container: at the speed of a core, until the quota of a period is
/// used.
pub fn alone(seconds: f64, cores: f64) -> f64 {
    if cores >= 1.0 {
        return seconds;
    }
    let quota = cores.max(1e-3) * QUOTA_PERIOD_S;
    seconds + (seconds / quota).floor() * (QUOTA_PERIOD_S - quota)
}
