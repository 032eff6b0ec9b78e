//! Sort key of a node for a class, one integer: validity, then the preferences in order of importance, then a
//! tie-breaker.
//!
//! The preferences are packed, most important first, so that comparing integers compares them lexicographically: a
//! total order, unlike weighted sums of scores. Each preference is quantised, so that the next one decides between
//! equal steps. A [`Layout`] holds their order and steps; policies choose it.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use super::image_locality;
use super::node_affinity;
use super::placement::most_steps;
use super::reasons::Reasons;
use super::resources_balanced_allocation;
use super::resources_fit;
use berth_model::Preference;

/// Smaller is better. An invalid node is greater than every valid one, and carries its reasons.
///
/// 16 bytes: InterPodAffinity and PodTopologySpread count pods. A node that is better by one pod upstream must be
/// better here, so these two are not quantised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(u128);

/// Answers of the node-local rules, 0 is best.
#[derive(Debug, Clone, Copy)]
pub(super) struct Preferences {
    pub untolerated: u16,
    pub affinity: u16,
    pub share: u16,
    pub balance: u16,
    pub image: u16,
    /// Tie-breaker between equal nodes: below 2^28, different for each node.
    pub tie: u32,
}

const INVALID: u128 = 1 << 127;
const TIE_BITS: u32 = 28;
/// Bits of the spread cost.
const SPREAD_BITS: u32 = 34;
const PODS_BITS: u32 = 36;
/// Node-local preferences, by their index in [`Layout`].
const LOCAL: [Preference; 5] = [
    Preference::TaintToleration,
    Preference::NodeAffinity,
    Preference::NodeResourcesFit,
    Preference::NodeResourcesBalancedAllocation,
    Preference::ImageLocality,
];

// With all their steps they leave room for the invalid bit.
const _: () = assert!(4 + 12 + PODS_BITS + SPREAD_BITS + 6 + 4 + 3 + TIE_BITS == 127);
const _: () = assert!(node_affinity::WORST < 1 << 12);
const _: () = assert!(resources_fit::STEPS <= 1 << 6);
const _: () = assert!(resources_balanced_allocation::STEPS <= 1 << 4);
const _: () = assert!(image_locality::WORST < 1 << 3);

/// Bit positions and steps of the preferences in a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Layout {
    /// Indexed as [`LOCAL`].
    local: [Slot; LOCAL.len()],
    /// The two pod-counting preferences, the more important one first; unused ones have no bits and come last.
    numbers: [Number; 2],
}

/// Bits of one node-local preference; no bits: it does not count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Slot {
    shift: u32,
    bits: u32,
    steps: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Number {
    about: About,
    shift: u32,
    bits: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum About {
    Pods,
    Spread,
}

impl About {
    fn bits(self) -> u32 {
        match self {
            About::Pods => PODS_BITS,
            About::Spread => SPREAD_BITS,
        }
    }
}

impl Slot {
    /// Rounds an answer to a step; monotonic: a worse answer never gets a better step. `worst` is the worst answer for
    /// this class.
    #[inline]
    fn step(self, preference: Preference, answer: u16, worst: impl FnOnce() -> u16) -> u128 {
        let (answer, steps) = (u32::from(answer), u32::from(self.steps));
        let most = u32::from(most_steps(preference).unwrap_or(1));
        let step = match preference {
            _ if self.bits == 0 => return 0,
            // Counts taints: some taints are worse than none, even with few steps.
            Preference::TaintToleration => answer.min(steps - 1),
            _ if steps == most => answer,
            // The same for missed terms of the class's own affinity.
            Preference::NodeAffinity => {
                (answer * (steps - 1)).div_ceil(u32::from(worst()).max(1)).min(steps - 1)
            }
            _ => answer * steps / most,
        };
        u128::from(step) << self.shift
    }
}

impl Number {
    fn mask(self) -> u128 {
        ((1 << self.bits) - 1) << self.shift
    }

    /// Encodes the value, clamped to the available bits.
    #[inline]
    fn write(self, value: i64) -> u128 {
        let number = match self.about {
            About::Pods => value.clamp(-Key::MOST_PODS, Key::MOST_PODS) + Key::MOST_PODS,
            About::Spread => value.clamp(0, Key::MOST_SPREAD),
        };
        if self.bits == 0 { 0 } else { (number as u128) << self.shift }
    }

    fn read(self, bits: u128) -> i64 {
        let number = (bits >> self.shift) as i64 & ((1 << self.bits) - 1);
        match self.about {
            _ if self.bits == 0 => 0,
            About::Pods => number - Key::MOST_PODS,
            About::Spread => number,
        }
    }

    /// Returns the lowest bit of the more important preferences.
    fn end(self) -> u32 {
        self.shift + self.bits
    }
}

impl Layout {
    /// Builds the layout from preferences in order of importance, each with its steps; preferences that are not listed
    /// do not count.
    pub(super) fn new(order: &[(Preference, u16)]) -> Layout {
        let mut local = [Slot::default(); LOCAL.len()];
        let mut numbers = Vec::new();
        let mut shift = TIE_BITS;
        for (preference, steps) in order.iter().rev() {
            let about = match preference {
                Preference::InterPodAffinity => Some(About::Pods),
                Preference::PodTopologySpread => Some(About::Spread),
                _ => None,
            };
            let bits = match about {
                Some(about) => about.bits(),
                None => u16::BITS - steps.saturating_sub(1).leading_zeros(),
            };
            match (about, LOCAL.iter().position(|local| local == preference)) {
                (Some(about), _) => numbers.insert(0, Number { about, shift, bits }),
                (None, Some(at)) => local[at] = Slot { shift, bits, steps: *steps },
                (None, None) => {}
            }
            shift += bits;
        }
        for about in [About::Pods, About::Spread] {
            if !numbers.iter().any(|number| number.about == about) {
                numbers.push(Number { about, shift: TIE_BITS, bits: 0 });
            }
        }
        Layout { local, numbers: [numbers[0], numbers[1]] }
    }
}

/// A decoded valid key, so that scores of topology domains can be added to the node's own. Smaller is better, within
/// one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Standing {
    /// Preferences that are more important than both pod counts.
    before: u64,
    /// The pod-counting preferences, in the order of the layout.
    first: i64,
    between: u64,
    second: i64,
    /// Less important preferences and the tie-breaker.
    rest: u64,
    /// Whether spread comes first; the same for all nodes of a class.
    spread_first: bool,
}

/// A standing as separate scores, in the default order of importance; less is better everywhere.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scores {
    /// Untolerated `PreferNoSchedule` taints.
    pub taints: u16,
    /// Total weight of the preferred node affinity terms that the node does not match.
    pub node_affinity: u16,
    /// See [`Standing::pods`].
    pub pod_affinity: i64,
    /// Cost for topology spread, in points of upstream's score.
    pub spread: f64,
    /// Share of the node that would be requested or, when packing, free: 0 to 63.
    pub share: u16,
    /// Difference between the requested shares of CPU and memory: 0 to 15.
    pub balance: u16,
    /// Share of the pod's images to pull: 0 to 7.
    pub images: u16,
}

impl Standing {
    /// Returns the score of InterPodAffinity: the negated sum of weights.
    pub fn pods(self) -> i64 {
        if self.spread_first { self.second } else { self.first }
    }

    /// Returns the cost for PodTopologySpread, in the caller's units.
    pub fn spread(self) -> i64 {
        if self.spread_first { self.first } else { self.second }
    }

    /// Replaces the pod-counting preferences, as far as the layout has them.
    pub fn with_pods(mut self, layout: &Layout, pods: i64, spread: i64) -> Standing {
        for (number, into) in layout.numbers.iter().zip([&mut self.first, &mut self.second]) {
            let value = match number.about {
                About::Pods => pods,
                About::Spread => spread,
            };
            *into = if number.bits == 0 { 0 } else { value };
        }
        self
    }

    /// Returns the scores in the units of the rules, apart from rounding to steps; 0 for unused preferences.
    pub fn scores(self, layout: &Layout) -> Scores {
        let [first, second] = layout.numbers;
        let local = |at: usize| {
            let Slot { shift, bits, steps } = layout.local[at];
            let (word, from) = match shift {
                _ if bits == 0 => return 0,
                shift if shift >= first.end() => (self.before, first.end()),
                shift if shift >= second.end() => (self.between, second.end()),
                _ => (self.rest, 0),
            };
            let step = (word >> (shift - from)) as u32 & ((1 << bits) - 1);
            let most = most_steps(LOCAL[at]).unwrap_or(1);
            let scaled = at > 1 && steps < most;
            if scaled { (step * u32::from(most) / u32::from(steps)) as u16 } else { step as u16 }
        };
        Scores {
            taints: local(0),
            node_affinity: local(1),
            pod_affinity: self.pods(),
            spread: self.spread() as f64 / super::pod_topology_spread::POINT,
            share: local(2),
            balance: local(3),
            images: local(4),
        }
    }
}

impl Key {
    /// The key of an id without a node.
    pub const VACANT: Key = Key(u128::MAX);
    /// Maximum of [`Standing::spread`] of one node.
    pub const MOST_SPREAD: i64 = (1 << SPREAD_BITS) - 1;
    const MOST_PODS: i64 = (1 << (PODS_BITS - 1)) - 1;

    /// Returns the key of a valid node. `worst_affinity` is the worst answer of the class's preferred node affinity.
    #[inline]
    pub(super) fn valid(layout: &Layout, p: Preferences, worst_affinity: impl Fn() -> u16) -> Key {
        let answers = [p.untolerated, p.affinity, p.share, p.balance, p.image];
        let mut bits = u128::from(p.tie) & ((1 << TIE_BITS) - 1);
        for ((slot, preference), answer) in layout.local.iter().zip(LOCAL).zip(answers) {
            bits |= slot.step(preference, answer, &worst_affinity);
        }
        Key(bits).with_pods(layout, 0, 0)
    }

    /// Replaces the pod-counting preferences; values are clamped to the available bits.
    #[inline]
    pub fn with_pods(self, layout: &Layout, pods: i64, spread: i64) -> Key {
        let mut bits = self.0;
        for number in layout.numbers {
            let value = match number.about {
                About::Pods => pods,
                About::Spread => spread,
            };
            bits = bits & !number.mask() | number.write(value);
        }
        Key(bits)
    }

    /// Decodes the key; `None` for an invalid node.
    pub fn standing(self, layout: &Layout) -> Option<Standing> {
        let [first, second] = layout.numbers;
        let between = |from: u32, to: u32| (self.0 >> from) as u64 & ((1 << (to - from)) - 1);
        self.is_valid().then(|| Standing {
            before: (self.0 >> first.end()) as u64,
            first: first.read(self.0),
            between: between(second.end(), first.shift),
            second: second.read(self.0),
            rest: between(0, second.shift),
            spread_first: first.about == About::Spread,
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

    /// Returns why the node is invalid; `None` for a valid node or if there is no node.
    pub fn reasons(self) -> Option<Reasons> {
        (!self.is_valid() && self != Key::VACANT).then(|| Reasons::from_bits(self.0 & !INVALID))
    }
}

/// Seed for tie-breaking, different in each agent, so that two agents do not compete for the same node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Salt(pub u64);

impl Salt {
    /// Returns a well-mixed number below 2^28 for the node with this id, different for each of the first 2^28 nodes:
    /// every step is invertible.
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

/// Finalizer of splitmix64: every bit of the input affects every bit of the output.
pub fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Returns a hash that is the same in every process of this program.
pub fn hash_of(name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

/// Converts a random word to a number from 0 to below 1.
pub fn unit(random: u64) -> f64 {
    (random >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::{PlacementSettings, PreferenceOrder};
    use proptest::prelude::*;

    fn layout() -> Layout {
        *PlacementSettings::default().layout()
    }

    fn valid(preferences: Preferences) -> Key {
        Key::valid(&layout(), preferences, || 4095)
    }

    fn preferences() -> Preferences {
        Preferences { untolerated: 0, affinity: 0, share: 0, balance: 0, image: 0, tie: 0 }
    }

    #[test]
    fn a_key_comes_apart_into_what_it_was_made_of() {
        let made =
            Preferences { untolerated: 2, affinity: 100, share: 63, balance: 9, image: 5, tie: u32::MAX };
        let scores = valid(made)
            .with_pods(&layout(), -7, 3 << 16)
            .standing(&layout())
            .expect("valid")
            .scores(&layout());
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
            valid(worst_below).with_pods(&layout(), i64::MAX, i64::MAX)
                < valid(Preferences { untolerated: 1, ..preferences() })
        );
        let worst_below = Preferences { share: 63, balance: 15, image: 7, tie: u32::MAX, ..preferences() };
        assert!(valid(worst_below) < valid(Preferences { affinity: 1, ..preferences() }));
        let worst_below = Preferences { tie: u32::MAX, ..preferences() };
        assert!(valid(worst_below) < valid(Preferences { image: 1, ..preferences() }));
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
        assert!(valid(worst).is_valid());
        let invalid = Key::invalid(Reasons::CPU);
        assert!(valid(worst) < invalid && invalid < Key::VACANT);
        assert_eq!(invalid.reasons(), Some(Reasons::CPU));
        assert_eq!(Key::VACANT.reasons(), None);
    }

    #[test]
    fn pods_near_by_come_after_node_affinity_and_before_free_share_and_can_be_read_back() {
        let key = valid(Preferences { share: 63, ..preferences() });
        let liked = key.with_pods(&layout(), -5, 7);
        assert!(liked < valid(preferences()), "a liked neighbour outweighs an empty node");
        assert!(valid(Preferences { affinity: 1, ..preferences() }).with_pods(&layout(), -100, 0) > key);
        assert!(key.with_pods(&layout(), -5, 8) > liked && key.with_pods(&layout(), -6, 9) < liked);
        let standing = liked.standing(&layout()).unwrap();
        assert_eq!((standing.before, standing.pods(), standing.spread()), (0, -5, 7));
        assert_eq!(Key::invalid(Reasons::CPU).standing(&layout()), None);
        let cut = key.with_pods(&layout(), i64::MIN, -1).standing(&layout()).unwrap();
        assert!(cut.pods() < -1_000_000_000 && cut.spread() == 0);
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

    #[test]
    fn the_mix_is_that_of_splitmix64() {
        // Its first published outputs from the seed 0.
        let outputs = [1, 2, 3].map(|turn: u64| mix(GOLDEN.wrapping_mul(turn)));
        assert_eq!(outputs, [0xE220_A839_7B1D_CDAF, 0x6E78_9E6A_A1B9_65F4, 0x06C4_5D18_8009_454F]);
    }

    #[test]
    fn random_words_become_numbers_from_0_to_below_1() {
        assert_eq!([0, 1 << 62, 1 << 63].map(unit), [0.0, 0.25, 0.5]);
        assert!((0.999..1.0).contains(&unit(u64::MAX)));
    }

    #[test]
    fn the_default_layout_has_every_preference_at_its_old_place() {
        let made = Preferences {
            untolerated: 3,
            affinity: 1234,
            share: 50,
            balance: 11,
            image: 6,
            tie: 0x0ABC_DEF1,
        };
        let key = valid(made).with_pods(&layout(), -9, 77);
        let nodes = 3u128 << 12 | 1234;
        let rest = (50u128 << 4 | 11) << 3 | 6;
        let pods = (Key::MOST_PODS - 9) as u128;
        assert_eq!(key.0, nodes << 111 | pods << 75 | 77 << 41 | rest << 28 | 0x0ABC_DEF1);
    }

    #[test]
    fn with_few_steps_some_missed_affinity_is_still_worse_than_none() {
        let order = PreferenceOrder::new([(Preference::NodeAffinity, Some(2))]).unwrap();
        let two = Layout::new(order.preferences());
        let key = |affinity| Key::valid(&two, Preferences { affinity, ..preferences() }, || 100);
        assert!(key(0) < key(1) && key(1) == key(100));
    }

    /// A permutation of some preferences with steps.
    fn orders() -> impl Strategy<Value = Vec<(Preference, Option<u32>)>> {
        let order = Just(Preference::ALL.to_vec()).prop_shuffle();
        (order, prop::collection::vec(1u32..5000, 7), 0usize..8).prop_map(|(order, steps, count)| {
            let with_steps = |(preference, steps): (Preference, u32)| {
                let most = most_steps(preference).map(u32::from);
                (preference, most.map(|most| 1 + steps % most))
            };
            order.into_iter().zip(steps).map(with_steps).take(count).collect()
        })
    }

    type Answers = (u16, u16, u16, u16, u16, i64, i64, u32);

    fn answers() -> impl Strategy<Value = Answers> {
        (0u16..20, 0u16..=100, 0u16..64, 0u16..16, 0u16..8, -5i64..5, 0i64..5, 0u32..4)
    }

    /// The values that the key of such a node must be ordered by, per the documentation of steps.
    fn expected(order: &PreferenceOrder, a: Answers) -> Vec<i64> {
        let rounded =
            |answer: u16, steps: u16, most: u16| i64::from(answer) * i64::from(steps) / i64::from(most);
        let value = |(preference, steps): &(Preference, u16)| match preference {
            Preference::TaintToleration => i64::from(a.0.min(steps - 1)),
            Preference::NodeAffinity if *steps == 4096 => i64::from(a.1),
            Preference::NodeAffinity => (i64::from(a.1) * (i64::from(*steps) - 1) + 99) / 100,
            Preference::NodeResourcesFit => rounded(a.2, *steps, 64),
            Preference::NodeResourcesBalancedAllocation => rounded(a.3, *steps, 16),
            Preference::ImageLocality => rounded(a.4, *steps, 8),
            Preference::InterPodAffinity => a.5,
            Preference::PodTopologySpread => a.6,
        };
        order.preferences().iter().map(value).chain([i64::from(a.7)]).collect()
    }

    proptest! {
        #[test]
        fn keys_and_standings_compare_as_their_rounded_answers_do_in_the_order_of_the_policy(
            order in orders(), one in answers(), two in answers(),
        ) {
            let order = PreferenceOrder::new(order).unwrap();
            let layout = &Layout::new(order.preferences());
            let key = |a: Answers| {
                let made = Preferences {
                    untolerated: a.0, affinity: a.1, share: a.2, balance: a.3, image: a.4, tie: a.7,
                };
                Key::valid(layout, made, || 100)
            };
            let (first, second) = (key(one).with_pods(layout, one.5, one.6), key(two).with_pods(layout, two.5, two.6));
            let by_hand = expected(&order, one).cmp(&expected(&order, two));
            prop_assert!(first.is_valid());
            prop_assert_eq!(first.cmp(&second), by_hand);
            // Scores added by a cell count as if they were the node's own.
            let standing = |a: Answers| {
                let own = key(a).with_pods(layout, a.5 - 3, 0).standing(layout).unwrap();
                own.with_pods(layout, own.pods() + 3, own.spread() + a.6)
            };
            prop_assert_eq!(standing(one).cmp(&standing(two)), by_hand);
            prop_assert_eq!(standing(one), first.standing(layout).unwrap());
        }
    }
}
