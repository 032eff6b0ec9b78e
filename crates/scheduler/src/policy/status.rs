//! Status of policies: whether they are in force, for which pods, and the resulting settings.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Governs, ObservedPolicy, Policies, Ruling, SelectedNamespaces};
use crate::rules::PlacementSettings;
use berth_model::Labels;

/// Status of one policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyStatus {
    pub name: Arc<str>,
    pub uid: Arc<str>,
    pub observed_generation: i64,
    pub reason: StatusReason,
    /// Human-readable explanation.
    pub message: Arc<str>,
    /// Equally specific policies that take precedence, and for which pods.
    pub contradiction: Option<Arc<str>>,
    /// Pods of the policy, as text.
    pub governs: Arc<str>,
    /// Settings in effect for them; `None` while the policy is not in force.
    pub effective: Option<Arc<PlacementSettings>>,
}

/// Reason of the condition `InForce` of policies and quotas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusReason {
    Applied,
    /// Equally specific objects take precedence for all of its pods.
    Overruled,
    Invalid,
}

impl StatusReason {
    pub fn name(self) -> &'static str {
        match self {
            StatusReason::Applied => "Applied",
            StatusReason::Overruled => "Overruled",
            StatusReason::Invalid => "Invalid",
        }
    }
}

/// Maximum number of names in a text.
pub(crate) const MOST_NAMES: usize = 10;

/// A set of pods that a policy selects: a namespace or all, and a scheduler or all.
type Claim = (Option<Arc<str>>, Option<Arc<str>>);

/// Returns the statuses of all policies, sorted by name. `namespaces` are the existing ones, sorted.
pub(super) fn statuses(policies: &Policies, namespaces: &[(&Arc<str>, &Labels)]) -> Vec<PolicyStatus> {
    // As a claim implies the specificity, only equally specific policies can share one.
    let mut winners: BTreeMap<Claim, &Arc<str>> = BTreeMap::new();
    let mut statuses: BTreeMap<&Arc<str>, PolicyStatus> = BTreeMap::new();
    for ruling in &policies.rulings {
        let Some(policy) = policies.by_name.get(&ruling.policy) else {
            continue;
        };
        let claims = claims(&ruling.governs, namespaces);
        let mut lost: BTreeMap<&Arc<str>, Vec<Claim>> = BTreeMap::new();
        let all = claims.len();
        for claim in claims {
            match winners.get(&claim) {
                Some(winner) => lost.entry(winner).or_default().push(claim),
                None => {
                    winners.insert(claim, &ruling.policy);
                }
            }
        }
        statuses.insert(&ruling.policy, of_ruling(policy, ruling, all, &lost, namespaces));
    }
    let invalid =
        policies.by_name.values().filter_map(|policy| Some((policy, policy.settings.as_ref().err()?)));
    for (policy, why) in invalid {
        let status = PolicyStatus {
            reason: StatusReason::Invalid,
            message: format!("the policy is not in force: {why}").into(),
            effective: None,
            contradiction: None,
            ..bare(policy, namespaces)
        };
        statuses.insert(&policy.name, status);
    }
    statuses.into_values().collect()
}

fn bare(policy: &ObservedPolicy, namespaces: &[(&Arc<str>, &Labels)]) -> PolicyStatus {
    PolicyStatus {
        name: policy.name.clone(),
        uid: policy.uid.clone(),
        observed_generation: policy.generation,
        reason: StatusReason::Applied,
        message: "the policy is in force".into(),
        contradiction: None,
        governs: describe(&policy.governs, namespaces).into(),
        effective: None,
    }
}

fn of_ruling(
    policy: &ObservedPolicy,
    ruling: &Ruling,
    claims: usize,
    lost: &BTreeMap<&Arc<str>, Vec<Claim>>,
    namespaces: &[(&Arc<str>, &Labels)],
) -> PolicyStatus {
    let bare = bare(policy, namespaces);
    let losses: usize = lost.values().map(Vec::len).sum();
    if losses == 0 {
        return PolicyStatus { effective: Some(ruling.effective()), ..bare };
    }
    let each = lost.iter().map(|(winner, claims)| {
        let texts: Vec<_> = claims.iter().map(text_of).collect();
        format!("policy {winner} takes precedence for {}", names(&texts))
    });
    let each: Vec<_> = each.take(MOST_NAMES).collect();
    let text = format!("{}: it is equally specific, and older or first by name", each.join("; "));
    let contradiction = Some(Arc::from(text));
    if losses < claims {
        let message = "the policy is in force for some of its pods".into();
        return PolicyStatus { message, contradiction, effective: Some(ruling.effective()), ..bare };
    }
    let message = "the policy is not in force: other policies take precedence for all of its pods".into();
    PolicyStatus { reason: StatusReason::Overruled, message, contradiction, ..bare }
}

impl Ruling {
    /// Returns the settings of the first scheduler that the policy names, else those of schedulers without a profile.
    fn effective(&self) -> Arc<PlacementSettings> {
        let first = self.governs.schedulers.first().and_then(|name| self.of_profiles.get(name));
        first.unwrap_or(&self.placement).clone()
    }
}

fn claims(governs: &Governs, namespaces: &[(&Arc<str>, &Labels)]) -> Vec<Claim> {
    let within: Vec<Option<Arc<str>>> = match &governs.namespaces {
        SelectedNamespaces::All => vec![None],
        _ => names_of(&governs.namespaces, namespaces).into_iter().map(Some).collect(),
    };
    let of: Vec<Option<Arc<str>>> = match &*governs.schedulers {
        [] => vec![None],
        names => names.iter().cloned().map(Some).collect(),
    };
    within.iter().flat_map(|namespace| of.iter().map(|name| (namespace.clone(), name.clone()))).collect()
}

/// Returns the names of the selected namespaces.
pub(crate) fn names_of(meant: &SelectedNamespaces, namespaces: &[(&Arc<str>, &Labels)]) -> Vec<Arc<str>> {
    match meant {
        SelectedNamespaces::All => Vec::new(),
        SelectedNamespaces::Named(names) => names.to_vec(),
        SelectedNamespaces::Selected(selector) => {
            let matching = namespaces.iter().filter(|(_, labels)| selector.matches(labels));
            matching.map(|(name, _)| (*name).clone()).collect()
        }
    }
}

fn text_of((namespace, scheduler): &Claim) -> String {
    match (namespace, scheduler) {
        (None, None) => "all pods".to_owned(),
        (None, Some(scheduler)) => format!("scheduler {scheduler}"),
        (Some(namespace), None) => format!("namespace {namespace}"),
        (Some(namespace), Some(scheduler)) => format!("namespace {namespace} with scheduler {scheduler}"),
    }
}

fn describe(governs: &Governs, namespaces: &[(&Arc<str>, &Labels)]) -> String {
    let within = match &governs.namespaces {
        SelectedNamespaces::All => None,
        meant => Some(names_of(meant, namespaces)),
    };
    let mut text = match &within {
        None => "all pods".to_owned(),
        Some(none) if none.is_empty() => return "no pods: no namespace matches the selector".to_owned(),
        Some(some) => {
            format!("pods of namespace{} {}", if some.len() == 1 { "" } else { "s" }, names(some))
        }
    };
    if !governs.schedulers.is_empty() {
        text = format!("{text} with scheduler {}", names(&governs.schedulers));
    }
    text
}

/// Formats names as "a, b, and 3 more".
pub(crate) fn names<T: AsRef<str>>(all: &[T]) -> String {
    let shown: Vec<_> = all.iter().take(MOST_NAMES).map(AsRef::as_ref).collect();
    match all.len() - shown.len() {
        0 => shown.join(", "),
        more => format!("{}, and {more} more", shown.join(", ")),
    }
}
