//! `berth fit`: whether the pods of manifests would fit.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::anyhow;
use clap::Args;

use super::failure::Failure;
use super::output::{Output, answered, width};
use super::reading::{Also, ReadOptions, read, settings};
use crate::fit::{FitReport, Manifests, show, try_out};

const EXIT_CODES: &str = "Exit codes: 0 all pods fit as the cluster is; 1 the API server or a file failed; 2 the options or the input are \
                          invalid; 3 not all pods fit.";
const DOES_NOT_FIT: u8 = 3;
/// Maximum of `--max`.
const MORE_MAX: u16 = 10_000;

/// Options of `berth fit`.
#[derive(Debug, Clone, Default, Args)]
#[command(after_help = EXIT_CODES)]
pub struct FitOptions {
    /// Manifests, in YAML or JSON, of pods, Deployments, ReplicaSets, StatefulSets, DaemonSets, Jobs, CronJobs and JobSets, with the
    /// Allocations, PodGroups and claims that they need; `-`: standard input. All replicas count as new pods. Nothing is created.
    #[arg(value_name = "MANIFEST", required = true)]
    pub manifests: Vec<PathBuf>,
    #[command(flatten)]
    pub read: ReadOptions,
    /// Namespace of objects that name none.
    #[arg(short, long, value_name = "NAMESPACE", default_value = "default")]
    pub namespace: String,
    /// Say how many more pods of each workload would fit then, up to this number.
    #[arg(long, value_name = "PODS", default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=i64::from(MORE_MAX)))]
    pub max: u16,
    /// Name of the scheduler whose waiting pods come first, and whose profile places the pods. Default: the first name in --config,
    /// else berth.
    #[arg(long, value_name = "NAME")]
    pub scheduler_name: Option<String>,
    /// Format: `table` for people, `json` for programs.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub output: Output,
    /// Configuration file of berth, for its profiles.
    #[arg(long, value_name = "FILE")]
    pub config: Vec<PathBuf>,
}

/// Exit codes: 0 all pods fit, 1 the API server or a file failed, 2 the input or the options are invalid, 3 not all pods fit.
pub fn fit(options: &FitOptions) -> ExitCode {
    match answer(options) {
        Ok(report) if report.fits => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(DOES_NOT_FIT),
        Err(failure) => failure.exit(),
    }
}

fn answer(options: &FitOptions) -> Result<FitReport, Failure> {
    let input = |error: anyhow::Error| Failure::Input(error);
    let settings = settings(&options.config, options.scheduler_name.as_slice()).map_err(input)?;
    let mut manifests = Manifests::default();
    for file in &options.manifests {
        let bytes = read(file)?;
        let name = file.display().to_string();
        manifests.read(&name, &bytes, &options.namespace).map_err(|error| input(error.into()))?;
    }
    let mut dump = options.read.dump(Also::PriorityClasses)?;
    dump.priority_classes().iter().for_each(|class| manifests.priority_class(class));
    for class in manifests.resolve_priorities() {
        eprintln!("berth: there is no priority class {class}: its pods are tried with priority 0");
    }
    let known = dump.bad().len();
    manifests.add_objects_to(&mut dump);
    if let Some(bad) = dump.bad().get(known) {
        return Err(input(anyhow!("{bad}")));
    }
    let mut world = dump.into_world(settings);
    let report = try_out(&mut world, &manifests, options.max.into()).map_err(|why| input(anyhow!(why)))?;
    answered(options.output, &report, |out| show::table(&report, width(), out))?;
    Ok(report)
}
