//! Benchmark of berth, kube-scheduler and a null binder on the same control plane; `docs/benchmarks.md` describes the measurements.
//!
//! Every figure comes from outside of the measured scheduler: from the API server's audit log and from /proc.

mod asked;
mod audit;
mod cluster;
mod features;
mod lived_in;
mod measure;
mod null_binder;
mod report;
mod subject;
mod workload;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Parser, Subcommand, ValueEnum};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use report::{Page, Report};
use subject::Subject;
use workload::Size;
use workload::{WORKLOADS, Workload};

/// Measures schedulers against a real API server.
#[derive(Debug, Parser)]
#[command(name = "cluster", bin_name = "cargo bench --bench cluster --")]
struct Options {
    /// Workloads, by name; `all` for all of them.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_value = "all")]
    workload: Vec<String>,
    /// Subjects to measure.
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        default_value = "null,null+events,berth,kube-scheduler"
    )]
    subjects: Vec<Subject>,
    /// Nodes of 4 CPU, 32 GiB and 110 pods, in three zones.
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(3..=100_000))]
    nodes: u32,
    /// Pods that wait when the scheduler starts.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    pods: u32,
    /// Number of runs of each measurement, in turn; the table has medians.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    repeat: u32,
    /// Also write the table to this file; if it exists, between the markers of the section.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Section of the file: its markers are `<!-- NAME: begin -->` and `<!-- NAME: end -->`.
    #[arg(long, value_name = "NAME", default_value = "cluster", requires = "markdown")]
    section: String,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
    /// Set by `cargo bench` and not by `cargo test`.
    #[arg(long, hide = true)]
    bench: bool,
    #[command(subcommand)]
    inner: Option<Inner>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Output {
    Table,
    Json,
}

#[derive(Debug, Subcommand)]
enum Inner {
    /// Runs the null binder: the benchmark starts its own program with this subcommand.
    #[command(hide = true)]
    NullBinder(null_binder::Options),
}

fn main() -> ExitCode {
    berth::cli::install_tls_provider();
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cluster: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let options = Options::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match options.inner {
        Some(Inner::NullBinder(options)) => runtime.block_on(null_binder::run(options)),
        None if options.bench => runtime.block_on(measure_all(options)),
        None => {
            println!("nothing measured: run it with cargo bench --bench cluster");
            Ok(())
        }
    }
}

async fn measure_all(options: Options) -> Result<()> {
    let workloads = choose_workloads(&options.workload)?;
    if options.subjects.contains(&Subject::BerthWithFeatures)
        && let Some(other) = workloads.iter().find(|workload| !workload.lived_in)
    {
        bail!("berth+features needs the namespaces of --workload lived-in, and cannot run {}", other.name);
    }
    let page = options.markdown.as_ref().map(|file| Page { file, section: &options.section });
    if let Some(page) = &page {
        // Fails before half an hour of measuring, not after it.
        page.check()?;
    }
    let size = Size { nodes: options.nodes as usize, pods: options.pods as usize };
    let mut report = Report::new(size)?;
    for workload in workloads {
        // All subjects in every round, so that a machine that gets slower affects all of them.
        for round in 1..=options.repeat {
            for &subject in &options.subjects {
                // It would bind to full nodes.
                if (workload.hopeless || workload.preempts) && subject.is_null() {
                    continue;
                }
                let title = match options.repeat {
                    1 => format!("{}, {subject}", workload.name),
                    rounds => format!("{}, {subject}, {round} of {rounds}", workload.name),
                };
                let progress = progress(&title);
                let run = measure::measure(workload, subject, size, &progress).await;
                progress.finish_and_clear();
                let run = run.map_err(|error| error.context(title.clone()))?;
                eprintln!("{title}: {}", run.summary());
                report.runs.push(run);
            }
        }
    }
    match options.output {
        Output::Table => println!("\n{}", report.markdown()),
        Output::Json => println!("{}", serde_json::to_string_pretty(&report)?),
    }
    if let Some(page) = page {
        page.write(&report.markdown())?;
    }
    Ok(())
}

fn choose_workloads(names: &[String]) -> Result<Vec<&'static Workload>> {
    let mut chosen = Vec::new();
    for name in names {
        let before = chosen.len();
        chosen.extend(WORKLOADS.iter().filter(|workload| name == "all" || name == workload.name));
        if chosen.len() == before {
            let known: Vec<_> = WORKLOADS.iter().map(|workload| workload.name).collect();
            bail!("there is no workload {name:?}: choose from all, {}", known.join(", "));
        }
    }
    Ok(chosen)
}

/// Returns a progress bar on a terminal; hidden otherwise.
fn progress(title: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{elapsed:>4} {prefix}: {msg} {wide_bar} {pos}/{len}") {
        bar.set_style(style);
    }
    bar.set_prefix(title.to_owned());
    bar
}
