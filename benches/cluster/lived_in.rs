//! The lived-in workload: what charts and controllers leave in a cluster that many teams use.
//!
//! 500 workloads in 50 namespaces, each with its controller and its Service, so that Kubernetes' default spreading
//! applies to all of them; some have affinity to themselves, as many charts write it. Pods of another scheduler come and
//! go meanwhile, and a CoreDNS with its anti-affinity runs already.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod as ApiPod;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::workload::{HOSTNAME_LABEL, Pod, ZONE_LABEL, node_name, pod_name};

pub const NAMESPACES: usize = 50;
pub const WORKLOADS: usize = 500;
/// Name prefix of pods of other schedulers.
pub const FOREIGN: &str = "foreign";
const COREDNS_REPLICAS: usize = 2;

/// One pod of another scheduler is created, and an older one deleted, at this interval.
const CHURN_INTERVAL: Duration = Duration::from_millis(40);
/// Pods of another scheduler at any time.
const CHURN_PODS: usize = 200;

/// Constraint of a workload between its own pods.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Constraint {
    None,
    /// Preferred anti-affinity by hostname: a quarter.
    PreferOtherNodes,
    /// Required anti-affinity by hostname: a twentieth.
    OtherNodes,
    /// Soft topology spread over zones: a tenth.
    SpreadOverZones,
}

/// The workload of a pod.
pub fn workload_of(pod: Pod) -> usize {
    pod.index % WORKLOADS
}

/// Whether no two pods of the workload may be on one node.
pub fn keeps_apart(workload: usize) -> bool {
    constraint_of(workload) == Constraint::OtherNodes
}

fn constraint_of(workload: usize) -> Constraint {
    // Multiplied by a number without common divisors, so that constraints are independent of sizes and kinds.
    match workload * 7 % 20 {
        0..5 => Constraint::PreferOtherNodes,
        5 => Constraint::OtherNodes,
        6 | 7 => Constraint::SpreadOverZones,
        _ => Constraint::None,
    }
}

fn is_stateful(workload: usize) -> bool {
    workload.is_multiple_of(10)
}

pub fn namespace_name(workload: usize) -> String {
    format!("team-{:02}", workload % NAMESPACES)
}

fn app_name(workload: usize) -> String {
    format!("app-{workload:03}")
}

fn template_hash(workload: usize) -> String {
    format!("{:010x}", (workload as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24)
}

fn controller_name(workload: usize) -> String {
    match is_stateful(workload) {
        true => app_name(workload),
        false => format!("{}-{}", app_name(workload), template_hash(workload)),
    }
}

fn selector(workload: usize) -> Value {
    let mut labels = json!({"app": app_name(workload)});
    if !is_stateful(workload) {
        labels["pod-template-hash"] = json!(template_hash(workload));
    }
    labels
}

fn labels(workload: usize) -> Value {
    let mut labels = selector(workload);
    labels["app.kubernetes.io/name"] = json!(app_name(workload));
    labels["app.kubernetes.io/instance"] = json!(namespace_name(workload));
    labels
}

pub fn namespaces() -> impl ExactSizeIterator<Item = Value> {
    (0..NAMESPACES)
        .map(|at| json!({"metadata": {"name": namespace_name(at), "labels": {"team": format!("{at}")}}}))
}

pub fn services() -> impl ExactSizeIterator<Item = Value> {
    (0..WORKLOADS).map(|at| {
        json!({
            "metadata": {"name": app_name(at), "namespace": namespace_name(at)},
            "spec": {"clusterIP": "None", "selector": {"app": app_name(at)}},
        })
    })
}

fn controller(workload: usize) -> Value {
    json!({
        "metadata": {"name": controller_name(workload), "namespace": namespace_name(workload)},
        "spec": {
            // No controller manager runs.
            "replicas": 0,
            "selector": {"matchLabels": selector(workload)},
            "template": {
                "metadata": {"labels": labels(workload)},
                "spec": {"containers": [{"name": "main", "image": "pause"}]},
            },
        },
    })
}

fn controllers(stateful: bool) -> Vec<Value> {
    (0..WORKLOADS).filter(|at| is_stateful(*at) == stateful).map(controller).collect()
}

pub fn replica_sets() -> impl ExactSizeIterator<Item = Value> {
    controllers(false).into_iter()
}

pub fn stateful_sets() -> impl ExactSizeIterator<Item = Value> {
    let named = |mut set: Value| {
        set["spec"]["serviceName"] = set["metadata"]["name"].clone();
        set
    };
    controllers(true).into_iter().map(named)
}

/// Returns the namespace and the name of each StatefulSet.
pub fn stateful_names() -> impl Iterator<Item = (String, String)> {
    (0..WORKLOADS).filter(|at| is_stateful(*at)).map(|at| (namespace_name(at), controller_name(at)))
}

pub fn pod_json(pod: Pod, scheduler: &str) -> Value {
    let at = workload_of(pod);
    let mut labels = labels(at);
    if is_stateful(at) {
        let name = format!("{}-{}", app_name(at), pod.index / WORKLOADS);
        labels["statefulset.kubernetes.io/pod-name"] = json!(name);
        labels["apps.kubernetes.io/pod-index"] = json!(format!("{}", pod.index / WORKLOADS));
    }
    let kind = if is_stateful(at) { "StatefulSet" } else { "ReplicaSet" };
    let owner = json!({
        "apiVersion": "apps/v1", "kind": kind, "name": controller_name(at), "controller": true,
        "uid": format!("00000000-0000-0000-0000-{at:012}"),
    });
    let requests = json!({"cpu": format!("{}m", pod.milli_cpu), "memory": format!("{}Mi", pod.memory_mib)});
    let mut spec = json!({
        "schedulerName": scheduler,
        "containers": [{"name": "main", "image": "pause", "resources": {"requests": requests}}],
    });
    let term = json!({
        "labelSelector": {"matchLabels": {"app.kubernetes.io/name": app_name(at)}},
        "topologyKey": HOSTNAME_LABEL,
    });
    match constraint_of(at) {
        Constraint::None => {}
        Constraint::PreferOtherNodes => {
            let weighted = json!([{"weight": 100, "podAffinityTerm": term}]);
            spec["affinity"] =
                json!({"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": weighted}});
        }
        Constraint::OtherNodes => {
            spec["affinity"] =
                json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}});
        }
        Constraint::SpreadOverZones => {
            spec["topologySpreadConstraints"] = json!([{
                "maxSkew": 1, "topologyKey": ZONE_LABEL, "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {"app": app_name(at)}},
            }]);
        }
    }
    json!({
        "metadata": {
            "name": pod_name(pod.index), "namespace": namespace_name(at), "labels": labels,
            "ownerReferences": [owner],
        },
        "spec": spec,
    })
}

/// Returns the pods of CoreDNS, which run already.
pub fn coredns() -> impl ExactSizeIterator<Item = Value> {
    (0..COREDNS_REPLICAS).map(|at| {
        let term = json!({
            "labelSelector": {"matchExpressions": [{"key": "k8s-app", "operator": "In", "values": ["kube-dns"]}]},
            "topologyKey": HOSTNAME_LABEL,
        });
        let weighted = json!([{"weight": 100, "podAffinityTerm": term}]);
        json!({
            "metadata": {
                "name": format!("{FOREIGN}-coredns-{at}"), "namespace": "kube-system",
                "labels": {"k8s-app": "kube-dns"},
            },
            "spec": {
                "nodeName": node_name(at),
                "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": weighted}},
                "containers": [{"name": "main", "image": "pause", "resources": {"requests": {"cpu": "100m", "memory": "70Mi"}}}],
            },
        })
    })
}

/// Returns a pod that another scheduler has placed. Every fifth has anti-affinity of its own.
fn foreign_pod(number: usize, nodes: usize) -> Value {
    let app = format!("job-{}", number % 10);
    let mut spec = json!({
        "nodeName": node_name(number * 31 % nodes),
        "schedulerName": "another-scheduler",
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "main", "image": "pause", "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}}}],
    });
    if number.is_multiple_of(5) {
        let term = json!({"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": HOSTNAME_LABEL});
        spec["affinity"] =
            json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}});
    }
    json!({
        "metadata": {"name": format!("{FOREIGN}-{number:06}"), "labels": {"app": app}},
        "spec": spec,
    })
}

/// Lets pods of another scheduler come and go until it is dropped.
pub async fn churn(client: Client, nodes: usize) -> anyhow::Result<()> {
    let api = Api::<ApiPod>::namespaced(client, &namespace_name(0));
    let mut interval = tokio::time::interval(CHURN_INTERVAL);
    for number in 0.. {
        interval.tick().await;
        let pod = serde_json::from_value(foreign_pod(number, nodes))?;
        api.create(&PostParams::default(), &pod).await?;
        if let Some(old) = number.checked_sub(CHURN_PODS) {
            api.delete(&format!("{FOREIGN}-{old:06}"), &DeleteParams::default()).await?;
        }
    }
    Ok(())
}
