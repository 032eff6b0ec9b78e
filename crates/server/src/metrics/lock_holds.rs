//! How long the engine's lock is held, by operation.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use berth_kube_io::Throttle;
use berth_scheduler::engine::Operation;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// Holds longer than this are logged: meanwhile no agent gets a task, and no watch event is handled.
const LONG_HOLD: Duration = Duration::from_millis(20);

/// Clones share their values.
#[derive(Clone)]
pub struct LockHolds {
    held: Family<OperationLabel, Histogram, fn() -> Histogram>,
    longest: Arc<[Longest; Operation::ALL.len()]>,
}

/// Longest hold of one operation, in nanoseconds.
#[derive(Default)]
struct Longest {
    ns: AtomicU64,
    warnings: Throttle,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OperationLabel {
    operation: &'static str,
}

impl Default for LockHolds {
    fn default() -> Self {
        let held = || Histogram::new(exponential_buckets(1e-6, 2.0, 24));
        LockHolds { held: Family::new_with_constructor(held), longest: Arc::default() }
    }
}

impl LockHolds {
    pub fn observe(&self, operation: Operation, held: Duration) {
        let label = OperationLabel { operation: operation.name() };
        self.held.get_or_create(&label).observe(held.as_secs_f64());
        let longest = &self.longest[operation as usize];
        longest.ns.fetch_max(held.as_nanos().try_into().unwrap_or(u64::MAX), Relaxed);
        if held >= LONG_HOLD && longest.warnings.is_due() {
            tracing::warn!(
                operation = operation.name(),
                held_ms = held.as_millis() as u64,
                "an operation stopped all decisions for long; if this repeats, please report it with the size of the cluster"
            );
        }
    }

    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "berth_engine_lock_hold_seconds",
            "Time for which one operation held the engine's lock",
            self.held.clone(),
        );
    }

    pub fn encode(&self, to: &mut DescriptorEncoder) -> std::fmt::Result {
        let kind = ConstGauge::new(0f64).metric_type();
        let help = "Longest time for which an operation has held the engine's lock";
        let mut family = to.encode_descriptor("berth_engine_lock_hold_longest_seconds", help, None, kind)?;
        for (operation, longest) in Operation::ALL.iter().zip(self.longest.iter()) {
            let seconds = longest.ns.load(Relaxed) as f64 / 1e9;
            ConstGauge::new(seconds).encode(family.encode_family(&[("operation", operation.name())])?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_hold_of_each_operation_stays_and_every_hold_counts() {
        let holds = LockHolds::default();
        holds.observe(Operation::Tick, Duration::from_millis(30));
        holds.observe(Operation::Tick, Duration::from_millis(10));
        holds.observe(Operation::Task, Duration::from_micros(3));
        let longest = |operation: Operation| holds.longest[operation as usize].ns.load(Relaxed);
        assert_eq!(longest(Operation::Tick), 30_000_000);
        assert_eq!(longest(Operation::Task), 3_000);
        assert_eq!(longest(Operation::Bind), 0);
        let mut registry = Registry::default();
        holds.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        assert!(text.contains(r#"berth_engine_lock_hold_seconds_count{operation="tick"} 2"#), "{text}");
    }

    #[test]
    fn operations_are_in_the_order_of_their_numbers() {
        for (at, operation) in Operation::ALL.into_iter().enumerate() {
            assert_eq!(operation as usize, at);
        }
    }
}
