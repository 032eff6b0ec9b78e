//! In-memory model of the API server's `pods/binding`, for simulation, benchmarks and tests.
//!
//! As upstream (`pkg/registry/core/pod/storage`): the uid is a precondition, a pod is bound once, and neither the node
//! nor its capacity is checked. Everything is synchronous; its [`PlacementStore`] never waits.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Binding, PlacementStore, Reply, Truth};
use berth_model::Pod;

/// Pods by namespace and name, and the binds that succeeded.
#[derive(Debug, Default)]
pub struct MemoryStore {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    pods: BTreeMap<(Arc<str>, Arc<str>), Pod>,
    bound: Vec<Binding>,
}

impl MemoryStore {
    /// Creates the pod; returns `false` and changes nothing if the name is taken.
    pub fn create(&self, pod: Pod) -> bool {
        let pods = &mut self.state.lock().pods;
        let key = (pod.namespace.clone(), pod.name.clone());
        if pods.contains_key(&key) {
            return false;
        }
        pods.insert(key, pod);
        true
    }

    /// Updates the pod of this name and returns the result; `None` if it does not exist.
    pub fn update(&self, namespace: &str, name: &str, change: impl FnOnce(&mut Pod)) -> Option<Pod> {
        let mut state = self.state.lock();
        let pod = state.pods.get_mut(&(Arc::from(namespace), Arc::from(name)))?;
        change(pod);
        Some(pod.clone())
    }

    /// Removes the pod of this name.
    pub fn delete(&self, namespace: &str, name: &str) -> Option<Pod> {
        let key = (Arc::from(namespace), Arc::from(name));
        self.state.lock().pods.remove(&key)
    }

    pub fn get(&self, namespace: &str, name: &str) -> Option<Pod> {
        let key = (Arc::from(namespace), Arc::from(name));
        self.state.lock().pods.get(&key).cloned()
    }

    /// All pods, by namespace and name.
    pub fn list(&self) -> Vec<Pod> {
        self.state.lock().pods.values().cloned().collect()
    }

    /// The binds that succeeded, in order.
    pub fn bound(&self) -> Vec<Binding> {
        self.state.lock().bound.clone()
    }

    /// `POST pods/binding`.
    pub fn bind_now(&self, binding: &Binding) -> Reply {
        let mut state = self.state.lock();
        let key = (binding.namespace.clone(), binding.name.clone());
        let Some(pod) = state.pods.get_mut(&key) else {
            return Reply::NotFound;
        };
        if let Some(why) = refusal(pod, binding) {
            return Reply::Conflict(why);
        }
        pod.node_name = Some(binding.node.clone());
        state.bound.push(binding.clone());
        Reply::Bound
    }

    /// `GET` of the pod.
    pub fn read_now(&self, binding: &Binding) -> Truth {
        match self.get(&binding.namespace, &binding.name) {
            Some(pod) if pod.uid != binding.uid || pod.finished => Truth::Gone,
            None => Truth::Gone,
            Some(pod) => match pod.node_name {
                Some(node) => Truth::BoundTo(node),
                None => Truth::Unbound { bindable: !pod.deleting && pod.gates.is_empty() },
            },
        }
    }
}

/// Returns the message of the API server's 409, if it would refuse the bind.
fn refusal(pod: &Pod, binding: &Binding) -> Option<String> {
    let name = &pod.name;
    if pod.uid != binding.uid {
        let key = format!("/pods/{}/{name}", pod.namespace);
        return Some(format!(
            "Operation cannot be fulfilled on pods \"{name}\": StorageError: invalid object, Code: 4, Key: {key}, \
             ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {}, UID in object \
             meta: {}",
            binding.uid, pod.uid
        ));
    }
    let why = if pod.deleting {
        format!("pod {name} is being deleted, cannot be assigned to a host")
    } else if let Some(node) = &pod.node_name {
        format!("pod {name} is already assigned to node \"{node}\"")
    } else if !pod.gates.is_empty() {
        format!("pod {name} has non-empty .spec.schedulingGates")
    } else {
        return None;
    };
    Some(format!("Operation cannot be fulfilled on pods/binding \"{name}\": {why}"))
}

impl PlacementStore for MemoryStore {
    async fn bind(&self, binding: &Binding) -> Reply {
        self.bind_now(binding)
    }

    async fn read(&self, binding: &Binding) -> Truth {
        self.read_now(binding)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str) -> Pod {
        Pod {
            uid: uid.into(),
            namespace: "ns".into(),
            name: "p".into(),
            scheduler_name: "berth".into(),
            generation: 1,
            ..Pod::default()
        }
    }

    fn binding(uid: &str, node: &str) -> Binding {
        Binding {
            uid: uid.into(),
            namespace: "ns".into(),
            name: "p".into(),
            node: node.into(),
            decision: None,
        }
    }

    /// The text of the 409 to this bind.
    fn conflict(store: &MemoryStore, uid: &str) -> String {
        match store.bind_now(&binding(uid, "a")) {
            Reply::Conflict(why) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_pod_is_bound_once_and_again_is_a_conflict_even_to_the_same_node() {
        let store = MemoryStore::default();
        assert_eq!(store.bind_now(&binding("u", "a")), Reply::NotFound);
        assert_eq!(store.read_now(&binding("u", "a")), Truth::Gone);
        assert!(store.create(pod("u")));
        assert!(!store.create(pod("v")), "the name is taken");
        assert_eq!(store.read_now(&binding("u", "a")), Truth::Unbound { bindable: true });
        assert_eq!(store.bind_now(&binding("u", "a")), Reply::Bound);
        assert_eq!(
            conflict(&store, "u"),
            "Operation cannot be fulfilled on pods/binding \"p\": pod p is already assigned to node \"a\""
        );
        assert_eq!(store.read_now(&binding("u", "b")), Truth::BoundTo("a".into()));
        assert_eq!(store.bound(), [binding("u", "a")]);
        store.update("ns", "p", |pod| pod.finished = true);
        assert_eq!(store.read_now(&binding("u", "a")), Truth::Gone);
    }

    #[test]
    fn a_recreated_deleting_or_gated_pod_is_not_bound() {
        let store = MemoryStore::default();
        store.create(pod("new"));
        assert!(
            conflict(&store, "old")
                .ends_with("Precondition failed: UID in precondition: old, UID in object meta: new")
        );
        assert_eq!(store.read_now(&binding("old", "a")), Truth::Gone);
        store.update("ns", "p", |pod| pod.gates = ["wait".into()].into());
        assert!(conflict(&store, "new").ends_with("pod p has non-empty .spec.schedulingGates"));
        store.update("ns", "p", |pod| pod.deleting = true);
        assert!(conflict(&store, "new").ends_with("pod p is being deleted, cannot be assigned to a host"));
        assert_eq!(store.read_now(&binding("new", "a")), Truth::Unbound { bindable: false });
        assert_eq!(store.delete("ns", "p").map(|pod| pod.uid), Some("new".into()));
        assert!(store.bound().is_empty());
    }
}
