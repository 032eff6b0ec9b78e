//! State that all components of the scheduler read.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use super::claims::{Outdated, UnboundClaims};
use super::foreign_binds::former_name;
use super::kept_devices::KeptDevices;
use super::waiting_pods::WaitingPods;
use super::{SchedulerConfig, Share, State, Waiting};
use crate::class::Class;
use crate::gang::AllocationName;
use crate::invariants::{Checked, within_maximum};
use crate::inventory::{GRANTED, Inventory, Ledger, NodeId, Row};
use crate::objects::{ObjectKind, ObjectStores};
use crate::quota::{Lack, Sums};
use crate::rules::{self, Key};
use berth_model::{ClaimName, Holding, Pod, Usage};

/// State that all components read: what is known of the cluster, the waiting pods, and whether this replica leads.
#[derive(Debug)]
pub(super) struct Cluster {
    pub(super) config: SchedulerConfig,
    pub(super) objects: ObjectStores,
    pub(super) ledger: Ledger,
    pub(super) waiting: WaitingPods,
    pub(super) leading: bool,
    /// Classes and gangs that this replica schedules; `None`: all.
    pub(super) share: Option<Share>,
    /// Of the replicas with shares, this one schedules the pods that need devices.
    pub(super) gives_devices: bool,
    pub(super) pods_listed: bool,
    pub(super) nodes_listed: bool,
    /// Kinds of other objects that have not been listed yet.
    pub(super) unlisted: BTreeSet<ObjectKind>,
    /// Placed pods are being charged to other quotas, so no account is complete.
    pub(super) recounting_quotas: bool,
    pub(super) kept_devices: KeptDevices,
}

impl Cluster {
    pub(super) fn inventory(&self) -> &Inventory {
        self.ledger.inventory()
    }

    /// Returns whether all nodes, pods and other objects have been listed once.
    pub(super) fn synced(&self) -> bool {
        self.pods_listed && self.nodes_listed && self.unlisted.is_empty()
    }

    pub(super) fn schedules(&self, pod: &Pod) -> bool {
        self.config.scheduler_names.contains(&pod.scheduler_name)
    }

    pub(super) fn existing(&self, node: &str) -> Option<NodeId> {
        self.inventory().find(node).filter(|id| self.inventory().row(*id).node.is_some())
    }

    /// Returns the rank of a node for the pod `uid` of this class by node-local rules: without the reservation of the
    /// pod itself, and without `victims`. `later`: with the devices that victims of nominated pods leave.
    pub(super) fn rank_on(
        &self,
        class: &Class,
        node: NodeId,
        uid: &str,
        victims: &[&str],
        later: bool,
    ) -> Key {
        let row = self.inventory().row(node);
        let own = |row: &Row| row.reserved.as_ref().is_some_and(|all| all.iter().any(|r| *r.uid == *uid));
        if victims.is_empty() && !later && !own(row) {
            return rules::rank_uncached(class, row);
        }
        let mut row = row.clone();
        row.unreserve(uid);
        for victim in victims {
            if let Some(charge) = self.ledger.charge_of(victim).filter(|charge| charge.node == node) {
                row.discharge(&charge.holding);
            }
        }
        if let Some(volumes) = &class.spec.volumes {
            let is_vacated =
                |claim: &&ClaimName| self.ledger.users_of(claim).all(|uid| victims.contains(&&**uid));
            let vacated = volumes.claims_in_use.iter().filter(is_vacated).cloned();
            row.vacated = Some(Arc::new(vacated.collect()));
        }
        if class.spec.devices.is_some() {
            let place = self.waiting.get(uid).map(Waiting::place);
            let left = self.devices_left(self.inventory().name(node), place);
            row.devices = if later { left.later } else { left.now };
        }
        rules::rank_uncached(class, &row)
    }

    /// Returns the resources for which the kubelet would reject the pod beside all pods that others have or were granted.
    pub(super) fn lacks(&self, node: NodeId, holding: &Holding, uid: &str) -> Option<String> {
        let mut row = self.inventory().row(node).clone();
        if let Some(charge) = self.ledger.charge_of(uid).filter(|charge| charge.node == node) {
            row.discharge(&charge.holding);
        }
        row.unreserve(&former_name(uid, self.inventory().name(node)));
        // Reservations for nominated pods do not count.
        let row = row.with_reservations(GRANTED).unwrap_or(row);
        let lacking = rules::lacking(&holding.usage, &row);
        (!lacking.is_empty()).then(|| lacking.join(", "))
    }

    /// Returns the pod's claims that need a volume or devices, in the order of its class.
    pub(super) fn unbound_claims(&mut self, uid: &str) -> Result<UnboundClaims, Outdated> {
        let waiting = self.waiting.get(uid).ok_or(Outdated)?;
        let mut unbound = UnboundClaims::default();
        if let Some(needs) = &waiting.class.spec.devices {
            let resolved = self.objects.devices.resolve(&waiting.source);
            if **needs != resolved.needs {
                return Err(Outdated);
            }
            unbound.devices = resolved.unallocated;
        }
        let Some(volumes) = &waiting.source.volumes else {
            return Ok(unbound);
        };
        let used = |claim: &ClaimName| self.ledger.is_used(claim);
        let resolved = self.objects.volumes.resolve(&waiting.source, volumes, &used);
        match waiting.class.spec.volumes.as_deref() == Some(&resolved.needs) {
            true => Ok(UnboundClaims { volumes: resolved.unbound, ..unbound }),
            false => Err(Outdated),
        }
    }

    /// Returns what a pod with this usage lacks in this quota now.
    pub(super) fn over_quota(&self, quota: Option<&Arc<str>>, usage: &Usage) -> Option<Lack> {
        let quota = self.objects.quotas.get(quota?)?;
        let limits = quota.valid()?;
        if self.recounting_quotas {
            return Some(Lack::Recounting);
        }
        self.ledger.accounts().of(&quota.name).lacks_for(&limits.maximum, usage)
    }

    /// Returns what some pods together lack.
    pub(super) fn together_over_quota(&self, quota: &str, wanted: &Sums) -> Option<Lack> {
        let quota = self.objects.quotas.get(quota)?;
        let limits = quota.valid()?;
        if self.recounting_quotas {
            return Some(Lack::Recounting);
        }
        self.ledger.accounts().of(&quota.name).lacks(&limits.maximum, wanted)
    }

    /// Returns what the waiting pod `uid` lacks in its quota now.
    pub(super) fn lacks_quota(&self, uid: &str) -> Option<Lack> {
        let holding = &self.waiting.get(uid)?.holding;
        self.over_quota(holding.quota.as_ref(), &holding.usage)
    }

    /// Checks I12: the requests of a newly placed pod are within the maximum of its quota.
    pub(super) fn within_quota(&self, uid: &str) -> Checked {
        let Some(holding) = self.ledger.charge_of(uid).map(|charge| &charge.holding) else {
            return Ok(());
        };
        let Some(quota) = holding.quota.as_ref().and_then(|name| self.objects.quotas.get(name)) else {
            return Ok(());
        };
        let Some(limits) = quota.valid() else { return Ok(()) };
        within_maximum(&quota.name, &limits.maximum, self.ledger.accounts().of(&quota.name), &holding.usage)
    }

    /// Returns whether this replica owns the pod. Members of a gang have the same owner.
    pub(super) fn owns_pod(&self, pod: &Waiting) -> bool {
        match &pod.gang {
            Some(gang) => self.owns_gang(&gang.name),
            None => self.owns(&pod.class),
        }
    }

    /// Returns whether the pod is in a queue of this replica although another one owns it, or the other way round.
    pub(super) fn is_misplaced(&self, pod: &Waiting) -> bool {
        match pod.state {
            State::Gated | State::Refused(_) | State::Claiming | State::Binding | State::Held => false,
            State::Elsewhere => self.owns_pod(pod),
            _ => !self.owns_pod(pod),
        }
    }

    /// Returns whether this replica writes the conditions of the pod: the one that schedules it does, as long as it is in a queue
    /// there. One that nobody schedules is in no queue.
    pub(super) fn reports_to(&self, pod: &Waiting) -> bool {
        match pod.state {
            State::Elsewhere => false,
            State::Refused(_) | State::BackingOff(_) => self.owns_pod(pod),
            _ => true,
        }
    }

    pub(super) fn owns(&self, class: &Class) -> bool {
        self.share.as_ref().is_none_or(|share| match class.spec.devices {
            Some(_) => self.gives_devices,
            None => share.owns(class.fingerprint()),
        })
    }

    /// Returns whether this replica may give devices to pods.
    pub(super) fn may_give_devices(&self) -> bool {
        self.leading && (self.share.is_none() || self.gives_devices)
    }

    pub(super) fn owns_gang(&self, name: &AllocationName) -> bool {
        self.share.as_ref().is_none_or(|share| {
            if self.waiting.needs_devices(name) {
                return self.gives_devices;
            }
            let mut hasher = DefaultHasher::new();
            name.hash(&mut hasher);
            share.owns(hasher.finish())
        })
    }
}
