//! Comparison of samples with recommendations, for the metrics of quality.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Recommender;
use super::world::World;
use berth_rightsizing::recommend::post::OptionalAmounts;
use berth_rightsizing::recommend::store::Workload;
use berth_rightsizing::recommend::{Amount, Recommendation, Vpa};
use berth_rightsizing::usage::UsageKind;
use berth_telemetry::{RecommenderMetrics, SizedResource, UsageSample};

/// The last uncapped recommendation for the containers of each workload.
pub(super) type Recommended = BTreeMap<Workload, BTreeMap<String, OptionalAmounts>>;

/// Compares samples with recommendations.
pub(super) struct Judge<'a> {
    vpas: BTreeMap<&'a Workload, &'a Vpa>,
    recommended: &'a Recommended,
    metrics: Arc<RecommenderMetrics>,
}

impl<'a> Judge<'a> {
    pub fn new(world: &'a World, recommended: &'a Recommended, metrics: Arc<RecommenderMetrics>) -> Self {
        let vpas = world.targets.iter().filter_map(|target| Some((target.controls()?, &target.vpa)));
        Self { vpas: vpas.collect(), recommended, metrics }
    }

    /// Counts a sample that the store accepted, in millicores or bytes.
    pub fn sample(&self, of: Option<&Workload>, container: &str, kind: UsageKind, amount: Amount) {
        if kind == UsageKind::Cpu {
            self.judge(of, container, SizedResource::Cpu, amount, false);
        } else if kind == UsageKind::Memory {
            self.judge(of, container, SizedResource::Memory, amount, false);
        }
    }

    /// Counts an OOM kill of a container, which needs `needed` bytes.
    pub fn kill(&self, of: &Workload, container: &str, needed: Amount) {
        self.judge(Some(of), container, SizedResource::Memory, needed, true);
    }

    fn judge(
        &self,
        of: Option<&Workload>,
        container: &str,
        resource: SizedResource,
        amount: Amount,
        is_oom: bool,
    ) {
        let Some((workload, vpa)) = of.and_then(|of| Some((of, self.vpas.get(of)?))) else { return };
        if vpa.controlled(container).is_none() {
            return;
        }
        let last = self.recommended.get(workload).and_then(|containers| containers.get(container));
        let last = last.and_then(|last| match resource {
            SizedResource::Cpu => last.cpu,
            SizedResource::Memory => last.memory,
        });
        let in_units = |amount: Amount| match resource {
            SizedResource::Cpu => amount as f64 / 1000.0,
            SizedResource::Memory => amount as f64,
        };
        let usage = UsageSample { update_mode: &vpa.update_mode, resource, amount: in_units(amount), is_oom };
        self.metrics.quality().observe(usage, last.map(in_units));
    }
}

impl Recommender {
    /// Records the current recommendations.
    pub(super) fn note_recommended(
        &mut self,
        world: &World,
        recommended: Vec<(Workload, Vec<Recommendation>)>,
    ) {
        let sizes: BTreeMap<&Workload, (&Vpa, usize)> = world
            .targets
            .iter()
            .filter_map(|target| {
                let workload = target.controls()?;
                Some((workload, (&target.vpa, world.pods_of(workload).map_or(0, <[_]>::len))))
            })
            .collect();
        self.recommended.retain(|workload, _| sizes.contains_key(workload));
        for (workload, recommendations) in recommended {
            let Some((vpa, pods)) = sizes.get(&workload) else { continue };
            let containers = self.recommended.entry(workload).or_default();
            let is_there = |name: &String| recommendations.iter().any(|new| new.container == *name);
            containers.retain(|name, _| is_there(name));
            for Recommendation { container, uncapped, .. } in recommendations {
                let Some(old) = containers.insert(container, uncapped) else { continue };
                let quality = self.context.metrics.quality();
                let both = old.zip(uncapped).map(|(old, new)| Some((old.unwrap_or(0), new?)));
                for (resource, both) in [(SizedResource::Cpu, both.cpu), (SizedResource::Memory, both.memory)]
                {
                    if let Some((old, new)) = both {
                        quality.changed(&vpa.update_mode, resource, old, new, *pods);
                    }
                }
            }
        }
    }
}
