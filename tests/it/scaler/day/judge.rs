//! What must hold all day, and what an HPA would have done on the same load.

use std::collections::{BTreeMap, VecDeque};

use berth_rightsizing::scaling::Size;
use berth_simulator::scaling::scalers::{Scaler, ScalerPlan, Scrape};
use berth_simulator::scaling::service::ServiceAssumptions;
use berth_simulator::scaling::{BuiltInSignal, ScalerKind, Tuning};

use super::metrics::Fault;
use super::services::{Containers, MI, SCRAPE_S, SERVICES, Service};

const DAY_S: i64 = 86_400;
/// Window of usage that a smaller CPU size or fewer replicas must leave room for.
const RECENT_S: i64 = 300;
/// Seconds until a new replica of the HPA is ready.
const START_S: i64 = 30;
/// Target of the HPA, as a share of the request.
const HPA_TARGET: f64 = 0.7;
pub const REPLICAS_MAX: u32 = 12;
pub const REPLICAS_MIN: u32 = 2;

/// The size of a service at a time: requests of one replica.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    pub replicas: u32,
    /// Of most of its pods.
    pub cpu_milli: i64,
    pub memory: i64,
}

/// A value that goes up and down.
#[derive(Debug, Default)]
pub struct Direction {
    last: i64,
    is_up: Option<bool>,
    pub reversals: u32,
    pub changes: u32,
    lowest: i64,
    highest: i64,
}

impl Direction {
    fn see(&mut self, value: i64) {
        let is_up = value > self.last;
        if self.last != 0 && value != self.last {
            self.changes += 1;
            self.reversals += u32::from(self.is_up == Some(!is_up));
            self.is_up = Some(is_up);
        }
        self.lowest = if self.last == 0 { value } else { self.lowest.min(value) };
        self.highest = self.highest.max(value);
        self.last = value;
    }
}

/// What is known of one service.
#[derive(Default)]
struct Seen {
    shape: Option<Shape>,
    /// Times, and what all its pods used: cores.
    cores: VecDeque<(i64, f64)>,
    /// Times, and what the largest of its pods used: bytes.
    memory: VecDeque<(i64, f64)>,
    replicas: Direction,
    cpu: Direction,
    bytes: Direction,
    overloaded: u32,
}

/// The sums of a day.
#[derive(Default)]
pub struct Judge {
    services: BTreeMap<&'static str, Seen>,
    hpas: BTreeMap<&'static str, Hpa>,
    /// Kills within what was allowed before anything was changed.
    pub harmful: Vec<String>,
    pub kills: u32,
    /// Changes to less than what was used.
    pub too_small: Vec<String>,
    /// All changes, for people.
    changes: Vec<String>,
}

/// What a service did in one step.
pub struct Step {
    pub at: i64,
    /// Since the start, for people.
    pub since_start_s: i64,
    pub fault: Option<Fault>,
    /// Of the leader's clock.
    pub skew_s: i64,
    /// Cores that it needs, and that its pods may use.
    pub needed: f64,
    pub allowed: f64,
    /// Of the largest pod, in bytes.
    pub memory: f64,
    pub shape: Option<Shape>,
}

impl Judge {
    /// Begins after a day in which these containers ran.
    pub fn after(containers: &Containers, start: i64) -> Judge {
        let mut judge = Judge::default();
        for container in containers.values() {
            let seen = judge.services.entry(container.service).or_default();
            let of_day = container.scrapes.iter().filter(|scrape| scrape.at > start - DAY_S);
            seen.memory.extend(of_day.map(|scrape| (scrape.at, scrape.memory)));
        }
        for seen in judge.services.values_mut() {
            seen.memory.make_contiguous().sort_by_key(|(at, _)| *at);
        }
        let scaled = SERVICES.iter().filter(|service| service.signal.is_some());
        judge.hpas = scaled.map(|service| (service.name, Hpa::new(service))).collect();
        judge
    }

    pub fn see(&mut self, service: &'static Service, step: &Step) {
        let seen = self.services.entry(service.name).or_default();
        let Step { at, .. } = *step;
        seen.cores.push_back((at, step.needed.min(step.allowed)));
        seen.memory.push_back((at, step.memory));
        while seen.cores.front().is_some_and(|(then, _)| at - then >= RECENT_S) {
            seen.cores.pop_front();
        }
        while seen.memory.front().is_some_and(|(then, _)| at - then >= DAY_S) {
            seen.memory.pop_front();
        }
        seen.overloaded += u32::from(step.needed > step.allowed);
        if let Some(hpa) = self.hpas.get_mut(service.name) {
            hpa.step(step);
        }
        let Some(shape) = step.shape else { return };
        let before = seen.shape.replace(shape).unwrap_or(shape);
        seen.replicas.see(shape.replicas.into());
        seen.cpu.see(shape.cpu_milli);
        seen.bytes.see(shape.memory);
        let when = format!(
            "{} at {:.2} h ({:?}, clock {:+} s): {before:?} -> {shape:?}",
            service.name,
            step.since_start_s as f64 / 3_600.0,
            step.fault,
            step.skew_s,
        );
        if shape != before {
            self.changes.push(when.clone());
        }
        let recent = seen.cores.iter().map(|(_, cores)| cores).sum::<f64>() / seen.cores.len() as f64;
        let requested = f64::from(shape.replicas) * shape.cpu_milli as f64 / 1_000.0;
        let is_less = shape.replicas < before.replicas || shape.cpu_milli < before.cpu_milli;
        if is_less && requested < recent {
            self.too_small.push(format!("{when}, and {recent:.2} cores were used"));
        }
        let peak = seen.memory.iter().map(|(_, bytes)| *bytes).fold(0.0, f64::max);
        if shape.memory < before.memory && (shape.memory as f64) < peak {
            self.too_small.push(format!("{when}, and {:.0} Mi were used", peak / MI));
        }
    }

    /// Returns the reversals of the replicas of berth and of the HPA.
    pub fn reversals(&self) -> (u32, u32) {
        let scaled = self.hpas.keys().map(|name| self.services[name].replicas.reversals).sum();
        (scaled, self.hpas.values().map(|hpa| hpa.direction.reversals).sum())
    }

    /// Asserts that services of ServiceScalers have shrunk from what was too much, and that no lie counts for them; and that VPAs give
    /// more to what leaks.
    pub fn assert_sized(&self) {
        for service in &SERVICES {
            let seen = &self.services[service.name];
            let (cpu, memory, given) = (seen.cpu.lowest, seen.bytes.highest as f64, service.memory_mi * MI);
            if service.signal.is_some() {
                assert!((cpu as f64) < service.cpu_milli, "{}: CPU is {cpu}m at least", service.name);
                assert!(memory < 2.0 * given, "{}: memory is {memory} at most", service.name);
            }
            assert!(!service.leaks() || memory > given, "{}: memory is {memory} at most", service.name);
        }
    }

    pub fn print(&self) {
        self.changes.iter().for_each(|change| println!("{change}"));
        for (name, seen) in &self.services {
            let minutes = |steps: u32| f64::from(steps) * SCRAPE_S as f64 / 60.0;
            let of = |what: &str, direction: &Direction| {
                format!("{what} {} changes, {} reversals", direction.changes, direction.reversals)
            };
            println!(
                "{name}: {}; {}; {}; more was needed than limits allow in {:.1} min; now {:?}",
                of("replicas", &seen.replicas),
                of("CPU", &seen.cpu),
                of("memory", &seen.bytes),
                minutes(seen.overloaded),
                seen.shape,
            );
            if let Some(hpa) = self.hpas.get(name) {
                println!(
                    "{name} with an HPA: {}; {:.1} min",
                    of("replicas", &hpa.direction),
                    minutes(hpa.overloaded)
                );
            }
        }
    }
}

/// A HorizontalPodAutoscaler on CPU, with pods of the size of the template.
struct Hpa {
    scaler: Box<dyn Scaler>,
    milli: f64,
    /// By replica: when it is ready.
    ready: Vec<i64>,
    direction: Direction,
    overloaded: u32,
    /// Usage of one replica: times and millicores.
    usage: VecDeque<(i64, f64)>,
}

impl Hpa {
    fn new(service: &Service) -> Hpa {
        let size =
            Size { cpu_milli: service.cpu_milli as i64, memory_bytes: (service.memory_mi * MI) as i64 };
        let tuning = Tuning {
            min_replicas: REPLICAS_MIN,
            max_replicas: REPLICAS_MAX,
            start_milli: size.cpu_milli,
            hpa_target: HPA_TARGET,
            signal: BuiltInSignal::CpuThrottling,
            setpoint: 0.1,
            keda_target: 0.1,
            window_s: RECENT_S,
            history_s: DAY_S,
            scrape_s: SCRAPE_S as u32,
            rate_window_s: None,
            rules: ServiceAssumptions {
                startup_s: START_S as u32,
                resize_s: 5,
                burst: 2.0,
                timeout_s: 10.0,
                full_nodes: 0.0,
                refused: 0.0,
            },
        };
        let plan = ScalerPlan { replicas: service.replicas, size };
        Hpa {
            scaler: ScalerKind::Hpa.build(plan, 1.0, &tuning),
            milli: service.cpu_milli,
            ready: vec![i64::MIN; service.replicas as usize],
            direction: Direction::default(),
            overloaded: 0,
            usage: VecDeque::new(),
        }
    }

    fn step(&mut self, step: &Step) {
        let at = step.at;
        let ready = self.ready.iter().filter(|from| **from <= at).count().max(1);
        let each = 1_000.0 * step.needed / ready as f64;
        let limit = 2.0 * self.milli;
        self.overloaded += u32::from(each > limit);
        self.usage.push_back((at, each.min(limit)));
        while self.usage.front().is_some_and(|(then, _)| at - then > 900) {
            self.usage.pop_front();
        }
        let shown = match step.fault {
            None => Some(each.min(limit)),
            Some(Fault::Down | Fault::Empty | Fault::NotANumber) => None,
            Some(Fault::Zero) => Some(0.0),
            Some(Fault::Thousandfold) => Some(1_000.0 * each.min(limit)),
            Some(Fault::Late(seconds)) => {
                self.usage.iter().rev().find(|(then, _)| at - then >= seconds).map(|(_, milli)| *milli)
            }
        };
        let usage: Vec<f64> = shown.map(|milli| vec![milli; ready]).unwrap_or_default();
        let replicas = self.ready.len() as u32;
        let size = Size { cpu_milli: self.milli as i64, memory_bytes: 1 << 30 };
        let plan = self.scaler.scrape(&Scrape {
            time_s: at,
            replicas,
            ready: ready as u32,
            size,
            cpu_milli: usage.clone(),
            memory_bytes: Vec::new(),
            usage_milli: usage,
            working_set_bytes: Vec::new(),
            signal: None,
            success: 1.0,
            kills: 0,
        });
        self.ready.resize(plan.replicas as usize, at + START_S);
        self.direction.see(plan.replicas.into());
    }
}
