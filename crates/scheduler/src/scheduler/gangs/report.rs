//! Conditions of gang members and status of allocations.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use super::{Gang, GangState, Gangs};
use crate::gang::{
    ALLOCATIONS_MAX, Allocation, AllocationName, CONSIDERED_MAX, GangRoleStatus, GangStatus, Phase,
};
use crate::scheduler::{Action, Cluster, Scheduler};

/// Minimum interval between status writes of one allocation, except when its phase changes.
const STATUS_PACE: Duration = Duration::from_secs(1);
/// Time after which waiting members of an incomplete gang get a condition.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum number of domains in a status.
const MOST_DOMAINS: usize = 16;
/// Maximum number of statuses computed at once; the rest follow in the next call.
const MOST_AT_ONCE: usize = 256;
/// Maximum number of those of allocations without pods, 100 a second: whoever creates thousands of them must not fill the API server
/// with the writes of their statuses.
const MOST_EMPTY_AT_ONCE: usize = 5;

/// Message of an allocation that can have no pods.
static IGNORED: LazyLock<Arc<str>> = LazyLock::new(|| {
    let text = format!(
        "berth considers the {CONSIDERED_MAX} oldest allocations of a namespace that select their pods by the same label, \
         and this is none of them: select the pods by a label of their own, or delete older allocations"
    );
    text.into()
});

/// Message of an allocation beyond the limit of its namespace.
static BEYOND: LazyLock<Arc<str>> = LazyLock::new(|| {
    let text = format!(
        "the {ALLOCATIONS_MAX} oldest Allocations and PodGroups of a namespace count, and this is none of them: delete older ones"
    );
    text.into()
});

impl Scheduler {
    /// Reports that a member found no node, or that the gang is not tried for another reason.
    pub(in crate::scheduler) fn gang_lacks(&mut self, name: &AllocationName, why: Arc<str>, now: Duration) {
        let refresh = self.cluster.config.refresh;
        let Some(gang) = self.gangs.all.get_mut(name) else {
            return;
        };
        let news = gang.lacking.is_none();
        gang.lacking = Some(why.clone());
        self.gangs.unreported.insert(name.clone());
        let due = gang.members_reported_at.is_none_or(|at| now.saturating_sub(at) >= refresh);
        if due {
            gang.members_reported_at = Some(now);
        }
        let members: Vec<_> = gang.waiting.values().map(|(uid, _)| uid.clone()).collect();
        for uid in members {
            // Members that already have such a message get updated numbers only once per refresh interval.
            if due || news || self.cluster.waiting.get(&uid).is_some_and(|waiting| waiting.reported.is_none())
            {
                self.report(&uid, "Unschedulable", why.clone(), true);
            }
        }
    }

    pub(super) fn time_out(&mut self, name: &AllocationName, now: Duration) {
        self.end_gang_nominations(name);
        let why = self.gangs.all.get_mut(name).and_then(|gang| gang.lacking.take()).unwrap_or_default();
        self.gang_leaves_line(name);
        if let Some(gang) = self.gangs.all.get_mut(name) {
            gang.state = GangState::TimedOut;
            self.gang_lacks(
                name,
                format!("timed out, not retried until its pods or its object change: {why}").into(),
                now,
            );
        }
    }

    /// Writes statuses of allocations, and conditions of members that wait for more members.
    pub(super) fn report_gangs(&mut self, now: Duration) {
        if !self.cluster.leading {
            return;
        }
        // Round robin: gangs whose write must wait must not block the rest.
        let (untold, last) = (&self.gangs.unreported, self.gangs.checked_up_to.take());
        let from = last.clone().map_or(Unbounded, Excluded);
        let mut names: Vec<_> = untold.range((from, Unbounded)).take(MOST_AT_ONCE).cloned().collect();
        if let Some(last) = last {
            names.extend(untold.range(..=last).take(MOST_AT_ONCE - names.len()).cloned());
        }
        if names.len() < MOST_AT_ONCE {
            self.report_beyond();
        }
        self.gangs.checked_up_to = names.last().cloned();
        let mut empty = 0;
        for name in names {
            let is_empty = |gang: &Gang| gang.waiting.is_empty() && gang.placed.is_empty();
            if self.gangs.all.get(&name).is_some_and(is_empty) {
                empty += 1;
                if empty > MOST_EMPTY_AT_ONCE {
                    continue;
                }
            }
            if self.report_gang(&name, now) {
                self.gangs.unreported.remove(&name);
            }
        }
    }

    /// Writes the status of one allocation beyond the limit of its namespace: 20 a second, so that the writes delay nothing else.
    fn report_beyond(&mut self) {
        let Some(name) = self.gangs.next_beyond() else {
            return;
        };
        let Some(allocation) = self.gangs.allocations.beyond(&name).filter(|_| self.cluster.owns_gang(&name))
        else {
            return;
        };
        let status = GangStatus {
            phase: Phase::LimitReached,
            message: BEYOND.clone(),
            ..status(allocation, &Gang::new(&name), &self.cluster, None)
        };
        self.actions.push(Action::TellAllocation(Box::new(status)));
    }

    /// Returns whether everything is reported.
    fn report_gang(&mut self, name: &AllocationName, now: Duration) -> bool {
        let members_know = self.report_waiting_members(name, now);
        let Some(allocation) = self.gangs.allocations.get(name).filter(|_| self.cluster.owns_gang(name))
        else {
            return members_know;
        };
        let Some(gang) = self.gangs.all.get(name) else {
            return true;
        };
        let early = now.saturating_sub(gang.reported_at) < STATUS_PACE;
        let mut status = status(allocation, gang, &self.cluster, self.advised.help_for(name));
        if !self.gangs.allocations.is_considered(allocation) {
            (status.phase, status.message) = (Phase::LimitReached, IGNORED.clone());
        }
        match &gang.reported {
            Some(told) if *told == status => return members_know,
            Some(told) if told.phase == status.phase && early => return false,
            _ => {}
        }
        if let Some(gang) = self.gangs.all.get_mut(name) {
            gang.reported = Some(status.clone());
            gang.reported_at = now;
        }
        self.actions.push(Action::TellAllocation(Box::new(status)));
        members_know
    }

    /// Reports to waiting members, after a while, that their gang is incomplete. Not as unschedulable: a new node would
    /// not help them.
    fn report_waiting_members(&mut self, name: &AllocationName, now: Duration) -> bool {
        let allocation = self.gangs.allocations.get(name).cloned();
        let Some(gang) = self.gangs.all.get(name).filter(|gang| gang.state == GangState::Idle) else {
            return true;
        };
        if gang.waiting.is_empty() || allocation.as_ref().is_some_and(|allocation| gang.is_ready(allocation))
        {
            return true;
        }
        let arrived = |uid: &Arc<str>| self.cluster.waiting.get(uid).map(|waiting| waiting.arrived);
        let patient = gang
            .waiting
            .values()
            .all(|(uid, _)| arrived(uid).is_none_or(|arrived| now.saturating_sub(arrived) >= PATIENCE));
        if !patient {
            return false;
        }
        let why = self.gangs.incomplete_message(name, gang);
        let members: Vec<_> = gang.waiting.values().map(|(uid, _)| uid.clone()).collect();
        for uid in members {
            self.report(&uid, "NotReadyForScheduling", why.clone(), false);
        }
        true
    }
}

impl Gangs {
    /// Returns the reason why this gang, which is not ready, is not tried.
    pub(super) fn incomplete_message(&self, name: &AllocationName, gang: &Gang) -> Arc<str> {
        match self.allocations.get(name) {
            Some(allocation) => not_ready_message(allocation, gang).into(),
            None if self.allocations.beyond(name).is_some() => format!("{name}: {}", *BEYOND).into(),
            None => format!("{name} does not exist").into(),
        }
    }
}

pub(super) fn status(
    allocation: &Allocation,
    gang: &Gang,
    cluster: &Cluster,
    help: Option<&Arc<str>>,
) -> GangStatus {
    let count = allocation.roles.len();
    let waiting = Gang::count(count, gang.waiting.values().map(|(_, role)| role));
    let placed = Gang::count(count, gang.placed.values());
    let bound_members = gang
        .placed
        .iter()
        .filter(|(uid, _)| cluster.ledger.charge_of(uid).is_some_and(|charge| !charge.assumed));
    let bound = Gang::count(count, bound_members.map(|(_, role)| role));
    let roles = allocation.roles.iter().enumerate().map(|(at, role)| GangRoleStatus {
        name: role.name.clone(),
        minimum: role.minimum,
        members: waiting[at] + placed[at],
        bound: bound[at],
    });
    let (phase, message) = phase(allocation, gang, &bound);
    let waits = matches!(phase, Phase::Unschedulable | Phase::TimedOut);
    let help = help.filter(|_| waits).cloned();
    GangStatus {
        name: allocation.name.clone(),
        uid: allocation.uid.clone(),
        observed_generation: allocation.generation,
        phase,
        message,
        help,
        roles: roles.collect(),
        placement: placement(allocation, gang, cluster),
        claimed_by_others: gang.contested.len() as u32,
    }
}

fn phase(allocation: &Allocation, gang: &Gang, bound: &[u32]) -> (Phase, Arc<str>) {
    if let Some(problem) = &allocation.problem {
        return (Phase::Invalid, problem.clone());
    }
    let lacking = gang.lacking.clone().unwrap_or_default();
    if gang.state == GangState::TimedOut {
        return (Phase::TimedOut, lacking);
    }
    if gang.state == GangState::OverQuota && !gang.scheduled {
        return (Phase::Pending, lacking);
    }
    let enough = allocation.roles.iter().zip(bound).all(|(role, bound)| *bound >= role.minimum);
    if gang.scheduled || enough {
        return (Phase::Scheduled, lacking);
    }
    if gang.need(allocation).iter().all(|need| *need == 0) {
        return (Phase::Scheduling, lacking);
    }
    if !gang.is_ready(allocation) {
        return (Phase::Pending, not_ready_message(allocation, gang).into());
    }
    match gang.lacking {
        Some(_) => (Phase::Unschedulable, lacking),
        None => (Phase::Scheduling, lacking),
    }
}

fn placement(allocation: &Allocation, gang: &Gang, cluster: &Cluster) -> Box<[(Arc<str>, u32)]> {
    let mut domains: BTreeMap<Arc<str>, u32> = BTreeMap::new();
    for charge in gang.placed.keys().filter_map(|uid| cluster.ledger.charge_of(uid)) {
        let inventory = cluster.inventory();
        let node = inventory.row(charge.node).node.as_ref();
        let domain = match &allocation.topology {
            Some(topology) => node.and_then(|node| node.labels.get(&topology.key)).map(Arc::from),
            None => Some(inventory.name(charge.node).clone()),
        };
        *domains.entry(domain.unwrap_or_default()).or_default() += 1;
    }
    let mut domains: Vec<_> = domains.into_iter().collect();
    domains.sort_by(|a, b| (b.1, &a.0).cmp(&(a.1, &b.0)));
    domains.truncate(MOST_DOMAINS);
    domains.into()
}

/// Returns the reason why the gang is not tried.
fn not_ready_message(allocation: &Allocation, gang: &Gang) -> String {
    let name = &allocation.name;
    if let Some(problem) = &allocation.problem {
        return format!("{name} cannot be scheduled: {problem}");
    }
    let count = allocation.roles.len();
    let waiting = Gang::count(count, gang.waiting.values().map(|(_, role)| role));
    let placed = Gang::count(count, gang.placed.values());
    let mut parts = Vec::new();
    for (at, role) in allocation.roles.iter().enumerate() {
        let members = waiting[at] + placed[at];
        if members < role.minimum {
            let of = if role.name.is_empty() { String::new() } else { format!(" of role {}", role.name) };
            parts.push(format!("{members} of {} members{of}", role.minimum));
        }
    }
    let contested = match gang.contested.len() {
        0 => String::new(),
        pods => format!("; {pods} more belong to an older allocation that selects them too"),
    };
    format!("{name} has {}{contested}", parts.join(", "))
}
