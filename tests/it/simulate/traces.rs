//! The figures of docs/dispatch.md on published traces, which are outside of the project.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::figures;
use crate::support::print_skipped;

/// Returns the folder of traces, or prints that it is missing and returns `None`.
pub fn traces(test: &str) -> Option<PathBuf> {
    let folder = match std::env::var_os("BERTH_TRACES") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/traces"),
    };
    if folder.is_dir() {
        return Some(folder);
    }
    let absent = format!("no traces in {}; BERTH_TRACES names their folder", folder.display());
    assert!(std::env::var_os("CI").is_none(), "in CI all tests run: {absent}");
    print_skipped(test, &absent);
    None
}

fn number(all: &[(String, Value)], dispatcher: &str, field: &str) -> f64 {
    let (_, one) = all.iter().find(|(name, _)| name == dispatcher).expect("it was asked for");
    one[field].as_f64().expect("a number")
}

#[test]
fn on_azures_trace_the_dispatchers_stand_as_documented() {
    let Some(folder) = traces("the comparison on Azure's trace") else { return };
    let trace = folder.join("azure-packing/batched-1pct-1.csv.gz");
    let trace = trace.to_str().expect("UTF-8");
    let names = "protean,random,round-robin,latcache-naive,latcache-rule,latcache-priced";
    let all = figures(["--trace", trace, "--dispatcher", names, "--cache-slots", "12"]);
    let of = |dispatcher, field| number(&all, dispatcher, field);
    let ratio = |a, b, field| of(a, field) / of(b, field);
    assert!((of("protean", "top_hit") - 0.80).abs() <= 0.02);
    for other in ["random", "round-robin"] {
        assert!((ratio(other, "protean", "avg_ms") - 1.0).abs() <= 0.25, "{other}");
    }
    assert!(ratio("latcache-rule", "protean", "avg_ms") <= 0.60);
    assert!(ratio("latcache-rule", "protean", "p90_ms") <= 0.62);
    assert!(of("latcache-rule", "top_hit") >= 0.90);
    assert!(of("latcache-rule", "prediction_accuracy") >= 0.99);
    assert!(of("latcache-rule", "best_agent") >= 0.92);
    assert!(of("latcache-naive", "best_agent") <= 0.70);
    assert!(ratio("latcache-priced", "latcache-rule", "avg_ms") <= 0.88);
    assert!(of("latcache-priced", "top_hit") >= 0.95);
    assert!(ratio("latcache-priced", "protean", "throughput_burst") >= 2.0);
}

#[test]
fn where_caches_thrash_the_default_does_not_collapse() {
    let Some(folder) = traces("thrashing caches on Azure's trace") else { return };
    let trace = folder.join("azure-packing/batched-1pct-2.csv.gz");
    let trace = trace.to_str().expect("UTF-8");
    let names = "latcache-rule,latcache-priced";
    let all = figures(["--trace", trace, "--dispatcher", names, "--cache-slots", "4", "--base-load", "0.9"]);
    assert!(number(&all, "latcache-rule", "avg_ms") > 5_000.0, "{all:?}");
    assert!(number(&all, "latcache-priced", "avg_ms") < 1_000.0, "{all:?}");
}
