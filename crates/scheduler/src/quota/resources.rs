//! Resource amounts by name, as listed in quotas and as sums over pods.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use berth_model::{Amounts, Node, Quantity, QuantityError, Usage, exact_bytes};

/// A counted resource; the order is that of reports.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum QuotaResource {
    /// In millicores.
    Cpu,
    /// In bytes.
    Memory,
    /// In bytes.
    EphemeralStorage,
    Pods,
    /// Any other, such as devices and huge pages.
    Extended(Arc<str>),
}

impl QuotaResource {
    pub fn of(name: &str) -> QuotaResource {
        match name {
            "cpu" => QuotaResource::Cpu,
            "memory" => QuotaResource::Memory,
            "ephemeral-storage" => QuotaResource::EphemeralStorage,
            "pods" => QuotaResource::Pods,
            other => QuotaResource::Extended(other.into()),
        }
    }

    pub fn name(&self) -> &str {
        match self {
            QuotaResource::Cpu => "cpu",
            QuotaResource::Memory => "memory",
            QuotaResource::EphemeralStorage => "ephemeral-storage",
            QuotaResource::Pods => "pods",
            QuotaResource::Extended(name) => name,
        }
    }

    /// Parses a quantity of this resource in the unit of accounting.
    ///
    /// # Errors
    /// The text is not a quantity.
    pub fn amount(&self, text: &str) -> Result<i64, QuantityError> {
        let quantity = Quantity::parse(text)?;
        let amount = if *self == QuotaResource::Cpu { quantity.milli_value() } else { quantity.value() };
        // A negative limit counts as zero; the API server rejects it anyway.
        Ok(amount.max(0))
    }

    /// Formats an amount as a Kubernetes quantity.
    pub fn show(&self, amount: i128) -> String {
        match self {
            QuotaResource::Cpu if amount % 1000 == 0 => (amount / 1000).to_string(),
            QuotaResource::Cpu => format!("{amount}m"),
            QuotaResource::Memory | QuotaResource::EphemeralStorage => exact_bytes(amount),
            QuotaResource::Extended(name) if name.starts_with("hugepages-") => exact_bytes(amount),
            QuotaResource::Pods | QuotaResource::Extended(_) => amount.to_string(),
        }
    }

    /// Returns the amount in Prometheus base units: cores, bytes, and counts.
    pub fn base(&self, amount: i128) -> f64 {
        match self {
            QuotaResource::Cpu => amount as f64 / 1000.0,
            _ => amount as f64,
        }
    }
}

/// Amounts by resource, as listed in a quota; may be 0. Sorted, without duplicates.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit(Box<[(QuotaResource, i64)]>);

impl Limit {
    pub fn get(&self, resource: &QuotaResource) -> Option<i64> {
        let at = self.0.binary_search_by(|(known, _)| known.cmp(resource)).ok()?;
        Some(self.0[at].1)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&QuotaResource, i64)> {
        self.0.iter().map(|(resource, amount)| (resource, *amount))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<(QuotaResource, i64)> for Limit {
    fn from_iter<I: IntoIterator<Item = (QuotaResource, i64)>>(pairs: I) -> Self {
        let all: BTreeMap<_, _> = pairs.into_iter().collect();
        Limit(all.into_iter().collect())
    }
}

/// Requests of pods together; no zero amounts. Wide enough that no cluster can saturate a sum.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sums(BTreeMap<QuotaResource, i128>);

impl Sums {
    pub fn get(&self, resource: &QuotaResource) -> i128 {
        self.0.get(resource).copied().unwrap_or(0)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&QuotaResource, i128)> {
        self.0.iter().map(|(resource, amount)| (resource, *amount))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn add(&mut self, other: &Sums) {
        other.iter().for_each(|(resource, amount)| self.change(resource.clone(), amount));
    }

    pub fn sub(&mut self, other: &Sums) {
        other.iter().for_each(|(resource, amount)| self.change(resource.clone(), -amount));
    }

    pub fn charge(&mut self, usage: &Usage) {
        wants(usage).for_each(|(resource, amount)| self.change(resource, amount.into()));
    }

    pub fn discharge(&mut self, usage: &Usage) {
        wants(usage).for_each(|(resource, amount)| self.change(resource, -i128::from(amount)));
    }

    /// Returns the allocatable resources of a node.
    pub fn of_node(node: &Node) -> Sums {
        let mut sums = Sums::default();
        base(&node.allocatable).for_each(|(resource, amount)| sums.change(resource, amount.into()));
        for (name, amount) in node.extended.iter() {
            sums.change(QuotaResource::Extended(name.clone()), amount.into());
        }
        sums
    }

    pub fn change(&mut self, resource: QuotaResource, by: i128) {
        if by == 0 {
            return;
        }
        let sum = self.0.entry(resource.clone()).or_default();
        *sum = sum.saturating_add(by);
        if *sum == 0 {
            self.0.remove(&resource);
        }
    }
}

impl From<&Usage> for Sums {
    fn from(usage: &Usage) -> Self {
        let mut sums = Sums::default();
        sums.charge(usage);
        sums
    }
}

fn base(amounts: &Amounts) -> impl Iterator<Item = (QuotaResource, i64)> {
    [
        (QuotaResource::Cpu, amounts.cpu_milli),
        (QuotaResource::Memory, amounts.memory),
        (QuotaResource::EphemeralStorage, amounts.ephemeral_storage),
        (QuotaResource::Pods, amounts.pods),
    ]
    .into_iter()
}

/// Returns a pod's request for one resource.
pub(super) fn wanted(usage: &Usage, resource: &QuotaResource) -> i64 {
    match resource {
        QuotaResource::Cpu => usage.requests.cpu_milli,
        QuotaResource::Memory => usage.requests.memory,
        QuotaResource::EphemeralStorage => usage.requests.ephemeral_storage,
        QuotaResource::Pods => usage.requests.pods,
        QuotaResource::Extended(name) => usage.extended.get(name),
    }
}

/// Returns a pod's non-zero requests.
pub(super) fn wants(usage: &Usage) -> impl Iterator<Item = (QuotaResource, i64)> {
    let extended =
        usage.extended.iter().map(|(name, amount)| (QuotaResource::Extended(name.clone()), amount));
    base(&usage.requests).chain(extended).filter(|(_, amount)| *amount > 0)
}

/// Formats amounts as "cpu 3, memory 2Gi".
pub(super) fn list(amounts: impl Iterator<Item = (QuotaResource, String)>) -> String {
    let mut text = String::new();
    for (resource, amount) in amounts {
        let comma = if text.is_empty() { "" } else { ", " };
        let _ = write!(text, "{comma}{} {amount}", resource.name());
    }
    text
}
