//! Dimensions other than CPU and memory, from a real Prometheus.

use std::fmt::Write;

use super::*;

/// Scrape interval of a minute, from five hours ago until half an hour after berth's query.
const STEP: i64 = 60;
const OLD_POD: &str = "web-5c5d5f7b9-old00";

/// The labels of a series, and its growth per second, or its value.
type Growing = (String, f64);

/// Returns cAdvisor's metrics of two pods: each interface and device is scraped by two jobs.
fn scraped(now: i64) -> String {
    let mut text = String::new();
    let mut family = |kind: &str, name: &str, suffix: &str, series: &[Growing]| {
        writeln!(text, "# TYPE {name} {kind}").expect("a text");
        for (labels, amount) in series {
            for step in 0..=330 {
                let (at, seconds) = (now - 300 * STEP + step * STEP, (step * STEP) as f64);
                let value = if kind == "counter" { 1e9 + amount * seconds } else { *amount };
                writeln!(text, "{name}{suffix}{{namespace=\"default\",{labels}}} {value} {at}")
                    .expect("a text");
            }
        }
    };
    let of = |labels: &dyn Fn(&str, &str) -> Vec<Growing>| -> Vec<Growing> {
        let pods = [POD, OLD_POD].into_iter();
        pods.flat_map(|pod| ["kubelet", "copy"].into_iter().flat_map(move |job| labels(pod, job))).collect()
    };
    let container = |amount: f64| {
        of(&|pod, job| vec![(format!(r#"pod="{pod}",job="{job}",container="app",id="a""#), amount)])
    };
    family("counter", "container_cpu_usage_seconds", "_total", &container(0.25));
    family("gauge", "container_memory_working_set_bytes", "", &container(3e8));
    let received = of(&|pod, job| {
        let part = |name: &str| format!(r#"pod="{pod}",job="{job}",interface="{name}",id="sandbox""#);
        vec![(part("eth0"), 1e6), (part("net1"), 2e6)]
    });
    family("counter", "container_network_receive_bytes", "_total", &received);
    let written = of(&|pod, job| {
        let part = |container: &str, device: &str| {
            format!(r#"pod="{pod}",job="{job}",container="{container}",device="{device}",id="b""#)
        };
        // The pod's total, which has no container, is ignored.
        vec![(part("app", "/dev/sda"), 4e5), (part("app", "/dev/sdb"), 6e5), (part("", "/dev/sda"), 7e8)]
    });
    family("counter", "container_fs_writes_bytes", "_total", &written);
    text + "# EOF\n"
}

async fn annotation(api: &Api<DynamicObject>, object: &str, name: &str) -> Option<String> {
    let object = api.get_opt(object).await.expect("objects can be read")?;
    object.metadata.annotations?.get(name).cloned()
}

async fn usage(client: &Client) -> Value {
    let text = annotation(&vpas(client), "web", "berth.dev/usage").await.unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

/// Returns the number of saved samples of the pods' network.
async fn kept(client: &Client) -> Option<u64> {
    let text = annotation(&checkpoints(client), "web-app", "berth.dev/dimensions").await?;
    let kept: Value = serde_json::from_str(&text).ok()?;
    kept["pod"]["networkReceive"]["totalSamplesCount"].as_u64()
}

#[tokio::test(flavor = "multi_thread")]
async fn network_and_disk_annotations_survive_restarts_and_are_written_only_on_change() {
    needs!("prometheus", "promtool");
    let prometheus = crate::usage::start(&scraped(Timestamp::now().as_second()), &[]).await;
    let control_plane = start_control_plane().await;
    let client = control_plane.client();
    create_crds(&client).await;
    create_nodes(&client, &Nodes::default()).await;
    create_workload(&client, "web", 1).await;
    create(&vpas(&client), vpa("web", "web", "berth")).await;

    // Full confidence immediately: bounds do not change any more.
    let config = |storage: &str| {
        format!(
            "recommender:
  {{enabled: true, interval: 1s, checkpointsInterval: 1s, storage: {storage},
   prometheus: {{url: '{}', historyLength: 3h, slice: 1h}},
   dimensions: [{{name: networkReceive, confidenceInterval: 1s}}, {{name: diskWrite, confidenceInterval: 1s}},
                {{name: files, metric: open_files}}]}}",
            prometheus.url
        )
    };
    let mut berth = Berth::start(&control_plane.kubeconfig(), &config("prometheus"));
    berth.await_ready().await;
    await_until(LIMIT, "the usage is reported", async || {
        let usage = usage(&client).await;
        usage["pod"]["networkReceive"].is_object() && usage["containers"]["app"]["diskWrite"].is_object()
    })
    .await;
    let told = usage(&client).await;
    // Interfaces and devices are summed, and none is counted twice.
    let (received, written) = (&told["pod"]["networkReceive"], &told["containers"]["app"]["diskWrite"]);
    for (estimate, used) in [(received, 3e6), (written, 1e6)] {
        let of = |bound: &str| estimate[bound].as_f64().expect("a number") / used;
        assert!((1.15..1.15 * 1.06).contains(&of("target")), "{told}");
        assert!(of("lowerBound") <= of("target") && of("target") <= of("upperBound"), "{told}");
        assert!(of("upperBound") < 1.15 * 1.2, "{told}");
        // Three hours of both pods.
        assert!(estimate["samples"].as_u64() >= Some(8), "{told}");
    }
    assert_eq!(told["containers"].as_object().map(|all| all.len()), Some(1), "{told}");
    await_until(LIMIT, "what is known is kept", async || kept(&client).await >= Some(8)).await;

    // A dimension without data is reported once, and counted.
    rounds(&berth, 2).await;
    let empty = r#"berth_recommender_dimension_reads_total{dimension="files",result="empty"}"#;
    assert!(berth.metric(empty).await >= 2.0);
    assert_eq!(berth.log().matches("no series of open_files").count(), 1, "{}", berth.log());

    // No new samples: nothing is written.
    let writes = r#"berth_recommender_usage_writes_total{result="done"}"#;
    let (before, text) = (berth.metric(writes).await, usage(&client).await);
    let samples = r#"berth_recommender_dimension_samples_total{dimension="networkReceive",result="done"}"#;
    let taken = berth.metric(samples).await;
    rounds(&berth, 4).await;
    assert!(berth.metric(samples).await >= taken + 2.0);
    assert_eq!(berth.metric(writes).await, before);
    assert_eq!(usage(&client).await, text);

    // A restart that reads no history.
    assert!(berth.terminate().await.success());
    let samples = kept(&client).await.expect("it is kept");
    let mut berth = Berth::start(&control_plane.kubeconfig(), &config("checkpoint"));
    berth.await_ready().await;
    await_until(LIMIT, "samples are added to those of before", async || kept(&client).await > Some(samples))
        .await;
    assert_eq!((berth.metric(writes).await, usage(&client).await), (0.0, text), "it knows what it knew");
    assert!(!berth.log().contains("invalid"), "{}", berth.log());

    // The saved state is corrupt: measuring starts from zero.
    assert!(berth.terminate().await.success());
    let corrupt =
        json!({"metadata": {"annotations": {"berth.dev/dimensions": r#"{"pod":{"networkReceive":7}}"#}}});
    let (api, params) = (checkpoints(&client), PatchParams::default());
    api.patch("web-app", &params, &Patch::Merge(&corrupt)).await.expect("the checkpoint is patched");
    let berth = Berth::start(&control_plane.kubeconfig(), &config("checkpoint"));
    berth.await_ready().await;
    await_until(LIMIT, "measuring starts from zero", async || {
        kept(&client).await.is_some_and(|count| (1..samples).contains(&count))
    })
    .await;
    assert!(berth.log().contains("a dimension of a checkpoint is invalid"), "{}", berth.log());
}
