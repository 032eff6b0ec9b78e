use proptest::prelude::*;

use super::*;

/// Usage of independent services.
#[derive(Debug, Clone, Copy)]
enum Independent {
    Noise,
    /// Half of each point's deviation stays.
    Sluggish,
    Walk,
}

/// The share of pairs with a hint after each window, on average, where each of three resources can give one; and
/// the share of correlations that were strong in one window.
fn false_hints(kind: Independent, seed: u64, points: usize, windows: usize) -> (f64, f64) {
    let services = names(40);
    let mut dice = Dice(seed);
    let mut known =
        Correlations::new(CorrelationSettings { hints_max: 1000, ..CorrelationSettings::default() });
    let mut levels = vec![0.0; services.len() * 3];
    let mut turn = 0;
    let (mut found, mut strong) = (0, 0);
    for number in 0..windows {
        let window = window(&mut dice, number, points, &services, |dice, service, _| {
            // Services come one after the other, each with its resources in order.
            let level = &mut levels[service * 3 + turn / points % 3];
            turn += 1;
            let stays = match kind {
                Independent::Noise => 0.0,
                Independent::Sluggish => 0.5,
                Independent::Walk => 1.0,
            };
            *level = *level * stays + dice.normal();
            100.0 + *level * 2.0
        });
        strong += known.observe(&window).expect("in order").strong;
        found += known.hints().iter().filter(|hint| hint.service < hint.other).count();
    }
    let pairs = services.len() * (services.len() - 1) / 2;
    let share = |count: usize| count as f64 / (pairs * windows) as f64;
    (share(found), share(strong) / 3.0)
}

#[test]
fn services_that_have_nothing_to_do_with_each_other_hardly_ever_get_hints() {
    for points in [20, 30, 60] {
        for kind in [Independent::Noise, Independent::Sluggish, Independent::Walk] {
            let rates: Vec<_> = (1..=3).map(|seed| false_hints(kind, seed, points, 20)).collect();
            println!(
                "{kind:?}, {points} points, seeds 1 to 3: {rates:.5?} (with hints, strong in one window) of all pairs"
            );
            assert!(
                rates.iter().all(|(hints, _)| *hints < 0.01),
                "{kind:?}, {points} points, seeds 1 to 3: {rates:?}"
            );
        }
    }
}

#[test]
fn services_of_one_rhythm_get_hints_though_they_are_noisy() {
    let services = names(20);
    let mut dice = Dice(9);
    let mut known = Correlations::new(CorrelationSettings::default());
    for number in 0..6 {
        let window = window(&mut dice, number, 30, &services, |dice, service, at| {
            let phase = (service % 2) as f64 * std::f64::consts::PI;
            100.0 + 30.0 * (at as f64 / 15.0 * std::f64::consts::TAU + phase).sin() + 5.0 * dice.normal()
        });
        known.observe(&window).expect("in order");
    }
    let hints = known.hints();
    assert_eq!(hints.len(), 20 * 16);
    let half = |service: &str| service.trim_start_matches("service-").parse::<usize>().unwrap() % 2;
    for hint in &hints {
        let same = half(&hint.service) == half(&hint.other);
        assert_eq!(hint.direction, if same { Direction::Apart } else { Direction::Together }, "{hint:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_correlation_is_between_minus_one_and_one_symmetric_and_the_same_at_any_scale(
        points in prop::collection::vec((prop::option::of(0.0_f64..1e12), prop::option::of(0.0_f64..1e3)), 3..64),
        scale in 0.001_f64..1000.0,
        lag in 0_usize..4,
    ) {
        let (a, b): (Vec<_>, Vec<_>) = points.into_iter().unzip();
        let scaled: Vec<_> = b.iter().map(|value| value.map(|value| value * scale)).collect();
        let settings = CorrelationSettings { lag_points: lag, ..CorrelationSettings::default() };
        let found = rho(&settings, &[&a, &b]);
        prop_assert!(found.is_none_or(|rho| (-1.0..=1.0).contains(&rho)), "{:?}", found);
        prop_assert_eq!(found, rho(&settings, &[&b, &a]));
        let again = rho(&settings, &[&a, &scaled]);
        match (found, again) {
            (Some(found), Some(again)) => prop_assert!((found - again).abs() < 1e-3, "{} {}", found, again),
            (found, again) => prop_assert_eq!(found, again),
        }
    }

    #[test]
    fn whatever_comes_hints_are_bounded_and_in_order(
        seed in 0_u64..1000, services in 1_usize..12, windows in 1_usize..8, hints_max in 0_usize..4,
    ) {
        let mut dice = Dice(seed);
        let settings = CorrelationSettings { confirmations: 2, points_min: 3, hints_max, ..CorrelationSettings::default() };
        let mut known = Correlations::new(settings.clone());
        for number in 0..windows {
            // Some services are absent, and some points are missing.
            let there: Vec<_> = names(services).into_iter().filter(|_| dice.share() < 0.8).collect();
            let window = window(&mut dice, number, 6, &there, |dice, service, at| {
                if dice.share() < 0.1 { f64::NAN } else { 1.0 + ((at + service) % 2) as f64 + 0.3 * dice.share() }
            });
            known.observe(&window).expect("in order");
            let hints = known.hints();
            prop_assert_eq!(&hints, &known.clone().hints());
            let sorted = hints.is_sorted_by_key(|hint| (hint.service.clone(), u8::MAX - hint.weight));
            prop_assert!(sorted, "{:?}", hints);
            for hint in &hints {
                prop_assert!((1..=100).contains(&hint.weight));
                let theirs = hints.iter().filter(|other| other.service == hint.service).count();
                prop_assert!(theirs <= hints_max);
            }
        }
    }
}
