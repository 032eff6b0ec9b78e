//! A single change to the pod or to the cluster that may make the pod schedulable.

use std::fmt;
use std::sync::Arc;

use berth_model::{Labels, Node, Pod, PodAffinity, PodSpec, Taint, Toleration, TolerationOperator, Usage};

/// A change that may let a pod fit a node. Displayed as an instruction to the operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeChange {
    // To the pod:
    Tolerate(Taint),
    /// In the resource's unit, over all containers.
    Lower {
        resource: ResourceQuantity,
        from: i64,
        to: i64,
    },
    Unselect {
        key: Arc<str>,
        value: Arc<str>,
    },
    DropNodeAffinity,
    /// The constraint at this index of the list.
    Spread {
        at: usize,
        key: Arc<str>,
        /// `None`: `ScheduleAnyway`.
        max_skew: Option<i32>,
    },
    /// The required term at this index.
    DropPodAffinity {
        at: usize,
        key: Arc<str>,
    },
    DropPodAntiAffinity {
        at: usize,
        key: Arc<str>,
    },
    // To the cluster:
    Uncordon(Arc<str>),
    Untaint {
        node: Arc<str>,
        taint: Taint,
    },
    Label {
        node: Arc<str>,
        key: Arc<str>,
        value: Arc<str>,
    },
    Unlabel {
        node: Arc<str>,
        key: Arc<str>,
    },
    Remove(Removed),
}

/// A pod that would have to leave its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removed {
    /// Its index in the world's pods.
    pub(super) pod: usize,
    pub name: String,
    pub node: Arc<str>,
    /// It is terminating.
    pub deleting: bool,
}

/// A resource with a quantity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResourceQuantity {
    Cpu,
    Memory,
    EphemeralStorage,
    Extended(Arc<str>),
}

/// See [`NodeChange::shape`].
pub(super) type Shape<'a> = (&'static str, &'a str, &'a str);

/// Prefix of taints that report a node's condition. Tolerating them would only move the problem.
const CONDITION_TAINTS: &str = "node.kubernetes.io/";
const CORDONED: &str = "node.kubernetes.io/unschedulable";

impl NodeChange {
    /// Returns the cost of the change. Better changes have a lower cost.
    pub(super) fn weight(&self) -> u32 {
        match self {
            NodeChange::Uncordon(_) => 1,
            NodeChange::Tolerate(_) | NodeChange::Label { .. } => 2,
            NodeChange::Lower { from, to, .. } => 3 + (5 * (from - to) / from.max(&1)) as u32,
            NodeChange::Spread { max_skew, .. } => {
                if max_skew.is_some() {
                    3
                } else {
                    4
                }
            }
            NodeChange::Remove(removed) if removed.deleting => 1,
            NodeChange::Unselect { .. } | NodeChange::DropNodeAffinity | NodeChange::Unlabel { .. } => 7,
            NodeChange::Untaint { .. } => 8,
            NodeChange::Remove(_) => 9,
            NodeChange::DropPodAffinity { .. } | NodeChange::DropPodAntiAffinity { .. } => 10,
        }
    }

    /// Returns the change without its node and amounts. Of several changes of one shape, only one is shown.
    pub(super) fn shape(&self) -> Shape<'_> {
        match self {
            NodeChange::Tolerate(taint) => ("tolerate", &taint.key, &taint.value),
            NodeChange::Lower { resource, .. } => ("lower", resource.name(), ""),
            NodeChange::Unselect { key, value } => ("unselect", key, value),
            NodeChange::DropNodeAffinity => ("drop node affinity", "", ""),
            NodeChange::Spread { key, .. } => ("spread", key, ""),
            NodeChange::DropPodAffinity { key, .. } => ("drop affinity", key, ""),
            NodeChange::DropPodAntiAffinity { key, .. } => ("drop anti-affinity", key, ""),
            NodeChange::Uncordon(_) => ("uncordon", "", ""),
            NodeChange::Untaint { taint, .. } => ("untaint", &taint.key, &taint.value),
            NodeChange::Label { key, value, .. } => ("label", key, value),
            NodeChange::Unlabel { key, .. } => ("unlabel", key, ""),
            NodeChange::Remove(_) => ("remove", "", ""),
        }
    }

    /// Returns the node that the change modifies.
    pub(super) fn node(&self) -> Option<&Arc<str>> {
        match self {
            NodeChange::Uncordon(node)
            | NodeChange::Untaint { node, .. }
            | NodeChange::Label { node, .. }
            | NodeChange::Unlabel { node, .. } => Some(node),
            _ => None,
        }
    }

    pub(super) fn apply_to_node(&self, node: &mut Node) {
        match self {
            NodeChange::Uncordon(_) => {
                node.unschedulable = false;
                // The node controller removes this taint.
                node.taints = node.taints.iter().filter(|t| !is_cordon(t)).cloned().collect();
            }
            NodeChange::Untaint { taint, .. } => {
                node.taints = node.taints.iter().filter(|t| *t != taint).cloned().collect();
            }
            NodeChange::Label { key, value, .. } => {
                let label = [(key.clone(), value.clone())];
                node.labels = node.labels.pairs().cloned().chain(label).collect();
            }
            NodeChange::Unlabel { key, .. } => node.labels = without(&node.labels, key),
            _ => {}
        }
    }

    /// `spec` is the pod's spec with the cluster's defaults added.
    pub(super) fn apply_to_pod(&self, pod: &mut Pod, spec: &PodSpec) {
        let mut spec = spec.clone();
        match self {
            NodeChange::Tolerate(taint) => {
                let more = Toleration {
                    key: taint.key.clone(),
                    operator: TolerationOperator::Equal,
                    value: taint.value.clone(),
                    effect: Some(taint.effect),
                };
                let mut all = spec.tolerations.to_vec();
                all.push(more);
                all.sort_unstable();
                spec.tolerations = all.into();
            }
            NodeChange::Lower { resource, from, to } => {
                let mut usage = Usage::clone(&spec.usage);
                resource.lower(&mut usage, *from, *to);
                spec.usage = Arc::new(usage);
                pod.usage = spec.usage.clone();
            }
            NodeChange::Unselect { key, .. } => spec.node_selector = without(&spec.node_selector, key),
            NodeChange::DropNodeAffinity => spec.node_affinity.required = None,
            NodeChange::Spread { at, max_skew, .. } => {
                let constraint = &mut spec.spread.constraints[*at];
                match max_skew {
                    Some(max_skew) => constraint.max_skew = *max_skew,
                    None => constraint.hard = false,
                }
            }
            NodeChange::DropPodAffinity { at, .. } | NodeChange::DropPodAntiAffinity { at, .. } => {
                let mut affinity = PodAffinity::clone(&spec.pod_affinity);
                let terms = match self {
                    NodeChange::DropPodAffinity { .. } => &mut affinity.required,
                    _ => &mut affinity.required_anti,
                };
                let mut left = std::mem::take(terms).into_vec();
                left.remove(*at);
                *terms = left.into();
                spec.pod_affinity = Arc::new(affinity);
                let mut peer = berth_model::Peer::clone(&pod.peer);
                peer.affinity = spec.pod_affinity.clone();
                pod.peer = Arc::new(peer);
            }
            _ => return,
        }
        pod.spec = Ok(Arc::new(spec));
    }
}

impl ResourceQuantity {
    fn name(&self) -> &str {
        match self {
            ResourceQuantity::Cpu => "cpu",
            ResourceQuantity::Memory => "memory",
            ResourceQuantity::EphemeralStorage => "ephemeral-storage",
            ResourceQuantity::Extended(name) => name,
        }
    }

    fn lower(&self, usage: &mut Usage, from: i64, to: i64) {
        match self {
            ResourceQuantity::Cpu => {
                usage.requests.cpu_milli = to;
                usage.nonzero_cpu_milli = usage.nonzero_cpu_milli.min(to);
            }
            ResourceQuantity::Memory => {
                usage.requests.memory = to;
                usage.nonzero_memory = usage.nonzero_memory.min(to);
            }
            ResourceQuantity::EphemeralStorage => usage.requests.ephemeral_storage = to,
            ResourceQuantity::Extended(name) => usage.extended.add(name, to - from),
        }
    }

    /// Formats an amount as a Kubernetes quantity.
    pub fn amount(&self, amount: i64) -> String {
        let units: &[(i64, &str)] = match self {
            ResourceQuantity::Cpu => {
                return if amount % 1000 == 0 { (amount / 1000).to_string() } else { format!("{amount}m") };
            }
            ResourceQuantity::Memory | ResourceQuantity::EphemeralStorage => {
                &[(1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki")]
            }
            ResourceQuantity::Extended(_) => &[],
        };
        let unit = units.iter().find(|(unit, _)| amount != 0 && amount % unit == 0);
        unit.map_or_else(|| amount.to_string(), |(unit, suffix)| format!("{}{suffix}", amount / unit))
    }

    /// Rounds `amount` down to a readable value.
    pub(super) fn round_down(&self, amount: i64) -> i64 {
        const MIB: i64 = 1 << 20;
        match self {
            ResourceQuantity::Memory | ResourceQuantity::EphemeralStorage if amount >= MIB => {
                amount - amount % MIB
            }
            _ => amount,
        }
    }
}

/// Returns whether this is the taint of a cordoned node.
pub(super) fn is_cordon(taint: &Taint) -> bool {
    *taint.key == *CORDONED
}

pub(super) fn is_condition(taint: &Taint) -> bool {
    taint.key.starts_with(CONDITION_TAINTS)
}

fn without(labels: &Labels, key: &str) -> Labels {
    labels.pairs().filter(|(k, _)| **k != *key).cloned().collect()
}

/// `key=value:Effect`, as kubectl writes it.
struct Shown<'a>(&'a Taint);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Taint { key, value, effect } = self.0;
        match &**value {
            "" => write!(f, "{key}:{effect:?}"),
            value => write!(f, "{key}={value}:{effect:?}"),
        }
    }
}

impl fmt::Display for ResourceQuantity {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for NodeChange {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            NodeChange::Tolerate(taint) => write!(f, "let the pod tolerate {}", Shown(taint)),
            NodeChange::Lower { resource, from, to } => {
                let (from, to) = (resource.amount(*from), resource.amount(*to));
                write!(f, "lower the pod's {resource} requests from {from} to {to}")
            }
            NodeChange::Unselect { key, value } => {
                write!(f, "drop {key}={value} from the pod's node selector")
            }
            NodeChange::DropNodeAffinity => f.write_str("drop the pod's required node affinity"),
            NodeChange::Spread { key, max_skew: Some(skew), .. } => {
                write!(f, "raise maxSkew of the pod's spread over {key} to {skew}")
            }
            NodeChange::Spread { key, max_skew: None, .. } => {
                write!(f, "let the pod's spread over {key} be ScheduleAnyway")
            }
            NodeChange::DropPodAffinity { key, .. } => {
                write!(f, "drop the pod's required pod affinity over {key}")
            }
            NodeChange::DropPodAntiAffinity { key, .. } => {
                write!(f, "drop the pod's required pod anti-affinity over {key}")
            }
            NodeChange::Uncordon(node) => write!(f, "uncordon node {node}"),
            NodeChange::Untaint { node, taint } if is_condition(taint) => {
                write!(f, "wait until node {node} loses {} (see its conditions)", Shown(taint))
            }
            NodeChange::Untaint { node, taint } => {
                write!(f, "remove the taint {} from node {node}", Shown(taint))
            }
            NodeChange::Label { node, key, value } => write!(f, "label node {node} with {key}={value}"),
            NodeChange::Unlabel { node, key } => write!(f, "remove the label {key} from node {node}"),
            NodeChange::Remove(Removed { name, node, deleting: true, .. }) => {
                write!(f, "wait until pod {name} has left node {node}")
            }
            NodeChange::Remove(Removed { name, node, .. }) => write!(f, "remove pod {name} from node {node}"),
        }
    }
}
