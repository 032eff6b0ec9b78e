//! Decision about one service from its data. No I/O.

mod believable;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::InTheWay;
use super::look::ServiceObservation;
use super::refusals::Refusals;
use berth_kube_io::scaling::{ScaledService, ScalingPlan};
use berth_model::PerResource;
use berth_rightsizing::apply::change::growth;
use berth_rightsizing::apply::in_place::is_less;
use berth_rightsizing::apply::qos::is_kept;
use berth_rightsizing::apply::{self, Hold, Resize as Resizing, SizeChange, SizedPod};
use berth_rightsizing::recommend::change::proportional_limit;
use berth_rightsizing::recommend::method::{ContainerSizes, Method};
use berth_rightsizing::recommend::{self, Amount, UnixNanos};
use berth_rightsizing::scaling::behavior::{AllowedChange, History};
use berth_rightsizing::scaling::{
    Container, Decision, Horizontal, Measured, MeasuredKind, Observation, ObservedSpans, PastUsage, Point,
    ScalerMemory, ScalingSettings, Size, Vertical, Windows, decide, horizontal,
};
use berth_scheduler::rules::hash_of;

pub(super) use believable::is_heavy;

pub(super) const SECOND_NS: i64 = 1_000_000_000;

/// Time after a growth without room during which replicas are added instead.
const NO_ROOM_S: i64 = 60;

/// State of a service between rounds; its status keeps it across restarts.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Remembered {
    pub memory: ScalerMemory,
    pub history: History,
    /// Last decided sizes, by container.
    pub sizes: BTreeMap<String, Size>,
    /// OOM kills up to this time were counted.
    pub killed_until: Option<UnixNanos>,
    /// The memory has what Prometheus knows from before the observed spans.
    pub past_known: bool,
    /// Time of the last OOM kill of each container of each pod, as of the last round.
    #[serde(skip)]
    killed: BTreeMap<(Arc<str>, String), Option<UnixNanos>>,
    /// By container, for estimators other than SHOWAR's.
    #[serde(skip)]
    estimates: BTreeMap<String, Estimate>,
    #[serde(skip)]
    pub refusals: Refusals<Vec<SizeChange>>,
    /// Time at which the node of a pod had no room for its growth.
    #[serde(skip)]
    pub no_room_s: Option<i64>,
    /// Failure of the last round: it is reported once.
    #[serde(skip)]
    pub failed: Option<String>,
    /// Time of the last write of the status.
    #[serde(skip)]
    pub told_at: Option<Timestamp>,
}

/// State of another estimator for one container.
#[derive(Debug, Clone)]
struct Estimate {
    sizes: ContainerSizes,
    /// Time of its newest sample.
    seen_s: i64,
}

/// A decision to execute.
pub(super) struct Settled {
    pub decision: Decision,
    pub allowed: AllowedChange,
    /// Target sizes of the pods; 0 for resources that berth does not control.
    pub sizes: BTreeMap<String, Size>,
    pub resizes: Vec<Resize>,
    /// Message: why some pods do not get their size.
    pub held: Option<String>,
}

/// Target requests of one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Resize {
    /// Index of the pod in the data.
    pub pod: usize,
    pub changes: Vec<SizeChange>,
}

impl Settled {
    /// Returns whether replicas are added or a pod gets more, so that it goes before what only saves.
    pub fn grows(&self, look: &ServiceObservation) -> bool {
        let is_more = |resize: &Resize| {
            let more = growth(&look.pods[resize.pod], &resize.changes);
            more.cpu > 0 || more.memory > 0
        };
        self.allowed.replicas > look.scale.replicas || self.resizes.iter().any(is_more)
    }

    /// Returns whether something is changed.
    pub fn acts(&self, look: &ServiceObservation) -> bool {
        self.allowed.replicas != look.scale.replicas || !self.resizes.is_empty()
    }
}

impl Remembered {
    /// Returns the state that another process wrote into the status; unreadable parts are dropped.
    pub fn of(service: &ScaledService) -> Self {
        let text = service.status.as_ref().and_then(|status| status.memory.as_deref());
        text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }

    /// Adds what is known from before the observed spans, by container. `possible_memory`: of the largest node, if known.
    pub fn learn(
        &mut self,
        past: BTreeMap<String, PastUsage>,
        plan: &ScalingPlan,
        possible_memory: Option<i64>,
        now: Timestamp,
    ) {
        for (container, mut past) in past {
            past.memory.retain(|_, bytes| *bytes > 0 && possible_memory.is_none_or(|most| *bytes <= most));
            self.memory.learn(&container, &past, plan.settings.of(&container), now.as_second());
        }
        self.past_known = true;
    }

    /// Decides about a service.
    pub fn settle(
        &mut self,
        (service, plan): (&ScaledService, &ScalingPlan),
        look: &ServiceObservation,
        others: &InTheWay,
        windows: &Windows,
        now: Timestamp,
    ) -> Settled {
        let (now_s, replicas) = (now.as_second(), look.scale.replicas);
        let pods: Vec<&SizedPod> = look.pods.iter().filter(|pod| !pod.is_deleting).collect();
        let settings = settings_of(plan, others, now_s);
        // A size that another controller sets meanwhile will differ when berth controls it again.
        if plan.dry_run || (others.sizes.is_some() && !others.perhaps) {
            self.sizes.clear();
        }
        let ours = |name: &str| {
            let vertical = settings.of(name);
            PerResource { cpu: vertical.cpu && others.replicas.is_none(), memory: vertical.memory }
        };
        let names: BTreeSet<&str> =
            pods.iter().flat_map(|pod| &pod.containers).map(|container| container.name.as_str()).collect();
        let kills = self.new_kills(&pods, now);
        let estimates: BTreeMap<&str, PerResource<Option<Amount>>> = match plan.estimator {
            Some(method) => names
                .iter()
                .map(|name| {
                    let current = self.size_of(name, &pods, ours(name));
                    let seen = (windows, look.possible_memory);
                    (*name, self.estimate((method, current), (&service.namespace, name), &pods, seen, now))
                })
                .collect(),
            None => BTreeMap::new(),
        };
        let containers = names.iter().map(|name| {
            let samples = |kind| {
                let of = |pod: &&SizedPod| {
                    let container = pod.containers.iter().find(|container| container.name == *name)?;
                    let pod = (&*service.namespace, *pod);
                    Some(believable::samples(pod, container, kind, look.possible_memory, windows))
                };
                pods.iter().filter_map(of).flatten().collect::<Vec<Point>>()
            };
            Container {
                name: (*name).to_owned(),
                size: self.size_of(name, &pods, ours(name)),
                cpu: samples(MeasuredKind::Cpu),
                memory: samples(MeasuredKind::Memory),
                estimate: estimates.get(name).copied().unwrap_or_default(),
                oom_kills: kills.get(name).copied().unwrap_or(0),
                unheard: pods_without_samples(
                    (&service.namespace, name),
                    &pods,
                    (windows, look.possible_memory),
                    now_s,
                ),
            }
        });
        let (signal, partly_unknown) = strongest(plan, look, now_s);
        let waits = |pod: &&SizedPod| matches!(pod.resize, Some(Resizing::Deferred | Resizing::Infeasible));
        let had_no_room = self.no_room_s.is_some_and(|at| now_s.saturating_sub(at) <= NO_ROOM_S);
        let seen = Observation {
            replicas,
            largest_memory: look.largest_memory,
            has_no_room: had_no_room || pods.iter().any(waits),
            ready: pods.iter().filter(|pod| pod.is_ready).count().try_into().unwrap_or(u32::MAX),
            containers: containers.collect(),
            signal,
            partly_unknown,
            busy: busy(plan, look, now_s),
            success: look.success.as_ref().ok().copied().flatten(),
            frozen: others.replicas.clone(),
        };
        let observed = self.memory.observed.clone();
        let decision = decide(&settings, &mut self.memory, &seen, now_s);
        // Nothing was heard for long: Prometheus may know what happened meanwhile.
        let is_lost = |(name, spans): (&String, &ObservedSpans)| {
            observed.get(name).is_some_and(|before| spans.have_restarted_since(before))
        };
        self.past_known &= !self.memory.observed.iter().any(is_lost);
        self.history.clamp_to_past(now_s);
        let allowed = plan.behavior.allow(&self.history, now_s, replicas, decision.replicas);
        // The replicas that are set count; `act` records when they were changed.
        self.memory.replicas = (replicas > 0).then_some(replicas);
        let sizes: BTreeMap<String, Size> =
            decision.sizes.iter().map(|(name, size)| (name.clone(), only(*size, ours(name)))).collect();
        let (mut resizes, mut reasons) = (Vec::new(), BTreeMap::new());
        // The pods of a service with 0 replicas are terminating.
        let is_ours = |pod: &SizedPod| replicas > 0 && !plan.dry_run && !pod.is_deleting;
        for (index, pod) in look.pods.iter().enumerate().filter(|(_, pod)| is_ours(pod)) {
            match resize(pod, &sizes) {
                Ok(changes) if changes.is_empty() => {}
                Ok(changes) => resizes.push(Resize { pod: index, changes }),
                Err(why) => *reasons.entry(why.why()).or_default() += 1,
            }
        }
        // If there are no pods, or other controllers are unknown, the last decision stays.
        if !plan.dry_run && others.sizes.is_none() && !names.is_empty() {
            self.sizes = sizes.clone();
        }
        let sizes = if plan.dry_run { sizes } else { self.sizes.clone() };
        Settled { decision, allowed, sizes, resizes, held: held(&pods, reasons) }
    }

    /// Returns the size of another estimator for a container. It shrinks nothing before it has a day of
    /// samples.
    fn estimate(
        &mut self,
        (method, current): (Method, Size),
        (namespace, name): (&str, &str),
        pods: &[&SizedPod],
        (windows, possible_memory): (&Windows, Option<i64>),
        now: Timestamp,
    ) -> PerResource<Option<Amount>> {
        self.estimates.retain(|_, known| known.sizes.method() == method);
        if !self.estimates.contains_key(name) {
            let Ok(shapes) = recommend::RecommenderSettings::default().shapes() else {
                return PerResource::default();
            };
            let fresh = Estimate { sizes: ContainerSizes::new(method, &shapes), seen_s: i64::MIN };
            self.estimates.insert(name.to_owned(), fresh);
        }
        let Some(Estimate { sizes, seen_s }) = self.estimates.get_mut(name) else {
            return PerResource::default();
        };
        for pod in pods {
            let Some(container) = pod.containers.iter().find(|container| container.name == name) else {
                continue;
            };
            let number = hash_of(&pod.uid);
            let new = |kind| {
                let samples =
                    believable::samples((namespace, pod), container, kind, possible_memory, windows);
                samples.filter(|point| point.time_s > *seen_s && point.value.is_finite())
            };
            let amount = |point: &Point| (point.time_s.saturating_mul(SECOND_NS), point.value as Amount);
            new(MeasuredKind::Cpu)
                .map(|point| amount(&point))
                .for_each(|(at, used)| sizes.add_cpu(number, at, used));
            new(MeasuredKind::Memory)
                .map(|point| amount(&point))
                .for_each(|(at, used)| sizes.add_memory(number, at, used));
        }
        *seen_s = now.as_second();
        sizes.advance(UnixNanos::try_from(now.as_nanosecond()).unwrap_or(UnixNanos::MAX));
        let current = PerResource { cpu: current.cpu_milli, memory: current.memory_bytes };
        let targets = sizes.targets().zip(sizes.is_settled()).zip(current);
        targets.map(|((target, settled), current)| match settled {
            true => target,
            false => Some(target.unwrap_or(0).max(current)),
        })
    }

    /// Returns the OOM kills since the last round, by container. Their times are from the clocks of nodes,
    /// which may be wrong: a kill of a known container is new if its time differs.
    fn new_kills<'a>(&mut self, pods: &[&'a SizedPod], now: Timestamp) -> BTreeMap<&'a str, u32> {
        let now = UnixNanos::try_from(now.as_nanosecond()).unwrap_or(UnixNanos::MAX);
        let until = self.killed_until.replace(now);
        let before = std::mem::take(&mut self.killed);
        let mut kills = BTreeMap::new();
        for (pod, container) in pods.iter().flat_map(|pod| pod.containers.iter().map(move |it| (pod, it))) {
            let key = (pod.uid.clone(), container.name.clone());
            let known = before.get(&key).copied();
            if container.oom_killed.is_some_and(|at| is_new_kill(at, known, until)) {
                *kills.entry(container.name.as_str()).or_default() += 1;
            }
            self.killed.insert(key, container.oom_killed.or(known.flatten()));
        }
        kills
    }

    /// Returns whether a container of this pod was OOM killed since the last decision.
    pub fn has_new_kill(&self, pod: &SizedPod) -> bool {
        pod.containers.iter().any(|container| {
            let known = || self.killed.get(&(pod.uid.clone(), container.name.clone())).copied();
            container.oom_killed.is_some_and(|at| is_new_kill(at, known(), self.killed_until))
        })
    }

    /// Returns whether the largest node matters for the next decision, because of kills.
    pub fn needs_nodes(&self, pods: &[SizedPod]) -> bool {
        self.memory.memory_capped || pods.iter().any(|pod| self.has_new_kill(pod))
    }

    /// Returns the size of the container: the last decision for the resources that berth controls, else what
    /// most of its pods request.
    fn size_of(&self, name: &str, pods: &[&SizedPod], ours: PerResource<bool>) -> Size {
        let decided = only(self.sizes.get(name).copied().unwrap_or_default(), ours);
        let containers =
            pods.iter().flat_map(|pod| &pod.containers).filter(|container| container.name == name);
        let requests: Vec<_> = containers.map(|container| container.wanted.requests).collect();
        let median = |of: fn(&PerResource<Option<Amount>>) -> Option<Amount>| {
            let mut amounts: Vec<Amount> = requests.iter().map(|it| of(it).unwrap_or(0)).collect();
            amounts.sort_unstable();
            amounts.get(amounts.len() / 2).copied().unwrap_or(0)
        };
        let or = |decided: i64, of| if decided > 0 { decided } else { median(of) };
        Size {
            cpu_milli: or(decided.cpu_milli, |it| it.cpu),
            memory_bytes: or(decided.memory_bytes, |it| it.memory),
        }
    }
}

/// Returns whether an OOM kill at this time is new. `known`: the last kill of the container, if the container is known; `until`: kills
/// up to this time were counted.
fn is_new_kill(at: UnixNanos, known: Option<Option<UnixNanos>>, until: Option<UnixNanos>) -> bool {
    match known {
        Some(known) => known != Some(at),
        None => until.is_some_and(|until| at > until),
    }
}

/// Returns the signal that is the highest relative to its target, in the unit of the first one; and why a higher one may be unknown.
fn strongest(
    plan: &ScalingPlan,
    look: &ServiceObservation,
    now_s: i64,
) -> (Option<Measured>, Option<String>) {
    let mut measured = look.signals.iter().map(|measured| measured.as_ref().ok().copied().flatten());
    let Some(first) = plan.signals.first().filter(|_| plan.signals.len() > 1) else {
        return (measured.next().flatten(), None);
    };
    let is_known = |target: f64, signal: &Measured| {
        let settings = Horizontal { setpoint: target, ..Horizontal::default() };
        horizontal::signal(Some(*signal), now_s, &settings).is_ok()
    };
    let known: Vec<Measured> = plan
        .signals
        .iter()
        .zip(measured)
        .filter_map(|(of, signal)| Some((of.target, signal.filter(|signal| is_known(of.target, signal))?)))
        .map(|(target, signal)| Measured { value: signal.value / target * first.target, ..signal })
        .collect();
    let unknown = plan.signals.len() - known.len();
    let why = (unknown > 0).then(|| format!("{unknown} of {} signals are unknown", plan.signals.len()));
    (known.into_iter().max_by(|a, b| a.value.total_cmp(&b.value)), why)
}

/// Returns whether there is work, as the signals tell that exist without pods; `None`: unknown.
fn busy(plan: &ScalingPlan, look: &ServiceObservation, now_s: i64) -> Option<bool> {
    let is_fresh = |signal: &Measured| now_s.saturating_sub(signal.time_s) <= Horizontal::default().stale_s;
    let work = plan.signals.iter().zip(&look.signals).filter_map(|(of, measured)| {
        let least = of.activation?;
        let signal = measured.as_ref().ok().copied().flatten().filter(is_fresh);
        Some(signal.map(|signal| signal.value > least))
    });
    let work: Vec<Option<bool>> = work.collect();
    match work.contains(&Some(true)) {
        true => Some(true),
        false => (!work.is_empty() && !work.contains(&None)).then_some(false),
    }
}

/// Returns the settings of the plan at this time, without the parts that other controllers own.
fn settings_of(plan: &ScalingPlan, others: &InTheWay, now_s: i64) -> ScalingSettings {
    let mut settings = plan.settings.clone();
    let scheduled = plan.schedule.iter().filter(|bounds| bounds.window.contains(now_s));
    let scheduled = scheduled
        .map(|bounds| (bounds.min_replicas, bounds.max_replicas))
        .reduce(|all, one| (all.0.max(one.0), all.1.max(one.1)));
    if let (Some(horizontal), Some((min_replicas, max_replicas))) = (&mut settings.horizontal, scheduled) {
        *horizontal = Horizontal { min_replicas, max_replicas, awake: true, ..horizontal.clone() };
    }
    if others.sizes.is_none() {
        return settings;
    }
    let vertical = Vertical { cpu: false, memory: false, ..settings.vertical };
    ScalingSettings { vertical, containers: BTreeMap::new(), ..settings }
}

/// Returns the part of a size that berth controls; the rest is 0.
fn only(size: Size, ours: PerResource<bool>) -> Size {
    Size {
        cpu_milli: if ours.cpu { size.cpu_milli } else { 0 },
        memory_bytes: if ours.memory { size.memory_bytes } else { 0 },
    }
}

/// Returns the number of ready pods with a container that has no recent sample.
fn pods_without_samples(
    (namespace, name): (&str, &str),
    pods: &[&SizedPod],
    (windows, possible_memory): (&Windows, Option<i64>),
    now: i64,
) -> PerResource<u32> {
    let since = now.saturating_sub(Vertical::default().stale_s);
    let count = |kind| {
        let is_unheard = |pod: &SizedPod| {
            let container = pod.containers.iter().find(|container| container.name == name);
            container.is_some_and(|container| {
                let mut samples =
                    believable::samples((namespace, pod), container, kind, possible_memory, windows);
                !samples.any(|point| point.time_s >= since && point.value.is_finite())
            })
        };
        let unheard = pods.iter().filter(|pod| pod.is_ready && is_unheard(pod)).count();
        unheard.try_into().unwrap_or(u32::MAX)
    };
    PerResource { cpu: count(MeasuredKind::Cpu), memory: count(MeasuredKind::Memory) }
}

/// Returns a message: why pods do not get their size.
fn held(pods: &[&SizedPod], others: BTreeMap<&'static str, usize>) -> Option<String> {
    let mut reasons = others;
    for pod in pods {
        let why = match pod.resize {
            Some(Resizing::Infeasible) => "their nodes can never fit their size (Infeasible)",
            Some(Resizing::Deferred) => "their nodes cannot fit their size now (Deferred)",
            Some(Resizing::Error) => "their kubelets failed to resize them (Error)",
            Some(Resizing::Unknown) => "their kubelets have not resized them",
            Some(Resizing::InProgress) | None => continue,
        };
        *reasons.entry(why).or_default() += 1;
    }
    let text = |(why, count): (&str, usize)| format!("{count} pods: {why}");
    (!reasons.is_empty()).then(|| reasons.into_iter().map(text).collect::<Vec<_>>().join("; "))
}

/// Returns the changes from the requests of a pod to its target size. Empty for a pending pod, and for a pod whose node
/// has no room for the last resize, unless a resource shrinks. A kubelet that failed to resize may be able to do another
/// size: growth must not wait until a shrink below the usage succeeds.
///
/// # Errors
/// The reason why it cannot be done in place.
fn resize(pod: &SizedPod, sizes: &BTreeMap<String, Size>) -> Result<Vec<SizeChange>, Hold> {
    let of = |(index, container): (usize, &apply::SizedContainer)| {
        let size = sizes.get(&container.name)?;
        let (has, limits) = (container.wanted.requests, container.wanted.limits);
        let wanted = PerResource { cpu: size.cpu_milli, memory: size.memory_bytes };
        // A container without a request has nothing to size, and is not restarted for its size.
        let requests = wanted.zip(has).zip(container.restarts).map(|((wanted, has), restarts)| {
            Some(wanted).filter(|_| wanted > 0 && !restarts && has.is_some_and(|has| has != wanted))
        });
        let limits = limits.zip(has).zip(requests).map(
            |((limit, has), request): ((Option<Amount>, Option<Amount>), Option<Amount>)| {
                proportional_limit(limit, has, Some(request?))
            },
        );
        let change = SizeChange { container: index, requests, limits, notes: Vec::new() };
        (requests != PerResource::default()).then_some(change)
    };
    let changes: Vec<SizeChange> = pod.containers.iter().enumerate().filter_map(of).collect();
    let has_no_room = matches!(pod.resize, Some(Resizing::Deferred | Resizing::Infeasible));
    if changes.is_empty() || pod.node.is_none() || (has_no_room && !is_less(pod, &changes)) {
        return Ok(Vec::new());
    }
    if pod.is_sized_as_a_whole {
        return Err(Hold::PodLevelResources);
    }
    if is_kept(pod, &changes) { Ok(changes) } else { Err(Hold::QosClass) }
}

#[cfg(test)]
mod tests;
