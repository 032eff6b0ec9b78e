//! Measurements of a running simulation, and the figures computed from them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::cost::factor;
use super::figures::{DispatchFigures, DispatchSlice, RunOutcome};
use super::quality::{CacheQuality, CacheSizes, Judged};
use super::world::Setup;
use berth_scheduler::agent::Part;
use berth_scheduler::class::Class;
use berth_scheduler::rules::mix;
use berth_scheduler::scheduler::Task;

/// Number of slices of the timeline.
const SLICES: usize = 200;
/// Maximum length of the timeline in multiples of the arrival span; later events go into the last slice.
const MOST_SPANS: usize = 20;
/// Number of points of the latency distribution.
const POINTS: usize = 400;

pub struct Measure {
    seed: u64,
    class_spread: f64,
    request_spread: f64,
    /// By index of the request: its arrival time and its predictions.
    requests: Vec<Arrived>,
    quality: Option<CacheQuality>,
    /// In milliseconds.
    latencies: Vec<f32>,
    served: u64,
    queue: Duration,
    processing: Duration,
    list_hits: u64,
    list_misses: u64,
    rule_hits: u64,
    rule_misses: u64,
    predicted: Share,
    time_error: Mean,
    best: Share,
    gap: Mean,
    memory: Memory,
    slice: Duration,
    slices: Vec<DispatchSlice>,
    waiting: u64,
    window: Range<Duration>,
    placed_in_window: u64,
}

#[derive(Clone, Default)]
struct Arrived {
    at: Duration,
    judged: Option<Judged>,
}

#[derive(Default)]
struct Share {
    yes: u64,
    all: u64,
}

impl Share {
    fn add(&mut self, yes: bool) {
        self.yes += u64::from(yes);
        self.all += 1;
    }

    fn get(&self) -> Option<f64> {
        (self.all > 0).then(|| self.yes as f64 / self.all as f64)
    }
}

#[derive(Default)]
struct Mean {
    sum: f64,
    count: u64,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1;
    }

    fn get(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }
}

/// Bytes of all agents' caches, integrated over time.
struct Memory {
    by_agent: Vec<usize>,
    total: usize,
    since: Duration,
    byte_seconds: f64,
}

impl Memory {
    fn set(&mut self, agent: usize, bytes: usize, now: Duration) {
        if self.by_agent[agent] != bytes {
            self.advance(now);
            self.total = self.total + bytes - self.by_agent[agent];
            self.by_agent[agent] = bytes;
        }
    }

    fn advance(&mut self, now: Duration) {
        self.byte_seconds += self.total as f64 * (now - self.since).as_secs_f64();
        self.since = now;
    }
}

impl Measure {
    /// Placements in `window` count for the throughput of the burst.
    pub fn new(setup: &Setup, sizes: CacheSizes, window: Range<Duration>) -> Self {
        let span = setup.at(setup.workload.span_s());
        let count = setup.workload.arrivals.len();
        Measure {
            seed: setup.seed,
            class_spread: setup.costs.class_spread,
            request_spread: setup.costs.request_spread,
            requests: vec![Arrived::default(); count],
            quality: setup.dispatcher.estimates().then(|| CacheQuality::new(setup, sizes)),
            latencies: Vec::with_capacity(count),
            served: 0,
            queue: Duration::ZERO,
            processing: Duration::ZERO,
            list_hits: 0,
            list_misses: 0,
            rule_hits: 0,
            rule_misses: 0,
            predicted: Share::default(),
            time_error: Mean::default(),
            best: Share::default(),
            gap: Mean::default(),
            memory: Memory {
                by_agent: vec![0; setup.agents],
                total: 0,
                since: Duration::ZERO,
                byte_seconds: 0.0,
            },
            slice: (span / SLICES as u32).max(Duration::from_nanos(1)),
            slices: Vec::new(),
            waiting: 0,
            window,
            placed_in_window: 0,
        }
    }

    /// Returns the duration factor of this piece of work: the same for a request on every agent.
    pub fn factor(&self, task: &Task) -> f64 {
        match task {
            // Workloads have no gangs.
            Task::Gang { .. } => 1.0,
            Task::Place { request, .. } => self.request_factor(&request.class, index_of(&request.uid)),
            task => self.class_factor(task.class()),
        }
    }

    fn class_factor(&self, class: &Class) -> f64 {
        factor(mix(self.seed.rotate_left(32) ^ class.id.0), self.class_spread)
    }

    fn request_factor(&self, class: &Class, index: u64) -> f64 {
        self.class_factor(class) * factor(mix(!self.seed ^ index), self.request_spread)
    }

    /// Records the arrival of a request, queued for this agent.
    pub fn record_arrival(&mut self, index: u32, class: &Arc<Class>, agent: Option<usize>, now: Duration) {
        self.slice_at(now).arrived += 1.0;
        self.waiting += 1;
        let factor = self.request_factor(class, u64::from(index));
        let judged = match (&mut self.quality, agent) {
            (Some(quality), Some(agent)) => Some(quality.assigned(class, agent, factor, now)),
            _ => None,
        };
        self.requests[index as usize] = Arrived { at: now, judged };
    }

    /// Records the size of this agent's caches.
    pub fn cached(&mut self, agent: usize, bytes: usize, now: Duration) {
        self.memory.set(agent, bytes, now);
    }

    /// Records an agent's choice.
    pub fn tried(&mut self, task: &Task, laps: &[(Part, Duration)], began: Duration, now: Duration) {
        let Task::Place { request, .. } = task else {
            return;
        };
        let mut list_hit = false;
        for (part, _) in laps {
            match part {
                Part::ListHit => (self.list_hits, list_hit) = (self.list_hits + 1, true),
                Part::ListMiss => self.list_misses += 1,
                Part::RuleHit(_) => self.rule_hits += 1,
                Part::RuleMiss(_) => self.rule_misses += 1,
                Part::CommonHit | Part::CommonMiss | Part::Survey | Part::DryRun | Part::GangPreemption => {}
            }
        }
        if let Some(expected) = request.expected {
            self.predicted.add(expected.list == list_hit);
            if !list_hit && !expected.list {
                for (part, _) in laps {
                    match part {
                        Part::RuleHit(rule) => self.predicted.add(expected.has(*rule)),
                        Part::RuleMiss(rule) => self.predicted.add(!expected.has(*rule)),
                        _ => {}
                    }
                }
            }
            let real = (now - began).as_secs_f64();
            if real > 0.0 {
                self.time_error.add((expected.takes.as_secs_f64() - real).abs() / real);
            }
        }
    }

    /// Records that an agent has finished a request, placed or not.
    pub fn finished(&mut self, agent: usize, task: &Task, began: Duration, now: Duration) {
        let Task::Place { request, .. } = task else {
            return;
        };
        let arrived = &self.requests[index_of(&request.uid) as usize];
        self.served += 1;
        self.queue += began - arrived.at;
        self.processing += now - began;
        if let (Some(quality), Some(judged)) = (&mut self.quality, &arrived.judged) {
            quality.finished(agent, judged, now);
            self.best.add(judged.is_best());
            if !judged.is_best() {
                self.gap.add(judged.gap());
            }
        }
    }

    /// Records the placement of a request.
    pub fn placed(&mut self, index: u32, now: Duration) {
        self.slice_at(now).placed += 1.0;
        self.waiting -= 1;
        self.latencies.push((now - self.requests[index as usize].at).as_secs_f32() * 1000.0);
        self.placed_in_window += u64::from(self.window.contains(&now));
    }

    /// Returns the slice of this time; earlier slices are complete.
    fn slice_at(&mut self, now: Duration) -> &mut DispatchSlice {
        let at = (now.as_nanos() / self.slice.as_nanos()).min((SLICES * MOST_SPANS) as u128) as usize;
        while self.slices.len() <= at {
            self.end_slice();
            let from_s = self.slice.as_secs_f64() * self.slices.len() as f64;
            self.slices.push(DispatchSlice { from_s, ..DispatchSlice::default() });
        }
        &mut self.slices[at]
    }

    fn end_slice(&mut self) {
        if let Some(last) = self.slices.last_mut() {
            last.waiting = self.waiting as f64;
            last.memory_mib = mib(self.memory.total as f64);
        }
    }

    pub fn outcome(mut self, setup: &Setup, now: Duration, conflicts: u64, unplaced: u64) -> RunOutcome {
        self.memory.advance(now);
        self.slice_at(now);
        self.end_slice();
        let seconds = self.slice.as_secs_f64();
        for slice in &mut self.slices {
            slice.arrived /= seconds;
            slice.placed /= seconds;
        }
        self.latencies.sort_by(f32::total_cmp);
        let at = |share: f64| quantile(&self.latencies, share);
        let placed = self.latencies.len() as u64;
        let mean = |sum: f64, count: u64| if count == 0 { 0.0 } else { sum / count as f64 };
        let avg_ms = mean(self.latencies.iter().map(|ms| f64::from(*ms)).sum(), placed);
        let share = |hits: u64, misses: u64| mean(hits as f64, hits + misses);
        let window_s = (self.window.end - self.window.start).as_secs_f64();
        let figures = DispatchFigures {
            dispatcher: setup.dispatcher.name().to_owned(),
            avg_ms,
            p50_ms: at(0.5),
            p90_ms: at(0.9),
            p99_ms: at(0.99),
            top_hit: share(self.list_hits, self.list_misses),
            rule_hit: share(self.rule_hits, self.rule_misses),
            memory_mib: mib(self.memory.byte_seconds / now.as_secs_f64().max(1e-9)),
            queue_ms: mean(self.queue.as_secs_f64() * 1000.0, self.served),
            processing_ms: mean(self.processing.as_secs_f64() * 1000.0, self.served),
            prediction_accuracy: self.predicted.get(),
            time_error: self.time_error.get(),
            best_agent: self.best.get(),
            best_agent_gap: self.gap.get(),
            conflicts,
            throughput_burst: if window_s > 0.0 { self.placed_in_window as f64 / window_s } else { 0.0 },
            placed,
            unplaced,
            intervals: BTreeMap::new(),
        };
        let cdf = match placed {
            0 => Vec::new(),
            _ => (0..=POINTS).map(|i| i as f64 / POINTS as f64).map(|share| (at(share), share)).collect(),
        };
        RunOutcome { figures, cdf, timeline: self.slices, burst: (0.0, 0.0) }
    }
}

/// Returns the number in a request's name.
fn index_of(uid: &str) -> u64 {
    uid.rsplit('-').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

fn mib(bytes: f64) -> f64 {
    bytes / f64::from(1 << 20)
}

/// Returns a quantile of sorted values, by nearest rank.
fn quantile(sorted: &[f32], share: f64) -> f64 {
    match sorted.len() {
        0 => 0.0,
        count => {
            let rank = (share * count as f64).ceil() as usize;
            f64::from(sorted[rank.clamp(1, count) - 1])
        }
    }
}
