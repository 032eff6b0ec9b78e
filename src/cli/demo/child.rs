//! berth as a separate process, so that its CPU time and memory are measured alone.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::json;

use berth_telemetry::process::{ProcessUsage, usage_of};
use berth_testenv::Process;

const READY_LIMIT: Duration = Duration::from_secs(30);
const SCRAPE_LIMIT: Duration = Duration::from_secs(10);

/// A running `berth run` of this program. Dropping it ends the process.
pub struct Berth {
    process: Process,
    address: SocketAddr,
    http: reqwest::Client,
}

impl Berth {
    /// Starts berth for the pods with this `schedulerName`, and returns when it has read all pods and nodes. Its configuration and
    /// its log go to `folder`, its recording to `record`.
    pub async fn start(
        kubeconfig: &Path,
        folder: &Path,
        scheduler_name: &str,
        uses_proxy: bool,
        record: Option<&Path>,
    ) -> Result<Self> {
        let program = std::env::current_exe().context("cannot find the path of this program")?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port on 127.0.0.1")?;
        let address = listener.local_addr()?;
        drop(listener);
        let kubeconfig = kubeconfig.to_str().context("the temporary folder's path is not UTF-8")?;
        let program = program.to_str().context("the path of this program is not UTF-8")?;
        let file = folder.join("berth.json");
        // Everything else is off unless it is configured, or ends with this process.
        let mut config = json!({
            "schedulerNames": [scheduler_name],
            "healthAddress": address,
            "leaderElection": {"enabled": false},
        });
        if let Some(directory) = record {
            std::fs::create_dir_all(directory)
                .with_context(|| format!("cannot create the folder {}", directory.display()))?;
            let directory = directory.to_str().context("the path of --record is not UTF-8")?;
            config["recorder"] = json!({"enabled": true, "directory": directory});
        }
        std::fs::write(&file, config.to_string()).context("cannot write the configuration of berth")?;
        let file = file.to_str().context("the temporary folder's path is not UTF-8")?;
        let mut args = vec![];
        if !uses_proxy {
            args.extend(["-u", "HTTPS_PROXY", "-u", "https_proxy"]);
        }
        args.extend([program, "run", "--kubeconfig", kubeconfig, "--config", file]);
        let process = Process::start("berth", Path::new("/usr/bin/env"), args, folder.join("berth.log"))?;
        let http = reqwest::Client::builder().no_proxy().timeout(SCRAPE_LIMIT).build()?;
        let mut berth = Berth { process, address, http };
        let (http, url) = (berth.http.clone(), format!("http://{address}/readyz"));
        let is_ready =
            || async { matches!(http.get(&url).send().await, Ok(answer) if answer.status().is_success()) };
        berth.process.await_ready(READY_LIMIT, is_ready).await?;
        Ok(berth)
    }

    /// # Errors
    /// berth has exited; the message has the end of its log.
    pub fn check_alive(&mut self) -> Result<()> {
        if self.process.has_exited() {
            bail!("berth exited; its log:\n{}", self.process.log().tail());
        }
        Ok(())
    }

    /// Returns the address of its page.
    pub fn page(&self) -> String {
        format!("http://{}/ui/", self.address)
    }

    pub fn log_tail(&self) -> String {
        self.process.log().tail()
    }

    pub fn usage(&self) -> Result<ProcessUsage> {
        usage_of(&self.process.pid().to_string())
            .context("cannot read the resource usage of berth from /proc")
    }

    pub async fn scrape(&self) -> Result<ScrapedMetrics> {
        let url = format!("http://{}/metrics", self.address);
        let answer = self.http.get(&url).send().await.and_then(reqwest::Response::error_for_status);
        let text = answer.with_context(|| format!("cannot read {url}"))?.text().await?;
        Ok(ScrapedMetrics(text))
    }
}

/// Text of a scrape.
pub struct ScrapedMetrics(String);

impl ScrapedMetrics {
    /// Returns the value of a metric, by its name with labels as in the text.
    pub fn get(&self, name: &str) -> Result<u64> {
        let lines = &mut self.0.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let value = value.with_context(|| format!("berth has no metric {name}"))?;
        value.parse().with_context(|| format!("{name} is {value:?}, which is not a number"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_found_by_its_whole_name() {
        let metrics =
            ScrapedMetrics("# TYPE a counter\na_total_b 1\na_total{x=\"y\"} 2\na_total 3\n".to_owned());
        assert_eq!(metrics.get("a_total").unwrap(), 3);
        assert_eq!(metrics.get(r#"a_total{x="y"}"#).unwrap(), 2);
        assert!(metrics.get("a").is_err());
    }
}
