//! Conversion of nodes.

use super::{Interner, placing, requests::COUNTED_MAX};
use crate::lean::LeanNode;
use berth_model::names::is_scalar_resource;
use berth_model::{Amounts, Extended, Image, Node, Taint};

impl LeanNode {
    /// Converts to the node that the rules read. A heartbeat gives an equal value.
    pub fn into_node(self, interner: &mut Interner) -> Node {
        let mut problems = Vec::new();
        let mut allocatable = Amounts::default();
        let mut extended = Extended::default();
        for (name, amount) in &self.status.allocatable.0 {
            let mut problem = |text: &str| problems.push(format!("status.allocatable[{name}]: {text}"));
            let units = match amount {
                Err(error) => {
                    problem(&error.to_string());
                    continue;
                }
                Ok(amount) if amount.is_negative() => {
                    problem("must not be negative");
                    continue;
                }
                Ok(amount) if name == "cpu" => amount.milli_value(),
                Ok(amount) => amount.value(),
            };
            // Upstream's arithmetic would overflow near there; see `COUNTED_MAX`.
            if units >= COUNTED_MAX {
                problem("is more than can be counted");
                continue;
            }
            match &**name {
                "cpu" => allocatable.cpu_milli = units,
                "memory" => allocatable.memory = units,
                "ephemeral-storage" => allocatable.ephemeral_storage = units,
                "pods" => allocatable.pods = units,
                name if is_scalar_resource(name) => extended.add(&interner.text(name), units),
                _ => {}
            }
        }

        let mut taints = Vec::with_capacity(self.spec.taints.len());
        for (i, lean) in self.spec.taints.iter().enumerate() {
            match placing::effect(&lean.effect) {
                Some(effect) => taints.push(Taint {
                    key: interner.text(&lean.key),
                    value: interner.text(lean.value.as_deref().unwrap_or_default()),
                    effect,
                }),
                // As upstream, whose filters ignore unknown effects.
                None => problems.push(format!(
                    "spec.taints[{i}].effect: {:?} is none of NoSchedule, PreferNoSchedule, NoExecute",
                    lean.effect
                )),
            }
        }

        let mut declared_features: Vec<_> =
            self.status.declared_features.iter().map(|name| interner.text(name)).collect();
        declared_features.sort_unstable();
        declared_features.dedup();
        let mut images = Vec::new();
        for lean in &self.status.images {
            let size_bytes = lean.size_bytes.unwrap_or(0);
            images.extend(lean.names.iter().map(|name| Image { name: interner.text(name), size_bytes }));
        }
        images.sort_by(|a, b| a.name.cmp(&b.name));
        images.dedup_by(|later, first| later.name == first.name);

        Node {
            name: interner.text(&self.metadata.name.unwrap_or_default()),
            labels: interner.labels(&self.metadata.labels.unwrap_or_default()),
            taints: taints.into_boxed_slice(),
            unschedulable: self.spec.unschedulable.unwrap_or(false),
            allocatable,
            extended,
            images: images.into_boxed_slice(),
            declared_features: declared_features.into(),
            problems: problems.into_boxed_slice(),
        }
    }
}
