//! A container's advice in base units: cores and bytes; `null` is unset, `"?"` is unknown. A
//! `limitTarget` of `null` leaves the limit as it is, `"none"` removes it.

use serde::Serialize;

use crate::advise::advice::{ContainerAdvice, Current, ResourceAdvice, Severity};
use crate::advise::costs::MonthlyCost;
use crate::advise::limits::LimitChange;
use berth_rightsizing::recommend::{Amount, amount};

#[derive(Serialize)]
#[serde(untagged)]
enum Figure {
    Cores(f64),
    Bytes(Amount),
    Unset,
    Text(&'static str),
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Sizes {
    severity: Severity,
    request: Figure,
    limit: Figure,
    reason: &'static str,
    target: Figure,
    limit_target: Option<Figure>,
    lower_bound: Figure,
    upper_bound: Figure,
}

/// A container as JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerRow<'a> {
    severity: Severity,
    namespace: &'a str,
    kind: &'a str,
    workload: &'a str,
    guessed: bool,
    container: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    horizontal_pod_autoscaler: Option<&'a str>,
    pods: u32,
    pods_seen: u32,
    days: f64,
    samples: u64,
    confidence: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    monthly_cost: Option<MonthlyCost>,
    cpu: Sizes,
    memory: Sizes,
}

impl<'a> ContainerRow<'a> {
    pub fn new(advice: &'a ContainerAdvice, monthly_cost: Option<MonthlyCost>) -> Self {
        Self {
            severity: advice.severity,
            namespace: &advice.namespace,
            kind: &advice.kind,
            workload: &advice.workload,
            guessed: advice.guessed,
            container: &advice.container,
            horizontal_pod_autoscaler: advice.autoscaler.as_deref(),
            pods: advice.pods,
            pods_seen: advice.pods_seen,
            days: advice.days,
            samples: advice.samples,
            confidence: advice.confidence,
            monthly_cost,
            cpu: sizes(&advice.size.cpu, |amount| Figure::Cores(amount::cores(amount))),
            memory: sizes(&advice.size.memory, Figure::Bytes),
        }
    }
}

fn sizes(size: &ResourceAdvice, figure: fn(Amount) -> Figure) -> Sizes {
    let current = |current| match current {
        Current::Unknown => Figure::Text("?"),
        Current::Unset => Figure::Unset,
        Current::Set(amount) => figure(amount),
    };
    let estimate = |amount: Option<Amount>| amount.map_or(Figure::Text("?"), figure);
    Sizes {
        severity: size.severity,
        request: current(size.request),
        limit: current(size.limit),
        reason: size.reason.name(),
        target: estimate(size.target),
        limit_target: match size.limit_change() {
            LimitChange::Keep => None,
            LimitChange::Remove => Some(Figure::Text("none")),
            LimitChange::Set(amount) => Some(figure(amount)),
        },
        lower_bound: estimate(size.lower),
        upper_bound: estimate(size.upper),
    }
}
