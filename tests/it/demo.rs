//! `berth demo` as users run it: the complete run, and its cleanup.

mod existing;
mod programs;

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};
use serde_json::Value;

use crate::support::*;

const LIMIT: Duration = Duration::from_secs(60);

/// `berth demo` with its output piped, and its temporary files in `folder`.
fn demo(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
    command.arg("demo").args(args).env("TMPDIR", folder);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Returns the processes that have `folder` in their command line, as all processes of the demo do.
fn processes_of(folder: &Path) -> Vec<String> {
    let folder = folder.to_str().expect("a path in UTF-8");
    let processes = std::fs::read_dir("/proc").expect("tests run on Linux").flatten();
    let command_lines =
        processes.filter_map(|process| std::fs::read_to_string(process.path().join("cmdline")).ok());
    command_lines.filter(|line| line.contains(folder)).collect()
}

fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).expect("the folder is there").next().is_none()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_demo_keeps_its_promises_and_leaves_nothing_behind() {
    let _turn = control_plane_turn().await;
    let (folder, recorded) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let recordings = recorded.path().join("recordings");
    let record = ["--record", recordings.to_str().expect("a path")];
    let mut command =
        demo(folder.path(), &[&["--nodes", "50", "--pods", "300", "-o", "json"], &record[..]].concat());
    let output =
        tokio::task::spawn_blocking(move || command.output()).await.expect("no panic").expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("pods bound: 282 of 282"), "{said}");

    let result: Value = serde_json::from_slice(&output.stdout).expect("JSON and nothing else");
    assert_eq!(result["problems"], serde_json::json!([]));
    assert_eq!((&result["bound"], &result["waiting"]), (&288.into(), &12.into()));
    assert!(result["kubeconfig"].is_null());
    for figure in
        ["pods_per_second", "late_ms", "list_hits", "list_misses", "cpu_us_per_pod", "peak_memory_bytes"]
    {
        assert!(result[figure].as_f64() > Some(0.0), "{figure} in {result:#}");
    }
    let latency = |name: &str| result["latency_ms"][name].as_f64().expect("a number");
    assert!(latency("p50") <= latency("p99") && latency("p99") <= latency("max") && latency("max") > 0.0);
    let classes = result["classes"].as_array().expect("classes");
    let class = |name: &str| classes.iter().find(|class| class["class"] == name).expect("the class");
    assert_eq!(class("late")["bound"], 6);
    for (name, message) in
        [("giant", "Insufficient cpu"), ("nowhere", "didn't match Pod's node affinity/selector")]
    {
        assert_eq!((&class(name)["bound"], &class(name)["reason"]), (&0.into(), &"Unschedulable".into()));
        let told = class(name)["message"].as_str().expect("a message");
        assert!(told.contains(message), "{told}");
    }
    assert_eq!(processes_of(folder.path()), [""; 0]);
    assert!(is_empty(folder.path()));

    let mut replay = Command::new(env!("CARGO_BIN_EXE_berth"));
    let replayed = crate::explain::run(replay.arg("replay").arg(&recordings).args(["-o", "json"]), b"");
    let report: Value = serde_json::from_str(&replayed.out).expect("JSON");
    assert_eq!(report["outcome"]["result"], "same", "{report}");
    assert!(report["decisions"].as_u64().is_some_and(|decisions| decisions >= 288), "{report}");
}

/// Killed when dropped; the guards of its children end those.
struct Running(Child);

impl Running {
    fn start(folder: &Path, args: &[&str]) -> Self {
        Running(demo(folder, args).spawn().expect("it starts"))
    }

    /// The rest of the next line of standard error that holds `text`.
    async fn await_line(&mut self, text: &'static str) -> Option<String> {
        // Takes no byte of the next line.
        let mut stderr = BufReader::with_capacity(1, self.0.stderr.take().expect("piped"));
        let find = move || {
            let mut lines = stderr.by_ref().lines().map_while(Result::ok);
            let found = lines.find_map(|line| Some(line.split_once(text)?.1.to_owned()));
            (found, stderr.into_inner())
        };
        let (found, stderr) = tokio::task::spawn_blocking(find).await.expect("no panic");
        self.0.stderr = Some(stderr);
        found
    }

    /// SIGINT, as Ctrl-C sends it; returns how the demo ended.
    async fn interrupt(&mut self) -> ExitStatus {
        self.end_by("-INT").await
    }

    /// Sends the signal, and returns how the demo ended.
    async fn end_by(&mut self, signal: &str) -> ExitStatus {
        let pid = self.0.id().to_string();
        let sent = Command::new("kill").args([signal, &pid]).status().expect("kill runs");
        assert!(sent.success());
        let mut status = None;
        await_until(LIMIT, "the demo ends", async || {
            status = self.0.try_wait().expect("our child");
            status.is_some()
        })
        .await;
        status.expect("just seen")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_demo_can_be_played_with_and_ends_with_all_its_processes_at_ctrl_c() {
    let _turn = control_plane_turn().await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut running = Running(
        demo(folder.path(), &["--nodes", "20", "--pods", "100", "--keep"]).spawn().expect("it starts"),
    );
    let page = running.await_line("Watch them at ").await.expect("the demo says where the page is");
    let kubeconfig = running.await_line("The kubeconfig is ").await;
    let kubeconfig = PathBuf::from(kubeconfig.expect("the demo says where the kubeconfig is"));
    let page = http().get(page).send().await.expect("an answer").text().await.expect("text");
    assert!(page.contains("id=\"heatmap\""), "{page}");
    let mut programs = processes_of(folder.path());
    programs.retain(|line| !line.starts_with("/bin/sh"));
    assert_eq!(programs.len(), 3, "etcd, kube-apiserver and berth, but {programs:?}");

    let kubeconfig = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    let client = Client::try_from(config.expect("of a cluster")).expect("a client");
    let mine = Pods { prefix: "mine", ..Pods::default() };
    create_pods(&client, &mine, |_, _| {}).await;
    let pods: Api<Pod> = Api::default_namespaced(client);
    await_until(LIMIT, "berth binds a pod of the user's", async || {
        node_of(&pods.get("mine-0").await.expect("it exists")).is_some()
    })
    .await;

    assert!(running.interrupt().await.success());
    let mut table = String::new();
    let stdout = running.0.stdout.as_mut().expect("piped");
    stdout.read_to_string(&mut table).expect("text");
    assert!(table.contains("pods per second") && table.contains("checked with a fresh list"), "{table}");
    assert_eq!(processes_of(folder.path()), [""; 0]);
    assert!(is_empty(folder.path()));
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_in_the_middle_ends_everything_and_is_a_failure() {
    let _turn = control_plane_turn().await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut running = Running::start(folder.path(), &["--nodes", "200", "--pods", "2000"]);
    running.await_line("nodes created").await.expect("nodes are created");
    assert!(!running.interrupt().await.success());
    assert_eq!(processes_of(folder.path()), [""; 0]);
    assert!(is_empty(folder.path()));
}
