//! Reads of the updater, once per round.

use jiff::{Span, Timestamp};
use serde::Deserialize;

use crate::lean::nullable;
use crate::pod_reader::is_name;
use crate::vpa::{ApiError, Recommending, built_in};
use berth_rightsizing::recommend::Owner;

/// Time without a renewal after which a Lease has no holder, in seconds; upstream's `AdmissionControllerStatusTimeout`.
const LEASE_SECONDS: i64 = 60;

/// The number of replicas that a controller wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replicas {
    Of(usize),
    /// The number of existing pods.
    AsTheyAre,
    Unknown,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Controller {
    #[serde(deserialize_with = "nullable")]
    spec: ControllerSpec,
    #[serde(deserialize_with = "nullable")]
    status: ControllerStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ControllerSpec {
    replicas: Option<i64>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ControllerStatus {
    desired_number_scheduled: Option<i64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Lease {
    #[serde(deserialize_with = "nullable")]
    spec: LeaseSpec,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LeaseSpec {
    holder_identity: Option<String>,
    renew_time: Option<Timestamp>,
}

impl Recommending {
    /// Returns the number of replicas that a controller wants.
    ///
    /// # Errors
    /// When the request fails.
    pub async fn replicas(&self, namespace: &str, owner: &Owner) -> Result<Replicas, ApiError> {
        let Some((prefix, plural)) = built_in(owner).filter(|_| is_name(&owner.name)) else {
            return Ok(Replicas::Unknown);
        };
        if plural == "jobs" {
            return Ok(Replicas::AsTheyAre);
        }
        let path = format!("{prefix}/namespaces/{namespace}/{plural}/{}", owner.name);
        let answer = match self.get(&path, "application/json").await {
            Err(ApiError::NotFound(_)) => return Ok(Replicas::Unknown),
            answer => answer?,
        };
        let found: Controller = serde_json::from_slice(&answer.body)
            .map_err(|error| ApiError::Other(format!("{path} cannot be parsed: {error}")))?;
        let wanted = match plural {
            "daemonsets" => found.status.desired_number_scheduled,
            _ => Some(found.spec.replicas.unwrap_or(1)),
        };
        Ok(wanted.and_then(|wanted| usize::try_from(wanted).ok()).map_or(Replicas::Unknown, Replicas::Of))
    }

    /// Returns the current holder of a Lease, if any.
    ///
    /// # Errors
    /// When the request fails.
    pub async fn lease_holder(&self, namespace: &str, name: &str) -> Result<Option<String>, ApiError> {
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}");
        let answer = match self.get(&path, "application/json").await {
            Err(ApiError::NotFound(_)) => return Ok(None),
            answer => answer?,
        };
        let Lease { spec } = serde_json::from_slice(&answer.body)
            .map_err(|error| ApiError::Other(format!("the Lease {name} cannot be parsed: {error}")))?;
        let ends = |renewed: Timestamp| renewed.checked_add(Span::new().seconds(LEASE_SECONDS)).ok();
        let is_fresh = spec.renew_time.and_then(ends).is_some_and(|end| end > Timestamp::now());
        Ok(spec.holder_identity.filter(|holder| is_fresh && !holder.is_empty()))
    }
}
