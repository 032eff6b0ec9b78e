//! Findings with object names, for the CLI, JSON and the status of allocations.

use std::sync::Arc;

use serde::Serialize;

use super::{Advice, Case, Effort, Finding};
use crate::inventory::NodeId;

/// Advice for each case.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FragmentationReport {
    pub waiting: Vec<Entry>,
    /// Number of cases not examined: too many, or out of time.
    pub left_out: usize,
    /// Number of sets of pods tried.
    pub proofs: usize,
    /// Number of searches cut off by a limit or a deadline.
    pub cut: usize,
}

/// One case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// Allocation, PodGroup or Pod.
    pub kind: &'static str,
    pub namespace: String,
    /// For single pods: the first of their class.
    pub name: String,
    /// Number of waiting pods.
    pub pods: usize,
    /// Fits without any move.
    pub fits: bool,
    /// Number of pods that fit once the moves are made.
    pub makes_room_for: usize,
    /// Moves in the order they must be made.
    pub moves: Vec<NamedMove>,
    /// The moves as a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub help: Option<Arc<str>>,
    /// Why no moves help.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// The move of one pod to another node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NamedMove {
    /// Namespace and name.
    pub pod: String,
    pub from: Arc<str>,
    pub to: Arc<str>,
}

impl FragmentationReport {
    /// Returns the nodes that pods would leave, without duplicates, sorted by name.
    pub fn nodes(&self) -> Vec<Arc<str>> {
        let steps = self.waiting.iter().flat_map(|entry| &entry.moves);
        let mut nodes: Vec<_> = steps.map(|step| step.from.clone()).collect();
        nodes.sort();
        nodes.dedup();
        nodes
    }

    /// Returns the number of cases that moves would help.
    pub fn helped(&self) -> usize {
        self.waiting.iter().filter(|entry| !entry.moves.is_empty()).count()
    }

    pub fn note(&mut self, effort: Effort) {
        (self.proofs, self.cut) = (effort.proofs, effort.cut);
    }
}

impl Entry {
    pub fn new(case: &Case, finding: &Finding, name: &dyn Fn(NodeId) -> Arc<str>) -> Entry {
        let (kind, namespace, first) = case.what.name();
        let mut entry = Entry {
            kind,
            namespace: namespace.to_owned(),
            name: first.to_owned(),
            pods: case.waiting,
            fits: false,
            makes_room_for: 0,
            moves: Vec::new(),
            help: None,
            why: None,
        };
        match finding {
            Finding::Fits => entry.fits = true,
            Finding::Nothing(obstacles) => entry.why = Some(obstacles.to_string()),
            Finding::Moves(advice) => entry.add(advice, name),
        }
        entry
    }

    fn add(&mut self, advice: &Advice, name: &dyn Fn(NodeId) -> Arc<str>) {
        self.makes_room_for = advice.places;
        self.help = Some(advice.sentence(&self.namespace, name).into());
        let named = advice.moves.iter().map(|step| {
            let pod = &step.resident.pod;
            let pod = format!("{}/{}", pod.namespace, pod.name);
            NamedMove { pod, from: name(step.from), to: name(step.to) }
        });
        self.moves = named.collect();
    }
}
