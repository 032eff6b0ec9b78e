//! Large dumps.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use super::*;

/// Returns kubectl's output for 5,000 nodes with ten pods each, and 100 waiting pods, half of which fit no node.
pub fn large() -> String {
    let mut text = String::from("{\"apiVersion\": \"v1\", \"items\": [\n");
    let images: Vec<_> = (0..20)
        .map(|at| json!({"names": [format!("registry.example.com/app-{at}:v1")], "sizeBytes": 100_000_000 + at}))
        .collect();
    let conditions: Vec<_> = ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"]
        .iter()
        .map(|kind| {
            json!({"type": kind, "status": "False", "reason": "KubeletSays", "message": "kubelet says that all is well",
                "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"})
        })
        .collect();
    let mut add = |object: &Value| {
        let _ = writeln!(text, "{},", serde_json::to_string_pretty(object).expect("JSON"));
    };
    for at in 0..5_000 {
        let labels = json!({"topology.kubernetes.io/zone": format!("zone-{}", at % 3)});
        let allocatable = json!({"cpu": "16", "memory": "64Gi", "pods": "110"});
        let more = json!({"metadata": {"labels": labels}, "status": {
            "allocatable": allocatable, "images": images, "conditions": conditions}});
        add(&Cluster::default().node(&format!("node-{at}"), more).0[0]);
    }
    let environment: Vec<_> = (0..10)
        .map(|at| json!({"name": format!("VARIABLE_{at}"), "value": "a value as long as most"}))
        .collect();
    let app = |at: usize, spec: Value| {
        let mut object =
            pod(&format!("pod-{at}"), merged(requests(json!({"cpu": "1", "memory": "2Gi"})), spec));
        object["metadata"]["labels"]["app"] = json!(format!("app-{}", at % 500));
        object["spec"]["containers"][0]["env"] = json!(environment);
        object["status"] = json!({"conditions": conditions, "podIP": "10.0.0.1", "phase": "Running"});
        object
    };
    for at in 0..50_000 {
        add(&app(at, json!({"nodeName": format!("node-{}", at % 5_000)})));
    }
    for at in 50_000..50_100 {
        let cpu = if at % 2 == 0 { 1 + at % 4 } else { 7 + at % 8 };
        add(&app(at, requests(json!({"cpu": cpu}))));
    }
    text.truncate(text.len() - 2);
    text.push_str("\n], \"kind\": \"List\"}");
    text
}

#[test]
#[ignore = "a speed for release builds: cargo test --profile dist --test it -- --ignored explain::speed"]
fn a_dump_of_5000_nodes_and_50000_pods_is_explained_within_three_seconds() {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    let dump = large();
    file.write_all(dump.as_bytes()).expect("written");
    for format in ["json", "table"] {
        let began = Instant::now();
        let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
        let ran = run(command.args(["explain", "-o", format, "-f"]).arg(file.path()), b"");
        let took = began.elapsed();
        assert_eq!((ran.code, &*ran.err), (0, ""));
        println!("{format}: {} MB in {took:?}, {} MB out", dump.len() >> 20, ran.out.len() >> 20);
        assert!(took < Duration::from_secs(3), "{took:?}");
    }
}
