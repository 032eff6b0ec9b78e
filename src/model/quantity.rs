//! Kubernetes quantities, parsed exactly as upstream does (`k8s.io/apimachinery/pkg/api/resource`).

/// An amount in billionths (upstream's finest scale), never more than `i64::MAX` units.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Quantity {
    nano: i128,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct QuantityError(String);

impl Quantity {
    pub fn nano(self) -> i128 {
        self.nano
    }
}
