//! Ranks as scores of 0 to 10, which kube-scheduler adds up.

/// The score of the best value.
const BEST: i64 = 10;

/// Boundaries between scores of many values, found without sorting them all.
pub struct Places<T> {
    best: Option<T>,
    /// The last value of each tenth except the last tenth.
    tenths: Vec<T>,
}

impl<T: Ord + Copy> Places<T> {
    /// Lower values are better.
    pub fn new(mut all: Vec<T>) -> Self {
        let (count, best) = (all.len(), all.iter().min().copied());
        // A value at this position or later is not in this tenth.
        let ends: Vec<_> = (1..BEST as usize).map(|tenth| (tenth * count).div_ceil(BEST as usize)).collect();
        let ends: Vec<_> = ends.into_iter().filter(|end| *end > 0).map(|end| end - 1).collect();
        let mut tenths = Vec::with_capacity(ends.len());
        select(&mut all, 0, &ends, &mut tenths);
        Places { best, tenths }
    }

    /// The best value alone gets 10; the rest get 9 to 0, in steps of a tenth of all values.
    pub fn score(&self, value: T) -> i64 {
        if self.best.is_none_or(|best| value <= best) {
            return BEST;
        }
        BEST - 1 - self.tenths.partition_point(|end| *end < value) as i64
    }
}

/// Appends the values that are at these positions when `all`, which begins at position `from`, is sorted. Starts with the middle
/// position, so that each half is searched on its own.
fn select<T: Ord + Copy>(all: &mut [T], from: usize, places: &[usize], found: &mut Vec<T>) {
    let Some(&middle) = places.get(places.len() / 2) else {
        return;
    };
    let (before, after) = (&places[..places.len() / 2], &places[places.len() / 2 + 1..]);
    let (left, value, right) = all.select_nth_unstable(middle - from);
    let value = *value;
    // With few values, several tenths end at the same position.
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
