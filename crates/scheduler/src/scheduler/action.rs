//! Actions for the I/O modules, and counters.

use std::sync::Arc;
use std::time::Duration;

use super::Eviction;
use crate::gang::GangStatus;
use crate::placement::{Binding, ClaimOrder};
use crate::policy::PolicyStatus;
use crate::quota::QuotaReport;
use berth_devices::ClaimRelease;
use berth_model::{PodRef, PodReport};

/// An action for the I/O modules.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Carry out this placement; report the outcome to `Scheduler::bind_finished`.
    Bind(Binding),
    /// Write these claims; report the outcome to `Scheduler::claims_written`.
    Claim(ClaimOrder),
    /// Free the devices of this claim, which an earlier attempt to place its pod has left behind. Asked for again until that is seen.
    ReleaseClaim(ClaimRelease),
    /// Evict this pod; report the outcome to `Scheduler::eviction_finished`.
    Evict(Box<Eviction>),
    /// Write the pod's nominated node to its status; `None` clears it.
    Nominate {
        pod: PodRef,
        node: Option<Arc<str>>,
    },
    Report(PodReport),
    /// Write the status of an allocation. The latest status replaces earlier ones.
    TellAllocation(Box<GangStatus>),
    /// Write the status of a policy. The latest status replaces earlier ones.
    TellPolicy(Box<PolicyStatus>),
    /// Write the status of a quota. The latest status replaces earlier ones.
    TellQuota(Box<QuotaReport>),
    /// Wake this agent.
    WakeAgent(usize),
    /// Add a sample to a histogram.
    Observe(LatencySample),
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LatencySample {
    /// Duration of one attempt to place a pod.
    Attempt { result: AttemptResult, took: Duration },
    /// Duration of the last choice of an attempt, without the lock and the commit.
    Algorithm { took: Duration },
    /// Time from a pod's arrival to its bind, over all attempts.
    Scheduled { waited: Duration, attempts: u32 },
    /// Number of rows an agent copied to catch up.
    CatchUp { rows: usize },
    /// Number of victims of one preemption.
    Victims { pods: usize },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptResult {
    Scheduled,
    Unschedulable,
    Error,
}

/// Counters since the start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stats {
    pub scheduled: u64,
    pub unschedulable: u64,
    pub errors: u64,
    /// Placements rejected because they no longer fit the newest row.
    pub conflicts: u64,
    /// Placements that waited because a more important pod looked at their node.
    pub yields: u64,
    pub list_hits: u64,
    pub list_misses: u64,
    pub rule_hits: u64,
    pub rule_misses: u64,
    pub common_hits: u64,
    pub common_misses: u64,
    /// Predictions of the dispatcher about a hit or miss of the ranked list.
    pub predictions_right: u64,
    pub predictions_wrong: u64,
    /// Requests assigned to each agent.
    pub dispatched: Vec<u64>,
    /// Rechecks of parked classes; `wakes` counts those whose list was not empty.
    pub checks: u64,
    pub wakes: u64,
    /// Pods and nodes whose spec is invalid.
    pub bad_pods: u64,
    pub bad_nodes: u64,
    /// Pods refused because of their number of terms, or of selectors in their namespace.
    pub over_limit: u64,
    /// Commits that overcommitted a node. Not 0 only if berth has a bug.
    pub violations: u64,
    /// Conditions and nominations that were written again, because the API server did not have them.
    pub repeated: u64,
    /// Differences found and repaired by the self-check.
    pub healed: u64,
    /// Pods that tried to preempt.
    pub preemption_attempts: u64,
}
