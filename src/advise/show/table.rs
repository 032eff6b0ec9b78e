//! The table for a terminal.

use std::fmt::Write;

use super::units::{self, cpu, current, cut, memory};
use crate::advise::advice::{AdviceReport, ContainerAdvice, ResourceAdvice, WorkloadsFrom, totals};
use crate::columns;
use berth_rightsizing::recommend::Amount;

const HEADER: [&str; 8] =
    ["SEVERITY", "NAMESPACE", "WORKLOAD", "CONTAINER", "PODS", "CPU REQUEST", "MEMORY REQUEST", "DAYS"];
/// A further column if prices are known.
const COST: &str = "COST/MONTH";
/// Name columns, which are cut if there is no room, and their minimum widths.
const NAMES: [(usize, usize); 3] = [(1, 9), (2, 12), (3, 9)];
/// Left-aligned columns.
const LEFT: [usize; 6] = [0, 1, 2, 3, 5, 6];

/// Formats a line per container, in at most `width` columns unless the numbers alone need more, and a line of totals.
pub fn table(report: &AdviceReport, width: usize) -> String {
    let mut text = String::new();
    for line in about(report) {
        let _ = writeln!(text, "{line}");
    }
    if report.advice.is_empty() {
        return text;
    }
    let mut rows = vec![HEADER.map(str::to_owned).to_vec()];
    rows.extend(report.advice.iter().map(|each| row(each).to_vec()));
    if let Some(prices) = &report.prices {
        let costs = report.advice.iter().map(|each| units::cost(prices.of_container(each), "->"));
        let cells = [COST.to_owned()].into_iter().chain(costs);
        rows.iter_mut().zip(cells).for_each(|(row, cell)| row.push(cell));
    }
    let mut widths = columns::widths(&rows);
    shrink(&mut widths, width);
    for cells in &mut rows {
        cells.iter_mut().zip(&widths).for_each(|(cell, room)| *cell = cut(cell, *room));
    }
    text + "\n" + &columns::table(&rows, &widths, &LEFT)
}

/// Returns the lines above the table.
fn about(report: &AdviceReport) -> Vec<String> {
    let mut lines = vec![format!(
        "{} containers by their usage in the {} before {}, from {}",
        report.advice.len(),
        report.history,
        report.at,
        report.source
    )];
    let totals = totals(&report.advice);
    let total = |what: &str, total: Option<(Amount, Amount)>, unit: fn(Amount) -> String| {
        total.map(|(now, then)| format!("{what} {} -> {}", unit(now), unit(then)))
    };
    let totals: Vec<String> = [total("CPU", totals.cpu, cpu), total("memory", totals.memory, memory)]
        .into_iter()
        .flatten()
        .collect();
    if !totals.is_empty() {
        lines.push(format!("requests of their running pods together: {}", totals.join(", ")));
    }
    if let Some(prices) = &report.prices {
        let cost = units::cost(Some(prices.of_all(&report.advice)), "->");
        lines.push(format!("they cost {} a month", units::money(&cost, &prices.currency)));
    }
    if report.workloads_from == WorkloadsFrom::PodNames {
        lines.push("~ workloads are guessed from pod names: there are no kube-state-metrics".to_owned());
    }
    lines
}

fn row(advice: &ContainerAdvice) -> [String; 8] {
    let guess = if advice.guessed { "~" } else { "" };
    let pair = |size: &ResourceAdvice, unit: fn(Amount) -> String| {
        format!("{} -> {}", current(size.request, unit), units::target(size, unit))
    };
    [
        advice.severity.name().to_owned(),
        advice.namespace.clone(),
        format!("{guess}{}/{}", units::kind(&advice.kind), advice.workload),
        advice.container.clone(),
        advice.pods.to_string(),
        pair(&advice.size.cpu, cpu),
        pair(&advice.size.memory, memory),
        format!("{:.1}", advice.days),
    ]
}

/// Shrinks the widest name column, one character at a time, until the table fits.
fn shrink(widths: &mut [usize], width: usize) {
    let gaps = columns::GAP.len() * widths.len().saturating_sub(1);
    while widths.iter().sum::<usize>() + gaps > width {
        let can_give = NAMES.into_iter().filter(|(column, least)| widths[*column] > *least);
        let Some((column, _)) = can_give.max_by_key(|(column, _)| widths[*column]) else { return };
        widths[column] -= 1;
    }
}
