//! Horizontal bars, one row a dispatcher, its name beside it.

use std::fmt::Write;

use super::cast::Look;
use super::numbers::short;
use super::scale::Scale;
use super::text::{cut, escape, width};

const WIDTH: f64 = 360.0;
const NAMES_MAX: f64 = 122.0;
/// Height of a bar, alone in its row and with others.
const BAR: (f64, f64) = (15.0, 11.0);
const GAP: f64 = 3.0;

pub struct Row<'a> {
    pub name: &'a str,
    pub look: Look,
    /// Values and what stands beside them: the first strong, the second pale.
    pub parts: Vec<(f64, String)>,
}

pub struct Bars<'a> {
    /// The plot in words, for those who cannot see it.
    pub says: String,
    pub scale: Scale,
    pub label: String,
    pub rows: Vec<Row<'a>>,
    /// Whether the parts of a row follow each other in one bar, instead of lying below each other.
    pub stacked: bool,
}

impl Bars<'_> {
    pub fn svg(&self) -> String {
        let parts = self.rows.iter().map(|row| row.parts.len()).max().unwrap_or(1);
        let deep = if self.stacked { 1.0 } else { parts as f64 };
        let bar = if deep > 1.0 { BAR.1 } else { BAR.0 };
        let pitch = deep * (bar + GAP) + 12.0;
        let names = self.rows.iter().map(|row| width(row.name)).fold(40.0, f64::max).min(NAMES_MAX);
        let texts =
            self.rows.iter().flat_map(|row| &row.parts).map(|part| width(&part.1)).fold(0.0, f64::max);
        let (left, right) = (names + 8.0, WIDTH - texts - 8.0);
        let (top, bottom) = (4.0, 4.0 + pitch * self.rows.len() as f64);
        let mut out = format!(
            "<svg viewBox=\"0 0 {WIDTH} {}\" role=\"img\" aria-label=\"{}\">",
            bottom + 38.0,
            escape(&self.says)
        );
        let place = |value: f64| left + self.scale.fraction(value) * (right - left);
        let mut free_from = f64::MIN;
        for tick in self.scale.ticks(5) {
            let (at, text) = (place(tick), short(tick));
            let _ = write!(
                out,
                "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{top}\" y2=\"{bottom}\"/>"
            );
            let half = width(&text) / 2.0;
            if at - half >= free_from {
                let _ = write!(
                    out,
                    "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{text}</text>",
                    bottom + 16.0
                );
                free_from = at + half + 6.0;
            }
        }
        let _ = write!(
            out,
            "<text class=\"quiet\" x=\"{right:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            bottom + 32.0,
            escape(&self.label)
        );
        for (at, row) in self.rows.iter().enumerate() {
            let from = top + pitch * at as f64 + 6.0;
            let middle = from + (deep * (bar + GAP) - GAP) / 2.0;
            let spoken: Vec<_> = row.parts.iter().map(|part| short(part.0)).collect();
            let _ = write!(
                out,
                "<g class=\"{}\" data-d=\"{}\"><title>{}: {}</title>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                row.look.classes(),
                row.look.index,
                escape(row.name),
                spoken.join(", "),
                left - 8.0,
                middle + 4.0,
                escape(&cut(row.name, names))
            );
            let mut before = 0.0;
            for (part, (value, text)) in row.parts.iter().enumerate() {
                let value = if value.is_finite() { *value } else { 0.0 };
                let y = if self.stacked { from } else { from + part as f64 * (bar + GAP) };
                let (start, end) = (place(before), place(before + value));
                let pale = if part == 0 { "bar" } else { "bar pale" };
                let _ = write!(
                    out,
                    "<rect class=\"{pale}\" x=\"{start:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{bar}\"/>",
                    end - start
                );
                if !text.is_empty() {
                    let at = end + 5.0;
                    let _ = write!(
                        out,
                        "<text x=\"{at:.1}\" y=\"{:.1}\">{}</text>",
                        y + bar / 2.0 + 4.2,
                        escape(text)
                    );
                }
                before += if self.stacked { value } else { 0.0 };
            }
            out.push_str("</g>");
        }
        let _ = write!(
            out,
            "<line class=\"axis\" x1=\"{left:.1}\" x2=\"{left:.1}\" y1=\"{top}\" y2=\"{bottom}\"/></svg>"
        );
        out
    }
}
