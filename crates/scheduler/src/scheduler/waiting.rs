//! Pods of this scheduler that have no node yet, and their states.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use super::precedence::Precedent;
use super::{Missing, UNSCHEDULABLE, cluster_events, crowds, quotas};
use crate::class::Class;
use crate::decisions::PlacementDecision;
use crate::dispatch::{TRIED_BEFORE, Ticket};
use crate::gang::Membership;
use crate::live_selectors::{FOREIGN_SELECTORS_MAX, SELECTORS_MAX};
use crate::queue::Place;
use berth_model::{Holding, Pod, PodAffinity, PodRef, PreemptionPolicy, SpecError, Unsupported};

/// A pod of this scheduler that has no node yet, or whose bind is in flight.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) pod: PodRef,
    pub(super) class: Arc<Class>,
    /// Holding it would have on its node.
    pub(super) holding: Holding,
    /// Its terms, if the ledger expects them.
    pub(super) expected: Arc<PodAffinity>,
    /// Last observed object, for reclassification.
    pub(super) source: Box<Pod>,
    pub(super) priority: i32,
    pub(super) policy: PreemptionPolicy,
    pub(super) generation: i64,
    /// Order of arrival; unique.
    pub(super) seq: u64,
    pub(super) arrived: Duration,
    /// Total number of attempts, for the metrics.
    pub(super) attempts: u32,
    /// Placements tried since it was last queued.
    pub(super) tries: u32,
    /// It was put back in a queue because the placements of one agent conflicted too often.
    pub(super) put_back: bool,
    /// Number of pods that had arrived when it was first taken from its queue; 0: it was not.
    pub(super) taken_after: u64,
    /// Time at which it yields to more important pods no longer, if it does or did.
    pub(super) yields_until: Option<Duration>,
    /// Consecutive errors.
    pub(super) failures: u32,
    /// Message of its condition: the last one reported, or the one that another process has written.
    pub(super) reported: Option<Arc<str>>,
    /// Reason of the last report.
    pub(super) reason: &'static str,
    /// What the API server lacked when it was last compared.
    pub(super) missing: Missing,
    /// Last event of its watch while its bind was in flight.
    pub(super) news: Option<Box<Pod>>,
    /// It has been admitted by its quota.
    pub(super) admitted: bool,
    /// It counts in its crowd: it waits by itself, and is not held back.
    pub(super) in_crowd: bool,
    /// Why it has its node, while it has one and is not bound.
    pub(super) decision: Option<Box<PlacementDecision>>,
    /// The allocation it is a member of.
    pub(super) gang: Option<Membership>,
    pub(super) state: State,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum State {
    /// It has scheduling gates.
    Gated,
    Refused(Box<PodRefusal>),
    Queued(Ticket),
    /// An agent is placing it; the number identifies this task.
    Placing(u64),
    /// It has a node in the ledger, and its claims are being bound.
    Claiming,
    /// It has a node in the ledger, and its bind is in flight.
    Binding,
    BackingOff(Duration),
    /// Another replica schedules its class.
    Elsewhere,
    /// It has a node in the ledger, because another replica requested its bind there.
    Held,
    /// It waits with the other members of its gang.
    Grouped,
    /// It waits in the queue of its quota.
    OverQuota,
    /// It waits for its turn, because its namespace has too many classes waiting.
    HeldBack,
    Parked,
    /// Woken from its parked class and queued at an agent.
    Woken(Ticket),
    /// It has no node yet because a more important pod looks there; until this time.
    Yielding(Precedent, Duration),
}

/// Reason why a pod is not scheduled on any node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PodRefusal {
    #[error("the pod's spec is invalid: {0}")]
    Invalid(SpecError),
    #[error(
        "berth does not schedule pods with {} yet: remove it from the pod, or set spec.schedulerName to another scheduler",
        .0.iter().map(|feature| feature.field()).collect::<Vec<_>>().join(", ")
    )]
    Unsupported(Box<[Unsupported]>),
    #[error(
        "the pod has {terms} affinity terms and spread constraints, and berth schedules pods with at most {max}: \
         each is counted on all nodes; use fewer, with labels that several workloads share",
        max = TERMS_MAX
    )]
    TooManyTerms { terms: usize },
    #[error(
        "the pods of namespace {namespace} have as many different selectors in their affinity terms as berth counts for \
         one namespace, which is {SELECTORS_MAX}, of which {FOREIGN_SELECTORS_MAX} may select pods of other namespaces: \
         use selectors that several workloads share; this pod is tried again when other pods have gone"
    )]
    TooManySelectors { namespace: Arc<str> },
}

/// Each term of a pod costs its class a count over all nodes.
const TERMS_MAX: usize = 256;

impl PodRefusal {
    /// Returns whether it is because of what berth counts at most.
    pub(super) fn is_by_limit(&self) -> bool {
        matches!(self, PodRefusal::TooManyTerms { .. } | PodRefusal::TooManySelectors { .. })
    }

    /// Returns the reason why the pod is refused in any cluster, if it is.
    pub fn of(pod: &Pod) -> Option<PodRefusal> {
        match &pod.spec {
            Err(error) => Some(PodRefusal::Invalid(error.clone())),
            Ok(spec) if !spec.unsupported.is_empty() => {
                Some(PodRefusal::Unsupported(spec.unsupported.clone()))
            }
            Ok(spec) => {
                let terms = spec.pod_affinity.terms().count() + spec.spread.constraints.len();
                (terms > TERMS_MAX).then_some(PodRefusal::TooManyTerms { terms })
            }
        }
    }
}

impl Waiting {
    /// Returns whether it was deleted while its bind was in flight.
    pub(super) fn is_deleted(&self) -> bool {
        self.news.as_ref().is_some_and(|pod| pod.deleting)
    }

    /// Returns its namespace, as selectors read it.
    pub(super) fn namespace(&self) -> &Arc<str> {
        &self.source.peer.identity.namespace
    }

    /// Returns a newly observed pod: not scheduled until its state is set.
    pub(super) fn new(pod: Pod, class: Arc<Class>, holding: Holding, seq: u64, now: Duration) -> Self {
        let told = unscheduled_message(&pod);
        Waiting {
            holding,
            pod: cluster_events::pod_ref(&pod),
            class,
            priority: pod.priority,
            policy: pod.preemption_policy,
            generation: pod.generation,
            seq,
            arrived: now,
            attempts: 0,
            tries: 0,
            put_back: false,
            taken_after: 0,
            yields_until: None,
            failures: 0,
            reported: told,
            reason: unscheduled_reason(&pod),
            missing: Missing::default(),
            news: None,
            admitted: false,
            in_crowd: false,
            decision: None,
            gang: None,
            expected: Arc::default(),
            state: State::Gated,
            source: Box::new(pod),
        }
    }

    /// Returns the crowd that it belongs to: its namespace and priority.
    pub(super) fn crowd(&self) -> (Arc<str>, i32) {
        (self.pod.namespace.clone(), self.priority)
    }

    /// Forgets what happened to it since it was last queued.
    pub(super) fn start_over(&mut self) {
        (self.tries, self.put_back, self.taken_after, self.yields_until) = (0, false, 0, None);
    }

    pub(super) fn place(&self) -> Place {
        (Reverse(self.priority), self.seq)
    }

    /// Returns its order among requests of its priority. A pod that another process has tried in vain comes later: each such class
    /// costs a new leader a list of its own, and the pods that nobody has tried should not wait for it.
    pub(super) fn order(&self, is_new_here: bool) -> u64 {
        if is_new_here && self.reported.is_some() { self.seq | TRIED_BEFORE } else { self.seq }
    }
}

impl State {
    /// Returns whether the pod has a node in the ledger.
    pub(super) fn has_node(&self) -> bool {
        matches!(self, State::Claiming | State::Binding | State::Held)
    }

    /// Returns whether the pod waits for a reason that its condition tells.
    pub(super) fn has_reason(&self) -> bool {
        matches!(self, State::Refused(_) | State::Parked | State::OverQuota | State::HeldBack)
    }

    /// Returns whether an agent tries to place the pod, or will as soon as possible.
    pub(super) fn is_tried(&self) -> bool {
        matches!(self, State::Queued(_) | State::Woken(_) | State::Placing(_) | State::Yielding(..))
    }

    pub(super) fn refusal(&self) -> Option<&PodRefusal> {
        match self {
            State::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            State::Gated => "gated",
            State::Refused(_) => "refused",
            State::Queued(_) | State::Woken(_) => "queued",
            State::Placing(_) => "placing",
            State::Claiming => "claiming",
            State::Binding => "binding",
            State::BackingOff(_) => "backing off",
            State::Parked => "parked",
            State::Elsewhere => "elsewhere",
            State::Held => "held",
            State::Grouped => "grouped",
            State::OverQuota => "over quota",
            State::HeldBack => "held back",
            State::Yielding(..) => "yielding",
        }
    }
}

/// Returns the reason of the pod's condition, if it is one of those that are written here.
fn unscheduled_reason(pod: &Pod) -> &'static str {
    let written = pod.scheduled.as_ref().map(|condition| &*condition.reason);
    [crowds::REASON, quotas::REASON]
        .into_iter()
        .find(|reason| written == Some(*reason))
        .unwrap_or(UNSCHEDULABLE)
}

/// Returns the message of a pod's condition if that is `PodScheduled=False`.
pub(super) fn unscheduled_message(pod: &Pod) -> Option<Arc<str>> {
    let condition = pod.scheduled.as_ref().filter(|condition| !condition.status)?;
    Some(condition.message.clone())
}
