//! Discovery of Prometheus behind a fake API server.

use super::*;

/// A fake API server with these Services, which forwards to a fake Prometheus; and a kubeconfig for it, with the token `kube-token`.
struct FakeCluster {
    prometheus: Fake,
    kubeconfig: tempfile::NamedTempFile,
    server: tokio::task::JoinHandle<()>,
}

impl Drop for FakeCluster {
    fn drop(&mut self) {
        self.server.abort();
    }
}

const PROXY: &str = "/api/v1/namespaces/monitoring/services/prometheus:9090/proxy";

impl FakeCluster {
    /// `forbids`: a part of the paths that it answers with 403.
    async fn start(names: &'static [&'static str], forbids: &'static str) -> Self {
        let prometheus = Fake::start(|_, asked| respond(asked, |asked| facts(asked).into_response())).await;
        let url = prometheus.url.clone();
        let app = axum::Router::new().fallback(move |request: axum::extract::Request| {
            let url = url.clone();
            async move { api_server(names, forbids, &url, request).await }
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let server = tokio::spawn(async move {
            let _ = axum::serve(listener, app).await;
        });
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "test", "user": {"token": "kube-token"}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        });
        let kubeconfig = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(kubeconfig.path(), config.to_string()).expect("written");
        Self { prometheus, kubeconfig, server }
    }

    /// Runs the command without an address.
    async fn answer(&self, more: &[&str]) -> Result<Answer, Failure> {
        install_provider();
        let kubeconfig = self.kubeconfig.path().to_str().expect("a path");
        let given = ["berth", "recommend", "--kubeconfig", kubeconfig, "--at", NOW, "--history", "2d"];
        let cli = Cli::try_parse_from(given.iter().chain(more)).expect("options");
        let Command::Recommend(options) = cli.command else { panic!("another command") };
        tokio::task::spawn_blocking(move || prometheus::answer(&options)).await.expect("it ends")
    }
}

async fn api_server(
    names: &[&str],
    forbids: &str,
    prometheus: &str,
    request: axum::extract::Request,
) -> Response {
    let (path, method) = (request.uri().path().to_owned(), request.method().clone());
    if request.headers()["authorization"] != "Bearer kube-token" {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    if !forbids.is_empty() && path.contains(forbids) {
        let status = json!({
            "apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403,
            "message": format!("user cannot {method} {path}"),
        });
        return (StatusCode::FORBIDDEN, axum::Json(status)).into_response();
    }
    let service = |name: &&str| {
        json!({
            "metadata": {"namespace": "monitoring", "name": name, "labels": {"app": "prometheus-server"}},
            "spec": {"selector": {"pods": name}, "ports": [{"name": "http", "port": 9090}]},
        })
    };
    match path.strip_prefix(PROXY) {
        Some(rest) => {
            let tenant = request.headers().get("x-scope-orgid").cloned();
            let body = axum::body::to_bytes(request.into_body(), 1 << 20).await.expect("a form");
            let mut sent = reqwest::Client::new().post(format!("{prometheus}{rest}")).body(body);
            if let Some(tenant) = tenant {
                sent = sent.header("x-scope-orgid", tenant);
            }
            let answer = sent.send().await.expect("an answer");
            (answer.status(), answer.bytes().await.expect("a body")).into_response()
        }
        None if path == "/api/v1/services" => {
            let items: Vec<Value> = names.iter().map(service).collect();
            let list = json!({"apiVersion": "v1", "kind": "ServiceList", "metadata": {}, "items": items});
            axum::Json(list).into_response()
        }
        None => match names.iter().find(|name| path.ends_with(&format!("/services/{name}"))) {
            Some(name) => axum::Json(service(name)).into_response(),
            None => StatusCode::NOT_FOUND.into_response(),
        },
    }
}

#[tokio::test]
async fn without_an_address_the_prometheus_of_the_cluster_is_read_through_the_api_server() {
    let cluster = FakeCluster::start(&["prometheus"], "").await;
    let more = ["--prometheus-header", "X-Scope-OrgID=team-a", "-o", "json"];
    let Answer { text, complete } = cluster.answer(&more).await.ok().expect("an answer");
    let json: Value = serde_json::from_str(&text).expect("JSON");
    assert!(complete);
    assert_eq!(json["prometheus"], "Service monitoring/prometheus");
    assert_eq!(json["containers"][0]["workload"], "web");
    let asked = cluster.prometheus.asked();
    assert!(
        asked.iter().all(|asked| asked.headers["x-scope-orgid"] == "team-a" && asked.authorization.is_none())
    );
}

#[tokio::test]
async fn with_several_prometheuses_one_is_named() {
    let cluster = FakeCluster::start(&["prometheus", "second"], "").await;
    let (code, said) = refusal(cluster.answer(&[]).await);
    assert!(code == 1 && said.contains("monitoring/prometheus (Prometheus), monitoring/second"), "{said}");
    let named = ["--prometheus-service", "monitoring/prometheus"];
    assert!(cluster.answer(&named).await.ok().expect("an answer").text.contains("deploy/web"));
    let (code, said) = refusal(cluster.answer(&["--prometheus-service", "monitoring/third"]).await);
    assert!(code == 1 && said.contains("cannot read the Service monitoring/third"), "{said}");
}

#[tokio::test]
async fn what_the_account_of_the_kubeconfig_may_not_do_is_named() {
    let cluster = FakeCluster::start(&["prometheus"], "/api/v1/services").await;
    let (code, said) = refusal(cluster.answer(&[]).await);
    assert!(code == 1 && said.contains("user cannot GET") && said.contains("--prometheus-service"), "{said}");
    let cluster = FakeCluster::start(&["prometheus"], "/proxy").await;
    let (code, said) = refusal(cluster.answer(&[]).await);
    assert!(
        code == 1
            && said.contains(
                "Prometheus at Service monitoring/prometheus answered 403 (user cannot POST /api/v1/"
            )
            && said.contains("create services/proxy")
            && !said.contains("127.0.0.1"),
        "{said}"
    );
    let cluster = FakeCluster::start(&[], "").await;
    let (code, said) = refusal(cluster.answer(&[]).await);
    assert!(code == 1 && said.contains("Looked for: "), "{said}");
}

#[tokio::test]
async fn only_queries_of_this_process_are_forwarded() {
    let cluster = FakeCluster::start(&["prometheus"], "").await;
    install_provider();
    let config = kube::config::Kubeconfig::read_from(cluster.kubeconfig.path()).expect("a kubeconfig");
    let config = kube::Config::from_custom_kubeconfig(config, &Default::default()).await.expect("a cluster");
    let client = kube::Client::try_from(config).expect("a client");
    let proxy = crate::cli::recommend::service_proxy::ServiceProxy::start(client, PROXY.to_owned())
        .await
        .expect("a proxy");
    let send = async |token: &str| {
        let request = reqwest::Client::new().post(format!("{}/api/v1/query", proxy.url)).bearer_auth(token);
        request.body("query=vector(1)").send().await.expect("an answer").status()
    };
    assert_eq!((send("guess").await, cluster.prometheus.asked().len()), (StatusCode::UNAUTHORIZED, 0));
    assert_eq!((send(&proxy.token).await, cluster.prometheus.asked().len()), (StatusCode::OK, 1));
}
