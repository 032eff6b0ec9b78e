//! Changes of requests and limits, with values from upstream's tests of its admission controller and of capping.

use serde_json::{Value, json};

use super::*;
use crate::apply::boost::Boosts;
use crate::apply::change::{parts, recommended};
use crate::apply::patch;
use crate::recommend::{AllowedRange, ContainerPolicy};

fn one(requests: OptionalAmounts, limits: OptionalAmounts, target: OptionalAmounts) -> (SizedPod, Vpa) {
    (pod("p", vec![container("app", requests, limits)]), vpa("Initial", vec![recommendation("app", target)]))
}

fn changed(pod: &SizedPod, vpa: &Vpa, ranges: &Ranges) -> (OptionalAmounts, OptionalAmounts) {
    let changes = changes(pod, vpa, ranges).expect("it changes");
    (changes[0].requests, changes[0].limits)
}

#[test]
fn requests_become_targets_and_limits_keep_their_proportion() {
    let (pod, vpa) = one(amounts(1_500, 150), amounts(2_000, 200), amounts(1_000, 100));
    let expected = (amounts(1_000, 100), amounts(1_333, 133));
    assert_eq!(changed(&pod, &vpa, &Ranges::default()), expected);
    let (pod, vpa) = one(amounts(None, None), amounts(2_000, None), amounts(500, 100));
    assert_eq!(changed(&pod, &vpa, &Ranges::default()), (amounts(500, 100), amounts(500, None)));
}

#[test]
fn limits_stay_when_only_requests_are_controlled_and_bound_them() {
    let (pod, mut vpa) = one(amounts(100, 10 * MI), amounts(400, 40 * MI), amounts(200, 90 * MI));
    vpa.policies =
        vec![ContainerPolicy { container: "*".into(), requests_only: true, ..ContainerPolicy::default() }];
    let changes = changes(&pod, &vpa, &Ranges::default()).unwrap();
    assert_eq!((changes[0].requests, changes[0].limits), (amounts(200, 40 * MI), OptionalAmounts::default()));
    assert_eq!(changes[0].notes, ["memory capped to container limit"]);
}

#[test]
fn a_sidecar_gets_its_recommendation_among_the_init_containers() {
    let sidecar = SizedContainer {
        sidecar: Some(1),
        ..container("proxy", amounts(100, None), OptionalAmounts::default())
    };
    let containers = vec![container("app", amounts(500, None), OptionalAmounts::default()), sidecar];
    let vpa = vpa("Initial", vec![recommendation("proxy", amounts(300, None))]);
    let pod = SizedPod { has_annotations: true, ..pod("p", containers) };
    let changes = changes(&pod, &vpa, &Ranges::default()).expect("it changes");
    assert_eq!(
        Value::from(patch::at_creation(&pod, "web", &changes, &Boosts::new())),
        json!([
            {"op": "add", "path": "/spec/initContainers/1/resources/requests/cpu", "value": "300m"},
            {"op": "add", "path": "/metadata/annotations/vpaUpdates",
             "value": "Pod resources updated by web: init-container 1: cpu request"},
            {"op": "add", "path": "/metadata/annotations/vpaObservedContainers", "value": "app, proxy"},
        ])
    );
    let in_place = patch::in_place(&pod, &changes);
    assert_eq!(in_place[1], json!({"op": "test", "path": "/spec/initContainers/1/name", "value": "proxy"}));
}

#[test]
fn what_the_policy_allows_holds_for_what_is_applied() {
    let (pod, mut vpa) = one(amounts(100, MI), OptionalAmounts::default(), amounts(50, 900 * MI));
    let allowed = AllowedRange { min: amounts(80, None), max: amounts(None, 500 * MI) };
    vpa.policies = vec![ContainerPolicy { container: "app".into(), allowed, ..ContainerPolicy::default() }];
    let changes = changes(&pod, &vpa, &Ranges::default()).unwrap();
    assert_eq!(changes[0].requests, amounts(80, 500 * MI));
    assert_eq!(changes[0].notes, ["cpu capped to minAllowed", "memory capped to maxAllowed"]);
    vpa.policies[0].off = true;
    assert_eq!(super::changes(&pod, &vpa, &Ranges::default()), Err(Hold::NoRecommendation));
}

#[test]
fn a_limit_stays_within_the_range_of_containers() {
    let (pod, vpa) = one(amounts(1_000, 500 * MI), amounts(2_000, 1_000 * MI), amounts(3_000, 100 * MI));
    let container = Range { max: amounts(4_000, None), min: amounts(None, 400 * MI), ..Range::default() };
    let ranges = Ranges { container, pod: Range::default() };
    // The request may be at most half of the largest limit, and must be at least half of the smallest one; the
    // request itself must not be below the minimum.
    assert_eq!(
        changes(&pod, &vpa, &ranges),
        Err(Hold::LimitRange),
        "a request of 200Mi is below the minimum"
    );
    let ranges =
        Ranges { container: Range { min: OptionalAmounts::default(), ..container }, pod: Range::default() };
    assert_eq!(changed(&pod, &vpa, &ranges), (amounts(2_000, 100 * MI), amounts(4_000, 200 * MI)));
    let notes = &changes(&pod, &vpa, &ranges).unwrap()[0].notes;
    assert_eq!(*notes, ["cpu capped to fit Max in container LimitRange"]);
}

#[test]
fn limits_of_a_pod_together_stay_within_the_range_of_pods() {
    let containers = vec![
        container("a", amounts(1_000, None), amounts(1_000, None)),
        container("b", amounts(1_000, None), amounts(1_000, None)),
    ];
    let pod = pod("p", containers);
    let recommendations =
        vec![recommendation("a", amounts(3_000, None)), recommendation("b", amounts(1_000, None))];
    let vpa = vpa("Initial", recommendations);
    let of = |min, max| Ranges {
        container: Range::default(),
        pod: Range { min: amounts(min, None), max: amounts(max, None), ..Range::default() },
    };
    let targets = |ranges: &Ranges| -> Vec<_> {
        changes(&pod, &vpa, ranges).unwrap().iter().map(|change| change.requests.cpu.unwrap()).collect()
    };
    assert_eq!(targets(&of(None, Some(2_000))), [1_500, 500]);
    assert_eq!(targets(&of(Some(8_000), None)), [6_000, 2_000]);
    assert_eq!(targets(&of(Some(1_000), Some(9_000))), [3_000, 1_000]);
}

#[test]
fn a_pod_whose_limits_are_just_what_the_range_of_pods_allows_stays_as_it_is() {
    let containers = ["a", "b"].map(|name| container(name, amounts(1_000, None), amounts(2_000, None)));
    let pod = pod("p", containers.into());
    let recommendations =
        vec![recommendation("a", amounts(3_000, None)), recommendation("b", amounts(1_000, None))];
    let vpa = vpa("Initial", recommendations);
    for (min, max) in [(Some(8_000), None), (None, Some(8_000)), (Some(8_000), Some(8_000))] {
        let of_pods = Range { min: amounts(min, None), max: amounts(max, None), ..Range::default() };
        let ranges = Ranges { container: Range::default(), pod: of_pods };
        let changes = recommended(&pod, &vpa, &ranges);
        let cpu: Vec<_> = changes.iter().map(|(_, it, _)| it.target.cpu.unwrap()).collect();
        assert_eq!(cpu, [3_000, 1_000], "{min:?} to {max:?}");
    }
}

#[test]
fn a_limit_is_no_larger_a_multiple_of_the_request_than_is_allowed() {
    let (pod, mut vpa) = one(amounts(500, None), amounts(1_000, None), amounts(100, None));
    let container = Range { ratio_milli: amounts(2_000, None), ..Range::default() };
    let ranges = Ranges { container, pod: Range::default() };
    assert_eq!(changed(&pod, &vpa, &ranges), (amounts(100, None), amounts(200, None)));
    vpa.policies =
        vec![ContainerPolicy { container: "*".into(), requests_only: true, ..ContainerPolicy::default() }];
    assert_eq!(changed(&pod, &vpa, &ranges), (amounts(500, None), OptionalAmounts::default()));
}

#[test]
fn a_request_that_the_allowed_ratio_divides_with_a_rest_is_rounded_up() {
    let (pod, mut vpa) = one(amounts(600, None), amounts(1_001, None), amounts(100, None));
    let container = Range { ratio_milli: amounts(2_000, None), ..Range::default() };
    vpa.policies =
        vec![ContainerPolicy { container: "*".into(), requests_only: true, ..ContainerPolicy::default() }];
    let ranges = Ranges { container, pod: Range::default() };
    assert_eq!(changed(&pod, &vpa, &ranges), (amounts(501, None), OptionalAmounts::default()));
}

#[test]
fn what_is_just_allowed_is_not_said_to_be_capped() {
    let (pod, mut vpa) = one(amounts(1_000, MI), amounts(1_000, None), amounts(400, MI));
    let notes = |vpa: &Vpa, bound: Option<i64>| {
        let container = Range { min: amounts(bound, None), max: amounts(bound, None), ..Range::default() };
        let ranges = Ranges { container, pod: Range::default() };
        changes(&pod, vpa, &ranges).expect("it changes")[0].notes.clone()
    };
    assert_eq!(notes(&vpa, Some(400)), [""; 0]);
    let allowed = AllowedRange { min: amounts(400, MI), max: amounts(400, MI) };
    vpa.policies = vec![ContainerPolicy { container: "app".into(), allowed, ..ContainerPolicy::default() }];
    assert_eq!(notes(&vpa, None), [""; 0]);
    vpa.policies[0] =
        ContainerPolicy { container: "app".into(), requests_only: true, ..ContainerPolicy::default() };
    vpa.status.recommendation = Some(vec![recommendation("app", amounts(1_000, MI))]);
    assert_eq!(notes(&vpa, None), [""; 0]);
}

#[test]
fn a_pod_is_guaranteed_only_if_every_container_limits_both_resources_to_its_requests() {
    use crate::apply::qos::{QosClass, class};
    let of = |requests, limits| Resources { requests, limits };
    let (full, bare) = (of(amounts(100, MI), amounts(100, MI)), Resources::default());
    assert_eq!(class([full, full]), QosClass::Guaranteed);
    assert_eq!(class([full, bare]), QosClass::Burstable);
    assert_eq!(class([of(amounts(100, MI), amounts(200, MI))]), QosClass::Burstable);
    assert_eq!(class([of(amounts(100, None), amounts(100, None))]), QosClass::Burstable);
    assert_eq!(class([bare, bare]), QosClass::BestEffort);
}

#[test]
fn a_pod_with_resources_of_its_own_or_without_recommendation_stays_as_it_is() {
    let (mut pod, mut vpa) = one(amounts(100, MI), OptionalAmounts::default(), amounts(50, MI));
    pod.is_sized_as_a_whole = true;
    assert_eq!(changes(&pod, &vpa, &Ranges::default()), Err(Hold::PodLevelResources));
    pod.is_sized_as_a_whole = false;
    vpa.status.recommendation = None;
    assert_eq!(changes(&pod, &vpa, &Ranges::default()), Err(Hold::NoRecommendation));
    vpa.status.recommendation =
        Some(vec![recommendation("app", amounts(0, -5)), recommendation("x", amounts(1, 1))]);
    assert_eq!(changes(&pod, &vpa, &Ranges::default()), Err(Hold::NoRecommendation));
}

/// Applies the operations to an object; every `test` must hold.
fn applied(mut object: Value, operations: &[Value]) -> Value {
    for operation in operations {
        let path = operation["path"].as_str().unwrap();
        if operation["op"] == "test" {
            assert_eq!(object.pointer(path), Some(&operation["value"]), "{path}");
            continue;
        }
        let (parent, key) = path.rsplit_once('/').unwrap();
        let parent = object.pointer_mut(parent).unwrap_or_else(|| panic!("nothing holds {path}"));
        parent[key] = operation["value"].clone();
    }
    object
}

#[test]
fn a_pod_that_is_created_is_patched_and_annotated_as_by_upstream() {
    let containers = vec![
        container("app", amounts(100, None), amounts(200, None)),
        container("bare", OptionalAmounts::default(), OptionalAmounts::default()),
        container("other", OptionalAmounts::default(), OptionalAmounts::default()),
    ];
    let pod = pod("p", containers);
    let mut vpa = vpa(
        "Initial",
        vec![recommendation("app", amounts(150, 262_144_000)), recommendation("bare", amounts(1_000, None))],
    );
    let allowed = AllowedRange { max: amounts(500, None), ..AllowedRange::default() };
    vpa.policies = vec![ContainerPolicy { container: "bare".into(), allowed, ..ContainerPolicy::default() }];
    let changes = changes(&pod, &vpa, &Ranges::default()).unwrap();
    let object = json!({
        "metadata": {"name": "p"},
        "spec": {"containers": [
            {"name": "app", "resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "200m", "x/y": "1"}}},
            {"name": "bare"},
            {"name": "other"},
        ]},
    });
    assert_eq!(
        applied(object, &patch::at_creation(&pod, "web", &changes, &Boosts::new())),
        json!({
            "metadata": {"name": "p", "annotations": {
                "vpaUpdates": "Pod resources updated by web: container 0: cpu request, memory request, cpu limit; \
                               container 1: cpu capped to maxAllowed, cpu request",
                "vpaObservedContainers": "app, bare, other",
            }},
            "spec": {"containers": [
                {"name": "app", "resources": {
                    "requests": {"cpu": "150m", "memory": "262144k"}, "limits": {"cpu": "300m", "x/y": "1"}}},
                {"name": "bare", "resources": {"requests": {"cpu": "500m"}}},
                {"name": "other"},
            ]},
        })
    );
}

#[test]
fn a_container_keeps_its_resource_claims() {
    let mut claiming = container("app", OptionalAmounts::default(), OptionalAmounts::default());
    claiming.has.resources = true;
    let pod = pod("p", vec![claiming]);
    let vpa = vpa("Initial", vec![recommendation("app", amounts(150, None))]);
    let changes = changes(&pod, &vpa, &Ranges::default()).unwrap();
    let resources = json!({"claims": [{"name": "gpu"}]});
    let object = json!({
        "metadata": {"name": "p"}, "spec": {"containers": [{"name": "app", "resources": resources}]},
    });
    assert_eq!(
        applied(object, &patch::at_creation(&pod, "web", &changes, &Boosts::new()))["spec"]["containers"][0]
            ["resources"],
        json!({"claims": [{"name": "gpu"}], "requests": {"cpu": "150m"}})
    );
}

#[test]
fn a_pod_grows_by_what_its_node_does_not_give_it_yet() {
    let mut pod = pod("p", vec![container("app", amounts(400, None), OptionalAmounts::default())]);
    pod.containers[0].actual = Some(Resources { requests: amounts(100, None), ..Resources::default() });
    let vpa = vpa("InPlace", vec![recommendation("app", amounts(300, None))]);
    let changes = changes(&pod, &vpa, &Ranges::default()).unwrap();
    for (resize, grows) in [(None, -100), (Some(Resize::Deferred), -100), (Some(Resize::Infeasible), 200)] {
        pod.resize = resize;
        assert_eq!(crate::apply::change::growth(&pod, &changes).cpu, grows, "{resize:?}");
    }
}

#[test]
fn a_resize_is_for_this_pod_with_these_containers_only() {
    let pod = pod("p", vec![container("app", amounts(100, None), OptionalAmounts::default())]);
    let vpa = vpa("InPlace", vec![recommendation("app", amounts(150, None))]);
    let changes = changes(&pod, &vpa, &Ranges::default()).unwrap();
    assert_eq!(
        Value::from(patch::in_place(&pod, &changes)),
        json!([
            {"op": "test", "path": "/metadata/uid", "value": "u-p"},
            {"op": "test", "path": "/spec/containers/0/name", "value": "app"},
            {"op": "add", "path": "/spec/containers/0/resources/requests/cpu", "value": "150m"},
        ])
    );
}

proptest::proptest! {
    /// For any recommendation and any limits: a request never exceeds its limit, and no value violates a
    /// LimitRange.
    #[test]
    fn what_is_applied_is_always_allowed(
        request in 0_i64..5_000, more in 0_i64..5_000, target in -5_i64..20_000,
        min in 0_i64..3_000, max in 1_i64..9_000, ratio in 0_i64..5_000, only_requests: bool, huge: bool,
    ) {
        let limit = (more > 0).then_some(request + more);
        let target = if huge { i64::MAX } else { target };
        let (pod, mut vpa) = one(amounts(request, None), amounts(limit, None), amounts(target, None));
        let policy = ContainerPolicy { container: "*".into(), requests_only: only_requests, ..Default::default() };
        vpa.policies = vec![policy];
        let range = Range {
            min: amounts(min, None),
            max: amounts(max, None),
            ratio_milli: amounts((ratio >= 1_000).then_some(ratio), None),
            ..Range::default()
        };
        let ranges = Ranges { container: range, pod: Range::default() };
        if let Ok(changes) = changes(&pod, &vpa, &ranges) {
            let after = changes[0].applied_to(pod.containers[0].wanted);
            let cpu = after.requests.cpu.unwrap();
            proptest::prop_assert!((min..=max).contains(&cpu) && cpu > 0);
            if let Some(limit) = after.limits.cpu {
                proptest::prop_assert!(cpu <= limit && limit <= max);
                proptest::prop_assert!(ratio < 1_000 || limit * 1_000 <= cpu * ratio);
            }
        }
    }
}

#[test]
fn the_parts_of_a_change_are_its_memory_and_its_cpu_and_keep_the_class() {
    let to = |cpu, memory| {
        let both = amounts(cpu, memory);
        [SizeChange { requests: both, limits: both, ..SizeChange::default() }]
    };
    let of = |pod: &SizedPod, changes: &[SizeChange]| -> Vec<_> {
        parts(pod, changes).into_iter().map(|part| (part[0].requests.cpu, part[0].requests.memory)).collect()
    };
    let guaranteed = pod("p", vec![container("app", amounts(100, 100), amounts(100, 100))]);
    assert_eq!(of(&guaranteed, &to(200, 300)), [(None, Some(300)), (Some(200), None)]);
    assert_eq!(of(&guaranteed, &to(100, 300)), [], "only memory changes");
    assert_eq!(of(&guaranteed, &to(200, 100)), [], "only CPU changes");
    // Both together would be guaranteed, which a resize may not make it; and so would memory alone.
    let burstable = pod("p", vec![container("app", amounts(200, 100), amounts(200, 300))]);
    assert_eq!(of(&burstable, &to(400, 300)), [(Some(400), None)]);
}
