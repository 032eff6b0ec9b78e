//! From watches to the scheduler: converts what a watch saw, and turns a complete list into "the others are gone".

use std::collections::HashSet;
use std::sync::Arc;

use super::{Change, Interner, LeanNode, LeanPod};
use berth_model::{Node, Pod};

/// What is done with pods and nodes as they are seen.
pub trait ClusterSink {
    fn apply_pod(&mut self, pod: Pod);
    fn delete_pod(&mut self, uid: &Arc<str>);
    /// A list of all pods was complete; it had exactly these.
    fn retain_pods(&mut self, uids: &HashSet<Arc<str>>);
    fn apply_node(&mut self, node: Node);
    fn delete_node(&mut self, name: &str);
    fn retain_nodes(&mut self, names: &HashSet<Arc<str>>);
}

/// Takes the changes of one watch of pods.
#[derive(Default)]
pub struct PodIndex {
    interner: Interner,
    /// Uids of the list that is coming in.
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
            // What is known of it stays as it is; that it exists is sure.
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

/// Takes the changes of one watch of nodes.
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
