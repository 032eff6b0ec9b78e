//! ServiceScalers as every process watches them: what their statuses say of the pods that come next.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

use super::objects::read_selector;
use crate::api::service_scaler::{ContainerStatus, HintPlacement, HintStatus, ServiceScaler, Target};
use crate::cluster::OptionalKind;
use crate::cluster::lean::{lean_meta, nullable};
use crate::cluster::vpa::{Quantities, amounts};
use crate::hints::{Hint, Workload};
use crate::recommend::{Owner, Recommendation, Status, Vpa};

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
struct LeanSpec {
    target: Option<Target>,
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
    #[serde(deserialize_with = "nullable")]
    conditions: Vec<LeanCondition>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct LeanCondition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
}

impl OptionalKind for LeanServiceScaler {
    const VERSIONS: &'static [()] = &[()];
}

impl LeanServiceScaler {
    /// Where its pods had better be; what cannot be understood is left out.
    pub fn hints(&self) -> Vec<Hint> {
        let namespace = self.metadata.namespace.as_deref().unwrap_or_default();
        let workload = |namespace: &str, selector: &str| {
            Some(Workload { namespace: namespace.into(), selector: read_selector(selector)? })
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

    /// The sizes that new pods get, as a VPA would say it; `None`: it sets none.
    pub fn sizes(&self) -> Option<Vpa> {
        let target = self.spec.target.as_ref()?;
        let is_active = |it: &LeanCondition| it.type_ == "Active" && it.status == "True";
        if self.status.containers.is_empty() || !self.status.conditions.iter().any(is_active) {
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
            target: Some(Owner {
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
    use crate::recommend::PerResource;

    fn read(status: Value) -> LeanServiceScaler {
        let object = json!({
            "metadata": {"namespace": "shop", "name": "web", "creationTimestamp": "1970-01-01T00:00:02Z"},
            "spec": {"target": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}},
            "status": status,
        });
        serde_json::from_value(object).expect("a ServiceScaler")
    }

    fn sized(active: &str) -> Value {
        json!({
            "conditions": [{"type": "Limited", "status": "True"}, {"type": "Active", "status": active}],
            "containers": [{"name": "app", "target": {"cpu": "300m", "memory": "1048576"}}, {"name": "proxy"}],
        })
    }

    #[test]
    fn an_active_service_scaler_says_sizes_as_a_vpa_does() {
        let sizes = read(sized("True")).sizes().expect("sizes");
        assert_eq!((&*sizes.namespace, &*sizes.name, sizes.created), ("shop", "ServiceScaler web", 2 * SECOND_NS));
        assert_eq!(sizes.target.as_ref().map(|it| it.name.as_str()), Some("web"));
        let all = sizes.status.recommendation.expect("recommendations");
        assert_eq!(all[0].target, PerResource { cpu: Some(300), memory: Some(1 << 20) });
        assert_eq!(all[1].target, PerResource::default());
    }

    #[test]
    fn one_that_rests_or_sets_no_sizes_says_none() {
        assert!(read(sized("False")).sizes().is_none());
        assert!(read(json!({"conditions": [{"type": "Active", "status": "True"}]})).sizes().is_none());
        assert!(read(Value::Null).sizes().is_none());
    }
}
