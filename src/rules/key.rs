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
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(u64);

/// What the rules prefer, each 0 = best, in order of importance.
#[derive(Debug, Clone, Copy)]
pub(super) struct Preferences {
    pub untolerated: u16,
    pub affinity: u16,
    pub share: u16,
    pub balance: u16,
    pub image: u16,
    /// Any number; its low bits order nodes that are equal otherwise.
    pub tie: u64,
}

const INVALID: u64 = 1 << 63;
const TIE_BITS: u32 = 12;
const UNTOLERATED_BITS: u32 = 4;

// Each preference has the bits its range needs.
const _: () = assert!(node_affinity::WORST < 1 << 12);
const _: () = assert!(resources_fit::STEPS <= 1 << 6);
const _: () = assert!(resources_balanced_allocation::STEPS <= 1 << 4);
const _: () = assert!(image_locality::WORST < 1 << 3);

impl Key {
    /// No node has this id.
    pub const VACANT: Key = Key(u64::MAX);

    pub(super) fn valid(p: Preferences) -> Key {
        let untolerated = u64::from(p.untolerated.min((1 << UNTOLERATED_BITS) - 1));
        let mut packed = untolerated;
        packed = packed << 12 | u64::from(p.affinity);
        packed = packed << 6 | u64::from(p.share);
        packed = packed << 4 | u64::from(p.balance);
        packed = packed << 3 | u64::from(p.image);
        Key(packed << TIE_BITS | p.tie & ((1 << TIE_BITS) - 1))
    }

    pub(super) fn invalid(reasons: Reasons) -> Key {
        Key(INVALID | reasons.bits())
    }

    #[cfg(test)]
    pub(crate) fn for_test(bits: u64) -> Key {
        Key(bits)
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
    /// A well mixed number for the node with this id.
    pub fn tie(self, id: u32) -> u64 {
        mix(self.0 ^ u64::from(id).wrapping_mul(GOLDEN))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn preferences() -> Preferences {
        Preferences { untolerated: 0, affinity: 0, share: 0, balance: 0, image: 0, tie: 0 }
    }

    #[test]
    fn a_more_important_preference_outweighs_all_lesser_ones_together() {
        let worst_below =
            Preferences { affinity: 4095, share: 63, balance: 15, image: 7, tie: u64::MAX, ..preferences() };
        assert!(Key::valid(worst_below) < Key::valid(Preferences { untolerated: 1, ..preferences() }));
        let worst_below = Preferences { share: 63, balance: 15, image: 7, tie: u64::MAX, ..preferences() };
        assert!(Key::valid(worst_below) < Key::valid(Preferences { affinity: 1, ..preferences() }));
        let worst_below = Preferences { tie: u64::MAX, ..preferences() };
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
            tie: u64::MAX,
        };
        assert!(Key::valid(worst).is_valid());
        let invalid = Key::invalid(Reasons::CPU);
        assert!(Key::valid(worst) < invalid && invalid < Key::VACANT);
        assert_eq!(invalid.reasons(), Some(Reasons::CPU));
        assert_eq!(Key::VACANT.reasons(), None);
    }
}
