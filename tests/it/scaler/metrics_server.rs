//! A cluster with a metrics server and without a Prometheus.

use super::*;
use jiff::Timestamp;

#[tokio::test(flavor = "multi_thread")]
async fn without_a_prometheus_memory_and_replicas_follow_the_metrics_server() {
    let values = "config: {scaling: {enabled: true}}";
    let cluster = prepare_with(values).await;
    let Cluster { client, control_plane, .. } = &cluster;
    recommender::create_crds(client).await;
    create_nodes(client, &Nodes { count: 2, ..Nodes::default() }).await;
    let _berth = Berth::start(
        &control_plane.kubeconfig_for(BERTH).expect("a kubeconfig"),
        "scaling: {enabled: true, interval: 1s}",
    );
    create_deployment(client, "web", 2, None).await;
    await_bound(client, SOON, 2, |_| true).await;
    let utilization = json!({"signal": {"type": "CpuUtilization", "target": "0.5"}});
    create_scaler(client, "web", json!({"dimensions": ["Memory", "Replicas"], "objectives": utilization}))
        .await;

    // Of 900m and 512 MiB.
    let uses = async |cpu: &str| {
        for pod in web_pods(client).await {
            recommender::measure(client, name_of(&pod), Timestamp::now(), cpu, "200Mi").await;
        }
    };
    await_until(SOON, "busy pods get company", async || {
        uses("800m").await;
        replicas(client).await > 2
    })
    .await;
    await_until(SOON, "the memory is lowered in place", async || {
        uses("450m").await;
        web_pods(client).await.iter().all(|pod| (229 << 20..231 << 20).contains(&memory_of(pod)))
    })
    .await;
    assert!(web_pods(client).await.iter().all(|pod| cpu_of(pod) == 900), "CPU is no dimension");
    await_until(SOON, "idle replicas go", async || {
        uses("10m").await;
        replicas(client).await == 2
    })
    .await;

    let objectives = json!({"spec": {"objectives": {"signal": {"type": "CpuThrottling", "target": "0.1"}}}});
    let scalers: Api<ServiceScaler> = Api::default_namespaced(client.clone());
    scalers.patch("web", &PatchParams::default(), &Patch::Merge(objectives)).await.expect("patched");
    await_until(SOON, "it says what is missing", async || {
        let status = status(client).await;
        let missing = status.conditions.iter().find(|condition| condition.type_ == "MetricsAvailable");
        missing.is_some_and(|it| it.status == "False" && it.message.contains("set recommender.prometheus"))
    })
    .await;
}
