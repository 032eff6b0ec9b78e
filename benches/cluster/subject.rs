//! Subjects of the benchmark: processes that bind pods.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use berth_testenv::Process;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::asked::{self, Askers};
use crate::cluster::{Cluster, POD_GROUP_GATES};
use crate::features;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Subject {
    #[value(name = "null")]
    #[serde(rename = "null")]
    Null,
    #[value(name = "null+events")]
    #[serde(rename = "null+events")]
    NullWithEvents,
    #[value(name = "berth")]
    #[serde(rename = "berth")]
    Berth,
    /// berth that records what it hears and decides, in `target/tmp/recordings`.
    #[value(name = "berth+recorder")]
    #[serde(rename = "berth+recorder")]
    BerthWithRecorder,
    /// berth that is asked what would fit, and whose page is watched.
    #[value(name = "berth+asked")]
    #[serde(rename = "berth+asked")]
    BerthAsked,
    /// berth with every feature on.
    #[value(name = "berth+features")]
    #[serde(rename = "berth+features")]
    BerthWithFeatures,
    #[value(name = "kube-scheduler")]
    #[serde(rename = "kube-scheduler")]
    KubeScheduler,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Subject::Null => "null",
            Subject::NullWithEvents => "null+events",
            Subject::Berth => "berth",
            Subject::BerthWithRecorder => "berth+recorder",
            Subject::BerthAsked => "berth+asked",
            Subject::BerthWithFeatures => "berth+features",
            Subject::KubeScheduler => "kube-scheduler",
        })
    }
}

impl Subject {
    /// Whether it binds without deciding.
    pub fn is_null(self) -> bool {
        matches!(self, Subject::Null | Subject::NullWithEvents)
    }

    pub fn is_berth(self) -> bool {
        use Subject::{Berth, BerthAsked, BerthWithFeatures, BerthWithRecorder};
        matches!(self, Berth | BerthWithRecorder | BerthAsked | BerthWithFeatures)
    }

    pub fn writes_events(self) -> bool {
        self != Subject::Null
    }

    /// Returns the `spec.schedulerName` of its pods.
    pub fn scheduler_name(self) -> &'static str {
        match self {
            subject if subject.is_berth() => "berth",
            _ => "default-scheduler",
        }
    }

    /// Starts it. For kube-scheduler, waits until it is ready and therefore at work.
    pub async fn start(self, cluster: &Cluster) -> Result<Running> {
        let kubeconfig = cluster.control_plane.kubeconfig();
        let log = cluster.folder.path().join("subject.log");
        let process = match self {
            Subject::Null | Subject::NullWithEvents => {
                let program = std::env::current_exe().context("cannot get the path of this program")?;
                let mut args = vec!["null-binder".into(), "--kubeconfig".into(), kubeconfig.into_os_string()];
                args.extend((self == Subject::NullWithEvents).then(|| "--events".into()));
                Process::start("the null binder", &program, args, log.clone())?
            }
            Subject::Berth | Subject::BerthAsked | Subject::BerthWithRecorder => {
                let fixed = ["run", "--leader-elect=false", "--health-address=127.0.0.1:0", "--kubeconfig"];
                let args = fixed.into_iter().map(Into::into).chain([kubeconfig.into_os_string()]);
                let mut args: Vec<OsString> = args.collect();
                if self == Subject::BerthWithRecorder {
                    let config = cluster.folder.path().join("berth.yaml");
                    let directory = concat!(env!("CARGO_TARGET_TMPDIR"), "/recordings");
                    std::fs::write(&config, format!("recorder: {{enabled: true, directory: {directory}}}"))?;
                    args.extend(["--config".into(), config.into_os_string()]);
                }
                Process::start("berth", Path::new(env!("CARGO_BIN_EXE_berth")), args, log.clone())?
            }
            Subject::BerthWithFeatures => {
                let config = features::prepare(cluster).await?;
                let args = ["run".into(), "--kubeconfig".into(), kubeconfig.into_os_string()];
                let args = args.into_iter().chain(["--config".into(), config.into_os_string()]);
                Process::start("berth", Path::new(env!("CARGO_BIN_EXE_berth")), args, log.clone())?
            }
            Subject::KubeScheduler => {
                let gates = cluster.workload.pod_groups.then_some(POD_GROUP_GATES);
                cluster.control_plane.start_scheduler("", gates.as_slice()).await?
            }
        };
        let askers = (self == Subject::BerthAsked).then(|| asked::ask(log.clone()));
        Ok(Running { subject: self, process, log, askers })
    }
}

/// A running subject; it ends when dropped.
pub struct Running {
    subject: Subject,
    pub process: Process,
    log: PathBuf,
    askers: Option<Askers>,
}

/// berth's own counters.
#[derive(Debug, Clone, Serialize)]
pub struct Inner {
    pub list_hits: f64,
    pub list_misses: f64,
    pub attempts_unschedulable: f64,
    pub conflicts: f64,
    pub reports_waiting: f64,
    pub reports_dropped: f64,
    /// Upper bound of the bucket that holds the 99.9th percentile of the times under the engine's lock, in milliseconds.
    pub lock_p999_ms: f64,
    /// Longest time under the engine's lock, in milliseconds, and the operation.
    pub lock_longest_ms: f64,
    pub lock_longest_in: String,
}

impl Running {
    /// Reads berth's own counters; `None` for other subjects.
    pub async fn inner(&self) -> Result<Option<Inner>> {
        if !self.subject.is_berth() {
            return Ok(None);
        }
        if let Some(askers) = &self.askers {
            askers.check()?;
        }
        let address = address_of(&self.log).context("berth has not logged the address of its metrics")?;
        let text = reqwest::get(format!("http://{address}/metrics")).await?.text().await?;
        let value = |name: &str| -> Result<f64> {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix(name)?.trim_start_matches("{}").strip_prefix(' '));
            Ok(line.with_context(|| format!("berth has no metric {name}"))?.parse()?)
        };
        if self.subject == Subject::BerthWithFeatures {
            let requests = labelled(&text, "berth_request_duration_seconds_count");
            let reviews: f64 =
                requests.filter(|(labels, _)| labels.contains("guard")).map(|(_, count)| count).sum();
            ensure!(reviews > 0.0, "the guard was never asked, so its cost is not measured");
        }
        let holds = labelled(&text, "berth_engine_lock_hold_longest_seconds");
        let (longest_in, longest) = holds.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or_default();
        Ok(Some(Inner {
            list_hits: value(r#"berth_cache_lookups_total{level="list",result="hit"}"#)?,
            list_misses: value(r#"berth_cache_lookups_total{level="list",result="miss"}"#)?,
            attempts_unschedulable: value(
                r#"scheduler_schedule_attempts_total{result="unschedulable",profile="berth"}"#,
            )?,
            conflicts: value("berth_placement_conflicts_total")?,
            reports_waiting: value("berth_reports_waiting")?,
            reports_dropped: value(r#"berth_reports_total{result="dropped"}"#)?,
            lock_p999_ms: lock_percentile(&text, 0.999).context("berth has no histogram of its lock")? * 1e3,
            lock_longest_ms: longest * 1e3,
            lock_longest_in: longest_in.split('"').nth(1).unwrap_or_default().to_owned(),
        }))
    }
}

/// Returns the address at which berth says that it answers.
pub fn address_of(log: &Path) -> Option<String> {
    let log = std::fs::read_to_string(log).ok()?;
    Some(log.split(" address=").nth(1)?.split_whitespace().next()?.to_owned())
}

/// Returns the labels and the value of each sample of a metric.
fn labelled<'a>(text: &'a str, name: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
    text.lines().filter_map(move |line| {
        let (labels, value) = line.strip_prefix(name)?.strip_prefix('{')?.split_once("} ")?;
        Some((labels, value.split(' ').next()?.parse().ok()?))
    })
}

/// Returns the upper bound of the bucket with this percentile of the times under the lock, in seconds.
fn lock_percentile(text: &str, percentile: f64) -> Option<f64> {
    let mut buckets: Vec<(f64, f64)> = Vec::new();
    for (labels, count) in labelled(text, "berth_engine_lock_hold_seconds_bucket") {
        let le = labels.split("le=\"").nth(1)?.split('"').next()?;
        let le = if le == "+Inf" { f64::INFINITY } else { le.parse().ok()? };
        match buckets.iter_mut().find(|(known, _)| *known == le) {
            Some((_, sum)) => *sum += count,
            None => buckets.push((le, count)),
        }
    }
    buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
    let all = buckets.last()?.1;
    buckets.iter().find(|(_, count)| *count >= percentile * all).map(|(le, _)| *le)
}
