//! Indexes between watches and the scheduler: convert changes, and turn the end of a list into the removal of unlisted objects.

use std::collections::HashSet;
use std::sync::Arc;

use super::{Change, Interner, LeanNode, LeanPod};
use crate::model::{Node, Pod};

/// Receiver of converted pods and nodes.
pub trait ClusterSink {
    fn apply_pod(&mut self, pod: Pod);
    fn delete_pod(&mut self, uid: &Arc<str>);
    /// Removes all pods that were not in a complete list.
    fn retain_pods(&mut self, uids: &HashSet<Arc<str>>);
    fn apply_node(&mut self, node: Node);
    fn delete_node(&mut self, name: &str);
    fn retain_nodes(&mut self, names: &HashSet<Arc<str>>);
}

/// Handles the changes of one pod watch.
#[derive(Default)]
pub struct PodIndex {
    interner: Interner,
    /// Uids in the list that is being read.
    listed: HashSet<Arc<str>>,
    listing: bool,
}

impl PodIndex {
    pub fn take(&mut self, change: Change<LeanPod>, sink: &mut impl ClusterSink) {
        match change {
            Change::ListBegins => {
                self.listing = true;
                self.listed.clear();
            }
            Change::Apply(Ok(pod)) => {
                let pod = pod.into_pod(&mut self.interner);
                self.note(&pod.uid);
                sink.apply_pod(pod);
            }
            // It exists but cannot be parsed: keep the last known state.
            Change::Apply(Err(bad)) => self.note(&Arc::from(bad.id.uid)),
            Change::Delete(id) => sink.delete_pod(&Arc::from(id.uid)),
            Change::ListEnds => {
                self.listing = false;
                sink.retain_pods(&std::mem::take(&mut self.listed));
            }
            Change::Refused => {}
        }
    }

    fn note(&mut self, uid: &Arc<str>) {
        if self.listing {
            self.listed.insert(uid.clone());
        }
    }
}

/// Handles the changes of one node watch.
#[derive(Default)]
pub struct NodeIndex {
    interner: Interner,
    listed: HashSet<Arc<str>>,
    listing: bool,
}

impl NodeIndex {
    pub fn take(&mut self, change: Change<LeanNode>, sink: &mut impl ClusterSink) {
        match change {
            Change::ListBegins => {
                self.listing = true;
                self.listed.clear();
            }
            Change::Apply(Ok(node)) => {
                let node = node.into_node(&mut self.interner);
                self.note(&node.name);
                sink.apply_node(node);
            }
            Change::Apply(Err(bad)) => self.note(&Arc::from(bad.id.name)),
            Change::Delete(id) => sink.delete_node(&id.name),
            Change::ListEnds => {
                self.listing = false;
                sink.retain_nodes(&std::mem::take(&mut self.listed));
            }
            Change::Refused => {}
        }
    }

    fn note(&mut self, name: &Arc<str>) {
        if self.listing {
            self.listed.insert(name.clone());
        }
    }
}
