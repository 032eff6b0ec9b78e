//! A service that has no replicas while there is no work.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_service_goes_to_zero_and_comes_back_with_the_work() {
    needs!("prometheus", "promtool");
    let web = start_web(2, usage::NOTHING).await;
    let client = &web.cluster.client;

    let queue = |length: u32| json!({"signal": {"type": "Query", "target": "30", "query": format!("vector({length})")}});
    let behavior =
        json!({"periodSeconds": 1, "historySeconds": 0, "scaleDown": {"stabilizationWindowSeconds": 2}});
    let scaler = json!({
        "dimensions": ["Replicas"], "objectives": queue(0), "behavior": behavior,
        "bounds": {"minReplicas": 0, "maxReplicas": 3},
    });
    create_scaler(client, "web", scaler).await;
    await_until(SOON, "the last replica goes", async || {
        let status = status(client).await;
        replicas(client).await == 0 && condition(&status, "Active") == Some(("True", "Idle"))
    })
    .await;

    let scalers: Api<ServiceScaler> = Api::default_namespaced(client.clone());
    let work = json!({"spec": {"objectives": queue(5)}});
    scalers.patch("web", &PatchParams::default(), &Patch::Merge(work)).await.expect("patched");
    await_until(SOON, "the first one comes", async || {
        let status = status(client).await;
        replicas(client).await == 1 && condition(&status, "Active") == Some(("True", "Scaling"))
    })
    .await;
}
