//! Resource amounts by name, as listed in quotas and as sums over pods.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use berth_model::{Amounts, Quantity, QuantityError, Usage};

/// A counted resource; the order is that of reports.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Resource {
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

impl Resource {
    pub fn of(name: &str) -> Resource {
        match name {
            "cpu" => Resource::Cpu,
            "memory" => Resource::Memory,
            "ephemeral-storage" => Resource::EphemeralStorage,
            "pods" => Resource::Pods,
            other => Resource::Extended(other.into()),
        }
    }

    pub fn name(&self) -> &str {
        match self {
            Resource::Cpu => "cpu",
            Resource::Memory => "memory",
            Resource::EphemeralStorage => "ephemeral-storage",
            Resource::Pods => "pods",
            Resource::Extended(name) => name,
        }
    }

    /// Parses a quantity of this resource in the unit of accounting.
    ///
    /// # Errors
    /// The text is not a quantity.
    pub fn amount(&self, text: &str) -> Result<i64, QuantityError> {
        let quantity = Quantity::parse(text)?;
        let amount = if *self == Resource::Cpu { quantity.milli_value() } else { quantity.value() };
        // A negative limit counts as zero; the API server rejects it anyway.
        Ok(amount.max(0))
    }

    /// Formats an amount as a Kubernetes quantity.
    pub fn show(&self, amount: i128) -> String {
        match self {
            Resource::Cpu if amount % 1000 == 0 => (amount / 1000).to_string(),
            Resource::Cpu => format!("{amount}m"),
            Resource::Memory | Resource::EphemeralStorage => bytes(amount),
            Resource::Extended(name) if name.starts_with("hugepages-") => bytes(amount),
            Resource::Pods | Resource::Extended(_) => amount.to_string(),
        }
    }

    /// Returns the amount in Prometheus base units: cores, bytes, and counts.
    pub fn base(&self, amount: i128) -> f64 {
        match self {
            Resource::Cpu => amount as f64 / 1000.0,
            _ => amount as f64,
        }
    }
}

fn bytes(amount: i128) -> String {
    const UNITS: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let (mut amount, mut unit) = (amount, "");
    for name in UNITS {
        if amount == 0 || amount % 1024 != 0 {
            break;
        }
        (amount, unit) = (amount / 1024, name);
    }
    format!("{amount}{unit}")
}

/// Amounts by resource, as listed in a quota; may be 0. Sorted, without duplicates.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limit(Box<[(Resource, i64)]>);

impl Limit {
    pub fn get(&self, resource: &Resource) -> Option<i64> {
        let at = self.0.binary_search_by(|(known, _)| known.cmp(resource)).ok()?;
        Some(self.0[at].1)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Resource, i64)> {
        self.0.iter().map(|(resource, amount)| (resource, *amount))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<(Resource, i64)> for Limit {
    fn from_iter<I: IntoIterator<Item = (Resource, i64)>>(pairs: I) -> Self {
        let all: BTreeMap<_, _> = pairs.into_iter().collect();
        Limit(all.into_iter().collect())
    }
}

/// Requests of pods together; no zero amounts. Wide enough that no cluster can saturate a sum.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sums(BTreeMap<Resource, i128>);

impl Sums {
    pub fn get(&self, resource: &Resource) -> i128 {
        self.0.get(resource).copied().unwrap_or(0)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Resource, i128)> {
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

    /// Adds allocatable amounts of a node.
    pub fn add_amounts(&mut self, amounts: &Amounts) {
        base(amounts).for_each(|(resource, amount)| self.change(resource, amount.into()));
    }

    pub fn change(&mut self, resource: Resource, by: i128) {
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

fn base(amounts: &Amounts) -> impl Iterator<Item = (Resource, i64)> {
    [
        (Resource::Cpu, amounts.cpu_milli),
        (Resource::Memory, amounts.memory),
        (Resource::EphemeralStorage, amounts.ephemeral_storage),
        (Resource::Pods, amounts.pods),
    ]
    .into_iter()
}

/// Returns a pod's request for one resource.
pub(super) fn wanted(usage: &Usage, resource: &Resource) -> i64 {
    match resource {
        Resource::Cpu => usage.requests.cpu_milli,
        Resource::Memory => usage.requests.memory,
        Resource::EphemeralStorage => usage.requests.ephemeral_storage,
        Resource::Pods => usage.requests.pods,
        Resource::Extended(name) => usage.extended.get(name),
    }
}

/// Returns a pod's non-zero requests.
pub(super) fn wants(usage: &Usage) -> impl Iterator<Item = (Resource, i64)> {
    let extended = usage.extended.iter().map(|(name, amount)| (Resource::Extended(name.clone()), amount));
    base(&usage.requests).chain(extended).filter(|(_, amount)| *amount > 0)
}

/// Formats amounts as "cpu 3, memory 2Gi".
pub(super) fn list(amounts: impl Iterator<Item = (Resource, String)>) -> String {
    let mut text = String::new();
    for (resource, amount) in amounts {
        let comma = if text.is_empty() { "" } else { ", " };
        let _ = write!(text, "{comma}{} {amount}", resource.name());
    }
    text
}
