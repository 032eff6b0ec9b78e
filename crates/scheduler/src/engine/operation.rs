//! Names of the operations that hold the lock, for metrics and warnings.

/// Purpose of one acquisition of the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// An agent settles its last answer, takes its next task and copies changed rows.
    Task,
    /// An agent without a task copies changed rows.
    IdleAgent,
    Tick,
    PodEvent,
    NodeEvent,
    ObjectEvent,
    /// The end of a complete list of pods.
    PodList,
    NodeList,
    ObjectList,
    Hints,
    /// The result of a bind, of written claims or of an eviction.
    Bind,
    /// The guard reviews a bind of another client.
    Review,
    ExtenderBind,
    Leadership,
    Resize,
    SelfCheck,
    /// Filter, prioritize and preempt for the extender, and explanations.
    Evaluation,
    Advice,
    /// Counters and copies for metrics and reports.
    Snapshot,
}

/// Most units of work of one operation that is done in slices.
const VISITS_MAX: u64 = 4096;

impl Operation {
    pub const ALL: [Operation; 19] = [
        Operation::Task,
        Operation::IdleAgent,
        Operation::Tick,
        Operation::PodEvent,
        Operation::NodeEvent,
        Operation::ObjectEvent,
        Operation::PodList,
        Operation::NodeList,
        Operation::ObjectList,
        Operation::Hints,
        Operation::Bind,
        Operation::Review,
        Operation::ExtenderBind,
        Operation::Leadership,
        Operation::Resize,
        Operation::SelfCheck,
        Operation::Evaluation,
        Operation::Advice,
        Operation::Snapshot,
    ];

    /// Returns how many pods, rows, charges and parked classes one such operation visits at most, beside the rows that an
    /// agent copies; `None`: it grows with the cluster.
    pub fn visits_max(self) -> Option<u64> {
        match self {
            // All slices together: marked pods, namespaces, aged pods, due reports, read-back.
            Operation::Task | Operation::Tick => Some(VISITS_MAX),
            Operation::PodEvent
            | Operation::NodeEvent
            | Operation::Bind
            | Operation::Review
            | Operation::ExtenderBind
            | Operation::Resize
            | Operation::IdleAgent
            // Pods that an object concerns are marked by namespace or owner, and classified again in slices.
            | Operation::ObjectEvent
            | Operation::SelfCheck => Some(VISITS_MAX / 8),
            // Ends of lists, and what happens once in minutes or on request.
            Operation::PodList
            | Operation::NodeList
            | Operation::ObjectList
            | Operation::Hints
            | Operation::Leadership
            | Operation::Evaluation
            | Operation::Advice
            | Operation::Snapshot => None,
        }
    }

    /// Returns the value of the metric's label.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Task => "task",
            Operation::IdleAgent => "idle_agent",
            Operation::Tick => "tick",
            Operation::PodEvent => "pod_event",
            Operation::NodeEvent => "node_event",
            Operation::ObjectEvent => "object_event",
            Operation::PodList => "pod_list",
            Operation::NodeList => "node_list",
            Operation::ObjectList => "object_list",
            Operation::Hints => "hints",
            Operation::Bind => "bind",
            Operation::Review => "review",
            Operation::ExtenderBind => "extender_bind",
            Operation::Leadership => "leadership",
            Operation::Resize => "resize",
            Operation::SelfCheck => "self_check",
            Operation::Evaluation => "evaluation",
            Operation::Advice => "advice",
            Operation::Snapshot => "snapshot",
        }
    }
}
