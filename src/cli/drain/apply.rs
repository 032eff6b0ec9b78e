//! `berth drain --apply`: carries a plan out, one node at a time, each proved again on the cluster as it is then.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client};
use serde::Serialize;
use serde_json::json;

use crate::drain::{EmptiedNode, PlannedMove};

/// Interval between two looks at the pods that move, and between two requests for an eviction that a budget refuses.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const PAGE: u32 = 500;
const TOO_MANY_REQUESTS: u16 = 429;
const NOT_FOUND: u16 = 404;
const CONFLICT: u16 = 409;

/// A node that was emptied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AppliedStep {
    pub node: String,
    /// The pods that were evicted, as NAMESPACE/NAME.
    pub evicted: Vec<String>,
}

/// Writes to the cluster.
pub struct Drainer {
    client: Client,
    /// Time in which the pods of a node must run elsewhere.
    step_max: Duration,
    /// The nodes that this command has cordoned and not emptied.
    cordoned: BTreeSet<String>,
}

/// The controllers of pods that move, by namespace and uid: the number of their pods that must have other nodes.
type Successors = BTreeMap<(String, String), usize>;

impl Drainer {
    pub fn new(client: Client, step_max: Duration) -> Drainer {
        Drainer { client, step_max, cordoned: BTreeSet::new() }
    }

    /// Cordons nodes.
    pub async fn cordon(&mut self, nodes: impl Iterator<Item = &str>) -> Result<()> {
        let api: Api<Node> = Api::all(self.client.clone());
        for name in nodes {
            let node = api.get(name).await.with_context(|| format!("cannot read node {name}"))?;
            if node.spec.and_then(|spec| spec.unschedulable).unwrap_or_default() {
                continue;
            }
            set_unschedulable(&api, name, true)
                .await
                .with_context(|| format!("cannot cordon node {name}"))?;
            self.cordoned.insert(name.to_owned());
        }
        Ok(())
    }

    /// Uncordons the nodes that this command has cordoned and not emptied. Returns their names.
    ///
    /// # Errors
    /// Names all nodes that are still cordoned.
    pub async fn uncordon_rest(&mut self) -> Result<Vec<String>> {
        let api: Api<Node> = Api::all(self.client.clone());
        let mut uncordoned = Vec::new();
        while let Some(name) = self.cordoned.first().cloned() {
            let rest = || Vec::from_iter(self.cordoned.iter().map(String::as_str)).join(" ");
            let set = set_unschedulable(&api, &name, false).await;
            set.with_context(|| format!("cannot uncordon node {name}: run `kubectl uncordon {}`", rest()))?;
            self.cordoned.remove(&name);
            uncordoned.push(name);
        }
        Ok(uncordoned)
    }

    /// Evicts the pods of a node, and waits until their controllers have as many pods on other nodes as before.
    ///
    /// # Errors
    /// What differs from the plan.
    pub async fn empty(&mut self, step: &EmptiedNode) -> Result<AppliedStep> {
        let began = Instant::now();
        let mut namespaces: BTreeSet<&str> = BTreeSet::new();
        for planned in &step.moves {
            namespaces.insert(name_of(planned).0);
        }
        let before = self.pods_of(&namespaces).await?;
        let (mut evicted, mut leaving) = (Vec::new(), BTreeSet::new());
        let mut successors: Successors = BTreeMap::new();
        for planned in &step.moves {
            let (namespace, name) = name_of(planned);
            let is_it = |pod: &&Pod| {
                pod.metadata.name.as_deref() == Some(name)
                    && pod.metadata.namespace.as_deref() == Some(namespace)
            };
            let Some(pod) = before.iter().find(is_it).filter(|pod| node_of(pod) == Some(&step.node)) else {
                return Err(anyhow!("pod {} is not on node {} any more", planned.pod, step.node));
            };
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            if let Some(owner) = owner_of(pod) {
                let is_its = |other: &&Pod| owner_of(other).as_ref() == Some(&owner) && runs(other);
                let count = before.iter().filter(is_its).count();
                successors.insert(owner, count);
            }
            self.evict(planned, &uid, began).await?;
            leaving.insert(uid);
            evicted.push(planned.pod.clone());
        }
        loop {
            let pods = self.pods_of(&namespaces).await?;
            let gone = |pod: &Pod| pod.metadata.uid.as_ref().is_none_or(|uid| !leaving.contains(uid));
            let count = |owner: &(String, String)| {
                let of_owner = |pod: &&Pod| owner_of(pod).as_ref() == Some(owner);
                pods.iter()
                    .filter(of_owner)
                    .filter(|pod| runs(pod) && node_of(pod) != Some(&step.node))
                    .count()
            };
            let missing = successors.iter().find(|(owner, wanted)| count(owner) < **wanted);
            if missing.is_none() && pods.iter().all(gone) {
                break;
            }
            if began.elapsed() >= self.step_max {
                let still = pods.iter().find(|pod| !gone(pod)).and_then(|pod| pod.metadata.name.clone());
                let what = match (still, missing) {
                    (Some(pod), _) => format!("pod {pod} is still ending"),
                    (None, Some(((namespace, _), wanted))) => {
                        format!(
                            "a controller in namespace {namespace} does not have its {wanted} pods on other nodes again"
                        )
                    }
                    (None, None) => "the pods have not moved".to_owned(),
                };
                return Err(anyhow!("after {} s, {what}", self.step_max.as_secs()));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        self.cordoned.remove(&step.node);
        Ok(AppliedStep { node: step.node.clone(), evicted })
    }

    /// Evicts one pod, if it is still the same. Waits for its disruption budget.
    async fn evict(&self, planned: &PlannedMove, uid: &str, began: Instant) -> Result<()> {
        let (namespace, name) = name_of(planned);
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let same = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
        let delete_options = Some(DeleteParams { preconditions: Some(same), ..DeleteParams::default() });
        let params = EvictParams { delete_options, ..EvictParams::default() };
        loop {
            match api.evict(name, &params).await {
                Ok(_) => return Ok(()),
                Err(kube::Error::Api(status)) if status.code == NOT_FOUND => return Ok(()),
                Err(kube::Error::Api(status)) if status.code == CONFLICT => {
                    return Err(anyhow!("pod {} is another one now", planned.pod));
                }
                Err(kube::Error::Api(status)) if status.code == TOO_MANY_REQUESTS => {
                    if began.elapsed() >= self.step_max {
                        return Err(anyhow!("pod {} may not be evicted: {}", planned.pod, status.message));
                    }
                    tokio::time::sleep(LOOK_EVERY).await;
                }
                Err(error) => return Err(error).with_context(|| format!("cannot evict pod {}", planned.pod)),
            }
        }
    }

    async fn pods_of(&self, namespaces: &BTreeSet<&str>) -> Result<Vec<Pod>> {
        let mut pods = Vec::new();
        for namespace in namespaces {
            let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
            let mut page = ListParams::default().limit(PAGE);
            loop {
                let list = api.list(&page).await;
                let list = list.with_context(|| format!("cannot list the pods of namespace {namespace}"))?;
                pods.extend(list.items);
                match list.metadata.continue_.filter(|token| !token.is_empty()) {
                    Some(token) => page = page.continue_token(&token),
                    None => break,
                }
            }
        }
        Ok(pods)
    }
}

async fn set_unschedulable(api: &Api<Node>, name: &str, on: bool) -> kube::Result<Node> {
    let patch = Patch::Merge(json!({"spec": {"unschedulable": on}}));
    api.patch(name, &PatchParams::default(), &patch).await
}

/// Returns namespace and name of a pod.
fn name_of(planned: &PlannedMove) -> (&str, &str) {
    planned.pod.split_once('/').unwrap_or(("", &planned.pod))
}

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// Returns whether a pod has a node and is not about to leave it.
fn runs(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    pod.metadata.deletion_timestamp.is_none()
        && node_of(pod).is_some()
        && !matches!(phase, Some("Succeeded" | "Failed"))
}

/// Returns namespace and uid of the controller of a pod.
fn owner_of(pod: &Pod) -> Option<(String, String)> {
    let owners = pod.metadata.owner_references.as_ref()?;
    let controller = owners.iter().find(|owner| owner.controller == Some(true))?;
    Some((pod.metadata.namespace.clone()?, controller.uid.clone()))
}
