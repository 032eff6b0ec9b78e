//! Pods and VPAs for tests, and the decisions for them.

mod boost;
mod change;
mod index;
mod update;

use super::pod::Has;
use super::*;
use crate::recommend::{OptionalAmounts, OwnerRef, Recommendation, Vpa};
use berth_model::PerResource;

pub const MI: i64 = 1 << 20;

pub fn amounts(cpu: impl Into<Option<i64>>, memory: impl Into<Option<i64>>) -> OptionalAmounts {
    PerResource { cpu: cpu.into(), memory: memory.into() }
}

pub fn owner(kind: &str, name: &str) -> OwnerRef {
    let group = if ["Job", "CronJob"].contains(&kind) { "batch/v1" } else { "apps/v1" };
    OwnerRef { api_version: group.into(), kind: kind.into(), name: name.into() }
}

pub fn container(name: &str, requests: OptionalAmounts, limits: OptionalAmounts) -> SizedContainer {
    let is_said = |amounts: OptionalAmounts| amounts != OptionalAmounts::default();
    SizedContainer {
        name: name.into(),
        wanted: Resources { requests, limits },
        has: Has {
            resources: is_said(requests) || is_said(limits),
            requests: is_said(requests),
            limits: is_said(limits),
        },
        ..SizedContainer::default()
    }
}

/// A running pod of the ReplicaSet `web-5d4f8`.
pub fn pod(name: &str, containers: Vec<SizedContainer>) -> SizedPod {
    SizedPod {
        namespace: "shop".into(),
        name: name.into(),
        uid: format!("u-{name}").into(),
        owner: Some(owner("ReplicaSet", "web-5d4f8")),
        template_hash: Some("5d4f8".into()),
        node: Some("n".into()),
        containers,
        ..SizedPod::default()
    }
}

pub fn recommendation(container: &str, target: OptionalAmounts) -> Recommendation {
    Recommendation {
        container: container.into(),
        target,
        lower: OptionalAmounts::default(),
        upper: OptionalAmounts::default(),
        uncapped: target,
    }
}

pub fn vpa(mode: &str, recommendations: Vec<Recommendation>) -> Vpa {
    let mut vpa = Vpa {
        namespace: "shop".into(),
        name: "web".into(),
        uid: "v".into(),
        target: Some(owner("Deployment", "web")),
        update_mode: mode.into(),
        ..Vpa::default()
    };
    vpa.status.recommendation = Some(recommendations);
    vpa
}
