//! Claims for extended resources that devices provide: they are created together with the pod's node, and named in the pod's status
//! (upstream: `bindClaim` and `extendeddynamicresources.go`).

use std::sync::Arc;

use ::kube::Client;
use http::Method;
use serde_json::{Value, json};

use super::super::volumes::{PROMPT, object};
use super::{claims_in, path_of, read_claim, settle};
use crate::Interner;
use crate::client::{self, MERGE_PATCH};
use crate::objects::LeanResourceClaim;
use crate::retry::{self, BACKOFF, Failure, WriteReply};
use berth_devices::{
    CLAIM_FINALIZER, ClaimRelease, ClaimUpdate, ClaimUser, NewClaim, NewRequest, ResourceClaim,
};
use berth_model::ContainerRequest;

/// Marks such claims (upstream: `ExtendedResourceClaimAnnotation`).
const ANNOTATION: &str = "resource.kubernetes.io/extended-resource-claim";

/// Creates the claim of `update`, or finds it where an earlier attempt has. Returns the update of the claim as it is then.
///
/// # Errors
/// Why there is no such claim.
pub(super) async fn create(
    client: &Client,
    update: &ClaimUpdate,
    new: &NewClaim,
    user: &ClaimUser,
    leads: impl Fn() -> bool,
) -> Result<ClaimUpdate, String> {
    let (path, body) = (claims_in(&update.claim.namespace), claim(update, new, user));
    let attempt = || async {
        let request = client::json_request(Method::POST, &path, "application/json", &body);
        let lean: LeanResourceClaim = match retry::send(client, request).await {
            WriteReply::Conflict(_) => object(read_claim(client, &path_of(&update.claim)).await)?,
            reply => object(reply)?,
        };
        let found = lean.into_claim(&mut Interner::default());
        if is_as_wanted(&found, new, user) {
            return Ok(found);
        }
        Err(Failure::Final(format!("resourceclaim {:?} exists already", update.claim.name)))
    };
    let found = settle(PROMPT, &update.claim, leads, attempt).await?;
    let ResourceClaim { uid, version, finalizers, .. } = found;
    Ok(ClaimUpdate { uid, version, finalizers, new: None, ..update.clone() })
}

/// Names the claim in the status of its pod: the kubelet reads there which devices serve which container.
///
/// # Errors
/// Why that was not written.
pub(super) async fn tell_pod(
    client: &Client,
    update: &ClaimUpdate,
    new: &NewClaim,
    user: &ClaimUser,
    leads: impl Fn() -> bool,
) -> Result<(), String> {
    let path = format!("/api/v1/namespaces/{}/pods/{}/status", update.claim.namespace, user.name);
    let mapping = |(resource, served): &(Arc<str>, ContainerRequest)| {
        let ContainerRequest { container, request } = served;
        json!({"containerName": container, "resourceName": resource, "requestName": request})
    };
    let mappings: Vec<_> = new.containers.iter().map(mapping).collect();
    let status = json!({"resourceClaimName": update.claim.name, "requestMappings": mappings});
    let patch = json!({"metadata": {"uid": user.uid}, "status": {"extendedResourceClaimStatus": status}});
    let attempt = || async {
        let request = client::json_request(Method::PATCH, &path, MERGE_PATCH, &patch);
        let written: Value = object(retry::send(client, request).await)?;
        if written["status"]["extendedResourceClaimStatus"].is_object() {
            return Ok(());
        }
        // It drops fields of features that are off.
        Err(Failure::Final(
            "the API server does not keep status.extendedResourceClaimStatus: switch its feature gate DRAExtendedResource on, or \
             use resource claims"
                .to_owned(),
        ))
    };
    settle(PROMPT, &update.claim, leads, attempt).await
}

/// Deletes or deallocates the claim, if it has not changed since.
///
/// # Errors
/// Why it still has its devices.
pub(in super::super) async fn release(
    client: &Client,
    release: &ClaimRelease,
    leads: impl Fn() -> bool,
) -> Result<(), String> {
    let ClaimRelease { claim, uid, version, delete } = release;
    let path = path_of(claim);
    let mut metadata = json!({"uid": uid, "resourceVersion": version.to_string()});
    // If it has changed, it may be needed: that is decided anew.
    let patch = async |path: &str, patch: &Value| {
        let request = client::json_request(Method::PATCH, path, MERGE_PATCH, patch);
        match retry::send(client, request).await {
            WriteReply::Conflict(answer) => Err(Failure::Final(answer.message())),
            reply => Ok(reply.settled()?.is_some()),
        }
    };
    let Some(finalizers) = delete else {
        let status = json!({"allocation": null, "reservedFor": null, "devices": null});
        let (path, body) = (format!("{path}/status"), json!({"metadata": metadata, "status": status}));
        return settle(BACKOFF, claim, &leads, || patch(&path, &body)).await.map(drop);
    };
    metadata["finalizers"] = json!(finalizers);
    let body = json!({"metadata": metadata});
    if !settle(BACKOFF, claim, &leads, || patch(&path, &body)).await? {
        return Ok(());
    }
    let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}});
    let delete = || async {
        let request = client::json_request(Method::DELETE, &path, "application/json", &options);
        retry::send(client, request).await.settled().map(drop)
    };
    settle(BACKOFF, claim, &leads, delete).await
}

fn claim(update: &ClaimUpdate, new: &NewClaim, user: &ClaimUser) -> Value {
    let request = |NewRequest { name, class, count }: &NewRequest| {
        let exactly = json!({"deviceClassName": class, "allocationMode": "ExactCount", "count": count});
        json!({"name": name, "exactly": exactly})
    };
    let owner =
        json!({"apiVersion": "v1", "kind": "Pod", "name": user.name, "uid": user.uid, "controller": true});
    json!({
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": update.claim.name,
            "namespace": update.claim.namespace,
            "annotations": {ANNOTATION: "true"},
            "finalizers": [CLAIM_FINALIZER],
            "ownerReferences": [owner],
        },
        "spec": {"devices": {"requests": new.requests.iter().map(request).collect::<Vec<_>>()}},
    })
}

/// Whether the claim is the one that an earlier attempt has created for the same decision.
fn is_as_wanted(found: &ResourceClaim, new: &NewClaim, user: &ClaimUser) -> bool {
    let requests: Option<Vec<_>> = found.spec.requests.iter().map(NewRequest::of).collect();
    found.owner.as_ref() == Some(&user.uid) && requests.is_some_and(|requests| *requests == *new.requests)
}
