//! Recommendations computed from a store.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::vpa::{vpa, workload};
use super::{MI, MINUTE, T0};
use crate::recommend::ContainerPolicy;
use crate::recommend::post::{AllowedRange, OptionalAmounts};
use crate::recommend::propose::{Requests, propose};
use crate::recommend::room::room;
use crate::recommend::saved::{Keeper, Label, is_garbage, name, oldest_first};
use crate::recommend::settings::RecommenderSettings;
use crate::recommend::store::{Store, Workload};
use crate::recommend::time::NEVER;
use berth_model::{NodeSize, PerResource};

fn size(cpu: i64, mib: i64) -> NodeSize {
    PerResource { cpu, memory: mib * MI }
}

/// Two days of two containers.
fn fed() -> (Store, Workload) {
    let (mut store, workload) =
        (Store::new(RecommenderSettings::default()).unwrap(), workload("Deployment", "web"));
    let uid: Arc<str> = "uid".into();
    store.pod_runs(&uid, &workload);
    for n in 0..2 * 1440 {
        let time = T0 + n * MINUTE;
        for (container, cpu, mib) in [("app", 2000, 1000), ("sidecar", 100, 100)] {
            store.add_cpu(&uid, container, cpu, time, time).unwrap();
            store.add_memory(&uid, container, mib * MI, time, time).unwrap();
        }
    }
    (store, workload)
}

fn running(containers: &[&str]) -> Requests {
    containers.iter().map(|name| ((*name).to_owned(), size(1000, 500))).collect()
}

const NO_MAX: OptionalAmounts = OptionalAmounts { cpu: None, memory: None };

#[test]
fn containers_that_run_get_a_recommendation_unless_their_policy_is_off() {
    let (store, workload) = fed();
    let mut vpa = vpa("web", 0, "web");
    let names = |vpa: &_, running: &Requests| -> Vec<String> {
        let proposal = propose(vpa, &store, &workload, (running, running), NO_MAX, Vec::new);
        proposal.recommendations.into_iter().map(|it| it.container).collect()
    };
    assert_eq!(names(&vpa, &running(&["app", "sidecar"])), ["app", "sidecar"]);
    assert_eq!(names(&vpa, &running(&["app", "new"])), ["app"], "nothing is known of the new one");
    assert_eq!(names(&vpa, &Requests::new()), ["app", "sidecar"], "scaled to nothing");
    vpa.policies = vec![ContainerPolicy { container: "app".into(), off: true, ..ContainerPolicy::default() }];
    assert_eq!(names(&vpa, &running(&["app", "sidecar"])), ["sidecar"]);
}

#[test]
fn low_confidence_is_said_until_there_are_samples_of_a_day() {
    let (mut store, workload) = fed();
    let vpa = vpa("web", 0, "web");
    let uid: Arc<str> = "young".into();
    store.pod_runs(&uid, &workload);
    store.add_cpu(&uid, "young", 100, T0, T0).unwrap();
    let running = running(&["app", "sidecar", "young"]);
    let proposal = propose(&vpa, &store, &workload, (&running, &running), NO_MAX, Vec::new);
    assert_eq!(proposal.low_confidence, ["young"]);
    let young = proposal.recommendations.iter().find(|it| it.container == "young").unwrap();
    assert_eq!((young.target.cpu.is_some(), young.target.memory), (true, None), "memory was never measured");
}

#[test]
fn no_more_is_recommended_than_a_node_can_hold_beside_what_others_request() {
    let (store, workload) = fed();
    let mut vpa = vpa("web", 0, "web");
    let both = running(&["app", "sidecar"]);
    let on = |vpa: &_, nodes: &[NodeSize]| {
        let proposal = propose(vpa, &store, &workload, (&both, &Requests::new()), NO_MAX, || nodes.to_vec());
        let sum: i64 = proposal.recommendations.iter().filter_map(|it| it.target.cpu).sum();
        (sum, proposal.capped, proposal.recommendations[0].uncapped.cpu)
    };
    let (wanted, capped, uncapped) = on(&vpa, &[]);
    assert!(wanted > 2000 && capped.is_empty(), "{wanted} {capped}");
    assert_eq!(on(&vpa, &[size(1000, 4000), size(8000, 8000)]).0, wanted, "one node can hold it");
    let (sum, capped, still) = on(&vpa, &[size(1000, 8000), size(1500, 8000)]);
    assert!((1490..=1500).contains(&sum), "{sum}");
    assert_eq!(capped, "CPU is capped to what the largest node that the pods may run on can hold");
    assert_eq!(still, uncapped, "the uncapped target is still reported");
    vpa.policies =
        vec![ContainerPolicy { container: "sidecar".into(), off: true, ..ContainerPolicy::default() }];
    let (sum, ..) = on(&vpa, &[size(1500, 8000)]);
    assert!((490..=500).contains(&sum), "the sidecar requests a core: {sum}");
}

/// The largest nodes are being replaced: a cap to those that are left would evict what runs, for nothing.
#[test]
fn what_runs_is_not_capped_below_its_requests_when_its_node_goes() {
    let (store, workload) = fed();
    let vpa = vpa("web", 0, "web");
    let both = running(&["app", "sidecar"]);
    let on = |placed: &Requests| {
        let small = || [size(500, 8000)];
        let proposal = propose(&vpa, &store, &workload, (&both, placed), NO_MAX, small);
        let sum: i64 = proposal.recommendations.iter().filter_map(|it| it.target.cpu).sum();
        (sum, proposal.capped.is_empty())
    };
    // Both request a core.
    let (sum, _) = on(&both);
    assert!((1990..=2000).contains(&sum), "{sum}");
    let (sum, is_uncapped) = on(&Requests::new());
    assert!((490..=500).contains(&sum) && !is_uncapped, "nothing has started: {sum}");
}

#[test]
fn what_the_vpa_allows_is_no_cap_by_nodes() {
    let (store, workload) = fed();
    let mut vpa = vpa("web", 0, "web");
    let max = OptionalAmounts { cpu: Some(500), memory: None };
    vpa.policies = vec![ContainerPolicy {
        container: "*".into(),
        allowed: AllowedRange { min: NO_MAX, max },
        ..ContainerPolicy::default()
    }];
    let both = running(&["app", "sidecar"]);
    let proposal = propose(&vpa, &store, &workload, (&both, &both), NO_MAX, || [size(1000, 8000)]);
    assert_eq!(proposal.recommendations[0].target.cpu, Some(500));
    assert_eq!(proposal.capped, "");
}

#[test]
fn the_room_is_that_of_the_node_that_comes_closest() {
    let some = |size: NodeSize| size.map(Some);
    assert_eq!(room([], size(1, 1)), NO_MAX);
    assert_eq!(room([size(4, 4), size(1, 1)], size(4, 4)), NO_MAX);
    assert_eq!(room([size(1, 9), size(3, 3), size(9, 1)], size(4, 4)), some(size(3, 3)));
    assert_eq!(room([size(2, 4), size(2, 8)], size(4, 4)), some(size(2, 8)), "the larger one of equals");
    assert_eq!(room([size(0, 0)], size(i64::MAX, 1)), some(size(0, 0)));
}

#[test]
fn a_checkpoint_is_garbage_when_its_vpa_or_container_is_gone() {
    let label = |vpa: &str, container: &str, is_ours| Label {
        name: name(vpa, container),
        vpa: vpa.into(),
        container: container.into(),
        is_ours,
    };
    let vpas = BTreeMap::from([
        ("web".to_owned(), Keeper::Containers(vec!["app".into()])),
        ("foreign".to_owned(), Keeper::Other),
        ("stopped".to_owned(), Keeper::Unknown),
    ]);
    let cases = [
        (label("web", "app", true), false),
        (label("web", "removed", true), true),
        (label("web", "removed", false), true),
        (label("foreign", "x", true), false),
        (label("stopped", "x", true), false),
        (label("gone", "app", true), true),
        (label("gone", "app", false), false),
    ];
    for (label, expected) in cases {
        assert_eq!(is_garbage(&label, &vpas, false), expected, "{label:?}");
    }
    assert!(is_garbage(&label("gone", "app", false), &vpas, true), "we stand in for upstream");
    assert_eq!(name("a-b", "c"), name("a", "b-c"), "so a checkpoint's own words count");
}

#[test]
fn what_was_never_saved_goes_first_then_the_oldest() {
    assert_eq!(oldest_first(vec![(5, "a"), (NEVER, "d"), (3, "c"), (NEVER, "b")]), ["b", "d", "c", "a"]);
}
