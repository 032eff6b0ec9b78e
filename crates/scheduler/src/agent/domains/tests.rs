//! Counts that come and go while others are used.

use super::*;
use crate::inventory::Ledger;
use crate::rules::counted::CountedWeight;
use berth_model::PodSelector;

/// Counts all pods over the topology of this label.
fn over(key: &str) -> Counted {
    let what = CountedWeight::Selected { by: [PodSelector::default()].into(), terminating: false };
    let nodes = Eligible { labels: [].into(), affinity: None, tolerations: None };
    Counted { what, topology: TopologyKey::Label(key.into()), nodes: Some(nodes.into()) }
}

#[test]
fn a_released_count_leaves_nothing_to_a_later_one_over_another_topology() {
    let mut ledger = Ledger::default();
    for (name, zone) in [("n0", "a"), ("n1", "a"), ("n2", "b")] {
        let labels = [("host", name), ("zone", zone)].into_iter().collect();
        ledger.apply_node(Node { name: name.into(), labels, ..Node::default() });
    }
    let (mut view, mut domains) = (View::default(), Domains::default());
    view.catch_up(ledger.inventory());
    domains.wake(&view);
    let before = domains.bytes();
    let mut emptiest = |key: &str| {
        let counts = [domains.count(&over(key)), domains.count(&over(key))];
        let emptiest = domains.emptiest(counts[0]);
        counts.into_iter().for_each(|count| domains.release(count));
        emptiest
    };
    assert_eq!([emptiest("host"), emptiest("zone")], [(Some(0), 3), (Some(0), 2)]);
    assert_eq!(domains.bytes(), before);
}

#[test]
fn a_topology_counts_the_memory_of_its_nodes_and_domains() {
    const NODES: usize = 64;
    let mut topology = Topology::new(TopologyKey::Label("host".into()));
    let before = topology.bytes();
    for at in 0..NODES {
        let name: Arc<str> = format!("n{at}").into();
        let labels = [("host", &*name)].into_iter().collect();
        topology.enter(NodeId(at as u32), &Node { name, labels, ..Node::default() });
        topology.load(NodeId(at as u32), CellLoad::default());
    }
    let of_node = size_of::<Domain>();
    let of_domain =
        size_of::<CellLoad>() + size_of::<Vec<NodeId>>() + size_of::<NodeId>() + 2 * size_of::<Arc<str>>();
    assert!(topology.bytes() - before >= NODES * (of_node + of_domain), "{}", topology.bytes());
}
