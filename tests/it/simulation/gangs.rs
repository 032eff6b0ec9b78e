//! Gangs of the simulation: allocations that exist from the start, and pods that are created and deleted as members.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use berth_model::{Identity, LabelSelector, Operator, Peer, Pod, Requirement};
use berth_scheduler::agent::{Agent, AgentConfig, CacheLimits};
use berth_scheduler::gang::{
    Allocation, AllocationKind, AllocationName, GangRole, RoleMembers, UnboundMember, WantedMembers,
};
use berth_scheduler::objects::ClusterObject;
use berth_scheduler::scheduler::Scheduler;

use super::objects::NAMESPACES;
use super::process::Who;
use super::quotas::quota_of;
use super::sim::{Sim, Step};

const GANGS: u64 = 24;
const LABEL: &str = "gang";
/// The namespace of all members.
pub const NAMESPACE: &str = NAMESPACES[0];

pub fn minimum(gang: u64) -> u32 {
    2 + (gang % 3) as u32
}

/// Returns all allocations.
pub fn allocations() -> impl Iterator<Item = ClusterObject> {
    let of_gang = |gang| {
        let name = format!("g{gang}");
        let operator = Operator::In([Arc::from(&*name)].into());
        let selector = LabelSelector::All([Requirement { key: LABEL.into(), operator }].into());
        allocation(NAMESPACE, &name, selector, minimum(gang))
    };
    (0..GANGS).map(of_gang)
}

/// Returns an allocation of the pods that match the selector.
pub fn allocation(namespace: &str, name: &str, selector: LabelSelector, minimum: u32) -> ClusterObject {
    let role = GangRole { name: "".into(), members: RoleMembers::Selected(selector), minimum };
    let name =
        AllocationName { kind: AllocationKind::Allocation, namespace: namespace.into(), name: name.into() };
    let allocation = Allocation {
        uid: name.name.clone(),
        name,
        generation: 1,
        created_s: 1,
        roles: [role].into(),
        timeout: None,
        topology: None,
        evicted_whole: false,
        was_scheduled: false,
        problem: None,
    };
    ClusterObject::Allocation(allocation.into())
}

/// Makes the pod a member.
pub fn enlist(pod: &mut Pod, gang: u64) {
    let labels = [(LABEL, &*format!("g{gang}"))].into_iter().collect();
    pod.namespace = NAMESPACE.into();
    let identity = Identity { namespace: pod.namespace.clone(), labels, ..Identity::default() };
    pod.peer = Arc::new(Peer { identity, ..Peer::default() });
}

/// The gang of a pod.
pub fn gang_of(pod: &Pod) -> Option<u64> {
    pod.peer.identity.labels.get(LABEL)?.strip_prefix('g')?.parse().ok()
}

impl Sim {
    /// Creates a few more members of some gang.
    pub fn create_members(&mut self) {
        let gang = self.load.below(GANGS);
        // The pods of one gang are equal.
        let kind = [0, 1, 3, 9, 10, 11][(gang % 6) as usize];
        let all = self.load.percent(60);
        let count = if all { u64::from(minimum(gang)) + self.load.below(2) } else { 1 + self.load.below(2) };
        for _ in 0..count {
            self.create_member(kind, gang);
        }
    }

    /// A process has started binds of members of these gangs: enough members of each have a node, or it was scheduled
    /// before.
    pub fn judge_gangs(&self, who: Who, begun: &BTreeSet<u64>) -> Step {
        let process = &self.processes[who.0];
        for gang in begun {
            let members =
                process.shadow.pods.values().filter(|pod| gang_of(pod) == Some(*gang) && !pod.deleting);
            let charged =
                members.filter(|pod| process.scheduler.ledger().charge_of(&pod.uid).is_some()).count();
            let ever = self.ever_bound.get(gang).map_or(0, BTreeSet::len);
            if charged.max(ever) < minimum(*gang) as usize {
                return Err(format!(
                    "I4 violated: {charged} members of g{gang} have a node, {ever} ever had"
                ));
            }
        }
        Ok(())
    }

    /// At rest: no gang waits that could be placed. Returns the number of its waiting members.
    pub fn judge_waiting_gangs(&self, pods: &[Pod], cold: &mut Scheduler) -> Result<usize, String> {
        let mut waiting: BTreeMap<u64, Vec<&Pod>> = BTreeMap::new();
        let ours = |pod: &&Pod| &*pod.scheduler_name == "berth" && !pod.finished && pod.gates.is_empty();
        for pod in pods.iter().filter(ours).filter(|pod| pod.node_name.is_none()) {
            if let Some(gang) = gang_of(pod) {
                waiting.entry(gang).or_default().push(pod);
            }
        }
        for (gang, members) in &waiting {
            let bound = pods.iter().filter(|pod| gang_of(pod) == Some(*gang) && pod.node_name.is_some());
            let bound = bound.filter(|pod| !pod.finished && !pod.deleting).count() as u32;
            let need = minimum(*gang).saturating_sub(bound);
            let candidates = members.iter().map(|pod| UnboundMember {
                uid: pod.uid.clone(),
                class: cold.class_of(pod),
                holding: (&pod.usage).into(),
                role: 0,
            });
            let candidates: Vec<_> = candidates.collect();
            let alike = candidates.iter().all(|candidate| candidate.class.id == candidates[0].class.id);
            // With different members, one agent may find a placement where another does not. With a quota, it may wait for
            // that.
            if !alike || quota_of(&self.cluster.objects, NAMESPACE).is_some() || (members.len() as u32) < need
            {
                continue;
            }
            let wanted = WantedMembers {
                members: candidates,
                need: [need].into(),
                topology: None,
                placed: Vec::new(),
                reserved: Vec::new(),
            };
            let cache = CacheLimits::unlimited();
            let config = AgentConfig { cache, seed: 7 };
            let mut agent = Agent::new(config);
            agent.catch_up(cold.inventory());
            let plan = agent.plan(&wanted, Duration::ZERO, |_| {});
            if plan.complete && !plan.places.is_empty() {
                return Err(format!(
                    "g{gang} waits with {} members, needs {need}, and could have {:?}",
                    members.len(),
                    plan.places
                ));
            }
        }
        Ok(waiting.values().map(Vec::len).sum())
    }
}
