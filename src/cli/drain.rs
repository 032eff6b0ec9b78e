//! `berth drain`: which nodes can be emptied.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::failure::Failure;
use super::output::{Output, answered, width};
use super::reading::{Also, ReadOptions, settings};
use crate::drain::{DrainPlan, DrainSubject, plan, show};

const EXIT_CODES: &str = "Exit codes: 0 all named nodes can be emptied, or none is named; 1 the API server or a file failed; 2 the options \
                          or the input are invalid; 3 not all named nodes can be emptied.";
const NOT_ALL: u8 = 3;

/// Options of `berth drain`.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub struct DrainOptions {
    /// Nodes to empty. Default: as many as possible, except those of the control plane.
    #[arg(value_name = "NODE")]
    pub nodes: Vec<String>,
    /// Only plan: nothing is cordoned or evicted. There is nothing else yet.
    #[arg(long, required = true)]
    pub plan: bool,
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
/// named nodes can be emptied.
pub fn drain(options: &DrainOptions) -> ExitCode {
    match answer(options) {
        Ok(plan) if options.nodes.is_empty() || plan.kept.is_empty() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(NOT_ALL),
        Err(failure) => failure.exit(),
    }
}

fn answer(options: &DrainOptions) -> Result<DrainPlan, Failure> {
    let settings = settings(&options.config, options.scheduler_name.as_slice()).map_err(Failure::Input)?;
    let dump = options.read.dump(Also::DisruptionBudgets)?;
    let subject = DrainSubject {
        nodes: options.nodes.clone(),
        labels: options.selector.clone(),
        moves_max: options.max_moves,
        nodes_max: options.max_nodes,
    };
    let plan =
        plan(&mut dump.into_world(settings), &subject).map_err(|error| Failure::Input(error.into()))?;
    answered(options.output, &plan, |out| show::table(&plan, width(), out))?;
    Ok(plan)
}
