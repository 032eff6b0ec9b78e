//! Preferences among valid nodes, as policies and the configuration name them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A rule that makes a node better or worse, by the name of kube-scheduler's plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum Preference {
    TaintToleration,
    NodeAffinity,
    InterPodAffinity,
    PodTopologySpread,
    NodeResourcesFit,
    NodeResourcesBalancedAllocation,
    ImageLocality,
}

impl Preference {
    /// In the order that holds where nothing else is said.
    pub const ALL: [Preference; 7] = [
        Preference::TaintToleration,
        Preference::NodeAffinity,
        Preference::InterPodAffinity,
        Preference::PodTopologySpread,
        Preference::NodeResourcesFit,
        Preference::NodeResourcesBalancedAllocation,
        Preference::ImageLocality,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Preference::TaintToleration => "TaintToleration",
            Preference::NodeAffinity => "NodeAffinity",
            Preference::InterPodAffinity => "InterPodAffinity",
            Preference::PodTopologySpread => "PodTopologySpread",
            Preference::NodeResourcesFit => "NodeResourcesFit",
            Preference::NodeResourcesBalancedAllocation => "NodeResourcesBalancedAllocation",
            Preference::ImageLocality => "ImageLocality",
        }
    }
}

/// Which nodes are better: empty or full ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Packing {
    /// Spread the load: the node with the largest free share.
    #[default]
    LeastAllocated,
    /// Pack: the node with the smallest free share.
    MostAllocated,
}
