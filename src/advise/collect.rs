//! Collector of usage, requests and limits, from which advice is computed.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::advice::{ContainerAdvice, Current, ResourceAdvice, Severity, sort};
use super::workloads::{OwnerIndex, WorkloadRef};
use berth_model::PerResource;
use berth_prometheus::{Fact, FactRow, Series};
use berth_rightsizing::recommend::estimate::estimate;
use berth_rightsizing::recommend::feed::{feed, time};
use berth_rightsizing::recommend::settings::RecommenderSettings;
use berth_rightsizing::recommend::time::{UnixNanos, nanos};
use berth_rightsizing::recommend::{Aggregate, Amount, Store, Workload, amount};
use berth_rightsizing::usage::UsageKind;

/// Collects the usage of all containers; memory grows with the number of containers, not samples.
pub struct Collector {
    store: Store,
    owners: OwnerIndex,
    now: UnixNanos,
    /// Keyed by namespace and name, as one string.
    pods: BTreeMap<Arc<str>, Pod>,
    refused: u64,
    /// Whether any request or limit was reported.
    has_requests: bool,
}

struct Pod {
    workload: Workload,
    guessed: bool,
    knows_owner: bool,
    containers: Vec<Container>,
}

struct Container {
    name: Arc<str>,
    first: UnixNanos,
    last: UnixNanos,
    request: PerResource<Option<Amount>>,
    limit: PerResource<Option<Amount>>,
}

/// Selection of containers to advise on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContainerSelection {
    /// A container without samples for this long before the end of the history is no longer running.
    pub ended_after_ns: i64,
    /// Include workloads and containers that are no longer running. Those of CronJobs and Jobs are always included.
    pub all: bool,
    pub severity_min: Severity,
}

/// Number of containers left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Left {
    pub ended: usize,
    pub less_severe: usize,
}

impl Collector {
    /// # Errors
    /// The settings define no valid histogram.
    pub fn new(
        settings: RecommenderSettings,
        owners: OwnerIndex,
        now: UnixNanos,
    ) -> Result<Self, berth_rightsizing::recommend::buckets::BucketsError> {
        let store = Store::new(settings)?;
        Ok(Self { store, owners, now, pods: BTreeMap::new(), refused: 0, has_requests: false })
    }

    /// Adds samples of a container. For each container and kind, timestamps must not decrease.
    pub fn usage(&mut self, kind: UsageKind, series: &Series<'_>) {
        let key = key(series.namespace, series.pod);
        if !self.pods.contains_key(&*key) {
            self.add_pod(&key, series.namespace, series.pod);
        }
        let (Some(pod), Some(first), Some(last)) =
            (self.pods.get_mut(&*key), series.samples.first(), series.samples.last())
        else {
            return;
        };
        pod.saw(series.container, time(*first), time(*last));
        let refused = &mut self.refused;
        feed(&mut self.store, kind, (&key, series.container), series.samples, self.now, |_, taken| {
            *refused += u64::from(taken.is_err());
        });
    }

    /// Returns the number of invalid samples: negative, or from the future.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// Adds a request or limit of a known container; others are ignored. Call after all usage is added.
    pub fn add_fact(&mut self, fact: Fact, told: FactRow<'_>) {
        let (Fact::Request(kind) | Fact::Limit(kind)) = fact else { return };
        self.has_requests = true;
        let Some(pod) = self.pods.get_mut(&*key(told.namespace, told.object)) else { return };
        let Some(container) = pod.containers.iter_mut().find(|container| *container.name == *told.about)
        else {
            return;
        };
        let amounts = match fact {
            Fact::Limit(_) => &mut container.limit,
            _ => &mut container.request,
        };
        match kind {
            // Exact: such values are whole millicores.
            UsageKind::Cpu => amounts.cpu = Some(amount::from_float((told.value * 1000.0).round())),
            UsageKind::Memory => amounts.memory = Some(amount::from_float(told.value)),
        }
    }

    pub fn has_requests(&self) -> bool {
        self.has_requests
    }

    pub fn owners(&self) -> &OwnerIndex {
        &self.owners
    }

    /// Returns sorted advice for the selected containers.
    pub fn advice(&self, choice: ContainerSelection) -> (Vec<ContainerAdvice>, Left) {
        let mut workloads: BTreeMap<&Workload, Vec<&Pod>> = BTreeMap::new();
        for pod in self.pods.values() {
            workloads.entry(&pod.workload).or_default().push(pod);
        }
        let mut left = Left::default();
        let mut all = Vec::new();
        for (workload, pods) in workloads {
            // The newest pod has the workload's current containers and requests.
            let Some(newest) = pods.iter().max_by_key(|pod| (pod.first(), pod.last())) else { continue };
            for (name, aggregate) in self.store.containers(workload) {
                let of: Vec<_> = pods.iter().filter_map(|pod| pod.container(name)).collect();
                let advice = self.one(workload, newest, name, aggregate, &of, choice);
                let ends = matches!(&*workload.kind, "CronJob" | "Job");
                let ended = newest.container(name).is_none() || (advice.pods == 0 && !ends);
                if ended && !choice.all {
                    left.ended += 1;
                } else if advice.severity < choice.severity_min {
                    left.less_severe += 1;
                } else {
                    all.push(advice);
                }
            }
        }
        sort(&mut all);
        (all, left)
    }

    /// Returns advice for one container. `of`: the containers of this name in all pods of the workload.
    fn one(
        &self,
        workload: &Workload,
        newest: &Pod,
        name: &str,
        aggregate: &Aggregate,
        of: &[&Container],
        choice: ContainerSelection,
    ) -> ContainerAdvice {
        let settings = self.store.settings();
        let running_from = self.now.saturating_sub(choice.ended_after_ns);
        let running = of.iter().filter(|container| container.last >= running_from).count();
        let known =
            PerResource { cpu: aggregate.cpu_span.count > 0, memory: aggregate.memory_span.count > 0 };
        let span = if known.cpu { aggregate.cpu_span } else { aggregate.memory_span };
        let interval = nanos(settings.cpu.confidence_interval);
        let current = self.current(newest, name);
        let estimates = estimate(aggregate, settings, newest.containers.len());
        let size =
            estimates.zip(known).zip(current).map(|((estimate, known), (request, limit))| ResourceAdvice {
                severity: Severity::Unknown,
                request,
                limit,
                target: known.then_some(estimate.target),
                lower: known.then_some(estimate.lower),
                upper: known.then_some(estimate.upper),
            });
        let advice = ContainerAdvice {
            severity: Severity::Unknown,
            namespace: workload.namespace.to_string(),
            kind: workload.kind.to_string(),
            workload: workload.name.to_string(),
            guessed: newest.guessed,
            container: name.to_owned(),
            pods: u32::try_from(running).unwrap_or(u32::MAX),
            pods_seen: u32::try_from(of.len()).unwrap_or(u32::MAX),
            size,
            days: span.last.saturating_sub(span.first) as f64 / 86_400e9,
            samples: span.count,
            confidence: aggregate.confidence(interval, settings.strict_upstream),
        };
        advice.judged()
    }

    /// Returns the request and the limit of a container of this pod.
    fn current(&self, pod: &Pod, name: &str) -> PerResource<(Current, Current)> {
        let container = pod.container(name);
        // A source that knows the pod and reports requests would report this one.
        let unset = self.has_requests && pod.knows_owner && container.is_some();
        let current = |amount: Option<Amount>| match (amount, unset) {
            (Some(amount), _) => Current::Set(amount),
            (None, true) => Current::Unset,
            (None, false) => Current::Unknown,
        };
        let request = container.map(|container| container.request).unwrap_or_default();
        let limit = container.map(|container| container.limit).unwrap_or_default();
        request.zip(limit).map(|(request, limit)| (current(request), current(limit)))
    }

    fn add_pod(&mut self, key: &str, namespace: &str, name: &str) {
        let WorkloadRef { kind, name: workload, guessed } = self.owners.workload(namespace, name);
        let workload = Workload { namespace: namespace.into(), kind: kind.into(), name: workload.into() };
        let key: Arc<str> = key.into();
        self.store.pod_runs(&key, &workload);
        let knows_owner = self.owners.has_owner(namespace, name);
        self.pods.insert(key, Pod { workload, guessed, knows_owner, containers: Vec::new() });
    }
}

impl Pod {
    fn container(&self, name: &str) -> Option<&Container> {
        self.containers.iter().find(|container| *container.name == *name)
    }

    fn saw(&mut self, container: &str, first: UnixNanos, last: UnixNanos) {
        match self.containers.iter_mut().find(|known| *known.name == *container) {
            Some(known) => {
                known.first = known.first.min(first);
                known.last = known.last.max(last);
            }
            None => self.containers.push(Container {
                name: container.into(),
                first,
                last,
                request: PerResource::default(),
                limit: PerResource::default(),
            }),
        }
    }

    fn first(&self) -> UnixNanos {
        self.containers.iter().map(|container| container.first).min().unwrap_or(UnixNanos::MIN)
    }

    fn last(&self) -> UnixNanos {
        self.containers.iter().map(|container| container.last).max().unwrap_or(UnixNanos::MIN)
    }
}

fn key(namespace: &str, pod: &str) -> String {
    format!("{namespace}/{pod}")
}
