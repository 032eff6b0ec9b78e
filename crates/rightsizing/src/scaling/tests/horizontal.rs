//! The controller of the replicas, and the signals that it believes.

use super::super::horizontal::{Controller, SignalUnknown, Wish, signal};
use super::*;

fn settings(rule: ReplicaRule) -> Horizontal {
    Horizontal { setpoint: 10.0, rule, ..Horizontal::default() }
}

#[test]
fn at_the_edges_of_the_dead_band_replicas_stay() {
    let turn = |signal| Controller::default().turn(signal, &settings(ReplicaRule::Proportional));
    assert_eq!([turn(9.0), turn(11.0)], [Wish::Stay; 2], "a tenth on each side");
    assert_eq!([turn(8.9), turn(11.1)], [Wish::Shrink, Wish::Grow]);
}

#[test]
fn at_the_setpoint_replicas_stay_whatever_was_before() {
    for integral in [3.0, -3.0] {
        let mut controller = Controller { integral, error: Some(0.0), ..Controller::default() };
        assert_eq!(controller.turn(10.0, &settings(ReplicaRule::Pid)), Wish::Stay, "{integral}");
    }
}

#[test]
fn three_times_the_setpoint_is_urgent() {
    let turn = |signal| Controller::default().turn(signal, &settings(ReplicaRule::Pid));
    assert_eq!([turn(29.9), turn(30.0)], [Wish::Grow, Wish::GrowFast]);
}

#[test]
fn a_signal_may_be_two_minutes_old_or_ahead() {
    let of = |age: i64| {
        let seen = Point { time_s: START - age, value: 1.0 };
        signal(Some(seen), START, &settings(ReplicaRule::Pid))
    };
    assert_eq!([of(120), of(121)], [Ok(1.0), Err(SignalUnknown::Stale(121))]);
    assert_eq!([of(-120), of(-121)], [Ok(1.0), Err(SignalUnknown::Absurd)]);
}
