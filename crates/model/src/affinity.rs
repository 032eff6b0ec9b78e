//! Pod affinity and anti-affinity, and topology spread.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Labels, PodOwner, Requirement};

/// The part of a pod that the rules of other pods read. Pods made from one template mostly share one value.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Peer {
    pub identity: Identity,
    /// The pod is being deleted: topology spread ignores it, affinity still counts it.
    pub terminating: bool,
    /// The pod's own terms, which also constrain pods scheduled later.
    pub affinity: Arc<PodAffinity>,
    /// The pod's controller, which can make it a member of an allocation.
    pub owner: Option<PodOwner>,
    /// The PodGroup named in `spec.schedulingGroup.podGroupName`.
    pub group: Option<Arc<str>>,
}

/// The attributes that pod selectors match.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Identity {
    pub namespace: Arc<str>,
    /// Labels of the namespace, as far as they are known.
    pub namespace_labels: Labels,
    pub labels: Labels,
}

/// A label selector in canonical form: sorted, each requirement once.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub enum LabelSelector {
    /// An absent selector matches no object.
    #[default]
    Nothing,
    /// All must hold; an empty selector matches every object.
    All(Box<[Requirement]>),
}

/// As kubectl takes it.
impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let requirements = match self {
            LabelSelector::Nothing => return f.write_str("nothing"),
            LabelSelector::All(requirements) if requirements.is_empty() => return f.write_str("everything"),
            LabelSelector::All(requirements) => requirements,
        };
        for (at, requirement) in requirements.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            write!(f, "{comma}{requirement}")?;
        }
        Ok(())
    }
}

impl LabelSelector {
    pub fn matches(&self, labels: &Labels) -> bool {
        match self {
            LabelSelector::Nothing => false,
            LabelSelector::All(requirements) => requirements.iter().all(|r| r.matches(labels)),
        }
    }

    /// Returns the label keys that the selector reads.
    pub fn keys(&self) -> impl Iterator<Item = &Arc<str>> {
        let requirements: &[Requirement] = match self {
            LabelSelector::Nothing => &[],
            LabelSelector::All(requirements) => requirements,
        };
        requirements.iter().map(|requirement| &requirement.key)
    }
}

/// Selects pods by namespace and labels.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PodSelector {
    /// Sorted. The pod's own namespace if the term names none.
    #[serde(deserialize_with = "crate::sorted::deserialize")]
    pub namespaces: Box<[Arc<str>]>,
    /// Also selects pods of namespaces with matching labels.
    pub namespace_selector: LabelSelector,
    pub labels: LabelSelector,
}

impl PodSelector {
    pub fn matches(&self, pod: &Identity) -> bool {
        let named = || self.namespaces.binary_search(&pod.namespace).is_ok();
        (named() || self.namespace_selector.matches(&pod.namespace_labels))
            && self.labels.matches(&pod.labels)
    }
}

/// One term of pod (anti-)affinity: selected pods in the same domain of the topology.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PodTerm {
    pub selector: PodSelector,
    pub topology_key: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WeightedPodTerm {
    /// 1 to 100 for affinity, -1 to -100 for anti-affinity.
    pub weight: i32,
    pub term: PodTerm,
}

/// Pod affinity and anti-affinity of one pod. Each list sorted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PodAffinity {
    pub required: Box<[PodTerm]>,
    pub required_anti: Box<[PodTerm]>,
    pub preferred: Box<[WeightedPodTerm]>,
}

impl PodAffinity {
    pub fn is_empty(&self) -> bool {
        self.required.is_empty() && self.required_anti.is_empty() && self.preferred.is_empty()
    }

    pub fn terms(&self) -> impl Iterator<Item = &PodTerm> {
        let preferred = self.preferred.iter().map(|weighted| &weighted.term);
        self.required.iter().chain(&self.required_anti).chain(preferred)
    }
}

/// One constraint of topology spread.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SpreadConstraint {
    pub topology_key: Arc<str>,
    /// At least 1.
    pub max_skew: i32,
    /// With fewer domains than this, the emptiest counts as empty. At least 1.
    pub min_domains: i32,
    /// `DoNotSchedule`; else `ScheduleAnyway`.
    pub hard: bool,
    /// The pods to count, all in the pod's namespace. An empty selector counts none (upstream:
    /// `countPodsMatchSelector`), so it is kept as [`LabelSelector::Nothing`].
    pub selector: PodSelector,
    /// The pod itself matches the selector.
    pub self_match: bool,
    /// Only nodes that match the pod's node affinity and node selector are part of the topology.
    pub honor_affinity: bool,
    /// Only nodes whose taints the pod tolerates are part of the topology.
    pub honor_taints: bool,
}

/// Topology spread constraints of a pod, in the order of its spec: the first violated constraint gives the reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Spread {
    pub constraints: Box<[SpreadConstraint]>,
    /// The constraints are the cluster's defaults: a node that lacks the label of one constraint is judged by the
    /// remaining ones (upstream: `requireAllTopologies`).
    pub defaulted: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Operator;

    fn identity(namespace: &str, team: &str, app: &str) -> Identity {
        Identity {
            namespace: namespace.into(),
            namespace_labels: [("team", team)].into_iter().collect(),
            labels: [("app", app)].into_iter().collect(),
        }
    }

    fn one_of(key: &str, value: &str) -> LabelSelector {
        let operator = Operator::In([value.into()].into());
        LabelSelector::All([Requirement { key: key.into(), operator }].into())
    }

    #[test]
    fn a_pod_is_meant_by_its_namespace_or_that_namespaces_labels_and_always_by_its_own_labels() {
        let web = one_of("app", "web");
        let here =
            PodSelector { namespaces: ["x".into()].into(), labels: web.clone(), ..PodSelector::default() };
        assert!(here.matches(&identity("x", "a", "web")));
        assert!(!here.matches(&identity("y", "a", "web")) && !here.matches(&identity("x", "a", "db")));
        let team = PodSelector { namespace_selector: one_of("team", "a"), ..here };
        assert!(team.matches(&identity("x", "b", "web")) && team.matches(&identity("y", "a", "web")));
        assert!(!team.matches(&identity("y", "b", "web")));
    }

    #[test]
    fn an_empty_selector_matches_everything_and_an_absent_one_nothing() {
        let labels = Labels::default();
        assert!(LabelSelector::All([].into()).matches(&labels));
        assert!(!LabelSelector::Nothing.matches(&labels));
    }
}
