//! `berth simulate --scaling`: comparison of service scalers.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use clap::Args;

use super::{SimulateOptions, equal, not_negative, positive, printed, with_progress};
use crate::cli::Output;
use crate::cli::progress::ProgressBars;
use crate::columns;
use berth_simulator::scaling::report::{self, ScalingReport, ScalingSweep};
use berth_simulator::scaling::service::ServiceAssumptions;
use berth_simulator::scaling::{
    BuiltInSignal, LoadShape, ScalerKind, ScalingFigures, ScalingOutcome, Scenario, ServiceLoads,
    SyntheticTraffic, Tuning, run,
};

/// Options of `berth simulate --scaling`.
#[derive(Debug, Clone, Args)]
pub struct ScalingOptions {
    /// Compare scalers (SHOWAR, HPA, KEDA, VPA, Autopilot, none) instead of dispatchers, on a model of services.
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
    /// Synthetic load: `wikipedia`, services without relation, or `social-network`, DeathStarBench's, reconstructed.
    #[arg(long, value_name = "NAME", default_value = "wikipedia", value_parser = shape, requires = "scaling", conflicts_with = "scaling_trace")]
    pub scaling_load: LoadShape,
    /// Number of services of a synthetic load.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=200), requires = "scaling", conflicts_with = "scaling_trace")]
    pub services: u32,
    /// Number of measured hours.
    #[arg(long, value_name = "HOURS", default_value_t = 24.0, value_parser = hours, requires = "scaling")]
    pub hours: f64,
    /// Hours before the measured ones, counted apart: the first contact of scalers with the services.
    #[arg(long, value_name = "HOURS", default_value_t = 24.0, value_parser = hours_or_none, requires = "scaling")]
    pub warm_up_hours: f64,
    /// Scalers to compare: names separated by commas.
    #[arg(long, value_name = "NAME,...", default_value = "showar,hpa,hpa-vpa-memory,keda,keda-cpu,vpa-hpa,autopilot,static", value_parser = scalers, requires = "scaling")]
    pub scalers: Scalers,
    /// Latency objective of a request, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 200.0, value_parser = positive, requires = "scaling")]
    pub slo_ms: f64,
    /// BuiltInSignal of showar and KEDA: cpu-throttling, cpu-pressure, run-queue-latency or request-latency.
    #[arg(long, value_name = "NAME", default_value = "cpu-throttling", value_parser = signal, requires = "scaling")]
    pub signal: BuiltInSignal,
    /// showar: target of the signal; for request-latency, as a multiple of the mean CPU time of a request. Default: by signal.
    #[arg(long, value_name = "TARGET", value_parser = positive, requires = "scaling")]
    pub setpoint: Option<f64>,
    /// KEDA: the same. Default: that of showar.
    #[arg(long, value_name = "TARGET", value_parser = positive, requires = "scaling")]
    pub keda_target: Option<f64>,
    /// showar: window of the vertical scaler, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u32).range(30..=86_400), requires = "scaling")]
    pub window: u32,
    /// showar: hours of usage before a size shrinks.
    #[arg(long, value_name = "HOURS", default_value_t = 24.0, value_parser = hours_or_none, requires = "scaling")]
    pub history_hours: f64,
    /// Seconds between scrapes of Prometheus, a multiple of 15.
    #[arg(long, value_name = "SECONDS", default_value_t = 15, value_parser = scrapes, requires = "scaling")]
    pub scrape: u32,
    /// Window of the rates of CPU, in seconds. Default: two and a half scrapes.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(30..=3_600), requires = "scaling")]
    pub rate_window: Option<u32>,
    /// CPU requests of replicas at the start, in millicores.
    #[arg(long, value_name = "MILLICORES", default_value_t = 500, value_parser = clap::value_parser!(u32).range(10..=64_000), requires = "scaling")]
    pub start_milli: u32,
    /// hpa, hpa-vpa-memory, keda-cpu, vpa-hpa: target utilisation, as a fraction of the request.
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
    /// Share of time in which the node of a third of a service's replicas is full: no CPU beyond requests, and growth is deferred.
    #[arg(long, value_name = "SHARE", default_value_t = 0.1, value_parser = share, requires = "scaling")]
    pub full_nodes: f64,
    /// Share of growths that a third of a service's replicas refuses for an hour.
    #[arg(long, value_name = "SHARE", default_value_t = 0.1, value_parser = share, requires = "scaling")]
    pub refused: f64,
    /// Compare showar with baselines at showar's 99th percentile, which each reaches by its target, with the cheapest size of pods.
    #[arg(long, requires = "scaling", conflicts_with = "report")]
    pub equal_p99: bool,
    /// As --equal-p99, once for each assumption that is changed.
    #[arg(long, requires = "scaling", conflicts_with_all = ["report", "equal_p99"])]
    pub assumptions: bool,
    /// Baselines of --equal-p99 and --assumptions: hpa, hpa-vpa-memory, keda, keda-cpu or vpa-hpa.
    #[arg(long, value_name = "NAME,...", default_value = "hpa,hpa-vpa-memory,keda,keda-cpu", value_parser = baselines, requires = "scaling")]
    pub baselines: Scalers,
    /// Sizes of their pods, in millicores.
    #[arg(long, value_name = "MILLICORES,...", value_delimiter = ',', default_value = "500,750,1000", value_parser = clap::value_parser!(u32).range(10..=64_000), requires = "scaling")]
    pub sizes: Vec<u32>,
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

fn baselines(text: &str) -> Result<Scalers, String> {
    let others = [ScalerKind::Showar, ScalerKind::Autopilot, ScalerKind::Static];
    let kinds = scalers(text)?;
    match kinds.0.iter().find(|kind| others.contains(kind)) {
        Some(kind) => Err(format!("{} has no target that sets its latency", kind.name())),
        None => Ok(kinds),
    }
}

fn burst(text: &str) -> Result<f64, String> {
    positive(text)
        .and_then(|n| if (1.0..=100.0).contains(&n) { Ok(n) } else { Err("must be 1 to 100".to_owned()) })
}

fn shape(text: &str) -> Result<LoadShape, String> {
    match text {
        "wikipedia" => Ok(LoadShape::Wikipedia),
        "social-network" => Ok(LoadShape::SocialNetwork),
        _ => Err("use wikipedia or social-network".to_owned()),
    }
}

fn signal(text: &str) -> Result<BuiltInSignal, String> {
    let names = || BuiltInSignal::ALL.map(BuiltInSignal::name).join(", ");
    let found = BuiltInSignal::ALL.into_iter().find(|signal| signal.name() == text);
    found.ok_or_else(|| format!("use one of {}", names()))
}

fn scrapes(text: &str) -> Result<u32, String> {
    let seconds = text.parse().ok().filter(|n: &u32| (15..=300).contains(n) && n.is_multiple_of(15));
    seconds.ok_or_else(|| "must be a multiple of 15, up to 300".to_owned())
}

fn share(text: &str) -> Result<f64, String> {
    not_negative(text).and_then(|n| if n < 1.0 { Ok(n) } else { Err("must be less than 1".to_owned()) })
}

fn hours_or_none(text: &str) -> Result<f64, String> {
    if text.parse() == Ok(0.0) { Ok(0.0) } else { hours(text) }
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
    let setpoint = scaling.setpoint.unwrap_or(scaling.signal.target());
    let scenario = |seed: u64| Scenario {
        load: trace.clone().unwrap_or_else(|| {
            let (shape, seconds) = (scaling.scaling_load, (warm_up_s + measured_s) as usize);
            let services = scaling.services as usize;
            ServiceLoads::synthetic(SyntheticTraffic { shape, services, seconds, seed })
        }),
        warm_up_s,
        measured_s,
        slo_ms: scaling.slo_ms,
        tuning: Tuning {
            min_replicas: 2,
            max_replicas: 100,
            start_milli: scaling.start_milli.into(),
            hpa_target: scaling.hpa_target,
            signal: scaling.signal,
            setpoint,
            keda_target: scaling.keda_target.unwrap_or(setpoint),
            window_s: scaling.window.into(),
            history_s: seconds(scaling.history_hours).into(),
            scrape_s: scaling.scrape,
            rate_window_s: scaling.rate_window,
            rules: ServiceAssumptions {
                startup_s: scaling.startup,
                resize_s: scaling.resize,
                burst: scaling.burst,
                timeout_s: 10.0,
                full_nodes: scaling.full_nodes,
                refused: scaling.refused,
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
    if options.scaling.equal_p99 || options.scaling.assumptions {
        return printed(equal::compare(options, scenarios, &progress)?.as_bytes());
    }
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
            let first = outcomes.iter().filter_map(|outcome| outcome.first.as_ref());
            let figures: Vec<_> = first.chain(outcomes.iter().map(|outcome| &outcome.figures)).collect();
            serde_json::to_string_pretty(&figures)? + "\n"
        }
    };
    printed(text.as_bytes())
}

pub(super) fn work(scenarios: &[Scenario]) -> u64 {
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
    done.chunks(scenarios.len()).map(ScalingOutcome::mean).collect()
}

/// Runs the tasks on all cores; the results are in the order of the tasks.
pub(super) fn in_parallel<T: Sync, R: Send>(tasks: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
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
    let all = &[ScalerKind::Showar, ScalerKind::HpaVpaMemory, ScalerKind::Keda][..];
    let (showar, others) = all.split_at(1);
    let (hpas, kedas) = others.split_at(1);
    let setpoint = scenarios[0].tuning.setpoint;
    let targets = [0.25, 0.5, 1.0, 2.0, 4.0].map(|factor| factor * setpoint);
    type Change = fn(&mut Tuning, f64);
    let varied: [(&str, &[ScalerKind], &[f64], Change); 7] = [
        ("HPA: target utilisation", hpas, &[0.5, 0.6, 0.7, 0.8, 0.9], |t, x| t.hpa_target = x),
        ("HPA: millicores of a pod", hpas, &[250.0, 500.0, 750.0, 1_000.0], |t, x| t.start_milli = x as i64),
        ("KEDA: target", kedas, &targets, |t, x| t.keda_target = x),
        ("showar: setpoint", showar, &targets, |t, x| t.setpoint = x),
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
    let (scaling, tuning) = (&options.scaling, &scenarios[0].tuning);
    vec![
        ("services", scenarios[0].load.services.len().to_string()),
        ("hours", format!("{} after {}", scaling.hours, scaling.warm_up_hours)),
        ("objective", format!("{} ms", scaling.slo_ms)),
        ("signal of showar and KEDA", tuning.signal.name().to_owned()),
        ("showar's setpoint, KEDA's target", format!("{}, {}", tuning.setpoint, tuning.keda_target)),
        ("history before a shrink", format!("{} h", scaling.history_hours)),
        ("scrapes", format!("every {} s", scaling.scrape)),
        ("pods at the start", format!("{} millicores", scaling.start_milli)),
        ("full nodes", format!("{:.0} % of the time", scaling.full_nodes * 100.0)),
        ("refused growth", format!("{:.0} %", scaling.refused * 100.0)),
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
    "All scalers start with replicas that fit the peak, and see the same metrics. Memory limits are the requests; CPU limits are a \
     multiple of them (--burst).",
    "docs/scaling-simulation.md names all assumptions.",
];

/// Returns the command that makes the same figures, without output options.
fn command(options: &SimulateOptions) -> String {
    let scaling = &options.scaling;
    let mut text = "berth simulate --scaling".to_owned();
    match &scaling.scaling_trace {
        Some(file) => text += &format!(" --scaling-trace {}", file.display()),
        None if scaling.scaling_load == LoadShape::SocialNetwork => text += " --scaling-load social-network",
        None => text += &format!(" --services {}", scaling.services),
    }
    let names: Vec<_> = scaling.scalers.0.iter().map(|kind| kind.name()).collect();
    let _ = write!(
        text,
        " --hours {} --warm-up-hours {} --scalers {} --slo-ms {} --signal {} --window {} --history-hours {} \
         --scrape {} --start-milli {} --hpa-target {} --startup {} --resize {} --burst {} --full-nodes {} --refused {} --repeat {} \
         --seed {}",
        scaling.hours,
        scaling.warm_up_hours,
        names.join(","),
        scaling.slo_ms,
        scaling.signal.name(),
        scaling.window,
        scaling.history_hours,
        scaling.scrape,
        scaling.start_milli,
        scaling.hpa_target,
        scaling.startup,
        scaling.resize,
        scaling.burst,
        scaling.full_nodes,
        scaling.refused,
        options.repeat,
        options.seed
    );
    let given = [
        ("setpoint", scaling.setpoint),
        ("keda-target", scaling.keda_target),
        ("rate-window", scaling.rate_window.map(f64::from)),
    ];
    for (name, value) in given {
        text += &value.map(|value| format!(" --{name} {value}")).unwrap_or_default();
    }
    text
}

/// Returns two lines that describe the simulation, and a line for each scaler, for the first hours and for those after them. Differences are of the first
/// scaler to each.
fn table(scenarios: &[Scenario], outcomes: &[ScalingOutcome]) -> String {
    let Scenario { load, slo_ms, tuning, seed, .. } = &scenarios[0];
    let mut text = format!(
        "{}: {} services, {} runs from seed {seed}\nobjective {slo_ms} ms, showar at {} of {}, HPA at {:.0} %, pods of {} millicores, \
         replica startup {} s, resize {} s; changes, reversals and OOM kills are per service and day\n",
        load.source,
        load.services.len(),
        scenarios.len(),
        tuning.setpoint,
        tuning.signal.name(),
        tuning.hpa_target * 100.0,
        tuning.start_milli,
        tuning.rules.startup_s,
        tuning.rules.resize_s,
    );
    let first: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.first.as_ref()).collect();
    let after: Vec<_> = outcomes.iter().map(|outcome| &outcome.figures).collect();
    for some in [first, after].into_iter().filter(|some| !some.is_empty()) {
        let _ = write!(text, "\nhours {:.1} to {:.1}\n", some[0].from_h, some[0].from_h + some[0].hours);
        let mut rows = vec![HEADER.map(str::to_owned)];
        rows.extend(some.iter().map(|figures| row(figures, some[0])));
        text.push_str(&columns::table(&rows, &columns::widths(&rows), &[0]));
    }
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
