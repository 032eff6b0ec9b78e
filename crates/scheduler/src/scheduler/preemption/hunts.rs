//! Search for victims. A class *hunts* while preemption for some of its pods has not been tried. Its survey and dry
//! runs serve all of them in turn: a node is evaluated again only after it changed.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::Want;
use crate::agent::{Agent, Choice, Part};
use crate::class::{Class, ClassId};
use crate::inventory::{NodeId, Revision};
use crate::objects::Budgets;
use crate::preempt::{Fruitless, Site, Survey, Victims};
use crate::queue::Place;
use crate::quota::{Rights, Toll};
use crate::rules::Unhelped;
use crate::scheduler::{Action, Scheduler, State, Waiting};
use berth_model::PreemptionPolicy;

/// Number of dry runs to choose from. Upstream takes 100 or a tenth of the nodes, in no order; ours are the cheapest
/// first.
const WINDOW: usize = 16;
/// Maximum age of a survey of a cluster that has changed since.
const SURVEY_AGE: Duration = Duration::from_secs(1);
/// Initial interval before a class whose preemption failed is retried, if anything changed; doubled each time.
pub(super) const FIRST_PAUSE: Duration = Duration::from_secs(1);
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(8);

/// One attempt of a pod to preempt on any of `sites`.
#[derive(Debug)]
pub struct Attempt {
    pub class: Arc<Class>,
    pub uid: Arc<str>,
    pub priority: i32,
    /// What quotas allow it to preempt.
    pub rights: Arc<Rights>,
    pub sites: Vec<Site>,
    pub budgets: Budgets,
}

/// Result of an agent's preemption step.
#[derive(Debug)]
pub enum Found {
    Survey(Result<Survey, Choice>),
    /// One result per site.
    DryRuns(Vec<Result<Victims, Fruitless>>),
}

/// Preemption state of one class.
#[derive(Debug, Default)]
pub(super) struct Hunt {
    pub(super) want: Option<Want>,
    /// An agent is working on it.
    pub(super) under_way: bool,
    /// Pods before this place have been tried.
    from: Option<Place>,
    surveyed: Option<Surveyed>,
    /// Occupancy revision when the latest survey was requested.
    began: Revision,
    /// Failures, by quota of the pods.
    pub(super) hopeless: BTreeMap<Option<Arc<str>>, Hopeless>,
    /// Consecutive failures.
    pub(super) failures: u32,
}

#[derive(Debug)]
struct Surveyed {
    priority: i32,
    rights: Arc<Rights>,
    revision: Revision,
    at: Duration,
    /// Uid of the pod it serves now; kept until that pod is done, however long that takes.
    serves: Option<Arc<str>>,
    /// Nodes to evaluate; the cheapest last.
    candidates: Vec<NodeId>,
    asked: Vec<Asked>,
    unhelped: Unhelped,
}

/// A dry run that found victims.
#[derive(Debug)]
struct Asked {
    victims: Victims,
    /// Revisions of the node's row, the inventory, and the budgets at that time.
    row: Revision,
    seen: Revision,
    budgets: u64,
}

/// Preemption failed for all pods of the class up to this priority, as of this occupancy revision.
#[derive(Debug)]
pub(super) struct Hopeless {
    priority: i32,
    /// Whether that includes pods within the guarantee of their quota.
    within: bool,
    pub(super) revision: Revision,
    until: Duration,
}

impl Attempt {
    pub(in crate::scheduler) fn carry_out(&self, agent: &mut Agent, now: Duration) -> Found {
        let dry_run = |site: &Site| agent.dry_run(&self.class, site, &self.budgets, now);
        Found::DryRuns(self.sites.iter().map(dry_run).collect())
    }
}

/// Surveys the nodes for a class.
pub(in crate::scheduler) fn survey(
    agent: &mut Agent,
    class: &Arc<Class>,
    (priority, rights): (i32, &Rights),
    now: Duration,
    lap: impl FnMut(Part),
) -> Found {
    Found::Survey(agent.survey(class, priority, &rights.lenders, now, lap))
}

/// Next step of a hunt.
pub(in crate::scheduler) enum Step {
    Survey(Arc<Class>, i32, Arc<Rights>),
    Attempt(Box<Attempt>),
}

impl Scheduler {
    /// Returns whether this parked pod is to try preemption.
    pub(in crate::scheduler) fn may_preempt(&self, pod: &Waiting) -> bool {
        let hunt = self.preemption.hunts.get(&pod.class.id);
        let hopeless = hunt.and_then(|hunt| hunt.hopeless.get(&pod.holding.quota));
        let reclaims = self.may_reclaim(pod);
        self.cluster.config.preemption
            && self.cluster.leading
            && pod.policy == PreemptionPolicy::PreemptLowerPriority
            && (reclaims || self.cluster.ledger.lowest_priority().is_some_and(|lowest| lowest < pod.priority))
            && hopeless.is_none_or(|known| known.priority < pod.priority || known.within != reclaims)
            && !self.preemption.has_nominated(&pod.pod.uid)
            && self.cluster.over_quota(pod.holding.quota.as_ref(), &pod.holding.usage).is_none()
    }

    /// Starts preemption for this parked pod, once it is certain that its class fits nowhere.
    pub(in crate::scheduler) fn hunt(&mut self, uid: &Arc<str>) {
        let Some(pod) =
            self.cluster.waiting.get(uid).filter(|pod| pod.state == State::Parked && self.may_preempt(pod))
        else {
            return;
        };
        let (class, place) = (pod.class.id, pod.place());
        let hunt = self.preemption.hunts.entry(class).or_default();
        hunt.from = Some(hunt.from.map_or(place, |from| from.min(place)));
        self.hunt_on(class);
    }

    /// Schedules the next step of the class's hunt at an agent.
    pub(in crate::scheduler) fn hunt_on(&mut self, class: ClassId) {
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

    /// Returns this agent's next preemption step.
    pub(in crate::scheduler) fn next_step(&mut self, agent: usize, now: Duration) -> Option<Step> {
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
                // The check of the class comes first, and reports.
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

    /// Returns the next step for the first untried pod of the class.
    fn step(&mut self, class: ClassId, now: Duration) -> Option<Step> {
        loop {
            let (place, uid) = self.next_preemptor(class)?;
            let pod = self.cluster.waiting.get(&uid)?;
            let (class, priority, rights) = (pod.class.clone(), pod.priority, self.rights_of(pod));
            let reclaims = self.may_reclaim(pod);
            let revision = self.inventory().revision();
            let fresh = |s: &Surveyed| {
                let young = s.revision == revision || now.saturating_sub(s.at) < SURVEY_AGE;
                s.priority == priority && *s.rights == rights && (young || s.serves.as_ref() == Some(&uid))
            };
            let hunt = self.preemption.hunts.get_mut(&class.id)?;
            hunt.from = Some(place);
            let Some(surveyed) = hunt.surveyed.as_mut().filter(|surveyed| fresh(surveyed)) else {
                hunt.began = self.cluster.ledger.occupancy();
                return Some(Step::Survey(class, priority, rights.into()));
            };
            let rights = surveyed.rights.clone();
            surveyed.serves = Some(uid.clone());
            let nodes = self.nodes_to_ask(&class);
            if !nodes.is_empty() {
                let known = RefCell::default();
                let group_of = |uid: &str| self.victim_group(uid, &known);
                let leaving = self.leaving();
                let site = |node| {
                    let mut toll = Toll::default();
                    let claim = |pod: &_| self.claim_on(pod, (priority, &rights), &leaving, &mut toll);
                    Site::claimed(&self.cluster.ledger, node, rights.reclaims(), claim, &group_of)
                };
                let sites = nodes.into_iter().map(site).collect();
                let budgets = self.cluster.objects.budgets.clone();
                return Some(Step::Attempt(Box::new(Attempt {
                    class,
                    uid,
                    priority,
                    rights,
                    sites,
                    budgets,
                })));
            }
            match self.take_cheapest(class.id) {
                Some(victims)
                    if self.cluster.waiting.get(&uid).is_some_and(|pod| self.still_claims(pod, &victims)) =>
                {
                    self.nominate(&uid, &victims);
                }
                Some(victims) => self.leave_out(class.id, victims.node),
                None => self.gave_up(class.id, priority, (rights.quota.clone(), reclaims), now),
            }
        }
    }

    /// Returns the first parked pod of the class that is to try preemption.
    fn next_preemptor(&mut self, class: ClassId) -> Option<(Place, Arc<str>)> {
        let from = self.preemption.hunts.get(&class)?.from?;
        let group = self.parked.get(class)?;
        let eligible =
            |uid: &Arc<str>| self.cluster.waiting.get(uid).is_some_and(|pod| self.may_preempt(pod));
        let next = group.pods.range(from..).find(|(_, uid)| eligible(uid));
        let next = next.map(|(place, uid)| (*place, uid.clone()));
        if next.is_none()
            && let Some(hunt) = self.preemption.hunts.get_mut(&class)
        {
            (hunt.from, hunt.surveyed) = (None, None);
        }
        next
    }

    /// Returns the nodes to evaluate before the hunt can choose from a window of dry runs. Drops outdated dry runs.
    fn nodes_to_ask(&mut self, class: &Class) -> Vec<NodeId> {
        let (inventory, budgets) = (self.cluster.ledger.inventory(), self.cluster.objects.budgets.revision());
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

    /// Takes the cheapest valid dry run. Its node is evaluated again before another pod preempts there.
    fn take_cheapest(&mut self, class: ClassId) -> Option<Victims> {
        let surveyed = self.preemption.hunts.get_mut(&class)?.surveyed.as_mut()?;
        let costs = surveyed.asked.iter().enumerate().map(|(at, asked)| (asked.victims.cost(), at));
        let (_, cheapest) = costs.min()?;
        let victims = surveyed.asked.swap_remove(cheapest).victims;
        surveyed.candidates.push(victims.node);
        Some(victims)
    }

    /// Removes a node whose victims may no longer be preempted. The next survey adds it again.
    fn leave_out(&mut self, class: ClassId, node: NodeId) {
        let hunt = self.preemption.hunts.get_mut(&class);
        if let Some(surveyed) = hunt.and_then(|hunt| hunt.surveyed.as_mut()) {
            surveyed.candidates.retain(|candidate| *candidate != node);
        }
    }

    /// Records that preemption fails now for pods of the class and this quota up to this priority, within its guarantee
    /// or not.
    fn gave_up(
        &mut self,
        class: ClassId,
        priority: i32,
        (quota, within): (Option<Arc<str>>, bool),
        now: Duration,
    ) {
        self.stats.preemption_attempts += 1;
        let Some(hunt) = self.preemption.hunts.get_mut(&class) else {
            return;
        };
        let pause = FIRST_PAUSE.saturating_mul(1 << hunt.failures.min(8)).min(LONGEST_PAUSE);
        hunt.failures += 1;
        hunt.hopeless.insert(quota, Hopeless { priority, within, revision: hunt.began, until: now + pause });
        if let Some(surveyed) = hunt.surveyed.take() {
            self.parked.preemption_failed(class, surveyed.unhelped);
        }
    }

    /// Settles a survey of the nodes for a class.
    pub(in crate::scheduler) fn settle_survey(
        &mut self,
        agent: usize,
        class: &Arc<Class>,
        (priority, rights): (i32, &Arc<Rights>),
        found: Result<Survey, Choice>,
        seen: Revision,
        now: Duration,
    ) {
        let Some(hunt) = self.preemption.hunts.get_mut(&class.id) else {
            return;
        };
        hunt.under_way = false;
        match found {
            // There is a valid node by now.
            Err(choice) if self.parked.get(class.id).is_some() => {
                self.settle_check(agent, class, choice, seen)
            }
            Err(_) => {}
            Ok(Survey { candidates, unhelped }) => {
                hunt.surveyed = Some(Surveyed {
                    priority,
                    rights: rights.clone(),
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

    /// Settles the dry runs on some nodes.
    pub(in crate::scheduler) fn settle_attempt(
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

    /// Nominates the pod of the attempt for the cheapest node that is unchanged since its dry run. Changes elsewhere
    /// are ignored, as upstream does.
    fn settle_cheapest(&mut self, attempt: &Attempt, now: Duration) {
        let class = attempt.class.id;
        let still_wants = |pod: &&Waiting| {
            pod.state == State::Parked && pod.class.id == class && pod.priority == attempt.priority
        };
        let Some(pod) = self.cluster.waiting.get(&attempt.uid).filter(still_wants) else {
            return;
        };
        if !self.may_preempt(pod) || self.rights_of(pod) != *attempt.rights {
            return;
        }
        let reclaims = self.may_reclaim(pod);
        let inventory = self.cluster.ledger.inventory();
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
            Some(victims)
                if self
                    .cluster
                    .waiting
                    .get(&attempt.uid)
                    .is_some_and(|pod| self.still_claims(pod, &victims)) =>
            {
                self.nominate(&attempt.uid, &victims);
            }
            Some(victims) => self.leave_out(class, victims.node),
            None if more => {}
            None => self.gave_up(class, attempt.priority, (attempt.rights.quota.clone(), reclaims), now),
        }
    }

    /// Retries classes whose preemption failed, if something changed.
    pub(in crate::scheduler) fn hunt_again(&mut self, now: Duration) {
        let lower = self.less_important_came();
        self.hunt_together_again(lower, now);
        if lower {
            let first: Vec<_> = self.parked.groups().filter_map(|group| group.pods.values().next()).collect();
            let first: Vec<_> = first.into_iter().cloned().collect();
            first.iter().for_each(|uid| self.hunt(uid));
        }
        let (parked, revision) = (&self.parked, self.cluster.ledger.occupancy());
        let gone = |class: &&ClassId| parked.get(**class).is_none();
        let gone: Vec<_> = self.preemption.hunts.keys().filter(gone).copied().collect();
        gone.into_iter().for_each(|class| self.preemption.forget(class));
        let over = |known: &Hopeless| known.until <= now && known.revision != revision;
        let due = |hunt: &Hunt| hunt.hopeless.values().any(over);
        let due: Vec<_> =
            (self.preemption.hunts.iter()).filter(|(_, hunt)| due(hunt)).map(|(class, _)| *class).collect();
        for class in due {
            if let Some(hunt) = self.preemption.hunts.get_mut(&class) {
                hunt.hopeless.retain(|_, known| !over(known));
            }
            let first = self.parked.get(class).and_then(|group| group.pods.first_key_value());
            if let Some(uid) = first.map(|(_, uid)| uid.clone()) {
                self.hunt_from(class, &uid);
            }
        }
    }

    /// Returns whether a pod with a new lowest priority has a node: preemption that failed before may succeed now.
    fn less_important_came(&mut self) -> bool {
        let lowest = self.cluster.ledger.lowest_priority();
        let before = std::mem::replace(&mut self.preemption.lowest, lowest);
        lowest.is_some_and(|lowest| before.is_none_or(|before| lowest < before))
    }

    /// Retries preemption for all pods of the class from this one on.
    fn hunt_from(&mut self, class: ClassId, uid: &str) {
        let place = self.cluster.waiting.get(uid).map(Waiting::place);
        if let Some(hunt) = self.preemption.hunts.get_mut(&class) {
            hunt.from = place;
        }
        self.hunt_on(class);
    }
}
