//! Features of the chart: the rendered objects, and berth on a real API server with exactly those permissions.

use berth_config::FailurePolicy;
use berth_testenv::{Options, User};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};
use std::time::Duration;

use super::*;
use crate::serving::client::{Client as Https, Version};
use crate::support::*;

const SOON: Duration = Duration::from_secs(60);

/// Returns the names and rules of the rendered webhooks.
fn webhooks(objects: &[Value]) -> Vec<(&str, &Value)> {
    let webhooks = the("ValidatingWebhookConfiguration", objects)["webhooks"].as_array().unwrap();
    webhooks.iter().map(|it| (it["rules"][0]["resources"][0].as_str().unwrap(), it)).collect()
}

#[test]
fn own_binds_skip_the_guard_only_while_one_replica_is_active() {
    let conditions = |values: &str| {
        let objects = rendered(values);
        let webhooks = webhooks(&objects);
        assert_eq!(
            webhooks.iter().map(|(resource, _)| *resource).collect::<Vec<_>>(),
            ["pods/binding", "pods"]
        );
        webhooks[0].1["matchConditions"].clone()
    };
    let own = "request.userInfo.username != 'system:serviceaccount:berth-system:berth'";
    assert_eq!(conditions(GUARD), json!([{"name": "not-by-berth", "expression": own}]));
    assert_eq!(conditions(ACTIVE_ACTIVE), Value::Null);
}

#[test]
fn recordings_have_room_for_this_one_and_the_one_before() {
    let room = |values: &str| {
        let objects = rendered(values);
        let volumes = &the("Deployment", &objects)["spec"]["template"]["spec"]["volumes"];
        let state = volumes.as_array().unwrap().iter().find(|volume| volume["name"] == "state");
        state.unwrap()["emptyDir"]["sizeLimit"].clone()
    };
    assert_eq!(room(""), "16Mi");
    let recorded = "config: {recorder: {enabled: true, maxMiB: 100}}";
    assert_eq!(room(recorded), "216Mi");
    let recorder = loaded_config(&rendered(recorded)).recorder;
    assert!(recorder.enabled && recorder.directory.starts_with("/var/lib/berth"), "{recorder:?}");
}

#[test]
fn the_guard_leaves_the_cluster_and_berth_itself_a_way_to_start() {
    for (_, webhook) in webhooks(&rendered(GUARD)) {
        let selector = &webhook["namespaceSelector"]["matchExpressions"][0];
        assert_eq!(selector["operator"], "NotIn");
        assert_eq!(selector["values"], json!([&["kube-system", NAMESPACE], &NODE_NAMESPACES[..]].concat()));
        assert_eq!(webhook["failurePolicy"], "Ignore");
        assert_eq!(webhook["timeoutSeconds"], 1);
    }
    for (_, webhook) in webhooks(&rendered(EVERYTHING)) {
        let exempt = [&["kube-system", NAMESPACE], &NODE_NAMESPACES[..], &["cni"]].concat();
        let exemption =
            json!([{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": exempt}]);
        let selector = json!({"matchLabels": {"guarded": "yes"}, "matchExpressions": exemption});
        assert_eq!(webhook["namespaceSelector"], selector);
        // berth sets it while it reviews.
        assert_eq!((&webhook["failurePolicy"], &webhook["timeoutSeconds"]), (&json!("Ignore"), &json!(2)));
    }
    assert_eq!(loaded_config(&rendered(EVERYTHING)).guard.failure_policy, FailurePolicy::Fail);
}

/// Usual namespaces of network plugins and storage drivers.
const NODE_NAMESPACES: [&str; 8] = [
    "calico-apiserver",
    "calico-system",
    "cilium",
    "kube-flannel",
    "longhorn-system",
    "openebs",
    "rook-ceph",
    "tigera-operator",
];

#[test]
fn credentials_for_prometheus_come_from_a_secret() {
    let prometheus = |more: &str| {
        let objects = rendered(&format!(
            "config: {{recommender: {{prometheus: {{url: 'http://p'{more}}}}}}}\n\
             recommender: {{enabled: true, credentialsSecret: prometheus-login}}"
        ));
        let pod = &the("Deployment", &objects)["spec"]["template"]["spec"];
        let volumes = pod["volumes"].as_array().unwrap();
        let volume = volumes.iter().find(|it| it["name"] == "prometheus").expect("mounted");
        assert_eq!(volume["secret"]["secretName"], "prometheus-login");
        let mounts = pod["containers"][0]["volumeMounts"].as_array().unwrap();
        let mount = mounts.iter().find(|it| it["name"] == "prometheus").expect("mounted");
        assert_eq!(mount["mountPath"], "/etc/berth-prometheus");
        loaded_config(&objects).recommender.prometheus.expect("configured")
    };
    let token = prometheus("");
    assert_eq!(token.bearer_token_file, Some("/etc/berth-prometheus/token".into()));
    let basic = prometheus(", basicAuth: {user: me}").basic_auth.expect("basic");
    assert_eq!(basic.password_file, Some("/etc/berth-prometheus/password".into()));
}

#[test]
fn the_webhook_of_pods_never_keeps_them_away() {
    let objects = rendered(APPLY);
    let webhooks = the("MutatingWebhookConfiguration", &objects)["webhooks"].as_array().unwrap();
    let [webhook] = &webhooks[..] else { panic!("{webhooks:?}") };
    assert_eq!((&webhook["failurePolicy"], &webhook["timeoutSeconds"]), (&json!("Ignore"), &json!(2)));
    assert_eq!(webhook["rules"][0]["operations"], json!(["CREATE"]));
    assert_eq!(webhook["rules"][0]["resources"], json!(["pods"]));
    let selector = &webhook["namespaceSelector"]["matchExpressions"][0];
    assert_eq!(
        (&selector["operator"], &selector["values"]),
        (&json!("NotIn"), &json!(["kube-system", NAMESPACE]))
    );
    let service = the("Service", &objects);
    let called = &webhook["clientConfig"]["service"];
    assert_eq!(called["name"], service["metadata"]["name"]);
    assert_eq!(called["port"], service["spec"]["ports"][0]["port"]);
    assert!(called.get("path").is_none(), "berth writes it");
}

#[test]
fn the_definitions_of_kinds_are_those_that_berth_prints_and_can_be_left_to_others() {
    let by_name = |crds: Vec<Value>| -> BTreeMap<String, Value> {
        let of_kinds = crds.into_iter().filter(|it| it["kind"] == "CustomResourceDefinition");
        of_kinds.map(|it| (it["metadata"]["name"].as_str().unwrap().to_owned(), it)).collect()
    };
    let expected = ::berth_crds::crds().iter().map(|crd| serde_json::to_value(crd).unwrap()).collect();
    let (found, expected) = (by_name(rendered("")), by_name(expected));
    assert!(found.keys().eq(expected.keys()), "{:?}", found.keys());
    for (name, crd) in &found {
        assert_eq!(crd["spec"]["names"], expected[name]["spec"]["names"]);
        assert_eq!(crd["metadata"]["annotations"]["helm.sh/resource-policy"], "keep");
    }
    assert!(by_name(rendered("crds: {install: false}")).is_empty());
    let not_kept = by_name(rendered("crds: {keep: false}"));
    assert!(not_kept.values().all(|crd| crd["metadata"]["annotations"].is_null()));
}

#[test]
fn cert_manager_issues_when_it_is_there_and_not_without_the_guard() {
    let kinds = |values: &str, has_cert_manager: bool| -> Vec<String> {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("values.yaml");
        fs::write(&file, values).unwrap();
        let mut args = vec!["template", "berth", "charts/berth", "--kube-version=1.36.3", "--values"];
        args.push(file.to_str().unwrap());
        if has_cert_manager {
            args.push("--api-versions=cert-manager.io/v1");
        }
        let output = helm(&args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let objects = documents(&String::from_utf8(output.stdout).unwrap());
        let ours = objects.iter().filter(|object| object["apiVersion"] == "cert-manager.io/v1");
        let mut kinds: Vec<String> = ours.map(|object| object["kind"].as_str().unwrap().to_owned()).collect();
        kinds.sort();
        kinds
    };
    let all = ["Certificate", "Certificate", "Issuer", "Issuer"];
    assert_eq!(kinds(GUARD, true), all);
    assert!(kinds(GUARD, false).is_empty() && kinds("", true).is_empty());
    assert!(kinds("guard: {enabled: true, certManager: {enabled: false}}", true).is_empty());
    let issuer = "{enabled: auto, issuerRef: {kind: ClusterIssuer, name: internal}}";
    assert_eq!(kinds(&format!("guard: {{enabled: true, certManager: {issuer}}}"), true), ["Certificate"]);
}

#[test]
fn the_webhook_the_monitor_and_the_certificate_mean_the_same_service() {
    let values = "guard: {enabled: true}\nserviceMonitor: {enabled: true}\nfullnameOverride: other\n";
    let objects = rendered(values);
    let service = the("Service", &objects);
    let (port, target) = (&service["spec"]["ports"][0]["port"], &service["spec"]["ports"][0]["targetPort"]);
    let container = &the("Deployment", &objects)["spec"]["template"]["spec"]["containers"][0];
    let ports = container["ports"].as_array().unwrap();
    let of_container = ports.iter().find(|it| it["name"] == *target).expect("a port of the container");
    let config = loaded_config(&objects);
    assert_eq!(of_container["containerPort"], config.serving.address.unwrap().port());
    for (_, webhook) in webhooks(&objects) {
        let called = &webhook["clientConfig"]["service"];
        assert_eq!(called["name"], service["metadata"]["name"]);
        assert_eq!((&called["port"], called.get("path")), (port, None), "berth writes the path");
    }
    let endpoint = &the("ServiceMonitor", &objects)["spec"]["endpoints"][0];
    assert_eq!((&endpoint["port"], &endpoint["scheme"]), (&json!("https"), &json!("https")));
    let name = endpoint["tlsConfig"]["serverName"].as_str().unwrap();
    assert_eq!(name, format!("other.{NAMESPACE}.svc"));
    assert!(config.serving.names.iter().any(|known| known == name));
    assert_eq!(endpoint["tlsConfig"]["ca"]["secret"]["name"], config.serving.secret.as_str());
}

/// Returns the configuration file that the chart renders, adapted for a berth on this machine.
fn local_config(objects: &[Value]) -> String {
    let map = the("ConfigMap", objects);
    let mut config: Value = serde_saphyr::from_str(map["data"]["berth.yaml"].as_str().unwrap()).unwrap();
    config["serving"]["address"] = json!("127.0.0.1:0");
    config["leaderElection"]["namespace"] = json!(NAMESPACE);
    let config = config.as_object_mut().unwrap();
    // The first is set for every berth in tests.
    config.remove("healthAddress");
    config.remove("estimatorFile");
    serde_saphyr::to_string(&*config).unwrap()
}

async fn create_namespace(client: &Client, name: &str) {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
    namespaces.create(&PostParams::default(), &namespace).await.expect("created");
}

fn placed_pod(name: &str, annotations: Value) -> Pod {
    let pod = json!({
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"nodeName": "no-such-node", "containers": [{"name": "main", "image": "pause"}]},
    });
    serde_json::from_value(pod).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_guard_of_the_chart_works_with_what_the_chart_allows() {
    let chart = rendered("guard: {enabled: true, failurePolicy: Fail, timeoutSeconds: 5}\n");
    let user = |name: &str| User { name: name.to_owned(), groups: vec!["some".to_owned()] };
    let account = format!("system:serviceaccount:{NAMESPACE}:berth");
    let options = Options { users: vec![user(&account), user("prometheus")], ..Options::default() };
    let cluster = start_control_plane_with(options).await;
    let client = cluster.client();
    create_namespace(&client, NAMESPACE).await;
    create_nodes(&client, &Nodes::default()).await;
    let roles = ["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"];
    for object in chart.iter().filter(|it| roles.contains(&it["kind"].as_str().unwrap())) {
        apply::create(&client, object).await;
    }
    let reader = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "prometheus"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": format!("{NAMESPACE}-berth-metrics-reader"),
        },
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "prometheus"}],
    });
    apply::create(&client, &reader).await;

    let berth = Berth::start(&cluster.kubeconfig_for(&account).unwrap(), &local_config(&chart));
    let address = berth.secure_address().await;
    register(&client, &chart, address).await;
    let webhooks: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let bundle = async || {
        let found = webhooks.get(&format!("{NAMESPACE}-berth")).await.expect("created").webhooks;
        found.unwrap_or_default().into_iter().next().and_then(|it| it.client_config.ca_bundle)
    };
    await_until(SOON, "berth writes its CA into the webhooks", async || bundle().await.is_some()).await;
    await_policy(&webhooks, "Fail").await;
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    await_until(SOON, "the API server asks the guard", async || {
        match pods.create(&PostParams::default(), &placed_pod("refused", json!({}))).await {
            // It has not loaded the webhook yet.
            Ok(_) => {
                delete_pods(&client, ["refused".to_owned()]).await;
                false
            }
            Err(error) => error.to_string().contains("node no-such-node is not in berth"),
        }
    })
    .await;
    let mirror = placed_pod("mirror", json!({"kubernetes.io/config.mirror": "x"}));
    pods.create(&PostParams::default(), &mirror).await.expect("it runs already");

    // berth's own binds bypass the webhook, so that it also binds while the webhook is down.
    let silent: Vec<Value> = ["bindings.berth.dev", "pods.berth.dev"]
        .map(|name| json!({"name": name, "clientConfig": {"url": "https://127.0.0.1:1/guard"}}))
        .to_vec();
    let patch = Patch::Strategic(json!({"webhooks": silent}));
    let name = format!("{NAMESPACE}-berth");
    webhooks.patch(&name, &PatchParams::default(), &patch).await.expect("patched");
    await_until(SOON, "the API server calls a dead webhook", async || {
        let answer = pods.create(&PostParams::default(), &placed_pod("refused", json!({}))).await;
        answer.expect_err("the webhook is down").to_string().contains("failed calling webhook")
    })
    .await;
    create_pods(&client, &Pods { count: 5, ..Pods::default() }, |_, _| {}).await;
    await_bound(&client, SOON, 6, |_| true).await;

    let ca = String::from_utf8(bundle().await.expect("still there").0).unwrap();
    let https = Https::new(&ca, None, Version::Http2);
    let kubeconfig = fs::read_to_string(cluster.kubeconfig_for("prometheus").unwrap()).unwrap();
    let kubeconfig: Value = serde_json::from_str(&kubeconfig).unwrap();
    let token = kubeconfig["users"][0]["user"]["token"].as_str().unwrap();
    let mut connection = https.connect(address).await.expect("known by its CA");
    let (status, text) =
        connection.send(http::Method::GET, "/metrics", Some(token)).await.expect("an answer");
    assert!(status == http::StatusCode::OK && text.contains("berth_access_checks_total"), "{status} {text}");
    let log = berth.log();
    assert!(!log.to_lowercase().contains("forbidden") && !log.contains("may not"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn active_replicas_write_no_leases_but_their_own() {
    let chart = rendered(ACTIVE_ACTIVE);
    let account = format!("system:serviceaccount:{NAMESPACE}:berth");
    let user = User { name: account.clone(), groups: vec!["some".to_owned()] };
    let cluster = start_control_plane_with(Options { users: vec![user], ..Options::default() }).await;
    let client = cluster.client();
    create_namespace(&client, NAMESPACE).await;
    let kinds = ["Role", "RoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"];
    for object in chart.iter().filter(|it| kinds.contains(&it["kind"].as_str().unwrap())) {
        apply::create(&client, object).await;
    }
    let kubeconfig = Kubeconfig::read_from(cluster.kubeconfig_for(&account).unwrap()).unwrap();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    let berth = Client::try_from(config.unwrap()).unwrap();
    let lease = |name: &str, holder: &str| -> Lease {
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"holderIdentity": holder}}))
            .unwrap()
    };
    let (theirs, ours): (Api<Lease>, Api<Lease>) =
        (Api::namespaced(client, NAMESPACE), Api::namespaced(berth, NAMESPACE));
    theirs.create(&PostParams::default(), &lease("other", "somebody")).await.unwrap();
    let change = async || {
        let known = ours.get("other").await.unwrap();
        let changed = Lease { metadata: known.metadata, ..lease("other", "berth") };
        ours.replace("other", &PostParams::default(), &changed).await
    };
    let is_refused = |error: kube::Error| error.to_string().contains("no leases but its own");
    await_until(SOON, "the policy is in force", async || change().await.is_err_and(is_refused)).await;
    assert!(ours.delete("other", &DeleteParams::default()).await.is_err_and(is_refused));
    let another = ours.create(&PostParams::default(), &lease("berthless", "berth")).await;
    assert!(another.is_err_and(is_refused));
    for name in ["berth", "berth-member-a"] {
        let made = ours.create(&PostParams::default(), &lease(name, "a")).await.unwrap();
        let changed = Lease { metadata: made.metadata, ..lease(name, "b") };
        ours.replace(name, &PostParams::default(), &changed).await.unwrap();
        ours.delete(name, &DeleteParams::default()).await.unwrap();
    }
}

async fn await_policy(webhooks: &Api<ValidatingWebhookConfiguration>, wanted: &str) {
    await_until(SOON, &format!("the policy is {wanted}"), async || {
        let found = webhooks.get(&format!("{NAMESPACE}-berth")).await.expect("created").webhooks;
        let policies = found.unwrap_or_default();
        policies.iter().all(|webhook| webhook.failure_policy.as_deref() == Some(wanted))
    })
    .await;
}

/// Registers the guard of the chart at this address: there is no Service here.
async fn register(client: &Client, chart: &[Value], address: std::net::SocketAddr) {
    let mut configuration = the("ValidatingWebhookConfiguration", chart).clone();
    for webhook in configuration["webhooks"].as_array_mut().unwrap() {
        webhook["clientConfig"] = json!({"url": format!("https://{address}/guard")});
    }
    apply::create(client, &configuration).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_guard_fails_closed_only_while_berth_serves_and_a_new_node_gets_its_network_even_after_a_crash() {
    let chart = rendered("guard: {enabled: true, failurePolicy: Fail, timeoutSeconds: 5}\n");
    let cluster = start_control_plane().await;
    let client = cluster.client();
    create_namespace(&client, NAMESPACE).await;
    create_namespace(&client, "kube-flannel").await;
    create_nodes(&client, &Nodes { count: 1, ..Nodes::default() }).await;
    let _kube_scheduler = cluster.start_scheduler("", &[]).await.expect("kube-scheduler starts");
    let webhooks: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let config = local_config(&chart);
    let start = async || Berth::start(&cluster.kubeconfig(), &config);
    let mut berth = start().await;
    register(&client, &chart, berth.secure_address().await).await;
    await_policy(&webhooks, "Fail").await;

    // The last replica stops: bindings are allowed unchecked.
    assert!(berth.terminate().await.success(), "{}", berth.log());
    await_policy(&webhooks, "Ignore").await;
    create_pods(
        &client,
        &Pods { prefix: "alone", count: 1, scheduler: "default-scheduler", ..Pods::default() },
        |_, _| {},
    )
    .await;
    await_bound(&client, SOON, 1, |_| true).await;

    // All replicas crash, and all nodes are replaced.
    let mut berth = start().await;
    await_policy(&webhooks, "Fail").await;
    berth.kill();
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(client.clone());
    create_node(&client, "new", json!({"cpu": "4", "memory": "8Gi", "pods": "110"}), json!({})).await;
    nodes.delete("node-0", &DeleteParams::default()).await.expect("deleted");
    let tenant = Pods { prefix: "tenant", count: 1, scheduler: "default-scheduler", ..Pods::default() };
    create_pods(&client, &tenant, |_, _| {}).await;
    await_message(&client, "default", "tenant-0", |message| message.contains("failed calling webhook")).await;
    let network = Pods { prefix: "network", namespace: "kube-flannel", ..tenant };
    create_pods(&client, &network, |_, _| {}).await;
    await_bound(&client, SOON, 1, |pod| pod.metadata.namespace.as_deref() == Some("kube-flannel")).await;
    // The documented way out.
    webhooks.delete(&format!("{NAMESPACE}-berth"), &DeleteParams::default()).await.expect("deleted");
    await_bound(&client, SOON, 1, |pod| name_of(pod) == "tenant-0").await;
}
