//! Figures of a backtest.

use std::fmt::Write;

use serde::Serialize;

use super::units::{self, cut};
use berth_rightsizing::recommend::amount;
use berth_rightsizing::recommend::backtest::{Measures, Outcome, Resource};

#[derive(Serialize)]
struct Document<'a> {
    series: &'a [Outcome],
    overall: &'a [Outcome],
}

/// All figures, in cores and bytes.
///
/// # Errors
/// Never for what these can be; the serializer may say so all the same.
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
const GAP: &str = "  ";

/// Lines for single series stop being of use to people when there are more of them.
const LINES_MAX: usize = 120;

/// A line for each series and estimator if they are not too many, and then for all series together if there are several.
pub fn table(series: &[Outcome], overall: &[Outcome]) -> String {
    let mut rows = vec![HEADER.map(str::to_owned)];
    if series.len() <= LINES_MAX {
        rows.extend(series.iter().map(row));
    }
    if series.iter().any(|outcome| (&outcome.name, outcome.resource) != (&series[0].name, series[0].resource))
    {
        rows.extend(overall.iter().map(row));
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..HEADER.len()).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (at, (cell, room)) in row.iter().zip(&widths).enumerate() {
            let _ = match at {
                0 => write!(line, "{cell:<room$}"),
                1 | 2 => write!(line, "{GAP}{cell:<room$}"),
                _ => write!(line, "{GAP}{cell:>room$}"),
            };
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    if series.len() > LINES_MAX {
        text.push_str("single series are left out, they are many; -o json has them\n");
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
    let is_cpu = outcome.resource == Resource::Cpu;
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
