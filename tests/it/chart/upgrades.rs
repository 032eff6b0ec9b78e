//! Upgrades and rollbacks of a release that is in use, as `docs/upgrading.md` promises them. helm changes the release, a real
//! Deployment controller its pods, and the test is their kubelet: each pod is a process.

use std::time::Duration;

use berth_testenv::{Options, User};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use kube::{Api, Client, ResourceExt};

use super::releases::Helm;
use super::*;
use crate::allocations::Kubectl;
use crate::recommender;
use crate::scheduling::audit::{Audit, Request};
use crate::support::*;

const SOON: Duration = Duration::from_secs(60);
const ACCOUNT: &str = "system:serviceaccount:berth-system:berth";
/// Runs the pods of berth, and no others.
const CONTROL_NODE: &str = "control-0";

const OLD: &str = "
replicas: 1
config:
  leaderElection: {leaseDuration: 6s, renewDeadline: 4s, retryPeriod: 500ms}
  serving: {shutdownDelay: 1s}
";
/// Beside those of [`OLD`].
const NEW: &str = "
replicas: 2
recommender: {enabled: true}
config:
  agents: 2
  recommender: {interval: 1s, checkpointsInterval: 1s}
";

/// The kubelet of [`CONTROL_NODE`].
struct Kubelet {
    client: Client,
    kubeconfig: PathBuf,
    processes: BTreeMap<String, Berth>,
}

impl Kubelet {
    /// Waits until the Deployment has replaced all its pods.
    async fn roll_out(&mut self) {
        let deployments: Api<Deployment> = Api::namespaced(self.client.clone(), NAMESPACE);
        await_until(SOON, "the rollout is complete", async || {
            self.sync().await;
            let deployment = deployments.get("berth").await.unwrap();
            let (spec, status) = (deployment.spec.unwrap(), deployment.status.unwrap_or_default());
            status.observed_generation == deployment.metadata.generation
                && [status.replicas, status.updated_replicas, status.available_replicas]
                    .iter()
                    .all(|count| count.unwrap_or(0) == spec.replicas.unwrap())
        })
        .await;
    }

    /// Starts, probes and stops the processes of the pods.
    async fn sync(&mut self) {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        for pod in pods.list(&ListParams::default()).await.unwrap() {
            let name = pod.name_any();
            if pod.metadata.deletion_timestamp.is_some() {
                let mut process = self.processes.remove(&name).expect("it was started");
                assert!(process.terminate().await.success(), "{}", process.log());
                let gone = DeleteParams::default().grace_period(0);
                pods.delete(&name, &gone).await.unwrap();
                continue;
            }
            let Some(process) = self.processes.get(&name) else {
                let process = self.start(&name).await;
                self.processes.insert(name, process);
                continue;
            };
            let phase = pod.status.and_then(|status| status.phase);
            if phase.as_deref() != Some("Running") && process.get("/readyz").await.0 {
                let ready = json!([{"type": "Ready", "status": "True"}]);
                let status = json!({"status": {"phase": "Running", "conditions": ready}});
                pods.patch_status(&name, &PatchParams::default(), &Patch::Strategic(status)).await.unwrap();
            }
        }
    }

    /// Gives a pod its node, and starts its process with what the ConfigMap says now.
    async fn start(&self, name: &str) -> Berth {
        let binding = json!({"metadata": {"name": name}, "target": {"kind": "Node", "name": CONTROL_NODE}});
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        let _: Value =
            pods.create_subresource("binding", name, &PostParams::default(), &binding).await.unwrap();

        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), NAMESPACE);
        let data = maps.get("berth").await.unwrap().data.unwrap();
        let mut config: Value = serde_saphyr::from_str(&data["berth.yaml"]).unwrap();
        // Ports and files of a pod.
        config.as_object_mut().unwrap().remove("healthAddress");
        config["serving"]["address"] = json!("127.0.0.1:0");
        config["estimatorFile"] = Value::Null;
        config["leaderElection"]["namespace"] = json!(NAMESPACE);
        let lines = config.as_object().unwrap().iter().map(|(key, value)| format!("{key}: {value}\n"));
        Berth::start(&self.kubeconfig, &lines.collect::<String>())
    }
}

/// Pods of users by their name: who they are, and their version, which any change raises.
async fn running_pods(client: &Client) -> BTreeMap<String, (Option<String>, Option<String>)> {
    let pods = all_pods(client).await.into_iter().filter(|pod| is_of_users(pod) && node_of(pod).is_some());
    pods.map(|pod| (pod.name_any(), (pod.uid(), pod.resource_version()))).collect()
}

fn is_of_users(pod: &Pod) -> bool {
    pod.namespace().as_deref() != Some(NAMESPACE)
}

/// Waits until this many pods of users have a node, and lets their kubelets run them.
async fn await_running(client: &Client, count: usize) {
    await_bound(client, SOON, count, is_of_users).await;
    let running = json!({"status": {"phase": "Running"}});
    for pod in all_pods(client).await.iter().filter(|pod| is_of_users(pod) && node_of(pod).is_some()) {
        let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap());
        let patch = Patch::Strategic(&running);
        pods.patch_status(name_of(pod), &PatchParams::default(), &patch).await.unwrap();
    }
}

/// Returns the specs of all objects of users by kind and name, and what berth has written into them.
async fn objects(client: &Client) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    for (group, version, kind, plural) in [
        ("berth.dev", "v1alpha1", "Quota", "quotas"),
        ("berth.dev", "v1alpha1", "AllocationPolicy", "allocationpolicies"),
        ("berth.dev", "v1alpha1", "Allocation", "allocations"),
        ("berth.dev", "v1alpha1", "ServiceScaler", "servicescalers"),
        ("autoscaling.k8s.io", "v1", "VerticalPodAutoscaler", "verticalpodautoscalers"),
        ("autoscaling.k8s.io", "v1", "VerticalPodAutoscalerCheckpoint", "verticalpodautoscalercheckpoints"),
    ] {
        let kind = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
        for object in api.list(&ListParams::default()).await.unwrap() {
            found.insert(format!("{plural}/{}", object.name_any()), object.data["spec"].clone());
        }
    }
    found
}

async fn create_sized(client: &Client, prefix: &'static str, count: usize, cpu: &str, gang: Option<&str>) {
    let pods = Pods { prefix, count, requests: json!({"cpu": cpu, "memory": "100Mi"}), ..Pods::default() };
    create_pods(client, &pods, |_, pod| {
        if let Some(gang) = gang {
            pod["metadata"]["labels"] = json!({"gang": gang});
        }
    })
    .await;
}

fn allocation(name: &str) -> String {
    let spec = json!({"minimum": 4, "selector": {"matchLabels": {"gang": name}}, "topology": {"key": "kubernetes.io/os", "mode": "Preferred"}});
    let metadata = json!({"name": name, "namespace": "default"});
    json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Allocation", "metadata": metadata, "spec": spec})
        .to_string()
}

/// A workload of another scheduler, for the recommender.
fn deployment() -> String {
    let labels = json!({"app": "web"});
    let spec = json!({"schedulerName": "nobody", "containers": [{"name": "app", "image": "pause"}]});
    let template = json!({"metadata": {"labels": labels}, "spec": spec});
    let spec = json!({"selector": {"matchLabels": labels}, "template": template});
    let metadata = json!({"name": "web", "namespace": "default"});
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}).to_string()
}

fn quota(maximum: u32) -> String {
    let spec = json!({"namespaces": ["red"], "guaranteed": {"cpu": 1}, "maximum": {"cpu": maximum}, "reclaim": "Never"});
    json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Quota", "metadata": {"name": "red"}, "spec": spec})
        .to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_and_a_rollback_lose_no_waiting_pod_and_no_object_and_touch_no_running_pod() {
    let audit = Audit::new();
    let account = User { name: ACCOUNT.to_owned(), groups: vec!["system:serviceaccounts".to_owned()] };
    let options = Options { users: vec![account], ..audit.options(&[]) };
    let cluster = start_control_plane_with(options).await;
    let (client, folder) = (cluster.client(), TempDir::new().unwrap());
    let taints = vec![json!({"key": "control", "effect": "NoSchedule"})];
    create_nodes(&client, &Nodes { prefix: "control", taints, ..Nodes::default() }).await;
    create_nodes(&client, &Nodes { count: 10, ..Nodes::default() }).await;
    recommender::create_crds(&client).await;
    let controllers = ["deployment-controller", "replicaset-controller"];
    let _controllers = cluster.start_controller_manager(&controllers).await.unwrap();
    let (helm, kubectl) = (Helm::on(&cluster), Kubectl::new(&cluster).await);
    let kubeconfig = cluster.kubeconfig_for(ACCOUNT).unwrap();
    let mut kubelet = Kubelet { client: client.clone(), kubeconfig, processes: BTreeMap::new() };
    let values = |name: &str, text: &str| {
        let file = folder.path().join(name);
        fs::write(&file, text).unwrap();
        format!("--values={}", file.display())
    };

    // The old revision, with pods that run and pods that wait for room, for their gang and for their quota.
    helm.run(&["install", "berth", "charts/berth", "--create-namespace", &values("old", OLD)]).await.unwrap();
    kubelet.roll_out().await;
    kubectl.must(&["create", "namespace", "red"], "").await;
    for file in ["manifests/example-policy.yaml", "manifests/example-service-scaler.yaml"] {
        kubectl.must(&["apply", "-f", file], "").await;
    }
    for object in [quota(2), allocation("runs"), allocation("waits"), deployment()] {
        kubectl.must(&["apply", "-f", "-"], &object).await;
    }
    recommender::create(&recommender::vpas(&client), recommender::vpa("web", "web", "berth")).await;
    // Otherwise pods that arrive before the quota is read are placed at once.
    kubectl.must(&["wait", "--for=condition=InForce", "quota/red"], "").await;
    let of_red =
        Pods { namespace: "red", prefix: "red", count: 5, requests: json!({"cpu": "1"}), ..Pods::default() };
    create_pods(&client, &of_red, |_, _| {}).await;
    create_sized(&client, "plain", 20, "1", None).await;
    create_sized(&client, "member", 4, "1", Some("runs")).await;
    create_sized(&client, "large", 6, "5", None).await;
    create_sized(&client, "huge", 4, "7", None).await;
    create_sized(&client, "waiting-member", 4, "7", Some("waits")).await;
    await_running(&client, 26).await;
    let (mut running, before) = (running_pods(&client).await, objects(&client).await);
    assert_eq!(before.len(), 6, "{before:?}");
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    let ca = async || secrets.get("berth-tls").await.unwrap().data.unwrap()["ca.crt"].clone();
    let first_ca = ca().await;

    let upgrade = ["upgrade", "berth", "charts/berth", "--reset-then-reuse-values", &values("new", NEW)];
    helm.run(&upgrade).await.unwrap();
    tokio::join!(kubelet.roll_out(), create_sized(&client, "during-upgrade", 60, "50m", None));
    kubectl.must(&["-n", NAMESPACE, "rollout", "status", "deployment/berth"], "").await;
    await_bound(&client, SOON, 26 + 60, is_of_users).await;
    let is_unchanged = async |running: &BTreeMap<_, _>| {
        let now = running_pods(&client).await;
        running.iter().all(|(name, pod)| now.get(name) == Some(pod))
    };
    assert!(is_unchanged(&running).await, "a running pod was touched");
    create_nodes(&client, &Nodes { prefix: "six", count: 6, cpu: "6", ..Nodes::default() }).await;
    await_running(&client, 26 + 60 + 6).await;
    running = running_pods(&client).await;
    let pods = all_pods(&client).await;
    let web = pods.iter().map(name_of).find(|name| name.starts_with("web-")).expect("the Deployment's pod");
    await_until(SOON, "usage is kept in a checkpoint", async || {
        recommender::measure(&client, web, jiff::Timestamp::now(), "100m", "100Mi").await;
        let all = recommender::checkpoints(&client).list(&ListParams::default()).await.unwrap().items;
        all.iter().any(|checkpoint| checkpoint.data["status"]["totalSamplesCount"].as_i64() > Some(0))
    })
    .await;
    let upgraded = objects(&client).await;
    assert!(before.iter().all(|(name, spec)| &upgraded[name] == spec), "{before:?} became {upgraded:?}");

    helm.run(&["rollback", "berth"]).await.unwrap();
    tokio::join!(kubelet.roll_out(), create_sized(&client, "during-rollback", 40, "50m", None));
    assert_eq!(kubelet.processes.len(), 1);
    await_bound(&client, SOON, 26 + 60 + 6 + 40, is_of_users).await;
    assert!(is_unchanged(&running).await, "a running pod was touched");
    create_nodes(&client, &Nodes { prefix: "eight", count: 8, cpu: "8", ..Nodes::default() }).await;
    await_bound(&client, SOON, 26 + 60 + 6 + 40 + 8, is_of_users).await;
    let rolled_back = objects(&client).await;
    assert_eq!(rolled_back, upgraded);
    let checkpoints = recommender::checkpoints(&client).list(&ListParams::default()).await.unwrap().items;
    assert!(checkpoints[0].data["status"]["totalSamplesCount"].as_i64() > Some(0), "{checkpoints:?}");
    let vpa = recommender::vpas(&client).get("web").await.unwrap();
    assert!(vpa.data["status"]["recommendation"].is_object(), "{vpa:?}");
    assert!(ca().await == first_ca, "clients would have to load another CA");

    // The line of the quota goes on where it was.
    kubectl.must(&["apply", "-f", "-"], &quota(60)).await;
    await_bound(&client, SOON, 26 + 60 + 6 + 40 + 8 + 3, is_of_users).await;
    assert_eq!(all_pods(&client).await.iter().filter(|pod| is_of_users(pod)).count(), 144, "and `web`");
    assert_no_overcommit(&client).await;
    let binds = audit.requests().into_iter().filter(|it| it.is_bind() && it.user() == ACCOUNT);
    let (bound, refused): (Vec<_>, Vec<_>) = binds.partition(Request::succeeded);
    let names: BTreeSet<&str> = bound.iter().map(Request::name).collect();
    assert_eq!((bound.len(), names.len(), refused.len()), (143, 143, 0), "each once: {refused:?}");
}

/// Copies the chart with one more field in the spec of a Quota.
fn newer_chart(folder: &Path) -> PathBuf {
    let copied = Command::new("cp").arg("-r").arg(chart()).arg(folder).status().unwrap();
    assert!(copied.success());
    let newer = folder.join("berth");
    let file = newer.join("files/crds/quotas.berth.dev.yaml");
    let mut kind: Value = serde_saphyr::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let spec = kind.pointer_mut("/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties");
    spec.expect("the fields of a spec")["ticket"] = json!({"type": "string"});
    fs::write(&file, kind.to_string()).unwrap();
    newer
}

#[tokio::test]
async fn a_rollback_drops_only_the_fields_that_the_older_kinds_lack_and_only_at_the_next_write() {
    let cluster = start_control_plane().await;
    let (folder, helm, kubectl) = (TempDir::new().unwrap(), Helm::on(&cluster), Kubectl::new(&cluster).await);
    helm.run(&["install", "berth", "charts/berth", "--create-namespace"]).await.unwrap();
    kubectl.must(&["apply", "-f", "-"], &quota(2)).await;
    let newer = newer_chart(folder.path());
    let upgrade = async || {
        helm.run(&["upgrade", "berth", newer.to_str().unwrap(), "--reset-then-reuse-values"]).await.unwrap()
    };
    upgrade().await;
    let spec = async || -> Value {
        let quota = kubectl.must(&["get", "quota.berth.dev", "red", "-o", "json"], "").await;
        serde_json::from_str::<Value>(&quota).unwrap()["spec"].clone()
    };
    let old = spec().await;
    let mut with_ticket = old.clone();
    with_ticket["ticket"] = json!("A-1");
    let set = |path: &str, value: &str| json!([{"op": "add", "path": path, "value": value}]).to_string();
    await_until(SOON, "the new field is kept", async || {
        let patch = set("/spec/ticket", "A-1");
        kubectl.must(&["patch", "quota.berth.dev", "red", "--type=json", "-p", &patch], "").await;
        spec().await == with_ticket
    })
    .await;

    helm.run(&["rollback", "berth"]).await.unwrap();
    await_until(SOON, "the older kind is served", async || spec().await == old).await;
    upgrade().await;
    await_until(SOON, "without a write, the field comes back", async || spec().await == with_ticket).await;
    helm.run(&["rollback", "berth"]).await.unwrap();
    await_until(SOON, "the older kind is served", async || spec().await == old).await;
    kubectl.must(&["label", "quota.berth.dev", "red", "team=red"], "").await;
    upgrade().await;
    let definition = ["get", "crd", "quotas.berth.dev", "-o", "json"];
    await_until(SOON, "the newer kind is served", async || {
        kubectl.must(&definition, "").await.contains("\"ticket\"")
    })
    .await;
    assert_eq!(spec().await, old);
}
