//! The Vertical Pod Autoscaler: the production estimator, and upstream's in-place updater.

use berth_rightsizing::recommend::amount::from_float;
use berth_rightsizing::recommend::estimate::{Estimate, estimate};
use berth_rightsizing::recommend::{Aggregate, ContainerState, RecommenderSettings};
use berth_rightsizing::scaling::Size;

use super::Scrape;

/// Interval of samples and of updater runs.
const EVERY_S: i64 = 60;
/// Minimum relative difference for an update within the bounds; a recent update is not repeated either.
const DIFFERENCE_MIN: f64 = 0.1;
const LIFETIME_S: i64 = 12 * 3_600;
/// A pod that is OOM killed within this time after its start is resized immediately.
const QUICK_KILL_S: i64 = 600;

pub struct VpaScaler {
    /// Whether CPU is a controlled resource.
    with_cpu: bool,
    settings: RecommenderSettings,
    aggregate: Option<Aggregate>,
    pods: Vec<ContainerState>,
    changed_s: Option<i64>,
    killed_s: Option<i64>,
}

impl VpaScaler {
    pub fn new(with_cpu: bool) -> Self {
        let settings = RecommenderSettings::default();
        let aggregate = settings.shapes().ok().map(|shapes| Aggregate::new(&shapes, 0));
        Self { with_cpu, settings, aggregate, pods: Vec::new(), changed_s: None, killed_s: None }
    }

    pub fn size(&mut self, scrape: &Scrape) -> Size {
        let Some(aggregate) = &mut self.aggregate else { return scrape.size };
        let (now_ns, rules) = (scrape.time_s * 1_000_000_000, self.settings.memory_rules());
        let pods = scrape.usage_milli.len();
        self.pods.resize_with(self.pods.len().max(pods).max(1), ContainerState::default);
        let mut quick = false;
        for kill in 0..scrape.kills as usize {
            let at = kill % self.pods.len();
            let _ = self.pods[at].record_oom(aggregate, scrape.size.memory_bytes, now_ns, &rules, false);
            quick |= self.killed_s.is_some_and(|before| scrape.time_s - before < QUICK_KILL_S);
            self.killed_s = Some(scrape.time_s);
        }
        if scrape.time_s % EVERY_S == 0 {
            let samples = scrape.usage_milli.iter().zip(&scrape.working_set_bytes);
            for (pod, (cpu, memory)) in self.pods.iter_mut().zip(samples) {
                // Only samples older than the history are rejected, and there are none here.
                let _ = pod.add_cpu(aggregate, from_float(*cpu), now_ns);
                let _ = pod.add_memory(aggregate, from_float(*memory), now_ns, &rules, false);
            }
        } else if !quick {
            return scrape.size;
        }
        if aggregate.cpu_span.count == 0 {
            return scrape.size;
        }
        let estimates = estimate(aggregate, &self.settings, 1);
        let has = scrape.size;
        let mut resources = vec![(estimates.memory, has.memory_bytes)];
        if self.with_cpu {
            resources.push((estimates.cpu, has.cpu_milli));
        }
        let outside = |(estimate, has): &(Estimate, i64)| *has < estimate.lower || *has > estimate.upper;
        let apart =
            |(estimate, has): &(Estimate, i64)| (has - estimate.target).abs() as f64 / (*has).max(1) as f64;
        let old = self.changed_s.is_none_or(|before| scrape.time_s - before >= LIFETIME_S);
        let differs: f64 = resources.iter().map(apart).sum();
        let due = resources.iter().any(outside) || old && differs >= DIFFERENCE_MIN;
        let killed_soon = quick && differs > 0.0;
        if !due && !killed_soon {
            return has;
        }
        let cpu_milli = if self.with_cpu { estimates.cpu.target } else { has.cpu_milli };
        let size = Size { cpu_milli, memory_bytes: estimates.memory.target };
        if size != has {
            self.changed_s = Some(scrape.time_s);
        }
        size
    }
}
