//! Certificates that replicas share in a Secret of a real API server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use berth_config::Serving;
use berth_kube_io::certificates::{Authority, Rotation};
use berth_kube_io::webhook_path::WebhookPaths;
use berth_server::Secure;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client as ApiClient};
use parking_lot::Mutex;
use serde_json::json;
use tokio::net::TcpListener;

use super::client::*;
use crate::support::*;

const SOON: Duration = Duration::from_secs(20);
const OFTEN: Duration = Duration::from_millis(100);

/// Starts one replica's certificate handling.
async fn replica(client: &ApiClient, config: &Serving) -> SocketAddr {
    let secure = Secure::new(config).expect("it makes a certificate");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let (server, rotation) = (secure.clone(), Rotation::new(client.clone(), "default", config));
    tokio::spawn(rotation.follow(OFTEN, move |issued| secure.install(issued)));
    tokio::spawn(async move { server.serve(listener, axum::Router::new(), std::future::pending()).await });
    address
}

/// A value of the Secret; empty when there is none.
async fn value(secrets: &Api<Secret>, key: &str) -> String {
    let secret = secrets.get_opt("berth-tls").await.expect("an answer");
    let value = secret.and_then(|it| it.data).and_then(|data| data.get(key).cloned());
    String::from_utf8(value.unwrap_or_default().0).expect("PEM")
}

/// Returns whether a client that trusts `ca` accepts the certificate served there.
async fn is_accepted(ca: &str, address: SocketAddr) -> bool {
    let client = Client::new(ca, None, Version::Http2);
    client.get(address, "/").await.is_ok_and(|(status, _)| status == StatusCode::NOT_FOUND)
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_share_certificates_and_mend_what_becomes_of_them() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    let secrets: Api<Secret> = Api::default_namespaced(client.clone());
    let config = Serving {
        secret: "berth-tls".to_owned(),
        names: vec!["berth.default.svc".to_owned()],
        ..Serving::default()
    };
    let mut replicas = Vec::new();
    for _ in 0..3 {
        replicas.push(replica(&client, &config).await);
    }
    let all_follow = async |what: &str| {
        await_until(SOON, what, async || {
            let ca = value(&secrets, "ca.crt").await;
            let mut accepted = !ca.is_empty();
            for address in &replicas {
                accepted = accepted && is_accepted(&ca, *address).await;
            }
            accepted
        })
        .await;
    };
    all_follow("all replicas show what one of them has made").await;
    let secret = secrets.get("berth-tls").await.expect("the Secret");
    assert_eq!(secret.type_.as_deref(), Some("kubernetes.io/tls"));
    let first = value(&secrets, "ca.crt").await;

    // An expired certificate of the right CA.
    let authority = Authority::from_pem(&first, &value(&secrets, "ca.key").await).expect("a CA");
    let past = Timestamp::now() - SignedDuration::from_hours(24 * 91);
    let expired = authority.issue(&config.names, past).expect("issued");
    let patch = json!({"data": {
        "tls.crt": ByteString(expired.certificate.clone().into_bytes()),
        "tls.key": ByteString(expired.key.into_bytes()),
    }});
    secrets.patch("berth-tls", &PatchParams::default(), &Patch::Merge(patch)).await.expect("patched");
    await_until(SOON, "the expired one is replaced", async || {
        value(&secrets, "tls.crt").await != expired.certificate
    })
    .await;
    assert_eq!(value(&secrets, "ca.crt").await, first);
    all_follow("all replicas show the new one").await;

    secrets.delete("berth-tls", &DeleteParams::default()).await.expect("deleted");
    await_until(SOON, "the Secret is there again", async || {
        let ca = value(&secrets, "ca.crt").await;
        !ca.is_empty() && ca != first
    })
    .await;
    all_follow("all replicas show what was made after the deletion").await;
    assert!(!is_accepted(&first, replicas[0]).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn webhook_configurations_get_the_ca_and_missing_ones_are_logged() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    let config = "serving: {address: '127.0.0.1:0', secret: berth-tls, webhookConfiguration: guard, \
                  mutatingWebhookConfiguration: pods}\n\
                  leaderElection: {namespace: default}";
    let berth = Berth::start(&cluster.kubeconfig(), config);
    let address = berth.secure_address().await;
    let secrets: Api<Secret> = Api::default_namespaced(client.clone());
    await_until(SOON, "the certificate of the Secret is shown", async || {
        let ca = value(&secrets, "ca.crt").await;
        // Client certificates are required here.
        let client = Client::new(&ca, None, Version::Http2);
        client.get(address, "/metrics").await.is_ok_and(|(status, _)| status == StatusCode::UNAUTHORIZED)
    })
    .await;
    await_until(SOON, "the log says what is missing", async || {
        berth.log().contains("ValidatingWebhookConfiguration guard not found")
    })
    .await;

    // A missing configuration does not block the other.
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let of_pods = json!({"metadata": {"name": "pods"}, "webhooks": [{
        "name": "vpa.berth.dev",
        "clientConfig": {"url": format!("https://{address}/mutate-pods")},
        "rules": [],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }]});
    let of_pods = serde_json::from_value(of_pods).expect("a configuration");
    mutating.create(&PostParams::default(), &of_pods).await.expect("created");
    await_until(SOON, "it knows the CA", async || {
        let ca = ByteString(value(&secrets, "ca.crt").await.into_bytes());
        let found = mutating.get("pods").await.expect("it exists").webhooks.unwrap_or_default();
        found.iter().all(|it| it.client_config.ca_bundle.as_ref() == Some(&ca))
    })
    .await;

    let webhook = |name: &str, bundle: Option<&str>| {
        json!({
            "name": name,
            "clientConfig": {"url": format!("https://{address}/guard"), "caBundle": bundle},
            "rules": [],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        })
    };
    let webhooks: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let old = Authority::new(Timestamp::now()).expect("a CA");
    let old = serde_json::to_value(ByteString(old.certificate().as_bytes().to_vec())).expect("base64");
    let configuration = json!({
        "metadata": {"name": "guard"},
        "webhooks": [webhook("one.berth.dev", None), webhook("two.berth.dev", old.as_str())],
    });
    let configuration = serde_json::from_value(configuration).expect("a configuration");
    webhooks.create(&PostParams::default(), &configuration).await.expect("created");
    await_until(SOON, "both know the CA", async || {
        let ca = ByteString(value(&secrets, "ca.crt").await.into_bytes());
        let found = webhooks.get("guard").await.expect("it exists").webhooks.unwrap_or_default();
        found.len() == 2 && found.iter().all(|it| it.client_config.ca_bundle.as_ref() == Some(&ca))
    })
    .await;
    let config = Serving {
        secret: "berth-tls".to_owned(),
        webhook_configuration: "guard".to_owned(),
        ..Serving::default()
    };
    let often = replica(&client, &config).await;
    let ca = value(&secrets, "ca.crt").await;
    await_until(SOON, "another replica follows", async || is_accepted(&ca, often).await).await;
    let version = async || webhooks.get("guard").await.expect("it exists").metadata.resource_version;
    let before = version().await;
    tokio::time::sleep(10 * OFTEN).await;
    assert_eq!(version().await, before, "nothing is written without need");
    let log = berth.log();
    assert!(
        !log.contains("PRIVATE KEY")
            && log.matches("ValidatingWebhookConfiguration guard not found").count() == 1,
        "{log}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_share_the_path_of_the_webhooks_and_renew_it_without_a_lost_review() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    let webhooks: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let configuration = json!({
        "metadata": {"name": "guard"},
        "webhooks": [{
            "name": "bindings.berth.dev",
            "clientConfig": {"service": {"name": "berth", "namespace": "default"}},
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }],
    });
    let configuration = serde_json::from_value(configuration).expect("a configuration");
    webhooks.create(&PostParams::default(), &configuration).await.expect("created");
    let config = Serving {
        webhook_secret: "berth-webhooks".to_owned(),
        webhook_configuration: "guard".to_owned(),
        ..Serving::default()
    };
    // What each replica accepts.
    let accepted: Vec<Arc<Mutex<Vec<String>>>> = (0..3).map(|_| Arc::default()).collect();
    for accepted in &accepted {
        let paths = WebhookPaths::new(client.clone(), "default", &config, "/guard", "/mutate-pods");
        let accepted = accepted.clone();
        tokio::spawn(paths.follow(OFTEN, move |tokens| {
            *accepted.lock() = tokens.accepted().map(str::to_owned).collect();
        }));
    }
    let path = async || {
        let found = webhooks.get("guard").await.expect("the configuration");
        let service = found.webhooks.unwrap_or_default()[0].client_config.service.clone();
        service.and_then(|service| service.path).unwrap_or_default()
    };
    let all_accept = async || {
        let path = path().await;
        let token = path.strip_prefix("/guard/").unwrap_or_default();
        !token.is_empty() && accepted.iter().all(|known| known.lock().iter().any(|known| known == token))
    };
    await_until(SOON, "all replicas accept the path that the API server uses", all_accept).await;
    let first = path().await;

    let secrets: Api<Secret> = Api::default_namespaced(client.clone());
    let is_of_age = async |age: SignedDuration| {
        let changed = (Timestamp::now() - age).to_string();
        let patch = json!({"metadata": {"annotations": {"berth.dev/changed": changed}}});
        secrets
            .patch("berth-webhooks", &PatchParams::default(), &Patch::Merge(patch))
            .await
            .expect("patched");
    };
    is_of_age(SignedDuration::from_hours(24 * 31)).await;
    await_until(SOON, "all replicas accept the next one", async || {
        accepted.iter().all(|known| known.lock().len() == 2)
    })
    .await;
    assert_eq!(path().await, first, "it is not used yet");
    is_of_age(SignedDuration::from_mins(6)).await;
    await_until(SOON, "the next one is used", async || path().await != first).await;
    await_until(SOON, "all replicas accept it", all_accept).await;
    assert!(
        accepted.iter().all(|known| known.lock().iter().any(|known| first.ends_with(known))),
        "and the first"
    );
    is_of_age(SignedDuration::from_mins(6)).await;
    await_until(SOON, "the first one is forgotten", async || {
        accepted.iter().all(|known| known.lock().len() == 1)
    })
    .await;

    // Somebody applies a manifest without the path.
    let patch =
        json!({"webhooks": [{"name": "bindings.berth.dev", "clientConfig": {"service": {"path": "/"}}}]});
    webhooks.patch("guard", &PatchParams::default(), &Patch::Strategic(patch)).await.expect("patched");
    await_until(SOON, "the path is there again", all_accept).await;
}
