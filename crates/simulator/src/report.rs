//! Simulation report: one self-contained HTML page that works without network and scripts.
//!
//! Plots are drawn here, as SVG; the page's small script only adds values under the pointer and switches that hide
//! dispatchers. The same report gives the same bytes.

mod bars;
pub(super) mod cast;
pub(super) mod lines;
pub(super) mod numbers;
pub mod page;
pub(super) mod plots;
pub(super) mod scale;
pub(super) mod tables;
pub mod text;

use std::fmt::Write;

use super::figures::{DispatchFigures, DispatchReport};
use cast::Cast;
use numbers::{change, number, percent, points};
use text::escape;

/// Renders the page. Sections without data are omitted.
pub fn render(report: &DispatchReport) -> String {
    let cast = Cast::of(report);
    let mut body = String::new();
    let _ = write!(
        body,
        "<header><p class=\"eyebrow\">berth simulate</p><h1>{}</h1>{}</header>",
        escape(&report.title),
        headline(report, &cast)
    );
    if !report.outcomes.is_empty() {
        section(
            &mut body,
            "dispatchers",
            "All dispatchers",
            "Latency is from a request’s arrival to the commit of its placement.",
            &tables::dispatchers(report, &cast),
        );
        section(
            &mut body,
            "plots",
            "Latency, caches and bursts",
            "Each dispatcher has the same colour and line style in all plots.",
            &format!("<div class=\"grid\">{}</div>", plots::of_outcomes(report, &cast)),
        );
    }
    let sweeps = plots::of_sweeps(report, &cast);
    if !sweeps.is_empty() {
        section(
            &mut body,
            "sensitivity",
            "Sensitivity",
            "The same workload with one parameter varied.",
            &format!("<div class=\"grid\">{sweeps}</div>"),
        );
    }
    if let Some(table) = tables::estimators(report, &cast) {
        section(
            &mut body,
            "estimators",
            "Accuracy of the estimates",
            "For dispatchers that predict a request’s cache hits.",
            &table,
        );
    }
    if !report.compared.is_empty() {
        let table = tables::compared(&report.compared);
        section(&mut body, "paper", "Comparison with the paper", "Kamino (OSDI ’25) and this run.", &table);
    }
    let setup = tables::setup(&report.setup, &report.notes, &report.command);
    section(&mut body, "setup", "Setup", "", &setup);
    page::wrap(&report.title, &body)
}

pub(super) fn section(body: &mut String, id: &str, title: &str, lead: &str, content: &str) {
    let lead = if lead.is_empty() { String::new() } else { format!("<p class=\"lead\">{lead}</p>") };
    let _ = write!(body, "<section id=\"{id}\"><h2>{title}</h2>{lead}{content}</section>");
}

/// Renders the key figures: the fastest dispatcher against the first.
fn headline(report: &DispatchReport, cast: &Cast) -> String {
    let Some(base) = report.outcomes.first().map(|outcome| &outcome.figures) else {
        return "<p class=\"lead\">No dispatcher was simulated.</p>".to_owned();
    };
    let Some(hero) = cast.hero.map(|at| &report.outcomes[at].figures) else {
        let tile = |value: String, what: &str| tile(&value, what, "");
        return format!(
            "<p class=\"lead\"><b>{}</b>, alone.</p><ul class=\"tiles\">{}{}{}</ul>",
            escape(&base.dispatcher),
            tile(number(base.avg_ms) + "\u{a0}ms", "average latency"),
            tile(number(base.p90_ms) + "\u{a0}ms", "90th percentile of latency"),
            tile(percent(base.top_hit), "top-level cache hits")
        );
    };
    let from_to = |of: fn(&DispatchFigures) -> String| format!("{} → {}", of(base), of(hero));
    let large = |change: Option<String>, value: String| change.unwrap_or(value);
    let tiles = [
        tile(
            &large(change(hero.avg_ms, base.avg_ms), number(hero.avg_ms)),
            "average latency",
            &from_to(|of| number(of.avg_ms) + "\u{a0}ms"),
        ),
        tile(
            &large(change(hero.p90_ms, base.p90_ms), number(hero.p90_ms)),
            "90th percentile of latency",
            &from_to(|of| number(of.p90_ms) + "\u{a0}ms"),
        ),
        tile(
            &large(points(hero.top_hit, base.top_hit), percent(hero.top_hit)),
            "top-level cache hits",
            &from_to(|of| percent(of.top_hit)),
        ),
    ];
    let [name, against] = [hero, base].map(|figures| format!("<b>{}</b>", escape(&figures.dispatcher)));
    let lead = match report.outcomes.len() {
        2 => format!("{name} against {against}:"),
        count if hero.avg_ms < base.avg_ms => {
            format!("{name} has the lowest average latency of {count} dispatchers. Against {against}:")
        }
        _ => {
            format!("No dispatcher has a lower average latency than {against}. The next, {name}, against it:")
        }
    };
    format!("<p class=\"lead\">{lead}</p><ul class=\"tiles\">{}</ul>", tiles.concat())
}

pub fn tile(value: &str, what: &str, detail: &str) -> String {
    format!(
        "<li><span class=\"value\">{value}</span><span class=\"what\">{what}</span><span class=\"detail\">{detail}</span></li>"
    )
}

#[cfg(test)]
mod tests;
