//! The berth binary as a separate process, as users run it.

use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use super::{await_until, http};

/// The host name of each process; the identity of a replica begins with it.
pub const HOST: &str = "berth-7d9f5c6b8-x2x4k";

/// A running `berth run`. Killed when dropped; its log is printed if the test panics.
pub struct Berth {
    child: Child,
    folder: TempDir,
}

impl Berth {
    /// Starts it with this configuration (YAML; leader election is off unless it says otherwise).
    pub fn start(kubeconfig: &Path, config: &str) -> Berth {
        let mut text = format!("healthAddress: 127.0.0.1:0\n{config}\n");
        if !config.contains("leaderElection") {
            text.push_str("leaderElection: {enabled: false}\n");
        }
        Self::start_with_files(kubeconfig, &[&text])
    }

    /// Starts it with configuration files with these texts.
    pub fn start_with_files(kubeconfig: &Path, texts: &[&str]) -> Berth {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let write = |(at, text): (usize, &&str)| {
            let file = folder.path().join(format!("{at}.yaml"));
            std::fs::write(&file, text).expect("the configuration is written");
            ["--config".into(), file.into_os_string()]
        };
        let files: Vec<_> = texts.iter().enumerate().flat_map(write).collect();
        let log = File::create(folder.path().join("log")).expect("a log file");
        // For measurements: a build other than the tested one.
        let program = std::env::var_os("BERTH_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_berth").into());
        let child = Command::new(program)
            .arg("run")
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(&files)
            .env("HOSTNAME", HOST)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("berth starts");
        Berth { child, folder }
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Waits until it serves, and returns its address.
    pub async fn address(&self) -> SocketAddr {
        await_until(Duration::from_secs(20), "berth serves", async || self.find_address().is_some()).await;
        self.find_address().expect("just seen")
    }

    /// Waits until it serves HTTPS, and returns its address.
    pub async fn secure_address(&self) -> SocketAddr {
        let find = || find_in(&self.log(), " secure_address=");
        await_until(Duration::from_secs(20), "berth serves HTTPS", async || find().is_some()).await;
        find().expect("just seen")
    }

    fn find_address(&self) -> Option<SocketAddr> {
        find_in(&self.log(), " address=")
    }

    /// Returns its process ID.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns its resident memory.
    pub fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).expect("a process");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
    }

    /// The body of a GET, and whether it was answered with 200.
    pub async fn get(&self, path: &str) -> (bool, String) {
        let url = format!("http://{}{path}", self.address().await);
        match http().get(&url).send().await {
            Ok(answer) => (answer.status().is_success(), answer.text().await.unwrap_or_default()),
            Err(error) => (false, error.to_string()),
        }
    }

    pub async fn await_ready(&self) {
        await_until(Duration::from_secs(30), "berth is ready", async || self.get("/readyz").await.0).await;
    }

    /// Returns the value of a metric, by its name with labels as in the scrape.
    pub async fn metric(&self, name: &str) -> f64 {
        let (_, text) = self.get("/metrics").await;
        value_in(&text, name).unwrap_or_else(|| panic!("no metric {name} in\n{text}"))
    }

    /// Returns the value of a metric, or `None` if there is none of this name.
    pub async fn find_metric(&self, name: &str) -> Option<f64> {
        let (_, text) = self.get("/metrics").await;
        value_in(&text, name)
    }

    /// Returns the value of a metric, or `None` if it cannot be read: the process is stopped, gone or not started
    /// yet.
    async fn try_metric(&self, name: &str) -> Option<f64> {
        let url = format!("http://{}/metrics", self.find_address()?);
        let scrape = async { http().get(url).send().await.ok()?.text().await.ok() };
        let text = tokio::time::timeout(Duration::from_secs(2), scrape).await.ok()??;
        value_in(&text, name)
    }

    pub async fn leads(&self) -> bool {
        self.try_metric("berth_leader").await == Some(1.0)
    }

    /// Returns the number of pods in any queue, and of unfinished binds.
    pub async fn unsettled(&self) -> f64 {
        let mut sum = self.metric("berth_binds_pending").await;
        for queue in ["active", "backoff", "unschedulable", "gated", "held_back"] {
            sum += self.metric(&format!(r#"scheduler_pending_pods{{queue="{queue}"}}"#)).await;
        }
        sum
    }

    /// Waits until no pod waits, and every bound pod is counted and none only assumed; panics if the number of pods
    /// differs.
    pub async fn await_settled(&self, limit: Duration, pods: usize) {
        await_until(limit, &format!("berth counts {pods} pods and has nothing left to do"), async || {
            self.unsettled().await == 0.0
                && self.metric(r#"scheduler_cache_size{type="assumed_pods"}"#).await == 0.0
                && self.metric(r#"scheduler_cache_size{type="pods"}"#).await == pods as f64
        })
        .await;
    }

    /// Waits until it counts this number of bound pods, of any scheduler.
    pub async fn await_counted(&self, limit: Duration, pods: usize) {
        await_until(limit, &format!("berth counts {pods} pods on nodes"), async || {
            self.metric(r#"scheduler_cache_size{type="pods"}"#).await == pods as f64
        })
        .await;
    }

    /// Sends a signal, such as `STOP`.
    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args([&format!("-{name}"), &pid]).status();
        assert!(sent.expect("kill runs").success());
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// SIGTERM; returns how it ended.
    pub async fn terminate(&mut self) -> ExitStatus {
        self.signal("TERM");
        self.wait().await
    }

    /// Waits until it has ended after SIGTERM; returns how.
    pub async fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        await_until(Duration::from_secs(30), "berth ends after SIGTERM", async || {
            status = self.child.try_wait().expect("our child");
            status.is_some()
        })
        .await;
        status.expect("just seen")
    }
}

fn find_in(log: &str, name: &str) -> Option<SocketAddr> {
    let rest = &log[log.find(name)? + name.len()..];
    rest.split_whitespace().next()?.parse().ok()
}

/// Returns the metric's value in this scrape. One without labels may have empty braces.
fn value_in(scrape: &str, name: &str) -> Option<f64> {
    let value = |line: &str| {
        let rest = line.strip_prefix(name)?;
        rest.strip_prefix("{}").unwrap_or(rest).strip_prefix(' ')?.parse().ok()
    };
    scrape.lines().find_map(value)
}

impl Drop for Berth {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("--- log of berth\n{}---", self.log());
        }
    }
}
