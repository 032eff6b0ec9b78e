//! Conversion of watch changes of pods and nodes for the scheduler; a complete list removes all objects that it lacks.

use std::collections::HashSet;
use std::sync::Arc;

use super::{Interner, LeanNode, LeanPod, Listed, LivePod, LivePods, WatchChange};
use berth_model::{Node, Pod};

/// Receiver of pods and nodes.
pub trait ClusterSink {
    fn apply_pod(&mut self, pod: Pod);
    fn delete_pod(&mut self, uid: &Arc<str>);
    /// A list of all pods was complete, with exactly these.
    fn retain_pods(&mut self, uids: &HashSet<Arc<str>>);
    fn apply_node(&mut self, node: Node);
    fn delete_node(&mut self, name: &str);
    fn retain_nodes(&mut self, names: &HashSet<Arc<str>>);
}

/// State of one watch of pods.
#[derive(Default)]
pub struct PodIndex {
    interner: Interner,
    /// Uids.
    listed: Listed<HashSet<Arc<str>>>,
    /// Where pods are kept for rightsizing, if it is enabled.
    live: Option<LivePods>,
}

impl PodIndex {
    pub fn new(live: Option<LivePods>) -> PodIndex {
        PodIndex { live, ..PodIndex::default() }
    }

    pub fn take(&mut self, change: WatchChange<LeanPod>, sink: &mut impl ClusterSink) {
        match change {
            WatchChange::ListBegins => self.listed.begin(),
            WatchChange::Apply(Ok(pod)) => {
                let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
                let live = self.live.as_ref().filter(|live| live.covers(namespace));
                let sized = live.map(|live| (live, pod.sized()));
                let pod = pod.into_pod(&mut self.interner);
                self.listed.note(pod.uid.clone());
                if let Some((live, sized)) = sized {
                    live.apply(LivePod::new(sized, &pod));
                }
                sink.apply_pod(pod);
            }
            // It exists: the last version that could be read stays.
            WatchChange::Apply(Err(bad)) => self.listed.note(Arc::from(bad.id.uid)),
            WatchChange::Delete(id) => {
                if let Some(live) = &self.live {
                    live.delete(&id);
                }
                sink.delete_pod(&Arc::from(id.uid));
            }
            WatchChange::ListEnds => {
                let listed = self.listed.end();
                if let Some(live) = &self.live {
                    live.retain(&listed);
                }
                sink.retain_pods(&listed);
            }
            WatchChange::NotServed | WatchChange::Refused => {}
        }
    }
}

/// State of one watch of nodes.
#[derive(Default)]
pub struct NodeIndex {
    interner: Interner,
    /// Names.
    listed: Listed<HashSet<Arc<str>>>,
}

impl NodeIndex {
    pub fn take(&mut self, change: WatchChange<LeanNode>, sink: &mut impl ClusterSink) {
        match change {
            WatchChange::ListBegins => self.listed.begin(),
            WatchChange::Apply(Ok(node)) => {
                let node = node.into_node(&mut self.interner);
                self.listed.note(node.name.clone());
                sink.apply_node(node);
            }
            WatchChange::Apply(Err(bad)) => self.listed.note(Arc::from(bad.id.name)),
            WatchChange::Delete(id) => sink.delete_node(&id.name),
            WatchChange::ListEnds => sink.retain_nodes(&self.listed.end()),
            WatchChange::NotServed | WatchChange::Refused => {}
        }
    }
}
