//! Other schedulers, whose binds the guard reviews.

use std::sync::Arc;
use std::time::Duration;

use berth_model::Pod;
use berth_scheduler::placement::{Binding, Reply};

use super::chaos;
use super::sim::{Event, MS, S, Sim};

/// Number of times that a scheduler tries to bind a pod.
const TRIES_MAX: u32 = 5;

fn binding_of(pod: &Pod, node: &Arc<str>) -> Binding {
    Binding {
        uid: pod.uid.clone(),
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        node: node.clone(),
        decision: None,
    }
}

impl Sim {
    /// Another scheduler gets a pod, or a client creates one with its node.
    pub fn create_foreign_pods(&mut self) {
        for _ in 0..1 + self.others.below(3) {
            let uid = self.cluster.new_uid();
            let kind = self.others.below(3);
            let mut pod = chaos::pod(kind, &uid, &format!("other-{uid}"), &mut self.others);
            pod.scheduler_name = "other".into();
            if self.others.percent(30)
                && let Some(node) = self.node_of_other()
            {
                self.note(|| format!("foreign {uid} of kind {kind} is to be created on {node}"));
                pod.node_name = Some(node.clone());
                self.request_of_other(binding_of(&pod, &node), Some(pod.into()), TRIES_MAX);
            } else {
                self.note(|| format!("foreign {uid} of kind {kind} is created"));
                self.cluster.create_pod(pod.clone());
                let pause = self.others.up_to(100 * MS);
                self.after(pause, Event::OtherBinds(pod.uid, 0));
            }
        }
    }

    /// Another scheduler binds a pod of berth, or one of its own again.
    pub fn bind_as_other(&mut self) {
        let pods: Vec<Pod> = self.cluster.store.list();
        let waiting: Vec<_> = pods.iter().filter(|pod| pod.node_name.is_none()).collect();
        if let Some(pod) = self.others.pick(&waiting) {
            self.other_binds(&pod.uid, TRIES_MAX - 2);
        }
    }

    /// Another scheduler chooses a node for a pod, and binds it.
    pub fn other_binds(&mut self, uid: &Arc<str>, tries: u32) {
        let pods = self.cluster.store.list();
        let Some(pod) = pods.iter().find(|pod| pod.uid == *uid && pod.node_name.is_none()) else {
            return;
        };
        if let Some(node) = self.node_of_other() {
            self.note(|| format!("another scheduler binds {uid} to {node}"));
            self.request_of_other(binding_of(pod, &node), None, tries + 1);
            // It may send another request before it knows what became of this one.
            if self.others.percent(15) && tries + 1 < TRIES_MAX {
                let pause = self.others.up_to(3 * S);
                self.after(pause, Event::OtherBinds(uid.clone(), tries + 1));
            }
        }
    }

    /// Returns the node that another scheduler chooses: it does not know the cluster as well as berth.
    fn node_of_other(&mut self) -> Option<Arc<str>> {
        let nodes: Vec<_> = self.cluster.nodes.keys().cloned().collect();
        match self.others.percent(2) {
            true => Some("nowhere".into()),
            false => self.others.pick(&nodes).cloned(),
        }
    }

    /// Another scheduler learns what became of its request.
    pub fn other_replied(&mut self, binding: Binding, placed: bool, tries: u32, reply: &Reply) {
        if *reply == Reply::Bound {
            return self.tally.count("bound by others");
        }
        if placed || tries >= TRIES_MAX || !self.faults {
            return;
        }
        let pause: Duration = self.others.up_to(2 * S);
        self.after(pause, Event::OtherBinds(binding.uid, tries));
    }
}
