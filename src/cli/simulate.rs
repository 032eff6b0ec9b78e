//! `berth simulate`: comparison of dispatchers on a trace or on a synthetic workload, with berth's own code
//! on a virtual clock. With `--scaling`: comparison of service scalers.

mod compare;
mod equal;
mod scaling;
mod table;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use parking_lot::Mutex;

use super::output::{Output, printed};
use super::progress::ProgressBars;
use berth_model::ConfigDuration;
use berth_scheduler::dispatch::{DispatcherKind, Estimator, MOST_AGENTS};
use berth_simulator::synthetic::{self, SyntheticOptions};
use berth_simulator::trace::{self, TraceFormat, TraceOptions};
use berth_simulator::{ArrivalTrace, CacheSize, Costs, DispatchFigures, Experiment, RunOutcome, render};

/// Options of `berth simulate`.
#[derive(Debug, Clone, Args)]
pub struct SimulateOptions {
    /// Trace to simulate, plain or gzip. Default: a synthetic workload based on published statistics.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Format of the trace. Default: detected from its header.
    #[arg(long, value_name = "FORMAT", requires = "trace")]
    pub format: Option<TraceFormat>,
    /// Assign each pod of an azure-packing trace one of this number of images by its tenant, for more classes
    /// of pods.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "trace")]
    pub widen: u32,
    /// Number of requests of a synthetic workload.
    #[arg(long, value_name = "N", default_value_t = 40_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000), conflicts_with = "trace")]
    pub requests: u32,
    /// Number of request types in a synthetic workload.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000), conflicts_with = "trace")]
    pub types: u32,
    /// A list of nodes (openb: sn,cpu_milli,memory_mib,gpu,model), or a number of equal nodes. Default:
    /// enough that the workload's peak takes half of them.
    #[arg(long, value_name = "FILE|N")]
    pub nodes: Option<NodeSource>,
    /// Number of allocation agents.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=MOST_AGENTS as i64))]
    pub agents: u32,
    /// Maximum number of ranked lists of an agent. Default, if --cache-mib is unset too: the smallest number
    /// with which 78 % of the requests find their list if each goes to any agent. Protean then has the 80 %
    /// hits, give or take two, that it had in the paper.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "cache_mib")]
    pub cache_slots: Option<u32>,
    /// Memory of an agent's cache, in MiB.
    #[arg(long, value_name = "MIB", value_parser = positive)]
    pub cache_mib: Option<f64>,
    /// Drop lists that were unused for this time on the virtual clock, such as 1600ms.
    #[arg(long, value_name = "DURATION")]
    pub cache_age: Option<ConfigDuration>,
    /// Arrival rate multiplier: arrival times are divided by it (Kamino: 1.25 to 2).
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = positive)]
    pub load: f64,
    /// Share of the agents' time that the requests take with --load 1 if 80 % find their list; the times of
    /// the workload are compressed to it. `none` keeps them.
    #[arg(long, value_name = "SHARE", default_value = "0.7", value_parser = base_load)]
    pub base_load: BaseLoad,
    /// Dispatchers to compare, separated by commas, or `all`. The first is compared with each of the rest.
    #[arg(long, value_name = "NAME,...", default_value = "all", value_parser = dispatchers)]
    pub dispatcher: Dispatchers,
    /// Number of runs, each with the next seed; reports the 95 % confidence intervals.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,
    /// Costs of the agents' work: `azure` (14 ms for a hit, 88 ms for a miss), `azure-rules` (the same by
    /// rule), `berth` (its initial estimates), or the file in which a running berth keeps its measurements
    /// (estimatorFile).
    #[arg(long, value_name = "NAME|FILE", default_value = "azure")]
    pub costs: CostSource,
    /// Spread of costs between classes: the standard deviation of the logarithm. 0.35 is Azure's fivefold
    /// range.
    #[arg(long, value_name = "SIGMA", default_value_t = 0.0, value_parser = spread)]
    pub class_spread: f64,
    /// Spread of costs between single requests: the standard deviation of the logarithm.
    #[arg(long, value_name = "SIGMA", default_value_t = 0.0, value_parser = spread)]
    pub request_spread: f64,
    /// Changes of nodes per second of the virtual clock, besides pods that come and go.
    #[arg(long, value_name = "RATE", default_value_t = 1.0, value_parser = not_negative)]
    pub churn: f64,
    /// Let placements of agents never conflict, as in Kamino's own simulation.
    #[arg(long)]
    pub no_conflicts: bool,
    /// Seed of all random numbers.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Format: `table` for people, `json` for programs.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub output: Output,
    /// Write a page with plots to this file, with more runs that vary agents, load and cache size.
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    #[command(flatten)]
    pub scaling: scaling::ScalingOptions,
}

/// See [`SimulateOptions::cache_slots`].
const HIT_RATE: f64 = 0.78;

/// Source of the nodes.
#[derive(Debug, Clone, PartialEq)]
pub enum NodeSource {
    Count(usize),
    File(PathBuf),
}

impl FromStr for NodeSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const MOST: i64 = 1_000_000;
        match text.parse::<i64>() {
            Ok(count) if (1..=MOST).contains(&count) => Ok(NodeSource::Count(count as usize)),
            Ok(_) => Err(format!("the number of nodes must be 1 to {MOST}")),
            Err(_) => Ok(NodeSource::File(text.into())),
        }
    }
}

/// Names of dispatchers, without duplicates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dispatchers(pub Vec<DispatcherKind>);

fn dispatchers(text: &str) -> Result<Dispatchers, String> {
    if text == "all" {
        return Ok(Dispatchers(DispatcherKind::ALL.into()));
    }
    let mut kinds = Vec::new();
    for name in text.split(',').map(str::trim) {
        let Some(kind) = DispatcherKind::ALL.into_iter().find(|kind| kind.name() == name) else {
            let names = DispatcherKind::ALL.map(DispatcherKind::name).join(", ");
            return Err(format!("there is no dispatcher {name:?}; use all or some of {names}"));
        };
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    Ok(Dispatchers(kinds))
}

/// `None`: the times of the workload.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BaseLoad(pub Option<f64>);

fn base_load(text: &str) -> Result<BaseLoad, String> {
    match text {
        "none" => Ok(BaseLoad(None)),
        _ => positive(text).map(|load| BaseLoad(Some(load))),
    }
}

fn number(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|number: &f64| number.is_finite()).ok_or("not a finite number".to_owned())
}

fn positive(text: &str) -> Result<f64, String> {
    number(text).and_then(|n| if n > 0.0 { Ok(n) } else { Err("must be greater than 0".to_owned()) })
}

fn not_negative(text: &str) -> Result<f64, String> {
    number(text).and_then(|n| if n >= 0.0 { Ok(n) } else { Err("must not be negative".to_owned()) })
}

fn spread(text: &str) -> Result<f64, String> {
    const MOST: f64 = 3.0;
    not_negative(text).and_then(|n| if n <= MOST { Ok(n) } else { Err(format!("must be at most {MOST}")) })
}

/// Source of the costs.
#[derive(Debug, Clone, PartialEq)]
pub enum CostSource {
    Azure,
    AzureRules,
    Berth,
    File(PathBuf),
}

impl FromStr for CostSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "azure" => CostSource::Azure,
            "azure-rules" => CostSource::AzureRules,
            "berth" => CostSource::Berth,
            file => CostSource::File(file.into()),
        })
    }
}

/// Exit codes: 0 success, 1 the result could not be written, 2 the input or the options are invalid.
pub fn simulate(options: SimulateOptions) -> ExitCode {
    let fail = |error: anyhow::Error, code| {
        eprintln!("berth: {error:#}");
        ExitCode::from(code)
    };
    if options.scaling.scaling {
        let scenarios = match scaling::scenarios(&options) {
            Ok(scenarios) => scenarios,
            Err(error) => return fail(error, 2),
        };
        return match scaling::carry_out(&options, &scenarios) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(error, 1),
        };
    }
    let experiment = match experiment(&options) {
        Ok(experiment) => experiment,
        Err(error) => return fail(error, 2),
    };
    match carry_out(&options, &experiment) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(error, 1),
    }
}

fn experiment(options: &SimulateOptions) -> Result<Experiment> {
    let workloads = workloads(options)?;
    let workload = &workloads[0];
    let nodes = match &options.nodes {
        Some(NodeSource::File(file)) => trace::read_nodes(file)?,
        Some(NodeSource::Count(count)) => workload.machine.nodes(*count),
        None => workload.machine.nodes(workload.nodes_for_peak(0.5)),
    };
    let cache = match (options.cache_slots, options.cache_mib) {
        (Some(slots), _) => CacheSize::Slots(slots as usize),
        (None, Some(mib)) => CacheSize::Bytes((mib * f64::from(1 << 20)) as usize),
        (None, None) => CacheSize::HitRate(HIT_RATE),
    };
    let costs = Costs {
        class_spread: options.class_spread,
        request_spread: options.request_spread,
        ..costs(&options.costs)?
    };
    let experiment = Experiment {
        workloads,
        nodes: Arc::new(nodes),
        dispatchers: options.dispatcher.0.clone(),
        agents: options.agents as usize,
        cache,
        cache_age: options.cache_age.map(Duration::from),
        costs,
        load: options.base_load.0.map(|load| load * options.load),
        speed: options.load,
        churn_per_s: options.churn,
        conflicts: !options.no_conflicts,
        placement: Arc::default(),
        seed: options.seed,
    };
    const LONGEST: Duration = Duration::from_secs(1_000_000_000);
    ensure!(
        experiment.span() < LONGEST,
        "the requests arrive over more than 30 years of the virtual clock: compress them with --base-load or --load"
    );
    if let CacheSize::Bytes(bytes) = cache {
        let list = experiment.bytes_per_list();
        ensure!(
            bytes >= list,
            "--cache-mib: a ranked list of {} nodes takes {:.3} MiB, and the cache must hold at least one",
            experiment.nodes.len(),
            list as f64 / f64::from(1 << 20)
        );
    }
    Ok(experiment)
}

fn workloads(options: &SimulateOptions) -> Result<Vec<Arc<ArrivalTrace>>> {
    let seeds = (0..u64::from(options.repeat)).map(|at| options.seed.wrapping_add(at));
    let Some(file) = &options.trace else {
        let (requests, types) = (options.requests as usize, options.types as usize);
        // More requests arrive over a longer time, at the same rate, so that the number of concurrent pods
        // stays the same.
        let usual = SyntheticOptions::default();
        let days = usual.days * requests as f64 / usual.requests as f64;
        let made = |seed| synthetic::generate(SyntheticOptions { requests, types, seed, days });
        return Ok(seeds.map(made).map(Arc::new).collect());
    };
    let trace = trace::read(file, options.format, TraceOptions { widen: options.widen })?;
    let trace = Arc::new(trace);
    Ok(seeds.map(|_| trace.clone()).collect())
}

fn costs(source: &CostSource) -> Result<Costs> {
    let file = match source {
        CostSource::Azure => return Ok(Costs::azure()),
        CostSource::AzureRules => return Ok(Costs::azure_rules()),
        CostSource::Berth => return Ok(Costs::measured(&Estimator::default())),
        CostSource::File(file) => file,
    };
    let text = fs::read_to_string(file).with_context(|| {
        format!("--costs: cannot read {}, and it is not azure, azure-rules or berth", file.display())
    })?;
    let estimator: Estimator = serde_json::from_str(&text).map_err(|error| {
        let (line, file) = (error.line(), file.display());
        anyhow!("{file}:{line}: {error}: expected a file that berth run wrote (estimatorFile)")
    })?;
    let costs = Costs::measured(&estimator);
    if costs.list_hit.is_zero() || costs.list_miss.is_zero() {
        bail!("{}: the times of listHit and listMiss must be greater than 0 ns", file.display());
    }
    Ok(costs)
}

fn carry_out(options: &SimulateOptions, experiment: &Experiment) -> Result<()> {
    let progress = ProgressBars::new();
    let full = experiment.peak_share();
    if full > 0.9 {
        progress.println(&format!(
            "the workload's peak takes {:.0} % of the nodes: requests will wait for capacity, and the simulation is slow; \
             give more --nodes",
            full * 100.0
        ));
    }
    let outcomes =
        with_progress(&progress, "simulated", experiment.work(), |advance| experiment.run(advance));
    for outcome in &outcomes {
        let DispatchFigures { dispatcher, unplaced, .. } = &outcome.figures;
        if *unplaced > 0 {
            progress.println(&format!(
                "{dispatcher}: {unplaced} requests never found a node, and no figure includes them: give more --nodes"
            ));
        }
    }
    if let Some(file) = &options.report {
        let page = page(options, experiment, &outcomes, &progress);
        fs::write(file, page).with_context(|| format!("cannot write {}", file.display()))?;
    }
    print(options.output, experiment, &outcomes)
}

fn print(output: Output, experiment: &Experiment, outcomes: &[RunOutcome]) -> Result<()> {
    let text = match output {
        Output::Table => table::table(experiment, outcomes),
        Output::Json => {
            let figures: Vec<_> = outcomes.iter().map(|outcome| &outcome.figures).collect();
            serde_json::to_string_pretty(&figures)? + "\n"
        }
    };
    printed(text.as_bytes())
}

fn page(
    options: &SimulateOptions,
    experiment: &Experiment,
    outcomes: &[RunOutcome],
    progress: &ProgressBars,
) -> String {
    let sweeps =
        with_progress(progress, "varied", experiment.sweep_work(), |advance| experiment.sweeps(advance));
    let dispatchers = [DispatcherKind::Protean, DispatcherKind::LatcacheRule, DispatcherKind::default()];
    let age = compare::short_age(experiment);
    let aged = experiment.aged(age, &dispatchers);
    let command = compare::command(options);
    render(&compare::report(experiment, outcomes.to_vec(), sweeps, (age, aged), command))
}

/// Shows the progress of `work`.
fn with_progress<T>(
    progress: &ProgressBars,
    what: &'static str,
    total: u64,
    work: impl FnOnce(&(dyn Fn(u64) + Sync)) -> T,
) -> T {
    let stage = Mutex::new((progress.stage(what, total as usize), 0));
    work(&|more| {
        let (stage, count) = &mut *stage.lock();
        *count += more as usize;
        stage.set(*count);
    })
}
