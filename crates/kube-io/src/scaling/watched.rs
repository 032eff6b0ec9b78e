//! Lean ServiceScalers, watched by every process: the hints and sizes for new pods in their statuses.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

use super::objects::read_selector;
use crate::OptionalKind;
use crate::lean::{lean_meta, nullable};
use crate::vpa::{Quantities, amounts};
use berth_crds::service_scaler::{
    ContainerStatus, HintPlacement, HintStatus, ServiceScaler, Target, dry_run_by_default,
};
use berth_rightsizing::recommend::{OwnerRef, Recommendation, Status, Vpa};
use berth_scheduler::hints::{Hint, SelectedPods};

const SECOND_NS: i64 = 1_000_000_000;

/// A ServiceScaler to watch.
#[derive(Debug, Clone, Default, Deserialize, kube::Resource)]
#[resource(inherit = ServiceScaler)]
pub struct LeanServiceScaler {
    #[serde(deserialize_with = "lean_meta")]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "nullable")]
    spec: LeanSpec,
    #[serde(default, deserialize_with = "nullable")]
    status: LeanStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[serde(rename_all = "camelCase")]
struct LeanSpec {
    target: Option<Target>,
    #[serde(default = "dry_run_by_default")]
    dry_run: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct LeanStatus {
    #[serde(deserialize_with = "nullable")]
    selector: String,
    #[serde(deserialize_with = "nullable")]
    containers: Vec<ContainerStatus>,
    #[serde(deserialize_with = "nullable")]
    hints: Vec<HintStatus>,
}

impl OptionalKind for LeanServiceScaler {
    const VERSIONS: &'static [()] = &[()];
}

impl LeanServiceScaler {
    /// Returns the placement hints of its pods; skips invalid ones.
    pub fn hints(&self) -> Vec<Hint> {
        let namespace = self.metadata.namespace.as_deref().unwrap_or_default();
        let workload = |namespace: &str, selector: &str| {
            Some(SelectedPods { namespace: namespace.into(), selector: read_selector(selector)? })
        };
        let Some(of) = workload(namespace, &self.status.selector) else { return Vec::new() };
        let hint = |hint: &HintStatus| {
            let (namespace, _) = hint.service.split_once('/')?;
            let sign = match hint.placement {
                HintPlacement::Apart => -1,
                HintPlacement::Together => 1,
            };
            let weight = hint.weight.saturating_mul(sign);
            Some(Hint { of: of.clone(), other: workload(namespace, &hint.selector)?, weight })
        };
        self.status.hints.iter().filter_map(hint).collect()
    }

    /// Returns the sizes of new pods, as a VPA; `None` if it sets none.
    pub fn sizes(&self) -> Option<Vpa> {
        let target = self.spec.target.as_ref()?;
        if self.status.containers.is_empty() || self.spec.dry_run {
            return None;
        }
        let recommendation = |it: &ContainerStatus| {
            let quantities: Quantities =
                it.target.iter().map(|(resource, text)| (resource.clone(), text.as_str().into())).collect();
            let target = amounts(&quantities);
            Recommendation {
                container: it.name.clone(),
                target,
                lower: target,
                upper: target,
                uncapped: target,
            }
        };
        let meta = &self.metadata;
        let created = meta.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second());
        Some(Vpa {
            namespace: meta.namespace.as_deref().unwrap_or_default().into(),
            name: Arc::from(format!("ServiceScaler {}", meta.name.as_deref().unwrap_or_default())),
            created: created.saturating_mul(SECOND_NS),
            target: Some(OwnerRef {
                api_version: target.api_version.clone(),
                kind: target.kind.clone(),
                name: target.name.clone(),
            }),
            update_mode: "Initial".to_owned(),
            status: Status {
                recommendation: Some(self.status.containers.iter().map(recommendation).collect()),
                ..Status::default()
            },
            ..Vpa::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use berth_model::PerResource;

    fn read(dry_run: bool, status: Value) -> LeanServiceScaler {
        let object = json!({
            "metadata": {"namespace": "shop", "name": "web", "creationTimestamp": "1970-01-01T00:00:02Z"},
            "spec": {"target": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}, "dryRun": dry_run},
            "status": status,
        });
        serde_json::from_value(object).expect("a ServiceScaler")
    }

    #[test]
    fn a_service_scaler_says_sizes_as_a_vpa_does() {
        let containers =
            json!([{"name": "app", "target": {"cpu": "300m", "memory": "1048576"}}, {"name": "proxy"}]);
        let status = json!({"containers": containers});
        let sizes = read(false, status.clone()).sizes().expect("sizes");
        assert_eq!(
            (&*sizes.namespace, &*sizes.name, sizes.created),
            ("shop", "ServiceScaler web", 2 * SECOND_NS)
        );
        assert_eq!(sizes.target.as_ref().map(|it| it.name.as_str()), Some("web"));
        let all = sizes.status.recommendation.expect("recommendations");
        assert_eq!(all[0].target, PerResource { cpu: Some(300), memory: Some(1 << 20) });
        assert_eq!(all[1].target, PerResource::default());
        assert!(read(true, status).sizes().is_none(), "it is a dry run");
        assert!(read(false, Value::Null).sizes().is_none());
    }
}
