//! Resource amounts as the scheduler counts them: integers in fixed units, rounded up once per pod.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::HostPort;

/// The resources of every node, in the units of kube-scheduler. Sums saturate: no object of the cluster can
/// make the arithmetic wrap.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Amounts {
    /// Millicores.
    pub cpu_milli: i64,
    /// Bytes.
    pub memory: i64,
    /// Bytes.
    pub ephemeral_storage: i64,
    /// Pods.
    pub pods: i64,
}

impl Amounts {
    pub fn add(&mut self, other: &Amounts) {
        self.cpu_milli = self.cpu_milli.saturating_add(other.cpu_milli);
        self.memory = self.memory.saturating_add(other.memory);
        self.ephemeral_storage = self.ephemeral_storage.saturating_add(other.ephemeral_storage);
        self.pods = self.pods.saturating_add(other.pods);
    }

    pub fn sub(&mut self, other: &Amounts) {
        self.cpu_milli = self.cpu_milli.saturating_sub(other.cpu_milli);
        self.memory = self.memory.saturating_sub(other.memory);
        self.ephemeral_storage = self.ephemeral_storage.saturating_sub(other.ephemeral_storage);
        self.pods = self.pods.saturating_sub(other.pods);
    }
}

/// Resources beyond [`Amounts`]: extended resources, huge pages, attachable volumes. Sorted by name, no zero
/// amounts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Extended(#[serde(deserialize_with = "crate::sorted::deserialize")] Vec<(Arc<str>, i64)>);

impl Extended {
    /// Returns the amount of `name`; 0 if absent.
    pub fn get(&self, name: &str) -> i64 {
        match self.0.binary_search_by(|(n, _)| (**n).cmp(name)) {
            Ok(at) => self.0[at].1,
            Err(_) => 0,
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, i64)> {
        self.0.iter().map(|(n, v)| (n, *v))
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds `amount` (may be negative) of `name`; entries that become zero are removed.
    pub fn add(&mut self, name: &Arc<str>, amount: i64) {
        match self.0.binary_search_by(|(n, _)| n.cmp(name)) {
            Ok(at) => {
                self.0[at].1 = self.0[at].1.saturating_add(amount);
                if self.0[at].1 == 0 {
                    self.0.remove(at);
                }
            }
            Err(at) if amount != 0 => self.0.insert(at, (name.clone(), amount)),
            Err(_) => {}
        }
    }
}

impl FromIterator<(Arc<str>, i64)> for Extended {
    fn from_iter<I: IntoIterator<Item = (Arc<str>, i64)>>(pairs: I) -> Self {
        let mut all = Extended::default();
        for (name, amount) in pairs {
            all.add(&name, amount);
        }
        all
    }
}

/// Resource usage of one pod on its node. Pods made from one template share one `Usage` behind an `Arc`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Usage {
    /// Effective requests; `pods` is 1.
    pub requests: Amounts,
    pub extended: Extended,
    /// CPU for spreading and packing scores: 100 milli for a container without a request.
    pub nonzero_cpu_milli: i64,
    /// Memory for spreading and packing scores: 200 MiB for a container without a request.
    pub nonzero_memory: i64,
    /// Sorted.
    pub ports: Box<[HostPort]>,
}
