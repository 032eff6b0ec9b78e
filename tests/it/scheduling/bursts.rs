//! Faults in the middle of a burst: every pod ends on one node, none is lost, no node is overcommitted.

use super::*;

/// Nodes with 40 places of the default request of [`Pods`], so that a burst leaves them nearly full.
async fn create_room_for(client: &Client, pods: usize) {
    create_nodes(client, &Nodes { count: pods / 40 + 1, ..Nodes::default() }).await;
}

/// Few binds at once: the burst takes hundreds of answers of the API server, however fast berth is.
const PACED: &str = "bindsInFlight: 4";

async fn create_burst(client: &Client, prefix: &'static str, count: usize) {
    let pods = Pods { prefix, count, ..Pods::default() };
    create_pods(client, &pods, |_, _| {}).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_deleted_and_made_again_under_their_names_while_they_are_bound_are_bound_once_each() {
    const PODS: usize = 200;
    let cluster = start_control_plane().await;
    let client = cluster.client();
    create_room_for(&client, PODS).await;
    let log = BindLog::start(&client);
    let berth = Berth::start(&cluster.kubeconfig(), "selfCheckInterval: 1s");
    berth.await_ready().await;
    // Three times: each pod of the first half is deleted and recreated as soon as it exists.
    for _ in 0..3 {
        create_burst(&client, "web", PODS).await;
        delete_pods(&client, (0..PODS / 2).map(|at| format!("web-{at}"))).await;
        create_burst(&client, "web", PODS / 2).await;
        await_bound(&client, SOON, PODS, |_| true).await;
        berth.await_settled(SOON, PODS).await;
        assert_no_overcommit(&client).await;
        delete_pods(&client, (0..PODS).map(|at| format!("web-{at}"))).await;
    }
    berth.await_settled(SOON, 0).await;
    log.assert_none_moved();

    let checks = r#"berth_self_checks_total{result="done"}"#;
    let before = berth.metric(checks).await;
    await_until(SOON, "another self-check is done", async || berth.metric(checks).await > before).await;
    assert_eq!(berth.metric("berth_self_check_healed_total").await, 0.0);
    assert_eq!(berth.metric(r#"berth_self_checks_total{result="failed"}"#).await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_berth_that_is_killed_in_a_burst_goes_on_where_it_was() {
    const PODS: usize = 1500;
    let cluster = start_control_plane().await;
    let client = cluster.client();
    create_room_for(&client, PODS).await;
    create_burst(&client, "web", PODS).await;
    let log = BindLog::start(&client);
    let mut killed_in_the_middle = 0;
    for bound in [200, 700] {
        let mut berth = Berth::start(&cluster.kubeconfig(), PACED);
        log.await_len(SOON, bound).await;
        berth.kill();
        killed_in_the_middle += usize::from(log.len() < PODS);
    }
    assert_eq!(killed_in_the_middle, 2, "the burst was over before berth was killed");
    let berth = Berth::start(&cluster.kubeconfig(), "");
    log.await_len(SOON, PODS).await;
    berth.await_settled(SOON, PODS).await;
    assert_no_overcommit(&client).await;
    assert_eq!(log.len(), PODS);
    log.assert_none_moved();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_goes_on_when_the_api_server_is_back() {
    const PODS: usize = 1200;
    let mut cluster = start_control_plane().await;
    let client = cluster.client();
    create_room_for(&client, PODS).await;
    create_burst(&client, "web", PODS).await;
    let log = BindLog::start(&client);
    let berth = Berth::start(&cluster.kubeconfig(), PACED);
    log.await_len(SOON, 200).await;
    cluster.kill_api_server();
    assert!(log.len() < PODS, "the burst was over before the API server was killed");
    await_until(SOON, "berth has seen binds without an answer", async || {
        berth.metric("berth_bind_unknown_total").await > 0.0
    })
    .await;
    cluster.restart_api_server().await.expect("the API server starts again");
    await_bound(&client, SOON, PODS, |_| true).await;
    berth.await_settled(SOON, PODS).await;
    assert_no_overcommit(&client).await;
    log.assert_none_moved();
    // It keeps working.
    create_burst(&client, "afterwards", 20).await;
    await_bound(&client, SOON, PODS + 20, |_| true).await;
}
