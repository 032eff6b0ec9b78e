//! Watches, and the delivery of their events to the scheduler.

use std::collections::{BTreeSet, HashSet};
use std::fmt::Debug;
use std::sync::Arc;

use kube::{Client, Resource};
use serde::de::DeserializeOwned;

use berth_config::Config;
use berth_controllers::tasks::Tasks;
use berth_kube_io::{
    ClusterSink, LIVE_PODS, LeanAllocation, LeanAllocationPolicy, LeanCoschedulingPodGroup, LeanCsiDriver,
    LeanCsiNode, LeanCsiStorageCapacity, LeanDeviceClass, LeanNamespace, LeanNode, LeanObject,
    LeanPersistentVolume, LeanPersistentVolumeClaim, LeanPod, LeanPodDisruptionBudget, LeanPodGroup,
    LeanQuota, LeanReplicaSet, LeanReplicationController, LeanResourceClaim, LeanResourceSlice, LeanService,
    LeanStatefulSet, LeanStorageClass, LeanVolumeAttachment, NodeIndex, ObjectIndex, ObjectSink,
    OptionalKind, PodIndex, SizingResource, WatchChange, WatchStore, watch as watch_objects, watch_if_served,
};
use berth_model::{Node, Pod};
use berth_rightsizing::apply::index::SizingKind;
use berth_scheduler::engine::Engine;
use berth_scheduler::objects::{ClusterObject, ObjectKind, ObjectName};
use berth_server::metrics::MetricSources;
use berth_telemetry::Health;

/// Passes watch events to the scheduler.
struct ToScheduler<'a>(&'a Engine, &'a Health);

impl ToScheduler<'_> {
    fn synced(&self, synced: bool) {
        if synced {
            self.1.set_synced();
        }
    }
}

impl ClusterSink for ToScheduler<'_> {
    fn apply_pod(&mut self, pod: Pod) {
        self.0.apply_pod(pod);
    }

    fn delete_pod(&mut self, uid: &Arc<str>) {
        self.0.delete_pod(uid);
    }

    fn retain_pods(&mut self, uids: &HashSet<Arc<str>>) {
        let synced = self.0.retain_pods(uids);
        tracing::info!(pods = uids.len(), "pods are listed");
        self.synced(synced);
    }

    fn apply_node(&mut self, node: Node) {
        for problem in &node.problems {
            tracing::warn!(node = %node.name, problem, "a field of a node is invalid and ignored");
        }
        self.0.apply_node(node);
    }

    fn delete_node(&mut self, name: &str) {
        self.0.delete_node(name);
    }

    fn retain_nodes(&mut self, names: &HashSet<Arc<str>>) {
        let synced = self.0.retain_nodes(names);
        tracing::info!(nodes = names.len(), "nodes are listed");
        self.synced(synced);
    }
}

impl ObjectSink for ToScheduler<'_> {
    fn apply_object(&mut self, object: ClusterObject) {
        self.0.apply_object(object);
    }

    fn delete_object(&mut self, kind: ObjectKind, object: &ObjectName) {
        self.0.delete_object(kind, object);
    }

    fn retain_objects(&mut self, kind: ObjectKind, listed: &HashSet<ObjectName>) {
        let synced = self.0.retain_objects(kind, listed);
        tracing::info!(?kind, objects = listed.len(), "objects are listed");
        self.synced(synced);
    }
}

/// Watches one kind of other objects, and keeps them in the store, too.
fn watch_shared<K>(
    tasks: &mut Tasks,
    (engine, watches): (&Engine, &WatchStore),
    client: &Client,
    sources: &MetricSources,
    health: &Health,
) where
    K: LeanObject + SizingResource<DynamicType: Default> + Sync,
{
    let mut follower = watches.follower::<K>();
    watch_kind_also(tasks, engine, client, sources, health, move |change| {
        if let Some(follower) = &mut follower {
            follower(change);
        }
    });
}

/// Watches one kind of other objects.
fn watch_kind<K>(
    tasks: &mut Tasks,
    engine: &Engine,
    client: &Client,
    sources: &MetricSources,
    health: &Health,
) where
    K: LeanObject + Resource<DynamicType: Default> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    watch_kind_also::<K>(tasks, engine, client, sources, health, |_| {});
}

/// The same; `also` receives each change first.
fn watch_kind_also<K>(
    tasks: &mut Tasks,
    engine: &Engine,
    client: &Client,
    sources: &MetricSources,
    health: &Health,
    mut also: impl FnMut(&WatchChange<K>) + Send + 'static,
) where
    K: LeanObject + Resource<DynamicType: Default> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let counters = sources.object_watches.clone();
    let (to, client, healthy) = (engine.clone(), client.clone(), health.clone());
    tasks.spawn("watch of other objects", async move {
        let mut index = ObjectIndex::default();
        let sink = |change: WatchChange<K>| {
            also(&change);
            index.take(change, &mut ToScheduler(&to, &healthy));
        };
        watch_objects(client, None, &counters, sink).await;
    });
}

/// Watches one kind that may be missing in the cluster. `chosen` receives the version that is read.
fn watch_optional<K>(
    tasks: &mut Tasks,
    engine: &Engine,
    client: &Client,
    sources: &MetricSources,
    health: &Health,
    chosen: impl Fn(K::DynamicType) + Send + Sync + 'static,
) where
    K: OptionalKind + LeanObject + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let counters = match K::KIND {
        // A new leader looks at how far this watch has come.
        ObjectKind::ResourceClaim => &sources.claim_watch,
        _ => &sources.object_watches,
    };
    let (to, client, counters, healthy) = (engine.clone(), client.clone(), counters.clone(), health.clone());
    tasks.spawn("watch of other objects", async move {
        let mut index = ObjectIndex::default();
        let sink = |change: WatchChange<K>| index.take(change, &mut ToScheduler(&to, &healthy));
        watch_if_served(client, &counters, chosen, sink).await;
    });
}

/// Watches what the scheduler reads and what sizes depend on, each kind once.
pub(super) fn watch_cluster(
    tasks: &mut Tasks,
    (engine, watches): (&Engine, &WatchStore),
    client: &Client,
    sources: &MetricSources,
    health: &Health,
    config: &Config,
) {
    watch_kind::<LeanNamespace>(tasks, engine, client, sources, health);
    watch_kind::<LeanPersistentVolume>(tasks, engine, client, sources, health);
    watch_kind::<LeanPersistentVolumeClaim>(tasks, engine, client, sources, health);
    watch_kind::<LeanStorageClass>(tasks, engine, client, sources, health);
    watch_kind::<LeanCsiNode>(tasks, engine, client, sources, health);
    watch_kind::<LeanCsiDriver>(tasks, engine, client, sources, health);
    watch_kind::<LeanCsiStorageCapacity>(tasks, engine, client, sources, health);
    watch_kind::<LeanVolumeAttachment>(tasks, engine, client, sources, health);
    watch_optional::<LeanResourceSlice>(tasks, engine, client, sources, health, |()| {});
    watch_optional::<LeanDeviceClass>(tasks, engine, client, sources, health, |()| {});
    watch_optional::<LeanResourceClaim>(tasks, engine, client, sources, health, |()| {});
    let statuses = sources.allocations.clone();
    let of_version = move |version| statuses.use_version(version);
    watch_optional::<LeanAllocation>(tasks, engine, client, sources, health, |()| {});
    watch_optional::<LeanAllocationPolicy>(tasks, engine, client, sources, health, |()| {});
    watch_optional::<LeanQuota>(tasks, engine, client, sources, health, |()| {});
    watch_optional::<LeanPodGroup>(tasks, engine, client, sources, health, of_version);
    watch_optional::<LeanCoschedulingPodGroup>(tasks, engine, client, sources, health, |()| {});
    watch_kind::<LeanPodDisruptionBudget>(tasks, engine, client, sources, health);
    let mut shared = BTreeSet::new();
    if config.spreads_by_default() {
        watch_kind::<LeanService>(tasks, engine, client, sources, health);
        watch_shared::<LeanReplicationController>(tasks, (engine, watches), client, sources, health);
        watch_shared::<LeanReplicaSet>(tasks, (engine, watches), client, sources, health);
        watch_shared::<LeanStatefulSet>(tasks, (engine, watches), client, sources, health);
        shared.extend([SizingKind::ReplicationController, SizingKind::ReplicaSet, SizingKind::StatefulSet]);
    }
    if config.scaling.enabled && config.scaling.hints {
        // See `hints.rs`.
        shared.insert(SizingKind::ServiceScaler);
    }
    let (store, client_of, counters) = (watches.clone(), client.clone(), sources.object_watches.clone());
    tasks.spawn("watches of sizing", async move {
        store.follow(client_of, &counters, &shared).await;
        // Nothing needs to be watched.
        std::future::pending::<()>().await;
    });
    let (to, client_of, counters, healthy) =
        (engine.clone(), client.clone(), sources.node_watch.clone(), health.clone());
    tasks.spawn("watch of nodes", async move {
        let mut index = NodeIndex::default();
        let sink = |change: WatchChange<LeanNode>| index.take(change, &mut ToScheduler(&to, &healthy));
        watch_objects(client_of, None, &counters, sink).await;
    });
    let live = watches.pods.clone();
    let (to, client_of, counters, healthy) =
        (engine.clone(), client.clone(), sources.pod_watch.clone(), health.clone());
    tasks.spawn("watch of pods", async move {
        let mut index = PodIndex::new(Some(live));
        let sink = |change: WatchChange<LeanPod>| index.take(change, &mut ToScheduler(&to, &healthy));
        watch_objects(client_of, Some(LIVE_PODS), &counters, sink).await;
    });
}
