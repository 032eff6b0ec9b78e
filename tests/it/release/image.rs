//! The image, as `release/image` builds it, read back with skopeo and tar.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{git, output, repository};
use crate::chart;

const VERSION: &str = env!("CARGO_PKG_VERSION");
const STAND_IN: &str = "the binary";

/// Assembles images with a small file in place of the binary.
fn assembled(architectures: &[&str]) -> TempDir {
    let folder = TempDir::new().unwrap();
    for architecture in architectures {
        let inputs = folder.path().join(architecture);
        fs::create_dir(&inputs).unwrap();
        fs::write(inputs.join("berth"), STAND_IN).unwrap();
        fs::write(inputs.join("berth.cdx.json"), "{}").unwrap();
    }
    output(script().arg("assemble").arg(folder.path()));
    folder
}

fn script() -> Command {
    Command::new(repository().join("release/image"))
}

fn archive(folder: &Path, kind: &str) -> PathBuf {
    folder.join(format!("berth-{kind}.tar"))
}

/// Returns the time of the commit.
fn committed() -> jiff::Timestamp {
    git(&["log", "-1", "--format=%cI"]).parse().unwrap()
}

/// An image that was read back from the archive that `docker load` and `kind load image-archive` read.
struct Image {
    /// The name that a container runtime gives it.
    name: String,
    config: Value,
    layer: PathBuf,
    _folder: TempDir,
}

impl Image {
    fn read(archive: &Path) -> Self {
        let folder = TempDir::new().unwrap();
        let source = format!("docker-archive:{}", archive.display());
        output(
            Command::new("skopeo")
                .args(["copy", "--quiet", &source])
                .arg(format!("dir:{}", folder.path().display())),
        );
        let manifest: Value =
            serde_json::from_str(&fs::read_to_string(folder.path().join("manifest.json")).unwrap()).unwrap();
        let blob =
            |digest: &Value| folder.path().join(digest.as_str().unwrap().strip_prefix("sha256:").unwrap());
        let [layer] = &manifest["layers"].as_array().unwrap()[..] else { panic!("one layer: {manifest}") };
        let config = fs::read_to_string(blob(&manifest["config"]["digest"])).unwrap();
        let index = output(
            Command::new("tar")
                .args(["--extract", "--to-stdout", "--file"])
                .arg(archive)
                .arg("manifest.json"),
        );
        let index: Value = serde_json::from_str(&index).unwrap();
        let [Value::String(name)] = &index[0]["RepoTags"].as_array().unwrap()[..] else {
            panic!("one name: {index}")
        };
        Self {
            name: name.clone(),
            config: serde_json::from_str(&config).unwrap(),
            layer: blob(&layer["digest"]),
            _folder: folder,
        }
    }

    /// Returns mode, owner and name of each entry.
    fn entries(&self) -> Vec<String> {
        let list = output(
            Command::new("tar").args(["--list", "--verbose", "--numeric-owner", "--file"]).arg(&self.layer),
        );
        let entry = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            [words[0], words[1], words[words.len() - 1]].join(" ")
        };
        list.lines().map(entry).collect()
    }

    /// Writes the files of the image into a new folder.
    fn unpacked(&self) -> TempDir {
        let folder = TempDir::new().unwrap();
        output(
            Command::new("tar")
                .args(["--extract", "--file"])
                .arg(&self.layer)
                .arg("--directory")
                .arg(folder.path()),
        );
        folder
    }
}

/// The container that the chart runs with its defaults, and the security context of its pod.
fn pod_of_the_chart() -> (Value, Value) {
    let objects = chart::rendered("");
    let deployment = objects.iter().find(|object| object["kind"] == "Deployment").expect("a Deployment");
    let pod = &deployment["spec"]["template"]["spec"];
    (pod["containers"][0].clone(), pod["securityContext"].clone())
}

#[test]
fn the_image_has_one_binary_and_no_shell() {
    needs!("umoci", "skopeo", "jq");
    let folder = assembled(&["amd64"]);
    let image = Image::read(&archive(folder.path(), "amd64"));
    assert_eq!(
        image.entries(),
        [
            "-rw-r--r-- 0/0 LICENSE",
            "-rwxr-xr-x 0/0 berth",
            "-rw-r--r-- 0/0 berth.cdx.json",
            "drwxr-xr-x 0/0 etc/",
            "drwxr-xr-x 0/0 etc/ssl/",
            "drwxr-xr-x 0/0 etc/ssl/certs/",
            "-rw-r--r-- 0/0 etc/ssl/certs/ca-certificates.crt",
        ]
    );
    let files = image.unpacked();
    assert_eq!(fs::read_to_string(files.path().join("berth")).unwrap(), STAND_IN);
    let certificates = fs::read(files.path().join("etc/ssl/certs/ca-certificates.crt")).unwrap();
    let mut authorities = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&certificates) {
        authorities.add(certificate.expect("PEM")).expect("the certificate of an authority");
    }
    assert!(authorities.len() > 100, "{} authorities", authorities.len());
}

#[test]
fn the_image_runs_berth_as_the_user_and_on_the_port_of_the_chart() {
    needs!("umoci", "skopeo", "jq");
    let folder = assembled(&["amd64"]);
    let image = Image::read(&archive(folder.path(), "amd64"));
    let (container, security) = pod_of_the_chart();
    let port = container["ports"].as_array().unwrap().iter().find(|port| port["name"] == "health");
    let port = &port.expect("a port for probes")["containerPort"];
    assert_eq!(
        image.config["config"],
        json!({
            "User": format!("{}:{}", security["runAsUser"], security["runAsGroup"]),
            "ExposedPorts": { format!("{port}/tcp"): {} },
            "Entrypoint": ["/berth"],
            "Cmd": ["run"],
            "Labels": image.config["config"]["Labels"],
        })
    );
    assert_eq!(image.config["os"], "linux");
    assert_eq!(image.config["architecture"], "amd64");
}

#[test]
fn the_image_is_found_under_the_name_that_the_chart_uses() {
    needs!("umoci", "skopeo", "jq");
    let folder = assembled(&["arm64"]);
    let image = Image::read(&archive(folder.path(), "arm64"));
    let (container, _) = pod_of_the_chart();
    // Kubelets and container runtimes complete a name without a registry in this way.
    assert_eq!(image.name, format!("docker.io/library/{}", container["image"].as_str().unwrap()));
    assert_eq!(container["imagePullPolicy"], "IfNotPresent", "a loaded image is not pulled");
}

#[test]
fn the_labels_name_the_version_the_licence_and_the_commit() {
    needs!("umoci", "skopeo", "jq");
    let folder = assembled(&["amd64"]);
    let image = Image::read(&archive(folder.path(), "amd64"));
    let labels = image.config["config"]["Labels"].as_object().unwrap();
    let label = |name: &str| labels[&format!("org.opencontainers.image.{name}")].as_str().unwrap();
    assert_eq!(label("title"), "berth");
    assert_eq!(label("version"), VERSION);
    assert_eq!(label("licenses"), "Apache-2.0");
    let revision = label("revision");
    assert_eq!(revision.strip_suffix("-modified").unwrap_or(revision), git(&["rev-parse", "HEAD"]));
    assert_eq!(label("created"), committed().to_string());
    assert_eq!(image.config["created"], committed().to_string());
}

/// Returns the dates of all entries of an archive.
fn dates(archive: &Path) -> BTreeSet<String> {
    let options = ["--list", "--verbose", "--utc", "--full-time", "--numeric-owner", "--file"];
    let list = output(Command::new("tar").args(options).arg(archive));
    let date = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        format!("{}T{}Z", words[3], words[4])
    };
    list.lines().map(date).collect()
}

#[test]
fn the_same_inputs_give_the_same_archives() {
    needs!("umoci", "skopeo", "jq");
    let (first, second) = (assembled(&["amd64", "arm64"]), assembled(&["amd64", "arm64"]));
    let committed = BTreeSet::from([committed().to_string()]);
    assert_eq!(dates(&archive(first.path(), "oci")), committed);
    assert_eq!(dates(&Image::read(&archive(first.path(), "amd64")).layer), committed);
    // Once more with other settings of the user, over the archives of the first time.
    output(
        Command::new("bash")
            .args(["-c", "umask 077; exec \"$0\" assemble \"$1\""])
            .arg(repository().join("release/image"))
            .arg(second.path())
            .env("TZ", "Asia/Tokyo")
            .env("LC_ALL", "C.UTF-8"),
    );
    for kind in ["amd64", "arm64", "oci"] {
        let [one, other] = [&first, &second].map(|folder| fs::read(archive(folder.path(), kind)).unwrap());
        assert!(one == other, "two archives {kind} differ");
    }
}

#[test]
fn the_archive_for_registries_has_the_images_of_all_architectures_under_the_version() {
    needs!("umoci", "skopeo", "jq");
    let folder = assembled(&["amd64", "arm64"]);
    let source = format!("oci-archive:{}:{VERSION}", archive(folder.path(), "oci").display());
    let index = output(Command::new("skopeo").args(["inspect", "--raw", &source]));
    let index: Value = serde_json::from_str(&index).unwrap();
    let platforms: Vec<&Value> =
        index["manifests"].as_array().unwrap().iter().map(|image| &image["platform"]).collect();
    assert_eq!(
        platforms,
        [&json!({"architecture": "amd64", "os": "linux"}), &json!({"architecture": "arm64", "os": "linux"})]
    );
    for architecture in ["amd64", "arm64"] {
        let override_arch = format!("--override-arch={architecture}");
        let config = output(Command::new("skopeo").args(["inspect", "--config", &override_arch, &source]));
        let config: Value = serde_json::from_str(&config).unwrap();
        let loaded = Image::read(&archive(folder.path(), architecture));
        assert_eq!(config, loaded.config, "both archives have the same image");
    }
}

/// Returns the checksums of the crates of `Cargo.lock` by name and version; the crates of the workspace have none.
fn locked() -> BTreeMap<(String, String), Option<String>> {
    let lock = fs::read_to_string(repository().join("Cargo.lock")).unwrap();
    let package = |block: &str| {
        let value = |key: &str| {
            let line = block.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "))?;
            Some(line.trim_matches('"').to_owned())
        };
        Some(((value("name")?, value("version")?), value("checksum")))
    };
    lock.split("[[package]]").skip(1).map(|block| package(block).expect("a name and a version")).collect()
}

/// Returns the name and version of each crate that is linked into the binary of an architecture.
fn linked(triple: &str) -> BTreeSet<(String, String)> {
    let options = ["tree", "--locked", "--offline", "--prefix=none", "--format={p}", "--package=berth"];
    let tree = output(
        Command::new(env!("CARGO"))
            .args(options)
            .args(["--edges=normal,no-proc-macro", "--target", triple])
            .current_dir(repository()),
    );
    let package = |line: &str| {
        let mut words = line.split(' ');
        Some((words.next()?.to_owned(), words.next()?.strip_prefix('v')?.to_owned()))
    };
    tree.lines().filter_map(package).collect()
}

#[test]
fn the_bill_of_materials_has_every_crate_of_the_binary_with_checksum_and_licence() {
    needs!("umoci", "skopeo", "jq");
    let folder = TempDir::new().unwrap();
    let locked = locked();
    for (architecture, triple) in
        [("amd64", "x86_64-unknown-linux-musl"), ("arm64", "aarch64-unknown-linux-musl")]
    {
        let file = folder.path().join(architecture);
        output(script().args(["sbom", architecture]).arg(&file));
        let text = fs::read_to_string(&file).unwrap();
        assert!(!text.contains(repository().to_str().unwrap()), "it contains a path of this machine");
        let sbom: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(sbom["bomFormat"], "CycloneDX");
        assert_eq!(sbom["metadata"]["component"]["name"], "berth");
        assert_eq!(sbom["metadata"]["component"]["version"], VERSION);
        assert_eq!(sbom["metadata"]["properties"][0]["value"], triple);
        let mut crates = BTreeSet::from([("berth".to_owned(), VERSION.to_owned())]);
        for component in sbom["components"].as_array().unwrap() {
            let text = |value: &Value| value.as_str().unwrap_or_else(|| panic!("{component}")).to_owned();
            let name = (text(&component["name"]), text(&component["version"]));
            let checksum = component["hashes"][0]["content"].as_str().map(str::to_owned);
            assert_eq!(locked.get(&name), Some(&checksum), "in Cargo.lock: {component}");
            assert_ne!(text(&component["licenses"][0]["expression"]), "", "{component}");
            crates.insert(name);
        }
        let linked = linked(triple);
        assert!(linked.len() > 100, "{linked:?}");
        let missing: Vec<_> = linked.difference(&crates).collect();
        assert!(missing.is_empty(), "the bill of materials lacks {missing:?}");
    }
}

/// `release/image` in two clones, with all that is committed.
#[test]
#[ignore = "builds berth three times with the profile dist: .ci/long image"]
fn two_clones_give_the_same_image_with_a_static_binary() {
    needs!("umoci", "skopeo", "jq");
    let folder = TempDir::new().unwrap();
    let built = |name: &str, architectures: &[&str]| {
        let clone = folder.path().join(name);
        output(Command::new("git").args(["clone", "--quiet"]).arg(repository()).arg(&clone));
        output(Command::new(clone.join("release/image")).args(architectures).env_remove("CARGO_TARGET_DIR"));
        clone.join("target/image")
    };
    let first = built("first", &["amd64", "arm64"]);
    let second = built("second/in/another/folder", &["amd64"]);
    let [one, other] = [&first, &second].map(|folder| fs::read(archive(folder, "amd64")).unwrap());
    assert!(one == other, "two clones give different images");
    for architecture in ["amd64", "arm64"] {
        let image = Image::read(&archive(&first, architecture));
        let files = image.unpacked();
        let binary = files.path().join("berth");
        let headers = output(Command::new("readelf").args(["--wide", "--program-headers"]).arg(&binary));
        assert!(headers.contains("LOAD") && !headers.contains("INTERP"), "it has an interpreter: {headers}");
        let header = output(Command::new("readelf").arg("--file-header").arg(&binary));
        let machine = if architecture == "amd64" { "X86-64" } else { "AArch64" };
        assert!(header.contains(machine), "{header}");
        let is_of_this_machine = (architecture == "amd64") == cfg!(target_arch = "x86_64");
        if is_of_this_machine {
            assert_eq!(output(Command::new(&binary).arg("--version")).trim(), format!("berth {VERSION}"));
        }
        let size = fs::metadata(&binary).unwrap().len();
        println!("{architecture}: {} MB", size / 1_000_000);
    }
}
