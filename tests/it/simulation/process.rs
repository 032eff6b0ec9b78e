//! One berth process: a scheduler, its agents, its watches and its binds in progress; and a shadow that records the
//! events it received and its actions, independently.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use berth_model::{Node, Packing, Pod, Usage};
use berth_scheduler::agent::{Agent, AgentConfig, CacheChange, CacheLimits, Part};
use berth_scheduler::dispatch::{DispatcherKind, Estimator};
use berth_scheduler::inventory::Revision;
use berth_scheduler::objects::{Budgets, ClusterObject};
use berth_scheduler::placement::{BindAttempt, Binding};
use berth_scheduler::rules::PlacementSettings;
use berth_scheduler::scheduler::{Scheduler, SchedulerConfig, Task};

use super::dice::Dice;
use super::guard::GuardSettings;
use super::holds::Hold;
use super::objects::{self, ObjectKey};
use super::replicas::{Member, ReplicaSettings};

/// A process by its index and its number of starts there: late messages to an earlier start are lost.
pub type Who = (usize, u32);

pub struct Process {
    pub life: u32,
    pub scheduler: Scheduler,
    pub workers: Vec<Worker>,
    pub binds: BTreeMap<u64, (Binding, BindAttempt)>,
    /// Of pods, of nodes and of other objects.
    pub watches: [Watch; 3],
    pub shadow: Shadow,
    pub member: Member,
    /// Budgets of the dry runs among which victims are chosen now; `None`: the known ones.
    pub dry_run_budgets: Option<Budgets>,
}

/// A watch is a position in the cluster's log, or cut.
#[derive(Default)]
pub struct Watch {
    pub cursor: usize,
    pub live: bool,
    /// A delivery is scheduled.
    pub pending: bool,
    /// Grows with every cut.
    pub epoch: u32,
}

pub struct Worker {
    pub agent: Agent,
    pub config: AgentConfig,
    pub doing: Doing,
}

pub enum Doing {
    Sleeping,
    Awake,
    /// Caught up, and about to choose; the number counts conflicts so far.
    Choosing(Task, u32),
    Settling(Task, u32, Answer),
}

pub struct Answer {
    pub choice: berth_scheduler::scheduler::TaskResult,
    pub seen: Revision,
    pub laps: Vec<(Part, Duration)>,
    pub changes: Vec<CacheChange>,
}

/// Everything a process can know, recorded in the simplest way.
#[derive(Default)]
pub struct Shadow {
    pub pods: BTreeMap<Arc<str>, Pod>,
    pub nodes: BTreeMap<Arc<str>, Node>,
    pub objects: BTreeMap<ObjectKey, ClusterObject>,
    /// When a pod was last seen on each node for the first time.
    pub arrivals: BTreeMap<Arc<str>, Duration>,
    /// When an object other than a disruption budget last changed.
    pub rules_changed: Duration,
    /// Pods bound by this process that it has neither seen on their node nor learned to be on another.
    pub assumed: BTreeMap<Arc<str>, (Arc<str>, Arc<Usage>)>,
    /// Of these, the pods whose claims are being bound first; their bind has not begun.
    pub claiming: BTreeMap<Arc<str>, Binding>,
    /// Of these, the pods that the API server has answered to be bound.
    pub settled: BTreeSet<Arc<str>>,
    /// By uid and node.
    pub holds: BTreeMap<(Arc<str>, Arc<str>), Hold>,
    /// Of pods that this process binds: another client may bind it to the same node until then.
    pub rivals: BTreeMap<Arc<str>, (Pod, Duration)>,
}

impl Shadow {
    pub fn apply(&mut self, pod: &Pod) {
        if pod.finished {
            return self.forget(&pod.uid);
        }
        // Events about a waiting pod may be older than our actions on it.
        if pod.node_name.is_some() {
            self.settle(&pod.uid);
        }
        self.pod_changed(pod);
        self.pods.insert(pod.uid.clone(), pod.clone());
    }

    /// Records a pod that was not seen on its node before.
    pub fn note_arrival(&mut self, pod: &Pod, now: Duration) {
        if let Some(node) = &pod.node_name
            && self.pods.get(&pod.uid).is_none_or(|before| before.node_name.is_none())
        {
            self.arrivals.insert(node.clone(), now);
        }
    }

    pub fn forget(&mut self, uid: &str) {
        self.pods.remove(uid);
        self.settle(uid);
    }

    /// The pod was seen on its node, or is gone.
    fn settle(&mut self, uid: &str) {
        self.assumed.remove(uid);
        self.settled.remove(uid);
        self.end_holds(uid);
    }

    /// The API server answered that a pod which this process binds is bound to the node.
    pub fn bound(&mut self, uid: &Arc<str>, node: &Arc<str>) {
        if let Some((assumed, _)) = self.assumed.get_mut(uid) {
            *assumed = node.clone();
            self.settled.insert(uid.clone());
            self.rivals.remove(uid);
        }
    }

    /// The store reported that our bind has no effect. A pod that was seen on a node and has none is gone, even if
    /// the watch has not reported it yet.
    pub fn vanished(&mut self, uid: &str) {
        self.assumed.remove(uid);
        self.end_holds(uid);
        match self.pods.get_mut(uid) {
            Some(pod) if pod.node_name.is_none() => pod.deleting = true,
            _ => {
                self.pods.remove(uid);
            }
        }
    }

    /// Returns the usage that this process must assume on `node`, except for the pod `except`.
    pub fn usage_on(&self, node: &str, except: &str) -> Vec<Arc<Usage>> {
        let seen = self
            .pods
            .values()
            .filter(|pod| pod.node_name.as_deref() == Some(node) && *pod.uid != *except)
            .map(|pod| pod.usage.clone());
        let assumed = self
            .assumed
            .iter()
            .filter(|(uid, (at, _))| **at == *node && ***uid != *except)
            .map(|(_, (_, usage))| usage.clone());
        seen.chain(assumed).chain(self.held_on(node, except).cloned()).collect()
    }
}

/// Parameters that differ between schedules.
pub struct Settings {
    pub agents: usize,
    pub dispatcher: DispatcherKind,
    pub dispatcher_seed: u64,
    pub max_tries: u32,
    pub max_waiting_binds: usize,
    pub max_waiting_classes: usize,
    pub candidate_width: usize,
    pub cache_bytes: usize,
    pub packing: Packing,
    pub preemption: bool,
    /// Pods that wait for longer get a reservation; zero: never.
    pub reserve_after: Duration,
    /// Some pods look at pods.
    pub peers: bool,
    /// Policies come and go.
    pub policies: bool,
    /// Quotas come and go.
    pub quotas: bool,
    /// Hints come and go.
    pub hints: bool,
    /// Disruption budgets come and go.
    pub budgets: bool,
    /// The API server lets berth review the binds of all clients.
    pub guard: Option<GuardSettings>,
    /// Several processes place pods at once.
    pub replicas: Option<ReplicaSettings>,
}

impl Settings {
    pub fn draw(dice: &mut Dice) -> Self {
        Settings {
            agents: 1 + dice.below(3) as usize,
            dispatcher: *dice.pick(&DispatcherKind::ALL).expect("there are some"),
            dispatcher_seed: dice.any(),
            max_tries: 1 + dice.below(4) as u32,
            max_waiting_binds: 1 + dice.below(12) as usize,
            candidate_width: 1 + dice.below(3) as usize,
            cache_bytes: if dice.percent(30) { 300 } else { 1 << 20 },
            packing: match dice.percent(50) {
                true => Packing::LeastAllocated,
                false => Packing::MostAllocated,
            },
            preemption: dice.percent(50),
            reserve_after: match dice.percent(40) {
                true => Duration::from_secs(2 + dice.below(8)),
                false => Duration::ZERO,
            },
            peers: dice.percent(50),
            policies: dice.percent(40),
            quotas: dice.percent(40),
            hints: dice.percent(40),
            budgets: dice.percent(40),
            max_waiting_classes: if dice.percent(30) { 1 + dice.below(3) as usize } else { usize::MAX },
            guard: None,
            replicas: None,
        }
    }

    pub fn scheduler(&self, reserve_after: Duration, max_waiting_classes: usize) -> Scheduler {
        let placement = Arc::new(PlacementSettings {
            packing: self.packing,
            candidate_width: self.candidate_width,
            ..PlacementSettings::default()
        });
        let config = SchedulerConfig {
            agents: self.agents,
            dispatcher: self.dispatcher,
            seed: self.dispatcher_seed,
            max_waiting_binds: self.max_waiting_binds,
            max_waiting_classes,
            max_tries: self.max_tries,
            preemption: self.preemption,
            reserve_after,
            objects: objects::KINDS.into(),
            knows_others: self.guard.is_some(),
            profiles: Arc::new(placement.into()),
            ..SchedulerConfig::default()
        };
        Scheduler::new(config, Estimator::default())
    }

    pub fn process(&self, life: u32, seed: u64) -> Process {
        let worker = |at: usize| {
            let config = AgentConfig {
                cache: CacheLimits {
                    bytes: self.cache_bytes,
                    age: Duration::from_secs(5),
                    ..CacheLimits::unlimited()
                },
                seed: seed.wrapping_add(at as u64),
            };
            Worker { agent: Agent::new(config), config, doing: Doing::Sleeping }
        };
        Process {
            life,
            scheduler: self.scheduler(self.reserve_after, self.max_waiting_classes),
            workers: (0..self.agents).map(worker).collect(),
            binds: BTreeMap::new(),
            watches: Default::default(),
            shadow: Shadow::default(),
            member: Member::default(),
            dry_run_budgets: None,
        }
    }
}
