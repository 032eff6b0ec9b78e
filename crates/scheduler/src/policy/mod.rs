//! Allocation policies: placement settings, selection of the policy for a pod, and status.
//!
//! The most specific policy governs a pod: first one that selects both its namespace and its scheduler, then its
//! namespace, then its scheduler, then one for all pods. Of two equally specific policies the older one takes
//! precedence, then the first by name; the status of the other one reports this. Must not depend on kube, tokio, clocks
//! or nodes.

mod status;

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub(crate) use status::{MOST_NAMES, names, names_of};
pub use status::{PolicyStatus, StatusReason};

use crate::objects::ObjectName;
use crate::profile::{Profile, Profiles};
use crate::rules::{AgentLimit, CellLimit, PlacementSettings, PreferenceOrder, hash_of};
use berth_model::{Identity, LabelSelector, Labels, Packing};

/// One policy as observed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObservedPolicy {
    pub name: Arc<str>,
    pub uid: Arc<str>,
    pub generation: i64,
    /// Creation time in seconds since 1970.
    pub created: i64,
    pub governs: Governs,
    /// Settings, or a human-readable validation error.
    pub settings: Result<PolicySettings, Arc<str>>,
}

/// Selects the pods of a policy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Governs {
    /// Sorted; empty: any.
    pub schedulers: Box<[Arc<str>]>,
    pub namespaces: SelectedNamespaces,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SelectedNamespaces {
    #[default]
    All,
    /// Sorted.
    Named(Box<[Arc<str>]>),
    Selected(LabelSelector),
}

/// Settings of a policy; unset ones default to those for pods without a policy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicySettings {
    pub packing: Option<Packing>,
    pub candidate_width: Option<usize>,
    pub order: Option<PreferenceOrder>,
    pub limit: Option<CellLimit>,
    pub cache_bytes: Option<usize>,
    /// Maximum number of agents that place these pods.
    pub agents: Option<u8>,
}

/// Specificity of a policy: whether it limits namespaces, and schedulers.
type Rank = (bool, bool);

/// A valid policy with its settings.
#[derive(Debug)]
struct Ruling {
    policy: Arc<str>,
    governs: Governs,
    /// For pods of schedulers without a profile.
    placement: Arc<PlacementSettings>,
    /// For pods of the profiles that it governs.
    of_profiles: BTreeMap<Arc<str>, Arc<PlacementSettings>>,
}

/// All policies.
#[derive(Debug, Default)]
pub struct Policies {
    /// Settings for pods without a policy.
    profiles: Arc<Profiles>,
    by_name: BTreeMap<Arc<str>, ObservedPolicy>,
    /// Valid policies, in order of precedence.
    rulings: Vec<Ruling>,
    /// Statuses may have changed since the last report.
    news: bool,
    reported: BTreeMap<Arc<str>, PolicyStatus>,
}

impl Governs {
    fn rank(&self) -> Rank {
        (self.namespaces != SelectedNamespaces::All, !self.schedulers.is_empty())
    }

    /// Returns whether it governs pods of this scheduler, in some namespace.
    fn names(&self, scheduler: &str) -> bool {
        self.schedulers.is_empty() || self.schedulers.iter().any(|known| **known == *scheduler)
    }

    fn includes(&self, pod: &Identity, scheduler: &str) -> bool {
        self.names(scheduler)
            && match &self.namespaces {
                SelectedNamespaces::All => true,
                SelectedNamespaces::Named(names) => names.contains(&pod.namespace),
                SelectedNamespaces::Selected(selector) => selector.matches(&pod.namespace_labels),
            }
    }
}

impl Policies {
    /// Creates a store with the settings for pods without a policy, which are also those that a policy leaves out.
    pub fn new(profiles: Arc<Profiles>) -> Self {
        Policies { profiles, ..Policies::default() }
    }

    /// Upserts a policy. Returns whether pods may be placed differently now.
    pub fn apply(&mut self, policy: ObservedPolicy) -> bool {
        let known = self.by_name.get(&policy.name);
        if known == Some(&policy) {
            return false;
        }
        let same = known.is_some_and(|known| {
            known.created == policy.created
                && known.governs == policy.governs
                && known.settings == policy.settings
        });
        self.news = true;
        self.by_name.insert(policy.name.clone(), policy);
        if !same {
            self.rank();
        }
        !same
    }

    /// Deletes a policy. Returns whether pods may be placed differently now.
    pub fn delete(&mut self, name: &str) -> bool {
        self.reported.remove(name);
        let known = self.by_name.remove(name).is_some();
        if known {
            self.news = true;
            self.rank();
        }
        known
    }

    /// Deletes all policies that are not in `listed`. Returns whether pods may be placed differently now.
    pub fn retain(&mut self, listed: &HashSet<ObjectName>) -> bool {
        let listed: HashSet<&str> = listed.iter().map(|object| &*object.name).collect();
        let gone = self.by_name.keys().filter(|name| !listed.contains(&***name));
        let gone: Vec<_> = gone.cloned().collect();
        gone.iter().filter(|name| self.delete(name)).count() > 0
    }

    /// Sorts the valid policies by precedence.
    fn rank(&mut self) {
        let valid = self.by_name.values().filter_map(|policy| Some((policy, policy.settings.as_ref().ok()?)));
        let mut valid: Vec<_> = valid.collect();
        valid
            .sort_by_key(|(policy, _)| (Reverse(policy.governs.rank()), policy.created, policy.name.clone()));
        let ruling = |(policy, wishes): &(&ObservedPolicy, &PolicySettings)| {
            let over = |profile: &Profile| Arc::new(wishes.over(&profile.placement, &policy.name));
            let profiles = self.profiles.named.iter().filter(|(name, _)| policy.governs.names(name));
            Ruling {
                policy: policy.name.clone(),
                governs: policy.governs.clone(),
                placement: over(&self.profiles.default),
                of_profiles: profiles.map(|(name, profile)| (name.clone(), over(profile))).collect(),
            }
        };
        self.rulings = valid.iter().map(ruling).collect();
    }

    fn ruling(&self, pod: &Identity, scheduler: &str) -> Option<&Ruling> {
        self.rulings.iter().find(|ruling| ruling.governs.includes(pod, scheduler))
    }

    /// Returns the policy for such a pod, with the labels of its namespace, if any.
    pub fn governing(&self, pod: &Identity, scheduler: &str) -> Option<&Arc<str>> {
        self.ruling(pod, scheduler).map(|ruling| &ruling.policy)
    }

    /// Returns the settings for such a pod.
    pub fn placement(&self, pod: &Identity, scheduler: &str) -> Arc<PlacementSettings> {
        match self.ruling(pod, scheduler) {
            Some(ruling) => ruling.of_profiles.get(scheduler).unwrap_or(&ruling.placement).clone(),
            None => self.profiles.of(scheduler).placement.clone(),
        }
    }

    /// Records that a namespace was added, deleted or relabelled: statuses may change.
    pub fn namespace_changed(&mut self) {
        let selects =
            |policy: &ObservedPolicy| matches!(policy.governs.namespaces, SelectedNamespaces::Selected(_));
        self.news |= self.by_name.values().any(selects);
    }

    /// Reports all statuses again: the previous reporter may have stopped before it wrote them.
    pub fn report_all_again(&mut self) {
        self.reported.clear();
        self.news = true;
    }

    /// Returns the statuses that changed since the last report, sorted by name. `namespaces` returns the existing
    /// namespaces.
    pub fn take_news<'a, N>(&mut self, namespaces: impl FnOnce() -> N) -> Vec<PolicyStatus>
    where
        N: IntoIterator<Item = (&'a Arc<str>, &'a Labels)>,
    {
        if !std::mem::take(&mut self.news) {
            return Vec::new();
        }
        let mut namespaces: Vec<_> = namespaces().into_iter().collect();
        namespaces.sort_unstable_by_key(|(name, _)| *name);
        let mut statuses = status::statuses(self, &namespaces);
        statuses.retain(|status| self.reported.get(&status.name) != Some(status));
        self.reported.extend(statuses.iter().map(|status| (status.name.clone(), status.clone())));
        statuses
    }
}

impl PolicySettings {
    /// Returns the settings, with unset ones from `default`.
    fn over(&self, default: &PlacementSettings, policy: &str) -> PlacementSettings {
        let agents = self.agents.map(|most| AgentLimit { most, from: hash_of(policy) });
        PlacementSettings {
            order: self.order.clone().unwrap_or_else(|| default.order.clone()),
            packing: self.packing.unwrap_or(default.packing),
            resources: default.resources.clone(),
            candidate_width: self.candidate_width.unwrap_or(default.candidate_width),
            limit: self.limit.clone().or_else(|| default.limit.clone()),
            cache_bytes: self.cache_bytes.or(default.cache_bytes),
            agents: agents.or(default.agents),
        }
    }
}
