//! Writes for the claims of a pod before it is bound: requests for its volumes here, allocations of devices in `devices.rs`.
//!
//! As upstream's VolumeBinding (`bindAPIUpdate`) and the volume controller expect: a free volume gets the claim as its
//! `spec.claimRef`; a claim to be provisioned gets the annotation with the node's name. Both writes carry the resource version
//! that was just read, so no other client's change is overwritten; and they are idempotent, so a lost answer is harmless.

use berth_devices::ClaimRelease;
use berth_scheduler::placement::ClaimOrder;
use std::time::Duration;

use ::kube::Client;
use ::kube::client::Body;
use http::Method;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::devices;
use crate::Fence;
use crate::SELECTED_NODE;
use crate::client::{self, MERGE_PATCH};
use crate::retry::{self, Abandoned, Backoff, Failure, WriteReply, retry};
use berth_scheduler::objects::{ClaimRequest, WantedVolume};

const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";

/// Short pauses, since a bind waits.
pub(super) const PROMPT: Backoff =
    Backoff { attempts: 5, first: Duration::from_millis(50), longest: Duration::from_millis(200) };

/// Writes through the API server.
#[derive(Clone)]
pub struct KubeClaims {
    volumes: Client,
    devices: Client,
}

impl KubeClaims {
    /// Creates the writer, with the fences of requests for volumes and for devices.
    ///
    /// # Errors
    /// When no client can be built from `config`.
    pub fn new(config: &::kube::Config, fences: (Option<&Fence>, Option<&Fence>)) -> ::kube::Result<Self> {
        let client = |fence| client::fenced(config.clone(), fence);
        Ok(KubeClaims { volumes: client(fences.0)?, devices: client(fences.1)? })
    }

    /// Creates a writer with this client, which must send each request once.
    pub fn with_client(client: Client) -> Self {
        KubeClaims { volumes: client.clone(), devices: client }
    }

    /// Writes the requests for volumes, then the claims of devices, in order, each while `leads` returns true. Returns the
    /// resource versions of the objects.
    ///
    /// # Errors
    /// The reason of the first failure; earlier writes stay.
    pub async fn write(&self, order: &ClaimOrder, leads: impl Fn() -> bool) -> Result<Vec<u64>, String> {
        let mut versions = Vec::with_capacity(order.requests.len() + order.devices.len());
        for request in order.requests.iter() {
            let attempt = || self.write_one(request, &order.node);
            let version = retry(PROMPT, &request.claim.name, |_| leads(), attempt).await;
            versions.push(version.map_err(|abandoned| match abandoned {
                Abandoned::Stopped => "leadership was lost before its volumes were requested".to_owned(),
                Abandoned::Failed(why) => why,
            })?);
        }
        for update in order.devices.iter() {
            versions.push(devices::write(&self.devices, update, &order.uid, &leads).await?);
        }
        Ok(versions)
    }

    /// Frees the devices of a claim that an earlier attempt to place its pod has left behind, while `leads` returns true.
    ///
    /// # Errors
    /// Why it still has them.
    pub async fn release(&self, release: &ClaimRelease, leads: impl Fn() -> bool) -> Result<(), String> {
        devices::extended::release(&self.devices, release, leads).await
    }

    async fn write_one(&self, request: &ClaimRequest, node: &str) -> Result<u64, Failure> {
        let claim = &request.claim;
        let path = match &request.wanted {
            WantedVolume::Volume(volume) => format!("/api/v1/persistentvolumes/{volume}"),
            WantedVolume::Provision => {
                format!("/api/v1/namespaces/{}/persistentvolumeclaims/{}", claim.namespace, claim.name)
            }
        };
        let read = client::request(Method::GET, &path).body(Body::empty());
        let read = retry::send(&self.volumes, read.map_err(|error| error.to_string())).await;
        let found: Found = object(read)?;
        let Some(patch) = patch(&found, request, node)? else {
            return Ok(found.version());
        };
        let write = client::json_request(Method::PATCH, &path, MERGE_PATCH, &patch);
        let written: Found = object(retry::send(&self.volumes, write).await)?;
        Ok(written.version())
    }
}

/// Fields of a volume or a claim that a write depends on.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Found {
    metadata: FoundMeta,
    spec: FoundSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct FoundMeta {
    name: String,
    uid: String,
    resource_version: String,
    annotations: std::collections::BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct FoundSpec {
    claim_ref: Option<FoundClaim>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct FoundClaim {
    namespace: String,
    name: String,
    uid: String,
}

impl Found {
    /// The resource version; 0 if it is not a number: then any observed version is new enough.
    fn version(&self) -> u64 {
        self.metadata.resource_version.parse().unwrap_or(0)
    }
}

/// Returns the merge patch for the request; `None` if the object needs no change.
fn patch(found: &Found, request: &ClaimRequest, node: &str) -> Result<Option<Value>, Failure> {
    let ClaimRequest { claim, uid, wanted } = request;
    let version = &found.metadata.resource_version;
    if *wanted == WantedVolume::Provision {
        if found.metadata.uid != **uid {
            return Err(Failure::Final(format!("persistentvolumeclaim {:?} not found", claim.name)));
        }
        if found.metadata.annotations.get(SELECTED_NODE).is_some_and(|selected| selected == node) {
            return Ok(None);
        }
        let metadata = json!({"resourceVersion": version, "annotations": {SELECTED_NODE: node}});
        return Ok(Some(json!({"metadata": metadata})));
    }
    let mut metadata = json!({"resourceVersion": version});
    match &found.spec.claim_ref {
        None => metadata["annotations"] = json!({BOUND_BY_CONTROLLER: "yes"}),
        Some(current) if current.namespace == *claim.namespace && current.name == *claim.name => {
            match current.uid.as_str() {
                "" => {}
                current if current == &**uid => return Ok(None),
                _ => return Err(taken(found)),
            }
        }
        Some(_) => return Err(taken(found)),
    }
    let claim_ref = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "namespace": claim.namespace, "name": claim.name, "uid": uid,
    });
    Ok(Some(json!({"metadata": metadata, "spec": {"claimRef": claim_ref}})))
}

fn taken(found: &Found) -> Failure {
    Failure::Final(format!("persistentvolume {:?} was taken by another claim", found.metadata.name))
}

/// Reads the object in a reply. If it is gone, the failure is final.
pub(super) fn object<T: DeserializeOwned>(reply: WriteReply) -> Result<T, Failure> {
    match reply {
        WriteReply::Gone(answer) if answer.is_foreign_not_found() => {
            Err(Failure::Retry { after: None, why: answer.message() })
        }
        WriteReply::Gone(answer) => Err(Failure::Final(answer.message())),
        reply => {
            let body = reply.settled()?.unwrap_or_default();
            let unreadable = |error| format!("the API server sent an object that cannot be read: {error}");
            serde_json::from_slice(&body)
                .map_err(|error| Failure::Retry { after: None, why: unreadable(error) })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use http::{Request, Response};
    use parking_lot::Mutex;

    use super::*;
    use berth_model::ClaimName;
    use std::sync::Arc;

    fn order(wanted: WantedVolume) -> ClaimOrder {
        let claim = ClaimName { namespace: "ns".into(), name: "c".into() };
        let requests = [ClaimRequest { claim, uid: "u".into(), wanted }].into();
        ClaimOrder { uid: "pod".into(), work: 1, node: "n".into(), requests, devices: [].into() }
    }

    fn volume() -> WantedVolume {
        WantedVolume::Volume("pv".into())
    }

    /// Writes to an API server that has `found` and answers writes with these statuses. Returns the result and the writes.
    async fn write(
        wanted: WantedVolume,
        found: Value,
        statuses: &[u16],
        leads: bool,
    ) -> (Result<Vec<u64>, String>, Vec<Value>) {
        let written: Arc<Mutex<Vec<Value>>> = Arc::default();
        let (log, mut statuses) = (written.clone(), VecDeque::from(statuses.to_vec()));
        let service = tower::service_fn(move |request: Request<Body>| {
            let (is_read, found, log) = (request.method() == Method::GET, found.clone(), log.clone());
            let status = if is_read { Some(200) } else { statuses.pop_front() };
            async move {
                let body = request.into_body().collect_bytes().await.expect("whole");
                let mut answer = found;
                if !is_read {
                    log.lock().push(serde_json::from_slice(&body).expect("JSON"));
                    answer["metadata"]["resourceVersion"] = json!("8");
                }
                let response = Response::builder().status(status.expect("one write too many"));
                response.body(Body::from(answer.to_string().into_bytes()))
            }
        });
        let claims = KubeClaims::with_client(Client::new(service, "default"));
        let result = claims.write(&order(wanted), || leads).await;
        let written = written.lock().clone();
        (result, written)
    }

    fn found(spec: Value) -> Value {
        json!({"metadata": {"name": "pv", "uid": "u", "resourceVersion": "7"}, "spec": spec})
    }

    #[tokio::test(start_paused = true)]
    async fn a_free_volume_gets_the_claim_and_says_that_no_person_bound_it() {
        let (result, written) = write(volume(), found(json!({})), &[200], true).await;
        assert_eq!(result, Ok(vec![8]));
        let expected = json!({
            "metadata": {"resourceVersion": "7", "annotations": {BOUND_BY_CONTROLLER: "yes"}},
            "spec": {"claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "ns", "name": "c", "uid": "u",
            }},
        });
        assert_eq!(written, [expected]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_volume_that_a_person_set_apart_only_gets_the_uid_and_one_that_is_ours_nothing() {
        let apart = found(json!({"claimRef": {"namespace": "ns", "name": "c"}}));
        let (_, written) = write(volume(), apart, &[200], true).await;
        assert_eq!(written[0]["metadata"], json!({"resourceVersion": "7"}));
        assert_eq!(written[0]["spec"]["claimRef"]["uid"], "u");
        let ours = found(json!({"claimRef": {"namespace": "ns", "name": "c", "uid": "u"}}));
        assert_eq!(write(volume(), ours, &[], true).await, (Ok(vec![7]), vec![]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_volume_of_another_claim_is_not_touched() {
        for theirs in [
            json!({"namespace": "ns", "name": "d", "uid": "v"}),
            json!({"namespace": "ns", "name": "c", "uid": "older"}),
        ] {
            let (result, written) = write(volume(), found(json!({"claimRef": theirs})), &[], true).await;
            assert!(result.is_err_and(|why| why.contains("taken by another claim")) && written.is_empty());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_is_told_the_node_but_not_if_it_was_made_anew() {
        let (result, written) = write(WantedVolume::Provision, found(json!({})), &[200], true).await;
        assert_eq!(result, Ok(vec![8]));
        let metadata = json!({"resourceVersion": "7", "annotations": {SELECTED_NODE: "n"}});
        assert_eq!(written, [json!({"metadata": metadata})]);
        let other = json!({"metadata": {"name": "c", "uid": "other", "resourceVersion": "7"}});
        let (result, written) = write(WantedVolume::Provision, other, &[], true).await;
        assert!(result.is_err_and(|why| why.contains("\"c\" not found")) && written.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_was_overtaken_is_tried_again_a_few_times_and_a_forbidden_one_is_not() {
        let (result, written) = write(volume(), found(json!({})), &[409, 500, 200], true).await;
        assert_eq!((result, written.len()), (Ok(vec![8]), 3));
        let (result, written) = write(volume(), found(json!({})), &[409; 5], true).await;
        assert!(result.is_err());
        assert_eq!(written.len(), 5);
        let (result, written) = write(volume(), found(json!({})), &[403], true).await;
        assert!(result.is_err());
        assert_eq!(written.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn without_leadership_nothing_is_written() {
        let (result, written) = write(volume(), found(json!({})), &[], false).await;
        assert!(result.is_err_and(|why| why.contains("leadership")) && written.is_empty());
    }
}
