//! Prometheus, as far as berth asks it, and its faults.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::response::{IntoResponse, Response};
use berth_model::ConfigDuration;
use berth_test_support::prometheus::{Fake, RecordedRequest, matrix, scalar, vector};
use parking_lot::Mutex;

use super::clock::DayClock;
use super::services::{Containers, Scrape};

/// Maximum age of the newest sample of a series, in seconds, as in Prometheus.
const LOOKBACK_S: i64 = 300;

/// What is wrong with the answers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fault {
    /// Errors instead.
    Down,
    /// Series are gone.
    Empty,
    NotANumber,
    /// All is zero.
    Zero,
    Thousandfold,
    /// What happened in these last seconds is not known yet.
    Late(i64),
}

pub const FAULTS: [Fault; 7] = [
    Fault::Down,
    Fault::Late(90),
    Fault::Zero,
    Fault::Empty,
    Fault::Thousandfold,
    Fault::NotANumber,
    Fault::Late(400),
];

/// What Prometheus knows.
#[derive(Default)]
pub struct Known {
    pub containers: Containers,
    /// By service: times and milliseconds.
    pub latencies: BTreeMap<&'static str, Vec<(i64, f64)>>,
    pub fault: Option<Fault>,
    /// Queries that it does not understand.
    pub odd: Vec<String>,
}

/// Its own clock is right.
pub async fn serve(known: Arc<Mutex<Known>>, clock: DayClock) -> Fake {
    Fake::start(move |_, asked| answer(&mut known.lock(), asked, clock.now_s())).await
}

fn answer(known: &mut Known, asked: &RecordedRequest, now: i64) -> Response {
    if known.fault == Some(Fault::Down) {
        // At once, as the clock stands still.
        return (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "0")]).into_response();
    }
    if asked.is_time() {
        let time = match known.fault {
            Some(Fault::Empty) => return vector("").into_response(),
            Some(Fault::NotANumber | Fault::Zero) => 0,
            Some(Fault::Thousandfold) => 1_000 * now,
            _ => now,
        };
        return scalar(time).into_response();
    }
    let is_range = asked.path.ends_with("query_range");
    let times = match is_range {
        true => asked.times(),
        false => vec![asked.form["time"].parse::<f64>().expect("a time") as i64],
    };
    let mut results: BTreeMap<String, Vec<(i64, f64)>> = BTreeMap::new();
    for time in times {
        for (labels, value) in evaluate(known, asked.query(), time) {
            let value = match known.fault {
                Some(Fault::Empty) => continue,
                Some(Fault::NotANumber) => f64::NAN,
                Some(Fault::Zero) => 0.0,
                Some(Fault::Thousandfold) => value * 1_000.0,
                _ => value,
            };
            results.entry(labels).or_default().push((time, value));
        }
    }
    let results = results.into_iter().map(|(labels, points)| {
        let points: Vec<String> =
            points.iter().map(|(time, value)| format!(r#"[{time},"{value}"]"#)).collect();
        match is_range {
            true => format!(r#"{{"metric":{{{labels}}},"values":[{}]}}"#, points.join(",")),
            false => format!(r#"{{"metric":{{{labels}}},"value":{}}}"#, points[0]),
        }
    });
    let results = results.collect::<Vec<_>>().join(",");
    if is_range { matrix(&results) } else { vector(&results) }.into_response()
}

/// Returns labels and values of all results at a time.
fn evaluate(known: &mut Known, query: &str, time: i64) -> Vec<(String, f64)> {
    let late_s = match known.fault {
        Some(Fault::Late(seconds)) => seconds,
        _ => 0,
    };
    let window = window_s(query);
    let mut results = Vec::new();
    if query.starts_with("count(") {
        return vec![(String::new(), 1.0)];
    }
    if query.starts_with("quantile(") {
        return vec![(String::new(), LOOKBACK_S as f64 / super::services::SCRAPE_S as f64)];
    }
    if query.contains("istio_requests_total") || query.contains("istio_request_duration") {
        let is_latency = query.contains("istio_request_duration");
        for (service, points) in &known.latencies {
            let newest = points.last().map_or(time, |last| last.0 - late_s).min(time);
            let last = points.iter().rev().find(|(at, _)| *at <= newest);
            let labels =
                format!(r#""destination_workload_namespace":"default","destination_workload":"{service}""#);
            if let Some((_, millis)) = last.filter(|(at, _)| time - at < LOOKBACK_S) {
                results.push((labels, if is_latency { *millis } else { 1.0 }));
            }
        }
        return results;
    }
    for (pod, container) in &known.containers {
        let scrapes = &container.scrapes;
        let newest = scrapes.last().map_or(time, |last| last.at - late_s).min(time);
        let of_pod = format!(r#""namespace":"default","pod":"{pod}""#);
        let of_container = format!(r#"{of_pod},"container":"app""#);
        let within = |seconds: i64| {
            let from = scrapes.partition_point(|scrape| scrape.at <= time - seconds);
            let to = scrapes.partition_point(|scrape| scrape.at <= newest);
            scrapes.get(from..to).unwrap_or_default()
        };
        let rate = |of: fn(&Scrape) -> f64| {
            let [first, .., last] = within(window) else { return None };
            Some((of(last) - of(first)) / (last.at - first.at) as f64)
        };
        if query.contains("last_terminated_reason") {
            if container.killed {
                results.push((of_container, 1.0));
            }
        } else if query.contains("container_cpu_usage_seconds_total") {
            results.extend(rate(|scrape| scrape.cpu_s).map(|cores| (of_container, cores)));
        } else if query.contains("max_over_time(container_memory_working_set_bytes") {
            let highest = within(window).iter().map(|scrape| scrape.memory).reduce(f64::max);
            results.extend(highest.map(|bytes| (of_container, bytes)));
        } else if query.contains("container_memory_working_set_bytes") {
            results.extend(within(LOOKBACK_S).last().map(|last| (of_container, last.memory)));
        } else if query.contains("container_cpu_cfs_throttled_periods_total") {
            let part = |name: &str| format!(r#"{of_pod},"berth_part":"{name}""#);
            results.extend(rate(|scrape| scrape.throttled).map(|value| (part("numerator"), value)));
            results.extend(rate(|scrape| scrape.periods).map(|value| (part("denominator"), value)));
        } else {
            known.odd.push(query.to_owned());
            break;
        }
    }
    results
}

/// Returns the window of a query's rates, in seconds.
fn window_s(query: &str) -> i64 {
    let Some((_, rest)) = query.split_once('[') else { return LOOKBACK_S };
    let text = rest.split([']', ':']).next().unwrap_or_default();
    let window: ConfigDuration = text.parse().expect("a duration");
    window.get().as_secs().cast_signed()
}
