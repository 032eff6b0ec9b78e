//! NodeResourcesFit: the pod's requests must fit into the node's free resources; of these nodes it prefers the emptiest
//! (LeastAllocated) or the fullest (MostAllocated).

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::reasons::{MAX_EXTENDED, Reasons};
use crate::inventory::{Held, Row};
use berth_model::{Amounts, Packing, Usage};

/// Returns all resources that are insufficient for `usage` on this node; `None` if it fits (upstream: `fitsRequest`).
#[inline]
pub fn insufficient(usage: &Usage, row: &Row) -> Option<Reasons> {
    missing(usage, row, &row.requested, |name| row.extended_requested(name))
}

/// Returns the same as if pods with these total holdings were gone.
pub fn insufficient_without(usage: &Usage, row: &Row, gone: &Held) -> Option<Reasons> {
    let mut taken = row.requested;
    taken.sub(&gone.amounts);
    let extended = |name: &str| row.extended_requested(name).saturating_sub(gone.extended.get(name));
    missing(usage, row, &taken, extended)
}

/// Returns how much of the scarcest resource must be freed on the node for `usage`, in thousandths of the node's
/// allocatable amount.
pub fn shortage(usage: &Usage, row: &Row) -> u16 {
    let of = |wanted: i64, taken: i64, all: i64| {
        let missing = wanted.saturating_sub(all.saturating_sub(taken));
        if wanted <= 0 || missing <= 0 { 0.0 } else { missing as f64 / all.max(1) as f64 }
    };
    let (wanted, taken, all) = (&usage.requests, &row.requested, &row.allocatable);
    let fixed = [
        of(wanted.cpu_milli, taken.cpu_milli, all.cpu_milli),
        of(wanted.memory, taken.memory, all.memory),
        of(wanted.ephemeral_storage, taken.ephemeral_storage, all.ephemeral_storage),
        of(1, taken.pods, all.pods),
    ];
    let extended = usage.extended.iter().map(|(name, wanted)| {
        row.extended_allocatable(name).map_or(0.0, |all| of(wanted, row.extended_requested(name), all))
    });
    // The cast saturates.
    (fixed.into_iter().chain(extended).fold(0.0, f64::max) * 1000.0) as u16
}

fn missing(
    usage: &Usage,
    row: &Row,
    taken: &Amounts,
    taken_extended: impl Fn(&str) -> i64,
) -> Option<Reasons> {
    let (wanted, all) = (&usage.requests, &row.allocatable);
    let mut missing = Reasons::NONE;
    if taken.pods.saturating_add(1) > all.pods {
        missing |= Reasons::PODS;
    }
    let mut check = |wanted: i64, taken: i64, all: i64, reason: Reasons| {
        if wanted > 0 && wanted > all.saturating_sub(taken) {
            missing |= reason;
            if wanted > all {
                missing |= Reasons::UNRESOLVABLE;
            }
        }
    };
    check(wanted.cpu_milli, taken.cpu_milli, all.cpu_milli, Reasons::CPU);
    check(wanted.memory, taken.memory, all.memory, Reasons::MEMORY);
    check(
        wanted.ephemeral_storage,
        taken.ephemeral_storage,
        all.ephemeral_storage,
        Reasons::EPHEMERAL_STORAGE,
    );
    for (at, (name, wanted)) in usage.extended.iter().enumerate() {
        if let Some(all) = row.extended_allocatable(name) {
            check(wanted, taken_extended(name), all, Reasons::extended(at.min(MAX_EXTENDED - 1)));
        }
    }
    (missing != Reasons::NONE).then_some(missing)
}

/// Maximum utilisation of a cell by pods under a policy (Protean's utilisation limit), in percent of its allocatable
/// resources. `None`: unlimited.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CellLimit {
    pub cpu: Option<u8>,
    pub memory: Option<u8>,
    /// Nodes with the same value of this label are one cell; unset: each node is its own cell.
    pub topology_key: Option<Arc<str>>,
}

impl CellLimit {
    /// Returns whether this node is its own cell.
    pub fn is_of_node(&self, row: &Row) -> bool {
        let label = |key| row.node.as_ref().and_then(|node| node.labels.get(key));
        self.topology_key.as_ref().is_none_or(|key| label(key).is_none())
    }
}

/// Allocatable and requested CPU (milli) and memory (bytes) of one or several nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CellLoad {
    taken: [i64; 2],
    all: [i64; 2],
}

impl CellLoad {
    pub fn of(row: &Row) -> CellLoad {
        let both = |amounts: &Amounts| [amounts.cpu_milli, amounts.memory];
        CellLoad { taken: both(&row.requested), all: both(&row.allocatable) }
    }

    pub fn plus(self, more: CellLoad) -> CellLoad {
        let add = |a: [i64; 2], b: [i64; 2]| [a[0].wrapping_add(b[0]), a[1].wrapping_add(b[1])];
        CellLoad { taken: add(self.taken, more.taken), all: add(self.all, more.all) }
    }

    /// Exactly reverts [`CellLoad::plus`].
    pub fn minus(self, less: CellLoad) -> CellLoad {
        let take = |a: [i64; 2], b: [i64; 2]| [a[0].wrapping_sub(b[0]), a[1].wrapping_sub(b[1])];
        CellLoad { taken: take(self.taken, less.taken), all: take(self.all, less.all) }
    }

    /// Returns the mean requested share of the resources that there are, in thousandths.
    pub fn taken(&self) -> u32 {
        let there = self.taken.iter().zip(&self.all).filter(|(_, all)| **all > 0);
        let (sum, count) = there
            .fold((0.0, 0.0), |(sum, count), (taken, all)| (sum + *taken as f64 / *all as f64, count + 1.0));
        // The cast saturates; of no resources, it makes 0.
        (sum / count * 1000.0) as u32
    }
}

/// Returns why the pod would exceed the limit of a cell, if so. Pods that do not request a resource may exceed its
/// limit.
pub fn beyond(limit: &CellLimit, usage: &Usage, cell: &CellLoad) -> Option<Reasons> {
    let mut reasons = Reasons::NONE;
    let mut check = |percent: Option<u8>, wanted: i64, taken: i64, all: i64| {
        let Some(percent) = percent.filter(|_| wanted > 0) else {
            return;
        };
        let most = i128::from(all) * i128::from(percent);
        if (i128::from(taken) + i128::from(wanted)) * 100 > most {
            reasons |= Reasons::LIMIT;
            if i128::from(wanted) * 100 > most {
                reasons |= Reasons::UNRESOLVABLE;
            }
        }
    };
    check(limit.cpu, usage.requests.cpu_milli, cell.taken[0], cell.all[0]);
    check(limit.memory, usage.requests.memory, cell.taken[1], cell.all[1]);
    (reasons != Reasons::NONE).then_some(reasons)
}

/// Requested shares of a node once the pod is on it: 0 empty, 1 full, more when overcommitted. Pods count at least 100
/// milli CPU and 200 MiB, as in upstream's scores.
#[derive(Debug, Clone, Copy)]
pub struct RequestedShares {
    pub cpu: f64,
    pub memory: f64,
}

impl RequestedShares {
    #[inline]
    pub fn after(usage: &Usage, row: &Row) -> RequestedShares {
        let share = |taken: i64, more: i64, all: i64| match all {
            ..=0 => 1.0,
            _ => taken.saturating_add(more) as f64 / all as f64,
        };
        RequestedShares {
            cpu: share(row.nonzero_cpu_milli, usage.nonzero_cpu_milli, row.allocatable.cpu_milli),
            memory: share(row.nonzero_memory, usage.nonzero_memory, row.allocatable.memory),
        }
    }
}

/// Steps of the preference. Coarse on purpose, so that balance and images also matter.
pub const STEPS: u16 = 64;

/// 0 is best, `STEPS - 1` worst.
#[inline]
pub fn preference(packing: Packing, shares: &RequestedShares) -> u16 {
    step(packing, (shares.cpu.min(1.0) + shares.memory.min(1.0)) / 2.0)
}

#[inline]
fn step(packing: Packing, taken: f64) -> u16 {
    // The cast saturates; a share is never negative or NaN.
    let step = ((taken * f64::from(STEPS)) as u16).min(STEPS - 1);
    match packing {
        Packing::LeastAllocated => step,
        Packing::MostAllocated => STEPS - 1 - step,
    }
}

/// Resources of a node that the preference compares, each with its weight (upstream: `scoringStrategy.resources`).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ResourceWeights(pub Arc<[(WeighedResource, u32)]>);

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum WeighedResource {
    Cpu,
    Memory,
    EphemeralStorage,
    Extended(Arc<str>),
}

/// As [`preference`], by the weighted mean of the requested shares of these resources. An extended resource that the
/// pod does not request, and one that the node does not have, do not count (upstream: `resourceAllocationScorer`).
pub fn weighted_preference(packing: Packing, weights: &ResourceWeights, usage: &Usage, row: &Row) -> u16 {
    let shares = RequestedShares::after(usage, row);
    let (mut sum, mut total) = (0.0, 0.0);
    for (resource, weight) in weights.0.iter() {
        let share = match resource {
            WeighedResource::Cpu => shares.cpu,
            WeighedResource::Memory => shares.memory,
            WeighedResource::EphemeralStorage => {
                let (taken, more) = (row.requested.ephemeral_storage, usage.requests.ephemeral_storage);
                match row.allocatable.ephemeral_storage {
                    ..=0 => continue,
                    all => taken.saturating_add(more) as f64 / all as f64,
                }
            }
            WeighedResource::Extended(name) => {
                match (usage.extended.get(name), row.extended_allocatable(name)) {
                    (more @ 1.., Some(all @ 1..)) => {
                        row.extended_requested(name).saturating_add(more) as f64 / all as f64
                    }
                    _ => continue,
                }
            }
        };
        let weight = f64::from(*weight);
        sum += share.min(1.0) * weight;
        total += weight;
    }
    step(packing, if total > 0.0 { sum / total } else { 0.0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_model::{Holding, Node};

    fn row(cpu_milli: i64, memory: i64, pods: i64) -> Row {
        let allocatable = Amounts { cpu_milli, memory, ephemeral_storage: 0, pods };
        let node = Node {
            allocatable,
            extended: [(Arc::from("x/gpu"), 2)].into_iter().collect(),
            ..Node::default()
        };
        let mut row = Row::default();
        row.set_node(Some(Arc::new(node)));
        row
    }

    fn usage(cpu_milli: i64, memory: i64, gpus: i64) -> Usage {
        Usage {
            requests: Amounts { cpu_milli, memory, ephemeral_storage: 0, pods: 1 },
            extended: [(Arc::from("x/gpu"), gpus)].into_iter().collect(),
            ..Usage::default()
        }
    }

    #[test]
    fn a_pod_that_exactly_fills_the_node_fits_and_one_more_unit_does_not() {
        assert_eq!(insufficient(&usage(1000, 100, 2), &row(1000, 100, 1)), None);
        let reasons = insufficient(&usage(1001, 101, 3), &row(1000, 100, 1)).unwrap();
        let expected = Reasons::CPU | Reasons::MEMORY | Reasons::extended(0) | Reasons::UNRESOLVABLE;
        assert_eq!(reasons, expected);
    }

    #[test]
    fn what_other_pods_hold_could_be_freed_so_that_is_not_unresolvable() {
        let mut row = row(1000, 100, 1);
        row.charge(&Holding::from(&Arc::new(usage(500, 0, 0))));
        assert_eq!(insufficient(&usage(600, 0, 0), &row), Some(Reasons::CPU | Reasons::PODS));
    }

    #[test]
    fn a_pod_that_requests_nothing_fits_an_overcommitted_node_as_upstream_has_it() {
        let mut row = row(1000, 100, 2);
        row.charge(&Holding::from(&Arc::new(usage(5000, 0, 0))));
        assert_eq!(insufficient(&usage(0, 0, 0), &row), None);
    }

    #[test]
    fn a_limit_is_reached_exactly_and_never_exceeded_by_what_a_pod_requests() {
        let limit = CellLimit { cpu: Some(80), ..CellLimit::default() };
        assert_eq!(beyond(&limit, &usage(800, 100, 0), &CellLoad::of(&row(1000, 100, 9))), None);
        let hopeless = Some(Reasons::LIMIT | Reasons::UNRESOLVABLE);
        assert_eq!(beyond(&limit, &usage(801, 100, 0), &CellLoad::of(&row(1000, 100, 9))), hopeless);
        let mut taken = row(1000, 100, 9);
        taken.charge(&Holding::from(&Arc::new(usage(700, 0, 0))));
        assert_eq!(beyond(&limit, &usage(101, 0, 0), &CellLoad::of(&taken)), Some(Reasons::LIMIT));
        assert_eq!(beyond(&limit, &usage(0, 100, 0), &CellLoad::of(&taken)), None, "it asks for no CPU");
        let both = CellLimit { cpu: Some(100), memory: Some(50), topology_key: None };
        assert_eq!(beyond(&both, &usage(1, 51, 0), &CellLoad::of(&taken)), hopeless);
    }

    #[test]
    fn a_limit_of_memory_counts_what_other_pods_hold_of_it() {
        let limit = CellLimit { memory: Some(80), ..CellLimit::default() };
        let mut taken = row(1000, 100, 9);
        taken.charge(&Holding::from(&Arc::new(usage(0, 60, 0))));
        assert_eq!(beyond(&limit, &usage(0, 20, 0), &CellLoad::of(&taken)), None);
        assert_eq!(beyond(&limit, &usage(0, 21, 0), &CellLoad::of(&taken)), Some(Reasons::LIMIT));
    }

    #[test]
    fn nodes_of_a_cell_are_loaded_together() {
        let mut busy = row(1000, 100, 9);
        busy.charge(&Holding::from(&Arc::new(usage(900, 0, 0))));
        let (busy, idle) = (CellLoad::of(&busy), CellLoad::of(&row(3000, 100, 9)));
        let limit = CellLimit { cpu: Some(50), ..CellLimit::default() };
        assert_eq!(beyond(&limit, &usage(1100, 0, 0), &busy.plus(idle)), None);
        assert_eq!(beyond(&limit, &usage(1101, 0, 0), &busy.plus(idle)), Some(Reasons::LIMIT));
        assert_eq!(busy.plus(idle).minus(idle), busy);
    }

    #[test]
    fn a_node_without_the_label_of_cells_is_a_cell_of_its_own() {
        let labels = [("zone", "a")].into_iter().collect();
        let mut zoned = Row::default();
        zoned.set_node(Some(Arc::new(Node { labels, ..Node::default() })));
        let by = |key: Option<&str>| CellLimit { topology_key: key.map(Arc::from), ..CellLimit::default() };
        let own = [None, Some("zone"), Some("rack")].map(|key| by(key).is_of_node(&zoned));
        assert_eq!(own, [true, false, true]);
    }

    #[test]
    fn the_scarcest_resource_decides_how_much_must_be_freed() {
        let mut row = row(1000, 100, 2);
        row.charge(&Holding::from(&Arc::new(usage(500, 90, 1))));
        assert_eq!(shortage(&usage(500, 10, 1), &row), 0);
        assert_eq!(shortage(&usage(600, 50, 1), &row), 400);
        assert_eq!(shortage(&usage(600, 50, 2), &row), 500, "one of two devices");
        row.charge(&Holding::from(&Arc::new(usage(0, 0, 0))));
        assert_eq!(shortage(&usage(0, 0, 0), &row), 500, "one of two pods");
    }

    #[test]
    fn a_resource_that_a_node_does_not_have_counts_as_full() {
        let nothing = RequestedShares::after(&usage(0, 0, 0), &row(0, 100, 1));
        assert_eq!((nothing.cpu, nothing.memory), (1.0, 0.0));
    }

    #[test]
    fn a_preference_is_the_mean_of_both_shares() {
        let shares = RequestedShares { cpu: 0.5, memory: 0.25 };
        assert_eq!(preference(Packing::LeastAllocated, &shares), 24);
        assert_eq!(preference(Packing::MostAllocated, &shares), STEPS - 1 - 24);
    }

    #[test]
    fn only_weighed_resources_count_and_an_extended_one_only_for_a_pod_that_requests_it() {
        let weights = |weights: &[(WeighedResource, u32)]| ResourceWeights(weights.into());
        let gpu = WeighedResource::Extended("x/gpu".into());
        let mut row = row(1000, 100, 9);
        row.charge(&Holding::from(&Arc::new(usage(0, 0, 1))));
        let most = |weights: &ResourceWeights, usage: &Usage| {
            STEPS - 1 - weighted_preference(Packing::MostAllocated, weights, usage, &row)
        };
        let gpus = weights(&[(gpu.clone(), 5)]);
        assert_eq!(most(&gpus, &usage(0, 0, 1)), STEPS - 1, "both GPUs are taken then");
        assert_eq!(most(&gpus, &usage(0, 0, 0)), 0, "it requests none");
        let both = weights(&[(gpu, 3), (WeighedResource::EphemeralStorage, 9), (WeighedResource::Memory, 1)]);
        let share = RequestedShares::after(&usage(0, 0, 1), &row).memory;
        assert_eq!(
            most(&both, &usage(0, 0, 1)),
            ((3.0 + share) / 4.0 * 64.0) as u16,
            "the node has no storage"
        );
        let equal = weights(&[(WeighedResource::Cpu, 2), (WeighedResource::Memory, 2)]);
        let shares = RequestedShares::after(&usage(300, 50, 1), &row);
        assert_eq!(
            weighted_preference(Packing::LeastAllocated, &equal, &usage(300, 50, 1), &row),
            preference(Packing::LeastAllocated, &shares)
        );
    }

    #[test]
    fn least_allocated_prefers_the_emptier_node_and_most_allocated_the_fuller() {
        let (empty, full) =
            (RequestedShares { cpu: 0.1, memory: 0.1 }, RequestedShares { cpu: 0.9, memory: 0.9 });
        assert!(preference(Packing::LeastAllocated, &empty) < preference(Packing::LeastAllocated, &full));
        assert!(preference(Packing::MostAllocated, &empty) > preference(Packing::MostAllocated, &full));
        assert_eq!(
            preference(Packing::LeastAllocated, &RequestedShares { cpu: 7.0, memory: 1.0 }),
            STEPS - 1
        );
    }
}
