//! Metrics over HTTPS, with the users and RBAC of a real API server.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use axum::http::StatusCode;
use http::Method;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client as ApiClient, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::client::*;
use crate::explain::{Ran, run};
use crate::support::*;

/// berth caches its answers for 10 s, and the API server those about tokens for 10 s.
const REVOKED: Duration = Duration::from_secs(40);
const HOUR: i64 = 3_600;

pub async fn create<K>(api: Api<K>, object: Value)
where
    K: Resource + Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    let object = serde_json::from_value(object).expect("an object of its type");
    api.create(&PostParams::default(), &object).await.expect("created");
}

/// A service account and a token of it.
pub async fn account(client: &ApiClient, name: &str) -> String {
    let accounts: Api<ServiceAccount> = Api::default_namespaced(client.clone());
    create(accounts.clone(), json!({"metadata": {"name": name}})).await;
    let request: TokenRequest =
        serde_json::from_value(json!({"spec": {"audiences": [], "expirationSeconds": 3600}}))
            .expect("a request");
    let answer = accounts.create_token_request(name, &PostParams::default(), &request).await;
    answer.expect("a token").status.expect("a token").token.expect("a token")
}

async fn may_read_metrics(client: &ApiClient, subject: Value) {
    let name = subject["name"].as_str().expect("a name").to_owned();
    create(
        Api::<ClusterRoleBinding>::all(client.clone()),
        json!({
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "reader"},
            "subjects": [subject],
        }),
    )
    .await;
}

fn serving(folder: &Path, servers: &Ca, clients: &Ca) -> String {
    let pair = servers.server(in_seconds(HOUR));
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::write(&path, text).expect("written");
        path
    };
    let serving = json!({
        "address": "127.0.0.1:0",
        "certFile": write("tls.crt", &pair.certificate),
        "keyFile": write("tls.key", &pair.key),
        "clientCaFile": write("clients.crt", &clients.certificate),
    });
    format!("serving: {serving}")
}

async fn metrics(client: &Client, address: SocketAddr, token: Option<&str>) -> (StatusCode, String) {
    let mut connection = client.connect(address).await.expect("a connection");
    connection.send(Method::GET, "/metrics", token).await.expect("an answer")
}

fn ask_why(address: SocketAddr, token: &str, options: &[&str]) -> Ran {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("token");
    fs::write(&file, format!("{token}\n")).expect("written");
    let mut berth = Command::new(env!("CARGO_BIN_EXE_berth"));
    let server = format!("https://{address}");
    run(
        berth.args(["why", "default/web-0", "--server", &server, "--token-file"]).arg(&file).args(options),
        b"",
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_for_users_who_may_read_them() {
    let mut cluster = start_control_plane().await;
    let api = cluster.client();
    let rules = json!([{"nonResourceURLs": ["/metrics", "/why"], "verbs": ["get"]}]);
    create(Api::<ClusterRole>::all(api.clone()), json!({"metadata": {"name": "reader"}, "rules": rules}))
        .await;
    let tokens =
        [account(&api, "reads").await, account(&api, "deleted").await, account(&api, "stranger").await];
    let [reads, deleted, stranger] = &tokens;
    for name in ["reads", "deleted"] {
        let subject = json!({"kind": "ServiceAccount", "namespace": "default", "name": name});
        may_read_metrics(&api, subject).await;
    }
    let user = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "prometheus"});
    may_read_metrics(&api, user).await;

    let (servers, clients) = (Ca::new("servers"), Ca::new("clients"));
    let folder = tempfile::tempdir().expect("a folder");
    let berth = Berth::start(&cluster.kubeconfig(), &serving(folder.path(), &servers, &clients));
    let address = berth.secure_address().await;
    let nobody = Client::new(&servers.certificate, None, Version::Http2);
    let get = async |token| metrics(&nobody, address, token).await;

    for token in [reads, deleted] {
        let (status, text) = get(Some(token)).await;
        assert_eq!(status, StatusCode::OK, "{text}");
        assert!(text.contains("berth_serving_certificate_expiry_timestamp_seconds 1"), "{text}");
        assert!(text.contains("berth_access_checks_total{result=\"allowed\"}"), "{text}");
    }
    let (status, text) = get(None).await;
    assert!(status == StatusCode::UNAUTHORIZED && text.contains("kubectl create token"), "{text}");
    let (status, text) = get(Some("eyJhbGciOiJub25lIn0.e30.")).await;
    assert!(status == StatusCode::UNAUTHORIZED && text.contains("does not accept this token"), "{text}");
    let (status, text) = get(Some(stranger)).await;
    let explains = text.contains("system:serviceaccount:default:stranger") && text.contains("ClusterRole");
    assert!(status == StatusCode::FORBIDDEN && explains, "{text}");
    assert_eq!(nobody.get(address, "/healthz").await.expect("an answer").0, StatusCode::NOT_FOUND);

    // The command line asks in the same way.
    let authority = folder.path().join("servers.crt");
    fs::write(&authority, &servers.certificate).expect("written");
    let authority = ["--certificate-authority", authority.to_str().expect("a path")];
    for (token, options, code, expected) in [
        (reads, &authority[..], 2, "this process remembers no decision about a pod default/web-0"),
        (reads, &["--insecure-skip-tls-verify"], 2, "this process remembers no decision"),
        (stranger, &authority, 1, "system:serviceaccount:default:stranger"),
        (reads, &[], 1, "cannot ask https://"),
    ] {
        let ran = ask_why(address, token, options);
        assert!(ran.code == code && ran.err.contains(expected), "{code}: {}", ran.err);
    }

    // A client certificate is equivalent to a token.
    for (name, expected) in [("prometheus", StatusCode::OK), ("someone", StatusCode::FORBIDDEN)] {
        let shown = clients.client(name, "monitoring", in_seconds(HOUR));
        let client = Client::new(&servers.certificate, Some(&shown), Version::Http1);
        let (status, text) = metrics(&client, address, None).await;
        assert_eq!(status, expected, "{text}");
    }

    // Permission is revoked.
    let bindings: Api<ClusterRoleBinding> = Api::all(api.clone());
    bindings.delete("reads", &DeleteParams::default()).await.expect("deleted");
    let accounts: Api<ServiceAccount> = Api::default_namespaced(api.clone());
    accounts.delete("deleted", &DeleteParams::default()).await.expect("deleted");
    await_until(REVOKED, "the permission is gone", async || {
        get(Some(reads)).await.0 == StatusCode::FORBIDDEN
    })
    .await;
    await_until(REVOKED, "the token is gone", async || {
        get(Some(deleted)).await.0 == StatusCode::UNAUTHORIZED
    })
    .await;

    cluster.kill_api_server();
    let fresh = clients.client("fresh", "monitoring", in_seconds(HOUR));
    let client = Client::new(&servers.certificate, Some(&fresh), Version::Http2);
    let (status, text) = metrics(&client, address, None).await;
    assert!(
        status == StatusCode::SERVICE_UNAVAILABLE && text.contains("cannot check access with the API server"),
        "{text}"
    );
    let log = berth.log();
    assert!(log.contains("access reviews fail"), "{log}");
    for token in &tokens {
        assert!(!log.contains(token.as_str()), "a token is in the log");
    }
}

#[test]
fn files_that_cannot_be_used_end_the_start_with_their_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("berth.yaml");
    let missing =
        json!({"address": "127.0.0.1:0", "certFile": "/nowhere/tls.crt", "keyFile": "/nowhere/tls.key"});
    fs::write(&file, format!("healthAddress: 127.0.0.1:0\nserving: {missing}\n")).expect("written");
    let kubeconfig = folder.path().join("kubeconfig");
    let nobody = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        "clusters": [{"name": "x", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "x", "user": {"token": "x"}}],
    });
    fs::write(&kubeconfig, nobody.to_string()).expect("written");
    let output = Command::new(env!("CARGO_BIN_EXE_berth"))
        .args(["run", "--leader-elect=false", "--config"])
        .arg(&file)
        .arg("--kubeconfig")
        .arg(&kubeconfig)
        .output()
        .expect("it runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && error.contains("cannot read serving.certFile /nowhere/tls.crt"),
        "{error}"
    );
}
