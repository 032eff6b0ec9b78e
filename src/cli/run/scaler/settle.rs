//! What to do about one service, from what was seen of it. No I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::InTheWay;
use super::look::Look;
use super::refusals::Refusals;
use crate::cluster::scaling::{Plan, Service, ServicePod};
use crate::recommend::method::{Method, Sizes};
use crate::recommend::{self, Amount, PerResource, UnixNanos, change};
use crate::rules::hash_of;
use crate::scaling::behavior::{Allowed, History};
use crate::scaling::{
    Container, Decision, Kind, Memory, Observation, Point, Settings, Size, Vertical, Windows, decide,
};

const SECOND_NS: i64 = 1_000_000_000;

/// What is remembered of a service from round to round, and over a restart in its status.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Remembered {
    pub memory: Memory,
    pub history: History,
    /// What was decided last, by container.
    pub sizes: BTreeMap<String, Size>,
    /// Kills for want of memory up to this time were counted.
    pub killed_until: Option<UnixNanos>,
    /// When each container of each pod was last killed, as it was seen in the round before.
    #[serde(skip)]
    killed: BTreeMap<(Arc<str>, String), Option<UnixNanos>>,
    /// By container, for another estimator than SHOWAR's.
    #[serde(skip)]
    estimates: BTreeMap<String, Estimate>,
    #[serde(skip)]
    pub refusals: Refusals<Vec<Resources>>,
    /// What could not be done in the last round: it is told once.
    #[serde(skip)]
    pub failed: Option<String>,
    /// When the status was written last.
    #[serde(skip)]
    pub told_at: Option<Timestamp>,
}

/// What another estimator knows of one container.
#[derive(Debug, Clone)]
struct Estimate {
    sizes: Sizes,
    /// It has the samples up to this time.
    seen_s: i64,
}

/// What is to be done.
pub(super) struct Settled {
    pub decision: Decision,
    pub allowed: Allowed,
    pub resizes: Vec<Resize>,
    /// Pods whose kubelets have not done what they were asked, for people.
    pub pending: Option<String>,
}

/// What one pod should request from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Resize {
    pub pod: String,
    pub uid: Arc<str>,
    pub containers: Vec<Resources>,
}

/// Requests and limits of a container; what is `None` stays unset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Resources {
    pub name: String,
    pub requests: PerResource<Option<Amount>>,
    pub limits: PerResource<Option<Amount>>,
    /// By how much the requests grow; below 0 when they shrink.
    pub growth: PerResource<Amount>,
}

impl Remembered {
    /// What a status says that another process wrote; what cannot be read is forgotten.
    pub fn of(service: &Service) -> Self {
        let text = service.known.as_ref().and_then(|status| status.memory.as_deref());
        text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }

    /// Decides about a service.
    pub fn settle(
        &mut self,
        (service, plan): (&Service, &Plan),
        look: &Look,
        others: &InTheWay,
        windows: &Windows,
        now: Timestamp,
    ) -> Settled {
        let (now_s, replicas) = (now.as_second(), look.scale.replicas);
        let pods: Vec<&ServicePod> = look.pods.iter().filter(|pod| !pod.deleting).collect();
        let settings = settings_of(plan, others);
        // What somebody else sizes meanwhile will be another size when it is ours again.
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
                    (*name, self.estimate((method, current), (&service.namespace, name), &pods, windows, now))
                })
                .collect(),
            None => BTreeMap::new(),
        };
        let containers = names.iter().map(|name| {
            let samples = |kind| {
                let of = |pod: &&ServicePod| windows.of((&service.namespace, &pod.name, name), kind);
                pods.iter().flat_map(of).collect::<Vec<Point>>()
            };
            Container {
                name: (*name).to_owned(),
                size: self.size_of(name, &pods, ours(name)),
                cpu: samples(Kind::Cpu),
                memory: samples(Kind::Memory),
                estimate: estimates.get(name).copied().unwrap_or_default(),
                oom_kills: kills.get(name).copied().unwrap_or(0),
                unheard: unheard((&service.namespace, name), &pods, windows, now_s),
            }
        });
        let seen = Observation {
            replicas,
            ready: pods.iter().filter(|pod| pod.ready).count().try_into().unwrap_or(u32::MAX),
            containers: containers.collect(),
            signal: look.signal.as_ref().ok().copied().flatten(),
            success: look.success.as_ref().ok().copied().flatten(),
            frozen: others.replicas.clone(),
        };
        let decision = decide(&settings, &mut self.memory, &seen, now_s);
        self.history.tidy(now_s);
        let allowed = plan.behavior.allow(&self.history, now_s, replicas, decision.replicas);
        // What is set is what counts; `act` says when it was changed.
        self.memory.replicas = (replicas > 0).then_some(replicas);
        let sizes: BTreeMap<String, Size> =
            decision.sizes.iter().map(|(name, size)| (name.clone(), only(*size, ours(name)))).collect();
        let resizes = match plan.dry_run {
            true => Vec::new(),
            false => pods.iter().filter_map(|pod| resize(pod, &sizes)).collect(),
        };
        if !plan.dry_run && others.sizes.is_none() {
            self.sizes = sizes;
        }
        Settled { decision, allowed, resizes, pending: pending(&pods) }
    }

    /// What another estimator would give a container. It shrinks nothing before it has seen a day.
    fn estimate(
        &mut self,
        (method, current): (Method, Size),
        (namespace, name): (&str, &str),
        pods: &[&ServicePod],
        windows: &Windows,
        now: Timestamp,
    ) -> PerResource<Option<Amount>> {
        self.estimates.retain(|_, known| known.sizes.method() == method);
        if !self.estimates.contains_key(name) {
            let Ok(shapes) = recommend::Settings::default().shapes() else { return PerResource::default() };
            let fresh = Estimate { sizes: Sizes::new(method, &shapes), seen_s: i64::MIN };
            self.estimates.insert(name.to_owned(), fresh);
        }
        let Some(Estimate { sizes, seen_s }) = self.estimates.get_mut(name) else {
            return PerResource::default();
        };
        for pod in pods {
            let (key, number) = ((namespace, pod.name.as_str(), name), hash_of(&pod.uid));
            let new = |kind| windows.of(key, kind).filter(|point| point.time_s > *seen_s);
            let amount = |point: &Point| (point.time_s.saturating_mul(SECOND_NS), point.value as Amount);
            new(Kind::Cpu).map(|point| amount(&point)).for_each(|(at, used)| sizes.add_cpu(number, at, used));
            new(Kind::Memory)
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

    /// Kills since the last round, by container. Their times are those of nodes' clocks, which may be wrong: a kill of a container
    /// that was seen before is new when its time is another one.
    fn new_kills<'a>(&mut self, pods: &[&'a ServicePod], now: Timestamp) -> BTreeMap<&'a str, u32> {
        let now = UnixNanos::try_from(now.as_nanosecond()).unwrap_or(UnixNanos::MAX);
        let until = self.killed_until.replace(now);
        let before = std::mem::take(&mut self.killed);
        let mut kills = BTreeMap::new();
        for (pod, container) in pods.iter().flat_map(|pod| pod.containers.iter().map(move |it| (pod, it))) {
            let key = (pod.uid.clone(), container.name.clone());
            let known = before.get(&key).copied();
            let is_new = |at: UnixNanos| match known {
                Some(known) => known != Some(at),
                None => until.is_some_and(|until| at > until),
            };
            if container.oom_killed.is_some_and(is_new) {
                *kills.entry(container.name.as_str()).or_default() += 1;
            }
            self.killed.insert(key, container.oom_killed.or(known.flatten()));
        }
        kills
    }

    /// What the container has: what was decided last, as far as it is ours to decide, or what most of its pods request.
    fn size_of(&self, name: &str, pods: &[&ServicePod], ours: PerResource<bool>) -> Size {
        let decided = only(self.sizes.get(name).copied().unwrap_or_default(), ours);
        let containers =
            pods.iter().flat_map(|pod| &pod.containers).filter(|container| container.name == name);
        let requests: Vec<_> = containers.map(|container| container.requests).collect();
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

/// What is asked for, less what somebody else does.
fn settings_of(plan: &Plan, others: &InTheWay) -> Settings {
    let settings = plan.settings.clone();
    if others.sizes.is_none() {
        return settings;
    }
    let vertical = Vertical { cpu: false, memory: false, ..settings.vertical };
    Settings { vertical, containers: BTreeMap::new(), ..settings }
}

/// The part of a size that is ours to decide; the rest is 0.
fn only(size: Size, ours: PerResource<bool>) -> Size {
    Size {
        cpu_milli: if ours.cpu { size.cpu_milli } else { 0 },
        memory_bytes: if ours.memory { size.memory_bytes } else { 0 },
    }
}

/// Ready pods with a container of which no sample came lately.
fn unheard(
    (namespace, name): (&str, &str),
    pods: &[&ServicePod],
    windows: &Windows,
    now: i64,
) -> PerResource<u32> {
    let since = now.saturating_sub(Vertical::default().stale_s);
    let has_it = |pod: &ServicePod| pod.containers.iter().any(|container| container.name == name);
    let count = |kind| {
        let samples = |pod: &ServicePod| windows.of((namespace, &pod.name, name), kind);
        let is_heard = |pod: &ServicePod| samples(pod).any(|point| point.time_s >= since);
        let unheard = pods.iter().filter(|pod| pod.ready && has_it(pod) && !is_heard(pod)).count();
        unheard.try_into().unwrap_or(u32::MAX)
    };
    PerResource { cpu: count(Kind::Cpu), memory: count(Kind::Memory) }
}

/// What is to be said of pods whose kubelets have not done their last resize.
fn pending(pods: &[&ServicePod]) -> Option<String> {
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for reason in pods.iter().filter_map(|pod| pod.resize_pending.as_deref()) {
        *reasons.entry(reason).or_default() += 1;
    }
    let text = |(reason, count): (&str, usize)| match reason {
        "Infeasible" => {
            format!("{count} pods keep their size, which their nodes can never give (Infeasible)")
        }
        "Deferred" => format!("{count} pods wait for room that their nodes do not have now (Deferred)"),
        reason => format!("{count} pods have not been resized by their kubelets ({reason})"),
    };
    (!reasons.is_empty()).then(|| reasons.into_iter().map(text).collect::<Vec<_>>().join("; "))
}

/// What differs between what a pod requests and what it should; `None`: nothing. A pod that waits for a node is resized when it has
/// one, and one whose kubelet could not do the last resize yet only if it is to have less of something.
fn resize(pod: &ServicePod, sizes: &BTreeMap<String, Size>) -> Option<Resize> {
    pod.node.as_ref()?;
    let of = |(name, size): (&String, &Size)| {
        let container = pod.containers.iter().find(|container| container.name == *name)?;
        let (has, limits) = (container.requests, container.limits);
        let wanted = PerResource {
            cpu: Some(size.cpu_milli).filter(|it| *it > 0),
            memory: Some(size.memory_bytes).filter(|it| *it > 0),
        };
        // Without a request there is nothing to size: setting one would change the pod's quality of service. And nothing is restarted
        // for its size.
        let requests =
            has.zip(wanted).zip(container.restarts).map(|((has, wanted), restarts)| match restarts {
                true => has,
                false => has.and(wanted.or(has)),
            });
        if requests == has {
            return None;
        }
        let limits = limits
            .zip(has)
            .zip(requests)
            .map(|((limit, has), request)| change::proportional_limit(limit, has, request).or(limit));
        let growth = requests.zip(has).map(|(request, has): (Option<Amount>, Option<Amount>)| {
            request.unwrap_or(0).saturating_sub(has.unwrap_or(0))
        });
        Some(Resources { name: name.clone(), requests, limits, growth })
    };
    let containers: Vec<_> = sizes.iter().filter_map(of).collect();
    let less = |it: &Resources| it.growth.cpu < 0 || it.growth.memory < 0;
    if pod.resize_pending.is_some() && !containers.iter().any(less) {
        return None;
    }
    let (name, uid) = (pod.name.clone(), pod.uid.clone());
    (!containers.is_empty()).then_some(Resize { pod: name, uid, containers })
}

#[cfg(test)]
mod tests;
