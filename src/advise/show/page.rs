//! A self-contained HTML page, in the style of the simulation's report.

use std::fmt::Write;

use super::graph::graph;
use super::units::{self, cpu, current, estimate, memory};
use crate::advise::advice::{
    AdviceReport, ContainerAdvice, Current, Reason, ResourceAdvice, Severity, WorkloadsFrom, totals,
};
use crate::advise::costs::MonthlyCost;
use crate::advise::limits::LimitChange;
use berth_model::PerResource;
use berth_rightsizing::recommend::Amount;
use berth_simulator::report::{page, text::escape, tile};

/// Renders the page; the same report gives the same bytes.
pub fn page(report: &AdviceReport) -> String {
    const TITLE: &str = "Sizes for containers";
    let mut body =
        format!("<header><p class=\"eyebrow\">berth recommend</p><h1>{TITLE}</h1>{}</header>", lead(report));
    let _ = write!(
        body,
        "<section id=\"containers\"><h2>Containers</h2><p class=\"lead\">Current → recommended requests and limits; below, the \
         bounds within which a request is acceptable. “any” means no bound yet: there is too little data. Graphs have the \
         highest usage of a pod over time, <span class=\"key request\">the request</span> and <span class=\"key advice\">the \
         advice</span>.</p>{}</section>",
        rows(report)
    );
    let mut notes = vec![
        "Severity is the difference between request and target: critical from 500m or 500Mi, warning from 250m or 250Mi or if it is unset, \
         ok from 100m or 100Mi; the worse of CPU and memory."
            .to_owned(),
        format!("Sizes are computed {}.", report.strategy),
    ];
    if report.advice.len() > GRAPHS_MAX {
        notes.push(format!("Only the first {GRAPHS_MAX} containers have graphs."));
    }
    if report.workloads_from == WorkloadsFrom::PodNames {
        notes.push("Workloads are guessed from pod names (~): there are no kube-state-metrics.".to_owned());
    }
    notes.extend(report.notes.iter().cloned());
    let notes: String = notes.iter().map(|note| format!("<li>{}</li>", escape(note))).collect();
    let _ = write!(body, "<section id=\"notes\"><h2>Notes</h2><ul class=\"notes\">{notes}</ul></section>");
    page::wrap(TITLE, &body)
}

fn lead(report: &AdviceReport) -> String {
    let totals = totals(&report.advice);
    let total = |what: &str, total: Option<(Amount, Amount)>, unit: fn(Amount) -> String| {
        total.map_or(String::new(), |(now, then)| {
            tile(&unit(then), what, &format!("{} → {}", unit(now), unit(then)))
        })
    };
    let count = |severity| report.advice.iter().filter(|each| each.severity == severity).count();
    let severe = [Severity::Critical, Severity::Warning]
        .map(|severity| format!("{} {}", count(severity), severity.name()));
    let cost = report.prices.as_ref().map_or(String::new(), |prices| {
        let MonthlyCost { current, advised } = prices.of_all(&report.advice);
        let sum = units::money(&format!("{advised:.2}"), &prices.currency);
        tile(&escape(&sum), "cost of the requests in a month", &format!("{current:.2} → {advised:.2}"))
    });
    format!(
        "<p class=\"lead\">By their usage in the {} before {}, from <b>{}</b>.</p><ul class=\"tiles\">{}{}{}{cost}</ul>",
        escape(&report.history),
        escape(&report.at),
        escape(&report.source),
        tile(&report.advice.len().to_string(), "containers", &severe.join(", ")),
        total("CPU requested by their pods", totals.cpu, cpu),
        total("memory requested by their pods", totals.memory, memory),
    )
}

fn rows(report: &AdviceReport) -> String {
    let cost = |advice| report.prices.as_ref().map(|prices| prices.of_container(advice));
    let rows = report.advice.iter().enumerate();
    let rows: String = rows.map(|(at, advice)| row(advice, at < GRAPHS_MAX, cost(advice))).collect();
    let cost = if report.prices.is_some() { "<th scope=\"col\">Cost in a month</th>" } else { "" };
    format!(
        "<div class=\"scroll sticky\" tabindex=\"0\" role=\"region\" aria-label=\"Containers\"><table><thead><tr>\
         <th scope=\"col\">Workload</th><th scope=\"col\">Container</th><th scope=\"col\">Severity</th>\
         <th scope=\"col\">Pods</th><th scope=\"col\">CPU request</th><th scope=\"col\">CPU limit</th>\
         <th scope=\"col\">Memory request</th><th scope=\"col\">Memory limit</th><th scope=\"col\">Days</th>{cost}\
         </tr></thead><tbody>{rows}</tbody></table></div>"
    )
}

/// Containers with graphs: the most urgent ones.
const GRAPHS_MAX: usize = 300;

/// `cost`: `None` without prices.
fn row(advice: &ContainerAdvice, has_graphs: bool, cost: Option<Option<MonthlyCost>>) -> String {
    let guess = if advice.guessed { "~" } else { "" };
    let name = escape(&format!("{guess}{}/{}", units::kind(&advice.kind), advice.workload));
    let PerResource { cpu: cpu_size, memory: memory_size } = advice.size.as_ref();
    let graphs = match has_graphs {
        true => PerResource {
            cpu: graph(cpu_size, &advice.history.cpu, 1_000.0, "CPU usage over time"),
            memory: graph(memory_size, &advice.history.memory, 1.0, "memory usage over time"),
        },
        false => PerResource::default(),
    };
    format!(
        "<tr><th scope=\"row\"><span class=\"name\" title=\"{name}\">{name}</span><br><small>{}</small></th>\
         <td>{}</td><td><span class=\"dot {}\"></span>{}</td><td>{}</td>{}<td>{}</td>{}<td>{}</td><td>{:.1}</td>{}</tr>",
        escape(&advice.namespace),
        escape(&advice.container),
        colour(advice.severity),
        advice.severity.name(),
        advice.pods,
        size(cpu_size, cpu, &graphs.cpu),
        limit(cpu_size, cpu),
        size(memory_size, memory, &graphs.memory),
        limit(memory_size, memory),
        advice.days,
        cost.map_or(String::new(), |cost| format!("<td>{}</td>", units::cost(cost, "→"))),
    )
}

/// Formats a limit, and what becomes of it.
fn limit(size: &ResourceAdvice, unit: fn(Amount) -> String) -> String {
    let now = current(size.limit, unit);
    match size.limit_change() {
        LimitChange::Remove => format!("{now} → none"),
        LimitChange::Set(amount) if size.limit != Current::Set(amount) => format!("{now} → {}", unit(amount)),
        LimitChange::Keep | LimitChange::Set(_) => now,
    }
}

fn size(size: &ResourceAdvice, unit: fn(Amount) -> String, graph: &str) -> String {
    let better = match size.saved() {
        Some(1..) => " class=\"better\"",
        Some(..=-1) => " class=\"worse\"",
        _ => "",
    };
    let below = match size.reason {
        Reason::Autoscaler => "a HorizontalPodAutoscaler keeps its utilisation".to_owned(),
        Reason::OomKill => "it was killed for want of memory".to_owned(),
        Reason::Minimum => "the minimum".to_owned(),
        Reason::NoUsage => String::new(),
        Reason::Usage if size.lower.is_none() => String::new(),
        Reason::Usage => format!("{} to {}", estimate(size.lower, unit), estimate(size.upper, unit)),
    };
    format!(
        "<td>{} → {}<small{better}>{below}</small>{graph}</td>",
        current(size.request, unit),
        units::target(size, unit),
    )
}

/// Returns the CSS class of the severity's colour.
fn colour(severity: Severity) -> &'static str {
    match severity {
        Severity::Critical => "c2",
        Severity::Warning => "c5",
        Severity::Ok => "c6",
        Severity::Good => "c3",
        Severity::Unknown => "c7",
    }
}
