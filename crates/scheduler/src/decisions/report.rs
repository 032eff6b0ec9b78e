//! A decision as programs read it.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Considered, PlacementDecision};
use berth_model::Preference;

/// Version of [`DecisionReport`]: changes when a field is removed or gets another meaning.
pub const WHY_API_VERSION: &str = "why.berth.dev/v1";
/// Maximum number of hints in a report, the strongest first.
const HINTS_MAX: usize = 4;

/// Why a pod has its node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DecisionReport {
    pub api_version: String,
    pub namespace: String,
    pub pod: String,
    pub node: String,
    /// RFC 3339; `None` in an annotation, which is written with the bind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placed_at: Option<String>,
    /// As `berth explain` shows it.
    pub class: String,
    /// Policy that governed it.
    pub policy: Option<String>,
    /// Gang with which it was placed, as NAMESPACE/NAME.
    pub gang: Option<String>,
    /// Pods were preempted for it.
    pub preempted: bool,
    /// Hints that counted like preferred pod affinity.
    pub hints: Vec<HintReport>,
    /// Preferences between nodes, most important first.
    pub preferences: Vec<String>,
    /// The best nodes of that moment, best first. Empty: no agent compared nodes for this pod alone.
    pub candidates: Vec<CandidateReport>,
    /// The most important preference in which the chosen node and the best other one differ; `None`: they are alike, or there is no
    /// other.
    pub decided_by: Option<String>,
    pub stages: StageReport,
}

/// Annotation of pods with the [`DecisionReport`] of their placement, in JSON.
pub const ANNOTATION: &str = "berth.dev/decision";

impl DecisionReport {
    /// Returns the value of the annotation.
    pub fn annotation(&self) -> Arc<str> {
        serde_json::to_string(self).unwrap_or_default().into()
    }
}

/// A placement hint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HintReport {
    /// Positive: near these pods; negative: on other nodes.
    pub weight: i32,
    pub namespaces: Vec<String>,
    /// Label selector of these pods, as kubectl takes it.
    pub selector: String,
}

/// A node with what told it apart. Less is better in each score.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CandidateReport {
    pub node: String,
    /// Not requested by other pods, in thousandths of a CPU.
    pub free_cpu_milli: i32,
    #[serde(rename = "freeMemoryMiB")]
    pub free_memory_mib: i32,
    /// Untolerated `PreferNoSchedule` taints.
    pub taints: u8,
    /// Total weight of preferred node affinity terms that the node does not match.
    pub node_affinity: u16,
    /// Negated sum of the weights of preferred pod affinity terms that pods there match.
    pub pod_affinity: i32,
    /// Cost for topology spread, in points of kube-scheduler's score.
    pub spread: f32,
    /// Share of the node that would be requested or, when packing, free: 0 to 63.
    pub share: u8,
    /// Difference between the requested shares of CPU and memory: 0 to 15.
    pub balance: u8,
    /// Share of the pod's images to pull: 0 to 7.
    pub images: u8,
}

/// What the decision took. Times in milliseconds, if the name does not say otherwise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StageReport {
    /// From the arrival of the pod to the choice of its node, over all attempts.
    pub waited_ms: u32,
    pub attempts: u32,
    /// Number of the agent that chose; `None`: none did, the pod went to the node that was kept for it.
    pub agent: Option<u8>,
    /// Whether the agent had the ranked list of its class.
    pub list: Option<ListUse>,
    /// Of the last choice, in microseconds; 0: not measured.
    pub choice_us: u32,
    /// Choices that were given up because the node had changed.
    pub conflicts: u16,
    /// From the choice to the end of the bind, with the pod's claims; `None` in an annotation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bind_ms: Option<u32>,
}

/// Where a ranked list came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ListUse {
    /// It was cached, and repaired.
    Hit,
    /// It was built.
    Miss,
}

impl ListUse {
    pub fn name(self) -> &'static str {
        match self {
            ListUse::Hit => "hit",
            ListUse::Miss => "miss",
        }
    }
}

impl PlacementDecision {
    /// `placed_at`: time of the decision, as RFC 3339; `None`: the pod is not bound yet.
    pub fn report(&self, placed_at: Option<String>) -> DecisionReport {
        let circumstances = self.circumstances.as_deref().cloned().unwrap_or_default();
        let order = self.placement.order.preferences();
        let mut hints: Vec<HintReport> = (circumstances.hints.iter())
            .map(|hint| HintReport {
                weight: hint.weight,
                namespaces: hint.term.selector.namespaces.iter().map(ToString::to_string).collect(),
                selector: hint.term.selector.labels.to_string(),
            })
            .collect();
        hints.sort_by_key(|hint| Reverse(hint.weight.unsigned_abs()));
        hints.truncate(HINTS_MAX);
        DecisionReport {
            api_version: WHY_API_VERSION.to_owned(),
            namespace: self.namespace.to_string(),
            pod: self.name.to_string(),
            node: self.node.to_string(),
            placed_at: placed_at.clone(),
            class: format!("{:016x}", self.class),
            policy: circumstances.policy.map(|policy| policy.to_string()),
            gang: circumstances.gang.map(|gang| gang.to_string()),
            preempted: circumstances.nominated,
            hints,
            preferences: order.iter().map(|(preference, _)| preference.name().to_owned()).collect(),
            candidates: self.candidates.iter().map(CandidateReport::of).collect(),
            decided_by: self.decided_by().map(|preference| preference.name().to_owned()),
            stages: StageReport {
                waited_ms: self.waited_ms,
                attempts: self.attempts,
                agent: self.agent,
                list: self.list,
                choice_us: self.choice_us,
                conflicts: self.conflicts,
                bind_ms: placed_at.map(|_| self.bind_ms),
            },
        }
    }

    /// Returns the most important preference in which the chosen node and the best other one differ.
    pub fn decided_by(&self) -> Option<Preference> {
        let chosen = self.candidates.iter().find(|candidate| candidate.node == self.node)?;
        let other = self.candidates.iter().find(|candidate| candidate.node != self.node)?;
        let mut order = self.placement.order.preferences().iter().map(|(preference, _)| *preference);
        order.find(|preference| chosen.score(*preference) != other.score(*preference))
    }

    /// Returns how long ago it was, at this time since the start of the process.
    pub fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(Duration::from_millis(self.placed_ms))
    }
}

impl Considered {
    fn score(&self, preference: Preference) -> f32 {
        match preference {
            Preference::TaintToleration => self.taints.into(),
            Preference::NodeAffinity => self.node_affinity.into(),
            Preference::InterPodAffinity => self.pod_affinity as f32,
            Preference::PodTopologySpread => self.spread,
            Preference::NodeResourcesFit => self.share.into(),
            Preference::NodeResourcesBalancedAllocation => self.balance.into(),
            Preference::ImageLocality => self.images.into(),
        }
    }
}

impl CandidateReport {
    fn of(candidate: &Considered) -> Self {
        CandidateReport {
            node: candidate.node.to_string(),
            free_cpu_milli: candidate.free_cpu_milli,
            free_memory_mib: candidate.free_memory_mib,
            taints: candidate.taints,
            node_affinity: candidate.node_affinity,
            pod_affinity: candidate.pod_affinity,
            spread: candidate.spread,
            share: candidate.share,
            balance: candidate.balance,
            images: candidate.images,
        }
    }
}
