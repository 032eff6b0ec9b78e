//! Survey of nodes where preemption could help, cheapest first, without a look at single pods: from the rows' sums by
//! priority it determines whether enough would be free without the pods of lower priorities, and the highest priority
//! that must go.

use std::sync::Arc;

use crate::class::Class;
use crate::inventory::{Held, NodeId, Row, Tier};
use crate::rules::{
    Reasons, Salt, Unhelped, could_free_devices, insufficient, insufficient_without, shortage,
};
use berth_model::{Holding, Usage};

/// Result of [`survey`].
#[derive(Debug, Clone, Default)]
pub struct Survey {
    /// Nodes worth a dry run, the cheapest *last*.
    pub candidates: Vec<NodeId>,
    /// Reasons for all other nodes.
    pub unhelped: Unhelped,
}

/// A lower bound of the cost of preemption on a node; fields in order of importance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Bound {
    /// At least one victim has this priority or a higher one.
    highest_priority: i32,
    /// Share of the node to free, in thousandths.
    shortage: u16,
    tie: u32,
}

/// Surveys `nodes`, all nodes, each with its row and why the class may not go there (`None`: one pod of it may).
/// `lenders`: quotas whose pods may be evicted whatever their priority; sorted.
pub fn survey<'a>(
    class: &Class,
    priority: i32,
    lenders: &[Arc<str>],
    salt: Salt,
    nodes: impl Iterator<Item = (NodeId, &'a Row, Option<Reasons>)>,
) -> Survey {
    let mut survey = Survey::default();
    let mut bounds = Vec::new();
    for (id, row, reasons) in nodes {
        let lacks_devices = reasons.is_some_and(|reasons| reasons.has(Reasons::NO_DEVICES));
        let could_free = || could_free_devices(class, priority, !lenders.is_empty(), row);
        let could_help = |reasons: Reasons| {
            reasons.resolvable_by_eviction()
                || lacks_devices && !reasons.has(Reasons::UNRESOLVABLE) && could_free()
        };
        if reasons.is_some_and(|reasons| !could_help(reasons)) {
            survey.unhelped.not_helpful += 1;
            continue;
        }
        match bound(class, priority, lenders, row, lacks_devices) {
            Ok((highest_priority, shortage)) => {
                bounds.push((Bound { highest_priority, shortage, tie: salt.tie(id.0) }, id));
            }
            Err(reasons) => survey.unhelped.add(reasons),
        }
    }
    bounds.sort_unstable_by(|a, b| b.cmp(a));
    survey.candidates = bounds.into_iter().map(|(_, id)| id).collect();
    survey
}

/// Returns the lowest priority up to which pods must be evicted, of which some use devices if the node lacks them, and the shortage.
/// `Err`: no pod may be evicted (no reasons), or why the node is not valid even without all pods that may be.
fn bound(
    class: &Class,
    priority: i32,
    lenders: &[Arc<str>],
    row: &Row,
    lacks_devices: bool,
) -> Result<(i32, u16), Reasons> {
    let reserved = row.with_reservations(priority);
    let row = reserved.as_ref().unwrap_or(row);
    let usage = &class.spec.usage;
    let tiers = row.tiers.below(priority);
    let lent = if lenders.is_empty() { None } else { row.shares.of(lenders) };
    if let Some(lent) = lent {
        // Pods that borrow are evicted first.
        if insufficient_without(usage, row, &lent).is_none() {
            return Ok((i32::MIN, shortage(usage, row)));
        }
        let both = removable(row, priority, lenders).unwrap_or_default();
        return match insufficient_without(usage, row, &both) {
            Some(reasons) => Err(reasons),
            None => Ok((tiers.last().map_or(i32::MIN, |tier| tier.priority), shortage(usage, row))),
        };
    }
    let all = tiers.last().ok_or(Reasons::NONE)?;
    if let Some(reasons) = insufficient_without(usage, row, &all.held) {
        return Err(reasons);
    }
    let is_too_low = |tier: &Tier| {
        lacks_devices && tier.claimants == 0 || insufficient_without(usage, row, &tier.held).is_some()
    };
    let lowest = tiers.partition_point(is_too_low).min(tiers.len() - 1);
    Ok((tiers[lowest].priority, shortage(usage, row)))
}

/// Returns whether a pod of higher priority that requests `wanted` would have to evict pods from the node of this row,
/// and could, once `pod` is there.
pub fn stands_in_the_way(pod: &Holding, wanted: &Usage, priority: i32, row: &Row) -> bool {
    let mut row = row.with_reservations(priority).unwrap_or_else(|| row.clone());
    row.charge(pod);
    let gone = row.tiers.below(priority).last().map(|tier| tier.held.clone()).unwrap_or_default();
    insufficient(wanted, &row).is_some() && insufficient_without(wanted, &row, &gone).is_none()
}

/// Returns an upper bound of the holdings of all pods that may be evicted for a pod with this priority: pods that both
/// borrow and have lower priority count twice, so that no node is missed. `None`: no pod may be evicted.
pub(crate) fn removable(row: &Row, priority: i32, lenders: &[Arc<str>]) -> Option<Held> {
    let lower = row.tiers.below(priority).last().map(|tier| tier.held.clone());
    let lent = if lenders.is_empty() { None } else { row.shares.of(lenders) };
    match (lower, lent) {
        (Some(mut lower), Some(lent)) => {
            lower.join(&lent);
            Some(lower)
        }
        (lower, lent) => lower.or(lent),
    }
}
