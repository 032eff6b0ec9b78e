//! Assumptions of the simulation, each of which can be changed alone.

use super::load::{LoadShape, ServiceLoads, SyntheticTraffic};
use super::run::Scenario;
use super::signal::BuiltInSignal;

/// An assumption that differs from the scenario's.
pub struct Changed {
    pub what: &'static str,
    pub change: fn(&mut Scenario),
    /// Sizes of the baselines' pods, instead of those that were asked for.
    pub sizes_milli: Option<&'static [i64]>,
}

const fn changed(what: &'static str, change: fn(&mut Scenario)) -> Changed {
    Changed { what, change, sizes_milli: None }
}

/// The scenario itself, and each assumption changed.
pub const CHANGES: [Changed; 20] = [
    changed("none", |_| ()),
    Changed { what: "pods of baselines: 500m only", change: |_| (), sizes_milli: Some(&[500]) },
    Changed {
        what: "pods of baselines: up to 2000m",
        change: |_| (),
        sizes_milli: Some(&[1_000, 1_500, 2_000]),
    },
    changed("signal: cpu-pressure", |it| use_signal(it, BuiltInSignal::CpuPressure)),
    changed("signal: run-queue-latency", |it| use_signal(it, BuiltInSignal::RunQueueLatency)),
    changed("signal: request-latency", |it| use_signal(it, BuiltInSignal::RequestLatency)),
    changed("setpoint: half", |it| it.tuning.setpoint /= 2.0),
    changed("setpoint: double", |it| it.tuning.setpoint *= 2.0),
    changed("usage: rate of 5 min", |it| it.tuning.rate_window_s = Some(300)),
    changed("scrapes: every 60 s", |it| it.tuning.scrape_s = 60),
    changed("shrinks: at once", |it| it.tuning.history_s = 0),
    changed("full nodes: never", |it| it.tuning.rules.full_nodes = 0.0),
    changed("full nodes: half of the time", |it| it.tuning.rules.full_nodes = 0.5),
    changed("refused growth: none", |it| it.tuning.rules.refused = 0.0),
    changed("refused growth: half", |it| it.tuning.rules.refused = 0.5),
    changed("limits: the requests", |it| it.tuning.rules.burst = 1.0),
    changed("limits: 1.5 times the requests", |it| it.tuning.rules.burst = 1.5),
    changed("startup: 5 s", |it| it.tuning.rules.startup_s = 5),
    changed("startup: 120 s", |it| it.tuning.rules.startup_s = 120),
    changed("load: SocialNetwork", |it| {
        let seconds = (it.warm_up_s + it.measured_s) as usize;
        let shape = LoadShape::SocialNetwork;
        it.load = ServiceLoads::synthetic(SyntheticTraffic { shape, services: 0, seconds, seed: it.seed });
    }),
];

fn use_signal(scenario: &mut Scenario, signal: BuiltInSignal) {
    scenario.tuning.signal = signal;
    scenario.tuning.setpoint = signal.target();
    scenario.tuning.keda_target = signal.target();
}
