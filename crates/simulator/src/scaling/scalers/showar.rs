//! berth's scaler: [`berth_rightsizing::scaling`] itself, with its defaults.

use std::collections::VecDeque;

use super::super::signal::BuiltInSignal;
use super::{Scaler, ScalerPlan, Scrape, Tuning};
use berth_rightsizing::scaling::{
    Container, Horizontal, Observation, Point, ScalerMemory, ScalingSettings, decide,
};

pub struct ShowarScaler {
    settings: ScalingSettings,
    /// Requests are counted where their latency is the signal, as in production.
    success: bool,
    memory: ScalerMemory,
    /// Samples of the window, oldest first.
    cpu: VecDeque<Point>,
    bytes: VecDeque<Point>,
}

impl ShowarScaler {
    pub fn new(unit: f64, tuning: &Tuning) -> Self {
        let mut settings = ScalingSettings::default();
        settings.vertical.window_s = tuning.window_s;
        settings.vertical.history_s = tuning.history_s;
        settings.horizontal = Some(Horizontal {
            setpoint: tuning.setpoint * unit,
            min_replicas: tuning.min_replicas,
            max_replicas: tuning.max_replicas,
            ..Horizontal::default()
        });
        Self {
            settings,
            success: tuning.signal == BuiltInSignal::RequestLatency,
            memory: ScalerMemory::default(),
            cpu: VecDeque::new(),
            bytes: VecDeque::new(),
        }
    }

    fn keep(&mut self, scrape: &Scrape) {
        let oldest = scrape.time_s - self.settings.vertical.window_s;
        for (kept, values) in [(&mut self.cpu, &scrape.cpu_milli), (&mut self.bytes, &scrape.memory_bytes)] {
            kept.extend(values.iter().map(|value| Point { time_s: scrape.time_s, value: *value }));
            while kept.front().is_some_and(|point| point.time_s <= oldest) {
                kept.pop_front();
            }
        }
    }
}

impl Scaler for ShowarScaler {
    fn scrape(&mut self, scrape: &Scrape) -> ScalerPlan {
        self.keep(scrape);
        let measured = |value| Point { time_s: scrape.time_s, value };
        let container = Container {
            name: "app".into(),
            size: scrape.size,
            cpu: self.cpu.iter().copied().collect(),
            memory: self.bytes.iter().copied().collect(),
            oom_kills: scrape.kills,
            ..Container::default()
        };
        let seen = Observation {
            replicas: scrape.replicas,
            ready: scrape.ready,
            containers: vec![container],
            signal: scrape.signal.map(measured),
            success: self.success.then(|| measured(scrape.success)),
            ..Observation::default()
        };
        let decision = decide(&self.settings, &mut self.memory, &seen, scrape.time_s);
        let size = decision.sizes.first().map_or(scrape.size, |(_, size)| *size);
        ScalerPlan { replicas: decision.replicas, size }
    }
}
