//! Wrong clocks, and missing or invalid measurements.

use super::*;
use berth_model::PerResource;

#[test]
fn a_signal_that_nobody_can_have_measured_changes_nothing() {
    for value in [-1.0, -1e-9, f64::NEG_INFINITY, f64::INFINITY, f64::NAN, 1e9, 1e300] {
        let mut bench = Bench::new(4, 1_000, 500);
        bench.uses(&[950.0], &[460.0]);
        bench.signal(value);
        let decision = bench.decide();
        assert!(!decision.replicas_changed && !decision.sizes_changed, "{value}: {}", decision.reason);
        assert!(decision.reason.contains("signal is invalid"), "{value}: {}", decision.reason);
    }
}

#[test]
fn shares_that_are_none_are_no_failure() {
    for value in [-0.5, f64::NAN, 7.0, f64::NEG_INFINITY] {
        let mut bench = Bench::new(4, 1_000, 500);
        bench.uses(&[950.0], &[460.0]);
        bench.signal(9.9);
        bench.seen.success = Some(Point { time_s: START, value });
        assert_eq!(bench.decide().replicas, 4, "{value}");
    }
}

#[test]
fn without_samples_no_size_changes_and_it_goes_on_when_they_come_back() {
    let mut bench = Bench::new(2, 400, 600);
    bench.signal(10.0);
    bench.uses(&[380.0], &[500.0]);
    bench.decide();
    let held = bench.size();
    for _ in 0..200 {
        bench.wait(60);
        bench.seen.containers[0].cpu.clear();
        bench.seen.containers[0].memory.clear();
        bench.seen.signal = None;
        let decision = bench.decide();
        assert_eq!((decision.replicas, bench.size()), (2, held), "{}", decision.reason);
        assert!(
            decision.reason.contains("memory of app stays") && decision.reason.contains("cpu of app stays")
        );
    }
    bench.signal(10.0);
    bench.uses(&[380.0], &[900.0]);
    bench.decide();
    assert!(bench.size().memory_bytes > 900 * MI, "{:?}", bench.size());
}

#[test]
fn series_that_never_move_are_a_measure_like_others() {
    let mut bench = Bench::new(3, 1_000, 600);
    let mut seen = Vec::new();
    for _ in 0..120 {
        bench.signal(10.0);
        bench.uses(&[900.0], &[500.0]);
        let decision = bench.decide();
        assert!(!decision.reason.contains("NaN"), "{}", decision.reason);
        seen.push((decision.replicas, bench.size()));
        bench.wait(60);
    }
    seen.dedup();
    assert!(seen.len() <= 2, "{seen:?}");
}

#[test]
fn a_clock_that_is_set_back_lets_nothing_shrink_sooner_and_stops_nothing() {
    for back in [5, 120, 3_600, 90 * 86_400] {
        let mut bench = Bench::new(10, 1_000, 500);
        bench.signal(16.0);
        bench.uses(&[950.0], &[460.0]);
        assert_eq!(bench.decide().replicas, 11);
        bench.wait(60 - back);
        for _ in 0..4 {
            bench.wait(60);
            bench.signal(1.0);
            bench.uses(&[300.0], &[460.0]);
            let decision = bench.decide();
            assert_eq!(decision.replicas, 11, "{back} s back: {}", decision.reason);
        }
        let minutes = (1..10).find(|_| {
            bench.wait(60);
            bench.signal(16.0);
            bench.uses(&[950.0], &[460.0]);
            bench.decide().replicas > 11
        });
        assert!(minutes.is_some(), "{back} s back");
    }
}

#[test]
fn a_clock_that_jumps_ahead_and_comes_back_forgets_no_peak() {
    let mut bench = Bench::new(2, 200, 560);
    bench.signal(10.0);
    bench.uses(&[190.0], &[500.0]);
    bench.decide();
    // The samples keep their correct times.
    bench.now += 40 * 3_600;
    let decision = bench.decide();
    assert!(!decision.sizes_changed, "{}", decision.reason);
    bench.now -= 39 * 3_600;
    bench.signal(10.0);
    bench.uses(&[190.0], &[200.0]);
    bench.decide();
    assert_eq!(bench.size().memory_bytes, 560 * MI);
    // A leader whose clock is slightly behind.
    bench.now = START + 24 * 3_600 - START % 3_600;
    bench.signal(10.0);
    bench.uses(&[190.0], &[700.0]);
    bench.decide();
    let learnt = bench.size().memory_bytes;
    assert!(learnt >= 700 * MI);
    bench.now -= 30;
    for _ in 0..3 {
        bench.signal(10.0);
        bench.uses(&[190.0], &[200.0]);
        bench.decide();
        assert_eq!(bench.size().memory_bytes, learnt);
        bench.wait(60);
    }
}

#[test]
fn nothing_shrinks_while_some_pods_are_not_heard() {
    let ask = |unheard: u32, replicas: u32| {
        let mut bench = Bench::new(replicas, 1_000, 2_000);
        bench.signal(1.0);
        bench.uses(&[100.0], &[300.0]);
        bench.seen.containers[0].unheard = PerResource { cpu: unheard, memory: unheard };
        let decision = bench.decide();
        (
            decision.replicas,
            bench.size() == Size { cpu_milli: 1_000, memory_bytes: 2_000 * MI },
            decision.reason,
        )
    };
    let (replicas, same, reason) = ask(2, 10);
    assert!(replicas == 10 && same, "{reason}");
    assert!(reason.contains("no recent samples of 2 of 10 ready pods"), "{reason}");
    let (_, same, reason) = ask(1, 10);
    assert!(!same, "one of ten may be new: {reason}");
    let mut bench = Bench::new(4, 500, 300);
    bench.signal(30.0);
    bench.uses(&[490.0], &[320.0]);
    bench.seen.containers[0].unheard = PerResource { cpu: 3, memory: 3 };
    bench.decide();
    assert!(bench.size().cpu_milli > 500 && bench.size().memory_bytes > 320 * MI, "more is given");
}

#[test]
fn a_low_signal_removes_no_replica_while_the_usage_of_sized_cpu_is_unknown() {
    let ask = |is_sized: bool, age_s: i64| {
        let mut bench = Bench::new(5, 500, 500);
        bench.settings.vertical.cpu = is_sized;
        bench.uses(&[100.0], &[300.0]);
        bench.wait(age_s);
        bench.signal(1.0);
        bench.decide()
    };
    let decision = ask(true, 400);
    assert_eq!(decision.replicas, 5, "{}", decision.reason);
    assert!(decision.reason.contains("replicas stay: cpu of app: "), "{}", decision.reason);
    assert_eq!(ask(true, 0).replicas, 4);
    assert_eq!(ask(false, 400).replicas, 4, "only the signal counts");
}

/// A new leader knows a minute of usage at first, in which a spike may just have ended.
#[test]
fn nothing_shrinks_by_the_samples_of_a_minute() {
    let decide = |cpu_milli: i64, newest: usize| {
        let mut bench = Bench::new(5, cpu_milli, 500);
        bench.uses(&[100.0], &[300.0]);
        bench.seen.containers[0].cpu.truncate(newest);
        bench.signal(1.0);
        bench.decide()
    };
    let short = decide(500, 6);
    assert_eq!(short.replicas, 5, "{}", short.reason);
    assert!(short.reason.contains("the samples cover 75 s, of at least 200 s"), "{}", short.reason);
    assert_eq!(decide(500, 14).replicas, 5);
    assert_eq!(decide(500, 15).replicas, 4);

    let alone = |newest: usize| {
        let mut bench = Bench::alone(900, 900);
        bench.uses(&[100.0], &[300.0]);
        bench.seen.containers[0].cpu.truncate(newest);
        bench.decide();
        bench.size().cpu_milli
    };
    assert_eq!((alone(14), alone(15)), (900, 128));
}

#[test]
fn whoever_sets_replicas_outside_of_the_bounds_gets_them_back_and_never_none() {
    for (set, expected) in [(1, 2), (50, 20), (2, 2), (20, 20)] {
        let mut bench = Bench::new(4, 1_000, 500);
        bench.decide();
        bench.seen.replicas = set;
        bench.wait(15);
        // Nothing is known here, and the decision needs no samples.
        let decision = bench.decide();
        assert_eq!(decision.replicas, expected, "{}", decision.reason);
        if set != 4 {
            assert!(decision.reason.contains("by another client"), "{}", decision.reason);
        }
    }
}
