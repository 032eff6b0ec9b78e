//! The nodes where preemption could help, cheapest first, without a look at any pod: what rows know of each priority tells
//! whether enough would be free without the pods of lower priorities, and how high they must be.

use crate::class::Class;
use crate::inventory::{NodeId, Row};
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

/// Looks at `nodes`, all that there are, each with its row and why the class may not go there. `None`: one pod of it may.
pub fn survey<'a>(
    class: &Class,
    priority: i32,
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
        match bound(class, priority, row) {
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
fn bound(class: &Class, priority: i32, row: &Row) -> Result<(i32, u16), Reasons> {
    let reserved = row.with_reservations(priority);
    let row = reserved.as_ref().unwrap_or(row);
    let usage = &class.spec.usage;
    let tiers = row.tiers.below(priority);
    let all = tiers.last().ok_or(Reasons::NONE)?;
    if let Some(reasons) = insufficient_without(usage, row, &all.held) {
        return Err(reasons);
    }
    let lowest = tiers.partition_point(|tier| insufficient_without(usage, row, &tier.held).is_some());
    Ok((tiers[lowest].priority, shortage(usage, row)))
}
