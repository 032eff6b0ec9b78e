//! One run: every service over the whole time, with its own instance of a scaler.

use super::figures::{ScalingFigures, ScalingOutcome, ScalingSlice};
use super::latency::Latencies;
use super::load::{ServiceLoads, SimulatedService, normal, seeded};
use super::scalers::{PODS_MAX, SCRAPE_S, ScalerKind, ScalerPlan, Scrape, Tuning};
use super::service::{Arrivals, Second, State};
use berth_rightsizing::scaling::Size;

const GIB: f64 = (1_u64 << 30) as f64;
/// Number of slices of the timeline.
const SLICES: u32 = 240;
/// Initial CPU request of each replica, and its utilisation at the peak, which sets the initial number of replicas.
const START_MILLI: i64 = 500;
const START_BUSY: f64 = 0.6;
/// Start of the clock: midnight UTC.
const EPOCH_S: i64 = 1_767_225_600;

/// Parameters of a simulation.
#[derive(Debug, Clone)]
pub struct Scenario {
    pub load: ServiceLoads,
    /// Seconds that are simulated before measuring starts.
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
    let mut sums = Sums::default();
    let slices = SLICES.min(scenario.measured_s.max(1));
    sums.slices.resize_with(slices as usize, Default::default);
    for at in 0..scenario.load.services.len() {
        one_service(scenario, kind, at, &mut sums);
        progress(u64::from(scenario.warm_up_s + scenario.measured_s));
    }
    sums.into_outcome(scenario, kind)
}

/// Returns the plan that an operator who knows the peak would set.
pub fn start(service: &SimulatedService, tuning: &Tuning) -> ScalerPlan {
    let replicas = (service.peak_cores * 1000.0 / START_MILLI as f64 / START_BUSY).ceil() as u32;
    // For the requests of a second, and a third more.
    let requests = service.peak_cores / service.demand.mean_s / f64::from(replicas.max(1));
    let memory = (service.base_memory + service.request_memory * requests) * 1.33;
    let mib = (memory / (1 << 20) as f64).ceil() as i64;
    let size = Size { cpu_milli: START_MILLI, memory_bytes: mib << 20 };
    ScalerPlan { replicas: replicas.clamp(tuning.min_replicas, tuning.max_replicas), size }
}

/// Data from which a scaler's metrics are computed.
#[derive(Default)]
struct Window {
    used: f64,
    /// The last minute, one entry per second: wait, arrived requests, failed requests.
    minute: std::collections::VecDeque<(f64, f64, f64)>,
    requests: f64,
    kills: u32,
    last: Second,
}

fn one_service(scenario: &Scenario, kind: ScalerKind, at: usize, sums: &mut Sums) {
    let (service, rules) = (&scenario.load.services[at], &scenario.tuning.rules);
    let first = start(service, &scenario.tuning);
    let mut scaler = kind.build(first, &scenario.tuning);
    let mut state = State::new(first.replicas, first.size);
    let mut draws = seeded(scenario.seed, 2, at as u64);
    let (mut window, mut noise) = (Window::default(), 0.0_f64);
    let (mut horizontal, mut vertical) = (Changes::default(), Changes::default());
    for now in 0..scenario.warm_up_s + scenario.measured_s {
        let rate = service.rate(now as usize);
        let requests = (rate + rate.sqrt() * normal(&mut draws)).round().max(0.0);
        let spread = (requests * service.demand.variation).sqrt() * normal(&mut draws);
        let work_s =
            ((requests + spread) * service.demand.mean_s).max(0.1 * requests * service.demand.mean_s);
        // Keeps its deviation of 3 % for about ten minutes.
        noise += -noise / 600.0 + 0.03 * (2.0_f64 / 600.0).sqrt() * normal(&mut draws);
        let arrivals = Arrivals { rate, requests, work_s, memory_noise: noise };
        let measured = now >= scenario.warm_up_s;
        let slice = measured.then(|| sums.slice_of(scenario, now));
        let latencies = slice.map(|slice| &mut sums.slices[slice].1);
        let second = state.step(service, now, arrivals, rules, latencies);
        if let Some(slice) = slice {
            sums.add(slice, &state, requests, &second);
        }
        window.add(&second, requests);
        if (now + 1) % SCRAPE_S != 0 {
            continue;
        }
        let time_s = EPOCH_S + i64::from(now) + 1;
        let limit = state.size.cpu_milli as f64 * rules.burst;
        let scrape = window.scrape(&state, service, time_s, (limit, scenario.seed ^ at as u64));
        let plan = scaler.scrape(&scrape);
        let before = (state.replicas(), state.size);
        state.scale(now, plan.replicas, plan.size, rules);
        if measured {
            horizontal.note(before.0.into(), plan.replicas.into());
            vertical.note(before.1.cpu_milli, plan.size.cpu_milli);
            sums.vertical.count +=
                u32::from(before.1.cpu_milli == plan.size.cpu_milli && before.1 != plan.size);
        }
    }
    for (sum, changes) in [(&mut sums.horizontal, horizontal), (&mut sums.vertical, vertical)] {
        sum.count += changes.count;
        sum.reversals += changes.reversals;
    }
}

impl Window {
    fn add(&mut self, second: &Second, requests: f64) {
        self.used += second.used_cores;
        self.requests += requests;
        self.kills += second.killed;
        self.last = *second;
        self.minute.push_back((second.wait_p95_s, requests, second.failed));
        if self.minute.len() > 60 {
            self.minute.pop_front();
        }
    }

    /// Returns the metrics that the scaler sees. Pods differ randomly in the number of requests that they receive.
    fn scrape(
        &mut self,
        state: &State,
        service: &SimulatedService,
        time_s: i64,
        (limit, seed): (f64, u64),
    ) -> Scrape {
        let ready = f64::from(state.ready.max(1));
        let each = self.used / ready / f64::from(SCRAPE_S) * 1000.0;
        let requests = (self.requests / ready).max(1.0);
        let deviation = ((1.0 + service.demand.variation) / requests).sqrt();
        let mut draws = seeded(seed, 3, time_s as u64);
        let (mut cpu_milli, mut memory_bytes) = (Vec::new(), Vec::new());
        for _ in 0..state.ready.min(PODS_MAX) {
            cpu_milli.push((each * (1.0 + deviation * normal(&mut draws))).clamp(0.0, limit));
            memory_bytes.push(self.last.memory_bytes * (1.0 - 0.02 * normal(&mut draws).abs()));
        }
        let came: f64 = self.minute.iter().map(|(_, requests, _)| requests).sum();
        let failed: f64 = self.minute.iter().map(|(_, _, failed)| failed).sum();
        let waited: f64 = self.minute.iter().map(|(wait, requests, _)| wait * requests).sum();
        let kills = std::mem::take(&mut self.kills);
        (self.used, self.requests) = (0.0, 0.0);
        Scrape {
            time_s,
            replicas: state.replicas(),
            ready: state.ready,
            size: state.size,
            cpu_milli,
            memory_bytes,
            wait: (came > 0.0).then(|| waited / came / service.demand.mean_s),
            success: if came > 0.0 { (1.0 - failed / came).max(0.0) } else { 1.0 },
            kills,
        }
    }
}

impl Sums {
    fn slice_of(&self, scenario: &Scenario, now: u32) -> usize {
        let since = u64::from(now - scenario.warm_up_s);
        (since * self.slices.len() as u64 / u64::from(scenario.measured_s)) as usize
    }

    fn add(&mut self, slice: usize, state: &State, requests: f64, second: &Second) {
        let replicas = f64::from(state.replicas());
        let cpu = replicas * state.size.cpu_milli as f64 / 1000.0;
        let memory = replicas * state.size.memory_bytes as f64 / GIB;
        self.cpu += cpu;
        self.memory += memory;
        self.used += second.used_cores;
        self.replicas += replicas;
        self.arrived += requests;
        self.failed += second.failed;
        self.kills += second.killed;
        let slice = &mut self.slices[slice].0;
        slice.cpu_cores += cpu;
        slice.memory_gib += memory;
        slice.used_cores += second.used_cores;
        slice.replicas += replicas;
        slice.requests_per_s += requests;
    }

    fn into_outcome(mut self, scenario: &Scenario, kind: ScalerKind) -> ScalingOutcome {
        let seconds = f64::from(scenario.measured_s.max(1));
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
        ScalingOutcome { figures, timeline }
    }
}
