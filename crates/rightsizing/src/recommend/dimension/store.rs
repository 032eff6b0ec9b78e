//! Usage of all dimensions of all workloads. Without dimensions it is empty and takes no memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::kept::{self, KeptError};
use super::report::{self, DimensionReport};
use super::{Dimension, DimensionUsage};
use crate::recommend::HistogramOptions;
use crate::recommend::amount::is_usage;
use crate::recommend::buckets::BucketsError;
use crate::recommend::container::Refused;
use crate::recommend::store::{CLOCK_SKEW_NS, Workload};
use crate::recommend::time::UnixNanos;
use crate::usage::SeriesScope;

/// Maximum number of containers of one workload, far above any real one. Container names come from Prometheus,
/// which may return any.
pub const CONTAINERS_MAX: usize = 128;

/// Usage by dimension index; sorted. There are few, so they are searched linearly.
pub(super) type Usages = Vec<(u8, DimensionUsage)>;

/// Usage of all dimensions of all workloads.
#[derive(Debug)]
pub struct DimensionStore {
    dimensions: Vec<Dimension>,
    options: Vec<Arc<HistogramOptions>>,
    expiry_ns: i64,
    workloads: BTreeMap<Workload, WorkloadUsages>,
}

/// Usage of one workload.
#[derive(Debug, Default)]
struct WorkloadUsages {
    pod: Usages,
    containers: BTreeMap<Arc<str>, Usages>,
}

/// Sizes of a [`DimensionStore`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DimensionCounts {
    pub usages: usize,
    /// Memory in bytes, without the overhead of maps and the allocator.
    pub bytes: usize,
}

impl DimensionStore {
    /// Creates an empty store. Usage without samples for `expiry_ns` is removed.
    ///
    /// # Errors
    /// The sizes of a dimension give no valid buckets.
    pub fn new(dimensions: Vec<Dimension>, expiry_ns: i64) -> Result<Self, BucketsError> {
        let options = |it: &Dimension| it.estimation.options().map(Arc::new);
        let options = dimensions.iter().map(options).collect::<Result<_, _>>()?;
        Ok(Self { dimensions, options, expiry_ns, workloads: BTreeMap::new() })
    }

    pub fn dimensions(&self) -> &[Dimension] {
        &self.dimensions
    }

    /// Adds a usage of a container, or of a pod as a whole, depending on the dimension's scope. `dimension` is its
    /// index in the list.
    ///
    /// # Errors
    /// The usage is not counted.
    pub fn add(
        &mut self,
        dimension: usize,
        workload: &Workload,
        container: &str,
        value: f64,
        (time, now): (UnixNanos, UnixNanos),
    ) -> Result<(), Refused> {
        let (place, options) = self.place(dimension).ok_or(Refused::Unknown)?;
        if !is_usage(value) {
            return Err(Refused::Negative);
        }
        if time > now.saturating_add(CLOCK_SKEW_NS) {
            return Err(Refused::Future);
        }
        let scope = self.dimensions[dimension].scope;
        let usages = self.usages_mut(workload, scope, container).ok_or(Refused::Unknown)?;
        usage_mut(usages, place, || DimensionUsage::new(&options)).add(value, time);
        Ok(())
    }

    /// Returns the usages of a container, or of the pods as a whole when it is `None`, by index in the list of
    /// dimensions.
    pub fn usages(
        &self,
        workload: &Workload,
        container: Option<&str>,
    ) -> impl Iterator<Item = (&Dimension, &DimensionUsage)> {
        let known = self.workloads.get(workload);
        let usages = known.and_then(|known| match container {
            Some(container) => known.containers.get(container),
            None => Some(&known.pod),
        });
        usages.into_iter().flatten().map(|(place, usage)| (&self.dimensions[usize::from(*place)], usage))
    }

    /// Returns the number of samples that [`save`](Self::save) would save.
    pub fn samples(&self, workload: &Workload, container: &str, with_pod: bool) -> u64 {
        let count = |container| self.usages(workload, container).map(|(_, usage)| usage.span.count);
        let of_pod = count(None).filter(|_| with_pod);
        count(Some(container)).chain(of_pod).fold(0, u64::saturating_add)
    }

    /// Returns the text to store with the checkpoint of a container, optionally including the usage of the pods as
    /// a whole. `None` without samples.
    pub fn save(&self, workload: &Workload, container: &str, with_pod: bool) -> Option<String> {
        let of_pod = self.usages(workload, None).filter(|_| with_pod);
        kept::save(of_pod, self.usages(workload, Some(container)))
    }

    /// Restores what [`save`](Self::save) returned, except where the store already has later samples. Errors do not
    /// affect the other entries.
    ///
    /// # Errors
    /// One for each entry that cannot be used.
    pub fn load(
        &mut self,
        workload: &Workload,
        container: &str,
        text: &str,
        now: UnixNanos,
    ) -> Result<(), Vec<KeptError>> {
        let (loaded, errors) = kept::load(text, &self.dimensions, &self.options, now);
        for (place, usage) in loaded {
            let scope = self.dimensions[usize::from(place)].scope;
            let Some(usages) = self.usages_mut(workload, scope, container) else { continue };
            // The pods' usage may have been stored with several containers, at different times.
            let known = usage_mut(usages, place, || usage.clone());
            if known.span.last < usage.span.last {
                *known = usage;
            }
        }
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }

    /// Returns the report for a workload; `is_told` selects its containers.
    pub fn report(&self, workload: &Workload, is_told: impl Fn(&str) -> bool) -> DimensionReport {
        let containers = self.workloads.get(workload).into_iter().flat_map(|known| known.containers.keys());
        let containers = containers.filter(|name| is_told(name));
        report::report(
            self.usages(workload, None),
            containers.map(|name| (&**name, self.usages(workload, Some(name)))),
        )
    }

    /// Removes one dimension of a workload.
    pub fn forget(&mut self, dimension: usize, workload: &Workload) {
        let Some(known) = self.workloads.get_mut(workload) else { return };
        known.retain(|place, _| usize::from(place) != dimension);
        self.drop_empty();
    }

    /// Removes a deleted container.
    pub fn forget_container(&mut self, workload: &Workload, container: &str) {
        if let Some(known) = self.workloads.get_mut(workload) {
            known.containers.remove(container);
        }
        self.drop_empty();
    }

    /// Keeps only the selected workloads.
    pub fn retain(&mut self, keeps: impl Fn(&Workload) -> bool) {
        self.workloads.retain(|workload, _| keeps(workload));
    }

    /// Removes usage without samples for the retention time.
    pub fn expire(&mut self, now: UnixNanos) {
        let expiry = self.expiry_ns;
        for known in self.workloads.values_mut() {
            known.retain(|_, usage| now.saturating_sub(usage.span.last) < expiry);
        }
        self.drop_empty();
    }

    pub fn counts(&self) -> DimensionCounts {
        let usages = self.workloads.values().flat_map(WorkloadUsages::all);
        usages.fold(DimensionCounts::default(), |sum, (_, usage)| DimensionCounts {
            usages: sum.usages + 1,
            bytes: sum.bytes + usage.bytes(),
        })
    }

    fn place(&self, dimension: usize) -> Option<(u8, Arc<HistogramOptions>)> {
        Some((u8::try_from(dimension).ok()?, self.options.get(dimension)?.clone()))
    }

    /// Returns the usages of a container or pod. Creates them if there is room.
    fn usages_mut(
        &mut self,
        workload: &Workload,
        scope: SeriesScope,
        container: &str,
    ) -> Option<&mut Usages> {
        if !self.workloads.contains_key(workload) {
            self.workloads.insert(workload.clone(), WorkloadUsages::default());
        }
        let known = self.workloads.get_mut(workload)?;
        if scope == SeriesScope::Pod {
            return Some(&mut known.pod);
        }
        if !known.containers.contains_key(container) {
            if known.containers.len() >= CONTAINERS_MAX {
                return None;
            }
            known.containers.insert(container.into(), Usages::new());
        }
        known.containers.get_mut(container)
    }

    fn drop_empty(&mut self) {
        self.workloads.retain(|_, known| !known.pod.is_empty() || !known.containers.is_empty());
    }
}

impl WorkloadUsages {
    fn all(&self) -> impl Iterator<Item = &(u8, DimensionUsage)> {
        self.pod.iter().chain(self.containers.values().flatten())
    }

    fn retain(&mut self, keeps: impl Fn(u8, &DimensionUsage) -> bool) {
        self.pod.retain(|(place, usage)| keeps(*place, usage));
        self.containers.retain(|_, usages| {
            usages.retain(|(place, usage)| keeps(*place, usage));
            !usages.is_empty()
        });
    }
}

/// Returns the usage with this index. Inserts the one from `make` if there is none.
fn usage_mut(usages: &mut Usages, place: u8, make: impl FnOnce() -> DimensionUsage) -> &mut DimensionUsage {
    let at = usages.binary_search_by_key(&place, |(place, _)| *place).unwrap_or_else(|at| {
        usages.reserve_exact(1);
        usages.insert(at, (place, make()));
        at
    });
    &mut usages[at].1
}
