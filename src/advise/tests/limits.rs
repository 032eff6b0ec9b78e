use serde_json::Value;

use super::*;
use crate::advise::limits::{LimitChange, LimitStrategy};
use crate::advise::show;

/// What becomes of the limits of a container with this request, limit and target, the same for both resources.
fn changes(
    strategy: LimitStrategy,
    request: Current,
    limit: Current,
    target: Option<Amount>,
) -> (LimitChange, LimitChange) {
    let of = |limit_rule| ResourceAdvice { limit, limit_rule, ..size(request, target) }.limit_change();
    let PerResource { cpu, memory } = strategy.rules().map(of);
    (cpu, memory)
}

#[test]
fn limits_in_proportion_follow_the_request_and_appear_nowhere() {
    let change = |request, limit| changes(LimitStrategy::Proportional, request, limit, Some(300)).0;
    assert_eq!(change(Current::Set(100), Current::Set(200)), LimitChange::Set(600));
    assert_eq!(change(Current::Set(300), Current::Set(1_001)), LimitChange::Set(1_001));
    assert_eq!(change(Current::Unset, Current::Set(200)), LimitChange::Set(300));
    assert_eq!(change(Current::Set(100), Current::Unset), LimitChange::Keep);
    assert_eq!(change(Current::Set(100), Current::Unknown), LimitChange::Keep);
}

#[test]
fn limits_as_krr_sets_them_are_memory_as_the_request_and_no_cpu() {
    let change = |limit| changes(LimitStrategy::MemoryAsRequest, Current::Set(100), limit, Some(300));
    assert_eq!(change(Current::Set(200)), (LimitChange::Remove, LimitChange::Set(300)));
    assert_eq!(change(Current::Unset), (LimitChange::Keep, LimitChange::Set(300)));
    assert_eq!(change(Current::Unknown), (LimitChange::Keep, LimitChange::Set(300)));
}

#[test]
fn unchanged_limits_only_give_way_to_a_larger_request() {
    let change = |limit| changes(LimitStrategy::Unchanged, Current::Set(100), limit, Some(300));
    assert_eq!(change(Current::Set(400)), (LimitChange::Keep, LimitChange::Keep));
    assert_eq!(change(Current::Set(200)), (LimitChange::Set(300), LimitChange::Set(300)));
    assert_eq!(change(Current::Unset), (LimitChange::Keep, LimitChange::Keep));
}

#[test]
fn no_limit_changes_without_advice_on_the_request() {
    for strategy in [LimitStrategy::Proportional, LimitStrategy::MemoryAsRequest, LimitStrategy::Unchanged] {
        let change = changes(strategy, Current::Set(100), Current::Set(200), None);
        assert_eq!(change, (LimitChange::Keep, LimitChange::Keep), "{strategy:?}");
    }
}

/// A container whose requests are right already, with limits and KRR's rules.
fn krr() -> AdviceReport {
    let mut one = advice("app", (Current::Set(350), Some(350)), (Current::Set(512 * MI), Some(512 * MI)));
    let rules = LimitStrategy::MemoryAsRequest.rules();
    one.size = one.size.zip(rules).map(|(size, limit_rule)| ResourceAdvice { limit_rule, ..size });
    one.size.cpu.limit = Current::Set(1_000);
    let mut other = one.clone();
    other.container = "it's".into();
    other.size.cpu.limit = Current::Unset;
    report(vec![one, other])
}

#[test]
fn a_limit_is_removed_by_a_patch_and_set_by_a_command() {
    let commands = show::kubectl(&krr()).expect("text");
    assert_eq!(
        commands,
        "kubectl patch --namespace=shop deployment/web \
         --patch='{\"spec\":{\"template\":{\"spec\":{\"containers\":[{\"name\":\"app\",\"resources\":{\"limits\":\
         {\"cpu\":null,\"memory\":\"512Mi\"}}}]}}}}'\n\
         kubectl set resources --namespace=shop deployment/web --containers='it'\\''s' --limits=memory=512Mi\n"
    );
    let component: Value = serde_saphyr::from_str(&show::kustomize(&krr()).expect("text")).expect("YAML");
    let patch = component["patches"][0]["patch"].as_str().expect("a text");
    let patch: Value = serde_saphyr::from_str(patch).expect("YAML");
    let containers = &patch["spec"]["template"]["spec"]["containers"];
    let limits = serde_json::json!({"limits": {"cpu": null, "memory": "512Mi"}});
    assert_eq!(containers[0]["resources"], limits);
}

#[test]
fn every_format_but_the_table_shows_what_becomes_of_limits() {
    let json: Value = serde_json::from_str(&show::json(&krr()).expect("text")).expect("JSON");
    let of = |at: usize, resource: &str| json["containers"][at][resource]["limitTarget"].clone();
    assert_eq!((of(0, "cpu"), of(0, "memory")), ("none".into(), (512 * MI).into()));
    assert_eq!(of(1, "cpu"), Value::Null);
    assert!(show::csv(&krr()).contains(",none,536870912,"), "{}", show::csv(&krr()));
    let page = show::page(&krr());
    assert!(page.contains("<td>1 → none</td>") && page.contains("<td>unset → 512Mi</td>"), "{page}");
}
