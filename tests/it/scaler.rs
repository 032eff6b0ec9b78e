//! ServiceScalers on a real API server, with real Deployments, kwok as the kubelets of nodes and pods, and a real
//! Prometheus that scrapes a load model.

mod day;
mod faults;
mod first_contact;
mod hanging;
mod load;
mod metrics_server;
mod speed;
mod zero;

use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::{Node, Pod, ResourceRequirements};
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use kube::{Api, Client};
use serde_json::{Value, json};

use berth_crds::service_scaler::{ServiceScaler, ServiceScalerStatus};
use berth_model::Quantity;
use berth_testenv::{Options, Process, User};

use self::load::Load;
use crate::allocations::Kubectl;
use crate::chart::{SCALING, rendered};
use crate::recommender;
use crate::support::*;
use crate::usage;

const SOON: Duration = Duration::from_secs(180);
const BERTH: &str = "system:serviceaccount:berth-system:berth";

fn service_of(pod: &Pod) -> &str {
    pod.metadata.labels.as_ref().and_then(|labels| labels.get("app")).map_or("", String::as_str)
}

fn leaves(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Returns the CPU request of its only container, in millicores.
fn cpu_of(pod: &Pod) -> i64 {
    let container = pod.spec.as_ref().and_then(|spec| spec.containers.first());
    container.and_then(|it| cpu_in(it.resources.as_ref()?)).unwrap_or(0)
}

/// Returns the memory request of its only container, in bytes.
fn memory_of(pod: &Pod) -> i64 {
    let container = pod.spec.as_ref().and_then(|spec| spec.containers.first());
    let requests = container.and_then(|it| it.resources.as_ref()?.requests.as_ref());
    requests.map_or(0, |it| Quantity::parse(&it["memory"].0).expect("a quantity").value())
}

/// Returns the CPU that its kubelet has applied.
fn given_cpu(pod: &Pod) -> Option<i64> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    cpu_in(statuses.first()?.resources.as_ref()?)
}

fn cpu_in(resources: &ResourceRequirements) -> Option<i64> {
    let cpu = resources.requests.as_ref()?.get("cpu")?;
    Some(Quantity::parse(&cpu.0).expect("a quantity").milli_value())
}

/// Returns whether its kubelet has completed the resize.
fn is_resized(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let resizes = |type_: &str| ["PodResizePending", "PodResizeInProgress"].contains(&type_);
    given_cpu(pod) == Some(cpu_of(pod)) && !conditions.into_iter().any(|it| resizes(&it.type_))
}

async fn create_deployment(client: &Client, name: &str, replicas: u32, node: Option<&str>) {
    let selector = node.map_or(json!({}), |node| json!({"kubernetes.io/hostname": node}));
    let deployment = json!({
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {
                    "schedulerName": "berth",
                    "nodeSelector": selector,
                    "containers": [{"name": "app", "image": "web", "resources": {
                        "requests": {"cpu": "900m", "memory": "512Mi"},
                        "limits": {"cpu": "1800m"},
                    }}],
                },
            },
        },
    });
    let deployment: Deployment = serde_json::from_value(deployment).expect("a Deployment");
    let api = Api::default_namespaced(client.clone());
    api.create(&PostParams::default(), &deployment).await.expect("it is created");
}

async fn create_scaler(client: &Client, name: &str, more: Value) {
    let mut scaler = json!({
        "apiVersion": "berth.dev/v1alpha1",
        "kind": "ServiceScaler",
        "metadata": {"name": name},
        "spec": {
            "target": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
            "objectives": {"signal": {"type": "CpuThrottling", "target": "0.1"}},
            "bounds": {"minReplicas": 2, "maxReplicas": 8},
            "dryRun": false,
            "behavior": {
                "periodSeconds": 3,
                "windowSeconds": 15,
                "historySeconds": 0,
                "scaleDown": {"stabilizationWindowSeconds": 8},
            },
        },
    });
    for (key, value) in more.as_object().expect("fields") {
        scaler["spec"][key] = value.clone();
    }
    let scaler: ServiceScaler = serde_json::from_value(scaler).expect("a ServiceScaler");
    let api = Api::default_namespaced(client.clone());
    api.create(&PostParams::default(), &scaler).await.expect("it is created");
}

async fn status(client: &Client) -> ServiceScalerStatus {
    let api: Api<ServiceScaler> = Api::default_namespaced(client.clone());
    api.get("web").await.expect("it exists").status.unwrap_or_default()
}

fn condition<'a>(status: &'a ServiceScalerStatus, type_: &str) -> Option<(&'a str, &'a str)> {
    let condition = status.conditions.iter().find(|condition| condition.type_ == type_)?;
    Some((condition.status.as_str(), condition.reason.as_str()))
}

async fn web_pods(client: &Client) -> Vec<Pod> {
    all_pods(client).await.into_iter().filter(|pod| !leaves(pod)).collect()
}

/// A node without heartbeats becomes unready after a while.
async fn assert_all_ready(client: &Client) {
    let nodes =
        Api::<Node>::all(client.clone()).list(&ListParams::default()).await.expect("nodes are listed");
    for node in nodes {
        let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
        let ready = conditions.iter().any(|it| it.type_ == "Ready" && it.status == "True");
        assert!(ready, "{conditions:?}");
    }
}

async fn replicas(client: &Client) -> i32 {
    let api: Api<Deployment> = Api::default_namespaced(client.clone());
    api.get("web").await.expect("it exists").spec.and_then(|spec| spec.replicas).unwrap_or(0)
}

/// Processes beside berth. Stopped in this order.
struct Cluster {
    _kubelets: Process,
    _controllers: Process,
    kubectl: Kubectl,
    client: Client,
    control_plane: TestControlPlane,
}

/// Starts a control plane with berth's kinds, whose user [`BERTH`] has exactly the permissions that the chart grants
/// for this. Nodes without the heartbeat of a kubelet become unready after 25 s.
async fn prepare() -> Cluster {
    prepare_with(SCALING).await
}

/// As [`prepare`], with the permissions for these values of the chart.
async fn prepare_with(values: &str) -> Cluster {
    let user = User { name: BERTH.to_owned(), groups: vec!["system:serviceaccounts".to_owned()] };
    let control_plane = start_control_plane_with(Options { users: vec![user], ..Options::default() }).await;
    let client = control_plane.client();
    for object in rendered(values) {
        let kind = object["kind"].as_str().unwrap_or_default();
        if ["ClusterRole", "ClusterRoleBinding"].contains(&kind) {
            let gvk = GroupVersionKind::gvk("rbac.authorization.k8s.io", "v1", kind);
            let api: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::from_gvk(&gvk));
            let object = serde_json::from_value(object).expect("an object");
            api.create(&PostParams::default(), &object).await.expect("it is created");
        }
    }
    let kubectl = Kubectl::new(&control_plane).await;
    let controllers = ["deployment", "replicaset", "node-lifecycle-controller"];
    let (controllers, kubelets, ()) = futures::join!(
        control_plane.start_controller_manager(&controllers),
        start_kubelets(&control_plane),
        kubectl.install_kinds()
    );
    Cluster {
        _kubelets: kubelets,
        _controllers: controllers.expect("controllers"),
        kubectl,
        client,
        control_plane,
    }
}

fn config(prometheus: &usage::Prometheus) -> String {
    format!(
        "scaling: {{enabled: true, interval: 1s, hintsWindow: 20s, customQueries: [default]}}\nrecommender: {{prometheus: {{url: '{}', liveWindow: 5s}}}}",
        prometheus.url
    )
}

/// Processes of a test with one service `web`. Stopped in this order.
struct Web {
    _berth: Berth,
    prometheus: usage::Prometheus,
    load: Load,
    cluster: Cluster,
}

/// Starts pods of `web` on two nodes, which use half a core together. `past`: series from before, in the format OpenMetrics.
async fn start_web(replicas: u32, past: &str) -> Web {
    let cluster = prepare().await;
    let client = &cluster.client;
    create_nodes(client, &Nodes { count: 2, ..Nodes::default() }).await;
    let load = Load::start(client).await;
    let prometheus = usage::start_scraping_after(past, load.address).await;
    load.set("web", 0.5);
    let berth = berth_for(&cluster.control_plane, &prometheus);
    create_deployment(client, "web", replicas, None).await;
    await_bound(client, SOON, replicas as usize, |_| true).await;
    Web { _berth: berth, prometheus, load, cluster }
}

fn berth_for(control_plane: &TestControlPlane, prometheus: &usage::Prometheus) -> Berth {
    Berth::start(&control_plane.kubeconfig_for(BERTH).expect("a kubeconfig"), &config(prometheus))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_grows_and_shrinks_through_a_spike_and_its_pods_are_resized_in_place() {
    needs!("prometheus", "promtool");
    let cluster = prepare().await;
    let Cluster { kubectl, client, control_plane, .. } = &cluster;
    create_nodes(client, &Nodes { count: 3, ..Nodes::default() }).await;
    let load = Load::start(client).await;
    let prometheus = usage::start_scraping(load.address).await;
    load.set("web", 0.6);
    let berth = berth_for(control_plane, &prometheus);
    create_deployment(client, "web", 2, None).await;
    await_bound(client, SOON, 2, |_| true).await;
    let first: Vec<_> = web_pods(client).await.into_iter().map(|pod| pod.metadata.uid).collect();
    create_scaler(client, "web", json!({})).await;

    // 0.3 cores each: 900m are too much, and the limit shrinks proportionally.
    let small = async || web_pods(client).await.iter().all(|pod| (250..600).contains(&cpu_of(pod)));
    await_until(SOON, "the pods are smaller", small).await;
    let pods = web_pods(client).await;
    assert_eq!(pods.iter().map(|pod| pod.metadata.uid.clone()).collect::<Vec<_>>(), first);
    let limit =
        pods[0].spec.as_ref().unwrap().containers[0].resources.as_ref().unwrap().limits.as_ref().unwrap();
    assert_eq!(Quantity::parse(&limit["cpu"].0).unwrap().milli_value(), 2 * cpu_of(&pods[0]));
    assert_no_overcommit(client).await;
    let done = async || web_pods(client).await.iter().all(is_resized);
    await_until(SOON, "the kubelets have done it", done).await;
    let told = kubectl.must(&["describe", "pod", name_of(&pods[0])], "").await;
    for expected in [&*format!("{}m", cpu_of(&pods[0])), "ResizeCompleted", "Successfully assigned"] {
        assert!(told.contains(expected), "{expected} is not in\n{told}");
    }

    // 4 cores: scaling up to the maximum size is not enough.
    load.set("web", 4.0);
    await_until(SOON, "there are more replicas", async || replicas(client).await >= 5).await;
    await_until(SOON, "all of them are placed and large", async || {
        let pods = web_pods(client).await;
        pods.len() >= 5 && pods.iter().all(|pod| given_cpu(pod) > Some(600))
    })
    .await;
    assert_no_overcommit(client).await;

    load.set("web", 0.3);
    await_until(SOON, "the service is small again", async || {
        let pods = web_pods(client).await;
        replicas(client).await == 2
            && pods.len() == 2
            && pods.iter().all(|pod| cpu_of(pod) < 400 && is_resized(pod))
    })
    .await;
    let told = kubectl.must(&["describe", "servicescaler", "web"], "").await;
    for expected in ["ScaledUp", "ScaledDown", "Resized", "Decision:", "Scaling"] {
        assert!(told.contains(expected), "{expected} is not in\n{told}\n{}", berth.log());
    }
    for change in ["Resized", "ScaledUp", "ScaledDown"] {
        let counted = berth.metric(&format!(r#"berth_scaler_changes_total{{change="{change}"}}"#)).await;
        assert!(counted > 0.0, "{change}");
    }
    assert_eq!(berth.metric(r#"berth_scaler_services{reason="Scaling"}"#).await, 1.0);
    let columns = kubectl.must(&["get", "servicescalers"], "").await;
    assert!(columns.contains("web") && columns.contains("Scaling"), "{columns}");
    assert_all_ready(client).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_scale_or_cannot_be_measured_is_left_alone_and_said() {
    needs!("prometheus", "promtool");
    let cluster = prepare().await;
    let Cluster { client, control_plane, .. } = &cluster;
    create_nodes(client, &Nodes::default()).await;
    let load = Load::start(client).await;
    let prometheus = usage::start_scraping(load.address).await;
    load.set("web", 4.0);
    let hpa = json!({
        "metadata": {"name": "web"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "minReplicas": 2, "maxReplicas": 2,
        },
    });
    let hpas: Api<HorizontalPodAutoscaler> = Api::default_namespaced(client.clone());
    let hpa = serde_json::from_value(hpa).expect("an autoscaler");
    hpas.create(&PostParams::default(), &hpa).await.expect("it is created");
    recommender::create_crds(client).await;
    create_deployment(client, "web", 2, None).await;
    let _berth = berth_for(control_plane, &prometheus);
    create_scaler(client, "web", json!({})).await;
    await_until(SOON, "the conflict is said", async || {
        let status = status(client).await;
        condition(&status, "Active").is_some_and(|(_, reason)| reason == "Conflict")
            && status.decision.contains("HorizontalPodAutoscaler web")
    })
    .await;
    assert_eq!(replicas(client).await, 2);
    assert!(web_pods(client).await.iter().all(|pod| cpu_of(pod) == 900));

    // A VPA that appears meanwhile is seen by the watch.
    let vpa = json!({
        "apiVersion": "autoscaling.k8s.io/v1", "kind": "VerticalPodAutoscaler", "metadata": {"name": "web"},
        "spec": {
            "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "updatePolicy": {"updateMode": "Initial"},
        },
    });
    recommender::create(&recommender::vpas(client), vpa).await;
    await_until(SOON, "nothing is left to scale", async || {
        let conditions = status(client).await.conditions;
        let active = conditions.into_iter().find(|it| it.type_ == "Active").map(|it| it.message);
        active.is_some_and(|message| message.contains("VerticalPodAutoscaler web the sizes"))
    })
    .await;

    // Without the other autoscaler its replicas are scaled; then it is deleted and has no metrics any more.
    hpas.delete("web", &Default::default()).await.expect("it is deleted");
    await_until(SOON, "it grows", async || replicas(client).await > 2).await;
    assert!(web_pods(client).await.iter().all(|pod| cpu_of(pod) == 900), "the VPA decides about sizes");
    drop(load);
    await_until(SOON, "the missing signal is said", async || {
        let status = status(client).await;
        condition(&status, "MetricsAvailable") == Some(("False", "Missing"))
            && status.decision.contains("replicas stay")
    })
    .await;
    let held = replicas(client).await;
    let until = Duration::from_secs(10);
    let began = std::time::Instant::now();
    await_until(until + SOON, "some time passes without a change", async || {
        assert_eq!(replicas(client).await, held, "nothing is known, and it is scaled");
        began.elapsed() > until
    })
    .await;
}

/// Three windows of twenty seconds.
const COMPARED: Duration = Duration::from_secs(240);

#[tokio::test(flavor = "multi_thread")]
async fn services_that_peak_together_are_placed_apart_from_then_on() {
    needs!("prometheus", "promtool");
    let cluster = prepare().await;
    let Cluster { kubectl, client, control_plane, .. } = &cluster;
    create_nodes(client, &Nodes { prefix: "large", cpu: "16", ..Nodes::default() }).await;
    create_nodes(client, &Nodes { prefix: "small", cpu: "2", ..Nodes::default() }).await;
    let load = Load::start(client).await;
    let prometheus = usage::start_scraping(load.address).await;
    // A leader sends its requests through its fence.
    let elected = format!("{}\nleaderElection: {{namespace: default}}", config(&prometheus));
    let berth = Berth::start(&control_plane.kubeconfig(), &elected);
    create_deployment(client, "web", 1, Some("large-0")).await;
    create_deployment(client, "cart", 1, None).await;
    await_bound(client, SOON, 2, |_| true).await;
    // The larger node has more room, and there is no hint against it yet.
    let cart = async || {
        let pods = all_pods(client).await;
        let pod = pods.into_iter().find(|pod| service_of(pod) == "cart" && !leaves(pod));
        pod.and_then(|pod| Some((name_of(&pod).to_owned(), node_of(&pod)?.to_owned())))
    };
    let (name, node) = cart().await.expect("it is placed");
    assert_eq!(node, "large-0");
    for service in ["web", "cart"] {
        create_scaler(client, service, json!({"dimensions": ["Memory"]})).await;
    }
    let began = std::time::Instant::now();
    await_until(COMPARED, "the services are known to peak together", async || {
        let wave = 0.3 + 0.2 * (began.elapsed().as_secs_f64() * 0.8).sin();
        load.set("web", wave);
        load.set("cart", wave);
        berth.metric("berth_scaler_hints").await > 0.0
    })
    .await;
    delete_pods(client, [name.clone()]).await;
    await_until(SOON, "the next pod is on the other node", async || {
        cart().await.is_some_and(|(next, node)| next != name && node == "small-0")
    })
    .await;
    let (next, _) = cart().await.expect("it is placed");
    let told = kubectl.must(&["describe", "pod", &next], "").await;
    assert!(told.contains("Successfully assigned") && told.contains("to small-0"), "{told}");
}
