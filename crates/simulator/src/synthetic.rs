//! Synthetic workload generated from a seed, for use without a trace: skewed, local and bursty according to published
//! statistics.
//!
//! From Protean (OSDI'20): 94 % of requests are for one VM, 99 % for at most five, a few for hundreds; more than 80 %
//! of successive requests repeat a recent type; some types make up half of the load at times; spikes of ten times the
//! usual rate. From Kamino (OSDI'25): 500 to 1,700 types. From Azure's packing trace: sizes, lifetimes, and the hit
//! rates of a cache of 2, 4, 8, 16 and 32 types (70, 77, 85, 91.5 and 97 %). That trace has hardly more than 100
//! types: with 1,000, all of which must be requested once, the last rate is 95 % here.

use std::collections::HashMap;
use std::sync::Arc;

use super::traits::{self, Family, GIB};
use super::{ArrivalTrace, PodArrival};
use berth_model::{Amounts, PodSpec, Usage};
use berth_scheduler::agent::Rng;
use berth_scheduler::rules::{mix, unit};

/// Options of the generator.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SyntheticOptions {
    /// Number of pods that arrive.
    pub requests: usize,
    /// Number of types; each is requested at least once, if there are enough requests.
    pub types: usize,
    pub seed: u64,
    /// Duration of the arrivals.
    pub days: f64,
}

impl Default for SyntheticOptions {
    fn default() -> Self {
        SyntheticOptions { requests: 40_000, types: 1_000, seed: 1, days: 14.0 }
    }
}

const SECONDS_PER_DAY: f64 = 86_400.0;
/// One pod runs at the start for this many arrivals in 14 days (Azure: 6.5).
const ARRIVALS_PER_RUNNING: f64 = 6.0;
/// Mean remaining lifetime of those pods.
const RUNNING_DAYS: f64 = 40.0;

/// Exponent of the growth of known types: as with words in a text, most new types appear early.
const NEW_TYPES_POWER: f64 = 0.5;
/// Shares of requests outside of bursts: for the type of the previous request, and for a recent type. The rest are
/// drawn by popularity.
const AGAIN: f64 = 0.43;
const LATELY: f64 = 0.34;
/// Mean distance of a recent type, in types.
const LATELY_TYPES: f64 = 7.0;
/// Number of recent types that are remembered: more than is ever used.
const RECENT: usize = 256;
/// The k-th most popular type is requested in proportion to k to the power of minus this.
const POPULARITY_POWER: f64 = 1.7;
/// Interval, in requests, at which some type becomes more popular.
const DRIFT_REQUESTS: u32 = 50;

/// Length of bursts and of the pauses between them, in requests.
const BURST_REQUESTS: f64 = 150.0;
const CALM_REQUESTS: f64 = 900.0;
/// Arrival rate in a burst, as a multiple of the calm rate.
const BURST_RATE: f64 = 10.0;
/// Share of a burst's requests that are for its hot type.
const BURST_SHARE: f64 = 0.5;

/// Quantiles of pod lifetimes, in days; and the share of pods that never leave.
const STAYS_DAYS: [(f64, f64); 9] = [
    (0.0, 0.0005),
    (0.1, 0.0024),
    (0.25, 0.0073),
    (0.5, 0.0235),
    (0.75, 0.1),
    (0.9, 0.7),
    (0.95, 1.2),
    (0.99, 30.0),
    (1.0, 90.0),
];
const NEVER_LEAVES: f64 = 0.04;

/// Generates a workload; the same options give the same workload.
pub fn generate(options: SyntheticOptions) -> ArrivalTrace {
    let SyntheticOptions { requests, types, seed, days } = options;
    let mut draw = Draw(Rng(mix(seed)));
    let types = types.clamp(1, u32::MAX as usize);
    let templates = specs(types, &mut draw);

    let there = requests as f64 * SyntheticOptions::default().days / days / ARRIVALS_PER_RUNNING;
    let running = (0..there as usize).map(|_| {
        let stays_days = if draw.chance(0.5) { f64::INFINITY } else { draw.exponential(RUNNING_DAYS) };
        let template = draw.early(types) as u32;
        PodArrival { template, arrives_s: 0.0, leaves_s: stays_days * SECONDS_PER_DAY }
    });
    let running = running.collect();

    let mut demand = Demand::default();
    // In requests at the calm rate, until the total length is known.
    let mut clock = 0.0;
    let mut arrivals = Vec::with_capacity(requests);
    while arrivals.len() < requests {
        let share = (arrivals.len() + 1) as f64 / requests as f64;
        let due = (types as f64 * share.powf(NEW_TYPES_POWER)).ceil() as usize;
        let template = demand.next(due.min(types), &mut draw);
        clock += draw.exponential(if demand.bursting { 1.0 / BURST_RATE } else { 1.0 });
        let stays_s = draw.stay_days() * SECONDS_PER_DAY;
        let pods = draw.pods().min(requests - arrivals.len());
        arrivals.extend((0..pods).map(|_| PodArrival { template, arrives_s: clock, leaves_s: stays_s }));
    }
    let scale = days * SECONDS_PER_DAY / clock;
    for request in &mut arrivals {
        request.arrives_s *= scale;
        request.leaves_s += request.arrives_s;
    }
    let source = format!("synthetic: {requests} pods of {types} types, seed {seed}");
    ArrivalTrace { source, templates, running, arrivals, machine: traits::vm_machine(), notes: notes() }
}

/// Sequence of requested types.
#[derive(Debug, Default)]
struct Demand {
    /// The known types, most popular first.
    popular: Vec<u32>,
    /// Recently requested types, newest first, without duplicates.
    recent: Vec<u32>,
    bursting: bool,
    /// Number of requests until the burst begins or ends.
    left: u32,
    /// The burst's hot type.
    hot: u32,
    /// Number of requests so far.
    count: u32,
}

impl Demand {
    /// Returns the type of the next request; after it, `due` types should be known.
    fn next(&mut self, due: usize, draw: &mut Draw) -> u32 {
        self.count = self.count.wrapping_add(1);
        if self.count.is_multiple_of(DRIFT_REQUESTS) {
            let from = draw.below(self.popular.len());
            let rises = self.popular.remove(from);
            self.popular.insert(draw.below(from + 1), rises);
        }
        self.left = self.left.saturating_sub(1);
        if self.left == 0 && !self.popular.is_empty() {
            self.bursting = !self.bursting;
            self.left =
                draw.exponential(if self.bursting { BURST_REQUESTS } else { CALM_REQUESTS }) as u32 + 1;
            self.hot = self.popular[draw.early(self.popular.len())];
        }
        let asked = self.choose(due, draw);
        self.recent.retain(|recent| *recent != asked);
        self.recent.insert(0, asked);
        self.recent.truncate(RECENT);
        asked
    }

    fn choose(&mut self, due: usize, draw: &mut Draw) -> u32 {
        if self.popular.len() < due {
            let new = self.popular.len() as u32;
            self.popular.insert(draw.below(self.popular.len() + 1), new);
            return new;
        }
        if self.bursting && draw.chance(BURST_SHARE) {
            return self.hot;
        }
        match draw.unit() {
            ..AGAIN => self.recent[0],
            share if share < AGAIN + LATELY => {
                let back = draw.exponential(LATELY_TYPES) as usize;
                self.recent[back.min(self.recent.len() - 1)]
            }
            _ => self.popular[draw.zipf(self.popular.len())],
        }
    }
}

/// Random numbers of the distributions used here.
#[derive(Debug)]
struct Draw(Rng);

impl Draw {
    /// Returns a number from 0 to less than 1.
    fn unit(&mut self) -> f64 {
        unit(self.0.next())
    }

    fn chance(&mut self, share: f64) -> bool {
        self.unit() < share
    }

    /// Returns a number less than `count`, which must be at least 1.
    fn below(&mut self, count: usize) -> usize {
        (self.unit() * count as f64) as usize
    }

    /// Same as `below`, but small numbers are more frequent: half are in the first eighth.
    fn early(&mut self, count: usize) -> usize {
        (self.unit().powi(3) * count as f64) as usize
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// Returns a rank less than `count`, 0 the most popular. The inverse of a continuous power law, which is simple
    /// and close enough.
    fn zipf(&mut self, count: usize) -> usize {
        let power = 1.0 - POPULARITY_POWER;
        let most = ((count + 1) as f64).powf(power);
        let rank = (1.0 - self.unit() * (1.0 - most)).powf(1.0 / power);
        (rank as usize - 1).min(count - 1)
    }

    /// Returns the number of pods of one request.
    fn pods(&mut self) -> usize {
        match self.unit() {
            ..0.94 => 1,
            ..0.99 => 2 + self.below(4),
            // A heavy tail from 6 on: one in 67 of these would be for more than 400.
            _ => (6.0 / (1.0 - self.unit())).min(400.0) as usize,
        }
    }

    /// Returns a lifetime; infinite: never leaves.
    fn stay_days(&mut self) -> f64 {
        if self.chance(NEVER_LEAVES) {
            return f64::INFINITY;
        }
        let share = self.unit();
        let above = STAYS_DAYS.partition_point(|(quantile, _)| *quantile <= share);
        let ((from, shortest), (to, longest)) = (STAYS_DAYS[above - 1], STAYS_DAYS[above]);
        shortest * f64::powf(longest / shortest, (share - from) / (to - from))
    }
}

/// Returns distinct types. Types with the same size, family and priority differ in their image; a few images are used
/// by many types, most by few.
fn specs(types: usize, draw: &mut Draw) -> Vec<Arc<PodSpec>> {
    const CORES: [i64; 10] = [1, 1, 1, 2, 2, 2, 4, 4, 8, 16];
    let mut alike: HashMap<(i64, i64, bool), u64> = HashMap::new();
    let each = (0..types).map(|_| {
        let cores = CORES[draw.below(CORES.len())];
        let gib_per_core = [4, 4, 4, 2, 8][draw.below(5)];
        let low_priority = draw.chance(0.2);
        let image = alike.entry((cores, gib_per_core, low_priority)).or_default();
        let spec = spec(cores * 1000, cores * gib_per_core * GIB, low_priority, *image);
        *image += 1;
        Arc::new(spec)
    });
    each.collect()
}

fn spec(cpu_milli: i64, memory: i64, low_priority: bool, image: u64) -> PodSpec {
    let usage = Usage {
        requests: Amounts { cpu_milli, memory, ephemeral_storage: 0, pods: 1 },
        nonzero_cpu_milli: cpu_milli,
        nonzero_memory: memory,
        ..Usage::default()
    };
    PodSpec {
        usage: Arc::new(usage),
        tolerations: low_priority.then(traits::tolerates_low_priority).into_iter().collect(),
        node_affinity: Family::of(cpu_milli, memory).affinity(),
        images: traits::image("app", image),
        containers: 1,
        ..PodSpec::default()
    }
}

fn notes() -> Vec<String> {
    [
        "All of this workload is made up: its skew, locality, bursts, sizes and lifetimes follow published statistics of Azure.",
        "Nodes have 96 cores, 768 GiB and room for 500 pods, every label that a pod asks for, no taints and no images.",
    ]
    .map(str::to_owned)
    .to_vec()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn seeded(seed: u64) -> ArrivalTrace {
        generate(SyntheticOptions { seed, ..SyntheticOptions::default() })
    }

    /// Returns the number of pods of each type.
    fn counts(requests: &[PodArrival]) -> Vec<usize> {
        let mut counts = vec![0; 1 + requests.iter().map(|r| r.template as usize).max().unwrap_or_default()];
        requests.iter().for_each(|request| counts[request.template as usize] += 1);
        counts.sort_unstable_by(|a, b| b.cmp(a));
        counts
    }

    #[test]
    fn a_cache_of_the_types_used_last_hits_as_often_as_with_azures_trace() {
        for seed in 1..=5 {
            let (mut recent, mut distances) = (Vec::<u32>::new(), Vec::new());
            for request in &seeded(seed).arrivals {
                let found = recent.iter().position(|template| *template == request.template);
                distances.push(found.unwrap_or(usize::MAX));
                found.map(|at| recent.remove(at));
                recent.insert(0, request.template);
            }
            for (slots, published) in [(2, 0.70), (4, 0.77), (8, 0.85), (16, 0.915), (32, 0.97)] {
                let hits = distances.iter().filter(|distance| **distance < slots).count();
                let share = hits as f64 / distances.len() as f64;
                assert!((share - published).abs() < 0.03, "seed {seed}, {slots} slots: {share}");
            }
        }
    }

    #[test]
    fn the_same_seed_makes_the_same_workload_and_another_another() {
        let (one, again, other) = (seeded(1), seeded(1), seeded(2));
        assert_eq!(
            (&one.arrivals, &one.running, &one.templates),
            (&again.arrivals, &again.running, &again.templates)
        );
        assert_ne!(one.arrivals, other.arrivals);
    }

    #[test]
    fn every_type_is_another_class_and_is_asked_for() {
        let workload = seeded(1);
        let distinct: HashSet<&PodSpec> = workload.templates.iter().map(|spec| &**spec).collect();
        assert_eq!(distinct.len(), 1000);
        assert_eq!(counts(&workload.arrivals).iter().filter(|count| **count > 0).count(), 1000);
        assert_eq!((workload.arrivals.len(), workload.running.len()), (40_000, 6_666));
    }

    #[test]
    fn few_types_are_asked_for_most_of_the_time_and_one_makes_half_of_some_hour() {
        let workload = seeded(1);
        let top: usize = counts(&workload.arrivals)[..100].iter().sum();
        assert!((0.7..0.9).contains(&(top as f64 / 40_000.0)), "the most popular tenth has {top}");
        let windows = workload.arrivals.chunks(500).map(|window| counts(window)[0] as f64 / 500.0);
        let hottest = windows.clone().fold(0.0, f64::max);
        let usual = windows.clone().sum::<f64>() / windows.len() as f64;
        assert!(hottest > 0.5 && usual < 0.4, "{hottest} {usual}");
    }

    #[test]
    fn most_requests_are_for_one_pod_and_few_for_hundreds() {
        let workload = seeded(1);
        let batches: Vec<usize> =
            workload.arrivals.chunk_by(|a, b| a.arrives_s == b.arrives_s).map(<[PodArrival]>::len).collect();
        let share = |most| batches.iter().filter(|pods| **pods <= most).count() as f64 / batches.len() as f64;
        assert!(
            (share(1) - 0.94).abs() < 0.01 && (share(5) - 0.99).abs() < 0.005,
            "{} {}",
            share(1),
            share(5)
        );
        assert!(batches.iter().any(|pods| *pods >= 100));
    }

    #[test]
    fn requests_come_in_order_over_the_span_and_ten_times_as_fast_in_bursts() {
        let workload = seeded(1);
        assert!(workload.arrivals.is_sorted_by_key(|request| request.arrives_s));
        assert!((workload.span_s() / SECONDS_PER_DAY - 14.0).abs() < 0.001);
        let mut starts: Vec<f64> = workload.arrivals.iter().map(|request| request.arrives_s).collect();
        starts.dedup();
        // Time spanned by fifty successive requests: in bursts, and usually.
        let mut spans: Vec<f64> = starts.windows(50).map(|w| w[49] - w[0]).collect();
        spans.sort_by(f64::total_cmp);
        let (fast, usual) = (spans[spans.len() / 20], spans[spans.len() / 2]);
        assert!((8.0..13.0).contains(&(usual / fast)), "{usual} {fast}");
    }

    #[test]
    fn pods_leave_after_they_came_and_the_peak_needs_some_hundreds_of_machines() {
        for seed in 1..=5 {
            let workload = seeded(seed);
            assert!(workload.arrivals.iter().all(|request| request.leaves_s > request.arrives_s));
            let nodes = workload.nodes_for_peak(0.8);
            assert!((250..1000).contains(&nodes), "seed {seed}: {nodes}");
        }
    }

    #[test]
    fn small_and_large_workloads_can_be_asked_for() {
        let tiny = generate(SyntheticOptions { requests: 3, types: 10, ..SyntheticOptions::default() });
        assert_eq!(tiny.arrivals.len(), 3);
        let one = generate(SyntheticOptions { requests: 1000, types: 1, ..SyntheticOptions::default() });
        assert_eq!(counts(&one.arrivals), [1000]);
        assert!(
            generate(SyntheticOptions { requests: 0, types: 0, ..SyntheticOptions::default() })
                .arrivals
                .is_empty()
        );
    }
}
