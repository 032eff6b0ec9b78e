//! When pods were bound or told that they must wait, by the API server's own audit log.
//!
//! A watch would cost the API server an encoding of every pod, and a different one for each scheduler, depending on
//! what the scheduler's own watches ask for. A line in the log costs it some microseconds, the same for all.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use serde::Deserialize;

use crate::workload::{Workload, index_in, is_victim};

const POLICY: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted, Panic]
rules:
- level: Metadata
  resources: [{group: "", resources: [pods/binding, pods/status]}]
- level: None
"#;

/// Flags for kube-apiserver, and the file it is going to write.
pub fn prepare(folder: &Path) -> Result<(Vec<String>, PathBuf)> {
    let (policy, log) = (folder.join("audit-policy.yaml"), folder.join("audit.log"));
    std::fs::write(&policy, POLICY)?;
    let args = vec![
        format!("--audit-policy-file={}", policy.display()),
        format!("--audit-log-path={}", log.display()),
        // Written beside the requests and not within them.
        "--audit-log-mode=batch".to_owned(),
        "--audit-log-batch-buffer-size=100000".to_owned(),
    ];
    Ok((args, log))
}

/// What the log has said so far about the pods of one workload.
pub struct Decisions {
    workload: &'static Workload,
    log: BufReader<File>,
    /// A line whose end is not written yet.
    partial: String,
    bound: HashSet<usize>,
    told: HashSet<usize>,
    /// Binds that the API server did not carry out.
    pub refused: usize,
    /// Requests of any kind in the log, those about victims too: a scheduler that preempts may write long before its first bind.
    pub writes: usize,
    first_write: Option<Timestamp>,
    last: Option<Timestamp>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    object_ref: ObjectRef,
    response_status: ResponseStatus,
    /// When the answer was complete.
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
            partial: String::new(),
            bound: HashSet::new(),
            told: HashSet::new(),
            refused: 0,
            writes: 0,
            first_write: None,
            last: None,
        })
    }

    /// Reads what has been written since the last time.
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
        self.writes += 1;
        self.first_write = Some(self.first_write.map_or(at, |first| first.min(at)));
        if is_victim(&entry.object_ref.name) {
            return Ok(());
        }
        let Some(index) = index_in(&entry.object_ref.name) else {
            bail!("the audit log has a pod of nobody: {}", entry.object_ref.name);
        };
        let is_first_decision = match (entry.object_ref.subresource.as_str(), entry.response_status.code) {
            ("binding", 201) => self.bound.insert(index),
            ("binding", _) => {
                self.refused += 1;
                false
            }
            // Other conditions may be written on pods that fit.
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

    /// Pods that were bound, or that fit nowhere and were told so.
    pub fn count(&self) -> usize {
        self.bound.len() + self.told.len()
    }

    /// When the first pod, or the first victim, was written to, and when the last decision came, if there is any.
    pub fn first_and_last(&self) -> Option<(Timestamp, Timestamp)> {
        self.first_write.zip(self.last)
    }
}
