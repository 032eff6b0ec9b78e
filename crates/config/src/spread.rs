//! Default topology spread constraints, as in upstream's `PodTopologySpreadArgs`.

use berth_model::validate::{refuse, whole_number};
use berth_model::{InvalidField, Spread, SpreadConstraint};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use berth_scheduler::objects::{default_constraint, system_defaults};

/// Topology spread constraints of pods that have none of their own. They apply to pods of a Service,
/// ReplicationController, ReplicaSet or StatefulSet, whose selectors select the pods that are counted.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PodTopologySpread {
    /// `System`: soft spreading over nodes (maxSkew 3) and zones (maxSkew 5). `List`: the
    /// `defaultConstraints`; if they are empty, no spreading.
    pub defaulting_type: DefaultingType,
    /// Constraints as in a pod's `topologySpreadConstraints`, without `labelSelector`. Only with `List`.
    pub default_constraints: Vec<DefaultConstraint>,
}

/// Source of the default constraints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum DefaultingType {
    #[default]
    System,
    List,
}

/// One default constraint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DefaultConstraint {
    /// Maximum difference between the counts of two domains.
    #[serde(deserialize_with = "whole_number")]
    #[schemars(range(min = 1, max = 2_147_483_647))]
    pub max_skew: u32,
    /// Node label whose values are the domains.
    #[schemars(length(min = 1, max = 317))]
    pub topology_key: String,
    /// `DoNotSchedule`: a pod that would violate the constraint stays pending. `ScheduleAnyway`: the
    /// constraint is a preference.
    pub when_unsatisfiable: WhenUnsatisfiable,
    /// Minimum number of domains: with fewer, the smallest count is 0. It has no effect with
    /// `ScheduleAnyway`.
    #[serde(default = "one", deserialize_with = "whole_number")]
    #[schemars(range(min = 1, max = 2_147_483_647))]
    pub min_domains: u32,
    /// `Honor`: only nodes that match the pod's node affinity and selector are counted.
    #[serde(default = "honor")]
    pub node_affinity_policy: InclusionPolicy,
    /// `Honor`: only nodes whose taints the pod tolerates are counted.
    #[serde(default = "ignore")]
    pub node_taints_policy: InclusionPolicy,
}

/// Handling of a pod that would violate the constraint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WhenUnsatisfiable {
    DoNotSchedule,
    ScheduleAnyway,
}

/// Whether a property of a node is respected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum InclusionPolicy {
    Honor,
    Ignore,
}

fn one() -> u32 {
    1
}

fn honor() -> InclusionPolicy {
    InclusionPolicy::Honor
}

fn ignore() -> InclusionPolicy {
    InclusionPolicy::Ignore
}

const CONSTRAINTS: &str = "podTopologySpread.defaultConstraints";

impl PodTopologySpread {
    /// Returns whether any pod gets a constraint by default.
    pub fn adds_constraints(&self) -> bool {
        self.defaulting_type == DefaultingType::System || !self.default_constraints.is_empty()
    }

    /// Returns the constraints of pods, without selectors.
    pub fn defaults(&self) -> Spread {
        match self.defaulting_type {
            DefaultingType::System => system_defaults(),
            DefaultingType::List => Spread {
                constraints: self.default_constraints.iter().map(DefaultConstraint::value).collect(),
                defaulted: false,
            },
        }
    }

    /// Validates as upstream does: `ValidatePodTopologySpreadArgs`, and the checks it shares with pods.
    pub(super) fn validate(&self) -> Result<(), InvalidField> {
        if self.defaulting_type == DefaultingType::System && !self.default_constraints.is_empty() {
            let problem = "it is System while defaultConstraints is not empty; write defaultingType: List";
            return refuse("podTopologySpread.defaultingType", problem);
        }
        for (at, constraint) in self.default_constraints.iter().enumerate() {
            if let Err(problem) = constraint.validate() {
                return refuse(CONSTRAINTS, format!("constraint {at}: {problem}"));
            }
            let alike = |other: &DefaultConstraint| {
                other.topology_key == constraint.topology_key
                    && other.when_unsatisfiable == constraint.when_unsatisfiable
            };
            if self.default_constraints[..at].iter().any(alike) {
                let key = &constraint.topology_key;
                let problem =
                    format!("constraint {at}: `{key}` is listed twice with the same whenUnsatisfiable");
                return refuse(CONSTRAINTS, problem);
            }
        }
        Ok(())
    }
}

impl DefaultConstraint {
    fn validate(&self) -> Result<(), String> {
        for (name, value) in [("maxSkew", self.max_skew), ("minDomains", self.min_domains)] {
            if !(1..=i32::MAX as u32).contains(&value) {
                return Err(format!("{name}: {value} is not from 1 to {}", i32::MAX));
            }
        }
        if !berth_model::names::is_label_key(&self.topology_key) {
            return Err(format!("topologyKey: `{}` is not a label key", self.topology_key));
        }
        Ok(())
    }

    fn value(&self) -> SpreadConstraint {
        let hard = self.when_unsatisfiable == WhenUnsatisfiable::DoNotSchedule;
        let number = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
        SpreadConstraint {
            max_skew: number(self.max_skew),
            min_domains: number(self.min_domains),
            honor_affinity: self.node_affinity_policy == InclusionPolicy::Honor,
            honor_taints: self.node_taints_policy == InclusionPolicy::Honor,
            ..default_constraint(&self.topology_key, hard)
        }
    }
}
