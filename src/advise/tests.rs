//! Advice on a made-up cluster, and its output. Golden files hold the full text, so that a change shows up in the
//! diff.

mod collecting;
mod costs;
mod limits;
mod messages;
mod owners;
mod recordings;
mod rendering;

use std::collections::BTreeMap;

use super::advice::{
    AdviceReport, ContainerAdvice, Current, Reason, ResourceAdvice, Severity, WorkloadsFrom,
};
use super::costs::{PriceList, Prices};
use super::limits::LimitRule;
use berth_model::PerResource;
use berth_rightsizing::recommend::Amount;

const MI: Amount = 1 << 20;

fn size(request: Current, target: Option<Amount>) -> ResourceAdvice {
    ResourceAdvice {
        severity: Severity::Unknown,
        request,
        limit: Current::Unset,
        limit_rule: LimitRule::Proportional,
        reason: if target.is_some() { Reason::Usage } else { Reason::NoUsage },
        target,
        lower: target.map(|target| target / 2),
        upper: target.map(|target| target * 2),
    }
}

/// A container of Deployment `shop/web` with this name and sizes, in millicores and bytes, and two running pods.
fn advice(
    container: &str,
    cpu: (Current, Option<Amount>),
    memory: (Current, Option<Amount>),
) -> ContainerAdvice {
    ContainerAdvice {
        severity: Severity::Unknown,
        namespace: "shop".into(),
        kind: "Deployment".into(),
        workload: "web".into(),
        guessed: false,
        container: container.into(),
        pods: 2,
        pods_seen: 5,
        size: PerResource { cpu: size(cpu.0, cpu.1), memory: size(memory.0, memory.1) },
        autoscaler: None,
        history: PerResource::default(),
        days: 7.5,
        samples: 181,
        confidence: 0.125,
    }
    .judged()
}

/// A core for 20 and a GiB for 2.5 a month.
fn prices() -> PriceList {
    PriceList { currency: "EUR".into(), usual: Prices { core: 20.0, gib: 2.5 }, namespaces: BTreeMap::new() }
}

fn report(advice: Vec<ContainerAdvice>) -> AdviceReport {
    AdviceReport {
        source: "http://prometheus:9090".into(),
        strategy: "as a test says".into(),
        prices: Some(prices()),
        at: "2026-01-31T12:00:00Z".into(),
        history: "8 days".into(),
        workloads_from: WorkloadsFrom::KubeStateMetrics,
        advice,
        notes: vec!["2 containers that do not run any more are left out".into()],
    }
}
