//! Layers of the workspace, as cargo sees them.

use std::process::Command;

/// Crates that decide. Their tests build without any of `IO`, too.
const DECISIONS: [&str; 3] = ["berth-model", "berth-scheduler", "berth-rightsizing"];
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
