//! Recorder of all usage samples for a backtest. Memory grows with the number of samples.

use std::collections::BTreeMap;

use super::workloads::OwnerIndex;
use berth_prometheus::Series;
use berth_rightsizing::recommend::backtest::{Recorded, RecordedResource, RecordedSample};
use berth_rightsizing::recommend::feed::{amount, time};
use berth_rightsizing::usage::UsageKind;

/// Records the usage of all containers.
#[derive(Debug, Default)]
pub struct Recorder {
    owners: OwnerIndex,
    /// By name and resource, then by pod.
    series: BTreeMap<(String, RecordedResource), BTreeMap<String, Vec<RecordedSample>>>,
}

impl Recorder {
    pub fn new(owners: OwnerIndex) -> Self {
        Self { owners, series: BTreeMap::new() }
    }

    /// Adds samples of a container. For each container and kind, timestamps must not decrease.
    pub fn usage(&mut self, kind: UsageKind, series: &Series<'_>) {
        let workload = self.owners.workload(series.namespace, series.pod);
        let name = format!("{}/{}/{}", series.namespace, workload.name, series.container);
        let resource = match kind {
            UsageKind::Cpu => RecordedResource::Cpu,
            UsageKind::Memory => RecordedResource::Memory,
        };
        let pods = self.series.entry((name, resource)).or_default();
        let samples = pods.entry(series.pod.to_owned()).or_default();
        let taken = |sample: &_| Some(RecordedSample { time: time(*sample), amount: amount(kind, *sample)? });
        samples.extend(series.samples.iter().filter_map(taken));
    }

    /// Returns all series, sorted by name.
    pub fn recorded(self) -> Vec<Recorded> {
        let recorded = |((name, resource), pods): (
            (String, RecordedResource),
            BTreeMap<String, Vec<RecordedSample>>,
        )| { Recorded { name, resource, pods: pods.into_values().collect() } };
        self.series.into_iter().map(recorded).collect()
    }
}
