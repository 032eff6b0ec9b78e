//! Hand-made recordings with known results. Times are in hours from an arbitrary start.

use proptest::prelude::*;

use super::*;
use crate::recommend::amount::AMOUNT_MAX;

const HOUR: i64 = 3_600_000_000_000;
const MIB: i64 = 1 << 20;

/// Without margin and minimum, so that results are round numbers.
fn plain() -> RecommenderSettings {
    let mut settings = RecommenderSettings::default();
    for resource in [&mut settings.cpu, &mut settings.memory] {
        resource.margin = 0.0;
        resource.pod_minimum = 0;
    }
    settings
}

/// One pod with one sample per hour.
fn hourly(resource: RecordedResource, amounts: &[Amount]) -> Recorded {
    let sample =
        |(hour, amount): (usize, &Amount)| RecordedSample { time: hour as i64 * HOUR, amount: *amount };
    Recorded { name: "x".into(), resource, pods: vec![amounts.iter().enumerate().map(sample).collect()] }
}

const PACE: Pace = Pace { step_ns: HOUR, warm_up_ns: 0 };

fn measure(recorded: &Recorded, kind: EstimatorKind, settings: &RecommenderSettings, pace: Pace) -> Measures {
    backtest(recorded, kind, settings, pace).expect("something is measured").measures
}

/// Returns the scripted limits in turn, and records its input.
struct Scripted {
    limits: Vec<Amount>,
    next: usize,
    seen: Vec<Amount>,
    kills: Vec<Amount>,
}

impl BacktestEstimator for Scripted {
    fn observe(&mut self, _: usize, _: UnixNanos, amount: Amount) {
        self.seen.push(amount);
    }

    fn oom(&mut self, _: usize, _: UnixNanos, limit: Amount) {
        self.kills.push(limit);
    }

    fn limit(&mut self, _: UnixNanos) -> Option<Amount> {
        let limit = self.limits[self.next.min(self.limits.len() - 1)];
        self.next += 1;
        Some(limit)
    }
}

fn scripted(limits: &[Amount]) -> Scripted {
    Scripted { limits: limits.into(), next: 0, seen: Vec::new(), kills: Vec::new() }
}

#[test]
fn cpu_measures_are_those_counted_by_hand() {
    // The first hour has no limit yet. Then usage 100, 300, 200, 200 against limits 200, 200, 400, 400.
    let recorded = hourly(RecordedResource::Cpu, &[50, 100, 300, 200, 200]);
    let mut estimator = scripted(&[200, 200, 400, 400]);
    let measures = replay(&recorded, &mut estimator, PACE).expect("four hours");
    assert_eq!(estimator.seen, [50, 100, 300, 200, 200]);
    let day = 4.0 / 24.0;
    assert_eq!(
        measures,
        Measures {
            days: day,
            pod_days: day,
            mean_limit: 0.3,
            mean_usage: 0.2,
            // The 95th percentile of four is the largest.
            relative_slack: 0.0,
            absolute_slack: measures.absolute_slack,
            overrun_share: 0.25,
            throttle_minutes_per_day: 360.0,
            ooms: 0,
            ooms_per_pod_day: 0.0,
            changes_per_day: 1.0 / day,
        }
    );
    assert!((measures.absolute_slack - 0.1).abs() < 1e-12);
}

#[test]
fn a_kill_hides_the_usage_and_the_next_limit_holds_at_once() {
    let recorded = hourly(RecordedResource::Memory, &[50, 100, 300, 300]);
    // Queried at hours 1, 2, after the OOM kill at 2, and at 3.
    let mut estimator = scripted(&[200, 200, 350, 350]);
    let measures = replay(&recorded, &mut estimator, PACE).expect("three hours");
    assert_eq!((estimator.seen, estimator.kills), (vec![50, 100, 300], vec![200]));
    assert_eq!((measures.ooms, measures.throttle_minutes_per_day), (1, 0.0));
    assert_eq!((measures.ooms_per_pod_day, measures.changes_per_day), (8.0, 8.0));
    assert!((measures.mean_limit - 250.0).abs() < 1e-9);
}

#[test]
fn slack_is_that_of_each_day() {
    // Two days of 24 samples each; the limit of 1000 is known after the first hour, which belongs to the warm-up.
    let mut amounts = vec![1000];
    amounts.extend([400; 24]);
    amounts.extend([800; 24]);
    let recorded = hourly(RecordedResource::Cpu, &amounts);
    let pace = Pace { warm_up_ns: HOUR, ..PACE };
    let measures = measure(&recorded, EstimatorKind::Max, &plain(), pace);
    assert!((measures.relative_slack - (0.6 + 0.2) / 2.0).abs() < 1e-9, "{measures:?}");
    assert_eq!((measures.days, measures.overrun_share, measures.changes_per_day), (2.0, 0.0, 0.0));
}

#[test]
fn baselines_say_the_most_and_the_percentile() {
    let mut amounts: Vec<Amount> = (1..=200).collect();
    amounts.push(1);
    let recorded = hourly(RecordedResource::Cpu, &amounts);
    let settings = plain();
    for (kind, expected) in [(EstimatorKind::Max, 200), (EstimatorKind::P99, 199)] {
        let mut estimator = kind.build(RecordedResource::Cpu, &settings);
        assert_eq!(estimator.limit(0), None);
        for (hour, sample) in recorded.pods[0].iter().enumerate().take(200) {
            estimator.observe(0, sample.time, sample.amount);
            assert_eq!(sample.time, hour as i64 * HOUR);
        }
        // The percentile is over 7 days: 169 samples, of which one is above it.
        assert_eq!(estimator.limit(199 * HOUR), Some(expected), "{kind:?}");
    }
}

#[test]
fn margins_and_minimums_are_those_of_the_settings_and_showar_has_a_higher_one() {
    for kind in EstimatorKind::ALL {
        for (resource, minimum) in [(RecordedResource::Cpu, 25), (RecordedResource::Memory, 250 * MIB)] {
            let mut estimator = kind.build(resource, &RecommenderSettings::default());
            estimator.observe(0, 0, 1);
            let minimum = if (kind, resource) == (EstimatorKind::Showar, RecordedResource::Cpu) {
                128
            } else {
                minimum
            };
            assert_eq!(estimator.limit(HOUR), Some(minimum), "{kind:?}");
        }
    }
    let mut max = EstimatorKind::Max.build(RecordedResource::Cpu, &RecommenderSettings::default());
    max.observe(0, 0, 1000);
    assert_eq!(max.limit(HOUR), Some(1150));
}

#[test]
fn after_a_kill_every_estimator_gives_what_the_bump_rule_says() {
    for kind in EstimatorKind::ALL {
        let mut estimator = kind.build(RecordedResource::Memory, &plain());
        for hour in 0..24 {
            estimator.observe(0, hour * HOUR, 500 * MIB);
        }
        let before = estimator.limit(24 * HOUR).expect("a limit");
        estimator.oom(0, 24 * HOUR, before);
        let after = estimator.limit(24 * HOUR).expect("a limit");
        assert!(after >= before + 100 * MIB, "{kind:?}: {before}, then {after}");
        assert!(after < 2 * before, "{kind:?}: {before}, then {after}");
    }
}

#[test]
fn all_pods_have_one_limit_and_each_counts_its_time() {
    let sample = |hour: i64, amount| RecordedSample { time: hour * HOUR, amount };
    let pods = vec![
        (0..10).map(|hour| sample(hour, 100)).collect(),
        (5..10).map(|hour| sample(hour, 300)).collect(),
    ];
    let recorded = Recorded { name: "x".into(), resource: RecordedResource::Cpu, pods };
    let measures = measure(&recorded, EstimatorKind::Max, &plain(), PACE);
    // Only at hour 5 is the usage above the highest one so far.
    assert_eq!(measures.pod_days, 14.0 / 24.0);
    assert!((measures.overrun_share - 1.0 / 14.0).abs() < 1e-12, "{measures:?}");
}

#[test]
fn gaps_are_not_time() {
    let mut recorded = hourly(RecordedResource::Cpu, &[100; 10]);
    for sample in &mut recorded.pods[0][5..] {
        sample.time += 1000 * HOUR;
    }
    let measures = measure(&recorded, EstimatorKind::Vpa, &plain(), PACE);
    assert!((measures.pod_days - 9.0 / 24.0).abs() < 1e-12, "{measures:?}");
}

#[test]
fn what_is_shorter_than_the_warm_up_is_not_measured() {
    let pace = Pace { warm_up_ns: 24 * HOUR, ..PACE };
    for amounts in [&[][..], &[5], &[5; 24]] {
        let recorded = hourly(RecordedResource::Memory, amounts);
        assert_eq!(backtest(&recorded, EstimatorKind::Vpa, &plain(), pace), None);
    }
    assert!(
        backtest(&hourly(RecordedResource::Memory, &[5; 25]), EstimatorKind::Vpa, &plain(), pace).is_some()
    );
}

#[test]
fn recordings_together_weigh_by_their_time() {
    let outcome = |pod_days, relative_slack, ooms| Outcome {
        name: "x".into(),
        resource: RecordedResource::Memory,
        estimator: EstimatorKind::Max,
        measures: Measures { days: pod_days, pod_days, relative_slack, ooms, ..Measures::default() },
    };
    let all = overall(&[outcome(1.0, 0.1, 1), outcome(3.0, 0.5, 2)]);
    assert_eq!(all.len(), 1);
    let Measures { pod_days, relative_slack, ooms, ooms_per_pod_day, .. } = all[0].measures;
    assert!((relative_slack - 0.4).abs() < 1e-12);
    assert_eq!((pod_days, ooms, ooms_per_pod_day), (4.0, 3, 0.75));
}

proptest! {
    #[test]
    fn measures_are_always_figures(
        samples in prop::collection::vec(prop::collection::vec((1_i64..100_000_000_000_000, 0..AMOUNT_MAX), 0..40), 1..4),
        step in 1_i64..200_000_000_000_000,
        warm_up in 0_i64..200_000_000_000_000,
        is_cpu in any::<bool>(),
    ) {
        let resource = if is_cpu { RecordedResource::Cpu } else { RecordedResource::Memory };
        let pod = |steps: Vec<(i64, Amount)>| {
            let mut time = 0;
            steps.into_iter().map(|(later, amount)| { time += later; RecordedSample { time, amount } }).collect()
        };
        let recorded = Recorded { name: "x".into(), resource, pods: samples.into_iter().map(pod).collect() };
        let pace = Pace { step_ns: step, warm_up_ns: warm_up };
        for kind in EstimatorKind::ALL {
            let outcome = backtest(&recorded, kind, &RecommenderSettings::default(), pace);
            prop_assert_eq!(&outcome, &backtest(&recorded, kind, &RecommenderSettings::default(), pace));
            let Some(Outcome { measures, .. }) = outcome else { continue };
            prop_assert!((0.0..=1.0).contains(&measures.overrun_share));
            prop_assert!(measures.relative_slack <= 1.0 && measures.pod_days > 0.0 && measures.days > 0.0);
            prop_assert!(measures.mean_limit > 0.0 && measures.changes_per_day.is_finite());
            prop_assert_eq!(measures.ooms > 0, !is_cpu && measures.overrun_share > 0.0);
        }
    }

    #[test]
    fn nothing_of_the_future_is_known(
        amounts in prop::collection::vec(0_i64..10_000, 3..60), later in prop::collection::vec(0_i64..1_000_000, 1..20),
    ) {
        /// Records the limits of an estimator.
        struct Listening(Box<dyn BacktestEstimator>, Vec<Option<Amount>>);
        impl BacktestEstimator for Listening {
            fn observe(&mut self, pod: usize, time: UnixNanos, amount: Amount) { self.0.observe(pod, time, amount) }
            fn oom(&mut self, pod: usize, time: UnixNanos, limit: Amount) { self.0.oom(pod, time, limit) }
            fn limit(&mut self, now: UnixNanos) -> Option<Amount> {
                self.1.push(self.0.limit(now));
                *self.1.last()?
            }
        }
        for kind in EstimatorKind::ALL {
            let said = |amounts: &[Amount]| {
                let mut listening = Listening(kind.build(RecordedResource::Cpu, &plain()), Vec::new());
                replay(&hourly(RecordedResource::Cpu, amounts), &mut listening, PACE);
                listening.1
            };
            let (short, long) = (said(&amounts), said(&[&amounts[..], &later].concat()));
            prop_assert_eq!(&short[..], &long[..short.len()]);
        }
    }
}
