//! Collector of usage, requests and limits, from which advice is computed.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::advice::{ContainerAdvice, Current, Reason, ResourceAdvice, Severity, sort};
use super::sizing::{Sizing, Strategy};
use super::workloads::{OwnerIndex, WorkloadRef};
use berth_model::PerResource;
use berth_prometheus::{Fact, FactRow, Series};
use berth_rightsizing::recommend::estimate::{estimate, minimum};
use berth_rightsizing::recommend::feed::{feed, time};
use berth_rightsizing::recommend::settings::{RecommenderSettings, ResourceSettings};
use berth_rightsizing::recommend::time::{UnixNanos, nanos};
use berth_rightsizing::recommend::{Aggregate, Amount, Store, Workload, amount};
use berth_rightsizing::usage::{Sample, UsageKind};

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
    sizing: Sizing,
    /// By namespace and name.
    autoscalers: BTreeMap<(String, String), Autoscaler>,
    graphs: Option<Graphs>,
}

/// A HorizontalPodAutoscaler: its target as KIND/NAME, and the resources whose utilisation it keeps.
#[derive(Debug, Default)]
struct Autoscaler {
    target: String,
    keeps: PerResource<bool>,
}

/// Highest usage of each container in equal parts of the history.
struct Graphs {
    start_s: f64,
    part_s: f64,
    parts: usize,
    of: BTreeMap<(Workload, Arc<str>), PerResource<Vec<f32>>>,
}

impl Graphs {
    fn add(&mut self, kind: UsageKind, workload: &Workload, container: &str, samples: &[Sample]) {
        let key = (workload.clone(), container.into());
        let empty = || PerResource { cpu: vec![f32::NAN; self.parts], memory: vec![f32::NAN; self.parts] };
        let of = self.of.entry(key).or_insert_with(empty);
        let of = match kind {
            UsageKind::Cpu => &mut of.cpu,
            UsageKind::Memory => &mut of.memory,
        };
        for sample in samples.iter().filter(|sample| amount::is_usage(sample.value)) {
            let part = (sample.at - self.start_s) / self.part_s;
            let part = (part.max(0.0) as usize).min(self.parts - 1);
            // `max` ignores NaN.
            of[part] = of[part].max(sample.value as f32);
        }
    }
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
    /// Highest memory.
    peak: Amount,
    was_killed: bool,
    /// Quantile of CPU rates and highest memory, as far as they were queried.
    summary: PerResource<Option<Amount>>,
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
        sizing: Sizing,
        owners: OwnerIndex,
        now: UnixNanos,
    ) -> Result<Self, berth_rightsizing::recommend::buckets::BucketsError> {
        Ok(Self {
            store: Store::new(settings)?,
            owners,
            now,
            pods: BTreeMap::new(),
            refused: 0,
            has_requests: false,
            sizing,
            autoscalers: BTreeMap::new(),
            graphs: None,
        })
    }

    /// Keeps the highest usage in this number of parts of the history of this many nanoseconds, too.
    pub fn with_graphs(mut self, history_ns: i64, parts: usize) -> Self {
        let (parts, history_s) = (parts.max(1), history_ns as f64 / 1e9);
        self.graphs = Some(Graphs {
            start_s: self.now as f64 / 1e9 - history_s,
            part_s: history_s / parts as f64,
            parts,
            of: BTreeMap::new(),
        });
        self
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
        let peak = match kind {
            UsageKind::Cpu => 0,
            UsageKind::Memory => highest(series.samples),
        };
        pod.saw(series.container, time(*first), time(*last), peak);
        if let Some(graphs) = &mut self.graphs {
            graphs.add(kind, &pod.workload, series.container, series.samples);
        }
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

    /// Adds what is known of a HorizontalPodAutoscaler, or of a container that has usage; other containers are ignored. Call after
    /// all usage is added.
    pub fn add_fact(&mut self, fact: Fact, told: FactRow<'_>) {
        match fact {
            Fact::PodOwner | Fact::ReplicaSetOwner | Fact::JobOwner => {}
            Fact::AutoscalerTarget => self.autoscaler(told).target = told.about.to_owned(),
            Fact::AutoscalerResource => match told.about {
                "cpu" => self.autoscaler(told).keeps.cpu = true,
                "memory" => self.autoscaler(told).keeps.memory = true,
                _ => {}
            },
            _ => {
                self.has_requests |= matches!(fact, Fact::Request(_) | Fact::Limit(_));
                let pod = self.pods.get_mut(&*key(told.namespace, told.object));
                let found = pod.and_then(|pod| pod.containers.iter_mut().find(|it| *it.name == *told.about));
                if let Some(container) = found {
                    container.add_fact(fact, told.value);
                }
            }
        }
    }

    fn autoscaler(&mut self, told: FactRow<'_>) -> &mut Autoscaler {
        self.autoscalers.entry((told.namespace.to_owned(), told.object.to_owned())).or_default()
    }

    /// Returns the HorizontalPodAutoscaler of a workload that keeps the utilisation of a resource, and of which.
    fn autoscaler_of(&self, workload: &Workload) -> Option<(&str, PerResource<bool>)> {
        let target = format!("{}/{}", workload.kind, workload.name);
        let from = (workload.namespace.to_string(), String::new());
        let of_namespace = self
            .autoscalers
            .range(from..)
            .take_while(|((namespace, _), _)| **namespace == *workload.namespace);
        let mut keeping =
            of_namespace.filter(|(_, it)| it.target == target && (it.keeps.cpu || it.keeps.memory));
        keeping.next().map(|((_, name), it)| (&**name, it.keeps))
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
        let containers = newest.containers.len();
        let estimates = estimate(aggregate, settings, containers);
        let autoscaler = self.autoscaler_of(workload).filter(|_| !self.sizing.despite_autoscalers);
        let kept = autoscaler.map(|(_, keeps)| keeps).unwrap_or_default();
        let minimums =
            settings.resources().map(|resource: &ResourceSettings| minimum(resource.pod_minimum, containers));
        let vpa = estimates.zip(known).zip(minimums).map(|((estimate, known), minimum)| {
            let bounds = (Some(estimate.lower), Some(estimate.upper));
            known.then_some((estimate.target, minimum, bounds))
        });
        let sizes = match self.sizing.strategy {
            Strategy::Vpa => vpa,
            Strategy::Krr => {
                let wanted = self.sizing.of_summary(summary(of));
                wanted.zip(self.sizing.minimum).map(|(wanted, minimum): (Option<Amount>, _)| {
                    wanted.map(|target| (target, minimum, (None, None)))
                })
            }
        };
        let killed = PerResource { cpu: None, memory: self.memory_after_kills(of) };
        let size = sizes.zip(killed).zip(kept).zip(current).zip(self.sizing.limits.rules());
        let size = size.map(|((((size, killed), kept), (request, limit)), limit_rule)| {
            let advice = ResourceAdvice {
                severity: Severity::Unknown,
                request,
                limit,
                limit_rule,
                reason: Reason::NoUsage,
                target: None,
                lower: None,
                upper: None,
            };
            let Some((target, minimum, (lower, upper))) = size else { return advice };
            if kept {
                return ResourceAdvice { reason: Reason::Autoscaler, ..advice };
            }
            let needed = killed.unwrap_or(0);
            let reason = match target {
                _ if needed > target => Reason::OomKill,
                _ if target <= minimum => Reason::Minimum,
                _ => Reason::Usage,
            };
            let upper = upper.map(|upper: Amount| upper.max(needed));
            ResourceAdvice { reason, target: Some(target.max(needed)), lower, upper, ..advice }
        });
        let graph = self.graphs.as_ref().and_then(|graphs| graphs.of.get(&(workload.clone(), name.into())));
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
            autoscaler: autoscaler.map(|(name, _)| name.to_owned()),
            history: graph.cloned().unwrap_or_default(),
            days: span.last.saturating_sub(span.first) as f64 / 86_400e9,
            samples: span.count,
            confidence: aggregate.confidence(interval, settings.strict_upstream),
        };
        advice.judged()
    }

    /// Returns the memory that the containers need because some of them were killed.
    fn memory_after_kills(&self, of: &[&Container]) -> Option<Amount> {
        let killed = of.iter().filter(|container| container.was_killed);
        let had = |container: &&&Container| container.limit.memory.unwrap_or(container.peak);
        let rules = self.store.settings().memory_rules();
        killed.map(|container| self.sizing.after_kill(had(&container), &rules)).max()
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

    fn saw(&mut self, container: &str, first: UnixNanos, last: UnixNanos, peak: Amount) {
        match self.containers.iter_mut().find(|known| *known.name == *container) {
            Some(known) => {
                known.first = known.first.min(first);
                known.last = known.last.max(last);
                known.peak = known.peak.max(peak);
            }
            None => self.containers.push(Container {
                name: container.into(),
                first,
                last,
                request: PerResource::default(),
                limit: PerResource::default(),
                peak,
                was_killed: false,
                summary: PerResource::default(),
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

impl Container {
    /// Adds a fact about it; others are ignored.
    fn add_fact(&mut self, fact: Fact, value: f64) {
        let bytes = || Some(amount::from_float(value));
        match fact {
            // Exact: such values are whole millicores.
            Fact::Request(UsageKind::Cpu) => {
                self.request.cpu = Some(amount::from_float((value * 1000.0).round()))
            }
            Fact::Request(UsageKind::Memory) => self.request.memory = bytes(),
            Fact::Limit(UsageKind::Cpu) => {
                self.limit.cpu = Some(amount::from_float((value * 1000.0).round()))
            }
            Fact::Limit(UsageKind::Memory) => self.limit.memory = bytes(),
            Fact::OomKill => self.was_killed = true,
            Fact::CpuQuantile { .. } => self.summary.cpu = Some(amount::from_float((value * 1000.0).ceil())),
            Fact::MemoryPeak => self.summary.memory = bytes(),
            _ => {}
        }
    }
}

/// Returns the highest memory of valid samples.
fn highest(samples: &[Sample]) -> Amount {
    let valid = samples.iter().filter(|sample| amount::is_usage(sample.value));
    amount::from_float(valid.map(|sample| sample.value).fold(0.0, f64::max))
}

/// Returns the quantile of CPU and the highest memory of that container that has most.
fn summary(of: &[&Container]) -> PerResource<Option<Amount>> {
    let most = |get: fn(&Container) -> Option<Amount>| of.iter().filter_map(|container| get(container)).max();
    PerResource { cpu: most(|it| it.summary.cpu), memory: most(|it| it.summary.memory) }
}

fn key(namespace: &str, pod: &str) -> String {
    format!("{namespace}/{pod}")
}
