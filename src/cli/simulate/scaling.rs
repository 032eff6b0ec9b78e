//! `berth simulate --scaling`: comparison of service scalers.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use clap::Args;

use super::{SimulateOptions, positive, print_text, with_progress};
use crate::cli::Output;
use crate::cli::progress::ProgressBars;
use crate::columns;
use berth_simulator::scaling::report::{self, ScalingReport, ScalingSweep};
use berth_simulator::scaling::service::ServiceAssumptions;
use berth_simulator::scaling::{
    ScalerKind, ScalingFigures, ScalingOutcome, Scenario, ServiceLoads, SyntheticTraffic, Tuning, run,
};

/// Options of `berth simulate --scaling`.
#[derive(Debug, Clone, Args)]
pub struct ScalingOptions {
    /// Compare scalers (SHOWAR, VPA with HPA, Autopilot, none) instead of dispatchers, on a model of
    /// services.
    #[arg(
        long,
        conflicts_with_all = [
            "trace", "requests", "types", "nodes", "agents", "cache_slots", "cache_mib", "cache_age", "load", "base_load",
            "dispatcher", "costs", "class_spread", "request_spread", "churn", "no_conflicts",
        ]
    )]
    pub scaling: bool,
    /// Requests/s of services, one line per second: timestamp,<service>,... It restarts at its end. Default:
    /// a synthetic load based on Wikipedia's.
    #[arg(long, value_name = "FILE", requires = "scaling")]
    pub scaling_trace: Option<PathBuf>,
    /// Number of services of a synthetic load.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=200), requires = "scaling", conflicts_with = "scaling_trace")]
    pub services: u32,
    /// Number of measured hours.
    #[arg(long, value_name = "HOURS", default_value_t = 24.0, value_parser = hours, requires = "scaling")]
    pub hours: f64,
    /// Hours before the measurement, as history for the scalers.
    #[arg(long, value_name = "HOURS", default_value_t = 24.0, value_parser = hours, requires = "scaling")]
    pub warm_up_hours: f64,
    /// Scalers to compare: names separated by commas.
    #[arg(long, value_name = "NAME,...", default_value = "showar,vpa-hpa,hpa-vpa-memory,autopilot,static", value_parser = scalers, requires = "scaling")]
    pub scalers: Scalers,
    /// Latency objective of a request, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 200.0, value_parser = positive, requires = "scaling")]
    pub slo_ms: f64,
    /// showar: target of the wait for CPU: its 95th percentile, as a multiple of the CPU time of a request.
    #[arg(long, value_name = "FACTOR", default_value_t = 5.0, value_parser = positive, requires = "scaling")]
    pub setpoint: f64,
    /// showar: window of the vertical scaler, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u32).range(30..=86_400), requires = "scaling")]
    pub window: u32,
    /// vpa-hpa, hpa-vpa-memory: target utilisation, as a fraction of the request.
    #[arg(long, value_name = "SHARE", default_value_t = 0.8, value_parser = positive, requires = "scaling")]
    pub hpa_target: f64,
    /// Seconds until a new replica serves.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(0..=3_600), requires = "scaling")]
    pub startup: u32,
    /// Seconds until a resize takes effect.
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=3_600), requires = "scaling")]
    pub resize: u32,
    /// CPU limits as a multiple of the requests.
    #[arg(long, value_name = "FACTOR", default_value_t = 2.0, value_parser = burst, requires = "scaling")]
    pub burst: f64,
}

/// Names of scalers, without duplicates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scalers(pub Vec<ScalerKind>);

fn scalers(text: &str) -> Result<Scalers, String> {
    let mut kinds = Vec::new();
    for name in text.split(',').map(str::trim) {
        let Some(kind) = ScalerKind::ALL.into_iter().find(|kind| kind.name() == name) else {
            let names = ScalerKind::ALL.map(ScalerKind::name).join(", ");
            return Err(format!("there is no scaler {name:?}; use some of {names}"));
        };
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    Ok(Scalers(kinds))
}

fn burst(text: &str) -> Result<f64, String> {
    positive(text)
        .and_then(|n| if (1.0..=100.0).contains(&n) { Ok(n) } else { Err("must be 1 to 100".to_owned()) })
}

fn hours(text: &str) -> Result<f64, String> {
    const MOST: f64 = 31.0 * 24.0;
    positive(text).and_then(|n| if n <= MOST { Ok(n) } else { Err(format!("must be at most {MOST}")) })
}

/// Returns a scenario for each repetition.
///
/// # Errors
/// The trace cannot be read.
pub fn scenarios(options: &SimulateOptions) -> Result<Vec<Scenario>> {
    let scaling = &options.scaling;
    let seconds = |hours: f64| (hours * 3_600.0).ceil() as u32;
    let (warm_up_s, measured_s) = (seconds(scaling.warm_up_hours), seconds(scaling.hours));
    let trace = scaling.scaling_trace.as_ref().map(|file| ServiceLoads::read(file)).transpose()?;
    let scenario = |seed: u64| Scenario {
        load: trace.clone().unwrap_or_else(|| {
            let seconds = (warm_up_s + measured_s) as usize;
            ServiceLoads::synthetic(SyntheticTraffic { services: scaling.services as usize, seconds, seed })
        }),
        warm_up_s,
        measured_s,
        slo_ms: scaling.slo_ms,
        tuning: Tuning {
            min_replicas: 2,
            max_replicas: 100,
            hpa_target: scaling.hpa_target,
            setpoint: scaling.setpoint,
            window_s: scaling.window.into(),
            rules: ServiceAssumptions {
                startup_s: scaling.startup,
                resize_s: scaling.resize,
                burst: scaling.burst,
                timeout_s: 10.0,
            },
        },
        seed,
    };
    Ok((0..u64::from(options.repeat)).map(|at| scenario(options.seed.wrapping_add(at))).collect())
}

/// Runs the comparison, prints it, and writes the report.
///
/// # Errors
/// The result cannot be written.
pub fn carry_out(options: &SimulateOptions, scenarios: &[Scenario]) -> Result<()> {
    let progress = ProgressBars::new();
    let kinds = &options.scaling.scalers.0;
    let work = work(scenarios) * kinds.len() as u64;
    let outcomes = with_progress(&progress, "simulated", work, |advance| compare(scenarios, kinds, advance));
    if let Some(file) = &options.report {
        let sweeps = sweeps(scenarios, &progress);
        let page = report::render(&ScalingReport {
            source: scenarios[0].load.source.clone(),
            setup: setup(options, scenarios),
            outcomes: outcomes.clone(),
            sweeps,
            notes: NOTES.map(str::to_owned).to_vec(),
            command: command(options),
        });
        fs::write(file, page).with_context(|| format!("cannot write {}", file.display()))?;
    }
    let text = match options.output {
        Output::Table => table(scenarios, &outcomes),
        Output::Json => {
            let figures: Vec<_> = outcomes.iter().map(|outcome| &outcome.figures).collect();
            serde_json::to_string_pretty(&figures)? + "\n"
        }
    };
    print_text(&text)
}

fn work(scenarios: &[Scenario]) -> u64 {
    let one = |scenario: &Scenario| {
        scenario.load.services.len() as u64 * u64::from(scenario.warm_up_s + scenario.measured_s)
    };
    scenarios.iter().map(one).sum()
}

/// Returns the mean figures of each scaler over the scenarios; its timeline is that of the first scenario.
fn compare(
    scenarios: &[Scenario],
    kinds: &[ScalerKind],
    advance: &(dyn Fn(u64) + Sync),
) -> Vec<ScalingOutcome> {
    let tasks: Vec<_> =
        kinds.iter().flat_map(|kind| scenarios.iter().map(move |each| (*kind, each))).collect();
    let done = in_parallel(&tasks, |(kind, scenario)| run(scenario, *kind, advance));
    let merged = |some: &[ScalingOutcome]| {
        let all: Vec<ScalingFigures> = some.iter().map(|outcome| outcome.figures.clone()).collect();
        ScalingOutcome { figures: ScalingFigures::mean(&all), timeline: some[0].timeline.clone() }
    };
    done.chunks(scenarios.len()).map(merged).collect()
}

/// Runs the tasks on all cores; the results are in the order of the tasks.
fn in_parallel<T: Sync, R: Send>(tasks: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get()).min(tasks.len().max(1));
    let worker = || {
        let mut done = Vec::new();
        while let Some((at, task)) =
            Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|at| tasks.get(at).map(|task| (at, task)))
        {
            done.push((at, work(task)));
        }
        done
    };
    let mut all: Vec<(usize, R)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap_or_default()).collect()
    });
    all.sort_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, result)| result).collect()
}

/// Returns sweeps over what influences the result most: targets, startup time and limits.
fn sweeps(scenarios: &[Scenario], progress: &ProgressBars) -> Vec<ScalingSweep> {
    let all = &[ScalerKind::Showar, ScalerKind::VpaHpa, ScalerKind::HpaVpaMemory][..];
    let (showar, hpas) = all.split_at(1);
    type Change = fn(&mut Tuning, f64);
    let varied: [(&str, &[ScalerKind], &[f64], Change); 5] = [
        ("HPA: target utilisation", hpas, &[0.5, 0.6, 0.7, 0.8, 0.9], |t, x| t.hpa_target = x),
        ("showar: setpoint", showar, &[2.0, 3.0, 5.0, 8.0, 12.0, 20.0], |t, x| t.setpoint = x),
        ("showar: window, s", showar, &[120.0, 300.0, 900.0], |t, x| t.window_s = x as i64),
        ("startup, s", all, &[5.0, 30.0, 120.0], |t, x| t.rules.startup_s = x as u32),
        ("limits, times the requests", all, &[1.0, 1.5, 2.0], |t, x| t.rules.burst = x),
    ];
    let runs: u64 = varied.iter().map(|(_, kinds, values, _)| (kinds.len() * values.len()) as u64).sum();
    with_progress(progress, "varied", work(scenarios) * runs, |advance| {
        let sweep = |(what, kinds, values, change): &(&'static str, &[ScalerKind], &[f64], Change)| {
            let point = |value: &f64| {
                let mut scenarios = scenarios.to_vec();
                scenarios.iter_mut().for_each(|scenario| change(&mut scenario.tuning, *value));
                let outcomes = compare(&scenarios, kinds, advance);
                (*value, outcomes.into_iter().map(|outcome| outcome.figures).collect())
            };
            ScalingSweep { what, points: values.iter().map(point).collect() }
        };
        varied.iter().map(sweep).collect()
    })
}

fn setup(options: &SimulateOptions, scenarios: &[Scenario]) -> Vec<(&'static str, String)> {
    let scaling = &options.scaling;
    vec![
        ("services", scenarios[0].load.services.len().to_string()),
        ("hours", format!("{} after {}", scaling.hours, scaling.warm_up_hours)),
        ("objective", format!("{} ms", scaling.slo_ms)),
        ("showar's setpoint", scaling.setpoint.to_string()),
        ("HPA's target", format!("{:.0} %", scaling.hpa_target * 100.0)),
        ("startup", format!("{} s", scaling.startup)),
        ("resize", format!("{} s", scaling.resize)),
        ("limits", format!("{} times the requests", scaling.burst)),
        ("repetitions", options.repeat.to_string()),
        ("seed", options.seed.to_string()),
    ]
}

const NOTES: [&str; 4] = [
    "The model: a fluid queue in steps of a second before the replicas of each service, and a queue's formula within the \
     second. Requests do not depend on other services.",
    "A file has no CPU times: a request takes 5 to 20 ms on average, by service.",
    "All scalers start with sizes that fit the peak, half a core for each replica, and see the same samples every 15 s; \
     limits are the requests.",
    "docs/scaling-simulation.md names all assumptions.",
];

/// Returns the command that makes the same figures, without output options.
fn command(options: &SimulateOptions) -> String {
    let scaling = &options.scaling;
    let mut text = "berth simulate --scaling".to_owned();
    match &scaling.scaling_trace {
        Some(file) => text += &format!(" --scaling-trace {}", file.display()),
        None => text += &format!(" --services {}", scaling.services),
    }
    let names: Vec<_> = scaling.scalers.0.iter().map(|kind| kind.name()).collect();
    let _ = write!(
        text,
        " --hours {} --warm-up-hours {} --scalers {} --slo-ms {} --setpoint {} --window {} --hpa-target {} --startup {} \
         --resize {} --burst {} --repeat {} --seed {}",
        scaling.hours,
        scaling.warm_up_hours,
        names.join(","),
        scaling.slo_ms,
        scaling.setpoint,
        scaling.window,
        scaling.hpa_target,
        scaling.startup,
        scaling.resize,
        scaling.burst,
        options.repeat,
        options.seed
    );
    text
}

/// Returns two lines that describe the simulation, and a line for each scaler. Differences are of the first
/// scaler to each.
fn table(scenarios: &[Scenario], outcomes: &[ScalingOutcome]) -> String {
    let Scenario { load, warm_up_s, measured_s, slo_ms, tuning, seed } = &scenarios[0];
    let hours = |seconds: u32| f64::from(seconds) / 3_600.0;
    let mut text = format!(
        "{}: {:.1} h of {} services after {:.1} h, {} runs from seed {seed}\nobjective {slo_ms} ms, showar at {}, HPA at \
         {:.0} %, replica startup {} s, resize {} s; changes, reversals and OOM kills are per service and day\n\n",
        load.source,
        hours(*measured_s),
        load.services.len(),
        hours(*warm_up_s),
        scenarios.len(),
        tuning.setpoint,
        tuning.hpa_target * 100.0,
        tuning.rules.startup_s,
        tuning.rules.resize_s,
    );
    let mut rows = vec![HEADER.map(str::to_owned)];
    rows.extend(outcomes.iter().map(|outcome| row(&outcome.figures, &outcomes[0].figures)));
    text.push_str(&columns::table(&rows, &columns::widths(&rows), &[0]));
    text
}

const HEADER: [&str; 18] = [
    "SCALER",
    "CPU cores",
    "",
    "MEMORY GiB",
    "",
    "USED",
    "REPLICAS",
    "P50 ms",
    "P99 ms",
    "",
    "P99.9 ms",
    "OVER SLO",
    "FAILED",
    "HORIZONTAL",
    "REVERSALS",
    "VERTICAL",
    "REVERSALS",
    "OOM",
];

fn row(figures: &ScalingFigures, first: &ScalingFigures) -> [String; HEADER.len()] {
    // Relative difference of the first scaler to this one.
    let change = |ours: f64, theirs: f64| match std::ptr::eq(figures, first) || theirs == 0.0 {
        true => String::new(),
        false => format!("{:+.1}%", (ours / theirs - 1.0) * 100.0),
    };
    [
        figures.scaler.clone(),
        format!("{:.2}", figures.cpu_cores),
        change(first.cpu_cores, figures.cpu_cores),
        format!("{:.2}", figures.memory_gib),
        change(first.memory_gib, figures.memory_gib),
        format!("{:.0}%", figures.used_cores / figures.cpu_cores.max(1e-9) * 100.0),
        format!("{:.1}", figures.replicas),
        format!("{:.1}", figures.p50_ms),
        format!("{:.1}", figures.p99_ms),
        change(first.p99_ms, figures.p99_ms),
        format!("{:.1}", figures.p999_ms),
        format!("{:.3}%", figures.slo_violations * 100.0),
        format!("{:.4}%", figures.failed * 100.0),
        format!("{:.1}", figures.horizontal_changes),
        format!("{:.1}", figures.horizontal_reversals),
        format!("{:.1}", figures.vertical_changes),
        format!("{:.1}", figures.vertical_reversals),
        format!("{:.2}", figures.oom_kills),
    ]
}
