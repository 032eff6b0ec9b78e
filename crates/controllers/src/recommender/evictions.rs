//! Containers whose pod was evicted because of memory pressure, which counts as an OOM kill, as upstream.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Recommender;
use super::quality::Judge;
use super::samples::SEEN_LATE_NS;
use super::world::World;
use berth_kube_io::vpa::{ApiError, PressureEviction, TopOwner};
use berth_rightsizing::recommend::assign::by_pod_name;
use berth_rightsizing::recommend::saved;
use berth_rightsizing::recommend::store::Workload;
use berth_rightsizing::recommend::time::NEVER;

/// Maximum number of owner look-ups of unknown pods per round; the rest wait for the next round.
const LOOKED_UP_MAX: usize = 50;

/// Events that need not be processed again, by uid, for each namespace. At most as many as the API server
/// has.
pub(super) type Heard = BTreeMap<Arc<str>, BTreeSet<String>>;

/// Owner of an evicted pod.
enum Whose {
    Ours(Workload),
    Nobodys,
    /// Not looked up yet.
    Later,
}

impl Recommender {
    /// Counts evictions. To be called before ended pods are forgotten: an evicted pod has ended.
    pub(super) async fn read_evictions(&mut self, world: &World) {
        let namespaces: BTreeSet<Arc<str>> = self.loaded.values().map(|of| of.namespace.clone()).collect();
        // An eviction of a workload whose past is not loaded yet is counted after that: Events live for an hour.
        let namespaces: BTreeSet<Arc<str>> =
            namespaces.into_iter().filter(|namespace| self.knows_past(world, namespace)).collect();
        let mut heard: Heard = Heard::new();
        let (mut look_ups, mut result) = (LOOKED_UP_MAX, Ok(()));
        for listed in self.lists(namespaces.iter().map(|name| &**name)) {
            let here = namespaces.iter().filter(|name| listed.is_none_or(|listed| *listed == ***name));
            match self.context.api.evictions(listed).await {
                Ok(mut evictions) => {
                    self.context.metrics.evictions_left(evictions.beyond);
                    for namespace in here {
                        let before = self.heard.remove(namespace).unwrap_or_default();
                        let of_namespace = evictions.by_namespace.remove(namespace).unwrap_or_default();
                        let now_heard = self
                            .count_evictions(world, namespace, of_namespace, &before, &mut look_ups)
                            .await;
                        heard.insert(namespace.clone(), now_heard);
                    }
                }
                Err(error) => {
                    for namespace in here {
                        heard.insert(namespace.clone(), self.heard.remove(namespace).unwrap_or_default());
                    }
                    let forbidden = matches!(error, ApiError::Forbidden(_));
                    result = Err(error.to_string());
                    if forbidden {
                        break;
                    }
                }
            }
        }
        self.heard = heard;
        self.complaints.record("events", "the evictions of pods", result);
    }

    fn knows_past(&self, world: &World, namespace: &Arc<str>) -> bool {
        let of_here = world.targets.iter().filter(|target| target.vpa.namespace == *namespace);
        of_here
            .filter_map(|target| Some((&target.vpa.uid, target.controls()?)))
            .all(|(uid, workload)| self.loaded.get(uid) == Some(workload))
    }

    async fn count_evictions(
        &mut self,
        world: &World,
        namespace: &Arc<str>,
        evictions: Vec<PressureEviction>,
        before: &BTreeSet<String>,
        look_ups: &mut usize,
    ) -> BTreeSet<String> {
        let mut heard = BTreeSet::new();
        for eviction in evictions {
            if !before.contains(&eviction.uid) {
                match self.attribute(namespace, &eviction, look_ups).await {
                    Whose::Ours(workload) => self.count_eviction(world, &workload, &eviction),
                    Whose::Nobodys => {}
                    Whose::Later => continue,
                }
            }
            heard.insert(eviction.uid);
        }
        heard
    }

    /// Returns the workload of an evicted pod. A pod that ran in the last round is known. For other pods the
    /// owner is read; if the pod is deleted, the name of the pod decides.
    async fn attribute(
        &mut self,
        namespace: &Arc<str>,
        eviction: &PressureEviction,
        look_ups: &mut usize,
    ) -> Whose {
        let too_old = eviction.time < self.context.clock.now_ns().saturating_sub(SEEN_LATE_NS);
        let known: BTreeSet<&Workload> =
            self.loaded.values().filter(|workload| workload.namespace == *namespace).collect();
        if let Some(workload) = self.store.workload_of(&eviction.pod_uid) {
            return if known.contains(workload) { Whose::Ours(workload.clone()) } else { Whose::Nobodys };
        }
        if too_old {
            return Whose::Nobodys;
        }
        let by_name = by_pod_name(&eviction.pod, known.iter().copied()).cloned();
        if *look_ups == 0 {
            return Whose::Later;
        }
        *look_ups -= 1;
        let owner = self.context.api.controller_of(namespace, &eviction.pod, &eviction.pod_uid).await;
        let workload = match owner {
            Err(_) => return Whose::Later,
            Ok(None) => by_name,
            Ok(Some(owner)) => match self.owners.top(namespace, &owner).await {
                Err(_) => return Whose::Later,
                Ok(TopOwner::Top(top)) => Some(top.workload(namespace)),
                Ok(_) => by_name,
            },
        };
        let is_known = |workload: &Workload| self.loaded.values().any(|known| known == workload);
        workload.filter(is_known).map_or(Whose::Nobodys, Whose::Ours)
    }

    /// Evictions counted by an earlier process are in the checkpoint that it wrote afterwards.
    fn count_eviction(&mut self, world: &World, workload: &Workload, eviction: &PressureEviction) {
        let now = self.context.clock.now_ns();
        if eviction.time < now.saturating_sub(SEEN_LATE_NS) {
            return;
        }
        let vpa = world.targets.iter().find(|target| target.controls() == Some(workload));
        let running = world.requests(workload);
        for (container, bytes) in &eviction.used {
            let checkpoint =
                vpa.map(|vpa| (workload.namespace.to_string(), saved::name(&vpa.vpa.name, container)));
            let loaded = checkpoint.and_then(|key| self.kept.get(&key)).map_or(NEVER, |kept| kept.loaded_at);
            let exists =
                running.contains_key(container) || self.store.aggregate(workload, container).is_some();
            if eviction.time <= loaded || !exists {
                continue;
            }
            if self.store.workload_of(&eviction.pod_uid).is_none() {
                self.store.pod_runs(&eviction.pod_uid, workload);
            }
            let kill = self.store.record_oom(&eviction.pod_uid, container, *bytes, eviction.time, now);
            self.context.metrics.oom(kill.is_ok());
            if let Ok(needed) = kill {
                let judge = Judge::new(world, &self.recommended, self.context.metrics.clone());
                judge.kill(workload, container, needed);
            }
        }
    }
}
