//! The aggregates of all workloads, and the running containers that feed them.
//!
//! Upstream: `pkg/recommender/model/cluster.go`. Its aggregates belong to sets of pod labels, of which every rollout and
//! every run of a CronJob makes a new one that lives for 8 days. Here they belong to workloads: pods come and go without
//! a trace, but for what they added.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use super::aggregate::{Aggregate, Shapes};
use super::amount::Amount;
use super::buckets::BucketsError;
use super::checkpoint::{CheckpointError, CheckpointStatus};
use super::container::{ContainerState, MemoryRules, Refused};
use super::method::{Method, Sizes};
use super::open::{self, OpenWindows};
use super::settings::Settings;
use super::time::UnixNanos;

/// Clocks of nodes may be so much ahead of ours.
pub(super) const CLOCK_SKEW_NS: i64 = 300_000_000_000;

/// The top of a pod's chain of owners.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Workload {
    pub namespace: Arc<str>,
    pub kind: Arc<str>,
    pub name: Arc<str>,
}

/// All aggregates.
#[derive(Debug)]
pub struct Store {
    settings: Settings,
    shapes: Shapes,
    workloads: BTreeMap<Workload, Known>,
    /// Running pods, by uid.
    pods: BTreeMap<Arc<str>, Pod>,
}

/// A running pod.
#[derive(Debug)]
struct Pod {
    workload: Workload,
    /// Its containers that were measured, by name. Few: searched from the start.
    containers: Vec<(Arc<str>, ContainerState)>,
}

/// What is known of a workload. Most have one container and few pods: sorted lists take a tenth of what maps would.
#[derive(Debug, Default)]
struct Known {
    containers: Vec<(Arc<str>, Tracked)>,
    /// The uids of its running pods.
    pods: Vec<Arc<str>>,
}

/// An aggregate, and the rules that its VPA sets for it.
#[derive(Debug)]
struct Tracked {
    aggregate: Aggregate,
    rules: Option<Box<MemoryRules>>,
    /// What another estimator knows that its VPA asks for.
    sizes: Option<Box<Sizes>>,
}

impl Store {
    pub fn new(settings: Settings) -> Result<Self, BucketsError> {
        let shapes = settings.shapes()?;
        Ok(Self { settings, shapes, workloads: BTreeMap::new(), pods: BTreeMap::new() })
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// A pod of a workload runs. A pod that is known keeps what is known of it.
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

    /// The workload of a running pod.
    pub fn workload_of(&self, pod: &str) -> Option<&Workload> {
        Some(&self.pods.get(pod)?.workload)
    }

    /// A pod ended. What its containers used stays.
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

    /// Only these pods run, all others ended without our knowing.
    pub fn retain_pods(&mut self, runs: impl Fn(&str) -> bool) {
        self.pods.retain(|uid, _| runs(uid));
        for known in self.workloads.values_mut() {
            known.pods.retain(|uid| runs(uid));
        }
        self.drop_empty();
    }

    /// Where samples of a running container go. Its aggregate is made when there is none.
    ///
    /// # Errors
    /// [`Refused::Unknown`]: there is no such pod.
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

    /// A CPU usage in millicores, measured from `time` on.
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

    /// A memory usage in bytes.
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

    /// A container that requested so many bytes was killed for want of memory. Returns how many it needs.
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

    /// A VPA sets other rules for a container's memory, or none any more.
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

    /// A VPA asks for another estimator for a container, or for none any more. A new one knows nothing yet.
    pub fn set_method(&mut self, workload: &Workload, container: &str, method: Option<Method>) {
        let Some(known) = self.workloads.get_mut(workload) else { return };
        let Ok(at) = known.position(container) else { return };
        let tracked = &mut known.containers[at].1;
        if tracked.sizes.as_ref().map(|sizes| sizes.method()) != method {
            tracked.sizes = method.map(|method| Box::new(Sizes::new(method, &self.shapes)));
        }
    }

    /// Other estimators look at what they have been told until now.
    pub fn advance_methods(&mut self, now: UnixNanos) {
        let containers = self.workloads.values_mut().flat_map(|known| &mut known.containers);
        containers.filter_map(|(_, tracked)| tracked.sizes.as_mut()).for_each(|sizes| sizes.advance(now));
    }

    /// What another estimator knows of a container, if its VPA asks for one.
    pub fn sizes(&self, workload: &Workload, container: &str) -> Option<&Sizes> {
        self.workloads.get(workload)?.get(container)?.sizes.as_deref()
    }

    /// The containers of a workload of which something is known, by name.
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

    /// A workload or one of its containers does not exist any more.
    pub fn forget(&mut self, workload: &Workload, keeps: impl Fn(&str) -> bool) {
        if let Some(known) = self.workloads.get_mut(workload) {
            known.containers.retain(|(name, _)| keeps(name));
            if known.is_empty() {
                self.workloads.remove(workload);
            }
        }
    }

    /// Forgets what got no samples for so long that nothing is left to know.
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

    /// The checkpoint of a container, and what is to be stored beside it; `None` when nothing is known of it.
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

    /// Adds what a checkpoint has; pods that had an open window are running until [`retain_pods`](Self::retain_pods)
    /// says otherwise. To be called before samples come.
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
            // What was stored beside a checkpoint may be wrong; a pod that is known belongs where it is.
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

    /// How many there are of everything that takes memory.
    pub fn counts(&self) -> Counts {
        Counts {
            workloads: self.workloads.len(),
            aggregates: self.workloads.values().map(|known| known.containers.len()).sum(),
            pods: self.pods.len(),
            containers: self.pods.values().map(|pod| pod.containers.len()).sum(),
        }
    }

    /// Memory of all aggregates, in bytes, without what maps and the allocator add.
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

/// Where samples of one running container go.
pub(super) struct Container<'a> {
    state: &'a mut ContainerState,
    aggregate: &'a mut Aggregate,
    /// With the number of the pod.
    sizes: Option<(u64, &'a mut Sizes)>,
    rules: MemoryRules,
    strict: bool,
}

impl Container<'_> {
    /// As [`Store::add_cpu`], for a time that [`check_clock`] lets pass.
    pub(super) fn add_cpu(&mut self, millicores: Amount, time: UnixNanos) -> Result<(), Refused> {
        self.state.add_cpu(self.aggregate, millicores, time)?;
        if let Some((pod, sizes)) = &mut self.sizes {
            sizes.add_cpu(*pod, time, millicores);
        }
        Ok(())
    }

    /// As [`Store::add_memory`], for a time that [`check_clock`] lets pass.
    pub(super) fn add_memory(&mut self, bytes: Amount, time: UnixNanos) -> Result<(), Refused> {
        self.state.add_memory(self.aggregate, bytes, time, &self.rules, self.strict)?;
        if let Some((pod, sizes)) = &mut self.sizes {
            sizes.add_memory(*pod, time, bytes);
        }
        Ok(())
    }
}

/// The same for a pod as long as the process runs.
fn number(uid: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    uid.hash(&mut hasher);
    hasher.finish()
}

/// A sample from far ahead would make all later ones worthless.
pub(super) fn check_clock(time: UnixNanos, now: UnixNanos) -> Result<(), Refused> {
    match time > now.saturating_add(CLOCK_SKEW_NS) {
        true => Err(Refused::Future),
        false => Ok(()),
    }
}

impl Known {
    fn is_empty(&self) -> bool {
        self.containers.is_empty() && self.pods.is_empty()
    }

    fn position(&self, container: &str) -> Result<usize, usize> {
        self.containers.binary_search_by(|(name, _)| (**name).cmp(container))
    }

    fn get(&self, container: &str) -> Option<&Tracked> {
        Some(&self.containers[self.position(container).ok()?].1)
    }

    /// The aggregate of a container, a new one if there is none, and its name.
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
    /// The state of a container, a new one if there is none.
    fn state(&mut self, container: &Arc<str>) -> &mut ContainerState {
        let at = self.containers.iter().position(|(name, _)| name == container).unwrap_or_else(|| {
            let at = self.containers.len();
            insert(&mut self.containers, at, (container.clone(), ContainerState::default()));
            at
        });
        &mut self.containers[at].1
    }
}

/// Into a list that is as long as it must be while it is short.
fn insert<T>(list: &mut Vec<T>, at: usize, element: T) {
    const SHORT: usize = 4;
    if list.len() < SHORT {
        list.reserve_exact(1);
    }
    list.insert(at, element);
}

/// Sizes of a [`Store`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    pub workloads: usize,
    pub aggregates: usize,
    pub pods: usize,
    pub containers: usize,
}
