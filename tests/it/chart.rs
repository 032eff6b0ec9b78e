//! The chart and the manifests.
