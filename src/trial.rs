//! The scheduler at work on a copy of a cluster, without anything that acts on its decisions outside: binds succeed at once, and victims
//! are gone at once. For questions about pods that are not there yet, or would move.
//!
//! May not know: kube's client, tokio, clocks.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::explain::{Which, World};
use berth_model::{Pod, PodReport};
use berth_scheduler::placement::BindOutcome;
use berth_scheduler::scheduler::{Action, Eviction, Settled};

/// Time between two ticks.
const TICK: Duration = Duration::from_millis(500);
/// Ticks without any decision after which none is expected any more: longer than a backoff.
const QUIET_TICKS: usize = 25;
/// Maximum number of ticks of one run.
const TICKS_MAX: usize = 400;

/// A scheduler that leads on a copy of a cluster.
pub(crate) struct Trial<'a> {
    pub world: &'a mut World,
    pub now: Duration,
    /// By uid: the pods that may be placed.
    pub pods: HashMap<Arc<str>, Pod>,
    /// By uid.
    pub nodes: HashMap<Arc<str>, Arc<str>>,
    /// By uid: the last message of its condition.
    pub told: HashMap<Arc<str>, Arc<str>>,
    /// By uid of the preemptor: its victims.
    pub victims: HashMap<Arc<str>, Vec<String>>,
    /// Carry out evictions.
    pub evicts: bool,
    decisions: usize,
}

impl<'a> Trial<'a> {
    /// Begins with the pods that wait already, which are placed first.
    pub fn begin(world: &'a mut World) -> Self {
        let waiting = world.select(&Which::Waiting);
        let pods = waiting.into_iter().map(|pod| (pod.uid.clone(), pod)).collect();
        let mut trial = Trial {
            world,
            now: Duration::ZERO,
            pods,
            nodes: HashMap::new(),
            told: HashMap::new(),
            victims: HashMap::new(),
            evicts: true,
            decisions: 0,
        };
        trial.world.lead();
        trial.run();
        trial
    }

    /// Adds a pod; one without a node is placed by the next run.
    pub fn add(&mut self, pod: Pod) {
        if let Some(node) = &pod.node_name {
            self.nodes.insert(pod.uid.clone(), node.clone());
        }
        let now = self.now;
        self.world.parts().0.apply_pod(pod.clone(), now);
        self.pods.insert(pod.uid.clone(), pod);
    }

    /// Takes a pod away.
    pub fn remove(&mut self, uid: &Arc<str>) {
        self.world.parts().0.delete_pod(uid);
        self.nodes.remove(uid);
        self.pods.remove(uid);
        self.told.remove(uid);
    }

    /// Lets the scheduler work until it decides nothing any more.
    pub fn run(&mut self) {
        let mut quiet = 0;
        for _ in 0..TICKS_MAX {
            let before = self.decisions;
            self.work();
            if self.decisions == before && self.is_settled() {
                quiet += 1;
            } else {
                quiet = 0;
            }
            if quiet == QUIET_TICKS || quiet > 0 && self.all_placed() {
                return;
            }
            self.tick();
        }
    }

    /// Lets time pass.
    pub fn tick(&mut self) {
        self.now += TICK;
        let now = self.now;
        self.world.parts().0.tick(now);
        self.act();
    }

    fn all_placed(&self) -> bool {
        self.pods.keys().all(|uid| self.nodes.contains_key(uid))
    }

    /// Returns whether no pod is about to be placed.
    fn is_settled(&mut self) -> bool {
        let (scheduler, _) = self.world.parts();
        let is_busy = |state: &&str| matches!(*state, "queued" | "placing" | "binding" | "yielding");
        !scheduler.census().keys().any(is_busy)
    }

    /// Lets the agent work until there is nothing to do.
    pub fn work(&mut self) {
        self.act();
        loop {
            let now = self.now;
            let Some(task) = self.world.parts().0.next_task(0, now) else { break };
            loop {
                let (scheduler, agent) = self.world.parts();
                agent.catch_up(scheduler.inventory());
                let answer = task.carry_out(agent, now, |_| {});
                let seen = agent.revision();
                let settled = scheduler.settle(0, agent, &task, answer, seen, now);
                self.act();
                if settled == Settled::Done {
                    break;
                }
            }
        }
        self.act();
    }

    /// Carries out what the scheduler decided.
    pub fn act(&mut self) {
        loop {
            let actions = self.world.parts().0.take_actions();
            if actions.is_empty() {
                return;
            }
            for action in actions {
                match action {
                    Action::Bind(binding) => {
                        self.place(&binding.uid, &binding.node);
                        let now = self.now;
                        let (scheduler, _) = self.world.parts();
                        scheduler.bind_finished(&binding, BindOutcome::Bound, now);
                        if let Some(pod) = self.pods.get(&binding.uid) {
                            let bound = Pod { node_name: Some(binding.node.clone()), ..pod.clone() };
                            self.world.parts().0.apply_pod(bound, now);
                        }
                    }
                    // Its volumes and devices are chosen; who would provide them does not act here.
                    Action::Claim(order) => self.place(&order.uid, &order.node),
                    Action::Evict(eviction) => self.evict(&eviction),
                    Action::Report(PodReport::Failed { pod, message, .. }) => {
                        self.told.insert(pod.uid, message);
                    }
                    Action::Report(_)
                    | Action::ReleaseClaim(_)
                    | Action::Nominate { .. }
                    | Action::TellAllocation(_)
                    | Action::TellPolicy(_)
                    | Action::TellQuota(_)
                    | Action::WakeAgent(_)
                    | Action::Observe(_) => {}
                }
            }
        }
    }

    fn place(&mut self, uid: &Arc<str>, node: &Arc<str>) {
        self.decisions += 1;
        self.nodes.insert(uid.clone(), node.clone());
    }

    fn evict(&mut self, eviction: &Eviction) {
        let (now, evicts) = (self.now, self.evicts);
        let ended = if evicts { Ok(()) } else { Err("nobody is preempted in this trial".to_owned()) };
        let (scheduler, _) = self.world.parts();
        scheduler.eviction_finished(eviction, ended, now);
        if evicts {
            scheduler.suppose_evicted(&eviction.victim.uid);
            self.decisions += 1;
            let victim = format!("{}/{}", eviction.victim.namespace, eviction.victim.name);
            self.victims.entry(eviction.preemptor.uid.clone()).or_default().push(victim);
        }
    }

    /// Returns why a pod has no node.
    pub fn why(&mut self, uid: &Arc<str>) -> Arc<str> {
        if let Some(why) = self.told.get(uid) {
            return why.clone();
        }
        let Some(pod) = self.pods.get(uid).cloned() else { return "it was not tried".into() };
        if !pod.gates.is_empty() {
            return format!("it is not scheduled before its gates are gone: {}", pod.gates.join(", ")).into();
        }
        let gang = self.world.verdict(&pod).gang;
        gang.map_or_else(|| "no node was found for it".into(), |gang| gang.to_string().into())
    }
}
