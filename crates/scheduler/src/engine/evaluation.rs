//! Evaluation of nodes for pods by an agent of the caller: extender, explain and fit.
//!
//! The lock is held to classify the pod and to copy the rows that changed since the agent's last call (all rows at first). The agent
//! evaluates the nodes, and texts are made, without it.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use super::{Engine, Operation};
use crate::agent::Agent;
use crate::class::Class;
use crate::decisions::{DecisionPage, PlacementDecision};
use crate::inventory::NodeId;
use crate::objects::{Budgets, ClusterObject};
use crate::preempt::Site;
use crate::recording::Input;
use crate::rules::{Reasons, Standing};
use crate::scheduler::{PodRefusal, Scheduler, SupposedPod, Verdict};
use berth_model::Pod;

/// What an agent needs to evaluate nodes for a pod, as of the rows that it has just copied.
pub struct Evaluation {
    pub class: Arc<Class>,
    /// Standing of the node that another scheduler has nominated for the pod, without the room reserved for the pod itself.
    pub nominated: Option<(NodeId, Result<Standing, Reasons>)>,
    pub now: Duration,
    /// `None`: the names are those of the caller's version.
    pub names: Option<NodeNames>,
}

/// Reason why no node can be evaluated for a pod.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EvaluationError {
    #[error("berth has not listed all nodes and pods yet")]
    NotSynced,
    #[error(transparent)]
    Refused(#[from] PodRefusal),
}

/// The names of all nodes that have an id.
pub struct NodeNames {
    pub version: u64,
    pub by_id: Vec<(NodeId, Arc<str>)>,
}

impl Engine {
    /// Prepares `agent` to evaluate nodes for a pod of another scheduler. Changes only the agent and the classifier. Bounded by the
    /// changed rows, and by the nodes if a node name has changed since version `named`.
    ///
    /// # Errors
    /// Why the pod cannot be evaluated.
    pub fn begin_evaluation(
        &self,
        agent: &mut Agent,
        pod: &Pod,
        named: Option<u64>,
    ) -> Result<Evaluation, EvaluationError> {
        self.approach(Operation::Evaluation, agent);
        let heard = self.heard(|| Input::Evaluate(Cow::Borrowed(pod)));
        self.hear(Operation::Evaluation, heard, |scheduler, now| {
            let class = classified(scheduler, pod)?;
            let nominated = scheduler.nominated(&class, pod);
            let inventory = scheduler.inventory();
            agent.catch_up(inventory);
            let version = inventory.named();
            let names = (named != Some(version)).then(|| NodeNames {
                version,
                by_id: inventory.names().map(|(id, name)| (id, name.clone())).collect(),
            });
            Ok(Evaluation { class, nominated, now, names })
        })
    }

    /// Returns for each candidate, a node and the uids of victims on it, whether the pod fits the node without the victims. Rules about
    /// pods of other nodes are not evaluated. Changes only the classifier. Bounded by the candidates and their victims.
    ///
    /// # Errors
    /// Why the pod cannot be evaluated.
    pub fn admits_without(
        &self,
        pod: &Pod,
        candidates: &[(&str, Vec<&str>)],
    ) -> Result<Vec<bool>, EvaluationError> {
        let heard = self.heard(|| Input::Evaluate(Cow::Borrowed(pod)));
        self.hear(Operation::Evaluation, heard, |scheduler, _| {
            let class = classified(scheduler, pod)?;
            let admits =
                |(node, victims): &(&str, Vec<&str>)| scheduler.admits_without(&class, pod, node, victims);
            Ok(candidates.iter().map(admits).collect())
        })
    }

    /// Returns what would be known of a pod that does not exist, if the objects `beside` it existed, too. Changes only the classifier.
    /// Bounded by `beside`.
    ///
    /// # Errors
    /// Why it cannot be evaluated.
    pub fn suppose(&self, pod: &Pod, beside: &[ClusterObject]) -> Result<SupposedPod, EvaluationError> {
        let heard = self.heard(|| Input::Suppose { pod: Cow::Borrowed(pod), beside: beside.into() });
        self.hear(Operation::Evaluation, heard, |scheduler, _| supposed(scheduler, pod, beside))
    }

    /// Returns the pods that a pod of this class and priority may preempt on each of these nodes, and the disruption budgets. Changes
    /// nothing. Bounded by the pods on the nodes.
    pub fn sites_of(&self, nodes: &[NodeId], class: &Class, priority: i32) -> (Vec<Site>, Budgets) {
        self.read(Operation::Evaluation, |scheduler, _| scheduler.sites_of(nodes, class, priority))
    }

    /// Lets an agent of the caller copy the changed rows. Bounded by the rows of one slice at a time.
    pub fn catch_up(&self, agent: &mut Agent) {
        self.approach(Operation::Evaluation, agent);
    }

    /// Returns the latest remembered decision about a pod of this name, and how long ago it was. Bounded by a constant.
    pub fn why(&self, namespace: &str, name: &str) -> Option<(PlacementDecision, Duration)> {
        self.read(Operation::Evaluation, |scheduler, now| {
            let decision = scheduler.decisions().recall(namespace, name)?;
            Some((decision.clone(), decision.age(now)))
        })
    }

    /// Returns the remembered decisions from this number on, counted from the start of the process. Bounded by `most`.
    pub fn decisions(&self, from: u64, most: usize) -> DecisionPage {
        self.read(Operation::Evaluation, |scheduler, now| scheduler.decisions().page(from, most, now))
    }

    /// Returns a waiting pod, its queue and the verdict of `agent` on all nodes; `None`: no such pod waits. Changes only the agent and
    /// the classifier. Bounded by the waiting pods, the policies, the changed rows and the nodes, whose names are shared.
    pub fn explain(
        &self,
        agent: &mut Agent,
        namespace: &str,
        name: &str,
    ) -> Option<(Pod, &'static str, Verdict)> {
        self.approach(Operation::Evaluation, agent);
        let heard = self.heard(|| Input::Explain { namespace: namespace.into(), name: name.into() });
        let (pod, state, inquiry, names) = self.hear(Operation::Evaluation, heard, |scheduler, _| {
            let (pod, state) = scheduler.find_waiting(namespace, name)?;
            let inquiry = scheduler.inquire(agent, &pod);
            let inventory = scheduler.inventory();
            let names: Vec<_> =
                (0..).map(NodeId).take(inventory.len()).map(|id| inventory.name(id).clone()).collect();
            Some((pod, state, inquiry, names))
        })?;
        let verdict = inquiry.verdict(agent, |node| &names[node.index()]);
        Some((pod, state, verdict))
    }
}

/// Returns the class of a pod of another scheduler.
pub(crate) fn classified(scheduler: &mut Scheduler, pod: &Pod) -> Result<Arc<Class>, EvaluationError> {
    may_classify(scheduler, pod).map(|()| scheduler.class_of(pod))
}

/// Returns what would be known of a pod that does not exist.
pub(crate) fn supposed(
    scheduler: &mut Scheduler,
    pod: &Pod,
    beside: &[ClusterObject],
) -> Result<SupposedPod, EvaluationError> {
    may_classify(scheduler, pod).map(|()| scheduler.suppose(pod, beside))
}

fn may_classify(scheduler: &Scheduler, pod: &Pod) -> Result<(), EvaluationError> {
    if !scheduler.synced() {
        return Err(EvaluationError::NotSynced);
    }
    PodRefusal::of(pod).map_or(Ok(()), |refusal| Err(refusal.into()))
}
