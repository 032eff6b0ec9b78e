//! The subject: `berth run` as a process of its own, so that only its memory and CPU count.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use berth_telemetry::process::{ProcessUsage, usage_of};
use berth_testenv::Process;

use crate::metrics::Scrape;

const POLL_INTERVAL: Duration = Duration::from_millis(10);

pub struct Subject {
    process: Process,
    log: PathBuf,
    pub started: Instant,
}

impl Subject {
    /// Starts it. `settings` are lines of its configuration file.
    pub fn start(folder: &Path, name: &str, url: &str, settings: &str) -> Result<Self> {
        let kubeconfig = folder.join("kubeconfig.yaml");
        std::fs::write(
            &kubeconfig,
            format!(
                "apiVersion: v1\nkind: Config\ncurrent-context: scale\n\
                 clusters: [{{name: scale, cluster: {{server: \"{url}\"}}}}]\n\
                 users: [{{name: scale, user: {{}}}}]\n\
                 contexts: [{{name: scale, context: {{cluster: scale, user: scale}}}}]\n"
            ),
        )?;
        let config = folder.join(format!("{name}.yaml"));
        std::fs::write(&config, format!("healthAddress: 127.0.0.1:0\n{settings}"))?;
        let log = folder.join(format!("{name}.log"));
        let args = [
            "run".into(),
            "--kubeconfig".into(),
            kubeconfig.into_os_string(),
            "--config".into(),
            config.into_os_string(),
        ];
        let started = Instant::now();
        let process = Process::start("berth", Path::new(env!("CARGO_BIN_EXE_berth")), args, log.clone())?;
        Ok(Subject { process, log, started })
    }

    pub fn usage(&self) -> Result<ProcessUsage> {
        usage_of(&self.process.pid().to_string()).context("berth has ended")
    }

    /// Waits until this holds.
    ///
    /// # Errors
    /// berth has ended, or it took longer than `limit`.
    pub async fn until(
        &mut self,
        what: &str,
        limit: Duration,
        mut holds: impl FnMut() -> bool,
    ) -> Result<()> {
        let began = Instant::now();
        while !holds() {
            if self.process.has_exited() || began.elapsed() > limit {
                bail!(
                    "waited for {what} in vain for {:.0?}; the log:\n{}",
                    began.elapsed(),
                    self.process.log().tail()
                );
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Waits until this text is in the log.
    pub async fn until_logged(&mut self, text: &str, limit: Duration) -> Result<()> {
        let log = self.log.clone();
        self.until(text, limit, || std::fs::read_to_string(&log).is_ok_and(|log| log.contains(text))).await
    }

    pub async fn metrics(&self) -> Result<Scrape> {
        let log = std::fs::read_to_string(&self.log)?;
        let address = log.split("address=").nth(1).and_then(|rest| rest.split_whitespace().next());
        Scrape::read(address.context("berth has not logged the address of its metrics")?).await
    }

    /// Returns the lines of its log with this level.
    pub fn log_lines(&self, level: &str) -> Result<Vec<String>> {
        let log = std::fs::read_to_string(&self.log)?;
        Ok(log.lines().filter(|line| line.contains(level)).map(str::to_owned).collect())
    }

    /// Kills it without a chance to release its Lease.
    pub fn kill(&mut self) {
        self.process.kill();
    }
}
