//! Watches of the processes: positions in the cluster's logs, which lag, are cut and begin again with a list.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use berth_model::{Node, Pod};
use berth_scheduler::objects::ClusterObject;

use super::cluster::{NodeEvent, ObjectEvent, PodEvent};
use super::process::{Process, Who};
use super::sim::{Event, MS, S, Sim, Step};

pub const PODS: usize = 0;
pub const NODES: usize = 1;
pub const OBJECTS: usize = 2;
pub const WATCHES: [usize; 3] = [PODS, NODES, OBJECTS];
const NAMES: [&str; 3] = ["pods", "nodes", "objects"];

pub enum Listing {
    Pods(Vec<Pod>),
    Nodes(Vec<Node>),
    Objects(Vec<ClusterObject>),
}

impl Process {
    fn pods_listed(&mut self, pods: Vec<Pod>, now: Duration) {
        let uids: HashSet<Arc<str>> = pods.iter().map(|pod| pod.uid.clone()).collect();
        self.shadow.pods.retain(|uid, _| uids.contains(uid));
        self.shadow.assumed.retain(|uid, _| uids.contains(uid));
        self.shadow.settled.retain(|uid| uids.contains(uid));
        self.shadow.rivals.retain(|uid, _| uids.contains(uid));
        for pod in pods {
            self.shadow.note_arrival(&pod, now);
            self.shadow.apply(&pod);
            self.scheduler.apply_pod(pod, now);
        }
        self.scheduler.retain_pods(&uids);
    }

    fn nodes_listed(&mut self, nodes: Vec<Node>) {
        let names: HashSet<Arc<str>> = nodes.iter().map(|node| node.name.clone()).collect();
        self.shadow.nodes.retain(|name, _| names.contains(name));
        nodes.into_iter().for_each(|node| self.apply_node(&node));
        self.scheduler.retain_nodes(&names);
    }

    fn apply_node(&mut self, node: &Node) {
        self.shadow.nodes.insert(node.name.clone(), node.clone());
        self.scheduler.apply_node(node.clone());
    }

    fn pod_event(&mut self, event: &PodEvent, now: Duration) {
        match event {
            PodEvent::Applied(pod) => {
                self.shadow.note_arrival(pod, now);
                self.shadow.apply(pod);
                self.scheduler.apply_pod((**pod).clone(), now);
            }
            PodEvent::Deleted(uid) => {
                self.shadow.forget(uid);
                self.scheduler.delete_pod(uid);
            }
        }
    }

    fn node_event(&mut self, event: &NodeEvent) {
        match event {
            NodeEvent::Applied(node) => self.apply_node(node),
            NodeEvent::Deleted(name) => {
                self.shadow.nodes.remove(name);
                self.scheduler.delete_node(name);
            }
        }
    }

    fn object_event(&mut self, event: &ObjectEvent) {
        match event {
            ObjectEvent::Applied(object) => self.apply_object(object),
            ObjectEvent::Deleted(key) => self.delete_object(key),
        }
    }
}

impl Sim {
    /// Ends a watch: it begins again with a list.
    pub fn cut(&mut self, slot: usize, kind: usize) {
        let watch = &mut self.processes[slot].watches[kind];
        watch.epoch += 1;
        (watch.live, watch.pending) = (false, false);
        let (epoch, who) = (watch.epoch, (slot, self.processes[slot].life));
        let pause = self.lag();
        self.after(pause, Event::List(who, kind, epoch));
    }

    /// Returns the delay of a watch event.
    fn lag(&mut self) -> Duration {
        if self.strict {
            return Duration::ZERO;
        }
        match self.delays.below(10) {
            0 => self.delays.up_to(3 * S),
            1..4 => self.delays.up_to(200 * MS),
            _ => self.delays.up_to(10 * MS),
        }
    }

    /// Schedules the next delivery of a watch that is behind.
    pub fn poke(&mut self, slot: usize, kind: usize) {
        let logged = self.cluster.logged(kind);
        let process = &mut self.processes[slot];
        let (life, watch) = (process.life, &mut process.watches[kind]);
        if watch.live && !watch.pending && watch.cursor < logged {
            watch.pending = true;
            let event = Event::Deliver((slot, life), kind, watch.epoch);
            let lag = self.lag();
            self.after(lag, event);
        }
    }

    pub fn deliver(&mut self, who: Who, kind: usize, epoch: u32) -> Step {
        let batch = if self.strict { usize::MAX } else { 1 + self.delays.below(4) as usize };
        let now = self.now;
        let Some(process) = self.processes.get_mut(who.0).filter(|process| process.life == who.1) else {
            return Ok(());
        };
        let watch = &mut process.watches[kind];
        if watch.epoch != epoch {
            return Ok(());
        }
        watch.pending = false;
        let from = watch.cursor;
        let to = self.cluster.logged(kind).min(from.saturating_add(batch));
        watch.cursor = to;
        let cluster = &self.cluster;
        if kind == OBJECTS && cluster.object_log[from..to].iter().any(|event| !event.is_of_budget()) {
            process.shadow.rules_changed = now;
        }
        match kind {
            PODS => cluster.pod_log[from..to].iter().for_each(|event| process.pod_event(event, now)),
            NODES => cluster.node_log[from..to].iter().for_each(|event| process.node_event(event)),
            _ => cluster.object_log[from..to].iter().for_each(|event| process.object_event(event)),
        }
        self.note(|| format!("p{} sees {} {from}..{to}", who.0, NAMES[kind]));
        self.carry_out(who)?;
        self.poke(who.0, kind);
        Ok(())
    }

    /// A list request reaches the API server.
    pub fn list(&mut self, who: Who, kind: usize, epoch: u32) {
        if !self.cluster.up {
            return self.after(500 * MS, Event::List(who, kind, epoch));
        }
        let cluster = &self.cluster;
        let listing = match kind {
            PODS => Listing::Pods(cluster.store.list().into_iter().filter(|pod| !pod.finished).collect()),
            NODES => Listing::Nodes(cluster.nodes.values().cloned().collect()),
            _ => Listing::Objects(cluster.objects.values().cloned().collect()),
        };
        let place = cluster.logged(kind);
        let lag = self.lag();
        self.after(lag, Event::Listed(who, epoch, listing, place));
    }

    pub fn listed(&mut self, who: Who, epoch: u32, listing: Listing, place: usize) -> Step {
        let kind = match listing {
            Listing::Pods(_) => PODS,
            Listing::Nodes(_) => NODES,
            Listing::Objects(_) => OBJECTS,
        };
        let now = self.now;
        let Some(process) = self.process(who) else {
            return Ok(());
        };
        if process.watches[kind].epoch != epoch {
            return Ok(());
        }
        match listing {
            Listing::Pods(pods) => process.pods_listed(pods, now),
            Listing::Nodes(nodes) => process.nodes_listed(nodes),
            Listing::Objects(objects) => {
                process.objects_listed(&objects);
                process.shadow.rules_changed = now;
            }
        }
        let watch = &mut process.watches[kind];
        (watch.cursor, watch.live) = (place, true);
        self.tally.count("relist");
        self.note(|| format!("p{} lists {} up to {place}", who.0, NAMES[kind]));
        self.carry_out(who)?;
        self.poke(who.0, kind);
        Ok(())
    }
}
