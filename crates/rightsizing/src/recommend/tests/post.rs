//! Allowed range of the VPA, whole cores, and node capacity.

use std::collections::BTreeMap;

use crate::recommend::amount::Amount;
use crate::recommend::post::{AllowedRange, OptionalAmounts, PostPolicy, Recommendation, process};
use berth_model::PerResource;

fn amounts(cpu: Amount, memory: Amount) -> OptionalAmounts {
    PerResource { cpu: Some(cpu), memory: Some(memory) }
}

/// Lower bounds are half, upper bounds twice the target.
fn recommended(container: &str, cpu: Amount, memory: Amount) -> Recommendation {
    Recommendation {
        container: container.into(),
        target: amounts(cpu, memory),
        lower: amounts(cpu / 2, memory / 2),
        upper: amounts(cpu * 2, memory * 2),
        uncapped: amounts(cpu, memory),
    }
}

fn bounds(recommendation: &Recommendation) -> [(Option<Amount>, Option<Amount>); 3] {
    let Recommendation { target, lower, upper, .. } = recommendation;
    [target, lower, upper].map(|amounts| (amounts.cpu, amounts.memory))
}

fn allowed(containers: &[(&str, OptionalAmounts, OptionalAmounts)]) -> PostPolicy {
    let allowed = containers.iter().map(|&(name, min, max)| (name.to_string(), AllowedRange { min, max }));
    PostPolicy { allowed: allowed.collect(), ..PostPolicy::default() }
}

const NONE: OptionalAmounts = PerResource { cpu: None, memory: None };

#[test]
fn without_a_policy_nothing_changes() {
    let mut recommendations = [recommended("app", 700, 1000)];
    let capped = process(&mut recommendations, &PostPolicy::default());
    assert_eq!(recommendations, [recommended("app", 700, 1000)]);
    assert!(!capped.any());
}

#[test]
fn target_and_bounds_are_kept_between_what_is_allowed() {
    let cases = [
        (amounts(100, 100), amounts(5000, 5000), [(700, 1000), (350, 500), (1400, 2000)]),
        (amounts(800, 600), NONE, [(800, 1000), (800, 600), (1400, 2000)]),
        (NONE, amounts(500, 1500), [(500, 1000), (350, 500), (500, 1500)]),
        (amounts(900, 100), amounts(500, 5000), [(500, 1000), (500, 500), (500, 2000)]),
    ];
    for (min, max, expected) in cases {
        let mut recommendations = [recommended("app", 700, 1000)];
        process(&mut recommendations, &allowed(&[("app", min, max)]));
        assert_eq!(bounds(&recommendations[0]), expected.map(|(cpu, memory)| (Some(cpu), Some(memory))));
        assert_eq!(recommendations[0].uncapped, amounts(700, 1000));
    }
}

#[test]
fn a_containers_own_policy_wins_over_that_for_all_and_a_maximum_over_the_global_one() {
    let mut policy = allowed(&[
        ("*", NONE, amounts(200, 200)),
        ("app", NONE, PerResource { cpu: Some(600), memory: None }),
    ]);
    policy.max_allowed = amounts(300, 300);
    let mut recommendations = [recommended("app", 700, 1000), recommended("sidecar", 700, 1000)];
    process(&mut recommendations, &policy);
    assert_eq!(recommendations[0].target, amounts(600, 300));
    assert_eq!(recommendations[1].target, amounts(200, 200));
}

#[test]
fn whole_cores_are_rounded_up_before_they_are_capped() {
    let mut policy = allowed(&[("app", NONE, amounts(1500, 5000))]);
    policy.integer_cpu = vec!["app".into()];
    let mut recommendations = [recommended("app", 1100, 1000), recommended("sidecar", 1100, 1000)];
    process(&mut recommendations, &policy);
    assert_eq!(recommendations[0].uncapped, amounts(2000, 1000));
    assert_eq!(recommendations[0].target, amounts(1500, 1000));
    assert_eq!(recommendations[0].lower, amounts(1000, 500));
    assert_eq!(recommendations[1].target, amounts(1100, 1000));
}

#[test]
fn a_resource_that_is_not_recommended_stays_so() {
    let mut policy = allowed(&[("*", amounts(1, 1), amounts(2, 2))]);
    policy.integer_cpu = vec!["app".into()];
    policy.node_room = amounts(1, 1);
    let memory_only = PerResource { cpu: None, memory: Some(10) };
    let mut recommendations = [Recommendation {
        container: "app".into(),
        target: memory_only,
        lower: memory_only,
        upper: memory_only,
        uncapped: memory_only,
    }];
    process(&mut recommendations, &policy);
    assert_eq!(bounds(&recommendations[0]), [(None, Some(1)); 3]);
}

#[test]
fn containers_that_no_node_can_hold_share_its_room_in_proportion() {
    let policy = PostPolicy { node_room: amounts(4000, 10_000), ..PostPolicy::default() };
    let mut recommendations = [recommended("app", 6000, 1000), recommended("sidecar", 2000, 3000)];
    let capped = process(&mut recommendations, &policy);
    assert_eq!(capped.0, PerResource { cpu: true, memory: false });
    let expected = [(3000, 1000), (3000, 500), (4000, 2000)].map(|(cpu, memory)| (Some(cpu), Some(memory)));
    assert_eq!(bounds(&recommendations[0]), expected);
    assert_eq!(recommendations[1].target, amounts(1000, 3000));
    assert_eq!(recommendations[0].uncapped, amounts(6000, 1000));
    let again = recommendations.clone();
    assert!(!process(&mut recommendations, &policy).any(), "what fits is not capped again");
    assert_eq!(recommendations, again);
}

#[test]
fn whole_cores_stay_whole_in_a_nodes_room() {
    let integer_cpu = vec!["app".into()];
    let policy = PostPolicy { node_room: amounts(3500, 10_000), integer_cpu, ..PostPolicy::default() };
    let mut recommendations = [recommended("app", 6000, 1000)];
    process(&mut recommendations, &policy);
    assert_eq!(recommendations[0].target.cpu, Some(3000));
}

#[test]
fn where_a_node_has_no_whole_core_a_part_of_one_is_better_than_none() {
    let integer_cpu = vec!["app".into()];
    let policy = PostPolicy { node_room: amounts(700, 10_000), integer_cpu, ..PostPolicy::default() };
    let mut recommendations = [recommended("app", 6000, 1000)];
    process(&mut recommendations, &policy);
    assert_eq!(recommendations[0].target.cpu, Some(700));
}

#[test]
fn room_that_cannot_be_caps_to_nothing() {
    let policy = PostPolicy { node_room: amounts(i64::MIN, 0), ..PostPolicy::default() };
    let mut recommendations = [recommended("app", i64::MAX / 2, 0), recommended("sidecar", i64::MAX / 2, 1)];
    let capped = process(&mut recommendations, &policy);
    assert_eq!(capped.0, PerResource { cpu: true, memory: true });
    for recommendation in &recommendations {
        assert_eq!(bounds(recommendation), [(Some(0), Some(0)); 3]);
    }
    assert_eq!(process(&mut [], &policy).0, PerResource { cpu: false, memory: false });
    assert_eq!(policy.allowed, BTreeMap::new());
}
