//! Placement settings: which preferences count, in which order and with how many steps, and further settings of
//! policies.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use berth_model::{Packing, Preference};

use super::key::Layout;
use super::resources_fit::{CellLimit, ResourceWeights};
use super::{image_locality, node_affinity, resources_balanced_allocation, resources_fit};

/// How many answers it can tell apart; `None`: it counts pods, and is never rounded.
pub const fn most_steps(preference: Preference) -> Option<u16> {
    match preference {
        Preference::TaintToleration => Some(16),
        Preference::NodeAffinity => Some(node_affinity::WORST + 1),
        Preference::InterPodAffinity | Preference::PodTopologySpread => None,
        Preference::NodeResourcesFit => Some(resources_fit::STEPS),
        Preference::NodeResourcesBalancedAllocation => Some(resources_balanced_allocation::STEPS),
        Preference::ImageLocality => Some(image_locality::WORST + 1),
    }
}

/// Settings that are the same for all pods under one policy; with the class they determine the ranking of nodes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PlacementSettings {
    pub order: PreferenceOrder,
    pub packing: Packing,
    /// Resources whose shares the packing compares; `None`: CPU and memory, equally.
    pub resources: Option<ResourceWeights>,
    /// Number of best nodes to choose from (Protean's n0). From configuration, never adapted to conflicts.
    pub candidate_width: usize,
    pub limit: Option<CellLimit>,
    /// Memory limit for the ranked lists of such classes in one agent, all together.
    pub cache_bytes: Option<usize>,
    pub agents: Option<AgentLimit>,
}

/// Restricts such pods to some of the agents, so that the caches of the remaining agents stay available for all other
/// pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AgentLimit {
    pub most: u8,
    /// Selects the first agent: different policies start at different agents.
    pub from: u64,
}

impl AgentLimit {
    /// Returns a bit mask of the allowed agents, out of `agents`.
    pub fn among(self, agents: usize) -> u64 {
        let agents = agents.max(1);
        let first = (self.from % agents as u64) as usize;
        let most = usize::from(self.most).clamp(1, agents);
        (first..first + most).fold(0, |bits, at| bits | 1 << (at % agents))
    }
}

/// Preferences that count, most important first, with their steps.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "Vec<(Preference, u16)>", try_from = "Vec<(Preference, u16)>")]
pub struct PreferenceOrder {
    /// Each with its steps; 0 steps: never rounded.
    preferences: Arc<[(Preference, u16)]>,
    layout: Layout,
}

/// Validation error of a list of preferences.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PreferencesError {
    #[error("{0} is listed twice")]
    Twice(&'static str),
    #[error("{name} takes 1 to {most} steps, not {steps}")]
    Steps { name: &'static str, most: u16, steps: u32 },
    #[error("{0} counts pods and takes no steps: remove steps, or remove the preference to turn it off")]
    NoSteps(&'static str),
}

impl Default for PlacementSettings {
    fn default() -> Self {
        PlacementSettings {
            order: PreferenceOrder::default(),
            packing: Packing::default(),
            resources: None,
            candidate_width: 1,
            limit: None,
            cache_bytes: None,
            agents: None,
        }
    }
}

impl PlacementSettings {
    pub fn layout(&self) -> &Layout {
        &self.order.layout
    }
}

impl Default for PreferenceOrder {
    fn default() -> Self {
        let all = Preference::ALL.map(|preference| (preference, most_steps(preference).unwrap_or(0)));
        PreferenceOrder { preferences: all.into(), layout: Layout::new(&all) }
    }
}

impl From<PreferenceOrder> for Vec<(Preference, u16)> {
    fn from(order: PreferenceOrder) -> Self {
        order.preferences.to_vec()
    }
}

impl TryFrom<Vec<(Preference, u16)>> for PreferenceOrder {
    type Error = PreferencesError;

    fn try_from(order: Vec<(Preference, u16)>) -> Result<Self, PreferencesError> {
        let steps = |steps| (steps > 0).then_some(u32::from(steps));
        PreferenceOrder::new(order.into_iter().map(|(preference, of)| (preference, steps(of))))
    }
}

impl PreferenceOrder {
    /// Builds the order from preferences, most important first, each with its steps if they are not the maximum.
    /// Preferences that are not listed, and those with one step, do not count.
    pub fn new(
        order: impl IntoIterator<Item = (Preference, Option<u32>)>,
    ) -> Result<PreferenceOrder, PreferencesError> {
        let mut seen = Vec::new();
        let mut preferences = Vec::new();
        for (preference, steps) in order {
            let name = preference.name();
            if seen.contains(&preference) {
                return Err(PreferencesError::Twice(name));
            }
            seen.push(preference);
            match (most_steps(preference), steps) {
                (None, None) => preferences.push((preference, 0)),
                (None, Some(_)) => return Err(PreferencesError::NoSteps(name)),
                (Some(most), None) => preferences.push((preference, most)),
                (Some(_), Some(1)) => {}
                (Some(most), Some(steps)) => match u16::try_from(steps) {
                    Ok(steps) if (2..=most).contains(&steps) => preferences.push((preference, steps)),
                    _ => return Err(PreferencesError::Steps { name, most, steps }),
                },
            }
        }
        let layout = Layout::new(&preferences);
        Ok(PreferenceOrder { preferences: preferences.into(), layout })
    }

    /// Returns the preferences that count, most important first, each with its steps; 0 steps: never rounded.
    pub fn preferences(&self) -> &[(Preference, u16)] {
        &self.preferences
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_refused_for_what_is_wrong_with_it() {
        let with = |order: &[(Preference, Option<u32>)]| {
            PreferenceOrder::new(order.iter().copied()).map(|order| order.preferences)
        };
        let text = |order: &[_]| with(order).unwrap_err().to_string();
        use Preference::*;
        assert_eq!(text(&[(ImageLocality, None), (ImageLocality, None)]), "ImageLocality is listed twice");
        assert_eq!(text(&[(ImageLocality, Some(9))]), "ImageLocality takes 1 to 8 steps, not 9");
        assert_eq!(text(&[(NodeResourcesFit, Some(0))]), "NodeResourcesFit takes 1 to 64 steps, not 0");
        assert!(text(&[(PodTopologySpread, Some(4))]).starts_with("PodTopologySpread counts pods"));
        let some =
            with(&[(PodTopologySpread, None), (ImageLocality, Some(1)), (NodeAffinity, None)]).unwrap();
        assert_eq!(*some, [(PodTopologySpread, 0), (NodeAffinity, 4096)]);
    }

    #[test]
    fn all_preferences_in_their_order_are_the_default() {
        let all = Preference::ALL.map(|preference| (preference, None));
        assert_eq!(PreferenceOrder::new(all).unwrap(), PreferenceOrder::default());
    }

    #[test]
    fn agents_are_limited_to_so_many_in_a_row_and_to_one_at_least() {
        let among = |most, from, agents| AgentLimit { most, from }.among(agents);
        assert_eq!(among(2, 3, 4), 0b1001, "the last and the first");
        assert_eq!(among(2, 6, 4), 0b1100);
        assert_eq!((among(0, 1, 4), among(9, 1, 2), among(1, 7, 0)), (0b10, 0b11, 1));
    }
}
