//! The configuration file of `berth run --config FILE`.
//!
//! YAML with camelCase keys. Unknown keys are rejected; an unset key has its default. The doc comment of a
//! field is also its user documentation: it becomes a description in the JSON schema ([`schema`]) that the
//! chart validates its values with. May not know: kube, tokio, agents.

mod affinity;
mod dimension;
mod fragmentation;
mod kube_scheduler;
mod load;
mod profile;
mod recommender;
mod recorder;
mod scaling;
mod serving;
mod spread;
mod tracing;
mod validate;
mod values;

#[cfg(test)]
mod tests;

use berth_model::validate::whole_number;
use berth_model::{ConfigDuration, Packing};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::{Deserialize, Serialize};

pub use affinity::{AddedAffinity, AddedNodeSelector, AddedPreference, AddedRequirement, AddedTerm};
pub use dimension::DimensionConfig;
pub use fragmentation::Fragmentation;
pub use load::{ConfigError, LoadedConfig};
pub use profile::{PackedResource, ProfileConfig};
pub use recommender::{Apply, AutoCreate, Estimation, Recommender, StatusThresholds, Storage};
pub use recorder::RecorderConfig;
pub use scaling::Scaling;
pub use serving::{ExtenderConfig, FailurePolicy, GuardConfig, Serving};
pub use spread::{DefaultConstraint, DefaultingType, PodTopologySpread};
pub use tracing::TracingConfig;

use berth_scheduler::dispatch::DispatcherKind;

/// All keys of the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Config {
    /// Pods whose `spec.schedulerName` is one of these names are scheduled; all other pods only count as
    /// usage of their nodes.
    #[serde(deserialize_with = "values::names")]
    #[schemars(
        length(min = 1), extend("uniqueItems" = true),
        inner(regex(pattern = r"^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$"))
    )]
    pub scheduler_names: Vec<String>,

    /// Settings for the pods of some of the `schedulerNames` that differ from those of the file. An
    /// [AllocationPolicy](policies.md) takes precedence over them.
    pub profiles: Vec<ProfileConfig>,

    /// Number of allocation agents: threads that choose nodes, each with its own caches. 0: one per available
    /// core, at most four.
    #[serde(deserialize_with = "whole_number")]
    #[schemars(range(min = 0, max = 64))]
    pub agents: u32,

    /// Memory for the ranked lists of one agent, in MiB. Classes that differ only in images, spread and pod affinity
    /// share a list of some 20 bytes a node, and each adds some 60 bytes a node that has its images or pods that it
    /// looks at; the least recently used lists are evicted first.
    #[serde(rename = "cacheMemoryMiB", deserialize_with = "whole_number")]
    #[schemars(range(min = 16, max = 65536))]
    pub cache_memory_mib: u32,

    /// Time since the last use after which a ranked list is dropped, even if there is free memory.
    pub cache_max_age: ConfigDuration,

    /// Number of best nodes to choose from at random; 1 always takes the best node. A larger value causes
    /// fewer conflicts between agents and slightly worse placements.
    #[serde(deserialize_with = "whole_number")]
    #[schemars(range(min = 1, max = 1000))]
    pub candidate_width: u32,

    /// Topology spread constraints of pods that have none of their own.
    pub pod_topology_spread: PodTopologySpread,

    /// Node preference by requested share: `LeastAllocated` spreads pods, `MostAllocated` packs them.
    pub packing: Packing,

    /// How a waiting pod is assigned to an agent. `latcache-priced` picks the agent with the earliest
    /// expected completion, given the queue of each agent and the expected contents of its caches. It does
    /// not put a second copy of a ranked list into a full cache if the gain is smaller than the delay of
    /// later pods. `latcache-rule` (Kamino's algorithm) is the same without predicted evictions and without
    /// that cost check. `latcache-request` also ignores parts of lists (rule objects). `latcache-naive` also
    /// ignores lists that waiting pods will build, and the time until an agent finishes its current work. The
    /// remaining values are for comparison: `protean` has one queue that idle agents take from;
    /// `hash-stealing` keeps the pods of one class at one agent, and idle agents take from the longest queue;
    /// `round-robin` and `random` ignore pods and agents.
    pub dispatcher: DispatcherKind,

    /// Maximum number of concurrent bind requests to the API server.
    #[serde(deserialize_with = "whole_number")]
    #[schemars(range(min = 1, max = 1024))]
    pub binds_in_flight: u32,

    /// Maximum number of placements that wait for a free bind request; agents pause while there are more.
    #[serde(deserialize_with = "whole_number")]
    #[schemars(range(min = 1, max = 65536))]
    pub max_waiting_binds: u32,

    /// Number of classes (pods of different specs) that the pods of one namespace with one priority may have
    /// waiting at once. Pods of further classes are held back and take turns, so that a tenant whose pods are
    /// all different does not delay the pods of others.
    #[serde(deserialize_with = "whole_number")]
    #[schemars(range(min = 1, max = 1000000))]
    pub max_waiting_classes: u32,

    /// Placement attempts without backoff for a pod whose placements conflict. After that, the pod backs off.
    #[serde(deserialize_with = "whole_number")]
    #[schemars(range(min = 1, max = 100))]
    pub max_placement_tries: u32,

    /// Backoff of a pod after a failed attempt.
    pub backoff: BackoffConfig,

    /// Time after which a pod that fits on no node gets a reservation on one node, also against pods with a
    /// higher priority except system-critical ones, until it fits there. At most 1 % of the nodes are reserved,
    /// for the pods that have waited longest, half of them for one namespace. A reservation ends after the same
    /// time; the pod gets one on another node later, but only after some pod has left a node. This prevents
    /// starvation by a steady stream of other pods. `0s` disables it.
    pub reserve_after: ConfigDuration,

    /// Time that a pod with an assigned node waits for its claims to be bound. After that, it gives up the
    /// node and is retried.
    pub volume_bind_timeout: ConfigDuration,

    /// Interval at which the cached pods and nodes are compared with the API server and repaired.
    pub self_check_interval: ConfigDuration,

    /// Number of placed pods for which the reason of their node is remembered, for `/why` and `berth why`; 0: none. 100,000 take about
    /// 30 MiB.
    #[serde(deserialize_with = "whole_number")]
    #[schemars(range(min = 0, max = 1000000))]
    pub remembered_decisions: u32,

    /// Give each pod, with its bind, the reason of its node in the annotation `berth.dev/decision`, about 1 KB. Needs
    /// rememberedDecisions.
    pub annotate_decisions: bool,

    /// Placements as spans of OpenTelemetry.
    pub tracing: TracingConfig,

    /// A recording of all that the scheduler hears and decides, for `berth replay`.
    pub recorder: RecorderConfig,

    /// Advice on a few pods whose move makes room for pending pods and allocations.
    pub fragmentation: Fragmentation,

    /// One of several berth processes schedules; the other replicas are on standby.
    pub leader_election: LeaderElection,

    /// Address and port of `/healthz` and `/readyz`: plain HTTP without authentication. On a loopback address
    /// it also serves `/metrics`, `/explain`, `/why`, `/fit`, `/fragmentation` and `/ui/`. In a pod it must be `0.0.0.0:PORT` or
    /// `[::]:PORT` for the probes. Port 0 takes any free port.
    #[serde(deserialize_with = "values::socket_address")]
    #[schemars(with = "String", regex(pattern = r"^([0-9.]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}$"))]
    pub health_address: SocketAddr,

    /// The HTTPS server.
    pub serving: Serving,

    /// berth as an extender of kube-scheduler.
    pub extender: ExtenderConfig,

    /// An admission webhook that checks every binding, from any scheduler, before the API server writes it.
    pub guard: GuardConfig,

    /// Recommends requests in the status of VerticalPodAutoscalers.
    pub recommender: Recommender,

    /// Scales the services that ServiceScalers name.
    pub scaling: Scaling,

    /// File that keeps the measured latencies of the dispatcher across restarts. If unset, they are measured
    /// again after each start, which takes a few thousand pods.
    pub estimator_file: Option<PathBuf>,

    /// Format of log lines on standard error: `text` for people, `json` for log pipelines.
    pub log_format: LogFormat,
}

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

/// Backoff of a pod: `initial` after the first failed attempt, doubled after each further one, up to `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct BackoffConfig {
    /// Backoff after the first failed attempt.
    pub initial: ConfigDuration,
    /// Maximum backoff.
    pub max: ConfigDuration,
}

/// Leader election with a Lease object. `leaseDuration` > `renewDeadline` > `retryPeriod`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LeaderElection {
    /// Use leader election. If it is off, every process schedules: run only one.
    pub enabled: bool,
    /// All replicas schedule: rendezvous hashing assigns each class of pods to one replica. The holder of the
    /// Lease is the guard of all replicas. Each replica also renews a Lease of its own, `NAME-member-…`, to
    /// show that it is alive.
    pub active_active: bool,
    /// Namespace of the Lease. Empty: the namespace that berth runs in, or `kube-system` outside of a
    /// cluster.
    #[schemars(regex(pattern = "^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)?$"))]
    pub namespace: String,
    /// Name of the Lease. Two berth deployments in one cluster with different `schedulerNames` need different
    /// names.
    #[schemars(length(max = 253), regex(pattern = "^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"))]
    pub name: String,
    /// Time after which a Lease that its holder did not renew may be taken over. Whole seconds.
    pub lease_duration: ConfigDuration,
    /// Time after which a leader that could not renew its Lease stops scheduling.
    pub renew_deadline: ConfigDuration,
    /// Interval between two attempts to acquire or renew the Lease.
    pub retry_period: ConfigDuration,
}

/// File from which a pod reads the name of its namespace.
pub const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// Maximum number of agents that `agents: 0` gives: more agents mostly compete for the ledger.
const AUTOMATIC_AGENTS_MAX: usize = 4;

impl Default for Config {
    fn default() -> Self {
        Self {
            scheduler_names: vec!["berth".to_owned()],
            profiles: Vec::new(),
            agents: 0,
            cache_memory_mib: 256,
            cache_max_age: ConfigDuration::from_secs(600),
            candidate_width: 1,
            pod_topology_spread: PodTopologySpread::default(),
            packing: Packing::default(),
            dispatcher: DispatcherKind::default(),
            binds_in_flight: 64,
            max_waiting_binds: 256,
            max_waiting_classes: 256,
            max_placement_tries: 10,
            backoff: BackoffConfig::default(),
            reserve_after: ConfigDuration::from_secs(600),
            volume_bind_timeout: ConfigDuration::from_secs(600),
            self_check_interval: ConfigDuration::from_secs(300),
            remembered_decisions: 100_000,
            annotate_decisions: false,
            tracing: TracingConfig::default(),
            recorder: RecorderConfig::default(),
            fragmentation: Fragmentation::default(),
            leader_election: LeaderElection::default(),
            health_address: SocketAddr::from((Ipv4Addr::LOCALHOST, 10261)),
            serving: Serving::default(),
            extender: ExtenderConfig::default(),
            guard: GuardConfig::default(),
            recommender: Recommender::default(),
            scaling: Scaling::default(),
            estimator_file: None,
            log_format: LogFormat::default(),
        }
    }
}

impl Default for BackoffConfig {
    fn default() -> Self {
        Self { initial: ConfigDuration::from_secs(1), max: ConfigDuration::from_secs(10) }
    }
}

impl Default for LeaderElection {
    fn default() -> Self {
        Self {
            enabled: true,
            active_active: false,
            namespace: String::new(),
            name: "berth".to_owned(),
            lease_duration: ConfigDuration::from_secs(15),
            renew_deadline: ConfigDuration::from_secs(10),
            retry_period: ConfigDuration::from_secs(2),
        }
    }
}

impl Config {
    /// Reads the files as [`LoadedConfig::read`] does.
    ///
    /// # Errors
    /// As [`LoadedConfig::read`].
    pub fn load(files: &[PathBuf]) -> Result<Self, ConfigError> {
        LoadedConfig::read(files).map(|loaded| loaded.config)
    }

    /// Returns the number of agents to start on a machine with `available_cores` cores.
    pub fn agent_count(&self, available_cores: usize) -> usize {
        match self.agents {
            0 => available_cores.clamp(1, AUTOMATIC_AGENTS_MAX),
            agents => agents as usize,
        }
    }
}

impl LeaderElection {
    /// Returns the namespace of the Lease: the configured one, else the content of `namespace_file`
    /// ([`NAMESPACE_FILE`], which only a pod has), else `kube-system`.
    pub fn lease_namespace(&self, namespace_file: &Path) -> String {
        if !self.namespace.is_empty() {
            return self.namespace.clone();
        }
        let own = std::fs::read_to_string(namespace_file).unwrap_or_default();
        match own.trim() {
            "" => "kube-system".to_owned(),
            own => own.to_owned(),
        }
    }
}

/// Returns the JSON schema of [`Config`]: draft 7 without references, so that every Helm 3 can validate
/// values with it.
pub fn schema() -> serde_json::Value {
    let settings = SchemaSettings::draft07().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    settings.into_generator().into_root_schema_for::<Config>().to_value()
}
