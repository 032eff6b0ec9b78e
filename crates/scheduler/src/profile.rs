//! Profiles: settings for the pods of one scheduler name (upstream: profiles of `KubeSchedulerConfiguration`).
//!
//! Must not depend on kube, tokio, clocks or nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::rules::PlacementSettings;
use berth_model::{NodeAffinity, Spread};

/// Settings for the pods of one scheduler name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    /// Placement of pods that no policy governs.
    pub placement: Arc<PlacementSettings>,
    /// Spread constraints of pods without their own that have a common owner or service. Without selectors.
    pub default_spread: Spread,
    /// Enforced and preferred terms that every pod has in addition to its own; `required` is not used.
    pub added_affinity: NodeAffinity,
}

/// The profiles of a scheduler.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profiles {
    /// For pods whose scheduler has no profile of its own.
    pub default: Profile,
    /// By scheduler name.
    pub named: BTreeMap<Arc<str>, Profile>,
}

impl Profiles {
    pub fn of(&self, scheduler: &str) -> &Profile {
        self.named.get(scheduler).unwrap_or(&self.default)
    }
}

/// All schedulers have the same profile.
impl From<Profile> for Profiles {
    fn from(default: Profile) -> Self {
        Profiles { default, named: BTreeMap::new() }
    }
}

/// The same profile for all schedulers, which only has placement settings.
impl From<Arc<PlacementSettings>> for Profiles {
    fn from(placement: Arc<PlacementSettings>) -> Self {
        Profile { placement, ..Profile::default() }.into()
    }
}

impl Profile {
    /// Returns the node affinity of a pod with the terms of the profile; `None`: the profile has none.
    pub fn add_affinity(&self, own: &NodeAffinity) -> Option<NodeAffinity> {
        let added = &self.added_affinity;
        if added.enforced.is_none() && added.preferred.is_empty() {
            return None;
        }
        let mut preferred = [&own.preferred[..], &added.preferred[..]].concat();
        preferred.sort_unstable();
        let (required, enforced) = (own.required.clone(), added.enforced.clone());
        Some(NodeAffinity { required, preferred: preferred.into(), enforced })
    }
}
