//! What those can do to others who have no credentials, or only those of a tenant.

use k8s_openapi::api::core::v1::{Namespace, ResourceQuota, Secret};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{Patch, PatchParams};

use super::*;

/// A review of a pod that is created on the only node and takes most of it.
pub(super) fn forged(number: usize) -> String {
    let pod = pod_on(&format!("forged-{number}"), "node-0", "3", json!({}));
    let mut object = serde_json::to_value(pod).expect("a pod");
    object["metadata"]["uid"] = json!(format!("forged-{number}"));
    let request = json!({
        "uid": "r", "operation": "CREATE", "namespace": "default", "name": format!("forged-{number}"),
        "resource": {"group": "", "version": "v1", "resource": "pods"}, "object": object,
    });
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).to_string()
}

/// A pod of berth that takes most of the only node.
async fn await_bound(client: &Client, name: &'static str) {
    let pods = Pods { prefix: name, count: 1, requests: json!({"cpu": "3"}), ..Pods::default() };
    create_pods(client, &pods, |_, _| {}).await;
    await_until(Duration::from_secs(5), "the pod of berth is bound", async || {
        all_pods(client).await.iter().any(|pod| name_of(pod).starts_with(name) && node_of(pod).is_some())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_without_the_secret_path_can_hold_no_room() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    create_nodes(&client, &Nodes { count: 1, ..Nodes::default() }).await;
    let certificates = Certificates::new();
    let secret = json!({"webhookSecret": "berth-webhooks", "webhookConfiguration": "berth"});
    let config = certificates.config_with(&secret, "leaderElection: {namespace: default}");
    let berth = Berth::start(&cluster.kubeconfig(), &config);
    berth.await_ready().await;
    let address = berth.secure_address().await;
    install(&client, address, &certificates.ca, "Ignore").await;

    let ca = reqwest::Certificate::from_pem(certificates.ca.as_bytes()).expect("a CA");
    let http = reqwest::Client::builder().add_root_certificate(ca).build().expect("a client");
    let ask = async |path: &str, body: String| {
        let answer = http.post(format!("https://{address}{path}")).body(body).send().await;
        answer.expect("an answer").status().as_u16()
    };
    for number in 0..20 {
        assert_eq!(ask("/guard", forged(number)).await, 401);
        assert_eq!(ask(&format!("/guard/{}", "0".repeat(64)), forged(number)).await, 404);
    }
    assert_eq!(ask("/guard/", forged(20)).await, 404);
    assert_eq!(berth.metric(r#"berth_others{kind="held"}"#).await, 0.0);
    await_bound(&client, "real").await;

    // The API server knows the path: there is no room left.
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let refused = pods.create(&PostParams::default(), &pod_on("late", "node-0", "3", json!({}))).await;
    let why = refused.expect_err("it does not fit").to_string();
    assert!(why.contains("no longer fits node node-0"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_whose_pods_are_refused_by_its_quota_holds_room_only_for_moments() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    create_nodes(&client, &Nodes { count: 1, ..Nodes::default() }).await;
    let certificates = Certificates::new();
    let berth = Berth::start(&cluster.kubeconfig(), &certificates.config(""));
    berth.await_ready().await;
    install(&client, berth.secure_address().await, &certificates.ca, "Ignore").await;

    let namespaces: Api<Namespace> = Api::all(client.clone());
    let tenant = serde_json::from_value(json!({"metadata": {"name": "tenant"}})).expect("a namespace");
    namespaces.create(&PostParams::default(), &tenant).await.expect("created");
    // No controller fills in the status here.
    let quotas: Api<ResourceQuota> = Api::namespaced(client.clone(), "tenant");
    let none = json!({"metadata": {"name": "none"}, "spec": {"hard": {"requests.cpu": "1"}}});
    let none = serde_json::from_value(none).expect("a quota");
    quotas.create(&PostParams::default(), &none).await.expect("created");
    let status = json!({"status": {"hard": {"requests.cpu": "1"}, "used": {"requests.cpu": "0"}}});
    quotas.patch_status("none", &PatchParams::default(), &Patch::Merge(status)).await.expect("patched");
    let pods: Api<Pod> = Api::namespaced(client.clone(), "tenant");
    let attempt = async || {
        let pod = pod_on("never", "node-0", "3", json!({}));
        pods.create(&PostParams::default(), &pod).await.expect_err("beyond the quota").to_string()
    };
    await_until(SOON, "the quota is enforced", async || attempt().await.contains("exceeded quota")).await;
    // Once berth has seen that such a pod did not come, it holds nothing more for this namespace.
    await_until(SOON, "nothing is held", async || {
        attempt().await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        berth.metric(r#"berth_others{kind="held"}"#).await == 0.0
    })
    .await;
    for _ in 0..50 {
        assert!(attempt().await.contains("exceeded quota"));
    }
    assert_eq!(berth.metric(r#"berth_others{kind="held"}"#).await, 0.0);
    await_bound(&client, "real").await;
}

/// A review of a pod on a node that does not exist: its answer takes no room.
fn harmless() -> String {
    forged(0).replace("node-0", "no-such-node")
}

#[tokio::test(flavor = "multi_thread")]
async fn where_certificates_are_required_the_secret_path_alone_opens_nothing() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    let (certificates, clients) = (Certificates::new(), Ca::new("clients"));
    let folder = tempfile::tempdir().expect("a folder");
    let ca_file = folder.path().join("clients.crt");
    std::fs::write(&ca_file, &clients.certificate).expect("written");
    let serving =
        json!({"webhookSecret": "berth-webhooks", "webhookConfiguration": "berth", "clientCaFile": ca_file});
    let config = certificates.config_with(&serving, "leaderElection: {namespace: default}");
    let config =
        config.replace("guard: {enabled: true}", "guard: {enabled: true, requireClientCertificate: true}");
    let berth = Berth::start(&cluster.kubeconfig(), &config);
    berth.await_ready().await;
    let address = berth.secure_address().await;
    let secrets: Api<Secret> = Api::default_namespaced(client.clone());
    let token = async || {
        let data = secrets.get_opt("berth-webhooks").await.expect("an answer")?.data?;
        String::from_utf8(data.get("token")?.0.clone()).ok()
    };
    await_until(SOON, "the path is known", async || token().await.is_some()).await;
    let secret = format!("/guard/{}", token().await.expect("a token"));

    let role: ClusterRole = serde_json::from_value(json!({
        "metadata": {"name": "reviews"}, "rules": [{"nonResourceURLs": ["/guard"], "verbs": ["post"]}],
    }))
    .expect("a role");
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": {"name": "reviews"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "reviews"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "api-server"}],
    }))
    .expect("a binding");
    Api::all(client.clone()).create(&PostParams::default(), &role).await.expect("created");
    Api::all(client.clone()).create(&PostParams::default(), &binding).await.expect("created");

    let ask = async |path: &str, user: Option<&str>| {
        let ca = reqwest::Certificate::from_pem(certificates.ca.as_bytes()).expect("a CA");
        let mut http = reqwest::Client::builder().add_root_certificate(ca);
        if let Some(user) = user {
            let pair = clients.client(user, "nobody", in_seconds(7_200));
            let pem = format!("{}{}", pair.key, pair.certificate);
            http = http.identity(reqwest::Identity::from_pem(pem.as_bytes()).expect("an identity"));
        }
        let http = http.build().expect("a client");
        let answer = http.post(format!("https://{address}{path}")).body(harmless()).send().await;
        answer.expect("an answer").status().as_u16()
    };
    // RBAC follows its objects within moments.
    await_until(SOON, "the API server's certificate is known", async || {
        ask(&secret, Some("api-server")).await == 200
    })
    .await;
    assert_eq!(ask(&secret, None).await, 401);
    assert_eq!(ask(&secret, Some("kubelet")).await, 403);
    assert_eq!(ask("/guard/wrong", Some("api-server")).await, 404);
    // As the other replicas.
    assert_eq!(ask("/guard", Some("api-server")).await, 200);
    assert_eq!(ask("/guard", None).await, 401);
}
