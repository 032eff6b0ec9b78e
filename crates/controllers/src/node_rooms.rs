//! What nodes have for pods that are not on every node: no pod can ever be larger.

use std::sync::Arc;

use berth_model::{Amounts, Node, NodeSize, PerResource, PodSpec};
use berth_scheduler::engine::Engine;
use berth_scheduler::rules::may_run_on;

/// Label of Karpenter's nodes.
const KARPENTER_POOL: &str = "karpenter.sh/nodepool";

/// A node, and what it has for pods that are not on every node.
pub struct NodeRoom {
    node: Arc<Node>,
    size: NodeSize,
}

impl NodeRoom {
    /// `taken`: requested by DaemonSets and static pods. A node of Karpenter has room for everything: it may be replaced by a larger
    /// one.
    fn new(node: Arc<Node>, taken: &Amounts) -> NodeRoom {
        let size = match node.labels.get(KARPENTER_POOL) {
            Some(_) => PerResource { cpu: i64::MAX, memory: i64::MAX },
            None => PerResource {
                cpu: node.allocatable.cpu_milli.saturating_sub(taken.cpu_milli),
                memory: node.allocatable.memory.saturating_sub(taken.memory),
            },
        };
        NodeRoom { node, size }
    }
}

/// Returns the room of the nodes that a pod may run on; of all nodes if its spec is unknown.
pub fn sizes<'a>(nodes: &'a [NodeRoom], spec: Option<&'a PodSpec>) -> impl Iterator<Item = NodeSize> + 'a {
    let eligible = nodes.iter().filter(move |room| spec.is_none_or(|spec| may_run_on(spec, &room.node)));
    eligible.map(|room| room.size)
}

/// Returns the memory of the largest node; `None` without nodes.
pub fn largest_memory(nodes: &[NodeRoom]) -> Option<i64> {
    nodes.iter().map(|room| room.node.allocatable.memory).max()
}

/// Returns the nodes of the cluster, with what DaemonSets and static pods leave of them.
pub fn node_rooms(engine: &Engine) -> Vec<NodeRoom> {
    let nodes = engine.nodes();
    let taken = engine.requested_by_daemons(&nodes);
    nodes.into_iter().zip(&taken).map(|(node, taken)| NodeRoom::new(node, taken)).collect()
}

#[cfg(test)]
mod tests {
    use berth_rightsizing::recommend::room::room;

    use super::*;

    #[test]
    fn where_karpenter_may_add_a_larger_node_no_node_is_a_limit() {
        let node = |labels: &[(&'static str, &'static str)], cpu_milli| {
            let allocatable = Amounts { cpu_milli, memory: 1, ..Amounts::default() };
            let node = Node { labels: labels.iter().copied().collect(), allocatable, ..Node::default() };
            NodeRoom::new(Arc::new(node), &Amounts::default())
        };
        let whole = PerResource { cpu: i64::MAX, memory: i64::MAX };
        let plain = [node(&[], 1), node(&[("zone", "a")], 2)];
        let expected = [1, 2].map(|cpu| PerResource { cpu, memory: 1 });
        assert_eq!(sizes(&plain, None).collect::<Vec<_>>(), expected);
        assert_eq!(room(sizes(&plain, None), whole).cpu, Some(2));
        let mixed = [node(&[], 1), node(&[(KARPENTER_POOL, "spot")], 2)];
        assert_eq!(room(sizes(&mixed, None), whole), PerResource::default());
    }

    #[test]
    fn what_daemon_sets_request_is_no_room() {
        let amounts = |cpu_milli, memory| Amounts { cpu_milli, memory, ..Amounts::default() };
        let node = Node { allocatable: amounts(4_000, 100), ..Node::default() };
        let room = NodeRoom::new(Arc::new(node), &amounts(300, 20));
        assert_eq!(room.size, PerResource { cpu: 3_700, memory: 80 });
    }
}
