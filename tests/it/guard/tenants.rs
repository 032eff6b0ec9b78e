//! Objects of a tenant: what very many of one kind cost the pods of another namespace, and how much memory they take.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use berth_test_support::prometheus::{Fake, vector};
use berth_testenv::{Options, User};
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::rbac::v1::{ClusterRole, RoleBinding};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::watcher;
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use super::*;
use crate::allocations::Kubectl;
use crate::chart::rendered;
use crate::recommender;

const TENANT: &str = "system:serviceaccount:tenant:creator";
const NODES: usize = 200;
/// Pods of the other namespace, created each second.
const PODS: usize = 30;
/// Their different requests.
const CLASSES: usize = 4;
const IN_FLIGHT: usize = 16;
/// Longest latency in the figures.
const LOST: Duration = Duration::from_secs(60);

/// What the tenant creates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// berth does not read them: what they cost is the API server's.
    ConfigMaps,
    Allocations,
    PodGroups,
    ServiceScalers,
    Vpas,
    /// Of different classes, which fit nowhere.
    Pods,
}

impl Kind {
    /// Those that berth reads.
    const READ: [Kind; 5] =
        [Kind::Allocations, Kind::PodGroups, Kind::ServiceScalers, Kind::Vpas, Kind::Pods];

    /// Returns the path of the objects, their type, and all but the metadata of one.
    fn object(self, at: usize) -> (&'static str, &'static str, &'static str, Value) {
        let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": format!("missing-{at}")});
        match self {
            Kind::ConfigMaps => {
                let filler = "x".repeat(200);
                (
                    "/api/v1/namespaces/tenant/configmaps",
                    "v1",
                    "ConfigMap",
                    json!({"data": {"filler": filler}}),
                )
            }
            Kind::Allocations => (
                "/apis/berth.dev/v1alpha1/namespaces/tenant/allocations",
                "berth.dev/v1alpha1",
                "Allocation",
                json!({"spec": {"minimum": 2, "selector": {"matchLabels": {"gang": format!("gang-{at}")}}}}),
            ),
            Kind::PodGroups => (
                "/apis/scheduling.k8s.io/v1alpha2/namespaces/tenant/podgroups",
                "scheduling.k8s.io/v1alpha2",
                "PodGroup",
                json!({"spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}}),
            ),
            Kind::ServiceScalers => (
                "/apis/berth.dev/v1alpha1/namespaces/tenant/servicescalers",
                "berth.dev/v1alpha1",
                "ServiceScaler",
                json!({"spec": {
                    "target": target,
                    "objectives": {"signal": {"type": "CpuThrottling", "target": "0.1"}},
                    "bounds": {"maxReplicas": 3},
                    "dryRun": false,
                }}),
            ),
            Kind::Vpas => (
                "/apis/autoscaling.k8s.io/v1/namespaces/tenant/verticalpodautoscalers",
                "autoscaling.k8s.io/v1",
                "VerticalPodAutoscaler",
                json!({"spec": {"targetRef": target, "recommenders": [{"name": "berth"}]}}),
            ),
            Kind::Pods => (
                "/api/v1/namespaces/tenant/pods",
                "v1",
                "Pod",
                json!({"spec": {
                    "schedulerName": "berth",
                    "containers": [{"name": "main", "image": "pause", "resources": {
                        "requests": {"cpu": format!("{}m", 100_000 + at)},
                    }}],
                }}),
            ),
        }
    }
}

/// From the creation of a pod until the watch shows its node, by the time of the creation.
#[derive(Default)]
struct Latencies {
    open: HashMap<String, Instant>,
    done: Vec<(Instant, Duration)>,
}

/// The other namespace: its pods are created all the time, and deleted when they are bound.
struct Neighbour {
    latencies: Arc<Mutex<Latencies>>,
    stops: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
}

/// Latencies of one phase, in milliseconds.
#[derive(Debug, Clone, Copy)]
struct Phase {
    p50: f64,
    p99: f64,
    longest: f64,
    pods: usize,
}

impl Neighbour {
    fn start(client: &Client) -> Neighbour {
        let (latencies, stops): (Arc<Mutex<Latencies>>, Arc<AtomicBool>) = Default::default();
        let pods: Api<Pod> = Api::namespaced(client.clone(), "neighbour");
        let creates = tokio::spawn({
            let (latencies, stops, pods) = (latencies.clone(), stops.clone(), pods.clone());
            async move {
                let mut ticks = tokio::time::interval(Duration::from_secs(1) / PODS as u32);
                for at in 0.. {
                    ticks.tick().await;
                    if stops.load(Ordering::Relaxed) {
                        return;
                    }
                    let name = format!("pod-{at}");
                    let cpu = format!("{}m", 1 + at % CLASSES);
                    let pod = json!({
                        "metadata": {"name": name},
                        "spec": {
                            "schedulerName": "berth",
                            "containers": [{"name": "main", "image": "pause", "resources": {"requests": {"cpu": cpu}}}],
                        },
                    });
                    let pod: Pod = serde_json::from_value(pod).expect("a pod");
                    let (latencies, pods) = (latencies.clone(), pods.clone());
                    tokio::spawn(async move {
                        latencies.lock().open.insert(name, Instant::now());
                        pods.create(&PostParams::default(), &pod).await.expect("it is created");
                    });
                }
            }
        });
        let watches = tokio::spawn({
            let latencies = latencies.clone();
            async move {
                let mut events = std::pin::pin!(watcher(pods.clone(), watcher::Config::default()));
                while let Some(event) = events.next().await {
                    let Ok(watcher::Event::Apply(pod)) = event else { continue };
                    let now = Instant::now();
                    if node_of(&pod).is_none() {
                        continue;
                    }
                    let mut latencies = latencies.lock();
                    if let Some(created) = latencies.open.remove(name_of(&pod)) {
                        latencies.done.push((created, now - created));
                        let (pods, name) = (pods.clone(), name_of(&pod).to_owned());
                        tokio::spawn(async move {
                            let _ = pods.delete(&name, &DeleteParams::default().grace_period(0)).await;
                        });
                    }
                }
            }
        });
        Neighbour { latencies, stops, tasks: vec![creates, watches] }
    }

    /// Returns the latencies of the pods that are created while `work` runs, after all of them are bound.
    async fn during<T>(&self, work: impl Future<Output = T>) -> (Phase, T) {
        let began = Instant::now();
        let done = work.await;
        let ended = Instant::now();
        let is_of = |created: &Instant| (began..ended).contains(created);
        await_until(LOST, "the pods of the other namespace are bound", async || {
            !self.latencies.lock().open.values().any(is_of)
        })
        .await;
        let latencies = self.latencies.lock();
        let of = latencies.done.iter().filter(|(created, _)| is_of(created));
        let mut all: Vec<f64> = of.map(|(_, took)| took.as_secs_f64() * 1e3).collect();
        all.sort_by(f64::total_cmp);
        let at = |share: f64| all[((all.len() - 1) as f64 * share).ceil() as usize];
        (Phase { p50: at(0.5), p99: at(0.99), longest: at(1.0), pods: all.len() }, done)
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        self.stops.store(true, Ordering::Relaxed);
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Creates the objects at this rate a second. Returns how long it took.
async fn create_many(tenant: &Client, kind: Kind, numbers: Range<usize>, rate: usize) -> Duration {
    let (began, first) = (tokio::time::Instant::now(), numbers.start);
    let create = |at: usize| async move {
        let after = Duration::from_secs(1).mul_f64((at - first) as f64 / rate as f64);
        tokio::time::sleep_until(began + after).await;
        let (path, api_version, object_kind, mut object) = kind.object(at);
        object["apiVersion"] = json!(api_version);
        object["kind"] = json!(object_kind);
        object["metadata"] = json!({"name": format!("many-{at}")});
        let request = http::Request::post(path)
            .header("content-type", "application/json")
            .body(object.to_string().into_bytes())
            .expect("a request");
        tenant.request_text(request).await.unwrap_or_else(|error| panic!("{kind:?}: {error}"));
    };
    stream::iter(numbers).map(create).buffer_unordered(IN_FLIGHT).collect::<Vec<_>>().await;
    began.elapsed()
}

/// A cluster with all features of berth, a neighbour and a tenant.
struct Tenancy {
    neighbour: Neighbour,
    berth: Berth,
    tenant: Client,
    _prometheus: Fake,
    _certificates: Certificates,
    _controllers: berth_testenv::Process,
    _cluster: TestControlPlane,
}

async fn create_cluster_roles(client: &Client) {
    let values = "rbac: {aggregatedRoles: {enabled: true, serviceScalers: true}}";
    let mut roles: Vec<Value> =
        rendered(values).into_iter().filter(|it| it["kind"] == "ClusterRole").collect();
    // As many clusters have it for VPAs and PodGroups.
    roles.push(json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {
            "name": "more-edit",
            "labels": {"rbac.authorization.k8s.io/aggregate-to-edit": "true"},
        },
        "rules": [
            {"apiGroups": ["autoscaling.k8s.io"], "resources": ["verticalpodautoscalers"], "verbs": ["create", "get"]},
            {"apiGroups": ["scheduling.k8s.io"], "resources": ["podgroups"], "verbs": ["create", "get"]},
        ],
    }));
    let api: Api<ClusterRole> = Api::all(client.clone());
    for role in roles {
        let role = serde_json::from_value(role).expect("a ClusterRole");
        api.create(&PostParams::default(), &role).await.expect("it is created");
    }
}

impl Tenancy {
    async fn start() -> Tenancy {
        let tenant = User { name: TENANT.to_owned(), groups: vec!["system:serviceaccounts".to_owned()] };
        let mut api_server_args = Vec::new();
        if has_pod_groups() {
            api_server_args.push("--feature-gates=GenericWorkload=true".to_owned());
            api_server_args.push("--runtime-config=scheduling.k8s.io/v1alpha2=true".to_owned());
        }
        let cluster =
            start_control_plane_with(Options { users: vec![tenant], api_server_args, ..Options::default() })
                .await;
        let client = cluster.client();
        let controllers = cluster.start_controller_manager(&["clusterrole-aggregation-controller"]).await;
        Kubectl::new(&cluster).await.install_kinds().await;
        recommender::create_crds(&client).await;
        create_cluster_roles(&client).await;
        create_nodes(&client, &Nodes { count: NODES, ..Nodes::default() }).await;
        for name in ["neighbour", "tenant"] {
            let namespace = json!({"metadata": {"name": name, "labels": {"team": name}}});
            let namespace: Namespace = serde_json::from_value(namespace).expect("a namespace");
            let api = Api::all(client.clone());
            api.create(&PostParams::default(), &namespace).await.expect("it is created");
        }
        let binding = json!({
            "metadata": {"name": "creator"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
            "subjects": [{"kind": "ServiceAccount", "namespace": "tenant", "name": "creator"}],
        });
        let binding: RoleBinding = serde_json::from_value(binding).expect("a RoleBinding");
        let bindings = Api::namespaced(client.clone(), "tenant");
        bindings.create(&PostParams::default(), &binding).await.expect("it is created");

        let prometheus = Fake::start(|_, asked| match asked.is_time() {
            true => asked.answer(),
            false => vector(""),
        })
        .await;
        let certificates = Certificates::new();
        let serving = json!({"webhookSecret": "berth-webhooks", "webhookConfiguration": "berth"});
        let more = format!(
            "leaderElection: {{namespace: default}}\n\
             scaling: {{enabled: true, interval: 10s}}\n\
             recommender: {{enabled: true, interval: 10s, prometheus: {{url: '{}'}}}}",
            prometheus.url
        );
        let berth = Berth::start(&cluster.kubeconfig(), &certificates.config_with(&serving, &more));
        berth.await_ready().await;
        install(&client, berth.secure_address().await, &certificates.ca, "Ignore").await;
        let kubeconfig = cluster.kubeconfig_for(TENANT).expect("a user of the cluster");
        let kubeconfig = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
        let tenant = Client::try_from(config.expect("a configuration")).expect("a client");
        let neighbour = Neighbour::start(&client);
        Tenancy {
            neighbour,
            berth,
            tenant,
            _prometheus: prometheus,
            _certificates: certificates,
            _controllers: controllers.expect("controllers"),
            _cluster: cluster,
        }
    }
}

/// PodGroups of Kubernetes are newer than other supported versions.
fn has_pod_groups() -> bool {
    api_server_minor() >= 36
}

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Peak of its resident memory, in MiB.
fn peak_mib(berth: &Berth) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", berth.id())).expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("its peak");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") >> 10
}

/// Prints the longest holds of the engine's lock.
async fn print_holds(berth: &Berth) {
    let (_, scrape) = berth.get("/metrics").await;
    let mut holds: Vec<(f64, &str)> = scrape
        .lines()
        .filter_map(|line| {
            line.strip_prefix("berth_engine_lock_hold_longest_seconds{operation=\"")?.split_once("\"} ")
        })
        .filter_map(|(operation, seconds)| Some((seconds.parse().ok()?, operation)))
        .collect();
    holds.sort_by(|a, b| b.0.total_cmp(&a.0));
    let holds: Vec<String> =
        holds.iter().take(5).map(|(seconds, of)| format!("{of} {:.1} ms", seconds * 1e3)).collect();
    println!("  longest holds of the engine's lock: {}", holds.join(", "));
}

/// Measures the neighbour before, while and after the tenant creates ConfigMaps and then objects of this kind.
async fn measure(kind: Kind, count: usize, rate: usize, window: Duration) {
    let tenancy = Tenancy::start().await;
    let Tenancy { neighbour, berth, tenant, .. } = &tenancy;
    let _quiet = quiet_turn().await;
    let idle = || tokio::time::sleep(window);
    idle().await;
    let mut phases = vec![("before", neighbour.during(idle()).await.0)];
    for (creates, [meanwhile, after]) in
        [(Kind::ConfigMaps, ["ConfigMaps", "after ConfigMaps"]), (kind, ["objects", "after objects"])]
    {
        let (phase, took) = neighbour.during(create_many(tenant, creates, 0..count, rate)).await;
        println!("{count} {creates:?} in {:.1} s; memory {} MiB", took.as_secs_f64(), peak_mib(berth));
        phases.push((meanwhile, phase));
        phases.push((after, neighbour.during(idle()).await.0));
        if creates == kind {
            phases.push(("later", neighbour.during(idle()).await.0));
        }
    }
    let p99 = |name: &str| phases.iter().find(|(of, _)| *of == name).expect("a phase").1.p99;
    for (name, Phase { p50, p99, longest, pods }) in &phases {
        println!("  {kind:?}, {name}: p50 {p50:.1}, p99 {p99:.1}, longest {longest:.1} ms, {pods} pods");
    }
    println!(
        "{count} {kind:?}: p99 {:.2} of that of ConfigMaps meanwhile, {:.2} after them and {:.2} later; before {:.2}; peak {} MiB",
        p99("objects") / p99("ConfigMaps"),
        p99("after objects") / p99("after ConfigMaps"),
        p99("later") / p99("after ConfigMaps"),
        p99("before") / p99("after ConfigMaps"),
        peak_mib(berth),
    );
    print_holds(berth).await;
}

/// Not more than a check that the measurement works.
#[tokio::test(flavor = "multi_thread")]
async fn objects_of_a_tenant_are_read_beside_the_pods_of_others() {
    measure(Kind::Vpas, 200, 200, Duration::from_secs(2)).await;
}

/// Returns the status of an object of the tenant.
async fn status(tenant: &Client, kind: Kind, name: &str) -> Value {
    let (path, ..) = kind.object(0);
    let request = http::Request::get(format!("{path}/{name}")).body(Vec::new()).expect("a request");
    let object: Value = tenant.request(request).await.expect("it exists");
    object["status"].clone()
}

fn has_reason(status: &Value, type_: &str, reason: &str) -> bool {
    let conditions = status["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|it| it["type"] == type_ && it["reason"] == reason)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "creates 8,000 objects: .ci/long tenants"]
async fn objects_beyond_the_limit_of_their_namespace_have_a_condition() {
    const LIMIT: usize = 4_096;
    let tenancy = Tenancy::start().await;
    let Tenancy { berth, tenant, .. } = &tenancy;
    for (kind, condition, metric) in [
        (Kind::Vpas, "ConfigUnsupported", "berth_recommender_vpas_beyond_limit"),
        (Kind::Allocations, "Accepted", "berth_allocations_ignored"),
    ] {
        create_many(tenant, kind, 0..LIMIT, 1_000).await;
        // Times of creation are whole seconds.
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        create_many(tenant, kind, LIMIT..LIMIT + 1, 1).await;
        await_until(SOON, "one object is beyond the limit", async || berth.metric(metric).await == 1.0).await;
        let (before, last) = (format!("many-{}", LIMIT - 1), format!("many-{LIMIT}"));
        await_until(SOON, &format!("the last one of {kind:?} has its condition"), async || {
            has_reason(&status(tenant, kind, &last).await, condition, "LimitReached")
        })
        .await;
        assert!(!has_reason(&status(tenant, kind, &before).await, condition, "LimitReached"));
    }
}

/// `.ci/long tenants`; `BERTH_TENANT_OBJECTS`, `BERTH_TENANT_RATE` (a second), `BERTH_TENANT_SECONDS` of each window, and
/// `BERTH_TENANT_KINDS` change it.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures for minutes: .ci/long tenants"]
async fn very_many_objects_of_a_tenant_do_not_delay_the_pods_of_others() {
    let count = number("BERTH_TENANT_OBJECTS", 10_000);
    let rate = number("BERTH_TENANT_RATE", 500);
    let window = Duration::from_secs(number("BERTH_TENANT_SECONDS", 30) as u64);
    let wanted = std::env::var("BERTH_TENANT_KINDS").unwrap_or_default();
    for kind in Kind::READ {
        let is_wanted = wanted.is_empty() || wanted.split(',').any(|name| name == format!("{kind:?}"));
        if is_wanted && (kind != Kind::PodGroups || has_pod_groups()) {
            measure(kind, count, rate, window).await;
        }
    }
}
