//! The types of our custom resources. Their doc comments are their documentation for users, too: they go into the CRDs.
//!
//! May not know: how they are read from a watch, or what is decided by them.

pub mod policy;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

/// All of them, for `kubectl apply`.
pub fn crds() -> Vec<CustomResourceDefinition> {
    vec![policy::AllocationPolicy::crd()]
}
