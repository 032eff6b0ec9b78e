//! Preemption in the simulation: evictions take time or are rejected, and only allowed victims are evicted.

use std::collections::BTreeMap;

use berth_model::{Pod, PreemptionPolicy};
use berth_scheduler::agent::{Agent, AgentConfig, CacheLimits};
use berth_scheduler::scheduler::{Action, Eviction, Scheduler, Settled};

use super::gangs::{gang_of, minimum};
use super::process::{Shadow, Who};
use super::quotas::quota_of;
use super::sim::{Event, MS, S, Sim, Step};

/// Returns a pod's message without the result of preemption.
pub fn without_preemption(text: &str) -> &str {
    let starts = [" no new claims to deallocate, preemption:", " still not schedulable, preemption:"];
    starts.iter().find_map(|start| text.find(start)).map_or(text, |at| &text[..at])
}

impl Shadow {
    /// Returns the priority at which this pod preempts: the lowest of its gang's members that wait, if it has a gang.
    fn preempts_at(&self, uid: &str) -> i32 {
        let Some(pod) = self.pods.get(uid) else {
            return i32::MAX;
        };
        let gang = gang_of(pod);
        let together = |other: &&Pod| gang.is_some() && gang_of(other) == gang && other.node_name.is_none();
        let members = self.pods.values().filter(together);
        members.map(|other| other.priority).fold(pod.priority, i32::min)
    }
}

impl Sim {
    /// The request to evict a pod arrives.
    pub fn evict(&mut self, who: Who, eviction: Eviction) -> Step {
        let refused = self.faults && self.fates.percent(5);
        if !self.cluster.up && !refused {
            self.after(300 * MS, Event::Evict(who, eviction.into()));
            return Ok(());
        }
        let victim = &eviction.victim;
        self.note(|| {
            format!("{} is to leave for {}, refused: {refused}", victim.uid, eviction.preemptor.uid)
        });
        self.tally.count(if refused { "eviction refused" } else { "evicted" });
        let there = self.cluster.store.get(&victim.namespace, &victim.name);
        if let Some(pod) = there.filter(|pod| pod.uid == victim.uid && !pod.deleting && !refused) {
            let grace = self.fates.up_to(3 * S);
            self.terminate(&pod, grace);
        }
        let ended = if refused { Err("it is refused".to_owned()) } else { Ok(()) };
        let now = self.now;
        if let Some(process) = self.process(who) {
            process.scheduler.eviction_finished(&eviction, ended, now);
            self.carry_out(who)?;
        }
        Ok(())
    }

    /// A process wants to evict this pod: checks that its priority is lower than the preemptor's, or that its
    /// quota has borrowed.
    pub fn judge_eviction(&mut self, who: Who, eviction: &Eviction) -> Step {
        let process = &self.processes[who.0];
        let pods = &process.shadow.pods;
        let (victim, preemptor) = (pods.get(&eviction.victim.uid), pods.get(&eviction.preemptor.uid));
        let (Some(victim), Some(preemptor)) = (victim, preemptor) else {
            return Err(format!("{eviction:?}: one of them is not known"));
        };
        let may = process.scheduler.leading()
            && preemptor.preemption_policy == PreemptionPolicy::PreemptLowerPriority
            && (victim.priority < preemptor.priority || process.shadow.may_reclaim(preemptor, victim))
            && victim.node_name.is_some();
        if !may {
            return Err(format!("{} must not evict {}", preemptor.uid, victim.uid));
        }
        let uses_devices = |pod: &Pod| !pod.devices.is_empty() || pod.extended.is_some();
        let what = [
            gang_of(preemptor).map(|_| "evicted for a gang"),
            gang_of(victim).map(|_| "gang evicted"),
            (uses_devices(preemptor) && uses_devices(victim)).then_some("evicted with its devices"),
        ];
        what.into_iter().flatten().for_each(|what| self.tally.count(what));
        Ok(())
    }

    /// These pods are evicted together: a gang at its minimum stays at it, or loses all members that are less important than
    /// the preemptor.
    pub fn judge_victims(&self, who: Who, evictions: &[Eviction]) -> Step {
        let process = &self.processes[who.0];
        let pods = &process.shadow.pods;
        // By gang: the lowest priority of those that evict members of it.
        let mut concerned: BTreeMap<u64, i32> = BTreeMap::new();
        for eviction in evictions {
            if let Some(gang) = pods.get(&eviction.victim.uid).and_then(gang_of) {
                let priority = process.shadow.preempts_at(&eviction.preemptor.uid);
                let lowest = concerned.entry(gang).or_insert(priority);
                *lowest = priority.min(*lowest);
            }
        }
        let mut gangs: BTreeMap<u64, (usize, usize, bool)> = BTreeMap::new();
        for pod in pods.values().filter(|pod| !pod.deleting) {
            // One that another client may bind is no member with a node yet.
            let charged =
                process.scheduler.ledger().charge_of(&pod.uid).is_some() && !process.shadow.is_held(&pod.uid);
            if let Some(gang) = gang_of(pod).filter(|_| charged)
                && let Some(priority) = concerned.get(&gang)
            {
                let (before, after, unimportant) = gangs.entry(gang).or_default();
                let stays = !process.scheduler.is_evicting(&pod.uid);
                *before += 1;
                *after += usize::from(stays);
                *unimportant |= stays && pod.priority < *priority;
            }
        }
        for (gang, (before, after, unimportant)) in gangs {
            let minimum = minimum(gang) as usize;
            if before >= minimum && unimportant && after < minimum {
                return Err(format!("{after} of {before} members of g{gang} are left, it needs {minimum}"));
            }
        }
        Ok(())
    }

    /// At rest: no room is reserved, and no waiting pod could preempt.
    pub fn judge_preemption(&self, cold: &mut Scheduler) -> Step {
        for (slot, process) in self.running() {
            let scheduler = &process.scheduler;
            if let Some((uid, node)) = scheduler.nominated_pods().next() {
                return Err(format!("p{slot} keeps room on {node} for {uid}"));
            }
        }
        // A cold start holds no pod back.
        let waits = |state| self.placing().iter().any(|(_, it)| it.scheduler.census().contains_key(state));
        if waits("held back") {
            return Ok(());
        }
        // A cold start queues the pods of a quota in another order, and may admit others first.
        let ordered = waits("over quota");
        let alone = |eviction: &Eviction| {
            let preemptor = &eviction.preemptor;
            let pod = self.cluster.store.get(&preemptor.namespace, &preemptor.name);
            let has_quota = quota_of(&self.cluster.objects, &preemptor.namespace).is_some();
            pod.is_some_and(|pod| gang_of(&pod).is_none()) && !(ordered && has_quota)
        };
        let evictions = self.possible_evictions(cold)?;
        match evictions.iter().find(|eviction| alone(eviction)) {
            Some(eviction) => {
                let (preemptor, victim) = (&eviction.preemptor.uid, &eviction.victim.uid);
                Err(format!("{preemptor} waits and could have the place of {victim}"))
            }
            None => Ok(()),
        }
    }

    /// Returns what a process would evict that starts now, until it comes to rest.
    pub fn possible_evictions(&self, cold: &mut Scheduler) -> Result<Vec<Eviction>, String> {
        let config = AgentConfig { cache: CacheLimits::unlimited(), seed: 7 };
        let mut agent = Agent::new(config);
        let now = self.now + 60 * S;
        cold.tick(now);
        let mut steps = 0;
        let agents = self.settings.agents;
        while let Some((at, task)) = (0..agents).find_map(|at| Some((at, cold.next_task(at, now)?))) {
            steps += 1;
            if steps > 10_000 {
                return Err("a cold start never comes to rest".into());
            }
            loop {
                agent.catch_up(cold.inventory());
                let answer = task.carry_out(&mut agent, now, |_| {});
                let seen = agent.revision();
                if cold.settle(at, &mut agent, &task, answer, seen, now) == Settled::Done {
                    break;
                }
            }
        }
        let evictions = cold.take_actions().into_iter().filter_map(|action| match action {
            Action::Evict(eviction) => Some(*eviction),
            _ => None,
        });
        Ok(evictions.collect())
    }
}
