//! A ServiceScaler that was just created: it does no harm.

use super::*;

/// What a user writes, with these fields besides the target.
fn written(spec: Value) -> DynamicObject {
    let mut object = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "ServiceScaler", "metadata": {"name": "web"},
        "spec": {"target": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}},
    });
    for (key, value) in spec.as_object().expect("fields") {
        object["spec"][key] = value.clone();
    }
    serde_json::from_value(object).expect("an object")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_service_scaler_reports_what_it_would_do_and_then_shrinks_nothing_for_a_day() {
    needs!("prometheus", "promtool");
    let cluster = prepare().await;
    let Cluster { client, control_plane, .. } = &cluster;
    create_nodes(client, &Nodes { count: 2, ..Nodes::default() }).await;
    let load = Load::start(client).await;
    let prometheus = usage::start_scraping(load.address).await;
    load.set("web", 0.5);
    let _berth = berth_for(control_plane, &prometheus);
    create_deployment(client, "web", 5, None).await;
    await_bound(client, SOON, 5, |_| true).await;

    let gvk = GroupVersionKind::gvk("berth.dev", "v1alpha1", "ServiceScaler");
    let scalers: Api<DynamicObject> = Api::default_namespaced_with(
        client.clone(),
        &ApiResource::from_gvk_with_plural(&gvk, "servicescalers"),
    );
    let signal = json!({"signal": {"type": "CpuThrottling", "target": "0.1"}});
    let unbounded = written(json!({"objectives": signal}));
    let refused = scalers.create(&PostParams::default(), &unbounded).await.expect_err("without a maximum");
    assert!(refused.to_string().contains("requires bounds.maxReplicas"), "{refused}");

    let behavior = json!({"periodSeconds": 1, "windowSeconds": 10, "historySeconds": 0});
    let bounds = json!({"minReplicas": 2, "maxReplicas": 8});
    let scaler = written(json!({"objectives": signal, "bounds": bounds, "behavior": behavior}));
    scalers.create(&PostParams::default(), &scaler).await.expect("created");
    await_until(SOON, "it reports smaller sizes", async || {
        let status = status(client).await;
        let target = status.containers.first().and_then(|it| it.target.get("memory")?.parse::<u64>().ok());
        condition(&status, "Active") == Some(("False", "DryRun"))
            && target.is_some_and(|bytes| bytes < 400 << 20)
    })
    .await;
    let unchanged = async || {
        let pods = web_pods(client).await;
        pods.len() == 5 && pods.iter().all(|pod| cpu_of(pod) == 900) && replicas(client).await == 5
    };
    assert!(unchanged().await, "a dry run changes nothing");

    let acts = json!({"spec": {"dryRun": false, "behavior": {"historySeconds": null}}});
    scalers.patch("web", &PatchParams::default(), &Patch::Merge(acts)).await.expect("patched");
    await_until(SOON, "it reports why it does not shrink", async || {
        let status = status(client).await;
        condition(&status, "Active") == Some(("True", "Scaling"))
            && status.decision.contains("a size shrinks after 86400 s")
    })
    .await;
    let is_as_created = |pod: &Pod| cpu_of(pod) == 900 && memory_of(pod) == 512 << 20;
    assert!(web_pods(client).await.iter().all(is_as_created), "no size shrinks");

    // Growth waits for nothing.
    load.set("web", 6.0);
    await_until(SOON, "the service grows", async || {
        replicas(client).await > 5 || web_pods(client).await.iter().any(|pod| cpu_of(pod) > 900)
    })
    .await;
}
