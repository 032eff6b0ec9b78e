//! Requests of the pods of one node, by priority: the resources freed by removing all pods below a priority.

use std::sync::Arc;

use berth_model::{Amounts, Extended, Holding, Usage};

/// Cumulative requests per priority, sorted by priority. `None`: no pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tiers(Option<Arc<[Tier]>>);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tier {
    pub priority: i32,
    /// Requests of pods of this and of any lower priority.
    pub held: Held,
    /// Number of these pods that use resource claims.
    pub claimants: u32,
    /// Number of pods of exactly this priority.
    own: u32,
}

/// Sum of the requests of several pods.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Held {
    pub amounts: Amounts,
    pub extended: Extended,
}

impl Held {
    /// Adds the requests of `other`.
    pub fn join(&mut self, other: &Held) {
        self.amounts.add(&other.amounts);
        other.extended.iter().for_each(|(name, amount)| self.extended.add(name, amount));
    }

    pub fn add(&mut self, usage: &Usage) {
        self.amounts.add(&usage.requests);
        usage.extended.iter().for_each(|(name, amount)| self.extended.add(name, amount));
    }

    pub(super) fn remove(&mut self, usage: &Usage) {
        self.amounts.sub(&usage.requests);
        usage.extended.iter().for_each(|(name, amount)| self.extended.add(name, amount.saturating_neg()));
    }
}

impl Tiers {
    /// Returns the tiers of pods that a pod of this priority may preempt, lowest first.
    pub fn below(&self, priority: i32) -> &[Tier] {
        let tiers = self.0.as_deref().unwrap_or_default();
        &tiers[..tiers.partition_point(|tier| tier.priority < priority)]
    }

    pub(super) fn add(&mut self, holding: &Holding) {
        let Holding { priority, usage, devices, .. } = holding;
        let priority = *priority;
        let tiers = self.0.as_deref().unwrap_or_default();
        let at = tiers.partition_point(|tier| tier.priority < priority);
        if tiers.get(at).is_none_or(|tier| tier.priority != priority) {
            let before = at.checked_sub(1).map(|before| tiers[before].clone()).unwrap_or_default();
            let (low, high) = tiers.split_at(at);
            let new = Tier { priority, own: 0, ..before };
            self.0 = Some(low.iter().cloned().chain([new]).chain(high.iter().cloned()).collect());
        }
        let Some(tiers) = &mut self.0 else { return };
        let tiers = Arc::make_mut(tiers);
        tiers[at].own += 1;
        for tier in &mut tiers[at..] {
            tier.held.add(usage);
            tier.claimants += u32::from(devices.is_some());
        }
    }

    /// Reverts [`Tiers::add`].
    pub(super) fn remove(&mut self, holding: &Holding) {
        let Holding { priority, usage, devices, .. } = holding;
        let Some(tiers) = &mut self.0 else { return };
        let Ok(at) = tiers.binary_search_by_key(priority, |tier| tier.priority) else {
            return;
        };
        let known = Arc::make_mut(tiers);
        known[at].own = known[at].own.saturating_sub(1);
        for tier in &mut known[at..] {
            tier.held.remove(usage);
            tier.claimants = tier.claimants.saturating_sub(u32::from(devices.is_some()));
        }
        if known[at].own == 0 {
            let left: Arc<[Tier]> = known.iter().filter(|tier| tier.own > 0).cloned().collect();
            self.0 = (!left.is_empty()).then_some(left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Every third pod uses a resource claim.
    fn holding(priority: i32, cpu_milli: i64) -> Holding {
        let usage = Usage {
            requests: Amounts { cpu_milli, pods: 1, ..Amounts::default() },
            extended: [(Arc::from("x/gpu"), cpu_milli % 2)].into_iter().collect(),
            ..Usage::default()
        };
        let devices = (cpu_milli % 3 == 0).then(Default::default);
        Holding { usage: usage.into(), devices, priority, ..Holding::default() }
    }

    proptest! {
        #[test]
        fn tiers_hold_what_a_recount_of_the_pods_at_or_below_each_priority_gives(
            events in prop::collection::vec((any::<bool>(), -2i32..3, 0i64..5), 0..60),
        ) {
            let (mut tiers, mut pods) = (Tiers::default(), Vec::new());
            for (comes, priority, cpu) in events {
                if comes || pods.is_empty() {
                    pods.push((priority, cpu));
                    tiers.add(&holding(priority, cpu));
                } else {
                    let (priority, cpu) = pods.swap_remove(cpu as usize % pods.len());
                    tiers.remove(&holding(priority, cpu));
                }
                let mut fresh = Tiers::default();
                pods.iter().for_each(|(priority, cpu)| fresh.add(&holding(*priority, *cpu)));
                prop_assert_eq!(&tiers, &fresh);
                for limit in -3..4 {
                    let sum: i64 = pods.iter().filter(|(priority, _)| *priority < limit).map(|(_, cpu)| cpu).sum();
                    let below = tiers.below(limit).last();
                    prop_assert_eq!(below.map_or(0, |tier| tier.held.amounts.cpu_milli), sum);
                    let count = pods.iter().filter(|(priority, _)| *priority < limit).count();
                    prop_assert_eq!(below.map_or(0, |tier| tier.held.amounts.pods), count as i64);
                    let claimants = pods.iter().filter(|(priority, cpu)| *priority < limit && cpu % 3 == 0).count();
                    prop_assert_eq!(below.map_or(0, |tier| tier.claimants as usize), claimants);
                }
            }
        }
    }
}
