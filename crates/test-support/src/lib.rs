//! Fixtures for the tests of several crates: a scripted Prometheus, a collector of spans, and the published traces.
//!
//! A development dependency only.

pub mod collector;
pub mod prometheus;

use std::io::Write;
use std::path::PathBuf;

/// Returns the path of a published trace. They are not part of the project; `BERTH_TRACES` names their folder.
///
/// # Panics
/// In CI, if it is absent.
pub fn published(file: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("BERTH_TRACES")
        .map_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/traces").into(), PathBuf::from);
    let path = folder.join(file);
    if path.exists() {
        return Some(path);
    }
    let absent = format!("SKIPPED: {} is absent; BERTH_TRACES says where traces are\n", path.display());
    assert!(std::env::var_os("CI").is_none(), "in CI all tests run: {absent}");
    // Not `println!`, which tests keep to themselves.
    std::io::stderr().write_all(absent.as_bytes()).expect("standard error can be written");
    None
}
