//! Fields of a pod under creation that placement hints depend on.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::lean::nullable;
use berth_model::Identity;
use berth_rightsizing::apply::affinity::OwnAffinity;

/// A pod that is being created.
#[derive(Debug, Clone, PartialEq)]
pub struct NewPod {
    /// The namespace and labels of the pod.
    pub identity: Identity,
    /// The scheduler's name; empty: the cluster's default scheduler.
    pub scheduler: String,
    pub affinity: OwnAffinity,
}

#[derive(Deserialize)]
struct WireNewPod {
    #[serde(default)]
    metadata: Meta,
    spec: Spec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Meta {
    #[serde(deserialize_with = "nullable")]
    labels: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    #[serde(deserialize_with = "nullable")]
    scheduler_name: String,
    affinity: Option<Affinity>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Affinity {
    #[serde(deserialize_with = "nullable")]
    pod_affinity: BTreeMap<String, Value>,
    #[serde(deserialize_with = "nullable")]
    pod_anti_affinity: BTreeMap<String, Value>,
}

impl Affinity {
    fn is_of_pods(&self) -> bool {
        let mut lists = self.pod_affinity.values().chain(self.pod_anti_affinity.values());
        lists.any(|list| list.as_array().is_some_and(|list| !list.is_empty()))
    }
}

impl NewPod {
    /// Parses the object of an admission review.
    ///
    /// # Errors
    /// When it is not a pod.
    pub fn read(json: &str, namespace: &str) -> Result<NewPod, String> {
        let WireNewPod { metadata, spec } = serde_json::from_str(json).map_err(|error| error.to_string())?;
        let labels = metadata.labels.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        Ok(NewPod {
            identity: Identity { namespace: namespace.into(), labels, ..Identity::default() },
            scheduler: spec.scheduler_name,
            affinity: OwnAffinity {
                is_there: spec.affinity.is_some(),
                is_of_pods: spec.affinity.is_some_and(|affinity| affinity.is_of_pods()),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn it_is_read_what_a_pod_says_itself_of_other_pods() {
        let of = |affinity: Value| {
            let pod = json!({
                "metadata": {"labels": {"app": "web"}},
                "spec": {"schedulerName": "other", "affinity": affinity},
            });
            NewPod::read(&pod.to_string(), "shop").expect("a pod")
        };
        let plain = of(Value::Null);
        assert_eq!((&*plain.identity.namespace, plain.scheduler.as_str()), ("shop", "other"));
        assert_eq!(plain.identity.labels.pairs().count(), 1);
        let own = |is_there, is_of_pods| OwnAffinity { is_there, is_of_pods };
        assert_eq!(plain.affinity, own(false, false));
        for nothing in [json!({}), json!({"nodeAffinity": {}, "podAffinity": null, "podAntiAffinity": {}})] {
            assert_eq!(of(nothing).affinity, own(true, false));
        }
        let required = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}});
        assert_eq!(of(required).affinity, own(true, true));
        for bad in ["7", r#"{"metadata":{}}"#] {
            assert!(NewPod::read(bad, "shop").is_err(), "a patch needs a spec to add to: {bad}");
        }
    }
}
