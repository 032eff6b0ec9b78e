//! The configuration file of `berth run --config FILE`.
//!
//! YAML with camelCase keys; unknown keys are refused, a key that is left out has its default. The doc comment of a
//! field is its documentation for users too: it goes into the JSON schema ([`schema`]) that the chart checks its
//! values with. May not know: kube, tokio, agents.

mod dimension;
mod fragmentation;
mod load;
mod recommender;
mod scaling;
mod serving;
mod spread;
mod validate;
mod values;

#[cfg(test)]
mod tests;

use berth_model::ConfigDuration;
use berth_model::validate::whole_number;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::{Deserialize, Serialize};

pub use dimension::Dimension;
pub use fragmentation::Fragmentation;
pub use load::ConfigError;
pub use recommender::{Apply, AutoCreate, Estimation, Recommender, StatusThresholds, Storage};
pub use scaling::Scaling;
pub use serving::{Extender, Guard, Serving};
pub use spread::{DefaultConstraint, DefaultingType, PodTopologySpread};

use berth_model::Packing;
use berth_scheduler::dispatch::DispatcherKind;
use berth_scheduler::rules::Placement;

/// Everything that can be set in the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Config {
    /// Pods whose `spec.schedulerName` is one of these names are scheduled; all other pods are only counted.
    #[serde(deserialize_with = "values::names")]
    #[schemars(
        length(min = 1), extend("uniqueItems" = true),
        inner(regex(pattern = r"^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$"))
    )]
    pub scheduler_names: Vec<String>,

    /// Allocation agents: threads that choose nodes, each with caches of its own. 0 means automatic: one for each
    /// available core, four at most.
    #[serde(deserialize_with = "whole_number")]
    #[schemars(range(min = 0, max = 64))]
    pub agents: u32,

    /// Memory for the ranked lists of one agent, in MiB. A list takes at most 24 bytes for each node; the lists used
    /// longest ago go first.
    #[serde(rename = "cacheMemoryMiB", deserialize_with = "whole_number")]
    #[schemars(range(min = 16, max = 65536))]
    pub cache_memory_mib: u32,

    /// A ranked list that was not used for so long is dropped, even when there is memory left.
    pub cache_max_age: ConfigDuration,

    /// Choose among so many of the best nodes, at random; 1 always takes the best one. A larger number makes two
    /// agents run for the same node less often, and the choice a little worse.
    #[serde(deserialize_with = "whole_number")]
    #[schemars(range(min = 1, max = 1000))]
    pub candidate_width: u32,

    /// What pods get that have no topology spread constraints of their own.
    pub pod_topology_spread: PodTopologySpread,

    /// Which nodes to prefer by their requested share: `LeastAllocated` spreads pods, `MostAllocated` packs them.
    pub packing: Packing,

    /// How a waiting pod finds its agent. `latcache-priced` sends it where it is expected to be done first, given what
    /// waits at each agent and what its caches will hold by then, and does not make a second copy of a ranked list in
    /// a full cache for a gain smaller than the delay to later pods. `latcache-rule` is the same without foresight of
    /// evictions and without that price: Kamino's algorithm. `latcache-request` does not count on parts of lists
    /// (rule objects), and `latcache-naive` also neither on lists that waiting pods will bring nor on when an agent is
    /// done with what it is doing. The others are there to compare with: `protean` has one queue, from which idle
    /// agents take; `hash-stealing` keeps the pods of one class at one agent, and idle agents take from the longest
    /// queue; `round-robin` and `random` do not look at pods or agents.
    pub dispatcher: DispatcherKind,

    /// Bind requests that are under way to the API server at the same time.
    #[serde(deserialize_with = "whole_number")]
    #[schemars(range(min = 1, max = 1024))]
    pub binds_in_flight: u32,

    /// Placements that may wait for a free bind request; when there are more, agents pause.
    #[serde(deserialize_with = "whole_number")]
    #[schemars(range(min = 1, max = 65536))]
    pub max_waiting_binds: u32,

    /// A pod whose placement met a conflict is tried again at once, so many times in all; then it backs off.
    #[serde(deserialize_with = "whole_number")]
    #[schemars(range(min = 1, max = 100))]
    pub max_placement_tries: u32,

    /// How long a pod waits after a failed try.
    pub backoff: Backoff,

    /// A pod that has fitted nowhere for so long gets room kept on one node, from more important pods, too, until it fits there: on a
    /// hundredth of the nodes at most, for those that wait longest. So none waits for ever behind a stream of others. `0s`: never.
    pub reserve_after: ConfigDuration,

    /// How long a pod that has its node waits for its claims to be bound, before it gives the node back and tries again.
    pub volume_bind_timeout: ConfigDuration,

    /// How often all that is known of pods and nodes is compared with the API server, and healed.
    pub self_check_interval: ConfigDuration,

    /// Which few pods could move so that what waits has room: looked for from time to time.
    pub fragmentation: Fragmentation,

    /// One of several berth processes schedules, the others wait to take over.
    pub leader_election: LeaderElection,

    /// Address and port of `/healthz` and `/readyz`: plain HTTP without authentication. `/metrics`, `/explain` and
    /// `/fragmentation` are there, too, as long as it is a loopback address. In a pod it must be `0.0.0.0:PORT` or `[::]:PORT` for the probes. Port 0
    /// takes any free one.
    #[serde(deserialize_with = "values::socket_address")]
    #[schemars(with = "String", regex(pattern = r"^([0-9.]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}$"))]
    pub health_address: SocketAddr,

    /// What is served over HTTPS.
    pub serving: Serving,

    /// berth behind kube-scheduler, as its extender.
    pub extender: Extender,

    /// The API server asks berth before it binds a pod, whoever sends the binding.
    pub guard: Guard,

    /// Recommends requests in the status of VerticalPodAutoscalers.
    pub recommender: Recommender,

    /// Scales the services that ServiceScalers name.
    pub scaling: Scaling,

    /// Where the measured latencies of the dispatcher are kept over a restart. Without it they are measured anew,
    /// which takes some thousand pods.
    pub estimator_file: Option<PathBuf>,

    /// The form of log lines on standard error: `text` for people, `json` for log pipelines.
    pub log_format: LogFormat,
}

/// The form of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

/// How long a pod waits after a failed try: `initial` after the first, twice as long after each further one, up to
/// `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Backoff {
    /// The wait after the first failed try.
    pub initial: ConfigDuration,
    /// The longest wait.
    pub max: ConfigDuration,
}

/// Leader election by a Lease object. `leaseDuration` > `renewDeadline` > `retryPeriod`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LeaderElection {
    /// Without it every process schedules: run only one.
    pub enabled: bool,
    /// All replicas schedule, each the classes that fall to it by rendezvous hashing. The holder of the Lease is the guard of
    /// all of them; each has a Lease of its own besides, `NAME-member-…`, which says that it is there.
    pub active_active: bool,
    /// The namespace of the Lease. Empty: the namespace that berth itself runs in, outside of a cluster `kube-system`.
    #[schemars(regex(pattern = "^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)?$"))]
    pub namespace: String,
    /// The name of the Lease. Two berths of one cluster with different `schedulerNames` need different names.
    #[schemars(length(max = 253), regex(pattern = "^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"))]
    pub name: String,
    /// A lease that its holder did not renew for so long may be taken over. Whole seconds.
    pub lease_duration: ConfigDuration,
    /// A leader that could not renew its lease for so long stops scheduling.
    pub renew_deadline: ConfigDuration,
    /// Pause between two tries to take or to renew the lease.
    pub retry_period: ConfigDuration,
}

/// Where a pod finds the name of its own namespace.
pub const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// The most agents that `agents: 0` gives: more of them mostly compete for the ledger.
const AUTOMATIC_AGENTS_MAX: usize = 4;

impl Default for Config {
    fn default() -> Self {
        Self {
            scheduler_names: vec!["berth".to_owned()],
            agents: 0,
            cache_memory_mib: 256,
            cache_max_age: ConfigDuration::from_secs(600),
            candidate_width: 1,
            pod_topology_spread: PodTopologySpread::default(),
            packing: Packing::default(),
            dispatcher: DispatcherKind::default(),
            binds_in_flight: 64,
            max_waiting_binds: 256,
            max_placement_tries: 10,
            backoff: Backoff::default(),
            reserve_after: ConfigDuration::from_secs(600),
            volume_bind_timeout: ConfigDuration::from_secs(600),
            self_check_interval: ConfigDuration::from_secs(300),
            fragmentation: Fragmentation::default(),
            leader_election: LeaderElection::default(),
            health_address: SocketAddr::from((Ipv4Addr::LOCALHOST, 10261)),
            serving: Serving::default(),
            extender: Extender::default(),
            guard: Guard::default(),
            recommender: Recommender::default(),
            scaling: Scaling::default(),
            estimator_file: None,
            log_format: LogFormat::default(),
        }
    }
}

impl Default for Backoff {
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
    /// Reads and checks the file; the defaults when there is none.
    ///
    /// # Errors
    /// The file cannot be read, is not this YAML, or has a value out of its limits. The text says which file, line and
    /// field, and what is allowed.
    pub fn load(file: Option<&Path>) -> Result<Self, ConfigError> {
        match file {
            Some(file) => load::read(file),
            None => Ok(Self::default()),
        }
    }

    /// How pods are placed that no policy governs.
    pub fn placement(&self) -> Placement {
        let candidate_width = self.candidate_width as usize;
        Placement { packing: self.packing, candidate_width, ..Placement::default() }
    }

    /// How many agents to start on a machine with so many cores.
    pub fn agent_count(&self, available_cores: usize) -> usize {
        match self.agents {
            0 => available_cores.clamp(1, AUTOMATIC_AGENTS_MAX),
            agents => agents as usize,
        }
    }
}

impl LeaderElection {
    /// The namespace of the Lease: the configured one, else what `namespace_file` says ([`NAMESPACE_FILE`], which only
    /// a pod has), else `kube-system`.
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

/// The JSON schema of [`Config`]: draft 7 and without references, so that every Helm 3 can check values with it.
pub fn schema() -> serde_json::Value {
    let settings = SchemaSettings::draft07().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    settings.into_generator().into_root_schema_for::<Config>().to_value()
}
