//! Tests of requests against upstream's `component-helpers/resource/helpers.go` and `pkg/scheduler/framework/types.go` of 1.36.

use super::*;
use berth_model::Usage;

const MI: i64 = 1 << 20;

fn container(requests: Value) -> Value {
    json!({"resources": {"requests": requests}})
}

fn sidecar(requests: Value) -> Value {
    json!({"restartPolicy": "Always", "resources": {"requests": requests}})
}

fn usage(spec: Value) -> Usage {
    (*pod(spec).usage).clone()
}

fn cpu(spec: Value) -> i64 {
    usage(spec).requests.cpu_milli
}

/// CPU and memory as spreading counts them.
fn nonzero(spec: Value) -> (i64, i64) {
    let usage = usage(spec);
    (usage.nonzero_cpu_milli, usage.nonzero_memory)
}

#[test]
fn containers_are_summed_exactly_and_rounded_once() {
    let tiny =
        container(json!({"cpu": "300u", "memory": "0.4", "ephemeral-storage": "1Ki", "nvidia.com/gpu": 1}));
    let usage = usage(json!({"containers": [tiny, tiny, tiny]}));
    assert_eq!(usage.requests.cpu_milli, 1);
    assert_eq!(usage.requests.memory, 2);
    assert_eq!(usage.requests.ephemeral_storage, 3072);
    assert_eq!(usage.requests.pods, 1);
    assert_eq!(usage.extended.get("nvidia.com/gpu"), 3);
}

#[test]
fn the_greatest_init_container_counts_if_it_is_greater_than_the_sum() {
    let containers = json!([container(json!({"cpu": "1"})), container(json!({"cpu": "1"}))]);
    let with_init = |init: Value| cpu(json!({"containers": containers, "initContainers": init}));
    assert_eq!(with_init(json!([container(json!({"cpu": "1500m"}))])), 2000);
    assert_eq!(with_init(json!([container(json!({"cpu": "3"})), container(json!({"cpu": "2500m"}))])), 3000);
}

/// KEP-753: `InitContainerUse(i)` adds the sidecars that were started before it.
#[test]
fn sidecars_run_beside_the_containers_and_beside_later_init_containers() {
    let containers = json!([container(json!({"cpu": "1"}))]);
    let with_init = |init: Value| cpu(json!({"containers": containers, "initContainers": init}));
    let (side, init) = (sidecar(json!({"cpu": "500m"})), container(json!({"cpu": "2"})));
    assert_eq!(with_init(json!([side])), 1500);
    assert_eq!(with_init(json!([side, init])), 2500);
    assert_eq!(with_init(json!([init, side])), 2000);
    assert_eq!(with_init(json!([side, init, side])), 2500);
}

#[test]
fn overhead_is_added_to_the_greater_of_containers_and_init_containers() {
    let pod = json!({
        "containers": [container(json!({"cpu": "1"}))],
        "initContainers": [container(json!({"cpu": "2"}))],
        "overhead": {"cpu": "250m", "memory": "10Mi"}
    });
    let usage = usage(pod);
    assert_eq!((usage.requests.cpu_milli, usage.requests.memory), (2250, 10 * MI));
}

#[test]
fn pod_level_requests_take_the_place_of_the_containers() {
    let usage = usage(json!({
        "containers": [container(json!({"cpu": "5", "memory": "1Mi", "ephemeral-storage": "7"}))],
        "resources": {"requests": {"cpu": "2", "hugepages-2Mi": "4Mi", "ephemeral-storage": "9"}},
        "overhead": {"cpu": "100m"}
    }));
    assert_eq!((usage.requests.cpu_milli, usage.requests.memory), (2100, MI));
    // Not supported at pod level, so ignored there.
    assert_eq!(usage.requests.ephemeral_storage, 7);
    assert_eq!(usage.extended.get("hugepages-2Mi"), 4 * MI);
}

/// Upstream: `schedutil.IsScalarResourceName`.
#[test]
fn resources_that_are_not_counted_by_name_are_ignored() {
    let usage = usage(json!({"containers": [container(json!({"pods": "5", "storage": "1", "x.y/z": "2"}))]}));
    assert_eq!(usage.requests.pods, 1);
    assert_eq!(usage.extended.len(), 1);
    assert_eq!(usage.extended.get("x.y/z"), 2);
}

#[test]
fn a_container_that_requests_nothing_counts_as_a_little_for_spreading() {
    let (named, silent) = (container(json!({"cpu": "1", "memory": "0"})), container(json!({})));
    assert_eq!(nonzero(json!({"containers": [silent, silent]})), (200, 400 * MI));
    // An explicit zero stays zero.
    assert_eq!(nonzero(json!({"containers": [named, silent]})), (1100, 200 * MI));
    assert_eq!(usage(json!({"containers": [silent]})).requests.cpu_milli, 0);
    // Init containers get defaults too, and sidecars add up.
    assert_eq!(
        nonzero(json!({"containers": [silent], "initContainers": [sidecar(json!({})), silent]})),
        (200, 400 * MI)
    );
    assert_eq!(nonzero(json!({"containers": [silent], "overhead": {"cpu": "1"}})).0, 1100);
}

/// Upstream: `getNonMissingContainerRequests`.
#[test]
fn with_pod_level_requests_only_a_resource_that_nobody_names_counts_as_a_little() {
    let silent = container(json!({}));
    let level = json!({"requests": {"memory": "50Mi"}});
    assert_eq!(nonzero(json!({"containers": [silent, silent], "resources": level})), (200, 50 * MI));
    let one_names_cpu = json!([container(json!({"cpu": "30m"})), silent]);
    assert_eq!(nonzero(json!({"containers": one_names_cpu, "resources": level})), (30, 50 * MI));
}

fn resized(node: &str, conditions: Value) -> i64 {
    let spec = json!({"nodeName": node, "containers": [
        {"name": "c", "resources": {"requests": {"cpu": "3"}}}, {"name": "d", "resources": {"requests": {"cpu": "1"}}}]});
    let status = json!({"conditions": conditions, "containerStatuses": [
        {"name": "c", "resources": {"requests": {"cpu": "2"}}, "allocatedResources": {"cpu": "2500m"}},
        // Without `resources` a status is ignored, whatever is allocated.
        {"name": "d", "allocatedResources": {"cpu": "9"}}]});
    pod_with_status(spec, status).usage.requests.cpu_milli
}

/// Upstream: `determineEffectiveRequests`.
#[test]
fn while_a_container_is_resized_the_greatest_of_wanted_actual_and_allocated_counts() {
    assert_eq!(resized("n", json!([])), 4000);
    let deferred = json!([{"type": "PodResizePending", "status": "True", "reason": "Deferred"}]);
    assert_eq!(resized("n", deferred), 4000);
    let infeasible = json!([{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]);
    assert_eq!(resized("n", infeasible.clone()), 3500);
    // An unbound pod is scheduled by the requests in its spec.
    assert_eq!(resized("", infeasible), 4000);
}

#[test]
fn sidecars_are_resized_but_other_init_containers_are_not() {
    let with_policy = |policy: Value| {
        let init = json!({"name": "i", "restartPolicy": policy, "resources": {"requests": {"cpu": "1"}}});
        let status =
            json!({"initContainerStatuses": [{"name": "i", "resources": {"requests": {"cpu": "2"}}}]});
        let spec = json!({"nodeName": "n", "initContainers": [init]});
        pod_with_status(spec, status).usage.requests.cpu_milli
    };
    assert_eq!(with_policy(json!("Always")), 2000);
    assert_eq!(with_policy(json!(null)), 1000);
}

#[test]
fn pod_level_requests_are_resized_too() {
    let count = |node: &str, conditions: Value| {
        let spec = json!({"nodeName": node, "resources": {"requests": {"cpu": "3"}}});
        let status = json!({"conditions": conditions, "resources": {"requests": {"cpu": "1"}},
            "allocatedResources": {"cpu": "2"}});
        pod_with_status(spec, status).usage.requests.cpu_milli
    };
    assert_eq!(count("n", json!([])), 3000);
    assert_eq!(count("n", json!([{"type": "PodResizePending", "reason": "Infeasible"}])), 2000);
    assert_eq!(count("", json!([{"type": "PodResizePending", "reason": "Infeasible"}])), 3000);
}

#[test]
fn a_malformed_quantity_is_told_with_its_path_and_the_rest_still_counts() {
    let broken = pod(json!({"containers": [container(json!({"cpu": "1"})),
        container(json!({"cpu": "lots", "memory": "1Mi"}))]}));
    let error = broken.spec.unwrap_err();
    assert_eq!(error.field, "spec.containers[1].resources.requests[cpu]");
    assert!(error.problem.contains("\"lots\""), "{error}");
    assert_eq!((broken.usage.requests.cpu_milli, broken.usage.requests.memory), (1000, MI));

    for (spec, field) in [
        (json!({"overhead": {"cpu": ""}}), "spec.overhead[cpu]"),
        (json!({"resources": {"requests": {"memory": [1]}}}), "spec.resources.requests[memory]"),
        (
            json!({"initContainers": [container(json!({"a/b": true}))]}),
            "spec.initContainers[0].resources.requests[a/b]",
        ),
    ] {
        assert_eq!(super::error(spec).0, field);
    }
}

#[test]
fn a_negative_quantity_is_told_and_counts_nothing() {
    let negative = pod(json!({"containers": [container(json!({"memory": "-1Gi"}))]}));
    assert_eq!(negative.usage.requests.memory, 0);
    let error = negative.spec.unwrap_err();
    assert_eq!(error.problem, "must not be negative");
}

/// Upstream: `Quantity.UnmarshalJSON`.
#[test]
fn quantities_may_be_numbers_null_or_have_spaces_around_them() {
    assert_eq!(cpu(json!({"containers": [container(json!({"cpu": 2}))]})), 2000);
    assert_eq!(cpu(json!({"containers": [container(json!({"cpu": 0.25}))]})), 250);
    assert_eq!(cpu(json!({"containers": [container(json!({"cpu": " 1 "}))]})), 1000);
    assert_eq!(cpu(json!({"containers": [container(json!({"cpu": null}))]})), 0);
}
