//! Samples of current usage, and OOM kills.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Recommender;
use super::quality::Judge;
use super::world::World;
use berth_kube_io::vpa::ApiError;
use berth_prometheus::QueriedNamespaces;
use berth_rightsizing::recommend::feed::{self, feed};
use berth_rightsizing::recommend::{Refused, UnixNanos};
use berth_rightsizing::usage::UsageKind;

/// Maximum age of OOM kills that happened before the first look at a pod, in nanoseconds: berth may not have
/// been running. A kill that an earlier process saw is in its checkpoint, and counts once.
pub(super) const SEEN_LATE_NS: i64 = 900 * 1_000_000_000;

/// A pod of the last round.
pub(super) struct SeenPod {
    namespace: Arc<str>,
    /// Time of the last OOM kill of each of its containers.
    kills: BTreeMap<String, UnixNanos>,
}

/// Pods by namespace and name.
type ByName<'a> = BTreeMap<(&'a str, &'a str), &'a Arc<str>>;

impl Recommender {
    /// Updates the store with running pods and OOM kills.
    pub(super) fn follow_pods(&mut self, world: &World) {
        let now = self.context.clock.now_ns();
        let known: BTreeSet<_> = self.loaded.values().cloned().collect();
        let mut seen = BTreeMap::new();
        let judge = Judge::new(world, &self.recommended, self.context.metrics.clone());
        for (workload, pods) in world.pods.values().flatten().filter(|(workload, _)| known.contains(workload))
        {
            for pod in pods.iter().map(|live| &live.pod) {
                self.store.pod_runs(&pod.uid, workload);
                let before = self.pods.get(&pod.uid);
                let mut kills = BTreeMap::new();
                for container in &pod.containers {
                    let last = before.map(|before| before.kills.get(&container.name).copied());
                    let Some(time) = container.oom_killed else { continue };
                    let is_new = match last {
                        Some(last) => last.is_none_or(|last| time > last),
                        None => time >= now.saturating_sub(SEEN_LATE_NS),
                    };
                    kills.insert(container.name.clone(), time);
                    if is_new {
                        let requested = container.requests().memory;
                        let kill = self.store.record_oom(&pod.uid, &container.name, requested, time, now);
                        self.context.metrics.oom(kill.is_ok());
                        if let Ok(needed) = kill {
                            judge.kill(workload, &container.name, needed);
                        }
                    }
                }
                seen.insert(pod.uid.clone(), SeenPod { namespace: workload.namespace.clone(), kills });
            }
        }
        // Pods of namespaces that could not be read are assumed to exist.
        let namespaces: BTreeSet<&Arc<str>> = known.iter().map(|workload| &workload.namespace).collect();
        let unread =
            |pod: &SeenPod| namespaces.contains(&pod.namespace) && !world.pods.contains_key(&pod.namespace);
        let pods = std::mem::take(&mut self.pods);
        seen.extend(pods.into_iter().filter(|(_, pod)| unread(pod)));
        self.store.retain_pods(|uid| seen.contains_key(uid));
        self.pods = seen;
    }

    pub(super) async fn take_samples(&mut self, world: &World) {
        let by_name: ByName = world
            .pods
            .values()
            .flatten()
            .flat_map(|(of, pods)| pods.iter().map(|live| ((&*of.namespace, &*live.pod.name), &live.pod.uid)))
            .collect();
        let namespaces: Vec<String> = world
            .pods
            .iter()
            .filter(|(_, pods)| !pods.is_empty())
            .map(|(name, _)| name.to_string())
            .collect();
        if namespaces.is_empty() {
            return;
        }
        let taken = match self.context.source.is_some() {
            true => self.read_prometheus(world, &namespaces, &by_name).await,
            false => self.read_metrics_api(world, &namespaces, &by_name).await,
        };
        self.complaints.record("samples", "the usage of containers", taken);
    }

    async fn read_prometheus(
        &mut self,
        world: &World,
        namespaces: &[String],
        pods: &ByName<'_>,
    ) -> Result<(), String> {
        let Some(source) = self.context.source.clone() else { return Ok(()) };
        let (store, metrics, now) =
            (&mut self.store, self.context.metrics.clone(), self.context.clock.now_ns());
        let judge = Judge::new(world, &self.recommended, metrics.clone());
        let read =
            source.latest(QueriedNamespaces::These(namespaces), self.context.clock.now(), |kind, series| {
                let Some(uid) = pods.get(&(series.namespace, series.pod)) else { return };
                let workload = store.workload_of(uid).cloned();
                let container: (&str, &str) = (uid, series.container);
                feed(store, kind, container, series.samples, now, |sample, taken| {
                    metrics.sample(taken);
                    if let (Ok(()), Some(amount)) = (taken, feed::amount(kind, sample)) {
                        judge.sample(workload.as_ref(), series.container, kind, amount);
                    }
                });
            });
        read.await.map(drop).map_err(|error| berth_model::with_causes(&error))
    }

    async fn read_metrics_api(
        &mut self,
        world: &World,
        namespaces: &[String],
        pods: &ByName<'_>,
    ) -> Result<(), String> {
        let judge = Judge::new(world, &self.recommended, self.context.metrics.clone());
        let mut failed = None;
        for namespace in self.lists(namespaces.iter().map(String::as_str)) {
            let answer = self.context.api.pod_metrics(namespace).await;
            self.context.metrics.metric_server(answer.is_ok());
            let usages = match answer {
                Ok(usages) => usages,
                Err(ApiError::NotFound(error)) => return Err(error),
                Err(error) => {
                    failed = Some(error.to_string());
                    continue;
                }
            };
            let now = self.context.clock.now_ns();
            for usage in usages {
                let Some(uid) = pods.get(&(usage.namespace.as_str(), usage.name.as_str())) else { continue };
                for container in &usage.containers {
                    let (name, time) = (&container.name, usage.time);
                    if let Some(millicores) = container.usage.cpu {
                        let taken = self.store.add_cpu(uid, name, millicores, time, now);
                        self.context.metrics.sample(taken);
                        if taken.is_ok() {
                            judge.sample(self.store.workload_of(uid), name, UsageKind::Cpu, millicores);
                        }
                        // The memory sample of the same time has been counted with it.
                        if taken == Err(Refused::Stale) {
                            continue;
                        }
                    }
                    if let Some(bytes) = container.usage.memory {
                        let taken = self.store.add_memory(uid, name, bytes, time, now);
                        self.context.metrics.sample(taken);
                        if taken.is_ok() {
                            judge.sample(self.store.workload_of(uid), name, UsageKind::Memory, bytes);
                        }
                    }
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }
}
