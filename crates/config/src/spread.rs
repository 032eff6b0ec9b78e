//! Default topology spread, as upstream's `PodTopologySpreadArgs`.

use berth_model::InvalidField;
use berth_model::validate::refuse;
use berth_model::validate::whole_number;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use berth_model::{Spread, SpreadConstraint};
use berth_scheduler::objects::{default_constraint, system_defaults};

/// What pods get that have no topology spread constraints of their own. It applies to pods of a Service,
/// ReplicationController, ReplicaSet or StatefulSet, whose selectors say which pods are counted.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PodTopologySpread {
    /// `System` spreads pods softly over nodes (maxSkew 3) and zones (maxSkew 5); `List` as `defaultConstraints` says,
    /// with an empty one not at all.
    pub defaulting_type: DefaultingType,
    /// Constraints as in a pod's `topologySpreadConstraints`, without `labelSelector`; only with `List`.
    pub default_constraints: Vec<DefaultConstraint>,
}

/// Where the default constraints come from.
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
    /// How far the counts of two domains may differ.
    #[serde(deserialize_with = "whole_number")]
    #[schemars(range(min = 1, max = 2_147_483_647))]
    pub max_skew: u32,
    /// The node label whose values are the domains.
    #[schemars(length(min = 1, max = 317))]
    pub topology_key: String,
    /// `DoNotSchedule` lets a pod wait rather than break the constraint.
    pub when_unsatisfiable: WhenUnsatisfiable,
    /// With fewer domains than this, the emptiest counts as empty; it means nothing with `ScheduleAnyway`.
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

/// What becomes of a pod that would break the constraint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WhenUnsatisfiable {
    DoNotSchedule,
    ScheduleAnyway,
}

/// Whether something of a node counts.
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
    /// Whether any pod gets a constraint by default.
    pub fn adds_constraints(&self) -> bool {
        self.defaulting_type == DefaultingType::System || !self.default_constraints.is_empty()
    }

    /// The constraints that pods get, without selectors.
    pub fn defaults(&self) -> Spread {
        match self.defaulting_type {
            DefaultingType::System => system_defaults(),
            DefaultingType::List => Spread {
                constraints: self.default_constraints.iter().map(DefaultConstraint::value).collect(),
                defaulted: false,
            },
        }
    }

    /// Upstream: `ValidatePodTopologySpreadArgs`, and what it takes from the pod's validation.
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
                    format!("constraint {at}: `{key}` is there already with the same whenUnsatisfiable");
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
