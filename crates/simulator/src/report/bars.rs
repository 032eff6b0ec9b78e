//! Horizontal bar chart, one row per dispatcher, with its name beside it.

use std::fmt::Write;

use super::cast::SeriesStyle;
use super::numbers::short;
use super::scale::AxisScale;
use super::text::{cut, escape, width};

const WIDTH: f64 = 360.0;
const NAMES_MAX: f64 = 122.0;
/// Height of a bar, alone in its row and with several.
const BAR: (f64, f64) = (15.0, 11.0);
const GAP: f64 = 3.0;

pub struct ChartRow<'a> {
    pub name: &'a str,
    pub look: SeriesStyle,
    /// Values and their labels: the first strong, the second pale.
    pub parts: Vec<(f64, String)>,
}

pub struct Bars<'a> {
    /// Text alternative of the plot, for screen readers.
    pub says: String,
    pub scale: AxisScale,
    pub label: String,
    pub rows: Vec<ChartRow<'a>>,
    /// Whether the parts of a row are stacked in one bar instead of drawn below each other.
    pub stacked: bool,
}

/// Layout, in units of the view box.
struct Room {
    /// Bars are drawn between these; names are left of them, values right of them.
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    /// Distance between rows.
    pitch: f64,
    /// Total height of the bars of a row, and of one bar.
    deep: f64,
    bar: f64,
}

impl Bars<'_> {
    pub fn svg(&self) -> String {
        let room = self.room();
        let mut out = format!(
            "<svg viewBox=\"0 0 {WIDTH} {}\" role=\"img\" aria-label=\"{}\">",
            room.bottom + 38.0,
            escape(&self.says)
        );
        self.axis(&mut out, &room);
        for (at, row) in self.rows.iter().enumerate() {
            let top = room.top + room.pitch * at as f64 + (room.pitch - room.deep) / 2.0;
            self.row(&mut out, &room, row, top);
        }
        let Room { left, top, bottom, .. } = room;
        let _ = write!(
            out,
            "<line class=\"axis\" x1=\"{left:.1}\" x2=\"{left:.1}\" y1=\"{top}\" y2=\"{bottom}\"/></svg>"
        );
        out
    }

    fn room(&self) -> Room {
        let parts = self.rows.iter().map(|row| row.parts.len()).max().unwrap_or(1);
        let below = if self.stacked { 1.0 } else { parts as f64 };
        let bar = if below > 1.0 { BAR.1 } else { BAR.0 };
        let names = self.rows.iter().map(|row| width(row.name)).fold(40.0, f64::max).min(NAMES_MAX);
        let texts =
            self.rows.iter().flat_map(|row| &row.parts).map(|part| width(&part.1)).fold(0.0, f64::max);
        let deep = below * (bar + GAP) - GAP;
        let pitch = deep + 15.0;
        let (top, bottom) = (4.0, 4.0 + pitch * self.rows.len() as f64);
        Room { left: names + 8.0, right: WIDTH - texts - 8.0, top, bottom, pitch, deep, bar }
    }

    fn place(&self, room: &Room, value: f64) -> f64 {
        room.left + self.scale.fraction(value) * (room.right - room.left)
    }

    fn axis(&self, out: &mut String, room: &Room) {
        let Room { right, top, bottom, .. } = room;
        let mut free_from = f64::MIN;
        for tick in self.scale.ticks(5) {
            let (at, text) = (self.place(room, tick), short(tick));
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
    }

    fn row(&self, out: &mut String, room: &Room, row: &ChartRow, top: f64) {
        let spoken: Vec<_> = row.parts.iter().map(|part| short(part.0)).collect();
        let _ = write!(
            out,
            "<g class=\"{}\" data-d=\"{}\"><title>{}: {}</title>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            row.look.classes(),
            row.look.index,
            escape(row.name),
            spoken.join(", "),
            room.left - 8.0,
            top + room.deep / 2.0 + 4.2,
            escape(&cut(row.name, room.left - 8.0))
        );
        let bar = room.bar;
        let mut before = 0.0;
        for (part, (value, text)) in row.parts.iter().enumerate() {
            let value = if value.is_finite() { *value } else { 0.0 };
            let y = if self.stacked { top } else { top + part as f64 * (bar + GAP) };
            let (start, end) = (self.place(room, before), self.place(room, before + value));
            let pale = if part == 0 { "bar" } else { "bar pale" };
            let _ = write!(
                out,
                "<rect class=\"{pale}\" x=\"{start:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{bar}\"/>",
                (end - start).max(0.0)
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
}
