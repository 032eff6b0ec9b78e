//! The scheduling-relevant part of a node.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Amounts, Extended, Labels, Taint};

/// A node as the rules read it. Two equal `Node`s are equivalent for every rule: a heartbeat changes nothing
/// here.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Node {
    pub name: Arc<str>,
    pub labels: Labels,
    pub taints: Box<[Taint]>,
    /// `spec.unschedulable`: cordoned.
    pub unschedulable: bool,
    pub allocatable: Amounts,
    pub extended: Extended,
    /// Features of the kubelet (`status.declaredFeatures`), sorted.
    #[serde(deserialize_with = "crate::sorted::deserialize")]
    pub declared_features: Box<[Arc<str>]>,
    /// Sorted by name.
    #[serde(deserialize_with = "crate::sorted::deserialize")]
    pub images: Box<[Image]>,
    /// Invalid fields of the node; they count as zero, so that no pod is misplaced.
    pub problems: Box<[String]>,
}

/// A container image that is present on a node, under one of its names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Image {
    pub name: Arc<str>,
    pub size_bytes: i64,
}

impl Node {
    /// Returns the size of the image `name` on this node, if present.
    pub fn image_size(&self, name: &str) -> Option<i64> {
        let at = self.images.binary_search_by(|image| (*image.name).cmp(name)).ok()?;
        Some(self.images[at].size_bytes)
    }
}
