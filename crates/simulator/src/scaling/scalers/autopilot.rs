//! Autopilot (EuroSys'20): moving windows for sizes, and replicas from total usage.
//!
//! CPU: the load-weighted 95th percentile with a half-life of 12 h, plus 15 %, maximum over the last hour. Memory:
//! the maximum of a day, plus 10 %; raised by an OOM kill. Replicas: the 95th percentile of the total usage in 72 h,
//! divided by the target share (0.8) of a replica's initial size; scaled down after two days without a higher
//! recommendation.

use std::collections::VecDeque;

use super::{Scaler, ScalerPlan, Scrape, Tuning, mean};
use berth_rightsizing::recommend::amount::from_float;
use berth_rightsizing::scaling::vertical::after_kill;
use berth_rightsizing::scaling::{Size, Vertical};

const WINDOW_S: i64 = 300;
const HALF_LIFE_S: f64 = 12.0 * 3_600.0;
const MARGIN: (f64, f64) = (1.15, 1.10);
const SHARE: f64 = 0.8;
const HOUR_S: i64 = 3_600;
const TOTAL_S: i64 = 72 * HOUR_S;
const DEFERRED_S: i64 = 48 * HOUR_S;
const FLOOR: Size = Size { cpu_milli: 10, memory_bytes: 16 << 20 };
/// Bucket width of CPU: 4 %.
const GROWTH: f64 = 1.04;
const BUCKETS: usize = 400;

pub struct Autopilot {
    bounds: (u32, u32),
    each_milli: f64,
    /// Load-weighted: usage times frequency, by bucket, as of the last window.
    weights: Vec<f64>,
    open: Vec<f64>,
    total: (f64, u32),
    peak: f64,
    /// Time and value, newest last.
    cpu: VecDeque<(i64, i64)>,
    memory: VecDeque<(i64, i64)>,
    totals: VecDeque<(i64, f64)>,
    wanted: VecDeque<(i64, u32)>,
}

impl Autopilot {
    pub fn new(start: ScalerPlan, tuning: &Tuning) -> Self {
        Self {
            bounds: (tuning.min_replicas, tuning.max_replicas),
            each_milli: SHARE * start.size.cpu_milli as f64,
            weights: vec![0.0; BUCKETS],
            open: Vec::new(),
            total: (0.0, 0),
            peak: 0.0,
            cpu: VecDeque::new(),
            memory: VecDeque::new(),
            totals: VecDeque::new(),
            wanted: VecDeque::new(),
        }
    }

    fn percentile(&self) -> f64 {
        let all: f64 = self.weights.iter().sum();
        let mut below = 0.0;
        let at = self.weights.iter().position(|weight| {
            below += weight;
            below >= 0.95 * all
        });
        at.map_or(0.0, |at| GROWTH.powi(at as i32 + 1))
    }

    fn close_window(&mut self, now: i64) {
        let fade = 0.5_f64.powf(WINDOW_S as f64 / HALF_LIFE_S);
        self.weights.iter_mut().for_each(|weight| *weight *= fade);
        for cpu in self.open.drain(..) {
            let at = (cpu.max(1.0).ln() / GROWTH.ln()) as usize;
            self.weights[at.min(BUCKETS - 1)] += cpu;
        }
        let cpu = from_float(self.percentile() * MARGIN.0);
        keep(&mut self.cpu, now, cpu, HOUR_S);
        keep(&mut self.memory, now, from_float(self.peak * MARGIN.1), 24 * HOUR_S);
        self.peak = 0.0;
        keep(&mut self.totals, now, self.total.0 / f64::from(self.total.1.max(1)), TOTAL_S);
        self.total = (0.0, 0);
        let mut totals: Vec<f64> = self.totals.iter().map(|(_, total)| *total).collect();
        totals.sort_by(f64::total_cmp);
        let p95 = totals[(totals.len() * 95 / 100).min(totals.len() - 1)];
        keep(&mut self.wanted, now, (p95 / self.each_milli.max(1.0)).ceil() as u32, DEFERRED_S);
    }
}

/// Adds a value, and drops values older than `seconds`.
fn keep<T>(values: &mut VecDeque<(i64, T)>, now: i64, value: T, seconds: i64) {
    values.push_back((now, value));
    while values.front().is_some_and(|(time, _)| now - time >= seconds) {
        values.pop_front();
    }
}

impl Scaler for Autopilot {
    fn scrape(&mut self, scrape: &Scrape) -> ScalerPlan {
        self.open.extend(&scrape.usage_milli);
        self.peak = scrape.working_set_bytes.iter().fold(self.peak, |peak, memory| peak.max(*memory));
        self.total.0 += mean(&scrape.usage_milli) * f64::from(scrape.ready);
        self.total.1 += 1;
        let (now, mut size) = (scrape.time_s, scrape.size);
        if scrape.kills > 0 {
            let needed = after_kill(size.memory_bytes, &Vertical::default());
            keep(&mut self.memory, now, needed, 24 * HOUR_S);
            size.memory_bytes = size.memory_bytes.max(needed);
        }
        if now % WINDOW_S != 0 {
            return ScalerPlan { replicas: scrape.replicas, size };
        }
        self.close_window(now);
        let highest =
            |values: &VecDeque<(i64, i64)>| values.iter().map(|(_, value)| *value).max().unwrap_or(0);
        let size = Size {
            cpu_milli: highest(&self.cpu).max(FLOOR.cpu_milli),
            memory_bytes: highest(&self.memory).max(FLOOR.memory_bytes),
        };
        let replicas = self.wanted.iter().map(|(_, wanted)| *wanted).max().unwrap_or(scrape.replicas);
        ScalerPlan { replicas: replicas.clamp(self.bounds.0, self.bounds.1), size }
    }
}
