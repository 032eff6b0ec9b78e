//! The settings of the scheduler and its agents, from the configuration file.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use berth_config::Config;
use berth_scheduler::agent::{AgentConfig, CacheLimits};
use berth_scheduler::objects::ObjectKind;
use berth_scheduler::queue::BackoffLimits;
use berth_scheduler::scheduler::SchedulerConfig;

pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Minimum interval between two reports of a class's diagnosis to its pods.
const REFRESH: Duration = Duration::from_secs(60);

/// Returns the number of agents on this machine.
pub fn agent_count(config: &Config) -> usize {
    config.agent_count(cores())
}

/// Returns the settings of the scheduler.
pub fn scheduler_config(config: &Config) -> SchedulerConfig {
    let mut objects = BTreeSet::from([
        ObjectKind::Namespace,
        ObjectKind::PersistentVolume,
        ObjectKind::PersistentVolumeClaim,
        ObjectKind::StorageClass,
        ObjectKind::CsiNode,
        ObjectKind::CsiDriver,
        ObjectKind::CsiStorageCapacity,
        ObjectKind::VolumeAttachment,
        ObjectKind::ResourceSlice,
        ObjectKind::DeviceClass,
        ObjectKind::ResourceClaim,
        ObjectKind::Allocation,
        ObjectKind::PodGroup,
        ObjectKind::CoschedulingPodGroup,
        ObjectKind::DisruptionBudget,
        ObjectKind::AllocationPolicy,
        ObjectKind::Quota,
    ]);
    if config.spreads_by_default() {
        objects.extend(ObjectKind::SPREADING);
    }
    SchedulerConfig {
        dispatcher: config.dispatcher,
        seed: 0,
        scheduler_names: config.scheduler_names.iter().map(|name| Arc::from(name.as_str())).collect(),
        agents: agent_count(config),
        max_waiting_binds: config.max_waiting_binds as usize,
        max_waiting_classes: config.max_waiting_classes as usize,
        max_tries: config.max_placement_tries,
        backoff: BackoffLimits { initial: config.backoff.initial.get(), max: config.backoff.max.get() },
        refresh: REFRESH,
        reserve_after: config.reserve_after.get(),
        objects,
        preemption: true,
        advice: config.fragmentation.every().is_some(),
        remembered_decisions: config.remembered_decisions as usize,
        annotates_decisions: config.annotate_decisions,
        knows_others: config.extender.enabled || config.guard.enabled,
        volume_bind_timeout: config.volume_bind_timeout.get(),
        profiles: config.profiles().into(),
    }
}

/// Returns the settings of each agent.
pub fn agent_configs(config: &Config) -> Vec<AgentConfig> {
    let cache = CacheLimits {
        bytes: (config.cache_memory_mib as usize) << 20,
        age: config.cache_max_age.get(),
        ..CacheLimits::unlimited()
    };
    let agent = |seed| AgentConfig { cache, seed };
    (0..agent_count(config) as u64).map(|index| agent(index + 1)).collect()
}
