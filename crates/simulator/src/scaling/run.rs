//! One run: every service over the whole time, with its own instance of a scaler.

use super::figures::{ScalingFigures, ScalingOutcome, ScalingSlice};
use super::latency::Latencies;
use super::load::{ServiceLoads, SimulatedService, normal, seeded, unit};
use super::metrics::{SYNC_S, SimulatedMetrics};
use super::neighbours::Neighbours;
use super::scalers::{ScalerKind, ScalerPlan, Tuning};
use super::service::{Arrivals, Second, State};
use super::signal::BuiltInSignal;
use berth_rightsizing::scaling::Size;

const GIB: f64 = (1_u64 << 30) as f64;
/// Number of slices of the timeline.
const SLICES: u32 = 240;
/// Utilisation of the initial replicas at the peak.
const START_BUSY: f64 = 0.6;
/// Start of the clock: midnight UTC.
const EPOCH_S: i64 = 1_767_225_600;

/// Parameters of a simulation.
#[derive(Debug, Clone)]
pub struct Scenario {
    pub load: ServiceLoads,
    /// Seconds before the measured ones. Their figures are separate: the first contact of scalers with the services.
    pub warm_up_s: u32,
    pub measured_s: u32,
    pub slo_ms: f64,
    pub tuning: Tuning,
    pub seed: u64,
}

/// Sums over services.
#[derive(Default)]
struct Sums {
    cpu: f64,
    memory: f64,
    used: f64,
    replicas: f64,
    arrived: f64,
    failed: f64,
    kills: u32,
    horizontal: Changes,
    vertical: Changes,
    latencies: Latencies,
    slices: Vec<(ScalingSlice, Latencies)>,
    from_s: u32,
    seconds: u32,
}

/// Number of changes, and of changes in the opposite direction of the previous one.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Changes {
    count: u32,
    reversals: u32,
    grew: Option<bool>,
}

impl Changes {
    fn note(&mut self, before: i64, after: i64) {
        if before == after {
            return;
        }
        self.count += 1;
        let grew = after > before;
        self.reversals += u32::from(self.grew.replace(grew).is_some_and(|last| last != grew));
    }
}

/// Runs one scaler. `progress` is called with simulated seconds of services.
pub fn run(scenario: &Scenario, kind: ScalerKind, progress: &dyn Fn(u64)) -> ScalingOutcome {
    let mut first = Sums::new(0, scenario.warm_up_s);
    let mut sums = Sums::new(scenario.warm_up_s, scenario.measured_s);
    for at in 0..scenario.load.services.len() {
        one_service(scenario, kind, at, [&mut first, &mut sums]);
        progress(u64::from(scenario.warm_up_s + scenario.measured_s));
    }
    let first = (scenario.warm_up_s > 0).then(|| first.into_figures(scenario, kind).0);
    let (figures, timeline) = sums.into_figures(scenario, kind);
    ScalingOutcome { first, figures, timeline }
}

/// Returns the plan that an operator who knows the peak would set.
pub fn start(service: &SimulatedService, tuning: &Tuning) -> ScalerPlan {
    let cpu_milli = tuning.start_milli.max(1);
    let replicas = (service.peak_cores * 1000.0 / cpu_milli as f64 / START_BUSY).ceil() as u32;
    let replicas = replicas.clamp(tuning.min_replicas, tuning.max_replicas);
    // For the requests of a second, and a third more.
    let requests = service.peak_cores / service.demand.mean_s / f64::from(replicas.max(1));
    let memory = (service.base_memory + service.request_memory * requests) * 1.33;
    let mib = (memory / (1 << 20) as f64).ceil() as i64;
    ScalerPlan { replicas, size: Size { cpu_milli, memory_bytes: mib << 20 } }
}

fn one_service(scenario: &Scenario, kind: ScalerKind, at: usize, [first, after]: [&mut Sums; 2]) {
    let (service, tuning) = (&scenario.load.services[at], &scenario.tuning);
    let rules = &tuning.rules;
    let start = start(service, tuning);
    let mut scaler = kind.build(start, tuning.signal.unit(&service.demand), tuning);
    let mut state = State::new(start.replicas, start.size);
    state.histogram = tuning.signal == BuiltInSignal::RequestLatency;
    let mut draws = seeded(scenario.seed, 2, at as u64);
    let mut neighbours = Neighbours::new(scenario.seed, at as u64, rules.full_nodes);
    let mut metrics = SimulatedMetrics::new(scenario.seed ^ at as u64);
    let mut noise = 0.0_f64;
    let mut changes = [Changes::default(); 2];
    for now in 0..scenario.warm_up_s + scenario.measured_s {
        let rate = service.rate(now as usize);
        let requests = (rate + rate.sqrt() * normal(&mut draws)).round().max(0.0);
        let spread = (requests * service.demand.variation).sqrt() * normal(&mut draws);
        let work_s =
            ((requests + spread) * service.demand.mean_s).max(0.1 * requests * service.demand.mean_s);
        // Keeps its deviation of 3 % for about ten minutes.
        noise += -noise / 600.0 + 0.03 * (2.0_f64 / 600.0).sqrt() * normal(&mut draws);
        let full_node = neighbours.next_second();
        let arrivals = Arrivals { rate, requests, work_s, memory_noise: noise, full_node };
        if now == scenario.warm_up_s {
            first.note(std::mem::take(&mut changes));
        }
        let sums = if now < scenario.warm_up_s { &mut *first } else { &mut *after };
        let slice = sums.slice_of(now);
        let second = state.step(service, now, arrivals, rules, Some(&mut sums.slices[slice].1));
        sums.add(slice, &state, requests, &second);
        metrics.add(service, second, requests, now + 1, tuning);
        if (now + 1) % SYNC_S != 0 {
            continue;
        }
        let scrape = metrics.observe(&state, EPOCH_S + i64::from(now) + 1, tuning);
        let plan = scaler.scrape(&scrape);
        let [horizontal, vertical] = &mut changes;
        horizontal.note(state.replicas().into(), plan.replicas.into());
        vertical.note(state.size.cpu_milli, plan.size.cpu_milli);
        vertical.count += u32::from(state.size.cpu_milli == plan.size.cpu_milli && state.size != plan.size);
        let mut refusal = seeded(scenario.seed, 4, u64::from(now) << 8 | at as u64);
        state.scale(now, plan.replicas, plan.size, unit(&mut refusal) < rules.refused, rules);
    }
    after.note(changes);
}

impl Sums {
    fn new(from_s: u32, seconds: u32) -> Self {
        let mut slices = Vec::new();
        slices.resize_with(SLICES.min(seconds.max(1)) as usize, Default::default);
        Sums { from_s, seconds, slices, ..Sums::default() }
    }

    fn slice_of(&self, now: u32) -> usize {
        let since = u64::from(now - self.from_s);
        (since * self.slices.len() as u64 / u64::from(self.seconds)) as usize
    }

    fn note(&mut self, [horizontal, vertical]: [Changes; 2]) {
        for (sum, changes) in [(&mut self.horizontal, horizontal), (&mut self.vertical, vertical)] {
            sum.count += changes.count;
            sum.reversals += changes.reversals;
        }
    }

    fn add(&mut self, slice: usize, state: &State, requests: f64, second: &Second) {
        let replicas = f64::from(state.replicas());
        let cpu = replicas * state.size.cpu_milli as f64 / 1000.0;
        let memory = replicas * state.size.memory_bytes as f64 / GIB;
        self.cpu += cpu;
        self.memory += memory;
        self.used += second.used_cores();
        self.replicas += replicas;
        self.arrived += requests;
        self.failed += second.failed;
        self.kills += second.killed;
        let slice = &mut self.slices[slice].0;
        slice.cpu_cores += cpu;
        slice.memory_gib += memory;
        slice.used_cores += second.used_cores();
        slice.replicas += replicas;
        slice.requests_per_s += requests;
    }

    fn into_figures(mut self, scenario: &Scenario, kind: ScalerKind) -> (ScalingFigures, Vec<ScalingSlice>) {
        let seconds = f64::from(self.seconds.max(1));
        let each = seconds / self.slices.len() as f64;
        let mut timeline = Vec::new();
        for (at, (slice, latencies)) in self.slices.iter().enumerate() {
            self.latencies.merge(latencies);
            timeline.push(ScalingSlice {
                from_h: at as f64 * each / 3_600.0,
                requests_per_s: slice.requests_per_s / each,
                cpu_cores: slice.cpu_cores / each,
                used_cores: slice.used_cores / each,
                memory_gib: slice.memory_gib / each,
                replicas: slice.replicas / each,
                p99_ms: latencies.percentile(0.99) * 1000.0,
            });
        }
        let service_days = scenario.load.services.len() as f64 * seconds / 86_400.0;
        let ms = |share| self.latencies.percentile(share) * 1000.0;
        let figures = ScalingFigures {
            scaler: kind.name().to_owned(),
            from_h: f64::from(self.from_s) / 3_600.0,
            hours: seconds / 3_600.0,
            cpu_cores: self.cpu / seconds,
            memory_gib: self.memory / seconds,
            used_cores: self.used / seconds,
            replicas: self.replicas / seconds,
            p50_ms: ms(0.5),
            p99_ms: ms(0.99),
            p999_ms: ms(0.999),
            slo_violations: self.latencies.share_above(scenario.slo_ms / 1000.0),
            failed: self.failed / self.arrived.max(1.0),
            horizontal_changes: f64::from(self.horizontal.count) / service_days,
            vertical_changes: f64::from(self.vertical.count) / service_days,
            horizontal_reversals: f64::from(self.horizontal.reversals) / service_days,
            vertical_reversals: f64::from(self.vertical.reversals) / service_days,
            oom_kills: f64::from(self.kills) / service_days,
        };
        (figures, timeline)
    }
}
