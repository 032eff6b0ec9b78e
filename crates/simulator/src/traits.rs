//! What is made up for pods and nodes of workloads, so that the rules have something to tell apart: traces have sizes,
//! but neither labels nor taints nor images.
//!
//! Every node carries all of these labels and none of these taints: a made-up trait costs evaluations, as in a real cluster,
//! but never makes a pod fit nowhere.

use std::sync::Arc;

use super::Machine;
use berth_model::{
    Amounts, Effect, Labels, Node, NodeAffinity, NodeSelectorTerm, Operator, Requirement, Toleration,
    TolerationOperator,
};

pub(super) const GIB: i64 = 1 << 30;

/// Pods that a machine takes. More than a kubelet's 110: in traces of VMs, cores and memory decide what fits, not how many
/// small ones there are.
pub(super) const PODS_PER_NODE: i64 = 500;

/// Kinds of machines that pods ask for, as clouds sell them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Family {
    Compute,
    General,
    Memory,
}

impl Family {
    pub const ALL: [Family; 3] = [Family::Compute, Family::General, Family::Memory];

    /// By memory for each core. Bounds lie between the ratios that are common: 2, 3.5 to 5, and 7 GiB and more.
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

    /// The label that nodes have which take pods of this family.
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

/// The label of nodes that have GPUs of this model, or may pass for them. A label for each, as a node has only one value
/// of a label, and nodes that are asked for by number must do for every pod.
pub(super) fn gpu_label(model: &str) -> Arc<str> {
    format!("berth.dev/gpu.{model}").into()
}

/// Nodes that have one of these labels, whatever its value.
pub(super) fn any_label(keys: impl IntoIterator<Item = Arc<str>>) -> NodeAffinity {
    let term = |key| NodeSelectorTerm {
        expressions: [Requirement { key, operator: Operator::Exists }].into(),
        fields: [].into(),
    };
    NodeAffinity { required: Some(keys.into_iter().map(term).collect()), preferred: [].into() }
}

/// Labels of a node: every family, and these.
pub(super) fn labels(others: impl IntoIterator<Item = Arc<str>>) -> Labels {
    let families = Family::ALL.map(|family| Arc::from(family.label()));
    families.into_iter().chain(others).map(|key| (key, "true")).collect()
}

/// What VMs run on. The largest of Azure's trace has 48 cores and 504 GiB: two thirds of this at most.
pub(super) fn vm_machine() -> Machine {
    let allocatable =
        Amounts { cpu_milli: 96_000, memory: 768 * GIB, ephemeral_storage: 0, pods: PODS_PER_NODE };
    Machine { node: Node { labels: labels([]), allocatable, ..Node::default() } }
}

/// Of pods that may go where others are kept away.
pub(super) fn tolerates_low_priority() -> Toleration {
    Toleration {
        key: "berth.dev/low-priority".into(),
        operator: TolerationOperator::Exists,
        value: "".into(),
        effect: Some(Effect::NoSchedule),
    }
}

/// Of pods of one quality of service.
pub(super) fn tolerates_qos(qos: &str) -> Toleration {
    Toleration {
        key: "berth.dev/qos".into(),
        operator: TolerationOperator::Equal,
        value: qos.into(),
        effect: Some(Effect::NoSchedule),
    }
}

/// The one image of a pod, as ImageLocality names it.
pub(super) fn image(name: &str, number: u64) -> Box<[Arc<str>]> {
    [Arc::from(format!("{name}-{number}:latest"))].into()
}
