//! What `berth recommend` must not miss: short peaks, OOM kills and autoscalers; and KRR's sizes, by KRR's own queries.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Value, json};

use super::{AT, HOUR, NOW, containers, recommend};
use crate::support::http;
use crate::usage::{Prometheus, start};

const DAYS: i64 = 3;
const SCRAPE_INTERVAL: i64 = 30;
/// KRR's step.
const STEP: i64 = 75;
const MI: i64 = 1 << 20;

/// Pod, container, cores and bytes over time.
type Usage = (&'static str, &'static str, fn(i64) -> f64, fn(i64) -> i64);

/// Ten minutes of each day, between two full hours.
fn is_peak(at: i64) -> bool {
    (1_200..1_800).contains(&(at.rem_euclid(86_400) - 9 * HOUR))
}

/// A value from 0 to 1 that looks random.
fn noise(at: i64) -> f64 {
    (at / SCRAPE_INTERVAL * 7_919 % 1_009) as f64 / 1_009.0
}

/// Two minutes of each hour.
fn is_burst(at: i64) -> bool {
    at.rem_euclid(HOUR) < 120
}

const USAGES: [Usage; 7] = [
    ("report-0", "app", |_| 0.1, |at| if is_peak(at) { 900 * MI } else { 300 * MI }),
    ("killed-0", "app", |_| 0.1, |_| 300 * MI),
    ("web-0", "app", |at| 0.2 + 0.3 * noise(at), |at| 300 * MI + (noise(at) * 1e8) as i64),
    ("web-1", "app", |at| 0.1 + 0.5 * noise(at + 17), |at| 200 * MI + (noise(at + 5) * 3e8) as i64),
    ("tiny-0", "app", |_| 0.001, |_| MI),
    ("bursty-0", "app", |at| if is_burst(at) { 1.5 } else { 0.05 }, |_| 150 * MI),
    ("growing-0", "app", |at| 0.2 + 0.1 * noise(at), |at| 200 * MI + (at - NOW + DAYS * 86_400) * MI / 1_000),
];

fn openmetrics() -> String {
    let [mut cpu, mut memory, mut owners, mut labelled, mut requests, mut limits] =
        [const { String::new() }; 6];
    let mut now = String::new();
    for (pod, container, cores, bytes) in USAGES {
        let labels = format!(r#"namespace="shop",pod="{pod}",container="{container}""#);
        let mut total = 0.0;
        for at in (NOW - DAYS * 86_400 - HOUR..=NOW).step_by(SCRAPE_INTERVAL as usize) {
            total += cores(at) * SCRAPE_INTERVAL as f64;
            writeln!(cpu, "container_cpu_usage_seconds_total{{{labels}}} {total} {at}").expect("a text");
            writeln!(memory, "container_memory_working_set_bytes{{{labels}}} {} {at}", bytes(at))
                .expect("a text");
        }
        let workload = pod.split_once('-').expect("an ordinal").0;
        for at in (NOW - DAYS * 86_400..=NOW).step_by(300) {
            let owner = format!(
                r#"{{namespace="shop",pod="{pod}",owner_kind="StatefulSet",owner_name="{workload}",owner_is_controller="true"}}"#
            );
            writeln!(owners, "kube_pod_owner{owner} 1 {at}").expect("a text");
            if pod.ends_with("-0") {
                let team = if workload == "report" { "b" } else { "a" };
                let labels = format!(r#"namespace="shop",statefulset="{workload}",label_team="{team}""#);
                writeln!(labelled, "kube_statefulset_labels{{{labels}}} 1 {at}").expect("a text");
            }
            for (resource, amount) in [("cpu", 1.0), ("memory", 1e9)] {
                let name = "kube_pod_container_resource_requests";
                writeln!(requests, "{name}{{{labels},resource=\"{resource}\"}} {amount} {at}")
                    .expect("a text");
            }
            if pod == "killed-0" {
                let name = "kube_pod_container_resource_limits";
                writeln!(limits, "{name}{{{labels},resource=\"memory\"}} {} {at}", 2_000 * MI)
                    .expect("a text");
            }
        }
    }
    // The kill of yesterday was forgotten with a later restart.
    let killed = "kube_pod_container_status_last_terminated_reason";
    writeln!(now, "# TYPE {killed} gauge").expect("a text");
    for at in (NOW - 30 * HOUR..NOW - 20 * HOUR).step_by(300) {
        let labels = r#"namespace="shop",pod="killed-0",container="app",reason="OOMKilled""#;
        writeln!(now, "{killed}{{{labels}}} 1 {at}").expect("a text");
    }
    let autoscaler = r#"namespace="shop",horizontalpodautoscaler="by-cpu""#;
    for (name, labels) in [
        (
            "kube_horizontalpodautoscaler_info",
            r#"scaletargetref_kind="StatefulSet",scaletargetref_name="web""#,
        ),
        (
            "kube_horizontalpodautoscaler_spec_target_metric",
            r#"metric_name="cpu",metric_target_type="utilization""#,
        ),
    ] {
        writeln!(now, "# TYPE {name} gauge\n{name}{{{autoscaler},{labels}}} 1 {NOW}").expect("a text");
    }
    format!(
        "# TYPE container_cpu_usage_seconds counter\n{cpu}# TYPE container_memory_working_set_bytes gauge\n{memory}\
         # TYPE kube_pod_owner gauge\n{owners}# TYPE kube_statefulset_labels gauge\n{labelled}# TYPE kube_pod_container_resource_requests gauge\n{requests}\
         # TYPE kube_pod_container_resource_limits gauge\n{limits}{now}# EOF\n"
    )
}

/// Advice by workload.
fn advice(prometheus: &Prometheus, more: &[&str]) -> (BTreeMap<String, Value>, String) {
    let base = ["--prometheus", &prometheus.url, "--at", AT, "--history", "3d", "-o", "json"];
    let ran = recommend(&[&base, more].concat());
    assert_eq!(ran.code, 0, "{}", ran.err);
    let found = containers(&ran.out);
    let name = |each: &Value| each["workload"].as_str().expect("a name").to_owned();
    (found.iter().map(|each| (name(each), each.clone())).collect(), ran.err)
}

/// Evaluates a query now; by pod.
async fn evaluate(prometheus: &Prometheus, query: &str) -> BTreeMap<String, f64> {
    let request = http().post(format!("{}/api/v1/query", prometheus.url));
    let answer =
        request.form(&[("query", query), ("time", &NOW.to_string())]).send().await.expect("an answer");
    let answer: Value = answer.json().await.expect("JSON");
    let results = answer["data"]["result"].as_array().unwrap_or_else(|| panic!("{answer}"));
    let row = |row: &Value| {
        let pod = row["metric"]["pod"].as_str().expect("a pod").to_owned();
        (pod, row["value"][1].as_str().expect("a value").parse().expect("a number"))
    };
    results.iter().map(row).collect()
}

/// KRR 1.x, strategy `simple`: cores and bytes by pod, by its queries.
async fn krr(prometheus: &Prometheus) -> (BTreeMap<String, f64>, BTreeMap<String, f64>) {
    let (selector, range) = (r#"{namespace="shop", container="app"}"#, format!("[{DAYS}d:{STEP}s]"));
    let cpu = format!(
        "quantile_over_time(0.95, max(rate(container_cpu_usage_seconds_total{selector}[{STEP}s])) by (container, pod, job){range})"
    );
    let memory = format!(
        "max_over_time(max(container_memory_working_set_bytes{selector}) by (container, pod, job){range})"
    );
    (evaluate(prometheus, &cpu).await, evaluate(prometheus, &memory).await)
}

/// Renders a chart whose template reads the values as docs/recommender.md says.
fn the_values_render(values: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let document = include_str!("../../../docs/recommender.md");
    let line = document.lines().find(|line| line.starts_with("resources: {{- dig ")).expect("the template");
    let template = line.replace("\"Deployment\" \"web\"", "\"StatefulSet\" \"killed\"");
    file("Chart.yaml", "apiVersion: v2\nname: shop\nversion: 0.1.0\n");
    file("values.yaml", "resources: {requests: {cpu: 5}}\n");
    file("templates/workload.yaml", &format!("kind: StatefulSet\n{template}\n"));
    let values = file("advice.yaml", values);
    let folder = folder.path().to_str().expect("a path");
    for (namespace, expected) in [("shop", "memory: 2400Mi"), ("other", "cpu: 5")] {
        let output =
            crate::chart::helm(&["template", "shop", folder, "--namespace", namespace, "-f", &values]);
        let (text, error) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(text.contains(expected), "{namespace}: {text}{error}");
    }
}

#[tokio::test]
async fn short_peaks_kills_and_autoscalers_are_not_missed_and_krrs_sizes_are_krrs() {
    needs!("prometheus", "promtool");
    let prometheus = start(&openmetrics(), &[]).await;
    let (vpa, notes) = advice(&prometheus, &[]);
    let memory = |workload: &str| vpa[workload]["memory"]["target"].as_i64().expect("bytes") / MI;
    // One sample an hour never sees the ten minutes.
    assert!(
        (1_035..1_150).contains(&memory("report")),
        "900 MiB, a bucket's width, and 15 %: {}",
        memory("report")
    );
    assert_eq!((memory("killed"), &vpa["killed"]["memory"]["reason"]), (2_400, &json!("oom-kill")));
    assert_eq!(
        vpa["killed"]["memory"]["limitTarget"].as_i64().expect("bytes") / MI,
        2_400 * 2_000 * MI / 1_000_000_000
    );
    assert_eq!(
        (&vpa["web"]["cpu"]["target"], &vpa["web"]["cpu"]["reason"], &vpa["web"]["horizontalPodAutoscaler"]),
        (&json!("?"), &json!("autoscaler"), &json!("by-cpu"))
    );
    assert!(vpa["web"]["memory"]["target"].is_i64() && notes.contains("--allow-hpa"), "{notes}");
    assert_eq!(vpa["tiny"]["memory"]["reason"], "minimum");

    let step = format!("{STEP}s");
    let as_krr = ["--strategy", "krr", "--limits", "memory-as-request", "--resolution", &step, "--allow-hpa"];
    let (ours, _) = advice(&prometheus, &as_krr);
    let (cores, bytes) = krr(&prometheus).await;
    println!("workload | CPU KRR | --strategy krr | vpa | memory KRR | --strategy krr | vpa");
    let (plain, _) = advice(&prometheus, &["--resolution", &step, "--allow-hpa"]);
    for workload in ["web", "report", "bursty", "growing", "tiny"] {
        let of_pods = |by_pod: &BTreeMap<String, f64>| {
            let own = by_pod.iter().filter(|(pod, _)| pod.starts_with(workload));
            own.map(|(_, value)| *value).fold(0.0, f64::max)
        };
        let cpu = ((of_pods(&cores) * 1_000.0).ceil() / 1_000.0).max(0.01);
        assert_eq!(ours[workload]["cpu"]["target"].as_f64(), Some(cpu), "{workload}");
        // KRR looks at every other sample only; berth at all.
        let memory = |bytes: f64| ((bytes * 1.15 / MI as f64).ceil() as i64 * MI).max(100 * MI);
        let memory_of_ours = ours[workload]["memory"]["target"].as_i64().expect("bytes");
        let theirs = memory(of_pods(&bytes));
        assert!(
            (theirs..=theirs + 5 * MI).contains(&memory_of_ours),
            "{workload}: {memory_of_ours}, KRR {theirs}"
        );
        // KRR: a limit of memory as its request, none of CPU.
        assert_eq!(&ours[workload]["memory"]["limitTarget"], &ours[workload]["memory"]["target"]);
        assert_eq!(ours[workload]["cpu"]["limitTarget"], Value::Null);
        println!(
            "{workload} | {cpu:.3} | {} | {} | {} | {} | {}",
            ours[workload]["cpu"]["target"],
            plain[workload]["cpu"]["target"],
            theirs / MI,
            memory_of_ours / MI,
            plain[workload]["memory"]["target"].as_i64().expect("bytes") / MI
        );
    }
    println!("killed: {} {}", ours["killed"]["memory"]["target"], plain["killed"]["memory"]["target"]);
    // KRR's figure for a container that was killed.
    assert_eq!(ours["killed"]["memory"]["target"].as_i64(), Some(2_500 * MI));
    // Coarser steps and other percentiles are told to Prometheus.
    let (median, _) = advice(&prometheus, &["--strategy", "krr", "--cpu-percentile", "50", "--allow-hpa"]);
    assert!(median["web"]["cpu"]["target"].as_f64() < ours["web"]["cpu"]["target"].as_f64());

    let base = ["--prometheus", &prometheus.url, "--at", AT, "--history", "3d"];
    let run = |more: &[&str]| recommend(&[&base, more].concat());
    assert!(run(&["--kind", "Deployment", "-o", "json"]).out.contains("\"containers\": []"));
    let priced = run(&["--prices", "20,2.5"]);
    assert!(priced.out.contains("they cost 156.30 -> "), "{}", priced.out);
    let commands = run(&["-o", "kubectl"]);
    let killed = "kubectl set resources --namespace=shop statefulset/killed --containers=app";
    assert!(commands.out.lines().any(|line| line.starts_with(killed)), "{}", commands.out);
    let page = run(&["-o", "html"]);
    assert_eq!(page.out.matches("class=\"spark\"").count(), 12, "two graphs of each of six workloads");

    let of_team = |team: &str| {
        let (found, _) = advice(&prometheus, &["--selector", team]);
        found.into_keys().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(of_team("team=b"), "report");
    assert_eq!(of_team("team in (a, c)"), "bursty growing killed tiny web");
    assert_eq!(of_team("team!=a"), "report");
    let unknown = run(&["--selector", "tier!=web"]);
    let remedy = "--metric-labels-allowlist=statefulsets=[tier]";
    assert!(unknown.code == 1 && unknown.err.contains(remedy), "{}", unknown.err);
    let slack = run(&["--prices", "20,2.5", "-o", "slack"]);
    let slack: Value = serde_json::from_str(&slack.out).expect("JSON");
    assert!(slack["blocks"].as_array().is_some_and(|blocks| (5..=50).contains(&blocks.len())), "{slack}");
    the_values_render(&run(&["-o", "helm"]).out);
}
