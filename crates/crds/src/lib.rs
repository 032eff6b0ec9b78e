//! Kinds of our own in the API server, as people write them: `berth.dev`.
//!
//! The doc comment of a field is its documentation for users too: it goes into the CustomResourceDefinition, where
//! `kubectl explain` reads it. May not know: the scheduler, I/O. What is read of an object leaves this room as a value of
//! the room that decides with it.

mod allocation;
pub mod policy;
pub mod quota;
pub mod service_scaler;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

pub use allocation::{
    Allocation, AllocationSpec, AllocationStatus, Condition, Owner, Placement, Requirement, Role, RoleStatus,
    Selector, Topology, TopologyMode,
};

pub const GROUP: &str = "berth.dev";

/// All kinds of ours.
pub fn crds() -> Vec<CustomResourceDefinition> {
    vec![
        Allocation::crd(),
        policy::AllocationPolicy::crd(),
        quota::Quota::crd(),
        service_scaler::ServiceScaler::crd(),
    ]
}

/// One CustomResourceDefinition as a YAML document.
///
/// # Errors
/// None that a definition made from types of ours can have.
pub fn yaml(crd: &CustomResourceDefinition) -> Result<String, serde_saphyr::ser::Error> {
    serde_saphyr::to_string(crd)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// The files that users and the chart take; `UPDATE=1` writes them anew.
    #[test]
    fn the_files_of_the_definitions_are_up_to_date() {
        for crd in crds() {
            let name = format!("{}.yaml", crd.metadata.name.as_deref().expect("a name"));
            let text = format!("# Made by `berth crds`.\n{}", yaml(&crd).expect("YAML"));
            for folder in ["crds", "charts/berth/files/crds"] {
                let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder).join(&name);
                if std::env::var_os("UPDATE").is_some() {
                    std::fs::create_dir_all(file.parent().expect("a folder")).expect("the folder is made");
                    std::fs::write(&file, &text).expect("the file is written");
                }
                let found = std::fs::read_to_string(&file).unwrap_or_default();
                assert!(found == text, "{folder}/{name} is old: UPDATE=1 cargo test --lib api");
            }
        }
    }

    #[test]
    fn nothing_in_a_definition_is_without_a_description() {
        for crd in crds() {
            let version = serde_json::to_value(&crd.spec.versions[0]).expect("JSON");
            let schema = &version["schema"]["openAPIV3Schema"]["properties"];
            for part in ["spec", "status"] {
                assert_described(part, &schema[part]);
            }
        }
    }

    fn assert_described(path: &str, schema: &serde_json::Value) {
        assert!(schema["description"].is_string() || path.ends_with("[]"), "{path} has no description");
        assert!(
            schema["format"].as_str().is_none_or(|it| ["int32", "int64", "date-time"].contains(&it)),
            "{path}: {schema}"
        );
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            assert_described(&format!("{path}.{name}"), property);
        }
        if schema["items"].is_object() {
            assert_described(&format!("{path}[]"), &schema["items"]);
        }
    }
}
