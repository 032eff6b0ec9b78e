//! Permissions granted by the chart: exactly those needed by the enabled features.

use super::*;

/// A role, its target, the verbs, and their purpose.
type Access = (&'static str, &'static str, &'static [&'static str], &'static str);

/// With the defaults.
const ACCESS: [Access; 41] = [
    (
        "ClusterRole",
        "/pods",
        &["delete", "get", "list", "watch"],
        "sees pods of all schedulers; reads unknown outcomes of binds; preempts pods",
    ),
    ("ClusterRole", "/nodes", &["list", "watch"], "sees nodes, and lists them for the self-check"),
    ("ClusterRole", "/namespaces", &["list", "watch"], "reads labels for namespace selectors"),
    ("ClusterRole", "/services", &["list", "watch"], "spreads the pods of a service by default"),
    ("ClusterRole", "/replicationcontrollers", &["list", "watch"], "the same for those of a controller"),
    ("ClusterRole", "apps/replicasets", &["list", "watch"], "the same"),
    ("ClusterRole", "apps/statefulsets", &["list", "watch"], "the same"),
    (
        "ClusterRole",
        "/persistentvolumes",
        &["get", "list", "watch", "patch"],
        "sees volumes; sets a free one apart for a claim",
    ),
    (
        "ClusterRole",
        "/persistentvolumeclaims",
        &["get", "list", "watch", "patch"],
        "sees claims; selects the node that a volume is made for",
    ),
    ("ClusterRole", "storage.k8s.io/storageclasses", &["list", "watch"], "how claims are bound"),
    (
        "ClusterRole",
        "storage.k8s.io/csidrivers",
        &["list", "watch"],
        "drivers that publish their storage capacity",
    ),
    ("ClusterRole", "storage.k8s.io/csistoragecapacities", &["list", "watch"], "where they have it"),
    (
        "ClusterRole",
        "storage.k8s.io/csinodes",
        &["list", "watch"],
        "how many volumes a node can have attached",
    ),
    ("ClusterRole", "storage.k8s.io/volumeattachments", &["list", "watch"], "what it has attached"),
    ("ClusterRole", "resource.k8s.io/resourceslices", &["list", "watch"], "the devices of nodes"),
    ("ClusterRole", "resource.k8s.io/deviceclasses", &["list", "watch"], "kinds of devices"),
    (
        "ClusterRole",
        "resource.k8s.io/resourceclaims",
        &["get", "list", "watch", "create", "patch", "delete"],
        "what pods ask of devices; adds the finalizer of an allocated one; makes those for extended resources",
    ),
    ("ClusterRole", "resource.k8s.io/resourceclaims/status", &["patch"], "allocates devices"),
    ("ClusterRole", "resource.k8s.io/resourceclaims/binding", &["patch"], "the same, in Kubernetes 1.36"),
    ("ClusterRole", "berth.dev/allocations", &["get", "list", "watch"], "which pods are placed together"),
    ("ClusterRole", "scheduling.k8s.io/podgroups", &["get", "list", "watch"], "the same, of Kubernetes"),
    ("ClusterRole", "scheduling.x-k8s.io/podgroups", &["get", "list", "watch"], "the same, of coscheduling"),
    ("ClusterRole", "berth.dev/allocations/status", &["patch"], "writes their status"),
    ("ClusterRole", "scheduling.k8s.io/podgroups/status", &["patch"], "the same"),
    ("ClusterRole", "scheduling.x-k8s.io/podgroups/status", &["patch"], "the same"),
    (
        "ClusterRole",
        "berth.dev/allocationpolicies",
        &["get", "list", "watch"],
        "how pods are placed; reads a status before it writes it",
    ),
    ("ClusterRole", "berth.dev/allocationpolicies/status", &["patch"], "writes whether a policy is in force"),
    (
        "ClusterRole",
        "berth.dev/quotas",
        &["get", "list", "watch"],
        "how much pods may request together; reads a status before it writes it",
    ),
    ("ClusterRole", "berth.dev/quotas/status", &["patch"], "writes the usage"),
    ("ClusterRole", "policy/poddisruptionbudgets", &["list", "watch"], "which pods are rather not preempted"),
    ("ClusterRole", "/pods/binding", &["create"], "places pods"),
    (
        "ClusterRole",
        "/pods/status",
        &["patch"],
        "sets the conditions PodScheduled=False and DisruptionTarget, and the nominated node",
    ),
    ("ClusterRole", "events.k8s.io/events", &["create"], "creates events"),
    ("ClusterRole", "authentication.k8s.io/tokenreviews", &["create"], "who reads metrics"),
    ("ClusterRole", "authorization.k8s.io/subjectaccessreviews", &["create"], "whether that is allowed"),
    ("ClusterRole", "url:/metrics", &["get"], "a role for scrapers, without a binding"),
    ("ClusterRole", "url:/ui/,/ui/*,/why", &["get"], "a role of an account for viewers, without a token"),
    ("Role", "coordination.k8s.io/leases", &["create"], "makes the lease of the leader election"),
    ("Role", "coordination.k8s.io/leases:berth", &["get", "update"], "takes and renews it"),
    ("Role", "/secrets", &["create"], "makes the Secret of the certificate that berth issues"),
    ("Role", "/secrets:berth-tls", &["get", "update"], "reads and renews it"),
];

/// Added by the recommender: owners of pods, recommendations and checkpoints, and usage.
const RECOMMENDING: [&str; 13] = [
    "+ClusterRole */*/scale [get]",
    "+ClusterRole /events [list]",
    "+ClusterRole /replicationcontrollers [get]",
    "+ClusterRole apps/daemonsets [get,list,watch]",
    "+ClusterRole apps/deployments [get,list,watch]",
    "+ClusterRole apps/replicasets [get]",
    "+ClusterRole apps/statefulsets [get]",
    "+ClusterRole autoscaling.k8s.io/verticalpodautoscalercheckpoints [create,delete,get,list,patch]",
    "+ClusterRole autoscaling.k8s.io/verticalpodautoscalers [list,watch]",
    "+ClusterRole autoscaling.k8s.io/verticalpodautoscalers/status [patch]",
    "+ClusterRole batch/cronjobs [get,list,watch]",
    "+ClusterRole batch/jobs [get,list,watch]",
    "+ClusterRole metrics.k8s.io/pods [list]",
];

/// Added by the webhook for new pods: their VPAs and size limits.
const APPLYING: [&str; 6] = [
    "+ClusterRole /limitranges [list,watch]",
    "+ClusterRole apps/daemonsets [list,watch]",
    "+ClusterRole apps/deployments [list,watch]",
    "+ClusterRole autoscaling.k8s.io/verticalpodautoscalers [list,watch]",
    "+ClusterRole batch/cronjobs [list,watch]",
    "+ClusterRole batch/jobs [list,watch]",
];

/// Added by the updater: resizes, evictions, notes of them, and whether upstream's components run.
const UPDATING: [&str; 10] = [
    APPLYING[0],
    "+ClusterRole /pods/eviction [create]",
    "+ClusterRole /pods/resize [patch]",
    APPLYING[1],
    APPLYING[2],
    APPLYING[3],
    "+ClusterRole autoscaling.k8s.io/verticalpodautoscalers [patch]",
    APPLYING[4],
    APPLYING[5],
    "+ClusterRole coordination.k8s.io/leases:vpa-updater,vpa-admission-controller [get]",
];

/// Added by scaling of services.
const FOR_SCALING: [&str; 11] = [
    "+ClusterRole */*/scale [get]",
    "+ClusterRole /pods/resize [patch]",
    "+ClusterRole /replicationcontrollers/scale [patch]",
    "+ClusterRole apps/deployments/scale [patch]",
    "+ClusterRole apps/replicasets/scale [patch]",
    "+ClusterRole apps/statefulsets/scale [patch]",
    "+ClusterRole autoscaling.k8s.io/verticalpodautoscalers [list,watch]",
    "+ClusterRole autoscaling/horizontalpodautoscalers [list]",
    "+ClusterRole berth.dev/servicescalers [list,watch]",
    "+ClusterRole berth.dev/servicescalers/status [patch]",
    "+ClusterRole keda.sh/scaledobjects [list]",
];

/// Returns the granted permissions: the kind of the role, the target with the names it is limited to, and the verbs.
fn rules(objects: &[Value]) -> Vec<(String, String, Vec<String>)> {
    let mut found = Vec::new();
    let roles = objects.iter().filter(|it| ["ClusterRole", "Role"].contains(&it["kind"].as_str().unwrap()));
    for role in roles {
        for rule in role["rules"].as_array().unwrap() {
            let mut keys: Vec<&str> = rule.as_object().unwrap().keys().map(String::as_str).collect();
            keys.retain(|key| *key != "resourceNames");
            let list =
                |key: &str| -> Vec<String> { serde_json::from_value(rule[key].clone()).unwrap_or_default() };
            let name = match &list("resourceNames")[..] {
                [] => String::new(),
                names => format!(":{}", names.join(",")),
            };
            let what = match &list("nonResourceURLs")[..] {
                [] => {
                    assert_eq!(keys, ["apiGroups", "resources", "verbs"]);
                    let ([group], [resource]) = (&list("apiGroups")[..], &list("resources")[..]) else {
                        panic!("{rule}")
                    };
                    format!("{group}/{resource}{name}")
                }
                urls => {
                    assert_eq!(keys, ["nonResourceURLs", "verbs"]);
                    format!("url:{}", urls.join(","))
                }
            };
            found.push((role["kind"].as_str().unwrap().to_owned(), what, list("verbs")));
        }
    }
    found
}

fn owned((kind, what, verbs, _): &Access) -> (String, String, Vec<String>) {
    (kind.to_string(), what.to_string(), verbs.iter().map(ToString::to_string).collect())
}

#[test]
fn roles_allow_what_berth_does_and_nothing_else() {
    let mut found = rules(&rendered(""));
    let mut expected: Vec<_> = ACCESS.iter().map(owned).collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
}

#[test]
fn each_feature_adds_or_takes_away_its_own_rules() {
    let webhooks = "admissionregistration.k8s.io/validatingwebhookconfigurations:berth-system-berth";
    let secrets: [&str; 2] = ["-Role /secrets [create]", "-Role /secrets:berth-tls [get,update]"];
    let webhook = format!("+ClusterRole {webhooks} [get,patch]");
    let forwards = "+ClusterRole url:/guard [post]";
    let path = "+Role /secrets:berth-webhooks [get,update]";
    let with_vpas = |verbs: &'static str| {
        RECOMMENDING
            .map(|rule| if rule.ends_with("/verticalpodautoscalers [list,watch]") { verbs } else { rule })
    };
    let mutating = webhook.replace("validating", "mutating");
    let mut with_webhook = APPLYING.to_vec();
    with_webhook.insert(1, &mutating);
    with_webhook.push(path);
    let makes_vpas =
        with_vpas("+ClusterRole autoscaling.k8s.io/verticalpodautoscalers [create,delete,list,watch]");
    let with_dimensions =
        with_vpas("+ClusterRole autoscaling.k8s.io/verticalpodautoscalers [list,patch,watch]");
    let rollouts =
        format!("{SCALING}\nrbac: {{scalableKinds: [{{apiGroup: argoproj.io, resource: rollouts}}]}}");
    let mut with_rollouts = FOR_SCALING.to_vec();
    with_rollouts.insert(6, "+ClusterRole argoproj.io/rollouts/scale [patch]");
    let mut without_prometheus = FOR_SCALING.to_vec();
    without_prometheus.push("+ClusterRole metrics.k8s.io/pods [list]");
    let cases: [(&str, &[&str]); 17] = [
        ("viewer: {create: false}", &["-ClusterRole url:/ui/,/ui/*,/why [get]"]),
        (SCALING, &FOR_SCALING),
        ("config: {scaling: {enabled: true}}", &without_prometheus),
        (&rollouts, &with_rollouts),
        (
            "config: {serving: {address: null}}",
            &[
                "-ClusterRole authentication.k8s.io/tokenreviews [create]",
                "-ClusterRole authorization.k8s.io/subjectaccessreviews [create]",
                "-ClusterRole url:/metrics [get]",
                "-ClusterRole url:/ui/,/ui/*,/why [get]",
                secrets[0],
                secrets[1],
            ],
        ),
        (EXTENDER, &["+ClusterRole url:/extender/* [post]"]),
        ("replicas: 1\nextender: {enabled: true, clientCaSecret: ca}", &[]),
        (RECOMMENDER, &RECOMMENDING),
        ("recommender: {enabled: true}\nconfig: {recommender: {autoCreate: {enabled: true}}}", &makes_vpas),
        (
            "config: {recommender: {enabled: true, prometheus: {url: 'http://prometheus'}}}",
            &RECOMMENDING[..RECOMMENDING.len() - 1],
        ),
        (
            "config: {recommender: {enabled: true, prometheus: {url: 'http://prometheus'}, dimensions: [{name: diskRead}]}}",
            &with_dimensions[..RECOMMENDING.len() - 1],
        ),
        ("apply: {webhook: {enabled: true}}", &with_webhook),
        ("apply: {updater: {enabled: true}}", &UPDATING),
        (GUARD, &[&webhook, forwards, path]),
        ("replicas: 1\nguard: {enabled: true}", &[&webhook, path]),
        ("guard: {enabled: true, certManager: {enabled: true}}", &[&webhook, forwards, path, secrets[1]]),
        (
            ACTIVE_ACTIVE,
            &[
                &webhook,
                forwards,
                path,
                "+Role coordination.k8s.io/leases [create,delete,get,list,update]",
                "-Role coordination.k8s.io/leases [create]",
                "-Role coordination.k8s.io/leases:berth [get,update]",
            ],
        ),
    ];
    let texts = |values: &str| -> BTreeSet<String> {
        let text = |(kind, what, verbs): (String, String, Vec<String>)| {
            format!("{kind} {what} [{}]", verbs.join(","))
        };
        rules(&rendered(values)).into_iter().map(text).collect()
    };
    let before = texts("");
    for (values, expected) in cases {
        let after = texts(values);
        let mut found: Vec<String> = after.difference(&before).map(|rule| format!("+{rule}")).collect();
        found.extend(before.difference(&after).map(|rule| format!("-{rule}")));
        assert_eq!(found, expected, "{values}");
    }
}

#[test]
fn the_lease_that_the_role_allows_is_the_one_of_the_configuration() {
    let objects = rendered(EVERYTHING);
    let (role, binding) = (the("Role", &objects), the("RoleBinding", &objects));
    assert_eq!(role["metadata"]["namespace"], "leases");
    assert_eq!(binding["metadata"]["namespace"], "leases");
    assert_eq!(role["rules"][1]["resourceNames"], json!(["berth-batch"]));
    let subject = json!([{"kind": "ServiceAccount", "name": "placer", "namespace": NAMESPACE}]);
    assert_eq!(binding["subjects"], subject);
    let (of_berth, of_viewers): (Vec<&Value>, Vec<&Value>) = objects
        .iter()
        .filter(|object| object["kind"] == "ClusterRoleBinding")
        .partition(|object| object["subjects"] == subject);
    let viewer = json!([{"kind": "ServiceAccount", "name": "placer-viewer", "namespace": NAMESPACE}]);
    assert_eq!((of_berth.len(), of_viewers.len(), &of_viewers[0]["subjects"]), (1, 1, &viewer));
    let single = rendered(VALUES[1].1);
    let of_leases = |(_, resource, _): &(String, String, Vec<String>)| resource.contains("leases");
    assert!(!rules(&single).iter().any(of_leases), "without leader election there is no lease");
}
