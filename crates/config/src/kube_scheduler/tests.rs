use super::super::tests::{load, refusal};
use crate::{Config, LoadedConfig};
use berth_model::{ConfigDuration, FieldRequirement, Packing, Preference};
use berth_scheduler::rules::WeighedResource;

const HEAD: &str = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";

fn read(text: &str) -> LoadedConfig {
    load(&format!("{HEAD}{text}")).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// The file with the arguments of one plugin.
fn args(plugin: &str, args: &str) -> String {
    format!("{HEAD}profiles:\n- pluginConfig:\n  - name: {plugin}\n    args: {args}\n")
}

fn wrong(text: &str) -> String {
    refusal(&format!("{HEAD}{text}"))
}

#[test]
fn an_empty_file_is_kube_scheduler_with_its_lease_and_its_name() {
    let LoadedConfig { config, kubeconfig, notes } = read("");
    assert_eq!(config.scheduler_names, ["default-scheduler"]);
    let lease = &config.leader_election;
    assert_eq!((lease.enabled, &*lease.namespace, &*lease.name), (true, "kube-system", "kube-scheduler"));
    assert_eq!(kubeconfig, None);
    let [lease] = &notes[..] else { panic!("{notes:?}") };
    assert!(lease.starts_with("leaderElection: the Lease is kube-scheduler's"), "{lease}");
    let expected = Config {
        scheduler_names: config.scheduler_names.clone(),
        profiles: config.profiles.clone(),
        leader_election: config.leader_election.clone(),
        ..Config::default()
    };
    assert_eq!(config, expected, "nothing else");
    assert_eq!(config.profiles().of("default-scheduler"), &Config::default().profiles().default);
}

#[test]
fn every_field_is_taken_as_it_is() {
    let LoadedConfig { config, kubeconfig, notes } = read(
        "parallelism: 16
leaderElection:
  leaderElect: false
  leaseDuration: 30s
  renewDeadline: 20s
  retryPeriod: 4s
  resourceLock: leases
  resourceName: mine
  resourceNamespace: scheduling
clientConnection:
  kubeconfig: /etc/kubernetes/scheduler.conf
  acceptContentTypes: ''
  contentType: application/vnd.kubernetes.protobuf
  qps: 50
  burst: 100
enableProfiling: true
enableContentionProfiling: true
percentageOfNodesToScore: 5
podInitialBackoffSeconds: 2
podMaxBackoffSeconds: 20
delayCacheUntilActive: true
extenders: []
profiles:
- schedulerName: default-scheduler
  percentageOfNodesToScore: 0
- schedulerName: packing
  percentageOfNodesToScore: 10
  plugins:
    multiPoint:
      enabled:
      - {name: NodeResourcesFit, weight: 10}
    score:
      disabled:
      - name: ImageLocality
  pluginConfig:
  - name: NodeResourcesFit
    args:
      apiVersion: kubescheduler.config.k8s.io/v1
      kind: NodeResourcesFitArgs
      ignoredResources: []
      scoringStrategy:
        type: MostAllocated
        resources:
        - {name: cpu, weight: 1}
        - {name: nvidia.com/gpu, weight: 5}
  - name: PodTopologySpread
    args:
      defaultConstraints:
      - {maxSkew: 2, topologyKey: rack, whenUnsatisfiable: DoNotSchedule}
      defaultingType: List
  - name: NodeAffinity
    args:
      addedAffinity:
        requiredDuringSchedulingIgnoredDuringExecution:
          nodeSelectorTerms:
          - matchExpressions:
            - {key: pool, operator: In, values: [gpu, cpu]}
          - matchFields:
            - {key: metadata.name, operator: In, values: [n1]}
        preferredDuringSchedulingIgnoredDuringExecution:
        - weight: 3
          preference:
            matchExpressions:
            - {key: spot, operator: DoesNotExist}
  - name: InterPodAffinity
    args: {hardPodAffinityWeight: 5, ignorePreferredTermsOfExistingPods: true}
  - name: VolumeBinding
    args: {bindTimeoutSeconds: 300, shape: [{utilization: 0, score: 0}]}
  - name: DefaultPreemption
    args: {minCandidateNodesPercentage: 10, minCandidateNodesAbsolute: 100}
  - name: NodeResourcesBalancedAllocation
    args: {resources: [{name: cpu, weight: 1}, {name: example.com/x, weight: 1}]}
  - name: DynamicResources
    args: {filterTimeout: 5s, bindingTimeout: 60s}
  - name: TaintToleration
",
    );
    assert_eq!(config.scheduler_names, ["default-scheduler", "packing"]);
    let lease = &config.leader_election;
    assert_eq!((lease.enabled, &*lease.namespace, &*lease.name), (false, "scheduling", "mine"));
    let seconds = [lease.lease_duration, lease.renew_deadline, lease.retry_period, config.backoff.initial];
    assert_eq!(seconds, [30, 20, 4, 2].map(ConfigDuration::from_secs));
    assert_eq!(config.backoff.max, ConfigDuration::from_secs(20));
    assert_eq!(config.volume_bind_timeout, ConfigDuration::from_secs(300));
    assert_eq!(kubeconfig.unwrap().to_str(), Some("/etc/kubernetes/scheduler.conf"));

    let profiles = config.profiles();
    assert_eq!(profiles.of("default-scheduler"), &profiles.default);
    let packing = profiles.of("packing");
    assert_eq!(packing.placement.packing, Packing::MostAllocated);
    let weights = packing.placement.resources.as_ref().unwrap();
    assert_eq!(
        *weights.0,
        [(WeighedResource::Cpu, 1), (WeighedResource::Extended("nvidia.com/gpu".into()), 5)]
    );
    let order: Vec<_> =
        packing.placement.order.preferences().iter().map(|(preference, _)| *preference).collect();
    assert_eq!(order[..2], [Preference::NodeResourcesFit, Preference::TaintToleration]);
    assert!(!order.contains(&Preference::ImageLocality));
    let [rack] = &packing.default_spread.constraints[..] else { panic!("{packing:?}") };
    assert_eq!((&*rack.topology_key, rack.max_skew, rack.hard), ("rack", 2, true));
    let added = &packing.added_affinity;
    let [pool, named] = added.enforced.as_deref().unwrap() else { panic!("{added:?}") };
    assert_eq!(&*pool.expressions[0].key, "pool");
    assert_eq!(*named.fields, [FieldRequirement::NameIs("n1".into())]);
    assert_eq!(added.preferred[0].weight, 3);

    let fields: Vec<_> = notes.iter().map(|note| note.split(": ").next().unwrap()).collect();
    assert_eq!(
        fields,
        [
            "parallelism",
            "percentageOfNodesToScore",
            "enableProfiling, enableContentionProfiling",
            "delayCacheUntilActive",
            "clientConnection.contentType",
            "clientConnection.qps, burst",
            "profiles[1].percentageOfNodesToScore",
            "profiles[1].plugins.score",
            "profiles[1].pluginConfig[3].args.hardPodAffinityWeight",
            "profiles[1].pluginConfig[3].args.ignorePreferredTermsOfExistingPods",
            "profiles[1].pluginConfig[4].args.shape",
            "profiles[1].pluginConfig[5].args.minCandidateNodes…",
            "profiles[1].pluginConfig[6].args.resources",
            "profiles[1].pluginConfig[7].args.filterTimeout",
            "profiles[1].pluginConfig[7].args.bindingTimeout",
        ]
    );
}

#[test]
fn plugins_are_merged_as_kube_scheduler_does_and_scores_are_ordered_by_weight() {
    let order = |plugins: &str| {
        let config = read(&format!("profiles:\n- plugins: {plugins}\n")).config;
        config.profiles[0].preferences.clone()
    };
    use Preference::*;
    assert_eq!(order("{}"), None);
    assert_eq!(
        order("{score: {enabled: [{name: TaintToleration, weight: 9}]}}"),
        None,
        "it was the first before"
    );
    let tail = [TaintToleration, NodeAffinity, InterPodAffinity, PodTopologySpread];
    let lifted = [&[ImageLocality][..], &tail, &[NodeResourcesFit, NodeResourcesBalancedAllocation]].concat();
    let lift = "{score: {enabled: [{name: ImageLocality, weight: 100}]}}";
    assert_eq!(order(lift).as_deref(), Some(&lifted[..]), "the others come from multiPoint");
    let one = "{score: {disabled: [{name: '*'}], enabled: [{name: NodeResourcesFit}]}}";
    assert_eq!(order(one), Some(vec![NodeResourcesFit]));
    let at_point = "{multiPoint: {enabled: [{name: ImageLocality, weight: 9}]}, score: {disabled: [{name: ImageLocality}]}}";
    assert_eq!(order(at_point).unwrap().len(), 6);
    let twice = "{multiPoint: {enabled: [{name: ImageLocality, weight: 9}]}, score: {enabled: [{name: ImageLocality, weight: 1}]}}";
    assert_eq!(order(twice), None, "the extension point takes precedence over multiPoint");
}

#[test]
fn what_could_change_where_pods_may_run_is_refused_with_its_line() {
    for (text, expected) in [
        ("extenders:\n- urlPrefix: http://localhost\n", ":4: extenders: berth calls no extenders"),
        ("profile: []\n", ":3: unknown field `profile`"),
        (
            "profiles:\n- plugins:\n    filter:\n      disabled:\n      - name: NodePorts\n",
            ":6: profiles[0].plugins.filter: NodePorts is off",
        ),
        (
            "profiles:\n- plugins:\n    multiPoint: {disabled: [{name: NodeAffinity}]}\n",
            "profiles[0].plugins.preFilter: NodeAffinity is off",
        ),
        (
            "profiles:\n- plugins:\n    postFilter: {disabled: [{name: '*'}]}\n",
            "preemptionPolicy: Never in a PriorityClass",
        ),
        (
            "profiles:\n- plugins:\n    queueSort: {enabled: [{name: Coscheduling}]}\n",
            ":5: profiles[0].plugins.queueSort.enabled: `Coscheduling`",
        ),
        ("profiles:\n- schedulerName: a\n- {}\n", ":5: profiles[1].schedulerName: `` is not"),
        ("profiles:\n- schedulerName: a\n- schedulerName: a\n", "schedulerNames: `a` is listed twice"),
        ("profiles:\n- schedulerName: 'a b'\n", ":4: profiles[0].schedulerName: `a b` is not"),
        (
            "podInitialBackoffSeconds: 20\n",
            "podMaxBackoffSeconds: 10s is shorter than the initial backoff, 20s",
        ),
        ("podInitialBackoffSeconds: 0\n", ":3: podInitialBackoffSeconds: 0 is not from 1 to 3600"),
        (
            "leaderElection: {resourceLock: endpoints}\n",
            ":3: leaderElection.resourceLock: `endpoints` is not leases",
        ),
        ("leaderElection: {leaseDuration: 5s}\n", ":3: leaderElection.leaseDuration: 5s must be longer than"),
    ] {
        let message = wrong(text);
        assert!(message.contains(expected), "{text}{message}");
    }
    for (plugin, value, expected) in [
        (
            "NodeResourcesFit",
            "{ignoredResources: [example.com/x]}",
            "args.ignoredResources: berth counts every",
        ),
        (
            "NodeResourcesFit",
            "{scoringStrategy: {type: Best}}",
            "args.scoringStrategy.type: `Best` is none of",
        ),
        ("NodeResourcesFit", "{scoringStrategies: {}}", "args: unknown field `scoringStrategies`"),
        (
            "NodeResourcesFit",
            "{scoringStrategy: {resources: [{name: gpu}]}}",
            "packedResources: `gpu` is none of",
        ),
        ("NodeAffinity", "{addedAffinity: {required: {}}}", "args: unknown field `required`"),
        (
            "NodeAffinity",
            "{addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: []}}}",
            "nodeSelectorTerms: it is empty",
        ),
        (
            "NodeAffinity",
            "{addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: \
             [{key: a, operator: Near}]}]}}}",
            "nodeSelectorTerms[0].matchExpressions[0].operator: \"Near\" is none of",
        ),
        (
            "NodeAffinity",
            "{addedAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 0, preference: {}}]}}",
            "preferredDuringSchedulingIgnoredDuringExecution[0].weight: 0 is not",
        ),
        ("PodTopologySpread", "{defaultConstraints: [{maxSkew: 1}]}", "args: missing field `topologyKey`"),
        ("VolumeBinding", "{bindTimeoutSeconds: 0}", "args.bindTimeoutSeconds: 0 is not"),
        ("PrioritySort", "{a: 1}", "args: PrioritySort takes no arguments"),
        ("Trimaran", "{}", "`Trimaran` is no plugin of kube-scheduler"),
    ] {
        let text = args(plugin, value);
        let message = refusal(&text);
        assert!(message.contains(expected), "{text}{message}");
    }
    let timeouts = "profiles:\n- schedulerName: a\n  pluginConfig: [{name: VolumeBinding, args: {bindTimeoutSeconds: 5}}]\n\
                    - schedulerName: b\n  pluginConfig: [{name: VolumeBinding, args: {bindTimeoutSeconds: 6}}]\n";
    assert!(
        wrong(timeouts)
            .contains(":7: profiles[1].pluginConfig[0].args.bindTimeoutSeconds: 6s differs from the 5s")
    );
}

#[test]
fn a_shape_packs_or_spreads_by_its_direction() {
    let packing = |shape: &str| {
        let strategy =
            format!("{{type: RequestedToCapacityRatio, requestedToCapacityRatio: {{shape: {shape}}}}}");
        let loaded = load(&args("NodeResourcesFit", &format!("{{scoringStrategy: {strategy}}}")));
        loaded.map(|loaded| loaded.config.profiles[0].packing.unwrap())
    };
    let rising =
        packing("[{utilization: 0, score: 0}, {utilization: 50, score: 0}, {utilization: 100, score: 10}]");
    assert_eq!(rising.unwrap(), Packing::MostAllocated);
    let falling = packing("[{utilization: 0, score: 10}, {utilization: 100, score: 0}]");
    assert_eq!(falling.unwrap(), Packing::LeastAllocated);
    for shape in [
        "[]",
        "[{utilization: 0, score: 5}, {utilization: 100, score: 5}]",
        "[{utilization: 0, score: 0}, {utilization: 50, score: 9}, {utilization: 100, score: 0}]",
        "[{utilization: 100, score: 0}, {utilization: 0, score: 9}]",
    ] {
        let error = packing(shape).unwrap_err().to_string();
        assert!(error.contains("the scores must only rise, or only fall"), "{shape}: {error}");
    }
}

#[test]
fn versions_of_the_file_that_kube_scheduler_no_longer_reads_are_refused() {
    let old = "apiVersion: kubescheduler.config.k8s.io/v1beta3\nkind: KubeSchedulerConfiguration\n";
    let message = refusal(old);
    assert!(message.starts_with(":1: apiVersion: `kubescheduler.config.k8s.io/v1beta3`"), "{message}");
    let other = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: NodeResourcesFitArgs\n";
    assert!(refusal(other).contains("is not kubescheduler.config.k8s.io/v1 with KubeSchedulerConfiguration"));
}

#[test]
fn both_files_together_are_berths_with_what_kube_schedulers_sets() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let file = directory.path().join(name);
        std::fs::write(&file, text).unwrap();
        file
    };
    let own = write("berth.yaml", "agents: 3\nleaderElection: {name: ours}\nbackoff: {initial: 3s}\n");
    let upstream = write("scheduler.yaml", &format!("{HEAD}podMaxBackoffSeconds: 4\n"));
    let config = Config::load(&[upstream.clone(), own.clone()]).unwrap();
    assert_eq!((config.agents, &*config.leader_election.name), (3, "ours"));
    assert_eq!(config.scheduler_names, ["default-scheduler"]);
    assert_eq!([config.backoff.initial, config.backoff.max], [3, 4].map(ConfigDuration::from_secs));
    let error = Config::load(&[own.clone(), own.clone()]).unwrap_err().to_string();
    assert!(error.ends_with("give one configuration file of each kind"), "{error}");
}
