//! Reading usage from a real Prometheus, whose data is made by `promtool`. Both are in Debian's package `prometheus`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use berth_model::ConfigDuration;
use berth_prometheus::{
    LabelNames, PrometheusConfig, PrometheusSource, QueriedNamespaces, ReadSummary, RequestSource, Series,
    SignalKind, Skip,
};
use berth_rightsizing::usage::{Sample, UsageKind};
use berth_testenv::Process;
use jiff::Timestamp;
use tempfile::TempDir;

use crate::support::http;

const NOW: i64 = 1_700_000_000;
const HOUR: i64 = 3_600;
const SCRAPE_INTERVAL: i64 = 300;
/// Hours of history to read.
const HOURS: i64 = 48;
/// The hour in which a container has no data, and one whose memory is NaN.
const GAP: i64 = 20;
const NOT_A_NUMBER: i64 = 30;
/// The hour after which one container has restarted with other labels.
const STARTED_AGAIN: i64 = 25;

/// Kind, namespace, pod and container.
type Key = (UsageKind, String, String, String);
type Usage = BTreeMap<Key, Vec<(i64, f64)>>;

/// Returns the cores of the container with this number in the hour that ends at `hour`; different for each.
fn cores(number: i64, hour: i64) -> f64 {
    (1 + number) as f64 * 0.25 + ((hour + 48) % 7) as f64 * 0.125
}

/// Bytes at the end of an hour.
fn bytes(number: i64, hour: i64) -> f64 {
    (100_000_001 * (number + 1) + 4_099 * (hour + 48)) as f64
}

fn hour_end(hour: i64) -> i64 {
    NOW - (HOURS - hour) * HOUR
}

/// The data written, and the data that berth should read.
struct Written {
    openmetrics: String,
    expected: Usage,
}

/// Writes four namespaces with a pod of two containers each, and other series of cAdvisor.
fn write() -> Written {
    let (mut cpu, mut memory, mut expected) = (String::new(), String::new(), Usage::new());
    for number in 0..8 {
        let namespace = format!("team-{}", number / 2);
        let container = ["app", "sidecar"][usize::try_from(number % 2).expect("small")];
        let key = |kind| (kind, namespace.clone(), "pod-0".to_owned(), container.to_owned());
        // An hour before the first point, so that its rate has a whole window.
        let mut total = 0.0;
        for step in 0..=(HOURS + 1) * HOUR / SCRAPE_INTERVAL {
            let at = hour_end(-1) + step * SCRAPE_INTERVAL;
            // The hour that ends at its number has the steps up to its end.
            let hour = (step * SCRAPE_INTERVAL + HOUR - 1).div_euclid(HOUR) - 1;
            if step > 0 {
                total += cores(number, hour) * SCRAPE_INTERVAL as f64;
            }
            if number == 0 && hour == GAP {
                continue;
            }
            let id = if number == 1 && hour > STARTED_AGAIN { "b" } else { "a" };
            for (container, id) in [(container, id), ("POD", "c"), ("", "d")] {
                let labels = format!(
                    r#"{{namespace="{namespace}",pod="pod-0",container="{container}",id="/{id}{number}",job="kubelet",node="n"}}"#
                );
                let is_bad = number == 2 && hour == NOT_A_NUMBER;
                let gauge = if is_bad { f64::NAN } else { bytes(number, hour) };
                writeln!(cpu, "container_cpu_usage_seconds_total{labels} {total} {at}").expect("a text");
                writeln!(memory, "container_memory_working_set_bytes{labels} {gauge} {at}").expect("a text");
            }
        }
        for hour in 0..=HOURS {
            let at = hour_end(hour);
            if !(number == 0 && hour == GAP) {
                expected.entry(key(UsageKind::Cpu)).or_default().push((at, cores(number, hour)));
                if !(number == 2 && hour == NOT_A_NUMBER) {
                    expected.entry(key(UsageKind::Memory)).or_default().push((at, bytes(number, hour)));
                }
            }
        }
    }
    let openmetrics = format!(
        "# TYPE container_cpu_usage_seconds counter\n{cpu}# TYPE container_memory_working_set_bytes gauge\n{memory}# EOF\n"
    );
    Written { openmetrics, expected }
}

/// Ends with its owner.
pub struct Prometheus {
    pub url: String,
    _process: Process,
    _folder: TempDir,
}

/// Starts one with these data, on a loopback port, and with these flags.
pub async fn start(openmetrics: &str, flags: &[&str]) -> Prometheus {
    start_with(|out| out.write_all(openmetrics.as_bytes()), flags).await
}

/// Same as [`Prometheus::start`], for data too large for a string.
pub async fn start_with(
    write: impl FnOnce(&mut dyn std::io::Write) -> std::io::Result<()>,
    flags: &[&str],
) -> Prometheus {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let mut data = BufWriter::new(File::create(path("data.txt")).expect("data"));
    write(&mut data).and_then(|()| data.flush()).expect("data");
    backfill(&path("data.txt"), &path("data"));
    std::fs::remove_file(path("data.txt")).expect("data that is not needed any more");
    serve(folder, "scrape_configs: []\n", flags).await
}

/// No series.
pub const NOTHING: &str = "# EOF\n";

/// Starts an empty one that scrapes this address every second.
pub async fn start_scraping(address: SocketAddr) -> Prometheus {
    start_scraping_after(NOTHING, address).await
}

/// Starts one with these data from before, that scrapes this address every second.
pub async fn start_scraping_after(openmetrics: &str, address: SocketAddr) -> Prometheus {
    let config = format!(
        "global: {{scrape_interval: 1s, scrape_timeout: 1s}}\nscrape_configs:\n- job_name: model\n  static_configs:\n  - targets: ['{address}']\n"
    );
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("data.txt"), openmetrics).expect("data");
    backfill(&path("data.txt"), &path("data"));
    serve(folder, &config, &[]).await
}

async fn serve(folder: TempDir, config: &str, flags: &[&str]) -> Prometheus {
    // As `berth` itself does at its start; another test may have been faster.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("prometheus.yml"), config).expect("a configuration");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let url = format!("http://{address}");
    let mut args = vec![
        format!("--config.file={}", path("prometheus.yml").display()),
        format!("--storage.tsdb.path={}", path("data").display()),
        format!("--web.listen-address={address}"),
    ];
    args.extend(flags.iter().map(|flag| (*flag).to_owned()));
    let mut process =
        Process::start("prometheus", Path::new("prometheus"), args, path("log")).expect("a shell");
    let ready = format!("{url}/-/ready");
    let is_ready =
        || async { http().get(&ready).send().await.is_ok_and(|answer| answer.status().is_success()) };
    if let Err(error) = process.await_ready(Duration::from_secs(60), is_ready).await {
        panic!("{error:#}");
    }
    Prometheus { url, _process: process, _folder: folder }
}

fn backfill(openmetrics: &Path, data: &Path) {
    let promtool = Command::new("promtool")
        // It reads everything again for each block.
        .args(["tsdb", "create-blocks-from", "openmetrics", "--max-block-duration=500h"])
        .args([openmetrics, data])
        .output()
        .expect("promtool");
    assert!(promtool.status.success(), "{}", String::from_utf8_lossy(&promtool.stderr));
}

impl Prometheus {
    fn source(&self, parallelism: u32) -> PrometheusSource {
        PrometheusSource::new(PrometheusConfig {
            url: self.url.clone(),
            history_length: ConfigDuration::from_secs(HOURS.unsigned_abs() * 3_600),
            live_window: ConfigDuration::from_secs(1_800),
            parallelism,
            ..PrometheusConfig::default()
        })
        .expect("a valid configuration")
    }
}

fn now() -> Timestamp {
    Timestamp::from_second(NOW).expect("a time")
}

/// Adds a series to the results, and checks that its timestamps increase.
fn keep(usage: &mut Usage, kind: UsageKind, series: Series<'_>) {
    let Series { namespace, pod, container, samples } = series;
    let key = (kind, namespace.to_owned(), pod.to_owned(), container.to_owned());
    let kept = usage.entry(key).or_default();
    for Sample { at, value } in samples {
        let at = *at as i64;
        assert!(kept.last().is_none_or(|(last, _)| *last < at), "{namespace}/{pod}/{container}: {at}");
        kept.push((at, *value));
    }
}

/// Memory must be equal; a rate may have rounding errors.
fn assert_same(read: &Usage, expected: &Usage) {
    assert_eq!(read.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (key, expected) in expected {
        let read = &read[key];
        let times = |samples: &[(i64, f64)]| samples.iter().map(|(at, _)| *at).collect::<Vec<_>>();
        assert_eq!(times(read), times(expected), "{key:?}");
        for ((at, read), (_, expected)) in read.iter().zip(expected) {
            let is_same = match key.0 {
                UsageKind::Memory => read == expected,
                UsageKind::Cpu => (read - expected).abs() <= 1e-9,
            };
            assert!(is_same, "{key:?} at {at}: {read}, not {expected}");
        }
    }
}

fn of_namespaces(usage: &Usage, wanted: &[String]) -> Usage {
    usage
        .iter()
        .filter(|(key, _)| wanted.contains(&key.1))
        .map(|(key, samples)| (key.clone(), samples.clone()))
        .collect()
}

/// Removes rates around hours in which a container changed, which are defined by Prometheus.
fn without_odd_rates(mut usage: Usage) -> Usage {
    for ((kind, namespace, ..), samples) in &mut usage {
        if *kind == UsageKind::Cpu && namespace == "team-0" {
            let odd = [GAP, GAP + 1, STARTED_AGAIN, STARTED_AGAIN + 1].map(hour_end);
            samples.retain(|(at, _)| !odd.contains(at));
        }
    }
    usage
}

#[tokio::test]
async fn a_real_prometheus_gives_the_history_that_was_written_in_order_and_of_the_wanted_namespaces() {
    needs!("prometheus", "promtool");
    let Written { openmetrics, expected } = write();
    let prometheus = start(&openmetrics, &[]).await;
    let wanted = ["team-2", "team-0", "team-1"].map(str::to_owned);
    for parallelism in [1, 3] {
        let source = prometheus.source(parallelism);
        source.check(now()).await.expect("it answers");
        assert_eq!(source.labels(now()).await.expect("it answers"), LabelNames::modern());
        let mut read = Usage::new();
        let history = source
            .history(QueriedNamespaces::These(&wanted), now(), |kind, series| keep(&mut read, kind, series));
        let summary = history.await.expect("a history");
        assert_same(&without_odd_rates(read), &without_odd_rates(of_namespaces(&expected, &wanted)));
        // Four slices, two kinds.
        assert_eq!((summary.queries, summary.warnings.len()), (8, 0));
        assert_eq!(summary.skipped.get(Skip::NotFinite), 1);
    }

    let source = prometheus.source(2);
    let mut read = Usage::new();
    let latest = source.latest(QueriedNamespaces::All, now(), |kind, series| keep(&mut read, kind, series));
    let summary = latest.await.expect("the newest samples");
    assert_eq!((summary.series, summary.samples), (16, 16));
    let newest =
        expected.into_iter().map(|(key, samples)| (key, samples[samples.len() - 1..].to_vec())).collect();
    assert_same(&read, &newest);

    let nobody = ["team-9".to_owned()];
    let none =
        source.history(QueriedNamespaces::These(&nobody), now(), |_, _| panic!("nothing was written")).await;
    assert_eq!(none.expect("a history"), ReadSummary { queries: 8, ..ReadSummary::default() });
}

#[tokio::test]
async fn a_real_prometheus_that_loads_few_samples_gives_the_same_history_in_shorter_slices() {
    needs!("prometheus", "promtool");
    let Written { openmetrics, expected } = write();
    let prometheus = start(&openmetrics, &["--query.max-samples=80"]).await;
    let source = prometheus.source(2);
    let mut read = Usage::new();
    let history = source.history(QueriedNamespaces::All, now(), |kind, series| keep(&mut read, kind, series));
    let summary = history.await.expect("a history");
    assert_same(&without_odd_rates(read), &without_odd_rates(expected));
    let counters = source.counters();
    assert!(counters.halved() > 0 && summary.queries > 8, "{counters:?}");
    assert_eq!(counters.requests()[&422].count, counters.halved());
    assert_eq!(counters.samples(), summary.samples);
}

/// Writes half an hour of requests to three workloads of a namespace, with the labels of the source: one in ten requests to `web` fails
/// and one in ten takes up to 250 ms instead of up to 100 ms; all requests to `down` fail, and none to `fine`.
fn write_requests(source: RequestSource) -> String {
    let (buckets, count, bounds, of_server, of_client) = match source {
        RequestSource::Istio => (
            "istio_request_duration_milliseconds_bucket",
            "istio_requests_total",
            ["100", "250", "+Inf"],
            r#"reporter="destination""#,
            Some(r#"reporter="source""#),
        ),
        RequestSource::Linkerd => (
            "response_latency_ms_bucket",
            "response_total",
            ["100", "250", "+Inf"],
            r#"direction="inbound""#,
            Some(r#"direction="outbound""#),
        ),
        RequestSource::OpenTelemetry => (
            "http_server_request_duration_seconds_bucket",
            "http_server_request_duration_seconds_count",
            ["0.1", "0.25", "+Inf"],
            r#"job="shop/web""#,
            None,
        ),
    };
    let workload = |name: &str, pod: &str| match (source, name) {
        (RequestSource::Istio, _) => {
            format!(r#"destination_workload_namespace="shop",destination_workload="{name}",pod="{pod}""#)
        }
        (RequestSource::Linkerd, "down") => format!(r#"namespace="shop",statefulset="{name}",pod="{pod}""#),
        (RequestSource::Linkerd, _) => format!(r#"namespace="shop",deployment="{name}",pod="{pod}""#),
        (RequestSource::OpenTelemetry, "down") => {
            format!(r#"k8s_namespace_name="shop",k8s_statefulset_name="{name}",k8s_pod_name="{pod}""#)
        }
        (RequestSource::OpenTelemetry, _) => format!(
            r#"k8s_namespace_name="shop",k8s_deployment_name="{name}",k8s_replicaset_name="{name}-1",k8s_pod_name="{pod}""#
        ),
    };
    let result = |fails: bool| match (source, fails) {
        (RequestSource::Istio, true) => r#"response_code="503""#,
        (RequestSource::Istio, false) => r#"response_code="200""#,
        (RequestSource::Linkerd, true) => r#"classification="failure""#,
        (RequestSource::Linkerd, false) => r#"classification="success""#,
        (RequestSource::OpenTelemetry, true) => r#"http_response_status_code="500""#,
        (RequestSource::OpenTelemetry, false) => r#"http_response_status_code="200""#,
    };
    let mut text = String::new();
    // Requests a second, by result.
    for (name, by_result) in
        [("web", &[(true, 1.0), (false, 9.0)][..]), ("down", &[(true, 5.0)]), ("fine", &[(false, 2.0)])]
    {
        for (pod, (side, share)) in
            [("a", (Some(of_server), 0.9)), ("b", (Some(of_server), 0.9)), ("c", (of_client, 0.0))]
        {
            let Some(side) = side else { continue };
            for (fails, rate) in by_result {
                let labels = format!("{},{side},{}", workload(name, pod), result(*fails));
                for at in (NOW - 1_800..=NOW).step_by(60) {
                    let total = rate * (at - NOW + 1_800) as f64;
                    writeln!(text, "{count}{{{labels}}} {total} {at}").expect("memory");
                    for (bound, share) in bounds.iter().zip([share, 1.0, 1.0]) {
                        writeln!(text, r#"{buckets}{{{labels},le="{bound}"}} {} {at}"#, total * share)
                            .expect("memory");
                    }
                }
            }
        }
    }
    text + "# EOF\n"
}

#[tokio::test]
async fn latencies_and_failures_are_read_as_meshes_and_opentelemetry_write_them() {
    needs!("prometheus", "promtool");
    for from in RequestSource::ALL {
        let prometheus = start(&write_requests(from), &[]).await;
        let source = PrometheusSource::new(PrometheusConfig {
            url: prometheus.url.clone(),
            live_window: ConfigDuration::from_secs(300),
            labels: Some(LabelNames::modern()),
            ..PrometheusConfig::default()
        });
        let source = source.expect("a valid configuration");
        let names = ["shop".to_owned()];
        let read = async |kind| {
            let read = source.signal(kind, QueriedNamespaces::These(&names), now()).await;
            let values = read.expect("it answers").0;
            ["web", "down", "fine"].map(|name| {
                let value =
                    values.of("shop", name, []).unwrap_or_else(|| panic!("{from:?}: {kind:?} of {name}"));
                (value.value * 1e6).round() / 1e6
            })
        };
        assert_eq!(read(SignalKind::RequestLatency(from)).await, [175.0; 3], "{from:?}");
        assert_eq!(read(SignalKind::SuccessRate(from)).await, [0.9, 0.0, 1.0], "{from:?}");
    }
}
