//! A ServiceScaler that was just created: it does no harm.

use std::fmt::Write;

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
    let web = start_web(5, usage::NOTHING).await;
    let (client, load) = (&web.cluster.client, &web.load);

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

/// Samples of the last 26 hours of a pod that is gone: it used the most memory nine hours ago.
fn past_of(pod: &str) -> String {
    let now = jiff::Timestamp::now().as_second();
    let (mut cpu, mut memory) = (String::new(), String::new());
    for at in (now - 26 * 3_600..now - 60).step_by(300) {
        let labels = format!(r#"{{namespace="default",pod="{pod}",container="app",job="kubelet"}}"#);
        let hours_ago = (now - at) / 3_600;
        let bytes = if hours_ago == 9 { 300 << 20 } else { 100 << 20 };
        writeln!(cpu, "container_cpu_usage_seconds_total{labels} {} {at}", (at - now + 100_000) / 10)
            .unwrap();
        writeln!(memory, "container_memory_working_set_bytes{labels} {bytes} {at}").unwrap();
    }
    format!(
        "# TYPE container_cpu_usage_seconds counter\n{cpu}# TYPE container_memory_working_set_bytes gauge\n{memory}# EOF\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_whose_past_prometheus_knows_shrinks_at_once_and_not_below_its_peak() {
    needs!("prometheus", "promtool");
    let web = start_web(5, &past_of("web-55c8f9d7b4-x2k4p")).await;
    let client = &web.cluster.client;
    let behavior = json!({
        "periodSeconds": 1, "windowSeconds": 10, "scaleDown": {"stabilizationWindowSeconds": 2},
    });
    create_scaler(client, "web", json!({"behavior": behavior})).await;
    await_until(SOON, "memory shrinks", async || {
        web_pods(client).await.iter().any(|pod| memory_of(pod) < 512 << 20)
    })
    .await;
    await_until(SOON, "replicas are removed", async || replicas(client).await < 5).await;
    let peak_and_room = 345 * (1 << 20);
    assert!(web_pods(client).await.iter().all(|pod| memory_of(pod) >= peak_and_room), "the past had a peak");

    // The same is told of the last day, from the usage of then.
    let explain = std::process::Command::new(env!("CARGO_BIN_EXE_berth"))
        .args(["explain", "servicescaler/web", "-o", "json", "--prometheus-url", &web.prometheus.url])
        .arg("--kubeconfig")
        .arg(web.cluster.control_plane.kubeconfig())
        .output()
        .expect("it runs");
    assert!(explain.status.success(), "{}", String::from_utf8_lossy(&explain.stderr));
    let reasons: Value = serde_json::from_slice(&explain.stdout).expect("JSON");
    assert_eq!((&reasons["target"], &reasons["dryRun"]), (&json!("Deployment/web"), &json!(false)));
    assert!(reasons["decision"].as_str().is_some_and(|decision| !decision.is_empty()), "{reasons}");
    let memory = &reasons["lastDay"][0]["memory"];
    let (highest, samples) = (memory["highest"].as_i64(), memory["samples"].as_i64());
    assert!(highest.is_some_and(|bytes| bytes >= peak_and_room) && samples > Some(1_000), "{reasons}");
    assert_eq!(memory["above"], 0, "{reasons}");
}
