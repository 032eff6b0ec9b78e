//! Requests of the pods of one node, by quota.

use std::sync::Arc;

use super::Held;
use berth_model::Usage;

/// Shares sorted by quota. `None`: no pod of the node belongs to a quota.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QuotaShares(Option<Arc<Vec<Share>>>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Share {
    quota: Arc<str>,
    held: Held,
    pods: u32,
}

impl QuotaShares {
    /// Returns the sum over these quotas; `None`: none of them has a pod here.
    pub fn of(&self, quotas: &[Arc<str>]) -> Option<Held> {
        let shares = self.0.iter().flat_map(|shares| shares.iter());
        let mut theirs = shares.filter(|share| quotas.binary_search(&share.quota).is_ok());
        let mut sum = theirs.next()?.held.clone();
        theirs.for_each(|share| sum.join(&share.held));
        Some(sum)
    }

    pub(super) fn add(&mut self, quota: Option<&Arc<str>>, usage: &Usage) {
        let Some(quota) = quota else { return };
        let shares = Arc::make_mut(self.0.get_or_insert_default());
        let at = shares.binary_search_by(|share| share.quota.cmp(quota)).unwrap_or_else(|at| {
            shares.insert(at, Share { quota: quota.clone(), held: Held::default(), pods: 0 });
            at
        });
        shares[at].held.add(usage);
        shares[at].pods += 1;
    }

    /// Reverts [`Shares::add`].
    pub(super) fn remove(&mut self, quota: Option<&Arc<str>>, usage: &Usage) {
        let (Some(quota), Some(known)) = (quota, &mut self.0) else { return };
        let shares = Arc::make_mut(known);
        let Ok(at) = shares.binary_search_by(|share| share.quota.cmp(quota)) else {
            return;
        };
        shares[at].held.remove(usage);
        shares[at].pods = shares[at].pods.saturating_sub(1);
        if shares[at].pods == 0 {
            shares.remove(at);
        }
        if shares.is_empty() {
            self.0 = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_model::Amounts;
    use proptest::prelude::*;

    fn usage(cpu_milli: i64) -> Usage {
        let requests = Amounts { cpu_milli, pods: 1, ..Amounts::default() };
        Usage { requests, ..Usage::default() }
    }

    proptest! {
        #[test]
        fn shares_are_what_a_recount_of_the_pods_of_each_quota_gives(
            events in prop::collection::vec((any::<bool>(), prop::option::of(0u8..3), 0i64..5), 0..60),
        ) {
            let (mut shares, mut pods) = (QuotaShares::default(), Vec::new());
            for (comes, quota, cpu) in events {
                let quota = quota.map(|quota| Arc::from(quota.to_string()));
                if comes || pods.is_empty() {
                    shares.add(quota.as_ref(), &usage(cpu));
                    pods.push((quota, cpu));
                } else {
                    let (quota, cpu) = pods.swap_remove(cpu as usize % pods.len());
                    shares.remove(quota.as_ref(), &usage(cpu));
                }
                let mut fresh = QuotaShares::default();
                pods.iter().for_each(|(quota, cpu)| fresh.add(quota.as_ref(), &usage(*cpu)));
                prop_assert_eq!(&shares, &fresh);
                let two = [Arc::from("0"), Arc::from("2")];
                let theirs = || pods.iter().filter(|(quota, _)| quota.as_ref().is_some_and(|it| two.contains(it)));
                let sum = theirs().count().gt(&0).then(|| theirs().map(|(_, cpu)| cpu).sum::<i64>());
                prop_assert_eq!(shares.of(&two).map(|held| held.amounts.cpu_milli), sum);
            }
        }
    }
}
