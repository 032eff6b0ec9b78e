//! `berth simulate --scaling --equal-p99` and `--assumptions`: scalers at equal latency.

use anyhow::Result;
use serde::Serialize;

use super::scaling::in_parallel;
use super::{SimulateOptions, with_progress};
use crate::cli::Output;
use crate::cli::progress::ProgressBars;
use crate::columns;
use berth_simulator::scaling::assumptions::CHANGES;
use berth_simulator::scaling::compare::{Comparison, EQUAL, Matched, MeanInterval, at_equal_p99};
use berth_simulator::scaling::figures::GIB_PER_CORE;
use berth_simulator::scaling::{ScalingFigures, ScalingOutcome, Scenario};

/// Name of the cheapest baseline of each seed.
const CHEAPEST: &str = "cheapest";

/// A baseline and the differences of showar to it: means over the seeds in which it has showar's percentile.
#[derive(Serialize)]
struct Line {
    assumption: &'static str,
    scaler: &'static str,
    /// Number of seeds, and of those in which the baseline can have showar's percentile.
    seeds: usize,
    equal: usize,
    pod_milli: f64,
    target: f64,
    theirs: ScalingFigures,
    showar: ScalingFigures,
    /// Relative differences, and half of their 95 % intervals; `None` without such seeds.
    cpu: Option<Change>,
    memory: Option<Change>,
    cost: Option<Change>,
    p99: Option<Change>,
    /// In the hours before, at the same targets.
    first_cost: Option<Change>,
    first_p99: Option<Change>,
}

#[derive(Clone, Copy, Serialize)]
struct Change {
    mean: f64,
    /// `None` for a single seed.
    half: Option<f64>,
}

/// Returns the table, or JSON.
///
/// # Errors
/// The result cannot be written as JSON.
pub fn compare(options: &SimulateOptions, scenarios: &[Scenario], progress: &ProgressBars) -> Result<String> {
    let scaling = &options.scaling;
    let changes = if scaling.assumptions { &CHANGES[..] } else { &CHANGES[..1] };
    let sizes: Vec<i64> = scaling.sizes.iter().map(|milli| i64::from(*milli)).collect();
    let work = (changes.len() * scenarios.len()) as u64;
    let lines = with_progress(progress, "compared", work, |advance| {
        let mut lines = Vec::new();
        for each in changes {
            let mut scenarios = scenarios.to_vec();
            scenarios.iter_mut().for_each(each.change);
            let compared = in_parallel(&scenarios, |scenario| {
                let compared =
                    at_equal_p99(scenario, &scaling.baselines.0, each.sizes_milli.unwrap_or(&sizes));
                advance(1);
                compared
            });
            if !scaling.assumptions {
                lines.extend((0..scaling.baselines.0.len()).map(|at| {
                    let name = scaling.baselines.0[at].name();
                    line((each.what, name), &compared, |one| one.baselines.get(at).filter(|it| it.equal))
                }));
            }
            lines.push(line((each.what, CHEAPEST), &compared, Comparison::best));
        }
        lines
    });
    Ok(match options.output {
        Output::Json => serde_json::to_string_pretty(&lines)? + "\n",
        Output::Table => table(scenarios, &lines),
    })
}

fn line(
    (assumption, scaler): (&'static str, &'static str),
    compared: &[Comparison],
    of: impl Fn(&Comparison) -> Option<&Matched>,
) -> Line {
    let pairs: Vec<_> = compared.iter().filter_map(|one| Some((&one.ours, of(one)?))).collect();
    let mean = |outcomes: Vec<ScalingOutcome>| ScalingOutcome::mean(&outcomes).figures;
    let average =
        |of: fn(&Matched) -> f64| pairs.iter().map(|(_, it)| of(it)).sum::<f64>() / pairs.len().max(1) as f64;
    let change = |of: fn(&ScalingOutcome) -> Option<f64>| {
        let changes: Vec<f64> =
            pairs.iter().filter_map(|(ours, it)| Some(of(ours)? / of(&it.outcome)? - 1.0)).collect();
        let MeanInterval { mean, half } = MeanInterval::of(&changes);
        (!changes.is_empty()).then_some(Change { mean, half: half.is_finite().then_some(half) })
    };
    Line {
        assumption,
        scaler,
        seeds: compared.len(),
        equal: pairs.len(),
        pod_milli: average(|it| it.start_milli as f64),
        target: average(|it| it.target),
        theirs: mean(pairs.iter().map(|(_, it)| it.outcome.clone()).collect()),
        showar: mean(pairs.iter().map(|(ours, _)| (*ours).clone()).collect()),
        cpu: change(|it| Some(it.figures.cpu_cores)),
        memory: change(|it| Some(it.figures.memory_gib)),
        cost: change(|it| Some(it.figures.cost())),
        p99: change(|it| Some(it.figures.p99_ms)),
        first_cost: change(|it| it.first.as_ref().map(ScalingFigures::cost)),
        first_p99: change(|it| it.first.as_ref().map(|figures| figures.p99_ms)),
    }
}

fn table(scenarios: &[Scenario], lines: &[Line]) -> String {
    const HEADER: [&str; 15] = [
        "ASSUMPTION CHANGED",
        "BASELINE",
        "EQUAL",
        "POD",
        "TARGET",
        "CPU cores",
        "MEMORY GiB",
        "P99 ms",
        "SHOWAR cores",
        "GiB",
        "CPU",
        "MEMORY",
        "COST",
        "FIRST: COST",
        "P99",
    ];
    let percent = |change: Option<Change>| {
        let Some(Change { mean, half }) = change else { return String::new() };
        let half = half.map(|half| format!(" ±{:.1}", half * 100.0)).unwrap_or_default();
        format!("{:+.1}%{half}", mean * 100.0)
    };
    let mut rows = vec![HEADER.map(str::to_owned)];
    rows.extend(lines.iter().map(|line| {
        let known = |text: String| if line.equal > 0 { text } else { String::new() };
        [
            line.assumption.to_owned(),
            line.scaler.to_owned(),
            format!("{}/{}", line.equal, line.seeds),
            known(format!("{:.0}m", line.pod_milli)),
            known(format!("{:.3}", line.target)),
            known(format!("{:.2}", line.theirs.cpu_cores)),
            known(format!("{:.2}", line.theirs.memory_gib)),
            known(format!("{:.1}", line.theirs.p99_ms)),
            known(format!("{:.2}", line.showar.cpu_cores)),
            known(format!("{:.2}", line.showar.memory_gib)),
            percent(line.cpu),
            percent(line.memory),
            percent(line.cost),
            percent(line.first_cost),
            percent(line.first_p99),
        ]
    }));
    format!(
        "{}: {} runs from seed {}. In each, a baseline has the target at which its 99th percentile is showar's, at most {:.0} % more, and\n\
         the size of pods with which it costs least. Differences of showar to it are paired by seed, with 95 % intervals, over the\n\
         seeds in which there is such a target (EQUAL). Cost: cores, and GiB / {GIB_PER_CORE}. FIRST: the {:.1} h before, same targets.\n\n{}",
        scenarios[0].load.source,
        scenarios.len(),
        scenarios[0].seed,
        EQUAL * 100.0,
        f64::from(scenarios[0].warm_up_s) / 3_600.0,
        columns::table(&rows, &columns::widths(&rows), &[0, 1])
    )
}
