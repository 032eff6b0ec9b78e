//! kube-scheduler as oracle: a process that runs its plugins.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::{Deserialize, Serialize};

use super::scenario::Step;

/// kube-scheduler's answer for one pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Says {
    /// Reason why it evaluated no node.
    pub pre_filter: Option<String>,
    pub feasible: Option<Vec<String>>,
    pub rejected: Option<BTreeMap<String, Rejection>>,
    /// By plugin, then node: normalised, weighted.
    pub scores: BTreeMap<String, BTreeMap<String, i64>>,
    pub preemption: Option<Preempts>,
    /// A plugin failed.
    pub error: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Rejection {
    pub reasons: Vec<String>,
    /// Removing pods from the node would not help.
    #[allow(
        dead_code,
        reason = "berth's verdict does not distinguish it; it helps a reader of a difference"
    )]
    pub unresolvable: bool,
}

/// Preemption victims of the pod, as if it fitted no node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Preempts {
    /// Reason why it may not preempt.
    pub ineligible: Option<String>,
    /// By node.
    pub candidates: BTreeMap<String, Victims>,
    /// Nodes on which preemption does not help.
    pub fruitless: BTreeMap<String, Rejection>,
    /// The best candidate, or all equally good ones.
    pub best: Option<Vec<String>>,
    /// Its message if there is none.
    pub message: Option<String>,
}

/// Pods by `namespace/name`, most important first.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Victims {
    pub pods: Vec<String>,
    /// Number of disruption budget violations.
    pub violations: u32,
}

#[derive(Deserialize)]
struct Reply {
    answers: Vec<Says>,
}

/// A running filter-oracle.
pub struct Oracle(LineServer);

impl Oracle {
    pub fn start(program: &Path) -> Self {
        Oracle(LineServer::start(program))
    }

    /// Returns one answer for each question of the step.
    ///
    /// # Errors
    /// The oracle rejects the step (with a reason on standard error), after which it has exited.
    pub fn step(&mut self, step: &Step) -> anyhow::Result<Vec<Says>> {
        Ok(serde_json::from_str::<Reply>(self.0.ask(step)?)?.answers)
    }
}

/// A program that answers each line of JSON with one; ends with its standard input, that is with this value or this
/// process.
pub struct LineServer {
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    child: Child,
    line: String,
}

impl LineServer {
    pub fn start(program: &Path) -> Self {
        let mut child = Command::new(program)
            .env("GOMAXPROCS", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {}: {error}", program.display()));
        let to = child.stdin.take().expect("it is piped");
        let from = BufReader::new(child.stdout.take().expect("it is piped"));
        LineServer { to, from, child, line: String::new() }
    }

    /// Returns the answer to one request.
    ///
    /// # Errors
    /// The program has exited.
    pub fn ask(&mut self, request: &impl Serialize) -> anyhow::Result<&str> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        self.to.write_all(&line)?;
        self.to.flush()?;
        self.line.clear();
        anyhow::ensure!(self.from.read_line(&mut self.line)? > 0, "the oracle ended");
        Ok(&self.line)
    }
}

impl Drop for LineServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
