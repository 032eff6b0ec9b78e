//! Hostile inputs.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::history::{ObservedSpan, ObservedSpans};
use super::super::horizontal::{Controller, Worst};
use super::super::shares::{LoadShares, Ready};
use super::super::vertical::{Peak, Peaks};
use super::super::*;
use berth_model::PerResource;

fn number() -> impl Strategy<Value = f64> {
    prop_oneof![
        4 => 0.0..3_000.0_f64,
        1 => prop::num::f64::ANY,
        1 => Just(f64::NAN),
        1 => 0.0..1e15_f64,
    ]
}

fn time() -> impl Strategy<Value = i64> {
    prop_oneof![8 => -400_i64..100, 1 => any::<i64>()]
}

fn amount() -> impl Strategy<Value = i64> {
    prop_oneof![4 => 0_i64..4_000, 2 => 0_i64..(8 << 30), 1 => any::<i64>()]
}

fn points() -> impl Strategy<Value = Vec<Point>> {
    prop::collection::vec((time(), number()).prop_map(|(time_s, value)| Point { time_s, value }), 0..30)
}

prop_compose! {
    fn container()(
        name in "[ab]",
        cpu_milli in amount(),
        memory_bytes in amount(),
        cpu in points(),
        memory in points(),
        (oom_kills, unheard) in (0_u32..3, 0_u32..5),
    ) -> Container {
        let size = Size { cpu_milli, memory_bytes };
        let unheard = PerResource { cpu: unheard, memory: unheard };
        Container { name, size, cpu, memory, oom_kills, unheard, ..Container::default() }
    }
}

prop_compose! {
    fn observation()(
        replicas in prop_oneof![0_u32..40, any::<u32>()],
        ready in prop_oneof![0_u32..40, any::<u32>()],
        containers in prop::collection::vec(container(), 0..3),
        signal in prop::option::of((time(), number())),
        success in prop::option::of((time(), number())),
        frozen in prop::option::weighted(0.1, Just("an HPA".to_owned())),
        (busy, has_no_room) in any::<(Option<bool>, bool)>(),
        largest_memory in prop::option::of(amount()),
        partly_unknown in prop::option::weighted(0.1, Just("1 of 2".to_owned())),
    ) -> Observation {
        let measured = |(time_s, value)| Point { time_s, value };
        let (signal, success) = (signal.map(measured), success.map(measured));
        Observation {
            replicas,
            ready,
            containers,
            has_no_room,
            largest_memory,
            signal,
            partly_unknown,
            busy,
            success,
            frozen,
        }
    }
}

prop_compose! {
    fn horizontal()(
        setpoint in number(),
        gains in (number(), number(), number()),
        (dead_band, step, urgent_at, urgent_step) in (number(), number(), number(), number()),
        steepness in number(),
        (min_replicas, replicas_first) in (0_u32..30, 0_u32..5),
        max_replicas in prop_oneof![0_u32..30, any::<u32>()],
        (every_s, hold_s, stale_s) in (time(), time(), time()),
        (success_min, is_proportional) in (number(), any::<bool>()),
        (by_hand_s, (to_zero, awake), fallback) in (time(), any::<(bool, bool)>(), prop::option::of((any::<u32>(), time()))),
    ) -> Horizontal {
        let rule = if is_proportional { ReplicaRule::Proportional } else { ReplicaRule::Pid };
        let gains = Gains { proportional: gains.0, integral: gains.1, derivative: gains.2 };
        Horizontal {
            setpoint, rule, replicas_first, gains, dead_band, step, min_replicas, max_replicas, every_s, hold_s, stale_s, success_min,
            urgent_at, urgent_step, steepness, by_hand_s, to_zero, awake,
            fallback: fallback.map(|(replicas, after_s)| Fallback { replicas, after_s }),
        }
    }
}

prop_compose! {
    fn vertical()(
        (cpu, memory) in any::<(bool, bool)>(),
        (window_s, every_s, stale_s, peak_hours) in (time(), time(), time(), time()),
        (sigmas, change, throttled_at, oom_bump_ratio) in (number(), number(), number(), number()),
        points_min in 0_usize..30,
        bounds in (amount(), amount(), amount(), amount()),
        (cpu_cap_milli, oom_min_bump, memory_room) in (amount(), amount(), number()),
        (spare_min, hold_s, history_s) in (number(), time(), time()),
    ) -> Vertical {
        Vertical {
            cpu, memory, window_s, every_s, history_s, sigmas, change, points_min, stale_s,
            cpu_bounds: Bounds { min: bounds.0, max: bounds.1 },
            memory_bounds: Bounds { min: bounds.2, max: bounds.3 },
            cpu_cap_milli, throttled_at, oom_bump_ratio, oom_min_bump, memory_room, peak_hours, spare_min, hold_s,
        }
    }
}

prop_compose! {
    fn settings()(
        sane in any::<bool>(),
        vertical in vertical(),
        horizontal in prop::option::weighted(0.9, horizontal()),
    ) -> ScalingSettings {
        if sane {
            let horizontal = Horizontal { setpoint: 100.0, min_replicas: 2, max_replicas: 30, ..Horizontal::default() };
            return ScalingSettings { horizontal: Some(horizontal), ..ScalingSettings::default() };
        }
        ScalingSettings { vertical, horizontal, ..ScalingSettings::default() }
    }
}

prop_compose! {
    fn memory()(
        replicas in prop::option::of(any::<u32>()),
        times in (prop::option::of(time()), prop::option::of(time()), prop::option::of(time())),
        (integral, error, worst) in (number(), prop::option::of(number()), number()),
        peaks in prop::collection::vec((amount(), amount()), 0..60),
        ready in prop::collection::vec((time(), any::<u32>()), 0..60),
        (since_s, until_s) in (time(), time()),
        memory_capped in any::<bool>(),
    ) -> ScalerMemory {
        let list: Vec<_> = peaks.into_iter().map(|(hour, bytes)| Peak { hour: hour % 100, bytes }).collect();
        let peaks: Peaks = serde_json::from_value(serde_json::to_value(list).unwrap()).unwrap();
        let ready: Vec<_> = ready.into_iter().map(|(since_s, pods)| Ready { since_s, unsure_s: until_s, pods }).collect();
        let shares: LoadShares = serde_json::from_value(serde_json::to_value(ready).unwrap()).unwrap();
        let span = serde_json::json!({"sinceS": since_s, "untilS": until_s});
        let span: ObservedSpan = serde_json::from_value(span).unwrap();
        ScalerMemory {
            replicas,
            shares,
            sized_s: times.0,
            scaled_s: times.1,
            grown_s: times.2,
            need: Worst { value: worst, time_s: times.0 },
            controller: Controller { integral, error, worst: Worst { value: worst, time_s: times.1 } },
            memory_capped,
            peaks: BTreeMap::from([("a".to_owned(), peaks)]),
            observed: BTreeMap::from([("a".to_owned(), ObservedSpans { cpu: span, memory: span })]),
            signal_observed: span,
            given: replicas,
            by_hand_s: times.1,
            deaf_s: times.2,
            idle_s: times.0,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn replicas_and_sizes_stay_within_their_bounds(
        settings in settings(),
        mut memory in memory(),
        seen in prop::collection::vec((observation(), 0_i64..300), 1..6),
        start in prop_oneof![Just(0_i64), 0_i64..10_000, any::<i64>()],
    ) {
        let mut again = memory.clone();
        let mut now = start;
        for (seen, later) in seen {
            now = now.saturating_add(later);
            let decision = decide(&settings, &mut memory, &seen, now);
            prop_assert_eq!(&decision, &decide(&settings, &mut again, &seen, now));
            let _ = serde_json::to_string(&memory).unwrap();
            prop_assert!(memory.peaks.values().all(|peaks| peaks.len() <= 49));
            prop_assert!(memory.shares.len() <= 32);
            prop_assert!(!decision.reason.contains('\n'));
            match &settings.horizontal {
                // The last replica may go, and the first one come, where there may be none.
                Some(horizontal)
                    if horizontal.to_zero
                        && seen.frozen.is_none()
                        && seen.replicas <= 1
                        && decision.replicas == 0 =>
                {
                    prop_assert!(seen.busy != Some(true));
                }
                Some(horizontal) if (seen.replicas > 0 || horizontal.to_zero) && seen.frozen.is_none() => {
                    prop_assert_eq!(horizontal.clamp(decision.replicas), decision.replicas);
                    prop_assert!(decision.replicas > 0);
                }
                _ => prop_assert_eq!(decision.replicas, seen.replicas),
            }
            prop_assert_eq!(decision.replicas_changed, decision.replicas != seen.replicas);
            prop_assert_eq!(decision.sizes.len(), seen.containers.len());
            if seen.replicas == 0 {
                continue;
            }
            let vertical = &settings.vertical;
            for (_, size) in &decision.sizes {
                if vertical.memory && size.memory_bytes > 0 {
                    prop_assert_eq!(vertical.memory_bounds.clamp(size.memory_bytes), size.memory_bytes);
                }
                if vertical.cpu && size.cpu_milli > 0 && seen.frozen.is_none() {
                    prop_assert_eq!(vertical.cpu_bounds.clamp(size.cpu_milli), size.cpu_milli);
                }
            }
        }
    }
}
