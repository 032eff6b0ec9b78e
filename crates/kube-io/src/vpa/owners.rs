//! Resolver of owner chains: Pod, ReplicaSet, Deployment.
//!
//! Upstream: `pkg/target/controller_fetcher/controller_fetcher.go`. The top of a chain is the last owner that is of a built-in
//! kind or has a `/scale` subresource.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;
use serde::Deserialize;

use super::api::{ApiError, Recommending};
use crate::lean::nullable;
use crate::pod_reader::is_name;
use berth_rightsizing::apply::SizingIndex;
use berth_rightsizing::apply::index::WorkloadObject;
use berth_rightsizing::recommend::OwnerRef;

/// Maximum depth of an owner chain. Chains are short; a cycle is a mistake of the objects' creator.
const DEPTH_MAX: usize = 8;
/// Rounds for which answers are cached: the owner of an object rarely changes.
const ROUNDS_KEPT: u64 = 10;

/// The result of resolving an owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TopOwner {
    /// It exists, and this is the top of its chain.
    Top(OwnerRef),
    Missing,
    /// It cannot be the target of a VPA, for this reason.
    Unsupported(String),
}

/// Resolves owners: those that are watched from the index, others with requests whose answers are cached for some rounds.
pub struct OwnerResolver {
    api: Recommending,
    index: Arc<RwLock<SizingIndex>>,
    /// The label whose value is read, if any.
    label: Option<String>,
    round: u64,
    seen: BTreeMap<(Arc<str>, OwnerRef), Remembered>,
    /// By group and version: the plural of each kind that has a `/scale`.
    scalable: BTreeMap<String, (u64, BTreeMap<String, String>)>,
}

struct Remembered {
    requested: u64,
    used: u64,
    lookup: OwnerLookup,
}

#[derive(Debug, Clone)]
enum OwnerLookup {
    Exists { controller: Option<OwnerRef>, uid: String, label: Option<String> },
    Missing,
    Unsupported(String),
}

pub(super) const METADATA: &str =
    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";

#[derive(Deserialize)]
struct WireOwner {
    metadata: Meta,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Meta {
    pub uid: String,
    #[serde(deserialize_with = "nullable")]
    labels: BTreeMap<String, String>,
    #[serde(deserialize_with = "nullable")]
    pub owner_references: Vec<OwnerReference>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct OwnerReference {
    api_version: String,
    kind: String,
    name: String,
    controller: Option<bool>,
}

/// Returns the controller among these references.
pub(super) fn controller(owners: Vec<OwnerReference>) -> Option<OwnerRef> {
    let owner = owners.into_iter().find(|owner| owner.controller == Some(true))?;
    Some(OwnerRef { api_version: owner.api_version, kind: owner.kind, name: owner.name })
}

impl Recommending {
    pub(super) async fn metadata(&self, path: &str, accept: &str) -> Result<Meta, ApiError> {
        let answer = self.get(path, accept).await?;
        serde_json::from_slice(&answer.body)
            .map(|object: WireOwner| object.metadata)
            .map_err(|error| ApiError::Other(format!("{path} cannot be parsed: {error}")))
    }
}

impl OwnerResolver {
    /// Creates a resolver. `index`: built-in kinds, from watches; `label`: a label whose value is read too.
    pub fn new(api: Recommending, index: Arc<RwLock<SizingIndex>>, label: Option<String>) -> Self {
        Self { api, index, label, round: 0, seen: BTreeMap::new(), scalable: BTreeMap::new() }
    }

    /// Starts a new round: drops answers that were not used for some rounds.
    pub fn next_round(&mut self) {
        self.round += 1;
        let round = self.round;
        self.seen.retain(|_, it| it.used + ROUNDS_KEPT >= round);
    }

    /// Returns the top of the chain that begins at `owner`.
    ///
    /// # Errors
    /// When a request fails.
    pub async fn top(&mut self, namespace: &Arc<str>, owner: &OwnerRef) -> Result<TopOwner, ApiError> {
        let mut at = match self.look(namespace, owner).await? {
            OwnerLookup::Missing => return Ok(TopOwner::Missing),
            OwnerLookup::Unsupported(why) => return Ok(TopOwner::Unsupported(why)),
            OwnerLookup::Exists { controller: None, .. } => return Ok(TopOwner::Top(owner.clone())),
            OwnerLookup::Exists { controller: Some(parent), .. } => (owner.clone(), parent),
        };
        for _ in 0..DEPTH_MAX {
            let (child, parent) = at;
            match self.look(namespace, &parent).await? {
                OwnerLookup::Missing | OwnerLookup::Unsupported(_) => return Ok(TopOwner::Top(child)),
                OwnerLookup::Exists { controller: None, .. } => return Ok(TopOwner::Top(parent)),
                OwnerLookup::Exists { controller: Some(next), .. } => at = (parent, next),
            }
        }
        Ok(TopOwner::Unsupported("its chain of owners has no end".to_owned()))
    }

    /// Returns the path of the `scale` of a workload, or the reason why it has none.
    ///
    /// # Errors
    /// When a request fails.
    pub async fn scale_path(
        &mut self,
        namespace: &str,
        owner: &OwnerRef,
    ) -> Result<Result<String, String>, ApiError> {
        let no_scale = || format!("{} {} has no scale", owner.kind, owner.name);
        if !is_name(&owner.name) {
            return Ok(Err(format!("`{}` is no name", owner.name)));
        }
        if let Some((prefix, plural)) = built_in(owner) {
            let scales =
                matches!(plural, "deployments" | "replicasets" | "statefulsets" | "replicationcontrollers");
            let path = || format!("{prefix}/namespaces/{namespace}/{plural}/{}/scale", owner.name);
            return Ok(scales.then(path).ok_or_else(no_scale));
        }
        let parts =
            owner.api_version.split_once('/').filter(|(group, version)| is_name(group) && is_name(version));
        let Some((group, version)) = parts else { return Ok(Err(no_scale())) };
        let plural = self.scalable(&owner.api_version).await?.get(&owner.kind);
        let path =
            |plural| format!("/apis/{group}/{version}/namespaces/{namespace}/{plural}/{}/scale", owner.name);
        Ok(plural.map(path).ok_or_else(no_scale))
    }

    /// Returns the uid of a resolved owner, and the value of the label.
    pub fn about(&self, namespace: &Arc<str>, owner: &OwnerRef) -> Option<(String, Option<String>)> {
        let asked = || Some(self.seen.get(&(namespace.clone(), owner.clone()))?.lookup.clone());
        match self.watched(namespace, owner).or_else(asked)? {
            OwnerLookup::Exists { uid, label, .. } => Some((uid, label)),
            _ => None,
        }
    }

    /// Returns what the watches know of an owner.
    fn watched(&self, namespace: &Arc<str>, owner: &OwnerRef) -> Option<OwnerLookup> {
        let index = self.index.read();
        let WorkloadObject { uid, owner, label, .. } = index.workload(namespace, owner)?;
        let (controller, uid, label) = (owner.clone(), uid.to_string(), label.clone());
        Some(OwnerLookup::Exists { controller, uid, label })
    }

    /// Returns the cached answer about an owner, if it is recent enough.
    fn cached(&mut self, namespace: &Arc<str>, owner: &OwnerRef) -> Option<OwnerLookup> {
        let round = self.round;
        let is_watched = self.index.read().follows_owner(owner);
        let known = self.seen.get_mut(&(namespace.clone(), owner.clone()))?;
        let is_fresh = match known.lookup {
            OwnerLookup::Exists { .. } => known.requested + ROUNDS_KEPT > round,
            // As soon as it exists, the watch shows it.
            OwnerLookup::Missing if is_watched => true,
            _ => known.requested == round,
        };
        is_fresh.then(|| {
            known.used = round;
            known.lookup.clone()
        })
    }

    async fn look(&mut self, namespace: &Arc<str>, owner: &OwnerRef) -> Result<OwnerLookup, ApiError> {
        // An owner that the watches do not show may be newer than they are.
        if let Some(known) = self.watched(namespace, owner).or_else(|| self.cached(namespace, owner)) {
            return Ok(known);
        }
        let look = match self.request(namespace, owner).await {
            Ok(look) => look,
            Err(ApiError::NotFound(_)) => OwnerLookup::Missing,
            Err(ApiError::Forbidden(message)) => OwnerLookup::Unsupported(message),
            Err(error) => return Err(error),
        };
        let (key, round) = ((namespace.clone(), owner.clone()), self.round);
        self.seen.insert(key, Remembered { requested: round, used: round, lookup: look.clone() });
        Ok(look)
    }

    async fn request(&mut self, namespace: &str, owner: &OwnerRef) -> Result<OwnerLookup, ApiError> {
        if !is_name(&owner.name) {
            return Ok(OwnerLookup::Missing);
        }
        let Some(folder) = built_in(owner) else { return self.request_scale(namespace, owner).await };
        let (prefix, plural) = folder;
        let path = format!("{prefix}/namespaces/{namespace}/{plural}/{}", owner.name);
        let metadata = self.api.metadata(&path, METADATA).await?;
        let label = self.label_in(&metadata);
        Ok(OwnerLookup::Exists {
            controller: controller(metadata.owner_references),
            uid: metadata.uid,
            label,
        })
    }

    fn label_in(&self, metadata: &Meta) -> Option<String> {
        metadata.labels.get(self.label.as_deref()?).cloned()
    }

    /// Looks up an owner of a custom kind. If it has a `/scale`, it is the top of its chain.
    async fn request_scale(&mut self, namespace: &str, owner: &OwnerRef) -> Result<OwnerLookup, ApiError> {
        let Some((group, version)) = owner.api_version.split_once('/') else {
            return Ok(OwnerLookup::Unsupported(format!("{} has no /scale", owner.kind)));
        };
        if !(is_name(group) && is_name(version)) {
            return Ok(OwnerLookup::Unsupported(format!(
                "`{}` is not a group and version",
                owner.api_version
            )));
        }
        let kinds = self.scalable(&owner.api_version).await?;
        let Some(plural) = kinds.get(&owner.kind).cloned() else {
            return Ok(OwnerLookup::Unsupported(format!(
                "{} of {} has no /scale",
                owner.kind, owner.api_version
            )));
        };
        let path = format!("/apis/{group}/{version}/namespaces/{namespace}/{plural}/{}", owner.name);
        let Meta { uid, .. } = self.api.metadata(&format!("{path}/scale"), "application/json").await?;
        let mut label = None;
        if self.label.is_some() {
            // A scale has no labels. Without permission to read the object itself, it counts as unlabelled.
            let object = self.api.metadata(&path, METADATA).await.unwrap_or_default();
            label = self.label_in(&object);
        }
        Ok(OwnerLookup::Exists { controller: None, uid, label })
    }

    async fn scalable(&mut self, api_version: &str) -> Result<&BTreeMap<String, String>, ApiError> {
        #[derive(Deserialize)]
        struct Resources {
            #[serde(default)]
            resources: Vec<Resource>,
        }
        #[derive(Deserialize)]
        struct Resource {
            name: String,
            kind: String,
        }
        let is_fresh = |known: &(u64, _)| known.0 + ROUNDS_KEPT > self.round;
        if !self.scalable.get(api_version).is_some_and(is_fresh) {
            let listed = match self.api.get(&format!("/apis/{api_version}"), "application/json").await {
                Ok(answer) => {
                    serde_json::from_slice::<Resources>(&answer.body)
                        .map_err(|error| ApiError::Other(format!("{api_version} cannot be parsed: {error}")))?
                        .resources
                }
                Err(ApiError::NotFound(_)) => Vec::new(),
                Err(error) => return Err(error),
            };
            let has_scale = |plural: &str| {
                listed.iter().any(|it| it.name.strip_suffix("/scale").is_some_and(|of| of == plural))
            };
            let kinds = listed.iter().filter(|it| !it.name.contains('/') && has_scale(&it.name));
            let kinds = kinds.map(|it| (it.kind.clone(), it.name.clone())).collect();
            self.scalable.insert(api_version.to_owned(), (self.round, kinds));
        }
        Ok(&self.scalable[api_version].1)
    }
}

/// Where the API server has the objects of a kind that Kubernetes itself has: the group's path and the plural.
pub(crate) fn built_in(owner: &OwnerRef) -> Option<(&'static str, &'static str)> {
    if !owner.is_built_in() {
        return None;
    }
    Some(match owner.kind.as_str() {
        "DaemonSet" => ("/apis/apps/v1", "daemonsets"),
        "Deployment" => ("/apis/apps/v1", "deployments"),
        "ReplicaSet" => ("/apis/apps/v1", "replicasets"),
        "StatefulSet" => ("/apis/apps/v1", "statefulsets"),
        "Job" => ("/apis/batch/v1", "jobs"),
        "CronJob" => ("/apis/batch/v1", "cronjobs"),
        "ReplicationController" => ("/api/v1", "replicationcontrollers"),
        _ => return None,
    })
}
