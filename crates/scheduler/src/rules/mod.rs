//! Scheduling rules: validators (is a node valid for a class of pods) and preferences (which valid nodes are better).
//!
//! One file per rule, named as in kube-scheduler; rules do not depend on each other. Answers that need label or string
//! matching are cached in rule objects (`agent`), one [`RuleAnswer`] per node, shared by all classes with the same trait.
//! Answers that only compare integers are recomputed every time: caching them lost in 2018 (kubernetes#71013).
//!
//! `NodeName` needs no file: a pod with a node name is bound, and never waits here.

pub mod counted;
mod dynamic_resources;
mod image_locality;
pub mod inter_pod_affinity;
mod key;
mod node_affinity;
mod node_declared_features;
mod node_ports;
mod node_unschedulable;
mod node_volume_limits;
mod placement;
pub mod pod_topology_spread;
mod reasons;
mod resources_balanced_allocation;
mod resources_fit;
mod taint_toleration;
mod volume_binding;
mod volume_restrictions;
mod volume_zone;

use serde::{Deserialize, Serialize};

pub use dynamic_resources::{could_free_devices, device_shortage, free_devices, take_devices, use_devices};
pub use image_locality::WORST as NO_IMAGE;
pub use key::{GOLDEN, Key, Layout, Salt, Scores, Standing, hash_of, mix, unit};
pub use node_affinity::applies as node_affinity_applies;
pub use node_unschedulable::tolerated as tolerates_unschedulable;
pub use placement::{AgentLimit, PlacementSettings, PreferenceOrder, PreferencesError, most_steps};
pub use reasons::{Diagnosis, Reasons, Unhelped};
pub use resources_fit::{
    CellLimit, CellLoad, ResourceWeights, WeighedResource, beyond, insufficient, insufficient_without,
    shortage,
};
pub use volume_binding::{VolumeChoice, plan as plan_volumes};

use crate::class::Class;
use crate::inventory::{Revision, Row};
use berth_model::{Node, PodSpec, Usage, VolumeNeeds};

/// Answer of a cached rule for one node, in the rule's own encoding.
pub type RuleAnswer = u16;

/// The rules whose answers are worth caching.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum CachedRule {
    TaintToleration,
    NodeAffinity,
    ImageLocality,
    VolumeBinding,
    VolumeZone,
}

impl CachedRule {
    pub const ALL: [CachedRule; 5] = [
        CachedRule::TaintToleration,
        CachedRule::NodeAffinity,
        CachedRule::ImageLocality,
        CachedRule::VolumeBinding,
        CachedRule::VolumeZone,
    ];
    pub const COUNT: usize = Self::ALL.len();

    pub fn index(self) -> usize {
        self as usize
    }

    pub fn name(self) -> &'static str {
        match self {
            CachedRule::TaintToleration => "TaintToleration",
            CachedRule::NodeAffinity => "NodeAffinity",
            CachedRule::ImageLocality => "ImageLocality",
            CachedRule::VolumeBinding => "VolumeBinding",
            CachedRule::VolumeZone => "VolumeZone",
        }
    }

    /// Evaluates this rule for one node. Depends only on the rule's traits in `class` and on `node`.
    pub fn answer(self, class: &Class, node: &Node) -> RuleAnswer {
        let spec = &class.spec;
        match self {
            CachedRule::TaintToleration => taint_toleration::answer(&spec.tolerations, node),
            CachedRule::NodeAffinity => node_affinity::answer(spec, node),
            CachedRule::ImageLocality => image_locality::answer(&spec.images, spec.containers, node),
            CachedRule::VolumeBinding => match &spec.volumes {
                Some(needs) => volume_binding::answer(&needs.bound, node),
                None => NEUTRAL,
            },
            CachedRule::VolumeZone => match &spec.volumes {
                Some(needs) => volume_zone::answer(&needs.zones, node),
                None => NEUTRAL,
            },
        }
    }
}

/// Answers of all cached rules for one node. A rule that does not apply to the class answers [`NEUTRAL`].
pub type Answers = [RuleAnswer; CachedRule::COUNT];

/// The node is valid, and neither better nor worse than others.
pub const NEUTRAL: RuleAnswer = 0;

/// Returns the sort key of a node for `class`: its reasons if it is not valid, else its preferences.
///
/// The first rule that fails gives the reason, in kube-scheduler's order.
pub fn rank(class: &Class, row: &Row, answers: &Answers, tie: u32) -> Key {
    if row.node.is_none() {
        return Key::VACANT;
    }
    // Pods that another scheduler has nominated for the node count as if they were bound to it.
    if let Some(row) = row.with_reservations(class.priority) {
        return rank(class, &row, answers, tie);
    }
    let affinity = answers[CachedRule::NodeAffinity.index()];
    // Upstream's PreFilter ends here, before any node is evaluated.
    if class.spec.volumes.as_ref().is_some_and(|needs| needs.refusal.is_some()) {
        return Key::invalid(Reasons::VOLUMES_REFUSED);
    }
    // Upstream limits the nodes to the named ones before any filter runs.
    if affinity == node_affinity::NOT_NAMED {
        return Key::invalid(Reasons::NOT_NAMED);
    }
    if row.unschedulable && !class.tolerates_unschedulable {
        return Key::invalid(Reasons::UNSCHEDULABLE);
    }
    let taints = answers[CachedRule::TaintToleration.index()];
    if taints == taint_toleration::UNTOLERATED {
        return Key::invalid(Reasons::TAINTS);
    }
    match affinity {
        node_affinity::NOT_ENFORCED => return Key::invalid(Reasons::NOT_ENFORCED),
        node_affinity::NO_MATCH => return Key::invalid(Reasons::AFFINITY),
        _ => {}
    }
    let usage = &class.spec.usage;
    if node_ports::conflict(&usage.ports, row) {
        return Key::invalid(Reasons::PORTS);
    }
    if let Some(reasons) = resources_fit::insufficient(usage, row) {
        return Key::invalid(reasons);
    }
    let placement = &class.placement;
    if let Some(limit) = placement.limit.as_ref().filter(|limit| limit.is_of_node(row))
        && let Some(reasons) = resources_fit::beyond(limit, usage, &CellLoad::of(row))
    {
        return Key::invalid(reasons);
    }
    if let Some(needs) = &class.spec.volumes
        && let Some(reasons) = volumes_refuse(needs, row, answers)
    {
        return Key::invalid(reasons);
    }
    // Upstream evaluates this filter last; the rules about pods on other nodes come before it.
    // Most pods need none: then the node object, which is elsewhere in memory, is not read.
    let needs_features = !class.spec.features.is_empty();
    if needs_features
        && row.node.as_ref().is_some_and(|node| node_declared_features::lacks(&class.spec, node))
    {
        return Key::invalid(Reasons::FEATURES);
    }
    let devices = match class.spec.devices.as_ref().map(|needs| dynamic_resources::answer(needs, row)) {
        None => None,
        Some(Ok(step)) => step,
        Some(Err(reasons)) => return Key::invalid(reasons),
    };
    let shares = resources_fit::RequestedShares::after(usage, row);
    let preferences = key::Preferences {
        untolerated: taints,
        affinity,
        share: devices.unwrap_or_else(|| match &placement.resources {
            None => resources_fit::preference(placement.packing, &shares),
            Some(weights) => resources_fit::weighted_preference(placement.packing, weights, usage, row),
        }),
        balance: resources_balanced_allocation::preference(&shares),
        image: answers[CachedRule::ImageLocality.index()],
        tie,
    };
    Key::valid(placement.layout(), preferences, || node_affinity::worst(&class.spec))
}

/// Evaluates the four volume rules; the first that fails gives the reason.
fn volumes_refuse(needs: &VolumeNeeds, row: &Row, answers: &Answers) -> Option<Reasons> {
    let zone = answers[CachedRule::VolumeZone.index()];
    volume_restrictions::refuses(needs, row)
        .or_else(|| node_volume_limits::refuses(needs, row))
        .or_else(|| volume_binding::refuses(needs, row, answers[CachedRule::VolumeBinding.index()]))
        .or_else(|| (zone == volume_zone::ELSEWHERE).then_some(Reasons::VOLUME_ZONE))
}

/// Returns whether the pod's selector, required node affinity, profile and tolerations allow the node, ignoring free
/// capacity.
pub fn may_run_on(spec: &PodSpec, node: &Node) -> bool {
    node_affinity::required_match(&spec.node_selector, spec.node_affinity.required.as_deref(), node)
        && node_affinity::enforced_match(&spec.node_affinity, node)
        && taint_toleration::answer(&spec.tolerations, node) != taint_toleration::UNTOLERATED
}

/// Returns what a node lacks for a pod with this usage, in kube-scheduler's words; empty if it fits. Checks what the
/// ledger accounts for, which is also what kubelets check on admission.
pub fn lacking(usage: &Usage, row: &Row) -> Vec<String> {
    let ports = if node_ports::conflict(&usage.ports, row) { Reasons::PORTS } else { Reasons::NONE };
    let missing = resources_fit::insufficient(usage, row).unwrap_or(Reasons::NONE);
    (ports | missing).texts_of_usage(usage)
}

/// Ranks like [`rank`] for a caller without rule objects: evaluates every rule on the row itself.
pub fn rank_uncached(class: &Class, row: &Row) -> Key {
    let mut answers = [NEUTRAL; CachedRule::COUNT];
    if let Some(node) = &row.node {
        for rule in CachedRule::ALL {
            if class.traits[rule.index()].is_some() {
                answers[rule.index()] = rule.answer(class, node);
            }
        }
    }
    rank(class, row, &answers, 0)
}

/// Returns whether `class` may go to the node of this row, given that it was valid there at revision `seen`: labels and
/// taints are only re-evaluated if the node itself has changed since.
pub fn still_admits(class: &Class, row: &Row, seen: Revision) -> bool {
    let key = if row.node_revision > seen {
        rank_uncached(class, row)
    } else {
        rank(class, row, &[NEUTRAL; CachedRule::COUNT], 0)
    };
    key.is_valid()
}
