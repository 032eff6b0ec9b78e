//! What the agent answers about a node without some of its pods: preemption.

use std::sync::Arc;
use std::time::Duration;

use super::{Agent, Choice, Part};
use crate::class::{Class, ClassId};
use crate::inventory::NodeId;
use crate::model::Holding;
use crate::objects::{Budgets, Spending};
use crate::preempt::{self, Fruitless, Ground, Site, Survey, Victims};
use crate::rules::Reasons;

/// One node as it would be, beside what is supposed already. Taken back when it is dropped.
struct Supposed<'a> {
    agent: &'a mut Agent,
    class: ClassId,
    node: NodeId,
    /// What was supposed before.
    before: usize,
}

impl Ground for Supposed<'_> {
    fn remove(&mut self, pods: &mut dyn Iterator<Item = &Holding>) {
        self.agent.view.alter(self.node, |row| pods.for_each(|pod| row.discharge(pod)));
    }

    fn admits(&mut self) -> bool {
        let agent = &mut *self.agent;
        agent.refresh(self.class)
            && agent.list(self.class).is_some_and(|list| list.admits(&agent.domains, self.node))
    }

    fn reasons(&mut self) -> Reasons {
        self.agent.refresh(self.class);
        let standing = self.agent.standings_of(self.class, [Some(self.node)].into_iter()).pop().flatten();
        standing.and_then(Result::err).unwrap_or(Reasons::NONE)
    }

    fn put_back(&mut self, pods: &mut dyn Iterator<Item = &Holding>) -> bool {
        let before = self.agent.view.alterations();
        self.agent.view.alter(self.node, |row| pods.for_each(|pod| row.charge(pod)));
        let admits = self.admits();
        if !admits {
            self.agent.view.restore_to(before);
        }
        admits
    }
}

impl Drop for Supposed<'_> {
    fn drop(&mut self) {
        self.agent.view.restore_to(self.before);
    }
}

impl Agent {
    /// Where preemption by a pod of this class and priority could help, which may also preempt pods of these quotas. `Err`: there is room for it without.
    pub fn survey(
        &mut self,
        class: &Arc<Class>,
        priority: i32,
        lenders: &[Arc<str>],
        now: Duration,
        lap: impl FnMut(Part),
    ) -> Result<Survey, Choice> {
        let choice = self.choose(class, now, lap);
        if matches!(choice, Choice::Node { .. }) {
            return Err(choice);
        }
        let standings = self.standings(class.id);
        let nodes = standings.iter().filter_map(|(id, standing)| {
            let reasons = *standing.as_ref().err()?;
            Some((*id, self.view.row(*id), Some(reasons)))
        });
        Ok(preempt::survey(class, priority, lenders, self.salt, nodes))
    }

    /// What a pod of this class must preempt at `site` to go there.
    ///
    /// # Errors
    /// Why it cannot go there, whatever it preempts.
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

    /// The same beside what is supposed already, for a class whose list is cached.
    pub(super) fn dry_run_beside(
        &mut self,
        class: ClassId,
        site: &Site,
        spending: Spending,
    ) -> Result<Victims, Fruitless> {
        let before = self.view.alterations();
        let mut ground = Supposed { agent: self, class, node: site.node, before };
        preempt::dry_run(&mut ground, site, spending)
    }
}
