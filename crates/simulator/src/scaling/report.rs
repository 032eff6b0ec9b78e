//! HTML page of `--scaling`: figures, timelines and sensitivity. Drawn like the report of `berth simulate`.

use std::fmt::Write;

use super::figures::{ScalingFigures, ScalingOutcome, ScalingSlice};
use crate::report::cast::{SeriesStyle, legend};
use crate::report::lines::{Axis, ChartSeries, LineChart};
use crate::report::numbers::{NONE, change, number, percent};
use crate::report::plots::{SIZE, axis, figure};
use crate::report::scale::AxisScale;
use crate::report::text::escape;
use crate::report::{page, section, tables, tile};

/// Input of the page.
#[derive(Debug, Clone)]
pub struct ScalingReport {
    pub source: String,
    pub setup: Vec<(&'static str, String)>,
    /// The first is the baseline.
    pub outcomes: Vec<ScalingOutcome>,
    pub sweeps: Vec<ScalingSweep>,
    pub notes: Vec<String>,
    pub command: String,
}

/// One varied parameter: its values, and the figures of each scaler.
#[derive(Debug, Clone)]
pub struct ScalingSweep {
    pub what: &'static str,
    pub points: Vec<(f64, Vec<ScalingFigures>)>,
}

/// Renders the page. The same report gives the same bytes.
pub fn render(report: &ScalingReport) -> String {
    let mut body = format!(
        "<header><p class=\"eyebrow\">berth simulate --scaling</p><h1>{}</h1>{}</header>",
        escape(&report.source),
        headline(&report.outcomes)
    );
    let lead = "CPU and memory are the requests of all pods, averaged over time. Changes, reversals and OOM kills are per service \
                and day.";
    section(&mut body, "scalers", "All scalers", lead, &table(&report.outcomes));
    let lead = "Totals of all services; each scaler has the same colour and line style in all plots.";
    let plots = format!("<div class=\"grid\">{}</div>", over_time(&report.outcomes));
    section(&mut body, "time", "Over time", lead, &plots);
    if report.sweeps.iter().any(|sweep| !sweep.points.is_empty()) {
        let all: String = report.sweeps.iter().map(|sweep| varied(sweep, &report.outcomes)).collect();
        let plots = format!("<div class=\"grid\">{}{all}</div>", frontier(report));
        section(&mut body, "sensitivity", "Sensitivity", "The same load with one parameter varied.", &plots);
    }
    let setup = tables::setup(&report.setup, &report.notes, &report.command);
    section(&mut body, "setup", "Setup", "", &setup);
    page::wrap(&report.source, &body)
}

fn headline(outcomes: &[ScalingOutcome]) -> String {
    let [first, other, ..] = outcomes else { return String::new() };
    let (ours, theirs) = (&first.figures, &other.figures);
    let one = |what: &str, of: fn(&ScalingFigures) -> f64| {
        let large = change(of(ours), of(theirs)).unwrap_or_else(|| number(of(ours)));
        tile(&large, what, &format!("{} → {}", number(of(theirs)), number(of(ours))))
    };
    format!(
        "<p class=\"lead\"><b>{}</b> against <b>{}</b>:</p><ul class=\"tiles\">{}{}{}</ul>",
        escape(&ours.scaler),
        escape(&theirs.scaler),
        one("CPU, cores", |of| of.cpu_cores),
        one("memory, GiB", |of| of.memory_gib),
        one("99th percentile of latency, ms", |of| of.p99_ms)
    )
}

type Column = (&'static str, fn(&ScalingFigures) -> String);

const COLUMNS: [Column; 14] = [
    ("CPU<br>cores", |of| number(of.cpu_cores)),
    ("memory<br>GiB", |of| number(of.memory_gib)),
    ("CPU<br>used", |of| percent(of.used_cores / of.cpu_cores)),
    ("replicas", |of| number(of.replicas)),
    ("p50<br>ms", |of| number(of.p50_ms)),
    ("p99<br>ms", |of| number(of.p99_ms)),
    ("p99.9<br>ms", |of| number(of.p999_ms)),
    ("over the<br>objective", |of| percent(of.slo_violations)),
    ("failed", |of| percent(of.failed)),
    ("replica<br>changes", |of| number(of.horizontal_changes)),
    ("reversals", |of| number(of.horizontal_reversals)),
    ("size<br>changes", |of| number(of.vertical_changes)),
    ("reversals", |of| number(of.vertical_reversals)),
    ("kills", |of| number(of.oom_kills)),
];

fn table(outcomes: &[ScalingOutcome]) -> String {
    let head: String = COLUMNS.iter().map(|(name, _)| format!("<th scope=\"col\">{name}</th>")).collect();
    let mut rows = String::new();
    for (at, ScalingOutcome { figures, .. }) in outcomes.iter().enumerate() {
        let cells: String = COLUMNS.iter().map(|(_, text)| format!("<td>{}</td>", text(figures))).collect();
        let _ = write!(
            rows,
            "<tr><th scope=\"row\"><i class=\"dot {}\"></i><span class=\"name\">{}</span></th>{cells}</tr>",
            look(at).classes(),
            escape(&figures.scaler)
        );
    }
    let none = if outcomes.is_empty() { NONE } else { "" };
    format!(
        "<div class=\"scroll sticky\" tabindex=\"0\"><table><thead><tr><th scope=\"col\">scaler</th>{head}</tr></thead>\
         <tbody>{rows}</tbody></table>{none}</div>"
    )
}

fn look(index: usize) -> SeriesStyle {
    SeriesStyle { index, strong: index == 0 }
}

fn names(outcomes: &[ScalingOutcome]) -> impl Iterator<Item = (SeriesStyle, &str)> {
    outcomes.iter().enumerate().map(|(at, outcome)| (look(at), outcome.figures.scaler.as_str()))
}

fn over_time(outcomes: &[ScalingOutcome]) -> String {
    let plot = |id: &str,
                title: &str,
                note: &str,
                unit,
                of: fn(&ScalingSlice) -> f64,
                behind: fn(&ScalingSlice) -> f64| {
        let line = |outcome: &ScalingOutcome, of: fn(&ScalingSlice) -> f64| -> Vec<(f64, f64)> {
            outcome.timeline.iter().map(|slice| (slice.from_h, of(slice))).collect()
        };
        let lines: Vec<_> = outcomes.iter().map(|outcome| line(outcome, of)).collect();
        let backdrop = outcomes.first().map(|outcome| line(outcome, behind)).unwrap_or_default();
        let values: Vec<f64> = lines.iter().flatten().chain(&backdrop).map(|point| point.1).collect();
        // Latency differs by orders of magnitude.
        let y =
            if unit == "ms" { AxisScale::for_spread(&values, 30.0) } else { AxisScale::from_zero(values) };
        let hours = outcomes.iter().flat_map(|outcome| &outcome.timeline).map(|slice| slice.from_h);
        let plot = LineChart {
            says: format!("{title} over time, by scaler"),
            size: SIZE,
            x: axis(AxisScale::linear(0.0, hours.fold(0.0, f64::max)), 6, "hours", "h"),
            y: axis(y, 4, unit, unit),
            series: names(outcomes)
                .zip(lines)
                .map(|((look, name), points)| ChartSeries { name, look, points })
                .collect(),
            backdrop,
            band: None,
            marked: false,
        };
        figure(id, "", title, note, &(plot.svg() + &legend(names(outcomes))))
    };
    [
        plot(
            "plot-cpu",
            "CPU",
            "Requested; the area is the usage.",
            "cores",
            |s| s.cpu_cores,
            |s| s.used_cores,
        ),
        plot("plot-memory", "Memory", "Requested.", "GiB", |s| s.memory_gib, |_| f64::NAN),
        plot("plot-replicas", "Replicas", "Ready or not.", "", |s| s.replicas, |_| f64::NAN),
        plot("plot-p99", "Latency", "99th percentile of each time slice.", "ms", |s| s.p99_ms, |_| f64::NAN),
        plot("plot-load", "Requests", "Arrivals per second.", "/s", |_| f64::NAN, |s| s.requests_per_s),
    ]
    .concat()
}

/// Returns the index of a scaler among the outcomes.
fn place(outcomes: &[ScalingOutcome], scaler: &str) -> usize {
    outcomes.iter().position(|outcome| outcome.figures.scaler == scaler).unwrap_or(outcomes.len())
}

type Points = Vec<(f64, f64)>;

/// Plots latency against CPU, for all settings of the two scalers' targets.
fn frontier(report: &ScalingReport) -> String {
    let targets = |sweep: &&ScalingSweep| sweep.what.contains("target") || sweep.what.contains("setpoint");
    let mut lines: Vec<(usize, &str, Points)> = Vec::new();
    for sweep in report.sweeps.iter().filter(targets) {
        let Some((_, first)) = sweep.points.first() else { continue };
        for (at, of) in first.iter().enumerate() {
            let both =
                |(_, all): &(f64, Vec<ScalingFigures>)| all.get(at).map(|of| (of.cpu_cores, of.p99_ms));
            let mut points: Vec<_> = sweep.points.iter().filter_map(both).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            lines.push((place(&report.outcomes, &of.scaler), &of.scaler, points));
        }
    }
    let all = || lines.iter().flat_map(|(_, _, points)| points);
    let values: Vec<f64> = all().map(|point| point.1).collect();
    let (low, high) =
        all().fold((f64::MAX, 0.0_f64), |(low, high), point| (low.min(point.0), high.max(point.0)));
    let low = if low > high { 0.0 } else { low };
    let y = AxisScale::for_spread(&values, 30.0);
    let plot = LineChart {
        says: "99th percentile of latency against CPU, for all targets".to_owned(),
        size: SIZE,
        x: axis(AxisScale::linear(low.floor(), high.ceil()), 5, "cores requested", "cores"),
        y: axis(y, 4, "p99, ms", "ms"),
        series: lines
            .iter()
            .map(|(at, name, points)| ChartSeries { name, look: look(*at), points: points.clone() })
            .collect(),
        backdrop: Vec::new(),
        band: None,
        marked: true,
    };
    let keys = lines.iter().map(|(at, name, _)| (look(*at), *name));
    let note = "Each point is one target; further left and lower is better.";
    figure("plot-frontier", "", "Latency per core", note, &(plot.svg() + &legend(keys)))
}

fn varied(sweep: &ScalingSweep, outcomes: &[ScalingOutcome]) -> String {
    let Some((_, first)) = sweep.points.first() else { return String::new() };
    let xs: Vec<f64> = sweep.points.iter().map(|point| point.0).collect();
    let (low, high) = (xs[0], xs[xs.len() - 1]);
    let log = low > 0.0 && high > 6.0 * low;
    let scale = if log { AxisScale { log, low, high } } else { AxisScale::linear(low, high) };
    let plot = |title: &str, unit, of: fn(&ScalingFigures) -> f64| {
        let line = |at: usize| -> Vec<(f64, f64)> {
            sweep.points.iter().filter_map(|(x, all)| Some((*x, of(all.get(at)?)))).collect()
        };
        let lines: Vec<_> = (0..first.len()).map(line).collect();
        let values: Vec<f64> = lines.iter().flatten().map(|point| point.1).collect();
        let named = first.iter().map(|figures| figures.scaler.as_str()).zip(lines);
        let plot = LineChart {
            says: format!("{title} by {} and scaler", sweep.what),
            size: (SIZE.0, 210.0),
            x: Axis { scale, ticks: xs.clone(), label: sweep.what.to_owned(), unit: "" },
            y: axis(AxisScale::for_spread(&values, 30.0), 4, unit, unit),
            series: named
                .map(|(name, points)| ChartSeries { name, look: look(place(outcomes, name)), points })
                .collect(),
            backdrop: Vec::new(),
            band: None,
            marked: true,
        };
        format!("<div class=\"panel\"><h3>{title}</h3>{}</div>", plot.svg())
    };
    let panels = plot("CPU", "cores", |of| of.cpu_cores) + &plot("99th percentile", "ms", |of| of.p99_ms);
    let keys = first.iter().map(|figures| (look(place(outcomes, &figures.scaler)), figures.scaler.as_str()));
    let content = format!("<div class=\"panels\">{panels}</div>{}", legend(keys));
    figure("", "", &escape(sweep.what), "", &content).replacen(" id=\"\"", "", 1)
}
