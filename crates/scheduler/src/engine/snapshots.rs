//! Copies of state for readers that need no later consistency: metrics, the estimator file, the recommender. Change nothing.

use std::sync::Arc;

use super::{Engine, Operation};
use crate::dispatch::Estimator;
use crate::live_selectors::NamespaceSelectors;
use crate::scheduler::{ForeignCounts, QueueLengths, QuotaStanding, Stats};
use berth_model::{Amounts, Labels, Node};

/// Counters and sizes of the scheduler at one time.
#[derive(Debug, Clone)]
pub struct Statistics {
    pub counters: Stats,
    pub queues: QueueLengths,
    pub others: ForeignCounts,
    pub nodes: usize,
    /// Charged pods, and those of them that are not yet seen bound.
    pub pods: usize,
    pub assumed: usize,
    pub parked_classes: usize,
    /// Remembered.
    pub decisions: usize,
    /// Pods with room reserved because they have waited for long.
    pub aged: usize,
    pub classes: usize,
    /// Different selectors in the affinity terms of known pods.
    pub selectors: usize,
    /// The greatest numbers of these of one namespace.
    pub namespace_selectors: NamespaceSelectors,
    /// Allocations that can have no pods, because too many older ones select pods alike.
    pub ignored_allocations: usize,
    /// Namespaces with pods held back, because their pods have too many classes.
    pub namespaces_held_back: usize,
    pub leading: bool,
}

/// What the limits of the scheduler hold back at one time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LimitsReached {
    /// Pods refused so far.
    pub refused_pods: u64,
    /// Namespaces whose pods have too many different selectors, or some of them.
    pub full_namespaces: Vec<Arc<str>>,
    pub ignored_allocations: usize,
    /// Namespaces with pods held back, because their pods have too many classes.
    pub held_back_namespaces: Vec<Arc<str>>,
}

impl Engine {
    /// Returns all counters and sizes as of one time. Bounded by the number of waiting pods and of namespaces with terms.
    pub fn statistics(&self) -> Statistics {
        self.read(Operation::Snapshot, |scheduler, _| {
            let (pods, assumed) = scheduler.ledger().counts();
            Statistics {
                counters: scheduler.stats().clone(),
                queues: scheduler.queue_lengths(),
                others: scheduler.foreign_counts(),
                nodes: scheduler.inventory().node_count(),
                pods,
                assumed,
                parked_classes: scheduler.parked_classes(),
                decisions: scheduler.decisions().len(),
                aged: scheduler.aged(),
                classes: scheduler.classes(),
                selectors: scheduler.ledger().selectors().len(),
                namespace_selectors: scheduler.ledger().selectors().most_of_a_namespace(),
                ignored_allocations: scheduler.ignored_allocations(),
                namespaces_held_back: scheduler.namespaces_held_back().count(),
                leading: scheduler.leading(),
            }
        })
    }

    /// Returns what the limits of the scheduler hold back. Bounded by `most`.
    pub fn limits_reached(&self, most: usize) -> LimitsReached {
        self.read(Operation::Snapshot, |scheduler, _| LimitsReached {
            refused_pods: scheduler.stats().over_limit,
            full_namespaces: scheduler.ledger().selectors().full().take(most).cloned().collect(),
            ignored_allocations: scheduler.ignored_allocations(),
            held_back_namespaces: scheduler.namespaces_held_back().take(most).cloned().collect(),
        })
    }

    /// Returns the use of the first `most` quotas by name. Bounded by `most`.
    pub fn quota_standings(&self, most: usize) -> Vec<QuotaStanding> {
        self.read(Operation::Snapshot, |scheduler, _| scheduler.quota_standings(most))
    }

    /// Returns the latencies that the dispatcher has measured. Of a fixed size.
    pub fn estimator(&self) -> Estimator {
        self.read(Operation::Snapshot, |scheduler, _| scheduler.estimator().clone())
    }

    /// Returns all nodes. Bounded by their number: shares them, copies none.
    pub fn nodes(&self) -> Vec<Arc<Node>> {
        self.read(Operation::Snapshot, |scheduler, _| scheduler.inventory().nodes().cloned().collect())
    }

    /// Returns the labels of a namespace; `None`: it is not known.
    pub fn namespace_labels(&self, namespace: &str) -> Option<Labels> {
        self.read(Operation::Snapshot, |scheduler, _| scheduler.namespace_labels(namespace).cloned())
    }

    /// Returns what the pods of DaemonSets and static pods request on these nodes, in the same order; nothing on unknown nodes. Takes
    /// the lock for a few nodes at a time.
    pub fn requested_by_daemons(&self, nodes: &[Arc<Node>]) -> Vec<Amounts> {
        const NODES_AT_ONCE: usize = 32;
        let slices = nodes.chunks(NODES_AT_ONCE).flat_map(|slice| {
            self.read(Operation::Snapshot, |scheduler, _| {
                let ledger = scheduler.ledger();
                let of = |node: &Arc<Node>| {
                    let id = scheduler.inventory().find(&node.name)?;
                    Some(ledger.requested_by_daemons(id))
                };
                slice.iter().map(|node| of(node).unwrap_or_default()).collect::<Vec<_>>()
            })
        });
        slices.collect()
    }

    /// Returns the requests that are charged to a node; `None`: it is unknown. Constant time.
    pub fn requested_on(&self, node: &str) -> Option<Amounts> {
        self.read(Operation::Snapshot, |scheduler, _| {
            let inventory = scheduler.inventory();
            Some(inventory.row(inventory.find(node)?).requested)
        })
    }
}
