//! Node selectors: `nodeSelector` and `affinity.nodeAffinity`, validated and ready to match.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Labels, names};

/// Node affinity of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NodeAffinity {
    /// One of these terms must match; `None`: no required affinity. An empty list matches nothing.
    pub required: Option<Box<[NodeSelectorTerm]>>,
    pub preferred: Box<[PreferredTerm]>,
    /// As `required`, but demanded by the scheduler's profile, in addition to what the pod requires.
    pub enforced: Option<Box<[NodeSelectorTerm]>>,
}

/// All requirements must hold. An empty term matches nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NodeSelectorTerm {
    pub expressions: Box<[Requirement]>,
    pub fields: Box<[FieldRequirement]>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PreferredTerm {
    /// 1 to 100.
    pub weight: i32,
    pub term: NodeSelectorTerm,
}

/// A requirement on one label.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Requirement {
    pub key: Arc<str>,
    pub operator: Operator,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Operator {
    /// Values sorted.
    In(#[serde(deserialize_with = "crate::sorted::deserialize")] Box<[Arc<str>]>),
    /// Values sorted. A node without the label matches.
    NotIn(#[serde(deserialize_with = "crate::sorted::deserialize")] Box<[Arc<str>]>),
    Exists,
    DoesNotExist,
    Gt(i64),
    Lt(i64),
}

/// As kubectl takes it; `Gt` and `Lt`, which only nodes have, with a sign.
impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let key = &self.key;
        match &self.operator {
            Operator::In(values) if values.len() == 1 => write!(f, "{key}={}", values[0]),
            Operator::In(values) => write!(f, "{key} in ({})", values.join(",")),
            Operator::NotIn(values) => write!(f, "{key} notin ({})", values.join(",")),
            Operator::Exists => write!(f, "{key}"),
            Operator::DoesNotExist => write!(f, "!{key}"),
            Operator::Gt(bound) => write!(f, "{key}>{bound}"),
            Operator::Lt(bound) => write!(f, "{key}<{bound}"),
        }
    }
}

/// A requirement on `metadata.name`, the only field that can select nodes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum FieldRequirement {
    NameIs(Arc<str>),
    NameIsNot(Arc<str>),
}

/// Error of a requirement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrongRequirement {
    /// `key`, `operator` or `values`.
    pub field: &'static str,
    pub problem: String,
}

impl WrongRequirement {
    fn new(field: &'static str, problem: String) -> Self {
        WrongRequirement { field, problem }
    }
}

impl NodeSelectorTerm {
    /// Sorts the requirements: their order has no meaning.
    pub fn new(mut expressions: Vec<Requirement>, mut fields: Vec<FieldRequirement>) -> NodeSelectorTerm {
        expressions.sort_unstable();
        expressions.dedup();
        fields.sort_unstable();
        fields.dedup();
        NodeSelectorTerm { expressions: expressions.into(), fields: fields.into() }
    }
}

impl Operator {
    /// Returns the operator for one of these values.
    pub fn any_of(values: Vec<Arc<str>>) -> Operator {
        Operator::In(sorted(values))
    }

    /// Converts the operator and values of a requirement on the label `key` (upstream: `labels.NewRequirement`).
    ///
    /// # Errors
    /// The first invalid field.
    pub fn parse(key: &str, operator: &str, values: Vec<Arc<str>>) -> Result<Operator, WrongRequirement> {
        let wrong = |problem: String| WrongRequirement::new("values", problem);
        if !names::is_label_key(key) {
            return Err(WrongRequirement::new("key", format!("{key:?} is not a label key")));
        }
        let number = |values: &[Arc<str>]| match values {
            [value] => value.parse::<i64>().map_err(|_| wrong(format!("must be an integer, is {value:?}"))),
            values => {
                let problem =
                    format!("operator {operator} needs exactly one integer, has {} values", values.len());
                Err(wrong(problem))
            }
        };
        let is_label = |value: &&Arc<str>| !names::is_label_value(value);
        let unlike = values.iter().find(is_label).map(|value| format!("{value:?} is not a label value"));
        let operator = match operator {
            "In" | "NotIn" if values.is_empty() => {
                return Err(wrong(format!("operator {operator} needs a value")));
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                return Err(wrong(format!("operator {operator} takes no values")));
            }
            "In" => Operator::In(sorted(values)),
            "NotIn" => Operator::NotIn(sorted(values)),
            "Exists" => Operator::Exists,
            "DoesNotExist" => Operator::DoesNotExist,
            "Gt" => Operator::Gt(number(&values)?),
            "Lt" => Operator::Lt(number(&values)?),
            other => {
                let problem = format!("{other:?} is none of In, NotIn, Exists, DoesNotExist, Gt, Lt");
                return Err(WrongRequirement::new("operator", problem));
            }
        };
        unlike.map_or(Ok(operator), |problem| Err(wrong(problem)))
    }
}

fn sorted(mut values: Vec<Arc<str>>) -> Box<[Arc<str>]> {
    values.sort_unstable();
    values.dedup();
    values.into()
}

impl FieldRequirement {
    /// Converts a requirement on a field of nodes, of which there is only `metadata.name`.
    ///
    /// # Errors
    /// The first invalid field.
    pub fn parse(
        key: &str,
        operator: &str,
        values: Vec<Arc<str>>,
    ) -> Result<FieldRequirement, WrongRequirement> {
        if key != "metadata.name" {
            let problem = format!("nodes are selected by metadata.name only, not by {key:?}");
            return Err(WrongRequirement::new("key", problem));
        }
        let [name] = &values[..] else {
            let problem = format!("must be exactly one node name, has {} values", values.len());
            return Err(WrongRequirement::new("values", problem));
        };
        match operator {
            "In" => Ok(FieldRequirement::NameIs(name.clone())),
            "NotIn" => Ok(FieldRequirement::NameIsNot(name.clone())),
            other => Err(WrongRequirement::new("operator", format!("{other:?} is neither In nor NotIn"))),
        }
    }
}

impl Requirement {
    pub fn matches(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        let number = || value.and_then(|v| v.parse::<i64>().ok());
        let among = |values: &[Arc<str>], v: &str| values.binary_search_by(|x| (**x).cmp(v)).is_ok();
        match &self.operator {
            Operator::In(values) => value.is_some_and(|v| among(values, v)),
            Operator::NotIn(values) => !value.is_some_and(|v| among(values, v)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::Gt(bound) => number().is_some_and(|n| n > *bound),
            Operator::Lt(bound) => number().is_some_and(|n| n < *bound),
        }
    }
}

impl FieldRequirement {
    pub fn matches(&self, node_name: &str) -> bool {
        match self {
            FieldRequirement::NameIs(name) => **name == *node_name,
            FieldRequirement::NameIsNot(name) => **name != *node_name,
        }
    }
}

impl NodeSelectorTerm {
    pub fn matches(&self, node_name: &str, labels: &Labels) -> bool {
        !(self.expressions.is_empty() && self.fields.is_empty())
            && self.fields.iter().all(|field| field.matches(node_name))
            && self.expressions.iter().all(|requirement| requirement.matches(labels))
    }
}
