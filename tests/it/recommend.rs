//! `berth recommend` as users run it: on a real Prometheus, and on files.

mod cluster;
mod hours;
mod page;
mod strategies;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::simulate::traces::traces;
use crate::usage::start;

const NOW: i64 = 1_700_000_000;
const AT: &str = "2023-11-14T22:13:20Z";
const HOUR: i64 = 3_600;
const HOURS: i64 = 48;
const SCRAPE_INTERVAL: i64 = 120;

struct Ran {
    code: i32,
    out: String,
    err: String,
}

fn recommend(arguments: &[&str]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
    let command = command.arg("recommend").args(arguments).env_remove("COLUMNS").stdin(Stdio::null());
    let output = command.output().expect("berth starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Ran { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
}

/// A container, the hours in which it ran, its usage and its requests.
struct Container {
    labels: &'static str,
    hours: std::ops::Range<i64>,
    cores: f64,
    bytes: i64,
    /// Cores and bytes.
    requests: Option<(f64, i64)>,
}

const CONTAINERS: [Container; 5] = [
    Container {
        labels: r#"namespace="shop",pod="web-59f9fb6b8-x2x4z",container="app""#,
        hours: 0..30,
        cores: 0.4,
        bytes: 400 << 20,
        requests: Some((4.0, 512 << 20)),
    },
    Container {
        labels: r#"namespace="shop",pod="web-7c5ddbdf54-b5x2w",container="app""#,
        hours: 30..HOURS,
        cores: 0.4,
        bytes: 400 << 20,
        requests: Some((2.0, 512 << 20)),
    },
    Container {
        labels: r#"namespace="shop",pod="db-0",container="postgres""#,
        hours: 0..HOURS,
        cores: 1.5,
        bytes: 3 << 30,
        requests: Some((1.6, 3_600 << 20)),
    },
    Container {
        labels: r#"namespace="shop",pod="db-0",container="sidecar""#,
        hours: 0..HOURS,
        cores: 0.01,
        bytes: 20 << 20,
        requests: None,
    },
    Container {
        labels: r#"namespace="ops",pod="backup-28333330-x2x4z",container="app""#,
        hours: 20..22,
        cores: 1.0,
        bytes: 1 << 30,
        requests: Some((1.0, 1_200 << 20)),
    },
];

const OWNERS: [&str; 7] = [
    r#"kube_pod_owner{namespace="shop",pod="web-59f9fb6b8-x2x4z",owner_kind="ReplicaSet",owner_name="web-59f9fb6b8",owner_is_controller="true"}"#,
    r#"kube_pod_owner{namespace="shop",pod="web-7c5ddbdf54-b5x2w",owner_kind="ReplicaSet",owner_name="web-7c5ddbdf54",owner_is_controller="true"}"#,
    r#"kube_pod_owner{namespace="shop",pod="db-0",owner_kind="StatefulSet",owner_name="db",owner_is_controller="true"}"#,
    r#"kube_pod_owner{namespace="ops",pod="backup-28333330-x2x4z",owner_kind="Job",owner_name="backup-28333330",owner_is_controller="true"}"#,
    r#"kube_replicaset_owner{namespace="shop",replicaset="web-59f9fb6b8",owner_kind="Deployment",owner_name="web",owner_is_controller="true"}"#,
    r#"kube_replicaset_owner{namespace="shop",replicaset="web-7c5ddbdf54",owner_kind="Deployment",owner_name="web",owner_is_controller="true"}"#,
    r#"kube_job_owner{namespace="ops",job_name="backup-28333330",owner_kind="CronJob",owner_name="backup",owner_is_controller="true"}"#,
];

/// Returns the metrics of cAdvisor and, if wanted, kube-state-metrics.
fn openmetrics(with_state: bool) -> String {
    let (mut cpu, mut memory, mut requests) = (String::new(), String::new(), String::new());
    for Container { labels, hours, cores, bytes, requests: wanted } in CONTAINERS {
        let begin = NOW - (HOURS - hours.start + 1) * HOUR;
        let end = NOW - (HOURS - hours.end) * HOUR;
        for step in 0..=(end - begin) / SCRAPE_INTERVAL {
            let at = begin + step * SCRAPE_INTERVAL;
            let seconds = cores * (step * SCRAPE_INTERVAL) as f64;
            writeln!(cpu, "container_cpu_usage_seconds_total{{{labels}}} {seconds} {at}").expect("a text");
            writeln!(memory, "container_memory_working_set_bytes{{{labels}}} {bytes} {at}").expect("a text");
            if let Some((cores, bytes)) = wanted {
                let name = "kube_pod_container_resource_requests";
                writeln!(requests, "{name}{{{labels},resource=\"cpu\",unit=\"core\"}} {cores} {at}")
                    .expect("a text");
                writeln!(requests, "{name}{{{labels},resource=\"memory\",unit=\"byte\"}} {bytes} {at}")
                    .expect("a text");
            }
        }
    }
    let mut text = format!(
        "# TYPE container_cpu_usage_seconds counter\n{cpu}# TYPE container_memory_working_set_bytes gauge\n{memory}"
    );
    if with_state {
        for metric in ["kube_pod_owner", "kube_replicaset_owner", "kube_job_owner"] {
            writeln!(text, "# TYPE {metric} gauge").expect("a text");
            for owner in OWNERS.iter().filter(|owner| owner.starts_with(metric)) {
                for step in 0..=HOURS * HOUR / SCRAPE_INTERVAL {
                    let at = NOW - HOURS * HOUR + step * SCRAPE_INTERVAL;
                    writeln!(text, "{owner} 1 {at}").expect("a text");
                }
            }
        }
        write!(text, "# TYPE kube_pod_container_resource_requests gauge\n{requests}").expect("a text");
    }
    text + "# EOF\n"
}

fn containers(json: &str) -> Vec<Value> {
    let json: Value = serde_json::from_str(json).expect("JSON");
    json["containers"].as_array().expect("a list").clone()
}

fn names(containers: &[Value]) -> Vec<String> {
    let text = |each: &Value, field: &str| each[field].as_str().expect("a text").to_owned();
    let name =
        |each: &Value| ["severity", "kind", "workload", "container"].map(|field| text(each, field)).join(" ");
    containers.iter().map(name).collect()
}

#[tokio::test]
async fn a_real_prometheus_is_all_it_needs() {
    needs!("prometheus", "promtool");
    let prometheus = start(&openmetrics(true), &[]).await;
    let address = ["--prometheus", &prometheus.url, "--at", AT, "--history", "2d"];
    let run = |more: &[&str]| recommend(&[&address, more].concat());
    let json = run(&["-o", "json"]);
    assert_eq!((json.code, &*json.err), (0, ""));
    let found = containers(&json.out);
    assert_eq!(
        names(&found),
        [
            "critical Deployment web app",
            "warning StatefulSet db sidecar",
            "ok CronJob backup app",
            "ok StatefulSet db postgres"
        ]
    );
    // The pod before the rollout counts, and the request is that of the one after it.
    let web = &found[0];
    assert_eq!((&web["pods"], &web["podsSeen"], &web["cpu"]["request"]), (&1.into(), &2.into(), &2.0.into()));
    let target = web["cpu"]["target"].as_f64().expect("cores");
    assert!((0.46..0.5).contains(&target), "0.4 cores, a bucket's width, and 15 %: {target}");
    let target = web["memory"]["target"].as_i64().expect("bytes") >> 20;
    assert!((460..500).contains(&target), "400 MiB, a bucket's width, and 15 %: {target}");
    assert_eq!(found[1]["cpu"]["request"], Value::Null);

    let table = run(&["--namespace", "shop", "--min-severity", "critical"]);
    assert_eq!(table.code, 0);
    assert!(table.out.contains("deploy/web") && !table.out.contains("sts/db"), "{}", table.out);
    assert!(table.out.lines().all(|line| line.chars().count() <= 120), "{}", table.out);
    assert!(table.err.contains("2 containers of lower severity are hidden"), "{}", table.err);
    let csv = run(&["-o", "csv"]);
    assert_eq!((csv.code, csv.out.lines().count()), (0, 5), "{}", csv.out);
    let page = run(&["-o", "html"]);
    assert!(page.code == 0 && page.out.ends_with("</html>\n"), "{}", page.err);
    let yaml = run(&["-o", "yaml"]);
    let parsed: Value = serde_saphyr::from_str(&yaml.out).expect("YAML");
    assert_eq!(parsed["containers"].as_array(), Some(&found));

    let backtest = run(&["--backtest", "-o", "json", "--warm-up", "12h"]);
    let json: Value = serde_json::from_str(&backtest.out).expect("JSON");
    assert_eq!((backtest.code, &json["overall"][0]["overrunShare"]), (0, &0.0.into()), "{}", backtest.err);

    let nobody = run(&["--namespace", "nobody"]);
    assert!(nobody.code == 1 && nobody.err.contains("--namespace nobody"), "{}", nobody.err);
    let legacy = run(&["--label-set", "legacy"]);
    assert!(legacy.code == 1 && legacy.err.contains("--label-set modern"), "{}", legacy.err);
}

#[tokio::test]
async fn a_real_prometheus_without_kube_state_metrics_is_enough() {
    needs!("prometheus", "promtool");
    let prometheus = start(&openmetrics(false), &[]).await;
    let ran =
        recommend(&["--prometheus", &prometheus.url, "--at", AT, "--history", "2d", "-o", "json", "--all"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.err.contains("kube_pod_container_resource_requests"), "{}", ran.err);
    assert_eq!(
        names(&containers(&ran.out)),
        [
            "unknown CronJob backup app",
            "unknown Deployment web app",
            "unknown StatefulSet db postgres",
            "unknown StatefulSet db sidecar"
        ]
    );
}

/// Replays all series of the shared traces; with `--nocapture` this prints the table of docs/benchmarks.md.
#[test]
fn every_published_series_is_replayed_and_the_estimators_stand_as_documented() {
    let Some(folder) = traces("the backtest on published series") else { return };
    let folder = folder.join("usage");
    let replay = |files: &[&str], options: &[&str]| -> BTreeMap<String, Value> {
        let paths: Vec<String> = files.iter().map(|file| folder.join(file).display().to_string()).collect();
        let mut arguments = vec!["--backtest"];
        arguments.extend(paths.iter().map(String::as_str));
        arguments.extend(options);
        println!("{}", recommend(&arguments).out);
        arguments.extend(["-o", "json"]);
        let ran = recommend(&arguments);
        assert_eq!(ran.code, 0, "{}", ran.err);
        let json: Value = serde_json::from_str(&ran.out).expect("JSON");
        let overall = json["overall"].as_array().expect("a list").iter();
        overall.map(|one| (one["estimator"].as_str().expect("a name").to_owned(), one.clone())).collect()
    };
    let crane = ["crane/input0.csv.gz", "crane/input1.csv.gz", "crane/input2.csv.gz", "crane/input3.csv.gz"];
    let percent = [
        "nab/ec2_cpu_utilization_24ae8d.csv",
        "nab/ec2_cpu_utilization_5f5533.csv",
        "nab/rds_cpu_utilization_e47b3b.csv",
    ];
    let bytes = ["nab/ec2_disk_write_bytes_1ef3de.csv", "nab/ec2_network_in_257a54.csv"];
    let requests = ["nab/elb_request_count_8c0756.csv"];
    // Not memory, but bytes: peaks are what an estimator of memory must not miss.
    for (files, options) in [
        (&crane[..], &[][..]),
        (&percent, &["--cpu-scale", "0.01"]),
        (&bytes, &["--memory-column", "value"]),
        (&requests, &["--cpu-scale", "0.01"]),
    ] {
        let overall = replay(files, options);
        let of = |estimator: &str, field: &str| {
            let value = overall[estimator][field].as_f64();
            value.unwrap_or_else(|| panic!("{estimator} has no {field}: {overall:?}"))
        };
        for estimator in ["vpa", "max", "p99"] {
            let overrun = of(estimator, "overrunShare");
            assert!((0.0..0.1).contains(&overrun), "{estimator} of {files:?}: {overrun}");
        }
        for estimator in ["hours", "autopilot-window", "autopilot-ensemble"] {
            let (overrun, changes) = (of(estimator, "overrunShare"), of(estimator, "changesPerDay"));
            assert!((0.0..0.01).contains(&overrun), "{estimator} of {files:?}: {overrun}");
            assert!(
                changes < if estimator == "hours" { 12.0 } else { 6.0 },
                "{estimator} of {files:?}: {changes}"
            );
        }
        // The maximum of all usage only misses usage that is higher than ever before. After an OOM kill, vpa
        // recommends more.
        let (max, vpa) = (of("max", "overrunShare"), of("vpa", "overrunShare"));
        assert!(max <= vpa + 0.0005, "{files:?}: {overall:?}");
    }
    // An hour of requests per second; one service per column.
    let wiki = ["wiki-online-boutique-qps.csv"];
    let services = [
        "adservice",
        "cartservice",
        "checkoutservice",
        "currencyservice",
        "emailservice",
        "frontend",
        "paymentservice",
        "productcatalogservice",
        "recommendationservice",
        "shippingservice",
    ];
    for service in services {
        let options = ["--cpu-column", service, "--cpu-scale", "0.01", "--warm-up", "10m", "--step", "1m"];
        assert_eq!(replay(&wiki, &options).len(), 7, "{service}");
    }
}

#[test]
fn recorded_usage_is_enough_for_a_backtest() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("usage.csv");
    let mut text = "ts,value\n".to_owned();
    for minute in 0..3 * 24 * 60 {
        // Half a core, and a whole one in every tenth minute.
        let cores = if minute % 10 == 0 { 1.0 } else { 0.5 };
        writeln!(text, "{},{cores}", NOW + minute * 60).expect("a text");
    }
    std::fs::write(&file, &text).expect("written");
    let path = file.to_str().expect("a path");
    let ran = recommend(&["--backtest", path, "-o", "json"]);
    assert_eq!((ran.code, &*ran.err), (0, ""));
    assert_eq!(ran.out, recommend(&["--backtest", path, "-o", "json"]).out);
    let json: Value = serde_json::from_str(&ran.out).expect("JSON");
    let of = |estimator: &str| {
        let found =
            json["series"].as_array().expect("a list").iter().find(|one| one["estimator"] == estimator);
        found.expect("an estimator").clone()
    };
    let overrun = |estimator: &str| of(estimator)["overrunShare"].as_f64().expect("a share");
    // The 90th percentile excludes exactly the tenth minutes.
    assert!(overrun("max") == 0.0 && overrun("p99") == 0.0 && overrun("vpa") < 0.101, "{}", ran.out);
    let limit = of("max")["meanLimit"].as_f64().expect("cores");
    assert!((limit - 1.15).abs() < 1e-6, "{limit}");
    let table = recommend(&["--backtest", path, "--estimators", "max"]);
    assert_eq!((table.code, table.out.lines().count()), (0, 2), "{}", table.out);

    std::fs::write(&file, text + "soon,1\n").expect("written");
    let wrong = recommend(&["--backtest", path]);
    assert!(wrong.code == 2 && wrong.err.contains("usage.csv:4322: ts is \"soon\""), "{}", wrong.err);
    let missing = recommend(&["--backtest", "/nowhere/usage.csv"]);
    assert!(missing.code == 1 && missing.err.contains("cannot open /nowhere/usage.csv"), "{}", missing.err);
    for wrong in
        [&["--backtest"][..], &["--prometheus", "nowhere:9090"], &["--prometheus", "http://a", "-o", "pdf"]]
    {
        let ran = recommend(wrong);
        assert_eq!((ran.code, &*ran.out), (2, ""), "{wrong:?}: {}", ran.err);
    }
}
