use std::time::Instant as Stopwatch;

use berth_test_support::prometheus::{Fake, RecordedRequest, install_provider, scalar, vector};
use tokio::sync::watch;

use super::*;
use crate::clock::Still;

const NOW_S: i64 = 1_700_000_000;
const THROTTLING: Reading = Reading::Signal(SignalKind::CpuThrottling);

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(NOW_S + seconds).unwrap()
}

fn readings(fake: &Fake) -> Readings {
    install_provider();
    let config = PrometheusConfig {
        url: fake.url.clone(),
        labels: Some(Default::default()),
        ..PrometheusConfig::default()
    };
    let (source, clock) = (PrometheusSource::new(config).unwrap(), Clock::new(Still(NOW_S, Arc::default())));
    Readings::new(Source::prometheus(source, clock), Duration::from_secs(15), Arc::default())
}

fn wanted() -> BTreeMap<Reading, Vec<String>> {
    [Reading::Usage, THROTTLING].map(|reading| (reading, vec!["shop".to_owned()])).into()
}

/// Whether it counts scrapes.
fn is_detection(asked: &RecordedRequest) -> bool {
    asked.query().starts_with("quantile(0.5, count_over_time(")
}

/// So many samples in five minutes.
fn scrapes(count: &str) -> String {
    vector(&format!(r#"{{"metric":{{}},"value":[1,"{count}"]}}"#))
}

/// Half of the periods of the pod are throttled.
fn answer(asked: &RecordedRequest) -> String {
    if asked.is_time() {
        return scalar(NOW_S);
    }
    if is_detection(asked) {
        return scrapes("20");
    }
    if !asked.query().contains("throttled") {
        return vector("");
    }
    let half = |part: &str, value: u8| {
        format!(
            r#"{{"metric":{{"namespace":"shop","pod":"p","berth_part":"{part}"}},"value":[{NOW_S},"{value}"]}}"#
        )
    };
    vector(&[half("numerator", 1), half("denominator", 2)].join(","))
}

/// Answers once the switch is on.
async fn start(switch: &watch::Sender<bool>) -> Fake {
    let switch = switch.subscribe();
    Fake::start_async(move |_, asked| {
        let mut switch = switch.clone();
        async move {
            let _ = switch.wait_for(|on| *on).await;
            http::Response::new(answer(&asked).into())
        }
    })
    .await
}

fn soon() -> Instant {
    Instant::now() + Duration::from_millis(50)
}

fn signal(readings: &Readings, now_s: i64) -> Result<Option<f64>, String> {
    let service = serde_json::json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "ServiceScaler",
        "metadata": {"namespace": "shop", "name": "web"},
        "spec": {"target": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}},
    });
    let service = ScaledService::read(&service.to_string()).expect("a ServiceScaler");
    let measured = readings.signal(SignalKind::CpuThrottling, &service, ["p"].into_iter(), NOW_S + now_s);
    measured.map(|measured| measured.map(|it| it.value))
}

#[tokio::test]
async fn a_round_does_not_wait_for_a_prometheus_that_hangs_and_sends_it_no_more_queries() {
    let switch = watch::Sender::new(false);
    let fake = start(&switch).await;
    let mut readings = readings(&fake);
    let began = Stopwatch::now();
    for round in 0..4 {
        readings.start(wanted(), at(15 * round));
        readings.wait(soon()).await;
    }
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    // What time it is.
    while fake.asked().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(fake.asked().len(), 1);
    let slow = "the query for usage is slow: there has been no answer for 45 s";
    assert_eq!(readings.usage_error(NOW_S + 45).as_deref(), Some(slow));
    let slow = slow.replace("usage", "CpuThrottling");
    assert_eq!(signal(&readings, 45), Err(slow));
}

#[tokio::test]
async fn a_late_answer_is_used_by_the_next_round_until_it_is_old() {
    let switch = watch::Sender::new(false);
    let fake = start(&switch).await;
    let mut readings = readings(&fake);
    readings.start(wanted(), at(0));
    readings.wait(soon()).await;
    assert!(signal(&readings, 0).is_err());
    switch.send_replace(true);
    readings.start(wanted(), at(15));
    readings.wait(Instant::now() + Duration::from_secs(60)).await;
    // The time, and that between scrapes; CPU, memory and one signal.
    assert_eq!(fake.asked().len(), 5, "the late reads were not repeated");
    assert_eq!((signal(&readings, 15), readings.usage_error(NOW_S + 15)), (Ok(Some(0.5)), None));
    assert_eq!(signal(&readings, FRESH_S), Ok(Some(0.5)));
    let old = signal(&readings, FRESH_S + 1).unwrap_err();
    assert_eq!(old, "CpuThrottling was not read recently");
}

#[tokio::test]
async fn what_no_service_needs_any_more_is_not_read() {
    let switch = watch::Sender::new(true);
    let fake = start(&switch).await;
    let mut readings = readings(&fake);
    readings.start(wanted(), at(0));
    readings.wait(Instant::now() + Duration::from_secs(60)).await;
    readings.start([(Reading::Usage, vec!["shop".to_owned()])].into(), at(15));
    readings.wait(Instant::now() + Duration::from_secs(60)).await;
    assert!(signal(&readings, 15).is_err());
    let throttled = fake.asked().iter().filter(|asked| asked.query().contains("throttled")).count();
    assert_eq!((throttled, fake.asked().len()), (1, 7));
}

/// A rate over five minutes has no deviation to size by.
#[tokio::test]
async fn usage_and_signals_are_read_as_finely_as_prometheus_scrapes() {
    let cases =
        [("20", "[38s]", "[1m]"), ("5", "[2m30s]", "[2m30s]"), ("2", "[5m]", "[5m]"), ("1", "[5m]", "[5m]")];
    for (count, usage, signals) in cases {
        let fake = Fake::start(move |_, asked| match is_detection(asked) {
            true => scrapes(count),
            false => answer(asked),
        })
        .await;
        let mut readings = readings(&fake);
        for round in 0..2 {
            readings.start(wanted(), at(15 * round));
            readings.wait(Instant::now() + Duration::from_secs(60)).await;
        }
        let asked = fake.asked();
        let windows = |metric: &str, window: &str| {
            let of = asked
                .iter()
                .filter(|asked| asked.query().contains(metric) && asked.query().contains("rate("));
            of.filter(|asked| asked.query().contains(window)).count()
        };
        assert_eq!(windows("cpu_usage", usage), 2, "{count} scrapes: {asked:?}");
        assert_eq!(windows("throttled", signals), 2, "{count} scrapes: {asked:?}");
        let detections = asked.iter().filter(|asked| is_detection(asked)).count();
        assert_eq!(detections, if count == "1" { 4 } else { 1 }, "of two reads in two rounds");
    }
}
