//! Line plot.

use std::fmt::Write;

use super::cast::SeriesStyle;
use super::numbers::short;
use super::scale::AxisScale;
use super::text::{escape, width};

/// Maximum number of points per line; more would not be visible.
pub const POINTS_MAX: usize = 240;

/// Margins around the drawing area, in units of the view box: left, top, right, bottom.
const MARGIN: (f64, f64, f64, f64) = (46.0, 24.0, 14.0, 38.0);

pub struct Axis {
    pub scale: AxisScale,
    pub ticks: Vec<f64>,
    pub label: String,
    pub unit: &'static str,
}

pub struct ChartSeries<'a> {
    pub name: &'a str,
    pub look: SeriesStyle,
    /// By increasing x. Non-finite points are skipped.
    pub points: Vec<(f64, f64)>,
}

pub struct LineChart<'a> {
    /// Text alternative of the plot, for screen readers.
    pub says: String,
    /// Width and height of the view box.
    pub size: (f64, f64),
    pub x: Axis,
    pub y: Axis,
    pub series: Vec<ChartSeries<'a>>,
    /// Filled, behind all lines.
    pub backdrop: Vec<(f64, f64)>,
    /// A highlighted range of x, and its name.
    pub band: Option<(f64, f64, &'static str)>,
    /// Whether each point has a marker: for few points.
    pub marked: bool,
}

/// The drawing area: left, top, right, bottom.
type Area = (f64, f64, f64, f64);

impl LineChart<'_> {
    pub fn svg(&self) -> String {
        let (wide, high) = self.size;
        let area = (MARGIN.0, MARGIN.1, wide - MARGIN.2, high - MARGIN.3);
        let (left, top, right, bottom) = area;
        let mut out = format!(
            "<svg viewBox=\"0 0 {wide} {high}\" role=\"img\" aria-label=\"{}\" class=\"lines\" data-x=\"{}\" \
             data-y=\"{}\" data-box=\"{left} {top} {right} {bottom}\" data-units=\"{}|{}\">",
            escape(&self.says),
            domain(&self.x.scale),
            domain(&self.y.scale),
            self.x.unit,
            self.y.unit,
        );
        let place = |point: &(f64, f64)| {
            let x = left + self.x.scale.fraction(point.0) * (right - left);
            (x, bottom - self.y.scale.fraction(point.1) * (bottom - top))
        };
        if let Some((from, to, name)) = self.band {
            band(&mut out, area, (place(&(from, 0.0)).0, place(&(to, 0.0)).0), name);
        }
        self.axes(&mut out, area);
        let shape = points(&self.backdrop, place);
        if let (Some(first), Some(last)) = (self.backdrop.first(), self.backdrop.last()) {
            let (from, to) = (place(first).0, place(last).0);
            let _ = write!(
                out,
                "<polygon class=\"backdrop\" points=\"{from:.1},{bottom} {shape} {to:.1},{bottom}\"/>"
            );
        }
        // Highlighted lines are drawn last, on top.
        for strong in [false, true] {
            for series in self.series.iter().filter(|series| series.look.strong == strong) {
                let _ = write!(
                    out,
                    "<g class=\"{}\" data-d=\"{}\" data-name=\"{}\"><polyline points=\"{}\"/>",
                    series.look.classes(),
                    series.look.index,
                    escape(series.name),
                    points(&series.points, place)
                );
                if self.marked {
                    finite(&series.points).for_each(|point| out.push_str(&series.look.mark(place(point))));
                }
                out.push_str("</g>");
            }
        }
        out + "</svg>"
    }

    fn axes(&self, out: &mut String, (left, top, right, bottom): Area) {
        for tick in &self.y.ticks {
            let at = bottom - self.y.scale.fraction(*tick) * (bottom - top);
            let _ = write!(
                out,
                "<line class=\"grid\" x1=\"{left}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                left - 7.0,
                at + 4.0,
                short(*tick)
            );
        }
        let mut free_from = f64::MIN;
        for tick in &self.x.ticks {
            let at = left + self.x.scale.fraction(*tick) * (right - left);
            let text = short(*tick);
            let half = width(&text) / 2.0;
            let _ = write!(
                out,
                "<line class=\"tick\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{bottom}\" y2=\"{:.1}\"/>",
                bottom + 4.0
            );
            if at - half >= free_from {
                let _ = write!(
                    out,
                    "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{text}</text>",
                    bottom + 17.0
                );
                free_from = at + half + 6.0;
            }
        }
        let _ = write!(
            out,
            "<line class=\"axis\" x1=\"{left}\" x2=\"{right}\" y1=\"{bottom}\" y2=\"{bottom}\"/>\
             <text class=\"quiet\" x=\"2\" y=\"11\">{}</text>\
             <text class=\"quiet\" x=\"{right}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            escape(&self.y.label),
            bottom + 33.0,
            escape(&self.x.label)
        );
    }
}

/// Draws a highlighted range of x, given in positions.
fn band(out: &mut String, (left, top, right, bottom): Area, (from, to): (f64, f64), name: &str) {
    // Keeps a short burst of a long run visible.
    let wide = (to - from).max(2.0);
    let (at, anchor) = if from > (left + right) / 2.0 { (from - 4.0, "end") } else { (to + 4.0, "start") };
    let _ = write!(
        out,
        "<rect class=\"band\" x=\"{from:.1}\" y=\"{top}\" width=\"{wide:.1}\" height=\"{:.1}\"/>\
         <text class=\"quiet\" x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{name}</text>",
        bottom - top,
        top + 10.0
    );
}

/// Returns the scale for the page's script, which converts positions back to values.
fn domain(scale: &AxisScale) -> String {
    format!("{} {:e} {:e}", u8::from(scale.log), scale.low, scale.high)
}

fn finite(points: &[(f64, f64)]) -> impl Iterator<Item = &(f64, f64)> {
    points.iter().filter(|point| point.0.is_finite() && point.1.is_finite())
}

fn points(points: &[(f64, f64)], place: impl Fn(&(f64, f64)) -> (f64, f64)) -> String {
    let placed = finite(points).map(place).map(|(x, y)| format!("{x:.1},{y:.1}"));
    placed.collect::<Vec<_>>().join(" ")
}

/// Returns at most [`POINTS_MAX`] points, each merged from neighbours: the middle x, and `of` applied to the ys.
pub fn thinned(points: &[(f64, f64)], of: impl Fn(&[f64]) -> f64) -> Vec<(f64, f64)> {
    let each = points.len().div_ceil(POINTS_MAX).max(1);
    let merged = |some: &[(f64, f64)]| {
        let values: Vec<f64> = some.iter().map(|point| point.1).collect();
        ((some[0].0 + some[some.len() - 1].0) / 2.0, of(&values))
    };
    points.chunks(each).map(merged).collect()
}

/// Returns at most [`POINTS_MAX`] of the points, evenly spaced, with both ends: for monotonic curves.
pub fn sampled(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let last = points.len().saturating_sub(1);
    let steps = last.min(POINTS_MAX - 1);
    let at = |step| points[step * last / steps.max(1)];
    if points.is_empty() { Vec::new() } else { (0..=steps).map(at).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_both_ends() {
        let all: Vec<_> = (0..1_000).map(|at| (f64::from(at), 1.0)).collect();
        for count in [0, 1, 2, POINTS_MAX, POINTS_MAX + 1, 1_000] {
            let some = sampled(&all[..count]);
            assert_eq!(some.len(), count.min(POINTS_MAX));
            assert_eq!((some.first(), some.last()), (all[..count].first(), all[..count].last()));
        }
    }

    #[test]
    fn thinning_keeps_few_points_as_they_are_and_the_shape_of_many() {
        let few = [(0.0, 1.0), (1.0, 3.0)];
        assert_eq!(thinned(&few, |some| some[0]), few);
        let many: Vec<_> = (0..10_000).map(|at| (f64::from(at), f64::from(at % 100))).collect();
        let max = |some: &[f64]| some.iter().copied().fold(0.0, f64::max);
        let thin = thinned(&many, max);
        assert!(thin.len() <= POINTS_MAX && thin.iter().any(|point| point.1 == 99.0));
        assert!(thin.is_sorted_by(|a, b| a.0 < b.0));
    }
}
