//! Services whose load follows the time of day, and what their containers use.

use std::collections::BTreeMap;
use std::f64::consts::TAU;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use berth_model::Quantity;
use berth_scheduler::agent::Rng;

pub const MI: f64 = 1_048_576.0;
/// Seconds between two scrapes.
pub const SCRAPE_S: i64 = 15;
const DAY_S: i64 = 86_400;
/// Days before the start of which Prometheus knows.
const PAST_DAYS: i64 = 8;
/// Seconds between two samples of the past.
const PAST_SCRAPE_S: i64 = 300;
/// Seconds after a kill in which a container has not loaded its data yet.
const RESTART_S: i64 = 60;
/// The signal at half a replica's limit.
const CALM_MS: f64 = 40.0;

/// A Deployment whose pods have one container `app`, with limits that are twice the requests.
pub struct Service {
    pub name: &'static str,
    /// Scaled by a ServiceScaler on this signal; else a VPA sizes it.
    pub signal: Option<&'static str>,
    pub replicas: u32,
    pub cpu_milli: f64,
    pub memory_mi: f64,
    /// Cores of all its pods at night, and what the day adds.
    cores: (f64, f64),
    /// Memory of each at night, and what the day adds.
    uses_mi: (f64, f64),
    /// Growth of the memory of each, per hour since its start.
    leaks_mi: f64,
}

pub const SERVICES: [Service; 4] = [
    Service {
        name: "web",
        signal: Some("CpuThrottling"),
        replicas: 4,
        cpu_milli: 900.0,
        memory_mi: 512.0,
        cores: (0.6, 2.6),
        uses_mi: (140.0, 90.0),
        leaks_mi: 0.0,
    },
    Service {
        name: "cart",
        signal: Some("RequestLatency"),
        replicas: 3,
        cpu_milli: 600.0,
        memory_mi: 768.0,
        cores: (0.3, 1.5),
        uses_mi: (200.0, 300.0),
        leaks_mi: 0.0,
    },
    Service {
        name: "db",
        signal: None,
        replicas: 2,
        cpu_milli: 1_500.0,
        memory_mi: 2_048.0,
        cores: (0.4, 0.9),
        uses_mi: (500.0, 400.0),
        leaks_mi: 0.0,
    },
    Service {
        name: "leaky",
        signal: None,
        replicas: 2,
        cpu_milli: 400.0,
        memory_mi: 300.0,
        cores: (0.1, 0.2),
        uses_mi: (120.0, 60.0),
        leaks_mi: 90.0,
    },
];

impl Service {
    pub fn of(pod: &Pod) -> Option<&'static Service> {
        SERVICES.iter().find(|service| service.name == super::service_of(pod))
    }

    pub fn leaks(&self) -> bool {
        self.leaks_mi > 0.0
    }

    pub fn deployment(&self) -> Value {
        let amounts = |times: f64| json!({"cpu": format!("{}m", self.cpu_milli * times), "memory": format!("{}Mi", self.memory_mi * times)});
        let container = json!({
            "name": "app", "image": "app", "resources": {"requests": amounts(1.0), "limits": amounts(2.0)},
        });
        json!({
            "metadata": {"name": self.name},
            "spec": {
                "replicas": self.replicas,
                "selector": {"matchLabels": {"app": self.name}},
                "template": {
                    "metadata": {"labels": {"app": self.name}},
                    "spec": {"schedulerName": "berth", "containers": [container]},
                },
            },
        })
    }

    /// Cores that the service needs at a time: it rises from the start on, for half a day.
    pub fn demand(&self, since_start_s: i64, seed: u64) -> f64 {
        let wave = wave(since_start_s);
        let minutes = since_start_s.div_euclid(600);
        let noise = 1.0
            + 0.16 * (self.chance(seed, minutes, 1) - 0.5)
            + 0.1 * (self.chance(seed, since_start_s / SCRAPE_S, 2) - 0.5);
        let is_spike = self.chance(seed, minutes, 3) < 0.03;
        (self.cores.0 + self.cores.1 * wave) * noise * if is_spike { 1.7 } else { 1.0 }
    }

    /// Bytes that one of its containers uses, `running_s` after its start.
    fn memory(&self, since_start_s: i64, running_s: i64, seed: u64) -> f64 {
        let noise = 1.0 + 0.06 * (self.chance(seed, since_start_s / SCRAPE_S, 4) - 0.5);
        let used = (self.uses_mi.0 + self.uses_mi.1 * wave(since_start_s)) * noise;
        let share = if running_s < RESTART_S { 0.5 } else { 1.0 };
        (used * share + self.leaks_mi * running_s as f64 / 3_600.0) * MI
    }

    /// A number from 0 to 1 for this moment.
    fn chance(&self, seed: u64, moment: i64, kind: u64) -> f64 {
        let name = self.name.bytes().fold(0_u64, |sum, byte| sum * 31 + u64::from(byte));
        let mut rng = Rng(seed ^ name ^ (moment.cast_unsigned() << 20) ^ (kind << 56));
        rng.next();
        (rng.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// 0 at the start, 1 twelve hours later.
fn wave(since_start_s: i64) -> f64 {
    0.5 - 0.5 * (TAU * since_start_s as f64 / DAY_S as f64).cos()
}

/// The latency of a service that needs this share of its limits, in milliseconds.
pub fn latency(share: f64) -> f64 {
    CALM_MS * 0.5 / (1.0 - share.min(0.97))
}

/// What a kubelet tells of a container at a time: counters, and its memory.
#[derive(Debug, Clone, Copy, Default)]
pub struct Scrape {
    pub at: i64,
    pub cpu_s: f64,
    pub periods: f64,
    pub throttled: f64,
    pub memory: f64,
}

/// A pod with its past.
#[derive(Default)]
pub struct Container {
    pub service: &'static str,
    pub scrapes: Vec<Scrape>,
    started: i64,
    pub killed: bool,
}

impl Container {
    /// Returns a container that ran before the start, with the past that Prometheus knows.
    pub fn with_past(service: &'static Service, start: i64, seed: u64) -> Container {
        let mut container =
            Container { service: service.name, started: start - PAST_DAYS * DAY_S, ..Container::default() };
        let mut at = container.started;
        while at < start {
            at += PAST_SCRAPE_S;
            container.run(service, at, at - start, PAST_SCRAPE_S, Limits::of_template(service), seed);
            container.killed = false;
        }
        container
    }

    pub fn started_at(service: &'static str, at: i64) -> Container {
        Container { service, started: at, ..Container::default() }
    }

    /// Runs it for some seconds, beside others. Returns its memory, and whether it was killed.
    pub fn run(
        &mut self,
        service: &Service,
        at: i64,
        since_start_s: i64,
        seconds: i64,
        limits: Limits,
        seed: u64,
    ) -> (f64, bool) {
        let each = service.demand(since_start_s, seed) / limits.sharing;
        let last = self.scrapes.last().copied().unwrap_or_default();
        let memory = service.memory(since_start_s, at - self.started, seed);
        let is_killed = memory > limits.memory;
        if is_killed {
            (self.started, self.killed) = (at, true);
        }
        self.scrapes.push(Scrape {
            at,
            cpu_s: last.cpu_s + each.min(limits.cores) * seconds as f64,
            periods: last.periods + 10.0 * seconds as f64,
            throttled: last.throttled + throttled(each / limits.cores) * 10.0 * seconds as f64,
            memory: memory.min(limits.memory),
        });
        (memory, is_killed)
    }
}

/// Share of the periods in which a container that needs this share of its limit is throttled.
fn throttled(share: f64) -> f64 {
    ((share - 0.7) / 0.3).clamp(0.0, 1.0).powi(2)
}

/// What a container may use, as its kubelet has applied it, and how many share the load.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub cores: f64,
    pub memory: f64,
    pub sharing: f64,
}

impl Limits {
    /// As before anything was changed.
    pub fn of_template(service: &Service) -> Limits {
        Limits {
            cores: 2.0 * service.cpu_milli / 1_000.0,
            memory: 2.0 * service.memory_mi * MI,
            sharing: f64::from(service.replicas),
        }
    }

    pub fn of(pod: &Pod, sharing: usize) -> Option<Limits> {
        let resources = pod.status.as_ref()?.container_statuses.as_ref()?.first()?.resources.as_ref()?;
        let of = |name: &str| Some(Quantity::parse(&resources.limits.as_ref()?.get(name)?.0).expect("valid"));
        Some(Limits {
            cores: of("cpu")?.milli_value() as f64 / 1_000.0,
            memory: of("memory")?.value() as f64,
            sharing: sharing as f64,
        })
    }
}

/// By name of the pod.
pub type Containers = BTreeMap<String, Container>;
