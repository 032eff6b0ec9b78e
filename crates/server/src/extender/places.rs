//! Scores from places: kube-scheduler adds up scores of 0 to 10.

/// The score of the best.
const BEST: i64 = 10;

/// What the scores of many follow from, without sorting them all.
pub struct Places<T> {
    best: Option<T>,
    /// The values with which each tenth ends, but for the last one.
    tenths: Vec<T>,
}

impl<T: Ord + Copy> Places<T> {
    /// Less is better.
    pub fn new(mut all: Vec<T>) -> Self {
        let (count, best) = (all.len(), all.iter().min().copied());
        // Whatever comes after so many others is no more in this tenth.
        let ends: Vec<_> = (1..BEST as usize).map(|tenth| (tenth * count).div_ceil(BEST as usize)).collect();
        let ends: Vec<_> = ends.into_iter().filter(|end| *end > 0).map(|end| end - 1).collect();
        let mut tenths = Vec::with_capacity(ends.len());
        select(&mut all, 0, &ends, &mut tenths);
        Places { best, tenths }
    }

    /// The best alone gets 10; the others share 9 to 0, in steps of a tenth of all.
    pub fn score(&self, value: T) -> i64 {
        if self.best.is_none_or(|best| value <= best) {
            return BEST;
        }
        BEST - 1 - self.tenths.partition_point(|end| *end < value) as i64
    }
}

/// Appends what is at these places when `all`, which begins at place `from`, is sorted. The middle one first, so that each half is
/// looked at by itself.
fn select<T: Ord + Copy>(all: &mut [T], from: usize, places: &[usize], found: &mut Vec<T>) {
    let Some(&middle) = places.get(places.len() / 2) else {
        return;
    };
    let (before, after) = (&places[..places.len() / 2], &places[places.len() / 2 + 1..]);
    let (left, value, right) = all.select_nth_unstable(middle - from);
    let value = *value;
    // Of few values, several tenths end at one place.
    let same = |place: &&usize| **place == middle;
    let (same_before, same_after) = (before.iter().filter(same).count(), after.iter().filter(same).count());
    select(left, from, &before[..before.len() - same_before], found);
    found.extend(std::iter::repeat_n(value, same_before + 1 + same_after));
    select(right, middle + 1, &after[same_after..], found);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_best_node_alone_has_the_highest_score_and_the_worst_ones_none() {
        let places = Places::new((0..100).rev().collect());
        let scores: Vec<_> = (0..100).map(|place| places.score(place)).collect();
        assert_eq!((scores[0], scores[1], scores[99]), (10, 9, 0));
        assert!(scores.is_sorted_by(|a, b| a >= b));
        assert_eq!(Places::new(vec![7]).score(7), 10);
        assert_eq!(Places::new(vec![7, 8]).score(8), 4);
    }

    proptest! {
        #[test]
        fn a_score_is_the_share_of_those_that_are_better(all in prop::collection::vec(0..50_u32, 1..200)) {
            let places = Places::new(all.clone());
            for value in &all {
                let better = all.iter().filter(|other| *other < value).count();
                let share = (better * 10 / all.len()) as i64;
                prop_assert_eq!(places.score(*value), if better == 0 { 10 } else { 9 - share });
            }
        }
    }
}
