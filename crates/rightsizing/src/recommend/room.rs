//! What the nodes that a pod may go to can hold. A recommendation beyond that leaves the pod without a node.

use super::amount::Amount;
use super::post::Amounts;
use berth_model::NodeSize;

/// What the containers of a pod may request together when they want `wanted` and there are these nodes.
///
/// Nothing is limited when some node has it all, or when there is no node to compare with. Else it is what the node has that
/// comes closest: the one that can give the largest share of both, then the larger one.
pub fn room(nodes: impl IntoIterator<Item = NodeSize>, wanted: NodeSize) -> Amounts {
    let mut best: Option<NodeSize> = None;
    for node in nodes {
        if node.cpu >= wanted.cpu && node.memory >= wanted.memory {
            return Amounts::default();
        }
        if best.is_none_or(|best| rank(node, wanted) > rank(best, wanted)) {
            best = Some(node);
        }
    }
    best.map_or_else(Amounts::default, |node| node.map(Some))
}

/// The smaller one of the two shares that can be given, in millionths; then what there is.
fn rank(node: NodeSize, wanted: NodeSize) -> (i128, Amount, Amount) {
    let share = |(has, wants): (Amount, Amount)| match wants <= has {
        true => 1_000_000,
        false => i128::from(has.max(0)) * 1_000_000 / i128::from(wants),
    };
    let shares = node.zip(wanted).map(share);
    (shares.cpu.min(shares.memory), node.memory, node.cpu)
}
