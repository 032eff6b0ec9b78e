//! The status writer.

use std::sync::atomic::Ordering::Relaxed;

use berth_kube_io::client::without_retries;
use berth_kube_io::{AllocationWriter, PodGroupVersion};
use berth_scheduler::gang::{AllocationKind, AllocationName, GangRoleStatus, GangStatus, Phase};
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::ListParams;

use super::*;

const NEED: &str = "32 pods need 2 CPUs each: 3 fit into zone-a";

fn waits(kind: AllocationKind, object: &DynamicObject) -> GangStatus {
    GangStatus {
        name: AllocationName { kind, namespace: "default".into(), name: object.name_any().into() },
        uid: object.uid().expect("a uid").into(),
        observed_generation: object.metadata.generation.unwrap_or(0),
        phase: Phase::Unschedulable,
        message: NEED.into(),
        help: Some("8 more nodes".into()),
        roles: [GangRoleStatus { name: "".into(), minimum: 32, members: 32, bound: 0 }].into(),
        placement: Box::default(),
        claimed_by_others: 0,
    }
}

fn is_scheduled(mut status: GangStatus) -> GangStatus {
    status.phase = Phase::Scheduled;
    (status.message, status.help) = ("".into(), None);
    status.roles[0].bound = 32;
    status.placement = [("zone-a".into(), 32)].into();
    status
}

/// Writes until no update is pending.
async fn write(control_plane: &ControlPlane, allocations: &AllocationWriter, status: &GangStatus) {
    let client = without_retries(control_plane.config()).expect("a client");
    allocations.enqueue(status.clone());
    allocations.run(client, "host", std::future::ready(()), SOON).await;
    assert_eq!((allocations.waiting(), allocations.dropped()), (0, 0));
}

async fn conditions(api: &Api<DynamicObject>, name: &str) -> (Vec<Value>, String) {
    let object = api.get(name).await.expect("it exists");
    let found = object.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
    (found, object.resource_version().expect("a version"))
}

/// Returns the words of the line about `name`.
fn line<'a>(table: &'a str, name: &str) -> Vec<&'a str> {
    let line = table.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{table}"));
    line.split_whitespace().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_shows_the_status_of_an_allocation_and_equal_statuses_are_written_once() {
    let control_plane = start_control_plane().await;
    let (kubectl, client) = (Kubectl::new(&control_plane).await, control_plane.client());
    kubectl.install_kinds().await;
    let api = allocations(&client);
    let spec = json!({
        "minimum": 32, "owner": {"kind": "Job", "name": "train"}, "topology": {"key": "topology.kubernetes.io/zone"},
    });
    let object = apply(&api, "berth.dev/v1alpha1", "Allocation", "train", spec).await;
    let (allocations, status) = (AllocationWriter::default(), waits(AllocationKind::Allocation, &object));

    write(&control_plane, &allocations, &status).await;
    let table = kubectl.must(&["get", "allocations"], "").await;
    let columns = ["NAME", "PHASE", "MINIMUM", "MEMBERS", "BOUND", "TOPOLOGY", "AGE"];
    assert_eq!(table.lines().next().expect("a head").split_whitespace().collect::<Vec<_>>(), columns);
    let expected = ["train", "Unschedulable", "32", "32", "0", "topology.kubernetes.io/zone"];
    assert_eq!(line(&table, "train")[..6], expected);
    let wide = kubectl.must(&["get", "allocations", "-o", "wide"], "").await;
    assert!(wide.contains(NEED) && wide.contains("8 more nodes") && wide.contains("Required"), "{wide}");

    let (before, version) = conditions(&api, "train").await;
    write(&control_plane, &allocations, &status).await;
    assert_eq!(conditions(&api, "train").await.1, version, "nothing was written");
    assert_eq!(allocations.counters().unchanged.load(Relaxed), 1);

    write(&control_plane, &allocations, &is_scheduled(status.clone())).await;
    kubectl.must(&["wait", "--for=condition=Scheduled", "allocation/train"], "").await;
    let table = kubectl.must(&["get", "allocations"], "").await;
    assert_eq!(line(&table, "train")[1..5], ["Scheduled", "32", "32", "32"]);
    let (after, _) = conditions(&api, "train").await;
    let accepted = |conditions: &[Value]| conditions[0]["lastTransitionTime"].clone();
    assert_eq!(accepted(&before), accepted(&after));
    let object = api.get("train").await.expect("it exists");
    assert_eq!(
        (&object.data["status"]["help"], &object.data["status"]["message"]),
        (&Value::Null, &Value::Null)
    );

    let events: Api<Event> = Api::default_namespaced(client.clone());
    let events = events.list(&ListParams::default()).await.expect("events").items;
    let about = |event: &Event| event.regarding.as_ref().and_then(|about| about.uid.clone());
    let mut told: Vec<_> =
        events.iter().filter(|event| about(event) == object.uid()).map(reason_and_note).collect();
    told.sort();
    let bound = "32 of 32 pods are bound, the minimum is 32";
    assert_eq!(told, [("FailedScheduling", NEED), ("Scheduled", bound)]);
    let described = kubectl.must(&["describe", "allocation", "train"], "").await;
    assert!(described.contains(bound), "{described}");
}

fn reason_and_note(event: &Event) -> (&str, &str) {
    (event.reason.as_deref().unwrap_or_default(), event.note.as_deref().unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread")]
async fn statuses_of_deleted_or_recreated_allocations_are_settled() {
    let control_plane = start_control_plane().await;
    let (kubectl, client) = (Kubectl::new(&control_plane).await, control_plane.client());
    kubectl.install_kinds().await;
    let api = allocations(&client);
    let spec = json!({"minimum": 1, "selector": {"matchLabels": {"app": "a"}}});
    let first = apply(&api, "berth.dev/v1alpha1", "Allocation", "a", spec.clone()).await;
    let (allocations, status) = (AllocationWriter::default(), waits(AllocationKind::Allocation, &first));
    kubectl.must(&["delete", "allocation", "a"], "").await;
    write(&control_plane, &allocations, &status).await;
    apply(&api, "berth.dev/v1alpha1", "Allocation", "a", spec).await;
    write(&control_plane, &allocations, &status).await;
    assert_eq!(allocations.counters().gone.load(Relaxed), 2);
    assert!(conditions(&api, "a").await.0.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_group_of_kubernetes_gets_its_condition_and_keeps_those_of_others() {
    let Some(control_plane) = start_with_pod_groups("the status of PodGroups of Kubernetes").await else {
        return;
    };
    let client = control_plane.client();
    let api = objects(&client, "scheduling.k8s.io", "v1alpha2", "PodGroup");
    let spec = json!({"schedulingPolicy": {"gang": {"minCount": 32}}});
    let object = apply(&api, "scheduling.k8s.io/v1alpha2", "PodGroup", "group", spec).await;
    let other = json!({"status": {"conditions": [{
        "type": "DisruptionTarget", "status": "False", "reason": "Test", "message": "",
        "lastTransitionTime": "2026-03-04T05:06:07Z",
    }]}});
    let patched = api.patch_status("group", &PatchParams::default(), &Patch::Strategic(&other)).await;
    patched.expect("the status is patched");

    let (allocations, status) = (AllocationWriter::default(), waits(AllocationKind::PodGroup, &object));
    allocations.use_version(PodGroupVersion::V1Alpha2);
    let scheduled = is_scheduled(status.clone());
    for (status, expected) in [(&status, "False"), (&scheduled, "True"), (&status, "True")] {
        write(&control_plane, &allocations, status).await;
        let (found, version) = conditions(&api, "group").await;
        let of = |kind: &str| found.iter().find(|it| it["type"] == *kind).cloned().unwrap_or_default();
        assert_eq!((found.len(), &of("PodGroupScheduled")["status"]), (2, &json!(expected)), "{found:?}");
        write(&control_plane, &allocations, status).await;
        assert_eq!(conditions(&api, "group").await.1, version);
    }
    assert_eq!(allocations.counters().written.load(Relaxed), 2);
}
