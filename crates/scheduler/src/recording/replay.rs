//! Runs a scheduler and its agents again, from a recording.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::recorder::decision;
use super::{AgentStep, Did, FORMAT, Input, Opening, RecordingEntry};
use crate::agent::{Agent, AgentConfig, CacheChange, CacheLimits};
use crate::engine::{AgentWork, Answer, Next, Turn, classified, supposed};
use crate::scheduler::{Growth, Scheduler, Task};

/// A scheduler that hears what a recording holds.
pub struct Replay {
    scheduler: Scheduler,
    agents: Vec<ReplayedAgent>,
    /// In place of those who evaluate nodes for others.
    judge: Agent,
    listed_pods: HashSet<Arc<str>>,
    listed_nodes: HashSet<Arc<str>>,
    /// By number.
    growths: HashMap<u64, Growth>,
    entries: u64,
    decisions: u64,
}

/// Where the scheduler decided otherwise than in the recording.
#[derive(Debug, PartialEq, Eq)]
pub struct Difference {
    /// Number of the entry, from 1.
    pub entry: u64,
    /// Time since the start of the recording.
    pub at: Duration,
    pub recorded: Vec<String>,
    pub replayed: Vec<String>,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    #[error("the recording has format {0}, this version reads {FORMAT}: use the version that made it")]
    Format(u32),
    #[error(
        "entry {entry}: {problem}: the recording is damaged, or this version works otherwise than the one that made it"
    )]
    Impossible { entry: u64, problem: String },
}

struct ReplayedAgent {
    work: AgentWork,
    /// Its task.
    task: Option<Task>,
    /// What it found, and has not settled.
    answer: Option<Answer>,
    /// What changed in its caches while it was idle.
    changes: Vec<CacheChange>,
}

impl Replay {
    /// Begins a replay.
    ///
    /// # Errors
    /// The recording is of another format.
    pub fn begin(opening: Opening) -> Result<Replay, ReplayError> {
        let Opening { format, config, agents, estimator, .. } = opening;
        if format != FORMAT {
            return Err(ReplayError::Format(format));
        }
        let replayed = |(index, config)| ReplayedAgent {
            work: AgentWork::new(index, Agent::new(config)),
            task: None,
            answer: None,
            changes: Vec::new(),
        };
        Ok(Replay {
            scheduler: Scheduler::new(config, estimator),
            agents: agents.into_iter().enumerate().map(replayed).collect(),
            judge: Agent::new(AgentConfig { cache: CacheLimits::unlimited(), seed: 0 }),
            listed_pods: HashSet::new(),
            listed_nodes: HashSet::new(),
            growths: HashMap::new(),
            entries: 0,
            decisions: 0,
        })
    }

    /// Returns the scheduler as of the last entry.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// Returns the number of entries so far.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// Returns the number of decisions so far.
    pub fn decisions(&self) -> u64 {
        self.decisions
    }

    /// Hears one entry. Returns where the scheduler decides otherwise; after that the replay says nothing any more about the recording.
    ///
    /// # Errors
    /// The entry cannot follow those before.
    pub fn hear(&mut self, entry: RecordingEntry) -> Result<Option<Difference>, ReplayError> {
        let RecordingEntry { at, input, decisions: recorded } = entry;
        self.entries += 1;
        let now = Duration::from_nanos(at);
        let entry = self.entries;
        self.carry_out(input, now).map_err(|problem| ReplayError::Impossible { entry, problem })?;
        let replayed: Vec<String> = self.scheduler.take_actions().iter().filter_map(decision).collect();
        self.decisions += recorded.len() as u64;
        Ok((recorded != replayed).then_some(Difference { entry, at: now, recorded, replayed }))
    }

    fn carry_out(&mut self, input: Input, now: Duration) -> Result<(), String> {
        let scheduler = &mut self.scheduler;
        match input {
            Input::Tick => scheduler.tick(now),
            Input::Pod(pod) => scheduler.apply_pod(pod.into_owned(), now),
            Input::PodGone(uid) => scheduler.delete_pod(&uid),
            Input::RetainPods { listed, from } => {
                if let Some(listed) = listed {
                    self.listed_pods = listed.into_owned();
                }
                scheduler.retain_pods_from(&self.listed_pods, from);
            }
            Input::RetainWaiting { from } => {
                scheduler.retain_waiting_from(&self.listed_pods, from);
            }
            Input::FinishPodList => scheduler.finish_pod_list(&self.listed_pods),
            Input::Node(node) => {
                scheduler.apply_node(node.into_owned());
            }
            Input::NodeGone(name) => {
                scheduler.delete_node(&name);
            }
            Input::RetainNodes { listed, from } => {
                if let Some(listed) = listed {
                    self.listed_nodes = listed.into_owned();
                }
                scheduler.retain_nodes_from(&self.listed_nodes, from);
            }
            Input::Object(object) => scheduler.apply_object(object.into_owned()),
            Input::ObjectGone(kind, name) => scheduler.delete_object(kind, &name),
            Input::RetainObjects(kind, listed) => scheduler.retain_objects(kind, &listed),
            Input::Hints(hints) => {
                scheduler.hints_changed(hints.into_owned());
            }
            Input::BindFinished(binding, outcome) => {
                scheduler.bind_finished(&binding, outcome.into_owned(), now);
            }
            Input::ClaimsWritten(order, written) => {
                scheduler.claims_written(&order, written.into_owned(), now)
            }
            Input::EvictionFinished(eviction, ended) => {
                scheduler.eviction_finished(&eviction, ended.into_owned(), now);
            }
            Input::Review { binding, pod, hold, requester } => {
                scheduler.review(&binding, pod.as_deref(), hold.map(|hold| now + hold), requester);
            }
            Input::HeldPodRead { binding, truth, asked } => {
                scheduler.held_pod_read(&binding, &truth, asked, now);
            }
            Input::BeginExtenderBind { wanted, pod } => {
                scheduler.begin_extender_bind(&wanted, pod.as_deref());
            }
            Input::ExtenderBindFinished(binding, outcome) => {
                scheduler.extender_bind_finished(&binding, &outcome);
            }
            Input::Term(Some(term)) => scheduler.lead(term),
            Input::Term(None) => scheduler.set_leading(false),
            Input::Share(share) => scheduler.set_share(Some(share.into_owned())),
            Input::GiveDevices(gives) => scheduler.give_devices(gives),
            Input::GrowInPlace { uid, unsettled, more } => {
                let unsettled = unsettled.and_then(|number| self.growths.remove(&number));
                let grown = match unsettled {
                    Some(unsettled) => scheduler.grow_instead(&uid, &unsettled, more),
                    None => scheduler.grow_in_place(&uid, more),
                };
                self.growths.extend(grown.map(|growth| (growth.number, growth)));
            }
            Input::TakeGrowthBack { uid, growth } => {
                if let Some(growth) = self.growths.remove(&growth) {
                    scheduler.take_growth_back(&uid, &growth);
                }
            }
            Input::Heal { from } => {
                scheduler.heal_from(from);
            }
            Input::MendPod(pod) => scheduler.mend_pod(pod.into_owned(), now),
            Input::MendPodGone(uid) => scheduler.mend_pod_gone(&uid),
            Input::MendNode(node) => scheduler.mend_node(node.into_owned()),
            Input::MendNodeGone(name) => scheduler.mend_node_gone(&name),
            Input::Evaluate(pod) => {
                let _ = classified(scheduler, &pod);
            }
            Input::Suppose { pod, beside } => {
                let _ = supposed(scheduler, &pod, &beside);
            }
            Input::Explain { namespace, name } => {
                if let Some((pod, _)) = scheduler.find_waiting(&namespace, &name) {
                    scheduler.inquire(&mut self.judge, &pod);
                }
            }
            Input::ClassOfResident(uid) => {
                scheduler.class_of_resident(&uid);
            }
            Input::Advise(help) if scheduler.leading() => scheduler.advise(help.into_iter().collect()),
            Input::Advise(_) => {}
            Input::WithdrawAdvice => scheduler.advise(BTreeMap::new()),
            Input::Agent { agent, did, step } => {
                let found = self.agents.get_mut(agent);
                let agent = found.ok_or_else(|| format!("there is no agent {agent}"))?;
                did.into_iter().try_for_each(|did| agent.does(did))?;
                agent.step(scheduler, step, now)?;
            }
        }
        Ok(())
    }
}

impl ReplayedAgent {
    fn does(&mut self, did: Did) -> Result<(), String> {
        match did {
            Did::Answered { at, laps } => {
                let task = self.task.as_ref().ok_or("an agent without a task answers")?;
                let laps: Vec<_> =
                    laps.into_iter().map(|(part, took)| (part, Duration::from_nanos(took))).collect();
                let mut times = laps.iter().map(|(_, took)| *took);
                let answer =
                    self.work.answer(task, Duration::from_nanos(at), |_| times.next().unwrap_or_default());
                if self.work.laps != laps {
                    return Err(format!(
                        "agent {} did {:?} in place of {laps:?}",
                        self.work.index, self.work.laps
                    ));
                }
                self.answer = Some(answer);
            }
            Did::Expired { at } => self.work.agent.expire(Duration::from_nanos(at)),
            Did::Repaired { tries } => {
                for _ in 0..tries {
                    self.work.agent.repair_one();
                }
                self.changes = self.work.agent.cache_changes();
            }
        }
        Ok(())
    }

    fn step(&mut self, scheduler: &mut Scheduler, step: AgentStep, now: Duration) -> Result<(), String> {
        match step {
            AgentStep::Take => {
                let turn = self.work.take(scheduler, now);
                self.turn(turn);
            }
            AgentStep::Approach => {
                if !self.work.approach(scheduler) {
                    self.work.agent.make_room();
                }
            }
            AgentStep::Settle => {
                let (Some(task), Some(answer)) = (&self.task, self.answer.take()) else {
                    return Err("an agent without an answer settles".to_owned());
                };
                match self.work.settle(scheduler, task, answer, (|| Duration::ZERO, 0), now) {
                    Next::Turn(turn) => self.turn(turn),
                    Next::Again(_) => {}
                    Next::CatchUp(answer) => self.answer = Some(answer),
                }
            }
            AgentStep::TellCaches => {
                scheduler.cache_changed(self.work.index, &std::mem::take(&mut self.changes));
            }
        }
        Ok(())
    }

    fn turn(&mut self, turn: Turn) {
        self.task = match turn {
            Turn::Task(task, _) => Some(task),
            Turn::Behind | Turn::Nothing => None,
        };
    }
}
