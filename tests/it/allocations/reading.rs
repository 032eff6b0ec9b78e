//! Watches of kinds that may be missing in a cluster.

use std::collections::HashSet;
use std::sync::Arc;

use berth_kube_io::{
    LeanAllocation, LeanCoschedulingPodGroup, LeanObject, LeanPodGroup, ObjectIndex, ObjectSink,
    OptionalKind, PodGroupVersion, WatchChange, WatchCounters, watch_if_served,
};
use berth_scheduler::gang::Allocation;
use berth_scheduler::objects::{ClusterObject, ObjectKind, ObjectName};
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use super::*;

/// Objects and lists that a watch has reported.
#[derive(Default)]
struct Seen {
    allocations: Vec<Allocation>,
    lists: usize,
}

impl ObjectSink for Seen {
    fn apply_object(&mut self, object: ClusterObject) {
        let ClusterObject::Allocation(allocation) = object else { panic!("{object:?}") };
        self.delete_object(
            ObjectKind::Allocation,
            &ObjectName { namespace: allocation.name.namespace.clone(), name: allocation.name.name.clone() },
        );
        self.allocations.push(*allocation);
    }

    fn delete_object(&mut self, _: ObjectKind, object: &ObjectName) {
        self.allocations.retain(|it| it.name.name != object.name);
    }

    fn retain_objects(&mut self, _: ObjectKind, listed: &HashSet<ObjectName>) {
        self.lists += 1;
        self.allocations.retain(|it| listed.iter().any(|name| name.name == it.name.name));
    }
}

/// A watch and its reports. Ends when dropped.
struct Watch {
    seen: Arc<Mutex<Seen>>,
    version: Arc<Mutex<String>>,
    counters: Arc<WatchCounters>,
    task: JoinHandle<()>,
}

impl Watch {
    fn start<K>(client: Client) -> Watch
    where
        K: OptionalKind
            + LeanObject
            + Clone
            + serde::de::DeserializeOwned
            + std::fmt::Debug
            + Send
            + Sync
            + 'static,
    {
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let version: Arc<Mutex<String>> = Arc::default();
        let counters: Arc<WatchCounters> = Arc::default();
        let (to, told, counted) = (seen.clone(), version.clone(), counters.clone());
        let task = tokio::spawn(async move {
            let mut index = ObjectIndex::default();
            let sink = |change: WatchChange<K>| index.take(change, &mut *to.lock());
            let chosen = |version| *told.lock() = K::version(&version).into_owned();
            watch_if_served(client, &counted, chosen, sink).await;
        });
        Watch { seen, version, counters, task }
    }

    async fn until(&self, what: &str, holds: impl Fn(&Seen) -> bool) {
        await_until(SOON, what, async || holds(&self.seen.lock())).await;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_that_is_installed_later_is_read_and_one_that_is_removed_is_forgotten() {
    let control_plane = start_control_plane().await;
    let (kubectl, client) = (Kubectl::new(&control_plane).await, control_plane.client());
    let watch = Watch::start::<LeanAllocation>(client.clone());
    let others = [
        Watch::start::<LeanPodGroup>(client.clone()),
        Watch::start::<LeanCoschedulingPodGroup>(client.clone()),
    ];
    for watch in others.iter().chain([&watch]) {
        watch.until("it reports that there are none", |seen| seen.lists == 1).await;
        assert_eq!(watch.counters.errors.load(std::sync::atomic::Ordering::Relaxed), 0);
    }

    kubectl.install_kinds().await;
    let spec = json!({"minimum": 3, "selector": {"matchLabels": {"app": "a"}}});
    apply(&allocations(&client), "berth.dev/v1alpha1", "Allocation", "a", spec).await;
    watch.until("the allocation is read", |seen| seen.allocations.len() == 1).await;
    let read = watch.seen.lock().allocations[0].clone();
    assert_eq!((read.problem.as_deref(), read.minimum(), read.generation), (None, 3, 1));
    assert!(read.created_s > 1_700_000_000 && !read.uid.is_empty());

    let lists = watch.seen.lock().lists;
    kubectl.must(&["delete", "crd", "allocations.berth.dev"], "").await;
    watch
        .until("it reports that there are none", |seen| seen.allocations.is_empty() && seen.lists > lists)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_groups_of_kubernetes_are_read_in_the_version_that_is_served() {
    let Some(control_plane) = start_with_pod_groups("reading PodGroups of Kubernetes").await else { return };
    let client = control_plane.client();
    let api = objects(&client, "scheduling.k8s.io", "v1alpha2", "PodGroup");
    apply(
        &api,
        "scheduling.k8s.io/v1alpha2",
        "PodGroup",
        "gang",
        json!({"schedulingPolicy": {"gang": {"minCount": 4}}}),
    )
    .await;
    apply(
        &api,
        "scheduling.k8s.io/v1alpha2",
        "PodGroup",
        "loose",
        json!({"schedulingPolicy": {"basic": {}}}),
    )
    .await;
    let watch = Watch::start::<LeanPodGroup>(client.clone());
    watch.until("both are read", |seen| seen.allocations.len() == 2 && seen.lists == 1).await;
    assert_eq!(*watch.version.lock(), PodGroupVersion::V1Alpha2.name());
    let minimum = |name: &str| {
        let seen = watch.seen.lock();
        let found = seen.allocations.iter().find(|it| *it.name.name == *name).expect("it is read");
        (found.problem.clone(), found.minimum())
    };
    assert_eq!((minimum("gang"), minimum("loose")), ((None, 4), (None, 0)));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_pod_groups_of_kubernetes_a_pod_that_names_one_is_placed_alone() {
    let control_plane = start_control_plane().await;
    let client = control_plane.client();
    create_nodes(&client, &Nodes::default()).await;
    let berth = Berth::start(&control_plane.kubeconfig(), "");
    let group = json!({"podGroupName": "gang"});
    let pods =
        create_pods(&client, &Pods::default(), |_, pod| pod["spec"]["schedulingGroup"] = group.clone()).await;
    let spec = serde_json::to_value(&pods[0].spec).expect("JSON");
    assert_eq!(spec["schedulingGroup"], Value::Null, "the API server drops what it does not serve");
    await_bound(&client, SOON, 1, |_| true).await;
    for resource in ["pods", "nodes", "resourceclaims", "others"] {
        let errors = format!(r#"berth_watch_errors_total{{resource="{resource}"}}"#);
        assert_eq!(berth.metric(&errors).await, 0.0, "{resource}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_of_a_workload_of_kubernetes_1_35_waits_and_its_condition_names_the_field() {
    if !has_api_server(35..=35, "spec.workloadRef of pods") {
        return;
    }
    let args = ["--feature-gates=GenericWorkload=true", "--runtime-config=scheduling.k8s.io/v1alpha1=true"];
    let api_server_args = args.map(str::to_owned).to_vec();
    let control_plane = start_control_plane_with(Options { api_server_args, ..Options::default() }).await;
    let client = control_plane.client();
    create_nodes(&client, &Nodes::default()).await;
    let _berth = Berth::start(&control_plane.kubeconfig(), "");
    // Without the type of a pod, which has the fields of a newer version.
    let spec = json!({
        "schedulerName": "berth",
        "containers": [{"name": "main", "image": "pause"}],
        "workloadRef": {"name": "training", "podGroup": "workers"},
    });
    apply(&objects(&client, "", "v1", "Pod"), "v1", "Pod", "pod-0", spec).await;
    await_message(&client, "default", "pod-0", |message| message.contains("spec.workloadRef")).await;
}
