//! NodeUnschedulable: a cordoned node only accepts pods that tolerate the taint `node.kubernetes.io/unschedulable`.

use berth_model::{Effect, Taint, Toleration};

/// Returns whether a pod with these tolerations may go to a cordoned node.
pub fn tolerated(tolerations: &[Toleration]) -> bool {
    let cordon = Taint {
        key: "node.kubernetes.io/unschedulable".into(),
        value: "".into(),
        effect: Effect::NoSchedule,
    };
    tolerations.iter().any(|toleration| toleration.tolerates(&cordon))
}
