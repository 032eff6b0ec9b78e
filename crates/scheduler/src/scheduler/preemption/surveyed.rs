//! Nodes where the pods of one class could preempt: the result of a survey, narrowed by dry runs.
//!
//! [`SurveyedNodes`] reads the rows and the budgets of the cluster, and changes only itself. It has at most [`WINDOW`]
//! dry runs at a time, and drops those whose node has changed.

use std::sync::Arc;
use std::time::Duration;

use super::guarantees::By;
use super::hunts::Attempt;
use crate::class::Class;
use crate::inventory::{NodeId, Revision};
use crate::preempt::{Fruitless, Survey, Victims};
use crate::quota::Rights;
use crate::rules::Unhelped;
use crate::scheduler::Cluster;

/// Number of dry runs to choose from. Upstream takes 100 or a tenth of the nodes, in no order; ours are the cheapest
/// first.
const WINDOW: usize = 16;
/// Maximum age of a survey of a cluster that has changed since.
const SURVEY_AGE: Duration = Duration::from_secs(1);

/// Surveyed nodes for pods with one priority and the same rights.
#[derive(Debug)]
pub(super) struct SurveyedNodes {
    priority: i32,
    rights: Arc<Rights>,
    revision: Revision,
    at: Duration,
    /// Uid of the pod it serves now; kept until that pod is done, however long that takes.
    serves: Option<Arc<str>>,
    /// Nodes to evaluate; the cheapest last.
    candidates: Vec<NodeId>,
    evaluated: Vec<Evaluated>,
    /// Nodes that an agent is evaluating.
    asked: Vec<NodeId>,
    unhelped: Unhelped,
}

/// A dry run that found victims.
#[derive(Debug)]
struct Evaluated {
    victims: Victims,
    /// Revisions of the node's row, the inventory, and the budgets at that time.
    row: Revision,
    seen: Revision,
    budgets: u64,
}

impl SurveyedNodes {
    pub(super) fn new(
        (priority, rights): (i32, &Arc<Rights>),
        Survey { candidates, unhelped }: Survey,
        seen: Revision,
        now: Duration,
    ) -> Self {
        let (rights, evaluated, asked) = (rights.clone(), Vec::new(), Vec::new());
        SurveyedNodes {
            priority,
            rights,
            revision: seen,
            at: now,
            serves: None,
            candidates,
            evaluated,
            asked,
            unhelped,
        }
    }

    /// Returns whether the next choice may fall on this node.
    pub(super) fn are_to_include(&self, node: NodeId) -> bool {
        self.candidates.iter().rev().take(WINDOW).chain(&self.asked).any(|known| *known == node)
            || self.evaluated.iter().any(|dry_run| dry_run.victims.node == node)
    }

    /// Returns whether it can serve this pod with this priority and these rights.
    pub(super) fn suits(
        &self,
        uid: &Arc<str>,
        (priority, rights): By,
        revision: Revision,
        now: Duration,
    ) -> bool {
        let young = self.revision == revision || now.saturating_sub(self.at) < SURVEY_AGE;
        let serves = || self.serves.as_ref() == Some(uid);
        self.priority == priority && *self.rights == *rights && (young || serves())
    }

    /// Serves this pod from now on. Returns its rights.
    pub(super) fn serve(&mut self, uid: &Arc<str>) -> Arc<Rights> {
        self.serves = Some(uid.clone());
        self.rights.clone()
    }

    /// Returns the nodes to evaluate before one can be chosen from a window of dry runs. Drops outdated dry runs.
    pub(super) fn nodes_to_evaluate(&mut self, class: &Class, cluster: &Cluster) -> Vec<NodeId> {
        let (inventory, budgets) = (cluster.inventory(), cluster.objects.budgets.revision());
        let valid = |dry_run: &Evaluated| {
            inventory.row(dry_run.victims.node).revision == dry_run.row
                && dry_run.budgets == budgets
                && (!class.is_excluded_by_pods() || dry_run.seen == inventory.revision())
        };
        let mut nodes = self.drop_unless(valid);
        while self.evaluated.len() + nodes.len() < WINDOW
            && let Some(node) = self.candidates.pop()
        {
            if inventory.row(node).node.is_some() {
                nodes.push(node);
            }
        }
        self.asked.clone_from(&nodes);
        nodes
    }

    /// Records the dry runs of an attempt.
    pub(super) fn add(&mut self, attempt: &Attempt, found: Vec<Result<Victims, Fruitless>>, seen: Revision) {
        let budgets = attempt.budgets.revision();
        self.asked.clear();
        for (site, found) in attempt.sites.iter().zip(found) {
            match found {
                Ok(victims) => {
                    self.evaluated.push(Evaluated { victims, row: site.revision, seen, budgets });
                }
                Err(why) => self.unhelped.add(why.reasons()),
            }
        }
    }

    /// Drops the dry runs on nodes that have changed: these are to be evaluated again.
    pub(super) fn drop_changed(&mut self, cluster: &Cluster) {
        let row = |node| cluster.inventory().row(node).revision;
        let changed = self.drop_unless(|dry_run| row(dry_run.victims.node) == dry_run.row);
        self.candidates.extend(changed);
    }

    /// Drops the other dry runs, and returns their nodes.
    fn drop_unless(&mut self, valid: impl FnMut(&Evaluated) -> bool) -> Vec<NodeId> {
        let (kept, dropped): (_, Vec<_>) = std::mem::take(&mut self.evaluated).into_iter().partition(valid);
        self.evaluated = kept;
        dropped.into_iter().map(|dry_run| dry_run.victims.node).collect()
    }

    /// Returns whether there are nodes to evaluate.
    pub(super) fn has_candidates(&self) -> bool {
        !self.candidates.is_empty()
    }

    /// Takes the cheapest dry run. Its node is evaluated again before another pod preempts there.
    pub(super) fn take_cheapest(&mut self) -> Option<Victims> {
        let costs = self.evaluated.iter().enumerate().map(|(at, dry_run)| (dry_run.victims.cost(), at));
        let (_, cheapest) = costs.min()?;
        let victims = self.evaluated.swap_remove(cheapest).victims;
        self.candidates.push(victims.node);
        Some(victims)
    }

    /// Removes a node whose victims may no longer be preempted. The next survey adds it again.
    pub(super) fn leave_out(&mut self, node: NodeId) {
        self.candidates.retain(|candidate| *candidate != node);
    }

    /// Returns the nodes where preemption does not help.
    pub(super) fn into_unhelped(self) -> Unhelped {
        self.unhelped
    }
}
