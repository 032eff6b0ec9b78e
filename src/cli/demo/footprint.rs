//! Objects that a demo creates on an existing cluster, besides its pods and nodes, and the removal of them all.
//!
//! All of them have the label [`DEMO_LABEL`] with the demo's name. What a killed demo has left behind is found by it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use kube::Client;
use serde_json::{Value, json};

use super::heartbeats::{DEMO_EVERY, DEMO_LEASE, NODE_LEASES, leases_of};
use super::objects::{create_object, delete_collection, delete_objects, get_object, list_labelled};
use super::workload::DEMO_LABEL;

pub const NAME_PREFIX: &str = "berth-demo-";

const NAMESPACES: &str = "/api/v1/namespaces";
const NODES: &str = "/api/v1/nodes";
const CLUSTER_ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
const CLUSTER_ROLE_BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
/// Collections with a demo's objects outside of its namespace, in the order of removal.
const COLLECTIONS: [&str; 4] = [NODES, NODE_LEASES, CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES];

/// Time for the cluster to delete a namespace.
const NAMESPACE_MAX: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// A demo that does not renew its Lease for this time has ended.
pub const SILENCE: Duration = Duration::from_secs(6 * DEMO_EVERY.as_secs());

/// Creates the namespace `demo`, and the permissions of the user `demo`, as whom berth runs: it reads what a scheduler needs, and
/// writes only in this namespace.
pub async fn create_footprint(client: &Client, demo: &str) -> Result<()> {
    let metadata = |name: &str| json!({"name": name, "labels": {DEMO_LABEL: demo}});
    let namespace = json!({"metadata": {
        "name": demo,
        // Pods with a host port are in the workload; no kubelet runs them.
        "labels": {DEMO_LABEL: demo, "pod-security.kubernetes.io/enforce": "privileged"},
    }});
    create_object(client, NAMESPACES, &namespace).await?;

    let role = json!({"metadata": metadata(demo), "rules": rules_of_reads()});
    create_object(client, CLUSTER_ROLES, &role).await?;
    let binding = |kind: &str| {
        json!({
            "metadata": metadata(demo),
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": demo},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": demo}],
        })
    };
    create_object(client, CLUSTER_ROLE_BINDINGS, &binding("ClusterRole")).await?;
    let of_namespace = |kind| format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{demo}/{kind}");
    let role = json!({"metadata": metadata(demo), "rules": rules_of_writes()});
    create_object(client, &of_namespace("roles"), &role).await?;
    create_object(client, &of_namespace("rolebindings"), &binding("Role")).await?;

    // Without it, the first pods may be rejected: the cluster creates it a moment after the namespace.
    let accounts = format!("{NAMESPACES}/{demo}/serviceaccounts");
    let created = create_object(client, &accounts, &json!({"metadata": metadata("default")})).await;
    match created {
        Err(_) if get_object(client, &accounts, "default").await?.is_some() => Ok(()),
        created => created,
    }
}

fn rules_of_reads() -> Value {
    let read = |group: &str, resources: &[&str]| {
        let verbs = ["get", "list", "watch"];
        json!({"apiGroups": [group], "resources": resources, "verbs": verbs})
    };
    json!([
        read(
            "",
            &[
                "pods",
                "nodes",
                "namespaces",
                "services",
                "replicationcontrollers",
                "persistentvolumes",
                "persistentvolumeclaims",
            ],
        ),
        read("apps", &["replicasets", "statefulsets"]),
        read("policy", &["poddisruptionbudgets"]),
        read(
            "storage.k8s.io",
            &["storageclasses", "csidrivers", "csinodes", "csistoragecapacities", "volumeattachments"],
        ),
        read("resource.k8s.io", &["resourceclaims", "resourceslices", "deviceclasses"]),
        read("scheduling.k8s.io", &["podgroups"]),
        read("scheduling.x-k8s.io", &["podgroups"]),
        read("berth.dev", &["allocations", "allocationpolicies", "quotas"]),
    ])
}

fn rules_of_writes() -> Value {
    json!([
        {"apiGroups": [""], "resources": ["pods/binding"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]},
        {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create"]},
    ])
}

/// Deletes all objects of the demo, and returns when they are gone. Nothing may create any of them meanwhile, except requests
/// that are in flight.
///
/// # Errors
/// A request fails, or the cluster does not complete the deletion of the namespace in time.
pub async fn remove_footprint(client: &Client, demo: &str) -> Result<()> {
    remove_outside(client, demo).await?;
    if list_labelled(client, NAMESPACES, Some(demo)).await?.iter().any(|(name, _)| name == demo) {
        delete_collection(client, &format!("{NAMESPACES}/{demo}/pods")).await?;
        delete_objects(client, NAMESPACES, [demo.to_owned()]).await?;
        await_no_namespace(client, demo).await?;
    }
    // Creations that were in flight have arrived.
    remove_outside(client, demo).await
}

async fn remove_outside(client: &Client, demo: &str) -> Result<()> {
    for collection in COLLECTIONS {
        let found = list_labelled(client, collection, Some(demo)).await?;
        delete_objects(client, collection, found.into_iter().filter_map(own_name)).await?;
    }
    Ok(())
}

/// Returns the name of an object if it is a demo's: the label alone does not suffice for a deletion.
fn own_name((name, demo): (String, String)) -> Option<String> {
    let rest = name.strip_prefix(&*demo)?;
    let is_own = demo.starts_with(NAME_PREFIX) && (rest.is_empty() || rest.starts_with('-'));
    is_own.then_some(name)
}

async fn await_no_namespace(client: &Client, demo: &str) -> Result<()> {
    let started = Instant::now();
    while let Some(namespace) = get_object(client, NAMESPACES, demo).await? {
        if started.elapsed() > NAMESPACE_MAX {
            let conditions = namespace["status"]["conditions"].as_array().into_iter().flatten();
            let true_ones = conditions.filter(|condition| condition["status"] == "True");
            let why: Vec<&str> = true_ones.filter_map(|condition| condition["message"].as_str()).collect();
            bail!(
                "the cluster has not deleted the namespace {demo} after {} s: {}",
                NAMESPACE_MAX.as_secs(),
                if why.is_empty() { "it reports no reason".to_owned() } else { why.join("; ") },
            );
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}

/// Returns the names of all demos that have objects.
pub async fn list_demos(client: &Client) -> Result<BTreeSet<String>> {
    let mut demos = BTreeSet::new();
    for collection in COLLECTIONS.into_iter().chain([NAMESPACES]) {
        for (name, demo) in list_labelled(client, collection, None).await? {
            if own_name((name, demo.clone())).is_some() {
                demos.insert(demo);
            }
        }
    }
    Ok(demos)
}

/// Returns those of the demos that do not renew their Leases for [`SILENCE`]: they were killed.
pub async fn ended_demos(client: &Client, demos: BTreeSet<String>) -> Result<Vec<String>> {
    let before = renewals(client, &demos).await?;
    tokio::time::sleep(SILENCE).await;
    let after = renewals(client, &demos).await?;
    let is_silent = before.into_iter().zip(after).map(|(before, after)| before == after);
    Ok(demos.into_iter().zip(is_silent).filter(|(_, is_silent)| *is_silent).map(|(demo, _)| demo).collect())
}

/// Returns the time of the last renewal of each demo's Lease. Times are compared for equality only: clocks may differ.
async fn renewals(client: &Client, demos: &BTreeSet<String>) -> Result<Vec<Option<Value>>> {
    let mut times = Vec::new();
    for demo in demos {
        let lease = get_object(client, &leases_of(demo), DEMO_LEASE).await?;
        times.push(lease.map(|lease| lease["spec"]["renewTime"].clone()));
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_objects_with_the_name_of_a_demo_are_deleted() {
        let own = |name: &str, demo: &str| own_name((name.to_owned(), demo.to_owned())).is_some();
        assert!(own("berth-demo-1", "berth-demo-1"));
        assert!(own("berth-demo-1-node-7", "berth-demo-1"));
        assert!(!own("berth-demo-12", "berth-demo-1"));
        assert!(!own("worker-1", "berth-demo-1"));
        assert!(!own("", ""));
        assert!(!own("worker-1", ""));
        assert!(!own("worker-1", "worker"));
    }
}
