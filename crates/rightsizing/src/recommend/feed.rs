//! Conversion of Prometheus samples to the units of the store.

use super::amount::{self, Amount};
use super::container::Refused;
use super::store::{Store, check_clock};
use super::time::UnixNanos;
use crate::usage::{Sample, UsageKind};

/// Returns the time of a sample.
pub fn time(sample: Sample) -> UnixNanos {
    (sample.at * 1e9) as UnixNanos
}

/// Returns millicores or bytes, or `None` if the value is not a valid usage.
pub fn amount(kind: UsageKind, sample: Sample) -> Option<Amount> {
    let unit = match kind {
        UsageKind::Cpu => 1000.0,
        UsageKind::Memory => 1.0,
    };
    amount::is_usage(sample.value).then(|| amount::from_float(sample.value * unit))
}

/// Adds the samples of one container to the store, in their order. `taken` receives the result for each sample.
pub fn feed(
    store: &mut Store,
    kind: UsageKind,
    (pod, container): (&str, &str),
    samples: &[Sample],
    now: UnixNanos,
    mut taken: impl FnMut(Sample, Result<(), Refused>),
) {
    let read = |sample: &Sample| {
        let time = time(*sample);
        check_clock(time, now)?;
        amount(kind, *sample).map(|amount| (amount, time)).ok_or(Refused::Negative)
    };
    // A container without usage gets no aggregate.
    if !samples.iter().any(|sample| read(sample).is_ok()) {
        samples.iter().for_each(|sample| taken(*sample, read(sample).map(drop)));
        return;
    }
    let mut container = store.container(pod, container, now);
    for sample in samples {
        let outcome = match (read(sample), &mut container) {
            (Err(refused), _) => Err(refused),
            (_, Err(refused)) => Err(*refused),
            (Ok((amount, time)), Ok(container)) => match kind {
                UsageKind::Cpu => container.add_cpu(amount, time),
                UsageKind::Memory => container.add_memory(amount, time),
            },
        };
        taken(*sample, outcome);
    }
}
