//! Capacity of the nodes that a pod may run on. A pod that requests more than any of them has is unschedulable.

use super::amount::Amount;
use super::post::OptionalAmounts;
use berth_model::NodeSize;

/// Returns the maximum sum of requests of a pod's containers, given the sum `wanted` and the nodes.
///
/// Nothing is limited when some node fits `wanted`, or when there are no nodes. Otherwise the result is the
/// capacity of the closest node: the one that provides the largest share of both resources, then the larger one.
pub fn room(nodes: impl IntoIterator<Item = NodeSize>, wanted: NodeSize) -> OptionalAmounts {
    let mut best: Option<NodeSize> = None;
    for node in nodes {
        if node.cpu >= wanted.cpu && node.memory >= wanted.memory {
            return OptionalAmounts::default();
        }
        if best.is_none_or(|best| rank(node, wanted) > rank(best, wanted)) {
            best = Some(node);
        }
    }
    best.map_or_else(OptionalAmounts::default, |node| node.map(Some))
}

/// Ranks a node by the smaller of the two shares it can provide, in millionths; then by capacity.
fn rank(node: NodeSize, wanted: NodeSize) -> (i128, Amount, Amount) {
    let share = |(has, wants): (Amount, Amount)| match wants <= has {
        true => 1_000_000,
        false => i128::from(has.max(0)) * 1_000_000 / i128::from(wants),
    };
    let shares = node.zip(wanted).map(share);
    (shares.cpu.min(shares.memory), node.memory, node.cpu)
}
