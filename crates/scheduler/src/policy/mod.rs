//! Allocation policies: what they say of placing pods, which one governs a pod, and what is told of each.
//!
//! The most specific policy governs a pod: one that names its namespace (or selects it) and its scheduler, before one of its
//! namespace, before one of its scheduler, before one of all pods. Of two alike the older one goes first, then the first by name;
//! the status of the other says so. May not know: kube, tokio, clocks, nodes.

mod status;

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

pub(crate) use status::names_of;
pub use status::{PolicyStatus, Reason};

use crate::objects::ObjectName;
use crate::rules::{AgentLimit, Placement, PreferenceOrder, UtilisationLimit, hash_of};
use berth_model::Packing;
use berth_model::{Identity, LabelSelector, Labels};

/// One policy as it was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    pub name: Arc<str>,
    pub uid: Arc<str>,
    pub generation: i64,
    /// When it was made, in seconds since 1970.
    pub created: i64,
    pub governs: Governs,
    /// Or what is wrong with it, for a person.
    pub wishes: Result<Wishes, Arc<str>>,
}

/// Whose pods.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Governs {
    /// Sorted; empty: any.
    pub schedulers: Box<[Arc<str>]>,
    pub namespaces: Namespaces,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Namespaces {
    #[default]
    All,
    /// Sorted.
    Named(Box<[Arc<str>]>),
    Selected(LabelSelector),
}

/// What a policy says; what it leaves out is as for pods that none governs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wishes {
    pub packing: Option<Packing>,
    pub candidate_width: Option<usize>,
    pub order: Option<PreferenceOrder>,
    pub limit: Option<UtilisationLimit>,
    pub cache_bytes: Option<usize>,
    /// At most so many agents place these pods.
    pub agents: Option<u8>,
}

/// How specific a policy is: its namespaces are limited, its schedulers are.
type Rank = (bool, bool);

/// One policy that is in force.
#[derive(Debug)]
struct Ruling {
    policy: Arc<str>,
    governs: Governs,
    placement: Arc<Placement>,
}

/// All policies.
#[derive(Debug, Default)]
pub struct Policies {
    /// Of pods that none governs.
    default: Arc<Placement>,
    by_name: BTreeMap<Arc<str>, Policy>,
    /// Those that are not invalid, the one that goes first first.
    rulings: Vec<Ruling>,
    /// What is told of them may be other than what was told.
    news: bool,
    told: BTreeMap<Arc<str>, PolicyStatus>,
}

impl Governs {
    fn rank(&self) -> Rank {
        (self.namespaces != Namespaces::All, !self.schedulers.is_empty())
    }

    fn includes(&self, pod: &Identity, scheduler: &str) -> bool {
        let named = |names: &[Arc<str>], name: &str| names.iter().any(|known| **known == *name);
        let theirs = self.schedulers.is_empty() || named(&self.schedulers, scheduler);
        theirs
            && match &self.namespaces {
                Namespaces::All => true,
                Namespaces::Named(names) => named(names, &pod.namespace),
                Namespaces::Selected(selector) => selector.matches(&pod.namespace_labels),
            }
    }
}

impl Policies {
    /// Pods that no policy governs are placed so.
    pub fn new(default: Arc<Placement>) -> Self {
        Policies { default, ..Policies::default() }
    }

    /// The policy is now so. Returns whether pods may be placed differently now.
    pub fn apply(&mut self, policy: Policy) -> bool {
        let known = self.by_name.get(&policy.name);
        if known == Some(&policy) {
            return false;
        }
        let same = known.is_some_and(|known| {
            known.created == policy.created
                && known.governs == policy.governs
                && known.wishes == policy.wishes
        });
        self.news = true;
        self.by_name.insert(policy.name.clone(), policy);
        if !same {
            self.rank();
        }
        !same
    }

    /// The same for a policy that is gone.
    pub fn delete(&mut self, name: &str) -> bool {
        self.told.remove(name);
        let known = self.by_name.remove(name).is_some();
        if known {
            self.news = true;
            self.rank();
        }
        known
    }

    /// The same for all that are not among these.
    pub fn retain(&mut self, listed: &HashSet<ObjectName>) -> bool {
        let listed: HashSet<&str> = listed.iter().map(|object| &*object.name).collect();
        let gone = self.by_name.keys().filter(|name| !listed.contains(&***name));
        let gone: Vec<_> = gone.cloned().collect();
        gone.iter().filter(|name| self.delete(name)).count() > 0
    }

    /// Puts them in the order in which they are asked.
    fn rank(&mut self) {
        let valid = self.by_name.values().filter_map(|policy| Some((policy, policy.wishes.as_ref().ok()?)));
        let mut valid: Vec<_> = valid.collect();
        valid
            .sort_by_key(|(policy, _)| (Reverse(policy.governs.rank()), policy.created, policy.name.clone()));
        let ruling = |(policy, wishes): &(&Policy, &Wishes)| Ruling {
            policy: policy.name.clone(),
            governs: policy.governs.clone(),
            placement: wishes.over(&self.default, &policy.name).into(),
        };
        self.rulings = valid.iter().map(ruling).collect();
    }

    fn ruling(&self, pod: &Identity, scheduler: &str) -> Option<&Ruling> {
        self.rulings.iter().find(|ruling| ruling.governs.includes(pod, scheduler))
    }

    /// The policy that governs such a pod, with the labels of its namespace, if one does.
    pub fn governing(&self, pod: &Identity, scheduler: &str) -> Option<&Arc<str>> {
        self.ruling(pod, scheduler).map(|ruling| &ruling.policy)
    }

    /// How such a pod is placed.
    pub fn placement(&self, pod: &Identity, scheduler: &str) -> Arc<Placement> {
        self.ruling(pod, scheduler).map_or(&self.default, |ruling| &ruling.placement).clone()
    }

    /// A namespace has come, gone, or has other labels: what is told of policies may change.
    pub fn namespace_changed(&mut self) {
        let selects = |policy: &Policy| matches!(policy.governs.namespaces, Namespaces::Selected(_));
        self.news |= self.by_name.values().any(selects);
    }

    /// Everything is to be told again: whoever told it before may have ended before.
    pub fn tell_again(&mut self) {
        self.told.clear();
        self.news = true;
    }

    /// What is to be told of policies now, but for what was told before; sorted by name. `namespaces` gives those that exist.
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
        statuses.retain(|status| self.told.get(&status.name) != Some(status));
        self.told.extend(statuses.iter().map(|status| (status.name.clone(), status.clone())));
        statuses
    }
}

impl Wishes {
    /// With what is left out as it is in `default`.
    fn over(&self, default: &Placement, policy: &str) -> Placement {
        let agents = self.agents.map(|most| AgentLimit { most, from: hash_of(policy) });
        Placement {
            order: self.order.clone().unwrap_or_else(|| default.order.clone()),
            packing: self.packing.unwrap_or(default.packing),
            candidate_width: self.candidate_width.unwrap_or(default.candidate_width),
            limit: self.limit.clone().or_else(|| default.limit.clone()),
            cache_bytes: self.cache_bytes.or(default.cache_bytes),
            agents: agents.or(default.agents),
        }
    }
}
