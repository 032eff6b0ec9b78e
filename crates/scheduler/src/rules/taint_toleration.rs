//! TaintToleration: a NoSchedule or NoExecute taint that the pod does not tolerate excludes the node; among the
//! remaining nodes, fewer untolerated PreferNoSchedule taints are better.

use super::RuleAnswer;
use berth_model::{Effect, Node, Toleration};

/// The node is excluded. Any other answer is the number of untolerated PreferNoSchedule taints.
pub const UNTOLERATED: RuleAnswer = RuleAnswer::MAX;

pub fn answer(tolerations: &[Toleration], node: &Node) -> RuleAnswer {
    let mut avoided = 0;
    for taint in node.taints.iter() {
        if tolerations.iter().any(|toleration| toleration.tolerates(taint)) {
            continue;
        }
        match taint.effect {
            Effect::NoSchedule | Effect::NoExecute => return UNTOLERATED,
            Effect::PreferNoSchedule => avoided += 1,
        }
    }
    avoided
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_model::{Taint, TolerationOperator};

    fn node(taints: &[(&str, Effect)]) -> Node {
        let taints = taints.iter().map(|(key, effect)| Taint {
            key: (*key).into(),
            value: "".into(),
            effect: *effect,
        });
        Node { taints: taints.collect(), ..Node::default() }
    }

    fn exists(key: &str) -> Toleration {
        Toleration { key: key.into(), operator: TolerationOperator::Exists, value: "".into(), effect: None }
    }

    #[test]
    fn an_untolerated_hard_taint_excludes_the_node_and_soft_ones_are_counted() {
        use Effect::*;
        assert_eq!(answer(&[], &node(&[])), 0);
        assert_eq!(answer(&[], &node(&[("a", NoSchedule)])), UNTOLERATED);
        assert_eq!(answer(&[], &node(&[("a", NoExecute)])), UNTOLERATED);
        assert_eq!(answer(&[exists("a")], &node(&[("a", NoSchedule), ("b", NoExecute)])), UNTOLERATED);
        let soft = node(&[("a", PreferNoSchedule), ("b", PreferNoSchedule), ("c", NoSchedule)]);
        assert_eq!(answer(&[exists("c")], &soft), 2);
        assert_eq!(answer(&[exists("c"), exists("b")], &soft), 1);
    }
}
