//! Claims of pods: what berth writes for them, the volume controller that binds them, and a provisioner that may fail.

use std::sync::Arc;

use berth_model::{
    ClaimName, Labels, NodeSelectorTerm, Operator, Pod, PodClaim, PodVolumes, Requirement, StaticVolume,
    VolumeKind,
};
use berth_scheduler::objects::{
    Claim, ClaimRef, ClaimRequest, ClusterObject, ObjectKind, ObjectName, StorageClass, Volume, WantedVolume,
};
use berth_scheduler::placement::{Binding, ClaimOrder};

use super::dice::Dice;
use super::objects::global;
use super::peers::HOSTNAME;
use super::process::Who;
use super::sim::{Event, MS, S, Sim, Step};

/// A storage class with volumes that are there, each on one node, and one whose volumes are made on demand.
const CLASSES: [(&str, &str); 2] = [("local", "kubernetes.io/no-provisioner"), ("made", "example.com/maker")];

pub struct Storage {
    /// Pods have claims.
    pub exists: bool,
    dice: Dice,
    /// The latest resource version.
    version: u64,
    volumes: u32,
    /// The controllers are to look again.
    looks: bool,
}

impl Storage {
    pub fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed, 6);
        Storage { exists: dice.percent(30), dice, version: 0, volumes: 0, looks: false }
    }
}

fn key_of_claim(claim: &ClaimName) -> (ObjectKind, ObjectName) {
    let (namespace, name) = (claim.namespace.clone(), claim.name.clone());
    (ObjectKind::PersistentVolumeClaim, ObjectName { namespace, name })
}

fn kind(class: &str) -> VolumeKind {
    VolumeKind { class: class.into(), ..VolumeKind::default() }
}

/// Returns a volume that only this node reaches.
fn volume(name: &str, class: &str, node: &str, version: u64) -> Volume {
    let operator = Operator::In([node.into()].into());
    let expressions = [Requirement { key: HOSTNAME.into(), operator }].into();
    let spec = StaticVolume {
        name: name.into(),
        kind: kind(class),
        capacity_bytes: 10,
        labels: Labels::default(),
        affinity: Some([NodeSelectorTerm { expressions, fields: [].into() }].into()),
    };
    Volume { version, spec: spec.into(), available: true, ..Volume::default() }
}

fn claims_of(pod: &Pod) -> impl Iterator<Item = ClaimName> {
    let claims = pod.volumes.iter().flat_map(|volumes| &volumes.claims);
    claims.map(|claim| ClaimName { namespace: pod.namespace.clone(), name: claim.name.clone() })
}

impl Sim {
    pub fn build_storage(&mut self) {
        if !self.storage.exists {
            return;
        }
        for (name, provisioner) in CLASSES {
            self.cluster.apply_object(ClusterObject::StorageClass(StorageClass {
                name: name.into(),
                provisioner: provisioner.into(),
                delayed: true,
                topologies: Default::default(),
            }));
        }
        for _ in 0..self.storage.dice.below(6) {
            self.add_volume();
        }
    }

    fn claim(&self, name: &ClaimName) -> Option<&Claim> {
        match self.cluster.objects.get(&key_of_claim(name))? {
            ClusterObject::Claim(claim) => Some(claim),
            _ => None,
        }
    }

    fn volume(&self, name: &str) -> Option<&Volume> {
        match self.cluster.objects.get(&global(ObjectKind::PersistentVolume, name))? {
            ClusterObject::Volume(volume) => Some(volume),
            _ => None,
        }
    }

    fn claims(&self) -> Vec<Claim> {
        let of = |object: &ClusterObject| match object {
            ClusterObject::Claim(claim) => Some(claim.clone()),
            _ => None,
        };
        self.cluster.objects.values().filter_map(of).collect()
    }

    fn volumes(&self) -> Vec<Volume> {
        let of = |object: &ClusterObject| match object {
            ClusterObject::Volume(volume) => Some(volume.clone()),
            _ => None,
        };
        self.cluster.objects.values().filter_map(of).collect()
    }

    fn next_version(&mut self) -> u64 {
        self.storage.version += 1;
        self.storage.version
    }

    fn write_claim(&mut self, claim: Claim) -> u64 {
        let version = self.next_version();
        self.cluster.apply_object(ClusterObject::Claim(Claim { version, ..claim }));
        version
    }

    fn write_volume(&mut self, volume: Volume) -> u64 {
        let version = self.next_version();
        self.cluster.apply_object(ClusterObject::Volume(Volume { version, ..volume }));
        version
    }

    fn add_volume(&mut self) {
        let nodes: Vec<Arc<str>> = self.cluster.nodes.keys().cloned().collect();
        if let Some(node) = self.storage.dice.pick(&nodes).cloned() {
            self.storage.volumes += 1;
            let name = format!("v{}", self.storage.volumes);
            self.note(|| format!("there is a volume {name} on {node}"));
            self.write_volume(volume(&name, "local", &node, 0));
        }
    }

    /// Makes a random change of volumes and claims, or none.
    pub fn change_storage(&mut self) {
        if !self.storage.exists || !self.storage.dice.percent(12) {
            return;
        }
        match self.storage.dice.below(3) {
            0 | 1 => self.add_volume(),
            // A claim that no pod uses, as the API server protects all others.
            _ => {
                let pods = self.cluster.store.list();
                let used =
                    |claim: &Claim| pods.iter().any(|pod| claims_of(pod).any(|name| name == claim.name));
                let unused: Vec<_> = self.claims().into_iter().filter(|claim| !used(claim)).collect();
                if let Some(claim) = self.storage.dice.pick(&unused).cloned() {
                    self.note(|| format!("the claim {:?} is deleted", claim.name));
                    self.cluster.delete_object(&key_of_claim(&claim.name));
                    self.control_volumes_soon();
                }
            }
        }
    }

    /// Lets some pods use claims: new ones, or those of other pods of their namespace.
    pub fn give_claims(&mut self, pod: &mut Pod) {
        if !self.storage.exists || !self.storage.dice.percent(40) {
            return;
        }
        let mut names = Vec::new();
        for at in 0..1 + self.storage.dice.below(2) {
            let there: Vec<_> = self.claims().into_iter().map(|claim| claim.name).collect();
            let there: Vec<_> = there.into_iter().filter(|name| name.namespace == pod.namespace).collect();
            let shared = self.storage.dice.percent(15);
            if let Some(name) = self.storage.dice.pick(&there).filter(|_| shared) {
                names.push(name.name.clone());
                continue;
            }
            let class = CLASSES[self.storage.dice.below(2) as usize].0;
            let name =
                ClaimName { namespace: pod.namespace.clone(), name: format!("c{at}-{}", pod.uid).into() };
            names.push(name.name.clone());
            self.write_claim(Claim {
                uid: format!("uid of {}", name.name).into(),
                name,
                kind: kind(class),
                size_bytes: 5,
                ..Claim::default()
            });
        }
        names.sort();
        names.dedup();
        self.tally.count("claims");
        self.note(|| format!("{} uses {names:?}", pod.uid));
        let claims = names.into_iter().map(|name| PodClaim { name, ephemeral: false }).collect();
        pod.volumes = Some(Arc::new(PodVolumes { claims, ..PodVolumes::default() }));
    }

    // What berth writes.

    pub fn order_claims(&mut self, who: Who, order: ClaimOrder) -> Step {
        self.note(|| format!("p{} orders {order:?}", who.0));
        self.tally.count("claims ordered");
        let pod = self.processes[who.0].shadow.pods.get(&order.uid);
        let pod = pod.ok_or_else(|| format!("{} is not known", order.uid))?;
        let (uid, usage) = (order.uid.clone(), pod.usage.clone());
        let (namespace, name) = (pod.namespace.clone(), pod.name.clone());
        let binding = Binding { uid: uid.clone(), namespace, name, node: order.node.clone(), decision: None };
        self.judge_commit(who, &binding)?;
        self.judge_claims_wanted(who, &binding, Some(&order))?;
        let shadow = &mut self.processes[who.0].shadow;
        shadow.assumed.insert(uid.clone(), (order.node.clone(), usage));
        shadow.claiming.insert(uid, binding);
        let pause = self.storage.dice.up_to(50 * MS);
        self.after(pause, Event::WriteClaims(who, order));
        Ok(())
    }

    /// The writes of an order reach the API server, one after another.
    pub fn write_claims(&mut self, who: Who, order: ClaimOrder) {
        let fate = if self.faults { self.storage.dice.below(100) } else { 99 };
        let mut written = Ok(Vec::new());
        for request in order.requests.iter() {
            let Ok(versions) = &mut written else { break };
            match self.write_request(request, &order.node) {
                _ if !self.cluster.up || fate < 5 => written = Err("connection refused".to_owned()),
                Ok(version) => versions.push(version),
                Err(why) => written = Err(why),
            }
        }
        if (95..99).contains(&fate) {
            written = Err("timed out".to_owned());
        }
        self.note(|| format!("the claims of {} are written: {written:?}", order.uid));
        if let Ok(volumes) = &mut written
            && !order.devices.is_empty()
        {
            let volumes = std::mem::take(volumes);
            self.control_volumes_soon();
            return self.write_device_claims(who, order, volumes);
        }
        let back = self.storage.dice.up_to(if self.faults { 500 * MS } else { 10 * MS });
        self.after(back, Event::ClaimsWritten(who, order, written));
        self.control_volumes_soon();
    }

    fn write_request(&mut self, request: &ClaimRequest, node: &Arc<str>) -> Result<u64, String> {
        let claim = self.claim(&request.claim).filter(|claim| claim.uid == request.uid).cloned();
        let claim = claim.ok_or("there is no such claim")?;
        match &request.wanted {
            WantedVolume::Volume(name) => {
                let volume = self.volume(name).cloned().ok_or("there is no such volume")?;
                let reference = ClaimRef { claim: claim.name, uid: claim.uid };
                if volume.claim.as_ref().is_some_and(|other| *other != reference) {
                    return Err("the object has been modified".to_owned());
                }
                Ok(self.write_volume(Volume { claim: Some(reference), ..volume }))
            }
            WantedVolume::Provision => {
                Ok(self.write_claim(Claim { selected_node: Some(node.clone()), ..claim }))
            }
        }
    }

    pub fn claims_written(
        &mut self,
        who: Who,
        order: &ClaimOrder,
        written: Result<Vec<u64>, String>,
    ) -> Step {
        let now = self.now;
        if let Some(process) = self.process(who) {
            process.scheduler.claims_written(order, written, now);
            return self.carry_out(who);
        }
        Ok(())
    }

    /// Forgets the nodes of pods that no longer wait for their claims there.
    pub fn end_claiming(&mut self, who: Who) {
        let now = self.now;
        let process = &mut self.processes[who.0];
        let waits = |binding: &Binding| {
            let found = process.scheduler.find_waiting(&binding.namespace, &binding.name);
            found
                .is_some_and(|(pod, state)| pod.uid == binding.uid && matches!(state, "claiming" | "binding"))
        };
        let ended: Vec<Binding> =
            process.shadow.claiming.values().filter(|binding| !waits(binding)).cloned().collect();
        for binding in ended {
            process.shadow.claiming.remove(&binding.uid);
            process.shadow.refused(&binding, now);
            self.tally.count("claims given up");
        }
    }

    /// A pod is to be bound: its claims are, to volumes that its node reaches.
    pub fn judge_claims(&self, who: Who, binding: &Binding) -> Step {
        let (shadow, node) = (&self.processes[who.0].shadow, &binding.node);
        let Some(pod) = shadow.pods.get(&binding.uid) else {
            return Err(format!("{} is not known", binding.uid));
        };
        // Claims of a pod that is gone may be gone, too: its bind has no effect.
        let there = self.cluster.store.get(&binding.namespace, &binding.name);
        if there.is_none_or(|there| there.uid != binding.uid) {
            return Ok(());
        }
        for name in claims_of(pod) {
            let volume = match shadow.objects.get(&key_of_claim(&name)) {
                Some(ClusterObject::Claim(claim)) if claim.bind_completed => claim.volume.clone(),
                other => return Err(format!("{} is bound with the claim {other:?}", pod.uid)),
            };
            let volume = volume.and_then(|volume| {
                shadow.objects.get(&global(ObjectKind::PersistentVolume, &volume)).cloned()
            });
            let reaches = |volume: &Volume| {
                shadow.nodes.get(node).is_some_and(|node| volume.spec.reaches(&node.labels))
            };
            match &volume {
                Some(ClusterObject::Volume(volume)) if reaches(volume) => {}
                other => return Err(format!("{} is bound to {node} with {other:?}", pod.uid)),
            }
        }
        Ok(())
    }

    // Controllers.

    pub fn control_volumes_soon(&mut self) {
        if self.storage.exists && !std::mem::replace(&mut self.storage.looks, true) {
            let slow = self.faults && self.storage.dice.percent(20);
            let pause = self.storage.dice.up_to(if slow { 3 * S } else { 50 * MS });
            self.after(pause, Event::ControlVolumes);
        }
    }

    /// Binds reserved volumes, provisions volumes for selected nodes, and removes those whose claim is gone.
    pub fn control_volumes(&mut self) {
        self.storage.looks = false;
        for volume in self.volumes() {
            let Some(reference) = volume.claim.clone() else { continue };
            let claim = self.claim(&reference.claim).filter(|claim| claim.uid == reference.uid).cloned();
            match claim {
                None => self.cluster.delete_object(&global(ObjectKind::PersistentVolume, &volume.spec.name)),
                Some(claim) if claim.volume.is_none() => {
                    self.bind_volume(volume, claim);
                }
                Some(claim) if claim.volume.as_ref() != Some(&volume.spec.name) => {
                    self.write_volume(Volume { claim: None, available: true, ..volume });
                }
                Some(_) => {}
            }
        }
        for claim in self.claims() {
            let Some(node) = claim.selected_node.clone().filter(|_| claim.volume.is_none()) else { continue };
            let fails = self.faults && self.storage.dice.percent(25);
            if fails || !self.cluster.nodes.contains_key(&node) {
                self.tally.count("not provisioned");
                self.note(|| format!("no volume for {:?} on {node}", claim.name));
                self.write_claim(Claim { selected_node: None, ..claim });
                continue;
            }
            let name = format!("v-{}", claim.name.name);
            self.bind_volume(volume(&name, &claim.kind.class, &node, 0), claim);
        }
    }

    fn bind_volume(&mut self, volume: Volume, claim: Claim) {
        self.note(|| format!("{:?} is bound to {}", claim.name, volume.spec.name));
        self.tally.count("claim bound");
        let reference = ClaimRef { claim: claim.name.clone(), uid: claim.uid.clone() };
        let bound = Some(volume.spec.name.clone());
        self.write_volume(Volume { claim: Some(reference), available: false, ..volume });
        self.write_claim(Claim { volume: bound, bind_completed: true, ..claim });
    }
}
