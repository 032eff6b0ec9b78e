//! Which samples count, and when a size is another one.

use super::super::vertical::{Peaks, UsageUnknown, WindowUsage, differs, is_spare, usage};
use super::*;

const HOUR: i64 = 3_600;

/// The usage from samples of these ages.
fn of_ages(ages: &[i64], points_min: usize) -> Result<WindowUsage, UsageUnknown> {
    let points: Vec<_> = ages.iter().map(|age| Point { time_s: START - age, value: 95.0 }).collect();
    usage(&points, START, 95.0, &Vertical { points_min, ..Vertical::default() })
}

#[test]
fn a_sample_counts_for_the_length_of_the_window_and_up_to_half_a_minute_ahead() {
    let counted = |age| of_ages(&[0, age], 1).expect("one is current").points;
    assert_eq!([299, 300].map(counted), [2, 1]);
    assert_eq!([-30, -31].map(counted), [2, 1]);
}

#[test]
fn five_samples_are_enough_and_the_newest_may_be_two_minutes_old() {
    assert_eq!(of_ages(&[0; 5], 5).map(|usage| usage.points), Ok(5));
    assert_eq!(of_ages(&[0; 4], 5), Err(UsageUnknown::TooFew(4, 5)));
    assert_eq!(of_ages(&[120], 1).map(|usage| usage.points), Ok(1));
    assert_eq!(of_ages(&[121], 1), Err(UsageUnknown::Stale(121)));
}

#[test]
fn a_sample_at_the_threshold_is_throttled() {
    assert_eq!(of_ages(&[0], 1).map(|usage| usage.throttled), Ok(1.0));
}

#[test]
fn half_of_the_samples_may_be_invalid_and_no_more() {
    let with = |invalid: usize| {
        let values = [1.0; 2].into_iter().chain(std::iter::repeat_n(f64::NAN, invalid));
        let points: Vec<_> = values.map(|value| Point { time_s: START, value }).collect();
        usage(&points, START, 0.0, &Vertical { points_min: 1, ..Vertical::default() })
    };
    assert_eq!(with(2).map(|usage| usage.points), Ok(2));
    assert_eq!(with(3), Err(UsageUnknown::Absurd(3, 5)));
}

#[test]
fn a_size_is_at_most_twice_the_largest_sample() {
    let usage =
        WindowUsage { mean: 10.0, deviation: 100.0, max: 50.0, points: 9, covers_s: 300, throttled: 0.0 };
    assert_eq!((usage.size(3.0), usage.size(0.5)), (100, 60));
}

#[test]
fn a_difference_of_exactly_the_minimum_changes_nothing() {
    let settings = Vertical { change: 0.25, ..Vertical::default() };
    assert_eq!([300, 500].map(|wanted| differs(400, wanted, &settings)), [false; 2]);
    assert_eq!([299, 501].map(|wanted| differs(400, wanted, &settings)), [true; 2]);
    assert!(differs(0, 1, &settings), "an unset size");
    assert_eq!([300, 299].map(|enough| is_spare(400, enough, &settings)), [false, true]);
}

#[test]
fn a_peak_counts_for_so_many_hours_with_the_current_one() {
    let left = |at: i64| {
        let mut peaks = Peaks::default();
        peaks.add(at, 7);
        peaks.trim(START, 24);
        peaks.len()
    };
    assert_eq!([23, 24].map(|hours| left(START - hours * HOUR)), [1, 0]);
    assert_eq!([1, 2].map(|hours| left(START + hours * HOUR)), [1, 0], "a clock may be slightly ahead");
}
