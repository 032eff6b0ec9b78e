//! The victims on one node (upstream: `SelectVictimsOnNode`): first all that may be preempted go, then as many as possible come
//! back, the most important first; those that a disruption budget wants kept before all others.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Fruitless, Ground, Potential, Site, VictimGroup, Victims, importance};
use crate::inventory::Occupant;
use crate::objects::Spending;

/// Pods that stay or go together: one, or all of a group that are on this node.
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

/// What a pod must preempt at `site`, which `ground` stands for, to go there. `spending`: what is left of the budgets.
///
/// # Errors
/// Why it cannot go there, whatever it preempts.
pub fn dry_run(ground: &mut impl Ground, site: &Site, mut spending: Spending) -> Result<Victims, Fruitless> {
    let units = units(&site.pods);
    if units.is_empty() {
        return Err(Fruitless::NoVictims);
    }
    ground.remove(&mut units.iter().flat_map(|unit| &unit.here).map(|pod| &pod.holding));
    if !ground.admits() {
        return Err(Fruitless::StillOut(ground.reasons()));
    }
    let mut violates = |unit: &Unit| {
        let pods = unit.all().map(|pod| {
            let of = &pod.pod;
            spending.violates(&of.namespace, &of.name, &pod.holding.peer.identity)
        });
        // Each of them counts, so none is left out.
        pods.fold(false, |any, violates| any | violates)
    };
    let (violating, others): (Vec<_>, Vec<_>) = units.into_iter().partition(|unit| violates(unit));
    let mut victims = Victims::none(site.node);
    let wanted_kept = violating.len();
    for (at, unit) in violating.into_iter().chain(others).enumerate() {
        if ground.put_back(&mut unit.here.iter().map(|pod| &pod.holding)) {
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
        // It fits as it is: whoever asked looked at an older state.
        true => Err(Fruitless::NoVictims),
        false => Ok(victims),
    }
}

/// Those that hold what is lent to them last, so that they come back last; then the most important first.
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
