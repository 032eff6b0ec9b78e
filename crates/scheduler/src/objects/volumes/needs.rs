//! Conversion of a pod's claims to what the rules read, from the current state.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Claim, Volumes};
use berth_model::{
    AccessModes, ClaimName, CsiVolume, HeldVolumes, Pod, PodClaim, PodVolumes, Provision, StaticVolume,
    UnboundClaim, VolumeNeeds, VolumeZone,
};

/// Provisioner of classes without dynamic provisioning (upstream: `NotSupportedProvisioner`).
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// Labels of a volume that VolumeZone reads.
const TOPOLOGY_LABELS: [&str; 4] = [
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
];

/// Requirements of a pod's volumes on nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resolved {
    pub needs: VolumeNeeds,
    /// The claims of `needs.unbound`, in the same order.
    pub unbound: Vec<ClaimName>,
}

impl Volumes {
    /// Returns the requirements of the pod's volumes on nodes. `used` returns whether a bound pod uses a claim.
    pub fn resolve(
        &mut self,
        pod: &Pod,
        volumes: &PodVolumes,
        used: &dyn Fn(&ClaimName) -> bool,
    ) -> Resolved {
        let name_of = |claim: &PodClaim| claim_name(pod, claim);
        if let Some(refusal) = self.refusal(pod, volumes) {
            let needs = VolumeNeeds { refusal: Some(refusal.into()), ..VolumeNeeds::default() };
            return Resolved { needs, unbound: Vec::new() };
        }
        let mut needs = VolumeNeeds { disks: volumes.disks.clone(), ..VolumeNeeds::default() };
        let (mut bound, mut zones, mut unbound) = (Vec::new(), Vec::new(), Vec::new());
        let mut once_in_use = Vec::new();
        let mut shared = volumes.inline.to_vec();
        let mut fresh: BTreeMap<Arc<str>, u32> = BTreeMap::new();
        for pod_claim in &volumes.claims {
            let name = name_of(pod_claim);
            let Some(claim) = self.claims.get(&name) else {
                continue;
            };
            let in_use = used(&name);
            let once = claim.kind.modes.contains(AccessModes::READ_WRITE_ONCE_POD);
            if once && in_use && !pod_claim.ephemeral {
                once_in_use.push(name.clone());
            }
            if let Some(volume) = self.attached_as(claim) {
                match in_use || self.is_attached(claim) {
                    true => shared.push(volume),
                    false => *fresh.entry(volume.driver).or_default() += 1,
                }
            }
            match claim.bound_to().map(|volume| self.volumes.get(volume)) {
                None => unbound.push(name),
                Some(None) => needs.volume_missing = true,
                Some(Some(volume)) => {
                    bound.extend(volume.spec.affinity.clone());
                    if !pod_claim.ephemeral {
                        zones.extend(zones_of(&volume.spec));
                    }
                }
            }
        }
        (needs.bound, needs.zones, needs.shared) = (canonical(bound), canonical(zones), canonical(shared));
        needs.claims_in_use = canonical(once_in_use);
        needs.fresh = fresh.into_iter().collect();
        let mut unbound: Vec<_> = unbound.into_iter().filter_map(|name| self.unbound(name)).collect();
        // Claims of equal size stay in the order of the pod, which determines which one gets which volume.
        unbound.sort_by_key(|(claim, _)| claim.size_bytes);
        let (claims, names) = unbound.into_iter().unzip::<_, _, Vec<_>, Vec<_>>();
        needs.unbound = claims.into();
        Resolved { needs, unbound: names }
    }

    /// Returns why no node is possible, with the texts and in the order of upstream's PreFilter plugins:
    /// VolumeRestrictions, VolumeBinding, VolumeZone.
    fn refusal(&self, pod: &Pod, volumes: &PodVolumes) -> Option<String> {
        let claims = || {
            volumes
                .claims
                .iter()
                .map(|claim| (claim.ephemeral, self.claims.get(&claim_name(pod, claim)), claim))
        };
        for (ephemeral, claim, PodClaim { name, .. }) in claims() {
            if claim.is_none() && !ephemeral {
                return Some(format!("persistentvolumeclaim {name:?} not found"));
            }
        }
        for (ephemeral, claim, PodClaim { name, .. }) in claims() {
            let Some(claim) = claim else {
                let waiting = "waiting for ephemeral volume controller to create the persistentvolumeclaim";
                return Some(format!("{waiting} {name:?}"));
            };
            if claim.lost {
                let volume = claim.volume.as_deref().unwrap_or_default();
                return Some(format!(
                    "persistentvolumeclaim {name:?} bound to non-existent persistentvolume {volume:?}"
                ));
            }
            if claim.deleting {
                return Some(format!("persistentvolumeclaim {name:?} is being deleted"));
            }
            if ephemeral && claim.owner.as_ref() != Some(&pod.uid) {
                let (namespace, pod) = (&pod.namespace, &pod.name);
                return Some(format!(
                    "PVC {namespace}/{name} was not created for pod {namespace}/{pod} (pod is not owner)"
                ));
            }
        }
        let immediate = |claim: &Claim| {
            let delayed = self.classes.get(&claim.kind.class).is_some_and(|class| class.delayed);
            claim.bound_to().is_none() && (!delayed || claim.volume.is_some())
        };
        if claims().any(|(_, claim, _)| claim.is_some_and(immediate)) {
            return Some("pod has unbound immediate PersistentVolumeClaims".to_owned());
        }
        for (ephemeral, claim, _) in claims() {
            if let Some(volume) = claim.and_then(Claim::bound_to)
                && !ephemeral
                && !self.volumes.contains_key(volume)
            {
                return Some(format!("persistentvolume {volume:?} not found"));
            }
        }
        None
    }

    fn unbound(&mut self, name: ClaimName) -> Option<(UnboundClaim, ClaimName)> {
        let claim = self.claims.get(&name)?.clone();
        let class = &claim.kind.class;
        let makes = |provisioner: &str| !matches!(provisioner, "" | NO_PROVISIONER);
        let maker = self.classes.get(class).filter(|class| makes(&class.provisioner)).cloned();
        let provision = maker.map(|maker| Provision {
            segments: (self.drivers_with_capacity.contains(&maker.provisioner))
                .then(|| self.segments(class, claim.size_bytes)),
            topologies: maker.topologies,
        });
        let candidates = self.candidates(class);
        let unbound = UnboundClaim {
            selected_node: self.selected.get(&name).or(claim.selected_node.as_ref()).cloned(),
            prebound: self.prebound(&claim),
            size_bytes: claim.size_bytes,
            kind: claim.kind,
            selector: claim.selector,
            candidates,
            provision,
        };
        Some((unbound, name))
    }

    /// Returns the volume that is pre-bound to this claim, if it satisfies the claim.
    fn prebound(&self, claim: &Claim) -> Option<Arc<StaticVolume>> {
        let names = self.offered_to_claims.get(&claim.name)?;
        names.iter().find_map(|name| {
            let volume = self.volumes.get(name)?;
            let meant = volume.claim.as_ref().is_none_or(|reference| {
                reference.claim == claim.name && (reference.uid.is_empty() || reference.uid == claim.uid)
            });
            let (kind, wanted) = (&volume.spec.kind, &claim.kind);
            let serves = volume.spec.capacity_bytes >= claim.size_bytes
                && (&kind.class, kind.block, &kind.attributes_class)
                    == (&wanted.class, wanted.block, &wanted.attributes_class);
            (meant && serves && !volume.deleting).then(|| volume.spec.clone())
        })
    }

    /// Returns the volume that a CSI driver attaches for this claim, now or once it is bound (upstream:
    /// `getCSIDriverInfo`).
    fn attached_as(&self, claim: &Claim) -> Option<CsiVolume> {
        if let Some(volume) = claim.volume.as_ref().and_then(|volume| self.volumes.get(volume)) {
            return volume.csi.clone();
        }
        let class = self.classes.get(&claim.kind.class)?;
        let driver = match &*class.provisioner {
            "kubernetes.io/aws-ebs" => "ebs.csi.aws.com".into(),
            "kubernetes.io/gce-pd" => "pd.csi.storage.gke.io".into(),
            "kubernetes.io/azure-disk" => "disk.csi.azure.com".into(),
            "kubernetes.io/cinder" => "cinder.csi.openstack.org".into(),
            "kubernetes.io/portworx-volume" => "pxd.portworx.com".into(),
            "kubernetes.io/azure-file" | "kubernetes.io/vsphere-volume" => return None,
            _ => class.provisioner.clone(),
        };
        // No real volume has such a handle.
        let handle = format!("claim {}/{}", claim.name.namespace, claim.name.name);
        Some(CsiVolume { driver, handle: handle.into() })
    }

    /// Returns whether the attach controller has attached the claim's volume to any node.
    fn is_attached(&self, claim: &Claim) -> bool {
        claim.volume.as_ref().is_some_and(|volume| self.attachments_by_volume.contains_key(volume))
    }

    /// Returns the volumes that a pod uses on its node.
    pub fn held(&self, pod: &Pod, volumes: &PodVolumes) -> HeldVolumes {
        let claims = volumes.claims.iter().map(|claim| claim_name(pod, claim)).collect();
        let (disks, inline) = (volumes.disks.clone(), volumes.inline.clone());
        self.renewed(&HeldVolumes { claims, disks, inline, attached: [].into() })
    }

    /// Recomputes the used volumes after a change.
    pub fn renewed(&self, held: &HeldVolumes) -> HeldVolumes {
        let claims = held.claims.iter().filter_map(|name| self.claims.get(name));
        let mut attached: Vec<_> = claims.filter_map(|claim| self.attached_as(claim)).collect();
        attached.extend(held.inline.iter().cloned());
        HeldVolumes { attached: canonical(attached), ..held.clone() }
    }
}

/// Sorts and removes duplicates.
fn canonical<T: Ord>(mut values: Vec<T>) -> Box<[T]> {
    values.sort();
    values.dedup();
    values.into()
}

fn claim_name(pod: &Pod, claim: &PodClaim) -> ClaimName {
    ClaimName { namespace: pod.namespace.clone(), name: claim.name.clone() }
}

/// Returns the zones of a volume's labels. Several zones of one label are separated by two underscores; an invalid
/// label is ignored.
fn zones_of(volume: &StaticVolume) -> impl Iterator<Item = VolumeZone> + '_ {
    TOPOLOGY_LABELS.into_iter().filter_map(|key| {
        let mut values: Vec<Arc<str>> = Vec::new();
        for value in volume.labels.get(key)?.split("__") {
            let value = value.trim();
            if value.is_empty() {
                return None;
            }
            values.push(value.into());
        }
        values.sort();
        values.dedup();
        Some(VolumeZone { key: key.into(), values: values.into() })
    })
}
