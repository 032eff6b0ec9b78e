//! The upstream recommender as a process.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};

use berth_testenv::Process;
use berth_testenv::binaries::go_tool;
use tempfile::TempDir;

use super::await_seldom;
use crate::support::http;

/// Ends with its owner.
pub struct Upstream {
    process: Process,
    metrics: String,
    log: PathBuf,
    _folder: TempDir,
}

impl Upstream {
    /// Starts it with these flags, in addition to those that make it fast.
    pub async fn start(kubeconfig: &Path, flags: &[String]) -> Self {
        // It may be built first.
        let program = tokio::task::spawn_blocking(|| go_tool("vpa-recommender")).await.expect("no panic");
        let program = program.unwrap_or_else(|error| panic!("{error:#}"));
        let folder = tempfile::tempdir().expect("a folder");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("an address");
        drop(listener);
        let mut args = vec![
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--address={address}"),
            "--recommender-interval=300ms".to_owned(),
            // Every round writes at least some checkpoints, the oldest first.
            "--checkpoints-timeout=1ms".to_owned(),
            "--kube-api-qps=2000".to_owned(),
            "--kube-api-burst=2000".to_owned(),
            "--cpu-integer-post-processor-enabled".to_owned(),
            format!("--container-recommendation-max-allowed-memory={}", super::MAX_ALLOWED_MEMORY),
            // Level 3 logs OOM kills.
            "--v=3".to_owned(),
        ];
        args.extend_from_slice(flags);
        let log = folder.path().join("log");
        let process = Process::start("vpa-recommender", &program, args, log.clone()).expect("a shell");
        Self { process, metrics: format!("http://{address}/metrics"), log, _folder: folder }
    }

    /// Returns the number of completed rounds; 0 until it answers.
    async fn count(&self) -> f64 {
        const NAME: &str = r#"vpa_recommender_execution_latency_seconds_count{step="total"}"#;
        let Ok(answer) = http().get(&self.metrics).send().await else { return 0.0 };
        let text = answer.text().await.unwrap_or_default();
        let value = text.lines().find_map(|line| line.strip_prefix(NAME)?.trim().parse().ok());
        value.unwrap_or(0.0)
    }

    /// Waits for the end of a round that began after this call.
    pub async fn await_round(&mut self) {
        let before = self.count().await;
        await_seldom("upstream's rounds go by", async || {
            assert!(!self.process.has_exited(), "upstream ended:\n{}", self.process.log().tail());
            self.count().await >= before + 2.0
        })
        .await;
    }

    /// Returns the number of lines of its log with this text.
    pub fn said(&self, text: &str) -> usize {
        let log = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&log).lines().filter(|line| line.contains(text)).count()
    }

    pub fn log_tail(&self) -> String {
        self.process.log().tail()
    }
}
