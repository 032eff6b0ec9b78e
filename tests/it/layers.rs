//! Layers of the workspace, as cargo sees them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Crates that decide. Their tests build without any of `IO`, too.
const DECISIONS: [&str; 4] = ["berth-model", "berth-devices", "berth-scheduler", "berth-rightsizing"];
const IO: [&str; 9] =
    ["axum", "http", "hyper", "k8s-openapi", "kube", "prometheus-http-query", "reqwest", "tokio", "tracing"];

/// Returns the names of all packages that `package` and its tests are built from.
fn packages_of(package: &str) -> Vec<String> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--offline", "--prefix=none", "--format={p}", "--edges=normal,build,dev"])
        .args(["--package", package])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("names are UTF-8");
    text.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

#[test]
fn decision_crates_are_built_without_io_crates() {
    for package in DECISIONS {
        let packages = packages_of(package);
        assert!(packages.iter().any(|name| name == "serde"), "{package}: {packages:?}");
        for io in IO {
            assert!(!packages.iter().any(|name| name == io), "{package} depends on {io}: move the I/O up");
        }
    }
    assert!(packages_of("berth-kube-io").iter().any(|name| name == "kube"));
}

#[test]
fn decision_crates_know_only_the_model_and_each_other_in_tests() {
    for package in DECISIONS {
        let known = packages_of(package);
        let known: Vec<_> = known.iter().filter(|name| name.starts_with("berth-")).collect();
        assert!(
            known.iter().all(|name| DECISIONS.contains(&name.as_str())),
            "{package} depends on {known:?}"
        );
    }
}

/// Returns the Rust files under a folder, without tests.
fn sources(folder: &Path, to: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        match path.is_dir() {
            true if name != "tests" => sources(&path, to),
            false if name.ends_with(".rs") && !name.ends_with("tests.rs") => to.push(path),
            _ => {}
        }
    }
}

#[test]
fn public_type_names_are_unique_in_the_workspace() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    sources(&root.join("src"), &mut files);
    for member in std::fs::read_dir(root.join("crates")).expect("the members") {
        sources(&member.expect("a member").path().join("src"), &mut files);
    }
    let mut defined: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for file in files {
        let text = std::fs::read_to_string(&file).expect("a source file");
        for line in text.lines() {
            let words: Vec<&str> = line.split(|c: char| !(c.is_alphanumeric() || c == '_')).collect();
            if let ["pub", "struct" | "enum" | "trait" | "type", name, ..] = words[..] {
                defined.entry(name.to_owned()).or_default().push(file.clone());
            }
        }
    }
    assert!(defined.len() > 500, "the definitions are found: {}", defined.len());
    defined.retain(|_, files| files.len() > 1);
    assert!(defined.is_empty(), "defined more than once: {defined:#?}");
}
