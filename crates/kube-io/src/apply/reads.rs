//! Reads of the updater, once per round.

use jiff::{Span, Timestamp};
use serde::Deserialize;

use crate::lean::nullable;
use crate::vpa::{ApiError, Recommending};

/// Time without a renewal after which a Lease has no holder, in seconds; upstream's `AdmissionControllerStatusTimeout`.
const LEASE_SECONDS: i64 = 60;

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
