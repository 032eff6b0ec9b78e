//! Writes to resource claims: the allocation, and the reservation for a pod.
//!
//! As upstream's DynamicResources (`bindClaim`): the finalizer first, which keeps an allocated claim until its devices are free,
//! then allocation and reservation in one write to the status. Each write names the claim's uid and resource version, so it
//! changes only the claim that the decision was made with. The first attempt writes without a read. A later one reads first: it
//! finds what a write did whose answer was lost, and whether another client's change matters.

pub(super) mod extended;
mod status_json;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ::kube::Client;
use ::kube::client::Body;
use http::Method;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::volumes::{PROMPT, object};
use crate::client::{self, MERGE_PATCH};
use crate::objects::LeanResourceClaim;
use crate::retry::{self, Abandoned, Backoff, Failure, WriteReply, retry};
use crate::{Interner, LeanObject};
use berth_devices::{CLAIM_FINALIZER, CLAIM_USERS_MAX, ClaimUpdate, ClaimUser, ResourceClaim};
use berth_model::ClaimName;

/// Writes `update` for the pod with this uid while `leads` returns true. Returns the claim's resource version.
///
/// # Errors
/// Why the claim cannot be used. A finalizer that was added stays.
pub(super) async fn write(
    client: &Client,
    update: &ClaimUpdate,
    pod: &str,
    leads: impl Fn() -> bool,
) -> Result<u64, String> {
    let name = &update.claim.name;
    let Some(user) = update.reserved.iter().find(|user| *user.uid == *pod) else {
        return Err(format!("the update of resourceclaim {name:?} does not reserve it for its pod"));
    };
    let Some(new) = &update.new else {
        return write_known(client, update, user, leads).await;
    };
    let known = extended::create(client, update, new, user, &leads).await?;
    let version = write_known(client, &known, user, &leads).await?;
    extended::tell_pod(client, update, new, user, &leads).await?;
    Ok(version)
}

/// Writes an update of a claim that exists.
async fn write_known(
    client: &Client,
    update: &ClaimUpdate,
    user: &ClaimUser,
    leads: impl Fn() -> bool,
) -> Result<u64, String> {
    let writer = DeviceWriter { client, update, user, path: path_of(&update.claim) };
    // Version 0 is no precondition.
    let must_read = AtomicBool::new(update.version == 0);
    let attempt = || writer.attempt(must_read.swap(true, Ordering::Relaxed));
    settle(PROMPT, &update.claim, leads, attempt).await
}

/// Repeats `attempt` as [`retry`] does, and says why it failed.
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

fn claims_in(namespace: &str) -> String {
    format!("/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims")
}

fn path_of(claim: &ClaimName) -> String {
    format!("{}/{}", claims_in(&claim.namespace), claim.name)
}

async fn read_claim(client: &Client, path: &str) -> WriteReply {
    let request = client::request(Method::GET, path).body(Body::empty());
    retry::send(client, request.map_err(|error| error.to_string())).await
}

struct DeviceWriter<'a> {
    client: &'a Client,
    update: &'a ClaimUpdate,
    /// The entry of the pod in `reservedFor`.
    user: &'a ClaimUser,
    path: String,
}

/// What a write is based on.
#[derive(Debug)]
struct Basis {
    version: String,
    finalizers: Box<[Arc<str>]>,
    /// With the pod.
    reserved: Box<[ClaimUser]>,
    /// The claim has no allocation yet.
    allocate: bool,
}

enum Progress {
    /// All is written; the resource version.
    Written(u64),
    Open(Basis),
}

impl DeviceWriter<'_> {
    async fn attempt(&self, must_read: bool) -> Result<u64, Failure> {
        let mut basis = match must_read {
            false => self.observed(),
            true => match self.progress(self.read().await?)? {
                Progress::Written(version) => return Ok(version),
                Progress::Open(basis) => basis,
            },
        };
        if basis.reserved.len() > CLAIM_USERS_MAX {
            return Err(
                self.refused(&format!("is in use by {CLAIM_USERS_MAX} others, the most that share one"))
            );
        }
        if basis.allocate && !basis.finalizers.iter().any(|finalizer| **finalizer == *CLAIM_FINALIZER) {
            let finalizers: Vec<_> =
                basis.finalizers.iter().map(|one| &**one).chain([CLAIM_FINALIZER]).collect();
            let patch = json!({"metadata": {
                "uid": self.update.uid, "resourceVersion": basis.version, "finalizers": finalizers,
            }});
            basis.version = resource_version(&self.patch(&self.path, &patch).await?)?;
        }
        let new = self.update.allocation.as_ref().filter(|_| basis.allocate);
        let status = status_json::status(new, &basis.reserved, Timestamp::now()).map_err(Failure::Final)?;
        let metadata = json!({"uid": self.update.uid, "resourceVersion": basis.version});
        let patch = json!({"metadata": metadata, "status": status});
        let written = self.patch(&format!("{}/status", self.path), &patch).await?;
        Ok(written.into_claim(&mut Interner::default()).version)
    }

    /// The claim as the decision was made with it.
    fn observed(&self) -> Basis {
        Basis {
            version: self.update.version.to_string(),
            finalizers: self.update.finalizers.clone(),
            reserved: self.update.reserved.clone(),
            allocate: self.update.allocation.is_some(),
        }
    }

    /// Returns what is left to write to the claim that was just read.
    fn progress(&self, lean: LeanResourceClaim) -> Result<Progress, Failure> {
        let version = resource_version(&lean)?;
        let claim = lean.into_claim(&mut Interner::default());
        if claim.uid != self.update.uid {
            return Err(self.refused("was deleted and created again"));
        }
        if claim.deleting {
            return Err(self.refused("is being deleted"));
        }
        let allocate = self.is_to_allocate(&claim)?;
        let is_reserved = claim.reserved.contains(self.user);
        if is_reserved && !allocate {
            return Ok(Progress::Written(claim.version));
        }
        let mut reserved = claim.reserved.into_vec();
        if !is_reserved {
            reserved.push(self.user.clone());
        }
        Ok(Progress::Open(Basis {
            version,
            finalizers: claim.finalizers,
            reserved: reserved.into(),
            allocate,
        }))
    }

    /// Returns whether the allocation is still to be written.
    fn is_to_allocate(&self, claim: &ResourceClaim) -> Result<bool, Failure> {
        let update = self.update;
        match (&update.allocation, &claim.allocation) {
            (Some(_), None) => Ok(true),
            (Some(new), Some(found)) => {
                let new = status_json::read_back(&new.allocation).map_err(Failure::Final)?;
                if **found == new { Ok(false) } else { Err(self.refused("was allocated by another client")) }
            }
            (None, None) => Err(self.refused("has lost its devices")),
            (None, Some(found)) if update.held.as_ref().is_none_or(|held| held == found) => Ok(false),
            (None, Some(_)) => Err(self.refused("was allocated again, with other devices")),
        }
    }

    async fn read(&self) -> Result<LeanResourceClaim, Failure> {
        self.claim(read_claim(self.client, &self.path).await)
    }

    /// Patches the claim. Inside of lists, the API server drops `null` from a merge patch, also from parameters of drivers; it
    /// means the same there as an absent field.
    async fn patch(&self, path: &str, patch: &Value) -> Result<LeanResourceClaim, Failure> {
        let request = client::json_request(Method::PATCH, path, MERGE_PATCH, patch);
        self.claim(retry::send(self.client, request).await)
    }

    fn claim(&self, reply: WriteReply) -> Result<LeanResourceClaim, Failure> {
        match reply {
            WriteReply::Gone(answer) if !answer.is_foreign_not_found() => {
                Err(self.refused("was deleted, or deleted and created again"))
            }
            reply => object(reply),
        }
    }

    fn refused(&self, why: &str) -> Failure {
        Failure::Final(format!("resourceclaim {:?} {why}", self.update.claim.name))
    }
}

/// An empty one would be no precondition.
fn resource_version(claim: &LeanResourceClaim) -> Result<String, Failure> {
    let version = claim.metadata().resource_version.clone().filter(|version| !version.is_empty());
    version.ok_or_else(|| Failure::Final("the API server sent a claim without a resource version".to_owned()))
}

#[cfg(test)]
mod tests;
