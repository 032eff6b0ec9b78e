//! One integer that orders all nodes for a class: validity, then the preferences in order of importance, then chance.
//!
//! The preferences are packed, most important first, so comparing integers compares them lexicographically: a total
//! order, which weighted votes of rules are not. Each is quantised, so that equal steps let the next one decide.

use super::image_locality;
use super::node_affinity;
use super::reasons::Reasons;
use super::resources_balanced_allocation;
use super::resources_fit;

/// Smaller is better. An invalid node is larger than every valid one, and carries its reasons.
///
/// 16 bytes: pods and spread count pods, and what upstream would call better by one pod must be better here, so these two
/// are not quantised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(u128);

/// What the node-local rules prefer, each 0 = best, in order of importance.
#[derive(Debug, Clone, Copy)]
pub(super) struct Preferences {
    pub untolerated: u16,
    pub affinity: u16,
    pub share: u16,
    pub balance: u16,
    pub image: u16,
    /// Orders nodes that are equal otherwise; below 2^28, another one for each node.
    pub tie: u32,
}

const INVALID: u128 = 1 << 127;
const UNTOLERATED_BITS: u32 = 4;
const TIE_BITS: u32 = 28;
/// Share, balance, image and tie: what stands behind the preferences about pods.
const REST_BITS: u32 = 6 + 4 + 3 + TIE_BITS;
const SPREAD_BITS: u32 = 34;
const PODS_BITS: u32 = 36;
const PODS_SHIFT: u32 = REST_BITS + SPREAD_BITS;

// Each preference has the bits its range needs.
const _: () = assert!(node_affinity::WORST < 1 << 12);
const _: () = assert!(resources_fit::STEPS <= 1 << 6);
const _: () = assert!(resources_balanced_allocation::STEPS <= 1 << 4);
const _: () = assert!(image_locality::WORST < 1 << 3);
const _: () = assert!(PODS_SHIFT + PODS_BITS + 12 + UNTOLERATED_BITS < 128);

/// A valid key taken apart, so that what a node's topology domains are worth can be added to what the node itself is. Better
/// ones are smaller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Standing {
    /// Untolerated taints and missed node affinity.
    pub nodes: u16,
    /// Pods that are liked or disliked near by: the negated sum of weights (upstream: the score of InterPodAffinity).
    pub pods: i64,
    /// Pods of the same kind near by (upstream: the score of PodTopologySpread), in the units of whoever added it up.
    pub spread: i64,
    /// Share, balance, images and chance.
    pub rest: u64,
}

/// A standing preference by preference, in order of importance; less is better everywhere.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scores {
    /// Untolerated `PreferNoSchedule` taints.
    pub taints: u16,
    /// The weight of the preferred node affinity terms that the node misses.
    pub node_affinity: u16,
    /// See [`Standing::pods`].
    pub pod_affinity: i64,
    /// What topology spread would cost, in points of upstream's score.
    pub spread: f64,
    /// The share of the node that would be taken or, when packing, free: 0 to 63.
    pub share: u16,
    /// How far the shares of CPU and memory would be apart: 0 to 15.
    pub balance: u16,
    /// How much of the pod's images would have to be pulled: 0 to 7.
    pub images: u16,
}

impl Standing {
    pub fn scores(self) -> Scores {
        let bits = |number: u64, shift: u32, width: u32| (number >> shift) as u16 & ((1 << width) - 1);
        let nodes = u64::from(self.nodes);
        Scores {
            taints: bits(nodes, 12, UNTOLERATED_BITS),
            node_affinity: bits(nodes, 0, 12),
            pod_affinity: self.pods,
            spread: self.spread as f64 / super::pod_topology_spread::POINT,
            share: bits(self.rest, 7 + TIE_BITS, 6),
            balance: bits(self.rest, 3 + TIE_BITS, 4),
            images: bits(self.rest, TIE_BITS, 3),
        }
    }
}

impl Key {
    /// No node has this id.
    pub const VACANT: Key = Key(u128::MAX);
    /// What [`Standing::spread`] of one node can be at most.
    pub const MOST_SPREAD: i64 = (1 << SPREAD_BITS) - 1;
    const MOST_PODS: i64 = (1 << (PODS_BITS - 1)) - 1;

    pub(super) fn valid(p: Preferences) -> Key {
        let untolerated = u128::from(p.untolerated.min((1 << UNTOLERATED_BITS) - 1));
        let nodes = untolerated << 12 | u128::from(p.affinity);
        let mut rest = u128::from(p.share);
        rest = rest << 4 | u128::from(p.balance);
        rest = rest << 3 | u128::from(p.image);
        rest = rest << TIE_BITS | u128::from(p.tie) & ((1 << TIE_BITS) - 1);
        Key(nodes << (PODS_SHIFT + PODS_BITS) | rest).with_pods(0, 0)
    }

    /// The same node with other pods around it. Both are cut to what there is room for.
    pub fn with_pods(self, pods: i64, spread: i64) -> Key {
        const MASK: u128 = ((1 << (PODS_BITS + SPREAD_BITS)) - 1) << REST_BITS;
        let pods = pods.clamp(-Self::MOST_PODS, Self::MOST_PODS) + Self::MOST_PODS;
        let spread = spread.clamp(0, Self::MOST_SPREAD);
        Key(self.0 & !MASK | (pods as u128) << PODS_SHIFT | (spread as u128) << REST_BITS)
    }

    /// `None` for an invalid node.
    pub fn standing(self) -> Option<Standing> {
        let bits = |shift: u32, width: u32| (self.0 >> shift) as u64 & ((1 << width) - 1);
        self.is_valid().then(|| Standing {
            nodes: bits(PODS_SHIFT + PODS_BITS, 12 + UNTOLERATED_BITS) as u16,
            pods: bits(PODS_SHIFT, PODS_BITS) as i64 - Self::MOST_PODS,
            spread: bits(REST_BITS, SPREAD_BITS) as i64,
            rest: bits(0, REST_BITS),
        })
    }

    pub fn invalid(reasons: Reasons) -> Key {
        Key(INVALID | reasons.bits())
    }

    #[cfg(test)]
    pub(crate) fn for_test(bits: u64) -> Key {
        Key(u128::from(bits))
    }

    pub fn is_valid(self) -> bool {
        self.0 & INVALID == 0
    }

    /// Why the node is invalid; `None` for a valid one and where there is no node.
    pub fn reasons(self) -> Option<Reasons> {
        (!self.is_valid() && self != Key::VACANT).then(|| Reasons::from_bits(self.0 & !INVALID))
    }
}

/// Breaks ties differently in each agent, so that two agents do not run for the same node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Salt(pub u64);

impl Salt {
    /// A well mixed number below 2^28 for the node with this id; another one for each of the first 2^28 nodes: every step can
    /// be undone.
    pub fn tie(self, id: u32) -> u32 {
        const MASK: u32 = (1 << TIE_BITS) - 1;
        let mut x = (id ^ self.0 as u32) & MASK;
        x = x.wrapping_mul(0x0E35_79B9) & MASK;
        x ^= x >> 15;
        x = x.wrapping_mul(((self.0 >> 32) as u32) | 1) & MASK;
        x ^= x >> 13;
        x.wrapping_mul(0x0A4C_6E6D) & MASK
    }
}

/// 2^64 divided by the golden ratio: the step of splitmix64.
pub const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// splitmix64's finaliser: every bit of the input moves every bit of the output.
pub fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// A random word as a number from 0 to below 1.
pub fn unit(random: u64) -> f64 {
    (random >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preferences() -> Preferences {
        Preferences { untolerated: 0, affinity: 0, share: 0, balance: 0, image: 0, tie: 0 }
    }

    #[test]
    fn a_key_comes_apart_into_what_it_was_made_of() {
        let made =
            Preferences { untolerated: 2, affinity: 100, share: 63, balance: 9, image: 5, tie: u32::MAX };
        let scores = Key::valid(made).with_pods(-7, 3 << 16).standing().expect("valid").scores();
        let expected = Scores {
            taints: 2,
            node_affinity: 100,
            pod_affinity: -7,
            spread: 3.0,
            share: 63,
            balance: 9,
            images: 5,
        };
        assert_eq!(scores, expected);
    }

    #[test]
    fn a_more_important_preference_outweighs_all_lesser_ones_together() {
        let worst_below =
            Preferences { affinity: 4095, share: 63, balance: 15, image: 7, tie: u32::MAX, ..preferences() };
        assert!(
            Key::valid(worst_below).with_pods(i64::MAX, i64::MAX)
                < Key::valid(Preferences { untolerated: 1, ..preferences() })
        );
        let worst_below = Preferences { share: 63, balance: 15, image: 7, tie: u32::MAX, ..preferences() };
        assert!(Key::valid(worst_below) < Key::valid(Preferences { affinity: 1, ..preferences() }));
        let worst_below = Preferences { tie: u32::MAX, ..preferences() };
        assert!(Key::valid(worst_below) < Key::valid(Preferences { image: 1, ..preferences() }));
    }

    #[test]
    fn every_invalid_node_is_worse_than_every_valid_one() {
        let worst = Preferences {
            untolerated: u16::MAX,
            affinity: 4095,
            share: 63,
            balance: 15,
            image: 7,
            tie: u32::MAX,
        };
        assert!(Key::valid(worst).is_valid());
        let invalid = Key::invalid(Reasons::CPU);
        assert!(Key::valid(worst) < invalid && invalid < Key::VACANT);
        assert_eq!(invalid.reasons(), Some(Reasons::CPU));
        assert_eq!(Key::VACANT.reasons(), None);
    }

    #[test]
    fn pods_near_by_come_after_node_affinity_and_before_free_share_and_can_be_read_back() {
        let key = Key::valid(Preferences { share: 63, ..preferences() });
        let liked = key.with_pods(-5, 7);
        assert!(liked < Key::valid(preferences()), "a liked neighbour outweighs an empty node");
        assert!(Key::valid(Preferences { affinity: 1, ..preferences() }).with_pods(-100, 0) > key);
        assert!(key.with_pods(-5, 8) > liked && key.with_pods(-6, 9) < liked);
        let standing = liked.standing().unwrap();
        assert_eq!((standing.nodes, standing.pods, standing.spread), (0, -5, 7));
        assert_eq!(Key::invalid(Reasons::CPU).standing(), None);
        let cut = key.with_pods(i64::MIN, -1).standing().unwrap();
        assert!(cut.pods < -1_000_000_000 && cut.spread == 0);
    }

    #[test]
    fn ties_are_never_equal_and_another_order_for_each_salt() {
        let order = |salt: u64| {
            let mut ids: Vec<u32> = (0..5000).collect();
            ids.sort_by_key(|id| Salt(salt).tie(*id));
            let ties: std::collections::HashSet<u32> = ids.iter().map(|id| Salt(salt).tie(*id)).collect();
            assert_eq!(ties.len(), 5000);
            ids
        };
        assert_ne!(order(1), order(2));
        assert_ne!(order(mix(1)), order(mix(2)));
        assert_ne!(order(mix(1)), (0..5000).collect::<Vec<_>>());
    }
}
