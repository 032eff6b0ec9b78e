//! VolumeZone: a node with zone or region labels only accepts pods whose bound volumes have matching labels.

use super::RuleAnswer;
use berth_model::{Labels, Node, VolumeZone};

/// A volume is in another zone or region.
pub const ELSEWHERE: RuleAnswer = 1;

const ZONE: &str = "topology.kubernetes.io/zone";
const REGION: &str = "topology.kubernetes.io/region";
const OLD_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";
const OLD_REGION: &str = "failure-domain.beta.kubernetes.io/region";

pub fn answer(zones: &[VolumeZone], node: &Node) -> RuleAnswer {
    let labels = &node.labels;
    // A cluster of one zone need not label its nodes.
    if [ZONE, REGION, OLD_ZONE, OLD_REGION].iter().all(|key| labels.get(key).is_none()) {
        return super::NEUTRAL;
    }
    if zones.iter().all(|zone| contains(zone, labels)) { super::NEUTRAL } else { ELSEWHERE }
}

fn contains(zone: &VolumeZone, labels: &Labels) -> bool {
    let key = match &*zone.key {
        OLD_ZONE => ZONE,
        OLD_REGION => REGION,
        key => key,
    };
    let value = labels.get(&zone.key).or_else(|| labels.get(key));
    value.is_some_and(|value| zone.values.iter().any(|known| **known == *value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::NEUTRAL;

    fn ask(key: &str, values: &[&str], labels: &[(&str, &str)]) -> RuleAnswer {
        let values = values.iter().map(|value| (*value).into()).collect();
        let node = Node { labels: labels.iter().copied().collect(), ..Node::default() };
        answer(&[VolumeZone { key: key.into(), values }], &node)
    }

    #[test]
    fn the_nodes_zone_must_be_one_of_the_volumes() {
        assert_eq!(ask(ZONE, &["a", "b"], &[(ZONE, "b")]), NEUTRAL);
        assert_eq!(ask(ZONE, &["a", "b"], &[(ZONE, "c")]), ELSEWHERE);
        assert_eq!(
            ask(ZONE, &["a"], &[(REGION, "r")]),
            ELSEWHERE,
            "the volume requires a zone, the node has none"
        );
    }

    #[test]
    fn a_node_without_any_topology_label_takes_all() {
        assert_eq!(ask(ZONE, &["a"], &[("pool", "x")]), NEUTRAL);
    }

    #[test]
    fn an_old_label_of_a_volume_is_held_against_the_new_one_of_a_node_and_not_the_other_way_round() {
        assert_eq!(ask(OLD_ZONE, &["a"], &[(ZONE, "a")]), NEUTRAL);
        assert_eq!(ask(OLD_ZONE, &["a"], &[(OLD_ZONE, "b"), (ZONE, "a")]), ELSEWHERE);
        assert_eq!(ask(OLD_REGION, &["a"], &[(REGION, "b")]), ELSEWHERE);
        assert_eq!(ask(ZONE, &["a"], &[(OLD_ZONE, "a")]), ELSEWHERE);
    }
}
