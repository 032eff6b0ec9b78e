//! `KubeSchedulerConfiguration` (`kubescheduler.config.k8s.io/v1`): kube-scheduler's own file, translated into a
//! [`Config`].
//!
//! A field that could change which nodes are valid, or which pods are scheduled, is followed or refused. One that berth has
//! no use for, or that only weighs nodes in another way, is noted.

mod file;
mod plugins;

#[cfg(test)]
mod tests;

use std::path::PathBuf;

use berth_model::validate::refuse;
use berth_model::{ConfigDuration, InvalidField, Packing, names};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{Config, PackedResource, PodTopologySpread, ProfileConfig};
use file::{
    BalancedAllocationArgs, Connection, DefaultPreemptionArgs, DynamicResourcesArgs, Election, FileProfile,
    InterPodAffinityArgs, NodeAffinityArgs, NodeResourcesFitArgs, PluginConfig, PodTopologySpreadArgs,
    ResourceSpec, ScoringStrategy, ShapePoint, VolumeBindingArgs,
};

pub(super) use file::File;

const GROUP: &str = "kubescheduler.config.k8s.io/";
const KIND: &str = "KubeSchedulerConfiguration";
/// kube-scheduler's name, unless its file says another.
const DEFAULT_SCHEDULER: &str = "default-scheduler";
/// Lease of kube-scheduler, unless its file says another.
const LEASE: (&str, &str) = ("kube-system", "kube-scheduler");

/// Returns whether a file with this version and kind is one of kube-scheduler.
pub(super) fn is_kube_scheduler(api_version: Option<&str>, kind: Option<&str>) -> bool {
    kind == Some(KIND) || api_version.is_some_and(|version| version.starts_with(GROUP))
}

/// What is left of a translation besides the configuration.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Rest {
    pub kubeconfig: Option<PathBuf>,
    /// What means nothing here, a line each.
    pub notes: Vec<String>,
}

/// Writes what the file says into `config`. `alone`: there is no file of berth, so that what kube-scheduler does by default
/// holds for what the file leaves out.
///
/// # Errors
/// The first field that berth can neither follow nor ignore.
pub(super) fn translate(file: File, alone: bool, config: &mut Config) -> Result<Rest, InvalidField> {
    if file.api_version.as_deref() != Some("kubescheduler.config.k8s.io/v1")
        || file.kind.as_deref() != Some(KIND)
    {
        let version = file.api_version.unwrap_or_default();
        refuse(
            "apiVersion",
            format!("`{version}` with this kind is not kubescheduler.config.k8s.io/v1 with {KIND}"),
        )?;
    }
    let mut rest = Rest::default();
    let notes = &mut rest.notes;
    let mut note = |is_set: bool, text: &str| notes.extend(is_set.then(|| text.to_owned()));
    note(
        file.parallelism.is_some(),
        "parallelism: berth has agents; `agents` in its own file is their number",
    );
    let most = file.percentage_of_nodes_to_score.is_some_and(|percent| percent != 0);
    note(most, "percentageOfNodesToScore: berth ranks all nodes");
    let profiling = file.enable_profiling.is_some() || file.enable_contention_profiling.is_some();
    note(profiling, "enableProfiling, enableContentionProfiling: berth has no profiling endpoint");
    note(file.delay_cache_until_active.is_some(), "delayCacheUntilActive: berth's caches are always filled");
    if file.extenders.is_some_and(|extenders| !extenders.is_empty()) {
        refuse("extenders", "berth calls no extenders: remove them, or leave their pods to kube-scheduler")?;
    }
    if let Some(connection) = file.client_connection {
        rest.kubeconfig = connect(connection, &mut rest.notes);
    }
    elect(file.leader_election, alone, config, &mut rest.notes)?;
    for (field, seconds, limit) in [
        ("podInitialBackoffSeconds", file.pod_initial_backoff_seconds, &mut config.backoff.initial),
        ("podMaxBackoffSeconds", file.pod_max_backoff_seconds, &mut config.backoff.max),
    ] {
        let Some(seconds) = seconds else { continue };
        if !(1..=3_600).contains(&seconds) {
            refuse(field, format!("{seconds} is not from 1 to 3600"))?;
        }
        *limit = ConfigDuration::from_secs(u64::from(seconds));
    }
    let (initial, max) = (config.backoff.initial, config.backoff.max);
    if max < initial {
        refuse("podMaxBackoffSeconds", format!("{max} is shorter than the initial backoff, {initial}"))?;
    }
    let mut profiles = file.profiles.unwrap_or_default();
    if profiles.is_empty() {
        profiles.push(FileProfile::default());
    }
    config.scheduler_names.clear();
    config.profiles.clear();
    let (named, mut bind_timeout) = (profiles.len() > 1, None);
    for (at, profile) in profiles.into_iter().enumerate() {
        let path = format!("profiles[{at}]");
        let mut translation =
            ProfileTranslation { bind_timeout: &mut bind_timeout, notes: &mut rest.notes, path: &path };
        let profile = translation.profile(profile, named).map_err(|invalid| invalid.of(&path))?;
        config.scheduler_names.push(profile.scheduler_name.clone());
        config.profiles.push(profile);
    }
    if let Some(timeout) = bind_timeout {
        config.volume_bind_timeout = timeout;
    }
    Ok(rest)
}

fn connect(connection: Connection, notes: &mut Vec<String>) -> Option<PathBuf> {
    let Connection { kubeconfig, accept_content_types, content_type, qps, burst } = connection;
    if accept_content_types.or(content_type).is_some() {
        notes.push("clientConnection.contentType: berth speaks JSON with the API server".to_owned());
    }
    if qps.is_some() || burst.is_some() {
        let text = "clientConnection.qps, burst: berth limits requests in flight; `bindsInFlight` in its own file is their \
                    number";
        notes.push(text.to_owned());
    }
    kubeconfig.filter(|file| !file.is_empty()).map(PathBuf::from)
}

fn elect(
    election: Option<Election>,
    alone: bool,
    config: &mut Config,
    notes: &mut Vec<String>,
) -> Result<(), InvalidField> {
    if election.is_none() && !alone {
        return Ok(());
    }
    let election = election.unwrap_or_default();
    match election.resource_lock.as_deref() {
        None | Some("" | "leases") => {}
        Some(other) => refuse("leaderElection.resourceLock", format!("`{other}` is not leases"))?,
    }
    let own = &mut config.leader_election;
    let text = |text: Option<String>, default: &str| {
        text.filter(|text| !text.is_empty()).unwrap_or_else(|| default.to_owned())
    };
    own.enabled = election.leader_elect.unwrap_or(true);
    own.namespace = text(election.resource_namespace, LEASE.0);
    own.name = text(election.resource_name, LEASE.1);
    own.lease_duration = election.lease_duration.unwrap_or(own.lease_duration);
    own.renew_deadline = election.renew_deadline.unwrap_or(own.renew_deadline);
    own.retry_period = election.retry_period.unwrap_or(own.retry_period);
    if own.enabled && (&*own.namespace, &*own.name) == LEASE {
        let text = "leaderElection: the Lease is kube-scheduler's, kube-system/kube-scheduler: berth waits while that holds it";
        notes.push(text.to_owned());
    }
    Ok(())
}

/// Translates one profile. Errors and notes have paths within it.
struct ProfileTranslation<'a> {
    /// That of earlier profiles.
    bind_timeout: &'a mut Option<ConfigDuration>,
    notes: &'a mut Vec<String>,
    path: &'a str,
}

impl ProfileTranslation<'_> {
    fn profile(&mut self, profile: FileProfile, named: bool) -> Result<ProfileConfig, InvalidField> {
        let FileProfile { scheduler_name, percentage_of_nodes_to_score, plugins, plugin_config } = profile;
        let scheduler_name = match scheduler_name {
            Some(name) if names::is_qualified_name(&name) => name,
            None if !named => DEFAULT_SCHEDULER.to_owned(),
            name => {
                let name = name.unwrap_or_default();
                refuse("schedulerName", format!("`{name}` is not a scheduler's name"))?;
                name
            }
        };
        if percentage_of_nodes_to_score.is_some_and(|percent| percent != 0) {
            self.notes.push(format!("{}.percentageOfNodesToScore: berth ranks all nodes", self.path));
        }
        let mut own = ProfileConfig { scheduler_name, ..ProfileConfig::default() };
        if let Some(plugins) = plugins {
            let before = self.notes.len();
            own.preferences =
                plugins::preferences(&plugins, self.notes).map_err(|invalid| invalid.of("plugins"))?;
            self.prefix(before, "plugins");
        }
        for (at, config) in plugin_config.unwrap_or_default().into_iter().enumerate() {
            let path = format!("pluginConfig[{at}].args");
            let before = self.notes.len();
            self.plugin(config, &mut own).map_err(|invalid| match &*invalid.field {
                "" => InvalidField { field: path.clone().into(), ..invalid },
                _ => invalid.of(&path),
            })?;
            self.prefix(before, &path);
        }
        Ok(own)
    }

    /// Puts the path in front of the notes from `first` on.
    fn prefix(&mut self, first: usize, path: &str) {
        for note in &mut self.notes[first..] {
            *note = format!("{}.{path}.{note}", self.path);
        }
    }

    fn plugin(
        &mut self,
        PluginConfig { name, args }: PluginConfig,
        own: &mut ProfileConfig,
    ) -> Result<(), InvalidField> {
        let mut note = |is_set: bool, text: &str| self.notes.extend(is_set.then(|| text.to_owned()));
        match &*name {
            "DefaultPreemption" => {
                let args: DefaultPreemptionArgs = read(args)?;
                let is_set =
                    args.min_candidate_nodes_percentage.or(args.min_candidate_nodes_absolute).is_some();
                note(is_set, "minCandidateNodes…: berth bounds the time of a survey, not its nodes");
            }
            "InterPodAffinity" => {
                let args: InterPodAffinityArgs = read(args)?;
                let weight = args.hard_pod_affinity_weight.is_some_and(|weight| weight != 1);
                note(weight, "hardPodAffinityWeight: it is 1 in berth");
                let ignores = args.ignore_preferred_terms_of_existing_pods == Some(true);
                note(ignores, "ignorePreferredTermsOfExistingPods: berth counts them");
            }
            "NodeResourcesBalancedAllocation" => {
                let args: BalancedAllocationArgs = read(args)?;
                let resources = args.resources.unwrap_or_default();
                let others = resources.iter().any(|resource| !matches!(&*resource.name, "cpu" | "memory"));
                note(others, "resources: berth balances cpu and memory");
            }
            "DynamicResources" => {
                let args: DynamicResourcesArgs = read(args)?;
                note(
                    args.filter_timeout.is_some(),
                    "filterTimeout: berth bounds the steps of an allocation, not its time",
                );
                note(
                    args.binding_timeout.is_some(),
                    "bindingTimeout: volumeBindTimeout is the limit for devices, too",
                );
            }
            "NodeResourcesFit" => {
                let args: NodeResourcesFitArgs = read(args)?;
                fit(args, own, self.notes)?;
            }
            "PodTopologySpread" => {
                let args: PodTopologySpreadArgs = read(args)?;
                let or =
                    |value: Option<Value>, default| value.filter(|value| !value.is_null()).unwrap_or(default);
                let spread: PodTopologySpread = read(json!({
                    "defaultConstraints": or(args.default_constraints, json!([])),
                    "defaultingType": or(args.defaulting_type, json!("System")),
                }))?;
                own.pod_topology_spread = Some(spread);
            }
            "NodeAffinity" => {
                let args: NodeAffinityArgs = read(args)?;
                own.added_affinity = args.added_affinity;
            }
            "VolumeBinding" => {
                let args: VolumeBindingArgs = read(args)?;
                note(args.shape.is_some(), "shape: berth does not rank nodes by the sizes of volumes");
                self.bind_timeout(args.bind_timeout_seconds)?;
            }
            other if plugins::exists(other) => {
                if !args.is_null() && args != json!({}) {
                    refuse("", format!("{other} takes no arguments"))?;
                }
            }
            other => refuse("", plugins::unknown(other))?,
        }
        Ok(())
    }

    fn bind_timeout(&mut self, seconds: Option<u32>) -> Result<(), InvalidField> {
        const FIELD: &str = "bindTimeoutSeconds";
        let Some(seconds) = seconds else { return Ok(()) };
        if !(1..=86_400).contains(&seconds) {
            return refuse(FIELD, format!("{seconds} is not from 1 to 86400"));
        }
        let timeout = ConfigDuration::from_secs(u64::from(seconds));
        match self.bind_timeout.replace(timeout) {
            Some(earlier) if earlier != timeout => refuse(
                FIELD,
                format!("{timeout} differs from the {earlier} above: berth has one for all profiles"),
            ),
            _ => Ok(()),
        }
    }
}

fn fit(
    args: NodeResourcesFitArgs,
    own: &mut ProfileConfig,
    notes: &mut Vec<String>,
) -> Result<(), InvalidField> {
    for (field, ignored) in [
        ("ignoredResources", args.ignored_resources),
        ("ignoredResourceGroups", args.ignored_resource_groups),
    ] {
        if ignored.is_some_and(|ignored| !ignored.is_empty()) {
            refuse(
                field,
                "berth counts every resource that a node has; only an extender could count it instead",
            )?;
        }
    }
    let Some(ScoringStrategy { kind, resources, requested_to_capacity_ratio }) = args.scoring_strategy else {
        return Ok(());
    };
    own.packing = Some(match kind.as_deref() {
        None | Some("" | "LeastAllocated") => Packing::LeastAllocated,
        Some("MostAllocated") => Packing::MostAllocated,
        Some("RequestedToCapacityRatio") => {
            let shape = requested_to_capacity_ratio.and_then(|ratio| ratio.shape).unwrap_or_default();
            notes.push(
                "scoringStrategy.requestedToCapacityRatio: berth uses the direction of the shape alone"
                    .to_owned(),
            );
            direction(&shape)?
        }
        Some(other) => {
            let problem =
                format!("`{other}` is none of LeastAllocated, MostAllocated, RequestedToCapacityRatio");
            return refuse("scoringStrategy.type", problem);
        }
    });
    let resources = resources.unwrap_or_default();
    let packed = |ResourceSpec { name, weight }| PackedResource {
        name,
        weight: weight.filter(|weight| *weight > 0).unwrap_or(1),
    };
    let packed: Vec<_> = resources.into_iter().map(packed).collect();
    let [cpu, memory] = ["cpu", "memory"].map(|name| packed.iter().find(|resource| resource.name == name));
    let is_default =
        packed.len() == 2 && cpu.zip(memory).is_some_and(|(cpu, memory)| cpu.weight == memory.weight);
    own.packed_resources = Some(packed).filter(|packed| !packed.is_empty() && !is_default);
    Ok(())
}

/// Returns whether fuller nodes are better (`MostAllocated`) or worse.
fn direction(shape: &[ShapePoint]) -> Result<Packing, InvalidField> {
    const FIELD: &str = "scoringStrategy.requestedToCapacityRatio.shape";
    let pairs = || shape.windows(2).map(|pair| (pair[0], pair[1]));
    let rises = pairs().any(|(a, b)| a.score < b.score);
    let falls = pairs().any(|(a, b)| a.score > b.score);
    if pairs().any(|(a, b)| a.utilization >= b.utilization) || rises == falls {
        let problem = "berth packs or spreads: the scores must only rise, or only fall, with the utilization";
        refuse(FIELD, problem)?;
    }
    Ok(if rises { Packing::MostAllocated } else { Packing::LeastAllocated })
}

/// Reads the arguments of a plugin; none are the defaults.
fn read<T: DeserializeOwned + Default>(args: Value) -> Result<T, InvalidField> {
    match args {
        Value::Null => Ok(T::default()),
        args => serde_json::from_value(args)
            .map_err(|error| InvalidField { field: "".into(), problem: error.to_string() }),
    }
}
