//! What to do about one service, from what was seen of it. No I/O.

use std::collections::{BTreeMap, BTreeSet};

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
    /// By container, for another estimator than SHOWAR's.
    #[serde(skip)]
    estimates: BTreeMap<String, Estimate>,
    #[serde(skip)]
    pub refusals: Refusals,
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
    /// Those whose nodes have not done what was asked last, and are left alone.
    pub held: Held,
}

/// Pods that do not get their size.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Held {
    pub pods: usize,
    /// The first of them, and its reason.
    pub because: Option<String>,
}

impl Held {
    pub fn add(&mut self, pod: &str, why: &str) {
        self.pods += 1;
        self.because.get_or_insert_with(|| format!("{pod}: {why}"));
    }
}

/// What one pod should request from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Resize {
    pub pod: String,
    pub uid: std::sync::Arc<str>,
    pub containers: Vec<Resources>,
}

/// Requests and limits of a container; what is `None` stays unset.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
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
        let names: BTreeSet<&str> =
            pods.iter().flat_map(|pod| &pod.containers).map(|container| container.name.as_str()).collect();
        let kills = self.new_kills(&pods, now);
        let estimates: BTreeMap<&str, PerResource<Option<Amount>>> = match plan.estimator {
            Some(method) => names
                .iter()
                .map(|name| (*name, self.estimate(method, (&service.namespace, name), &pods, windows, now)))
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
                size: self.size_of(name, &pods, plan.dry_run),
                cpu: samples(Kind::Cpu),
                memory: samples(Kind::Memory),
                estimate: estimates.get(name).copied().unwrap_or_default(),
                oom_kills: kills.get(name).copied().unwrap_or(0),
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
        let decision = match &others.sizes {
            Some(_) => decide(&replicas_only(&plan.settings), &mut self.memory, &seen, now_s),
            None => decide(&plan.settings, &mut self.memory, &seen, now_s),
        };
        let allowed = plan.behavior.allow(&self.history, now_s, replicas, decision.replicas);
        // What is set is what counts; `act` says when it was changed.
        self.memory.replicas = (replicas > 0).then_some(replicas);
        if !plan.dry_run && others.sizes.is_none() {
            self.sizes = decision.sizes.iter().cloned().collect();
        }
        let (mut resizes, mut held) = (Vec::new(), Held::default());
        let ours = !plan.dry_run && others.sizes.is_none();
        for pod in pods.iter().filter(|_| ours) {
            match (resize(pod, &decision.sizes), &pod.resize_pending) {
                (Some(resize), _) => resizes.push(resize),
                (None, Some(reason)) => held.add(&pod.name, &pending(reason)),
                (None, None) => {}
            }
        }
        Settled { decision, allowed, resizes, held }
    }

    /// What another estimator would give a container. It shrinks nothing before it has seen a day.
    fn estimate(
        &mut self,
        method: Method,
        (namespace, name): (&str, &str),
        pods: &[&ServicePod],
        windows: &Windows,
        now: Timestamp,
    ) -> PerResource<Option<Amount>> {
        let current = self.size_of(name, pods, false);
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

    /// Kills since the last round, by container.
    fn new_kills<'a>(&mut self, pods: &[&'a ServicePod], now: Timestamp) -> BTreeMap<&'a str, u32> {
        let now = UnixNanos::try_from(now.as_nanosecond()).unwrap_or(UnixNanos::MAX);
        let until = self.killed_until.replace(now);
        let mut kills = BTreeMap::new();
        for container in pods.iter().flat_map(|pod| &pod.containers) {
            let is_new = |at: UnixNanos| until.is_some_and(|until| at > until) && at <= now;
            if container.oom_killed.is_some_and(is_new) {
                *kills.entry(container.name.as_str()).or_default() += 1;
            }
        }
        kills
    }

    /// What the container has: what was decided last, or what most of its pods request.
    fn size_of(&self, name: &str, pods: &[&ServicePod], dry_run: bool) -> Size {
        if let Some(decided) = self.sizes.get(name).filter(|_| !dry_run) {
            return *decided;
        }
        let containers =
            pods.iter().flat_map(|pod| &pod.containers).filter(|container| container.name == name);
        let requests: Vec<_> = containers.map(|container| container.requests).collect();
        let median = |of: fn(&PerResource<Option<Amount>>) -> Option<Amount>| {
            let mut amounts: Vec<Amount> = requests.iter().map(|it| of(it).unwrap_or(0)).collect();
            amounts.sort_unstable();
            amounts.get(amounts.len() / 2).copied().unwrap_or(0)
        };
        Size { cpu_milli: median(|it| it.cpu), memory_bytes: median(|it| it.memory) }
    }
}

/// Sizes are somebody else's.
fn replicas_only(settings: &Settings) -> Settings {
    let vertical = Vertical { cpu: false, memory: false, ..settings.vertical.clone() };
    Settings { vertical, containers: BTreeMap::new(), horizontal: settings.horizontal.clone() }
}

/// What a kubelet says of a resize that it has not done.
fn pending(reason: &str) -> String {
    match reason {
        "Infeasible" => "its node can never do the resize that was asked for (Infeasible)".to_owned(),
        _ => format!("its node cannot do the resize that was asked for yet ({reason})"),
    }
}

/// What differs between what a pod requests and what it should; `None`: nothing. A pod that waits for a node is resized when it has
/// one, and one whose kubelet could not do the last resize yet only if it is to have less of something.
fn resize(pod: &ServicePod, sizes: &[(String, Size)]) -> Option<Resize> {
    pod.node.as_ref()?;
    let of = |(name, size): &(String, Size)| {
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
        let growth = requests.zip(has).map(|(request, has)| request.unwrap_or(0) - has.unwrap_or(0));
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
mod tests {
    use super::*;
    use crate::cluster::scaling::ServiceContainer;
    use crate::recommend::time;

    fn pod(cpu: Option<Amount>, limit: Option<Amount>) -> ServicePod {
        ServicePod {
            uid: "u".into(),
            name: "web-0".into(),
            node: Some("n".into()),
            ready: true,
            deleting: false,
            resize_pending: None,
            containers: vec![ServiceContainer {
                name: "app".into(),
                requests: PerResource { cpu, memory: Some(1 << 30) },
                limits: PerResource { cpu: limit, memory: None },
                restarts: PerResource::default(),
                oom_killed: None,
            }],
        }
    }

    fn sizes(cpu_milli: i64) -> Vec<(String, Size)> {
        vec![("app".to_owned(), Size { cpu_milli, memory_bytes: 1 << 30 })]
    }

    #[test]
    fn a_pod_is_resized_with_its_limits_in_proportion() {
        let resize = resize(&pod(Some(200), Some(400)), &sizes(300)).unwrap();
        let app = &resize.containers[0];
        assert_eq!(app.requests, PerResource { cpu: Some(300), memory: Some(1 << 30) });
        assert_eq!(app.limits, PerResource { cpu: Some(600), memory: None });
        assert_eq!(app.growth, PerResource { cpu: 100, memory: 0 });
    }

    #[test]
    fn a_pod_that_has_its_size_or_waits_or_requests_nothing_is_left_alone() {
        assert_eq!(resize(&pod(Some(300), None), &sizes(300)), None);
        assert_eq!(resize(&pod(None, None), &sizes(300)), None);
        let waits = ServicePod { node: None, ..pod(Some(200), None) };
        assert_eq!(resize(&waits, &sizes(300)), None);
        let pending = ServicePod { resize_pending: Some("Deferred".into()), ..pod(Some(200), None) };
        assert_eq!(resize(&pending, &sizes(300)), None);
        assert!(resize(&pending, &sizes(150)).is_some());
    }

    #[test]
    fn a_container_is_never_restarted_for_its_size() {
        let mut pod = pod(Some(200), None);
        pod.containers[0].restarts.cpu = true;
        assert_eq!(resize(&pod, &sizes(300)), None);
        let more_memory = [("app".to_owned(), Size { cpu_milli: 300, memory_bytes: 2 << 30 })];
        let resize = resize(&pod, &more_memory).unwrap();
        assert_eq!(resize.containers[0].requests, PerResource { cpu: Some(200), memory: Some(2 << 30) });
    }

    #[test]
    fn a_kill_counts_once_and_not_when_it_was_before_us() {
        let at = |text: &str| -> Timestamp { text.parse().unwrap() };
        let mut killed = pod(Some(200), None);
        killed.containers[0].oom_killed = time::from_text("2026-11-22T10:00:30Z").ok();
        let mut remembered = Remembered::default();
        assert!(remembered.new_kills(&[&killed], at("2026-11-22T10:00:00Z")).is_empty());
        assert_eq!(remembered.new_kills(&[&killed], at("2026-11-22T10:01:00Z")).get("app"), Some(&1));
        assert!(remembered.new_kills(&[&killed], at("2026-11-22T10:02:00Z")).is_empty());
    }

    #[test]
    fn the_size_is_what_was_decided_or_what_most_pods_have() {
        let pods = [pod(Some(100), None), pod(Some(200), None), pod(Some(200), None)];
        let pods: Vec<_> = pods.iter().collect();
        let mut remembered = Remembered::default();
        assert_eq!(remembered.size_of("app", &pods, false).cpu_milli, 200);
        remembered.sizes.insert("app".into(), Size { cpu_milli: 700, memory_bytes: 1 });
        assert_eq!(remembered.size_of("app", &pods, false).cpu_milli, 700);
        assert_eq!(remembered.size_of("app", &pods, true).cpu_milli, 200);
    }
}
