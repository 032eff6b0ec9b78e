//! `berth simulate` as a process.

mod input;
mod scaling;
pub mod traces;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::Value;

use crate::support::{busy_turn, wait_for};

pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

pub fn simulate<S: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = S>) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
    let output = command.arg("simulate").args(arguments).stdin(Stdio::null()).output().expect("berth starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Ran { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
}

/// Returns the figures of each dispatcher, by name.
pub fn figures<S: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = S>) -> Vec<(String, Value)> {
    let ran = simulate(
        arguments.into_iter().map(|word| word.as_ref().to_owned()).chain(["-o".into(), "json".into()]),
    );
    assert_eq!(ran.code, 0, "{}", ran.err);
    let all: Vec<Value> = serde_json::from_str(&ran.out).expect("JSON");
    all.into_iter().map(|one| (one["dispatcher"].as_str().expect("a name").to_owned(), one)).collect()
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/simulate")
}

/// Compares with a golden file; `UPDATE=1` rewrites it.
fn assert_golden(name: &str, text: &str) {
    let file = folder().join(name);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&file, text).expect("the golden file is written");
    }
    let golden = std::fs::read_to_string(&file).expect("a golden file: make it with UPDATE=1");
    assert_eq!(text, golden, "{name} differs from the golden file; run with UPDATE=1 to accept the change");
}

#[test]
fn small_outputs_are_the_same_for_a_seed() {
    let small = ["--requests", "2000", "--types", "60", "--seed", "7", "--nodes", "40", "--agents", "3"];
    let ran = simulate(small);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_golden("synthetic.txt", &ran.out);
    let other = simulate(small.map(|word| if word == "7" { "8" } else { word }));
    assert_ne!(other.out.lines().skip(2).collect::<Vec<_>>(), ran.out.lines().skip(2).collect::<Vec<_>>());

    let azure = folder().join("azure-packing.csv");
    let everything =
        ["--cache-slots", "2", "--agents", "2", "--costs", "azure-rules", "--class-spread", "0.35"];
    let ran =
        simulate(["--trace".as_ref(), azure.as_os_str()].into_iter().chain(everything.map(AsRef::as_ref)));
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_golden("azure-packing.txt", &ran.out);

    let (pods, nodes) = (folder().join("openb-pods.csv"), folder().join("openb-nodes.csv"));
    let ran = simulate(["--trace".as_ref(), pods.as_os_str(), "--nodes".as_ref(), nodes.as_os_str()]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_golden("openb.txt", &ran.out);
}

#[test]
fn json_has_every_figure_of_every_dispatcher() {
    let all = figures(["--requests", "1000", "--types", "40"]);
    let names: Vec<_> = all.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "protean",
            "random",
            "round-robin",
            "hash-stealing",
            "latcache-naive",
            "latcache-request",
            "latcache-rule",
            "latcache-priced"
        ]
    );
    for (name, one) in &all {
        for field in [
            "avg_ms",
            "p50_ms",
            "p90_ms",
            "p99_ms",
            "top_hit",
            "rule_hit",
            "memory_mib",
            "queue_ms",
            "processing_ms",
            "conflicts",
            "throughput_burst",
        ] {
            assert!(one[field].as_f64().is_some_and(f64::is_finite), "{name} has no {field}: {one}");
        }
        // Dispatchers without predictions have no accuracy.
        let expects = name.starts_with("latcache");
        for field in ["prediction_accuracy", "time_error", "best_agent"] {
            assert_eq!(one[field].is_number(), expects, "{name}: {field}");
        }
        assert_eq!(one["placed"], 1000, "{name}");
        let sum = one["queue_ms"].as_f64().unwrap() + one["processing_ms"].as_f64().unwrap();
        assert!((sum / one["avg_ms"].as_f64().unwrap() - 1.0).abs() < 1e-3, "{name}: {one}");
    }
}

#[test]
fn repeated_runs_report_confidence_intervals_of_their_means() {
    let arguments = ["--requests", "1000", "--types", "40", "--dispatcher", "random,latcache-priced"];
    let all = figures(arguments.into_iter().chain(["--repeat", "4"]));
    for (name, one) in &all {
        let interval = one["intervals"]["avg_ms"].as_array().expect("an interval");
        let [low, high] = [0, 1].map(|at| interval[at].as_f64().unwrap());
        let mean = one["avg_ms"].as_f64().unwrap();
        assert!(low < mean && mean < high, "{name}: {low} {mean} {high}");
    }
    let once = figures(arguments);
    assert!(once[0].1.get("intervals").is_none());
}

#[test]
fn more_load_waits_longer_and_no_conflicts_means_none() {
    let base = ["--requests", "4000", "--types", "60", "--dispatcher", "latcache-priced"];
    let average = |load| {
        let all = figures(base.into_iter().chain(["--load", load]));
        all[0].1["avg_ms"].as_f64().unwrap()
    };
    let (calm, busy) = (average("1"), average("1.4"));
    assert!(busy > calm * 1.1, "{calm} ms, then {busy} ms");
    // Few nodes, so that agents choose the same ones.
    let crowded = base.into_iter().chain(["--nodes", "25", "--agents", "8"]);
    let with = figures(crowded.clone());
    assert!(with[0].1["conflicts"].as_u64().unwrap() > 0, "{:?}", with[0].1);
    let without = figures(crowded.chain(["--no-conflicts"]));
    assert_eq!(without[0].1["conflicts"], 0);
}

#[test]
fn times_that_a_running_berth_measured_can_be_used() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let estimator = berth_scheduler::dispatch::Estimator::default();
    std::fs::write(file.path(), serde_json::to_string(&estimator).unwrap()).unwrap();
    let path = file.path().to_str().unwrap();
    let all =
        figures(["--requests", "1000", "--types", "40", "--dispatcher", "latcache-rule", "--costs", path]);
    let processing = all[0].1["processing_ms"].as_f64().unwrap();
    assert!(
        processing > 0.0 && processing < 1.0,
        "berth's own times are below a millisecond: {processing} ms"
    );
}

#[test]
fn without_arguments_the_table_comes_soon() {
    let _busy = wait_for(busy_turn());
    let started = Instant::now();
    let ran = simulate::<&str>([]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    // The table of 8 dispatchers, under two lines about the simulation, an empty one and the header. The release
    // build takes a third of the time.
    assert_eq!(ran.out.lines().count(), 4 + 8, "{}", ran.out);
    // Beside other tests, on two cores.
    assert!(started.elapsed().as_secs() < 180, "{:?}", started.elapsed());
}
