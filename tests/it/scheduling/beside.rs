//! berth next to a real kube-scheduler: two schedulers, one set of nodes.

use super::*;

const NODES: usize = 20;
/// Pods of 100 milli CPU that fit on one node of 4 CPUs.
const SLOTS: usize = 40;
/// After this, every watch has received every bind. Ten times what a busy test machine needs.
const SEEN_BY_ALL: Duration = Duration::from_secs(3);

async fn create_small_pods(client: &Client, prefix: &'static str, scheduler: &'static str, count: usize) {
    let pods = Pods { prefix, count, scheduler, requests: json!({"cpu": "100m"}), ..Pods::default() };
    // Like the pods of a Deployment.
    create_pods(client, &pods, |_, pod| {
        pod["metadata"]["labels"] = json!({"app": prefix, "pod-template-hash": "5d4f8c7b9"});
    })
    .await;
}

/// Panics if berth put a pod on a node that was full as far as berth could know: with its own pods, which it always
/// knows, and pods of other schedulers that every watch had received.
fn assert_berth_never_overcommits_what_it_can_see(log: &BindLog) {
    let binds = log.binds();
    for (at, bind) in binds.iter().enumerate().filter(|(_, bind)| bind.scheduler == "berth") {
        let known = |other: &&Bound| {
            other.node == bind.node && (other.scheduler == "berth" || other.at + SEEN_BY_ALL < bind.at)
        };
        let before = binds[..at].iter().filter(known).count();
        assert!(before < SLOTS, "{bind:?} is the {}th pod there", before + 1);
    }
}

/// Two schedulers share no commit point: the API server does not check capacity, so any two schedulers that place at the
/// same moment can overcommit a node. The guarantees asserted here:
///
/// 1. While both place at once, each prefers the emptiest node of its view, which always has its own pods. Even
///    if each saw none of the other's pods, it would give every node its own even share, 12 pods; 24 are far below the 40
///    that fit. A partly stale view misses only the other's pods in flight, which are fewer.
/// 2. When kube-scheduler has settled, berth fills the rest exactly to the brim, not one pod more or less, while
///    kube-scheduler is kept busy with unschedulable pods.
/// 3. No single placement of berth overcommits a node according to the pods visible at that time.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_shared_with_kube_scheduler_are_filled_to_the_brim_and_never_overcommitted() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    create_nodes(&client, &Nodes { count: NODES, ..Nodes::default() }).await;
    let log = BindLog::start(&client);
    let _kube_scheduler = cluster.start_scheduler("", &[]).await.expect("kube-scheduler starts");
    let berth = Berth::start(&cluster.kubeconfig(), "");
    berth.await_ready().await;

    let each = NODES * 12;
    tokio::join!(
        create_small_pods(&client, "theirs", "default-scheduler", each),
        create_small_pods(&client, "ours", "berth", each),
    );
    log.await_len(SOON, 2 * each).await;
    assert_no_overcommit(&client).await;

    // Both know where everything is once berth counts it; kube-scheduler gets nothing that fits any more.
    berth.await_settled(SOON, 2 * each).await;
    let (slots, left_over) = (NODES * SLOTS, 50);
    let large = Pods {
        prefix: "large",
        count: 100,
        scheduler: "default-scheduler",
        requests: json!({"cpu": "3"}),
        ..Pods::default()
    };
    let rest = slots - 2 * each + left_over;
    tokio::join!(create_pods(&client, &large, |_, _| {}), create_small_pods(&client, "rest", "berth", rest),);
    log.await_len(SOON, slots).await;
    let parked = r#"scheduler_pending_pods{queue="unschedulable"}"#;
    await_until(SOON, "the pods that are left over are parked", async || {
        berth.metric(parked).await == left_over as f64
    })
    .await;
    let message = format!(
        "0/{NODES} nodes are available: {NODES} Insufficient cpu. no new claims to deallocate, preemption: 0/{NODES} nodes are available: \
         {NODES} No preemption victims found for incoming pod."
    );
    await_until(SOON, "all remaining pods have their condition", async || {
        let told = |pod: &Pod| scheduled_condition(pod).is_some_and(|(_, _, told)| told == message);
        let pods = all_pods(&client).await;
        pods.iter().filter(|pod| name_of(pod).starts_with("rest-") && told(pod)).count() == left_over
    })
    .await;
    assert_no_overcommit(&client).await;
    assert_berth_never_overcommits_what_it_can_see(&log);

    // Room freed by pods of the other scheduler is filled again, by the same number.
    delete_pods(&client, (0..30).map(|at| format!("theirs-{at}"))).await;
    log.await_len(SOON, slots + 30).await;
    await_until(SOON, "one parked pod per deleted pod is placed", async || {
        berth.metric(parked).await == (left_over - 30) as f64
    })
    .await;
    assert_no_overcommit(&client).await;
    assert_eq!(log.len(), slots + 30);
    log.assert_none_moved();
}
