//! Table of figures.

use std::fmt::Write;

use crate::columns;
use berth_simulator::{DispatchFigures, Experiment, RunOutcome};

/// Returns two lines that describe the simulation, and a line for each dispatcher. Differences are relative
/// to the first.
pub fn table(experiment: &Experiment, outcomes: &[RunOutcome]) -> String {
    let workload = &experiment.workloads[0];
    let load =
        experiment.load.map_or("its own times".to_owned(), |load| format!("load {load:.3} at 80 % hits"));
    let mut text = format!(
        "{}: {} requests of {} kinds, {} running at the start\n{} nodes, {} agents with {} lists each, {load}, seed {}{}\n\n",
        workload.source,
        workload.arrivals.len(),
        workload.kinds(),
        workload.running.len(),
        experiment.nodes.len(),
        experiment.agents,
        experiment.slots(),
        experiment.seed,
        if experiment.conflicts { "" } else { ", no conflicts" },
    );
    let first = outcomes.first().map(|outcome| &outcome.figures);
    let mut rows = vec![HEADER.map(str::to_owned)];
    rows.extend(outcomes.iter().map(|outcome| row(&outcome.figures, first.unwrap_or(&outcome.figures))));
    let widths = columns::widths(&rows);
    text.push_str(&columns::table(&rows, &widths, &[0]));
    if outcomes.iter().any(|outcome| !outcome.figures.intervals.is_empty()) {
        let _ = write!(text, "\nmeans of {} runs; 95 % confidence:\n", experiment.workloads.len());
        for RunOutcome { figures, .. } in outcomes {
            let half = |name| figures.intervals.get(name).map_or(0.0, |[low, high]| (high - low) / 2.0);
            let _ = write!(text, "{:<1$}", figures.dispatcher, widths[0]);
            for (name, what, unit) in [
                ("avg_ms", "avg", "ms"),
                ("p50_ms", "p50", "ms"),
                ("p90_ms", "p90", "ms"),
                ("p99_ms", "p99", "ms"),
                ("top_hit", "top hits", "%"),
                ("throughput_burst", "burst", "/s"),
            ] {
                let scale = if unit == "%" { 100.0 } else { 1.0 };
                let _ = write!(text, "  {what} ±{:.2} {unit}", half(name) * scale);
            }
            text.push('\n');
        }
    }
    text
}

const HEADER: [&str; 18] = [
    "DISPATCHER",
    "AVG ms",
    "",
    "P50 ms",
    "P90 ms",
    "",
    "P99 ms",
    "TOP HIT",
    "RULE HIT",
    "MEMORY MiB",
    "",
    "QUEUE ms",
    "PROC ms",
    "PREDICTED",
    "BEST AGENT",
    "CONFLICTS",
    "BURST/s",
    "",
];

fn row(figures: &DispatchFigures, first: &DispatchFigures) -> [String; HEADER.len()] {
    let change = |ours: f64, theirs: f64| match std::ptr::eq(figures, first) || theirs == 0.0 {
        true => String::new(),
        false => format!("{:+.1}%", (ours / theirs - 1.0) * 100.0),
    };
    let times = |ours: f64, theirs: f64| match std::ptr::eq(figures, first) || theirs == 0.0 {
        true => String::new(),
        false => format!("{:.2}x", ours / theirs),
    };
    let share = |share: Option<f64>| share.map_or("-".to_owned(), |share| format!("{share:.4}"));
    [
        figures.dispatcher.clone(),
        milliseconds(figures.avg_ms),
        change(figures.avg_ms, first.avg_ms),
        milliseconds(figures.p50_ms),
        milliseconds(figures.p90_ms),
        change(figures.p90_ms, first.p90_ms),
        milliseconds(figures.p99_ms),
        format!("{:.4}", figures.top_hit),
        format!("{:.4}", figures.rule_hit),
        format!("{:.2}", figures.memory_mib),
        times(figures.memory_mib, first.memory_mib),
        milliseconds(figures.queue_ms),
        milliseconds(figures.processing_ms),
        share(figures.prediction_accuracy),
        share(figures.best_agent),
        figures.conflicts.to_string(),
        format!("{:.0}", figures.throughput_burst),
        times(figures.throughput_burst, first.throughput_burst),
    ]
}

/// Formats milliseconds with as many digits as are significant.
fn milliseconds(ms: f64) -> String {
    match ms {
        ms if ms >= 10.0 => format!("{ms:.1}"),
        ms if ms >= 0.1 => format!("{ms:.3}"),
        ms => format!("{ms:.5}"),
    }
}
