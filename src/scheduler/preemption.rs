//! Preemption: parked pods whose class fits nowhere make less important pods leave a node, and are placed there when those
//! are gone (upstream: DefaultPreemption and its executor).
//!
//! A class *hunts* while pods of it have not been tried. Its survey and its dry runs serve all of them, one after the other:
//! a node is asked again only when it changed. A pod that found victims is *nominated*: it stays parked, room is kept for
//! it in the ledger, and its node is looked at whenever something leaves it.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::{Action, Sample, Scheduler, State, Waiting};
use crate::agent::{Agent, Choice, Part};
use crate::class::{Class, ClassId};
use crate::inventory::{NodeId, Revision};
use crate::model::{PodRef, PreemptionPolicy};
use crate::objects::Budgets;
use crate::preempt::{Fruitless, Site, Survey, Victims};
use crate::queue::Place;
use crate::rules::Unhelped;

/// Dry runs to choose from. Upstream takes 100 or a tenth of the nodes, in no order; ours are the cheapest first.
const WINDOW: usize = 16;
/// A survey of a cluster that changed since is used for so long.
const SURVEY_AGE: Duration = Duration::from_secs(1);
/// A class that can preempt nothing tries again so long after, if anything changed; each time twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);

/// A pod that is to leave its node for a more important one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Eviction {
    pub victim: PodRef,
    pub preemptor: PodRef,
    pub node: Arc<str>,
    /// Of the victim.
    pub generation: i64,
}

/// What a pod is to preempt, if any of `sites` will do.
#[derive(Debug)]
pub struct Attempt {
    pub class: Arc<Class>,
    pub uid: Arc<str>,
    pub priority: i32,
    pub sites: Vec<Site>,
    pub budgets: Budgets,
}

/// What an agent found out for a preemption.
#[derive(Debug)]
pub enum Found {
    Survey(Result<Survey, Choice>),
    /// For each site.
    DryRuns(Vec<Result<Victims, Fruitless>>),
}

#[derive(Debug, Default)]
pub(super) struct Preemption {
    /// By uid of the preemptor.
    nominations: BTreeMap<Arc<str>, Nomination>,
    /// Preemptors (by uid) by the node they are nominated for.
    by_node: BTreeMap<Arc<str>, BTreeSet<Arc<str>>>,
    /// Preemptors whose node changed.
    due: BTreeSet<Arc<str>>,
    /// Victims (by uid) whose eviction was asked for, until they are gone.
    evicting: BTreeSet<Arc<str>>,
    hunts: BTreeMap<ClassId, Hunt>,
    /// Hunts that an agent is to go on with.
    wanted: BTreeSet<Want>,
}

/// Agent, priority and class.
type Want = (usize, Reverse<i32>, ClassId);

/// Room is kept for a pod on this node.
#[derive(Debug)]
struct Nomination {
    node: Arc<str>,
    /// By uid; those that are not gone yet.
    victims: BTreeSet<Arc<str>>,
    /// Made by another process, or before this one started: its victims are those that are terminating there.
    adopted: bool,
}

/// The preemption of one class.
#[derive(Debug, Default)]
struct Hunt {
    want: Option<Want>,
    /// An agent is at it.
    under_way: bool,
    /// Pods before this place have had their turn.
    from: Option<Place>,
    surveyed: Option<Surveyed>,
    hopeless: Option<Hopeless>,
    /// Times in a row that it was hopeless.
    failures: u32,
}

#[derive(Debug)]
struct Surveyed {
    priority: i32,
    revision: Revision,
    at: Duration,
    /// Uid of the pod that it serves now: to its end, however long that takes.
    serves: Option<Arc<str>>,
    /// Not asked yet; the cheapest last.
    candidates: Vec<NodeId>,
    asked: Vec<Asked>,
    unhelped: Unhelped,
}

/// A dry run that found victims.
#[derive(Debug)]
struct Asked {
    victims: Victims,
    /// Of the node's row, of the inventory, and of the budgets then.
    row: Revision,
    seen: Revision,
    budgets: u64,
}

/// No pod of the class up to this priority can preempt anything, as of this revision.
#[derive(Debug)]
struct Hopeless {
    priority: i32,
    revision: Revision,
    until: Duration,
}

impl Preemption {
    pub(super) fn has_nominated(&self, uid: &str) -> bool {
        self.nominations.contains_key(uid)
    }

    pub(super) fn nominated(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<str>)> {
        self.nominations.iter().map(|(uid, nomination)| (uid, &nomination.node))
    }

    /// Some pod of this class is yet to be tried.
    pub(super) fn hunts(&self, class: ClassId) -> bool {
        self.hunts.get(&class).is_some_and(|hunt| hunt.want.is_some() || hunt.under_way)
    }

    /// Its eviction was asked for, and it is not gone yet.
    pub(super) fn is_evicting(&self, uid: &str) -> bool {
        self.evicting.contains(uid)
    }

    /// Something changed on this node.
    pub(super) fn node_changed(&mut self, node: &str) {
        self.due.extend(self.by_node.get(node).into_iter().flatten().cloned());
    }

    fn want(&mut self, want: Want) {
        let hunt = self.hunts.entry(want.2).or_default();
        if let Some(former) = hunt.want.replace(want) {
            self.wanted.remove(&former);
        }
        self.wanted.insert(want);
    }

    fn forget(&mut self, class: ClassId) {
        if let Some(want) = self.hunts.remove(&class).and_then(|hunt| hunt.want) {
            self.wanted.remove(&want);
        }
    }
}

impl Attempt {
    pub(super) fn carry_out(&self, agent: &mut Agent, now: Duration) -> Found {
        let dry_run = |site: &Site| agent.dry_run(&self.class, self.priority, site, &self.budgets, now);
        Found::DryRuns(self.sites.iter().map(dry_run).collect())
    }
}

/// The survey for a class.
pub(super) fn survey(
    agent: &mut Agent,
    class: &Arc<Class>,
    priority: i32,
    now: Duration,
    lap: impl FnMut(Part),
) -> Found {
    Found::Survey(agent.survey(class, priority, now, lap))
}

/// What is next in a hunt.
pub(super) enum Step {
    Survey(Arc<Class>, i32),
    Attempt(Box<Attempt>),
}

impl Scheduler {
    /// Pods that wait for their victims to leave, each with its node.
    pub fn nominated_pods(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<str>)> {
        self.preemption.nominated()
    }

    /// Whether this parked pod is to try preemption.
    pub(super) fn may_preempt(&self, pod: &Waiting) -> bool {
        let hopeless = self.preemption.hunts.get(&pod.class.id).and_then(|hunt| hunt.hopeless.as_ref());
        self.config.preemption
            && self.leading
            && pod.policy == PreemptionPolicy::PreemptLowerPriority
            && self.ledger.lowest_priority().is_some_and(|lowest| lowest < pod.priority)
            && hopeless.is_none_or(|hopeless| hopeless.priority < pod.priority)
            && !self.preemption.has_nominated(&pod.pod.uid)
    }

    /// This parked pod is to try preemption, as soon as it is certain that its class fits nowhere.
    pub(super) fn hunt(&mut self, uid: &Arc<str>) {
        let Some(pod) =
            self.waiting.get(uid).filter(|pod| pod.state == State::Parked && self.may_preempt(pod))
        else {
            return;
        };
        let (class, place) = (pod.class.id, pod.place());
        let hunt = self.preemption.hunts.entry(class).or_default();
        hunt.from = Some(hunt.from.map_or(place, |from| from.min(place)));
        self.hunt_on(class);
    }

    /// The class has pods to try: an agent is to go on with it.
    pub(super) fn hunt_on(&mut self, class: ClassId) {
        let Some(group) = self.parked.get(class) else {
            return self.preemption.forget(class);
        };
        let Some(hunt) = self.preemption.hunts.get(&class).filter(|hunt| !hunt.under_way) else {
            return;
        };
        let Some(first) = hunt.from.and_then(|from| group.pods.range(from..).next()) else {
            return;
        };
        self.preemption.want((group.agent, first.0.0, class));
        self.actions.push(Action::WakeAgent(group.agent));
    }

    /// What this agent is to do next for preemption.
    pub(super) fn next_step(&mut self, agent: usize, now: Duration) -> Option<Step> {
        loop {
            let first = (agent, Reverse(i32::MAX), ClassId(0));
            let want = *self.preemption.wanted.range(first..).next().filter(|want| want.0 == agent)?;
            let class = want.2;
            self.preemption.wanted.remove(&want);
            if let Some(hunt) = self.preemption.hunts.get_mut(&class) {
                hunt.want = None;
            }
            let Some(group) = self.parked.get(class) else {
                self.preemption.forget(class);
                continue;
            };
            if group.agent != agent {
                self.hunt_on(class);
                continue;
            }
            if !group.is_certain(self.inventory().loosened()) {
                // The check of the class comes first, and tells.
                continue;
            }
            if let Some(step) = self.step(class, now) {
                if let Some(hunt) = self.preemption.hunts.get_mut(&class) {
                    hunt.under_way = true;
                }
                return Some(step);
            }
            self.tell_untold(class);
        }
    }

    /// The next step for the first pod of the class that has not been tried.
    fn step(&mut self, class: ClassId, now: Duration) -> Option<Step> {
        loop {
            let (place, uid) = self.next_preemptor(class)?;
            let pod = self.waiting.get(&uid)?;
            let (class, priority) = (pod.class.clone(), pod.priority);
            let revision = self.inventory().revision();
            let fresh = |s: &Surveyed| {
                let young = s.revision == revision || now.saturating_sub(s.at) < SURVEY_AGE;
                s.priority == priority && (young || s.serves.as_ref() == Some(&uid))
            };
            let hunt = self.preemption.hunts.get_mut(&class.id)?;
            hunt.from = Some(place);
            let Some(surveyed) = hunt.surveyed.as_mut().filter(|surveyed| fresh(surveyed)) else {
                return Some(Step::Survey(class, priority));
            };
            surveyed.serves = Some(uid.clone());
            let nodes = self.nodes_to_ask(&class);
            if !nodes.is_empty() {
                let known = RefCell::default();
                let group_of = |uid: &str| self.victim_group(uid, &known);
                let site = |node| Site::new(&self.ledger, node, priority, &group_of);
                let sites = nodes.into_iter().map(site).collect();
                let budgets = self.objects.budgets.clone();
                return Some(Step::Attempt(Box::new(Attempt { class, uid, priority, sites, budgets })));
            }
            match self.take_cheapest(class.id) {
                Some(victims) => self.nominate(&uid, &victims),
                None => self.gave_up(class.id, priority, now),
            }
        }
    }

    /// The first parked pod of the class that is to try preemption.
    fn next_preemptor(&mut self, class: ClassId) -> Option<(Place, Arc<str>)> {
        let from = self.preemption.hunts.get(&class)?.from?;
        let group = self.parked.get(class)?;
        let eligible = |uid: &Arc<str>| self.waiting.get(uid).is_some_and(|pod| self.may_preempt(pod));
        let next = group.pods.range(from..).find(|(_, uid)| eligible(uid));
        let next = next.map(|(place, uid)| (*place, uid.clone()));
        if next.is_none()
            && let Some(hunt) = self.preemption.hunts.get_mut(&class)
        {
            (hunt.from, hunt.surveyed) = (None, None);
        }
        next
    }

    /// What of a hunt must be asked before it can choose from a window of dry runs. What is not so any more goes.
    fn nodes_to_ask(&mut self, class: &Class) -> Vec<NodeId> {
        let (inventory, budgets) = (self.ledger.inventory(), self.objects.budgets.revision());
        let Some(surveyed) = self.preemption.hunts.get_mut(&class.id).and_then(|hunt| hunt.surveyed.as_mut())
        else {
            return Vec::new();
        };
        let valid = |asked: &Asked| {
            inventory.row(asked.victims.node).revision == asked.row
                && asked.budgets == budgets
                && (!class.looks_at_pods() || asked.seen == inventory.revision())
        };
        let (kept, old) = std::mem::take(&mut surveyed.asked).into_iter().partition(valid);
        surveyed.asked = kept;
        let mut nodes: Vec<NodeId> = old.into_iter().map(|asked: Asked| asked.victims.node).collect();
        while surveyed.asked.len() + nodes.len() < WINDOW
            && let Some(node) = surveyed.candidates.pop()
        {
            if inventory.row(node).node.is_some() {
                nodes.push(node);
            }
        }
        nodes
    }

    /// The best of the dry runs that still hold. Its node is asked again before another pod preempts there.
    fn take_cheapest(&mut self, class: ClassId) -> Option<Victims> {
        let surveyed = self.preemption.hunts.get_mut(&class)?.surveyed.as_mut()?;
        let costs = surveyed.asked.iter().enumerate().map(|(at, asked)| (asked.victims.cost(), at));
        let (_, cheapest) = costs.min()?;
        let victims = surveyed.asked.swap_remove(cheapest).victims;
        surveyed.candidates.push(victims.node);
        Some(victims)
    }

    /// No pod of the class up to this priority can preempt anything now.
    fn gave_up(&mut self, class: ClassId, priority: i32, now: Duration) {
        self.stats.preemption_attempts += 1;
        let revision = self.inventory().revision();
        let Some(hunt) = self.preemption.hunts.get_mut(&class) else {
            return;
        };
        let pause = FIRST_PAUSE.saturating_mul(1 << hunt.failures.min(8)).min(LONGEST_PAUSE);
        hunt.failures += 1;
        hunt.hopeless = Some(Hopeless { priority, revision, until: now + pause });
        if let Some(surveyed) = hunt.surveyed.take() {
            self.parked.preemption_failed(class, surveyed.unhelped);
        }
    }

    /// The agent has surveyed the nodes for a class.
    pub(super) fn settle_survey(
        &mut self,
        agent: usize,
        class: &Arc<Class>,
        priority: i32,
        found: Result<Survey, Choice>,
        seen: Revision,
        now: Duration,
    ) {
        let Some(hunt) = self.preemption.hunts.get_mut(&class.id) else {
            return;
        };
        hunt.under_way = false;
        match found {
            // There is room by now.
            Err(choice) if self.parked.get(class.id).is_some() => {
                self.settle_check(agent, class, choice, seen)
            }
            Err(_) => {}
            Ok(Survey { candidates, unhelped }) => {
                hunt.surveyed = Some(Surveyed {
                    priority,
                    revision: seen,
                    at: now,
                    serves: None,
                    candidates,
                    asked: Vec::new(),
                    unhelped,
                });
            }
        }
        self.hunt_on(class.id);
    }

    /// The agent has asked some nodes.
    pub(super) fn settle_attempt(
        &mut self,
        attempt: &Attempt,
        found: Vec<Result<Victims, Fruitless>>,
        seen: Revision,
        now: Duration,
    ) {
        let class = attempt.class.id;
        let Some(hunt) = self.preemption.hunts.get_mut(&class) else {
            return;
        };
        hunt.under_way = false;
        if let Some(surveyed) = hunt.surveyed.as_mut() {
            for (site, found) in attempt.sites.iter().zip(found) {
                match found {
                    Ok(victims) => surveyed.asked.push(Asked {
                        victims,
                        row: site.revision,
                        seen,
                        budgets: attempt.budgets.revision(),
                    }),
                    Err(why) => surveyed.unhelped.add(why.reasons()),
                }
            }
        }
        self.settle_cheapest(attempt, now);
        self.hunt_on(class);
        self.tell_untold(class);
    }

    /// Nominates the pod of the attempt for the best node that is as it was when it was asked. Whatever happened elsewhere
    /// meanwhile is not looked at, as upstream does not.
    fn settle_cheapest(&mut self, attempt: &Attempt, now: Duration) {
        let class = attempt.class.id;
        let still_wants = |pod: &&Waiting| {
            pod.state == State::Parked && pod.class.id == class && pod.priority == attempt.priority
        };
        let Some(pod) = self.waiting.get(&attempt.uid).filter(still_wants) else {
            return;
        };
        if !self.may_preempt(pod) {
            return;
        }
        let inventory = self.ledger.inventory();
        let Some(surveyed) = self.preemption.hunts.get_mut(&class).and_then(|hunt| hunt.surveyed.as_mut())
        else {
            return;
        };
        let changed = |asked: &Asked| inventory.row(asked.victims.node).revision != asked.row;
        let (overtaken, kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut surveyed.asked).into_iter().partition(changed);
        surveyed.asked = kept;
        surveyed.candidates.extend(overtaken.iter().map(|asked| asked.victims.node));
        let more = !surveyed.candidates.is_empty();
        match self.take_cheapest(class) {
            Some(victims) => self.nominate(&attempt.uid, &victims),
            None if more => {}
            None => self.gave_up(class, attempt.priority, now),
        }
    }

    /// Keeps room for the pod on the node, and makes its victims leave it.
    fn nominate(&mut self, uid: &Arc<str>, victims: &Victims) {
        let Some(waiting) = self.waiting.get(uid) else {
            return;
        };
        let (preemptor, class) = (waiting.pod.clone(), waiting.class.id);
        let node = self.inventory().name(victims.node).clone();
        self.keep_nominated(uid, &node, false);
        let mut pending = BTreeSet::new();
        for pod in &victims.pods {
            let victim = &pod.pod;
            pending.insert(victim.uid.clone());
            if !pod.holding.peer.terminating && self.preemption.evicting.insert(victim.uid.clone()) {
                let (victim, preemptor) = (victim.clone(), preemptor.clone());
                let generation = pod.generation;
                let eviction = Eviction { victim, preemptor, node: node.clone(), generation };
                self.actions.push(Action::Evict(Box::new(eviction)));
            }
        }
        if let Some(nomination) = self.preemption.nominations.get_mut(uid) {
            nomination.victims = pending;
        }
        if let Some(hunt) = self.preemption.hunts.get_mut(&class) {
            hunt.failures = 0;
        }
        self.gangs_lose(&victims.pods);
        self.stats.preemption_attempts += 1;
        self.actions.push(Action::Observe(Sample::Victims { pods: victims.pods.len() }));
        self.actions.push(Action::Nominate { pod: preemptor, node: Some(node.clone()) });
        self.tell_why(uid, true);
        // Less important ones that are nominated for the node may fit there no more.
        self.preemption.node_changed(&node);
        self.preemption.due.remove(uid);
    }

    fn keep_nominated(&mut self, uid: &Arc<str>, node: &Arc<str>, adopted: bool) {
        let Some(pod) = self.waiting.get(uid) else {
            return;
        };
        let (priority, usage) = (pod.priority, pod.holding.usage.clone());
        self.ledger.reserve(uid, Some((node, priority, &usage)));
        let nomination = Nomination { node: node.clone(), victims: BTreeSet::new(), adopted };
        self.preemption.nominations.insert(uid.clone(), nomination);
        self.preemption.by_node.entry(node.clone()).or_default().insert(uid.clone());
        self.note_reservations();
    }

    /// Takes over what the API server tells of a pod that was nominated by another process, or before a restart.
    pub(super) fn adopt_nomination(&mut self, uid: &Arc<str>) {
        if !self.leading || !self.config.preemption || self.preemption.has_nominated(uid) {
            return;
        }
        let Some(node) = self.waiting.get(uid).and_then(|pod| pod.source.nominated_node.clone()) else {
            return;
        };
        self.keep_nominated(uid, &node, true);
        self.preemption.due.insert(uid.clone());
    }

    /// No room is kept for the pod any more. `told`: the API server still says so, and is to be told.
    pub(super) fn end_nomination(&mut self, uid: &Arc<str>, told: bool) {
        let Some(nomination) = self.preemption.nominations.remove(uid) else {
            return;
        };
        self.preemption.due.remove(uid);
        if let Some(preemptors) = self.preemption.by_node.get_mut(&nomination.node) {
            preemptors.remove(uid);
            if preemptors.is_empty() {
                self.preemption.by_node.remove(&nomination.node);
            }
        }
        self.ledger.reserve(uid, None);
        self.note_reservations();
        self.preemption.node_changed(&nomination.node);
        if told && let Some(pod) = self.waiting.get(uid) {
            self.actions.push(Action::Nominate { pod: pod.pod.clone(), node: None });
        }
    }

    /// Takes over the nominations of the process that led before, and tries what it did not.
    pub(super) fn begin_preemption(&mut self) {
        let mut pods: Vec<_> = self.waiting.values().map(|pod| (pod.seq, pod.pod.uid.clone())).collect();
        pods.sort();
        for (_, uid) in pods {
            self.adopt_nomination(&uid);
            self.hunt(&uid);
        }
    }

    /// The API server tells of a nomination that is no more.
    fn clear_old_nomination(&mut self, uid: &Arc<str>) {
        let Some(pod) = self.waiting.get(uid).filter(|pod| pod.source.nominated_node.is_some()) else {
            return;
        };
        if self.config.preemption && self.leading && !self.preemption.has_nominated(uid) {
            self.actions.push(Action::Nominate { pod: pod.pod.clone(), node: None });
        }
    }

    /// The watch told of a waiting pod once more: of a nomination of ours, of one that is no more, or of one of the replica that
    /// schedules its class.
    pub(super) fn follow_nomination(&mut self, uid: &Arc<str>) {
        let Some(pod) = self.waiting.get(uid) else {
            return;
        };
        match pod.state {
            State::Parked => self.clear_old_nomination(uid),
            State::Elsewhere => {
                let node = pod.source.nominated_node.as_ref();
                let known = self.preemption.nominations.get(uid).map(|nomination| &nomination.node);
                if known != node {
                    self.end_nomination(uid, false);
                    self.adopt_nomination(uid);
                }
            }
            _ => {}
        }
    }

    /// A pod has just been parked. Whether it is not yet known if preemption helps its class.
    pub(super) fn parked_pod_hunts(&mut self, uid: &Arc<str>) -> bool {
        if self.preemption.has_nominated(uid) {
            self.preemption.due.insert(uid.clone());
        }
        self.clear_old_nomination(uid);
        self.hunt(uid);
        self.waiting.get(uid).is_some_and(|pod| self.preemption.hunts(pod.class.id))
    }

    /// Who does not lead keeps no room: whoever leads does, and tells by the pods' status.
    pub(super) fn end_preemption(&mut self) {
        let uids: Vec<_> = self.preemption.nominations.keys().cloned().collect();
        uids.iter().for_each(|uid| self.end_nomination(uid, false));
        self.preemption = Preemption::default();
    }

    /// The pod (by uid) is gone from its node, or is about to go.
    pub(super) fn victim_left(&mut self, uid: &str) {
        self.preemption.evicting.remove(uid);
        if let Some(charge) = self.ledger.charge_of(uid) {
            let node = self.ledger.inventory().name(charge.node);
            self.preemption.node_changed(node);
        }
    }

    /// How an [`Action::Evict`] ended: the victim is going or gone, or could not be evicted for this reason.
    pub fn eviction_finished(&mut self, eviction: &Eviction, ended: Result<(), String>, now: Duration) {
        let Err(why) = ended else {
            return;
        };
        let victim = &eviction.victim;
        self.preemption.evicting.remove(&victim.uid);
        let waits = |nomination: &Nomination| nomination.victims.contains(&victim.uid);
        let preemptors: Vec<_> = (self.preemption.nominations.iter())
            .filter(|(_, nomination)| waits(nomination))
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in preemptors {
            self.end_nomination(&uid, true);
            if self.waiting.get(&uid).is_some_and(|pod| pod.state == State::Parked) {
                self.withdraw(&uid);
                let (namespace, name) = (&victim.namespace, &victim.name);
                let message = format!("preemption: the pod {namespace}/{name} could not be evicted: {why}");
                self.back_off(&uid, message, now);
            }
        }
    }

    /// Places the nominated pods whose node has room for them by now, and gives up those that it will never have room for.
    pub(super) fn look_at_nominated(&mut self, now: Duration) {
        while self.binds < self.config.max_waiting_binds
            && let Some(uid) = self.preemption.due.pop_first()
        {
            self.look_at(&uid, now);
        }
    }

    fn look_at(&mut self, uid: &Arc<str>, now: Duration) {
        let Some(waiting) = self.waiting.get(uid).filter(|pod| pod.state == State::Parked) else {
            // It is on its way; when it parks again, it is looked at again.
            return;
        };
        let class = waiting.class.clone();
        let Some(nomination) = self.preemption.nominations.get_mut(uid) else {
            return;
        };
        let id = self.ledger.inventory().find(&nomination.node);
        let Some(id) = id.filter(|id| self.ledger.inventory().row(*id).node.is_some()) else {
            return self.give_up_nomination(uid);
        };
        if std::mem::take(&mut nomination.adopted) {
            let leaving = self.ledger.occupants(id).into_iter();
            let leaving =
                leaving.filter(|pod| pod.holding.peer.terminating && pod.holding.priority < waiting.priority);
            nomination.victims = leaving.map(|pod| pod.pod.uid).collect();
        }
        let there = |victim: &Arc<str>| self.ledger.charge_of(victim).is_some_and(|charge| charge.node == id);
        nomination.victims.retain(there);
        let victims: Vec<Arc<str>> = nomination.victims.iter().cloned().collect();
        let plain = !class.looks_at_pods() && class.spec.volumes.is_none();
        if (plain || victims.is_empty()) && self.rank_there(&class, id, uid, &[]).is_valid() {
            return self.place_nominated(uid, id, plain, now);
        }
        let victims: Vec<&str> = victims.iter().map(|victim| &**victim).collect();
        if victims.is_empty() || !self.rank_there(&class, id, uid, &victims).is_valid() {
            self.give_up_nomination(uid);
        }
    }

    /// Its node is lost: it may preempt somewhere else.
    fn give_up_nomination(&mut self, uid: &Arc<str>) {
        self.end_nomination(uid, true);
        if let Some(group) = self.waiting.get(uid).and_then(|pod| self.parked.get_mut(pod.class.id)) {
            // It was told something else than the others.
            group.told = false;
        }
        self.hunt(uid);
    }

    /// Its node has room for it. `plain`: nothing but the node's row decides, so that no agent needs to be asked.
    fn place_nominated(&mut self, uid: &Arc<str>, node: NodeId, plain: bool, now: Duration) {
        let Some(waiting) = self.waiting.get(uid) else {
            return;
        };
        let (class, place) = (waiting.class.clone(), waiting.place());
        if !plain {
            // The list of its class has the node again as soon as no room is kept there, and the pod comes first.
            self.end_nomination(uid, false);
            if let Some(agent) = self.parked.wake_this(class.id, place) {
                self.awake(uid, &class, agent);
            }
            return;
        }
        self.end_nomination(uid, false);
        self.withdraw(uid);
        let Some(waiting) = self.waiting.get_mut(uid) else {
            return;
        };
        (waiting.tries, waiting.attempts) = (1, waiting.attempts + 1);
        let holding = waiting.holding.clone();
        match self.ledger.commit(uid, holding, node, |_| true) {
            Ok(host) => self.bind(uid, host),
            Err(_) => self.admit(uid, now),
        }
    }

    /// What only time moves: classes that had no hope try again when something changed.
    pub(super) fn hunt_again(&mut self, now: Duration) {
        let (parked, revision) = (&self.parked, self.ledger.inventory().revision());
        let gone = |class: &&ClassId| parked.get(**class).is_none();
        let gone: Vec<_> = self.preemption.hunts.keys().filter(gone).copied().collect();
        gone.into_iter().for_each(|class| self.preemption.forget(class));
        let due = |hunt: &Hunt| {
            (hunt.hopeless.as_ref()).is_some_and(|known| known.until <= now && known.revision != revision)
        };
        let due: Vec<_> =
            (self.preemption.hunts.iter()).filter(|(_, hunt)| due(hunt)).map(|(class, _)| *class).collect();
        for class in due {
            if let Some(hunt) = self.preemption.hunts.get_mut(&class) {
                hunt.hopeless = None;
            }
            let first = self.parked.get(class).and_then(|group| group.pods.first_key_value());
            if let Some(uid) = first.map(|(_, uid)| uid.clone()) {
                self.hunt_from(class, &uid);
            }
        }
    }

    /// All pods of the class from this one on are to try again.
    fn hunt_from(&mut self, class: ClassId, uid: &str) {
        let place = self.waiting.get(uid).map(Waiting::place);
        if let Some(hunt) = self.preemption.hunts.get_mut(&class) {
            hunt.from = place;
        }
        self.hunt_on(class);
    }
}
