//! A single change to the pod or to the cluster that may make the pod schedulable.

use std::fmt;
use std::sync::Arc;

use berth_model::{Labels, Node, Pod, PodAffinity, PodSpec, Taint, Toleration, TolerationOperator, Usage};

/// A change that may let a pod fit a node. Displayed as an instruction to the operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    // To the pod:
    Tolerate(Taint),
    /// In the resource's unit, over all containers.
    Lower {
        resource: Resource,
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
pub enum Resource {
    Cpu,
    Memory,
    EphemeralStorage,
    Extended(Arc<str>),
}

/// See [`Change::shape`].
pub(super) type Shape<'a> = (&'static str, &'a str, &'a str);

/// Prefix of taints that report a node's condition. Tolerating them would only move the problem.
const CONDITION_TAINTS: &str = "node.kubernetes.io/";
const CORDONED: &str = "node.kubernetes.io/unschedulable";

impl Change {
    /// Returns the cost of the change. Better changes have a lower cost.
    pub(super) fn weight(&self) -> u32 {
        match self {
            Change::Uncordon(_) => 1,
            Change::Tolerate(_) | Change::Label { .. } => 2,
            Change::Lower { from, to, .. } => 3 + (5 * (from - to) / from.max(&1)) as u32,
            Change::Spread { max_skew, .. } => {
                if max_skew.is_some() {
                    3
                } else {
                    4
                }
            }
            Change::Remove(removed) if removed.deleting => 1,
            Change::Unselect { .. } | Change::DropNodeAffinity | Change::Unlabel { .. } => 7,
            Change::Untaint { .. } => 8,
            Change::Remove(_) => 9,
            Change::DropPodAffinity { .. } | Change::DropPodAntiAffinity { .. } => 10,
        }
    }

    /// Returns the change without its node and amounts. Of several changes of one shape, only one is shown.
    pub(super) fn shape(&self) -> Shape<'_> {
        match self {
            Change::Tolerate(taint) => ("tolerate", &taint.key, &taint.value),
            Change::Lower { resource, .. } => ("lower", resource.name(), ""),
            Change::Unselect { key, value } => ("unselect", key, value),
            Change::DropNodeAffinity => ("drop node affinity", "", ""),
            Change::Spread { key, .. } => ("spread", key, ""),
            Change::DropPodAffinity { key, .. } => ("drop affinity", key, ""),
            Change::DropPodAntiAffinity { key, .. } => ("drop anti-affinity", key, ""),
            Change::Uncordon(_) => ("uncordon", "", ""),
            Change::Untaint { taint, .. } => ("untaint", &taint.key, &taint.value),
            Change::Label { key, value, .. } => ("label", key, value),
            Change::Unlabel { key, .. } => ("unlabel", key, ""),
            Change::Remove(_) => ("remove", "", ""),
        }
    }

    /// Returns the node that the change modifies.
    pub(super) fn node(&self) -> Option<&Arc<str>> {
        match self {
            Change::Uncordon(node)
            | Change::Untaint { node, .. }
            | Change::Label { node, .. }
            | Change::Unlabel { node, .. } => Some(node),
            _ => None,
        }
    }

    pub(super) fn apply_to_node(&self, node: &mut Node) {
        match self {
            Change::Uncordon(_) => {
                node.unschedulable = false;
                // The node controller removes this taint.
                node.taints = node.taints.iter().filter(|t| !is_cordon(t)).cloned().collect();
            }
            Change::Untaint { taint, .. } => {
                node.taints = node.taints.iter().filter(|t| *t != taint).cloned().collect();
            }
            Change::Label { key, value, .. } => {
                let label = [(key.clone(), value.clone())];
                node.labels = node.labels.pairs().cloned().chain(label).collect();
            }
            Change::Unlabel { key, .. } => node.labels = without(&node.labels, key),
            _ => {}
        }
    }

    /// `spec` is the pod's spec with the cluster's defaults added.
    pub(super) fn apply_to_pod(&self, pod: &mut Pod, spec: &PodSpec) {
        let mut spec = spec.clone();
        match self {
            Change::Tolerate(taint) => {
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
            Change::Lower { resource, from, to } => {
                let mut usage = Usage::clone(&spec.usage);
                resource.lower(&mut usage, *from, *to);
                spec.usage = Arc::new(usage);
                pod.usage = spec.usage.clone();
            }
            Change::Unselect { key, .. } => spec.node_selector = without(&spec.node_selector, key),
            Change::DropNodeAffinity => spec.node_affinity.required = None,
            Change::Spread { at, max_skew, .. } => {
                let constraint = &mut spec.spread.constraints[*at];
                match max_skew {
                    Some(max_skew) => constraint.max_skew = *max_skew,
                    None => constraint.hard = false,
                }
            }
            Change::DropPodAffinity { at, .. } | Change::DropPodAntiAffinity { at, .. } => {
                let mut affinity = PodAffinity::clone(&spec.pod_affinity);
                let terms = match self {
                    Change::DropPodAffinity { .. } => &mut affinity.required,
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

impl Resource {
    fn name(&self) -> &str {
        match self {
            Resource::Cpu => "cpu",
            Resource::Memory => "memory",
            Resource::EphemeralStorage => "ephemeral-storage",
            Resource::Extended(name) => name,
        }
    }

    fn lower(&self, usage: &mut Usage, from: i64, to: i64) {
        match self {
            Resource::Cpu => {
                usage.requests.cpu_milli = to;
                usage.nonzero_cpu_milli = usage.nonzero_cpu_milli.min(to);
            }
            Resource::Memory => {
                usage.requests.memory = to;
                usage.nonzero_memory = usage.nonzero_memory.min(to);
            }
            Resource::EphemeralStorage => usage.requests.ephemeral_storage = to,
            Resource::Extended(name) => usage.extended.add(name, to - from),
        }
    }

    /// Formats an amount as a Kubernetes quantity.
    pub fn amount(&self, amount: i64) -> String {
        let units: &[(i64, &str)] = match self {
            Resource::Cpu => {
                return if amount % 1000 == 0 { (amount / 1000).to_string() } else { format!("{amount}m") };
            }
            Resource::Memory | Resource::EphemeralStorage => {
                &[(1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki")]
            }
            Resource::Extended(_) => &[],
        };
        let unit = units.iter().find(|(unit, _)| amount != 0 && amount % unit == 0);
        unit.map_or_else(|| amount.to_string(), |(unit, suffix)| format!("{}{suffix}", amount / unit))
    }

    /// Rounds `amount` down to a readable value.
    pub(super) fn round_down(&self, amount: i64) -> i64 {
        const MIB: i64 = 1 << 20;
        match self {
            Resource::Memory | Resource::EphemeralStorage if amount >= MIB => amount - amount % MIB,
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

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Change::Tolerate(taint) => write!(f, "let the pod tolerate {}", Shown(taint)),
            Change::Lower { resource, from, to } => {
                let (from, to) = (resource.amount(*from), resource.amount(*to));
                write!(f, "lower the pod's {resource} requests from {from} to {to}")
            }
            Change::Unselect { key, value } => write!(f, "drop {key}={value} from the pod's node selector"),
            Change::DropNodeAffinity => f.write_str("drop the pod's required node affinity"),
            Change::Spread { key, max_skew: Some(skew), .. } => {
                write!(f, "raise maxSkew of the pod's spread over {key} to {skew}")
            }
            Change::Spread { key, max_skew: None, .. } => {
                write!(f, "let the pod's spread over {key} be ScheduleAnyway")
            }
            Change::DropPodAffinity { key, .. } => {
                write!(f, "drop the pod's required pod affinity over {key}")
            }
            Change::DropPodAntiAffinity { key, .. } => {
                write!(f, "drop the pod's required pod anti-affinity over {key}")
            }
            Change::Uncordon(node) => write!(f, "uncordon node {node}"),
            Change::Untaint { node, taint } if is_condition(taint) => {
                write!(f, "wait until node {node} loses {} (see its conditions)", Shown(taint))
            }
            Change::Untaint { node, taint } => {
                write!(f, "remove the taint {} from node {node}", Shown(taint))
            }
            Change::Label { node, key, value } => write!(f, "label node {node} with {key}={value}"),
            Change::Unlabel { node, key } => write!(f, "remove the label {key} from node {node}"),
            Change::Remove(Removed { name, node, deleting: true, .. }) => {
                write!(f, "wait until pod {name} has left node {node}")
            }
            Change::Remove(Removed { name, node, .. }) => write!(f, "remove pod {name} from node {node}"),
        }
    }
}
