//! Hypothetical pod moves: a few moves that would make room for waiting pods.

use std::sync::Arc;

use super::World;
use berth_scheduler::agent::Agent;
use berth_scheduler::class::Class;
use berth_scheduler::gang::{AllocationKind, AllocationName};
use berth_scheduler::inventory::{NodeId, Revision};
use berth_scheduler::repack::{Case, Entry, FragmentationReport, Repacker, Resident, Residents};
use berth_scheduler::scheduler::{GangCase, PodRefusal, Scheduler};

/// Pods to make room for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WhatIfSubject {
    /// All waiting pods.
    Everything,
    /// This pod, or the gang it is a member of.
    Pod {
        namespace: String,
        name: String,
    },
    Allocation {
        namespace: String,
        name: String,
    },
    PodGroup {
        namespace: String,
        name: String,
    },
}

/// Reason why a query cannot be answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unanswerable {
    #[error("there are no nodes")]
    NoNodes,
    #[error("there is no pod {0} that is not finished")]
    NoPod(String),
    #[error("pod {pod} is on node {node} already")]
    Placed { pod: String, node: Arc<str> },
    #[error(
        "pod {pod} waits for scheduler {scheduler}: give --scheduler-name {scheduler} to treat it as berth"
    )]
    Others { pod: String, scheduler: Arc<str> },
    #[error("pod {pod} is not scheduled at all: {why}")]
    NotScheduled { pod: String, why: String },
    #[error("there is no {kind} {name}")]
    NoAllocation { kind: &'static str, name: String },
    #[error("all pods of {kind} {name} have nodes already")]
    AllPlaced { kind: &'static str, name: String },
    #[error("{kind} {name} has not been tried yet: {why}")]
    NotTried { kind: &'static str, name: String, why: String },
}

/// Maximum number of waiting classes and gangs in one answer.
const MOST_CASES: usize = 256;

/// # Errors
/// The subject does not exist, or is not waiting for a node.
pub fn what_if(world: &mut World, subject: &WhatIfSubject) -> Result<FragmentationReport, Unanswerable> {
    if world.nodes() == 0 {
        return Err(Unanswerable::NoNodes);
    }
    world.settle();
    let cases = cases(world, subject)?;
    let (scheduler, agent) = world.parts();
    Ok(report(scheduler, agent, &cases))
}

fn cases(world: &mut World, subject: &WhatIfSubject) -> Result<Vec<Case>, Unanswerable> {
    let full = |namespace: &str, name: &str| format!("{namespace}/{name}");
    let named = |kind, namespace: &str, name: &str| AllocationName {
        kind,
        namespace: namespace.into(),
        name: name.into(),
    };
    match subject {
        WhatIfSubject::Everything => Ok(world.parts().0.unplaced()),
        WhatIfSubject::Allocation { namespace, name } => {
            let which = named(AllocationKind::Allocation, namespace, name);
            of_gang(world, &which, "Allocation", full(namespace, name))
        }
        WhatIfSubject::PodGroup { namespace, name } => {
            let of = |kind| named(kind, namespace, name);
            let found = of_gang(world, &of(AllocationKind::PodGroup), "PodGroup", full(namespace, name));
            match found {
                Err(Unanswerable::NoAllocation { .. }) => {
                    of_gang(world, &of(AllocationKind::Coscheduling), "PodGroup", full(namespace, name))
                }
                found => found,
            }
        }
        WhatIfSubject::Pod { namespace, name } => of_pod(world, namespace, name),
    }
}

fn of_gang(
    world: &mut World,
    which: &AllocationName,
    kind: &'static str,
    name: String,
) -> Result<Vec<Case>, Unanswerable> {
    match world.parts().0.gang_case(which) {
        GangCase::Waits(case) => Ok(vec![case]),
        GangCase::Unknown => Err(Unanswerable::NoAllocation { kind, name }),
        GangCase::Placed => Err(Unanswerable::AllPlaced { kind, name }),
        GangCase::NotTried(why) => Err(Unanswerable::NotTried { kind, name, why }),
    }
}

fn of_pod(world: &mut World, namespace: &str, name: &str) -> Result<Vec<Case>, Unanswerable> {
    let which = super::Which::Named { namespace: namespace.to_owned(), name: name.to_owned() };
    let pod = format!("{namespace}/{name}");
    let Some(found) = world.select(&which).pop() else {
        return Err(Unanswerable::NoPod(pod));
    };
    if let Some(node) = found.node_name {
        return Err(Unanswerable::Placed { pod, node });
    }
    if !world.schedules(&found.scheduler_name) {
        return Err(Unanswerable::Others { pod, scheduler: found.scheduler_name });
    }
    let why = match PodRefusal::of(&found) {
        Some(why) => Some(why.to_string()),
        None if found.deleting => Some("it is being deleted".to_owned()),
        None if !found.gates.is_empty() => Some(format!("it has gates: {}", found.gates.join(", "))),
        None => None,
    };
    if let Some(why) = why {
        return Err(Unanswerable::NotScheduled { pod, why });
    }
    let scheduler = world.parts().0;
    if let Some(gang) = scheduler.gang_of_waiting(&found.uid) {
        let name = format!("{}/{}", gang.namespace, gang.name);
        return of_gang(world, &gang, gang.kind.object_kind(), name);
    }
    Ok(scheduler.unplaced_pod(&found.uid).into_iter().collect())
}

fn report(scheduler: &mut Scheduler, agent: &mut Agent, cases: &[Case]) -> FragmentationReport {
    agent.catch_up(scheduler.inventory());
    let budgets = scheduler.budgets().clone();
    let mut go_on = || true;
    let mut known = FrozenScheduler(scheduler);
    let mut repacker = Repacker::new(agent, &mut known, &budgets, &mut go_on);
    let findings: Vec<_> = cases.iter().take(MOST_CASES).map(|case| repacker.advise(case)).collect();
    let effort = repacker.effort();
    let name = |node: NodeId| known.0.inventory().name(node).clone();
    let told = cases.iter().zip(&findings);
    let waiting = told.map(|(case, finding)| Entry::new(case, finding, &name)).collect();
    let mut report = FragmentationReport {
        waiting,
        left_out: cases.len() - findings.len(),
        ..FragmentationReport::default()
    };
    report.note(effort);
    report
}

/// A scheduler whose state does not change.
struct FrozenScheduler<'a>(&'a mut Scheduler);

impl Residents for FrozenScheduler<'_> {
    fn on(&mut self, node: NodeId, revision: Revision) -> Option<Vec<Resident>> {
        self.0.residents(node, revision)
    }

    fn class_of(&mut self, uid: &str) -> Option<Arc<Class>> {
        self.0.class_of_resident(uid)
    }
}
