//! Latency of the extender. The figures need an optimised build and a quiet machine:
//!
//! ```text
//! cargo build --profile dist
//! BERTH_BIN=target/dist/berth cargo test --test it extender::speed -- --ignored --nocapture
//! ```

use std::time::Instant;

use super::*;

const NODES: usize = 5_000;

/// Median and 99th percentile, in milliseconds.
fn percentiles(mut times: Vec<Duration>) -> (f64, f64) {
    times.sort();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    (at(0.5), at(0.99))
}

/// Seconds that berth spent on requests of these verbs.
async fn spent(berth: &Berth, verbs: &[&str]) -> f64 {
    let (_, text) = berth.get("/metrics").await;
    let of = |verb: &&str| {
        let name = format!(r#"berth_request_duration_seconds_sum{{verb="{verb}",result="success"}}"#);
        text.lines().find_map(|line| line.strip_prefix(&name)?.trim().parse::<f64>().ok()).unwrap_or(0.0)
    };
    verbs.iter().map(of).sum()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes, and needs a quiet machine"]
async fn five_thousand_nodes_are_judged_within_a_millisecond() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    create_nodes(&client, &Nodes { count: NODES, ..Nodes::default() }).await;
    let berth = Berth::start(&cluster.kubeconfig(), PLAIN);
    berth.await_ready().await;
    let names: Vec<_> = (0..NODES).map(|at| format!("node-{at}")).collect();
    let pod = json!({
        "metadata": {"name": "p", "namespace": "default", "uid": "u", "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "100m", "memory": "500Mi"}}}]},
    });
    let body = json!({"Pod": pod, "Nodes": null, "NodeNames": names}).to_string();
    let (http, url) = (reqwest::Client::new(), url_of(&berth).await);
    for verb in ["filter", "prioritize"] {
        let mut times = Vec::new();
        for at in 0..1_010 {
            let began = Instant::now();
            let answer =
                http.post(format!("{url}/{verb}")).body(body.clone()).send().await.expect("an answer");
            let length = answer.bytes().await.expect("a body").len();
            assert!(length > NODES * 8, "{length} bytes are not {NODES} nodes");
            // The first ones build the list and warm up.
            if at >= 10 {
                times.push(began.elapsed());
            }
        }
        let of_berth = spent(&berth, &[verb]).await / 1_010.0 * 1e3;
        let (median, p99) = percentiles(times);
        println!(
            "{verb}, {NODES} names: seen by the client p50 {median:.2} ms, p99 {p99:.2} ms; in berth {of_berth:.2} ms on average"
        );
        assert!(of_berth <= 1.0, "{verb}: {of_berth:.2} ms");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes, and needs a quiet machine"]
async fn kube_scheduler_spends_little_of_its_time_waiting_for_berth() {
    const PODS: usize = 5_000;
    let cluster = start_control_plane().await;
    let client = cluster.client();
    create_nodes(&client, &Nodes { count: NODES, ..Nodes::default() }).await;
    let berth = Berth::start(&cluster.kubeconfig(), PLAIN);
    berth.await_ready().await;
    let config = extended(&url_of(&berth).await, &json!({}));
    let _kube_scheduler = cluster.start_scheduler(&config, &[]).await.expect("kube-scheduler starts");
    let log = BindLog::start(&client);
    let pods = Pods { count: PODS, scheduler: "default-scheduler", ..Pods::default() };
    let began = Instant::now();
    create_pods(&client, &pods, |_, _| {}).await;
    log.await_len(Duration::from_secs(300), PODS).await;
    let took = began.elapsed().as_secs_f64();
    let judging = spent(&berth, &["filter", "prioritize"]).await;
    println!(
        "{PODS} pods in {took:.1} s ({:.0} a second); berth judged for {judging:.2} s, {:.1} % of the time",
        PODS as f64 / took,
        judging / took * 100.0
    );
    assert!(judging / took < 0.10, "the extender holds kube-scheduler up");
}
