//! Profiles: settings for the pods of one of the schedulers that berth is.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_model::validate::{refuse, whole_number};
use berth_model::{InvalidField, Packing, Preference};
use berth_scheduler::profile::{Profile, Profiles};
use berth_scheduler::rules::{PlacementSettings, PreferenceOrder, ResourceWeights, WeighedResource};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::affinity::AddedAffinity;
use super::{Config, PodTopologySpread};

/// Settings for the pods of one scheduler name. A setting that is left out is that of the whole file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProfileConfig {
    /// One of `schedulerNames`.
    pub scheduler_name: String,
    /// As `packing` of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packing: Option<Packing>,
    /// Resources whose requested shares `packing` compares, by their weights. Default: `cpu` and `memory`, with equal
    /// weights. An extended resource counts for the pods that request it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packed_resources: Option<Vec<PackedResource>>,
    /// Preferences that rank nodes, most important first; one that is not listed does not count. Default:
    /// TaintToleration, NodeAffinity, InterPodAffinity, PodTopologySpread, NodeResourcesFit,
    /// NodeResourcesBalancedAllocation, ImageLocality.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("uniqueItems" = true))]
    pub preferences: Option<Vec<Preference>>,
    /// As `podTopologySpread` of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_topology_spread: Option<PodTopologySpread>,
    /// Node affinity that the pods have in addition to their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub added_affinity: Option<AddedAffinity>,
}

/// A resource with its weight.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PackedResource {
    /// `cpu`, `memory`, `ephemeral-storage` or an extended resource such as `nvidia.com/gpu`.
    #[schemars(length(min = 1, max = 317))]
    pub name: String,
    /// Its share of the mean.
    #[serde(default = "one", deserialize_with = "whole_number")]
    #[schemars(range(min = 1, max = 100))]
    pub weight: u32,
}

fn one() -> u32 {
    1
}

impl Config {
    /// Returns what the scheduler does for pods of each scheduler name.
    pub fn profiles(&self) -> Profiles {
        let placement = PlacementSettings {
            packing: self.packing,
            candidate_width: self.candidate_width as usize,
            ..PlacementSettings::default()
        };
        let default_spread = self.pod_topology_spread.defaults();
        let default = Profile { placement: placement.into(), default_spread, ..Profile::default() };
        // Validated when the file was read.
        let valid = |config: &ProfileConfig| {
            let profile = config.over(&default).ok()?;
            Some((Arc::from(config.scheduler_name.as_str()), profile))
        };
        let named = self.profiles.iter().filter_map(valid).collect::<BTreeMap<_, _>>();
        Profiles { default, named }
    }

    /// Returns whether pods of any scheduler get spread constraints by default.
    pub fn spreads_by_default(&self) -> bool {
        let profiles = self.profiles.iter().filter_map(|profile| profile.pod_topology_spread.as_ref());
        profiles.chain([&self.pod_topology_spread]).any(PodTopologySpread::adds_constraints)
    }

    pub(super) fn validate_profiles(&self) -> Result<(), InvalidField> {
        for (at, profile) in self.profiles.iter().enumerate() {
            let names = &self.scheduler_names;
            let earlier = self.profiles[..at].iter().map(|profile| &profile.scheduler_name);
            profile.validate(names, earlier).map_err(|invalid| invalid.of(&format!("profiles[{at}]")))?;
        }
        Ok(())
    }
}

impl ProfileConfig {
    fn validate<'a>(
        &self,
        names: &[String],
        mut earlier: impl Iterator<Item = &'a String>,
    ) -> Result<(), InvalidField> {
        let name = &self.scheduler_name;
        if !names.contains(name) {
            return refuse("schedulerName", format!("`{name}` is none of schedulerNames"));
        }
        if earlier.any(|earlier| earlier == name) {
            return refuse("schedulerName", format!("`{name}` has a profile above"));
        }
        if let Some(spread) = &self.pod_topology_spread {
            spread.validate()?;
        }
        self.over(&Profile::default()).map(drop)
    }

    /// Returns the settings, with those that are left out from `default`.
    fn over(&self, default: &Profile) -> Result<Profile, InvalidField> {
        let placement = PlacementSettings {
            packing: self.packing.unwrap_or(default.placement.packing),
            resources: self.packed_resources.as_deref().map(weights).transpose()?,
            order: match &self.preferences {
                None => default.placement.order.clone(),
                Some(order) => {
                    PreferenceOrder::new(order.iter().map(|preference| (*preference, None))).map_err(
                        |error| InvalidField { field: "preferences".into(), problem: error.to_string() },
                    )?
                }
            },
            ..PlacementSettings::clone(&default.placement)
        };
        let spread = self.pod_topology_spread.as_ref();
        let added = self.added_affinity.as_ref();
        Ok(Profile {
            placement: placement.into(),
            default_spread: spread
                .map_or_else(|| default.default_spread.clone(), PodTopologySpread::defaults),
            added_affinity: added
                .map(|added| added.value().map_err(|invalid| invalid.of("addedAffinity")))
                .transpose()?
                .unwrap_or_default(),
        })
    }
}

fn weights(resources: &[PackedResource]) -> Result<ResourceWeights, InvalidField> {
    const FIELD: &str = "packedResources";
    let refuse = |problem: String| Err(InvalidField { field: FIELD.into(), problem });
    if resources.is_empty() {
        return refuse("it is empty; leave it out for cpu and memory".to_owned());
    }
    let mut weights = Vec::with_capacity(resources.len());
    for (at, PackedResource { name, weight }) in resources.iter().enumerate() {
        let resource = match &**name {
            "cpu" => WeighedResource::Cpu,
            "memory" => WeighedResource::Memory,
            "ephemeral-storage" => WeighedResource::EphemeralStorage,
            extended if extended.contains('/') && berth_model::names::is_label_key(extended) => {
                WeighedResource::Extended(extended.into())
            }
            other => {
                return refuse(format!(
                    "`{other}` is none of cpu, memory, ephemeral-storage and an extended resource with a domain"
                ));
            }
        };
        if !(1..=100).contains(weight) {
            return refuse(format!("{name}: weight {weight} is not from 1 to 100"));
        }
        if resources[..at].iter().any(|earlier| earlier.name == *name) {
            return refuse(format!("`{name}` is listed twice"));
        }
        weights.push((resource, *weight));
    }
    Ok(ResourceWeights(weights.into()))
}
