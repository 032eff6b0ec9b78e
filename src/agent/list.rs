//! Ranked lists: all nodes in order of preference for one class (the top cache level).

use std::sync::Arc;

use super::object::RuleObject;
use super::tree::WinnerTree;
use super::view::View;
use crate::class::Class;
use crate::inventory::{NodeId, Revision};
use crate::rules::{self, Answers, CachedRule, Diagnosis, Key, NEUTRAL, Packing, Salt};

/// The rule objects that a list is made from, by rule; `None` where a rule does not apply.
pub type Objects<'a> = [Option<&'a RuleObject>; CachedRule::COUNT];

/// What orders nodes besides the class: fixed for an agent.
#[derive(Debug, Clone, Copy)]
pub struct Order {
    pub packing: Packing,
    pub salt: Salt,
}

/// One class's nodes in order, as of one revision. All rules of today are node-local, so one tree holds all nodes; a rule
/// that is domain-scoped will want one tree a cell.
#[derive(Debug)]
pub struct RankedList {
    pub class: Arc<Class>,
    tree: WinnerTree,
    revision: Revision,
}

impl RankedList {
    /// Ranks every node.
    pub fn build(class: &Arc<Class>, order: Order, objects: &Objects, view: &View) -> Self {
        let nodes = view.rows().len();
        // Room for nodes to come, so that a growing cluster does not mean a new tree for each of them.
        let capacity = nodes + nodes / 16 + 8;
        let mut keys = Vec::with_capacity(capacity);
        keys.extend((0..nodes as u32).map(|id| rank(class, order, objects, view, NodeId(id))));
        keys.resize(capacity, Key::VACANT);
        RankedList { class: class.clone(), tree: WinnerTree::build(keys), revision: view.revision() }
    }

    /// Ranks again the nodes that changed since the list was last used. Returns how many.
    /// The rule objects must be repaired already.
    pub fn repair(&mut self, order: Order, objects: &Objects, view: &View) -> usize {
        if self.revision == view.revision() {
            return 0;
        }
        if view.rows().len() > self.tree.capacity() {
            *self = RankedList::build(&self.class, order, objects, view);
            return view.rows().len();
        }
        let class = &self.class;
        // Beyond this many, deciding every match once is cheaper than a path to the root for each.
        let bulk = self.tree.capacity() / 8;
        let changed = view.changed_since(self.revision).count();
        let changes =
            view.changed_since(self.revision).map(|id| (id.0, rank(class, order, objects, view, id)));
        if changed > bulk {
            self.tree.set_all(changes);
        } else {
            changes.for_each(|(id, key)| self.tree.set(id, key));
        }
        self.revision = view.revision();
        changed
    }

    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The best valid node.
    pub fn best(&self) -> Option<NodeId> {
        let (id, key) = self.tree.best()?;
        key.is_valid().then_some(NodeId(id))
    }

    /// The best `k` valid nodes, best first, into `into`.
    pub fn best_k(&self, k: usize, into: &mut Vec<(u32, Key)>) {
        self.tree.best_k(k, into);
        into.retain(|(_, key)| key.is_valid());
    }

    /// Why no node is valid (or: why those are not that are not).
    pub fn diagnose(&self) -> Diagnosis {
        self.tree.keys().iter().filter_map(|key| key.reasons()).collect()
    }

    /// The keys of all nodes, by id.
    pub fn keys(&self) -> &[Key] {
        self.tree.keys()
    }

    pub fn bytes(&self) -> usize {
        self.tree.bytes()
    }
}

fn rank(class: &Class, order: Order, objects: &Objects, view: &View, id: NodeId) -> Key {
    let mut answers: Answers = [NEUTRAL; CachedRule::COUNT];
    for (answer, object) in answers.iter_mut().zip(objects) {
        if let Some(object) = object {
            *answer = object.answers()[id.index()];
        }
    }
    rules::rank(class, order.packing, view.row(id), &answers, order.salt.tie(id.0))
}
