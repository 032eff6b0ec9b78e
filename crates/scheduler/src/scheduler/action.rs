//! What the scheduler wants done, and what it counts.

use std::sync::Arc;
use std::time::Duration;

use super::Eviction;
use crate::gang::AllocationStatus;
use crate::placement::{Binding, ClaimOrder};
use crate::policy::PolicyStatus;
use crate::quota::QuotaStatus;
use berth_model::{PodRef, Report};

/// Something to do in the world, carried out by the I/O rooms.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Make this placement true; tell the outcome by `Scheduler::bind_finished`.
    Bind(Binding),
    /// Ask for these claims; tell the outcome by `Scheduler::claims_written`.
    Claim(ClaimOrder),
    /// Evict this pod; tell the outcome by `Scheduler::eviction_finished`.
    Evict(Box<Eviction>),
    /// Write the node that room is kept on for this pod to its status, or that there is none any more.
    Nominate {
        pod: PodRef,
        node: Option<Arc<str>>,
    },
    Report(Report),
    /// Tell the object that made these pods an allocation where it stands. The latest one of an allocation says all.
    TellAllocation(Box<AllocationStatus>),
    /// Tell a policy whether it is in force. The latest one of a policy says all.
    TellPolicy(Box<PolicyStatus>),
    /// Tell a quota how much of it is used. The latest one of a quota says all.
    TellQuota(Box<QuotaStatus>),
    /// This agent has something to do.
    WakeAgent(usize),
    /// For a histogram.
    Observe(Sample),
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Sample {
    /// One attempt to place a pod took this long.
    Attempt { result: AttemptResult, took: Duration },
    /// From a pod's arrival to its bind, over all attempts.
    Scheduled { waited: Duration, attempts: u32 },
    /// Rows that an agent copied to catch up.
    CatchUp { rows: usize },
    /// So many pods are preempted for one.
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
    /// Placements that no longer fitted the newest row.
    pub conflicts: u64,
    pub list_hits: u64,
    pub list_misses: u64,
    pub rule_hits: u64,
    pub rule_misses: u64,
    /// The dispatcher expected a hit or a miss of the ranked list, and was right or wrong.
    pub predictions_right: u64,
    pub predictions_wrong: u64,
    /// Requests given to each agent.
    pub dispatched: Vec<u64>,
    /// Parked classes that were looked at again, and how many times their list was not empty.
    pub checks: u64,
    pub wakes: u64,
    /// Objects whose spec could not be understood.
    pub bad_pods: u64,
    pub bad_nodes: u64,
    /// Commits after which a node held more than it has. Never, unless berth is wrong.
    pub violations: u64,
    /// Differences that a self-check found and healed.
    pub healed: u64,
    /// Pods that tried to preempt others.
    pub preemption_attempts: u64,
}
