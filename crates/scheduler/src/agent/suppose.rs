//! Answers of the agent for hypothetical pods on nodes: preemption, and moves of pods.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::{Agent, AgentChoice, Part};
use crate::class::{Class, ClassId};
use crate::gang::{GangPlan, WantedMembers};
use crate::inventory::{NodeId, Occupant};
use crate::objects::{Budgets, Spending};
use crate::preempt::{self, Fruitless, Ground, Potential, Site, Survey, Victims};
use crate::rules::{self, Reasons, Standing};
use berth_model::Holding;

/// Alteration of one node, on top of earlier alterations. Reverted on drop.
struct Supposed<'a> {
    agent: &'a mut Agent,
    class: ClassId,
    site: &'a Site,
    /// Uids of the pods that are gone.
    gone: BTreeSet<Arc<str>>,
    /// Number of earlier alterations.
    before: usize,
}

impl Ground for Supposed<'_> {
    fn remove(&mut self, pods: &mut dyn Iterator<Item = &Occupant>) {
        let Supposed { agent, site, gone, .. } = self;
        agent.view.alter(site.node, |row| {
            for pod in pods {
                row.discharge(&pod.holding);
                gone.insert(pod.pod.uid.clone());
            }
            site.free_without(gone, row);
        });
    }

    fn admits(&mut self) -> bool {
        let agent = &mut *self.agent;
        agent.refresh(self.class)
            && agent.list(self.class).is_some_and(|list| list.admits(&agent.domains, self.site.node))
    }

    fn reasons(&mut self) -> Reasons {
        self.agent.refresh(self.class);
        let standing =
            self.agent.standings_of(self.class, [Some(self.site.node)].into_iter()).pop().flatten();
        standing.and_then(Result::err).unwrap_or(Reasons::NONE)
    }

    fn put_back(&mut self, pods: &mut dyn Iterator<Item = &Occupant>) -> bool {
        let Supposed { agent, site, gone, .. } = self;
        let before = agent.view.alterations();
        let mut back = BTreeSet::new();
        agent.view.alter(site.node, |row| {
            for pod in pods {
                row.charge(&pod.holding);
                back.insert(pod.pod.uid.clone());
            }
            site.use_again(&back, gone, row);
        });
        let admits = self.admits();
        match admits {
            true => self.gone.retain(|uid| !back.contains(uid)),
            false => self.agent.view.restore_to(before),
        }
        admits
    }
}

impl Drop for Supposed<'_> {
    fn drop(&mut self) {
        self.agent.view.restore_to(self.before);
    }
}

/// Step-by-step alterations of the view.
impl Agent {
    /// Removes the pod from the node in the view.
    pub fn suppose_gone(&mut self, node: NodeId, pod: &Holding) {
        self.view.alter(node, |row| row.discharge(pod));
    }

    /// Removes the pods with these uids from a site in the view, with what becomes free then. Returns the site without them.
    pub fn suppose_evicted(&mut self, site: Site, gone: &BTreeSet<Arc<str>>) -> Site {
        let is_gone = |known: &Potential| gone.contains(&known.pod.pod.uid);
        if !site.pods.iter().any(is_gone) {
            return site.left_without(gone);
        }
        self.view.alter(site.node, |row| {
            for known in site.pods.iter().filter(|known| is_gone(known)) {
                row.discharge(&known.pod.holding);
            }
            site.free_without(gone, row);
        });
        site.left_without(gone)
    }

    /// Adds the pod to the node in the view.
    pub fn suppose_there(&mut self, node: NodeId, pod: &Holding) {
        self.view.alter(node, |row| row.charge(pod));
    }

    /// Adds a new pod of this class to the node in the view, with the devices that it would get there.
    pub fn suppose_placed(&mut self, node: NodeId, class: &Class, pod: &Holding) {
        self.view.alter(node, |row| {
            rules::take_devices(class, row);
            row.charge(pod);
        });
    }

    /// Places all of `wanted`, or as many as are needed, on the altered view; if they are enough, they stay there.
    pub fn suppose_all(&mut self, wanted: &WantedMembers, now: Duration) -> GangPlan {
        let plan = self.plan_upon(wanted, None, now, |_| {});
        if plan.complete {
            for (at, node) in &plan.places {
                let member = &wanted.members[*at];
                self.suppose_placed(*node, &member.class, &member.holding);
            }
        }
        plan
    }

    /// Returns the number of alterations.
    pub fn supposed(&self) -> usize {
        self.view.alterations()
    }

    /// Reverts all alterations but the first `steps`.
    pub fn suppose_only(&mut self, steps: usize) {
        self.view.restore_to(steps);
    }

    pub fn suppose_nothing(&mut self) {
        self.view.restore();
    }

    fn up_to_date(&mut self, class: &Arc<Class>) {
        if !self.refresh(class.id) {
            self.cache.list(class, &self.view, &mut self.domains, Duration::ZERO, |_| {});
        }
    }

    /// Returns whether the class may go to the node on the altered view.
    pub fn admits_now(&mut self, class: &Arc<Class>, node: NodeId) -> bool {
        self.up_to_date(class);
        self.list(class.id).is_some_and(|list| list.admits(&self.domains, node))
    }

    /// Returns the best node for the class except this one, on the altered view.
    pub fn best_but(&mut self, class: &Arc<Class>, but: NodeId) -> Option<NodeId> {
        self.up_to_date(class);
        let best = self.cache.peek(class.id)?.best_k(&self.domains, 2);
        best.into_iter().map(|(node, _)| node).find(|node| *node != but)
    }

    /// Returns the standing of each node for the class, or the reasons why it is not valid, on the altered view.
    pub fn standings_now(&mut self, class: &Arc<Class>) -> Vec<(NodeId, Result<Standing, Reasons>)> {
        self.up_to_date(class);
        self.standings(class.id)
    }
}

impl Agent {
    /// Returns the nodes where preemption by a pod of this class and priority could help; pods of the quotas `lenders`
    /// may be preempted too. `Err`: the pod fits without preemption.
    pub fn survey(
        &mut self,
        class: &Arc<Class>,
        priority: i32,
        lenders: &[Arc<str>],
        now: Duration,
        mut lap: impl FnMut(Part),
    ) -> Result<Survey, AgentChoice> {
        let choice = self.choose(class, now, &mut lap);
        if matches!(choice, AgentChoice::Node { .. }) {
            return Err(choice);
        }
        let standings = self.standings(class.id);
        let nodes = standings.iter().filter_map(|(id, standing)| {
            let reasons = *standing.as_ref().err()?;
            Some((*id, self.view.row(*id), Some(reasons)))
        });
        let survey = preempt::survey(class, priority, lenders, self.salt, nodes);
        lap(Part::Survey);
        Ok(survey)
    }

    /// Returns the victims that a pod of this class must preempt at `site`.
    ///
    /// # Errors
    /// The reasons why the pod cannot go there even with preemption.
    pub fn dry_run(
        &mut self,
        class: &Arc<Class>,
        site: &Site,
        budgets: &Budgets,
        now: Duration,
    ) -> Result<Victims, Fruitless> {
        self.freshen(class, now);
        self.dry_run_beside(class.id, site, budgets.spending())
    }

    /// Does the same on top of existing alterations, for a class whose list is cached.
    pub(super) fn dry_run_beside(
        &mut self,
        class: ClassId,
        site: &Site,
        spending: Spending,
    ) -> Result<Victims, Fruitless> {
        let before = self.view.alterations();
        let mut ground = Supposed { agent: self, class, site, gone: BTreeSet::new(), before };
        preempt::dry_run(&mut ground, site, spending)
    }
}
