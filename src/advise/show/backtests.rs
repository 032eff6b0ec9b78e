//! Output of backtest results.

use serde::Serialize;

use super::units::{self, cut};
use crate::columns;
use berth_rightsizing::recommend::amount;
use berth_rightsizing::recommend::backtest::{Measures, Outcome, RecordedResource};

#[derive(Serialize)]
struct Document<'a> {
    series: &'a [Outcome],
    overall: &'a [Outcome],
}

/// Returns all results, in cores and bytes.
///
/// # Errors
/// Never for valid results; the serializer's type allows errors.
pub fn json(series: &[Outcome], overall: &[Outcome]) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(&Document { series, overall })? + "\n")
}

const HEADER: [&str; 10] = [
    "SERIES",
    "",
    "ESTIMATOR",
    "LIMIT",
    "USAGE",
    "SLACK",
    "OVERRUN",
    "THROTTLED/d",
    "OOM/pod-d",
    "CHANGES/d",
];
const NAME_WIDTH_MAX: usize = 44;

/// Maximum number of lines for single series; a longer table is no use to a reader.
const LINES_MAX: usize = 120;

/// Formats a line for each series and estimator, up to the limit, then totals if there are several series.
pub fn table(series: &[Outcome], overall: &[Outcome]) -> String {
    let mut rows = vec![HEADER.map(str::to_owned)];
    if series.len() <= LINES_MAX {
        rows.extend(series.iter().map(row));
    }
    if series.iter().any(|outcome| (&outcome.name, outcome.resource) != (&series[0].name, series[0].resource))
    {
        rows.extend(overall.iter().map(row));
    }
    let mut text = columns::table(&rows, &columns::widths(&rows), &[0, 1, 2]);
    if series.len() > LINES_MAX {
        text.push_str("too many series to list; use -o json to get each of them\n");
    }
    text
}

fn row(outcome: &Outcome) -> [String; 10] {
    let Measures {
        mean_limit,
        mean_usage,
        relative_slack,
        overrun_share,
        throttle_minutes_per_day,
        ooms_per_pod_day,
        changes_per_day,
        ..
    } = outcome.measures;
    let is_cpu = outcome.resource == RecordedResource::Cpu;
    let amount = |base: f64| match is_cpu {
        true => units::cpu(amount::cpu_from_cores(base)),
        false => units::memory(amount::from_float(base)),
    };
    let none = || "-".to_owned();
    [
        cut(&outcome.name, NAME_WIDTH_MAX),
        if is_cpu { "cpu" } else { "memory" }.to_owned(),
        outcome.estimator.name().to_owned(),
        amount(mean_limit),
        amount(mean_usage),
        format!("{:.1}%", relative_slack * 100.0),
        format!("{:.2}%", overrun_share * 100.0),
        if is_cpu { format!("{throttle_minutes_per_day:.1} min") } else { none() },
        if is_cpu { none() } else { format!("{ooms_per_pod_day:.3}") },
        format!("{changes_per_day:.2}"),
    ]
}
