//! Store of the pods that are not finished, for the rooms that size pods. The scheduler's watch fills it, so that none of them
//! lists pods.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use parking_lot::RwLock;
use tokio::sync::watch;

use super::ObjectId;
use super::pod_reader::is_name;
use berth_model::{LabelSelector, Peer, Pod, PodSpec};
use berth_rightsizing::apply::SizedPod;

/// A pod that is not finished.
#[derive(Debug)]
pub struct LivePod {
    pub pod: SizedPod,
    /// Shared with the scheduler: its namespace and labels.
    peer: Arc<Peer>,
    /// What it asks of nodes; `None`: its spec is invalid.
    pub spec: Option<Arc<PodSpec>>,
}

impl LivePod {
    /// `sized` and `pod` are of one object.
    pub(crate) fn new(sized: SizedPod, pod: &Pod) -> LivePod {
        LivePod { pod: sized, peer: pod.peer.clone(), spec: pod.spec.as_ref().ok().cloned() }
    }

    /// Returns whether its labels match the selector.
    pub fn matches(&self, selector: &LabelSelector) -> bool {
        selector.matches(&self.peer.identity.labels)
    }
}

type ByName = BTreeMap<Arc<str>, Arc<LivePod>>;

/// The pods of the namespaces that are sized, from the watch. Cheap to clone; one writer.
#[derive(Clone)]
pub struct LivePods(Arc<Shared>);

struct Shared {
    covers: Box<dyn Fn(&str) -> bool + Send + Sync>,
    /// By namespace.
    pods: RwLock<BTreeMap<Arc<str>, ByName>>,
    /// Whether the first list is complete.
    listed: watch::Sender<bool>,
}

impl LivePods {
    /// Creates a store of the pods in the namespaces that `covers` accepts.
    pub fn new(covers: impl Fn(&str) -> bool + Send + Sync + 'static) -> LivePods {
        let (listed, _) = watch::channel(false);
        LivePods(Arc::new(Shared { covers: Box::new(covers), pods: RwLock::default(), listed }))
    }

    /// Resolves when the first list of the watch is complete.
    pub async fn listed(&self) {
        // The sender is in `self`.
        let _ = self.0.listed.subscribe().wait_for(|listed| *listed).await;
    }

    /// Returns the pods of a namespace, by name.
    pub fn of(&self, namespace: &str) -> Vec<Arc<LivePod>> {
        self.0.pods.read().get(namespace).map(|pods| pods.values().cloned().collect()).unwrap_or_default()
    }

    /// Returns the pods that a selector matches, by name.
    pub fn selected(&self, namespace: &str, selector: &LabelSelector) -> Vec<Arc<LivePod>> {
        let mut pods = self.of(namespace);
        pods.retain(|live| live.matches(selector));
        pods
    }

    /// Returns the namespaces of pods that got more CPU for their start.
    pub fn boosted_namespaces(&self) -> BTreeSet<Arc<str>> {
        let pods = self.0.pods.read();
        let boosted = |pods: &ByName| pods.values().any(|live| !live.pod.boosts.is_empty());
        pods.iter().filter(|(_, pods)| boosted(pods)).map(|(namespace, _)| namespace.clone()).collect()
    }

    pub(crate) fn covers(&self, namespace: &str) -> bool {
        (self.0.covers)(namespace)
    }

    /// Adds or replaces a pod. One without a valid name could not be addressed, and is ignored.
    pub(crate) fn apply(&self, live: LivePod) {
        if !is_name(&live.pod.name) || !is_name(&live.pod.namespace) || live.pod.uid.is_empty() {
            return;
        }
        let mut pods = self.0.pods.write();
        let of_namespace = match pods.get_mut(&live.pod.namespace) {
            Some(of_namespace) => of_namespace,
            None => pods.entry(live.pod.namespace.clone()).or_default(),
        };
        of_namespace.insert(live.pod.name.clone(), Arc::new(live));
    }

    /// Notes that a pod was just evicted, before the watch shows it.
    pub fn mark_deleting(&self, pod: &SizedPod) {
        let mut pods = self.0.pods.write();
        let stored = pods.get_mut(&pod.namespace).and_then(|of_namespace| of_namespace.get_mut(&pod.name));
        if let Some(stored) = stored.filter(|stored| stored.pod.uid == pod.uid) {
            let pod = SizedPod { is_deleting: true, ..stored.pod.clone() };
            *stored = Arc::new(LivePod { pod, peer: stored.peer.clone(), spec: stored.spec.clone() });
        }
    }

    /// Removes a pod, unless another one has its name by now.
    pub(crate) fn delete(&self, id: &ObjectId) {
        let mut pods = self.0.pods.write();
        let Some(of_namespace) = pods.get_mut(&*id.namespace) else { return };
        if of_namespace.get(&*id.name).is_some_and(|live| *live.pod.uid == *id.uid) {
            of_namespace.remove(&*id.name);
        }
        if of_namespace.is_empty() {
            pods.remove(&*id.namespace);
        }
    }

    /// A list is complete: all pods with other uids are gone.
    pub(crate) fn retain(&self, uids: &HashSet<Arc<str>>) {
        self.0.pods.write().retain(|_, pods| {
            pods.retain(|_, live| uids.contains(&live.pod.uid));
            !pods.is_empty()
        });
        self.0.listed.send_replace(true);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::guarded::BadObject;
    use crate::{ClusterSink, LeanPod, PodIndex, WatchChange};
    use berth_model::{Labels, Node, Operator, Requirement};

    struct Nobody;

    impl ClusterSink for Nobody {
        fn apply_pod(&mut self, _: Pod) {}
        fn delete_pod(&mut self, _: &Arc<str>) {}
        fn retain_pods(&mut self, _: &HashSet<Arc<str>>) {}
        fn apply_node(&mut self, _: Node) {}
        fn delete_node(&mut self, _: &str) {}
        fn retain_nodes(&mut self, _: &HashSet<Arc<str>>) {}
    }

    fn lean(namespace: &str, name: &str, uid: &str) -> LeanPod {
        let pod = json!({
            "metadata": {"namespace": namespace, "name": name, "uid": uid, "labels": {"app": name}},
            "spec": {"containers": [{"name": "app", "resources": {"requests": {"cpu": "1"}}}]},
        });
        serde_json::from_value(pod).expect("a pod")
    }

    fn id(namespace: &str, name: &str, uid: &str) -> ObjectId {
        ObjectId { namespace: namespace.into(), name: name.into(), uid: uid.into() }
    }

    /// A store of all namespaces but `system`, and its watch.
    fn watched() -> (LivePods, PodIndex) {
        let live = LivePods::new(|namespace| namespace != "system");
        (live.clone(), PodIndex::new(Some(live)))
    }

    fn uids(live: &LivePods, namespace: &str) -> Vec<String> {
        live.of(namespace).iter().map(|live| live.pod.uid.to_string()).collect()
    }

    #[test]
    fn pods_follow_the_watch_and_a_list_removes_those_that_it_lacks() {
        let (live, mut index) = watched();
        let mut take = |change| index.take(change, &mut Nobody);
        take(WatchChange::ListBegins);
        for (namespace, name) in [("shop", "b"), ("shop", "a"), ("system", "c"), ("bank", "d")] {
            take(WatchChange::Apply(Ok(lean(namespace, name, &format!("u-{name}")))));
        }
        take(WatchChange::ListEnds);
        assert_eq!(uids(&live, "shop"), ["u-a", "u-b"]);
        assert_eq!(uids(&live, "bank"), ["u-d"]);
        assert!(live.of("system").is_empty() && live.of("none").is_empty());
        assert_eq!(live.of("shop")[0].spec.as_ref().map(|spec| spec.usage.requests.cpu_milli), Some(1_000));

        let evicted = live.of("shop").swap_remove(1);
        live.mark_deleting(&evicted.pod);
        assert_eq!(live.of("shop").iter().map(|it| it.pod.is_deleting).collect::<Vec<_>>(), [false, true]);
        take(WatchChange::Apply(Ok(lean("shop", "a", "u-2"))));
        take(WatchChange::Delete(id("shop", "a", "u-a")));
        assert_eq!(uids(&live, "shop"), ["u-2", "u-b"], "the late deletion is of the former pod");
        take(WatchChange::Delete(id("bank", "d", "u-d")));
        assert!(live.0.pods.read().get("bank").is_none());

        take(WatchChange::ListBegins);
        take(WatchChange::Apply(Err(BadObject { id: id("shop", "b", "u-b"), error: "no".into() })));
        take(WatchChange::ListEnds);
        assert_eq!(uids(&live, "shop"), ["u-b"], "its last version that could be read stays");
    }

    #[test]
    fn selected_pods_have_the_labels() {
        let (live, mut index) = watched();
        for name in ["a", "b"] {
            index.take(WatchChange::Apply(Ok(lean("shop", name, name))), &mut Nobody);
        }
        let b = Requirement { key: "app".into(), operator: Operator::In([Arc::from("b")].into()) };
        let selector = LabelSelector::All([b].into());
        assert!(selector.matches(&[("app", "b")].into_iter().collect::<Labels>()));
        let selected = live.selected("shop", &selector);
        assert_eq!(selected.iter().map(|live| &*live.pod.name).collect::<Vec<_>>(), ["b"]);
        assert!(live.selected("bank", &selector).is_empty());
    }

    #[tokio::test]
    async fn readers_wait_for_the_first_list() {
        let (live, mut index) = watched();
        let reader = tokio::spawn({
            let live = live.clone();
            async move { live.listed().await }
        });
        tokio::task::yield_now().await;
        index.take(WatchChange::ListBegins, &mut Nobody);
        index.take(WatchChange::Apply(Ok(lean("shop", "a", "a"))), &mut Nobody);
        tokio::task::yield_now().await;
        assert!(!reader.is_finished());
        index.take(WatchChange::ListEnds, &mut Nobody);
        reader.await.expect("listed");
    }
}
