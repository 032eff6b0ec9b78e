use serde_json::json;

use super::*;

fn read<K: LeanObject + DeserializeOwned>(spec: &Value) -> Allocation {
    let object = json!({
        "metadata": {
            "namespace": "x", "name": "train", "uid": "u1", "generation": 3,
            "creationTimestamp": "2026-03-04T05:06:07Z", "managedFields": [{"manager": "kubectl"}],
        },
        "spec": spec,
        "status": {"phase": 7},
    });
    let object: K =
        serde_json::from_str(&object.to_string()).unwrap_or_else(|error| panic!("{error}: {spec}"));
    let ClusterObject::Allocation(allocation) = object.into_object(&mut Interner::default()) else {
        panic!("{spec}")
    };
    assert_eq!((&*allocation.name.namespace, &*allocation.name.name, &*allocation.uid), ("x", "train", "u1"));
    assert_eq!((allocation.generation, allocation.created_s), (3, 1_772_600_767));
    assert!(!allocation.roles.is_empty() && allocation.roles.len() <= ROLES_MAX, "{spec}");
    *allocation
}

fn ours(spec: Value) -> Allocation {
    read::<LeanAllocation>(&spec)
}

fn problem(allocation: Allocation) -> String {
    allocation.problem.expect("a problem").to_string()
}

fn labels(pairs: &[(&str, &str)]) -> RoleMembers {
    let match_labels = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let lean = LeanLabelSelector { match_labels, ..LeanLabelSelector::default() };
    RoleMembers::Selected(label_selector(Some(&lean), &mut Interner::default()).expect("a selector"))
}

#[test]
fn the_short_form_is_one_role_without_a_name() {
    let spec = json!({
        "minimum": 32, "selector": {"matchLabels": {"app": "train"}}, "timeout": "10m",
        "topology": {"key": "topology.kubernetes.io/zone"},
    });
    let allocation = ours(spec);
    let role = GangRole { name: "".into(), members: labels(&[("app", "train")]), minimum: 32 };
    assert_eq!((allocation.problem.as_deref(), &*allocation.roles), (None, &[role][..]));
    assert_eq!(allocation.timeout, Some(Duration::from_secs(600)));
    let topology =
        GangTopology { key: "topology.kubernetes.io/zone".into(), mode: GangTopologyMode::Required };
    assert_eq!((allocation.name.kind, allocation.topology), (AllocationKind::Allocation, Some(topology)));
}

#[test]
fn roles_are_read_in_their_order_with_selectors_and_owners() {
    let allocation = ours(json!({"roles": [
        {"name": "leader", "minimum": 1, "owner": {"kind": "Job", "name": "lead"}},
        {"name": "worker", "minimum": 8, "selector": {"matchLabels": {"role": "worker"}}},
    ], "topology": {"key": "rack", "mode": "Spread"}}));
    let owner = RoleMembers::Owned(OwnerName { kind: "Job".into(), name: "lead".into() });
    let roles = [
        GangRole { name: "leader".into(), members: owner, minimum: 1 },
        GangRole { name: "worker".into(), members: labels(&[("role", "worker")]), minimum: 8 },
    ];
    assert_eq!((allocation.problem.as_deref(), &*allocation.roles), (None, &roles[..]));
    assert_eq!((allocation.minimum(), allocation.timeout), (9, None));
    assert_eq!(allocation.topology.expect("a topology").mode, GangTopologyMode::Spread);
}

#[test]
fn what_cannot_be_understood_is_told_with_its_field() {
    let app = json!({"matchLabels": {"app": "a"}});
    let role = |name: &str| json!({"name": name, "minimum": 1, "selector": app});
    let job = json!({"kind": "Job", "name": "a"});
    let cases = [
        (json!(null), "spec has neither selector nor owner"),
        (json!({}), "spec has neither selector nor owner"),
        (json!("text"), "spec: invalid type"),
        (json!({"minimum": "many", "selector": app}), "spec: invalid type: string \"many\""),
        (json!({"minimum": 1e12, "selector": app}), "spec: invalid"),
        (json!({"minimum": 0, "selector": app}), "spec.minimum is 0"),
        (json!({"minimum": -5, "selector": app}), "spec.minimum is -5"),
        (json!({"selector": app}), "spec.minimum is missing"),
        (json!({"minimum": 1, "selector": app, "owner": job}), "spec has both selector and owner"),
        (json!({"minimum": 1, "owner": {"kind": "", "name": "a"}}), "spec.owner needs a kind and a name"),
        (json!({"minimum": 1, "owner": {"kind": "Job"}}), "spec: missing field `name`"),
        (json!({"minimum": 1, "roles": [role("a")]}), "spec has roles and minimum"),
        (json!({"roles": [role("a"), role("a")]}), "spec.roles[1].name is \"a\", as of another role"),
        (json!({"roles": [{"name": "a", "minimum": 1}]}), "spec.roles[0] has neither"),
        (json!({"roles": vec![role("a"); 17]}), "spec.roles has 17 roles: 16 at most"),
        (json!({"minimum": 1, "selector": app, "timeout": "soon"}), "spec.timeout: `soon` is not a duration"),
        (json!({"minimum": 1, "selector": app, "timeout": "0s"}), "spec.timeout is 0s"),
        (json!({"minimum": 1, "selector": app, "timeout": "99999999h"}), "spec.timeout: "),
        (json!({"minimum": 1, "selector": app, "topology": {"key": "a b"}}), "spec.topology.key is \"a b\""),
        (
            json!({"minimum": 1, "selector": app, "topology": {"key": "a", "mode": "Some"}}),
            "spec: unknown variant",
        ),
        (
            json!({"minimum": 1, "selector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}}),
            "spec.selector.matchExpressions[0].operator",
        ),
    ];
    for (spec, expected) in cases {
        let said = problem(ours(spec.clone()));
        assert!(said.starts_with(expected), "{spec}: {said}");
    }
}

#[test]
fn a_pod_group_asks_for_its_minimum_or_for_nothing_together() {
    let gang = read::<LeanPodGroup>(&json!({
        "schedulingPolicy": {"gang": {"minCount": 4}}, "disruptionMode": "Pod", "priority": -1,
        "schedulingConstraints": {"topology": [{"key": "rack"}]},
    }));
    let topology = GangTopology { key: "rack".into(), mode: GangTopologyMode::Required };
    assert_eq!(
        (gang.problem.as_deref(), &*gang.roles, gang.topology),
        (None, &[grouped(4)][..], Some(topology))
    );
    assert_eq!(gang.name.kind, AllocationKind::PodGroup);
    let evicted_whole = |mode: Value| {
        let spec = json!({"schedulingPolicy": {"basic": {}}, "disruptionMode": mode});
        let group = read::<LeanPodGroup>(&spec);
        (group.problem, group.evicted_whole)
    };
    assert_eq!(["PodGroup", "Pod"].map(|mode| evicted_whole(json!(mode))), [(None, true), (None, false)]);
    let chosen = [
        json!({"all": {}}),
        json!({"single": {}}),
        json!({"all": null, "single": {}}),
        json!({}),
        Value::Null,
    ];
    let whole = chosen.map(|mode| evicted_whole(mode).1);
    assert_eq!(whole, [true, false, false, false, false]);
    let basic = read::<LeanPodGroup>(&json!({"schedulingPolicy": {"basic": {}}}));
    assert_eq!((basic.problem.as_deref(), &*basic.roles, basic.topology), (None, &[grouped(0)][..], None));
}

#[test]
fn a_pod_group_that_cannot_be_understood_keeps_its_pods_waiting() {
    let cases = [
        (json!(null), "spec.schedulingPolicy must be exactly one"),
        (json!(7), "spec: invalid type"),
        (json!({"schedulingPolicy": null}), "spec.schedulingPolicy must be exactly one"),
        (
            json!({"schedulingPolicy": {"basic": {}, "gang": {"minCount": 1}}}),
            "spec.schedulingPolicy must be",
        ),
        (json!({"schedulingPolicy": {"gang": {}}}), "spec.schedulingPolicy.gang.minCount is missing"),
        (
            json!({"schedulingPolicy": {"gang": {"minCount": -1}}}),
            "spec.schedulingPolicy.gang.minCount is -1",
        ),
        (
            json!({"schedulingPolicy": {"gang": {"minCount": 1_u64 << 40}}}),
            "spec.schedulingPolicy.gang.minCount is",
        ),
        (
            json!({"schedulingPolicy": {"basic": {}}, "disruptionMode": "pod"}),
            "spec.disruptionMode is \"pod\"",
        ),
        (
            json!({"schedulingPolicy": {"basic": {}}, "disruptionMode": {"single": {}, "all": {}}}),
            "spec.disruptionMode has single and all",
        ),
        (json!({"schedulingPolicy": {"basic": {}}, "disruptionMode": 7}), "spec: data did not match"),
        (
            json!({"schedulingPolicy": {"basic": {}}, "parentCompositePodGroupName": "all"}),
            "spec.parentCompositePodGroupName",
        ),
        (
            json!({"schedulingPolicy": {"basic": {}}, "schedulingConstraints": {"topology": [{"key": "a"}, {"key": "b"}]}}),
            "spec.schedulingConstraints.topology has 2 entries",
        ),
        (
            json!({"schedulingPolicy": {"basic": {}}, "schedulingConstraints": {"topology": [{}]}}),
            "spec.schedulingConstraints.topology[0].key is \"\"",
        ),
    ];
    for (spec, expected) in cases {
        let group = read::<LeanPodGroup>(&spec);
        assert_eq!(group.roles[0].members, RoleMembers::Grouped, "{spec}");
        let said = problem(group);
        assert!(said.starts_with(expected), "{spec}: {said}");
    }
}

#[test]
fn a_coscheduling_pod_group_has_a_minimum_and_maybe_a_timeout() {
    let group = read::<LeanCoschedulingPodGroup>(&json!({"minMember": 3, "scheduleTimeoutSeconds": 10}));
    assert_eq!((group.problem.as_deref(), &*group.roles), (None, &[grouped(3)][..]));
    assert_eq!(
        (group.name.kind, group.timeout),
        (AllocationKind::Coscheduling, Some(Duration::from_secs(10)))
    );
    let lasting =
        read::<LeanCoschedulingPodGroup>(&json!({"minMember": 1, "scheduleTimeoutSeconds": i64::MAX}));
    assert_eq!((lasting.problem, lasting.timeout), (None, Some(TIMEOUT_MAX)));
    for (spec, expected) in [
        (json!({}), "spec.minMember is missing"),
        (json!({"minMember": 0}), "spec.minMember is 0"),
        (json!({"minMember": 1, "scheduleTimeoutSeconds": -1}), "spec.scheduleTimeoutSeconds is negative"),
    ] {
        let said = problem(read::<LeanCoschedulingPodGroup>(&spec));
        assert!(said.starts_with(expected), "{spec}: {said}");
    }
}

#[test]
fn the_best_version_that_a_server_has_is_the_first_one_named() {
    let names: Vec<_> = LeanPodGroup::VERSIONS.iter().map(|version| version.name()).collect();
    assert_eq!(names, ["v1beta1", "v1alpha3", "v1alpha2"]);
    assert_eq!(LeanPodGroup::api_version(&PodGroupVersion::V1Alpha2), "scheduling.k8s.io/v1alpha2");
    assert_eq!(LeanCoschedulingPodGroup::api_version(&()), "scheduling.x-k8s.io/v1alpha1");
}
