//! Values by rightsized resource.

/// One value for each resource that is rightsized.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PerResource<T> {
    pub cpu: T,
    pub memory: T,
}

impl<T> PerResource<T> {
    /// The same question for both.
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

/// Millicores and bytes that a node has for pods, or that pods ask for.
pub type NodeSize = PerResource<i64>;
