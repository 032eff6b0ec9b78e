//! Requests of the pods of one node, by priority: the resources freed by removing all pods below a priority.

use std::sync::Arc;

use berth_model::{Amounts, Extended, Usage};

/// Cumulative requests per priority, sorted by priority. `None`: no pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tiers(Option<Arc<[Tier]>>);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tier {
    pub priority: i32,
    /// Requests of pods of this and of any lower priority.
    pub held: Held,
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

    pub(super) fn add(&mut self, priority: i32, usage: &Usage) {
        let tiers = self.0.as_deref().unwrap_or_default();
        let at = tiers.partition_point(|tier| tier.priority < priority);
        if tiers.get(at).is_none_or(|tier| tier.priority != priority) {
            let held = at.checked_sub(1).map(|before| tiers[before].held.clone()).unwrap_or_default();
            let (low, high) = tiers.split_at(at);
            let new = Tier { priority, held, own: 0 };
            self.0 = Some(low.iter().cloned().chain([new]).chain(high.iter().cloned()).collect());
        }
        let Some(tiers) = &mut self.0 else { return };
        let tiers = Arc::make_mut(tiers);
        tiers[at].own += 1;
        tiers[at..].iter_mut().for_each(|tier| tier.held.add(usage));
    }

    /// Reverts [`Tiers::add`].
    pub(super) fn remove(&mut self, priority: i32, usage: &Usage) {
        let Some(tiers) = &mut self.0 else { return };
        let Ok(at) = tiers.binary_search_by_key(&priority, |tier| tier.priority) else {
            return;
        };
        let known = Arc::make_mut(tiers);
        known[at].own = known[at].own.saturating_sub(1);
        known[at..].iter_mut().for_each(|tier| tier.held.remove(usage));
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

    fn usage(cpu_milli: i64) -> Usage {
        Usage {
            requests: Amounts { cpu_milli, pods: 1, ..Amounts::default() },
            extended: [(Arc::from("x/gpu"), cpu_milli % 2)].into_iter().collect(),
            ..Usage::default()
        }
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
                    tiers.add(priority, &usage(cpu));
                } else {
                    let (priority, cpu) = pods.swap_remove(cpu as usize % pods.len());
                    tiers.remove(priority, &usage(cpu));
                }
                let mut fresh = Tiers::default();
                pods.iter().for_each(|(priority, cpu)| fresh.add(*priority, &usage(*cpu)));
                prop_assert_eq!(&tiers, &fresh);
                for limit in -3..4 {
                    let sum: i64 = pods.iter().filter(|(priority, _)| *priority < limit).map(|(_, cpu)| cpu).sum();
                    let below = tiers.below(limit).last();
                    prop_assert_eq!(below.map_or(0, |tier| tier.held.amounts.cpu_milli), sum);
                    let count = pods.iter().filter(|(priority, _)| *priority < limit).count();
                    prop_assert_eq!(below.map_or(0, |tier| tier.held.amounts.pods), count as i64);
                }
            }
        }
    }
}
