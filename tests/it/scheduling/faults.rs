//! Faults of the API server: berth asks less and less often, says so, and goes on where it was.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use axum::http::{Method, StatusCode, Uri};

use super::*;

/// Status that a proxy answers with; 0: it passes requests on.
type Failing = Arc<AtomicU16>;

fn fate(failing: &Failing) -> Fate {
    match failing.load(Ordering::Relaxed) {
        0 => Fate::Pass,
        status => Fate::Refuse(StatusCode::from_u16(status).expect("a status")),
    }
}

fn is_watch(uri: &Uri) -> bool {
    uri.query().is_some_and(|query| query.split('&').any(|part| part == "watch=true"))
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_are_bound_once_when_an_api_server_that_answers_429_and_503_recovers() {
    const PODS: usize = 20;
    let cluster = start_control_plane().await;
    let client = cluster.client();
    create_nodes(&client, &Nodes { prefix: "node", count: 4, cpu: "8", ..Nodes::default() }).await;
    let log = BindLog::start(&client);
    let failing = Failing::default();
    let answer = failing.clone();
    let proxy = Flaky::start(client.clone(), move |_, _, _| fate(&answer)).await;
    let mut berth = Berth::start(&proxy.kubeconfig(), "");
    berth.await_ready().await;

    let before = proxy.requests().len();
    failing.store(429, Ordering::Relaxed);
    create_pods(&client, &Pods { prefix: "pod", count: PODS, ..Pods::default() }, |_, _| {}).await;
    await_until(SOON, "binds are refused by a busy API server", async || {
        berth.metric("berth_bind_busy_total").await >= 2.0 * PODS as f64
    })
    .await;
    failing.store(503, Ordering::Relaxed);
    await_until(SOON, "binds have an unknown outcome", async || {
        berth.metric("berth_bind_unknown_total").await >= PODS as f64
    })
    .await;
    let asked = proxy.requests().len() - before;
    assert!(asked < 20 * PODS, "{asked} requests for {PODS} pods during the outage");
    assert_eq!(berth.metric("berth_binds_pending").await, PODS as f64, "each keeps its room");

    failing.store(0, Ordering::Relaxed);
    await_bound(&client, SOON, PODS, |_| true).await;
    berth.await_settled(SOON, PODS).await;
    log.assert_none_moved();
    assert_no_overcommit(&client).await;
    assert!(berth.log().contains("the API server did not accept a bind"), "{}", berth.log());
    assert!(berth.terminate().await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_are_bound_while_every_watch_is_too_old_and_lists_become_rare() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    create_nodes(&client, &Nodes { prefix: "node", count: 4, cpu: "8", ..Nodes::default() }).await;
    let failing = Failing::new(410.into());
    let answer = failing.clone();
    let proxy = Flaky::start(client.clone(), move |_, _, uri| match is_watch(uri) {
        true => fate(&answer),
        false => Fate::Pass,
    })
    .await;
    let berth = Berth::start(&proxy.kubeconfig(), "");
    berth.await_ready().await;
    create_pods(&client, &Pods { prefix: "early", count: 5, ..Pods::default() }, |_, _| {}).await;
    await_bound(&client, SOON, 5, |_| true).await;
    await_until(SOON, "the watch of pods has expired four times", async || {
        berth.metric(r#"berth_watch_expired_total{resource="pods"}"#).await >= 4.0
    })
    .await;
    // The fourth list follows the first after 1 + 2 + 4 seconds: without pauses there would be hundreds by now.
    let is_list = |(method, uri): &(Method, Uri)| {
        method == Method::GET && uri.path() == "/api/v1/pods" && !is_watch(uri)
    };
    let lists = proxy.requests().iter().filter(|request| is_list(request)).count();
    assert!((4..=6).contains(&lists), "{lists} lists of pods");
    assert!(berth.log().contains("the watch expires right after its list each time"), "{}", berth.log());

    failing.store(0, Ordering::Relaxed);
    create_pods(&client, &Pods { prefix: "late", count: 5, ..Pods::default() }, |_, _| {}).await;
    await_bound(&client, SOON, 10, |_| true).await;
    berth.await_settled(SOON, 10).await;
    assert_no_overcommit(&client).await;
}
