//! Which pods a scale-in should take: those on the nodes that can be emptied, unless their spread would suffer.
//!
//! Only the controller of ReplicaSets heeds `controller.kubernetes.io/pod-deletion-cost`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use serde::Serialize;

use berth_model::{Node, Pod, SpreadConstraint};

/// Annotation of a pod: of the pods of a ReplicaSet, those with the lowest value are deleted first. Without it, the value is 0.
pub const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// A pod that a scale-in should take before others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeletionCost {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    /// The value of the annotation.
    pub cost: i32,
}

/// Pods with a node, by topology domain, for one constraint of a ReplicaSet's pods. Domains all of whose nodes become empty are left out:
/// they are to be without pods.
struct Counts<'a> {
    constraint: &'a SpreadConstraint,
    by_domain: BTreeMap<&'a str, i64>,
}

/// The cluster that is to be scaled in.
struct Site<'a> {
    nodes: &'a HashMap<Arc<str>, Arc<Node>>,
    emptied: HashSet<&'a Arc<str>>,
    /// Pods that are not being deleted, by namespace.
    pods: HashMap<&'a Arc<str>, Vec<&'a Pod>>,
}

impl<'a> Site<'a> {
    fn domain(&self, constraint: &SpreadConstraint, pod: &Pod) -> Option<&'a str> {
        self.nodes.get(pod.node_name.as_ref()?)?.labels.get(&constraint.topology_key)
    }

    /// Counts the pods of this constraint.
    fn count(&self, constraint: &'a SpreadConstraint, namespace: &Arc<str>) -> Counts<'a> {
        let stay = self.nodes.values().filter(|node| !self.emptied.contains(&node.name));
        let domains = stay.filter_map(|node| node.labels.get(&constraint.topology_key));
        let stay: HashSet<&str> = domains.collect();
        let mut by_domain = BTreeMap::new();
        for pod in self.pods.get(namespace).into_iter().flatten() {
            if let Some(domain) = self.domain(constraint, pod).filter(|domain| stay.contains(domain))
                && constraint.selector.matches(&pod.peer.identity)
            {
                *by_domain.entry(domain).or_default() += 1;
            }
        }
        Counts { constraint, by_domain }
    }

    /// Takes the pod away from all counts, or from none: then the spread would suffer.
    fn take(&self, counts: &mut [Counts], pod: &Pod) -> bool {
        let domains: Vec<_> = counts.iter().map(|counts| self.domain(counts.constraint, pod)).collect();
        let before: Vec<i64> = counts.iter().map(Counts::skew).collect();
        let add = |counts: &mut [Counts], by: i64| {
            for (counts, domain) in counts.iter_mut().zip(&domains) {
                let pods = domain.and_then(|domain| counts.by_domain.get_mut(domain));
                if let Some(pods) = pods.filter(|_| counts.constraint.self_match) {
                    *pods += by;
                }
            }
        };
        add(counts, -1);
        let allowed = |(counts, before): (&Counts, &i64)| {
            counts.skew() <= (*before).max(counts.constraint.max_skew.into())
        };
        let is_fine = counts.iter().zip(&before).all(allowed);
        if !is_fine {
            add(counts, 1);
        }
        is_fine
    }
}

impl Counts<'_> {
    fn skew(&self) -> i64 {
        let most = self.by_domain.values().max().copied().unwrap_or(0);
        most - self.by_domain.values().min().copied().unwrap_or(0)
    }
}

/// Returns the costs of the pods of ReplicaSets on these nodes, which are in the order in which they are to be emptied: the first one
/// first. Pods without which the others of their topology spread constraints would be more uneven than allowed, and than now, are left
/// out; what was counted is a scale-in that takes the pods in this order. `pods`: all pods with a node.
pub fn deletion_costs<'a>(
    emptied: &'a [Arc<str>],
    pods: impl Iterator<Item = &'a Pod>,
    nodes: &'a HashMap<Arc<str>, Arc<Node>>,
) -> Vec<DeletionCost> {
    let mut site = Site { nodes, emptied: emptied.iter().collect(), pods: HashMap::new() };
    let mut leaving: BTreeMap<&Arc<str>, Vec<&Pod>> = BTreeMap::new();
    for pod in pods.filter(|pod| !pod.deleting) {
        site.pods.entry(&pod.namespace).or_default().push(pod);
        let is_of_set = pod.peer.owner.as_ref().is_some_and(|owner| &*owner.kind == "ReplicaSet");
        if let Some(node) = pod.node_name.as_ref().filter(|node| is_of_set && site.emptied.contains(node)) {
            leaving.entry(node).or_default().push(pod);
        }
    }
    let mut counts: BTreeMap<(&Arc<str>, &Arc<str>), Vec<Counts>> = BTreeMap::new();
    let mut costs = Vec::new();
    for (at, node) in emptied.iter().enumerate() {
        let mut there = leaving.remove(node).unwrap_or_default();
        there.sort_by_key(|pod| (&pod.namespace, &pod.name));
        for pod in there {
            let Some(owner) = &pod.peer.owner else { continue };
            let known = counts.entry((&pod.namespace, &owner.name)).or_insert_with(|| {
                let constraints = pod.spec.as_ref().map_or(&[][..], |spec| &spec.spread.constraints);
                constraints.iter().map(|it| site.count(it, &pod.namespace)).collect()
            });
            if site.take(known, pod) {
                let cost = at as i64 - emptied.len() as i64;
                let cost = i32::try_from(cost).unwrap_or(i32::MIN);
                costs.push(DeletionCost { namespace: pod.namespace.clone(), name: pod.name.clone(), cost });
            }
        }
    }
    costs
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_model::{Identity, LabelSelector, Peer, PodOwner, PodSelector, PodSpec, Spread};

    fn node(name: &str, zone: &str) -> (Arc<str>, Arc<Node>) {
        let labels = [("zone", zone), ("host", name)].into_iter().collect();
        (name.into(), Arc::new(Node { name: name.into(), labels, ..Node::default() }))
    }

    fn nodes() -> HashMap<Arc<str>, Arc<Node>> {
        let names = ["a1", "a2", "b1", "b2", "c1", "c2"];
        names.map(|name| node(name, &name[..1])).into()
    }

    fn pod(name: &str, kind: &str, node: &str, skew: i32) -> Pod {
        let owner = PodOwner { api_version: "apps/v1".into(), kind: kind.into(), name: "web-1".into() };
        let identity = Identity { namespace: "shop".into(), ..Identity::default() };
        let selector = PodSelector {
            namespaces: ["shop".into()].into(),
            namespace_selector: LabelSelector::Nothing,
            labels: LabelSelector::All(Default::default()),
        };
        let constraint = SpreadConstraint {
            topology_key: "zone".into(),
            max_skew: skew,
            min_domains: 1,
            hard: true,
            selector,
            self_match: true,
            honor_affinity: true,
            honor_taints: false,
        };
        let constraints = if skew > 0 { vec![constraint].into() } else { Default::default() };
        Pod {
            namespace: "shop".into(),
            name: name.into(),
            node_name: Some(node.into()),
            peer: Arc::new(Peer { identity, owner: Some(owner), ..Peer::default() }),
            spec: Ok(Arc::new(PodSpec {
                spread: Spread { constraints, ..Spread::default() },
                ..PodSpec::default()
            })),
            ..Pod::default()
        }
    }

    fn costs(emptied: &[&str], pods: &[Pod]) -> Vec<(String, i32)> {
        let emptied: Vec<Arc<str>> = emptied.iter().map(|node| Arc::from(*node)).collect();
        let costs = deletion_costs(&emptied, pods.iter(), &nodes());
        costs.into_iter().map(|it| (it.name.to_string(), it.cost)).collect()
    }

    #[test]
    fn pods_of_replica_sets_on_the_first_node_go_first() {
        let pods = [
            pod("p", "ReplicaSet", "b1", 0),
            pod("q", "ReplicaSet", "a1", 0),
            pod("r", "ReplicaSet", "c1", 0),
            pod("s", "StatefulSet", "b1", 0),
        ];
        assert_eq!(costs(&["b1", "a1"], &pods), [("p".to_owned(), -2), ("q".to_owned(), -1)]);
    }

    #[test]
    fn a_node_or_zone_that_becomes_empty_may_lose_all_its_pods() {
        let at = [("p1", "a1"), ("p2", "a1"), ("p3", "b1"), ("p4", "b1"), ("p5", "c1"), ("p6", "c1")];
        let by_host = at.map(|(name, node)| {
            let pod = pod(name, "ReplicaSet", node, 1);
            let mut spec = PodSpec::clone(pod.spec.as_ref().expect("valid"));
            spec.spread.constraints[0].topology_key = "host".into();
            Pod { spec: Ok(Arc::new(spec)), ..pod }
        });
        assert_eq!(costs(&["a1"], &by_host).len(), 2);
        let by_zone = at.map(|(name, node)| pod(name, "ReplicaSet", node, 1));
        assert_eq!(costs(&["a1", "a2"], &by_zone).len(), 2);
    }

    #[test]
    fn pods_whose_spread_would_suffer_are_left_out() {
        let set = |skew| {
            let at = [("p1", "a1"), ("p2", "a1"), ("p3", "b1"), ("p4", "b1"), ("p5", "c1"), ("p6", "c1")];
            at.map(|(name, node)| pod(name, "ReplicaSet", node, skew))
        };
        // Each zone has two.
        let first = |skew| costs(&["a1"], &set(skew)).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(first(1), ["p1"]);
        assert_eq!(first(2), ["p1", "p2"]);
        let all = costs(&["a1", "b1", "c1"], &set(1));
        let names: Vec<_> = all.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names, ["p1", "p3", "p5", "p6"], "two and one fewer in the others are even enough");
        // What is uneven already must not become worse.
        let uneven = [("p1", "a1"), ("p2", "b1"), ("p3", "b1"), ("p4", "b1")];
        let uneven = uneven.map(|(name, node)| pod(name, "ReplicaSet", node, 1));
        let names: Vec<_> = costs(&["a1", "b1"], &uneven).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["p2", "p3", "p4"]);
    }
}
