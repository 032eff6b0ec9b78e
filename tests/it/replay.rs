//! `berth replay`, of what berth recorded on a real API server.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::explain::live::dump;
use crate::explain::{Ran, run};
use crate::support::*;

const SOON: Duration = Duration::from_secs(60);

fn replay(file: &Path, options: &[&str]) -> Ran {
    run(Command::new(env!("CARGO_BIN_EXE_berth")).arg("replay").arg(file).args(options), b"")
}

/// Returns the recordings in a folder.
fn recordings(folder: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder).expect("a folder");
    let mut files: Vec<_> = files.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    files
}

/// Pods that come and go, that fit nowhere, and that preempt others.
async fn live(cluster: &TestControlPlane, berth: &Berth) {
    let client = cluster.client();
    for at in 0..4 {
        let allocatable = json!({"cpu": "5", "memory": "8Gi", "pods": "40"});
        create_node(&client, &format!("n{at}"), allocatable, json!({})).await;
    }
    let pods = |prefix, count, cpu: &str| Pods {
        prefix,
        count,
        requests: json!({"cpu": cpu, "memory": "64Mi"}),
        ..Pods::default()
    };
    create_pods(&client, &pods("web", 40, "100m"), |_, _| {}).await;
    create_pods(&client, &pods("db", 12, "900m"), |_, pod| {
        pod["spec"]["affinity"] = json!({"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{
            "weight": 1,
            "podAffinityTerm": {"labelSelector": {"matchLabels": {"app": "db"}}, "topologyKey": "kubernetes.io/hostname"},
        }]}});
        pod["metadata"]["labels"] = json!({"app": "db"});
    })
    .await;
    await_bound(&client, SOON, 52, |_| true).await;
    create_pods(&client, &pods("huge", 3, "64"), |_, _| {}).await;
    create_pods(&client, &pods("late", 2, "3"), |_, pod| {
        pod["spec"]["priorityClassName"] = json!("system-cluster-critical");
    })
    .await;
    patch_node(&client, "n1", json!({"spec": {"unschedulable": true}})).await;
    delete_pods(&client, (0..10).map(|at| format!("web-{at}"))).await;
    create_pods(&client, &pods("more", 10, "100m"), |_, _| {}).await;
    await_bound(&client, SOON, 10, |pod| name_of(pod).starts_with("more")).await;
    await_until(SOON, "a block is written, after a second", async || {
        berth.metric("berth_recorded_bytes_total").await > 0.0
    })
    .await;
    assert_eq!(berth.metric("berth_recording").await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_recorded_is_decided_again_also_after_a_kill() {
    let cluster = start_control_plane().await;
    let folder = tempfile::tempdir().expect("a folder");
    let recorded = format!("recorder: {{enabled: true, directory: {}}}\nagents: 2", folder.path().display());
    let mut berth = Berth::start(&cluster.kubeconfig(), &recorded);
    berth.await_ready().await;
    live(&cluster, &berth).await;
    assert!(berth.terminate().await.success());
    let [file] = &recordings(folder.path())[..] else { panic!("one recording") };

    let ran = replay(file, &[]);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    assert!(ran.out.contains(" with 2 agents, over "), "{}", ran.out);
    assert!(ran.out.ends_with("every decision is the same\n"), "{}", ran.out);
    let ran = replay(file, &["-o", "json"]);
    let report: Value = serde_json::from_str(&ran.out).expect("JSON");
    assert_eq!(report["outcome"]["result"], "same");
    assert!(report["decisions"].as_u64().is_some_and(|decisions| decisions > 62), "{report}");
    assert_eq!(report["cutOff"], false);
    let lines = replay(file, &["--print"]).out;
    assert_eq!(lines.lines().count() as u64, 1 + report["entries"].as_u64().expect("a number"));
    assert_eq!(lines.matches("\"bind default/more-").count(), 10);

    // As one gets it from a container without a shell.
    let plain = folder.path().join("recording.jsonl");
    std::fs::write(&plain, replay(folder.path(), &["--print"]).out).expect("written");
    let ran = replay(&plain, &[]);
    assert!(ran.code == 0 && ran.out.ends_with("every decision is the same\n"), "{}{}", ran.out, ran.err);
    let config = folder.path().join("packed.yaml");
    std::fs::write(&config, "packing: MostAllocated").expect("written");
    let ran = replay(&plain, &["--config", config.to_str().expect("a path"), "-o", "json"]);
    let report: Value = serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {}", ran.err));
    assert_eq!(report["apiVersion"], "compare.berth.dev/v1");
    let of = |key: &str| ["asRecorded", "withConfig"].map(|run| report[run][key].as_f64().expect("a number"));
    assert_eq!(of("pods"), [67.0, 67.0]);
    let [spread, packed] = of("nodesInUse");
    assert!(packed < spread, "{report}");
    assert!(of("waiting").iter().all(|waiting| *waiting >= 3.0), "the huge ones: {report}");
    // As one shows it to others.
    let ran = replay(&plain, &["--print", "--anonymise"]);
    assert_eq!((ran.code, ran.out.lines().count()), (0, lines.lines().count()), "{}", ran.err);
    let names = [":\"default\"", "default/", "web-", "more-", "huge-", "\"db\""];
    names.into_iter().for_each(|name| assert!(!ran.out.contains(name), "{name}"));
    assert_eq!(ran.out.matches("\"bind n").count(), lines.matches("\"bind default/").count());
    std::fs::write(&plain, ran.out).expect("written");
    let ran = replay(&plain, &[]);
    assert!(ran.code == 0 && ran.out.ends_with("every decision is the same\n"), "{}{}", ran.out, ran.err);
    [&plain, &config].into_iter().for_each(|file| std::fs::remove_file(file).expect("removed"));

    let ran = replay(file, &["--against", file.to_str().expect("a path")]);
    assert!(ran.code == 0 && ran.out.ends_with("\nnothing became slower\n"), "{}{}", ran.out, ran.err);

    // It is killed, and starts again.
    let mut berth = Berth::start(&cluster.kubeconfig(), &recorded);
    berth.await_ready().await;
    let client = cluster.client();
    // They request nothing: the nodes may be full.
    let last = Pods { prefix: "last", count: 5, requests: json!({}), ..Pods::default() };
    create_pods(&client, &last, |_, _| {}).await;
    await_bound(&client, SOON, 5, |pod| name_of(pod).starts_with("last")).await;
    let known = berth.metric("berth_recorded_bytes_total").await;
    await_until(SOON, "the binds are recorded", async || {
        berth.metric("berth_recorded_bytes_total").await > known
    })
    .await;
    berth.kill();
    let [_, killed] = &recordings(folder.path())[..] else {
        panic!("the latest of the earlier ones is kept")
    };
    let ran = replay(file, &["--against", killed.to_str().expect("a path"), "-o", "json"]);
    let report: Value = serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {}", ran.err));
    assert_eq!(report["apiVersion"], "against.berth.dev/v1");
    let of = |key: &str| ["before", "after"].map(|which| report[which][key].as_f64().expect("a number"));
    let [before, after] = of("placed");
    assert!(before >= 62.0 && after >= 5.0, "{report}");
    // They come one by one.
    assert!(of("nodes").iter().all(|nodes| *nodes > 1.0 && *nodes <= 4.0), "{report}");
    let ran = replay(killed, &["-o", "json"]);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    let report: Value = serde_json::from_str(&ran.out).expect("JSON");
    assert!(report["decisions"].as_u64().is_some_and(|decisions| decisions >= 5), "{report}");
}

#[test]
fn what_is_no_recording_ends_with_what_is_wrong() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("dump.json");
    let missing = replay(&file, &[]);
    assert!(missing.code == 1 && missing.err.contains("cannot open "), "{}", missing.err);
    std::fs::write(&file, "words").expect("written");
    for options in [&[][..], &["--print"][..]] {
        let other = replay(&file, options);
        assert!(other.code == 1 && other.err.contains("it is no recording of berth"), "{}", other.err);
    }
    std::fs::write(&file, "{}").expect("written");
    let name = file.to_str().expect("a path");
    for (options, why) in [
        (&["--print"][..], "dumps and traces have no decisions of berth"),
        (&["--nodes", name], "--nodes is for one trace of SimKube"),
        (&[folder.path().to_str().expect("a path")], "several files must be dumps of one cluster"),
        (&[], "an object without a kind"),
    ] {
        let refused = replay(&file, options);
        assert!(refused.code == 2 && refused.err.contains(why), "{}", refused.err);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dumps_in_sequence_say_what_another_scheduler_did_and_what_berth_would_have_done() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    create_nodes(&client, &Nodes { count: 4, cpu: "4", ..Nodes::default() }).await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.to_str().expect("a path").to_owned()
    };
    let first = file("1.json", dump(&client).await.as_bytes());
    let _kube_scheduler = cluster.start_scheduler("", &[]).await.expect("kube-scheduler starts");
    for (prefix, count, cpu) in [("web", 8, "500m"), ("huge", 1, "64")] {
        let requests = json!({"cpu": cpu});
        let pods = Pods { prefix, count, requests, scheduler: "default-scheduler", ..Pods::default() };
        create_pods(&client, &pods, |_, _| {}).await;
    }
    await_bound(&client, SOON, 8, |_| true).await;
    let second = file("2.json", dump(&client).await.as_bytes());
    let packed = file("packed.yaml", b"packing: MostAllocated");
    let answer = |ran: Ran| -> Value {
        assert_eq!(ran.code, 0, "{}", ran.err);
        serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {}", ran.out))
    };
    let report = answer(replay(Path::new(&first), &[&second, "--config", &packed, "-o", "json"]));
    assert_eq!(
        (&report["apiVersion"], &report["source"]),
        (&json!("history.berth.dev/v1"), &json!("2 dumps"))
    );
    let runs = report["runs"].as_array().expect("a list");
    let name = format!("with {packed}");
    assert_eq!([&runs[0]["name"], &runs[1]["name"]], [&json!("as it happened"), &json!(name)]);
    for run in runs {
        assert_eq!(
            (&run["pods"], &run["placed"], &run["waiting"]),
            (&json!(9), &json!(8), &json!(1)),
            "{run}"
        );
    }
    let text = replay(Path::new(&first), &[&second]).out;
    assert!(text.contains("as it happened  with the defaults\n"), "{text}");

    // The same cluster for a trace: there are no others but the eight pods.
    let template = json!({"metadata": {"labels": {"app": "db"}}, "spec": {"containers": [
        {"name": "c", "resources": {"requests": {"cpu": "2"}}},
    ]}});
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "db", "namespace": "default"},
        "spec": {"replicas": 7, "template": template},
    });
    let trace = json!({
        "version": 3, "config": {"trackedObjects": {"apps/v1.Deployment": {}}}, "index": {},
        "events": [
            {"ts": 1_700_000_000, "applied_objs": [deployment], "deleted_objs": []},
            {"ts": 1_700_000_060, "applied_objs": [], "deleted_objs": []},
        ],
    });
    let trace = file("trace.sktrace", &rmp_serde::to_vec_named(&trace).expect("MessagePack"));
    let refused = replay(Path::new(&trace), &[]);
    assert!(refused.code == 2 && refused.err.contains("a trace of SimKube has no nodes"), "{}", refused.err);
    let report = answer(replay(Path::new(&trace), &["--nodes", &second, "--config", &packed, "-o", "json"]));
    let runs = report["runs"].as_array().expect("a list");
    assert_eq!([&runs[0]["name"], &runs[1]["name"]], [&json!("with the defaults"), &json!(name)]);
    // Each node has at most 3 CPUs free, if kube-scheduler spread the others evenly.
    assert_eq!((&runs[0]["pods"], &runs[0]["placed"]), (&json!(8), &json!(4)), "{report}");
}
