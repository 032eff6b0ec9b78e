//! Tables, and the lists at the end of the page.

use std::fmt::Write;

use super::super::figures::{Compared, DispatchFigures, DispatchReport};
use super::cast::Cast;
use super::numbers::{NONE, change, count, number, percent, points};
use super::text::escape;

/// Direction in which a figure improves.
#[derive(Clone, Copy, PartialEq)]
enum Better {
    Lower,
    Higher,
    /// Neither, or other columns show it already.
    Neither,
}

/// One column: header, value, text of a cell, and its difference from the first dispatcher's.
struct Column {
    head: &'static str,
    value: fn(&DispatchFigures) -> f64,
    text: fn(f64) -> String,
    differs: fn(f64, f64) -> Option<String>,
    better: Better,
}

fn never(_: f64, _: f64) -> Option<String> {
    None
}

const COLUMNS: [Column; 13] = [
    Column {
        head: "average<br>ms",
        value: |of| of.avg_ms,
        text: number,
        differs: change,
        better: Better::Lower,
    },
    Column { head: "p50<br>ms", value: |of| of.p50_ms, text: number, differs: change, better: Better::Lower },
    Column { head: "p90<br>ms", value: |of| of.p90_ms, text: number, differs: change, better: Better::Lower },
    Column { head: "p99<br>ms", value: |of| of.p99_ms, text: number, differs: change, better: Better::Lower },
    Column {
        head: "in queue<br>ms",
        value: |of| of.queue_ms,
        text: number,
        differs: change,
        better: Better::Lower,
    },
    Column {
        head: "processing<br>ms",
        value: |of| of.processing_ms,
        text: number,
        differs: change,
        better: Better::Lower,
    },
    Column {
        head: "top-level<br>hits",
        value: |of| of.top_hit,
        text: percent,
        differs: points,
        better: Better::Higher,
    },
    Column {
        head: "rule-level<br>hits",
        value: |of| of.rule_hit,
        text: percent,
        differs: points,
        better: Better::Neither,
    },
    Column {
        head: "memory<br>MiB",
        value: |of| of.memory_mib,
        text: number,
        differs: change,
        better: Better::Lower,
    },
    Column {
        head: "burst<br>placed/s",
        value: |of| of.throughput_burst,
        text: number,
        differs: change,
        better: Better::Higher,
    },
    Column {
        head: "conflicts",
        value: |of| of.conflicts as f64,
        text: count,
        differs: never,
        better: Better::Neither,
    },
    Column {
        head: "placed",
        value: |of| of.placed as f64,
        text: count,
        differs: never,
        better: Better::Neither,
    },
    Column {
        head: "not placed",
        value: |of| of.unplaced as f64,
        text: count,
        differs: never,
        better: Better::Neither,
    },
];

/// Renders all figures of all dispatchers, with differences from the first.
pub fn dispatchers(report: &DispatchReport, cast: &Cast) -> String {
    let heads: String =
        COLUMNS.iter().map(|column| format!("<th scope=\"col\">{}</th>", column.head)).collect();
    let mut out = format!(
        "<div class=\"scroll sticky\" tabindex=\"0\" role=\"region\" aria-label=\"All dispatchers\"><table><thead><tr>\
         <th scope=\"col\">Dispatcher</th>{heads}</tr></thead><tbody>"
    );
    let base = report.outcomes.first().map(|outcome| &outcome.figures);
    for (at, outcome) in report.outcomes.iter().enumerate() {
        let figures = &outcome.figures;
        out.push_str(&row_head(figures, cast, Some(at) == cast.hero));
        for column in &COLUMNS {
            let value = (column.value)(figures);
            let base = base.filter(|_| at > 0).map(column.value);
            let note = base.and_then(|base| differs(column, value, base)).unwrap_or_default();
            let _ = write!(out, "<td>{}{note}</td>", (column.text)(value));
        }
        out.push_str("</tr>");
    }
    out + "</tbody></table></div>"
}

fn differs(column: &Column, value: f64, base: f64) -> Option<String> {
    let text = (column.differs)(value, base)?;
    let good = match column.better {
        _ if text.starts_with('±') => None,
        Better::Lower => Some(value < base),
        Better::Higher => Some(value > base),
        Better::Neither => None,
    };
    let class = match good {
        Some(true) => " class=\"better\"",
        Some(false) => " class=\"worse\"",
        None => "",
    };
    Some(format!("<small{class}>{text}</small>"))
}

fn row_head(figures: &DispatchFigures, cast: &Cast, hero: bool) -> String {
    let class = if hero { " class=\"hero\"" } else { "" };
    let name = escape(&figures.dispatcher);
    format!(
        "<tr{class}><th scope=\"row\"><span class=\"dot {}\"></span>\
         <span class=\"name\" title=\"{name}\">{name}</span></th>",
        cast.look(figures).classes(),
    )
}

/// Renders the dispatchers that estimate; `None` if none does.
pub fn estimators(report: &DispatchReport, cast: &Cast) -> Option<String> {
    let cells =
        |of: &DispatchFigures| [of.prediction_accuracy, of.time_error, of.best_agent, of.best_agent_gap];
    let rows = report.outcomes.iter().enumerate().map(|(at, outcome)| (at, &outcome.figures));
    let rows: String = rows
        .filter(|(_, figures)| cells(figures).iter().any(Option::is_some))
        .map(|(at, figures)| {
            let text = |cell: Option<f64>| format!("<td>{}</td>", cell.map_or(NONE.to_owned(), percent));
            row_head(figures, cast, Some(at) == cast.hero) + &cells(figures).map(text).concat() + "</tr>"
        })
        .collect();
    (!rows.is_empty()).then(|| {
        format!(
            "<div class=\"scroll sticky\" tabindex=\"0\" role=\"region\" aria-label=\"Estimator quality\"><table>\
             <thead><tr><th scope=\"col\">Dispatcher</th>\
             <th scope=\"col\">hits and misses<br>predicted</th><th scope=\"col\">error of<br>processing time</th>\
             <th scope=\"col\">went to the<br>best agent</th><th scope=\"col\">extra latency<br>at other agents</th></tr></thead>\
             <tbody>{rows}</tbody></table></div>"
        )
    })
}

/// Replaces hyphens by the minus sign that the page's own figures use.
fn typeset(text: &str) -> String {
    let number = text.strip_prefix('-').filter(|rest| rest.starts_with(|first: char| first.is_ascii_digit()));
    number.map_or(text.to_owned(), |rest| format!("−{rest}"))
}

pub fn compared(all: &[Compared]) -> String {
    let row = |each: &Compared| {
        format!(
            "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td></tr>",
            escape(each.what),
            escape(&typeset(each.paper)),
            escape(&typeset(&each.ours))
        )
    };
    let rows: String = all.iter().map(row).collect();
    format!(
        "<div class=\"scroll words\"><table><thead><tr><th scope=\"col\">Figure</th><th scope=\"col\">Paper</th>\
         <th scope=\"col\">This run</th></tr></thead><tbody>{rows}</tbody></table></div>"
    )
}

/// Renders setup, notes and command.
pub fn setup(rows: &[(&str, String)], notes: &[String], command: &str) -> String {
    let mut out = String::new();
    if !rows.is_empty() {
        let row = |(label, value): &(&str, String)| {
            format!("<div><dt>{}</dt><dd>{}</dd></div>", escape(label), escape(value))
        };
        let _ = write!(out, "<dl>{}</dl>", rows.iter().map(row).collect::<String>());
    }
    if !notes.is_empty() {
        let notes: String = notes.iter().map(|note| format!("<li>{}</li>", escape(note))).collect();
        let _ = write!(out, "<ul class=\"notes\">{notes}</ul>");
    }
    if !command.is_empty() {
        let _ = write!(out, "<pre tabindex=\"0\"><code>{}</code></pre>", escape(command));
    }
    out
}
