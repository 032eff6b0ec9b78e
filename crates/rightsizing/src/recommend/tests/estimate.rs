//! Upstream's `estimator_test.go` and `recommender_test.go`.

use super::{DAY, Fed, MI, MINUTE, SECOND, T0};
use crate::recommend::Controlled;
use crate::recommend::amount::{AMOUNT_MAX, Amount};
use crate::recommend::estimate::{BOTH, Confidence, minimum, recommend, with_margin};
use crate::recommend::settings::RecommenderSettings;
use berth_model::PerResource;

const CPU: Amount = 3140;
const MEMORY: Amount = 3_140_000_000;
const EIGHTEEN_MINUTES: i64 = 18 * MINUTE;

#[test]
fn confidence_is_the_lesser_of_lifespan_and_number_of_samples() {
    let mut fed = Fed::new(RecommenderSettings::default());
    for n in 0..9 {
        assert!(fed.cpu(1000, T0 + n * 2 * MINUTE));
    }
    let multiplier = Confidence { multiplier: 0.1, exponent: 2 };
    let cases = [(DAY, 0.00625, 907_460, 907_460_000_000), (EIGHTEEN_MINUTES, 0.5, 4521, 4_521_600_000)];
    for (interval, expected, cpu, memory) in cases {
        let confidence = fed.aggregate.confidence(interval, false);
        assert_eq!(confidence, expected);
        assert_eq!(multiplier.apply(CPU, confidence), cpu);
        assert_eq!(multiplier.apply(MEMORY, confidence), memory);
    }
}

#[test]
fn without_history_a_bound_is_everything_or_nothing() {
    let fed = Fed::new(RecommenderSettings::default());
    let confidence = fed.aggregate.confidence(DAY, false);
    assert_eq!(confidence, 0.0);
    assert_eq!(Confidence { multiplier: 1.0, exponent: 1 }.apply(CPU, confidence), AMOUNT_MAX);
    assert_eq!(Confidence { multiplier: 1.0, exponent: -1 }.apply(CPU, confidence), 0);
    assert_eq!(Confidence { multiplier: 1.0, exponent: 1 }.apply(0, confidence), 0);
}

#[test]
fn the_margin_is_a_share_of_the_base() {
    assert_eq!(with_margin(CPU, 0.1), 3454);
    assert_eq!(with_margin(MEMORY, 0.1), 3_454_000_000);
    assert_eq!(with_margin(Amount::MAX, 0.1), Amount::MAX);
}

#[test]
fn the_containers_of_a_pod_share_its_minimum() {
    let cases = [(1, 25, 262_144_000), (2, 12, 131_072_000), (3, 8, 87_381_333), (0, 25, 262_144_000)];
    for (containers, cpu, memory) in cases {
        assert_eq!(minimum(25, containers), cpu, "{containers}");
        assert_eq!(minimum(250 * MI, containers), memory, "{containers}");
    }
}

#[test]
fn the_minimum_raises_only_what_is_below_it() {
    let settings = |cpu, memory| {
        let mut settings = RecommenderSettings::default();
        (settings.cpu.pod_minimum, settings.memory.pod_minimum) = (cpu, memory);
        settings
    };
    let usage = |_| (500, 1024 * MI);
    let low = Fed::new(settings(200, 20_000_000)).feed(T0, 10, usage).bounds(1)[0];
    assert_eq!(low, (587, 1_238_659_775));
    let high = Fed::new(settings(5000, 400_000_000_000)).feed(T0, 10, usage).bounds(1)[0];
    assert_eq!(high, (5000, 400_000_000_000));
}

#[test]
fn only_controlled_resources_are_recommended() {
    let fed = Fed::new(RecommenderSettings::default()).feed(T0, 10, |_| (500, 1024 * MI));
    let memory_only = Controlled { cpu: false, memory: true };
    let result = recommend("app", &fed.aggregate, &fed.settings, 1, memory_only);
    for amounts in [result.target, result.lower, result.upper, result.uncapped] {
        assert!(amounts.cpu.is_none() && amounts.memory.is_some());
    }
}

#[test]
fn recommendations_are_rounded_up_to_the_units_of_the_settings() {
    let mut settings = RecommenderSettings::default();
    (settings.cpu.round_to, settings.memory.round_to) = (50, 128 * MI);
    let fed = Fed::new(settings).feed(T0, 2, |_| (500, 1024 * MI));
    let result = recommend("app", &fed.aggregate, &fed.settings, 1, BOTH);
    assert_eq!(result.target, PerResource { cpu: Some(600), memory: Some(1280 * MI) });
    assert_eq!(result.lower, PerResource { cpu: Some(100), memory: Some(256 * MI) });
    assert_eq!(result.uncapped, result.target);
}

#[test]
fn memory_alone_gives_confidence_but_not_to_upstream() {
    let mut fed = Fed::new(RecommenderSettings::default());
    for n in 0..1440 {
        assert!(fed.memory(300 * MI, T0 + n * MINUTE));
    }
    assert!(fed.aggregate.confidence(DAY, false) > 0.99);
    assert_eq!(fed.aggregate.confidence(DAY, true), 0.0);
    let [target, lower, upper] = fed.bounds(1);
    assert!(target.1 < upper.1 && upper.1 < 3 * target.1, "{upper:?}");
    fed.settings.strict_upstream = true;
    assert_eq!(fed.bounds(1), [target, (lower.0, 262_144_000), (upper.0, AMOUNT_MAX)]);
}

#[test]
fn an_interval_of_nothing_is_no_division_by_zero() {
    let fed = Fed::new(RecommenderSettings::default()).feed(T0, 3, |n| (n, n));
    for interval in [i64::MIN, 0, 1, SECOND, i64::MAX] {
        assert!(fed.aggregate.confidence(interval, false) >= 0.0);
    }
}
