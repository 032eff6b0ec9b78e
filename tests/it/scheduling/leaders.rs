//! Several berth processes: one schedules, and another takes over when it ends, gracefully or not.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;

use super::audit::{Audit, Request};
use super::*;

const QUICK: &str = "leaderElection: {leaseDuration: 3s, renewDeadline: 2s, retryPeriod: 500ms}";
/// Long enough that a leader within seconds must have been given the lease.
const SLOW: &str = "leaderElection: {leaseDuration: 60s, renewDeadline: 40s, retryPeriod: 500ms}";
const PODS: usize = 600;

async fn start_cluster(audit: &Audit, users: &[&str]) -> TestControlPlane {
    let cluster = start_control_plane_with(audit.options(users)).await;
    let nodes = Nodes { count: 2 * PODS / 40 + 1, ..Nodes::default() };
    create_nodes(&cluster.client(), &nodes).await;
    cluster
}

/// A process whose requests the audit log has under this name.
fn start(cluster: &TestControlPlane, user: &str, config: &str) -> Berth {
    Berth::start(&cluster.kubeconfig_for(user).expect("a user of the cluster"), config)
}

async fn await_leader(berth: &Berth, limit: Duration) {
    await_until(limit, "the process leads", async || berth.leads().await).await;
}

async fn create_burst(client: &Client, prefix: &'static str) {
    let pods = Pods { prefix, count: PODS, ..Pods::default() };
    create_pods(client, &pods, |_, _| {}).await;
}

/// Panics unless the API server carried out exactly one bind for each of `pods` pods. It records a bind as failed,
/// though it was carried out, when the sender is killed before the answer: there may be `cut_off` of these.
fn assert_bound_once(audit: &Audit, pods: usize, cut_off: usize) {
    let (carried_out, others): (Vec<_>, Vec<_>) =
        (audit.requests().into_iter()).filter(Request::is_bind).partition(Request::succeeded);
    let names: BTreeSet<&str> = carried_out.iter().map(Request::name).collect();
    assert_eq!(carried_out.len(), names.len(), "a pod was bound twice");
    let failed: BTreeSet<&str> = others.iter().map(Request::name).collect();
    assert!(
        names.union(&failed).count() == pods && names.len() + cut_off >= pods,
        "{} of {pods} pods were bound; other requests: {others:?}",
        names.len()
    );
}

/// Returns when another candidate may acquire the current lease, if it is not renewed.
async fn lease_expires(client: &Client) -> Timestamp {
    let api: Api<Lease> = Api::namespaced(client.clone(), "kube-system");
    let spec = api.get("berth").await.expect("the lease").spec.expect("its spec");
    let lasts = spec.lease_duration_seconds.expect("a duration");
    spec.renew_time.expect("renewed").0 + SignedDuration::from_secs(lasts.into())
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_leader_is_killed_or_frozen_in_a_burst_another_one_goes_on() {
    let audit = Audit::new();
    let cluster = start_cluster(&audit, &["a", "b", "c"]).await;
    let _quiet = quiet_turn().await;
    let client = cluster.client();
    let log = BindLog::start(&client);
    // One bind at a time makes the burst long, and leaves at most one request in transit before a freeze.
    let config = format!("bindsInFlight: 1\n{QUICK}");
    let mut a = start(&cluster, "a", &config);
    await_leader(&a, SOON).await;
    let b = start(&cluster, "b", &config);
    b.await_ready().await;
    assert!(!b.leads().await);

    tokio::join!(create_burst(&client, "first"), async {
        log.await_len(SOON, 50).await;
        a.kill();
    });
    assert!(log.len() < PODS, "the burst was over before the leader was killed");
    let expires = lease_expires(&client).await;
    await_leader(&b, SOON).await;
    log.await_len(SOON, PODS).await;
    let first = audit.requests().into_iter().find(|it| it.is_bind() && it.user() == "b");
    let first = first.expect("b binds").at();
    let took = first.duration_since(expires);
    println!("the first bind of the new leader came {took:?} after the lease expired");
    assert!(took.as_secs_f64() < 2.0, "{took:?}");
    b.await_settled(SOON, PODS).await;
    assert!(audit.binds_of("a") > 0 && audit.binds_of("b") > 0);
    assert_bound_once(&audit, PODS, 1);
    assert_no_overcommit(&client).await;

    let c = start(&cluster, "c", &config);
    c.await_ready().await;
    assert!(!c.leads().await);
    tokio::join!(create_burst(&client, "second"), async {
        log.await_len(SOON, PODS + 50).await;
        b.signal("STOP");
    });
    assert!(log.len() < 2 * PODS, "the burst was over before the leader was frozen");
    await_leader(&c, SOON).await;
    log.await_len(SOON, PODS + 100).await;
    // `BERTH_PAUSE=60` for a minute.
    let pause = std::env::var("BERTH_PAUSE").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(0);
    tokio::time::sleep(Duration::from_secs(pause)).await;
    b.signal("CONT");
    log.await_len(SOON, 2 * PODS).await;
    c.await_settled(SOON, 2 * PODS).await;
    b.await_settled(SOON, 2 * PODS).await;
    assert!(c.leads().await && !b.leads().await);
    assert_bound_once(&audit, 2 * PODS, 1);
    assert_no_overcommit(&client).await;
    log.assert_none_moved();

    let requests = audit.requests();
    let takeover = requests.iter().find(|it| it.is_lease() && it.user() == "c" && it.succeeded());
    let takeover = takeover.expect("c has the lease").at();
    let late = requests.iter().filter(|it| it.is_bind() && it.user() == "b" && it.at() > takeover);
    let late: Vec<_> = late.collect();
    assert!(late.is_empty(), "b went on binding after c took over: {late:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminating_leader_settles_its_binds_and_releases_the_lease() {
    let audit = Audit::new();
    let cluster = start_cluster(&audit, &["a", "b"]).await;
    let quiet = quiet_turn().await;
    let client = cluster.client();
    let log = BindLog::start(&client);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let estimates = folder.path().join("estimates.json");
    let with_estimates = format!("estimatorFile: {}\nbindsInFlight: 4\n{SLOW}", estimates.display());
    let mut a = start(&cluster, "a", &with_estimates);
    await_leader(&a, SOON).await;
    let b = start(&cluster, "b", SLOW);
    b.await_ready().await;

    let ((), status) = tokio::join!(create_burst(&client, "web"), async {
        log.await_len(SOON, 100).await;
        a.terminate().await
    });
    assert_eq!(status.code(), Some(0), "{}", a.log());
    let at_the_end = audit.binds_of("a");
    assert!(at_the_end < PODS, "the burst was over before the leader ended");
    assert!(a.log().contains("berth stopped"), "{}", a.log());
    assert!(!a.log().contains("result is unknown"), "every bind was settled:\n{}", a.log());
    await_leader(&b, Duration::from_secs(5)).await;
    drop(quiet);
    log.await_len(SOON, PODS).await;
    b.await_settled(SOON, PODS).await;
    assert_eq!(audit.binds_of("a"), at_the_end, "a bound after its end");
    assert_bound_once(&audit, PODS, 0);
    assert_no_overcommit(&client).await;

    // Its estimates are saved, loaded by the next process, and kept by one that measures nothing.
    let measured = std::fs::read_to_string(&estimates).expect("the estimates are saved");
    let mut again = start(&cluster, "a", &with_estimates);
    again.await_ready().await;
    assert!(again.terminate().await.success());
    assert!(!again.log().contains("measuring latencies from scratch"), "{}", again.log());
    assert_eq!(std::fs::read_to_string(&estimates).expect("still there"), measured);
    std::fs::write(&estimates, "no estimates").expect("written");
    let broken = start(&cluster, "a", &with_estimates);
    broken.await_ready().await;
    assert!(broken.log().contains("invalid estimator file"), "{}", broken.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_quiet_cluster_a_new_leader_knows_all_binds_without_reading_them() {
    const BOUND: usize = 1_100;
    let audit = Audit::new();
    let cluster = start_cluster(&audit, &["a", "b"]).await;
    let client = cluster.client();
    let bound = Pods { prefix: "bound", count: BOUND, scheduler: "other", ..Pods::default() };
    create_pods(&client, &bound, |index, pod| {
        pod["spec"]["nodeName"] = json!(format!("node-{}", index % PODS / 20));
    })
    .await;
    let mut a = start(&cluster, "a", QUICK);
    await_leader(&a, SOON).await;
    let b = start(&cluster, "b", QUICK);
    b.await_ready().await;
    a.kill();
    await_leader(&b, SOON).await;
    let log = b.log();
    let known = log.lines().find(|line| line.contains("existing binds are known")).expect("logged");
    println!("{known}");
    // More pods are bound than one page of a list has, and no change of a pod tells how far the watch is.
    assert!(known.contains("by=\"a short watch\""), "{known}");
    create_pods(&client, &Pods { prefix: "next", ..Pods::default() }, |_, _| {}).await;
    await_until(SOON, "the next pod is bound", async || audit.binds_of("b") == 1).await;
}
