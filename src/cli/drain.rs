//! `berth drain`: which nodes can be emptied, and emptying them.

mod apply;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::{ArgGroup, Args};
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

use super::failure::Failure;
use super::output::{Output, answered, width};
use super::reading::{Also, ReadOptions, runtime, settings};
use crate::drain::{DrainPlan, DrainSubject, plan, show};
use apply::{AppliedStep, Drainer};
use berth_kube_io::client::without_retries;

const EXIT_CODES: &str = "Exit codes: 0 all named nodes can be emptied, or none is named; 1 the API server or a file failed; 2 the options \
                          or the input are invalid; 3 not all named nodes can be emptied, or --apply has stopped.";
const NOT_ALL: u8 = 3;

/// Options of `berth drain`.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES, group = ArgGroup::new("what").required(true))]
pub struct DrainOptions {
    /// Nodes to empty. Default: as many as possible, except those of the control plane.
    #[arg(value_name = "NODE")]
    pub nodes: Vec<String>,
    /// Only plan: nothing is cordoned or evicted.
    #[arg(long, group = "what")]
    pub plan: bool,
    /// Carry the plan out: cordon its nodes, and empty one after the other. Before each, the cluster is read and the rest of the plan
    /// proved again; if it does not hold any more, or pods do not come back elsewhere, stop, and uncordon what is not empty.
    #[arg(long, group = "what", conflicts_with = "filename")]
    pub apply: bool,
    /// With --apply: time in which the pods of a node must run elsewhere.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, requires = "apply", value_parser = clap::value_parser!(u64).range(1..))]
    pub step_timeout: u64,
    /// With --plan: print no moves, but the commands that annotate the pods that scale-ins should take instead, so that these nodes become
    /// empty and topology spread constraints stay met.
    #[arg(long, requires = "plan")]
    pub deletion_costs: bool,
    #[command(flatten)]
    pub read: ReadOptions,
    /// Only nodes with these labels, such as pool=spot,zone=a.
    #[arg(short = 'l', long, value_name = "LABELS", value_delimiter = ',', value_parser = label)]
    pub selector: Vec<(String, String)>,
    /// Move at most this number of pods.
    #[arg(long, value_name = "PODS")]
    pub max_moves: Option<usize>,
    /// Empty at most this number of nodes.
    #[arg(long, value_name = "NODES")]
    pub max_nodes: Option<usize>,
    /// Name of the scheduler whose waiting pods come first, and whose profile places the pods that move, whatever scheduler they have.
    /// Default: the first name in --config, else berth.
    #[arg(long, value_name = "NAME")]
    pub scheduler_name: Option<String>,
    /// Format: `table` for people, `json` for programs.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub output: Output,
    /// Configuration file of berth, for its profiles.
    #[arg(long, value_name = "FILE")]
    pub config: Vec<PathBuf>,
}

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("use KEY=VALUE, such as pool=spot".to_owned()),
    }
}

/// Exit codes: 0 all named nodes can be emptied or none is named, 1 the API server or a file failed, 2 invalid input or options, 3 not all
/// named nodes can be emptied, or `--apply` has stopped.
pub fn drain(options: &DrainOptions) -> ExitCode {
    let done = if options.apply { apply(options) } else { answer(options) };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(NOT_ALL),
        Err(failure) => failure.exit(),
    }
}

/// Prints a plan. Returns whether it has all named nodes.
fn answer(options: &DrainOptions) -> Result<bool, Failure> {
    let plan = planned(options, options.nodes.clone())?;
    answered(options.output, &plan, |out| match options.deletion_costs {
        true => show::deletion_costs(&plan, out),
        false => show::table(&plan, width(), out),
    })?;
    Ok(options.nodes.is_empty() || plan.kept.is_empty())
}

/// Plans on the cluster as it is now.
fn planned(options: &DrainOptions, nodes: Vec<String>) -> Result<DrainPlan, Failure> {
    let settings = settings(&options.config, options.scheduler_name.as_slice()).map_err(Failure::Input)?;
    let dump = options.read.dump(Also::DisruptionBudgets)?;
    let subject = DrainSubject {
        nodes,
        labels: options.selector.clone(),
        moves_max: options.max_moves,
        nodes_max: options.max_nodes,
    };
    plan(&mut dump.into_world(settings), &subject).map_err(|error| Failure::Input(error.into()))
}

/// What `--apply` has done.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Applied {
    /// As it was printed first.
    #[serde(flatten)]
    plan: DrainPlan,
    applied: Vec<AppliedStep>,
    /// Why it has stopped before the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    stopped: Option<String>,
    /// Nodes that are schedulable again.
    uncordoned: Vec<String>,
}

/// Carries a plan out. Returns whether it has all named nodes and was carried out to its end.
fn apply(options: &DrainOptions) -> Result<bool, Failure> {
    let first = planned(options, options.nodes.clone())?;
    let is_table = options.output == Output::Table;
    if is_table {
        answered(options.output, &first, |out| show::table(&first, width(), out))?;
    }
    let runtime = runtime()?;
    // A retry of the client would hide that a disruption budget refuses an eviction.
    let client = runtime.block_on(async {
        without_retries(options.read.cluster().await?).context("cannot create a client")
    })?;
    let mut drainer = Drainer::new(client, Duration::from_secs(options.step_timeout));
    let mut applied = Vec::new();
    let done = carry_out(options, &runtime, &mut drainer, &first, &mut applied);
    let stopped = done.err().map(|error| format!("{error:#}"));
    if let Some(why) = &stopped {
        eprintln!("berth: stopped after {} of {} nodes: {why}", applied.len(), first.nodes.len());
    }
    let uncordoned = runtime.block_on(drainer.uncordon_rest())?;
    if !uncordoned.is_empty() {
        eprintln!("berth: uncordoned again: {}", uncordoned.join(", "));
    }
    let all = stopped.is_none() && (options.nodes.is_empty() || first.kept.is_empty());
    if !is_table {
        let answer = Applied { plan: first, applied, stopped, uncordoned };
        answered(options.output, &answer, |_| Ok(()))?;
    }
    Ok(all)
}

fn carry_out(
    options: &DrainOptions,
    runtime: &tokio::runtime::Runtime,
    drainer: &mut Drainer,
    first: &DrainPlan,
    applied: &mut Vec<AppliedStep>,
) -> anyhow::Result<()> {
    let mut left: Vec<String> = first.nodes.iter().map(|step| step.node.clone()).collect();
    // From here on, an interruption is kept until it can be heeded.
    let mut interrupt = runtime.block_on(async { signal(SignalKind::interrupt()) })?;
    runtime.block_on(drainer.cordon(left.iter().map(String::as_str)))?;
    while !left.is_empty() {
        // The first node of a plan is proved without the others.
        let now = planned(options, left.clone()).map_err(|failure| failure.with_code().0)?;
        if let Some(kept) = now.kept.first() {
            let nodes = kept.nodes.join(", ");
            return Err(anyhow!("the plan does not hold any more: node {nodes}: {}", kept.reason));
        }
        let step = now.nodes.first().context("the plan has no node left")?;
        let done = runtime.block_on(async {
            tokio::select! {
                biased;
                _ = interrupt.recv() => Err(anyhow!("interrupted before node {} was empty", step.node)),
                done = drainer.empty(step) => done.with_context(|| format!("node {}", step.node)),
            }
        })?;
        eprintln!("berth: node {} is empty: {} evicted, all run elsewhere", done.node, done.evicted.len());
        left.retain(|node| *node != done.node);
        applied.push(done);
    }
    Ok(())
}
