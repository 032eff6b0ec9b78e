//! Values by rightsized resource.

use serde::{Deserialize, Serialize};

/// One value per rightsized resource.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PerResource<T> {
    pub cpu: T,
    pub memory: T,
}

impl<T> PerResource<T> {
    /// Applies the same function to both.
    pub fn map<U>(self, mut f: impl FnMut(T) -> U) -> PerResource<U> {
        PerResource { cpu: f(self.cpu), memory: f(self.memory) }
    }

    pub fn as_ref(&self) -> PerResource<&T> {
        PerResource { cpu: &self.cpu, memory: &self.memory }
    }

    pub fn zip<U>(self, other: PerResource<U>) -> PerResource<(T, U)> {
        PerResource { cpu: (self.cpu, other.cpu), memory: (self.memory, other.memory) }
    }
}

/// Capacity of a node for pods, or requests of pods: millicores and bytes.
pub type NodeSize = PerResource<i64>;
