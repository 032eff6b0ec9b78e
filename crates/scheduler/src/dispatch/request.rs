//! Requests to agents, and searches that agents carry out besides.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Expected;
use crate::agent::Part;
use crate::class::Class;

/// A pod, or all waiting members of a gang, for one agent to place.
#[derive(Debug, Clone)]
pub struct Request {
    pub uid: Arc<str>,
    /// Class of the pod; of a gang, that of its first member.
    pub class: Arc<Class>,
    /// Classes of the gang's other members, each once.
    pub others: Box<[Arc<Class>]>,
    pub pods: u32,
    /// Estimate made when the agent was chosen; `None`: the dispatcher does not estimate.
    pub expected: Option<Expected>,
}

impl Request {
    pub fn of_pod(uid: &Arc<str>, class: &Arc<Class>) -> Self {
        Request { uid: uid.clone(), class: class.clone(), others: Box::default(), pods: 1, expected: None }
    }

    /// Returns the request of a gang with a member of each of these classes; `None`: it has no member.
    pub fn of_gang<'a>(uid: &Arc<str>, members: impl Iterator<Item = &'a Arc<Class>>) -> Option<Self> {
        let (mut known, mut pods) = (BTreeSet::new(), 0);
        let members = members.inspect(|_| pods += 1);
        let mut classes = members.filter(|class| known.insert(class.id)).cloned();
        let (class, others) = (classes.next()?, classes.collect());
        Some(Request { uid: uid.clone(), class, others, pods, expected: None })
    }

    /// Returns each of its classes once.
    pub fn classes(&self) -> impl Iterator<Item = &Arc<Class>> {
        std::iter::once(&self.class).chain(&self.others)
    }
}

/// Work of an agent that waits in no queue: a check of a parked class, or a step of preemption.
#[derive(Debug)]
pub struct Search<'a> {
    /// Classes whose lists it uses, each once.
    pub classes: Vec<&'a Arc<Class>>,
    /// Work besides the lists, and how many times.
    pub parts: Option<(Part, u32)>,
}
