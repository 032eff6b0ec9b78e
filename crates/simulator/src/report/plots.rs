//! The report's plots and their text.

use super::super::figures::{
    DispatchFigures, DispatchReport, DispatchSlice, DispatchSweep, RunOutcome, Varied,
};
use super::bars::{Bars, ChartRow};
use super::cast::Cast;
use super::lines::{Axis, ChartSeries, LineChart, sampled, thinned};
use super::numbers::{number, percent};
use super::scale::AxisScale;

pub const SIZE: (f64, f64) = (360.0, 270.0);
/// Above this ratio of latencies, a linear axis would show the slowest only.
const LINEAR_RATIO_MAX: f64 = 30.0;

/// Draws the plots of the runs.
pub fn of_outcomes(report: &DispatchReport, cast: &Cast) -> String {
    let all = &report.outcomes;
    [cdf(all, cast), latency(all, cast), hits(all, cast), memory(all, cast), bursts(all, cast)].concat()
}

/// Draws one figure for each varied parameter.
pub fn of_sweeps(report: &DispatchReport, cast: &Cast) -> String {
    report
        .sweeps
        .iter()
        .filter(|sweep| !sweep.points.is_empty())
        .map(|sweep| self::sweep(sweep, cast))
        .collect()
}

/// `class` sets its width in columns of the grid; `note` follows the title.
pub fn figure(id: &str, class: &str, title: &str, note: &str, content: &str) -> String {
    format!(
        "<figure id=\"{id}\" class=\"{class}\"><figcaption>{title}<small>{note}</small></figcaption>{content}</figure>"
    )
}

fn panels(all: &[(&str, String)]) -> String {
    let panel = |(title, svg): &(&str, String)| format!("<div class=\"panel\"><h3>{title}</h3>{svg}</div>");
    format!("<div class=\"panels\">{}</div>", all.iter().map(panel).collect::<String>())
}

/// Returns the legend for the two shades of bars.
fn shades(strong: &str, pale: &str) -> String {
    format!(
        "<ul class=\"legend\"><li><i class=\"swatch\"></i><span>{strong}</span></li>\
         <li><i class=\"swatch pale\"></i><span>{pale}</span></li></ul>"
    )
}

fn figures(all: &[RunOutcome]) -> impl Iterator<Item = &DispatchFigures> {
    all.iter().map(|outcome| &outcome.figures)
}

fn series<'a>(figures: &'a DispatchFigures, cast: &Cast, points: Vec<(f64, f64)>) -> ChartSeries<'a> {
    ChartSeries { name: &figures.dispatcher, look: cast.look(figures), points }
}

pub fn axis(scale: AxisScale, about: usize, label: &str, unit: &'static str) -> Axis {
    Axis { ticks: scale.ticks(about), scale, label: label.to_owned(), unit }
}

fn cdf(all: &[RunOutcome], cast: &Cast) -> String {
    let scale = AxisScale::log(all.iter().flat_map(|outcome| &outcome.cdf).map(|point| point.0));
    let draw = |size, about| {
        let line = |outcome: &RunOutcome| {
            let points: Vec<_> = outcome.cdf.iter().map(|(ms, share)| (*ms, 100.0 * share)).collect();
            sampled(&points)
        };
        let plot = LineChart {
            says: "Share of requests that were placed within a time, by dispatcher".to_owned(),
            size,
            x: axis(scale, about, "latency, ms (log)", "ms"),
            y: axis(AxisScale::linear(0.0, 100.0), 5, "% of requests", "%"),
            series: all.iter().map(|outcome| series(&outcome.figures, cast, line(outcome))).collect(),
            backdrop: Vec::new(),
            band: None,
            marked: false,
        };
        plot.svg()
    };
    // The wide drawing is shown if the screen allows; its text would be too small on a phone.
    let wide = draw((744.0, 300.0), 8).replacen("class=\"lines\"", "class=\"lines wide\"", 1);
    let content = wide + &draw(SIZE, 5) + &cast.legend(figures(all));
    figure(
        "plot-cdf",
        "w2",
        "Latency",
        "Share of requests placed within a time; a curve further left is faster.",
        &content,
    )
}

fn latency(all: &[RunOutcome], cast: &Cast) -> String {
    let total = |of: &DispatchFigures| of.processing_ms + of.queue_ms;
    let row = |of| ChartRow { name: name(of), look: cast.look(of), parts: stack(of) };
    let bars = Bars {
        says: "Average latency by dispatcher, split into processing and waiting".to_owned(),
        scale: AxisScale::from_zero(figures(all).map(total)),
        label: "ms".to_owned(),
        rows: figures(all).map(row).collect(),
        stacked: true,
    };
    let content = bars.svg() + &shades("processing", "in a queue");
    figure("plot-latency", "", "Average latency", "Where the time goes.", &content)
}

fn name(of: &DispatchFigures) -> &str {
    &of.dispatcher
}

fn stack(of: &DispatchFigures) -> Vec<(f64, String)> {
    vec![(of.processing_ms, String::new()), (of.queue_ms, number(of.processing_ms + of.queue_ms))]
}

fn hits(all: &[RunOutcome], cast: &Cast) -> String {
    let parts = |of: &DispatchFigures| {
        [of.top_hit, of.rule_hit].map(|share| (100.0 * share, percent(share))).to_vec()
    };
    let bars = Bars {
        says: "Cache hit rates by dispatcher, top level and rule level".to_owned(),
        scale: AxisScale::linear(0.0, 100.0),
        label: "% of looks".to_owned(),
        rows: figures(all)
            .map(|of| ChartRow { name: name(of), look: cast.look(of), parts: parts(of) })
            .collect(),
        stacked: false,
    };
    let content = bars.svg() + &shades("top level: ranked lists", "rule level: rule objects");
    figure(
        "plot-hits",
        "",
        "Cache hits",
        "Rule objects are looked up when a ranked list is missing.",
        &content,
    )
}

fn plain_bars(
    all: &[RunOutcome],
    cast: &Cast,
    says: &str,
    label: &str,
    of: fn(&DispatchFigures) -> f64,
) -> String {
    let parts = |figures: &DispatchFigures| vec![(of(figures), number(of(figures)))];
    let row = |figures| ChartRow { name: name(figures), look: cast.look(figures), parts: parts(figures) };
    let bars = Bars {
        says: says.to_owned(),
        scale: AxisScale::from_zero(figures(all).map(of)),
        label: label.to_owned(),
        rows: figures(all).map(row).collect(),
        stacked: false,
    };
    bars.svg()
}

fn memory(all: &[RunOutcome], cast: &Cast) -> String {
    let bars =
        plain_bars(all, cast, "Memory of all caches by dispatcher, average", "MiB", |of| of.memory_mib);
    let mut both = vec![("On average", bars)];
    let over_time = Timeline::of(all)
        .map(|time| time.plot(cast, "memory of all caches", "MiB", |of| of.memory_mib, mean));
    let legend = if over_time.is_some() { cast.legend(figures(all)) } else { String::new() };
    both.extend(over_time.map(|svg| ("Over time", svg)));
    let content = panels(&both) + &legend;
    figure("plot-memory", "w2", "Memory", "Total of the caches of all agents.", &content)
}

fn bursts(all: &[RunOutcome], cast: &Cast) -> String {
    let label = "placed per second";
    let bars = plain_bars(all, cast, "Placements per second in the burst", label, |of| of.throughput_burst);
    let mut each = vec![("Throughput in the burst", bars)];
    let mut legend = String::new();
    if let Some(time) = Timeline::of(all) {
        each.push(("Placed per second", time.plot(cast, "placed", "requests/s", |of| of.placed, mean)));
        each.push(("Waiting requests", time.plot(cast, "waiting", "requests", |of| of.waiting, max)));
        let arrived = "<li><i class=\"swatch area\"></i><span>arrived</span></li></ul>";
        legend = cast.legend(figures(all)).replace("</ul>", arrived);
    }
    let content = panels(&each) + &legend;
    figure("plot-bursts", "w3", "Bursts", "How fast requests are placed when many come at once.", &content)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn max(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

/// Common inputs of all plots over time.
struct Timeline<'a> {
    all: &'a [RunOutcome],
    span_s: f64,
    /// Seconds per unit of the axis, and the unit's name.
    unit: (f64, &'static str),
}

impl<'a> Timeline<'a> {
    /// Returns `None` if no outcome has a timeline.
    fn of(all: &'a [RunOutcome]) -> Option<Self> {
        let end = |timeline: &Vec<DispatchSlice>| {
            let (first, last) = (timeline.first()?.from_s, timeline.last()?.from_s);
            // Slices are equal: the last one has the same length.
            Some(last + (last - first) / (timeline.len() - 1).max(1) as f64)
        };
        let ends = all.iter().filter_map(|outcome| end(&outcome.timeline));
        let span_s = ends.filter(|end| end.is_finite()).fold(0.0, f64::max);
        let unit = match span_s {
            _ if span_s > 3.0 * 86_400.0 => (86_400.0, "days"),
            _ if span_s > 3.0 * 3_600.0 => (3_600.0, "hours"),
            _ if span_s > 300.0 => (60.0, "minutes"),
            _ => (1.0, "seconds"),
        };
        (span_s > 0.0).then_some(Self { all, span_s, unit })
    }

    fn plot(
        &self,
        cast: &Cast,
        what: &str,
        unit: &'static str,
        of: fn(&DispatchSlice) -> f64,
        merge: fn(&[f64]) -> f64,
    ) -> String {
        let line = |outcome: &RunOutcome, of: fn(&DispatchSlice) -> f64| {
            let points: Vec<_> =
                outcome.timeline.iter().map(|slice| (slice.from_s / self.unit.0, of(slice))).collect();
            thinned(&points, merge)
        };
        let lines: Vec<_> = self.all.iter().map(|outcome| line(outcome, of)).collect();
        // Arrivals are the same for all: they are drawn once, in the plot of placements.
        let arrived = self.all.iter().find(|outcome| what == "placed" && !outcome.timeline.is_empty());
        let backdrop = arrived.map(|outcome| line(outcome, |slice| slice.arrived)).unwrap_or_default();
        let y = AxisScale::from_zero(lines.iter().flatten().chain(&backdrop).map(|point| point.1));
        let burst = self.all.iter().map(|outcome| outcome.burst).find(|(from, to)| to > from);
        let named = self.all.iter().zip(lines);
        let plot = LineChart {
            says: format!("{what} over time, by dispatcher"),
            size: SIZE,
            x: axis(AxisScale::linear(0.0, self.span_s / self.unit.0), 6, self.unit.1, self.unit.1),
            y: axis(y, 4, unit, ""),
            series: named.map(|(outcome, line)| series(&outcome.figures, cast, line)).collect(),
            backdrop,
            band: burst.map(|(from, to)| (from / self.unit.0, to / self.unit.0, "burst")),
            marked: false,
        };
        plot.svg()
    }
}

fn sweep(sweep: &DispatchSweep, cast: &Cast) -> String {
    let (id, title, note, label) = match sweep.what {
        Varied::Agents => ("plot-agents", "Agents", "More agents share the same memory.", "agents"),
        Varied::Load => ("plot-load", "Load", "Requests come faster.", "load at 80 % hits"),
        Varied::CacheSlots => (
            "plot-slots",
            "Cache size",
            "Maximum number of ranked lists per agent.",
            "ranked lists per agent",
        ),
    };
    let xs: Vec<f64> = sweep.points.iter().map(|point| point.0).filter(|x| x.is_finite()).collect();
    let (low, high) = (xs.first().copied().unwrap_or(0.0), xs.last().copied().unwrap_or(1.0));
    // Sizes that double at each step get equal distances.
    let log = low > 0.0 && high > 6.0 * low;
    let scale = if log { AxisScale { log, low, high } } else { AxisScale::linear(low, high) };
    let dispatchers: Vec<&DispatchFigures> = sweep.points[0].1.iter().collect();
    let plot = |what: &str, of: fn(&DispatchFigures) -> f64| {
        let line = |at: usize| {
            let point = |(x, all): &(f64, Vec<DispatchFigures>)| Some((*x, of(all.get(at)?)));
            sweep.points.iter().filter_map(point).collect::<Vec<_>>()
        };
        let lines: Vec<_> = (0..dispatchers.len()).map(line).collect();
        let values: Vec<f64> = lines.iter().flatten().map(|point| point.1).collect();
        let y = AxisScale::for_spread(&values, LINEAR_RATIO_MAX);
        let unit = if y.log { "ms (log)" } else { "ms" };
        let named = dispatchers.iter().zip(lines);
        let plot = LineChart {
            says: format!("{what} of latency by {label} and dispatcher"),
            size: (SIZE.0, 210.0),
            x: Axis { scale, ticks: xs.clone(), label: label.to_owned(), unit: "" },
            y: axis(y, 5, unit, "ms"),
            series: named.map(|(figures, line)| series(figures, cast, line)).collect(),
            backdrop: Vec::new(),
            band: None,
            marked: true,
        };
        plot.svg()
    };
    let both = [
        ("Average latency", plot("average", |of| of.avg_ms)),
        ("90th percentile", plot("p90", |of| of.p90_ms)),
    ];
    let content = panels(&both) + &cast.legend(dispatchers.iter().copied());
    figure(id, "", title, note, &content)
}
