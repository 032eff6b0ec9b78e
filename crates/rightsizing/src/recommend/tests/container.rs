//! Upstream's `container_test.go`: which samples become peaks, and what an OOM kill does.

use super::{DAY, Fed, HOUR, MI, SECOND, T0, shapes};
use crate::recommend::aggregate::Aggregate;
use crate::recommend::amount::Amount;
use crate::recommend::histogram::UsageHistogram;
use crate::recommend::settings::RecommenderSettings;
use crate::recommend::time::UnixNanos;

const END: UnixNanos = T0 + DAY;

fn fed() -> Fed {
    Fed::new(RecommenderSettings::default())
}

/// The memory histogram consists of these peaks and nothing else.
fn assert_peaks(fed: &Fed, peaks: &[(Amount, UnixNanos)]) {
    let mut expected = UsageHistogram::new(&shapes(&fed.settings).memory);
    for &(bytes, window_end) in peaks {
        expected.add(bytes as f64, window_end);
    }
    let weights = |histogram: &UsageHistogram| histogram.weights().collect::<Vec<_>>();
    assert_eq!(weights(&fed.aggregate.memory), weights(&expected));
    assert_eq!(fed.aggregate.memory.reference(), expected.reference());
}

#[test]
fn an_oom_without_history_counts_a_fifth_more_than_the_request() {
    let mut fed = fed();
    assert!(fed.oom(1000 * MI, T0));
    assert_peaks(&fed, &[(1200 * MI, END)]);
}

#[test]
fn an_oom_counts_at_least_100_mib_more_than_the_request() {
    let mut fed = fed();
    assert!(fed.oom(MI, T0));
    assert_peaks(&fed, &[(101 * MI, END)]);
}

#[test]
fn ooms_with_lower_requests_change_nothing_and_higher_ones_replace() {
    let mut fed = fed();
    assert!(fed.oom(1000 * MI, T0));
    for _ in 0..2 {
        assert!(fed.oom(999 * MI, T0));
        assert_peaks(&fed, &[(1200 * MI, END)]);
    }
    assert!(fed.oom(2000 * MI, T0));
    assert_peaks(&fed, &[(2400 * MI, END)]);
}

#[test]
fn an_oom_counts_from_the_usage_when_that_is_above_the_request() {
    let mut fed = fed();
    assert!(fed.memory(3000 * MI, T0));
    assert!(fed.oom(1000 * MI, T0));
    assert_peaks(&fed, &[(3600 * MI, END)]);
}

#[test]
fn an_oom_counts_from_the_usage_and_not_from_what_the_last_one_needed() {
    let mut fed = fed();
    assert!(fed.memory(1000 * MI, T0));
    for n in 0..10 {
        assert!(fed.oom(1000 * MI, T0 + n * SECOND));
    }
    assert_peaks(&fed, &[(1200 * MI, END)]);
}

#[test]
fn an_oom_longer_ago_than_a_window_is_refused() {
    let mut fed = fed();
    assert!(fed.memory(1000 * MI, T0));
    assert!(!fed.oom(1000 * MI, T0 - 30 * HOUR));
    assert_peaks(&fed, &[(1000 * MI, END)]);
}

#[test]
fn an_oom_windows_later_opens_the_one_it_falls_into_and_counts_from_the_last_known_peak() {
    let mut fed = fed();
    assert!(fed.memory(2000 * MI, T0));
    assert!(fed.oom(1000 * MI, T0 + 2 * DAY));
    assert_peaks(&fed, &[(2000 * MI, END), (2400 * MI, END + 2 * DAY)]);
}

#[test]
fn an_oom_just_before_the_window_began_counts_in_it() {
    let mut fed = fed();
    assert!(fed.memory(100 * MI, T0));
    assert!(fed.memory(2000 * MI, T0 + DAY), "at the boundary the next window begins");
    assert!(fed.oom(1000 * MI, T0 + DAY - SECOND));
    assert_peaks(&fed, &[(100 * MI, END), (2400 * MI, END + DAY)]);
}

#[test]
fn each_window_has_its_own_peak() {
    let memory_interval = std::time::Duration::from_secs(3600);
    let mut fed = Fed::new(RecommenderSettings { memory_interval, ..RecommenderSettings::default() });
    assert!(fed.memory(5, T0));
    assert!(fed.memory(10, T0 + 2 * HOUR));
    assert_peaks(&fed, &[(5, T0 + HOUR), (10, T0 + 3 * HOUR)]);
}

#[test]
fn within_a_window_only_the_highest_sample_counts() {
    let mut fed = fed();
    for (n, mib) in [300, 200, 700, 400, 700].into_iter().enumerate() {
        assert!(fed.memory(mib * MI, T0 + n as i64 * HOUR));
    }
    assert_peaks(&fed, &[(700 * MI, END)]);
}

#[test]
fn samples_that_are_negative_or_not_newer_are_refused() {
    let mut fed = fed();
    assert!(fed.cpu(100, T0));
    assert!(!fed.cpu(200, T0), "at the same time");
    assert!(!fed.cpu(200, T0 - 1));
    assert!(!fed.cpu(-1000, T0 + HOUR));
    assert!(fed.memory(100, T0));
    assert!(fed.memory(200, T0), "memory may be measured twice at one time");
    assert!(!fed.memory(300, T0 - 1));
    assert!(!fed.memory(-1000, T0 + HOUR));
    assert_eq!((fed.aggregate.cpu_span.count, fed.aggregate.memory_span.count), (1, 2));
}

#[test]
fn an_aggregate_without_samples_adds_none_and_may_have_been_there_for_longer() {
    let mut fed = Fed::new(RecommenderSettings::default()).feed(T0, 3, |_| (100, MI));
    let (cpu, memory) = (fed.aggregate.cpu_span, fed.aggregate.memory_span);
    for (created, expected) in [(T0 + DAY, T0), (T0 - DAY, T0 - DAY)] {
        fed.aggregate.merge(&Aggregate::new(&shapes(&fed.settings), created));
        assert_eq!((fed.aggregate.cpu_span, fed.aggregate.memory_span), (cpu, memory));
        assert_eq!(fed.aggregate.created, expected);
    }
}

#[test]
fn an_aggregate_expires_after_eight_days_without_samples() {
    let rules = RecommenderSettings::default().memory_rules();
    let mut fed = fed();
    let expired = |fed: &Fed, days| fed.aggregate.is_expired(T0 + days * DAY, &rules, false);
    assert!(!expired(&fed, 7), "an empty one lives from when it was made");
    assert!(expired(&fed, 8));
    assert!(fed.cpu(100, T0 + 3 * DAY));
    assert!(!expired(&fed, 10));
    assert!(expired(&fed, 11));
}

#[test]
fn an_aggregate_that_has_only_memory_lives_but_not_for_upstream() {
    let rules = RecommenderSettings::default().memory_rules();
    let mut fed = fed();
    assert!(fed.memory(100, T0 + 3 * DAY));
    assert!(!fed.aggregate.is_expired(T0 + 10 * DAY, &rules, false));
    assert!(fed.aggregate.is_expired(T0 + 11 * DAY, &rules, false));
    assert!(fed.aggregate.is_expired(T0 + 8 * DAY, &rules, true));
}

#[test]
fn a_first_sample_of_nothing_does_not_silence_its_window_but_upstreams() {
    let feed = |strict_upstream| {
        let mut fed = Fed::new(RecommenderSettings { strict_upstream, ..RecommenderSettings::default() });
        for n in 0..60 {
            assert!(fed.memory(if n == 0 { 0 } else { 500 * MI }, T0 + n * 60 * SECOND));
        }
        assert!(fed.oom(512 * MI, T0 + HOUR));
        fed
    };
    assert_peaks(&feed(false), &[(644_245_094, END)]);
    let strict = feed(true);
    assert_peaks(&strict, &[(0, END)]);
    assert_eq!(strict.aggregate.memory.percentile(0.9), 1e7);
}

#[test]
fn an_oom_told_late_does_not_let_samples_count_twice() {
    for strict_upstream in [false, true] {
        let mut fed = Fed::new(RecommenderSettings { strict_upstream, ..RecommenderSettings::default() });
        assert!(fed.memory(100, T0 + HOUR));
        assert!(fed.oom(100, T0));
        assert_eq!(fed.memory(100, T0 + HOUR / 2), strict_upstream);
    }
}
