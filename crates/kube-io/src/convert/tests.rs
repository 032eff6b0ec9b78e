//! Tests of the conversion from the API server's JSON to model values.

mod affinity;
mod node;
mod requests;

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use berth_model::{
    DeviceClaimSource, Disk, Effect, GeneratedClaim, HostPort, PodDeviceClaim, Protocol, Toleration,
    TolerationOperator,
};

fn lean(json: &Value) -> LeanPod {
    serde_json::from_str(&json.to_string()).unwrap()
}

/// Returns the pod with this spec and status.
fn pod_with_status(spec: Value, status: Value) -> Pod {
    let pod = json!({"metadata": {"name": "p"}, "spec": spec, "status": status});
    lean(&pod).into_pod(&mut Interner::default())
}

fn pod(spec: Value) -> Pod {
    pod_with_status(spec, json!({}))
}

fn spec(spec: Value) -> Arc<PodSpec> {
    pod(spec).spec.unwrap()
}

/// Field and problem.
fn error(spec: Value) -> (String, String) {
    let error = pod(spec).spec.unwrap_err();
    (error.field, error.problem)
}

#[test]
fn a_pod_keeps_what_scheduling_needs() {
    let pod = lean(&json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "web-1", "namespace": "shop", "uid": "u-1", "generation": 3, "resourceVersion": "77",
            "labels": {"app": "web"}, "annotations": {"a": "b"}, "managedFields": [{"fieldsV1": {"f:x": {}}}],
            "creationTimestamp": "2026-01-02T03:04:05Z", "deletionTimestamp": "2026-01-02T04:00:00Z"
        },
        "spec": {
            "schedulerName": "berth", "nodeName": "n1", "priority": -5, "preemptionPolicy": "Never",
            "schedulingGates": [{"name": "g/one"}, {"name": "g/two"}],
            "nodeSelector": {"disk": "ssd"},
            "containers": [{"name": "c", "env": [{"name": "X", "value": "y"}]}]
        },
        "status": {
            "phase": "Running",
            "conditions": [
                {"type": "Ready", "status": "True"},
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no"}
            ]
        }
    }))
    .into_pod(&mut Interner::default());
    assert_eq!((&*pod.namespace, &*pod.name, &*pod.uid), ("shop", "web-1", "u-1"));
    assert_eq!(pod.peer.identity.labels.get("app"), Some("web"));
    assert_eq!(pod.node_name.as_deref(), Some("n1"));
    assert_eq!(&*pod.scheduler_name, "berth");
    assert_eq!((pod.priority, pod.generation), (-5, 3));
    assert_eq!(pod.preemption_policy, PreemptionPolicy::Never);
    assert_eq!(pod.created_s, 1_767_323_045);
    assert!(pod.deleting && !pod.finished);
    assert_eq!(pod.gates.len(), 2);
    let condition = pod.scheduled.unwrap();
    assert!(!condition.status);
    assert_eq!((&*condition.reason, &*condition.message), ("Unschedulable", "no"));
    let spec = pod.spec.unwrap();
    assert_eq!(spec.node_selector.get("disk"), Some("ssd"));
    assert_eq!(spec.usage, pod.usage);
}

#[test]
fn an_empty_pod_has_the_defaults_of_the_api() {
    let pod = pod(json!({}));
    assert_eq!((pod.priority, pod.created_s, pod.generation), (0, 0, 0));
    assert_eq!(pod.preemption_policy, PreemptionPolicy::PreemptLowerPriority);
    assert_eq!((pod.node_name, pod.scheduled, pod.deleting), (None, None, false));
    assert_eq!(pod.spec.unwrap().node_affinity.required, None);
    assert_eq!(pod.usage.requests.pods, 1);
}

#[test]
fn nulls_are_what_their_absence_is() {
    let nulls = pod(json!({
        "containers": null, "tolerations": null, "volumes": null, "affinity": null, "overhead": null,
        "nodeSelector": null, "nodeName": "", "schedulingGroup": null
    }));
    assert_eq!(nulls, pod(json!({})));
}

#[test]
fn a_pod_in_phase_succeeded_or_failed_is_finished() {
    for (phase, finished) in [("Pending", false), ("Running", false), ("Succeeded", true), ("Failed", true)] {
        assert_eq!(pod_with_status(json!({}), json!({"phase": phase})).finished, finished, "{phase}");
    }
}

#[test]
fn a_deletion_time_that_cannot_be_read_still_says_that_the_pod_goes() {
    let pod = lean(&json!({"metadata": {"deletionTimestamp": "soon", "creationTimestamp": null}}));
    assert!(pod.into_pod(&mut Interner::default()).deleting);
}

#[test]
fn pods_of_one_template_share_their_spec_and_texts() {
    let mut interner = Interner::default();
    let mut make = |name: &str| {
        let json = json!({"metadata": {"name": name, "uid": name, "labels": {"app": "web"}},
            "spec": {"containers": [{"image": "web", "resources": {"requests": {"cpu": "1"}}}]}});
        lean(&json).into_pod(&mut interner)
    };
    let (one, two) = (make("one"), make("two"));
    assert!(Arc::ptr_eq(&one.usage, &two.usage));
    assert!(Arc::ptr_eq(&one.spec.unwrap(), &two.spec.unwrap()));
}

#[test]
fn tolerations_are_defaulted_sorted_and_without_duplicates() {
    let spec = spec(json!({"tolerations": [
        {"key": "b", "operator": "Exists", "value": "ignored", "effect": "NoExecute", "tolerationSeconds": 30},
        {"key": "a", "value": "1"},
        {"key": "b", "operator": "Exists", "effect": "NoExecute"},
        {"operator": "Exists"},
        {"key": "sla", "operator": "Gt", "value": "950", "effect": "NoSchedule"},
        {"key": "sla", "operator": "Lt", "value": "-7"},
        {"key": "sla", "operator": "Lt", "value": "seven"}
    ]}));
    let toleration = |key: &str, operator, value: &str, effect| Toleration {
        key: key.into(),
        operator,
        value: value.into(),
        effect,
    };
    assert_eq!(
        *spec.tolerations,
        [
            toleration("", TolerationOperator::Exists, "", None),
            toleration("a", TolerationOperator::Equal, "1", None),
            toleration("b", TolerationOperator::Exists, "", Some(Effect::NoExecute)),
            toleration("sla", TolerationOperator::Gt(950), "", Some(Effect::NoSchedule)),
            toleration("sla", TolerationOperator::Lt(-7), "", None),
        ]
    );
}

#[test]
fn a_toleration_of_an_unknown_kind_is_refused_by_name() {
    let (field, problem) =
        error(json!({"tolerations": [{"operator": "Exists"}, {"key": "a", "operator": "Ge"}]}));
    assert_eq!(field, "spec.tolerations[1].operator");
    assert!(problem.contains("\"Ge\""), "{problem}");
    let (field, problem) = error(json!({"tolerations": [{"key": "a", "effect": "Never"}]}));
    assert_eq!(field, "spec.tolerations[0].effect");
    assert!(problem.contains("\"Never\""), "{problem}");
}

#[test]
fn host_ports_are_those_of_containers_and_sidecars() {
    let port = |port: i64| json!({"hostPort": port});
    let pod = pod(json!({
        "containers": [
            {"ports": [{"containerPort": 1}, port(0), {"hostPort": 80, "hostIP": "0.0.0.0", "protocol": "UDP"}]},
            {"ports": [{"hostPort": 80, "hostIP": "10.0.0.1"}, {"hostPort": 80, "hostIP": ""}]}
        ],
        "initContainers": [
            {"restartPolicy": "Always", "ports": [port(22)]},
            {"ports": [port(23)]}
        ]
    }));
    let port = |ip: Option<&str>, protocol, port| HostPort { ip: ip.map(Into::into), protocol, port };
    assert_eq!(
        *pod.usage.ports,
        [
            port(None, Protocol::Tcp, 22),
            port(None, Protocol::Tcp, 80),
            port(None, Protocol::Udp, 80),
            port(Some("10.0.0.1"), Protocol::Tcp, 80),
        ]
    );
}

#[test]
fn a_host_port_that_cannot_be_is_refused() {
    let port = |port: Value| error(json!({"containers": [{"ports": [port]}]}));
    assert_eq!(port(json!({"hostPort": 65536})).0, "spec.containers[0].ports[0].hostPort");
    let (field, problem) = port(json!({"hostPort": 1, "protocol": "IPX"}));
    assert_eq!(field, "spec.containers[0].ports[0].protocol");
    assert!(problem.contains("\"IPX\""), "{problem}");
}

/// Upstream: `normalizedImageName` and `sumImageScores` of ImageLocality.
#[test]
fn images_are_named_as_nodes_name_them_and_counted_per_container() {
    let spec = spec(json!({
        "containers": [{"image": "host:5000/app"}, {"image": "app:v1"}, {"image": "app"}, {}],
        "initContainers": [{"image": "app"}],
        "volumes": [{"name": "v", "image": {"reference": "data"}}]
    }));
    let images: Vec<&str> = spec.images.iter().map(|image| &**image).collect();
    assert_eq!(images, ["app:latest", "app:v1", "data:latest", "host:5000/app:latest"]);
    assert_eq!(spec.containers, 5);
}

#[test]
fn what_is_not_scheduled_yet_is_named() {
    for (asked, what) in [
        (json!({"schedulingGroup": {"somethingElse": "g"}}), Unsupported::SchedulingGroup),
        (json!({"workloadRef": {"name": "w"}}), Unsupported::WorkloadRef),
    ] {
        assert_eq!(*spec(asked.clone()).unsupported, [what], "{asked}");
    }
    assert_eq!(*spec(json!({"resourceClaims": []})).unsupported, []);
}

#[test]
fn resource_claims_are_named_by_the_spec_or_by_what_was_made_from_a_template() {
    let claims = json!([
        {"name": "shared", "resourceClaimName": "team-gpu"},
        {"name": "own", "resourceClaimTemplateName": "gpu"},
        {"name": "unneeded", "resourceClaimTemplateName": "gpu"},
        {"name": "pending", "resourceClaimTemplateName": "gpu", "resourceClaimName": null},
    ]);
    let statuses = json!([{"name": "own", "resourceClaimName": "p-own-x7"}, {"name": "unneeded"}]);
    let pod = pod_with_status(json!({"resourceClaims": claims}), json!({"resourceClaimStatuses": statuses}));
    let template = |made| DeviceClaimSource::Template { template: "gpu".into(), made };
    let expected = [
        ("shared", DeviceClaimSource::Named("team-gpu".into())),
        ("own", template(Some(GeneratedClaim::Named("p-own-x7".into())))),
        ("unneeded", template(Some(GeneratedClaim::NotNeeded))),
        ("pending", template(None)),
    ];
    let expected = expected.map(|(entry, source)| PodDeviceClaim { entry: entry.into(), source });
    assert_eq!(*pod.devices, expected);
    assert!(pod.spec.expect("a valid spec").devices.is_none(), "what they need is not in the pod");
    let nulls = pod_with_status(json!({"resourceClaims": null}), json!({"resourceClaimStatuses": null}));
    assert!(nulls.devices.is_empty());
}

#[test]
fn a_resource_claim_of_an_unknown_kind_is_refused_by_its_index() {
    for unknown in [
        json!({"name": "gpu"}),
        json!({"name": "gpu", "resourceClaimName": ""}),
        json!({"name": "gpu", "resourceClaimName": "a", "resourceClaimTemplateName": "b"}),
    ] {
        let claims = json!([{"name": "known", "resourceClaimName": "c"}, unknown]);
        let (field, problem) = error(json!({"resourceClaims": claims}));
        assert_eq!(field, "spec.resourceClaims[1]");
        assert!(problem.contains("resourceClaimTemplateName"), "{problem}");
    }
}

#[test]
fn volumes_of_unknown_types_are_not_scheduled_and_most_types_say_nothing_about_nodes() {
    let read = |volume: Value| pod(json!({"volumes": [volume]}));
    for (kind, known) in [
        ("configMap", true),
        ("secret", true),
        ("emptyDir", true),
        ("projected", true),
        ("downwardAPI", true),
        ("hostPath", true),
        ("nfs", true),
        ("csi", true),
        ("azureFile", true),
        ("vsphereVolume", true),
        ("image", true),
        ("somethingNew", false),
    ] {
        let pod = read(json!({"name": "v", kind: {"x": 1}}));
        assert_eq!(pod.volumes, None, "{kind}");
        assert_eq!(pod.spec.expect("a valid spec").unsupported.is_empty(), known, "{kind}");
    }
    let null = read(json!({"name": "v", "persistentVolumeClaim": null, "somethingNew": null}));
    assert!(null.volumes.is_none() && null.spec.expect("a valid spec").unsupported.is_empty());
}

#[test]
fn claims_and_disks_of_a_pod_are_read_in_canonical_form() {
    let volumes = json!([
        {"name": "b", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "again", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
        {"name": "gce", "gcePersistentDisk": {"pdName": "disk", "readOnly": true}},
        {"name": "aws", "awsElasticBlockStore": {"volumeID": "aws://eu-1a/vol-1"}},
        {"name": "azure", "azureDisk": {"diskName": "d", "diskURI": "/uri"}},
        {"name": "iscsi", "iscsi": {"iqn": "iqn", "targetPortal": "x", "lun": 0}},
        {"name": "rbd", "rbd": {"monitors": ["m"], "image": "i", "pool": "rbd"}},
    ]);
    let pod = pod(json!({"volumes": volumes}));
    let volumes = pod.volumes.expect("it has some");
    let claims: Vec<_> = volumes.claims.iter().map(|claim| (&*claim.name, claim.ephemeral)).collect();
    assert_eq!(claims, [("data", false), ("p-scratch", true)]);
    assert_eq!(volumes.disks.len(), 4);
    assert!(volumes.disks.contains(&Disk::GcePersistentDisk { name: "disk".into(), read_only: true }));
    let inline: Vec<_> = volumes.inline.iter().map(|volume| (&*volume.driver, &*volume.handle)).collect();
    let expected =
        [("disk.csi.azure.com", "/uri"), ("ebs.csi.aws.com", "vol-1"), ("pd.csi.storage.gke.io", "disk")];
    assert_eq!(inline, expected);
}

#[test]
fn lean_types_can_be_watched() {
    fn watchable<K>() -> String
    where
        K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + Send + 'static,
        K: serde::de::DeserializeOwned,
    {
        K::url_path(&(), None)
    }
    assert_eq!(watchable::<LeanPod>(), "/api/v1/pods");
    assert_eq!(watchable::<crate::LeanNode>(), "/api/v1/nodes");
}

#[test]
fn managed_fields_and_annotations_are_not_kept() {
    let pod = lean(&json!({"metadata": {"name": "p", "annotations": {"a": "b"}, "managedFields": [{}]}}));
    assert_eq!((pod.metadata.annotations, pod.metadata.managed_fields), (Some(Default::default()), None));
}

/// Invalid values in every field that the conversion reads.
fn odd_spec() -> impl Strategy<Value = Value> {
    let text = prop_oneof![
        "\\PC{0,8}",
        prop::sample::select(vec![
            "",
            "In",
            "NotIn",
            "Gt",
            "Exists",
            "NoSchedule",
            "Always",
            "UDP",
            "metadata.name"
        ])
        .prop_map(String::from),
    ];
    let amount = prop_oneof![
        "[+-]?[0-9.]{0,25}([mkEn]|[KE]i|e-?[0-9]{1,10})?".prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        Just(json!({"a": [1]})),
        Just(json!([{}])),
        Just(Value::from(true)),
        Just(Value::Null),
    ];
    let resources = || {
        let name = prop::sample::select(vec!["cpu", "memory", "pods", "hugepages-2Mi", "a/b", "x"]);
        prop::collection::vec((name.prop_map(String::from), amount.clone()), 0..4)
            .prop_map(|entries| json!({"requests": entries.into_iter().collect::<serde_json::Map<_, _>>()}))
    };
    let containers = || {
        prop::collection::vec(
            (text.clone(), text.clone(), resources(), any::<i64>(), text.clone()).prop_map(
                |(image, policy, resources, port, ip)| {
                    json!({"name": "c", "image": image, "restartPolicy": policy, "resources": resources,
                        "ports": [{"hostPort": port, "hostIP": ip, "protocol": ip}]})
                },
            ),
            0..4,
        )
    };
    let terms = || {
        let values = prop::collection::vec(text.clone(), 0..3);
        (text.clone(), text.clone(), values, any::<i64>()).prop_map(|(key, operator, values, weight)| {
            let term = json!([{"key": key, "operator": operator, "values": values}]);
            json!({
                "requiredDuringSchedulingIgnoredDuringExecution":
                    {"nodeSelectorTerms": [{"matchExpressions": term, "matchFields": term}]},
                "preferredDuringSchedulingIgnoredDuringExecution":
                    [{"weight": weight, "preference": {"matchExpressions": term}}]
            })
        })
    };
    let toleration = (text.clone(), text.clone(), text.clone())
        .prop_map(|(key, operator, effect)| json!({"key": key, "operator": operator, "effect": effect}));
    (containers(), containers(), resources(), terms(), toleration).prop_map(
        |(containers, init, level, terms, toleration)| {
            json!({"nodeName": "n", "containers": containers, "initContainers": init, "resources": level,
                "overhead": level["requests"], "affinity": {"nodeAffinity": terms}, "tolerations": [toleration]})
        },
    )
}

proptest! {
    #[test]
    fn no_pod_makes_conversion_panic_and_all_it_takes_can_be_summed(spec in odd_spec(), status in odd_spec()) {
        let status = json!({"containerStatuses": status["containers"], "resources": status["resources"]});
        let pod = pod_with_status(spec, status);
        let usage = &pod.usage;
        let amounts = [
            usage.requests.cpu_milli, usage.requests.memory, usage.requests.ephemeral_storage,
            usage.nonzero_cpu_milli, usage.nonzero_memory,
        ];
        for amount in amounts.into_iter().chain(usage.extended.iter().map(|(_, amount)| amount)) {
            prop_assert!((0..=super::requests::COUNTED_MAX).contains(&amount), "{amount}");
        }
        if let Err(error) = pod.spec {
            prop_assert!(error.field.starts_with("spec.") || error.field.starts_with("status"), "{error}");
        }
    }
}
