//! Room for copies of a pod, and the size of pods.

use super::*;
use berth_model::{Holding, Node};

fn usage(cpu_milli: i64, memory: i64, gpus: i64) -> Usage {
    let requests = Amounts { cpu_milli, memory, ephemeral_storage: 0, pods: 1 };
    Usage { requests, extended: [(Arc::from("x/gpu"), gpus)].into_iter().collect(), ..Usage::default() }
}

#[test]
fn as_many_copies_fit_as_the_scarcest_resource_has_room_for() {
    let allocatable = Amounts { cpu_milli: 4000, memory: 100, ephemeral_storage: 0, pods: 9 };
    let extended = [(Arc::from("x/gpu"), 2)].into_iter().collect();
    let mut row = Row::default();
    row.set_node(Some(Arc::new(Node { allocatable, extended, ..Node::default() })));
    let fit = |row: &Row, gone: &Held| {
        [(0, 0, 0), (1000, 0, 0), (1000, 50, 0), (1, 1, 1)]
            .map(|(cpu, memory, gpus)| copies(&usage(cpu, memory, gpus), row, gone))
    };
    assert_eq!(fit(&row, &Held::default()), [9, 4, 2, 2]);
    let other = usage(3000, 50, 1);
    row.charge(&Holding::from(&Arc::new(other.clone())));
    assert_eq!(fit(&row, &Held::default()), [8, 1, 1, 1]);
    let mut gone = Held::default();
    gone.add(&other);
    assert_eq!(fit(&row, &gone), [9, 4, 2, 2]);
}

#[test]
fn a_pod_is_as_large_as_its_largest_share_of_the_largest_node_and_a_device_as_a_node() {
    let most = Amounts { cpu_milli: 4000, memory: 100, ephemeral_storage: 0, pods: 9 };
    assert_eq!(size(&usage(1000, 50, 0), &most), 0.5);
    assert_eq!(size(&usage(1000, 5, 2), &most), 2.25);
}
