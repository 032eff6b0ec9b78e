//! Lean PodDisruptionBudgets: only the fields that preemption reads.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{LeanObject, Selects};
use crate::Interner;
use crate::lean::{lean_meta, nullable};
use berth_scheduler::objects::{ClusterObject, DisruptionBudget, ObjectKind, ObjectName};

/// A budget to watch with `Api<LeanPodDisruptionBudget>`.
#[derive(Debug, Clone, Default, Deserialize, kube::Resource)]
#[resource(inherit = "k8s_openapi::api::policy::v1::PodDisruptionBudget")]
pub struct LeanPodDisruptionBudget {
    #[serde(deserialize_with = "lean_meta")]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "nullable")]
    spec: Selects,
    #[serde(default, deserialize_with = "nullable")]
    status: LeanBudgetStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LeanBudgetStatus {
    disruptions_allowed: i32,
    #[serde(deserialize_with = "nullable")]
    disrupted_pods: BTreeMap<String, IgnoredAny>,
}

impl LeanObject for LeanPodDisruptionBudget {
    const KIND: ObjectKind = ObjectKind::DisruptionBudget;

    fn into_object(self, interner: &mut Interner) -> ClusterObject {
        let mut text = |text: Option<String>| interner.text(text.as_deref().unwrap_or_default());
        let name = ObjectName { namespace: text(self.metadata.namespace), name: text(self.metadata.name) };
        let selector = self.spec.read(interner);
        let disrupted: BTreeSet<_> =
            self.status.disrupted_pods.keys().map(|name| interner.text(name)).collect();
        let allowed = self.status.disruptions_allowed;
        ClusterObject::DisruptionBudget(DisruptionBudget { name, selector, allowed, disrupted })
    }

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_model::LabelSelector;

    #[test]
    fn a_budget_is_read_as_what_it_selects_and_what_it_allows_now() {
        let json = r#"{"metadata":{"namespace":"x","name":"web"},
            "spec":{"minAvailable":"50%","selector":{"matchLabels":{"app":"web"}}},
            "status":{"disruptionsAllowed":2,"disruptedPods":{"a":"2026-01-01T00:00:00Z"},"currentHealthy":4}}"#;
        let lean: LeanPodDisruptionBudget = serde_json::from_str(json).expect("JSON");
        let ClusterObject::DisruptionBudget(budget) = lean.into_object(&mut Interner::default()) else {
            panic!("a budget")
        };
        assert!(matches!(&budget.selector, LabelSelector::All(terms) if terms.len() == 1));
        assert_eq!((budget.allowed, budget.disrupted), (2, ["a".into()].into()));
        let bare: LeanPodDisruptionBudget = serde_json::from_str(r#"{"metadata":{}}"#).expect("JSON");
        let ClusterObject::DisruptionBudget(budget) = bare.into_object(&mut Interner::default()) else {
            panic!("a budget")
        };
        assert_eq!(budget.selector, LabelSelector::Nothing);
    }
}
