//! Aggregates of all workloads, and the running containers that feed them.
//!
//! Upstream: `pkg/recommender/model/cluster.go`. Upstream keys aggregates by pod label sets: every rollout and
//! every run of a CronJob creates a new one that lives for 8 days. Here they are keyed by workload, and a pod that
//! ends leaves only its samples behind.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use super::aggregate::{Aggregate, Shapes};
use super::amount::Amount;
use super::buckets::BucketsError;
use super::checkpoint::CheckpointStatus;
use super::container::{ContainerState, MemoryRules, Refused};
use super::histogram_checkpoint::CheckpointError;
use super::method::{ContainerSizes, Method};
use super::open::{self, OpenWindows};
use super::settings::RecommenderSettings;
use super::time::UnixNanos;

/// Maximum accepted clock skew of a node that is ahead of this process.
pub(super) const CLOCK_SKEW_NS: i64 = 300_000_000_000;

/// Topmost owner of a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Workload {
    pub namespace: Arc<str>,
    pub kind: Arc<str>,
    pub name: Arc<str>,
}

/// Aggregates of all workloads.
#[derive(Debug)]
pub struct Store {
    settings: RecommenderSettings,
    shapes: Shapes,
    workloads: BTreeMap<Workload, WorkloadAggregates>,
    /// Running pods by uid.
    pods: BTreeMap<Arc<str>, Pod>,
}

/// A running pod.
#[derive(Debug)]
struct Pod {
    workload: Workload,
    /// Measured containers by name. There are few, so they are searched linearly.
    containers: Vec<(Arc<str>, ContainerState)>,
}

/// Aggregates of one workload. Most workloads have one container and few pods: sorted lists take a tenth of the
/// memory of maps.
#[derive(Debug, Default)]
struct WorkloadAggregates {
    containers: Vec<(Arc<str>, Tracked)>,
    /// Uids of the running pods.
    pods: Vec<Arc<str>>,
}

/// Aggregate of a container, and the rules that its VPA sets for it.
#[derive(Debug)]
struct Tracked {
    aggregate: Aggregate,
    rules: Option<Box<MemoryRules>>,
    /// State of the other estimator that the VPA selects, if any.
    sizes: Option<Box<ContainerSizes>>,
}

impl Store {
    pub fn new(settings: RecommenderSettings) -> Result<Self, BucketsError> {
        let shapes = settings.shapes()?;
        Ok(Self { settings, shapes, workloads: BTreeMap::new(), pods: BTreeMap::new() })
    }

    pub fn settings(&self) -> &RecommenderSettings {
        &self.settings
    }

    /// Records that a pod of a workload runs. The state of an already known pod is kept.
    pub fn pod_runs(&mut self, uid: &Arc<str>, workload: &Workload) {
        match self.pods.get(uid) {
            Some(known) if known.workload == *workload => return,
            Some(_) => self.pod_ended(uid),
            None => {}
        }
        self.pods.insert(uid.clone(), Pod { workload: workload.clone(), containers: Vec::new() });
        let pods = &mut self.workloads.entry(workload.clone()).or_default().pods;
        if let Err(at) = pods.binary_search(uid) {
            insert(pods, at, uid.clone());
        }
    }

    /// Returns the workload of a running pod.
    pub fn workload_of(&self, pod: &str) -> Option<&Workload> {
        Some(&self.pods.get(pod)?.workload)
    }

    /// Records that a pod ended. Its samples stay in the aggregate.
    pub fn pod_ended(&mut self, uid: &str) {
        let Some(Pod { workload, .. }) = self.pods.remove(uid) else { return };
        if let Some(known) = self.workloads.get_mut(&workload) {
            if let Ok(at) = known.pods.binary_search_by(|other| (**other).cmp(uid)) {
                known.pods.remove(at);
            }
            if known.is_empty() {
                self.workloads.remove(&workload);
            }
        }
    }

    /// Keeps only the pods that still run, and removes pods that ended unnoticed.
    pub fn retain_pods(&mut self, runs: impl Fn(&str) -> bool) {
        self.pods.retain(|uid, _| runs(uid));
        for known in self.workloads.values_mut() {
            known.pods.retain(|uid| runs(uid));
        }
        self.drop_empty();
    }

    /// Returns the state that samples of a running container are added to. Creates the aggregate if there is none.
    ///
    /// # Errors
    /// [`Refused::Unknown`]: the pod is not running.
    pub(super) fn container(
        &mut self,
        pod: &str,
        container: &str,
        now: UnixNanos,
    ) -> Result<Container<'_>, Refused> {
        let uid = pod;
        let pod = self.pods.get_mut(uid).ok_or(Refused::Unknown)?;
        let known = self.workloads.get_mut(&pod.workload).ok_or(Refused::Unknown)?;
        let (name, tracked) = known.tracked(container, &self.shapes, now);
        let state = pod.state(name);
        let rules = tracked.rules.as_deref().copied().unwrap_or_else(|| self.settings.memory_rules());
        let strict = self.settings.strict_upstream;
        let sizes = tracked.sizes.as_deref_mut().map(|sizes| (number(uid), sizes));
        Ok(Container { state, aggregate: &mut tracked.aggregate, sizes, rules, strict })
    }

    /// Adds a CPU usage in millicores, measured from `time` on.
    pub fn add_cpu(
        &mut self,
        pod: &str,
        container: &str,
        millicores: Amount,
        time: UnixNanos,
        now: UnixNanos,
    ) -> Result<(), Refused> {
        check_clock(time, now)?;
        self.container(pod, container, now)?.add_cpu(millicores, time)
    }

    /// Adds a memory usage in bytes.
    pub fn add_memory(
        &mut self,
        pod: &str,
        container: &str,
        bytes: Amount,
        time: UnixNanos,
        now: UnixNanos,
    ) -> Result<(), Refused> {
        check_clock(time, now)?;
        self.container(pod, container, now)?.add_memory(bytes, time)
    }

    /// Records an OOM kill of a container with this memory request in bytes. Returns the bytes that it needs.
    pub fn record_oom(
        &mut self,
        pod: &str,
        container: &str,
        requested: Amount,
        time: UnixNanos,
        now: UnixNanos,
    ) -> Result<Amount, Refused> {
        check_clock(time, now)?;
        let Container { state, aggregate, sizes, rules, strict } = self.container(pod, container, now)?;
        let needed = state.record_oom(aggregate, requested, time, &rules, strict)?;
        if let Some((pod, sizes)) = sizes {
            sizes.needs(pod, time, needed);
        }
        Ok(needed)
    }

    /// Sets or clears the VPA's own rules for a container's memory.
    pub fn set_rules(
        &mut self,
        workload: &Workload,
        container: &str,
        rules: Option<MemoryRules>,
        now: UnixNanos,
    ) {
        let known = self.workloads.entry(workload.clone()).or_default();
        known.tracked(container, &self.shapes, now).1.rules = rules.map(Box::new);
    }

    /// Sets or clears the other estimator that the VPA selects for a container. A new estimator starts without
    /// samples.
    pub fn set_method(&mut self, workload: &Workload, container: &str, method: Option<Method>) {
        let Some(known) = self.workloads.get_mut(workload) else { return };
        let Ok(at) = known.position(container) else { return };
        let tracked = &mut known.containers[at].1;
        if tracked.sizes.as_ref().map(|sizes| sizes.method()) != method {
            tracked.sizes = method.map(|method| Box::new(ContainerSizes::new(method, &self.shapes)));
        }
    }

    /// Makes the other estimators count all samples up to `now`.
    pub fn advance_methods(&mut self, now: UnixNanos) {
        let containers = self.workloads.values_mut().flat_map(|known| &mut known.containers);
        containers.filter_map(|(_, tracked)| tracked.sizes.as_mut()).for_each(|sizes| sizes.advance(now));
    }

    /// Returns the other estimator of a container, if its VPA selects one.
    pub fn sizes(&self, workload: &Workload, container: &str) -> Option<&ContainerSizes> {
        self.workloads.get(workload)?.get(container)?.sizes.as_deref()
    }

    /// Returns the containers of a workload that have an aggregate, by name.
    pub fn containers(&self, workload: &Workload) -> impl Iterator<Item = (&Arc<str>, &Aggregate)> {
        let known = self.workloads.get(workload).into_iter();
        known.flat_map(|known| &known.containers).map(|(name, tracked)| (name, &tracked.aggregate))
    }

    pub fn aggregate(&self, workload: &Workload, container: &str) -> Option<&Aggregate> {
        Some(&self.workloads.get(workload)?.get(container)?.aggregate)
    }

    pub fn workloads(&self) -> impl Iterator<Item = &Workload> {
        self.workloads.keys()
    }

    /// Removes a deleted workload, or its deleted containers.
    pub fn forget(&mut self, workload: &Workload, keeps: impl Fn(&str) -> bool) {
        if let Some(known) = self.workloads.get_mut(workload) {
            known.containers.retain(|(name, _)| keeps(name));
            if known.is_empty() {
                self.workloads.remove(workload);
            }
        }
    }

    /// Removes aggregates without samples for the whole retention time (window length times window count).
    pub fn expire(&mut self, now: UnixNanos) {
        let (default, strict) = (self.settings.memory_rules(), self.settings.strict_upstream);
        for known in self.workloads.values_mut() {
            known.containers.retain(|(_, tracked)| {
                let rules = tracked.rules.as_deref().unwrap_or(&default);
                !tracked.aggregate.is_expired(now, rules, strict)
            });
        }
        self.drop_empty();
    }

    /// Returns the checkpoint of a container and the state to store beside it, or `None` without an aggregate.
    pub fn save(
        &self,
        workload: &Workload,
        container: &str,
        now: UnixNanos,
    ) -> Option<(CheckpointStatus, OpenWindows)> {
        let known = self.workloads.get(workload)?;
        let running = known.pods.iter().filter_map(|uid| {
            let containers = &self.pods.get(uid)?.containers;
            containers.iter().find(|(name, _)| **name == *container).map(|(_, state)| (&**uid, state))
        });
        Some(open::save(&known.get(container)?.aggregate, running, now))
    }

    /// Merges a checkpoint. Pods with an open window count as running until [`retain_pods`](Self::retain_pods)
    /// removes them. Must be called before samples are added.
    pub fn load(
        &mut self,
        workload: &Workload,
        container: &str,
        status: &CheckpointStatus,
        windows: &OpenWindows,
        now: UnixNanos,
    ) -> Result<(), CheckpointError> {
        let default = self.settings.memory_rules();
        let known = self.workloads.get(workload).and_then(|known| known.get(container));
        let rules = known.and_then(|tracked| tracked.rules.as_deref()).unwrap_or(&default);
        let (loaded, running) = open::load(status, windows, &self.shapes, rules.interval_ns, now)?;
        let known = self.workloads.entry(workload.clone()).or_default();
        let (name, tracked) = known.tracked(container, &self.shapes, now);
        tracked.aggregate.merge(&loaded);
        let name = name.clone();
        for (uid, state) in running {
            let uid: Arc<str> = uid.into();
            // The stored windows may be wrong: a known pod stays with its workload.
            if self.workload_of(&uid).is_some_and(|known| known != workload) {
                continue;
            }
            self.pod_runs(&uid, workload);
            if let Some(pod) = self.pods.get_mut(&uid)
                && pod.containers.iter().all(|(other, _)| *other != name)
            {
                *pod.state(&name) = state;
            }
        }
        Ok(())
    }

    /// Counts everything that takes memory.
    pub fn counts(&self) -> StoreCounts {
        StoreCounts {
            workloads: self.workloads.len(),
            aggregates: self.workloads.values().map(|known| known.containers.len()).sum(),
            pods: self.pods.len(),
            containers: self.pods.values().map(|pod| pod.containers.len()).sum(),
        }
    }

    /// Returns the memory of all aggregates, in bytes, without the overhead of maps and the allocator.
    pub fn aggregate_bytes(&self) -> usize {
        self.workloads
            .values()
            .flat_map(|known| &known.containers)
            .map(|(_, tracked)| tracked.aggregate.bytes())
            .sum()
    }

    fn drop_empty(&mut self) {
        self.workloads.retain(|_, known| !known.is_empty());
    }
}

/// State that samples of one running container are added to.
pub(super) struct Container<'a> {
    state: &'a mut ContainerState,
    aggregate: &'a mut Aggregate,
    /// Estimator of the container, with the number of its pod.
    sizes: Option<(u64, &'a mut ContainerSizes)>,
    rules: MemoryRules,
    strict: bool,
}

impl Container<'_> {
    /// Adds a CPU usage as [`Store::add_cpu`] does, for a time accepted by [`check_clock`].
    pub(super) fn add_cpu(&mut self, millicores: Amount, time: UnixNanos) -> Result<(), Refused> {
        self.state.add_cpu(self.aggregate, millicores, time)?;
        if let Some((pod, sizes)) = &mut self.sizes {
            sizes.add_cpu(*pod, time, millicores);
        }
        Ok(())
    }

    /// Adds a memory usage as [`Store::add_memory`] does, for a time accepted by [`check_clock`].
    pub(super) fn add_memory(&mut self, bytes: Amount, time: UnixNanos) -> Result<(), Refused> {
        self.state.add_memory(self.aggregate, bytes, time, &self.rules, self.strict)?;
        if let Some((pod, sizes)) = &mut self.sizes {
            sizes.add_memory(*pod, time, bytes);
        }
        Ok(())
    }
}

/// Returns a number for a pod that is stable for the lifetime of the process.
fn number(uid: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    uid.hash(&mut hasher);
    hasher.finish()
}

/// Refuses samples from the far future: decaying weights would make all later samples worthless.
pub(super) fn check_clock(time: UnixNanos, now: UnixNanos) -> Result<(), Refused> {
    match time > now.saturating_add(CLOCK_SKEW_NS) {
        true => Err(Refused::Future),
        false => Ok(()),
    }
}

impl WorkloadAggregates {
    fn is_empty(&self) -> bool {
        self.containers.is_empty() && self.pods.is_empty()
    }

    fn position(&self, container: &str) -> Result<usize, usize> {
        self.containers.binary_search_by(|(name, _)| (**name).cmp(container))
    }

    fn get(&self, container: &str) -> Option<&Tracked> {
        Some(&self.containers[self.position(container).ok()?].1)
    }

    /// Returns the aggregate of a container and its name. Creates it if there is none.
    fn tracked(&mut self, container: &str, shapes: &Shapes, now: UnixNanos) -> (&Arc<str>, &mut Tracked) {
        let at = self.position(container).unwrap_or_else(|at| {
            let tracked = Tracked { aggregate: Aggregate::new(shapes, now), rules: None, sizes: None };
            insert(&mut self.containers, at, (container.into(), tracked));
            at
        });
        let (name, tracked) = &mut self.containers[at];
        (name, tracked)
    }
}

impl Pod {
    /// Returns the state of a container. Creates it if there is none.
    fn state(&mut self, container: &Arc<str>) -> &mut ContainerState {
        let at = self.containers.iter().position(|(name, _)| name == container).unwrap_or_else(|| {
            let at = self.containers.len();
            insert(&mut self.containers, at, (container.clone(), ContainerState::default()));
            at
        });
        &mut self.containers[at].1
    }
}

/// Inserts into a list without spare capacity while the list is short.
fn insert<T>(list: &mut Vec<T>, at: usize, element: T) {
    const SHORT: usize = 4;
    if list.len() < SHORT {
        list.reserve_exact(1);
    }
    list.insert(at, element);
}

/// Sizes of a [`Store`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreCounts {
    pub workloads: usize,
    pub aggregates: usize,
    pub pods: usize,
    pub containers: usize,
}
