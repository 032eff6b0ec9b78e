//! What requests cost in a month, by prices.

use std::collections::BTreeMap;
use std::iter::Sum;

use serde::Serialize;

use super::advice::{ContainerAdvice, Current, ResourceAdvice};
use berth_model::PerResource;
use berth_rightsizing::recommend::Amount;

/// Prices of what is requested.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prices {
    /// Of a core for a month.
    pub core: f64,
    /// Of a GiB for a month.
    pub gib: f64,
}

/// Prices by namespace.
#[derive(Debug, Clone, PartialEq)]
pub struct PriceList {
    /// Name of the currency; empty if it is not known.
    pub currency: String,
    pub usual: Prices,
    /// Prices of namespaces that have other ones.
    pub namespaces: BTreeMap<String, Prices>,
}

/// What requests cost in a month: now, and as advised.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct MonthlyCost {
    pub current: f64,
    pub advised: f64,
}

/// What the requests of all containers of a workload cost.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadCost<'a> {
    pub namespace: &'a str,
    pub kind: &'a str,
    pub workload: &'a str,
    pub monthly_cost: MonthlyCost,
}

impl MonthlyCost {
    /// Returns what the advice saves; negative if it costs more.
    pub fn saved(self) -> f64 {
        self.current - self.advised
    }
}

impl Sum for MonthlyCost {
    fn sum<I: Iterator<Item = Self>>(costs: I) -> Self {
        costs.fold(Self::default(), |sum, cost| Self {
            current: sum.current + cost.current,
            advised: sum.advised + cost.advised,
        })
    }
}

impl Prices {
    /// Returns what these requests, in millicores and bytes, cost in a month.
    fn of(self, requests: PerResource<Amount>) -> f64 {
        requests.cpu as f64 / 1_000.0 * self.core + requests.memory as f64 / f64::from(1 << 30) * self.gib
    }
}

impl PriceList {
    /// Returns what the requests of all running pods of a container cost. A request without advice stays; one that is not set costs
    /// nothing now. `None`: neither request is known.
    pub fn of_container(&self, advice: &ContainerAdvice) -> Option<MonthlyCost> {
        let PerResource { cpu, memory } = advice.size.as_ref().map(amounts);
        if cpu.is_none() && memory.is_none() {
            return None;
        }
        let ((cpu_now, cpu_then), (memory_now, memory_then)) =
            (cpu.unwrap_or_default(), memory.unwrap_or_default());
        let prices = self.namespaces.get(&advice.namespace).copied().unwrap_or(self.usual);
        let price = |cpu, memory| prices.of(PerResource { cpu, memory }) * f64::from(advice.pods);
        Some(MonthlyCost { current: price(cpu_now, memory_now), advised: price(cpu_then, memory_then) })
    }

    /// Returns what the requests of all running pods cost.
    pub fn of_all(&self, advice: &[ContainerAdvice]) -> MonthlyCost {
        advice.iter().filter_map(|each| self.of_container(each)).sum()
    }

    /// Returns what each workload costs, those with the largest savings first. Workloads whose requests are unknown are left out.
    pub fn of_workloads<'a>(&self, advice: &'a [ContainerAdvice]) -> Vec<WorkloadCost<'a>> {
        let mut costs: BTreeMap<(&str, &str, &str), Vec<MonthlyCost>> = BTreeMap::new();
        for each in advice {
            if let Some(cost) = self.of_container(each) {
                costs.entry((&each.namespace, &each.kind, &each.workload)).or_default().push(cost);
            }
        }
        let cost = |((namespace, kind, workload), costs): (_, Vec<MonthlyCost>)| WorkloadCost {
            namespace,
            kind,
            workload,
            monthly_cost: costs.into_iter().sum(),
        };
        let mut costs: Vec<_> = costs.into_iter().map(cost).collect();
        // Stable: equal ones stay sorted by name.
        costs.sort_by(|one, other| other.monthly_cost.saved().total_cmp(&one.monthly_cost.saved()));
        costs
    }
}

/// Returns the request now and as advised, or `None` if the request is unknown.
fn amounts(size: &ResourceAdvice) -> Option<(Amount, Amount)> {
    let request = match size.request {
        Current::Set(request) => request,
        Current::Unset => 0,
        Current::Unknown => return None,
    };
    Some((request, size.target.unwrap_or(request)))
}
