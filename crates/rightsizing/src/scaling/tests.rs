mod faults;
mod horizontal;
mod hostile;
mod vertical;

use super::*;
use crate::scaling::coordinate::ScalerMemory;

const MI: i64 = 1 << 20;
const START: i64 = 1_700_000_000;

/// A workload of one container, and a clock.
struct Bench {
    settings: ScalingSettings,
    memory: ScalerMemory,
    seen: Observation,
    now: i64,
}

impl Bench {
    fn new(replicas: u32, cpu_milli: i64, memory_mi: i64) -> Self {
        let horizontal =
            Horizontal { setpoint: 10.0, min_replicas: 2, max_replicas: 20, ..Horizontal::default() };
        let size = Size { cpu_milli, memory_bytes: memory_mi * MI };
        let app = Container { name: "app".into(), size, ..Container::default() };
        Self {
            settings: ScalingSettings {
                vertical: Vertical { history_s: 0, ..Vertical::default() },
                horizontal: Some(horizontal),
                ..ScalingSettings::default()
            },
            memory: ScalerMemory::default(),
            seen: Observation { replicas, ready: replicas, containers: vec![app], ..Observation::default() },
            now: START,
        }
    }

    /// Without a horizontal half.
    fn alone(cpu_milli: i64, memory_mi: i64) -> Self {
        let mut bench = Self::new(2, cpu_milli, memory_mi);
        bench.settings.horizontal = None;
        bench
    }

    /// Fills the window with these samples in turn, the newest now.
    fn uses(&mut self, cpu: &[f64], memory_mi: &[f64]) {
        let points = |values: &[f64], unit: f64| -> Vec<Point> {
            let value = |at: i64| values[at as usize % values.len()] * unit;
            (0..20).map(|at| Point { time_s: self.now - at * 15, value: value(at) }).collect()
        };
        let (cpu, memory) = (points(cpu, 1.0), points(memory_mi, MI as f64));
        self.seen.containers[0].cpu = cpu;
        self.seen.containers[0].memory = memory;
    }

    fn signal(&mut self, value: f64) {
        self.seen.signal = Some(Point { time_s: self.now, value });
    }

    /// Decides, and applies the decision.
    fn decide(&mut self) -> Decision {
        let decision = decide(&self.settings, &mut self.memory, &self.seen, self.now);
        self.seen.replicas = decision.replicas;
        self.seen.ready = decision.replicas;
        self.seen.containers[0].size = decision.sizes[0].1;
        self.seen.containers[0].oom_kills = 0;
        decision
    }

    /// Lets a quiet hour pass.
    fn wait(&mut self, seconds: i64) {
        self.now += seconds;
    }

    fn size(&self) -> Size {
        self.seen.containers[0].size
    }
}

#[test]
fn a_size_is_the_mean_and_three_deviations_of_the_window() {
    let mut bench = Bench::alone(900, 900);
    // Population deviation of 300, 340 in turn: 20.
    bench.uses(&[300.0, 340.0], &[300.0, 340.0]);
    let decision = bench.decide();
    assert_eq!(bench.size().cpu_milli, 380, "{}", decision.reason);
    assert_eq!(bench.size().memory_bytes / MI, 436, "and some room");
    assert!(decision.sizes_changed && decision.reason.contains("900m -> 380m"), "{}", decision.reason);
    assert!(!decision.reason.contains('\n'));
}

#[test]
fn on_first_contact_a_size_grows_at_once_and_shrinks_only_after_a_day_of_usage() {
    let mut bench = Bench::new(5, 900, 900);
    bench.settings.vertical = Vertical::default();
    let quiet = |bench: &mut Bench| {
        bench.uses(&[300.0], &[300.0]);
        bench.signal(5.0);
        bench.decide()
    };
    for minute in 0..24 * 60 {
        let decision = quiet(&mut bench);
        assert_eq!(bench.size(), Size { cpu_milli: 900, memory_bytes: 900 * MI }, "{}", decision.reason);
        if minute == 10 {
            assert!(decision.reason.contains("after 86400 s"), "{}", decision.reason);
        }
        bench.wait(60);
    }
    quiet(&mut bench);
    assert_eq!(bench.size().memory_bytes / MI, 345, "the peak of the day and some room");

    let mut busy = Bench::new(5, 300, 300);
    busy.settings.vertical = Vertical::default();
    busy.uses(&[600.0], &[600.0]);
    busy.signal(20.0);
    busy.decide();
    assert!(busy.size().cpu_milli > 300 && busy.size().memory_bytes > 600 * MI, "{:?}", busy.size());
}

#[test]
fn on_first_contact_replicas_are_added_at_once_and_removed_only_after_a_day_of_usage() {
    let mut bench = Bench::new(10, 500, 500);
    bench.settings.vertical = Vertical { cpu: false, memory: false, ..Vertical::default() };
    let quiet = |bench: &mut Bench| {
        bench.uses(&[50.0], &[300.0]);
        bench.signal(1.0);
        bench.decide()
    };
    for minute in 0..24 * 60 {
        let decision = quiet(&mut bench);
        assert_eq!(decision.replicas, 10, "{}", decision.reason);
        if minute == 10 {
            assert!(decision.reason.contains("replicas are removed after 86400 s"), "{}", decision.reason);
        }
        bench.wait(60);
    }
    assert_eq!(quiet(&mut bench).replicas, 9);
}

#[test]
fn replicas_that_were_added_since_the_first_contact_may_go_at_once() {
    let mut bench = Bench::new(10, 500, 500);
    bench.settings.vertical = Vertical { cpu: false, memory: false, ..Vertical::default() };
    let minute = |bench: &mut Bench, signal: f64| {
        bench.wait(60);
        bench.uses(&[250.0], &[300.0]);
        bench.signal(signal);
        bench.decide().replicas
    };
    assert!(minute(&mut bench, 10.0) == 10 && minute(&mut bench, 40.0) == 15);
    let lowest = (0..240).map(|_| minute(&mut bench, 1.0)).min();
    assert_eq!(lowest, Some(10));
    // What somebody else has set is given, too.
    (bench.seen.replicas, bench.seen.ready) = (7, 7);
    minute(&mut bench, 10.0);
    assert_eq!((0..240).map(|_| minute(&mut bench, 1.0)).min(), Some(7));
}

#[test]
fn with_a_day_of_history_the_first_decision_shrinks_and_keeps_the_peak_of_that_day() {
    let past = |hours: i64, killed: bool| PastUsage {
        cpu: (0..=hours).map(|hour| START - hour * 3_600).collect(),
        memory: (0..=hours)
            .map(|hour| (START - hour * 3_600, if hour == 9 { 600 } else { 200 } * MI))
            .collect(),
        killed,
    };
    let first = |past: PastUsage| {
        let mut bench = Bench::new(10, 900, 1_500);
        bench.settings.vertical = Vertical::default();
        bench.memory.learn("app", &past, &bench.settings.vertical, START);
        bench.uses(&[50.0], &[200.0]);
        bench.signal(1.0);
        let decision = bench.decide();
        (bench.size(), decision)
    };
    let (size, decision) = first(past(24, false));
    assert_eq!(size.memory_bytes / MI, 690, "the peak nine hours ago and 15 %: {}", decision.reason);
    assert_eq!(decision.replicas, 9, "{}", decision.reason);
    let (size, _) = first(past(24, true));
    assert_eq!((size.memory_bytes + MI / 2) / MI, 828, "it was killed: a fifth more");
    let (size, decision) = first(past(23, false));
    assert_eq!((size.cpu_milli, size.memory_bytes / MI), (900, 1_500), "{}", decision.reason);
    assert_eq!(decision.replicas, 10, "{}", decision.reason);
}

#[test]
fn without_any_signal_there_are_the_replicas_of_the_fallback_after_its_time() {
    let mut bench = Bench::new(4, 500, 500);
    if let Some(horizontal) = &mut bench.settings.horizontal {
        horizontal.fallback = Some(Fallback { replicas: 7, after_s: 120 });
    }
    bench.uses(&[300.0], &[300.0]);
    bench.signal(9.9);
    assert_eq!(bench.decide().replicas, 4);
    bench.seen.signal = None;
    for _ in 0..8 {
        bench.wait(15);
        assert_eq!(bench.decide().replicas, 4);
    }
    bench.wait(15);
    let decision = bench.decide();
    assert_eq!(decision.replicas, 7, "{}", decision.reason);
    assert!(decision.reason.contains("no signal for"), "{}", decision.reason);
    // It never removes any.
    (bench.seen.replicas, bench.memory.replicas) = (9, Some(9));
    bench.wait(15);
    assert_eq!(bench.decide().replicas, 9);
}

#[test]
fn what_somebody_else_has_set_stays_for_a_while_unless_a_signal_is_urgent() {
    let set_by_hand = |signal: f64| {
        let mut bench = Bench::new(10, 1_000, 500);
        bench.uses(&[900.0], &[300.0]);
        bench.signal(10.0);
        bench.decide();
        bench.seen.replicas = 4;
        bench.wait(15);
        bench.signal(signal);
        let at_once = bench.decide();
        let mut after = 0;
        while bench.seen.replicas == 4 && after < 900 {
            bench.wait(15);
            after += 15;
            bench.uses(&[900.0], &[300.0]);
            bench.signal(signal);
            bench.decide();
        }
        (at_once.replicas, after)
    };
    let (at_once, after) = set_by_hand(15.0);
    assert!(at_once == 4 && (300..=375).contains(&after), "after {after} s");
    assert!(set_by_hand(40.0).0 > 4);
}

#[test]
fn where_nodes_have_no_room_for_a_larger_size_replicas_are_added_at_once() {
    let mut bench = Bench::new(4, 500, 500);
    bench.uses(&[450.0], &[300.0]);
    bench.signal(20.0);
    let mut crowded = Bench::new(4, 500, 500);
    crowded.uses(&[450.0], &[300.0]);
    crowded.signal(20.0);
    crowded.seen.has_no_room = true;
    assert!(bench.decide().replicas == 4 && bench.size().cpu_milli > 500);
    assert_eq!(crowded.decide().replicas, 5);
}

#[test]
fn small_differences_change_nothing() {
    for current in [440, 340] {
        let mut bench = Bench::new(2, current, 400);
        bench.signal(10.0);
        bench.uses(&[380.0], &[370.0]);
        let decision = bench.decide();
        assert!(!decision.sizes_changed, "{current}: {}", decision.reason);
    }
}

#[test]
fn nothing_is_sized_below_the_floors() {
    let mut bench = Bench::alone(500, 500);
    bench.uses(&[1.0], &[1.0]);
    bench.decide();
    assert_eq!(bench.size(), Size { cpu_milli: 128, memory_bytes: 128 * MI });
}

#[test]
fn samples_that_say_nothing_leave_the_size_as_it_is() {
    type Spoil = fn(&mut Bench);
    let cases: [(&str, Spoil); 4] = [
        ("required samples", |bench| bench.seen.containers[0].cpu.truncate(3)),
        ("newest sample is", |bench| {
            bench.seen.containers[0].cpu.iter_mut().for_each(|point| point.time_s -= 150);
        }),
        ("are invalid", |bench| {
            bench.seen.containers[0].cpu.iter_mut().for_each(|point| point.value = f64::NAN);
        }),
        ("are invalid", |bench| {
            bench.seen.containers[0].cpu.iter_mut().for_each(|point| point.value = -1.0);
        }),
    ];
    for (says, spoil) in cases {
        let mut bench = Bench::new(2, 500, 500);
        bench.signal(1.0);
        bench.uses(&[100.0], &[500.0]);
        spoil(&mut bench);
        let decision = bench.decide();
        assert!(decision.reason.contains(says), "{}", decision.reason);
        assert_eq!(bench.size().cpu_milli, 500);
    }
}

#[test]
fn a_few_absurd_samples_do_not_count() {
    let mut bench = Bench::alone(900, 500);
    bench.uses(&[300.0], &[500.0]);
    for (at, value) in [f64::NAN, f64::INFINITY, -5.0, 1e300].into_iter().enumerate() {
        bench.seen.containers[0].cpu[at + 1].value = value;
    }
    bench.decide();
    assert_eq!(bench.size().cpu_milli, 316);
}

#[test]
fn constant_usage_is_no_throttling_after_a_shrink_so_that_cpu_does_not_come_back() {
    let mut bench = Bench::alone(900, 500);
    let mut sizes = Vec::new();
    for _ in 0..48 {
        bench.uses(&[300.0], &[500.0]);
        bench.decide();
        sizes.push(bench.size().cpu_milli);
        bench.wait(1_800);
    }
    sizes.dedup();
    assert_eq!(sizes, [316]);
}

#[test]
fn more_than_the_cap_becomes_replicas() {
    let mut bench = Bench::new(10, 900, 500);
    bench.signal(10.0);
    bench.uses(&[800.0, 1_000.0], &[500.0]);
    // Not throttled: the limit may be above the request.
    bench.settings.vertical.throttled_at = 2.0;
    let decision = bench.decide();
    assert_eq!((bench.size().cpu_milli, decision.replicas), (900, 11), "{}", decision.reason);
    assert!(decision.reason.contains("more than 1000m"), "{}", decision.reason);
}

#[test]
fn memory_stays_above_the_peak_of_the_day_and_shrinks_after_it() {
    let mut bench = Bench::new(2, 200, 560);
    bench.signal(10.0);
    bench.uses(&[190.0], &[500.0]);
    bench.decide();
    for _ in 0..23 {
        bench.wait(3_600);
        bench.signal(10.0);
        bench.uses(&[190.0], &[200.0]);
        bench.decide();
        assert_eq!(bench.size().memory_bytes, 560 * MI);
    }
    bench.wait(7_200);
    bench.signal(10.0);
    bench.uses(&[190.0], &[200.0]);
    bench.decide();
    assert_eq!(bench.size().memory_bytes / MI, 229);
}

#[test]
fn kills_without_end_give_no_more_than_the_largest_node_has() {
    let mut bench = Bench::alone(500, 400);
    let sidecar = Size { cpu_milli: 100, memory_bytes: 100 * MI };
    bench.seen.containers.push(Container { name: "proxy".into(), size: sidecar, ..Container::default() });
    bench.seen.largest_memory = Some(2_000 * MI);
    let mut sizes = Vec::new();
    for _ in 0..40 {
        // It uses what it gets.
        let size = (bench.size().memory_bytes / MI) as f64;
        bench.uses(&[300.0], &[size]);
        bench.seen.containers[0].oom_kills = 1;
        bench.decide();
        bench.seen.containers[1].size = sidecar;
        sizes.push(bench.size().memory_bytes / MI);
        bench.wait(15);
    }
    assert!(sizes.is_sorted() && sizes[1] > 600, "{sizes:?}");
    assert_eq!(sizes.last(), Some(&1_900), "beside the sidecar");
    let decision = bench.decide();
    assert!(decision.reason.contains("no node that its pods may run on has more"), "{}", decision.reason);
    // A larger node comes: it grows on.
    bench.seen.largest_memory = Some(8_000 * MI);
    bench.seen.containers[0].oom_kills = 1;
    bench.decide();
    assert!(bench.size().memory_bytes > 1_900 * MI && !bench.memory.memory_capped);
    // Nor does a smaller one take anything away.
    let before = bench.size();
    bench.seen.largest_memory = Some(1_000 * MI);
    bench.seen.containers[0].oom_kills = 1;
    bench.decide();
    assert_eq!(bench.size(), before);
}

#[test]
fn a_kill_for_want_of_memory_gives_more_at_once_and_for_a_day() {
    let mut bench = Bench::new(2, 200, 200);
    bench.settings.vertical.memory_room = 0.0;
    bench.signal(10.0);
    bench.uses(&[190.0], &[190.0]);
    bench.decide();
    bench.wait(15);
    bench.seen.containers[0].oom_kills = 1;
    bench.uses(&[190.0], &[190.0]);
    bench.decide();
    assert_eq!(bench.size().memory_bytes, 300 * MI, "100 MiB more than 200");
    bench.wait(3_600);
    bench.seen.containers[0].oom_kills = 1;
    bench.uses(&[190.0], &[1_000.0]);
    bench.decide();
    assert_eq!(bench.size().memory_bytes, 1_200 * MI, "a fifth more than was used");
    bench.wait(3_600);
    bench.uses(&[190.0], &[190.0]);
    bench.decide();
    assert_eq!(bench.size().memory_bytes, 1_200 * MI);
}

#[test]
fn replicas_do_not_answer_a_kill() {
    let mut bench = Bench::new(3, 1_000, 200);
    bench.uses(&[900.0], &[190.0]);
    bench.signal(10.0);
    bench.seen.success = Some(Point { time_s: START, value: 0.5 });
    bench.seen.containers[0].oom_kills = 2;
    assert_eq!(bench.decide().replicas, 3);
    bench.wait(60);
    bench.seen.success = Some(Point { time_s: bench.now, value: 0.5 });
    let decision = bench.decide();
    assert_eq!(decision.replicas, 4, "{}", decision.reason);
}

#[test]
fn saturation_is_answered_by_size_up_to_the_cap_and_then_by_replicas() {
    let mut bench = Bench::new(10, 600, 500);
    let mut sizes = Vec::new();
    for _ in 0..6 {
        bench.signal(15.0);
        let used = bench.size().cpu_milli as f64 * 0.9;
        bench.uses(&[used], &[460.0]);
        bench.decide();
        sizes.push((bench.size().cpu_milli, bench.seen.replicas));
        bench.wait(60);
    }
    assert_eq!(sizes, [(696, 10), (807, 10), (936, 10), (1_000, 10), (1_000, 11), (1_000, 12)]);
}

#[test]
fn what_is_far_beyond_the_setpoint_grows_fast_and_at_once() {
    let mut bench = Bench::new(10, 1_000, 500);
    bench.uses(&[900.0], &[460.0]);
    bench.signal(10.0);
    bench.decide();
    bench.wait(15);
    bench.signal(45.0);
    bench.uses(&[900.0], &[460.0]);
    assert_eq!(bench.decide().replicas, 15);
    // The new ones are not ready yet.
    bench.seen.ready = 10;
    bench.wait(15);
    bench.signal(45.0);
    let decision = bench.decide();
    assert_eq!(decision.replicas, 15, "{}", decision.reason);
}

#[test]
fn replicas_shrink_one_step_a_minute_but_not_soon_after_growth() {
    let mut bench = Bench::new(10, 1_000, 500);
    bench.signal(16.0);
    bench.uses(&[950.0], &[460.0]);
    assert_eq!(bench.decide().replicas, 11);
    let mut shrunk = Vec::new();
    for minute in 1..12 {
        bench.wait(60);
        bench.signal(1.0);
        bench.uses(&[300.0], &[460.0]);
        bench.decide();
        shrunk.push((minute, bench.seen.replicas));
    }
    let first = shrunk.iter().position(|(_, replicas)| *replicas < 11).expect("it shrinks");
    assert!(first >= 4, "{shrunk:?}");
    assert!(shrunk[first..].windows(2).all(|two| two[0].1 - two[1].1 <= 1), "{shrunk:?}");
}

#[test]
fn a_replica_goes_as_soon_as_the_hold_time_after_growth_is_over() {
    let after = |seconds: i64| {
        let mut bench = Bench::new(10, 1_000, 500);
        bench.memory.grown_s = Some(START);
        bench.wait(seconds);
        bench.signal(1.0);
        bench.uses(&[300.0], &[460.0]);
        bench.decide().replicas
    };
    assert_eq!([after(299), after(300)], [10, 9]);
}

#[test]
fn memory_grows_before_it_is_used_up() {
    let mut bench = Bench::new(2, 200, 250);
    bench.uses(&[190.0], &[150.0]);
    bench.decide();
    assert_eq!(bench.size().memory_bytes / MI, 172);
    bench.wait(15);
    bench.uses(&[190.0], &[165.0]);
    bench.decide();
    assert!(bench.size().memory_bytes > 180 * MI, "{:?}", bench.size());
}

#[test]
fn replicas_never_shrink_below_the_minimum_and_switched_off_stays_off() {
    let mut bench = Bench::new(4, 500, 500);
    for _ in 0..60 {
        bench.wait(60);
        bench.signal(0.0);
        bench.uses(&[1.0], &[460.0]);
        assert!(bench.decide().replicas >= 2);
    }
    assert_eq!(bench.seen.replicas, 2);
    bench.seen.replicas = 0;
    let decision = bench.decide();
    assert!(decision.replicas == 0 && !decision.replicas_changed, "{}", decision.reason);
}

#[test]
fn the_dead_band_does_nothing() {
    for value in [10.0, 10.4, 9.6] {
        let mut bench = Bench::new(4, 1_000, 500);
        bench.signal(value);
        bench.uses(&[950.0], &[460.0]);
        let decision = bench.decide();
        assert!(!decision.replicas_changed && !decision.sizes_changed, "{value}: {}", decision.reason);
    }
}

#[test]
fn a_small_error_that_stays_is_answered_in_the_end() {
    let mut bench = Bench::new(4, 1_000, 500);
    let minutes = (1..30).find(|_| {
        bench.wait(60);
        bench.signal(10.4);
        bench.uses(&[950.0], &[460.0]);
        bench.decide().replicas > 4
    });
    assert_eq!(minutes, Some(7));
}

#[test]
fn a_signal_that_cannot_be_believed_leaves_the_replicas_as_they_are() {
    let stale = Point { time_s: START - 600, value: 90.0 };
    let nothing = Point { time_s: START, value: f64::NAN };
    let cases = [(None, "no signal"), (Some(stale), "600 s old"), (Some(nothing), "is invalid")];
    for (signal, says) in cases {
        let mut bench = Bench::new(4, 1_000, 500);
        bench.seen.signal = signal;
        bench.uses(&[200.0], &[460.0]);
        let decision = bench.decide();
        assert!(!decision.replicas_changed, "{}", decision.reason);
        assert!(decision.reason.contains(says), "{}", decision.reason);
    }
}

#[test]
fn failing_requests_add_a_replica() {
    let mut bench = Bench::new(4, 1_000, 500);
    bench.signal(9.9);
    bench.seen.success = Some(Point { time_s: START, value: 0.98 });
    bench.uses(&[900.0], &[460.0]);
    let decision = bench.decide();
    assert_eq!(decision.replicas, 5, "{}", decision.reason);
    assert!(decision.reason.contains("98.00 % of requests succeed"), "{}", decision.reason);
}

#[test]
fn requests_that_fail_add_one_replica_per_interval() {
    let mut bench = Bench::new(4, 1_000, 500);
    let mut after = |seconds: i64, success: f64| {
        bench.wait(seconds);
        bench.signal(9.9);
        bench.seen.success = Some(Point { time_s: bench.now, value: success });
        bench.uses(&[900.0], &[460.0]);
        bench.decide().replicas
    };
    assert_eq!(after(0, 0.99), 4, "so many have to succeed");
    assert_eq!([after(60, 0.98), after(59, 0.98), after(1, 0.98)], [5, 5, 6]);
}

#[test]
fn pods_that_take_longer_than_the_interval_to_start_hold_up_no_growth() {
    let mut bench = Bench::new(10, 1_000, 500);
    let mut after = |seconds: i64| {
        bench.wait(seconds);
        bench.signal(45.0);
        bench.uses(&[900.0], &[460.0]);
        bench.seen.ready = 10;
        bench.decide().replicas
    };
    assert_eq!([after(0), after(59), after(1)], [15, 15, 20]);
}

#[test]
fn saturation_is_answered_by_the_container_that_uses_most_of_its_size() {
    let mut bench = Bench::new(10, 800, 500);
    bench.uses(&[190.0], &[460.0]);
    let mut proxy = Container { name: "proxy".into(), ..bench.seen.containers[0].clone() };
    proxy.size.cpu_milli = 200;
    bench.uses(&[500.0], &[460.0]);
    bench.seen.containers.push(proxy);
    bench.signal(15.0);
    let decision = bench.decide();
    let [app, proxy] = [0, 1].map(|at| decision.sizes[at].1.cpu_milli);
    assert!(app == 800 && proxy > 200, "{}", decision.reason);
}

#[test]
fn fewer_replicas_get_the_cpu_of_those_that_go() {
    let mut bench = Bench::new(3, 500, 500);
    bench.signal(1.0);
    bench.uses(&[400.0], &[460.0]);
    let decision = bench.decide();
    assert_eq!((decision.replicas, bench.size().cpu_milli), (2, 600), "{}", decision.reason);
}

#[test]
fn a_replica_goes_where_the_others_can_carry_its_load_exactly() {
    let one_of_two = |cpu: bool, signal: f64| {
        let mut bench = Bench::new(2, 1_000, 500);
        bench.settings.horizontal.as_mut().expect("it scales").min_replicas = 1;
        (bench.settings.vertical.cpu, bench.settings.vertical.change) = (cpu, 0.0);
        bench.signal(signal);
        bench.uses(&[500.0], &[460.0]);
        bench.decide().replicas
    };
    assert_eq!(one_of_two(true, 0.1), 1, "twice 500m is the cap");
    assert_eq!((one_of_two(false, 0.0), one_of_two(false, 5.0)), (1, 2), "judged by the signal alone");
}

#[test]
fn a_container_that_is_throttled_in_a_fifth_of_its_samples_grows() {
    let sized = |usage: &[f64]| {
        let mut bench = Bench::alone(500, 500);
        bench.settings.vertical.sigmas = 0.0;
        bench.uses(usage, &[460.0]);
        bench.decide();
        bench.size().cpu_milli
    };
    assert!(sized(&[475.0, 450.0, 450.0, 450.0, 450.0]) > 500);
    let tenth: Vec<_> = (0..10).map(|at| if at == 0 { 475.0 } else { 450.0 }).collect();
    assert_eq!(sized(&tenth), 500);
}

#[test]
fn at_the_setpoint_no_cpu_is_taken_away_and_the_reason_says_so() {
    let mut bench = Bench::new(2, 1_000, 500);
    bench.signal(10.0);
    bench.uses(&[300.0], &[460.0]);
    let decision = bench.decide();
    assert_eq!(bench.size().cpu_milli, 1_000);
    assert!(decision.reason.contains("10.0000, at or above the setpoint"), "{}", decision.reason);
}

#[test]
fn what_somebody_else_set_is_where_we_go_on() {
    let mut bench = Bench::new(4, 1_000, 500);
    bench.signal(9.9);
    bench.uses(&[900.0], &[460.0]);
    bench.decide();
    bench.memory.controller.integral = -2.0;
    bench.seen.replicas = 9;
    bench.wait(60);
    bench.signal(5.0);
    bench.uses(&[200.0], &[460.0]);
    let decision = bench.decide();
    assert_eq!(decision.replicas, 9, "{}", decision.reason);
    assert!(decision.reason.contains("changed from 4 to 9 by another client"), "{}", decision.reason);
    assert!(bench.memory.controller.integral > -1.0);
}

#[test]
fn replicas_that_another_autoscaler_owns_are_left_alone() {
    let mut bench = Bench::new(40, 900, 900);
    bench.seen.frozen = Some("HorizontalPodAutoscaler web".into());
    bench.signal(90.0);
    bench.uses(&[100.0], &[100.0]);
    let decision = bench.decide();
    assert_eq!((decision.replicas, bench.size().cpu_milli), (40, 900));
    assert!(decision.reason.contains("HorizontalPodAutoscaler web"), "{}", decision.reason);
    assert_eq!(bench.size().memory_bytes, 128 * MI);
}

#[test]
fn cpu_stays_when_one_replica_less_would_do() {
    let mut bench = Bench::new(4, 900, 500);
    bench.signal(1.0);
    bench.uses(&[300.0], &[460.0]);
    let decision = bench.decide();
    assert_eq!((decision.replicas, bench.size().cpu_milli), (3, 900), "{}", decision.reason);
}

#[test]
fn cpu_of_a_size_goes_only_where_a_quarter_is_spare_and_an_hour_after_growth() {
    let mut bench = Bench::new(2, 500, 500);
    let mut sizes = |used: f64, signal: f64, later: i64| {
        bench.wait(later);
        bench.signal(signal);
        bench.uses(&[used], &[460.0]);
        bench.decide();
        bench.size().cpu_milli
    };
    assert_eq!(sizes(380.0, 1.0, 0), 500, "24 % are spare");
    assert_eq!(sizes(600.0, 1.0, 60), 600);
    assert_eq!(sizes(300.0, 1.0, 3_540), 600, "59 minutes later");
    assert_eq!(sizes(300.0, 1.0, 60), 337, "as far as the signal and the need of before allow it");
}

#[test]
fn a_replica_that_comes_does_not_look_like_usage_that_varies() {
    let mut bench = Bench::new(2, 1_000, 500);
    bench.settings.vertical.throttled_at = 2.0;
    let mut samples = Vec::new();
    for round in 0..40 {
        let each = 2_020.0 / f64::from(bench.seen.replicas);
        samples.push(Point { time_s: bench.now, value: each });
        bench.signal(10.0);
        bench.seen.containers[0].cpu.clone_from(&samples);
        bench.decide();
        assert!(bench.seen.replicas <= 3, "round {round}");
        bench.wait(15);
    }
    assert_eq!(bench.seen.replicas, 3);
}

#[test]
fn memory_survives_a_restart() {
    let mut bench = Bench::new(4, 500, 500);
    for signal in [12.0, 30.0, 8.0, 40.0] {
        bench.wait(60);
        bench.signal(signal);
        bench.uses(&[480.0, 300.0], &[460.0]);
        bench.decide();
    }
    let text = serde_json::to_string(&bench.memory).unwrap();
    assert!(text.contains("\"grownS\"") && text.len() < 600, "{text}");
    let memory: ScalerMemory = serde_json::from_str(&text).unwrap();
    // When the replicas were seen last is not written, as it is another time in each round.
    bench.memory.shares =
        serde_json::from_value(serde_json::to_value(&bench.memory.shares).unwrap()).unwrap();
    assert_eq!(memory, bench.memory);
    assert_eq!(serde_json::from_str::<ScalerMemory>("{}").unwrap(), ScalerMemory::default());
}

/// SHOWAR's formula for latencies: the sum of the pods' latencies, divided by the target.
#[test]
fn replicas_can_follow_a_latency_in_proportion() {
    let with = |replicas: u32, latency: f64| {
        let mut bench = Bench::new(replicas, 1_000, 900);
        let horizontal = bench.settings.horizontal.as_mut().expect("it scales");
        horizontal.rule = ReplicaRule::Proportional;
        bench.uses(&[100.0], &[300.0]);
        bench.signal(latency);
        // The container has all CPU that it may have.
        bench.settings.vertical.cpu_cap_milli = 1_000;
        bench.settings.vertical.cpu = false;
        bench.decide().replicas
    };
    assert_eq!(with(4, 15.0), 6, "4 times 15, of 10");
    assert_eq!(with(4, 10.5), 4, "within the band");
    assert_eq!(with(4, 12.6), 6, "5.04 are six");
    assert_eq!(with(4, 10.0 * 1e5), 20, "at most");
    assert_eq!(with(10, 8.0), 8);
    assert_eq!(with(3, 1.0), 2, "at least");
    assert_eq!(with(7, 20.0), 14, "no replica more for want of a digit");
}

#[test]
fn a_service_can_have_two_replicas_before_its_cpu_grows() {
    let grown = |replicas_first: u32| {
        let mut bench = Bench::new(1, 300, 900);
        let horizontal = bench.settings.horizontal.as_mut().expect("it scales");
        (horizontal.replicas_first, horizontal.min_replicas) = (replicas_first, 1);
        let mut steps = Vec::new();
        for _ in 0..3 {
            bench.uses(&[600.0], &[300.0]);
            bench.signal(20.0);
            let decision = bench.decide();
            steps.push((decision.replicas, bench.size().cpu_milli > 300));
            bench.wait(60);
        }
        steps
    };
    assert_eq!(grown(2)[0], (2, false), "a replica first");
    assert!(grown(2)[2].1, "then CPU: {:?}", grown(2));
    assert_eq!(grown(1)[0], (1, true));
}

#[test]
fn cpu_grows_where_no_more_replicas_are_allowed_to_be_first() {
    let mut bench = Bench::new(2, 300, 900);
    let horizontal = bench.settings.horizontal.as_mut().expect("it scales");
    (horizontal.replicas_first, horizontal.max_replicas) = (5, 2);
    bench.uses(&[290.0], &[300.0]);
    bench.signal(20.0);
    let decision = bench.decide();
    assert!(decision.replicas == 2 && bench.size().cpu_milli > 300, "{}", decision.reason);
}
