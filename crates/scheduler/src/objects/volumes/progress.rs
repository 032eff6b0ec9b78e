//! Claims of pods that have a node: requested bindings and their progress.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{VolumeNews, Volumes};
use berth_model::{ClaimName, Node, admits};

/// Requested binding of one claim of a pod that has a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ClaimRequest {
    pub claim: ClaimName,
    /// A recreated claim with the same name is a different one.
    pub uid: Arc<str>,
    pub wanted: WantedVolume,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum WantedVolume {
    /// Bind this volume: set its `spec.claimRef`.
    Volume(Arc<str>),
    /// Provision a volume for the pod's node: set the claim's annotation `volume.kubernetes.io/selected-node`.
    Provision,
}

/// Progress of claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimProgress {
    Waiting,
    Done,
    /// They can no longer be bound as requested.
    Failed(BindingError),
}

/// Reason why a claim can no longer be bound as requested, in upstream's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BindingError {
    #[error("persistentvolumeclaim {0:?} not found")]
    ClaimGone(Arc<str>),
    #[error("persistentvolume {0:?} not found")]
    VolumeGone(Arc<str>),
    #[error("ClaimRef got reset for pv {0:?}")]
    ClaimRefReset(Arc<str>),
    /// By another scheduler, or for another pod with the claim. Upstream does not look.
    #[error("persistentvolumeclaim {claim:?} is bound to pv {volume:?}")]
    BoundElsewhere { claim: Arc<str>, volume: Arc<str> },
    #[error("provisioning failed for PVC {0:?}")]
    ProvisioningFailed(Arc<str>),
    #[error("pv {volume:?} node affinity doesn't match node {node:?}: no matching NodeSelectorTerms")]
    WrongNode { volume: Arc<str>, node: Arc<str> },
}

impl Volumes {
    /// Returns the requests for these claims. A deleted claim is requested as well, and then reported as missing.
    pub fn requests(&self, wanted: &[(ClaimName, WantedVolume)]) -> Arc<[ClaimRequest]> {
        let request = |(claim, wanted): &(ClaimName, WantedVolume)| {
            let uid = self.claims.get(claim).map(|known| known.uid.clone()).unwrap_or_else(|| "".into());
            ClaimRequest { claim: claim.clone(), uid, wanted: wanted.clone() }
        };
        wanted.iter().map(request).collect()
    }

    /// Reserves these volumes for the claims; other pods with these claims must go to this node.
    pub fn reserve(&mut self, requests: &[ClaimRequest], node: &Arc<str>) -> VolumeNews {
        let mut news = VolumeNews::default();
        for ClaimRequest { claim, wanted, .. } in requests {
            match wanted {
                WantedVolume::Volume(volume) => news.join(self.change_volume(volume, |volumes| {
                    volumes.reserved.insert(volume.clone(), claim.clone());
                })),
                WantedVolume::Provision => {
                    self.selected.insert(claim.clone(), node.clone());
                    news.claims.insert(claim.clone());
                }
            }
        }
        news
    }

    /// Releases a reservation: the state of the API server applies again.
    pub fn release(&mut self, requests: &[ClaimRequest]) -> VolumeNews {
        let mut news = VolumeNews::default();
        for ClaimRequest { claim, wanted, .. } in requests {
            match wanted {
                WantedVolume::Volume(volume) if self.reserved.get(volume) == Some(claim) => {
                    news.join(self.change_volume(volume, |volumes| {
                        volumes.reserved.remove(volume);
                    }));
                }
                WantedVolume::Volume(_) => {}
                WantedVolume::Provision => {
                    self.selected.remove(claim);
                    news.claims.insert(claim.clone());
                }
            }
        }
        news
    }

    /// Returns whether the claims are bound as requested, given the versions that the API server assigned to the write
    /// for each. Older states of volumes and claims are ignored (upstream: `checkBindings`).
    pub fn progress(&self, requests: &[ClaimRequest], written: &[u64], node: &Node) -> ClaimProgress {
        for (request, version) in requests.iter().zip(written) {
            match self.progress_of(request, *version, node) {
                Ok(true) => {}
                Ok(false) => return ClaimProgress::Waiting,
                Err(why) => return ClaimProgress::Failed(why),
            }
        }
        ClaimProgress::Done
    }

    fn progress_of(&self, request: &ClaimRequest, written: u64, node: &Node) -> Result<bool, BindingError> {
        let name = &request.claim.name;
        let claim = self.claims.get(&request.claim).filter(|claim| claim.uid == request.uid);
        let claim = claim.ok_or_else(|| BindingError::ClaimGone(name.clone()))?;
        let volume = match &request.wanted {
            WantedVolume::Volume(volume) => {
                let known = self.volumes.get(volume);
                let known = known.ok_or_else(|| BindingError::VolumeGone(volume.clone()))?;
                if known.version < written {
                    return Ok(false);
                }
                if known.claim.as_ref().is_none_or(|reference| reference.uid != claim.uid) {
                    return Err(BindingError::ClaimRefReset(volume.clone()));
                }
                if let Some(bound) = claim.bound_to().filter(|bound| *bound != volume) {
                    return Err(BindingError::BoundElsewhere { claim: name.clone(), volume: bound.clone() });
                }
                Some(known)
            }
            WantedVolume::Provision => {
                if claim.version < written {
                    return Ok(false);
                }
                if claim.selected_node.as_ref() != Some(&node.name) {
                    return Err(BindingError::ProvisioningFailed(name.clone()));
                }
                match &claim.volume {
                    None => None,
                    Some(volume) => match self.volumes.get(volume) {
                        // The watch of volumes lags behind the watch of claims.
                        None => return Ok(false),
                        known => known,
                    },
                }
            }
        };
        if let Some(volume) = volume
            && (volume.spec.affinity.as_ref()).is_some_and(|terms| !admits(terms, &node.labels))
        {
            let (volume, node) = (volume.spec.name.clone(), node.name.clone());
            return Err(BindingError::WrongNode { volume, node });
        }
        Ok(claim.bound_to().is_some())
    }
}

impl VolumeNews {
    fn join(&mut self, other: VolumeNews) {
        self.claims.extend(other.claims);
        self.hosts.extend(other.hosts);
        self.nodes.extend(other.nodes);
        self.all_claims |= other.all_claims;
        self.all_holdings |= other.all_holdings;
    }
}
