//! Rolling updates of two replicas: no review and no request to the extender is lost.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures::future::join_all;
use parking_lot::Mutex;

use super::replicas::Service;
use super::*;

/// How long a Service goes on sending requests to a pod that is to end.
const ENDPOINTS_LAG: Duration = Duration::from_millis(500);
const UPDATES: usize = 3;
/// Room for 110 pods each.
const NODES: usize = 100;
const SETTINGS: &str = "extender: {enabled: true}\n\
                        leaderElection: {namespace: default, leaseDuration: 6s, renewDeadline: 4s, retryPeriod: 500ms}";

/// What clients did all the while.
#[derive(Default)]
struct Requests {
    stops: AtomicBool,
    sent: AtomicUsize,
    failed: Mutex<Vec<String>>,
    slowest: Mutex<Duration>,
}

impl Requests {
    /// Sends one request after another until the end.
    async fn repeat(&self, what: &str, send: impl AsyncFn(usize) -> Result<(), String>) {
        for at in 0.. {
            if self.stops.load(Ordering::Relaxed) {
                return;
            }
            let began = Instant::now();
            if let Err(why) = send(at).await {
                self.failed.lock().push(format!("{what} {at} after {:?}: {why}", began.elapsed()));
            }
            self.sent.fetch_add(1, Ordering::Relaxed);
            let mut slowest = self.slowest.lock();
            *slowest = slowest.max(began.elapsed());
        }
    }
}

/// Binds a pod as a scheduler does that knows nothing of berth.
async fn bind(client: &Client, name: &str, node: &str) -> Result<(), String> {
    let binding = json!({"metadata": {"name": name}, "target": {"kind": "Node", "name": node}});
    let request = http::Request::post(format!("/api/v1/namespaces/default/pods/{name}/binding"))
        .header("content-type", "application/json")
        .body(binding.to_string().into_bytes())
        .expect("a request");
    client.request::<Value>(request).await.map(|_| ()).map_err(|error| error.to_string())
}

/// Creates a pod of another scheduler.
async fn create(client: &Client, name: &str) -> Result<Pod, String> {
    let pod = json!({
        "metadata": {"name": name},
        "spec": {
            "schedulerName": "nobody",
            "containers": [{"name": "main", "image": "pause", "resources": {"requests": {"cpu": "1m"}}}],
        },
    });
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let pod = serde_json::from_value(pod).expect("a pod");
    pods.create(&PostParams::default(), &pod).await.map_err(|error| error.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn three_rolling_updates_of_two_replicas_lose_no_review_and_no_request_to_the_extender() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    create_nodes(&client, &Nodes { count: NODES, cpu: "64", ..Nodes::default() }).await;
    let certificates = Certificates::new();
    // Replicas authenticate each other with the token with which they authenticate to the API server.
    let folder = tempfile::tempdir().expect("a folder");
    let kubeconfig = std::fs::read_to_string(cluster.kubeconfig()).expect("a kubeconfig");
    let mut kubeconfig: Value = serde_json::from_str(&kubeconfig).expect("JSON");
    let user = kubeconfig["users"][0]["user"].as_object_mut().expect("a user");
    let token = user.remove("token").expect("a token");
    let (token_file, file) = (folder.path().join("token"), folder.path().join("kubeconfig"));
    user.insert("tokenFile".to_owned(), json!(token_file));
    std::fs::write(&token_file, token.as_str().expect("a text")).expect("written");
    std::fs::write(&file, kubeconfig.to_string()).expect("written");
    let clients = Ca::new("clients");
    let ca_file = folder.path().join("clients.crt");
    std::fs::write(&ca_file, &clients.certificate).expect("written");
    // With a secret path, replicas need RBAC to forward reviews.
    let serving = json!({
        "clientCaFile": ca_file, "shutdownDelay": "1s", "webhookSecret": "berth-webhooks", "webhookConfiguration": "berth",
    });
    let config = certificates.config_with(&serving, SETTINGS);
    let start = async || {
        let berth = Berth::start(&file, &config);
        berth.await_ready().await;
        let address = berth.secure_address().await;
        (berth, address)
    };

    let mut replicas = vec![start().await, start().await];
    let service = Service::start().await;
    let endpoints = |replicas: &[(Berth, SocketAddr)]| {
        service.set(replicas.iter().map(|(_, address)| *address).collect());
    };
    endpoints(&replicas);
    install(&client, service.address, &certificates.ca, "Fail").await;

    let requests = Requests::default();
    let reviews = (0..3).map(|sender| {
        let (client, requests) = (&client, &requests);
        async move {
            let send = async |at: usize| {
                let name = format!("reviewed-{sender}-{at}");
                create(client, &name).await?;
                bind(client, &name, &format!("node-{}", at % NODES)).await
            };
            requests.repeat("a review", send).await;
        }
    });
    let kube_scheduler = clients.client("system:kube-scheduler", "system", in_seconds(7_200));
    let identity = format!("{}{}", kube_scheduler.key, kube_scheduler.certificate);
    let extended = (0..2).map(|sender| {
        let ca = reqwest::Certificate::from_pem(certificates.ca.as_bytes()).expect("a CA");
        let identity = reqwest::Identity::from_pem(identity.as_bytes()).expect("an identity");
        let http = reqwest::Client::builder().add_root_certificate(ca).identity(identity).build();
        let http = http.expect("a client");
        let (client, requests, url) = (&client, &requests, format!("https://{}/extender", service.address));
        let post = async move |verb: &str, body: Value| -> Result<Value, String> {
            let sent = http.post(format!("{url}/{verb}")).body(body.to_string()).send().await;
            let answer = sent.map_err(|error| berth_model::with_causes(&error))?;
            let (status, text) = (answer.status(), answer.text().await.map_err(|error| error.to_string())?);
            let answer: Value = serde_json::from_str(&text).map_err(|_| format!("{status}: {text}"))?;
            match answer["Error"].as_str().unwrap_or_default() {
                "" => Ok(answer),
                error => Err(error.to_owned()),
            }
        };
        async move {
            let send = async |at: usize| {
                let pod = create(client, &format!("extended-{sender}-{at}")).await?;
                let node = format!("node-{}", at % NODES);
                let answer = post("filter", json!({"Pod": pod, "NodeNames": [node]})).await?;
                if answer["NodeNames"] != json!([node]) {
                    return Err(format!("{node} is filtered out: {answer}"));
                }
                let meta = &pod.metadata;
                let binding =
                    json!({"PodName": meta.name, "PodNamespace": "default", "PodUID": meta.uid, "Node": node});
                post("bind", binding).await.map(|_| ())
            };
            requests.repeat("a request to the extender", send).await;
        }
    });
    // Their logs are printed if the test fails.
    let mut ended = Vec::new();
    let mut sent_in_each = Vec::new();
    let update = async {
        for _ in 0..2 * UPDATES {
            let before = requests.sent.load(Ordering::Relaxed);
            replicas.push(start().await);
            endpoints(&replicas);
            let (mut old, _) = replicas.remove(0);
            old.signal("TERM");
            tokio::time::sleep(ENDPOINTS_LAG).await;
            endpoints(&replicas);
            let status = old.wait().await;
            assert!(status.success(), "{}", old.log());
            ended.push(old);
            sent_in_each.push(requests.sent.load(Ordering::Relaxed) - before);
        }
        requests.stops.store(true, Ordering::Relaxed);
    };
    tokio::join!(join_all(reviews), join_all(extended), update);
    let (sent, slowest) = (requests.sent.load(Ordering::Relaxed), *requests.slowest.lock());
    println!("{sent} requests in {UPDATES} rolling updates, the slowest took {slowest:?}");
    let failed = requests.failed.lock();
    assert!(failed.is_empty(), "{} of {sent} failed: {:#?}", failed.len(), &failed[..failed.len().min(10)]);
    // Some in each of them, also on a busy machine.
    assert!(sent > 100, "{sent} requests");
    assert!(sent_in_each.iter().all(|sent| *sent > 0), "{sent_in_each:?} requests");
}
