//! Resource claims, device classes and pools of devices.
//!
//! Devices that were given to a claim are *promised* from the commit of its pod until the API server shows the claim
//! with them, or until it is certain that it never will. Meanwhile they count as taken, so no two claims get one device;
//! a write whose outcome is not known keeps them for as long as it could still take effect.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use crate::placement::LATE_EFFECT;
use crate::preempt::HeldDevices;
use berth_devices::{
    AllocatedDevice, CLAIM_FINALIZER, CLAIM_USERS_MAX, ClaimAllocation, ClaimRelease, ClaimUpdate, ClaimUser,
    ConfigSource, DeviceClass, DeviceConfig, DeviceId, DeviceNews, DevicePools, NewAllocation, NewClaim,
    NewRequest, NoDevices, NodeDevices, ResourceClaim, ResourceSlice, allocate,
};
use berth_model::{
    ClaimName, ContainerRequest, DEVICE_CLASS_PREFIX, DeviceAlternative, DeviceClaimSource, DeviceNeeds,
    DeviceRequest, DeviceRequests, ExtendedNeed, ExtendedResource, GeneratedClaim, Node, Pod, PodDeviceClaim,
    ProvidedResources, Shared,
};

/// Time after which a request to deallocate a claim, with its retries, takes no effect any more.
const RELEASE_MAX: Duration = Duration::from_secs(120);

/// All claims, classes and pools.
#[derive(Debug, Default)]
pub struct Devices {
    pub pools: DevicePools,
    classes: HashMap<Arc<str>, DeviceClass>,
    provided: Arc<ProvidedResources>,
    claims: HashMap<ClaimName, ResourceClaim>,
    promises: BTreeMap<ClaimName, Promise>,
    /// Claims that were promised devices for a pod, by its uid.
    promised_for: HashMap<Arc<str>, BTreeSet<ClaimName>>,
    /// Claims that are being deallocated in this version, and until when that may take effect. No pod may use one: its reservation may
    /// be written already, so that no write would notice.
    releasing: BTreeMap<ClaimName, (u64, Duration)>,
    /// Claims whose devices a nominated pod waits for: no other pod may begin to use one, or they would never be free.
    awaited: BTreeSet<ClaimName>,
}

/// Devices that a claim is about to get.
#[derive(Debug)]
struct Promise {
    /// Of the claim.
    uid: Arc<str>,
    /// Of the pod.
    pod: Arc<str>,
    allocation: Arc<ClaimAllocation>,
    state: PromiseState,
    /// The claim is made for the extended resources of its pod, with this spec.
    made: Option<Shared<DeviceRequests>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PromiseState {
    /// The write has not been answered.
    Open,
    /// It was written in this version of the claim, which the watch has not shown yet.
    Written(u64),
    /// The pod has lost its node, but the write may still take effect until then; `None`: not timed yet.
    InDoubt(Option<Duration>),
}

/// Effects of a change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DevicesChanged {
    /// Pods that use these.
    pub claims: BTreeSet<ClaimName>,
    /// All waiting pods that use resource claims or extended resources.
    pub all_claims: bool,
    /// Other extended resources are provided by devices.
    pub provided: bool,
    pub nodes: DeviceNews,
}

impl DevicesChanged {
    pub fn is_empty(&self) -> bool {
        *self == DevicesChanged::default()
    }

    fn of(nodes: DeviceNews) -> Self {
        DevicesChanged { nodes, ..DevicesChanged::default() }
    }
}

/// A pod's claims, as they are now.
#[derive(Debug, Default)]
pub struct ResolvedClaims {
    pub needs: DeviceNeeds,
    /// The claims of `needs.unallocated`, in the same order.
    pub unallocated: Vec<ClaimName>,
}

impl Devices {
    pub fn apply_slice(&mut self, slice: Arc<ResourceSlice>) -> DevicesChanged {
        DevicesChanged::of(self.pools.apply_slice(slice))
    }

    pub fn delete_slice(&mut self, name: &str) -> DevicesChanged {
        DevicesChanged::of(self.pools.delete_slice(name))
    }

    pub fn apply_class(&mut self, class: DeviceClass) -> DevicesChanged {
        let name = class.name.clone();
        let before = self.classes.insert(name.clone(), class);
        self.classes_changed(before.as_ref() != self.classes.get(&name))
    }

    pub fn delete_class(&mut self, name: &str) -> DevicesChanged {
        let is_known = self.classes.remove(name).is_some();
        self.classes_changed(is_known)
    }

    fn classes_changed(&mut self, all_claims: bool) -> DevicesChanged {
        if !all_claims {
            return DevicesChanged::default();
        }
        let provided = self.provided_by_classes();
        let is_new = *self.provided != provided;
        if is_new {
            self.provided = Arc::new(provided);
        }
        DevicesChanged { all_claims, provided: is_new, ..DevicesChanged::default() }
    }

    /// Of classes that name the same resource, the newest provides it, as upstream; of those as old, the first by name.
    fn provided_by_classes(&self) -> ProvidedResources {
        let mut valid: Vec<_> = self.classes.values().filter(|class| class.invalid.is_none()).collect();
        valid.sort_by_key(|class| (class.created_s, Reverse(&class.name)));
        let own = |class: &&DeviceClass| {
            (format!("{DEVICE_CLASS_PREFIX}{}", class.name).into(), class.name.clone())
        };
        let named =
            valid.iter().filter_map(|class| Some((class.extended_resource.clone()?, class.name.clone())));
        named.chain(valid.iter().map(own)).collect()
    }

    /// Returns the extended resources that devices provide; `None`: none.
    pub fn provided(&self) -> Option<Arc<ProvidedResources>> {
        (!self.provided.is_empty()).then(|| self.provided.clone())
    }

    /// Returns whether this claim exists, or devices are kept for it.
    pub fn has_claim(&self, name: &ClaimName) -> bool {
        self.claims.contains_key(name)
            || self.promises.contains_key(name)
            || self.releasing.contains_key(name)
    }

    pub fn apply_claim(&mut self, claim: ResourceClaim) -> DevicesChanged {
        let name = claim.name.clone();
        if let Some(promise) = self.promises.get_mut(&name) {
            if promise.is_made_for(&claim) {
                promise.uid = claim.uid.clone();
            }
            let is_settled = match promise.state {
                PromiseState::Written(version) => claim.version >= version,
                PromiseState::Open | PromiseState::InDoubt(_) => claim.allocation.is_some(),
            };
            if claim.uid != promise.uid || is_settled {
                self.forget_promise(&name);
            }
        }
        if self.releasing.get(&name).is_some_and(|(version, _)| *version != claim.version) {
            self.releasing.remove(&name);
        }
        let before = self.claims.insert(name.clone(), claim);
        if before.as_ref() == self.claims.get(&name) {
            return DevicesChanged::default();
        }
        self.claim_changed(name)
    }

    pub fn delete_claim(&mut self, name: &ClaimName) -> DevicesChanged {
        if self.claims.remove(name).is_none() {
            return DevicesChanged::default();
        }
        self.forget_promise(name);
        self.releasing.remove(name);
        self.claim_changed(name.clone())
    }

    fn forget_promise(&mut self, name: &ClaimName) {
        if let Some(promise) = self.promises.remove(name)
            && let Some(claims) = self.promised_for.get_mut(&promise.pod)
        {
            claims.remove(name);
            if claims.is_empty() {
                self.promised_for.remove(&promise.pod);
            }
        }
    }

    /// Charges the devices that a claim has, or is about to get.
    fn claim_changed(&mut self, name: ClaimName) -> DevicesChanged {
        let known = self.claims.get(&name).and_then(|claim| claim.allocation.as_ref());
        let allocation = known.or(self.promises.get(&name).map(|promise| &promise.allocation)).cloned();
        let nodes = self.pools.set_allocation(&name, allocation.as_deref());
        DevicesChanged { claims: BTreeSet::from([name]), nodes, ..DevicesChanged::default() }
    }

    pub fn names(&self, kind: super::ObjectKind) -> Vec<super::ObjectName> {
        let global = |name: &Arc<str>| super::ObjectName { namespace: "".into(), name: name.clone() };
        match kind {
            super::ObjectKind::ResourceSlice => self.pools.slices().map(global).collect(),
            super::ObjectKind::DeviceClass => self.classes.keys().map(global).collect(),
            _ => {
                let of = |claim: &ClaimName| super::ObjectName {
                    namespace: claim.namespace.clone(),
                    name: claim.name.clone(),
                };
                self.claims.keys().map(of).collect()
            }
        }
    }

    /// Returns the names of the pod's claims, as far as they are known, with the one for its extended resources.
    pub fn names_of(&self, pod: &Pod) -> Option<Arc<Box<[ClaimName]>>> {
        let mut names: Vec<_> = pod.devices.iter().filter_map(|claim| name_of(pod, &claim.source)).collect();
        if let Some(extended) = &pod.extended {
            names.extend(extended.claim.iter().map(|name| in_namespace_of(pod, name)));
            let is_provided =
                extended.resources.iter().any(|resource| self.provided.contains_key(&resource.name));
            // Without any claims, as in most clusters, none is left behind and no name is needed.
            if is_provided || !self.claims.is_empty() || !self.promises.is_empty() {
                let made = extended_claim(pod);
                // One that is left behind, or may still be created, outlives its class.
                let may_exist = self.claims.contains_key(&made) || self.promises.contains_key(&made);
                names.extend((is_provided || may_exist).then_some(made));
            }
        }
        names.sort();
        names.dedup();
        (!names.is_empty()).then(|| Arc::new(names.into()))
    }

    /// Returns what the pod requires of nodes; `None`: no devices.
    pub fn needs(&self, pod: &Pod) -> Option<DeviceNeeds> {
        if pod.devices.is_empty() && pod.extended.is_none() {
            return None;
        }
        let needs = self.resolve(pod).needs;
        (!pod.devices.is_empty() || needs != DeviceNeeds::default()).then_some(needs)
    }

    /// Returns what the pod's claims and extended resources require of nodes.
    pub fn resolve(&self, pod: &Pod) -> ResolvedClaims {
        let mut resolved = ResolvedClaims::default();
        match self.try_resolve(pod, &mut resolved) {
            Ok(()) => resolved,
            Err(refusal) => {
                let needs = DeviceNeeds { refusal: Some(refusal.into()), ..DeviceNeeds::default() };
                ResolvedClaims { needs, ..ResolvedClaims::default() }
            }
        }
    }

    /// The texts are those of upstream's PreFilter.
    fn try_resolve(&self, pod: &Pod, resolved: &mut ResolvedClaims) -> Result<(), String> {
        let (namespace, pod_name) = (&pod.namespace, &pod.name);
        let (mut seen, mut allocated, mut unallocated) = (BTreeSet::new(), Vec::new(), Vec::new());
        for PodDeviceClaim { source, .. } in &pod.devices {
            if matches!(source, DeviceClaimSource::Template { made: Some(GeneratedClaim::NotNeeded), .. }) {
                continue;
            }
            let Some(name) = name_of(pod, source) else {
                return Err(format!("pod \"{namespace}/{pod_name}\": ResourceClaim not created yet"));
            };
            let Some(claim) = self.claims.get(&name) else {
                return Err(format!("resourceclaim {:?} not found", name.name));
            };
            if claim.deleting {
                return Err(format!("resourceclaim {:?} is being deleted", name.name));
            }
            let is_own = claim.owner.as_ref() == Some(&pod.uid);
            if matches!(source, DeviceClaimSource::Template { .. }) && !is_own {
                return Err(format!(
                    "ResourceClaim {namespace}/{} was not created for Pod {namespace}/{pod_name} (Pod is not owner)",
                    name.name
                ));
            }
            if let Some(why) = claim.invalid.as_ref().filter(|_| claim.allocation.is_none()) {
                return Err(format!("resourceclaim {:?} cannot be served: {why}", name.name));
            }
            if !seen.insert(name.clone()) {
                continue;
            }
            match &claim.allocation {
                Some(_) if self.releasing.contains_key(&name) => {
                    return Err(format!(
                        "resource claim {namespace}/{} is in the process of being deallocated",
                        name.name
                    ));
                }
                Some(allocation) => {
                    let is_reserved = claim.reserved.iter().any(|user| user.uid == pod.uid);
                    if !is_reserved && self.awaited.contains(&name) {
                        return Err(format!(
                            "resource claim {namespace}/{} is in the process of being deallocated: its devices are for another pod",
                            name.name
                        ));
                    }
                    if !is_reserved && claim.reserved.len() >= CLAIM_USERS_MAX {
                        return Err("resourceclaim in use".to_owned());
                    }
                    allocated.extend(allocation.nodes.clone());
                }
                None if self
                    .promises
                    .get(&name)
                    .is_some_and(|promise| promise.pod != pod.uid || promise.state != PromiseState::Open) =>
                {
                    return Err(format!(
                        "resource claim {namespace}/{} is in the process of being allocated",
                        name.name
                    ));
                }
                None => {
                    unallocated.push(Shared::new(self.filled(&claim.spec)?));
                    resolved.unallocated.push(name);
                }
            }
        }
        resolved.needs.extended = self.extended_needs(pod)?;
        allocated.sort();
        allocated.dedup();
        resolved.needs.allocated = allocated.into();
        resolved.needs.unallocated = unallocated.into();
        Ok(())
    }

    /// Returns what devices have to provide of the pod's extended resources.
    fn extended_needs(&self, pod: &Pod) -> Result<Box<[ExtendedNeed]>, String> {
        let Some(extended) = &pod.extended else {
            return Ok([].into());
        };
        let mut needs = Vec::new();
        for ExtendedResource { name, requests, .. } in &extended.resources {
            let Some(class) = self.provided.get(name) else {
                continue;
            };
            let request = |(name, count): &(Arc<str>, u64)| {
                let class = class.clone();
                let alternative =
                    DeviceAlternative { class, count: Some(*count), ..DeviceAlternative::default() };
                DeviceRequest { name: name.clone(), alternatives: [alternative].into() }
            };
            let requests = requests.iter().map(request).collect();
            let filled = self.filled(&DeviceRequests { requests, constraints: [].into() })?;
            needs.push(ExtendedNeed { resource: name.clone(), requests: filled.requests });
        }
        let claim = extended_claim(pod);
        let is_promised = |promise: &Promise| promise.pod == pod.uid && promise.state == PromiseState::Open;
        match (self.promises.get(&claim), self.claims.get(&claim)) {
            (Some(promise), _) if is_promised(promise) => Ok(needs.into()),
            (None, None) => Ok(needs.into()),
            (None, Some(found)) if found.owner.as_ref() != Some(&pod.uid) && needs.is_empty() => {
                Ok([].into())
            }
            (None, Some(found)) if found.owner.as_ref() != Some(&pod.uid) => Err(format!(
                "resourceclaim {:?}, which its extended resources need, belongs to others",
                claim.name
            )),
            (None, Some(_)) => {
                Err(format!("resourceclaim {:?} of an earlier attempt has not been deleted yet", claim.name))
            }
            (Some(_), _) => Err(format!(
                "resource claim {}/{} is in the process of being allocated",
                claim.namespace, claim.name
            )),
        }
    }

    /// Returns the claim that an earlier attempt to place this pod, which has no node, has left behind for its extended resources:
    /// its devices are of no use on other nodes, so it is to be deleted (as upstream).
    pub fn left_behind(&self, pod: &Pod) -> Option<ClaimRelease> {
        let name = pod.extended.as_ref().map(|_| extended_claim(pod))?;
        let claim = self.claims.get(&name).filter(|claim| claim.owner.as_ref() == Some(&pod.uid))?;
        (!self.promises.contains_key(&name)).then(|| ClaimRelease {
            uid: claim.uid.clone(),
            version: claim.version,
            delete: Some(claim.finalizers.iter().filter(|one| ***one != *CLAIM_FINALIZER).cloned().collect()),
            claim: name,
        })
    }

    /// Returns the first claim of this pod, which fits no node, whose devices keep it from some nodes and serve nobody else (upstream:
    /// `PostFilter`).
    pub fn in_the_way(&self, pod: &Pod) -> Option<ClaimRelease> {
        self.releasable(pod, &|_, allocation| allocation.nodes.is_some())
    }

    /// Returns the first claim of this pod, which has no node, that has a device which another claim has, too, for a placed pod.
    pub fn contested(&self, pod: &Pod, is_placed: &dyn Fn(&str) -> bool) -> Option<ClaimRelease> {
        self.releasable(pod, &|claim, _| self.rival(claim, is_placed).is_some())
    }

    /// Returns the first allocated claim of this pod that nobody else uses and that satisfies `is_meant`.
    fn releasable(
        &self,
        pod: &Pod,
        is_meant: &dyn Fn(&ClaimName, &ClaimAllocation) -> bool,
    ) -> Option<ClaimRelease> {
        let names = self.names_of(pod)?;
        names.iter().find_map(|name| {
            let claim = self.claims.get(name).filter(|claim| !claim.deleting)?;
            let is_used = claim.reserved.iter().any(|user| user.uid != pod.uid);
            let is_settled = !self.promises.contains_key(name);
            (is_settled && !is_used && is_meant(name, claim.allocation.as_ref()?)).then(|| ClaimRelease {
                claim: name.clone(),
                uid: claim.uid.clone(),
                version: claim.version,
                delete: None,
            })
        })
    }

    /// Records that the claim is about to be deallocated or deleted.
    pub fn begin_release(&mut self, release: &ClaimRelease, now: Duration) -> DevicesChanged {
        let until = (release.version, now + RELEASE_MAX);
        match self.releasing.insert(release.claim.clone(), until) {
            Some(_) => DevicesChanged::default(),
            None => {
                let claims = BTreeSet::from([release.claim.clone()]);
                DevicesChanged { claims, ..DevicesChanged::default() }
            }
        }
    }

    /// Returns whether a claim of the pod is being deallocated.
    pub fn is_releasing(&self, pod: &Pod) -> bool {
        !self.releasing.is_empty()
            && self
                .names_of(pod)
                .is_some_and(|names| names.iter().any(|name| self.releasing.contains_key(name)))
    }

    /// Returns the number of claims whose write may still take effect.
    pub fn unsettled(&self) -> usize {
        let is_open = |promise: &&Promise| !matches!(promise.state, PromiseState::Written(_));
        self.promises.values().filter(is_open).count()
    }

    /// Adds the selectors of the classes.
    fn filled(&self, spec: &DeviceRequests) -> Result<DeviceRequests, String> {
        let mut requests = Vec::with_capacity(spec.requests.len());
        for request in &spec.requests {
            let mut alternatives = Vec::with_capacity(request.alternatives.len());
            for alternative in &request.alternatives {
                let Some(class) = self.classes.get(&alternative.class) else {
                    let request = request.name_of(alternative);
                    return Err(format!(
                        "request {request}: device class {} does not exist",
                        alternative.class
                    ));
                };
                if let Some(why) = &class.invalid {
                    return Err(format!("device class {} cannot be served: {why}", class.name));
                }
                let selectors = class.selectors.iter().chain(&alternative.selectors).cloned().collect();
                let selectors_of_class = class.selectors.len();
                alternatives.push(DeviceAlternative { selectors, selectors_of_class, ..alternative.clone() });
            }
            requests.push(DeviceRequest { name: request.name.clone(), alternatives: alternatives.into() });
        }
        Ok(DeviceRequests { requests: requests.into(), constraints: spec.constraints.clone() })
    }

    /// Promises devices of this node to the pod's claims, and to one more for its extended resources that the node does not have.
    ///
    /// # Errors
    /// Why the node has none for them; then nothing is promised.
    pub fn promise(
        &mut self,
        pod: &Pod,
        claims: &[ClaimName],
        needs: &DeviceNeeds,
        node: &Node,
        devices: &NodeDevices,
    ) -> Result<DevicesChanged, Box<NoDevices>> {
        let wanted = needs.on(&node.extended);
        let allocations = allocate(&wanted, devices, &node.name, &node.labels)?;
        let mut changed = DevicesChanged::default();
        for (at, mut allocation) in allocations.into_iter().enumerate() {
            let made = claims.get(at).is_none().then(|| wanted[at].clone());
            let name = claims.get(at).cloned().unwrap_or_else(|| extended_claim(pod));
            let (uid, version) = match (self.claims.get(&name), &made) {
                (Some(claim), None) => (claim.uid.clone(), claim.version),
                (None, None) => continue,
                (_, Some(_)) => ("".into(), 0),
            };
            let owner = if made.is_some() { &pod.uid } else { &uid };
            for (at, device) in allocation.devices.iter_mut().enumerate() {
                if let Some(share) = &mut device.share {
                    *share = share_id(owner, version, at);
                }
            }
            let (allocation, state) = (Arc::new(allocation), PromiseState::Open);
            let promise = Promise { uid, pod: pod.uid.clone(), allocation, state, made };
            self.promises.insert(name.clone(), promise);
            self.promised_for.entry(pod.uid.clone()).or_default().insert(name.clone());
            changed.nodes.merge(self.claim_changed(name.clone()).nodes);
            changed.claims.insert(name);
        }
        Ok(changed)
    }

    /// Returns what to write into the claims of a pod before it is bound: what it was promised, and that it uses its other
    /// claims.
    pub fn updates(&self, pod: &Pod) -> Arc<[ClaimUpdate]> {
        let Some(names) = self.names_of(pod) else {
            return Arc::default();
        };
        let user = || ClaimUser {
            api_group: "".into(),
            resource: "pods".into(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
        };
        let updates = names.iter().filter_map(|name| {
            let promise = self.promises.get(name).filter(|promise| promise.pod == pod.uid);
            if let Some((promise, spec)) = promise.and_then(|promise| Some((promise, promise.made.as_ref()?)))
            {
                return Some(self.made(pod, user(), name, promise, spec));
            }
            let claim = self.claims.get(name)?;
            let is_reserved = claim.reserved.iter().any(|user| user.uid == pod.uid);
            if is_reserved && !claim.allocation.as_ref().is_some_and(|known| known.is_to_be_prepared()) {
                return None;
            }
            let allocation = promise.filter(|_| claim.allocation.is_none()).map(|promise| NewAllocation {
                allocation: promise.allocation.clone(),
                config: self.config(&claim.spec, &claim.config, &promise.allocation),
            });
            Some(ClaimUpdate {
                claim: name.clone(),
                uid: claim.uid.clone(),
                version: claim.version,
                finalizers: claim.finalizers.clone(),
                reserved: claim.reserved.iter().cloned().chain((!is_reserved).then(user)).collect(),
                held: claim.allocation.clone(),
                allocation,
                new: None,
            })
        });
        updates.collect()
    }

    /// Returns the claim to create for the pod's extended resources.
    fn made(
        &self,
        pod: &Pod,
        user: ClaimUser,
        name: &ClaimName,
        promise: &Promise,
        spec: &DeviceRequests,
    ) -> ClaimUpdate {
        let is_made =
            |served: &&ContainerRequest| spec.requests.iter().any(|made| made.name == served.request);
        let resources = pod.extended.iter().flat_map(|extended| &extended.resources);
        let containers = resources.flat_map(|resource| {
            let served = resource.containers.iter().filter(is_made);
            served.map(|served| (resource.name.clone(), served.clone()))
        });
        let requests = spec.requests.iter().filter_map(NewRequest::of);
        let allocation = promise.allocation.clone();
        let config = self.config(spec, &[], &allocation);
        ClaimUpdate {
            claim: name.clone(),
            uid: promise.uid.clone(),
            version: 0,
            finalizers: [].into(),
            reserved: [user].into(),
            held: None,
            allocation: Some(NewAllocation { allocation, config }),
            new: Some(NewClaim { requests: requests.collect(), containers: containers.collect() }),
        }
    }

    /// Returns the configuration for the drivers of these devices: that of each class, then that of the claim (upstream:
    /// `Allocate`).
    fn config(
        &self,
        spec: &DeviceRequests,
        own: &[DeviceConfig],
        allocation: &ClaimAllocation,
    ) -> Box<[(ConfigSource, DeviceConfig)]> {
        let served = |request: &DeviceRequest| {
            let mut named = request.alternatives.iter().map(|wanted| (request.name_of(wanted), wanted));
            let is_served =
                |(name, _): &(Arc<str>, _)| allocation.devices.iter().any(|device| device.request == *name);
            let (name, alternative) = named.find(is_served)?;
            Some((request.name.clone(), name, alternative.class.clone()))
        };
        let served: Vec<(Arc<str>, Arc<str>, Arc<str>)> = spec.requests.iter().filter_map(served).collect();
        let mut config = Vec::new();
        let mut classes = BTreeSet::new();
        for (_, _, class) in &served {
            if !classes.insert(class) {
                continue;
            }
            let of_class = served.iter().filter(|(_, _, other)| other == class);
            let requests: Box<[Arc<str>]> = of_class.map(|(_, name, _)| name.clone()).collect();
            let known = self.classes.get(class).into_iter().flat_map(|class| &class.config);
            config.extend(known.map(|entry| {
                (ConfigSource::Class, DeviceConfig { requests: requests.clone(), json: entry.json.clone() })
            }));
        }
        let concerns = |entry: &&DeviceConfig| {
            entry.requests.is_empty()
                || served.iter().any(|(request, name, _)| {
                    entry.requests.contains(request) || entry.requests.contains(name)
                })
        };
        config.extend(own.iter().filter(concerns).map(|entry| (ConfigSource::Claim, entry.clone())));
        config.into()
    }

    /// Returns a device of this claim that another claim has, too, which a placed pod uses.
    pub fn rival(
        &self,
        claim: &ClaimName,
        is_placed: &dyn Fn(&str) -> bool,
    ) -> Option<(DeviceId, ClaimName)> {
        let is_used = |other: &ClaimName| {
            let users = self.claims.get(other).into_iter().flat_map(|claim| &claim.reserved);
            let promised = self.promises.get(other).map(|promise| &promise.pod);
            users.map(|user| &user.uid).chain(promised).any(|uid| is_placed(uid))
        };
        let allocation = self.claims.get(claim)?.allocation.as_ref()?;
        let whole = allocation.devices.iter().filter(|device| !device.admin_access && device.share.is_none());
        whole.map(|device| &device.id).find_map(|device| {
            let other = self.pools.holders(device).find(|other| *other != claim && is_used(other))?;
            Some((device.clone(), other.clone()))
        })
    }

    /// Returns whether a nominated pod waits for the devices of this claim.
    pub fn is_awaited(&self, claim: &ClaimName) -> bool {
        self.awaited.contains(claim)
    }

    /// Sets whether a nominated pod waits for the devices of this claim. Returns whether that is new.
    pub fn set_awaited(&mut self, claim: &ClaimName, awaited: bool) -> bool {
        match awaited {
            true => self.awaited.insert(claim.clone()),
            false => self.awaited.remove(claim),
        }
    }

    /// Returns the devices of the claims that only pods which are gone, or will be, use.
    pub fn freed(
        &self,
        claims: &BTreeSet<ClaimName>,
        is_gone: &dyn Fn(&str) -> bool,
    ) -> Vec<AllocatedDevice> {
        let held = claims.iter().filter_map(|name| self.held_by(name));
        let freed = held.filter(|claim| claim.users.iter().all(|uid| is_gone(uid)));
        freed.flat_map(|claim| claim.devices).collect()
    }

    /// Returns the claims that only this pod uses as Kubernetes' controller leaves them when the pod is gone: deallocated.
    pub fn without_user(&self, pod: &str, claims: &[ClaimName]) -> Vec<ResourceClaim> {
        let known = claims.iter().filter_map(|name| self.claims.get(name));
        let is_its = |claim: &&ResourceClaim| claim.reserved.iter().all(|user| *user.uid == *pod);
        let left = |claim: &ResourceClaim| ResourceClaim {
            version: claim.version + 1,
            allocation: None,
            reserved: [].into(),
            ..claim.clone()
        };
        known.filter(is_its).map(left).collect()
    }

    /// Returns the devices that a claim has or is about to get, with the uids of the pods that use it.
    pub fn held_by(&self, name: &ClaimName) -> Option<HeldDevices> {
        let (claim, promise) = (self.claims.get(name), self.promises.get(name));
        let known = claim.and_then(|claim| claim.allocation.as_ref());
        let allocation = known.or(promise.map(|promise| &promise.allocation))?;
        let reserved = claim.into_iter().flat_map(|claim| &claim.reserved).map(|user| &user.uid);
        let users = reserved.chain(promise.map(|promise| &promise.pod)).cloned().collect();
        Some(HeldDevices { users, devices: allocation.devices.to_vec() })
    }

    /// Records that the updates of a pod were written, in these versions of its claims.
    pub fn written(&mut self, updates: &[ClaimUpdate], versions: &[u64]) -> DevicesChanged {
        let mut changed = DevicesChanged::default();
        for (update, version) in updates.iter().zip(versions) {
            let Some(promise) = self.promises.get_mut(&update.claim).filter(|_| update.allocation.is_some())
            else {
                continue;
            };
            let seen = self.claims.get(&update.claim).is_some_and(|claim| claim.version >= *version);
            promise.state = PromiseState::Written(*version);
            if seen {
                self.forget_promise(&update.claim);
                changed.nodes.merge(self.claim_changed(update.claim.clone()).nodes);
            }
            changed.claims.insert(update.claim.clone());
        }
        changed
    }

    /// Ends the promises of a pod that has lost its node. `sent`: they may have been written, so the devices stay taken
    /// for as long as that can take effect.
    pub fn release(&mut self, pod: &str, sent: bool) -> DevicesChanged {
        let mut changed = DevicesChanged::default();
        for name in self.promised_for.get(pod).cloned().unwrap_or_default() {
            let Some(promise) = self.promises.get_mut(&name) else {
                continue;
            };
            match (promise.state, sent) {
                (PromiseState::Open, true) => promise.state = PromiseState::InDoubt(None),
                (PromiseState::Open, false) => {
                    self.forget_promise(&name);
                    changed.nodes.merge(self.claim_changed(name.clone()).nodes);
                }
                (PromiseState::Written(_) | PromiseState::InDoubt(_), _) => {}
            }
            changed.claims.insert(name);
        }
        changed
    }

    /// Ends the promises and releases that can no longer take effect.
    pub fn expire(&mut self, now: Duration) -> DevicesChanged {
        let mut changed = DevicesChanged::default();
        self.releasing.retain(|name, (_, until)| {
            let is_open = now < *until;
            if !is_open {
                changed.claims.insert(name.clone());
            }
            is_open
        });
        let mut over = Vec::new();
        for (name, promise) in &mut self.promises {
            if let PromiseState::InDoubt(until) = &mut promise.state
                && now >= *until.get_or_insert(now + LATE_EFFECT)
            {
                over.push(name.clone());
            }
        }
        for name in over {
            self.forget_promise(&name);
            let one = self.claim_changed(name);
            changed.nodes.merge(one.nodes);
            changed.claims.extend(one.claims);
        }
        changed
    }

    /// Returns whether the drivers have reported what they must before the pod is bound; it may then be bound.
    ///
    /// # Errors
    /// A driver has given up, or the claim has changed; in upstream's words.
    pub fn progress(&self, updates: &[ClaimUpdate], versions: &[u64]) -> Result<bool, String> {
        for (update, version) in updates.iter().zip(versions) {
            let is_right = |claim: &&ResourceClaim| update.new.is_some() || claim.uid == update.uid;
            let Some(claim) = self.claims.get(&update.claim).filter(is_right) else {
                // It has just been made, and the watch has not shown it yet.
                if self.promises.get(&update.claim).is_some_and(|promise| promise.made.is_some()) {
                    match update.allocation.as_ref().is_some_and(|new| new.allocation.is_to_be_prepared()) {
                        true => return Ok(false),
                        false => continue,
                    }
                }
                return Err(format!("resourceclaim {:?} not found", update.claim.name));
            };
            let written = update.allocation.as_ref().map(|new| &new.allocation);
            let Some(allocation) = claim.allocation.as_ref().or(written) else {
                return Err(format!("claim {} got deallocated elsewhere in the meantime", update.claim.name));
            };
            for device in &allocation.devices {
                if device.binding_conditions.is_empty() {
                    continue;
                }
                if claim.version < *version {
                    return Ok(false);
                }
                let of_device = claim
                    .conditions
                    .iter()
                    .find(|known| known.device == device.id && known.share == device.share);
                let holds = |condition| of_device.is_some_and(|known| known.holding.contains(condition));
                if let Some(failed) = device.binding_failure_conditions.iter().find(|c| holds(*c)) {
                    return Err(format!(
                        "device binding failed: claim={}, driver={}, pool={}, device={}, condition={failed}",
                        update.claim.name, device.id.pool.driver, device.id.pool.name, device.id.device
                    ));
                }
                if !device.binding_conditions.iter().all(holds) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

impl Promise {
    /// Whether this is the claim that was made for the promise, now that its uid is known.
    fn is_made_for(&self, claim: &ResourceClaim) -> bool {
        self.made.is_some() && self.uid.is_empty() && claim.owner.as_ref() == Some(&self.pod)
    }
}

/// Returns the name of the claim that is made for the pod's extended resources: the same in each attempt, so that no pod has two.
fn extended_claim(pod: &Pod) -> ClaimName {
    const INFIX: &str = "-extended-resources-";
    /// Of the name of an object.
    const LENGTH_MAX: usize = 253;
    let most = LENGTH_MAX.saturating_sub(INFIX.len() + pod.uid.len());
    let name: String = pod.name.chars().take(most).collect();
    in_namespace_of(pod, &format!("{}{INFIX}{}", name.trim_end_matches(['-', '.']), pod.uid))
}

fn in_namespace_of(pod: &Pod, name: &str) -> ClaimName {
    ClaimName { namespace: pod.namespace.clone(), name: name.into() }
}

fn name_of(pod: &Pod, source: &DeviceClaimSource) -> Option<ClaimName> {
    let name = match source {
        DeviceClaimSource::Named(name)
        | DeviceClaimSource::Template { made: Some(GeneratedClaim::Named(name)), .. } => name.clone(),
        DeviceClaimSource::Template { .. } => return None,
    };
    Some(ClaimName { namespace: pod.namespace.clone(), name })
}

/// Returns a name for a share of a device, in the form of a UUID: the claim, its version and the position of the device
/// tell it from every other share.
fn share_id(claim: &str, version: u64, at: usize) -> Arc<str> {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        (claim, version, at, salt).hash(&mut hasher);
        hasher.finish()
    };
    let (a, b) = (half(0), half(1));
    // Version 8: of the author's own making; variant 10.
    format!(
        "{:08x}-{:04x}-8{:03x}-{:04x}-{:012x}",
        a >> 32,
        a >> 16 & 0xffff,
        a & 0xfff,
        b >> 48 & 0x3fff | 0x8000,
        b & 0xffff_ffff_ffff
    )
    .into()
}
