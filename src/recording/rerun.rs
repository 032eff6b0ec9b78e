//! Lives through the cluster of a recording, or of a [history](crate::history), again, with any settings.
//!
//! Nodes, other objects and the pods of other schedulers come and go as recorded, and pods of this scheduler arrive as recorded. Where
//! and when those are placed is decided anew: binds succeed at once, and victims are gone at once. A pod that ended by itself runs as
//! long as it did; one that was deleted is deleted at the same time. Pods with volumes or devices get their recorded node. Controllers do
//! not react.
//!
//! May not know: files, clocks.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::account::StageTimes;
use super::node_use::NodeUse;
use berth_model::{Node, Pod};
use berth_scheduler::agent::{Agent, AgentConfig};
use berth_scheduler::objects::ClusterObject;
use berth_scheduler::placement::BindOutcome;
use berth_scheduler::recording::{Input, Opening, RecordingEntry};
use berth_scheduler::scheduler::{Action, Scheduler, SchedulerConfig, Settled, Share};

/// What became of the pods and nodes. Means are over the time in which there were nodes.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RunResult {
    /// Pods of this scheduler that arrived without a node.
    pub pods: usize,
    pub placed: usize,
    /// Those without a node at the end.
    pub waiting: usize,
    /// Of placed pods, in seconds.
    pub wait_median: f64,
    pub wait_p99: f64,
    pub wait_max: f64,
    /// `None`: it is not known.
    pub preempted: Option<usize>,
    /// Mean requested share of the allocatable CPU of all nodes.
    pub cpu_requested: f64,
    pub memory_requested: f64,
    /// Mean number of nodes with pods.
    pub nodes_in_use: f64,
    /// Mean share of the free CPU that is on nodes without pods: the less, the more it is scattered.
    pub free_cpu_on_empty_nodes: f64,
}

/// For how long pods ran until they ended by themselves, by uid.
#[derive(Debug, Clone, Default)]
pub struct RunTimes {
    bound: HashMap<Arc<str>, Duration>,
    ran_for: HashMap<Arc<str>, Duration>,
}

impl RunTimes {
    /// The pod ends by itself after this time on its node.
    pub fn set(&mut self, uid: Arc<str>, ran_for: Duration) {
        self.ran_for.insert(uid, ran_for);
    }

    /// Hears an entry of the recording.
    pub fn hear(&mut self, entry: &RecordingEntry) {
        let (Input::Pod(pod) | Input::MendPod(pod)) = &entry.input else { return };
        let at = Duration::from_nanos(entry.at);
        if pod.node_name.is_some() {
            let since = *self.bound.entry(pod.uid.clone()).or_insert(at);
            if pod.finished {
                self.ran_for.entry(pod.uid.clone()).or_insert(at.saturating_sub(since));
            }
        }
    }
}

/// A run under way.
pub struct Rerun {
    times: Arc<RunTimes>,
    names: Vec<Arc<str>>,
    scheduler: Scheduler,
    agents: Vec<Agent>,
    now: Duration,
    pods_listed: HashSet<Arc<str>>,
    /// Pods of this scheduler that arrived without a node, by uid.
    ours: HashMap<Arc<str>, Ours>,
    /// When pods end by themselves, and their uids.
    ends: BTreeSet<(Duration, Arc<str>)>,
    preempted: usize,
    nodes: NodeUse,
}

/// Returns the longest wait of each name: a pod may have a successor.
pub fn longest_waits(waits: impl Iterator<Item = (Arc<str>, Duration)>) -> BTreeMap<Arc<str>, Duration> {
    let mut longest = BTreeMap::new();
    for (name, wait) in waits {
        let known: &mut Duration = longest.entry(name).or_default();
        *known = wait.max(*known);
    }
    longest
}

struct Ours {
    name: Arc<str>,
    arrived: Duration,
    /// As last heard, without a node.
    pod: Pod,
    placed: Option<(Duration, Arc<str>)>,
    is_gone: bool,
}

impl Rerun {
    /// Begins with these settings.
    pub fn begin(
        config: SchedulerConfig,
        agents: &[AgentConfig],
        opening: &Opening,
        times: Arc<RunTimes>,
    ) -> Rerun {
        // Of other kinds, the recording has no list.
        let objects = opening.config.objects.clone();
        let config = SchedulerConfig { agents: agents.len(), objects, remembered_decisions: 0, ..config };
        Rerun {
            times,
            names: config.scheduler_names.clone(),
            scheduler: Scheduler::new(config, opening.estimator.clone()),
            agents: agents.iter().map(|config| Agent::new(*config)).collect(),
            now: Duration::ZERO,
            pods_listed: HashSet::new(),
            ours: HashMap::new(),
            ends: BTreeSet::new(),
            preempted: 0,
            nodes: NodeUse::default(),
        }
    }

    /// Whether the pod gets its recorded node: what is recorded of its claims is about that.
    pub fn is_tied(pod: &Pod) -> bool {
        pod.volumes.is_some() || !pod.devices.is_empty()
    }

    /// Hears an entry of the recording.
    pub fn hear(&mut self, entry: &RecordingEntry) {
        self.now = Duration::from_nanos(entry.at);
        self.nodes.sample(&self.scheduler, self.now);
        self.end_pods();
        let scheduler = &mut self.scheduler;
        match &entry.input {
            Input::Tick => scheduler.tick(self.now),
            Input::Pod(pod) | Input::MendPod(pod) => self.pod(Pod::clone(pod)),
            Input::PodGone(uid) | Input::MendPodGone(uid) => self.pod_gone(uid),
            Input::RetainPods { listed: Some(listed), .. } => self.pods_listed = listed.clone().into_owned(),
            Input::FinishPodList => self.retain_pods(),
            Input::Node(node) | Input::MendNode(node) => {
                scheduler.apply_node(Node::clone(node));
            }
            Input::NodeGone(name) | Input::MendNodeGone(name) => {
                scheduler.delete_node(name);
            }
            Input::RetainNodes { listed: Some(listed), .. } => {
                scheduler.retain_nodes(listed);
            }
            Input::Object(object) => scheduler.apply_object(ClusterObject::clone(object)),
            Input::ObjectGone(kind, name) => scheduler.delete_object(*kind, name),
            Input::RetainObjects(kind, listed) => scheduler.retain_objects(*kind, listed),
            Input::Hints(hints) => {
                scheduler.hints_changed(hints.iter().cloned());
            }
            Input::Term(Some(term)) => scheduler.lead(*term),
            Input::Term(None) => scheduler.set_leading(false),
            Input::Share(share) => scheduler.set_share(Some(Share::clone(share))),
            Input::GiveDevices(gives) => scheduler.give_devices(*gives),
            // What follows from decisions, and what others asked.
            Input::RetainPods { listed: None, .. }
            | Input::RetainNodes { listed: None, .. }
            | Input::RetainWaiting { .. }
            | Input::BindFinished(..)
            | Input::ClaimsWritten(..)
            | Input::EvictionFinished(..)
            | Input::Review { .. }
            | Input::HeldPodRead { .. }
            | Input::BeginExtenderBind { .. }
            | Input::ExtenderBindFinished(..)
            | Input::GrowInPlace { .. }
            | Input::TakeGrowthBack { .. }
            | Input::Heal { .. }
            | Input::Evaluate(_)
            | Input::Suppose { .. }
            | Input::Explain { .. }
            | Input::ClassOfResident(_)
            | Input::Advise(_)
            | Input::WithdrawAdvice
            | Input::Agent { .. } => return,
        }
        self.work();
    }

    /// Returns what became of the pods and nodes.
    pub fn finish(self) -> (RunResult, BTreeMap<Arc<str>, Duration>) {
        let waits = longest_waits(self.ours.values().filter_map(|ours| {
            let end = match &ours.placed {
                Some((at, _)) => *at,
                None if ours.is_gone => return None,
                None => self.now,
            };
            Some((ours.name.clone(), end.saturating_sub(ours.arrived)))
        }));
        let placed = self.ours.values().filter_map(|ours| {
            let (at, _) = ours.placed.as_ref()?;
            Some(at.saturating_sub(ours.arrived).as_secs_f64())
        });
        let wait = StageTimes::of(placed.clone());
        let waiting = |ours: &&Ours| ours.placed.is_none() && !ours.is_gone;
        let nodes = self.nodes.means(&self.scheduler, self.now);
        let result = RunResult {
            pods: self.ours.len(),
            placed: placed.count(),
            waiting: self.ours.values().filter(waiting).count(),
            wait_median: wait.median,
            wait_p99: wait.p99,
            wait_max: wait.longest,
            preempted: Some(self.preempted),
            cpu_requested: nodes.cpu,
            memory_requested: nodes.memory,
            nodes_in_use: nodes.in_use,
            free_cpu_on_empty_nodes: nodes.on_empty,
        };
        (result, waits)
    }

    fn pod(&mut self, pod: Pod) {
        let now = self.now;
        let is_known = self.ours.contains_key(&pod.uid);
        let is_ours = self.names.contains(&pod.scheduler_name);
        if !is_known && (pod.node_name.is_some() || !is_ours) {
            return self.scheduler.apply_pod(pod, now);
        }
        if Rerun::is_tied(&pod) {
            return;
        }
        let uid = pod.uid.clone();
        let ours = self.ours.entry(uid.clone()).or_insert_with(|| Ours {
            name: format!("{}/{}", pod.namespace, pod.name).into(),
            arrived: now,
            pod: pod.clone(),
            placed: None,
            is_gone: false,
        });
        if ours.is_gone || pod.finished {
            return;
        }
        let node = ours.placed.as_ref().map(|(_, node)| node.clone());
        ours.pod = Pod { node_name: None, nominated_node: None, ..pod };
        let heard = Pod { node_name: node, ..ours.pod.clone() };
        self.scheduler.apply_pod(heard, now);
    }

    /// Ends a pod that ended by itself after as much time on its node as recorded.
    fn end_later(&mut self, uid: &Arc<str>) {
        if let Some(ran_for) = self.times.ran_for.get(uid) {
            self.ends.insert((self.now + *ran_for, uid.clone()));
        }
    }

    fn end_pods(&mut self) {
        while self.ends.first().is_some_and(|(at, _)| *at <= self.now) {
            let Some((_, uid)) = self.ends.pop_first() else { return };
            self.remove(&uid);
        }
    }

    fn pod_gone(&mut self, uid: &Arc<str>) {
        // One that ends by itself is deleted after that.
        if !self.ours.contains_key(uid) || !self.times.ran_for.contains_key(uid) {
            self.remove(uid);
        }
    }

    fn remove(&mut self, uid: &Arc<str>) {
        if let Some(ours) = self.ours.get_mut(uid) {
            ours.is_gone = true;
        }
        self.scheduler.delete_pod(uid);
    }

    fn retain_pods(&mut self) {
        let mut known = std::mem::take(&mut self.pods_listed);
        // The end of the others is known.
        known.extend(self.ours.keys().filter(|uid| self.times.ran_for.contains_key(*uid)).cloned());
        for (uid, ours) in &mut self.ours {
            ours.is_gone |= !known.contains(uid);
        }
        self.scheduler.retain_pods(&known);
    }

    fn work(&mut self) {
        self.act();
        loop {
            let before = self.scheduler.stats().dispatched.iter().sum::<u64>();
            for at in 0..self.agents.len() {
                self.let_work(at);
            }
            if self.scheduler.stats().dispatched.iter().sum::<u64>() == before {
                return;
            }
        }
    }

    fn let_work(&mut self, at: usize) {
        while let Some(task) = self.scheduler.next_task(at, self.now) {
            let agent = &mut self.agents[at];
            loop {
                agent.catch_up(self.scheduler.inventory());
                let answer = task.carry_out(agent, self.now, |_| {});
                let changes = agent.cache_changes();
                self.scheduler.learn(at, &task, &[], &changes);
                let seen = agent.revision();
                if self.scheduler.settle(at, agent, &task, answer, seen, self.now) == Settled::Done {
                    break;
                }
            }
            self.act();
        }
    }

    fn act(&mut self) {
        loop {
            let actions = self.scheduler.take_actions();
            if actions.is_empty() {
                return;
            }
            for action in actions {
                match action {
                    Action::Bind(binding) => {
                        self.scheduler.bind_finished(&binding, BindOutcome::Bound, self.now);
                        if let Some(ours) = self.ours.get_mut(&binding.uid) {
                            ours.placed = Some((self.now, binding.node.clone()));
                            let bound = Pod { node_name: Some(binding.node), ..ours.pod.clone() };
                            self.scheduler.apply_pod(bound, self.now);
                            self.end_later(&binding.uid);
                        }
                    }
                    Action::Evict(eviction) => {
                        self.preempted += 1;
                        self.scheduler.eviction_finished(&eviction, Ok(()), self.now);
                        self.scheduler.suppose_evicted(&eviction.victim.uid);
                        self.remove(&eviction.victim.uid);
                    }
                    Action::Claim(_)
                    | Action::ReleaseClaim(_)
                    | Action::Nominate { .. }
                    | Action::Report(_)
                    | Action::TellAllocation(_)
                    | Action::TellPolicy(_)
                    | Action::TellQuota(_)
                    | Action::WakeAgent(_)
                    | Action::Observe(_) => {}
                }
            }
        }
    }
}
