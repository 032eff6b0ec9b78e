//! Checks of resource claims: at decisions, at effects, and at rest.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_devices::{DeviceId, ResourceClaim};
use berth_model::{ClaimName, Node, Pod, PodSpec, Usage};
use berth_scheduler::objects::ClusterObject;
use berth_scheduler::placement::{Binding, ClaimOrder};

use super::devices::{GPU, claims_of, extended_claim_of};
use super::process::{Shadow, Who};
use super::sim::{Sim, Step};

fn is_reserved(claim: &ResourceClaim, uid: &str) -> bool {
    claim.reserved.iter().any(|user| *user.uid == *uid)
}

impl Shadow {
    /// Returns whether devices provide extended resources on this node, which has none itself.
    fn is_provided(&self, node: &Node) -> bool {
        let provides = |object: &ClusterObject| match object {
            ClusterObject::DeviceClass(class) => class.extended_resource.as_deref() == Some(GPU),
            _ => false,
        };
        node.extended.get(GPU) == 0 && self.objects.values().any(provides)
    }

    /// Returns the usage that the node itself has to have room for.
    pub fn usage_of_node(&self, usage: &Arc<Usage>, node: &Node) -> Arc<Usage> {
        if usage.extended.get(GPU) == 0 || !self.is_provided(node) {
            return usage.clone();
        }
        let extended = usage.extended.iter().filter(|(name, _)| ***name != *GPU);
        let extended = extended.map(|(name, amount)| (name.clone(), amount)).collect();
        Arc::new(Usage { extended, ..Usage::clone(usage) })
    }

    /// Returns the spec with such a usage.
    pub fn spec_for_node(&self, spec: &Arc<PodSpec>, node: &Node) -> Arc<PodSpec> {
        let usage = self.usage_of_node(&spec.usage, node);
        Arc::new(PodSpec { usage, ..PodSpec::clone(spec) })
    }
}

impl Sim {
    /// A process has decided for a node: checks that the claims of the order, or those that are written already, suffice.
    pub fn judge_claims_wanted(&self, who: Who, binding: &Binding, order: Option<&ClaimOrder>) -> Step {
        let shadow = &self.processes[who.0].shadow;
        let (Some(pod), Some(node)) = (shadow.pods.get(&binding.uid), shadow.nodes.get(&binding.node)) else {
            return Err(format!("{} or its node is not known", binding.uid));
        };
        let wants = self.devices.exists && pod.usage.extended.get(GPU) > 0 && shadow.is_provided(node);
        let makes = order.is_some_and(|order| order.devices.iter().any(|update| update.new.is_some()));
        match wants == makes {
            true => Ok(()),
            false => Err(format!("{} on {}: wants devices: {wants}, {order:?}", pod.uid, node.name)),
        }
    }

    /// Returns why the claims of a pod do not let it run on this node.
    fn lacks_devices(&self, pod: &Pod, node: &Arc<str>) -> Step {
        let names = claims_of(pod).map(|name| (name, true)).chain([(extended_claim_of(pod), false)]);
        let there = self.cluster.nodes.get(node);
        for (name, is_required) in names {
            let claim = match self.device_claim(&name) {
                None if !is_required => continue,
                None => return Err(format!("{name:?} does not exist")),
                Some(claim) => claim,
            };
            let Some(allocation) = &claim.allocation else {
                return Err(format!("{name:?} is not allocated"));
            };
            if !is_reserved(claim, &pod.uid) {
                return Err(format!("{name:?} is reserved for {:?}", claim.reserved));
            }
            let reaches = |node: &Node| {
                let terms = allocation.nodes.as_deref();
                terms.is_none_or(|terms| terms.iter().any(|term| term.matches(&node.name, &node.labels)))
            };
            if !there.is_none_or(reaches) {
                return Err(format!("{node} does not reach {allocation:?}"));
            }
            let told = pod.extended.as_ref().and_then(|extended| extended.claim.as_ref());
            if !is_required && told != Some(&name.name) {
                return Err(format!("its status names the claim {told:?}, should be {name:?}"));
            }
        }
        Ok(())
    }

    /// A pod is to be bound, or was bound by berth: its claims are allocated there, and reserved for it.
    pub fn judge_devices_of(&self, binding: &Binding) -> Step {
        let there = self.cluster.store.get(&binding.namespace, &binding.name);
        // The bind of a pod that ends has no effect.
        let there = there.filter(|pod| pod.uid == binding.uid && !pod.deleting && !pod.finished);
        let Some(pod) = there.filter(|_| self.devices.exists) else { return Ok(()) };
        self.lacks_devices(&pod, &binding.node)
            .map_err(|why| format!("{} is bound to {}, but {why}", binding.uid, binding.node))
    }

    /// No device is in the claims of two placed pods.
    pub fn judge_devices(&self) -> Step {
        if !self.devices.exists {
            return Ok(());
        }
        let mut holders: BTreeMap<&DeviceId, Vec<&ResourceClaim>> = BTreeMap::new();
        for claim in self.device_claims() {
            for device in claim.allocation.iter().flat_map(|allocation| &allocation.devices) {
                holders.entry(&device.id).or_default().push(claim);
            }
        }
        let twice: Vec<_> = holders.into_iter().filter(|(_, claims)| claims.len() > 1).collect();
        if twice.is_empty() {
            return Ok(());
        }
        let pods = self.cluster.store.list();
        let is_placed = |uid: &Arc<str>| {
            let pod = pods.iter().find(|pod| pod.uid == *uid);
            self.devices.bound.contains(uid)
                && pod.is_some_and(|pod| pod.node_name.is_some() && !pod.finished)
        };
        for (device, claims) in twice {
            let used = claims.iter().filter(|claim| claim.reserved.iter().any(|user| is_placed(&user.uid)));
            let names: Vec<&ClaimName> = used.map(|claim| &claim.name).collect();
            if names.len() > 1 {
                return Err(format!("{device:?} is in the claims of placed pods: {names:?}"));
            }
        }
        Ok(())
    }

    /// At rest: nothing is left behind of pods that are gone, or by attempts to place pods that wait.
    pub fn judge_claims_at_rest(&self, pods: &[Pod]) -> Step {
        let of_pod = |uid: &Arc<str>| pods.iter().find(|pod| pod.uid == *uid && !pod.finished);
        for claim in self.device_claims() {
            let name = &claim.name;
            if let Some(user) = claim.reserved.iter().find(|user| of_pod(&user.uid).is_none()) {
                return Err(format!("{name:?} is reserved for {}, which is gone", user.uid));
            }
            if claim.deleting && claim.reserved.is_empty() {
                return Err(format!("{name:?} is never deleted"));
            }
            let Some(owner) = &claim.owner else { continue };
            let Some(pod) = of_pod(owner) else {
                return Err(format!("{name:?} is left behind by {owner}, which is gone"));
            };
            let is_ours = pod.gates.is_empty() && &*pod.scheduler_name == "berth";
            if pod.node_name.is_none() && is_ours && *name == extended_claim_of(pod) {
                return Err(format!("{name:?} is left behind by an attempt to place {owner}"));
            }
        }
        for pod in pods.iter().filter(|pod| self.devices.bound.contains(&pod.uid) && !pod.finished) {
            if let Some(node) = pod.node_name.as_ref().filter(|_| !pod.deleting) {
                self.lacks_devices(pod, node).map_err(|why| format!("{} runs, but {why}", pod.uid))?;
            }
        }
        Ok(())
    }
}
