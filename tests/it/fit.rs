//! `berth fit` as users run it: manifests against dumps made here, and against a real API server.

use std::io::Write as _;
use std::process::Command;
use std::time::{Duration, Instant};

use berth::fit::LiveFit;
use berth_scheduler::testing::with_engine;
use berth_server::fit::{FitQuestion, Fitter};
use serde_json::{Value, json};

use crate::explain::{Cluster, Ran, merged, pod, requests, run};
use crate::support::*;

/// Runs `berth fit` for these manifests on this cluster.
fn fit(cluster: &Cluster, manifests: &str, options: &[&str]) -> Ran {
    let mut dump = tempfile::NamedTempFile::new().expect("a file");
    dump.write_all(cluster.dump().as_bytes()).expect("written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
    let command = command.args(["fit", "-", "-f"]).arg(dump.path()).args(options);
    run(command, manifests.as_bytes())
}

/// Returns the report, and the exit code.
fn report(cluster: &Cluster, manifests: &str, options: &[&str]) -> (Value, i32) {
    let ran = fit(cluster, manifests, &[&["-o", "json"], options].concat());
    let report: Value = serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {}", ran.err));
    assert_eq!(report["apiVersion"], "fit.berth.dev/v1");
    assert_eq!(report["fits"] == true, ran.code == 0, "{}", ran.err);
    (report, ran.code)
}

fn deployment(name: &str, replicas: usize, cpu: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}}}\nspec:\n  replicas: {replicas}\n  selector: {{matchLabels: \
         {{app: {name}}}}}\n  template:\n    metadata: {{labels: {{app: {name}}}}}\n    spec:\n      containers:\n      - {{name: main, \
         image: pause, resources: {{requests: {{cpu: {cpu}}}}}}}\n"
    )
}

/// Returns how many pods of each workload were tried, and how many fit.
fn counts(report: &Value) -> Vec<(u64, u64)> {
    let workloads = report["workloads"].as_array().expect("workloads");
    let count = |workload: &Value, field: &str| workload[field].as_u64().expect("a number");
    workloads.iter().map(|workload| (count(workload, "pods"), count(workload, "fit"))).collect()
}

fn two_nodes() -> Cluster {
    Cluster::default().node("a", json!({})).node("b", json!({}))
}

#[test]
fn each_replica_has_its_node_and_the_rest_have_a_reason_and_a_remedy() {
    let (report, code) = report(&two_nodes(), &deployment("web", 3, "3"), &[]);
    assert_eq!((code, counts(&report)), (3, vec![(3, 2)]));
    let web = &report["workloads"][0];
    let nodes: Vec<_> = web["placements"].as_array().expect("a list").iter().map(|it| &it["node"]).collect();
    assert_eq!(nodes.len(), 2);
    assert!(nodes.contains(&&json!("a")) && nodes.contains(&&json!("b")), "{nodes:?}");
    let unplaced = &web["unplaced"][0];
    assert_eq!((&unplaced["pods"], &unplaced["pod"]), (&json!(1), &json!("web-2")));
    let message = unplaced["message"].as_str().expect("text");
    assert!(message.starts_with("0/2 nodes are available: 2 Insufficient cpu."), "{message}");
    let change = &unplaced["remedies"][0]["changes"][0];
    assert!(change.as_str().is_some_and(|change| change.contains("cpu")), "{unplaced}");
    let ran = fit(&two_nodes(), &deployment("web", 3, "3"), &[]);
    assert_eq!(ran.code, 3);
    let page = std::fs::read_to_string("docs/fit.md").expect("the page");
    assert!(
        page.contains(&format!("```\n{}```\n", ran.out)),
        "docs/fit.md shows other output than {}",
        ran.out
    );
}

#[test]
fn it_says_how_many_more_of_the_same_would_fit() {
    let both = format!("{}---\n{}", deployment("web", 2, "1"), deployment("api", 1, "2"));
    let (report, code) = report(&two_nodes(), &both, &["--max", "100"]);
    assert_eq!((code, counts(&report)), (0, vec![(2, 2), (1, 1)]));
    // The nodes have 3 and 1 cores left, for each workload alone.
    assert_eq!(report["workloads"][0]["more"], json!({"pods": 4, "atLimit": false}));
    assert_eq!(report["workloads"][1]["more"], json!({"pods": 1, "atLimit": false}));
    let (limited, _) = self::report(&two_nodes(), &both, &["--max", "3"]);
    assert_eq!(limited["workloads"][0]["more"], json!({"pods": 3, "atLimit": true}));
}

#[test]
fn pods_that_wait_already_come_first() {
    let cluster =
        two_nodes().pod("first", requests(json!({"cpu": "3"}))).pod("huge", requests(json!({"cpu": "9"})));
    let (report, _) = report(&cluster, &deployment("web", 2, "3"), &[]);
    assert_eq!(report["waiting"], json!({"placed": 1, "unplaced": 1}));
    assert_eq!(counts(&report), [(2, 1)]);
}

#[test]
fn what_fits_only_after_preemption_does_not_fit_and_its_victims_are_named() {
    let class =
        "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: high}\nvalue: 1000\n---\n";
    let high = deployment("web", 2, "3").replace("    spec:\n", "    spec:\n      priorityClassName: high\n");
    let cluster = two_nodes().bound("low", "a", requests(json!({"cpu": "2"})));
    let (found, code) = report(&cluster, &format!("{class}{high}"), &[]);
    assert_eq!((code, counts(&found)), (3, vec![(2, 1)]));
    let preempting = &found["workloads"][0]["preempting"];
    assert_eq!(preempting[0]["victims"], json!(["default/low"]), "{found}");
    assert_eq!(preempting[0]["node"], "a");
    let without = fit(&cluster, &high, &[]);
    assert!(without.err.contains("there is no priority class high"), "{}", without.err);
    assert!(
        without.out.contains("1 of 2 pods fits") && !without.out.contains("preempting"),
        "{}",
        without.out
    );
}

#[test]
fn a_quota_that_stops_pods_is_named() {
    let quota = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Quota", "metadata": {"name": "red"},
        "spec": {"namespaces": ["default"], "maximum": {"cpu": "2"}}});
    let (report, code) = report(&two_nodes().with(quota), &deployment("web", 3, "1"), &[]);
    assert_eq!((code, counts(&report)), (3, vec![(3, 2)]));
    let message = &report["workloads"][0]["unplaced"][0]["message"];
    assert!(message.as_str().is_some_and(|message| message.contains("quota red")), "{message}");
}

#[test]
fn members_of_a_gang_fit_together_or_not_at_all() {
    let gang = "apiVersion: berth.dev/v1alpha1\nkind: Allocation\nmetadata: {name: g}\nspec: {minimum: 3, selector: {matchLabels: {app: \
                web}}}\n---\n";
    let counts_with = |cpu: &str| {
        let (report, _) = report(&two_nodes(), &format!("{gang}{}", deployment("web", 3, cpu)), &[]);
        (counts(&report), report["workloads"][0]["unplaced"][0]["message"].clone())
    };
    assert_eq!(counts_with("2").0, [(3, 3)]);
    let (none, message) = counts_with("3");
    assert_eq!(none, [(3, 0)]);
    assert!(message.as_str().is_some_and(|message| !message.is_empty()), "{message}");
}

#[test]
fn every_kind_that_creates_pods_is_understood() {
    let template = "{metadata: {labels: {app: x}}, spec: {containers: [{name: c, image: i, resources: {limits: {cpu: 100m}}}]}}";
    let documents = [
        "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c, image: i}]}}"
            .to_owned(),
        format!(
            "{{apiVersion: apps/v1, kind: ReplicaSet, metadata: {{name: r}}, spec: {{replicas: 2, selector: {{matchLabels: {{app: x}}}}, template: {template}}}}}"
        ),
        format!(
            "{{apiVersion: apps/v1, kind: StatefulSet, metadata: {{name: s}}, spec: {{selector: {{matchLabels: {{app: x}}}}, template: {template}}}}}"
        ),
        format!(
            "{{apiVersion: batch/v1, kind: Job, metadata: {{name: j}}, spec: {{parallelism: 5, completions: 3, template: {template}}}}}"
        ),
        format!(
            "{{apiVersion: batch/v1, kind: CronJob, metadata: {{name: c}}, spec: {{jobTemplate: {{spec: {{parallelism: 2, template: {template}}}}}}}}}"
        ),
        format!(
            "{{apiVersion: jobset.x-k8s.io/v1alpha2, kind: JobSet, metadata: {{name: t}}, spec: {{replicatedJobs: [{{name: w, replicas: 2, template: {{spec: {{parallelism: 2, template: {template}}}}}}}]}}}}"
        ),
        format!(
            "{{apiVersion: v1, kind: List, items: [{{apiVersion: apps/v1, kind: DaemonSet, metadata: {{name: d}}, spec: {{template: {template}}}}}]}}"
        ),
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: ignored}}".to_owned(),
    ];
    let taint = json!([{"key": "team", "effect": "NoSchedule"}]);
    let cluster = two_nodes()
        .node("tainted", json!({"spec": {"taints": taint}}))
        .node("full", json!({"status": {"allocatable": {"cpu": "10m"}}}));
    let (report, code) = report(&cluster, &documents.join("\n---\n"), &[]);
    // The DaemonSet wants no pod on the tainted node, and one on the full node.
    assert_eq!(counts(&report), [(1, 1), (2, 2), (1, 1), (3, 3), (2, 2), (4, 4), (3, 2)]);
    assert_eq!(code, 3);
    let daemon = &report["workloads"][6]["unplaced"][0];
    assert_eq!(daemon["message"], "on node full: Insufficient cpu");
    let as_json = json!({"apiVersion": "v1", "kind": "List", "items": [pod("web", json!({}))]}).to_string();
    assert_eq!(counts(&self::report(&cluster, &as_json, &[]).0), [(1, 1)]);
}

#[test]
fn claims_of_a_stateful_set_are_created_with_its_pods() {
    let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "ssd"},
        "provisioner": "disk.example.com", "volumeBindingMode": "WaitForFirstConsumer",
        "allowedTopologies": [{"matchLabelExpressions": [{"key": "pool", "values": ["b"]}]}]});
    let set = "{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: db}, spec: {replicas: 2, selector: {matchLabels: {app: db}}, \
               volumeClaimTemplates: [{metadata: {name: data}, spec: {storageClassName: ssd, accessModes: [ReadWriteOnce], resources: \
               {requests: {storage: 1Gi}}}}], template: {metadata: {labels: {app: db}}, spec: {containers: [{name: c, image: i}]}}}}";
    let (found, code) = report(&two_nodes().with(class), set, &[]);
    assert_eq!((code, counts(&found)), (0, vec![(2, 2)]), "{found}");
    let placements = found["workloads"][0]["placements"].as_array().expect("a list");
    assert!(placements.iter().all(|placement| placement["node"] == "b"), "{found}");
    let (without, _) = report(&two_nodes(), set, &[]);
    assert_eq!(counts(&without), [(2, 0)]);
}

#[test]
fn what_pods_need_may_be_in_a_file_of_its_own() {
    let mut quota = tempfile::NamedTempFile::new().expect("a file");
    let maximum = "{apiVersion: berth.dev/v1alpha1, kind: Quota, metadata: {name: small}, \
                   spec: {namespaces: [default], maximum: {cpu: 1500m}}}";
    quota.write_all(maximum.as_bytes()).expect("written");
    let beside = [quota.path().to_str().expect("a path")];
    let (alone, _) = report(&two_nodes(), &deployment("web", 2, "1"), &[]);
    let (limited, code) = report(&two_nodes(), &deployment("web", 2, "1"), &beside);
    assert_eq!((counts(&alone), counts(&limited), code), (vec![(2, 2)], vec![(2, 1)], 3), "{limited}");
}

#[test]
fn bad_manifests_are_refused_with_their_document_and_what_is_wrong() {
    for (manifests, expected) in [
        ("", "- asks for no pods"),
        ("{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}", "- asks for no pods"),
        ("a: [", "- cannot be read"),
        ("{metadata: {name: a}}", "document 1 (without a kind): every manifest needs apiVersion and kind"),
        ("{kind: Pod, spec: {}}", "document 1 (Pod): metadata.name is missing"),
        ("{kind: Pod, metadata: {name: a}}", "document 1 (Pod a): the pod has no spec.containers"),
        ("{kind: Deployment, metadata: {name: a}, spec: {replicas: -1}}", "-1 is not a number of pods"),
        ("{kind: JobSet, metadata: {name: a}}", "spec.replicatedJobs is missing"),
        ("{kind: Pod, metadata: {name: a}, spec: {containers: [{resources: {requests: {cpu: x}}}]}}", ""),
    ] {
        let ran = fit(&two_nodes(), manifests, &[]);
        let is_refused = ran.code == 2 || ran.out.contains("0 of 1 pod");
        assert!(
            is_refused && ran.err.contains(expected),
            "{manifests:?}: {} {} {}",
            ran.code,
            ran.out,
            ran.err
        );
        assert!(ran.err.lines().count() <= 1, "one line for people: {}", ran.err);
    }
    let many = deployment("web", 1_000_000, "1");
    assert!(fit(&two_nodes(), &many, &[]).err.contains("at most 20000 are tried at once"));
}

#[test]
#[ignore = "a speed for release builds: cargo test --profile dist --test it -- --ignored fit::"]
fn a_hundred_manifests_on_a_dump_of_5000_nodes_and_50000_pods_are_answered_within_three_seconds() {
    let mut dump = tempfile::NamedTempFile::new().expect("a file");
    dump.write_all(crate::explain::speed::large().as_bytes()).expect("written");
    let cpu = |at: usize| format!("{}m", 100 + 50 * (at % 40));
    let manifests: Vec<String> =
        (0..100).map(|at| deployment(&format!("app-{at}"), 1 + at % 5, &cpu(at))).collect();
    for options in [&["-o", "json"][..], &["--max", "100"]] {
        let began = std::time::Instant::now();
        let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
        let command = command.args(["fit", "-", "-f"]).arg(dump.path()).args(options);
        let ran = run(command, manifests.join("---\n").as_bytes());
        let took = began.elapsed();
        assert_eq!(ran.code, 0, "{}", ran.err);
        println!("{options:?}: {took:?}");
        assert!(options[0] == "--max" || took < Duration::from_secs(3), "{took:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_it_says_of_a_running_cluster_is_what_berth_does_there() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    create_nodes(&client, &Nodes { count: 5, cpu: "4", ..Nodes::default() }).await;
    let berth = Berth::start(&cluster.kubeconfig(), "");
    let first = Pods { prefix: "first", count: 3, requests: json!({"cpu": "1500m"}), ..Pods::default() };
    create_pods(&client, &first, |_, _| {}).await;
    await_bound(&client, Duration::from_secs(60), 3, |_| true).await;
    let manifest = |at: usize| {
        let cpu = json!({"cpu": format!("{}m", 500 + 200 * at)});
        merged(pod(&format!("next-{at}"), requests(cpu)), json!({"metadata": {"uid": null}}))
    };
    let manifests: Vec<String> = (0..6).map(|at| manifest(at).to_string()).collect();
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
    let command = command.args(["fit", "-", "-o", "json", "--kubeconfig"]).arg(cluster.kubeconfig());
    let ran = run(command, manifests.join("\n").as_bytes());
    assert_eq!(ran.code, 0, "{} {}", ran.out, ran.err);
    let report: Value = serde_json::from_str(&ran.out).expect("JSON");
    let pods: kube::Api<k8s_openapi::api::core::v1::Pod> = kube::Api::namespaced(client.clone(), "default");
    for (at, workload) in report["workloads"].as_array().expect("a list").iter().enumerate() {
        let pod = serde_json::from_value(manifest(at)).expect("a pod");
        pods.create(&Default::default(), &pod).await.expect("created");
        await_bound(&client, Duration::from_secs(60), 4 + at, |_| true).await;
        let bound = pods.get(&format!("next-{at}")).await.expect("a pod");
        let node = bound.spec.and_then(|spec| spec.node_name);
        assert_eq!(workload["placements"][0]["node"].as_str(), node.as_deref(), "pod next-{at}");
    }
    drop(berth);
}

/// Asks a running berth.
async fn asked(berth: &Berth, manifests: &str, options: &[&str]) -> Ran {
    let server = format!("http://{}", berth.address().await);
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
    run(command.args(["fit", "-", "--server", &server]).args(options), manifests.as_bytes())
}

#[test]
fn a_running_berth_with_5000_nodes_and_50000_pods_answers_each_manifest_within_50_milliseconds() {
    with_engine(|engine, agent| {
        crate::ui::large_cluster(engine);
        crate::ui::complete_lists(engine);
        let live = LiveFit::new(engine.clone(), agent, "berth".into());
        let mut took = Vec::new();
        for at in 0..100 {
            let cpu = format!("{}m", 100 + 50 * (at % 40));
            let manifests = deployment(&format!("app-{at}"), 1 + at % 5, &cpu).into();
            let began = Instant::now();
            let answer = live.fit(&FitQuestion { manifests, namespace: "shop".to_owned(), more: 100 });
            took.push(began.elapsed());
            let report: Value = serde_json::from_slice(&answer.expect("an answer")).expect("JSON");
            assert_eq!(report["fits"], true, "{report}");
        }
        println!("the first: {:?}", took[0]);
        took.sort();
        println!("median {:?}, longest {:?}", took[50], took[99]);
        assert!(took[50] < Duration::from_millis(50), "{took:?}");
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_berth_answers_at_once_and_places_pods_as_it_said() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    create_nodes(&client, &Nodes { count: 5, cpu: "4", ..Nodes::default() }).await;
    let berth = Berth::start(&cluster.kubeconfig(), "");
    berth.await_ready().await;
    let first = Pods { prefix: "first", count: 3, requests: json!({"cpu": "1500m"}), ..Pods::default() };
    create_pods(&client, &first, |_, _| {}).await;
    await_bound(&client, Duration::from_secs(60), 3, |_| true).await;
    berth.await_settled(Duration::from_secs(60), 3).await;

    let web = deployment("web", 12, "1500m");
    let ran = asked(&berth, &web, &["-o", "json", "--max", "5"]).await;
    let report: Value = serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {}", ran.err));
    assert_eq!((ran.code, &report["apiVersion"]), (3, &json!("fit.berth.dev/v1")));
    // Two for each of the two empty nodes, and one for each of the others.
    assert_eq!(counts(&report), [(12, 7)]);
    assert_eq!(report["workloads"][0]["more"], json!({"pods": 0, "atLimit": false}));
    let message = report["workloads"][0]["unplaced"][0]["message"].as_str().expect("text");
    assert!(message.starts_with("0/5 nodes are available: 5 Insufficient cpu."), "{message}");
    let table = asked(&berth, &web, &[]).await;
    assert!(table.out.starts_with("Deployment default/web: 7 of 12 pods fit\n  on "), "{}", table.out);

    // A set brings its claims, and a gang fits together or not at all.
    let set = "{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: db}, spec: {replicas: 2, selector: {matchLabels: {app: db}}, \
               volumeClaimTemplates: [{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], storageClassName: none, resources: \
               {requests: {storage: 1Gi}}}}], template: {metadata: {labels: {app: db}}, spec: {containers: [{name: c, image: i}]}}}}";
    let ran = asked(&berth, set, &[]).await;
    assert!(
        ran.out.contains("db-0 and 1 more: ") && !ran.out.contains("persistentvolumeclaim"),
        "{}",
        ran.out
    );
    let gang = "apiVersion: berth.dev/v1alpha1\nkind: Allocation\nmetadata: {name: g}\nspec: {minimum: 12, selector: {matchLabels: \
                {app: web}}}\n---\n";
    let ran = asked(&berth, &format!("{gang}{web}"), &[]).await;
    assert!(ran.out.contains("0 of 12 pods fit"), "{}", ran.out);
    assert!(
        ran.out.replace("\n    ", " ").contains("default/g must place 12 pods at once; 7 fit"),
        "{}",
        ran.out
    );

    for (manifests, code, expected) in [
        ("a: [", 2, "cannot be read"),
        ("{kind: Pod, metadata: {name: a}}", 2, "the pod has no spec.containers"),
        ("{kind: ConfigMap, apiVersion: v1, metadata: {name: a}}", 2, "asks for no pods"),
    ] {
        let ran = asked(&berth, manifests, &[]).await;
        assert!(ran.code == code && ran.err.contains(expected), "{manifests}: {} {}", ran.code, ran.err);
    }
    for (result, expected) in [("answered", 4.0), ("refused", 2.0), ("busy", 0.0)] {
        let counted = berth.metric(&format!("berth_fit_questions_total{{result=\"{result}\"}}")).await;
        assert!((counted - expected).abs() < 0.5, "{result}: {counted}");
    }

    // Nothing of the questions was left behind.
    let later = Pods { prefix: "later", count: 7, requests: json!({"cpu": "1500m"}), ..Pods::default() };
    create_pods(&client, &later, |_, _| {}).await;
    await_bound(&client, Duration::from_secs(60), 10, |_| true).await;
    let full = asked(&berth, &deployment("web", 1, "1500m"), &[]).await;
    assert_eq!(full.code, 3, "{}", full.out);
}
