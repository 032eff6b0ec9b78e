//! Times of binds and unschedulable conditions, from the API server's audit log.
//!
//! A watch would make the API server encode every pod, at a cost that depends on what the scheduler's own watches request. A line
//! in the log costs some microseconds, the same for all schedulers.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use serde::Deserialize;

use crate::workload::{Workload, index_in, is_bystander};

const POLICY: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted, Panic]
rules:
- level: Metadata
  resources: [{group: "", resources: [pods/binding, pods/status]}]
- level: None
"#;

/// Returns flags for kube-apiserver, and the file it will write.
pub fn prepare(folder: &Path) -> Result<(Vec<String>, PathBuf)> {
    let (policy, log) = (folder.join("audit-policy.yaml"), folder.join("audit.log"));
    std::fs::write(&policy, POLICY)?;
    let args = vec![
        format!("--audit-policy-file={}", policy.display()),
        format!("--audit-log-path={}", log.display()),
        // Written next to the requests and not within them.
        "--audit-log-mode=batch".to_owned(),
        "--audit-log-batch-buffer-size=100000".to_owned(),
    ];
    Ok((args, log))
}

/// Decisions about the pods of one workload since this was created, as logged so far.
pub struct Decisions {
    workload: &'static Workload,
    log: BufReader<File>,
    /// Writes before that are not the scheduler's.
    since: Timestamp,
    /// A line whose end is not written yet.
    partial: String,
    bound: HashSet<usize>,
    told: HashSet<usize>,
    /// Binds that the API server rejected.
    pub refused: usize,
    /// Write requests of any kind, those to victims included: a scheduler that preempts may write long before its first bind.
    pub writes: usize,
    first_write: Option<Timestamp>,
    last: Option<Timestamp>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    object_ref: ObjectRef,
    response_status: ResponseStatus,
    /// The time at which the response was complete.
    stage_timestamp: String,
}

#[derive(Deserialize)]
struct ObjectRef {
    name: String,
    subresource: String,
}

#[derive(Deserialize)]
struct ResponseStatus {
    code: u16,
}

impl Decisions {
    pub fn new(workload: &'static Workload, log: &Path) -> Result<Self> {
        let log = File::open(log).with_context(|| format!("cannot read the audit log {}", log.display()))?;
        Ok(Decisions {
            workload,
            log: BufReader::new(log),
            since: Timestamp::now(),
            partial: String::new(),
            bound: HashSet::new(),
            told: HashSet::new(),
            refused: 0,
            writes: 0,
            first_write: None,
            last: None,
        })
    }

    /// Reads what has been written since the last call.
    pub fn read_on(&mut self) -> Result<()> {
        while self.log.read_line(&mut self.partial)? > 0 && self.partial.ends_with('\n') {
            let entry = serde_json::from_str(&self.partial);
            let entry = entry.with_context(|| format!("a line of the audit log: {}", self.partial))?;
            self.take(entry)?;
            self.partial.clear();
        }
        Ok(())
    }

    fn take(&mut self, entry: Entry) -> Result<()> {
        let at: Timestamp = entry.stage_timestamp.parse()?;
        if at < self.since {
            return Ok(());
        }
        self.writes += 1;
        self.first_write = Some(self.first_write.map_or(at, |first| first.min(at)));
        if is_bystander(&entry.object_ref.name) {
            return Ok(());
        }
        let Some(index) = index_in(&entry.object_ref.name) else {
            bail!("the audit log has an unknown pod: {}", entry.object_ref.name);
        };
        let is_first_decision = match (entry.object_ref.subresource.as_str(), entry.response_status.code) {
            ("binding", 201) => self.bound.insert(index),
            ("binding", _) => {
                self.refused += 1;
                false
            }
            // Pods that fit may get other conditions.
            ("status", 200) if self.workload.pod(index).hopeless => self.told.insert(index),
            _ => false,
        };
        if is_first_decision {
            self.last = Some(self.last.map_or(at, |last| last.max(at)));
        }
        Ok(())
    }

    pub fn bound(&self) -> usize {
        self.bound.len()
    }

    /// Returns the number of pods that were bound, or that fit nowhere and got the condition.
    pub fn count(&self) -> usize {
        self.bound.len() + self.told.len()
    }

    /// Returns the time of the first write to a pod or a victim, and of the last decision, if there is any.
    pub fn first_and_last(&self) -> Option<(Timestamp, Timestamp)> {
        self.first_write.zip(self.last)
    }
}
