//! Rule objects: one cached rule evaluated for one trait value over all nodes (the low cache level).

use std::sync::Arc;

use super::view::View;
use crate::class::Class;
use crate::inventory::Revision;
use crate::rules::{CachedRule, NEUTRAL, RuleAnswer};

/// Results of one rule for one trait value, as of one revision. 2 bytes per node.
#[derive(Debug)]
pub struct RuleObject {
    rule: CachedRule,
    /// Any class with this trait: the rule reads no other part of it.
    class: Arc<Class>,
    answers: Vec<RuleAnswer>,
    revision: Revision,
}

impl RuleObject {
    /// Evaluates the rule for every node.
    pub fn build(rule: CachedRule, class: &Arc<Class>, view: &View) -> Self {
        let answer = |row: &crate::inventory::Row| match &row.node {
            Some(node) => rule.answer(class, node),
            None => NEUTRAL,
        };
        let answers = view.rows().iter().map(answer).collect();
        RuleObject { rule, class: class.clone(), answers, revision: view.revision() }
    }

    /// Evaluates the rule for the nodes that changed. Returns their number.
    pub fn repair(&mut self, view: &View) -> usize {
        let mut changed = 0;
        if self.revision == view.revision() {
            return changed;
        }
        self.answers.resize(view.rows().len(), NEUTRAL);
        for id in view.renewed_since(self.revision) {
            if let Some(node) = &view.row(id).node {
                self.answers[id.index()] = self.rule.answer(&self.class, node);
            }
            changed += 1;
        }
        self.revision = view.revision();
        changed
    }

    pub fn answers(&self) -> &[RuleAnswer] {
        &self.answers
    }

    pub fn bytes(&self) -> usize {
        self.answers.capacity() * size_of::<RuleAnswer>()
    }
}
