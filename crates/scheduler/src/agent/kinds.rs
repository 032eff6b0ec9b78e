//! Indexes that tell which counts may count a kind of pods, and which kinds a count may count.
//!
//! Nearly every count is about the pods of one namespace, or about terms that few pods have.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::rules::counted::{Counted, CountedWeight};
use berth_model::{LabelSelector, Peer};

/// Pods that a count may count.
enum Concerned<'a> {
    /// Pods of this namespace.
    Namespace(&'a Arc<str>),
    /// Pods with affinity terms.
    Affine,
    Anyone,
}

fn concerned(counted: &Counted) -> Concerned<'_> {
    match &counted.what {
        CountedWeight::Selected { by, .. } => match by.first() {
            Some(first)
                if first.namespace_selector == LabelSelector::Nothing && first.namespaces.len() == 1 =>
            {
                Concerned::Namespace(&first.namespaces[0])
            }
            _ => Concerned::Anyone,
        },
        CountedWeight::Refuses(_) | CountedWeight::Prefers(_) => Concerned::Affine,
    }
}

/// Counts, by the pods that they may count.
#[derive(Debug)]
pub struct ByPods<T> {
    by_namespace: HashMap<Arc<str>, Vec<T>>,
    affine: Vec<T>,
    others: Vec<T>,
}

impl<T> Default for ByPods<T> {
    fn default() -> Self {
        ByPods { by_namespace: HashMap::new(), affine: Vec::new(), others: Vec::new() }
    }
}

impl<T: Copy + PartialEq> ByPods<T> {
    pub fn insert(&mut self, counted: &Counted, id: T) {
        match concerned(counted) {
            Concerned::Namespace(name) => self.by_namespace.entry(name.clone()).or_default().push(id),
            Concerned::Affine => self.affine.push(id),
            Concerned::Anyone => self.others.push(id),
        }
    }

    pub fn remove(&mut self, counted: &Counted, id: T) {
        match concerned(counted) {
            Concerned::Namespace(name) => {
                if let Some(ids) = self.by_namespace.get_mut(name) {
                    ids.retain(|known| *known != id);
                    if ids.is_empty() {
                        self.by_namespace.remove(name);
                    }
                }
            }
            Concerned::Affine => self.affine.retain(|known| *known != id),
            Concerned::Anyone => self.others.retain(|known| *known != id),
        }
    }

    /// Returns the counts that may count this kind of pods.
    pub fn concerned(&self, peer: &Peer) -> impl Iterator<Item = T> + '_ {
        let own = self.by_namespace.get(&peer.identity.namespace).into_iter().flatten();
        let affine = if peer.affinity.is_empty() { &[][..] } else { &self.affine[..] };
        own.chain(affine).chain(&self.others).copied()
    }
}

/// Addresses of the kinds of pods, by the counts that may count them.
#[derive(Debug, Default)]
pub struct KindIndex {
    by_namespace: HashMap<Arc<str>, BTreeSet<usize>>,
    /// Kinds with affinity terms.
    pub affine: BTreeSet<usize>,
}

impl KindIndex {
    pub fn insert(&mut self, peer: &Arc<Peer>) {
        let address = Arc::as_ptr(peer) as usize;
        self.by_namespace.entry(peer.identity.namespace.clone()).or_default().insert(address);
        if !peer.affinity.is_empty() {
            self.affine.insert(address);
        }
    }

    pub fn remove(&mut self, peer: &Arc<Peer>) {
        let address = Arc::as_ptr(peer) as usize;
        if let Some(kinds) = self.by_namespace.get_mut(&peer.identity.namespace) {
            kinds.remove(&address);
            if kinds.is_empty() {
                self.by_namespace.remove(&peer.identity.namespace);
            }
        }
        self.affine.remove(&address);
    }

    /// Returns the kinds that the count may count.
    pub fn concerned(&self, counted: &Counted) -> Vec<usize> {
        match concerned(counted) {
            Concerned::Namespace(name) => {
                self.by_namespace.get(name).map_or(Vec::new(), |kinds| kinds.iter().copied().collect())
            }
            Concerned::Affine => self.affine.iter().copied().collect(),
            Concerned::Anyone => self.by_namespace.values().flatten().copied().collect(),
        }
    }
}
