//! What the scheduler would decide about one pod, and why: for people who ask, and for tests that compare.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::Scheduler;
use super::cluster_events::refusal;
use crate::agent::{Agent, Choice};
use crate::class::{Class, ClassId};
use crate::inventory::NodeId;
use crate::rules::{Reasons, Scores, Standing};
use berth_model::{ClaimName, Pod, PreemptionPolicy, Preference};

/// Everything there is to say of one pod on the cluster as it is.
#[derive(Debug, Clone)]
pub struct Verdict {
    pub class: ClassId,
    /// The policy that governs it, if one does.
    pub policy: Option<Arc<str>>,
    /// What makes a node better for it, most important first.
    pub order: Vec<Preference>,
    /// Why it is not scheduled at all, wherever there is room.
    pub refused: Option<Arc<str>>,
    /// The node it would get.
    pub chosen: Option<Arc<str>>,
    /// The nodes it may go to, best first.
    pub feasible: Vec<Candidate>,
    /// Why each other node is out, in kube-scheduler's words.
    pub reasons: BTreeMap<Arc<str>, Vec<String>>,
    /// What it is told if there is no node for it.
    pub message: Option<String>,
}

#[derive(Debug, Clone)]
pub struct Candidate {
    pub node: Arc<str>,
    pub standing: Standing,
    pub scores: Scores,
}

/// What a verdict needs of the scheduler. The agent, which has caught up, makes the verdict of it.
#[derive(Debug)]
pub(crate) struct Inquiry {
    class: Arc<Class>,
    policy: Option<Arc<str>>,
    refused: Option<Arc<str>>,
    preemption: PreemptionPolicy,
}

/// Where each node stands, or why it is out, by id.
pub type Standings = Vec<(NodeId, Result<Standing, Reasons>)>;

impl Scheduler {
    /// Asks `agent`, which sees the cluster through its own lists, about `pod`, which need not be known. Changes nothing but
    /// what the agent and the classifier remember.
    pub fn verdict(&mut self, agent: &mut Agent, pod: &Pod) -> Verdict {
        let inquiry = self.inquire(agent, pod);
        inquiry.verdict(agent, |node| self.inventory().name(node))
    }

    /// Classifies the pod and lets the agent catch up.
    pub(crate) fn inquire(&mut self, agent: &mut Agent, pod: &Pod) -> Inquiry {
        let class = self.class_of(pod);
        agent.catch_up(self.ledger.inventory());
        let refused = self.refusal(pod).or_else(|| self.quota_refusal(pod));
        Inquiry { class, policy: self.policy_of(pod), refused, preemption: pod.preemption_policy }
    }

    /// The pod of this name if it has no node, ours or another scheduler's, and where it waits.
    pub fn find_waiting(&self, namespace: &str, name: &str) -> Option<(Pod, &'static str)> {
        let named = |pod: &Pod| *pod.namespace == *namespace && *pod.name == *name;
        let ours = self.waiting.values().find(|waiting| named(&waiting.source));
        ours.map(|waiting| (Pod::clone(&waiting.source), waiting.state.name())).or_else(|| {
            let theirs = self.others.pods().find(|pod| named(pod))?;
            Some((theirs.clone(), "of another scheduler"))
        })
    }

    /// Why the pod is not scheduled at all, wherever there is room.
    pub fn refusal(&self, pod: &Pod) -> Option<Arc<str>> {
        refusal(&pod.spec)
    }

    /// Why there is no room for it in its quota.
    fn quota_refusal(&mut self, pod: &Pod) -> Option<Arc<str>> {
        let holding = self.objects.holding(pod);
        let quota = holding.quota.as_ref()?;
        Some(self.over_quota(Some(quota), &holding.usage)?.message(quota).into())
    }

    /// The class that the pod is of now.
    pub fn class_of(&mut self, pod: &Pod) -> Arc<Class> {
        let used = |claim: &ClaimName| self.ledger.is_used(claim);
        let spec = self.objects.wishes(&pod.spec.clone().unwrap_or_default(), pod, &used);
        let holding = self.objects.holding(pod);
        self.classifier.note_terms(&pod.peer.affinity);
        self.classify(pod, &spec, &holding)
    }

    /// Where each node stands for the pod, or why it is out, by id: what a verdict is made of, without the words.
    pub fn standings(&mut self, agent: &mut Agent, pod: &Pod) -> (Arc<Class>, Standings) {
        let class = self.class_of(pod);
        agent.catch_up(self.ledger.inventory());
        agent.choose(&class, Duration::ZERO, |_| {});
        let standings = agent.standings(class.id);
        (class, standings)
    }
}

impl Inquiry {
    /// `agent` has caught up and nothing else since; `name` returns the name of a node as of then.
    pub(crate) fn verdict<'a>(self, agent: &mut Agent, name: impl Fn(NodeId) -> &'a Arc<str>) -> Verdict {
        let Inquiry { class, policy, refused, preemption } = self;
        let (chosen, message) = match agent.choose(&class, Duration::ZERO, |_| {}) {
            // Of a few among which an agent chooses, the best.
            Choice::Node { node, .. } => {
                let best = agent.best(class.id).unwrap_or(node);
                (Some(name(best).clone()), None)
            }
            Choice::Nowhere(diagnosis) => (None, Some(diagnosis.message(&class, preemption))),
        };
        let (mut feasible, mut reasons) = (Vec::new(), BTreeMap::new());
        for (id, standing) in agent.standings(class.id) {
            let node = name(id).clone();
            match standing {
                Ok(standing) => {
                    let scores = standing.scores(class.placement.layout());
                    feasible.push(Candidate { node, standing, scores });
                }
                Err(why) => {
                    reasons.insert(node, why.texts(&class));
                }
            }
        }
        feasible.sort_by_key(|candidate| candidate.standing);
        let order = class.placement.order.preferences().iter().map(|(preference, _)| *preference).collect();
        Verdict { class: class.id, policy, order, refused, chosen, feasible, reasons, message }
    }
}
