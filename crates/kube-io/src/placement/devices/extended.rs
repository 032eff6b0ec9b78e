//! Claims for extended resources that devices provide: they are created together with the pod's node, and named in the pod's status
//! (upstream: `bindClaim` and `extendeddynamicresources.go`).

use std::sync::Arc;

use ::kube::Client;
use ::kube::client::Body;
use http::Method;
use serde_json::{Value, json};

use super::super::volumes::{PROMPT, object};
use crate::Interner;
use crate::client::{self, MERGE_PATCH};
use crate::objects::LeanResourceClaim;
use crate::retry::{self, Abandoned, BACKOFF, Backoff, Failure, WriteReply, retry};
use berth_devices::{
    CLAIM_FINALIZER, ClaimRemoval, ClaimUpdate, ClaimUser, NewClaim, NewRequest, ResourceClaim,
};
use berth_model::{ClaimName, ContainerRequest};

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
    let (path, body) = (claims(&update.claim), claim(update, new, user));
    let attempt = || async {
        let request = client::json_request(Method::POST, &path, "application/json", &body);
        let lean: LeanResourceClaim = match retry::send(client, request).await {
            WriteReply::Conflict(_) => {
                let request = client::request(Method::GET, &format!("{path}/{}", update.claim.name));
                let request = request.body(Body::empty()).map_err(|error| error.to_string());
                object(retry::send(client, request).await)?
            }
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
    let mapping = |(resource, served): &(Arc<str>, ContainerRequest)| json!({"containerName": served.container, "resourceName": resource, "requestName": served.request});
    let mappings: Vec<_> = new.containers.iter().map(mapping).collect();
    let status = json!({"resourceClaimName": update.claim.name, "requestMappings": mappings});
    let patch = json!({"metadata": {"uid": user.uid}, "status": {"extendedResourceClaimStatus": status}});
    let attempt = || async {
        let request = client::json_request(Method::PATCH, &path, MERGE_PATCH, &patch);
        let _: Value = object(retry::send(client, request).await)?;
        Ok(())
    };
    settle(PROMPT, &update.claim, leads, attempt).await
}

/// Deletes the claim, if it has not changed since.
///
/// # Errors
/// Why it is still there.
pub(in super::super) async fn remove(
    client: &Client,
    removal: &ClaimRemoval,
    leads: impl Fn() -> bool,
) -> Result<(), String> {
    let path = format!("{}/{}", claims(&removal.claim), removal.claim.name);
    let metadata = json!({
        "uid": removal.uid, "resourceVersion": removal.version.to_string(), "finalizers": removal.finalizers,
    });
    // It is still needed if it has changed: the next look at it will tell.
    let release = || async {
        let request = client::json_request(Method::PATCH, &path, MERGE_PATCH, &json!({"metadata": metadata}));
        match retry::send(client, request).await {
            WriteReply::Conflict(answer) => Err(Failure::Final(answer.message())),
            reply => Ok(reply.settled()?.is_some()),
        }
    };
    if !settle(BACKOFF, &removal.claim, &leads, release).await? {
        return Ok(());
    }
    let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": removal.uid}});
    let delete = || async {
        let request = client::json_request(Method::DELETE, &path, "application/json", &options);
        retry::send(client, request).await.settled().map(drop)
    };
    settle(BACKOFF, &removal.claim, &leads, delete).await
}

fn claims(claim: &ClaimName) -> String {
    format!("/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims", claim.namespace)
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

async fn settle<T, F: Future<Output = Result<T, Failure>>>(
    backoff: Backoff,
    claim: &ClaimName,
    leads: impl Fn() -> bool,
    attempt: impl Fn() -> F,
) -> Result<T, String> {
    retry(backoff, &claim.name, |_| leads(), attempt).await.map_err(|abandoned| match abandoned {
        Abandoned::Stopped => "leadership was lost before its devices were allocated".to_owned(),
        Abandoned::Failed(why) => why,
    })
}
