//! Subjects of the benchmark: processes that bind pods.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use berth_testenv::Process;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::cluster::Cluster;

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
            Subject::KubeScheduler => "kube-scheduler",
        })
    }
}

impl Subject {
    /// Whether it binds without deciding.
    pub fn is_null(self) -> bool {
        matches!(self, Subject::Null | Subject::NullWithEvents)
    }

    pub fn writes_events(self) -> bool {
        self != Subject::Null
    }

    /// Returns the `spec.schedulerName` of its pods.
    pub fn scheduler_name(self) -> &'static str {
        match self {
            Subject::Berth => "berth",
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
            Subject::Berth => {
                let fixed = ["run", "--leader-elect=false", "--health-address=127.0.0.1:0", "--kubeconfig"];
                let args = fixed.into_iter().map(Into::into).chain([kubeconfig.into_os_string()]);
                Process::start("berth", Path::new(env!("CARGO_BIN_EXE_berth")), args, log.clone())?
            }
            Subject::KubeScheduler => cluster.control_plane.start_scheduler("").await?,
        };
        Ok(Running { subject: self, process, log })
    }
}

/// A running subject; it ends when dropped.
pub struct Running {
    subject: Subject,
    pub process: Process,
    log: PathBuf,
}

/// berth's own counters.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Inner {
    pub list_hits: f64,
    pub list_misses: f64,
    pub attempts_unschedulable: f64,
    pub conflicts: f64,
    pub reports_waiting: f64,
    pub reports_dropped: f64,
}

impl Running {
    /// Reads berth's own counters; `None` for other subjects.
    pub async fn inner(&self) -> Result<Option<Inner>> {
        if self.subject != Subject::Berth {
            return Ok(None);
        }
        let log = std::fs::read_to_string(&self.log)?;
        let address = log.split("address=").nth(1).and_then(|rest| rest.split_whitespace().next());
        let address = address.context("berth has not logged the address of its metrics")?;
        let text = reqwest::get(format!("http://{address}/metrics")).await?.text().await?;
        let value = |name: &str| -> Result<f64> {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix(name)?.trim_start_matches("{}").strip_prefix(' '));
            Ok(line.with_context(|| format!("berth has no metric {name}"))?.parse()?)
        };
        Ok(Some(Inner {
            list_hits: value(r#"berth_cache_lookups_total{level="list",result="hit"}"#)?,
            list_misses: value(r#"berth_cache_lookups_total{level="list",result="miss"}"#)?,
            attempts_unschedulable: value(
                r#"scheduler_schedule_attempts_total{result="unschedulable",profile="berth"}"#,
            )?,
            conflicts: value("berth_placement_conflicts_total")?,
            reports_waiting: value("berth_reports_waiting")?,
            reports_dropped: value(r#"berth_reports_total{result="dropped"}"#)?,
        }))
    }
}
