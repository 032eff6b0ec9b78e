//! Lean resource claims: what is requested, and what is allocated.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

use super::{LeanDeviceConfig, LeanDeviceSelector, configs, device_effect, device_meta, selectors, texts};
use crate::convert::{Problems, node_terms};
use crate::lean::{LeanNodeSelector, LeanQuantity, nullable};
use crate::objects::{LeanObject, claim_name, version};
use crate::{Interner, OptionalKind};
use berth_devices::{
    AllocatedDevice, ClaimAllocation, ClaimUser, DeviceConditions, DeviceId, PoolId, ResourceClaim,
};
use berth_model::{
    DeviceAlternative, DeviceConstraint, DeviceRequest, DeviceRequests, DeviceToleration,
    DeviceTolerationOperator, Quantity,
};
use berth_scheduler::objects::{ClusterObject, ObjectKind};

/// A claim to watch with `Api<LeanResourceClaim>`.
#[derive(Debug, Clone, Default, Deserialize, kube::Resource)]
#[resource(inherit = "k8s_openapi::api::resource::v1::ResourceClaim")]
pub struct LeanResourceClaim {
    #[serde(deserialize_with = "device_meta")]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "nullable")]
    spec: LeanDeviceClaimSpec,
    #[serde(default, deserialize_with = "nullable")]
    status: LeanDeviceClaimStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct LeanDeviceClaimSpec {
    #[serde(deserialize_with = "nullable")]
    devices: LeanDeviceClaim,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct LeanDeviceClaim {
    #[serde(deserialize_with = "nullable")]
    requests: Vec<LeanDeviceRequest>,
    #[serde(deserialize_with = "nullable")]
    constraints: Vec<LeanDeviceConstraint>,
    #[serde(deserialize_with = "nullable")]
    config: Vec<LeanDeviceConfig>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LeanDeviceRequest {
    name: String,
    exactly: Option<LeanDeviceAlternative>,
    #[serde(deserialize_with = "nullable")]
    first_available: Vec<LeanDeviceAlternative>,
}

/// `exactly`, or one of `firstAvailable`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LeanDeviceAlternative {
    name: String,
    device_class_name: String,
    #[serde(deserialize_with = "nullable")]
    selectors: Vec<LeanDeviceSelector>,
    allocation_mode: Option<String>,
    count: Option<i64>,
    admin_access: Option<bool>,
    #[serde(deserialize_with = "nullable")]
    tolerations: Vec<LeanDeviceToleration>,
    #[serde(deserialize_with = "nullable")]
    capacity: LeanCapacityRequests,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct LeanCapacityRequests {
    #[serde(deserialize_with = "nullable")]
    requests: BTreeMap<String, LeanQuantity>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LeanDeviceToleration {
    key: Option<String>,
    operator: Option<String>,
    value: Option<String>,
    effect: Option<String>,
    toleration_seconds: Option<i64>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LeanDeviceConstraint {
    #[serde(deserialize_with = "nullable")]
    requests: Vec<String>,
    match_attribute: Option<String>,
    distinct_attribute: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LeanDeviceClaimStatus {
    allocation: Option<LeanDeviceAllocation>,
    #[serde(deserialize_with = "nullable")]
    reserved_for: Vec<LeanClaimUser>,
    #[serde(deserialize_with = "nullable")]
    devices: Vec<LeanDeviceStatus>,
}

/// `status.allocation`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct LeanDeviceAllocation {
    #[serde(deserialize_with = "nullable")]
    devices: LeanAllocatedDevices,
    node_selector: Option<LeanNodeSelector>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct LeanAllocatedDevices {
    #[serde(deserialize_with = "nullable")]
    results: Vec<LeanAllocatedDevice>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LeanAllocatedDevice {
    request: String,
    driver: String,
    pool: String,
    device: String,
    admin_access: Option<bool>,
    #[serde(rename = "shareID")]
    share_id: Option<String>,
    #[serde(deserialize_with = "nullable")]
    consumed_capacity: BTreeMap<String, LeanQuantity>,
    #[serde(deserialize_with = "nullable")]
    tolerations: Vec<LeanDeviceToleration>,
    #[serde(deserialize_with = "nullable")]
    binding_conditions: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    binding_failure_conditions: Vec<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LeanClaimUser {
    api_group: Option<String>,
    resource: String,
    name: String,
    uid: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct LeanDeviceStatus {
    driver: String,
    pool: String,
    device: String,
    #[serde(rename = "shareID")]
    share_id: Option<String>,
    #[serde(deserialize_with = "nullable")]
    conditions: Vec<LeanDeviceCondition>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct LeanDeviceCondition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

impl OptionalKind for LeanResourceClaim {
    const VERSIONS: &'static [()] = &[()];
}

impl LeanObject for LeanResourceClaim {
    const KIND: ObjectKind = ObjectKind::ResourceClaim;

    fn into_object(self, interner: &mut Interner) -> ClusterObject {
        ClusterObject::ResourceClaim(Box::new(self.into_claim(interner)))
    }

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }
}

impl LeanResourceClaim {
    pub(crate) fn into_claim(self, interner: &mut Interner) -> ResourceClaim {
        let (meta, devices, status) = (self.metadata, self.spec.devices, self.status);
        let mut problems = Problems::default();
        let requests = devices.requests.into_iter().enumerate();
        let requests = requests.map(|(i, lean)| lean.into_request(i, interner, &mut problems)).collect();
        let constraints = devices.constraints.iter().enumerate();
        let constraints = constraints.filter_map(|(i, lean)| constraint(lean, i, interner, &mut problems));
        let spec = DeviceRequests { constraints: constraints.collect(), requests };
        let owner = meta.owner_references.as_ref().and_then(|owners| owners.first());
        ResourceClaim {
            name: claim_name(&meta, interner),
            uid: meta.uid.as_deref().unwrap_or_default().into(),
            version: version(&meta),
            deleting: meta.deletion_timestamp.is_some(),
            finalizers: texts(meta.finalizers.as_deref().unwrap_or_default(), interner),
            owner: owner.map(|owner| owner.uid.as_str().into()),
            invalid: problems.text(),
            spec,
            config: configs(devices.config, interner),
            allocation: status.allocation.map(|lean| Arc::new(lean.into_allocation(interner))),
            reserved: status.reserved_for.iter().map(|lean| user(lean, interner)).collect(),
            conditions: status.devices.iter().filter_map(|lean| conditions(lean, interner)).collect(),
        }
    }
}

impl LeanDeviceRequest {
    /// An invalid request has no alternative, so that nothing serves it.
    fn into_request(self, at: usize, interner: &mut Interner, problems: &mut Problems) -> DeviceRequest {
        let path = || format!("spec.devices.requests[{at}]");
        let alternatives: Option<Box<[_]>> = match (self.exactly, self.first_available) {
            (Some(exactly), several) if several.is_empty() => {
                let path = || format!("{}.exactly", path());
                let exactly = LeanDeviceAlternative { name: String::new(), ..exactly };
                exactly.into_alternative(&path, interner, problems).map(|alternative| [alternative].into())
            }
            (None, several) if !several.is_empty() => {
                let each = several.into_iter().enumerate().map(|(i, lean)| {
                    // Only `exactly` has the field.
                    let lean = LeanDeviceAlternative { admin_access: None, ..lean };
                    lean.into_alternative(&|| format!("{}.firstAvailable[{i}]", path()), interner, problems)
                });
                each.collect()
            }
            _ => {
                problems.note(path, || "must have either exactly or firstAvailable".to_owned());
                None
            }
        };
        DeviceRequest { name: interner.text(&self.name), alternatives: alternatives.unwrap_or_default() }
    }
}

impl LeanDeviceAlternative {
    fn into_alternative(
        self,
        path: &dyn Fn() -> String,
        interner: &mut Interner,
        problems: &mut Problems,
    ) -> Option<DeviceAlternative> {
        let count = match self.allocation_mode.as_deref().unwrap_or_default() {
            "" | "ExactCount" => Some(match self.count.unwrap_or(0) {
                0 => 1,
                count => u64::try_from(count).ok().or_else(|| {
                    problems.note(|| format!("{}.count", path()), || format!("must be positive, is {count}"));
                    None
                })?,
            }),
            "All" => None,
            other => {
                problems.note(
                    || format!("{}.allocationMode", path()),
                    || format!("{other:?} is neither ExactCount nor All"),
                );
                return None;
            }
        };
        let mut capacity = Vec::with_capacity(self.capacity.requests.len());
        for (name, amount) in self.capacity.requests {
            match amount.0 {
                Ok(amount) => capacity.push((interner.text(&name), amount)),
                Err(error) => {
                    problems.note(|| format!("{}.capacity.requests[{name}]", path()), || error.to_string());
                    return None;
                }
            }
        }
        Some(DeviceAlternative {
            name: interner.text(&self.name),
            class: interner.text(&self.device_class_name),
            selectors: selectors(&self.selectors, path, interner, problems),
            selectors_of_class: 0,
            count,
            admin_access: self.admin_access == Some(true),
            tolerations: tolerations(&self.tolerations, interner),
            capacity: capacity.into(),
        })
    }
}

fn constraint(
    lean: &LeanDeviceConstraint,
    at: usize,
    interner: &mut Interner,
    problems: &mut Problems,
) -> Option<DeviceConstraint> {
    let (attribute, distinct) = match (&lean.match_attribute, &lean.distinct_attribute) {
        (Some(attribute), None) => (attribute, false),
        (None, Some(attribute)) => (attribute, true),
        _ => {
            problems.note(
                || format!("spec.devices.constraints[{at}]"),
                || "must have either matchAttribute or distinctAttribute".to_owned(),
            );
            return None;
        }
    };
    let requests = texts(&lean.requests, interner);
    Some(DeviceConstraint { requests, attribute: interner.text(attribute), distinct })
}

fn tolerations(lean: &[LeanDeviceToleration], interner: &mut Interner) -> Box<[DeviceToleration]> {
    let tolerations = lean.iter().map(|lean| DeviceToleration {
        key: interner.text(lean.key.as_deref().unwrap_or_default()),
        operator: match lean.operator.as_deref().unwrap_or_default() {
            "Exists" => DeviceTolerationOperator::Exists,
            "" | "Equal" => {
                DeviceTolerationOperator::Equal(interner.text(lean.value.as_deref().unwrap_or_default()))
            }
            other => DeviceTolerationOperator::Unknown(interner.text(other)),
        },
        effect: lean.effect.as_deref().filter(|effect| !effect.is_empty()).map(device_effect),
        seconds: lean.toleration_seconds,
    });
    tolerations.collect()
}

impl LeanDeviceAllocation {
    /// Sorts terms and amounts: two allocations that mean the same are equal.
    pub(crate) fn into_allocation(self, interner: &mut Interner) -> ClaimAllocation {
        let devices = self.devices.results.into_iter().map(|lean| AllocatedDevice {
            request: interner.text(&lean.request),
            id: device_id(&lean.driver, &lean.pool, &lean.device, interner),
            admin_access: lean.admin_access == Some(true),
            share: lean.share_id.map(Into::into),
            consumed: (lean.consumed_capacity.into_iter())
                // One that cannot be parsed leaves nothing to others.
                .map(|(name, amount)| {
                    (interner.text(&name), amount.0.unwrap_or(Quantity::from_units(i64::MAX)))
                })
                .collect(),
            tolerations: tolerations(&lean.tolerations, interner),
            binding_conditions: texts(&lean.binding_conditions, interner),
            binding_failure_conditions: texts(&lean.binding_failure_conditions, interner),
        });
        let devices = devices.collect();
        let nodes = self.node_selector.map(|selector| node_terms(&selector.node_selector_terms, interner));
        ClaimAllocation { devices, nodes }
    }
}

fn device_id(driver: &str, pool: &str, device: &str, interner: &mut Interner) -> DeviceId {
    let pool = PoolId { driver: interner.text(driver), name: interner.text(pool) };
    DeviceId { pool, device: interner.text(device) }
}

fn user(lean: &LeanClaimUser, interner: &mut Interner) -> ClaimUser {
    ClaimUser {
        api_group: interner.text(lean.api_group.as_deref().unwrap_or_default()),
        resource: interner.text(&lean.resource),
        name: interner.text(&lean.name),
        uid: lean.uid.as_str().into(),
    }
}

/// `None` if no condition holds.
fn conditions(lean: &LeanDeviceStatus, interner: &mut Interner) -> Option<DeviceConditions> {
    let holding = lean.conditions.iter().filter(|condition| condition.status == "True");
    let holding: Box<[_]> = holding.map(|condition| interner.text(&condition.kind)).collect();
    (!holding.is_empty()).then(|| DeviceConditions {
        device: device_id(&lean.driver, &lean.pool, &lean.device, interner),
        share: lean.share_id.as_deref().map(Into::into),
        holding,
    })
}

#[cfg(test)]
mod tests;
