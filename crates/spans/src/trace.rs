//! A decision as spans.

use std::time::{Duration, SystemTime};

use berth_scheduler::decisions::{ListUse, PlacementDecision};
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

/// Number of spans of a trace, at most.
pub(crate) const SPANS_MAX: u64 = 4;

/// Tells the traces of this process from those of all others.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin(u64);

impl Origin {
    /// Returns the origin of a process that started at this time on this host.
    pub(crate) fn new(started: SystemTime, host: &str) -> Origin {
        let nanos = started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        Origin(host.bytes().fold(mixed(nanos), |hash, byte| mixed(hash ^ u64::from(byte))))
    }

    /// Returns whether the decision of this number is in a sample of so many in a million.
    pub(crate) fn samples(self, number: u64, per_million: u32) -> bool {
        mixed(self.0 ^ number) % 1_000_000 < u64::from(per_million)
    }
}

/// Scatters a number over all values (SplitMix64).
fn mixed(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

/// Returns the spans of a decision, the root first. `number`: of the decision in this process. `placed`: when the pod got its node.
pub(crate) fn spans(
    origin: Origin,
    number: u64,
    decision: &PlacementDecision,
    placed: SystemTime,
) -> Vec<SpanData> {
    let trace = TraceId::from_bytes((u128::from(origin.0) << 64 | u128::from(number + 1)).to_be_bytes());
    let id = |at: u64| SpanId::from_bytes(mixed(origin.0 ^ (number * SPANS_MAX + at)).max(1).to_be_bytes());
    let waited = Duration::from_millis(decision.waited_ms.into());
    let choice = Duration::from_micros(decision.choice_us.into()).min(waited);
    let bind = Duration::from_millis(decision.bind_ms.into());
    let before = |time: Duration| placed.checked_sub(time).unwrap_or(placed);
    let (arrived, chosen_from, bound) = (before(waited), before(choice), placed + bind);
    let parts = [
        ("placement", arrived, bound),
        ("wait", arrived, chosen_from),
        ("choose", chosen_from, placed),
        ("bind", placed, bound),
    ];
    let measured = decision.choice_us > 0;
    let parts = (0..).zip(parts).filter(|(_, (name, ..))| measured || *name != "choose");
    let span = |(at, (name, start_time, end_time)): (u64, (&'static str, SystemTime, SystemTime))| SpanData {
        span_context: SpanContext::new(trace, id(at), TraceFlags::SAMPLED, false, TraceState::default()),
        parent_span_id: if at == 0 { SpanId::INVALID } else { id(0) },
        parent_span_is_remote: false,
        span_kind: SpanKind::Internal,
        name: name.into(),
        start_time,
        end_time,
        attributes: if at == 0 { attributes(decision) } else { Vec::new() },
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: Status::Unset,
        instrumentation_scope: InstrumentationScope::builder("berth").build(),
    };
    parts.map(span).collect()
}

/// The first three are OpenTelemetry's names.
fn attributes(decision: &PlacementDecision) -> Vec<KeyValue> {
    let mut all = vec![
        KeyValue::new("k8s.namespace.name", decision.namespace.to_string()),
        KeyValue::new("k8s.pod.name", decision.name.to_string()),
        KeyValue::new("k8s.node.name", decision.node.to_string()),
        KeyValue::new("berth.class", format!("{:016x}", decision.class)),
        KeyValue::new("berth.attempts", i64::from(decision.attempts)),
        KeyValue::new("berth.conflicts", i64::from(decision.conflicts)),
    ];
    let agent = decision.agent.map(|agent| KeyValue::new("berth.agent", i64::from(agent)));
    let list = decision.list.map(|list| {
        let list = match list {
            ListUse::Hit => "hit",
            ListUse::Miss => "miss",
        };
        KeyValue::new("berth.list", list)
    });
    let circumstances = decision.circumstances.as_ref();
    let gang = circumstances.and_then(|known| known.gang.as_ref());
    let policy = circumstances.and_then(|known| known.policy.as_ref());
    all.extend(agent.into_iter().chain(list));
    all.extend(gang.map(|gang| KeyValue::new("berth.gang", gang.to_string())));
    all.extend(policy.map(|policy| KeyValue::new("berth.policy", policy.to_string())));
    if circumstances.is_some_and(|known| known.nominated) {
        all.push(KeyValue::new("berth.preempted", true));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(waited_ms: u32, choice_us: u32, bind_ms: u32) -> PlacementDecision {
        PlacementDecision { waited_ms, choice_us, bind_ms, ..crate::tests::decision("p") }
    }

    #[test]
    fn the_parts_of_a_placement_follow_each_other_from_the_arrival_to_the_end_of_the_bind() {
        let placed = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
        let origin = Origin::new(placed, "host");
        for (waited_ms, choice_us, bind_ms) in [(50, 200, 7), (0, 900, 0), (3, 0, 4)] {
            let spans = spans(origin, 0, &decision(waited_ms, choice_us, bind_ms), placed);
            let (root, parts) = spans.split_first().expect("a root");
            assert_eq!(root.start_time, placed - Duration::from_millis(waited_ms.into()));
            assert_eq!(root.end_time, placed + Duration::from_millis(bind_ms.into()));
            assert_eq!(
                (parts[0].start_time, parts.last().map(|last| last.end_time)),
                (root.start_time, Some(root.end_time))
            );
            assert!(parts.windows(2).all(|two| two[0].end_time == two[1].start_time), "{parts:?}");
            assert!(parts.iter().all(|part| part.parent_span_id == root.span_context.span_id()));
            assert_eq!(parts.len(), if choice_us > 0 { 3 } else { 2 });
        }
    }

    #[test]
    fn no_two_spans_have_one_id_and_each_decision_has_a_trace_of_its_own() {
        let placed = SystemTime::now();
        let origin = Origin::new(placed, "host");
        let mut ids = std::collections::HashSet::new();
        let mut traces = std::collections::HashSet::new();
        for number in 0..1_000 {
            for span in spans(origin, number, &decision(1, 1, 1), placed) {
                assert!(ids.insert(span.span_context.span_id()) && span.span_context.is_valid());
                traces.insert(span.span_context.trace_id());
            }
        }
        assert_eq!(traces.len(), 1_000);
        let other = Origin::new(placed, "other host");
        assert!(!traces.contains(&spans(other, 0, &decision(1, 1, 1), placed)[0].span_context.trace_id()));
    }

    #[test]
    fn a_sample_has_about_as_many_decisions_as_it_should() {
        let origin = Origin::new(SystemTime::UNIX_EPOCH, "host");
        let count = |per_million| (0..100_000).filter(|number| origin.samples(*number, per_million)).count();
        assert_eq!((count(0), count(1_000_000)), (0, 100_000));
        assert!((900..1_100).contains(&count(10_000)), "{}", count(10_000));
    }
}
