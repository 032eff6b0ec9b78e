//! Configuration of the scheduler.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::dispatch::DispatcherKind;
use crate::objects::ObjectKind;
use crate::profile::Profiles;
use crate::queue::BackoffLimits;

/// Configuration of the scheduler.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SchedulerConfig {
    /// Pods with one of these `schedulerName`s belong to this scheduler.
    pub scheduler_names: Vec<Arc<str>>,
    pub agents: usize,
    pub dispatcher: DispatcherKind,
    /// Seed of the dispatcher's random choices.
    pub seed: u64,
    /// Maximum number of binds in flight; agents pause above it, so that a high-priority pod never waits behind more
    /// than these.
    pub max_waiting_binds: usize,
    /// Maximum number of classes that the waiting pods of one namespace and priority may have before further ones take
    /// turns.
    pub max_waiting_classes: usize,
    /// Maximum number of placements tried in a row for one pod before it backs off.
    pub max_tries: u32,
    pub backoff: BackoffLimits,
    /// Minimum interval between updates of a waiting pod's condition with a new diagnosis of its class.
    pub refresh: Duration,
    /// Kinds that must be listed before anything is scheduled, in addition to pods and nodes.
    pub objects: BTreeSet<ObjectKind>,
    /// Time to bind the claims of a pod after it got its node; then the pod loses the node.
    pub volume_bind_timeout: Duration,
    /// Tracks pods of other schedulers without a node: needed by the guard and the extender.
    pub knows_others: bool,
    /// Time after which an unschedulable pod gets a reservation on one node until it fits there. Zero: never.
    pub reserve_after: Duration,
    /// Enables preemption of lower-priority pods.
    pub preemption: bool,
    /// Keeps the data of pods with a node that fragmentation advice needs.
    pub advice: bool,
    /// Number of placed pods for which the reason of their node is remembered; 0: none.
    pub remembered_decisions: usize,
    /// Gives each placed pod the reason of its node in an annotation.
    pub annotates_decisions: bool,
    pub profiles: Arc<Profiles>,
}

impl Default for SchedulerConfig {
    /// One agent for the pods of `berth`, no kinds to list besides pods and nodes, no default spreading; otherwise the
    /// defaults of the configuration file.
    fn default() -> Self {
        SchedulerConfig {
            scheduler_names: vec!["berth".into()],
            agents: 1,
            dispatcher: DispatcherKind::default(),
            seed: 0,
            max_waiting_binds: 64,
            max_waiting_classes: 256,
            max_tries: 10,
            backoff: BackoffLimits { initial: Duration::from_secs(1), max: Duration::from_secs(10) },
            refresh: Duration::from_secs(60),
            objects: BTreeSet::new(),
            volume_bind_timeout: Duration::from_secs(600),
            knows_others: false,
            reserve_after: Duration::ZERO,
            preemption: false,
            advice: false,
            remembered_decisions: 0,
            annotates_decisions: false,
            profiles: Arc::default(),
        }
    }
}
