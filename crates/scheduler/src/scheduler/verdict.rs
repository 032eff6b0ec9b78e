//! Verdict on one pod: what the scheduler would decide and why, for `explain` and for tests that compare.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::gangs::GangInquiry;
use super::{PodRefusal, Scheduler};
use crate::agent::{Agent, AgentChoice};
use crate::class::{Class, ClassId};
use crate::inventory::NodeId;
use crate::rules::{self, Reasons, Scores, Standing};
use berth_model::{ClaimName, Pod, PreemptionPolicy, Preference};

/// Complete result for one pod on the cluster as it is.
#[derive(Debug, Clone)]
pub struct Verdict {
    pub class: ClassId,
    /// Policy that governs it, if any.
    pub policy: Option<Arc<str>>,
    /// Preferences between nodes, most important first.
    pub order: Vec<Preference>,
    /// Reason why it is not scheduled at all, on any node.
    pub refused: Option<Arc<str>>,
    /// Node it would get.
    pub chosen: Option<Arc<str>>,
    /// Valid nodes, best first.
    pub feasible: Vec<NodeCandidate>,
    /// Reasons why each other node is not valid, in kube-scheduler's words.
    pub reasons: BTreeMap<Arc<str>, Vec<String>>,
    /// Message of its condition if no node is valid.
    pub message: Option<String>,
    /// What its gang waits for, or that it fits, if it is a member of one.
    pub gang: Option<Arc<str>>,
}

#[derive(Debug, Clone)]
pub struct NodeCandidate {
    pub node: Arc<str>,
    pub standing: Standing,
    pub scores: Scores,
}

/// Inputs of a verdict from the scheduler's state. The agent, which has caught up, evaluates them without the lock.
#[derive(Debug)]
pub(crate) struct Inquiry {
    class: Arc<Class>,
    policy: Option<Arc<str>>,
    refused: Option<Arc<str>>,
    preemption: PreemptionPolicy,
    gang: Option<GangInquiry>,
}

/// Standing of each node, or the reasons why it is not valid, by id.
pub type Standings = Vec<(NodeId, Result<Standing, Reasons>)>;

impl Scheduler {
    /// Evaluates `pod`, which may be unknown to the scheduler, with the lists of `agent`. Changes only the caches of
    /// the agent and the classifier.
    pub fn verdict(&mut self, agent: &mut Agent, pod: &Pod) -> Verdict {
        let inquiry = self.inquire(agent, pod);
        inquiry.verdict(agent, |node| self.inventory().name(node))
    }

    /// Classifies the pod and lets the agent catch up.
    pub(crate) fn inquire(&mut self, agent: &mut Agent, pod: &Pod) -> Inquiry {
        let class = self.class_of(pod);
        agent.catch_up(self.cluster.ledger.inventory());
        // What refuses it here and now is known of a pod that waits.
        let refusal = PodRefusal::of(pod).or_else(|| {
            self.cluster.waiting.get(&pod.uid).and_then(|waiting| waiting.state.refusal().cloned())
        });
        let refused = refusal.map(|why| why.to_string().into());
        let refused = refused.or_else(|| self.quota_refusal(pod)).or_else(|| self.held_back_reason(&pod.uid));
        let gang = self.inquire_gang(&pod.uid);
        Inquiry { class, policy: self.policy_of(pod), refused, preemption: pod.preemption_policy, gang }
    }

    /// Returns the pod of this name without a node, of this or another scheduler, and its queue.
    pub fn find_waiting(&self, namespace: &str, name: &str) -> Option<(Pod, &'static str)> {
        let named = |pod: &Pod| *pod.namespace == *namespace && *pod.name == *name;
        let ours = self.cluster.waiting.values().find(|waiting| named(&waiting.source));
        ours.map(|waiting| (Pod::clone(&waiting.source), waiting.state.name())).or_else(|| {
            let theirs = self.foreign.pods().find(|pod| named(pod))?;
            Some((theirs.clone(), "of another scheduler"))
        })
    }

    /// Returns the reason why its quota does not admit it.
    fn quota_refusal(&mut self, pod: &Pod) -> Option<Arc<str>> {
        let holding = self.cluster.objects.holding(pod);
        let quota = holding.quota.as_ref()?;
        Some(self.cluster.over_quota(Some(quota), &holding.usage)?.message(quota).into())
    }

    /// Returns the current class of the pod.
    pub fn class_of(&mut self, pod: &Pod) -> Arc<Class> {
        let used = |claim: &ClaimName| self.cluster.ledger.is_used(claim);
        let spec = self.cluster.objects.effective_spec(&pod.spec.clone().unwrap_or_default(), pod, &used);
        let holding = self.cluster.objects.holding(pod);
        self.classify(pod, &spec, &holding)
    }

    /// Returns the class and the standing of each node, or the reasons why it is not valid, by id: the data of a
    /// verdict without texts.
    pub fn standings(&mut self, agent: &mut Agent, pod: &Pod) -> (Arc<Class>, Standings) {
        let class = self.class_of(pod);
        agent.catch_up(self.cluster.ledger.inventory());
        agent.choose(&class, Duration::ZERO, |_| {});
        let standings = agent.standings(class.id);
        (class, standings)
    }
}

impl Inquiry {
    /// `agent` has caught up and nothing else since; `name` returns the name of a node as of then.
    pub(crate) fn verdict<'a>(self, agent: &mut Agent, name: impl Fn(NodeId) -> &'a Arc<str>) -> Verdict {
        let Inquiry { class, policy, refused, preemption, gang } = self;
        let (chosen, message) = match agent.choose(&class, Duration::ZERO, |_| {}) {
            // Of a few among which an agent chooses, the best.
            AgentChoice::Node { node, .. } => {
                let best = agent.best(class.id).unwrap_or(node);
                (Some(name(best).clone()), None)
            }
            AgentChoice::Nowhere(diagnosis) => (None, Some(diagnosis.message(&class, preemption))),
        };
        let (mut feasible, mut reasons) = (Vec::new(), BTreeMap::new());
        for (id, standing) in agent.standings(class.id) {
            let node = name(id).clone();
            match standing {
                Ok(standing) => {
                    let scores = standing.scores(class.placement.layout());
                    feasible.push(NodeCandidate { node, standing, scores });
                }
                Err(why) => {
                    let mut texts = why.texts(&class);
                    if why.has(Reasons::NO_DEVICES) {
                        texts.extend(rules::device_shortage(&class, agent.view().row(id)));
                    }
                    reasons.insert(node, texts);
                }
            }
        }
        feasible.sort_by_key(|candidate| candidate.standing);
        let order = class.placement.order.preferences().iter().map(|(preference, _)| *preference).collect();
        let gang = gang.map(|gang| gang.answer(agent));
        Verdict { class: class.id, policy, order, refused, chosen, feasible, reasons, message, gang }
    }
}
