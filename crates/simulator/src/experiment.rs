//! Experiments: the same workload with several dispatchers, repeated, and with one parameter varied.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::cost::Costs;
use super::figures::{DispatchFigures, DispatchSweep, RunOutcome, Varied};
use super::lru;
use super::workload::ArrivalTrace;
use super::world::{Setup, sizes_for};
use super::{run, run_without_burst};
use berth_model::{Amounts, Node};
use berth_scheduler::agent::CacheLimits;
use berth_scheduler::dispatch::DispatcherKind;
use berth_scheduler::rules::PlacementSettings;

/// Parameters of an experiment.
#[derive(Debug, Clone)]
pub struct Experiment {
    /// One per repetition.
    pub workloads: Vec<Arc<ArrivalTrace>>,
    pub nodes: Arc<Vec<Node>>,
    pub dispatchers: Vec<DispatcherKind>,
    pub agents: usize,
    pub cache: CacheSize,
    pub cache_age: Option<Duration>,
    pub costs: Costs,
    /// Share of the agents' time that the requests use if 80 % hit their list; `None`: the workload's own times.
    pub load: Option<f64>,
    /// Without a load: speed-up of the arrivals.
    pub speed: f64,
    pub churn_per_s: f64,
    pub conflicts: bool,
    pub placement: Arc<PlacementSettings>,
    pub seed: u64,
}

/// Limit of one agent's cache.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CacheSize {
    Slots(usize),
    Bytes(usize),
    /// The fewest slots for which this share of requests hits a list if each request goes to any agent.
    HitRate(f64),
}

/// Upper limit of the search for a hit rate.
const MOST_SLOTS: usize = 512;
/// Dispatchers compared when one parameter is varied.
const SWEPT: [DispatcherKind; 4] = [
    DispatcherKind::Protean,
    DispatcherKind::HashStealing,
    DispatcherKind::LatcacheRule,
    DispatcherKind::LatcachePriced,
];
const SWEPT_AGENTS: [usize; 4] = [2, 4, 6, 8];
const SWEPT_LOADS: [f64; 6] = [0.3, 0.5, 0.7, 0.8, 0.9, 0.95];
const SWEPT_SLOTS: [usize; 7] = [4, 6, 8, 12, 16, 24, 32];

/// Callback with the number of requests simulated so far.
type Progress<'a> = &'a (dyn Fn(u64) + Sync);

impl Experiment {
    /// Returns the slots of one agent; for a size in bytes, the number that fits.
    pub fn slots(&self) -> usize {
        match self.cache {
            CacheSize::Slots(slots) => slots,
            CacheSize::Bytes(bytes) => bytes / self.bytes_per_list(),
            CacheSize::HitRate(share) => {
                let workload = &self.workloads[0];
                let most = workload.kinds().clamp(1, MOST_SLOTS);
                lru::slots_for(&workload.arrivals, self.agents, share, most)
            }
        }
    }

    /// Returns the share of all nodes used at the workload's peak, for the scarcest resource.
    pub fn peak_share(&self) -> f64 {
        let mut all = Amounts::default();
        self.nodes.iter().for_each(|node| all.add(&node.allocatable));
        let peak = self.workloads[0].peak();
        let share = |wanted: i64, has: i64| wanted as f64 / has.max(1) as f64;
        let cpu = share(peak.cpu_milli, all.cpu_milli);
        cpu.max(share(peak.memory, all.memory)).max(share(peak.pods, all.pods))
    }

    /// Returns the size of one ranked list that shares nothing.
    pub fn bytes_per_list(&self) -> usize {
        sizes_for(&self.nodes).alone()
    }

    fn limits(&self) -> CacheLimits {
        let age = self.cache_age.unwrap_or(Duration::MAX);
        match self.cache {
            CacheSize::Bytes(bytes) => CacheLimits { bytes, age, ..CacheLimits::unlimited() },
            _ => CacheLimits { slots: self.slots(), age, ..CacheLimits::unlimited() },
        }
    }

    fn setup(&self, cache: CacheLimits, dispatcher: DispatcherKind, repetition: usize) -> Setup {
        let workload = self.workloads[repetition].clone();
        let work_s = self.costs.mean(0.8).as_secs_f64() * workload.arrivals.len() as f64;
        let scale = match self.load {
            Some(load) if workload.span_s() > 0.0 => work_s / (self.agents as f64 * load) / workload.span_s(),
            _ => 1.0 / self.speed,
        };
        Setup {
            workload,
            nodes: self.nodes.clone(),
            dispatcher,
            agents: self.agents,
            cache,
            costs: self.costs.clone(),
            scale,
            churn_per_s: self.churn_per_s,
            conflicts: self.conflicts,
            placement: self.placement.clone(),
            seed: self.seed.wrapping_add(repetition as u64),
        }
    }

    /// Returns the number of requests that [`Experiment::run`] simulates, for the progress.
    pub fn work(&self) -> u64 {
        let once: usize = self.workloads.iter().map(|workload| workload.arrivals.len()).sum();
        (once * self.dispatchers.len()) as u64
    }

    /// Returns one outcome per dispatcher: the first run's, with the means of all runs.
    pub fn run(&self, progress: Progress) -> Vec<RunOutcome> {
        let (limits, repetitions) = (self.limits(), self.workloads.len());
        let setup = |at| self.setup(limits, self.dispatchers[at / repetitions], at % repetitions);
        let outcomes =
            parallel(self.dispatchers.len() * repetitions, |at| run(&setup(at), &counting(progress)));
        outcomes.chunks(repetitions).map(mean).collect()
    }

    /// Returns the number of requests that [`Experiment::sweeps`] simulates.
    pub fn sweep_work(&self) -> u64 {
        let points = SWEPT_AGENTS.len() + SWEPT_LOADS.len() + SWEPT_SLOTS.len();
        (self.workloads[0].arrivals.len() * points * SWEPT.len()) as u64
    }

    /// Runs the first workload with other numbers of agents, loads and cache sizes.
    pub fn sweeps(&self, progress: Progress) -> Vec<DispatchSweep> {
        let slots = self.slots();
        let fixed = |slots| CacheSize::Slots(slots);
        let agents = SWEPT_AGENTS.map(|agents| {
            let cache = fixed((slots * self.agents / agents).max(1));
            (agents as f64, Experiment { agents, cache, ..self.clone() })
        });
        let loads = SWEPT_LOADS
            .map(|load| (load, Experiment { load: Some(load), cache: fixed(slots), ..self.clone() }));
        let sizes =
            SWEPT_SLOTS.map(|slots| (slots as f64, Experiment { cache: fixed(slots), ..self.clone() }));
        let points: Vec<_> = agents.into_iter().chain(loads).chain(sizes).collect();
        let figures = parallel(points.len() * SWEPT.len(), |at| {
            let experiment = &points[at / SWEPT.len()].1;
            let setup = experiment.setup(experiment.limits(), SWEPT[at % SWEPT.len()], 0);
            run_without_burst(&setup, &counting(progress)).figures
        });
        let mut all = points.iter().map(|(x, _)| *x).zip(figures.chunks(SWEPT.len()).map(<[_]>::to_vec));
        [
            (Varied::Agents, SWEPT_AGENTS.len()),
            (Varied::Load, SWEPT_LOADS.len()),
            (Varied::CacheSlots, SWEPT_SLOTS.len()),
        ]
        .map(|(what, count)| DispatchSweep { what, points: all.by_ref().take(count).collect() })
        .into()
    }

    /// Runs the first workload with lists that are evicted after `age` without use.
    pub fn aged(&self, age: Duration, dispatchers: &[DispatcherKind]) -> Vec<DispatchFigures> {
        let aged = Experiment { cache_age: Some(age), ..self.clone() };
        let limits = aged.limits();
        parallel(dispatchers.len(), |at| {
            run_without_burst(&aged.setup(limits, dispatchers[at], 0), &|_| ()).figures
        })
    }

    /// Returns the time of all arrivals, on the virtual clock; `Duration::MAX` if unknown.
    pub fn span(&self) -> Duration {
        let setup = self.setup(CacheLimits::unlimited(), DispatcherKind::default(), 0);
        setup.at(setup.workload.span_s())
    }

    /// Returns the average time in which `count` requests arrive.
    pub fn time_of(&self, count: f64) -> Duration {
        self.span().mul_f64(count / self.workloads[0].arrivals.len().max(1) as f64)
    }
}

/// Calls `job` with 0 to `count - 1` on all cores; returns the results in order.
fn parallel<T: Send>(count: usize, job: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get).min(count);
    let (next, results) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= count {
                        return;
                    }
                    let result = job(at);
                    results.lock().insert(at, result);
                }
            });
        }
    });
    results.into_inner().into_values().collect()
}

/// Converts the progress of one run to increments of the total progress.
fn counting(progress: Progress) -> impl Fn(u64) {
    let last = Cell::new(0);
    move |now| progress(now - last.replace(now))
}

/// Accessor of one field of the figures.
type Field = fn(&mut DispatchFigures) -> &mut f64;

/// Returns the first outcome with the means of all, and their confidence intervals.
fn mean(outcomes: &[RunOutcome]) -> RunOutcome {
    let mut first = outcomes[0].clone();
    let count = outcomes.len();
    if count == 1 {
        return first;
    }
    let numbers = |get: Field| -> Vec<f64> {
        outcomes.iter().map(|outcome| *get(&mut outcome.figures.clone())).collect()
    };
    let fields: [(&'static str, Field); 10] = [
        ("avg_ms", |f| &mut f.avg_ms),
        ("p50_ms", |f| &mut f.p50_ms),
        ("p90_ms", |f| &mut f.p90_ms),
        ("p99_ms", |f| &mut f.p99_ms),
        ("top_hit", |f| &mut f.top_hit),
        ("rule_hit", |f| &mut f.rule_hit),
        ("memory_mib", |f| &mut f.memory_mib),
        ("queue_ms", |f| &mut f.queue_ms),
        ("processing_ms", |f| &mut f.processing_ms),
        ("throughput_burst", |f| &mut f.throughput_burst),
    ];
    let mut intervals = BTreeMap::new();
    for (name, get) in fields {
        let values = numbers(get);
        let mean = values.iter().sum::<f64>() / count as f64;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1) as f64;
        let half = student_t(count - 1) * (variance / count as f64).sqrt();
        *get(&mut first.figures) = mean;
        intervals.insert(name, [mean - half, mean + half]);
    }
    let shares: [fn(&mut DispatchFigures) -> &mut Option<f64>; 4] = [
        |f| &mut f.prediction_accuracy,
        |f| &mut f.time_error,
        |f| &mut f.best_agent,
        |f| &mut f.best_agent_gap,
    ];
    for get in shares {
        let values: Vec<f64> =
            outcomes.iter().filter_map(|outcome| *get(&mut outcome.figures.clone())).collect();
        *get(&mut first.figures) =
            (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64);
    }
    let totals: [fn(&mut DispatchFigures) -> &mut u64; 3] =
        [|f| &mut f.conflicts, |f| &mut f.placed, |f| &mut f.unplaced];
    for get in totals {
        let sum: u64 = outcomes.iter().map(|outcome| *get(&mut outcome.figures.clone())).sum();
        *get(&mut first.figures) = sum / count as u64;
    }
    first.figures.intervals = intervals;
    first
}

/// Returns the 97.5 % quantile of Student's distribution.
pub(crate) fn student_t(freedom: usize) -> f64 {
    const TABLE: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
        2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048,
        2.045, 2.042,
    ];
    TABLE.get(freedom.saturating_sub(1)).copied().unwrap_or(1.96)
}
