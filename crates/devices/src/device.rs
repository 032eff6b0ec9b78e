//! Devices as a driver publishes them in ResourceSlices.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use berth_model::{DeviceTaint, Labels, NodeSelectorTerm, Quantity};

/// Names a device in the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DeviceId {
    pub pool: PoolId,
    pub device: Arc<str>,
}

/// Names a pool of devices in the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PoolId {
    pub driver: Arc<str>,
    pub name: Arc<str>,
}

/// `resource.k8s.io/v1.ResourceSlice`: a part of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceSlice {
    pub name: Arc<str>,
    pub pool: PoolId,
    /// Slices of older generations of the pool do not count.
    pub generation: i64,
    /// Number of slices of the pool in this generation; with fewer the pool is incomplete.
    pub slices_of_pool: i64,
    pub reach: Reach,
    /// One with an amount that cannot be parsed is [`Reach::Unknown`].
    pub devices: Box<[Device]>,
    /// What devices of the pool share: amounts by counter set and counter.
    pub counters: BTreeMap<Arc<str>, Counters>,
}

/// Amounts by the name of a counter.
pub type Counters = BTreeMap<Arc<str>, Quantity>;

/// The nodes that reach a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reach {
    Node(Arc<str>),
    /// One of the terms must match (`nodeSelector`).
    Nodes(Box<[NodeSelectorTerm]>),
    All,
    /// Of a slice: each device says it (`perDeviceNodeSelection`).
    PerDevice,
    /// Nothing that this version knows of.
    Unknown,
}

impl Reach {
    /// Returns whether this node reaches it; for [`Reach::PerDevice`] the devices must be asked.
    pub fn covers(&self, node: &str, labels: &Labels) -> bool {
        match self {
            Reach::Node(name) => **name == *node,
            Reach::Nodes(terms) => terms.iter().any(|term| term.matches(node, labels)),
            Reach::All => true,
            Reach::PerDevice | Reach::Unknown => false,
        }
    }
}

/// One of `spec.devices` of a slice.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    pub name: Arc<str>,
    /// What selectors read; the same for devices of one model.
    pub traits: DeviceTraits,
    /// For slices with [`Reach::PerDevice`].
    pub reach: Option<Reach>,
    /// Its claim is for the node that it was allocated on, whoever else reaches it (`bindsToNode`).
    pub binds_to_node: bool,
    /// Only those with an effect that this version knows.
    pub taints: Box<[DeviceTaint]>,
    /// What it consumes of the counters of its pool: by counter set.
    pub consumes: BTreeMap<Arc<str>, Counters>,
    /// Conditions that its driver must report in the claim before the pod is bound.
    pub binding_conditions: Box<[Arc<str>]>,
    /// Conditions in the claim that end the wait in vain.
    pub binding_failure_conditions: Box<[Arc<str>]>,
}

/// What CEL selectors read of a device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DeviceTraits {
    /// By qualified name; a name without a domain is in the domain of the driver.
    pub attributes: BTreeMap<Arc<str>, Attribute>,
    pub capacity: BTreeMap<Arc<str>, DeviceCapacity>,
    /// Several claims may share the device, each with a part of its capacity.
    pub multiple: bool,
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Attribute {
    Int(i64),
    Bool(bool),
    Text(Arc<str>),
    /// A semantic version.
    Version(Arc<str>),
    /// A type that this version does not know: selectors of such a device fail.
    Unknown,
}

/// An amount that a device has, and what a claim may take of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DeviceCapacity {
    pub value: Quantity,
    pub policy: Option<RequestPolicy>,
}

/// `requestPolicy` of a capacity.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RequestPolicy {
    /// Consumed by claims that request none of it.
    pub default: Option<Quantity>,
    /// Requests are rounded up to one of these, in ascending order; empty: no such rule.
    pub valid_values: Box<[Quantity]>,
    pub valid_range: Option<ValidRange>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ValidRange {
    pub min: Option<Quantity>,
    pub max: Option<Quantity>,
    pub step: Option<Quantity>,
}
