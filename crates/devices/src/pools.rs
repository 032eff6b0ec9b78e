//! The pools of devices as drivers publish them, what of them is in use, and what each node reaches.
//!
//! A pool is read from all slices of its newest generation. Its use is the sum over the allocations of claims, and is
//! computed anew whenever one of them changes: nothing is added up that could drift.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use berth_model::{ClaimName, DeviceTaint, Labels, Pool, Quantity};

use crate::{
    AllocatedDevice, ClaimAllocation, Counters, Device, DeviceId, Model, PoolId, Reach, ResourceSlice,
    Selectors,
};

/// A pool as its driver publishes it.
#[derive(Debug, PartialEq, Eq)]
pub struct DevicePool {
    pub id: PoolId,
    pub state: PoolState,
    /// In the order of allocation: by the name of the slice, then as in the slice.
    pub devices: Box<[PoolDevice]>,
    pub counters: BTreeMap<Arc<str>, Counters>,
    /// Positions of the devices that only one node reaches, by node, and of the others.
    of_node: BTreeMap<Arc<str>, Vec<usize>>,
    elsewhere: Vec<usize>,
    /// The different ways in which its slices and devices name nodes, but for those of a single node.
    reaches: Vec<Reach>,
    /// Every node sees the pool: it has slices that name no node, or counters while it is not complete.
    seen_everywhere: bool,
    /// It has devices with binding conditions, which come last.
    pub is_slow: bool,
    /// Its devices are whole: they neither take parts of counters nor can be shared, and have neither binding conditions nor policies for
    /// requests of capacity.
    pub is_plain: bool,
}

/// Whether devices of a pool may be allocated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PoolState {
    Complete,
    /// The driver is still publishing slices.
    Incomplete,
    /// Its slices contradict each other.
    Invalid(Arc<str>),
}

/// A device of a pool.
#[derive(Debug, PartialEq, Eq)]
pub struct PoolDevice {
    pub name: Arc<str>,
    pub model: Arc<Model>,
    pub reach: Reach,
    pub binds_to_node: bool,
    pub taints: Box<[DeviceTaint]>,
    pub consumes: BTreeMap<Arc<str>, Counters>,
    pub binding_conditions: Box<[Arc<str>]>,
    pub binding_failure_conditions: Box<[Arc<str>]>,
}

/// A pool with what is in use of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolUse {
    pub pool: Arc<DevicePool>,
    /// By position of the device.
    pub used: Box<[DeviceUse]>,
    /// What is left of the counters; negative: more is in use than the driver says there is.
    pub left: BTreeMap<Arc<str>, Counters>,
}

/// The use of one device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceUse {
    /// Claims that have all of it: at most one, unless schedulers disagreed.
    pub wholes: u32,
    /// Claims that share it.
    pub shares: u32,
    /// What these have of its capacity.
    pub consumed: BTreeMap<Arc<str>, Quantity>,
}

/// The devices that one node reaches: its own pools, and those that more nodes reach. Both are sorted by the name of
/// the pool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeDevices {
    pub own: Box<[Arc<PoolUse>]>,
    pub shared: Arc<[Arc<PoolUse>]>,
}

/// Nodes whose devices changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceNews {
    pub nodes: BTreeSet<Arc<str>>,
    pub everywhere: bool,
}

/// All pools.
#[derive(Debug, Default)]
pub struct DevicePools {
    selectors: Selectors,
    /// Devices alike share their model, whatever pool they are in.
    models: Pool<Model>,
    slices: HashMap<Arc<str>, Arc<ResourceSlice>>,
    slices_of_pool: HashMap<PoolId, BTreeSet<Arc<str>>>,
    pools: BTreeMap<PoolId, Arc<PoolUse>>,
    /// Devices of allocated claims, by pool and claim.
    held: HashMap<PoolId, BTreeMap<ClaimName, Vec<AllocatedDevice>>>,
    held_by: HashMap<ClaimName, BTreeSet<PoolId>>,
    of_node: HashMap<Arc<str>, BTreeSet<PoolId>>,
    shared: BTreeSet<PoolId>,
    /// The pools of `shared`.
    shared_uses: Arc<[Arc<PoolUse>]>,
}

impl DevicePool {
    /// Reads a pool from its slices, of all generations.
    fn read(
        id: &PoolId,
        slices: &[&Arc<ResourceSlice>],
        mut model: impl FnMut(&Device) -> Arc<Model>,
    ) -> DevicePool {
        let newest = slices.iter().map(|slice| slice.generation).max().unwrap_or_default();
        let mut slices: Vec<_> = slices.iter().filter(|slice| slice.generation == newest).collect();
        slices.sort_by(|a, b| a.name.cmp(&b.name));
        let is_complete = slices.iter().all(|slice| slice.slices_of_pool == slices.len() as i64);
        let mut pool = DevicePool {
            id: id.clone(),
            state: if is_complete { PoolState::Complete } else { PoolState::Incomplete },
            devices: [].into(),
            counters: BTreeMap::new(),
            of_node: BTreeMap::new(),
            elsewhere: Vec::new(),
            reaches: Vec::new(),
            seen_everywhere: false,
            is_slow: false,
            is_plain: true,
        };
        let mut devices = Vec::new();
        for slice in &slices {
            for (set, counters) in &slice.counters {
                if pool.counters.insert(set.clone(), counters.clone()).is_some() {
                    pool.state = PoolState::Invalid(format!("counter set {set:?} is published twice").into());
                }
            }
            pool.seen_everywhere |= matches!(slice.reach, Reach::Nodes(_) | Reach::All)
                || (slice.reach == Reach::PerDevice
                    && slice.devices.iter().any(|device| !matches!(device.reach, Some(Reach::Node(_)))));
            let note = |reach: &Reach, pool: &mut DevicePool| match reach {
                Reach::Node(node) => drop(pool.of_node.entry(node.clone()).or_default()),
                reach if pool.reaches.contains(reach) => {}
                reach => pool.reaches.push(reach.clone()),
            };
            note(&slice.reach, &mut pool);
            for device in &slice.devices {
                let reach = match &slice.reach {
                    Reach::PerDevice => device.reach.clone().unwrap_or(Reach::Unknown),
                    reach => reach.clone(),
                };
                note(&reach, &mut pool);
                match &reach {
                    Reach::Node(node) => pool.of_node.entry(node.clone()).or_default().push(devices.len()),
                    _ => pool.elsewhere.push(devices.len()),
                }
                pool.is_slow |= !device.binding_conditions.is_empty();
                pool.is_plain &= device.binding_conditions.is_empty()
                    && device.consumes.is_empty()
                    && !device.traits.multiple
                    && device.traits.capacity.values().all(|capacity| capacity.policy.is_none());
                devices.push(PoolDevice {
                    name: device.name.clone(),
                    model: model(device),
                    reach,
                    binds_to_node: device.binds_to_node,
                    taints: device.taints.clone(),
                    consumes: device.consumes.clone(),
                    binding_conditions: device.binding_conditions.clone(),
                    binding_failure_conditions: device.binding_failure_conditions.clone(),
                });
            }
        }
        pool.devices = devices.into();
        if pool.state == PoolState::Complete
            && let Some(why) = pool.contradiction()
        {
            pool.state = PoolState::Invalid(why.into());
        }
        pool.seen_everywhere |= pool.has_counters_of_unknown_devices();
        pool
    }

    fn contradiction(&self) -> Option<String> {
        let mut names = BTreeSet::new();
        for device in &self.devices {
            if !names.insert(&device.name) {
                return Some(format!("multiple devices with the same name: {}", device.name));
            }
            for (set, counters) in &device.consumes {
                let Some(published) = self.counters.get(set) else {
                    return Some(format!(
                        "device {} uses counter set {set:?}, which is not there",
                        device.name
                    ));
                };
                if let Some(counter) = counters.keys().find(|counter| !published.contains_key(*counter)) {
                    return Some(format!(
                        "device {} uses counter {counter:?} of {set:?}, which is not there",
                        device.name
                    ));
                }
            }
        }
        None
    }

    /// Returns whether any node could have devices of the pool: such a pool keeps all nodes from requests for all devices.
    fn has_counters_of_unknown_devices(&self) -> bool {
        !self.counters.is_empty() && self.state != PoolState::Complete
    }

    /// Returns whether the pool matters to a node: a slice of it is for the node, or has counters and others are missing.
    pub fn is_seen_from(&self, node: &str, labels: &Labels) -> bool {
        self.of_node.contains_key(node)
            || self.has_counters_of_unknown_devices()
            || self.reaches.iter().any(|reach| reach.covers(node, labels))
    }

    /// Returns the positions of the devices that a node reaches, in order.
    pub fn reached(&self, node: &str, labels: &Labels) -> Cow<'_, [usize]> {
        let own = self.of_node.get(node).map_or(&[][..], Vec::as_slice);
        if self.elsewhere.is_empty() {
            return own.into();
        }
        let elsewhere = self.elsewhere.iter().filter(|at| self.devices[**at].reach.covers(node, labels));
        let mut reached: Vec<_> = own.iter().chain(elsewhere).copied().collect();
        reached.sort_unstable();
        reached.into()
    }
}

impl PoolUse {
    fn new(pool: Arc<DevicePool>, held: Option<&BTreeMap<ClaimName, Vec<AllocatedDevice>>>) -> PoolUse {
        let mut pool_use = PoolUse {
            used: vec![DeviceUse::default(); pool.devices.len()].into(),
            left: pool.counters.clone(),
            pool,
        };
        if let Some(held) = held {
            let by_name: HashMap<_, _> = pool_use
                .pool
                .devices
                .iter()
                .enumerate()
                .map(|(at, device)| (device.name.clone(), at))
                .collect();
            for device in held.values().flatten() {
                if let Some(at) = by_name.get(&device.id.device) {
                    pool_use.take(*at, device.admin_access, device.share.is_some(), &device.consumed);
                }
            }
        }
        pool_use
    }

    /// Reverts [`PoolUse::take`].
    fn give_back(&mut self, at: usize, device: &AllocatedDevice) {
        let used = &mut self.used[at];
        if device.admin_access || !used.is_used() {
            return;
        }
        if device.share.is_some() {
            used.shares = used.shares.saturating_sub(1);
            for (name, amount) in &device.consumed {
                if let Some(sum) = used.consumed.get_mut(name) {
                    *sum = sum.saturating_sub(*amount);
                }
            }
        } else {
            used.wholes = used.wholes.saturating_sub(1);
        }
        if !used.is_used() {
            used.consumed.clear();
            change_counters(&mut self.left, &self.pool.devices[at], Quantity::saturating_add);
        }
    }

    /// Charges a device that a claim has.
    pub fn take(&mut self, at: usize, admin: bool, shares: bool, consumed: &[(Arc<str>, Quantity)]) {
        if admin {
            return;
        }
        let used = &mut self.used[at];
        let first = !used.is_used();
        if shares {
            used.shares += 1;
            for (name, amount) in consumed {
                let sum = used.consumed.entry(name.clone()).or_default();
                *sum = sum.saturating_add(*amount);
            }
        } else {
            used.wholes += 1;
        }
        if first {
            change_counters(&mut self.left, &self.pool.devices[at], Quantity::saturating_sub);
        }
    }
}

/// Changes what is left of the counters by what the device consumes of them.
pub(crate) fn change_counters(
    left: &mut BTreeMap<Arc<str>, Counters>,
    device: &PoolDevice,
    change: impl Fn(Quantity, Quantity) -> Quantity,
) {
    for (set, counters) in &device.consumes {
        for (name, amount) in counters {
            if let Some(left) = left.get_mut(set).and_then(|set| set.get_mut(name)) {
                *left = change(*left, *amount);
            }
        }
    }
}

impl DeviceUse {
    pub fn is_used(&self) -> bool {
        self.wholes > 0 || self.shares > 0
    }
}

impl NodeDevices {
    /// Returns the pools in the order of allocation: by name, those with binding conditions last.
    pub fn pools(&self) -> Vec<&Arc<PoolUse>> {
        let mut pools: Vec<_> = self.own.iter().chain(self.shared.iter()).collect();
        pools.sort_by_key(|pool| (pool.pool.is_slow, &pool.pool.id));
        pools
    }

    /// Returns what is left when these are in use, too.
    pub fn without<'a>(&self, devices: impl IntoIterator<Item = &'a AllocatedDevice>) -> NodeDevices {
        self.changed(devices, |pool, at, device| {
            pool.take(at, device.admin_access, device.share.is_some(), &device.consumed);
        })
    }

    /// Returns what is left when these, which are in use, are in use no longer.
    pub fn with<'a>(&self, devices: impl IntoIterator<Item = &'a AllocatedDevice>) -> NodeDevices {
        self.changed(devices, PoolUse::give_back)
    }

    fn changed<'a>(
        &self,
        devices: impl IntoIterator<Item = &'a AllocatedDevice>,
        mut change: impl FnMut(&mut PoolUse, usize, &AllocatedDevice),
    ) -> NodeDevices {
        let mut changed = self.clone();
        let mut shared: Option<Vec<_>> = None;
        for device in devices {
            let is_its = |pool: &&mut Arc<PoolUse>| pool.pool.id == device.id.pool;
            let pool = match changed.own.iter_mut().find(is_its) {
                None => shared.get_or_insert_with(|| changed.shared.to_vec()).iter_mut().find(is_its),
                own => own,
            };
            let Some(pool) = pool else {
                continue;
            };
            if let Some(at) = pool.pool.devices.iter().position(|known| known.name == device.id.device) {
                change(Arc::make_mut(pool), at, device);
            }
        }
        if let Some(shared) = shared {
            changed.shared = shared.into();
        }
        changed
    }

    /// Returns the devices with nothing in use of the node's own pools.
    pub fn unused(&self) -> NodeDevices {
        let unused = |pool: &Arc<PoolUse>| Arc::new(PoolUse::new(pool.pool.clone(), None));
        NodeDevices { own: self.own.iter().map(unused).collect(), shared: self.shared.clone() }
    }
}

impl DevicePools {
    pub fn apply_slice(&mut self, slice: Arc<ResourceSlice>) -> DeviceNews {
        let (name, id) = (slice.name.clone(), slice.pool.clone());
        let before = self.slices.insert(name.clone(), slice.clone());
        if before.as_ref() == Some(&slice) {
            return DeviceNews::default();
        }
        let mut news = DeviceNews::default();
        if let Some(before) = before.filter(|before| before.pool != id) {
            news = self.remove_from_pool(&name, &before.pool);
        }
        self.slices_of_pool.entry(id.clone()).or_default().insert(name);
        news.merge(self.rebuild(&id));
        news
    }

    pub fn delete_slice(&mut self, name: &str) -> DeviceNews {
        match self.slices.remove(name) {
            Some(slice) => self.remove_from_pool(name, &slice.pool),
            None => DeviceNews::default(),
        }
    }

    pub fn slices(&self) -> impl Iterator<Item = &Arc<str>> {
        self.slices.keys()
    }

    /// Sets the devices that a claim has; `None`: it has none. Those of the same claim before are free again.
    pub fn set_allocation(&mut self, claim: &ClaimName, allocation: Option<&ClaimAllocation>) -> DeviceNews {
        let mut touched = self.held_by.remove(claim).unwrap_or_default();
        for pool in &touched {
            if let Some(held) = self.held.get_mut(pool) {
                held.remove(claim);
                if held.is_empty() {
                    self.held.remove(pool);
                }
            }
        }
        for device in allocation.into_iter().flat_map(|allocation| &allocation.devices) {
            let pool = &device.id.pool;
            let held = self.held.entry(pool.clone()).or_default();
            held.entry(claim.clone()).or_default().push(device.clone());
            touched.insert(pool.clone());
            self.held_by.entry(claim.clone()).or_default().insert(pool.clone());
        }
        let mut news = DeviceNews::default();
        for pool in touched {
            news.merge(self.recount(&pool));
        }
        news
    }

    /// Returns the claims that have devices of this pool.
    pub fn claims_of(&self, pool: &PoolId) -> impl Iterator<Item = &ClaimName> {
        self.held.get(pool).into_iter().flat_map(BTreeMap::keys)
    }

    /// Returns the claims that have this device for themselves.
    pub fn holders(&self, device: &DeviceId) -> impl Iterator<Item = &ClaimName> {
        let has = |held: &AllocatedDevice| held.id == *device && !held.admin_access && held.share.is_none();
        let held = self.held.get(&device.pool).into_iter().flatten();
        held.filter(move |(_, devices)| devices.iter().any(has)).map(|(claim, _)| claim)
    }

    /// Returns the devices that a node of this name reaches; `None`: none but those of [`DevicePools::shared`].
    pub fn on(&self, node: &str) -> Option<Arc<NodeDevices>> {
        let own = self.of_node.get(node)?.iter().filter_map(|id| self.pools.get(id)).cloned().collect();
        Some(Arc::new(NodeDevices { own, shared: self.shared_uses.clone() }))
    }

    /// Returns the devices of the pools that every node sees; `None`: none.
    pub fn shared(&self) -> Option<Arc<NodeDevices>> {
        let devices = || NodeDevices { own: [].into(), shared: self.shared_uses.clone() };
        (!self.shared_uses.is_empty()).then(|| Arc::new(devices()))
    }

    /// Returns the names of the nodes that have pools of their own.
    pub fn nodes(&self) -> impl Iterator<Item = &Arc<str>> {
        self.of_node.keys()
    }

    fn remove_from_pool(&mut self, name: &str, id: &PoolId) -> DeviceNews {
        if let Some(names) = self.slices_of_pool.get_mut(id) {
            names.remove(name);
            if names.is_empty() {
                self.slices_of_pool.remove(id);
            }
        }
        self.rebuild(id)
    }

    /// Reads a pool anew from its slices.
    fn rebuild(&mut self, id: &PoolId) -> DeviceNews {
        let mut news = self.who_sees(id);
        if let Some(before) = self.pools.remove(id) {
            for node in before.pool.of_node.keys() {
                if let Some(pools) = self.of_node.get_mut(node) {
                    pools.remove(id);
                    if pools.is_empty() {
                        self.of_node.remove(node);
                    }
                }
            }
        }
        self.shared.remove(id);
        if let Some(names) = self.slices_of_pool.get(id) {
            let slices: Vec<_> = names.iter().filter_map(|name| self.slices.get(name)).collect();
            let (models, selectors) = (&mut self.models, &self.selectors);
            let pool = DevicePool::read(id, &slices, |device| {
                models.share(Model::new(id.driver.clone(), device.traits.clone(), selectors.clone()))
            });
            match pool.seen_everywhere {
                true => drop(self.shared.insert(id.clone())),
                false => {
                    for node in pool.of_node.keys() {
                        self.of_node.entry(node.clone()).or_default().insert(id.clone());
                    }
                }
            }
            let pool = PoolUse::new(Arc::new(pool), self.held.get(id));
            self.pools.insert(id.clone(), Arc::new(pool));
        }
        news.merge(self.who_sees(id));
        self.share(&news);
        news
    }

    /// Counts the use of a pool anew.
    fn recount(&mut self, id: &PoolId) -> DeviceNews {
        let Some(known) = self.pools.get_mut(id) else {
            return DeviceNews::default();
        };
        let fresh = PoolUse::new(known.pool.clone(), self.held.get(id));
        if **known == fresh {
            return DeviceNews::default();
        }
        *known = Arc::new(fresh);
        let news = self.who_sees(id);
        self.share(&news);
        news
    }

    fn share(&mut self, news: &DeviceNews) {
        if news.everywhere {
            self.shared_uses = self.shared.iter().filter_map(|id| self.pools.get(id)).cloned().collect();
        }
    }

    fn who_sees(&self, id: &PoolId) -> DeviceNews {
        let Some(known) = self.pools.get(id) else {
            return DeviceNews::default();
        };
        match known.pool.seen_everywhere {
            true => DeviceNews { everywhere: true, ..DeviceNews::default() },
            false => DeviceNews { nodes: known.pool.of_node.keys().cloned().collect(), everywhere: false },
        }
    }
}

impl DeviceNews {
    pub fn merge(&mut self, other: DeviceNews) {
        self.nodes.extend(other.nodes);
        self.everywhere |= other.everywhere;
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty() && !self.everywhere
    }
}

#[cfg(test)]
mod tests;
