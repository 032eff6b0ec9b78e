//! Machine-readable output of all values in base units: cores and bytes.

use std::fmt::Write;

use serde::Serialize;

use super::row::ContainerRow;
use crate::advise::advice::{AdviceReport, ContainerAdvice, Current, ResourceAdvice, WorkloadsFrom};
use crate::advise::costs::{MonthlyCost, WorkloadCost};
use crate::advise::limits::LimitChange;
use berth_model::PerResource;
use berth_rightsizing::recommend::{Amount, amount};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    prometheus: &'a str,
    at: &'a str,
    history: &'a str,
    strategy: &'a str,
    /// Of all requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    monthly_cost: Option<MonthlyCost>,
    #[serde(skip_serializing_if = "str::is_empty")]
    currency: &'a str,
    workloads_from: WorkloadsFrom,
    notes: &'a [String],
    containers: Vec<ContainerRow<'a>>,
    /// Empty without prices.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    workloads: Vec<WorkloadCost<'a>>,
}

fn document(report: &AdviceReport) -> Document<'_> {
    let AdviceReport { prices, advice, .. } = report;
    let prices = prices.as_ref();
    Document {
        prometheus: &report.source,
        at: &report.at,
        history: &report.history,
        strategy: &report.strategy,
        monthly_cost: prices.map(|prices| prices.of_all(advice)),
        currency: prices.map_or("", |prices| &prices.currency),
        workloads_from: report.workloads_from,
        notes: &report.notes,
        containers: advice
            .iter()
            .map(|each| ContainerRow::new(each, prices.and_then(|prices| prices.of_container(each))))
            .collect(),
        workloads: prices.map(|prices| prices.of_workloads(advice)).unwrap_or_default(),
    }
}

/// # Errors
/// Never for a valid report; the serializer's type allows errors.
pub fn json(report: &AdviceReport) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(&document(report))? + "\n")
}

/// # Errors
/// As [`json`].
pub fn yaml(report: &AdviceReport) -> anyhow::Result<String> {
    Ok(serde_saphyr::to_string(&document(report))?)
}

const COLUMNS: &str = "severity,namespace,kind,workload,guessed,container,pods,podsSeen,\
                       cpuRequest,cpuLimit,cpuTarget,cpuLowerBound,cpuUpperBound,\
                       memoryRequest,memoryLimit,memoryTarget,memoryLowerBound,memoryUpperBound,\
                       cpuSeverity,memorySeverity,days,samples,confidence,\
                       cpuReason,memoryReason,cpuLimitTarget,memoryLimitTarget,monthlyCost,monthlyCostAdvised";

/// Formats a line per container, after a header (RFC 4180, with line feeds). An empty cell is unset, `?` is unknown.
pub fn csv(report: &AdviceReport) -> String {
    let mut text = format!("{COLUMNS}\n");
    for each in &report.advice {
        let names = [&each.namespace, &each.kind, &each.workload].map(|name| cell(name)).join(",");
        let PerResource { cpu, memory } = each.size.as_ref();
        let _ = writeln!(
            text,
            "{},{names},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}",
            each.severity.name(),
            each.guessed,
            cell(&each.container),
            each.pods,
            each.pods_seen,
            amounts(cpu, cores),
            amounts(memory, bytes),
            cpu.severity.name(),
            memory.severity.name(),
            each.days,
            each.samples,
            each.confidence,
            cpu.reason.name(),
            memory.reason.name(),
            limit(cpu, cores),
            limit(memory, bytes),
            costs(report, each),
        );
    }
    text
}

/// Formats the costs now and as advised; empty cells without prices.
fn costs(report: &AdviceReport, advice: &ContainerAdvice) -> String {
    match report.prices.as_ref().map(|prices| prices.of_container(advice)) {
        None => ",".to_owned(),
        Some(None) => "?,?".to_owned(),
        Some(Some(MonthlyCost { current, advised })) => format!("{current},{advised}"),
    }
}

/// Formats what becomes of a limit; an empty cell leaves it as it is.
fn limit(size: &ResourceAdvice, unit: fn(Amount) -> String) -> String {
    match size.limit_change() {
        LimitChange::Keep => String::new(),
        LimitChange::Remove => "none".to_owned(),
        LimitChange::Set(amount) => unit(amount),
    }
}

fn cores(millicores: Amount) -> String {
    amount::cores(millicores).to_string()
}

fn bytes(bytes: Amount) -> String {
    bytes.to_string()
}

fn amounts(size: &ResourceAdvice, unit: fn(Amount) -> String) -> String {
    let current = |current| match current {
        Current::Unknown => "?".to_owned(),
        Current::Unset => String::new(),
        Current::Set(amount) => unit(amount),
    };
    let estimate = |amount: Option<Amount>| amount.map_or("?".to_owned(), unit);
    [
        current(size.request),
        current(size.limit),
        estimate(size.target),
        estimate(size.lower),
        estimate(size.upper),
    ]
    .join(",")
}

/// Quotes a cell if needed. A cell that a spreadsheet would read as a formula gets a leading apostrophe.
fn cell(text: &str) -> String {
    let text = match text.starts_with(['=', '+', '-', '@']) {
        true => format!("'{text}"),
        false => text.to_owned(),
    };
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text,
    }
}
