//! Node selectors: `nodeSelector` and `affinity.nodeAffinity`, validated and ready to match.

use std::sync::Arc;

use super::Labels;

/// Node affinity of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct NodeAffinity {
    /// One of these terms must match; `None`: no required affinity. An empty list matches nothing.
    pub required: Option<Box<[NodeSelectorTerm]>>,
    pub preferred: Box<[PreferredTerm]>,
}

/// All requirements must hold. An empty term matches nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeSelectorTerm {
    pub expressions: Box<[Requirement]>,
    pub fields: Box<[FieldRequirement]>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PreferredTerm {
    /// 1 to 100.
    pub weight: i32,
    pub term: NodeSelectorTerm,
}

/// A requirement on one label.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Requirement {
    pub key: Arc<str>,
    pub operator: Operator,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operator {
    /// Values sorted.
    In(Box<[Arc<str>]>),
    /// Values sorted. A node without the label matches.
    NotIn(Box<[Arc<str>]>),
    Exists,
    DoesNotExist,
    Gt(i64),
    Lt(i64),
}

/// A requirement on `metadata.name`, the only field that can select nodes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FieldRequirement {
    NameIs(Arc<str>),
    NameIsNot(Arc<str>),
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
