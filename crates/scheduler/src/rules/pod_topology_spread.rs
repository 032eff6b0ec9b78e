//! PodTopologySpread: spreads pods of one kind evenly over zones, nodes or other topology domains.

use std::sync::Arc;

use super::Reasons;
use super::counted::{Counted, CountedWeight, Eligible, TopologyKey};
use berth_model::{PodSpec, SpreadConstraint};

const HOSTNAME: &str = "kubernetes.io/hostname";

/// Returns the hard or the soft constraints of a pod with their index in the spec, each with its count.
pub fn counted(spec: &PodSpec, hard: bool) -> Vec<(usize, Counted)> {
    let all = spec.spread.constraints.iter().enumerate();
    let constraints: Vec<_> = all.filter(|(_, constraint)| constraint.hard == hard).collect();
    // Default constraints only use the labels that a node has.
    let all_labels = hard || !spec.spread.defaulted;
    let mut labels: Vec<Arc<str>> = match all_labels {
        true => constraints.iter().map(|(_, constraint)| constraint.topology_key.clone()).collect(),
        false => Vec::new(),
    };
    labels.sort_unstable();
    labels.dedup();
    let labels: Box<[_]> = labels.into();
    let affinity = || (spec.node_selector.clone(), spec.node_affinity.required.clone());
    constraints
        .into_iter()
        .map(|(place, constraint)| {
            let key = constraint.topology_key.clone();
            // Upstream's score, unlike its filter, counts pods per node for this label.
            let topology = match !hard && *key == *HOSTNAME {
                true => TopologyKey::EachNode(key),
                false => TopologyKey::Label(key),
            };
            let nodes = Eligible {
                labels: labels.clone(),
                affinity: constraint.honor_affinity.then(affinity),
                tolerations: constraint.honor_taints.then(|| spec.tolerations.clone()),
            };
            let what =
                CountedWeight::Selected { by: [constraint.selector.clone()].into(), terminating: false };
            (place, Counted { what, topology, nodes: Some(nodes.into()) })
        })
        .collect()
}

/// Checks a hard constraint: `here` pods match in the node's domain (`None`: the node lacks the label), and `emptiest`
/// in the emptiest of `domains` domains (`None`: there is no domain).
pub fn judge(
    constraint: &SpreadConstraint,
    here: Option<i64>,
    emptiest: Option<i64>,
    domains: usize,
) -> Option<Reasons> {
    let Some(here) = here else {
        return Some(Reasons::SPREAD_LABEL);
    };
    let emptiest = match domains < constraint.min_domains as usize {
        true => 0,
        false => emptiest?,
    };
    let skew = here + i64::from(constraint.self_match) - emptiest;
    (skew > i64::from(constraint.max_skew)).then_some(Reasons::SPREAD)
}

/// Fixed-point units of one point of upstream's score.
pub const POINT: f64 = (1 << 16) as f64;

/// Returns the cost of one matching pod in a topology of this many domains (upstream: `topologyNormalizingWeight`).
pub fn weight(domains: usize) -> f64 {
    ((domains + 2) as f64).ln()
}

/// Returns the cost of a node for a soft constraint, in units of 1/[`POINT`]: `pods` match in its domain. A node in no
/// domain costs -1, slightly better than the emptiest domain.
pub fn cost(constraint: &SpreadConstraint, pods: Option<i64>, weight: f64) -> i64 {
    let cost = |pods: i64| pods as f64 * weight + f64::from(constraint.max_skew - 1);
    pods.map_or(-1, |pods| (cost(pods) * POINT).round() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn constraint(max_skew: i32, min_domains: i32, self_match: bool) -> SpreadConstraint {
        SpreadConstraint {
            topology_key: "zone".into(),
            max_skew,
            min_domains,
            hard: true,
            selector: Default::default(),
            self_match,
            honor_affinity: true,
            honor_taints: false,
        }
    }

    #[test]
    fn a_domain_may_exceed_the_emptiest_by_the_skew_counting_the_pod_itself() {
        let own = constraint(1, 1, true);
        assert_eq!(judge(&own, Some(2), Some(2), 3), None);
        assert_eq!(judge(&own, Some(3), Some(2), 3), Some(Reasons::SPREAD));
        assert_eq!(judge(&constraint(1, 1, false), Some(3), Some(2), 3), None);
        assert_eq!(judge(&own, None, Some(0), 3), Some(Reasons::SPREAD_LABEL));
    }

    #[test]
    fn with_fewer_domains_than_asked_for_the_emptiest_counts_as_empty() {
        assert_eq!(judge(&constraint(1, 3, true), Some(1), Some(1), 2), Some(Reasons::SPREAD));
        assert_eq!(judge(&constraint(1, 2, true), Some(1), Some(1), 2), None);
    }

    fn spread(defaulted: bool, constraints: &[(&str, bool)]) -> PodSpec {
        let constraint = |(key, hard): &(&str, bool)| SpreadConstraint {
            topology_key: (*key).into(),
            hard: *hard,
            ..constraint(1, 1, true)
        };
        let constraints = constraints.iter().map(constraint).collect();
        PodSpec { spread: berth_model::Spread { constraints, defaulted }, ..PodSpec::default() }
    }

    #[test]
    fn only_soft_constraints_count_pods_of_each_node_for_the_hostname() {
        let spec = spread(false, &[(HOSTNAME, true), (HOSTNAME, false), ("zone", false)]);
        let topologies = |hard: bool| -> Vec<(usize, TopologyKey)> {
            counted(&spec, hard).into_iter().map(|(place, counted)| (place, counted.topology)).collect()
        };
        assert_eq!(topologies(true), [(0, TopologyKey::Label(HOSTNAME.into()))]);
        let soft = [(1, TopologyKey::EachNode(HOSTNAME.into())), (2, TopologyKey::Label("zone".into()))];
        assert_eq!(topologies(false), soft);
    }

    #[test]
    fn nodes_must_have_all_labels_of_a_pods_own_constraints_and_none_of_soft_defaults() {
        let labels = |defaulted: bool, hard: bool| {
            let spec = spread(defaulted, &[("zone", hard), ("rack", hard), ("zone", hard)]);
            counted(&spec, hard)[0].1.nodes.as_ref().expect("it is limited").labels.clone()
        };
        let both: Box<[Arc<str>]> = ["rack".into(), "zone".into()].into();
        assert_eq!(
            [labels(false, true), labels(false, false), labels(true, true)],
            [(); 3].map(|_| both.clone())
        );
        assert_eq!(labels(true, false), [].into());
    }

    #[test]
    fn a_node_costs_its_pods_times_the_topologys_weight() {
        let soft = constraint(5, 1, true);
        assert_eq!(cost(&soft, Some(2), 1.5), ((3.0 + 4.0) * POINT) as i64);
        assert!(cost(&constraint(1, 1, true), None, 1.5) < cost(&constraint(1, 1, true), Some(0), 1.5));
        assert!(weight(5000) > weight(3));
    }
}
