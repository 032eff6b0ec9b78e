//! Measurements of Prometheus, in the units of the store.

use super::amount::{self, Amount};
use super::container::Refused;
use super::store::Store;
use super::time::UnixNanos;
use crate::usage::{Sample, UsageKind};

/// When it was measured.
pub fn time(sample: Sample) -> UnixNanos {
    (sample.at * 1e9) as UnixNanos
}

/// Millicores or bytes; `None` for what no usage can be.
pub fn amount(kind: UsageKind, sample: Sample) -> Option<Amount> {
    let unit = match kind {
        UsageKind::Cpu => 1000.0,
        UsageKind::Memory => 1.0,
    };
    amount::is_usage(sample.value).then(|| amount::from_float(sample.value * unit))
}

/// Hands one measurement of a container to the store.
///
/// # Errors
/// It is not counted.
pub fn feed(
    store: &mut Store,
    kind: UsageKind,
    pod: &str,
    container: &str,
    sample: Sample,
    now: UnixNanos,
) -> Result<(), Refused> {
    let (amount, time) = (amount(kind, sample).ok_or(Refused::Negative)?, time(sample));
    match kind {
        UsageKind::Cpu => store.add_cpu(pod, container, amount, time, now),
        UsageKind::Memory => store.add_memory(pod, container, amount, time, now),
    }
}
