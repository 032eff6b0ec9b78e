//! Services with synthetic usage. `synthetic.rs` generates it, `properties.rs` has the general properties.

mod properties;
mod speed;
mod synthetic;

use super::*;
use synthetic::{Dice, window};

fn names(count: usize) -> Vec<Arc<str>> {
    (0..count).map(|at| format!("service-{at:03}").into()).collect()
}

/// Settings with which a hint is in force after one window.
fn at_once() -> CorrelationSettings {
    CorrelationSettings { confirmations: 1, ..CorrelationSettings::default() }
}

/// Window number `number` of services `a`, `b`, … with these points of CPU.
fn of_cpu(number: usize, series: &[&[Option<f64>]]) -> Window {
    let points = series[0].len();
    let name = |at: usize| Arc::from(["a", "b", "c", "d"][at]);
    let from_s = (number * points) as f64 * 10.0;
    let mut window = Window::new(from_s, 10.0, points, (0..series.len()).map(name)).expect("a window");
    for (at, series) in series.iter().enumerate() {
        for (point, value) in series.iter().enumerate() {
            if let Some(value) = value {
                assert!(window.add(&name(at), CorrelatedResource::Cpu, from_s + 10.0 * point as f64, *value));
            }
        }
    }
    window
}

fn all<const N: usize>(series: [f64; N]) -> [Option<f64>; N] {
    series.map(Some)
}

/// The correlation of `a` and `b`.
fn rho(settings: &CorrelationSettings, series: &[&[Option<f64>]]) -> Option<f32> {
    let settings = CorrelationSettings { points_min: 3, ..settings.clone() };
    let scored = super::window::Scored::new(
        &of_cpu(0, series),
        CorrelatedResource::Cpu,
        &[Some(0), Some(1)],
        &settings,
    );
    scored.correlation(0, 1)
}

fn about(expected: f32, found: Option<f32>) {
    assert!(found.is_some_and(|found| (found - expected).abs() < 1e-5), "{found:?} is not {expected}");
}

#[test]
fn correlations_are_those_counted_by_hand() {
    let settings = CorrelationSettings::default();
    // Deviations -2 -1 0 1 2 and -1 -2 1 0 2, of length sqrt(10) each; their product is 8.
    let (a, b) = (all([1.0, 2.0, 3.0, 4.0, 5.0]), all([2.0, 1.0, 4.0, 3.0, 5.0]));
    about(0.8, rho(&settings, &[&a, &b]));
    about(1.0, rho(&settings, &[&a, &a]));
    about(-1.0, rho(&settings, &[&a, &all([50.0, 40.0, 30.0, 20.0, 10.0])]));
}

#[test]
fn a_flat_series_has_no_correlation() {
    let settings = CorrelationSettings::default();
    let wave = all([1.0, 2.0, 3.0, 2.0, 1.0]);
    for flat in
        [[0.0; 5], [7.0; 5], [1e10, 1e10, 1e10 + 1.0, 1e10, 1e10], [100.0, 101.0, 100.0, 100.5, 100.0]]
    {
        assert_eq!(rho(&settings, &[&wave, &all(flat)]), None, "{flat:?}");
    }
    // Flat where the other has points.
    let part = [None, None, Some(3.0), Some(3.0), Some(3.0), Some(8.0)];
    let other = [Some(1.0), Some(5.0), Some(3.0), Some(4.0), Some(1.0), None];
    assert_eq!(rho(&settings, &[&part, &other]), None);
}

#[test]
fn only_points_that_both_have_count() {
    let settings = CorrelationSettings::default();
    let a = [Some(1.0), Some(2.0), Some(3.0), Some(4.0), Some(5.0), Some(90.0), None];
    let b = [Some(2.0), Some(1.0), Some(4.0), Some(3.0), Some(5.0), None, Some(100.0)];
    about(0.8, rho(&settings, &[&a, &b]));
    let few = [None, None, None, None, Some(5.0), Some(1.0), Some(7.0)];
    assert_eq!(rho(&settings, &[&a, &few]), None, "two points in common are too few");
}

#[test]
fn a_series_that_lags_is_found_if_lags_are_asked_for() {
    let wave = [1.0, 5.0, 2.0, 7.0, 3.0, 1.0, 6.0, 2.0, 4.0, 1.0];
    let mut late = wave;
    late.rotate_right(1);
    let (wave, late) = (all(wave), all(late));
    let lagging = CorrelationSettings { lag_points: 1, ..CorrelationSettings::default() };
    for (one, other) in [(&wave, &late), (&late, &wave)] {
        assert!(rho(&CorrelationSettings::default(), &[one, other]).unwrap().abs() < 0.8);
        about(1.0, rho(&lagging, &[one, other]));
    }
}

#[test]
fn a_point_is_what_one_pod_used_on_average() {
    let mut window = Window::new(100.0, 10.0, 3, ["a".into()]).expect("a window");
    assert!(
        window.add("a", CorrelatedResource::Memory, 96.0, 1.0)
            && window.add("a", CorrelatedResource::Memory, 104.0, 3.0)
    );
    for (at, value) in [(94.0, 1.0), (125.1, 1.0), (110.0, f64::NAN), (110.0, -1.0), (f64::NAN, 1.0)] {
        assert!(!window.add("a", CorrelatedResource::Memory, at, value), "{value} at {at}");
    }
    assert!(!window.add("b", CorrelatedResource::Memory, 100.0, 1.0));
    let of = |points| Window::new(0.0, 10.0, points, []).map(|_| ());
    assert_eq!(
        [of(2), of(3), of(POINTS_MAX + 1)],
        [Err(WindowError::Points(2)), Ok(()), Err(WindowError::Points(POINTS_MAX + 1))]
    );
    assert_eq!(Window::new(0.0, 0.0, 5, []).map(|_| ()), Err(WindowError::Step));
}

/// 16 points: a wave and noise of which `noise` is the share.
fn wave(dice: &mut Dice, opposite: bool, noise: f64) -> [Option<f64>; 16] {
    std::array::from_fn(|at| {
        let wave = (at as f64 / 16.0 * std::f64::consts::TAU).sin();
        Some(10.0 + if opposite { -wave } else { wave } * 5.0 + noise * 5.0 * dice.normal())
    })
}

/// Hints as text: service, direction, other service, weight.
fn shown(hints: &[CorrelationHint]) -> Vec<String> {
    hints
        .iter()
        .map(|hint| format!("{} {:?} {} {}", hint.service, hint.direction, hint.other, hint.weight))
        .collect()
}

#[test]
fn a_pair_becomes_a_hint_after_several_windows_in_a_row_and_no_sooner() {
    let mut known = Correlations::new(CorrelationSettings::default());
    let mut dice = Dice(1);
    let mut observe = |number, together: bool| {
        let series = [wave(&mut dice, false, 0.0), wave(&mut dice, together, 0.0)];
        let pass = known.observe(&of_cpu(number, &[&series[0], &series[1]])).expect("in order");
        (pass.strong, pass.entered, known.hints().len())
    };
    assert_eq!([observe(0, false), observe(1, false)], [(1, 0, 0), (1, 0, 0)]);
    assert_eq!(observe(2, true), (1, 0, 0), "of the other sign, it counts from the beginning");
    assert_eq!([observe(3, false), observe(4, false)], [(1, 0, 0), (1, 0, 0)]);
    assert_eq!(observe(5, false), (1, 1, 4));
    let both = ["a Apart a 100", "a Apart b 100", "b Apart a 100", "b Apart b 100"];
    assert_eq!(shown(&known.hints()), both, "pods of one service peak together, too");
}

#[test]
fn what_peaks_at_opposite_times_goes_together_and_is_kept_apart_from_its_own_kind() {
    let mut known = Correlations::new(at_once());
    let mut dice = Dice(2);
    let series = [wave(&mut dice, false, 0.0), wave(&mut dice, true, 0.0)];
    known.observe(&of_cpu(0, &[&series[0], &series[1]])).expect("in order");
    assert_eq!(
        shown(&known.hints()),
        ["a Apart a 100", "a Together b 50", "b Apart b 100", "b Together a 50"]
    );
}

#[test]
fn a_hint_is_left_later_than_it_is_entered_and_fades_when_it_is_not_confirmed() {
    let mut known = Correlations::new(at_once());
    let clear = all([1.0, 9.0, 2.0, 8.0, 3.0, 7.0, 4.0, 6.0, 1.0, 9.0, 2.0, 8.0, 3.0, 7.0, 4.0, 6.0]);
    let mut weights = Vec::new();
    // Correlations of 1, then about 0.7, then nothing.
    let mut vague = clear;
    for at in [0, 5, 10, 15] {
        vague[at] = Some(5.0);
    }
    vague[1] = Some(3.0);
    let flat = [Some(5.0); 16];
    for (number, other) in [&clear, &vague, &flat, &flat, &flat].into_iter().enumerate() {
        known.observe(&of_cpu(number, &[&clear, other])).expect("in order");
        weights
            .push(known.hints().iter().find(|hint| hint.service != hint.other).map_or(0, |hint| hint.weight));
    }
    let vague = weights[1];
    assert!((80..100).contains(&vague), "{weights:?}");
    assert_eq!(weights, [100, vague, vague >> 1, vague >> 2, 0]);
}

#[test]
fn a_hint_whose_opposite_is_true_ends_at_once() {
    let mut known =
        Correlations::new(CorrelationSettings { confirmations: 2, ..CorrelationSettings::default() });
    let mut dice = Dice(3);
    for (number, opposite) in [(0, false), (1, false), (2, true)] {
        let series = [wave(&mut dice, false, 0.05), wave(&mut dice, opposite, 0.05)];
        known.observe(&of_cpu(number, &[&series[0], &series[1]])).expect("in order");
        assert_eq!(known.hints().len(), if number == 1 { 4 } else { 0 });
    }
}

#[test]
fn a_service_that_is_gone_takes_its_hints_along_when_they_have_faded() {
    let mut known = Correlations::new(at_once());
    let mut dice = Dice(4);
    let series = wave(&mut dice, false, 0.0);
    known.observe(&of_cpu(0, &[&series, &series, &series])).expect("in order");
    let hints = |known: &Correlations| known.hints().len();
    assert_eq!(hints(&known), 9);
    for (number, expected) in [(1, 9), (2, 9), (3, 4)] {
        known.observe(&of_cpu(number, &[&series, &series])).expect("in order");
        assert_eq!(hints(&known), expected, "window {number}");
    }
    assert_eq!(known.observe(&of_cpu(4, &[&series, &series])).expect("in order").services, 2);
}

#[test]
fn windows_that_overlap_are_refused() {
    let mut known = Correlations::new(at_once());
    let series = wave(&mut Dice(5), false, 0.0);
    for number in [3, 4, 9] {
        assert!(known.observe(&of_cpu(number, &[&series, &series])).is_ok());
        assert_eq!(known.observe(&of_cpu(number, &[&series, &series])), Err(WindowError::Overlaps));
    }
}

#[test]
fn of_too_many_services_the_largest_are_looked_at() {
    let mut known = Correlations::new(CorrelationSettings { services_max: 2, ..at_once() });
    let small = wave(&mut Dice(6), false, 0.0);
    let large = small.map(|value| value.map(|value| 100.0 * value));
    let pass = known.observe(&of_cpu(0, &[&small, &large, &small, &large])).expect("in order");
    assert_eq!((pass.services, pass.left_out), (2, 2));
    assert_eq!(shown(&known.hints()), ["b Apart b 100", "b Apart d 100", "d Apart b 100", "d Apart d 100"]);
}

#[test]
fn hints_for_one_service_are_bounded_and_the_strongest_stay() {
    let mut known = Correlations::new(CorrelationSettings { hints_max: 3, ..at_once() });
    let mut dice = Dice(7);
    let mut services = names(20);
    let window = window(&mut dice, 0, 24, &services, |dice, service, at| {
        10.0 + (at as f64).sin() * 5.0 + service as f64 * 0.05 * dice.normal()
    });
    known.observe(&window).expect("in order");
    let hints = known.hints();
    services.retain(|service| {
        let theirs: Vec<_> = hints.iter().filter(|hint| hint.service == *service).collect();
        let weights: Vec<_> = theirs.iter().map(|hint| hint.weight).collect();
        assert!(theirs.len() <= 3 && weights.is_sorted_by(|a, b| a >= b), "{theirs:?}");
        !theirs.is_empty()
    });
    assert!(services.len() > 15, "{}", services.len());
}

#[test]
fn whoever_goes_on_from_hints_has_them_until_windows_say_otherwise() {
    let settings = || CorrelationSettings { confirmations: 3, ..CorrelationSettings::default() };
    let mut before = Correlations::new(at_once());
    let mut dice = Dice(8);
    let (one, other) = (wave(&mut dice, false, 0.05), wave(&mut dice, true, 0.05));
    before.observe(&of_cpu(0, &[&one, &one, &other])).expect("in order");
    let hints = before.hints();
    assert!(hints.iter().any(|hint| hint.direction == Direction::Together));
    // Hints of services that no longer exist are accepted like any other.
    let mut after = Correlations::resumed(settings(), hints.iter().rev().cloned());
    assert_eq!(after.hints(), hints);
    after.observe(&of_cpu(7, &[&one, &one, &other])).expect("in order");
    assert_eq!(shown(&after.hints()), shown(&hints), "confirmed");
    // No window confirms them.
    let flat = all([5.0; 16]);
    for (number, left) in [(8, true), (9, true), (10, false)] {
        after.observe(&of_cpu(number, &[&one, &flat, &flat])).expect("in order");
        assert_eq!(!after.hints().is_empty(), left, "window {number}");
    }
    let few = Correlations::resumed(CorrelationSettings { services_max: 2, ..settings() }, hints);
    assert_eq!(few.hints().len(), 4, "of a and b");
}

#[test]
fn of_two_that_say_the_opposite_of_a_pair_it_is_kept_apart() {
    let hint = |service: &str, other: &str, direction, weight| CorrelationHint {
        service: service.into(),
        other: other.into(),
        direction,
        weight,
        resource: CorrelatedResource::Memory,
    };
    let hints = [hint("b", "a", Direction::Together, 50), hint("a", "b", Direction::Apart, 70)];
    let known = Correlations::resumed(CorrelationSettings::default(), hints);
    assert!(shown(&known.hints()).contains(&"b Apart a 70".to_owned()));
}
