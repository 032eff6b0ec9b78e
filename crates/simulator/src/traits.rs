//! Made-up traits of pods and nodes, so that the rules have inputs that differ: traces have sizes, but no labels,
//! taints or images.
//!
//! Every node has all of these labels and none of these taints: a made-up trait costs evaluations, as in a real
//! cluster, but never makes a pod unschedulable.

use std::sync::Arc;

use super::Machine;
use berth_model::{
    Amounts, Effect, Labels, Node, NodeAffinity, NodeSelectorTerm, Operator, Requirement, Toleration,
    TolerationOperator,
};

pub(super) const GIB: i64 = 1 << 30;

/// Pod limit of a machine. More than a kubelet's 110: in traces of VMs, cores and memory decide what fits, not the
/// number of small VMs.
pub(super) const PODS_PER_NODE: i64 = 500;

/// Machine families that pods request, as in public clouds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Family {
    Compute,
    General,
    Memory,
}

impl Family {
    pub const ALL: [Family; 3] = [Family::Compute, Family::General, Family::Memory];

    /// Classifies by memory per core. The bounds lie between the common ratios: 2, 3.5 to 5, and 7 GiB and more.
    pub fn of(cpu_milli: i64, memory: i64) -> Family {
        let gib_per_core = (memory as f64 / GIB as f64) / (cpu_milli as f64 / 1000.0);
        if gib_per_core < 3.0 {
            Family::Compute
        } else if gib_per_core < 6.0 {
            Family::General
        } else {
            Family::Memory
        }
    }

    /// Returns the label of nodes that accept pods of this family.
    pub fn label(self) -> &'static str {
        match self {
            Family::Compute => "berth.dev/family.compute",
            Family::General => "berth.dev/family.general",
            Family::Memory => "berth.dev/family.memory",
        }
    }

    pub fn affinity(self) -> NodeAffinity {
        any_label([self.label().into()])
    }
}

/// Returns the label of nodes that have GPUs of this model, or count as having them. One label per model, as a node
/// has only one value per label, and generated nodes must fit every pod.
pub(super) fn gpu_label(model: &str) -> Arc<str> {
    format!("berth.dev/gpu.{model}").into()
}

/// Matches nodes that have one of these labels, with any value.
pub(super) fn any_label(keys: impl IntoIterator<Item = Arc<str>>) -> NodeAffinity {
    let term = |key| NodeSelectorTerm {
        expressions: [Requirement { key, operator: Operator::Exists }].into(),
        fields: [].into(),
    };
    NodeAffinity { required: Some(keys.into_iter().map(term).collect()), ..NodeAffinity::default() }
}

/// Returns the labels of a node: every family, and `others`.
pub(super) fn labels(others: impl IntoIterator<Item = Arc<str>>) -> Labels {
    let families = Family::ALL.map(|family| Arc::from(family.label()));
    families.into_iter().chain(others).map(|key| (key, "true")).collect()
}

/// The machine for VMs. The largest VM of Azure's trace has 48 cores and 504 GiB: at most two thirds of this.
pub(super) fn vm_machine() -> Machine {
    let allocatable =
        Amounts { cpu_milli: 96_000, memory: 768 * GIB, ephemeral_storage: 0, pods: PODS_PER_NODE };
    Machine { node: Node { labels: labels([]), allocatable, ..Node::default() } }
}

/// Toleration of low-priority pods.
pub(super) fn tolerates_low_priority() -> Toleration {
    Toleration {
        key: "berth.dev/low-priority".into(),
        operator: TolerationOperator::Exists,
        value: "".into(),
        effect: Some(Effect::NoSchedule),
    }
}

/// Toleration of pods of one quality of service.
pub(super) fn tolerates_qos(qos: &str) -> Toleration {
    Toleration {
        key: "berth.dev/qos".into(),
        operator: TolerationOperator::Equal,
        value: qos.into(),
        effect: Some(Effect::NoSchedule),
    }
}

/// Returns the single image of a pod, in the format of ImageLocality.
pub(super) fn image(name: &str, number: u64) -> Box<[Arc<str>]> {
    [Arc::from(format!("{name}-{number}:latest"))].into()
}
