//! CPU cost of waiting gangs that do not fit, while pods come and go continuously.

use std::time::Instant;

use berth_telemetry::process::usage_of;
use k8s_openapi::api::core::v1::Pod;

use super::*;

const NODES: usize = 1_000;
const GANGS: usize = 100;
const MEMBERS: usize = 8;
const CHURN_FOR: Duration = Duration::from_secs(30);
/// Number of pods replaced at a time, and interval.
const CHURN: usize = 10;
const CHURN_EVERY: Duration = Duration::from_millis(500);

/// The share of a core that berth uses while pods come and go.
async fn share_while_pods_come_and_go(client: &Client, berth: &Berth, round: &'static str) -> f64 {
    let cpu = || usage_of(&berth.id().to_string()).expect("it runs").cpu;
    let (before, started) = (cpu(), Instant::now());
    let requests = json!({"cpu": "100m", "memory": "1Mi"});
    let mut next = tokio::time::interval(CHURN_EVERY);
    while started.elapsed() < CHURN_FOR {
        next.tick().await;
        let pods = Pods { prefix: round, count: CHURN, requests: requests.clone(), ..Pods::default() };
        create_pods(client, &pods, |_, _| {}).await;
        await_bound(client, SOON, CHURN, |pod| name_of(pod).starts_with(round)).await;
        delete_pods(client, (0..CHURN).map(|at| format!("{round}-{at}"))).await;
    }
    (cpu() - before).as_secs_f64() / started.elapsed().as_secs_f64()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures: .ci/long gangs"]
async fn a_hundred_gangs_that_do_not_fit_cost_little_while_they_wait() {
    let control_plane = start_control_plane().await;
    let client = control_plane.client();
    let kubectl = Kubectl::new(&control_plane).await;
    kubectl.install_kinds().await;
    create_nodes(&client, &Nodes { count: NODES, cpu: "4", ..Nodes::default() }).await;
    // Half a CPU is left everywhere.
    let full = Pods { prefix: "full", count: NODES, requests: json!({"cpu": "3500m"}), ..Pods::default() };
    create_pods(&client, &full, |at, pod| pod["spec"]["nodeName"] = json!(format!("node-{at}"))).await;
    let berth = Berth::start(&control_plane.kubeconfig(), "");
    berth.await_ready().await;
    let alone = share_while_pods_come_and_go(&client, &berth, "alone").await;

    for gang in 0..GANGS {
        let name = format!("gang-{gang}");
        let spec = json!({"minimum": MEMBERS, "selector": {"matchLabels": {"gang": name}}});
        apply(&allocations(&client), "berth.dev/v1alpha1", "Allocation", &name, spec).await;
    }
    let members =
        Pods { prefix: "member", count: GANGS * MEMBERS, requests: json!({"cpu": "1"}), ..Pods::default() };
    create_pods(&client, &members, |at, pod| {
        pod["metadata"]["labels"] = json!({"gang": format!("gang-{}", at / MEMBERS)});
    })
    .await;
    let is_told =
        |pod: &Pod| scheduled_condition(pod).is_some_and(|(_, reason, _)| reason == "Unschedulable");
    await_until(SOON, "all members have their condition", async || {
        all_pods(&client).await.iter().filter(|pod| is_told(pod)).count() == GANGS * MEMBERS
    })
    .await;
    let beside = share_while_pods_come_and_go(&client, &berth, "beside").await;
    println!(
        "{GANGS} gangs of {MEMBERS} that wait on {NODES} nodes while {:.0} pods a second come and go: {:.1} % of a core, \
         without them {:.1} %",
        CHURN as f64 / CHURN_EVERY.as_secs_f64(),
        100.0 * beside,
        100.0 * alone
    );
    assert!(beside - alone < 0.05, "they cost {:.1} % of a core", 100.0 * (beside - alone));
    assert!(
        all_pods(&client)
            .await
            .iter()
            .filter(|pod| name_of(pod).starts_with("member"))
            .all(|pod| node_of(pod).is_none())
    );
}
