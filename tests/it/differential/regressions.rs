//! Minimized differences found so far, one file each: berth and kube-scheduler agree on them now, except for known
//! deviations.

use berth_testenv::binaries::filter_oracle;

use super::compare::{Difference, Seen, first_difference};
use super::oracle::Oracle;
use super::scenario;

fn difference(requests: &str) -> Option<Difference> {
    let mut oracle = Oracle::start(&filter_oracle().expect("the oracle can be built"));
    let scenario = scenario::parse(requests);
    first_difference(&scenario, &mut oracle, &mut Seen::new()).expect("the oracle answers")
}

fn agree(requests: &str) {
    let difference = difference(requests);
    assert!(difference.is_none(), "{}", difference.unwrap().text);
}

#[test]
fn an_empty_term_beside_named_nodes_leaves_all_nodes_to_the_filters() {
    agree(include_str!("regressions/empty_term_beside_named_nodes.jsonl"));
}

#[test]
fn the_user_of_a_claim_for_one_pod_is_preempted_for_that_claim_by_kube_scheduler_but_not_by_berth() {
    let difference = difference(include_str!("regressions/claim_for_one_pod.jsonl"));
    assert_eq!(difference.as_ref().map(Difference::kind), Some("berth finds no victims"), "{difference:?}");
}
