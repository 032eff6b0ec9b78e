//! Advice as values of a Helm chart.

use std::collections::BTreeMap;

use serde::Serialize;

use super::patches::{left_out, named, obstacle};
use crate::advise::advice::{AdviceReport, ContainerAdvice, Current};
use crate::advise::limits::LimitChange;

/// Requests and limits of one container, by name, as in a pod spec.
#[derive(Serialize)]
struct Resources {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    requests: BTreeMap<&'static str, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    limits: BTreeMap<&'static str, String>,
}

type Containers<'a> = BTreeMap<&'a str, Resources>;
/// By kind, then by name.
type Workloads<'a> = BTreeMap<&'a str, BTreeMap<&'a str, Containers<'a>>>;

/// By namespace.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Values<'a> {
    recommended_resources: BTreeMap<&'a str, Workloads<'a>>,
}

const USAGE: &str = "\
# Requests and limits of containers by namespace, kind, workload and container. In the template of a Deployment web, for its container app:
#   resources: {{- dig .Release.Namespace \"Deployment\" \"web\" \"app\" .Values.resources (.Values.recommendedResources | default dict) | toYaml | nindent 12 }}
";

/// Formats all requests and limits of each container with advice, also those that stay: values of a chart replace its resources as a
/// whole.
///
/// # Errors
/// Never for a valid report; the serializer's type allows errors.
pub fn helm(report: &AdviceReport) -> anyhow::Result<String> {
    let mut values = Values { recommended_resources: BTreeMap::new() };
    let mut obstacles = 0;
    for advice in &report.advice {
        let Some(resources) = resources(advice) else { continue };
        if obstacle(advice).is_some() {
            obstacles += 1;
            continue;
        }
        let workloads = values.recommended_resources.entry(&advice.namespace).or_default();
        let containers = workloads.entry(&advice.kind).or_default().entry(&advice.workload).or_default();
        containers.insert(&advice.container, resources);
    }
    Ok(left_out(obstacles) + USAGE + &serde_saphyr::to_string(&values)?)
}

/// Returns all resources as advised, or `None` without any advice.
fn resources(advice: &ContainerAdvice) -> Option<Resources> {
    let mut all = Resources { requests: BTreeMap::new(), limits: BTreeMap::new() };
    for (name, size, unit) in named(advice) {
        let set = |current| match current {
            Current::Set(amount) => Some(amount),
            Current::Unset | Current::Unknown => None,
        };
        let limit = match size.limit_change() {
            LimitChange::Keep => set(size.limit),
            LimitChange::Remove => None,
            LimitChange::Set(limit) => Some(limit),
        };
        all.requests.extend(size.target.or(set(size.request)).map(|request| (name, unit(request))));
        all.limits.extend(limit.map(|limit| (name, unit(limit))));
    }
    let has_advice = advice.size.cpu.target.is_some() || advice.size.memory.target.is_some();
    has_advice.then_some(all)
}
