//! Dispatchers of the report and their styles, the same in every plot.

use super::super::figures::{DispatchFigures, DispatchReport};
use super::text::escape;

/// Number of colours of the style sheet (`c0` to `c7`), combined with line styles or markers (`k0` to `k3`). The
/// pairs distinguish 32 dispatchers; the styles are the second cue for readers who cannot distinguish the colours.
const COLOURS: usize = 8;
const STYLES: usize = 4;

/// Style of a dispatcher.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SeriesStyle {
    pub index: usize,
    /// Drawn thicker and on top: the headline's dispatcher.
    pub strong: bool,
}

impl SeriesStyle {
    fn style(self) -> usize {
        (self.index + self.index / COLOURS) % STYLES
    }

    pub fn classes(self) -> String {
        let strong = if self.strong { " strong" } else { "" };
        format!("s c{} k{}{strong}", self.index % COLOURS, self.style())
    }

    /// Returns a marker on a line: circle, square, diamond or triangle.
    pub fn mark(self, (x, y): (f64, f64)) -> String {
        let path = match self.style() {
            0 => "m-3.4 0a3.4 3.4 0 1 0 6.8 0a3.4 3.4 0 1 0 -6.8 0",
            1 => "m-3 -3h6v6h-6z",
            2 => "m0 -4.2l4.2 4.2l-4.2 4.2l-4.2 -4.2z",
            _ => "m0 -3.8l3.8 6.6h-7.6z",
        };
        format!("<path d=\"M{x:.1} {y:.1}{path}\"/>")
    }
}

/// All dispatchers of a report, by name.
pub struct Cast<'a> {
    names: Vec<&'a str>,
    /// Index of the dispatcher that the headline compares with the first.
    pub hero: Option<usize>,
}

impl<'a> Cast<'a> {
    pub fn of(report: &'a DispatchReport) -> Self {
        let mut names: Vec<&str> =
            report.outcomes.iter().map(|outcome| outcome.figures.dispatcher.as_str()).collect();
        for figures in report.sweeps.iter().flat_map(|sweep| &sweep.points).flat_map(|point| &point.1) {
            if !names.contains(&figures.dispatcher.as_str()) {
                names.push(&figures.dispatcher);
            }
        }
        Self { names, hero: hero(report) }
    }

    pub fn look(&self, figures: &DispatchFigures) -> SeriesStyle {
        let index = self.names.iter().position(|name| *name == figures.dispatcher).unwrap_or(0);
        SeriesStyle { index, strong: index == 0 || Some(index) == self.hero }
    }

    /// Returns the legend of a plot.
    pub fn legend<'b>(&self, of: impl IntoIterator<Item = &'b DispatchFigures>) -> String {
        legend(of.into_iter().map(|figures| (self.look(figures), figures.dispatcher.as_str())))
    }
}

/// Returns a legend of these styles. The script turns the entries into switches.
pub fn legend<'b>(of: impl IntoIterator<Item = (SeriesStyle, &'b str)>) -> String {
    let key = |(look, name): (SeriesStyle, &str)| {
        format!(
            "<li class=\"{}\" data-d=\"{}\"><svg viewBox=\"0 0 26 10\" aria-hidden=\"true\">\
             <polyline points=\"0,5 26,5\"/>{}</svg><span>{}</span></li>",
            look.classes(),
            look.index,
            look.mark((13.0, 5.0)),
            escape(name)
        )
    };
    let keys: String = of.into_iter().map(key).collect();
    format!("<ul class=\"legend\">{keys}</ul>")
}

/// Returns the one with the lowest average latency, except the first.
fn hero(report: &DispatchReport) -> Option<usize> {
    let average = |at: &usize| report.outcomes[*at].figures.avg_ms;
    let compared = (1..report.outcomes.len()).filter(|at| average(at).is_finite());
    compared.min_by(|a, b| average(a).total_cmp(&average(b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thirty_two_dispatchers_are_told_apart() {
        let mut looks: Vec<_> = (0..32).map(|index| SeriesStyle { index, strong: false }.classes()).collect();
        looks.sort();
        looks.dedup();
        assert_eq!(looks.len(), 32);
    }
}
