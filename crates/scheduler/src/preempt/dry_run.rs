//! Victims on one node (upstream: `SelectVictimsOnNode`): first all pods that may be preempted are removed, then as
//! many as possible are put back, the most important first; pods protected by a disruption budget before all others.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Fruitless, Ground, Potential, Site, VictimGroup, Victims, importance};
use crate::inventory::Occupant;
use crate::objects::Spending;

/// Pods that stay or are evicted together: a single pod, or all pods of a group on this node.
struct Unit<'a> {
    here: Vec<&'a Arc<Occupant>>,
    group: Option<&'a VictimGroup>,
    lent: bool,
}

impl<'a> Unit<'a> {
    fn all(&self) -> impl Iterator<Item = &'a Arc<Occupant>> + '_ {
        let elsewhere = self.group.into_iter().flat_map(|group| &group.members);
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
    let mut violates = |unit: &Unit| {
        let pods = unit.all().map(|pod| {
            let of = &pod.pod;
            spending.violates(&of.namespace, &of.name, &pod.holding.peer.identity)
        });
        // Each of them is charged to its budgets, so no short-circuit.
        pods.fold(false, |any, violates| any | violates)
    };
    let (violating, others): (Vec<_>, Vec<_>) = units.into_iter().partition(|unit| violates(unit));
    let mut victims = Victims::none(site.node);
    let wanted_kept = violating.len();
    for (at, unit) in violating.into_iter().chain(others).enumerate() {
        if ground.put_back(&mut unit.here.iter().map(|pod| &***pod)) {
            continue;
        }
        victims.violations += u32::from(at < wanted_kept);
        victims.groups += u32::from(unit.group.is_some());
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

/// Returns the units in the order in which they are put back: pods that borrow last; then the most important first.
fn units(pods: &[Potential]) -> Vec<Unit<'_>> {
    let mut alone = Vec::new();
    let mut groups: BTreeMap<&str, Unit> = BTreeMap::new();
    for Potential { pod, group, lent } in pods {
        match group {
            None => alone.push(Unit { here: vec![pod], group: None, lent: *lent }),
            Some(group) if group.unsettled => {}
            Some(group) => {
                let unit = groups.entry(&group.name);
                let bare = || Unit { here: Vec::new(), group: Some(group), lent: *lent };
                unit.or_insert_with(bare).here.push(pod);
            }
        }
    }
    let mut units: Vec<_> = alone.into_iter().chain(groups.into_values()).collect();
    units.sort_by_cached_key(|unit| (unit.lent, unit.here.iter().map(|pod| importance(pod)).min()));
    units
}
