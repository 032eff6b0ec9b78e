//! Checks at every commit, at every effect, and at rest.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use berth_model::{Amounts, Pod, PodReport};
use berth_scheduler::invariants::{self, Violation};
use berth_scheduler::placement::{BindOutcome, Binding};
use berth_scheduler::scheduler::{Action, Scheduler};

use super::gangs::{self, gang_of};
use super::objects;
use super::process::{Doing, Who, Worker};
use super::sim::{Sim, Step};

pub fn said(at: &str) -> impl Fn(Violation) -> String {
    move |violation| format!("{at}: {violation}")
}

impl Sim {
    /// A process has decided to bind a pod: checks the decision against the events it received and its own actions.
    pub fn judge_commit(&self, who: Who, binding: &Binding) -> Step {
        let process = &self.processes[who.0];
        if !process.scheduler.leading() {
            return Err(format!("p{} binds {} but does not lead", who.0, binding.uid));
        }
        let shadow = &process.shadow;
        let pod = (shadow.pods.get(&binding.uid)).ok_or_else(|| format!("{} is not known", binding.uid))?;
        invariants::may_be_bound(pod).map_err(said("commit"))?;
        if let Some(at) = &pod.node_name {
            return Err(format!("{} was seen on {at} before", pod.uid));
        }
        if shadow.is_held(&binding.uid) {
            return Err(format!(
                "I1 violated: {} is bound while a bind of another client is allowed",
                pod.uid
            ));
        }
        if shadow.assumed.contains_key(&binding.uid) {
            return Err(format!("I1 violated: {} is bound while a bind of it is not settled", pod.uid));
        }
        let spec = pod.spec.as_ref().map_err(|error| format!("{} is bound though {error}", pod.uid))?;
        let gone = || format!("{} is bound to {}, which is gone", pod.uid, binding.node);
        let node = shadow.nodes.get(&binding.node).ok_or_else(gone)?;
        let others = shadow.usage_on(&node.name, &pod.uid);
        let of_node = shadow.spec_for_node(spec, node);
        invariants::admits(&of_node, node, others.iter()).map_err(said(&pod.uid))?;
        shadow.judge_quota(pod)?;
        shadow.judge_peers(pod, node)?;
        if self.strict {
            // The process's knowledge equals the cluster's state.
            let node = self.cluster.nodes.get(&binding.node).ok_or_else(gone)?;
            let mut others = self.cluster.usage_on(&node.name, &[pod.uid.clone()].into());
            let assumed = shadow.assumed.iter().filter(|(_, (at, _))| *at == node.name);
            others.extend(assumed.map(|(_, (_, usage))| usage.clone()));
            invariants::admits(&of_node, node, others.iter()).map_err(said(&pod.uid))?;
        }
        Ok(())
    }

    /// With instant watches and only schedulers that check capacity, no node is ever overcommitted; with a guard, no node is by
    /// what it allowed.
    pub fn judge_overcommit(&self, name: &Arc<str>) -> Step {
        let Some(node) = self.cluster.nodes.get(name) else {
            return Ok(());
        };
        if !self.strict && self.settings.guard.is_none() || self.cluster.excused.contains(name) {
            return Ok(());
        }
        let mut sum = Amounts::default();
        let pods = self.cluster.usage_on(name, &self.guards.unguarded);
        pods.iter().for_each(|usage| sum.add(&usage.requests));
        let all = node.allocatable;
        if sum.cpu_milli > all.cpu_milli || sum.memory > all.memory || sum.pods > all.pods {
            return Err(format!("I2 violated: {name} holds {sum:?} of {:?}", node.allocatable));
        }
        Ok(())
    }

    /// A bind has ended: an unknown outcome never frees an assumption.
    pub fn judge_outcome(&mut self, id: u64, binding: &Binding, outcome: &BindOutcome) -> Step {
        self.tally.count(match outcome {
            BindOutcome::Bound => "bound",
            BindOutcome::BoundElsewhere(_) => "bound elsewhere",
            BindOutcome::Vanished => "vanished",
            BindOutcome::Refused(_) => "refused",
        });
        let freed = matches!(outcome, BindOutcome::Vanished | BindOutcome::Refused(_));
        if freed {
            self.given_up.insert(id);
        }
        let there = (self.cluster.store.get(&binding.namespace, &binding.name)).is_some_and(|pod| {
            // One that has finished uses no room.
            pod.uid == binding.uid && pod.node_name.as_ref() == Some(&binding.node) && !pod.finished
        });
        if freed && self.effected.contains(&id) && there {
            return Err(format!("I1 violated: {} is freed, but is bound to {}", binding.uid, binding.node));
        }
        Ok(())
    }

    /// Everything is at rest. `told`: every pod also had the time to get its current condition.
    pub fn judge(&mut self, told: bool) -> Step {
        let bound = self.cluster.store.bound();
        invariants::bound_once(bound.iter().map(|it| (&it.uid, &it.node))).map_err(said("store"))?;
        let pods: Vec<Pod> = self.cluster.store.list();
        let (mut cold, refusals) = self.cold_start(&pods);
        self.judge_members()?;
        self.judge_claims_at_rest(&pods)?;
        for (slot, process) in self.running() {
            let name = format!("p{slot}");
            invariants::same_accounting(process.scheduler.inventory(), cold.inventory())
                .map_err(said(&name))?;
            if let Some(wrong) = process.scheduler.ledger().consistency_check().first() {
                return Err(format!("{name}: {wrong:?}"));
            }
            if process.scheduler.ledger().counts() != cold.ledger().counts() || process.scheduler.binds() != 0
            {
                return Err(format!(
                    "I7 violated: {name} has {:?} charges and {} binds, a cold start {:?}",
                    process.scheduler.ledger().counts(),
                    process.scheduler.binds(),
                    cold.ledger().counts()
                ));
            }
        }
        for (_, process) in self.running() {
            self.judge_known_budgets(process.scheduler.budgets(), &pods)?;
        }
        self.leader.ok_or("no leader")?;
        let is_awake = |worker: &Worker| !matches!(worker.doing, Doing::Sleeping);
        if self.placing().iter().any(|(_, process)| process.workers.iter().any(is_awake)) {
            return Err("an agent never comes to rest".into());
        }
        // Nothing is stuck: every waiting pod waits for a change.
        let mut expected = HashMap::new();
        // By the process that places them.
        let mut over_quota: BTreeMap<usize, Vec<&Pod>> = BTreeMap::new();
        let mut held_back = Vec::new();
        let mut waiting: BTreeMap<&str, usize> = BTreeMap::new();
        for pod in pods
            .iter()
            .filter(|pod| pod.node_name.is_none() && !pod.finished && &*pod.scheduler_name == "berth")
        {
            if !pod.gates.is_empty() {
                *waiting.entry("gated").or_default() += 1;
                continue;
            }
            if let Some(refusal) = refusals.get(&pod.uid) {
                *waiting.entry("refused").or_default() += 1;
                expected.insert(pod.uid.clone(), refusal.to_string());
                continue;
            }
            let (owner, state) = self.owner_of(pod, &mut cold)?;
            if gang_of(pod).is_some() {
                continue;
            }
            if state == "over quota" {
                over_quota.entry(owner).or_default().push(pod);
                continue;
            }
            let class = cold.class_of(pod);
            let (fits, why) = invariants::evaluate(&class, pod.preemption_policy, cold.inventory());
            if state == "held back" {
                *waiting.entry("held back").or_default() += 1;
                self.tally.count("held back");
                expected.insert(pod.uid.clone(), self.held_back_message(pod));
                if fits {
                    held_back.push((owner, pod));
                }
                continue;
            }
            if fits {
                return Err(format!("{} fits and is not bound", pod.uid));
            }
            *waiting.entry("parked").or_default() += 1;
            expected.insert(pod.uid.clone(), why);
        }
        // Only their quota keeps them, or those in its queue.
        for (owner, pod) in held_back {
            let mut queued = over_quota.get(&owner).into_iter().flatten();
            let waits =
                queued.any(|other| other.namespace == pod.namespace) || &*pod.namespace == gangs::NAMESPACE;
            if !waits && !self.lacks_quota(pod, &mut cold) {
                return Err(format!("{} fits and is held back", pod.uid));
            }
        }
        for queued in over_quota.values() {
            *waiting.entry("over quota").or_default() += queued.len();
            self.tally.add_to("over quota", queued.len() as u64);
            let messages = self.judge_over_quota(queued, &mut cold)?;
            expected.extend(messages.into_iter().map(|(uid, message)| (uid, message.to_string())));
        }
        let members = self.judge_waiting_gangs(&pods, &mut cold)?;
        if members > 0 {
            waiting.insert("grouped", members);
            self.tally.count("gang waits");
        }
        self.judge_census(&waiting)?;
        self.judge_preemption(&mut cold)?;
        if !told {
            return Ok(());
        }
        self.judge_reports(&pods, expected)?;
        for process in &self.processes {
            let stats = process.scheduler.stats();
            for (what, n) in [
                ("conflict", stats.conflicts),
                ("yielded", stats.yields),
                ("parked", stats.unschedulable),
                ("woken", stats.wakes),
                ("repeated", stats.repeated),
                ("list hit", stats.list_hits),
                ("list miss", stats.list_misses),
            ] {
                self.tally.add_to(what, n);
            }
        }
        Ok(())
    }

    /// Each pod that waits, by state, waits at one of the processes that place pods; those that nobody places are known to all.
    fn judge_census(&self, waiting: &BTreeMap<&str, usize>) -> Step {
        let total: usize = waiting.values().sum();
        let mut sums = BTreeMap::new();
        for (slot, process) in self.placing() {
            let census = process.scheduler.census();
            if census.values().sum::<usize>() != total {
                return Err(format!("p{slot}: {census:?} wait, {waiting:?} should"));
            }
            for (state, n) in census.into_iter().filter(|(state, _)| *state != "elsewhere") {
                match state {
                    "gated" | "refused" => drop(sums.insert(state, n)),
                    _ => *sums.entry(state).or_default() += n,
                }
            }
        }
        if sums != *waiting {
            return Err(format!("{sums:?} wait, {waiting:?} should"));
        }
        Ok(())
    }

    fn held_back_message(&self, pod: &Pod) -> String {
        format!(
            "namespace {} has waiting pods of {} different specs with priority {}, which is as many as berth schedules at once: \
             this pod and others of its namespace are tried in turn; let more pods have the same requests, images and \
             constraints, or delete pods that fit nowhere",
            pod.namespace, self.settings.max_waiting_classes, pod.priority
        )
    }

    /// Returns a scheduler that sees only the current state, keeps no room for aged pods and holds no pod back, and its first messages to pods.
    pub fn cold_start(&self, pods: &[Pod]) -> (Scheduler, HashMap<Arc<str>, Arc<str>>) {
        let mut cold = self.settings.scheduler(Duration::ZERO, usize::MAX);
        cold.set_leading(true);
        let objects: Vec<_> = self.cluster.objects.values().cloned().collect();
        objects::list(&objects, &mut cold);
        for node in self.cluster.nodes.values() {
            cold.apply_node(node.clone());
        }
        cold.retain_nodes(&self.cluster.nodes.keys().cloned().collect());
        for pod in pods {
            let scheduled = None;
            cold.apply_pod(Pod { scheduled, ..pod.clone() }, self.now);
        }
        cold.retain_pods(&pods.iter().map(|pod| pod.uid.clone()).collect::<HashSet<_>>());
        let refusals = cold.take_actions().into_iter().filter_map(|action| match action {
            Action::Report(PodReport::Failed { pod, reason: "SchedulerError", message, .. }) => {
                Some((pod.uid, message))
            }
            _ => None,
        });
        let refusals = refusals.collect();
        (cold, refusals)
    }
}
