//! Distribution of classes over scheduling replicas: rendezvous hashing. Each replica draws a number for each class
//! from both names; the highest number owns it. Replicas agree without communication, and a replica that joins or
//! leaves moves only its own share.

use serde::{Deserialize, Serialize};

use super::Scheduler;
use crate::rules::{hash_of, mix};

/// The replicas that schedule, and this replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    me: u64,
    others: Vec<u64>,
}

impl Share {
    /// Returns the share of `me`. `members` may or may not name `me`.
    pub fn new<'a>(me: &str, members: impl IntoIterator<Item = &'a str>) -> Share {
        let others = members.into_iter().filter(|name| *name != me).map(hash_of).collect();
        Share { me: hash_of(me), others }
    }

    /// Returns whether this replica owns what has this key.
    pub fn owns(&self, key: u64) -> bool {
        let draw = |member: u64| (mix(member ^ key.rotate_left(32)), member);
        let mine = draw(self.me);
        self.others.iter().all(|other| draw(*other) < mine)
    }
}

impl Scheduler {
    /// Restricts this replica to the classes of this share; `None`: all classes. Pods that it owns no more, or owns now,
    /// are found in slices, and before a decision about them.
    pub fn set_share(&mut self, share: Option<Share>) {
        if self.cluster.share != share {
            self.cluster.share = share;
            self.stale.mark_all();
            self.wake_all();
        }
    }

    /// With a share: says whether this replica owns the pods that need devices, and the gangs with such pods, whatever its share. At
    /// most one may at a time, since the API server does not notice when two give the same device: the holder of the Lease.
    pub fn give_devices(&mut self, gives: bool) {
        if self.cluster.gives_devices != gives {
            self.cluster.gives_devices = gives;
            self.stale.mark_all();
            self.wake_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMBERS: [&str; 4] = ["berth-a", "berth-b", "berth-c", "berth-d"];

    fn owner(members: &[&str], fingerprint: u64) -> Vec<String> {
        let owns = |me: &&&str| Share::new(me, members.iter().copied()).owns(fingerprint);
        members.iter().filter(owns).map(|me| (*me).to_owned()).collect()
    }

    #[test]
    fn each_class_has_exactly_one_owner_and_the_shares_are_alike() {
        let mut shares = std::collections::BTreeMap::new();
        for class in 0..4_000u64 {
            let owners = owner(&MEMBERS, mix(class));
            assert_eq!(owners.len(), 1, "class {class}: {owners:?}");
            *shares.entry(owners[0].clone()).or_insert(0) += 1;
        }
        assert!(shares.len() == 4 && shares.values().all(|share| (850..1_150).contains(share)), "{shares:?}");
    }

    #[test]
    fn a_member_that_goes_moves_only_its_own_classes() {
        for class in (0..1_000u64).map(mix) {
            let (before, after) = (owner(&MEMBERS, class), owner(&MEMBERS[..3], class));
            assert!(before == after || before == ["berth-d"], "{before:?} {after:?}");
        }
    }

    #[test]
    fn a_single_replica_owns_every_class_even_if_unlisted() {
        assert!((0..100).all(|class| Share::new("a", []).owns(mix(class))));
    }
}
