//! Tests of the upstream flags.

use clap::Parser;

use super::*;
use berth_model::ConfigDuration;

/// Every flag of the recommender 1.8.1, of its `docs/flags.md`.
const UPSTREAM: &str = "\
    add-dir-header address alsologtostderr alsologtostderrthreshold checkpoints-gc-interval \
    checkpoints-timeout confidence-interval-cpu confidence-interval-memory container-name-label \
    container-namespace-label container-pod-name-label container-recommendation-max-allowed-cpu \
    container-recommendation-max-allowed-memory cpu-histogram-decay-half-life \
    cpu-integer-post-processor-enabled external-metrics-cpu-metric external-metrics-memory-metric \
    feature-gates history-cpu-metric history-length history-memory-metric history-resolution \
    humanize-memory ignored-vpa-object-namespaces kube-api-burst kube-api-qps kubeconfig leader-elect \
    leader-elect-lease-duration leader-elect-renew-deadline leader-elect-resource-lock \
    leader-elect-resource-name leader-elect-resource-namespace leader-elect-retry-period \
    legacy-stderr-threshold-behavior log-backtrace-at log-dir log-file log-file-max-size logtostderr \
    memory-aggregation-interval memory-aggregation-interval-count memory-histogram-decay-half-life \
    memory-saver metric-for-pod-labels min-checkpoints one-output oom-bump-up-ratio oom-min-bump-up-bytes \
    password pod-label-prefix pod-name-label pod-namespace-label pod-recommendation-min-cpu-millicores \
    pod-recommendation-min-memory-mb profiling prometheus-address prometheus-bearer-token \
    prometheus-bearer-token-file prometheus-cadvisor-job-name prometheus-insecure prometheus-query-timeout \
    recommendation-lower-bound-cpu-percentile recommendation-lower-bound-memory-percentile \
    recommendation-margin-fraction recommendation-upper-bound-cpu-percentile \
    recommendation-upper-bound-memory-percentile recommender-interval recommender-name round-cpu-millicores \
    round-memory-bytes skip-headers skip-log-headers stderrthreshold storage target-cpu-percentile \
    target-memory-percentile update-worker-count use-external-metrics username v vmodule \
    vpa-object-namespace";

/// Flags of berth with the same name and meaning.
const OWN: [&str; 2] = ["kubeconfig", "leader-elect"];

#[derive(Debug, Parser)]
struct Run {
    #[command(flatten)]
    options: super::super::RunOptions,
}

fn parse(arguments: &[&str]) -> Result<UpstreamFlags, clap::Error> {
    Run::try_parse_from([&["berth"], arguments].concat()).map(|run| run.options.upstream)
}

fn apply_to(config: &mut Config, arguments: &[&str]) -> Result<Vec<String>> {
    parse(arguments).expect("arguments").apply(config, |_| None)
}

fn applied(arguments: &[&str]) -> (Recommender, Vec<String>) {
    let mut config = Config::default();
    config.recommender.enabled = true;
    let notes = apply_to(&mut config, arguments).unwrap_or_else(|error| panic!("{arguments:?}: {error:#}"));
    (config.recommender, notes)
}

fn refused(arguments: &[&str]) -> String {
    let mut config = Config::default();
    apply_to(&mut config, arguments).expect_err("refused").to_string()
}

#[test]
fn every_flag_of_upstream_is_taken_or_explained() {
    let mut ours: Vec<&str> = FLAGS.iter().map(|flag| flag.name).chain(OWN).collect();
    let mut theirs: Vec<&str> = UPSTREAM.split_whitespace().collect();
    ours.sort_unstable();
    theirs.sort_unstable();
    assert_eq!(ours, theirs);
    for flag in theirs {
        let text = "1";
        assert!(parse(&[&format!("--{flag}={text}")]).is_ok() || OWN.contains(&flag), "{flag}");
    }
}

#[test]
fn the_fields_that_flags_name_are_fields_of_the_configuration() {
    // A configuration has no credentials; the error for these names the files.
    const ONLY_FLAGS: [&str; 2] = ["password", "prometheus-bearer-token"];
    let schema = berth_config::schema();
    for flag in FLAGS.iter().filter(|flag| !ONLY_FLAGS.contains(&flag.name)) {
        let Some(field) = flag.field() else { continue };
        let mut at = &schema;
        for part in field.split('.') {
            // An optional value is one of several forms.
            let forms = [at].into_iter().chain(at["anyOf"].as_array().into_iter().flatten());
            let found = forms.map(|form| &form["properties"][part]).find(|found| found.is_object());
            at = found.unwrap_or_else(|| panic!("{}: there is no {field}", flag.name));
        }
    }
}

#[test]
fn arguments_of_upstream_set_what_they_mean() {
    let (config, notes) = applied(&[
        "--recommender-name=default",
        "--recommender-interval=1m30s",
        "--checkpoints-timeout",
        "45s",
        "--confidence-interval-cpu=48h0m0s",
        "--memory-histogram-decay-half-life=36h0m0s",
        "--target-cpu-percentile=0.95",
        "--pod-recommendation-min-memory-mb=100.0",
        "--oom-min-bump-up-bytes=1.048576e+08",
        "--round-cpu-millicores=10",
        "--container-recommendation-max-allowed-memory=8Gi",
        "--vpa-object-namespace=shop",
        "--update-worker-count=20",
        "--update-worker-count=30",
        "--use-external-metrics=false",
    ]);
    assert_eq!(notes, [""; 0]);
    let mut expected = Recommender {
        enabled: true,
        name: "default".to_owned(),
        interval: ConfigDuration::from_secs(90),
        checkpoints_timeout: ConfigDuration::from_secs(45),
        pod_min_memory_mb: 100,
        round_cpu_millicores: 10,
        max_allowed_memory: Some("8Gi".to_owned()),
        namespaces: vec!["shop".to_owned()],
        update_workers: 30,
        ..Recommender::default()
    };
    expected.cpu.confidence_interval = ConfigDuration::from_secs(48 * 3_600);
    expected.cpu.target_percentile = 0.95;
    expected.memory.half_life = ConfigDuration::from_secs(36 * 3_600);
    assert_eq!(config, expected);
}

#[test]
fn a_prometheus_is_asked_only_where_it_is_the_storage_or_the_file_names_one() {
    let flags =
        ["--prometheus-address=http://p:9090", "--history-length=1w2d12h", "--history-resolution=30m"];
    let (config, notes) = applied(&flags);
    assert_eq!(config.prometheus, None);
    assert!(notes[0].contains("--storage=prometheus"), "{notes:?}");
    let labels = ["--storage=prometheus", "--container-name-label=container", "--prometheus-insecure"];
    let (config, notes) = applied(&[&flags[..], &labels].concat());
    let prometheus = config.prometheus.expect("it is asked");
    assert_eq!((config.storage, notes.len()), (Storage::Prometheus, 0));
    assert_eq!(prometheus.url, "http://p:9090");
    assert_eq!(prometheus.history_length, ConfigDuration::from_secs(228 * 3_600));
    assert_eq!(prometheus.history_resolution, ConfigDuration::from_secs(1_800));
    assert!(prometheus.insecure_skip_verify);
    let labels = prometheus.labels.expect("they are set");
    assert_eq!([&*labels.namespace, &labels.pod, &labels.container], ["namespace", "pod_name", "container"]);
    assert_eq!(applied(&["--storage=prometheus"]).0.prometheus, Some(PrometheusConfig::default()));
}

#[test]
fn credentials_of_flags_stand_in_for_those_of_the_file_and_those_of_the_environment_for_none() {
    let mut config = Config::default();
    let of_file = PrometheusConfig { bearer_token: Some(Secret::new("t")), ..PrometheusConfig::default() };
    config.recommender.prometheus = Some(of_file.clone());
    let flags = parse(&["--username=u", "--password=secret"]).unwrap();
    assert!(!format!("{flags:?}").contains("secret"), "{flags:?}");
    flags.apply(&mut config, |_| None).unwrap();
    let prometheus = config.recommender.prometheus.clone().unwrap();
    assert_eq!((prometheus.bearer_token, prometheus.basic_auth.unwrap().user), (None, "u".to_owned()));
    let env = |name: &str| Some(format!("of {name}"));
    let mut config = Config::default();
    parse(&["--storage=prometheus"]).unwrap().apply(&mut config, env).unwrap();
    let basic = config.recommender.prometheus.unwrap().basic_auth.expect("of the environment");
    assert_eq!(basic.user, "of PROMETHEUS_USERNAME");
    let mut config = Config::default();
    config.recommender.prometheus = Some(of_file.clone());
    parse(&["--history-length=1d"]).unwrap().apply(&mut config, env).unwrap();
    assert_eq!(config.recommender.prometheus.unwrap().bearer_token, of_file.bearer_token);
}

#[test]
fn a_wrong_value_is_refused_with_the_name_of_its_flag() {
    for (argument, expected) in [
        ("--recommender-interval=soon", "--recommender-interval: `soon` is not a duration"),
        ("--recommender-interval=0s", "--recommender-interval: 0s is not from 1s to 1h"),
        ("--target-cpu-percentile=95", "--target-cpu-percentile: 95 is not from 0 to 1"),
        ("--storage=disk", "--storage: `disk` is neither checkpoint nor prometheus"),
        ("--pod-recommendation-min-cpu-millicores=2.5", "`2.5` is not a whole number"),
        ("--round-memory-bytes=0", "--round-memory-bytes: 0 is not from 1"),
        ("--container-recommendation-max-allowed-cpu=lots", "--container-recommendation-max-allowed-cpu: "),
        ("--vpa-object-namespace=a/b", "--vpa-object-namespace: `a/b` is not a valid namespace name"),
        ("--leader-elect-resource-lock=endpoints", "`endpoints` is not supported"),
        ("--leader-elect-lease-duration=1s", "--leader-elect-lease-duration: "),
        ("--address=:8942", "--address: metrics are served at healthAddress"),
        ("--use-external-metrics", "--use-external-metrics: external metrics are not supported"),
    ] {
        let problem = refused(&[argument]);
        assert!(problem.contains(expected), "{argument}: {problem}");
    }
    let problem = refused(&["--storage=prometheus", "--prometheus-address=ftp://x"]);
    assert!(problem.starts_with("--prometheus-address: "), "{problem}");
    for wrong in ["8dd", "d", "-1d", "8", ""] {
        let problem = refused(&["--storage=prometheus", &format!("--history-length={wrong}")]);
        assert!(problem.starts_with("--history-length: "), "{wrong}: {problem}");
    }
    let both = refused(&["--vpa-object-namespace=a", "--ignored-vpa-object-namespaces=b,c"]);
    assert!(both.contains("not both"), "{both}");
}

#[test]
fn unneeded_flags_are_noted_and_change_nothing() {
    let (config, notes) = applied(&[
        "--kube-api-qps=100",
        "--memory-saver",
        "-v=4",
        "--stderrthreshold=info",
        "--pod-name-label=pod",
    ]);
    assert_eq!(config, Recommender { enabled: true, ..Recommender::default() });
    assert_eq!(notes.len(), 5, "{notes:?}");
    assert!(
        notes.iter().any(|note| note.starts_with("--memory-saver has no effect: only pods")),
        "{notes:?}"
    );
}

#[test]
fn upstream_flags_do_not_enable_the_recommender_but_warn_that_it_is_off() {
    let mut config = Config::default();
    let notes = apply_to(&mut config, &["--recommender-name=default"]).unwrap();
    assert!(!config.recommender.enabled && notes[0].contains("--recommender"), "{notes:?}");
    assert_eq!(apply_to(&mut Config::default(), &["--v=2"]).unwrap().len(), 1);
    assert_eq!(apply_to(&mut Config::default(), &[]).unwrap().len(), 0);
}

#[test]
fn leader_election_of_upstream_is_berths() {
    let mut config = Config::default();
    let arguments = [
        "--leader-elect",
        "--leader-elect-lease-duration=30s",
        "--leader-elect-renew-deadline=20s",
        "--leader-elect-resource-name=vpa-recommender-lease",
        "--leader-elect-resource-namespace=kube-system",
        "--leader-elect-resource-lock=leases",
    ];
    let run = Run::try_parse_from([&["berth"], &arguments[..]].concat()).unwrap();
    assert_eq!(run.options.leader_elect, Some(true));
    run.options.upstream.apply(&mut config, |_| None).unwrap();
    assert_eq!(config.leader_election.lease_duration, ConfigDuration::from_secs(30));
    assert_eq!(config.leader_election.name, "vpa-recommender-lease");
}
