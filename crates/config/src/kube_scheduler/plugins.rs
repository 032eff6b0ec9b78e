//! Which plugins a profile has, and what that means here: filters are always on, score plugins become preferences in the
//! order of their weights.

use std::cmp::Reverse;

use berth_model::{InvalidField, Preference};

use super::file::{Plugin, PluginSet, Plugins};

/// kube-scheduler's plugins with the weights of the scores that they have by default, in the order of its default
/// `multiPoint`.
const DEFAULTS: [(&str, u32); 23] = [
    ("SchedulingGates", 0),
    ("PrioritySort", 0),
    ("NodeUnschedulable", 0),
    ("NodeName", 0),
    ("TaintToleration", 3),
    ("NodeAffinity", 2),
    ("NodePorts", 0),
    ("NodeResourcesFit", 1),
    ("VolumeRestrictions", 0),
    ("NodeVolumeLimits", 0),
    ("VolumeBinding", 0),
    ("VolumeZone", 0),
    ("PodTopologySpread", 2),
    ("InterPodAffinity", 2),
    ("DynamicResources", 2),
    ("DefaultPreemption", 0),
    ("NodeResourcesBalancedAllocation", 1),
    ("ImageLocality", 1),
    ("DefaultBinder", 0),
    ("NodeDeclaredFeatures", 0),
    ("GangScheduling", 0),
    ("TopologyPlacementGenerator", 0),
    ("PodGroupPodsCount", 1),
];

/// Plugins that depend on feature gates: files leave them out. They concern only pods that ask for what they do.
const OPTIONAL: [&str; 5] = [
    "DynamicResources",
    "NodeDeclaredFeatures",
    "GangScheduling",
    "TopologyPlacementGenerator",
    "PodGroupPodsCount",
];

const VOLUMES: [&str; 4] = ["VolumeRestrictions", "NodeVolumeLimits", "VolumeBinding", "VolumeZone"];
const PODS: [&str; 2] = ["PodTopologySpread", "InterPodAffinity"];
const NODE: [&str; 4] = ["NodeAffinity", "NodePorts", "NodeResourcesFit", "DynamicResources"];

/// Extension points other than `score`, each with the plugins that berth always has there.
fn points(plugins: &Plugins) -> [(&'static str, &Option<PluginSet>, Vec<&'static str>); 11] {
    let filters = ["NodeUnschedulable", "NodeName", "TaintToleration", "NodeDeclaredFeatures"];
    let bindings = || vec!["VolumeBinding", "DynamicResources"];
    [
        ("preEnqueue", &plugins.pre_enqueue, vec!["SchedulingGates", "DefaultPreemption", "GangScheduling"]),
        ("queueSort", &plugins.queue_sort, vec!["PrioritySort"]),
        ("preFilter", &plugins.pre_filter, [&NODE[..], &VOLUMES, &PODS].concat()),
        ("filter", &plugins.filter, [&filters[..], &NODE, &VOLUMES, &PODS].concat()),
        ("postFilter", &plugins.post_filter, vec!["DynamicResources", "DefaultPreemption"]),
        ("reserve", &plugins.reserve, bindings()),
        ("permit", &plugins.permit, vec!["GangScheduling"]),
        ("preBind", &plugins.pre_bind, bindings()),
        ("bind", &plugins.bind, vec!["DefaultBinder"]),
        ("postBind", &plugins.post_bind, vec![]),
        ("placementGenerate", &plugins.placement_generate, vec!["TopologyPlacementGenerator"]),
    ]
}

/// Returns the preferences of a profile, most important first, and adds what must be said about its plugins to `notes`.
/// `None`: all, in the default order.
///
/// # Errors
/// A plugin that berth does not have, or one that is turned off and that berth cannot turn off.
pub(super) fn preferences(
    plugins: &Plugins,
    notes: &mut Vec<String>,
) -> Result<Option<Vec<Preference>>, InvalidField> {
    let everywhere = merged(plugins.multi_point.as_ref());
    let none = PluginSet::default();
    let all = points(plugins);
    let scores = plugins.score.as_ref().unwrap_or(&none);
    let unchecked = [
        ("score", scores),
        ("preScore", plugins.pre_score.as_ref().unwrap_or(&none)),
        ("placementScore", plugins.placement_score.as_ref().unwrap_or(&none)),
        ("multiPoint", plugins.multi_point.as_ref().unwrap_or(&none)),
    ];
    let checked = all.iter().map(|(point, set, _)| (*point, set.as_ref().unwrap_or(&none)));
    for (point, set) in checked.chain(unchecked) {
        known(set, point)?;
    }
    for (point, set, always) in &all {
        let on = effective(&everywhere, set.as_ref().unwrap_or(&none));
        for name in always.iter().filter(|name| !on.iter().any(|plugin| plugin.name == **name)) {
            if OPTIONAL.contains(name) {
                let note =
                    format!("{point}: {name} is off, but berth serves pods that ask for it all the same");
                notes.push(note);
                continue;
            }
            let field = (*point).into();
            let hint = match *name {
                "DefaultPreemption" => {
                    "; preemptionPolicy: Never in a PriorityClass keeps pods from preempting"
                }
                _ => "",
            };
            let problem = format!("{name} is off, but berth cannot do without it: enable it{hint}");
            return Err(InvalidField { field, problem });
        }
    }
    let default = effective(&merged(None), &none);
    let own = effective(&everywhere, scores);
    let (default, own) = (order(&default), order(&own));
    if own == default {
        return Ok(None);
    }
    let names: Vec<_> = own.iter().map(|preference| preference.name()).collect();
    notes.push(format!(
        "score: berth does not add scores up: it compares nodes by {}, one after the other, in the order of their weights",
        names.join(", ")
    ));
    Ok(Some(own))
}

/// Returns the preferences by weight, equal ones in the default order.
fn order(plugins: &[Plugin]) -> Vec<Preference> {
    let weight = |preference: &Preference| {
        let plugin = plugins.iter().find(|plugin| plugin.name == preference.name())?;
        Some(plugin.weight.filter(|weight| *weight > 0).unwrap_or(1))
    };
    let mut order: Vec<_> = Preference::ALL
        .into_iter()
        .filter_map(|preference| Some((weight(&preference)?, preference)))
        .collect();
    order.sort_by_key(|(weight, _)| Reverse(*weight));
    order.into_iter().map(|(_, preference)| preference).collect()
}

fn named<'a>(plugins: Option<&'a Vec<Plugin>>, name: &str) -> Option<&'a Plugin> {
    plugins?.iter().find(|plugin| plugin.name == name)
}

/// Returns the plugins of `multiPoint` (upstream: `mergePluginSet`).
fn merged(own: Option<&PluginSet>) -> Vec<Plugin> {
    let own = own.cloned().unwrap_or_default();
    let off = |name: &str| named(own.disabled.as_ref(), name).or(named(own.disabled.as_ref(), "*")).is_some();
    let default = |(name, weight): &(&str, u32)| Plugin { name: (*name).to_owned(), weight: Some(*weight) };
    let kept = DEFAULTS.iter().filter(|(name, _)| !off(name)).map(default);
    let mut all: Vec<Plugin> =
        kept.map(|plugin| named(own.enabled.as_ref(), &plugin.name).cloned().unwrap_or(plugin)).collect();
    for plugin in own.enabled.into_iter().flatten() {
        if !all.iter().any(|known| known.name == plugin.name) {
            all.push(plugin);
        }
    }
    all
}

/// Returns the plugins at one extension point: its own, and those of `multiPoint` that it does not turn off.
fn effective(everywhere: &[Plugin], set: &PluginSet) -> Vec<Plugin> {
    let off = |name: &str| named(set.disabled.as_ref(), name).or(named(set.disabled.as_ref(), "*")).is_some();
    let mut on = set.enabled.clone().unwrap_or_default();
    let more = everywhere
        .iter()
        .filter(|plugin| !off(&plugin.name) && named(set.enabled.as_ref(), &plugin.name).is_none());
    on.extend(more.cloned());
    on
}

fn known(set: &PluginSet, point: &str) -> Result<(), InvalidField> {
    let enabled = set.enabled.iter().flatten();
    for Plugin { name, .. } in enabled {
        if !exists(name) {
            let field = format!("{point}.enabled").into();
            return Err(InvalidField { field, problem: unknown(name) });
        }
    }
    Ok(())
}

/// Returns what to do about a plugin that kube-scheduler itself does not have.
pub(super) fn unknown(name: &str) -> String {
    let hint = match name {
        "Coscheduling" => "berth places its PodGroups without it: remove it",
        "CapacityScheduling" => "berth has Quotas instead: remove it, and see docs/quotas.md",
        _ => "berth has the rules of kube-scheduler's own plugins, and takes no others: remove it",
    };
    format!("`{name}` is no plugin of kube-scheduler; {hint}")
}

/// Returns whether kube-scheduler has this plugin.
pub(super) fn exists(name: &str) -> bool {
    DEFAULTS.iter().any(|(known, _)| *known == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_weights_give_the_default_order() {
        let default = effective(&merged(None), &PluginSet::default());
        assert_eq!(order(&default), Preference::ALL);
    }
}
