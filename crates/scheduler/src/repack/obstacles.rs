//! Reasons why no moves help, counted over nodes, as text.

use std::collections::BTreeMap;
use std::fmt;

use super::Fixed;

/// Reasons why no attempt makes room for the pod that came closest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Obstacles {
    /// Nodes rejected for reasons independent of their pods, or too small.
    pub unsuited: usize,
    /// Nodes that would lack room even without all movable pods.
    pub too_few: usize,
    /// Pods of those nodes that cannot be moved, by reason.
    pub fixed: BTreeMap<Fixed, usize>,
    /// Nodes whose pods would have to move but fit no other nodes, or not all together.
    pub stuck: usize,
    /// Nodes that were not tried.
    pub untried: usize,
    /// A solution exceeds the limits on moves or nodes of one advice.
    pub too_much: bool,
}

/// Maximum number of reasons that are named.
const NAMED: usize = 4;

impl fmt::Display for Obstacles {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let nodes = |count: usize| if count == 1 { "1 node".to_owned() } else { format!("{count} nodes") };
        let mut parts = Vec::new();
        if self.too_much {
            parts.push("it would take more moves than the limit allows".to_owned());
        }
        if self.stuck > 0 {
            let pods = "the pods that would have to move fit no other node";
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
                part.push_str(&format!(" (of the rest, {})", causes.join(", ")));
            }
            parts.push(part);
        }
        if self.unsuited > 0 {
            let verb = if self.unsuited == 1 { "is" } else { "are" };
            parts.push(format!(
                "{} {verb} rejected for reasons independent of their pods",
                nodes(self.unsuited)
            ));
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
