//! Devices of nodes: drivers that publish and withdraw them, resource claims of pods, pods that request them as extended
//! resources, the claim controller, and other clients that change claims.

use std::collections::BTreeSet;
use std::sync::Arc;

use berth_devices::{CLAIM_FINALIZER, Device, DeviceClass, PoolId, Reach, ResourceClaim, ResourceSlice};
use berth_model::{
    ClaimName, ContainerRequest, DeviceClaimSource, ExtendedResource, ExtendedResources, GeneratedClaim, Pod,
    PodDeviceClaim,
};
use berth_scheduler::objects::{ClusterObject, ObjectKind};
use serde_json::{Value, json};

use super::claim_server::{ClaimServer, claim_json, without_finalizer};
use super::claim_writers::ClaimWriters;
use super::dice::Dice;
use super::objects::global;
use super::sim::{Event, MS, S, Sim};

const DRIVER: &str = "gpu.example.com";
/// The class of all devices, which provides [`GPU`].
const CLASS: &str = "gpu";
/// Some nodes have it by a device plugin.
pub const GPU: &str = "example.com/gpu";
/// The driver of another scheduler's devices.
const OTHER_DRIVER: &str = "other.example.com";
/// The name of the entry of each pod that has one.
const ENTRY: &str = "gpu";
const TEMPLATE: &str = "template";

pub struct Devices {
    /// Nodes have devices, and pods use them.
    pub exists: bool,
    /// Writes of a former leader arrive after another one has begun to decide: the API server did not abort them in time.
    pub writes_are_late: bool,
    pub dice: Dice,
    pub server: ClaimServer,
    /// `None`: no process has devices to give.
    pub writers: Option<ClaimWriters>,
    /// The claim controller is to look again.
    looks: bool,
    /// Claims whose authors create them after their pods.
    owed: Vec<(ClaimName, Value)>,
    /// Pods that berth has bound.
    pub bound: BTreeSet<Arc<str>>,
}

impl Devices {
    pub fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed, 9);
        let (exists, writes_are_late) = (dice.percent(20), dice.percent(50));
        Devices {
            exists,
            writes_are_late,
            dice,
            server: ClaimServer::default(),
            writers: exists.then(ClaimWriters::new),
            looks: false,
            owed: Vec::new(),
            bound: BTreeSet::new(),
        }
    }
}

fn class(created_s: i64) -> ClusterObject {
    ClusterObject::DeviceClass(DeviceClass {
        name: CLASS.into(),
        extended_resource: Some(GPU.into()),
        created_s,
        ..DeviceClass::default()
    })
}

fn name_of_slice(node: &str) -> String {
    format!("slice of {node}")
}

fn slice(node: &str, devices: u64, generation: i64) -> ClusterObject {
    let device = |at| Device { name: format!("gpu-{at}").into(), ..Device::default() };
    ClusterObject::ResourceSlice(Arc::new(ResourceSlice {
        name: name_of_slice(node).into(),
        pool: PoolId { driver: DRIVER.into(), name: node.into() },
        generation,
        slices_of_pool: 1,
        reach: Reach::Node(node.into()),
        devices: (0..devices).map(device).collect(),
        counters: Default::default(),
    }))
}

/// Returns the name of the claim for the pod's extended resources.
pub fn extended_claim_of(pod: &Pod) -> ClaimName {
    in_namespace_of(pod, &format!("{}-extended-resources-{}", pod.name, pod.uid))
}

fn in_namespace_of(pod: &Pod, name: &str) -> ClaimName {
    ClaimName { namespace: pod.namespace.clone(), name: name.into() }
}

/// Returns the claims that the pod names.
pub fn claims_of(pod: &Pod) -> impl Iterator<Item = ClaimName> {
    pod.devices.iter().filter_map(|claim| match &claim.source {
        DeviceClaimSource::Named(name)
        | DeviceClaimSource::Template { made: Some(GeneratedClaim::Named(name)), .. } => {
            Some(in_namespace_of(pod, name))
        }
        DeviceClaimSource::Template { .. } => None,
    })
}

/// Lets the pod have what the conversion of its spec adds for extended resources.
fn name_extended(pod: &mut Pod) {
    let count = pod.usage.extended.get(GPU);
    let Ok(count @ 1..) = u64::try_from(count) else { return };
    let request: Arc<str> = "container-0-request-0".into();
    let resource = ExtendedResource {
        name: GPU.into(),
        requests: [(request.clone(), count)].into(),
        containers: [ContainerRequest { container: "main".into(), request }].into(),
    };
    pod.extended = Some(Box::new(ExtendedResources { resources: [resource].into(), claim: None }));
}

/// Lets a pod request extended resources.
fn request_extended(pod: &mut Pod, count: i64) {
    let Ok(spec) = &mut pod.spec else { return };
    Arc::make_mut(&mut pod.usage).extended.add(&GPU.into(), count);
    Arc::make_mut(spec).usage = pod.usage.clone();
}

fn is_done(pod: &Pod) -> bool {
    pod.finished || pod.deleting && pod.node_name.is_none()
}

impl Sim {
    pub fn build_devices(&mut self) {
        if !self.devices.exists {
            return;
        }
        self.cluster.apply_object(class(1));
        let nodes: Vec<Arc<str>> = self.cluster.nodes.keys().cloned().collect();
        for node in nodes {
            if self.devices.dice.percent(90) {
                self.publish(&node);
            }
        }
    }

    fn publish(&mut self, node: &str) {
        let (devices, generation) = (1 + self.devices.dice.below(5), self.now.as_millis() as i64);
        self.note(|| format!("{node} has {devices} devices"));
        self.cluster.apply_object(slice(node, devices, generation));
    }

    /// Lets some pods use devices. Claims of their own are created now, or after the pod.
    pub fn give_devices(&mut self, pod: &mut Pod) {
        if !self.devices.exists {
            return;
        }
        let kind = self.devices.dice.below(100);
        match kind {
            0..24 => self.give_named_claim(pod),
            24..34 => self.share_claim(pod),
            34..42 => {
                let source = DeviceClaimSource::Template { template: TEMPLATE.into(), made: None };
                pod.devices = [PodDeviceClaim { entry: ENTRY.into(), source }].into();
                self.control_claims_soon();
            }
            42..62 => {
                let count = if self.devices.dice.percent(70) { 1 } else { 2 };
                request_extended(pod, count);
            }
            _ => {}
        }
        name_extended(pod);
        if !pod.devices.is_empty() || pod.extended.is_some() {
            self.tally.count("devices wanted");
            let (devices, extended) = (&pod.devices, &pod.extended);
            self.note(|| format!("{} uses {devices:?} {extended:?}", pod.uid));
        }
    }

    fn give_named_claim(&mut self, pod: &mut Pod) {
        let name = in_namespace_of(pod, &format!("claim-{}", pod.uid));
        let count = if self.devices.dice.percent(70) { 1 } else { 2 };
        let claim = claim_json(&name, CLASS, count, None);
        pod.devices = [named(&name.name)].into();
        match self.devices.dice.percent(20) {
            true => self.devices.owed.push((name, claim)),
            false => drop(self.change_claim(&name, |server| server.create(&name, claim))),
        }
        self.control_claims_soon();
    }

    /// Lets the pod use the claim of another pod, which may use another one besides.
    fn share_claim(&mut self, pod: &mut Pod) {
        let is_shared =
            |claim: &&ResourceClaim| claim.name.namespace == pod.namespace && claim.owner.is_none();
        let claims: Vec<_> = self.device_claims().filter(is_shared).map(|claim| claim.name.clone()).collect();
        if let Some(name) = self.devices.dice.pick(&claims) {
            pod.devices = [named(&name.name)].into();
            self.tally.count("device claim shared");
        }
    }

    /// Makes a random change of devices and claims, or none.
    pub fn change_devices(&mut self) {
        if !self.devices.exists || !self.devices.dice.percent(15) {
            return;
        }
        match self.devices.dice.below(20) {
            0..8 => {
                let nodes: Vec<Arc<str>> = self.cluster.nodes.keys().cloned().collect();
                if let Some(node) = self.devices.dice.pick(&nodes).cloned() {
                    self.publish(&node);
                }
            }
            8..10 => self.withdraw(),
            10..14 => self.delete_claim(),
            14..17 => self.allocate_as_other(),
            17..19 => self.deallocate_as_other(),
            _ => self.change_class(),
        }
    }

    fn withdraw(&mut self) {
        let slices = self.cluster.objects.keys().filter(|(kind, _)| *kind == ObjectKind::ResourceSlice);
        let slices: Vec<_> = slices.cloned().collect();
        if let Some(slice) = self.devices.dice.pick(&slices).cloned() {
            self.note(|| format!("{:?} is withdrawn", slice.1.name));
            self.tally.count("slice withdrawn");
            self.cluster.delete_object(&slice);
        }
    }

    fn change_class(&mut self) {
        let key = global(ObjectKind::DeviceClass, CLASS);
        self.note(|| "the device class changes".into());
        match self.cluster.objects.contains_key(&key) {
            true => self.cluster.delete_object(&key),
            false => self.cluster.apply_object(class(self.now.as_millis() as i64)),
        }
    }

    fn some_claim(&mut self, which: impl Fn(&ResourceClaim) -> bool) -> Option<ResourceClaim> {
        let claims: Vec<_> = self.device_claims().filter(|claim| which(claim)).cloned().collect();
        self.devices.dice.pick(&claims).cloned()
    }

    /// The author of a claim deletes it, whether pods use it or not.
    fn delete_claim(&mut self) {
        if let Some(claim) = self.some_claim(|_| true) {
            self.note(|| format!("the claim {:?} is deleted", claim.name.name));
            self.tally.count("device claim deleted");
            self.change_claim(&claim.name, |server| server.delete(&claim.name, &json!({})));
        }
    }

    /// Another client gives a claim devices of a driver that berth knows nothing of.
    fn allocate_as_other(&mut self) {
        let nodes: Vec<Arc<str>> = self.cluster.nodes.keys().cloned().collect();
        let claim = self.some_claim(|claim| claim.allocation.is_none() && !claim.deleting);
        let Some((claim, node)) = claim.zip(self.devices.dice.pick(&nodes)) else { return };
        let result = json!({"request": "r", "driver": OTHER_DRIVER, "pool": node, "device": "x"});
        let field = json!({"key": "metadata.name", "operator": "In", "values": [node]});
        let allocation = json!({
            "devices": {"results": [result]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
        });
        self.note(|| format!("another client allocates {:?}", claim.name.name));
        self.tally.count("device claim allocated by others");
        let name = &claim.name;
        let finalizers = json!({"metadata": {"finalizers": [CLAIM_FINALIZER]}});
        self.change_claim(name, |server| server.patch(name, false, &finalizers));
        let patch = json!({"status": {"allocation": allocation}});
        self.change_claim(name, |server| server.patch(name, true, &patch));
    }

    /// Another client deallocates a claim that no pod uses.
    fn deallocate_as_other(&mut self) {
        if let Some(claim) = self.some_claim(|claim| claim.allocation.is_some() && claim.reserved.is_empty())
        {
            self.deallocate(&claim, Value::Null);
        }
    }

    fn deallocate(&mut self, claim: &ResourceClaim, reserved: Value) {
        let patch = json!({"status": {"allocation": null, "reservedFor": reserved}});
        self.tally.count("device claim deallocated");
        self.change_claim(&claim.name, |server| server.patch(&claim.name, true, &patch));
    }

    // The claim controller.

    pub fn control_claims_soon(&mut self) {
        if self.devices.exists && !std::mem::replace(&mut self.devices.looks, true) {
            let slow = self.faults && self.devices.dice.percent(20);
            let pause = self.devices.dice.up_to(if slow { 3 * S } else { 50 * MS });
            self.after(pause, Event::ControlClaims);
        }
    }

    /// Creates claims from templates, ends the reservations of pods that have ended, and frees the devices of claims without users
    /// (upstream: `pkg/controller/resourceclaim`). At most one write to each claim.
    pub fn control_claims(&mut self) {
        self.devices.looks = false;
        for (name, claim) in std::mem::take(&mut self.devices.owed) {
            self.change_claim(&name, |server| server.create(&name, claim));
        }
        let pods = self.cluster.store.list();
        for pod in pods.iter().filter(|pod| !is_done(pod)) {
            self.make_claim(pod);
        }
        for name in self.devices.server.names() {
            if let Some(claim) = self.device_claim(&name).cloned() {
                self.control_claim(&claim, &pods);
            }
        }
    }

    fn make_claim(&mut self, pod: &Pod) {
        let Some(PodDeviceClaim { source: DeviceClaimSource::Template { made: None, .. }, .. }) =
            pod.devices.first()
        else {
            return;
        };
        let name = in_namespace_of(pod, &format!("{}-{ENTRY}-{}", pod.name, pod.uid));
        let claim = claim_json(&name, CLASS, 1, Some(pod));
        self.tally.count("device claim from template");
        self.change_claim(&name, |server| server.create(&name, claim));
        self.cluster.update_pod(pod, |pod| {
            let made = Some(GeneratedClaim::Named(name.name.clone()));
            let source = DeviceClaimSource::Template { template: TEMPLATE.into(), made };
            pod.devices = [PodDeviceClaim { entry: ENTRY.into(), source }].into();
        });
    }

    fn control_claim(&mut self, claim: &ResourceClaim, pods: &[Pod]) {
        let lives = |uid: &Arc<str>| pods.iter().any(|pod| pod.uid == *uid && !is_done(pod));
        let users: Vec<_> = claim.reserved.iter().filter(|user| lives(&user.uid)).collect();
        let name = &claim.name;
        if users.len() < claim.reserved.len() {
            let json = |user: &&berth_devices::ClaimUser| json!({"resource": user.resource, "name": user.name, "uid": user.uid});
            let left: Vec<Value> = users.iter().map(json).collect();
            self.note(|| format!("{:?} is reserved for {left:?} only", name.name));
            if left.is_empty() {
                return self.deallocate(claim, json!(left));
            }
            let patch = json!({"status": {"reservedFor": left}});
            self.change_claim(name, |server| server.patch(name, true, &patch));
        } else if users.is_empty() && claim.deleting && claim.allocation.is_some() {
            self.deallocate(claim, Value::Null);
        } else if claim.allocation.is_none() && !claim.finalizers.is_empty() && claim.deleting {
            let patch = without_finalizer(claim);
            self.change_claim(name, |server| server.patch(name, false, &patch));
        } else if !claim.deleting && claim.owner.as_ref().is_some_and(|owner| !lives(owner)) {
            self.note(|| format!("{:?} is deleted with its pod", name.name));
            self.tally.count("device claim of an ended pod");
            self.change_claim(name, |server| server.delete(name, &json!({})));
        }
    }
}

fn named(name: &Arc<str>) -> PodDeviceClaim {
    PodDeviceClaim { entry: ENTRY.into(), source: DeviceClaimSource::Named(name.clone()) }
}
