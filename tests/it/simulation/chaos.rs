//! External changes: users, other schedulers, nodes and machines.

use std::sync::Arc;
use std::time::Duration;

use berth_model::{
    Amounts, Effect, HostPort, Identity, Labels, Node, NodeAffinity, NodeSelectorTerm, Operator, Peer, Pod,
    PodSpec, PreemptionPolicy, Protocol, Requirement, SpecError, Taint, Toleration, TolerationOperator,
    Unsupported, Usage,
};
use berth_scheduler::invariants;
use berth_scheduler::placement::{Binding, Reply};

use super::dice::Dice;
use super::gangs;
use super::objects::{APPS, NAMESPACES};
use super::peers::{self, HOSTNAME};
use super::sim::{Event, MS, S, Sim};
use super::watches::{NODES, WATCHES};

const GIB: i64 = 1 << 30;
/// Kinds of pods that [`spec`] knows.
const KINDS: u64 = 12;
/// Of these, as many can be placed on an empty node.
const PLACEABLE: [u64; 8] = [0, 1, 2, 3, 5, 9, 10, 11];

impl Sim {
    pub fn build_cluster(&mut self) {
        self.build_objects();
        self.build_budgets();
        for at in 0..1 + self.load.below(6) {
            let node = node(&format!("n{at}"), &mut self.load);
            self.cluster.apply_node(node);
        }
        self.build_storage();
        self.build_devices();
        for _ in 0..self.load.below(6) {
            self.create_pods();
        }
    }

    /// Makes one random change.
    pub fn chaos(&mut self) {
        if self.chaos_left == 0 {
            return;
        }
        self.chaos_left -= 1;
        self.change_storage();
        self.change_devices();
        self.change_replicas();
        match self.load.below(100) {
            0..24 => self.create_pods(),
            24..30 => self.create_members(),
            30..42 => self.delete_pod(),
            42..46 => self.recreate_pod(),
            46..52 => self.ungate_pod(),
            52..60 if self.settings.guard.is_some() => self.create_foreign_pods(),
            60..64 if self.settings.guard.is_some() => self.bind_as_other(),
            52..60 => self.foreign_pod(),
            60..64 => self.foreign_bind_of_ours(),
            64..67 => self.finish_pod(),
            67..69 => self.tolerate_more(),
            69..74 => self.add_node(),
            74..77 => self.remove_node(),
            77..84 => self.change_node(),
            84..87 => self.change_object(),
            87..88 => self.undo_report(),
            88..92 if !self.strict => {
                let slot = self.load.below(self.processes.len() as u64) as usize;
                let kind = *self.load.pick(&WATCHES).expect("there are some");
                self.note(|| format!("p{slot}: watch {kind} is cut"));
                self.cut(slot, kind);
            }
            92..94 if !self.strict => {
                let slot = self.load.below(self.processes.len() as u64) as usize;
                self.restart(slot);
            }
            94..96 if !self.strict => self.stop_leading(),
            96..98 if !self.strict => self.server_down(),
            98..100 => self.drain(),
            _ => {}
        }
        let pause = match self.load.below(6) {
            0 => self.load.up_to(2 * S),
            1..4 => self.load.up_to(100 * MS),
            _ => self.load.up_to(2 * MS),
        };
        self.after(pause, Event::Chaos);
    }

    /// Ends all faults.
    pub fn calm_down(&mut self) {
        self.note(|| "calm".into());
        self.faults = false;
        self.cluster.up = true;
        self.control_volumes_soon();
        self.control_claims_soon();
        for pod in self.cluster.store.list() {
            if (pod.node_name.as_ref()).is_some_and(|node| !self.cluster.nodes.contains_key(node)) {
                self.after(S, Event::Remove(pod.into()));
            }
        }
        if self.leader.is_none() {
            self.elect();
        }
    }

    /// Makes a change that wakes every parked class, but lets no pod fit.
    pub fn touch(&mut self) {
        self.cluster.apply_node(Node { name: "touch".into(), unschedulable: true, ..Node::default() });
        for slot in 0..self.processes.len() {
            self.cut(slot, NODES);
        }
    }

    /// Draws a kind of [`pod`].
    fn some_kind(&mut self) -> u64 {
        match self.settings.peers && self.load.percent(40) {
            true => KINDS + self.load.below(peers::KINDS),
            false => self.load.below(KINDS),
        }
    }

    fn create_pods(&mut self) {
        let (kind, gated) = (self.some_kind(), self.load.percent(12));
        let count = 1 + self.load.below(4) * self.load.below(2);
        for _ in 0..count {
            let uid = self.cluster.new_uid();
            let mut pod = pod(kind, &uid, &format!("pod-{uid}"), &mut self.load);
            if gated {
                pod.gates = ["example.com/wait".into()].into();
            }
            self.give_claims(&mut pod);
            self.give_devices(&mut pod);
            self.note(|| format!("{uid} of kind {kind} is created, gated: {gated}"));
            self.cluster.create_pod(pod);
        }
    }

    pub fn create_member(&mut self, kind: u64, gang: u64) {
        let uid = self.cluster.new_uid();
        let mut pod = pod(kind, &uid, &format!("pod-{uid}"), &mut self.load);
        gangs::enlist(&mut pod, gang);
        self.note(|| format!("{uid} of kind {kind} joins g{gang}"));
        self.cluster.create_pod(pod);
    }

    pub fn some_pod(&mut self, which: impl Fn(&Pod) -> bool) -> Option<Pod> {
        let pods: Vec<Pod> = self.cluster.store.list().into_iter().filter(which).collect();
        self.load.pick(&pods).cloned()
    }

    pub fn some_node(&mut self) -> Option<Node> {
        let nodes: Vec<_> = self.cluster.nodes.values().cloned().collect();
        self.load.pick(&nodes).cloned()
    }

    fn delete_pod(&mut self) {
        let Some(pod) = self.some_pod(|pod| !pod.deleting) else {
            return;
        };
        let grace = match self.load.percent(50) {
            true => self.load.up_to(3 * S),
            false => {
                self.note(|| format!("{} is deleted", pod.uid));
                return self.cluster.delete_pod(&pod);
            }
        };
        self.note(|| format!("{} is deleted, gone in {grace:?}", pod.uid));
        self.terminate(&pod, grace);
    }

    /// Lets a pod terminate, and removes it after its grace period.
    pub fn terminate(&mut self, pod: &Pod, grace: Duration) {
        self.cluster.update_pod(pod, |pod| {
            pod.deleting = true;
            Arc::make_mut(&mut pod.peer).terminating = true;
        });
        self.after(grace, Event::Remove(pod.clone().into()));
    }

    fn recreate_pod(&mut self) {
        let Some(old) = self.some_pod(|_| true) else {
            return;
        };
        self.cluster.delete_pod(&old);
        let uid = self.cluster.new_uid();
        let kind = self.some_kind();
        let mut new = pod(kind, &uid, &old.name, &mut self.load);
        rename(&mut new, &old.namespace);
        self.give_devices(&mut new);
        self.note(|| format!("{} is recreated as {uid} of kind {kind}", old.uid));
        self.cluster.create_pod(new);
    }

    fn ungate_pod(&mut self) {
        if let Some(pod) = self.some_pod(|pod| !pod.gates.is_empty()) {
            self.note(|| format!("{} is ungated", pod.uid));
            self.cluster.update_pod(&pod, |pod| pod.gates = [].into());
        }
    }

    /// Another scheduler runs one of its pods on some node.
    pub fn foreign_pod(&mut self) {
        let Some(node) = self.some_node() else {
            return;
        };
        let uid = self.cluster.new_uid();
        let kind = self.load.below(3);
        let mut pod = pod(kind, &uid, &format!("other-{uid}"), &mut self.load);
        pod.scheduler_name = "other".into();
        if !self.foreigner_may(&pod, &node) {
            return;
        }
        pod.node_name = Some(node.name.clone());
        self.note(|| format!("foreign {uid} of kind {kind} runs on {}", node.name));
        self.cluster.create_pod(pod);
    }

    /// Another scheduler binds a pod of berth.
    fn foreign_bind_of_ours(&mut self) {
        let (Some(pod), Some(node)) = (self.some_pod(|pod| pod.node_name.is_none()), self.some_node()) else {
            return;
        };
        if !self.foreigner_may(&pod, &node) {
            return;
        }
        let binding = Binding {
            uid: pod.uid.clone(),
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            node: node.name.clone(),
            decision: None,
        };
        if self.cluster.store.bind_now(&binding) == Reply::Bound {
            self.note(|| format!("{} is bound to {} by another scheduler", pod.uid, node.name));
            self.cluster.pod_was_bound(&pod.namespace, &pod.name);
        }
    }

    /// Returns whether another scheduler may use the node: where overcommitment is forbidden, they avoid nodes that
    /// berth is about to use.
    fn foreigner_may(&self, pod: &Pod, node: &Node) -> bool {
        if !self.strict {
            return true;
        }
        let mut others = self.cluster.usage_on(&node.name, &[pod.uid.clone()].into());
        for process in &self.processes {
            others.extend(process.shadow.usage_on(&node.name, &pod.uid));
        }
        let plain = PodSpec { usage: pod.usage.clone(), ..PodSpec::default() };
        invariants::admits(&Arc::new(plain), node, others.iter()).is_ok()
    }

    fn finish_pod(&mut self) {
        if let Some(pod) = self.some_pod(|pod| pod.node_name.is_some()) {
            self.note(|| format!("{} finishes", pod.uid));
            self.cluster.update_pod(&pod, |pod| pod.finished = true);
        }
    }

    /// Adds a toleration, the only mutable part of a pending pod's spec.
    fn tolerate_more(&mut self) {
        let Some(pod) = self.some_pod(|pod| pod.node_name.is_none() && pod.spec.is_ok()) else {
            return;
        };
        self.note(|| format!("{} tolerates more", pod.uid));
        self.cluster.update_pod(&pod, |pod| {
            if let Ok(spec) = &mut pod.spec {
                Arc::make_mut(spec).tolerations = [tolerate_everything()].into();
            }
            pod.generation += 1;
        });
    }

    pub fn add_node(&mut self) {
        let name = format!("n{}", self.load.below(10));
        let node = node(&name, &mut self.load);
        self.note(|| format!("node {name} is added or replaced"));
        if self.cluster.nodes.contains_key(&node.name) {
            self.cluster.excused.insert(name.into());
        }
        self.cluster.apply_node(node);
    }

    fn remove_node(&mut self) {
        let Some(node) = self.some_node() else {
            return;
        };
        self.note(|| format!("node {} is deleted", node.name));
        self.cluster.delete_node(&node.name);
        for pod in self.cluster.store.list() {
            if pod.node_name.as_ref() == Some(&node.name) {
                let pause = self.load.up_to(40 * S);
                self.after(pause, Event::Remove(pod.into()));
            }
        }
    }

    fn change_node(&mut self) {
        let Some(mut node) = self.some_node() else {
            return;
        };
        match self.load.below(5) {
            0 => node.unschedulable = !node.unschedulable,
            1 => node.taints = taints(&mut self.load),
            2 => node.labels = labels(&node.name, &mut self.load),
            3 => {
                self.cluster.excused.insert(node.name.clone());
                node.allocatable.cpu_milli /= 2;
                node.allocatable.pods /= 2;
            }
            _ => node.allocatable.cpu_milli += 1000,
        }
        self.note(|| {
            let (taints, labels) = (&node.taints, &node.labels);
            format!(
                "node {} is now {:?} {taints:?} {labels:?} {}",
                node.name, node.allocatable, node.unschedulable
            )
        });
        self.cluster.apply_node(node);
    }

    fn server_down(&mut self) {
        if !self.cluster.up {
            return;
        }
        let time = self.load.up_to(5 * S);
        self.note(|| format!("API server down for {time:?}"));
        self.cluster.up = false;
        for slot in 0..self.processes.len() {
            WATCHES.into_iter().for_each(|kind| self.cut(slot, kind));
        }
        self.after(time, Event::Up);
    }
}

fn node(name: &str, dice: &mut Dice) -> Node {
    Node {
        name: name.into(),
        labels: labels(name, dice),
        taints: if dice.percent(20) { taints(dice) } else { [].into() },
        unschedulable: dice.percent(5),
        allocatable: Amounts {
            cpu_milli: 1000 * (1 + dice.below(4) as i64),
            memory: 4 * GIB,
            ephemeral_storage: 0,
            pods: 3 + dice.below(12) as i64,
        },
        extended: [(Arc::from("example.com/gpu"), dice.below(3) as i64)].into_iter().collect(),
        ..Node::default()
    }
}

fn labels(name: &str, dice: &mut Dice) -> Labels {
    let zone = ["a", "b", "c"][dice.below(3) as usize];
    [("zone", zone), (HOSTNAME, name)].into_iter().collect()
}

fn taints(dice: &mut Dice) -> Box<[Taint]> {
    let effect = match dice.below(4) {
        0 => return [].into(),
        1 => Effect::PreferNoSchedule,
        2 => Effect::NoExecute,
        _ => Effect::NoSchedule,
    };
    [Taint { key: "dedicated".into(), value: "".into(), effect }].into()
}

fn tolerate_everything() -> Toleration {
    Toleration { key: "".into(), operator: TolerationOperator::Exists, value: "".into(), effect: None }
}

pub fn pod(kind: u64, uid: &str, name: &str, dice: &mut Dice) -> Pod {
    let spec = match kind < KINDS {
        true => spec(kind),
        false => spec(*dice.pick(&PLACEABLE).expect("there are some")),
    };
    let usage = match &spec {
        Ok(spec) => spec.usage.clone(),
        Err(_) => usage(0, 0, 0, None),
    };
    let never = dice.percent(20);
    let namespace: Arc<str> = (*dice.pick(&NAMESPACES).expect("there are some")).into();
    let app = *dice.pick(&APPS).expect("there are some");
    let labels = [("app", app)].into_iter().collect();
    let identity = Identity { namespace: namespace.clone(), labels, ..Identity::default() };
    let mut pod = Pod {
        uid: uid.into(),
        namespace,
        name: name.into(),
        peer: Arc::new(Peer { identity, ..Peer::default() }),
        scheduler_name: "berth".into(),
        priority: dice.below(3) as i32 * 100,
        preemption_policy: match never {
            true => PreemptionPolicy::Never,
            false => PreemptionPolicy::PreemptLowerPriority,
        },
        generation: 1,
        usage,
        spec,
        ..Pod::default()
    };
    if kind >= KINDS {
        peers::look_at_others(&mut pod, kind - KINDS, dice);
    }
    pod
}

/// Moves a new pod to this namespace.
fn rename(pod: &mut Pod, namespace: &Arc<str>) {
    pod.namespace = namespace.clone();
    Arc::make_mut(&mut pod.peer).identity.namespace = namespace.clone();
}

fn usage(cpu_milli: i64, memory: i64, gpus: i64, port: Option<u16>) -> Arc<Usage> {
    let port = port.map(|port| HostPort { ip: None, protocol: Protocol::Tcp, port });
    Arc::new(Usage {
        requests: Amounts { cpu_milli, memory, ephemeral_storage: 0, pods: 1 },
        extended: [(Arc::from("example.com/gpu"), gpus)].into_iter().collect(),
        nonzero_cpu_milli: cpu_milli.max(100),
        nonzero_memory: memory.max(200 << 20),
        ports: port.into_iter().collect(),
    })
}

fn spec(kind: u64) -> Result<Arc<PodSpec>, SpecError> {
    let plain = |cpu_milli| PodSpec { usage: usage(cpu_milli, 0, 0, None), ..PodSpec::default() };
    let in_zone = |zone: &str| {
        let requirement = Requirement { key: "zone".into(), operator: Operator::In([zone.into()].into()) };
        let term = NodeSelectorTerm { expressions: [requirement].into(), fields: [].into() };
        NodeAffinity { required: Some([term].into()), ..NodeAffinity::default() }
    };
    Ok(Arc::new(match kind {
        0 => plain(300),
        1 => PodSpec { usage: usage(900, GIB, 0, None), ..PodSpec::default() },
        2 => PodSpec { usage: usage(100, 0, 0, Some(8080)), ..PodSpec::default() },
        3 => PodSpec { node_selector: [("zone", "a")].into_iter().collect(), ..plain(400) },
        4 => PodSpec { usage: usage(100, 0, 1, None), ..PodSpec::default() },
        5 => PodSpec { tolerations: [tolerate_everything()].into(), ..plain(700) },
        6 => plain(100_000),
        7 => PodSpec { unsupported: [Unsupported::Volumes].into(), ..plain(100) },
        8 => {
            return Err(SpecError {
                field: "spec.containers[0].resources.requests[cpu]".into(),
                problem: "quantity \"much\" does not end in a unit".into(),
            });
        }
        9 => PodSpec {
            node_affinity: in_zone("b"),
            images: ["app:1".into()].into(),
            containers: 1,
            ..plain(500)
        },
        10 => plain(0),
        _ => plain(2000),
    }))
}
