//! Vectors computed by hand, on buckets of one core each; and properties for any usage.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::recommend::buckets::Buckets;
use crate::recommend::settings::RecommenderSettings;

const MINUTE_NS: i64 = 60_000_000_000;
const FIVE_MINUTES: Duration = Duration::from_secs(300);

/// Bucket `k` is from `k` to `k + 1`, which is its end.
fn whole() -> Arc<Buckets> {
    Arc::new(Buckets::linear(100.0, 1.0, 1e-4).expect("buckets"))
}

/// The recommender's buckets.
fn real() -> Arc<Buckets> {
    Arc::new(RecommenderSettings::default().cpu.options().expect("buckets").buckets().clone())
}

/// All samples of an interval.
fn interval(number: i64, buckets: &Arc<Buckets>, values: &[f64]) -> Interval {
    let mut aggregator = Aggregator::new(buckets, false);
    for value in values {
        assert_eq!(aggregator.add(0, number * INTERVAL_NS, *value), None);
    }
    aggregator.close((number + 1) * INTERVAL_NS).expect("it has ended")
}

/// Without margin and hold.
fn bare(statistic: Statistic) -> WindowSettings {
    let cpu = WindowSettings::defaults().cpu;
    let half_life = FIVE_MINUTES;
    WindowSettings { statistic, half_life, margin: 0.0, margin_large: 0.0, hold: FIVE_MINUTES, ..cpu }
}

/// The window's limit after each interval.
fn said(settings: &WindowSettings, intervals: &[Interval]) -> Vec<f64> {
    let mut window = MovingWindow::new(settings.clone(), &whole());
    let mut take = |interval| {
        window.take(interval);
        window.limit().expect("something is known")
    };
    intervals.iter().map(&mut take).collect()
}

#[test]
fn cpu_counts_samples_and_memory_the_peak_of_each_pod() {
    let samples = [(0, 0, 1.5), (0, 1, 3.5), (1, 1, 1.5), (0, 2, 2.5), (1, 4, f64::NAN), (1, 4, -1.0)];
    for (peaks_only, shares, mean) in
        [(false, vec![(1, 0.5), (2, 0.25), (3, 0.25)], 2.25), (true, vec![(1, 0.5), (3, 0.5)], 2.5)]
    {
        let mut aggregator = Aggregator::new(&whole(), peaks_only);
        for (pod, minute, value) in samples {
            assert_eq!(aggregator.add(pod, minute * MINUTE_NS, value), None);
        }
        assert_eq!(aggregator.close(5 * MINUTE_NS - 1), None);
        let next = aggregator.add(0, 5 * MINUTE_NS, 9.5);
        assert_eq!(next, Some(Interval { number: 0, shares, mean }));
        assert_eq!(aggregator.add(0, 0, 1.0), None, "too late");
        let last = aggregator.close(INTERVAL_NS * 7).expect("it has ended");
        assert_eq!((last.number, last.shares), (1, vec![(9, 1.0)]));
        assert_eq!(aggregator.close(i64::MAX), None);
    }
}

#[test]
fn a_percentile_is_of_the_load_not_of_time() {
    let one = [interval(0, &whole(), &[0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 1.5, 8.5])];
    // Loads of 8, 2 and 9, of 19.
    for (j, expected) in [(0.4, 1.0), (0.5, 2.0), (0.53, 9.0), (0.95, 9.0)] {
        assert_eq!(said(&bare(Statistic::Percentile(j)), &one), [expected], "{j}");
    }
    assert_eq!(said(&bare(Statistic::PercentileOrHalfMax(0.4)), &one), [4.5]);
    assert_eq!(said(&bare(Statistic::PercentileOrHalfMax(0.6)), &one), [9.0]);
}

#[test]
fn newer_usage_weighs_more() {
    let two = [interval(0, &whole(), &[0.5]), interval(1, &whole(), &[2.5])];
    let average = said(&bare(Statistic::Average), &two);
    assert_eq!(average, [0.5, (0.5 * 0.5 + 2.5) / 1.5]);
    // Loads of 0.5 and 3.
    assert_eq!(said(&bare(Statistic::Percentile(0.14)), &two), [1.0, 1.0]);
    assert_eq!(said(&bare(Statistic::Percentile(0.15)), &two), [1.0, 3.0]);
    // A missing interval halves once more: loads of 0.25 and 3.
    let late = [two[0].clone(), interval(2, &whole(), &[2.5])];
    assert_eq!(said(&bare(Statistic::Percentile(0.08)), &late), [1.0, 3.0]);
}

#[test]
fn the_maximum_reaches_back_so_far_and_no_further() {
    let values = [7.5, 3.5, 5.5, 1.5, 1.5, 1.5];
    let intervals: Vec<_> = (0..).zip(values).map(|(at, value)| interval(at, &whole(), &[value])).collect();
    let settings = WindowSettings { reach: 3 * FIVE_MINUTES, ..bare(Statistic::Max) };
    assert_eq!(said(&settings, &intervals), [8.0, 8.0, 8.0, 6.0, 6.0, 2.0]);
}

#[test]
fn the_margin_is_smaller_for_what_is_large_and_the_highest_of_an_hour_holds() {
    let hour = Duration::from_secs(3600);
    let settings = WindowSettings {
        margin: 0.15,
        margin_large: 0.1,
        large: 4.0,
        hold: hour,
        ..bare(Statistic::Average)
    };
    let intervals: Vec<_> =
        (0..14).map(|at| interval(at, &whole(), &[if at == 0 { 9.0 } else { 2.0 }])).collect();
    let settings = WindowSettings { half_life: Duration::from_nanos(1), ..settings };
    let said = said(&settings, &intervals);
    assert!((said[0] - (9.0 + 0.6 + 0.5)).abs() < 1e-9, "{said:?}");
    assert_eq!(said[11], said[0]);
    assert!((said[12] - 2.3).abs() < 1e-9, "{said:?}");
}

#[test]
fn by_default_a_maximum_is_of_a_week_and_memory_is_large_from_8_gib() {
    let settings = WindowSettings::defaults();
    let hours = |hours: u64| Duration::from_secs(hours * 3600);
    assert_eq!([settings.cpu.reach, settings.memory.reach], [hours(7 * 24); 2]);
    assert_eq!([settings.cpu.half_life, settings.memory.half_life], [hours(12), hours(48)]);
    assert_eq!([settings.cpu.large, settings.memory.large], [4.0, 8_589_934_592.0]);
}

#[test]
fn a_model_moves_when_that_costs_less_than_to_stay() {
    let settings = EnsembleSettings {
        half_lives: vec![FIVE_MINUTES],
        margins: vec![0.0],
        overrun: 1.0,
        underrun: 0.1,
        limit_change: 0.05,
        ..EnsembleSettings::defaults().cpu
    };
    let mut ensemble = Ensemble::new(settings, &whole());
    assert_eq!(ensemble.limit(), None);
    let mut said = Vec::new();
    // Up immediately: two thirds of the weight are above. Down when less than a twentieth of the weight is, so that
    // a change costs 0.032 + 0.05 and staying 0.097.
    for (at, value) in (0..).zip([2.5, 5.5, 2.5, 2.5, 2.5, 2.5]) {
        ensemble.take(&interval(at, &whole(), &[value]));
        said.push(ensemble.limit().expect("something is known"));
    }
    assert_eq!(said, [3.0, 6.0, 6.0, 6.0, 6.0, 3.0]);
}

#[test]
fn a_margin_is_followed_where_usage_exceeds_what_is_remembered_and_not_where_it_is_steady() {
    let settings = EnsembleSettings {
        half_lives: vec![Duration::from_secs(86_400)],
        margins: vec![0.0, 0.5],
        overrun: 1.0,
        underrun: 0.1,
        limit_change: 0.0,
        model_change: 0.001,
        cost_half_life: FIVE_MINUTES,
    };
    let follow = |values: &dyn Fn(i64) -> Vec<f64>| {
        let mut ensemble = Ensemble::new(settings.clone(), &whole());
        (0..200).for_each(|at| ensemble.take(&interval(at, &whole(), &values(at))));
        ensemble.limit().expect("something is known")
    };
    assert_eq!(follow(&|_| vec![9.5; 10]), 10.0);
    // One sample of 25 is higher: not enough for its bucket, as the 0.04 above cost less than the 0.096 saved
    // below.
    let bursts = |_| {
        let mut values = vec![9.5; 24];
        values.push(13.5);
        values
    };
    assert_eq!(follow(&bursts), 10.0);
    // One interval of 25 is higher in full. Models without a margin have paid for it, until that is forgotten.
    let mut ensemble = Ensemble::new(settings.clone(), &whole());
    let mut limits = Vec::new();
    for at in 0..200 {
        ensemble.take(&interval(at, &whole(), &[if at % 25 == 24 { 13.5 } else { 9.5 }]));
        limits.push(ensemble.limit().expect("something is known"));
    }
    assert_eq!((limits[23], limits[174], limits[198]), (10.0, 15.0, 10.0), "{limits:?}");
}

#[test]
fn intervals_that_come_again_or_late_change_nothing() {
    let intervals = [3, 3, 2, i64::MIN].map(|number| Interval { number, ..interval(0, &whole(), &[5.5]) });
    let mut ensemble = Ensemble::new(EnsembleSettings::defaults().cpu, &whole());
    let mut window = MovingWindow::new(WindowSettings::defaults().cpu, &whole());
    let mut said = Vec::new();
    for interval in &intervals {
        ensemble.take(interval);
        window.take(interval);
        said.push((ensemble.limit(), window.limit()));
    }
    assert!(said.iter().all(|each| *each == said[0]), "{said:?}");
    window.take(&Interval { number: i64::MAX, ..intervals[0].clone() });
    assert!(window.limit().is_some_and(f64::is_finite));
}

#[test]
fn without_a_model_nothing_is_said() {
    for (half_lives, margins) in [(vec![], vec![0.1]), (vec![FIVE_MINUTES], vec![])] {
        let settings = EnsembleSettings { half_lives, margins, ..EnsembleSettings::defaults().cpu };
        let mut ensemble = Ensemble::new(settings, &whole());
        ensemble.take(&interval(0, &whole(), &[5.5]));
        assert_eq!(ensemble.limit(), None);
    }
}

#[test]
fn what_is_kept_for_one_container_is_small() {
    let (mut window, mut ensemble) = (
        MovingWindow::new(WindowSettings::defaults().cpu, &real()),
        Ensemble::new(EnsembleSettings::defaults().cpu, &real()),
    );
    let fill = |window: &mut MovingWindow, ensemble: &mut Ensemble, buckets: i64, range: f64| {
        for at in 0..2 * buckets {
            let value = 0.3 * range.powf((at % buckets) as f64 / buckets as f64);
            let interval = interval(at, &real(), &[value, value * 1.1]);
            window.take(&interval);
            ensemble.take(&interval);
        }
    };
    fill(&mut window.clone(), &mut ensemble.clone(), 1, 1.0);
    fill(&mut window, &mut ensemble, 100, 4.0);
    println!(
        "4 times between lowest and highest: {} and {} bytes",
        window.heap_bytes(),
        ensemble.heap_bytes()
    );
    assert!(window.heap_bytes() < 2 << 10, "{}", window.heap_bytes());
    assert!(ensemble.heap_bytes() < 5 << 10, "{}", ensemble.heap_bytes());
    fill(&mut window, &mut ensemble, 1000, 3000.0);
    assert!(window.heap_bytes() < 10 << 10, "{}", window.heap_bytes());
    assert!(ensemble.heap_bytes() < 20 << 10, "{}", ensemble.heap_bytes());
}

/// One of each.
fn limits(intervals: &[Vec<f64>]) -> Vec<(f64, f64)> {
    let mut window = MovingWindow::new(WindowSettings::defaults().cpu, &real());
    let mut ensemble = Ensemble::new(EnsembleSettings::defaults().cpu, &real());
    let mut take = |(at, values): (i64, &Vec<f64>)| {
        let interval = interval(at, &real(), values);
        window.take(&interval);
        ensemble.take(&interval);
        (window.limit().expect("a limit"), ensemble.limit().expect("a limit"))
    };
    (0..).zip(intervals).map(&mut take).collect()
}

fn usage() -> impl Strategy<Value = Vec<Vec<f64>>> {
    prop::collection::vec(prop::collection::vec(0.0_f64..50.0, 1..6), 1..60)
}

proptest! {
    // Two weeks each.
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn usage_that_never_changes_gives_one_limit_that_never_changes_again(value in 0.001_f64..900.0, before in usage()) {
        let constant = limits(&vec![vec![value; 3]; 50]);
        prop_assert!(constant.iter().all(|limit| *limit == constant[0]), "{:?}", constant);
        let (window, ensemble) = constant[0];
        prop_assert!(window >= value && ensemble >= value && ensemble <= window);
        // Any other history converges to the same: for a week it is as if it had never happened.
        let mut usage = before;
        usage.extend(vec![vec![value]; 2 * 7 * 288]);
        let last = limits(&usage);
        let settled = &last[last.len() - 288..];
        prop_assert!(settled.iter().all(|limit| *limit == settled[0]));
        prop_assert!((settled[0].0, settled[0].1) == constant[0], "{:?} and {:?}", settled[0], constant[0]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_limit_is_between_the_least_and_the_most_that_was_used_but_for_margins(usage in usage()) {
        let buckets = real();
        let (mut least, mut most) = (f64::INFINITY, 0.0_f64);
        for (values, (window, ensemble)) in usage.iter().zip(limits(&usage)) {
            for value in values {
                least = least.min(*value);
                most = most.max(buckets.end(buckets.find(*value)));
            }
            prop_assert!(window >= least && window <= most * 1.15 + 1e-9, "{} of {} to {}", window, least, most);
            // The margin is 40 % at most, rounded up by a bucket of 5 %.
            prop_assert!(ensemble >= least && ensemble <= most * 1.4 * 1.06 + 0.011, "{} of {} to {}", ensemble, least, most);
        }
    }

    #[test]
    fn more_of_a_constant_or_a_higher_percentile_is_never_a_lower_limit(
        usage in usage(), one in 0.001_f64..500.0, other in 0.001_f64..500.0, low in 0.0_f64..1.0, high in 0.0_f64..1.0,
    ) {
        let of = |value: f64| limits(&vec![vec![value; 2]; 3])[2];
        let ((window, ensemble), (window_more, ensemble_more)) = (of(one.min(other)), of(one.max(other)));
        prop_assert!(window <= window_more && ensemble <= ensemble_more);
        let percentile = |j: f64| {
            let mut window = MovingWindow::new(bare(Statistic::Percentile(j)), &real());
            (0..).zip(&usage).for_each(|(at, values)| window.take(&interval(at, &real(), values)));
            window.limit()
        };
        prop_assert!(percentile(low.min(high)) <= percentile(low.max(high)));
    }

    #[test]
    fn whatever_the_settings_a_limit_is_a_number(
        usage in usage(), weights in prop::collection::vec(prop::num::f64::ANY, 6), half_life in any::<u64>(),
    ) {
        let half_life = Duration::from_nanos(half_life);
        let settings = EnsembleSettings {
            half_lives: vec![half_life, Duration::ZERO],
            margins: vec![weights[0], 0.1],
            overrun: weights[1],
            underrun: weights[2],
            limit_change: weights[3],
            model_change: weights[4],
            cost_half_life: half_life,
        };
        let mut ensemble = Ensemble::new(settings, &real());
        let statistic = Statistic::Percentile(weights[5]);
        let mut window = MovingWindow::new(WindowSettings { half_life, statistic, ..WindowSettings::defaults().cpu }, &real());
        for (at, values) in (0..).zip(&usage) {
            ensemble.take(&interval(at, &real(), values));
            window.take(&interval(at, &real(), values));
            prop_assert!(ensemble.limit().is_none_or(f64::is_finite), "{:?}", ensemble.limit());
            prop_assert!(window.limit().is_none_or(f64::is_finite), "{:?}", window.limit());
        }
    }
}
