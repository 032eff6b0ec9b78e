//! Resource claims in the API server, as JSON: reads, writes with preconditions, and finalizers.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_devices::{CLAIM_FINALIZER, ResourceClaim};
use berth_kube_io::{Interner, LeanObject, LeanResourceClaim};
use berth_model::{ClaimName, Pod};
use berth_scheduler::objects::{ClusterObject, ObjectKind, ObjectName};
use http::Method;
use serde_json::{Value, json};

use super::sim::Sim;

/// A status code and a body.
pub type Answer = (u16, Value);

#[derive(Debug, Clone)]
pub struct ClaimRequest {
    pub method: Method,
    pub path: String,
    pub body: Value,
}

#[derive(Default)]
pub struct ClaimServer {
    claims: BTreeMap<ClaimName, Value>,
    /// The latest resource version.
    version: u64,
    uids: u64,
}

pub fn key_of(name: &ClaimName) -> (ObjectKind, ObjectName) {
    let (namespace, name) = (name.namespace.clone(), name.name.clone());
    (ObjectKind::ResourceClaim, ObjectName { namespace, name })
}

fn error(code: u16, reason: &str, message: &str) -> Answer {
    (code, json!({"kind": "Status", "reason": reason, "message": message, "details": {"name": "it"}}))
}

fn not_found() -> Answer {
    error(404, "NotFound", "not found")
}

fn other_uid() -> Answer {
    error(409, "Conflict", "Precondition failed: UID in precondition: a, UID in object meta: b")
}

/// Returns the precondition that the body does not meet.
fn violated(found: &Value, body: &Value) -> Option<Answer> {
    let (meta, wanted) = (&found["metadata"], &body["metadata"]);
    if wanted["uid"].is_string() && wanted["uid"] != meta["uid"] {
        return Some(other_uid());
    }
    let version = &wanted["resourceVersion"];
    let is_old = version.is_string() && *version != meta["resourceVersion"];
    is_old.then(|| error(409, "Conflict", "the object has been modified"))
}

fn len(list: &Value) -> usize {
    list.as_array().map_or(0, Vec::len)
}

fn has_finalizer(claim: &Value) -> bool {
    len(&claim["metadata"]["finalizers"]) > 0
}

/// Returns why the status may not change like this (upstream: `ValidateResourceClaimStatusUpdate`).
fn forbidden(before: &Value, after: &Value) -> Option<&'static str> {
    let (old, new) = (&before["status"], &after["status"]);
    if old["allocation"].is_object()
        && new["allocation"].is_object()
        && old["allocation"] != new["allocation"]
    {
        return Some("status.allocation: Invalid value: field is immutable");
    }
    if len(&new["reservedFor"]) > 0 && !new["allocation"].is_object() {
        return Some("status.reservedFor: Forbidden: may not be specified when `allocated` is not set");
    }
    let old_users = old["reservedFor"].as_array().cloned().unwrap_or_default();
    let mut users = new["reservedFor"].as_array().into_iter().flatten();
    if before["metadata"]["deletionTimestamp"].is_string() && users.any(|user| !old_users.contains(user)) {
        return Some("status.reservedFor: Forbidden: new entries may not be added while it is being deleted");
    }
    None
}

impl ClaimServer {
    pub fn names(&self) -> Vec<ClaimName> {
        self.claims.keys().cloned().collect()
    }

    pub fn contains(&self, name: &ClaimName) -> bool {
        self.claims.contains_key(name)
    }

    fn next_version(&mut self) -> Value {
        self.version += 1;
        self.version.to_string().into()
    }

    /// Creates the claim of this JSON, unless there is one of its name.
    pub fn create(&mut self, name: &ClaimName, mut claim: Value) -> Answer {
        if self.claims.contains_key(name) {
            return error(409, "AlreadyExists", "it already exists");
        }
        self.uids += 1;
        claim["metadata"]["uid"] = format!("claim-{}", self.uids).into();
        claim["metadata"]["resourceVersion"] = self.next_version();
        self.claims.insert(name.clone(), claim.clone());
        (201, claim)
    }

    /// Applies a merge patch to the claim or its status.
    pub fn patch(&mut self, name: &ClaimName, is_status: bool, patch: &Value) -> Answer {
        let Some(before) = self.claims.get(name).cloned() else {
            return not_found();
        };
        if let Some(violated) = violated(&before, patch) {
            return violated;
        }
        let mut after = before.clone();
        let field = if is_status { "status" } else { "metadata" };
        json_patch::merge(&mut after[field], &patch[field]);
        let is_deleting = before["metadata"]["deletionTimestamp"].is_string();
        if is_deleting && len(&after["metadata"]["finalizers"]) > len(&before["metadata"]["finalizers"]) {
            return error(422, "Invalid", "metadata.finalizers: Forbidden: it is being deleted");
        }
        if let Some(why) = forbidden(&before, &after) {
            return error(422, "Invalid", why);
        }
        if is_deleting && !has_finalizer(&after) {
            self.claims.remove(name);
            return (200, after);
        }
        if after != before {
            after["metadata"]["resourceVersion"] = self.next_version();
            self.claims.insert(name.clone(), after.clone());
        }
        (200, after)
    }

    /// Deletes the claim, or marks it as deleted as long as it has finalizers.
    pub fn delete(&mut self, name: &ClaimName, options: &Value) -> Answer {
        let Some(mut claim) = self.claims.get(name).cloned() else {
            return not_found();
        };
        let uid = &options["preconditions"]["uid"];
        if uid.is_string() && *uid != claim["metadata"]["uid"] {
            return other_uid();
        }
        if !has_finalizer(&claim) {
            self.claims.remove(name);
        } else if !claim["metadata"]["deletionTimestamp"].is_string() {
            claim["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            claim["metadata"]["resourceVersion"] = self.next_version();
            self.claims.insert(name.clone(), claim.clone());
        }
        (200, claim)
    }

    /// Returns the claim as a watch shows it.
    fn object(&self, name: &ClaimName) -> Option<ClusterObject> {
        let claim = self.claims.get(name)?.clone();
        let lean: LeanResourceClaim = serde_json::from_value(claim).expect("a claim");
        Some(lean.into_object(&mut Interner::default()))
    }
}

impl Sim {
    /// Carries out a request of a writer.
    pub fn answer_claim_request(&mut self, request: &ClaimRequest) -> Answer {
        let parts: Vec<&str> = request.path.trim_start_matches('/').split('/').collect();
        let body = &request.body;
        match *parts {
            ["api", "v1", "namespaces", namespace, "pods", name, "status"] => {
                self.patch_pod_status(namespace, name, body)
            }
            ["apis", _, _, "namespaces", namespace, "resourceclaims", ref rest @ ..] => {
                let name = rest.first().copied().or(body["metadata"]["name"].as_str()).unwrap_or_default();
                let name = ClaimName { namespace: namespace.into(), name: name.into() };
                let is_status = rest.len() == 2;
                self.change_claim(&name, |server| match request.method {
                    Method::GET => server.claims.get(&name).map_or_else(not_found, |it| (200, it.clone())),
                    Method::POST => server.create(&name, body.clone()),
                    Method::DELETE => server.delete(&name, body),
                    _ => server.patch(&name, is_status, body),
                })
            }
            _ => not_found(),
        }
    }

    /// Changes a claim, and lets the watches know of it.
    pub fn change_claim(
        &mut self,
        name: &ClaimName,
        change: impl FnOnce(&mut ClaimServer) -> Answer,
    ) -> Answer {
        let before = self.devices.server.version;
        let had = self.devices.server.contains(name);
        let answer = change(&mut self.devices.server);
        match self.devices.server.object(name) {
            Some(object) if self.devices.server.version != before => self.cluster.apply_object(object),
            None if had => self.cluster.delete_object(&key_of(name)),
            _ => return answer,
        }
        self.note(|| format!("claim {:?}: {:?}", name.name, brief(&answer)));
        self.control_claims_soon();
        answer
    }

    /// Names the claim for extended resources in the status of its pod.
    fn patch_pod_status(&mut self, namespace: &str, name: &str, body: &Value) -> Answer {
        let Some(pod) = self.cluster.store.get(namespace, name) else {
            return not_found();
        };
        if body["metadata"]["uid"].as_str() != Some(&*pod.uid) {
            return other_uid();
        }
        let status = &body["status"]["extendedResourceClaimStatus"];
        let claim: Option<Arc<str>> = status["resourceClaimName"].as_str().map(Arc::from);
        self.note(|| format!("the status of {} names the claim {claim:?}", pod.uid));
        self.cluster.update_pod(&pod, |pod: &mut Pod| {
            if let Some(extended) = &mut pod.extended {
                extended.claim = claim;
            }
        });
        (200, json!({"status": {"extendedResourceClaimStatus": status}}))
    }

    pub fn device_claim(&self, name: &ClaimName) -> Option<&ResourceClaim> {
        match self.cluster.objects.get(&key_of(name))? {
            ClusterObject::ResourceClaim(claim) => Some(claim),
            _ => None,
        }
    }

    pub fn device_claims(&self) -> impl Iterator<Item = &ResourceClaim> {
        self.cluster.objects.values().filter_map(|object| match object {
            ClusterObject::ResourceClaim(claim) => Some(&**claim),
            _ => None,
        })
    }
}

/// Returns what matters of an answer in a trace.
fn brief((code, claim): &Answer) -> String {
    let (meta, status) = (&claim["metadata"], &claim["status"]);
    let devices = &status["allocation"]["devices"]["results"];
    let devices: Vec<_> = devices.as_array().into_iter().flatten().map(|one| &one["device"]).collect();
    let users: Vec<_> =
        status["reservedFor"].as_array().into_iter().flatten().map(|user| &user["uid"]).collect();
    let (version, finalizers) = (&meta["resourceVersion"], &meta["finalizers"]);
    format!("{code} version {version} {finalizers} has {devices:?} for {users:?}")
}

/// Returns a claim for devices of this class, as its author writes it.
pub fn claim_json(name: &ClaimName, class: &str, count: u64, owner: Option<&Pod>) -> Value {
    let owner = owner
        .map(|pod| json!([{"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid, "controller": true}]));
    let exactly = json!({"deviceClassName": class, "allocationMode": "ExactCount", "count": count});
    json!({
        "metadata": {"namespace": name.namespace, "name": name.name, "ownerReferences": owner},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
    })
}

/// Returns a patch of the finalizers without the one of allocated claims.
pub fn without_finalizer(claim: &ResourceClaim) -> Value {
    let left: Vec<_> = claim.finalizers.iter().filter(|one| ***one != *CLAIM_FINALIZER).collect();
    json!({"metadata": {"finalizers": left}})
}
