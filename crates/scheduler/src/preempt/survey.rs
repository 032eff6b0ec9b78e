//! The nodes where preemption could help, cheapest first, without a look at any pod: what rows know of each priority tells
//! whether enough would be free without the pods of lower priorities, and how high they must be.

use std::sync::Arc;

use crate::class::Class;
use crate::inventory::{Held, NodeId, Row};
use crate::rules::{Reasons, Salt, Unhelped, insufficient_without, shortage};

/// See [`survey`].
#[derive(Debug, Clone, Default)]
pub struct Survey {
    /// Nodes worth a dry run, the cheapest *last*.
    pub candidates: Vec<NodeId>,
    /// What is to be said of all others.
    pub unhelped: Unhelped,
}

/// A lower bound of what preemption on a node costs; fields in order of importance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Bound {
    /// At least one victim is of this priority or a higher one.
    highest_priority: i32,
    /// How much of the node must be freed, in thousandths.
    shortage: u16,
    tie: u32,
}

/// Looks at `nodes`, all that there are, each with its row and why the class may not go there (`None`: one pod of it may).
/// `lenders`: quotas whose pods may go whatever their priority; sorted.
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
        if reasons.is_some_and(|reasons| !reasons.resolvable_by_eviction()) {
            survey.unhelped.not_helpful += 1;
            continue;
        }
        match bound(class, priority, lenders, row) {
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

/// The lowest priority up to which pods must go, and how much is missing. `Err`: nothing can go (no reasons), or it is still
/// out for these reasons when all is gone that can.
fn bound(class: &Class, priority: i32, lenders: &[Arc<str>], row: &Row) -> Result<(i32, u16), Reasons> {
    let reserved = row.with_reservations(priority);
    let row = reserved.as_ref().unwrap_or(row);
    let usage = &class.spec.usage;
    let tiers = row.tiers.below(priority);
    let lent = if lenders.is_empty() { None } else { row.shares.of(lenders) };
    if let Some(lent) = lent {
        // Those that have borrowed go first.
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
    let lowest = tiers.partition_point(|tier| insufficient_without(usage, row, &tier.held).is_some());
    Ok((tiers[lowest].priority, shortage(usage, row)))
}

/// At least what all pods hold that may go for a pod of this priority: what is both lent and of a lower priority counts twice, so
/// that no node is left out. `None`: nobody may go.
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
