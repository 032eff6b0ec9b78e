//! Watch events of all kinds that berth watches, one on each line; a line `[` or `]` begins or ends a list of everything. Objects are
//! decoded one by one and given to a scheduler, which schedules and stays consistent.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use berth_kube_io::scaling::{LeanServiceScaler, ScaledService, ScalingPlan};
use berth_kube_io::vpa::{read_vpa, status_patch};
use berth_kube_io::{
    ClusterSink, Guarded, LeanAllocation, LeanAllocationPolicy, LeanCoschedulingPodGroup, LeanCsiDriver,
    LeanCsiNode, LeanCsiStorageCapacity, LeanNamespace, LeanNode, LeanPersistentVolume,
    LeanPersistentVolumeClaim, LeanPod, LeanPodDisruptionBudget, LeanPodGroup, LeanQuota, LeanReplicaSet,
    LeanReplicationController, LeanService, LeanStatefulSet, LeanStorageClass, LeanVolumeAttachment,
    NodeIndex, ObjectId, ObjectIndex, ObjectSink, PodIndex, WatchChange,
};
use berth_model::{Identity, Node, Pod, PodAffinity};
use berth_rightsizing::scaling::Bounds;
use berth_scheduler::agent::{Agent, AgentConfig, CacheLimits};
use berth_scheduler::dispatch::Estimator;
use berth_scheduler::hints::{Hints, TERMS_MAX};
use berth_scheduler::objects::{ClusterObject, ObjectKind, ObjectName, system_defaults};
use berth_scheduler::placement::BindOutcome;
use berth_scheduler::profile::{Profile, Profiles};
use berth_scheduler::scheduler::{Action, Scheduler, SchedulerConfig, Settled};
use kube::api::WatchEvent;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Longer inputs are slow, and find nothing more.
const EVENTS_MAX: usize = 32;
/// Between two events.
const PAUSE: Duration = Duration::from_secs(3);
/// Most steps of the agent after an event; preemption may go on for longer.
const STEPS_MAX: usize = 64;

pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut cluster = Cluster::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()).take(EVENTS_MAX) {
        match line.trim() {
            "[" => cluster.list(true),
            "]" => cluster.list(false),
            event => cluster.event(event),
        }
        cluster.live();
    }
}

/// A watch of each kind, and the scheduler with one agent.
struct Cluster {
    pods: PodIndex,
    nodes: NodeIndex,
    objects: Objects,
    to: Receiver,
}

struct Receiver {
    scheduler: Scheduler,
    agent: Agent,
    now: Duration,
}

/// Declares a watch for each kind besides pods and nodes.
macro_rules! objects {
    ($($field:ident: $lean:ty = $version:literal $kind:literal,)+) => {
        #[derive(Default)]
        struct Objects {
            $($field: ObjectIndex,)+
        }

        impl Objects {
            fn event(&mut self, version: &str, kind: &str, event: &str, to: &mut Receiver) {
                match (version, kind) {
                    $(($version, $kind) => {
                        if let Some(change) = change::<$lean>(event) {
                            self.$field.take(change, to);
                        }
                    })+
                    _ => {}
                }
            }

            fn list(&mut self, begins: bool, to: &mut Receiver) {
                $(self.$field.take::<$lean>(list_change(begins), to);)+
            }
        }
    };
}

objects! {
    namespace: LeanNamespace = "v1" "Namespace",
    service: LeanService = "v1" "Service",
    replication_controller: LeanReplicationController = "v1" "ReplicationController",
    persistent_volume: LeanPersistentVolume = "v1" "PersistentVolume",
    persistent_volume_claim: LeanPersistentVolumeClaim = "v1" "PersistentVolumeClaim",
    storage_class: LeanStorageClass = "storage.k8s.io/v1" "StorageClass",
    csi_node: LeanCsiNode = "storage.k8s.io/v1" "CSINode",
    csi_driver: LeanCsiDriver = "storage.k8s.io/v1" "CSIDriver",
    csi_storage_capacity: LeanCsiStorageCapacity = "storage.k8s.io/v1" "CSIStorageCapacity",
    volume_attachment: LeanVolumeAttachment = "storage.k8s.io/v1" "VolumeAttachment",
    replica_set: LeanReplicaSet = "apps/v1" "ReplicaSet",
    stateful_set: LeanStatefulSet = "apps/v1" "StatefulSet",
    pod_disruption_budget: LeanPodDisruptionBudget = "policy/v1" "PodDisruptionBudget",
    allocation: LeanAllocation = "berth.dev/v1alpha1" "Allocation",
    allocation_policy: LeanAllocationPolicy = "berth.dev/v1alpha1" "AllocationPolicy",
    quota: LeanQuota = "berth.dev/v1alpha1" "Quota",
    pod_group: LeanPodGroup = "scheduling.k8s.io/v1alpha2" "PodGroup",
    coscheduling_pod_group: LeanCoschedulingPodGroup = "scheduling.x-k8s.io/v1alpha1" "PodGroup",
}

fn list_change<K>(begins: bool) -> WatchChange<K> {
    if begins { WatchChange::ListBegins } else { WatchChange::ListEnds }
}

/// Decodes an event as a watch does. An invalid object is reported with a reason.
fn change<K: DeserializeOwned + kube::Resource>(event: &str) -> Option<WatchChange<K>> {
    let change = match serde_json::from_str::<WatchEvent<Guarded<K>>>(event).ok()? {
        WatchEvent::Added(object) | WatchEvent::Modified(object) => WatchChange::Apply(object.into_result()),
        WatchEvent::Deleted(object) => {
            let meta = kube::Resource::meta(&object);
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            WatchChange::Delete(ObjectId {
                namespace: text(&meta.namespace),
                name: text(&meta.name),
                uid: text(&meta.uid),
            })
        }
        WatchEvent::Bookmark(_) | WatchEvent::Error(_) => return None,
    };
    if let WatchChange::Apply(Err(bad)) = &change {
        assert!(!bad.error.is_empty(), "{event}");
    }
    Some(change)
}

impl Cluster {
    fn new() -> Self {
        let spread = Profile { default_spread: system_defaults(), ..Profile::default() };
        let config = SchedulerConfig {
            knows_others: true,
            reserve_after: 3 * PAUSE,
            preemption: true,
            advice: true,
            profiles: Profiles::from(spread).into(),
            ..SchedulerConfig::default()
        };
        let mut scheduler = Scheduler::new(config, Estimator::default());
        scheduler.retain_nodes(&HashSet::new());
        scheduler.retain_pods(&HashSet::new());
        scheduler.lead(1);
        let agent = Agent::new(AgentConfig { cache: CacheLimits::unlimited(), seed: 1 });
        Cluster {
            pods: PodIndex::default(),
            nodes: NodeIndex::default(),
            objects: Objects::default(),
            to: Receiver { scheduler, agent, now: Duration::ZERO },
        }
    }

    fn list(&mut self, begins: bool) {
        self.objects.list(begins, &mut self.to);
        self.nodes.take(list_change(begins), &mut self.to);
        self.pods.take(list_change(begins), &mut self.to);
    }

    fn event(&mut self, event: &str) {
        let Ok(line) = serde_json::from_str::<Value>(event) else { return };
        let text = |field: &str| line["object"][field].as_str().unwrap_or_default();
        match (text("apiVersion"), text("kind")) {
            ("v1", "Pod") => {
                if let Some(change) = change::<LeanPod>(event) {
                    self.pods.take(change, &mut self.to);
                }
            }
            ("v1", "Node") => {
                if let Some(change) = change::<LeanNode>(event) {
                    self.nodes.take(change, &mut self.to);
                }
            }
            ("autoscaling.k8s.io/v1", "VerticalPodAutoscaler") => vpa(&line["object"]),
            ("berth.dev/v1alpha1", "ServiceScaler") => service_scaler(&line["object"]),
            (version, kind) => self.objects.event(version, kind, event, &mut self.to),
        }
    }

    fn live(&mut self) {
        self.to.now += PAUSE;
        self.to.scheduler.tick(self.to.now);
        self.to.work();
        assert_eq!(self.to.scheduler.check(), []);
        assert_eq!(self.to.scheduler.ledger().consistency_check(), []);
    }
}

impl Receiver {
    /// Lets the agent carry out its tasks; every bind succeeds, every other request to the API server takes for ever.
    fn work(&mut self) {
        for _ in 0..STEPS_MAX {
            for action in self.scheduler.take_actions() {
                if let Action::Bind(binding) = action {
                    self.scheduler.bind_finished(&binding, BindOutcome::Bound, self.now);
                }
            }
            let Some(task) = self.scheduler.next_task(0, self.now) else { return };
            loop {
                self.agent.catch_up(self.scheduler.inventory());
                let answer = task.carry_out(&mut self.agent, self.now, |_| {});
                let seen = self.agent.revision();
                let settled = self.scheduler.settle(0, &mut self.agent, &task, answer, seen, self.now);
                if settled == Settled::Done {
                    break;
                }
            }
        }
    }
}

impl ClusterSink for Receiver {
    fn apply_pod(&mut self, pod: Pod) {
        self.scheduler.apply_pod(pod, self.now);
    }

    fn delete_pod(&mut self, uid: &Arc<str>) {
        self.scheduler.delete_pod(uid);
    }

    fn retain_pods(&mut self, uids: &HashSet<Arc<str>>) {
        self.scheduler.retain_pods(uids);
    }

    fn apply_node(&mut self, node: Node) {
        assert!(node.problems.iter().all(|problem| !problem.to_string().is_empty()));
        self.scheduler.apply_node(node);
    }

    fn delete_node(&mut self, name: &str) {
        self.scheduler.delete_node(name);
    }

    fn retain_nodes(&mut self, names: &HashSet<Arc<str>>) {
        self.scheduler.retain_nodes(names);
    }
}

impl ObjectSink for Receiver {
    fn apply_object(&mut self, object: ClusterObject) {
        self.scheduler.apply_object(object);
    }

    fn delete_object(&mut self, kind: ObjectKind, object: &ObjectName) {
        self.scheduler.delete_object(kind, object);
    }

    fn retain_objects(&mut self, kind: ObjectKind, listed: &HashSet<ObjectName>) {
        self.scheduler.retain_objects(kind, listed);
    }
}

/// A status that is read is the same after it is written and read again.
fn vpa(object: &Value) {
    let vpa = match read_vpa(&object.to_string()) {
        Ok(vpa) => vpa,
        Err(why) => return assert!(!why.is_empty()),
    };
    let mut written = status_patch(&vpa.uid, &vpa.status);
    written["metadata"]["namespace"] = vpa.namespace.as_ref().into();
    written["metadata"]["name"] = vpa.name.as_ref().into();
    let again = read_vpa(&written.to_string()).expect("it was written by berth");
    assert_eq!((again.uid, again.status), (vpa.uid, vpa.status));
}

/// A plan is within its limits or refused with a reason; hints and sizes can be used.
fn service_scaler(object: &Value) {
    let json = object.to_string();
    match ScaledService::read(&json).map(|service| service.plan) {
        Ok(Ok(plan)) => plan_is_sound(&plan),
        Ok(Err(why)) | Err(why) => assert!(!why.is_empty()),
    }
    let Ok(lean) = serde_json::from_str::<LeanServiceScaler>(&json) else { return };
    let hints = lean.hints();
    let namespaces: BTreeSet<_> = hints.iter().map(|hint| hint.of.namespace.clone()).collect();
    let (accepted, refused) = Hints::new(hints.iter().cloned());
    assert_eq!(accepted.len() + refused, hints.len());
    for namespace in namespaces {
        let pod = Identity { namespace, ..Identity::default() };
        let terms = accepted.terms(&pod, &PodAffinity::default());
        assert!(terms.len() <= TERMS_MAX && terms.iter().all(|term| (1..=100).contains(&term.weight.abs())));
    }
    if let Some(sizes) = lean.sizes() {
        vpa(&status_of(&sizes));
    }
}

/// Returns the sizes as a VPA.
fn status_of(sizes: &berth_rightsizing::recommend::Vpa) -> Value {
    let mut written = status_patch("u", &sizes.status);
    written["metadata"] = serde_json::json!({"namespace": "shop", "name": &*sizes.name, "uid": "u"});
    written
}

fn plan_is_sound(plan: &ScalingPlan) {
    let settings = &plan.settings;
    for vertical in settings.containers.values().chain([&settings.vertical]) {
        assert!(vertical.every_s > 0 && vertical.window_s > 0 && vertical.hold_s >= 0, "{vertical:?}");
        // A minimum that is not given may be above a maximum that is.
        for Bounds { min, max } in [vertical.cpu_bounds, vertical.memory_bounds] {
            assert!(min >= 0 && max >= 0, "{vertical:?}");
        }
    }
    if let Some(horizontal) = &settings.horizontal {
        assert!(horizontal.setpoint.is_finite() && horizontal.setpoint > 0.0, "{horizontal:?}");
        assert!((1..=horizontal.max_replicas).contains(&horizontal.min_replicas), "{horizontal:?}");
        assert!((0.0..=1.0).contains(&horizontal.success_min), "{horizontal:?}");
    }
}
