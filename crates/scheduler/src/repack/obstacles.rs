//! Why no moves help, counted over nodes, in words.

use std::collections::BTreeMap;
use std::fmt;

use super::Fixed;

/// Why nothing that was tried makes room for the pod that came closest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Obstacles {
    /// Nodes that are out for reasons that have nothing to do with their pods, or are too small.
    pub unsuited: usize,
    /// Nodes that would not have room without all pods that can be moved.
    pub too_few: usize,
    /// Pods of those nodes that cannot be moved, and why.
    pub fixed: BTreeMap<Fixed, usize>,
    /// Nodes whose pods would have to move, and fit nowhere else, or not all together.
    pub stuck: usize,
    /// Nodes that were not tried any more.
    pub untried: usize,
    /// What was found would move more pods, or take more nodes, than advice may.
    pub too_much: bool,
}

/// Reasons that are named.
const NAMED: usize = 4;

impl fmt::Display for Obstacles {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let nodes = |count: usize| if count == 1 { "1 node".to_owned() } else { format!("{count} nodes") };
        let mut parts = Vec::new();
        if self.too_much {
            parts.push("it would take more moves than are advised".to_owned());
        }
        if self.stuck > 0 {
            let pods = "the pods that would have to move fit nowhere else";
            parts.push(format!("on {} {pods}", nodes(self.stuck)));
        }
        if self.too_few > 0 {
            let verb = if self.too_few == 1 { "has" } else { "have" };
            let mut part = format!("{} {verb} too few pods that can be moved", nodes(self.too_few));
            let mut fixed: Vec<_> = self.fixed.iter().collect();
            fixed.sort_by_key(|(_, pods)| std::cmp::Reverse(**pods));
            let causes: Vec<_> =
                fixed.iter().take(NAMED).map(|(why, pods)| format!("{pods} {why}")).collect();
            if !causes.is_empty() {
                part.push_str(&format!(" (of the others {})", causes.join(", ")));
            }
            parts.push(part);
        }
        if self.unsuited > 0 {
            let verb = if self.unsuited == 1 { "is" } else { "are" };
            parts.push(format!("{} {verb} out for other reasons than their pods", nodes(self.unsuited)));
        }
        if self.untried > 0 {
            let verb = if self.untried == 1 { "was" } else { "were" };
            parts.push(format!("{} {verb} not tried", nodes(self.untried)));
        }
        match parts.is_empty() {
            true => f.write_str("there are no nodes"),
            false => f.write_str(&parts.join("; ")),
        }
    }
}
