//! Texts about unschedulable pods for users and autoscalers, compared with the real kube-scheduler's texts about the
//! same pod on the same nodes.

use k8s_openapi::api::events::v1::Event;
use kube::api::PostParams;
use serde_json::{Value, json};

use super::*;

/// Returns required node affinity terms.
fn required(terms: Value) -> Value {
    let required = json!({"nodeSelectorTerms": terms});
    json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}})
}

fn name_in(name: &str) -> Value {
    json!({"key": "metadata.name", "operator": "In", "values": [name]})
}

/// Returns a pod with these requests, for nodes with this value of label `pool`, or for any node.
pub(super) fn asks(requests: Value, pool: &str) -> Value {
    let mut spec =
        json!({"containers": [{"name": "main", "image": "pause", "resources": {"requests": requests}}]});
    if !pool.is_empty() {
        spec["nodeSelector"] = json!({"pool": pool});
    }
    spec
}

pub(super) fn with(mut spec: Value, more: Value) -> Value {
    for (key, value) in more.as_object().expect("an object") {
        spec[key] = value.clone();
    }
    spec
}

/// Many long names: longer than the limit of 1,024 bytes for an event.
fn thirty_resources() -> Value {
    (0..30)
        .map(|at| (format!("example.com/a-resource-that-no-node-here-has-{at}"), json!("1")))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// Pods that fit none of [`create_zoo_nodes`], and the subject of each.
fn zoo() -> Vec<(&'static str, Value)> {
    let tiny = || json!({"cpu": "10m"});
    let port =
        json!([{"name": "main", "image": "pause", "ports": [{"containerPort": 80, "hostPort": 8080}]}]);
    vec![
        ("cpu", asks(json!({"cpu": "1"}), "cpu")),
        ("memory", asks(json!({"memory": "1Gi"}), "memory")),
        ("disk", asks(json!({"ephemeral-storage": "1Gi"}), "disk")),
        ("extended", with(asks(json!({"example.com/gpu": "1"}), "gpu"), limits("example.com/gpu"))),
        ("extended-unknown", with(asks(json!({"example.com/tpu": "1"}), ""), limits("example.com/tpu"))),
        ("pods", asks(tiny(), "pods")),
        ("pods-without-requests", asks(json!({}), "pods")),
        ("cpu-and-memory", asks(json!({"cpu": "1", "memory": "1Gi"}), "full")),
        ("cpu-and-pods", asks(json!({"cpu": "1"}), "pods")),
        ("too-large-here", asks(json!({"cpu": "5"}), "cpu")),
        ("too-large-anywhere", asks(json!({"cpu": "100"}), "")),
        ("a-mix", asks(json!({"cpu": "3500m"}), "")),
        ("cordoned", asks(tiny(), "cordoned")),
        ("tainted", asks(tiny(), "tainted")),
        ("tainted-no-execute", asks(tiny(), "no-execute")),
        (
            "tainted-other-toleration",
            with(
                asks(tiny(), "tainted"),
                json!({"tolerations": [{"key": "team", "operator": "Equal", "value": "b"}]}),
            ),
        ),
        ("selector", asks(tiny(), "nowhere")),
        (
            "affinity",
            with(
                asks(tiny(), ""),
                required(
                    json!([{"matchExpressions": [{"key": "pool", "operator": "In", "values": ["x", "y"]}]}]),
                ),
            ),
        ),
        ("name-missing", with(asks(tiny(), ""), required(json!([{"matchFields": [name_in("missing")]}])))),
        (
            "name-full",
            with(asks(json!({"cpu": "1"}), ""), required(json!([{"matchFields": [name_in("cpu")]}]))),
        ),
        ("name-cordoned", with(asks(tiny(), ""), required(json!([{"matchFields": [name_in("cordoned")]}])))),
        (
            "names-two",
            with(
                asks(tiny(), ""),
                required(
                    json!([{"matchFields": [name_in("tainted")]}, {"matchFields": [name_in("cordoned")]}]),
                ),
            ),
        ),
        (
            "names-conflict",
            with(asks(tiny(), ""), required(json!([{"matchFields": [name_in("cpu"), name_in("memory")]}]))),
        ),
        (
            "name-and-selector",
            with(asks(tiny(), "memory"), required(json!([{"matchFields": [name_in("cpu")]}]))),
        ),
        ("port", with(asks(tiny(), "port"), json!({"containers": port}))),
        ("never-preempts", with(asks(json!({"cpu": "1"}), "cpu"), json!({"priorityClassName": "never"}))),
        (
            "never-preempts-conflict",
            with(
                with(asks(tiny(), ""), json!({"priorityClassName": "never"})),
                required(json!([{"matchFields": [name_in("cpu"), name_in("memory")]}])),
            ),
        ),
        ("spread-without-label", with(asks(tiny(), ""), spread("nowhere", &["filler-gpu"]))),
        ("spread-too-uneven", with(asks(tiny(), "gpu"), spread("pool", &["filler-gpu", "zoo"]))),
        ("affinity-to-nobody", with(asks(tiny(), ""), pod_affinity("podAffinity", "pool", &["nobody"]))),
        (
            "affinity-to-others",
            with(asks(tiny(), "gpu"), pod_affinity("podAffinity", "pool", &["filler-cpu"])),
        ),
        ("affinity-without-label", with(asks(tiny(), ""), pod_affinity("podAffinity", "nowhere", &["zoo"]))),
        (
            "anti-affinity",
            with(asks(tiny(), "gpu"), pod_affinity("podAntiAffinity", "pool", &["filler-gpu"])),
        ),
        ("hated", asks(tiny(), "gpu")),
        ("longer-than-an-event", {
            let mut spec = asks(thirty_resources(), "");
            spec["containers"][0]["resources"]["limits"] = thirty_resources();
            spec
        }),
    ]
}

fn of_kinds(kinds: &[&str]) -> Value {
    json!({"matchExpressions": [{"key": "kind", "operator": "In", "values": kinds}]})
}

/// Returns hard spread over pods of these kinds, independent of the pod's own node constraints.
fn spread(key: &str, kinds: &[&str]) -> Value {
    json!({"topologySpreadConstraints": [{
        "maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", "nodeAffinityPolicy": "Ignore",
        "labelSelector": of_kinds(kinds),
    }]})
}

fn pod_affinity(which: &str, key: &str, kinds: &[&str]) -> Value {
    let terms = json!([{"topologyKey": key, "labelSelector": of_kinds(kinds)}]);
    json!({"affinity": {which: {"requiredDuringSchedulingIgnoredDuringExecution": terms}}})
}

/// The limit of an extended resource must equal its request.
fn limits(name: &str) -> Value {
    let resources = json!({"requests": {name: "1"}, "limits": {name: "1"}});
    json!({"containers": [{"name": "main", "image": "pause", "resources": resources}]})
}

/// Creates one node per kind of rejection, each filled by a pod bound at creation.
async fn create_zoo_nodes(client: &Client) {
    let room = || json!({"cpu": "4", "memory": "8Gi", "ephemeral-storage": "10Gi", "example.com/gpu": "0", "pods": "10"});
    let taint = |effect: &str| json!({"taints": [{"key": "team", "value": "a", "effect": effect}]});
    let nodes = [
        ("cpu", room(), json!({}), json!({"cpu": "3500m"})),
        ("memory", room(), json!({}), json!({"cpu": "1", "memory": "8Gi"})),
        ("disk", room(), json!({}), json!({"cpu": "1", "ephemeral-storage": "10Gi"})),
        (
            "gpu",
            with(room(), json!({"example.com/gpu": "2"})),
            json!({}),
            json!({"cpu": "1", "example.com/gpu": "2"}),
        ),
        ("pods", with(room(), json!({"pods": "1", "cpu": "500m"})), json!({}), json!({})),
        ("full", room(), json!({}), json!({"cpu": "4", "memory": "8Gi"})),
        ("port", room(), json!({}), json!({"cpu": "1"})),
        ("cordoned", room(), json!({"unschedulable": true}), json!({})),
        ("tainted", room(), taint("NoSchedule"), json!({})),
        ("no-execute", room(), taint("NoExecute"), json!({})),
    ];
    for (name, allocatable, spec, taken) in nodes {
        create_node(client, name, allocatable, spec).await;
        let filler = Pods { prefix: name, scheduler: "nobody", requests: taken, ..Pods::default() };
        create_pods(client, &filler, |_, pod| {
            pod["metadata"]["labels"] = json!({"kind": format!("filler-{name}")});
            pod["spec"]["nodeName"] = json!(name);
            pod["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
            let container = &mut pod["spec"]["containers"][0];
            if name == "gpu" {
                container["resources"]["limits"] = json!({"example.com/gpu": "2"});
            }
            if name == "gpu" {
                pod["spec"]["affinity"] =
                    pod_affinity("podAntiAffinity", "pool", &["hated"])["affinity"].clone();
            }
            let container = &mut pod["spec"]["containers"][0];
            if name == "port" {
                container["ports"] = json!([{"containerPort": 80, "hostPort": 8080}]);
            }
        })
        .await;
    }
}

/// Returns the condition without its time.
fn told(pod: &Pod) -> Value {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.clone());
    let condition = conditions.into_iter().flatten().find(|condition| condition.type_ == "PodScheduled");
    let mut condition = serde_json::to_value(condition).expect("plain data");
    if let Some(fields) = condition.as_object_mut() {
        fields.remove("lastTransitionTime");
    }
    condition
}

/// The parts of an event that people and tools read.
fn announced(event: &Event) -> [Option<String>; 4] {
    let Event { type_, reason, action, note, .. } = event.clone();
    [type_, reason, action, note]
}

/// Waits until the pod has its reason, in its condition and in exactly one event.
async fn await_told(client: &Client, pod: &Pod) -> (Value, [Option<String>; 4]) {
    let api: Api<Pod> = Api::default_namespaced(client.clone());
    let mut found = None;
    let what = format!("{} has its condition", name_of(pod));
    await_until(SOON, &what, async || {
        let condition = told(&api.get(name_of(pod)).await.expect("the pod is there"));
        let events = events_of(client, pod).await;
        if condition.is_object() && !events.is_empty() {
            found = Some((condition, announced(&events[0])));
        }
        found.is_some()
    })
    .await;
    let (condition, event) = found.expect("just found");
    assert!(event[3].as_ref().is_some_and(|note| !note.is_empty()), "{event:?}");
    (condition, event)
}

/// Starts kube-scheduler and berth, and asserts that both tell these pods, of which none fits, the same.
pub(super) async fn assert_same_texts(cluster: &TestControlPlane, zoo: &[(&'static str, Value)]) {
    let _kube_scheduler = cluster.start_scheduler("", &[]).await.expect("kube-scheduler starts");
    let _berth = Berth::start(&cluster.kubeconfig(), "");
    let differences = compare(&cluster.client(), zoo).await;
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// Creates each pod twice, once per scheduler, and compares their conditions and events. Returns the differences.
pub(super) async fn compare(client: &Client, zoo: &[(&'static str, Value)]) -> Vec<String> {
    let mut differences = Vec::new();
    let mut pairs = Vec::new();
    for (name, spec) in zoo {
        let mut pair = Vec::new();
        for scheduler in ["default-scheduler", "berth"] {
            let pods = Pods { prefix: name, scheduler, ..Pods::default() };
            let created = create_pods(client, &pods, |_, pod| {
                pod["metadata"]["name"] = json!(format!("{name}-{scheduler}"));
                let kind = if *name == "hated" { "hated" } else { "zoo" };
                pod["metadata"]["labels"] = json!({"kind": kind});
                for (key, value) in spec.as_object().expect("an object") {
                    pod["spec"][key] = value.clone();
                }
            });
            pair.push(created.await.remove(0));
        }
        pairs.push(pair);
    }
    for pair in pairs {
        let expected = await_told(client, &pair[0]).await;
        let found = await_told(client, &pair[1]).await;
        if found != expected {
            differences
                .push(format!("{}\n  berth: {found:?}\n  kube-scheduler: {expected:?}", name_of(&pair[1])));
        }
    }
    differences
}

#[tokio::test(flavor = "multi_thread")]
async fn unschedulable_pods_are_reported_in_kube_schedulers_words() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    let class = json!({"metadata": {"name": "never"}, "value": 0, "preemptionPolicy": "Never"});
    let classes: Api<k8s_openapi::api::scheduling::v1::PriorityClass> = Api::all(client.clone());
    let class = serde_json::from_value(class).expect("a priority class");
    classes.create(&PostParams::default(), &class).await.expect("created");

    // No nodes at all. Both schedulers are restarted for the next part, so that neither has seen a node late.
    let kube_scheduler = cluster.start_scheduler("", &[]).await.expect("kube-scheduler starts");
    let berth = Berth::start(&cluster.kubeconfig(), "");
    let without_nodes = [
        ("no-nodes", asks(json!({"cpu": "1"}), "")),
        ("no-nodes-never", with(asks(json!({}), ""), json!({"priorityClassName": "never"}))),
    ];
    let mut differences = compare(&client, &without_nodes).await;
    drop((kube_scheduler, berth));
    delete_pods(&client, all_pods(&client).await.iter().map(|pod| name_of(pod).to_owned())).await;

    create_zoo_nodes(&client).await;
    let _kube_scheduler = cluster.start_scheduler("", &[]).await.expect("kube-scheduler starts");
    let _berth = Berth::start(&cluster.kubeconfig(), "");
    differences.extend(compare(&client, &zoo()).await);
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
