//! Victims on one node (upstream: `SelectVictimsOnNode`): first all pods that may be preempted are removed, then as
//! many as possible are put back, the most important first; pods protected by a disruption budget before all others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Fruitless, Ground, Potential, Site, VictimGroup, Victims, importance};
use crate::inventory::Occupant;
use crate::objects::Spending;

/// Pods that stay or are evicted together: a single pod, or all pods of a group on this node that it cannot do without.
struct Unit<'a> {
    here: Vec<&'a Arc<Occupant>>,
    group: Option<&'a VictimGroup>,
    /// A single pod of the group, which can do without it.
    spare: bool,
    lent: bool,
}

impl<'a> Unit<'a> {
    fn all(&self) -> impl Iterator<Item = &'a Arc<Occupant>> + '_ {
        let elsewhere = self.group.filter(|_| !self.spare).into_iter().flat_map(VictimGroup::pods);
        let elsewhere = elsewhere.filter(|pod| self.here.iter().all(|known| known.pod.uid != pod.pod.uid));
        self.here.iter().copied().chain(elsewhere)
    }
}

/// Returns the victims for which a pod can go to `site`, which `ground` simulates. `spending`: remaining disruption
/// budgets.
///
/// # Errors
/// Why preemption does not help there.
pub fn dry_run(ground: &mut impl Ground, site: &Site, mut spending: Spending) -> Result<Victims, Fruitless> {
    let units = units(&site.pods);
    if units.is_empty() {
        return Err(Fruitless::NoVictims);
    }
    ground.remove(&mut units.iter().flat_map(|unit| &unit.here).map(|pod| &***pod));
    if !ground.admits() {
        return Err(Fruitless::StillOut(ground.reasons()));
    }
    // A spare pod is charged once, before its group of which it is a part.
    let mut charged = BTreeMap::new();
    let mut violates = |unit: &Unit| {
        let pods = unit.all().map(|pod| {
            let (of, identity) = (&pod.pod, &pod.holding.peer.identity);
            let violates = || spending.violates(&of.namespace, &of.name, identity);
            *charged.entry(of.uid.clone()).or_insert_with(violates)
        });
        // Each of them is charged to its budgets, so no short-circuit.
        pods.fold(false, |any, violates| any | violates)
    };
    for unit in units.iter().rev().filter(|unit| unit.spare) {
        violates(unit);
    }
    let (violating, others): (Vec<_>, Vec<_>) = units.into_iter().partition(|unit| violates(unit));
    let mut victims = Victims::none(site.node);
    let mut gone_groups = BTreeSet::new();
    let wanted_kept = violating.len();
    for (at, unit) in violating.into_iter().chain(others).enumerate() {
        let group = unit.group.map(|group| &*group.name);
        if group.is_some_and(|name| gone_groups.contains(name))
            || ground.put_back(&mut unit.here.iter().map(|pod| &***pod))
        {
            continue;
        }
        victims.violations += u32::from(at < wanted_kept);
        if !unit.spare {
            victims.groups += u32::from(group.is_some());
            gone_groups.extend(group);
        }
        if unit.lent {
            victims.lent.extend(unit.all().filter_map(|pod| pod.holding.quota.clone()));
        } else if site.reclaims {
            victims.unlent += unit.all().count();
        }
        victims.pods.extend(unit.all().cloned());
    }
    victims.pods.sort_by_cached_key(|pod| importance(pod));
    match victims.pods.is_empty() {
        // It fits without victims: the caller has seen an older state.
        true => Err(Fruitless::NoVictims),
        false => Ok(victims),
    }
}

/// Returns the units in the order in which they are put back: pods that borrow last; then the most important first, but
/// spare pods after the rest of their group.
fn units(pods: &[Potential]) -> Vec<Unit<'_>> {
    let mut alone = Vec::new();
    let mut groups: BTreeMap<&str, Unit> = BTreeMap::new();
    for Potential { pod, group, spare, lent } in pods {
        let unit = |here| Unit { here, group: group.as_deref(), spare: *spare, lent: *lent };
        match group {
            Some(group) if !spare => {
                if !group.unsettled {
                    groups.entry(&group.name).or_insert_with(|| unit(Vec::new())).here.push(pod);
                }
            }
            _ => alone.push(unit(vec![pod])),
        }
    }
    let mut units: Vec<_> = alone.into_iter().chain(groups.into_values()).collect();
    units.sort_by_cached_key(|unit| (unit.lent, unit.here.iter().map(|pod| importance(pod)).min()));
    // A spare pod stays only with its group, so it is put back after that.
    let name_of = |unit: &Unit| unit.group.map(|group| group.name.clone());
    let groups = units.iter().enumerate().filter(|(_, unit)| !unit.spare);
    let places: BTreeMap<_, usize> = groups.filter_map(|(at, unit)| Some((name_of(unit)?, at))).collect();
    let mut placed: Vec<_> = units.into_iter().enumerate().collect();
    placed.sort_by_cached_key(|(at, unit)| {
        let of_group = name_of(unit).and_then(|name| places.get(&name));
        (of_group.map_or(*at, |of_group| *at.max(of_group)), unit.spare)
    });
    placed.into_iter().map(|(_, unit)| unit).collect()
}
