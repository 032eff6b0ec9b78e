//! `release/build`: what it refuses, and what it packs.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use berth_testenv::binaries::go_tool;
use serde_json::Value;
use tempfile::TempDir;

use super::{output, repository};

const VERSION: &str = env!("CARGO_PKG_VERSION");
const NOTES: &str = "### Added\n\n* Releases.\n";

/// A repository with one commit: the files of this one as they are now.
struct Tree(TempDir);

impl Tree {
    fn new() -> Self {
        let tree = Self(TempDir::new().unwrap());
        let mut files = Command::new("git")
            .args(["ls-files", "-z"])
            .current_dir(repository())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut archive = Command::new("tar")
            .args(["--create", "--null", "--files-from=-", "--ignore-failed-read"])
            .current_dir(repository())
            .stdin(files.stdout.take().unwrap())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        output(tree.command("tar").arg("--extract").stdin(archive.stdout.take().unwrap()));
        assert!(files.wait().unwrap().success() && archive.wait().unwrap().success());
        output(tree.command("git").args(["init", "--quiet"]));
        tree.commit();
        tree
    }

    /// A tree whose changelog has the version.
    fn of_this_version() -> Self {
        let tree = Self::new();
        let section = format!("## {VERSION} - 2026-01-31\n\n{NOTES}\n## 0.0.1 - 2026-01-30\n\n* Older.\n");
        fs::write(
            tree.path("CHANGELOG.md"),
            format!("# Changelog\n\n## Unreleased\n\n* Newer.\n\n{section}"),
        )
        .unwrap();
        tree.commit();
        tree
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.0.path()).env("CARGO_TARGET_DIR", self.path("target"));
        command
    }

    fn commit(&self) {
        output(self.command("git").args(["add", "--all"]));
        let user =
            ["-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "commit.gpgSign=false"];
        output(self.command("git").args(user).args(["commit", "--quiet", "--message=test"]));
    }

    fn check(&self, version: &str) -> Result<(), String> {
        let output = self.command("release/build").args(["check", version]).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        if output.status.success() { Ok(()) } else { Err(text) }
    }

    /// Packs images of small files; returns the folder of the release.
    fn packed(&self) -> PathBuf {
        for architecture in ["amd64", "arm64"] {
            let folder = self.path("target/image").join(architecture);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("berth"), "the binary").unwrap();
            fs::write(folder.join("berth.cdx.json"), "{}").unwrap();
        }
        output(self.command("release/image").args(["assemble", "target/image"]));
        let tools = TempDir::new().unwrap();
        symlink(go_tool("helm").expect("helm"), tools.path().join("helm")).unwrap();
        let path = env::join_paths(
            [tools.path().to_owned()].into_iter().chain(env::split_paths(&env::var_os("PATH").unwrap())),
        );
        output(self.command("release/build").args(["pack", VERSION]).env("PATH", path.unwrap()));
        self.path("target").join(format!("release-{VERSION}"))
    }
}

#[test]
fn a_release_is_built_only_of_a_clean_tree_of_its_version() {
    let tree = Tree::of_this_version();
    tree.check(VERSION).unwrap();
    let error = tree.check("9.9.9").unwrap_err();
    for problem in [
        format!("Cargo.toml has version {VERSION}"),
        format!("charts/berth/Chart.yaml has version {VERSION}"),
        format!("charts/berth/Chart.yaml has appVersion {VERSION}"),
        "CHANGELOG.md has no section \"## 9.9.9\" with content".to_owned(),
    ] {
        assert!(error.contains(&problem), "{problem:?} is not in {error:?}");
    }
    assert_eq!(error.lines().count(), 4, "{error}");
    fs::write(tree.path("new"), "").unwrap();
    let error = tree.check(VERSION).unwrap_err();
    assert_eq!(
        error,
        format!("not a tree of version {VERSION}: the tree has changes that are not committed\n")
    );
}

#[test]
fn a_release_has_images_binaries_chart_manifests_notes_and_checksums() {
    let tree = Tree::of_this_version();
    let folder = tree.packed();
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();

    let sums = read("SHA256SUMS");
    let names: Vec<&str> = sums.lines().map(|line| line.rsplit(' ').next().unwrap()).collect();
    let expected = [
        "BUILD.txt",
        "NOTES.md",
        "berth-VERSION-image-amd64.tar",
        "berth-VERSION-image-arm64.tar",
        "berth-VERSION-image-oci.tar",
        "berth-VERSION-linux-amd64.cdx.json",
        "berth-VERSION-linux-amd64.tar.gz",
        "berth-VERSION-linux-arm64.cdx.json",
        "berth-VERSION-linux-arm64.tar.gz",
        "berth-VERSION.tgz",
        "crds.yaml",
        "install.yaml",
    ];
    assert_eq!(names, expected.map(|name| name.replace("VERSION", VERSION)));
    assert_eq!(fs::read_dir(&folder).unwrap().count(), names.len() + 1);
    output(Command::new("sha256sum").args(["--check", "--strict", "SHA256SUMS"]).current_dir(&folder));

    assert_eq!(read("NOTES.md").trim(), NOTES.trim());
    let crds = output(Command::new(env!("CARGO_BIN_EXE_berth")).arg("crds"));
    let definitions = |text: &str| -> BTreeMap<String, Value> {
        let documents: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
        let definitions = documents.into_iter().filter(|document| !document.is_null());
        definitions.map(|crd| (crd["metadata"]["name"].to_string(), crd)).collect()
    };
    let (packed, printed) = (definitions(&read("crds.yaml")), definitions(&crds));
    assert!(packed == printed, "crds.yaml is not what `berth crds` prints");
    assert_eq!(packed.len(), 4);
    let chart = folder.join(format!("berth-{VERSION}.tgz"));
    let shown = output(
        Command::new(go_tool("helm").unwrap())
            .args(["template", "berth", "--kube-version=1.36.3"])
            .arg(&chart),
    );
    assert!(shown.contains(&format!("image: \"berth:{VERSION}\"\n")), "{shown}");
    let binary = folder.join(format!("berth-{VERSION}-linux-amd64.tar.gz"));
    let entries = output(Command::new("tar").args(["--list", "--file"]).arg(&binary));
    assert_eq!(entries.lines().collect::<Vec<_>>(), ["berth", "berth.cdx.json", "LICENSE"]);
    let build = read("BUILD.txt");
    let commit = output(tree.command("git").args(["rev-parse", "HEAD"]));
    assert!(build.contains(&format!("berth:{VERSION}@sha256:")) && build.contains(commit.trim()), "{build}");

    tree.packed();
    assert_eq!(read("SHA256SUMS"), sums, "packed again");
}
