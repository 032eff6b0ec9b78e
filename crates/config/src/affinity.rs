//! Node affinity in the file, as in a pod's `spec.affinity.nodeAffinity`.

use std::sync::Arc;

use berth_model::validate::{refuse, whole_number};
use berth_model::{
    FieldRequirement, InvalidField, NodeAffinity, NodeSelectorTerm, Operator, PreferredTerm, Requirement,
    WrongRequirement,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Node affinity that pods have in addition to their own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AddedAffinity {
    /// Nodes that the pods may be placed on.
    pub required_during_scheduling_ignored_during_execution: Option<AddedNodeSelector>,
    /// Nodes that are better for them.
    pub preferred_during_scheduling_ignored_during_execution: Vec<AddedPreference>,
}

/// Nodes that match at least one of the terms.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AddedNodeSelector {
    /// At least one.
    #[schemars(length(min = 1))]
    pub node_selector_terms: Vec<AddedTerm>,
}

/// A preferred term.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AddedPreference {
    /// Weight of a node that matches.
    #[serde(deserialize_with = "whole_number")]
    #[schemars(range(min = 1, max = 100))]
    pub weight: u32,
    /// The nodes.
    pub preference: AddedTerm,
}

/// Nodes that match all requirements; without any, no node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AddedTerm {
    /// Requirements on labels.
    pub match_expressions: Vec<AddedRequirement>,
    /// Requirements on `metadata.name`.
    pub match_fields: Vec<AddedRequirement>,
}

/// A requirement on one label or field.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AddedRequirement {
    /// Key of the label, or `metadata.name`.
    pub key: String,
    /// `In`, `NotIn`, `Exists`, `DoesNotExist`, `Gt` or `Lt`; for a field `In` or `NotIn`.
    pub operator: String,
    /// Values for the operators that compare.
    #[serde(default)]
    pub values: Vec<String>,
}

impl AddedAffinity {
    /// Returns the affinity that a profile enforces.
    ///
    /// # Errors
    /// The first invalid field, as in upstream's `ValidateNodeAffinityArgs`.
    pub(super) fn value(&self) -> Result<NodeAffinity, InvalidField> {
        const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
        let mut enforced = None;
        if let Some(selector) = &self.required_during_scheduling_ignored_during_execution {
            if selector.node_selector_terms.is_empty() {
                refuse(REQUIRED, "it is empty, so that no node would be valid")?;
            }
            enforced =
                Some(all(selector.node_selector_terms.iter(), |at| format!("{REQUIRED}[{at}]"))?.into());
        }
        let preferred = &self.preferred_during_scheduling_ignored_during_execution;
        let path = |at| format!("preferredDuringSchedulingIgnoredDuringExecution[{at}]");
        let terms =
            all(preferred.iter().map(|preferred| &preferred.preference), |at| path(at) + ".preference")?;
        let weigh = |(at, (added, term)): (usize, (&AddedPreference, NodeSelectorTerm))| match added.weight {
            weight @ 1..=100 => Ok(PreferredTerm { weight: weight as i32, term }),
            weight => {
                let field = format!("{}.weight", path(at)).into();
                Err(InvalidField { field, problem: format!("{weight} is not from 1 to 100") })
            }
        };
        let preferred = preferred.iter().zip(terms).enumerate().map(weigh).collect::<Result<_, _>>()?;
        Ok(NodeAffinity { required: None, preferred, enforced })
    }
}

fn all<'a>(
    terms: impl Iterator<Item = &'a AddedTerm>,
    path: impl Fn(usize) -> String,
) -> Result<Vec<NodeSelectorTerm>, InvalidField> {
    terms.enumerate().map(|(at, term)| term.value().map_err(|invalid| invalid.of(&path(at)))).collect()
}

impl AddedTerm {
    fn value(&self) -> Result<NodeSelectorTerm, InvalidField> {
        let expressions = self.match_expressions.iter().enumerate().map(|(at, added)| {
            let operator = Operator::parse(&added.key, &added.operator, added.values())
                .map_err(|wrong| invalid("matchExpressions", at, wrong))?;
            Ok(Requirement { key: added.key.as_str().into(), operator })
        });
        let expressions = expressions.collect::<Result<_, _>>()?;
        let fields = self.match_fields.iter().enumerate().map(|(at, added)| {
            FieldRequirement::parse(&added.key, &added.operator, added.values())
                .map_err(|wrong| invalid("matchFields", at, wrong))
        });
        Ok(NodeSelectorTerm::new(expressions, fields.collect::<Result<_, _>>()?))
    }
}

impl AddedRequirement {
    fn values(&self) -> Vec<Arc<str>> {
        self.values.iter().map(|value| Arc::from(value.as_str())).collect()
    }
}

fn invalid(list: &str, at: usize, WrongRequirement { field, problem }: WrongRequirement) -> InvalidField {
    InvalidField { field: format!("{list}[{at}].{field}").into(), problem }
}
