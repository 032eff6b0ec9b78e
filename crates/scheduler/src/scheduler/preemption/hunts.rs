//! Search for victims. A class *hunts* while preemption for some of its pods has not been tried. Its survey and dry
//! runs serve all of them in turn: a node is evaluated again only after it changed.
//!
//! [`Hunts`] reads the cluster, the parked pods and the nominations. It changes only itself and wakes agents; what it
//! finds is returned, and the caller nominates or reports. Only parked classes hunt, one step of each at a time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use super::guarantees::Guarantees;
use super::nominations::Nominations;
use super::surveyed::SurveyedNodes;
use crate::agent::{Agent, AgentChoice, Part};
use crate::class::{Class, ClassId};
use crate::inventory::{Ledger, NodeId, Revision};
use crate::objects::Budgets;
use crate::preempt::{Fruitless, Site, Survey, Victims};
use crate::queue::{Parked, ParkedGroup, Place};
use crate::quota::Rights;
use crate::rules::Unhelped;
use crate::scheduler::{Action, Cluster, State, Waiting};
use berth_model::PreemptionPolicy;

/// Initial interval before a class whose preemption failed is retried, if anything changed; doubled each time.
pub(super) const FIRST_PAUSE: Duration = Duration::from_secs(1);
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// Number of classes that one slice visits at most.
const SLICE_MAX: usize = 512;

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
pub enum HuntResult {
    Survey(Result<Survey, AgentChoice>),
    /// One result per site.
    DryRuns(Vec<Result<Victims, Fruitless>>),
}

/// The classes that hunt or have failed to find victims.
#[derive(Debug, Default)]
pub(super) struct Hunts {
    by_class: BTreeMap<ClassId, Hunt>,
    /// Hunts that an agent is to continue.
    wanted: BTreeSet<Want>,
    /// Hunts that an agent is working on.
    under_way: BTreeSet<ClassId>,
    /// Number of walks over the parked classes to make, and the class that was visited last.
    walks: u8,
    walked: Option<ClassId>,
    /// The class after which the search for hunts to retry goes on.
    looked_at: Option<ClassId>,
    /// [`Ledger::lowered`] at the last check.
    lowered: u64,
}

/// Agent, priority and class.
type Want = (usize, Reverse<i32>, ClassId);

/// Preemption state of one class.
#[derive(Debug, Default)]
struct Hunt {
    want: Option<Want>,
    /// Pods before this place have been tried.
    from: Option<Place>,
    surveyed: Option<SurveyedNodes>,
    /// Occupancy revision when the latest survey was requested.
    began: Revision,
    /// Failures, by quota of the pods.
    hopeless: BTreeMap<Option<Arc<str>>, Hopeless>,
    /// Consecutive failures.
    failures: u32,
    /// Since when it waits until it is certain that the class fits nowhere.
    put_off: Option<Duration>,
}

/// Number of hunting classes of one agent that a less important pod may have to wait for.
const LOOKING_MAX: usize = 16;

/// A class that fitted nowhere when it was last checked preempts after this time although constraints have loosened
/// since.
const PUT_OFF_MAX: Duration = Duration::from_secs(5);

/// Preemption failed for all pods of the class up to this priority, as of this occupancy revision.
#[derive(Debug)]
struct Hopeless {
    priority: i32,
    /// Whether that includes pods within the guarantee of their quota.
    within: bool,
    revision: Revision,
    until: Duration,
}

impl Attempt {
    pub(in crate::scheduler) fn carry_out(
        &self,
        agent: &mut Agent,
        now: Duration,
        mut lap: impl FnMut(Part),
    ) -> HuntResult {
        let dry_run = |site: &Site| {
            let found = agent.dry_run(&self.class, site, &self.budgets, now);
            lap(Part::DryRun);
            found
        };
        HuntResult::DryRuns(self.sites.iter().map(dry_run).collect())
    }
}

/// Surveys the nodes for a class.
pub(in crate::scheduler) fn survey(
    agent: &mut Agent,
    class: &Arc<Class>,
    (priority, rights): (i32, &Rights),
    now: Duration,
    lap: impl FnMut(Part),
) -> HuntResult {
    HuntResult::Survey(agent.survey(class, priority, &rights.lenders, now, lap))
}

/// Next step of a hunt.
#[derive(Debug)]
pub(super) enum Next {
    /// An agent is to survey the nodes for this priority and these rights.
    Survey(Arc<Class>, i32, Arc<Rights>),
    /// An agent is to evaluate these nodes, which are to be added to the attempt.
    DryRuns(Box<Attempt>, Vec<NodeId>),
    Chosen(Chosen),
}

/// Result of a hunt for one pod.
#[derive(Debug)]
pub(super) enum Chosen {
    /// The pod with this uid can preempt these.
    Victims(Arc<str>, Victims),
    /// No pod up to its priority can preempt any now. The nodes where that is certain.
    Failed(Option<Unhelped>),
}

impl Hunts {
    /// Returns whether preemption for a pod of this class is still to be tried.
    pub(super) fn hunts(&self, class: ClassId) -> bool {
        self.under_way.contains(&class) || self.by_class.get(&class).is_some_and(|hunt| hunt.want.is_some())
    }

    /// Returns the pods (by uid) of higher priority than this for which victims are now sought on this node, one of each
    /// class. Bounded by the agents and [`LOOKING_MAX`] classes for each.
    pub(super) fn looking_at<'a>(
        &'a self,
        node: NodeId,
        priority: i32,
        parked: &'a Parked,
    ) -> impl Iterator<Item = &'a Arc<str>> {
        let mut classes: Vec<ClassId> = self.under_way.iter().copied().collect();
        let mut agent = 0;
        while let Some(first) = self.wanted.range((agent, Reverse(i32::MAX), ClassId(0))..).next() {
            let theirs =
                self.wanted.range(first..).take_while(|want| want.0 == first.0 && want.1.0 > priority);
            classes.extend(theirs.take(LOOKING_MAX).map(|want| want.2));
            agent = first.0 + 1;
        }
        classes.into_iter().filter_map(move |class| {
            let hunt = self.by_class.get(&class)?;
            let there = hunt.surveyed.as_ref().is_none_or(|nodes| nodes.are_to_include(node));
            let pod = parked.get(class)?.pods.range(hunt.from?..).next();
            pod.filter(|_| there).map(|(_, uid)| uid)
        })
    }

    /// Retries failed attempts after a change of quotas or gangs.
    pub(super) fn retry_preemption(&mut self) {
        let hopeless = self.by_class.values_mut().flat_map(|hunt| hunt.hopeless.values_mut());
        hopeless.for_each(|hopeless| hopeless.revision = 0);
    }

    /// Returns whether this parked pod is to try preemption.
    fn may_preempt(&self, pod: &Waiting, cluster: &Cluster, nominations: &Nominations) -> bool {
        let hunt = self.by_class.get(&pod.class.id);
        let hopeless = hunt.and_then(|hunt| hunt.hopeless.get(&pod.holding.quota));
        let reclaims = Guarantees::of(cluster, nominations).may_reclaim(pod);
        cluster.config.preemption
            && cluster.leading
            && pod.policy == PreemptionPolicy::PreemptLowerPriority
            && (reclaims || cluster.ledger.lowest_priority().is_some_and(|lowest| lowest < pod.priority))
            && hopeless.is_none_or(|known| known.priority < pod.priority || known.within != reclaims)
            && !nominations.has(&pod.pod.uid)
            && !pod.holding.devices.as_ref().is_some_and(|claims| {
                // It gets their devices, too.
                cluster.kept_devices.has_other_user(&pod.pod.uid, claims)
            })
            && cluster.over_quota(pod.holding.quota.as_ref(), &pod.holding.usage).is_none()
    }

    /// Starts preemption for this parked pod, once it is certain that its class fits nowhere.
    pub(super) fn start(
        &mut self,
        uid: &str,
        cluster: &Cluster,
        parked: &Parked,
        nominations: &Nominations,
        actions: &mut Vec<Action>,
    ) {
        let may = |pod: &&Waiting| pod.state == State::Parked && self.may_preempt(pod, cluster, nominations);
        let Some(pod) = cluster.waiting.get(uid).filter(may) else {
            return;
        };
        let (class, place) = (pod.class.id, pod.place());
        let hunt = self.by_class.entry(class).or_default();
        hunt.from = Some(hunt.from.map_or(place, |from| from.min(place)));
        self.go_on(class, parked, actions);
    }

    /// Schedules the next step of the class's hunt at an agent.
    pub(super) fn go_on(&mut self, class: ClassId, parked: &Parked, actions: &mut Vec<Action>) {
        let Some(group) = parked.get(class) else {
            return self.forget(class);
        };
        if self.under_way.contains(&class) {
            return;
        }
        let Some(hunt) = self.by_class.get_mut(&class) else {
            return;
        };
        let Some(first) = hunt.from.and_then(|from| group.pods.range(from..).next()) else {
            return;
        };
        let want = (group.agent, first.0.0, class);
        if let Some(former) = hunt.want.replace(want) {
            self.wanted.remove(&former);
        }
        self.wanted.insert(want);
        actions.push(Action::WakeAgent(group.agent));
    }

    fn forget(&mut self, class: ClassId) {
        if let Some(want) = self.by_class.remove(&class).and_then(|hunt| hunt.want) {
            self.wanted.remove(&want);
        }
    }

    /// Returns the next class that hunts at this agent.
    pub(super) fn next_class(
        &mut self,
        agent: usize,
        cluster: &Cluster,
        parked: &Parked,
        now: Duration,
        actions: &mut Vec<Action>,
    ) -> Option<ClassId> {
        loop {
            let first = (agent, Reverse(i32::MAX), ClassId(0));
            let want = *self.wanted.range(first..).next().filter(|want| want.0 == agent)?;
            let class = want.2;
            self.wanted.remove(&want);
            let Some(hunt) = self.by_class.get_mut(&class) else {
                continue;
            };
            hunt.want = None;
            match parked.get(class) {
                None => self.forget(class),
                Some(group) if group.agent != agent => self.go_on(class, parked, actions),
                Some(group) => {
                    if group.is_certain(cluster.inventory().loosened()) {
                        hunt.put_off = None;
                        return Some(class);
                    }
                    // While constraints loosen all the time, nothing is ever certain: then the last check suffices.
                    let put_off = *hunt.put_off.get_or_insert(now);
                    if group.probe.is_none() && now.saturating_sub(put_off) >= PUT_OFF_MAX {
                        return Some(class);
                    }
                    // The check of the class comes first, and reports.
                }
            }
        }
    }

    /// Returns the next step for the first untried pod of the class. Call again after carrying out a choice.
    pub(super) fn step(
        &mut self,
        class: ClassId,
        cluster: &Cluster,
        parked: &Parked,
        nominations: &Nominations,
        now: Duration,
    ) -> Option<Next> {
        let (place, uid) = self.next_preemptor(class, cluster, parked, nominations)?;
        let pod = cluster.waiting.get(&uid)?;
        let guarantees = Guarantees::of(cluster, nominations);
        let (class, priority, rights) = (pod.class.clone(), pod.priority, guarantees.rights_of(pod));
        let reclaims = guarantees.may_reclaim(pod);
        let revision = cluster.inventory().revision();
        let suits = |nodes: &&mut SurveyedNodes| nodes.suits(&uid, (priority, &rights), revision, now);
        let hunt = self.by_class.get_mut(&class.id)?;
        hunt.from = Some(place);
        let Some(surveyed) = hunt.surveyed.as_mut().filter(suits) else {
            (hunt.began, hunt.surveyed) = (cluster.ledger.occupancy(), None);
            self.under_way.insert(class.id);
            return Some(Next::Survey(class, priority, rights.into()));
        };
        let rights = surveyed.serve(&uid);
        let nodes = surveyed.nodes_to_evaluate(&class, cluster);
        if !nodes.is_empty() {
            self.under_way.insert(class.id);
            let (sites, budgets) = (Vec::new(), cluster.objects.budgets.clone());
            let attempt = Attempt { class, uid, priority, rights, sites, budgets };
            return Some(Next::DryRuns(Box::new(attempt), nodes));
        }
        Some(Next::Chosen(match surveyed.take_cheapest() {
            Some(victims) => Chosen::Victims(uid, victims),
            None => Chosen::Failed(hunt.gave_up(priority, (rights.quota.clone(), reclaims), now)),
        }))
    }

    /// Returns the first parked pod of the class that is to try preemption.
    fn next_preemptor(
        &mut self,
        class: ClassId,
        cluster: &Cluster,
        parked: &Parked,
        nominations: &Nominations,
    ) -> Option<(Place, Arc<str>)> {
        let from = self.by_class.get(&class)?.from?;
        let group = parked.get(class)?;
        let eligible = |uid: &Arc<str>| {
            cluster.waiting.get(uid).is_some_and(|pod| self.may_preempt(pod, cluster, nominations))
        };
        let next = group.pods.range(from..).find(|(_, uid)| eligible(uid));
        let next = next.map(|(place, uid)| (*place, uid.clone()));
        if next.is_none()
            && let Some(hunt) = self.by_class.get_mut(&class)
        {
            (hunt.from, hunt.surveyed) = (None, None);
        }
        next
    }

    /// Records that a pod of the class was nominated.
    pub(super) fn succeeded(&mut self, class: ClassId) {
        if let Some(hunt) = self.by_class.get_mut(&class) {
            hunt.failures = 0;
        }
    }

    /// Removes a node whose victims may no longer be preempted. The next survey adds it again.
    pub(super) fn leave_out(&mut self, class: ClassId, node: NodeId) {
        let hunt = self.by_class.get_mut(&class);
        if let Some(surveyed) = hunt.and_then(|hunt| hunt.surveyed.as_mut()) {
            surveyed.leave_out(node);
        }
    }

    /// Records that an agent has finished a step of the class. Returns whether the class still hunts.
    pub(super) fn step_ended(&mut self, class: ClassId) -> bool {
        self.under_way.remove(&class);
        self.by_class.contains_key(&class)
    }

    /// Records a survey of the nodes for this priority and these rights.
    pub(super) fn surveyed(
        &mut self,
        class: ClassId,
        by: (i32, &Arc<Rights>),
        survey: Survey,
        seen: Revision,
        now: Duration,
    ) {
        if let Some(hunt) = self.by_class.get_mut(&class) {
            hunt.surveyed = Some(SurveyedNodes::new(by, survey, seen, now));
        }
    }

    /// Records the dry runs on some nodes.
    pub(super) fn evaluated(
        &mut self,
        attempt: &Attempt,
        found: Vec<Result<Victims, Fruitless>>,
        seen: Revision,
    ) {
        let hunt = self.by_class.get_mut(&attempt.class.id);
        if let Some(surveyed) = hunt.and_then(|hunt| hunt.surveyed.as_mut()) {
            surveyed.add(attempt, found, seen);
        }
    }

    /// Returns the victims on the cheapest node that is unchanged since its dry run, for the pod of the attempt.
    /// Changes elsewhere are ignored, as upstream does.
    pub(super) fn choose(
        &mut self,
        attempt: &Attempt,
        cluster: &Cluster,
        nominations: &Nominations,
        now: Duration,
    ) -> Option<Chosen> {
        let class = attempt.class.id;
        let guarantees = Guarantees::of(cluster, nominations);
        let still_wants = |pod: &&Waiting| {
            pod.state == State::Parked
                && pod.class.id == class
                && pod.priority == attempt.priority
                && self.may_preempt(pod, cluster, nominations)
                && guarantees.rights_of(pod) == *attempt.rights
        };
        let pod = cluster.waiting.get(&attempt.uid).filter(still_wants)?;
        let reclaims = guarantees.may_reclaim(pod);
        let hunt = self.by_class.get_mut(&class)?;
        let surveyed = hunt.surveyed.as_mut()?;
        surveyed.drop_changed(cluster);
        let more = surveyed.has_candidates();
        match surveyed.take_cheapest() {
            Some(victims) => Some(Chosen::Victims(attempt.uid.clone(), victims)),
            None if more => None,
            None => {
                let quota = attempt.rights.quota.clone();
                Some(Chosen::Failed(hunt.gave_up(attempt.priority, (quota, reclaims), now)))
            }
        }
    }

    /// Tries preemption for all parked classes. A walk that has begun goes on: another one follows.
    pub(super) fn walk_all(&mut self) {
        self.walks = (self.walks + 1).min(2);
    }

    /// Returns whether a pod with a new lowest priority has a node: preemption that failed before may succeed now.
    pub(super) fn less_important_came(&mut self, ledger: &Ledger) -> bool {
        // Not the lowest priority itself: between two checks, the last such pod may leave and another one come.
        std::mem::replace(&mut self.lowered, ledger.lowered()) != ledger.lowered()
    }

    /// Retries classes whose preemption failed, if something changed. `lower`: pods of a new lowest priority were
    /// added.
    pub(super) fn retry(
        &mut self,
        lower: bool,
        cluster: &Cluster,
        parked: &Parked,
        now: Duration,
        actions: &mut Vec<Action>,
    ) {
        if lower {
            self.walk_all();
        }
        self.carry_on_walk(parked, actions);
        let revision = cluster.ledger.occupancy();
        let over = |known: &Hopeless| known.until <= now && known.revision != revision;
        let after = self.looked_at.take().map_or(Bound::Unbounded, Bound::Excluded);
        let slice = self.by_class.range((after, Bound::Unbounded)).take(SLICE_MAX);
        let slice: Vec<_> = slice.map(|(class, hunt)| (*class, hunt.hopeless.values().any(over))).collect();
        self.looked_at = slice.last().filter(|_| slice.len() == SLICE_MAX).map(|(class, _)| *class);
        for (class, is_due) in slice {
            if parked.get(class).is_none() {
                self.forget(class);
                continue;
            }
            if !is_due {
                continue;
            }
            let first = parked.get(class).and_then(|group| group.pods.values().next());
            if let Some(hunt) = self.by_class.get_mut(&class) {
                hunt.hopeless.retain(|_, known| !over(known));
                if let Some(uid) = first {
                    hunt.from = cluster.waiting.get(uid).map(Waiting::place);
                }
            }
            if first.is_some() {
                self.go_on(class, parked, actions);
            }
        }
    }

    /// Starts preemption for the next parked classes, if pods of a new lowest priority came to nodes. Which of their pods may preempt,
    /// if any, their hunts find out.
    fn carry_on_walk(&mut self, parked: &Parked, actions: &mut Vec<Action>) {
        if self.walks == 0 {
            return;
        }
        let groups = parked.groups_after(self.walked).take(SLICE_MAX);
        let first = |group: &ParkedGroup| (group.class.id, group.pods.keys().next().copied());
        let slice: Vec<_> = groups.map(first).collect();
        self.walked = slice.last().filter(|_| slice.len() == SLICE_MAX).map(|(class, _)| *class);
        if self.walked.is_none() {
            self.walks -= 1;
        }
        for (class, place) in slice.into_iter().filter_map(|(class, place)| Some((class, place?))) {
            self.by_class.entry(class).or_default().from = Some(place);
            self.go_on(class, parked, actions);
        }
    }
}

impl Hunt {
    /// Records that preemption fails now for pods of this quota up to this priority, within its guarantee or not.
    fn gave_up(
        &mut self,
        priority: i32,
        (quota, within): (Option<Arc<str>>, bool),
        now: Duration,
    ) -> Option<Unhelped> {
        let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(8)).min(LONGEST_PAUSE);
        self.failures += 1;
        self.hopeless.insert(quota, Hopeless { priority, within, revision: self.began, until: now + pause });
        Some(self.surveyed.take()?.into_unhelped())
    }
}
