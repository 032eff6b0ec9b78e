//! Minimized differences found so far, one file each: berth and kube-scheduler agree on them now.

use berth_testenv::binaries::filter_oracle;

use super::compare::{Seen, first_difference};
use super::oracle::Oracle;
use super::scenario;

fn agree(requests: &str) {
    let mut oracle = Oracle::start(&filter_oracle().expect("the oracle can be built"));
    let scenario = scenario::parse(requests);
    let difference = first_difference(&scenario, &mut oracle, &mut Seen::new()).expect("the oracle answers");
    assert!(difference.is_none(), "{}", difference.unwrap().text);
}

#[test]
fn an_empty_term_beside_named_nodes_leaves_all_nodes_to_the_filters() {
    agree(include_str!("regressions/empty_term_beside_named_nodes.jsonl"));
}

#[test]
fn the_user_of_a_claim_for_one_pod_is_preempted_for_that_claim() {
    agree(include_str!("regressions/claim_for_one_pod.jsonl"));
}
