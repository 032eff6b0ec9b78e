use std::io::Write;
use std::time::Duration;

use super::spread::{InclusionPolicy, WhenUnsatisfiable};
use super::*;
use berth_model::Preference;
use berth_prometheus::{HttpHeader, PrometheusConfig};

/// Reads a file with this text.
pub(super) fn load(text: &str) -> Result<LoadedConfig, ConfigError> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    LoadedConfig::read(&[file.path().to_owned()])
}

/// Returns the configuration of a file with this text.
fn read(text: &str) -> Result<Config, ConfigError> {
    load(text).map(|loaded| loaded.config)
}

/// Returns the message after the name of the file.
pub(super) fn refusal(text: &str) -> String {
    let error = load(text).expect_err(text);
    let ConfigError::Invalid { file, .. } = &error else { panic!("{error}") };
    error.to_string().strip_prefix(file.to_str().unwrap()).expect("the file comes first").to_owned()
}

#[test]
fn without_a_file_and_with_an_empty_one_everything_has_its_default() {
    assert_eq!(Config::load(&[]).unwrap(), Config::default());
    for empty in ["", "# nothing yet\n", "leaderElection:\n", "leaderElection: {}\nbackoff: {}\n"] {
        assert_eq!(read(empty).unwrap(), Config::default(), "{empty:?}");
    }
    assert_eq!(Config::default().validate(), Ok(()));
}

#[test]
fn an_error_of_a_type_names_the_field_also_in_lists_and_on_one_line() {
    let in_list = "podTopologySpread:\n  defaultingType: List\n  defaultConstraints:\n  - maxSkew: 1\n    whenUnsatisfiable: x\n";
    for (text, expected) in [
        ("agents: many", ":1: agents: invalid type"),
        ("agents: null\nscaling: {}", ":1: agents: invalid type"),
        ("agents: 4294967296", ":1: agents: invalid value"),
        ("leaderElection:\n  renewDeadline: 1e3\n", ":2: leaderElection.renewDeadline: invalid type"),
        (
            "leaderElection:\n  enabled: true\n  renewDeadline: []\n",
            ":3: leaderElection.renewDeadline: invalid type",
        ),
        ("backoff: {max: 1s, initial: []}", ":1: backoff.initial: invalid type"),
        ("logFormat: {a: 1, b: [c]}", ":1: logFormat"),
        (in_list, ":5: podTopologySpread.defaultConstraints[0].whenUnsatisfiable: unknown variant"),
    ] {
        let message = refusal(text);
        assert!(message.starts_with(expected), "{text}: {message}");
    }
}

#[test]
fn a_file_that_sets_everything_is_read() {
    let config = read(
        "schedulerNames: [berth, berth-batch]
profiles:
- schedulerName: berth-batch
  packing: MostAllocated
  packedResources: [{name: memory, weight: 2}]
  preferences: [NodeResourcesFit]
  podTopologySpread: {defaultingType: List}
  addedAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms: [{matchExpressions: [{key: pool, operator: Exists}]}]
agents: 2
cacheMemoryMiB: 512
cacheMaxAge: 1h30m
candidateWidth: 3
podTopologySpread:
  defaultingType: List
  defaultConstraints:
  - {maxSkew: 2, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: DoNotSchedule}
  - maxSkew: 1
    topologyKey: rack
    whenUnsatisfiable: ScheduleAnyway
    minDomains: 3
    nodeAffinityPolicy: Ignore
    nodeTaintsPolicy: Honor
packing: MostAllocated
dispatcher: latcache-rule
bindsInFlight: 1024
maxWaitingBinds: 1
maxWaitingClasses: 1000
maxPlacementTries: 5
reserveAfter: 0s
backoff: {initial: 500ms, max: 1m}
volumeBindTimeout: 20s
selfCheckInterval: 90s
rememberedDecisions: 5000
annotateDecisions: true
tracing: {endpoint: 'http://collector:4318', samplingRatePerMillion: 1000}
recorder: {enabled: true, directory: /recordings, maxMiB: 64}
fragmentation: {period: 0s}
scaling: {enabled: true, interval: 30s, hints: false, hintsWindow: 60s, hintsAcross: ['*'], customQueries: [shop]}
leaderElection:
  enabled: false
  namespace: berth-system
  name: berth.example
  leaseDuration: 30s
  renewDeadline: 20s
  retryPeriod: 1.5s
healthAddress: '[::]:8080'
serving:
  address: 0.0.0.0:10260
  clientCaFile: /etc/berth/clients/ca.crt
  names: [berth.berth-system.svc]
  secret: berth-tls
  webhookSecret: berth-webhooks
  webhookConfiguration: berth
  mutatingWebhookConfiguration: mutating
  maxConnections: 64
  shutdownDelay: 10s
extender: {enabled: true, clients: [kube-scheduler], maxBodyBytes: 2097152}
guard: {enabled: true, requireClientCertificate: true, failurePolicy: Fail, patience: 100ms, hold: 90s}
recommender:
  enabled: true
  name: default
  storage: prometheus
  prometheus:
    url: 'https://prometheus:9090'
    matchers: [cluster=prod]
    headers: [{name: X-Scope-OrgID, value: team-a}]
  statusThresholds: {cpuMilli: 100, memoryBytes: 104857600}
  memory: {targetPercentile: 0.95, halfLife: 48h}
  marginFraction: 0
  maxAllowedCpu: '8'
estimatorFile: /var/lib/berth/estimator.json
logFormat: json
",
    )
    .unwrap();
    let zones = DefaultConstraint {
        max_skew: 2,
        topology_key: "topology.kubernetes.io/zone".into(),
        when_unsatisfiable: WhenUnsatisfiable::DoNotSchedule,
        min_domains: 1,
        node_affinity_policy: InclusionPolicy::Honor,
        node_taints_policy: InclusionPolicy::Ignore,
    };
    let racks = DefaultConstraint {
        max_skew: 1,
        topology_key: "rack".into(),
        when_unsatisfiable: WhenUnsatisfiable::ScheduleAnyway,
        min_domains: 3,
        node_affinity_policy: InclusionPolicy::Ignore,
        node_taints_policy: InclusionPolicy::Honor,
    };
    let pool = AddedRequirement { key: "pool".into(), operator: "Exists".into(), values: Vec::new() };
    let expected = Config {
        scaling: Scaling {
            enabled: true,
            interval: ConfigDuration::from_secs(30),
            hints: false,
            hints_in_pods: false,
            hints_window: ConfigDuration::from_secs(60),
            hints_across: vec!["*".into()],
            custom_queries: vec!["shop".into()],
        },
        scheduler_names: vec!["berth".into(), "berth-batch".into()],
        profiles: vec![ProfileConfig {
            scheduler_name: "berth-batch".into(),
            packing: Some(Packing::MostAllocated),
            packed_resources: Some(vec![PackedResource { name: "memory".into(), weight: 2 }]),
            preferences: Some(vec![Preference::NodeResourcesFit]),
            pod_topology_spread: Some(PodTopologySpread {
                defaulting_type: DefaultingType::List,
                default_constraints: Vec::new(),
            }),
            added_affinity: Some(AddedAffinity {
                required_during_scheduling_ignored_during_execution: Some(AddedNodeSelector {
                    node_selector_terms: vec![AddedTerm {
                        match_expressions: vec![pool],
                        ..AddedTerm::default()
                    }],
                }),
                ..AddedAffinity::default()
            }),
        }],
        agents: 2,
        cache_memory_mib: 512,
        cache_max_age: ConfigDuration::from_secs(5_400),
        candidate_width: 3,
        pod_topology_spread: PodTopologySpread {
            defaulting_type: DefaultingType::List,
            default_constraints: vec![zones, racks],
        },
        packing: Packing::MostAllocated,
        dispatcher: DispatcherKind::LatcacheRule,
        binds_in_flight: 1_024,
        max_waiting_binds: 1,
        max_waiting_classes: 1_000,
        max_placement_tries: 5,
        reserve_after: ConfigDuration::from_secs(0),
        backoff: BackoffConfig {
            initial: ConfigDuration::new(Duration::from_millis(500)),
            max: ConfigDuration::from_secs(60),
        },
        volume_bind_timeout: ConfigDuration::from_secs(20),
        self_check_interval: ConfigDuration::from_secs(90),
        remembered_decisions: 5000,
        annotate_decisions: true,
        tracing: TracingConfig { endpoint: "http://collector:4318".into(), sampling_rate_per_million: 1_000 },
        recorder: RecorderConfig { enabled: true, directory: "/recordings".into(), max_mib: 64 },
        fragmentation: Fragmentation { period: ConfigDuration::from_secs(0) },
        leader_election: LeaderElection {
            enabled: false,
            active_active: false,
            namespace: "berth-system".into(),
            name: "berth.example".into(),
            lease_duration: ConfigDuration::from_secs(30),
            renew_deadline: ConfigDuration::from_secs(20),
            retry_period: ConfigDuration::new(Duration::from_millis(1_500)),
        },
        health_address: "[::]:8080".parse().unwrap(),
        serving: Serving {
            address: Some("0.0.0.0:10260".parse().unwrap()),
            cert_file: None,
            ca_file: None,
            key_file: None,
            client_ca_file: Some("/etc/berth/clients/ca.crt".into()),
            names: vec!["berth.berth-system.svc".into()],
            secret: "berth-tls".into(),
            webhook_secret: "berth-webhooks".into(),
            webhook_configuration: "berth".into(),
            mutating_webhook_configuration: "mutating".into(),
            max_connections: 64,
            shutdown_delay: ConfigDuration::from_secs(10),
        },
        extender: ExtenderConfig {
            enabled: true,
            plaintext: false,
            clients: vec!["kube-scheduler".into()],
            max_body_bytes: 2 << 20,
        },
        guard: GuardConfig {
            enabled: true,
            require_client_certificate: true,
            failure_policy: FailurePolicy::Fail,
            patience: ConfigDuration::new(Duration::from_millis(100)),
            hold: ConfigDuration::from_secs(90),
        },
        recommender: Recommender {
            enabled: true,
            name: "default".into(),
            storage: Storage::Prometheus,
            prometheus: Some(PrometheusConfig {
                url: "https://prometheus:9090".into(),
                matchers: vec!["cluster=prod".into()],
                headers: vec![HttpHeader {
                    name: "X-Scope-OrgID".into(),
                    value: Some("team-a".into()),
                    value_file: None,
                }],
                ..PrometheusConfig::default()
            }),
            status_thresholds: StatusThresholds { cpu_milli: 100, memory_bytes: 100 << 20 },
            memory: Estimation {
                target_percentile: 0.95,
                half_life: ConfigDuration::from_secs(2 * 86_400),
                ..Estimation::default()
            },
            margin_fraction: 0.0,
            max_allowed_cpu: Some("8".into()),
            ..Recommender::default()
        },
        estimator_file: Some("/var/lib/berth/estimator.json".into()),
        log_format: LogFormat::Json,
    };
    assert_eq!(config, expected);
}

#[test]
fn every_dispatcher_is_known_by_its_name() {
    for kind in DispatcherKind::ALL {
        assert_eq!(read(&format!("dispatcher: {kind}")).unwrap().dispatcher, kind);
    }
    assert_eq!(Config::default().dispatcher, DispatcherKind::LatcachePriced);
}

#[test]
fn what_is_written_is_read_back() {
    let config = Config { agents: 7, estimator_file: Some("/tmp/x".into()), ..Config::default() };
    assert_eq!(read(&serde_saphyr::to_string(&config).unwrap()).unwrap(), config);
}

#[test]
fn an_unknown_key_is_refused_with_its_name_and_the_known_ones() {
    let message = refusal("agents: 1\nagentz: 2\n");
    assert!(
        message.starts_with(":2: unknown field `agentz`, expected one of schedulerNames, profiles, agents,"),
        "{message}"
    );
    let message = refusal("leaderElection:\n  enable: true\n");
    assert!(
        message.starts_with(":2: leaderElection: unknown field `enable`, expected one of enabled,"),
        "{message}"
    );
}

fn constraints(list: &str) -> String {
    format!("podTopologySpread:\n  defaultingType: List\n  defaultConstraints: [{list}]")
}

#[test]
fn the_default_constraints_are_the_systems_or_those_of_the_list() {
    let spread = |text: &str| read(text).unwrap().pod_topology_spread;
    assert_eq!(spread("").defaults(), berth_scheduler::objects::system_defaults());
    let off = spread("podTopologySpread: {defaultingType: List}");
    assert!(!off.adds_constraints() && off.defaults().constraints.is_empty());
    let list = spread(&constraints("{maxSkew: 2, topologyKey: rack, whenUnsatisfiable: DoNotSchedule}"));
    assert!(list.adds_constraints());
    let defaults = list.defaults();
    assert!(!defaults.defaulted, "every node needs the label");
    let [rack] = &defaults.constraints[..] else { panic!("{defaults:?}") };
    assert_eq!((&*rack.topology_key, rack.max_skew, rack.hard), ("rack", 2, true));
    assert!(rack.min_domains == 1 && rack.honor_affinity && !rack.honor_taints);
}

#[test]
fn a_bad_value_is_refused_with_its_line_its_field_and_what_is_allowed() {
    let cases = [
        (
            "schedulerNames: []",
            ":1: schedulerNames: it is empty; at least one name is needed, such as [berth]",
        ),
        ("schedulerNames: berth", "a list of names such as [berth]"),
        ("schedulerNames: ['']", ":1: schedulerNames: `` is not 1 to 63 letters"),
        ("schedulerNames: [a/b]", ":1: schedulerNames: `a/b` is not 1 to 63 letters"),
        ("schedulerNames: [a, b, a]", ":1: schedulerNames: `a` is listed twice"),
        ("agents: -1", "a whole number from 0 to 4294967295"),
        ("agents: 2.5", "a whole number from 0 to 4294967295"),
        ("agents: many", "a whole number from 0 to 4294967295"),
        ("agents: 99999999999", "a whole number from 0 to 4294967295"),
        ("\nagents: 65", ":2: agents: 65 is not from 0 to 64"),
        ("cacheMemoryMiB: 1", ":1: cacheMemoryMiB: 1 is not from 16 to 65536"),
        ("cacheMaxAge: 0s", ":1: cacheMaxAge: 0s is not from 1s to 24h"),
        (
            "cacheMaxAge: 10",
            ":1: cacheMaxAge: `10` is not a duration: the unit is missing, write for example 15s",
        ),
        ("cacheMaxAge: -5s", ":1: cacheMaxAge: `-5s` is not a duration: it must start with a digit"),
        ("candidateWidth: 0", ":1: candidateWidth: 0 is not from 1 to 1000"),
        (
            "packing: Random",
            ":1: packing: unknown variant `Random`, expected one of LeastAllocated, MostAllocated",
        ),
        ("podTopologySpread: {defaultingType: Some}", "unknown variant `Some`, expected one of System, List"),
        (
            "podTopologySpread:\n  defaultConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: DoNotSchedule}]",
            "podTopologySpread.defaultingType: it is System while defaultConstraints is not empty",
        ),
        (
            &constraints("{maxSkew: 0, topologyKey: a, whenUnsatisfiable: DoNotSchedule}"),
            "constraint 0: maxSkew: 0 is not from 1",
        ),
        (
            &constraints("{maxSkew: 1, topologyKey: a b, whenUnsatisfiable: DoNotSchedule}"),
            "topologyKey: `a b` is not a label key",
        ),
        (
            &constraints("{maxSkew: 1, topologyKey: a, whenUnsatisfiable: Never}"),
            "expected one of DoNotSchedule, ScheduleAnyway",
        ),
        (&constraints("{maxSkew: 1, whenUnsatisfiable: DoNotSchedule}"), "topologyKey"),
        (
            &constraints("{maxSkew: 1, topologyKey: a, whenUnsatisfiable: DoNotSchedule, labelSelector: {}}"),
            "unknown field `labelSelector`",
        ),
        (
            &constraints(
                "{maxSkew: 1, topologyKey: a, whenUnsatisfiable: DoNotSchedule}, {maxSkew: 2, topologyKey: a, whenUnsatisfiable: DoNotSchedule}",
            ),
            ":3: podTopologySpread.defaultConstraints: constraint 1: `a` is listed twice with the same whenUnsatisfiable",
        ),
        (
            "dispatcher: fastest",
            ":1: dispatcher: unknown variant `fastest`, expected one of protean, random, round-robin, hash-stealing, \
             latcache-naive, latcache-request, latcache-rule, latcache-priced",
        ),
        ("bindsInFlight: 0", ":1: bindsInFlight: 0 is not from 1 to 1024"),
        ("bindsInFlight: 1025", ":1: bindsInFlight: 1025 is not from 1 to 1024"),
        ("maxWaitingBinds: 0", ":1: maxWaitingBinds: 0 is not from 1 to 65536"),
        ("maxWaitingClasses: 0", ":1: maxWaitingClasses: 0 is not from 1 to 1000000"),
        ("reserveAfter: 1ms", ":1: reserveAfter: 1ms is not from 1s to 24h"),
        ("maxPlacementTries: 0", ":1: maxPlacementTries: 0 is not from 1 to 100"),
        ("backoff:\n  initial: 0s", ":2: backoff.initial: 0s is not from 1ms to 1h"),
        ("backoff: {initial: 20s}", "backoff.max: 10s is shorter than backoff.initial (20s)"),
        ("rememberedDecisions: 1000001", ":1: rememberedDecisions: 1000001 is not from 0 to 1000000"),
        ("selfCheckInterval: 48h", ":1: selfCheckInterval: 48h is not from 1s to 24h"),
        (
            "tracing: {endpoint: 'collector:4318'}",
            ":1: tracing.endpoint: \"collector:4318\" is not a URL such as http://collector:4318",
        ),
        (
            "{rememberedDecisions: 0, tracing: {endpoint: 'http://collector:4318'}}",
            ":1: tracing.endpoint: it needs rememberedDecisions above 0",
        ),
        (
            "tracing: {samplingRatePerMillion: 1000001}",
            ":1: tracing.samplingRatePerMillion: 1000001 is not from 0 to 1000000",
        ),
        ("recorder: {maxMiB: 0}", ":1: recorder.maxMiB: 0 is not from 1 to 65536"),
        (
            "recorder: {enabled: true, directory: ''}",
            ":1: recorder.directory: it is empty; name a folder that berth may write",
        ),
        ("fragmentation: {period: 1ms}", ":1: fragmentation.period: 1ms is not from 1s to 24h"),
        (
            "leaderElection: {namespace: Berth}",
            ":1: leaderElection.namespace: `Berth` is not a valid namespace name",
        ),
        ("leaderElection: {name: ''}", ":1: leaderElection.name: `` is not a valid object name"),
        ("leaderElection: {enabled: 3}", ":1: leaderElection.enabled: "),
        (
            "leaderElection:\n  retryPeriod: 1s\n  leaseDuration: 10s",
            ":3: leaderElection.leaseDuration: 10s must be longer than renewDeadline (10s)",
        ),
        (
            "leaderElection:\n  renewDeadline: 2s",
            ":2: leaderElection.renewDeadline: 2s must be longer than retryPeriod (2s)",
        ),
        (
            "leaderElection:\n  leaseDuration: 15500ms",
            ":2: leaderElection.leaseDuration: 15s500ms is not a whole number of seconds",
        ),
        ("healthAddress: localhost", "`localhost` is not an IP address with a port, such as 127.0.0.1:10261"),
        ("estimatorFile: ''", ":1: estimatorFile: it is empty"),
        ("logFormat: xml", ":1: logFormat: unknown variant `xml`, expected one of text, json"),
        ("agents: 1\nagents: 2", ":2: duplicate mapping key: agents"),
        ("agents: [", ":1: "),
    ];
    for (text, expected) in cases {
        let message = refusal(text);
        assert!(message.contains(expected), "{text:?} says {message:?}, not {expected:?}");
        assert!(!message.contains("u32"), "no Rust types for users: {message}");
    }
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error = Config::load(&[PathBuf::from("no/such/berth.yaml")]).unwrap_err();
    assert_eq!(error.to_string(), "cannot read the configuration file no/such/berth.yaml");
    assert!(std::error::Error::source(&error).is_some(), "the cause is kept");
}

#[test]
fn durations_are_read_and_written_as_kubernetes_does() {
    let cases = [
        ("15s", 15_000_000_000, "15s"),
        ("500ms", 500_000_000, "500ms"),
        ("1h30m", 5_400_000_000_000, "1h30m"),
        ("1.5s", 1_500_000_000, "1s500ms"),
        ("0.25h", 900_000_000_000, "15m"),
        ("90s", 90_000_000_000, "1m30s"),
        ("1.0000000019s", 1_000_000_001, "1s1ns"),
        ("7us", 7_000, "7us"),
        ("0s", 0, "0s"),
    ];
    for (text, nanos, written) in cases {
        let duration: ConfigDuration = text.parse().unwrap();
        assert_eq!(duration.get(), Duration::from_nanos(nanos), "{text}");
        assert_eq!(duration.to_string(), written);
        assert_eq!(written.parse(), Ok(duration));
    }
    for text in
        ["", "s", "15", "15 s", "1.s", ".5s", "1..5s", "15sec", "-1s", "9000h", "99999999999999999999s", "1µ"]
    {
        let error = text.parse::<ConfigDuration>().expect_err(text);
        assert!(error.to_string().contains("write for example 15s"), "{error}");
    }
}

#[test]
fn automatic_agents_are_one_a_core_and_four_at_most() {
    let automatic = Config::default();
    assert_eq!([0, 1, 3, 4, 64].map(|cores| automatic.agent_count(cores)), [1, 1, 3, 4, 4]);
    assert_eq!(Config { agents: 6, ..Config::default() }.agent_count(2), 6);
}

#[test]
fn the_lease_lies_in_the_configured_namespace_else_in_our_own_else_in_kube_system() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"berth-system\n").unwrap();
    let missing = Path::new("no/such/file");
    let mut election = LeaderElection::default();
    assert_eq!(election.lease_namespace(file.path()), "berth-system");
    assert_eq!(election.lease_namespace(missing), "kube-system");
    election.namespace = "elsewhere".into();
    assert_eq!(election.lease_namespace(file.path()), "elsewhere");
}

/// The limits are both in the schema, for people and tools, and in `validate`.
#[test]
fn the_limits_of_the_schema_are_the_limits_of_the_check() {
    let schema = schema();
    let properties = schema["properties"].as_object().unwrap();
    let mut checked = 0;
    for (key, property) in properties {
        let (Some(min), Some(max)) = (property["minimum"].as_u64(), property["maximum"].as_u64()) else {
            continue;
        };
        read(&format!("{key}: {min}")).unwrap();
        read(&format!("{key}: {max}")).unwrap();
        let message = refusal(&format!("{key}: {}", max + 1));
        assert!(message.contains(&format!("{key}: {} is not from {min} to {max}", max + 1)), "{message}");
        if min > 0 {
            refusal(&format!("{key}: {}", min - 1));
        }
        checked += 1;
    }
    assert_eq!(checked, 8, "every number has limits");
}

#[test]
fn every_field_of_the_schema_is_documented_and_has_its_default() {
    fn check(schema: &serde_json::Value, path: &str) {
        assert_eq!(schema["additionalProperties"], false, "{path}");
        for (key, property) in schema["properties"].as_object().unwrap() {
            let path = format!("{path}.{key}");
            assert!(property["description"].as_str().is_some_and(|text| text.len() > 10), "{path}");
            assert!(property.get("default").is_some(), "{path}");
            if property.get("properties").is_some() {
                check(property, &path);
            }
        }
    }
    check(&schema(), "");
}

#[test]
fn profiles_are_of_names_of_this_scheduler_and_errors_name_their_field() {
    for (text, expected) in [
        (
            "profiles: [{schedulerName: other}]",
            ":1: profiles[0].schedulerName: `other` is none of schedulerNames",
        ),
        (
            "profiles:\n- schedulerName: berth\n- schedulerName: berth\n",
            ":3: profiles[1].schedulerName: `berth` has a profile above",
        ),
        (
            "profiles: [{schedulerName: berth, preferences: [ImageLocality, ImageLocality]}]",
            ":1: profiles[0].preferences: ImageLocality is listed twice",
        ),
        (
            "profiles: [{schedulerName: berth, packedResources: []}]",
            ":1: profiles[0].packedResources: it is empty",
        ),
        (
            "profiles: [{schedulerName: berth, packedResources: [{name: cpu, weight: 0}]}]",
            ":1: profiles[0].packedResources: cpu: weight 0 is not from 1 to 100",
        ),
        (
            "profiles:\n- schedulerName: berth\n  podTopologySpread:\n    defaultingType: List\n    defaultConstraints:\n    \
             - {maxSkew: 0, topologyKey: a, whenUnsatisfiable: DoNotSchedule}\n",
            ":6: profiles[0].podTopologySpread.defaultConstraints: constraint 0: maxSkew: 0 is not",
        ),
        ("profiles: [{}]", ":1: profiles[0]: missing field `schedulerName`"),
    ] {
        let message = refusal(text);
        assert!(message.starts_with(expected), "{text}: {message}");
    }
    let some = read("packing: MostAllocated\nprofiles: [{schedulerName: berth, candidates: 3}]");
    assert!(some.is_err(), "unknown fields are errors");
    let profiles = read("packing: MostAllocated\npodTopologySpread: {defaultingType: List}\nschedulerNames: [a, b]\nprofiles: \
                         [{schedulerName: b, podTopologySpread: {}}]\n")
    .unwrap();
    assert!(profiles.spreads_by_default(), "for one of the two");
    let profiles = profiles.profiles();
    assert_eq!(
        profiles.of("b").placement,
        profiles.of("a").placement,
        "what is left out is that of the file"
    );
    assert_eq!(profiles.of("b").default_spread.constraints.len(), 2);
    assert!(profiles.of("a").default_spread.constraints.is_empty());
}
