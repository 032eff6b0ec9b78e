//! What a scheduler hears.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::agent::Part;
use crate::gang::AllocationName;
use crate::hints::Hint;
use crate::inventory::NodeId;
use crate::objects::{ClusterObject, ObjectKind, ObjectName};
use crate::placement::{BindOutcome, Binding, ClaimOrder, Truth};
use crate::scheduler::{Eviction, Requester, Share};
use berth_model::{Node, NodeSize, Pod};

/// One input of a scheduler. Those without a word here are calls of [`Engine`](crate::engine::Engine) of that name.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Input<'a> {
    Tick,
    /// `apply_pod`.
    Pod(Cow<'a, Pod>),
    /// `delete_pod`, by uid.
    PodGone(Arc<str>),
    /// A slice of `retain_pods`; the first one brings the list.
    RetainPods {
        listed: Option<Cow<'a, HashSet<Arc<str>>>>,
        from: NodeId,
    },
    /// Another one, of the same list.
    RetainWaiting {
        from: u64,
    },
    /// The last one.
    FinishPodList,
    /// `apply_node`.
    Node(Cow<'a, Node>),
    /// `delete_node`, by name.
    NodeGone(Cow<'a, str>),
    /// A slice of `retain_nodes`; the first one brings the list.
    RetainNodes {
        listed: Option<Cow<'a, HashSet<Arc<str>>>>,
        from: NodeId,
    },
    /// `apply_object`.
    Object(Cow<'a, ClusterObject>),
    /// `delete_object`.
    ObjectGone(ObjectKind, Cow<'a, ObjectName>),
    RetainObjects(ObjectKind, Cow<'a, HashSet<ObjectName>>),
    /// `hints_changed`.
    Hints(Cow<'a, [Hint]>),
    BindFinished(Cow<'a, Binding>, Cow<'a, BindOutcome>),
    ClaimsWritten(Cow<'a, ClaimOrder>, Cow<'a, Result<Vec<u64>, String>>),
    EvictionFinished(Cow<'a, Eviction>, Cow<'a, Result<(), String>>),
    Review {
        binding: Cow<'a, Binding>,
        pod: Option<Cow<'a, Pod>>,
        hold: Option<Duration>,
        requester: Requester,
    },
    HeldPodRead {
        binding: Cow<'a, Binding>,
        truth: Cow<'a, Truth>,
        asked: Duration,
    },
    BeginExtenderBind {
        wanted: Cow<'a, Binding>,
        pod: Option<Cow<'a, Pod>>,
    },
    ExtenderBindFinished(Cow<'a, Binding>, Cow<'a, BindOutcome>),
    /// `set_term`.
    Term(Option<u64>),
    /// `set_share`.
    Share(Cow<'a, Share>),
    GiveDevices(bool),
    GrowInPlace {
        uid: Arc<str>,
        /// Number of the growth.
        unsettled: Option<u64>,
        more: NodeSize,
    },
    TakeGrowthBack {
        uid: Arc<str>,
        /// Its number.
        growth: u64,
    },
    /// A slice of `heal`.
    Heal {
        from: NodeId,
    },
    MendPod(Cow<'a, Pod>),
    MendPodGone(Arc<str>),
    MendNode(Cow<'a, Node>),
    MendNodeGone(Cow<'a, str>),
    /// A pod of another scheduler is classified, for the extender.
    Evaluate(Cow<'a, Pod>),
    Explain {
        namespace: Cow<'a, str>,
        name: Cow<'a, str>,
    },
    /// A placed pod is classified, for fragmentation advice.
    ClassOfResident(Cow<'a, str>),
    Advise(Vec<(AllocationName, Arc<str>)>),
    WithdrawAdvice,
    /// An agent of the engine has the lock.
    Agent {
        agent: usize,
        /// On its own, since it had the lock before.
        did: Vec<Did>,
        step: AgentStep,
    },
    /// A pod that does not exist is classified beside these objects.
    Suppose {
        pod: Cow<'a, Pod>,
        beside: Cow<'a, [ClusterObject]>,
    },
}

/// What an agent did without the lock; times in nanoseconds, `at` since the start.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Did {
    /// It carried out its task. The times of the parts are an input: the dispatcher learns from them.
    Answered { at: u64, laps: Vec<(Part, u64)> },
    /// It evicted what was not used for long.
    Expired { at: u64 },
    /// It repaired its lists: so many, or one less.
    Repaired { tries: u32 },
}

/// What an agent did with the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum AgentStep {
    /// It took its next task.
    Take,
    /// It copied changed rows.
    Approach,
    /// It settled its answer, and took its next task.
    Settle,
    /// It told what its caches have.
    TellCaches,
}
