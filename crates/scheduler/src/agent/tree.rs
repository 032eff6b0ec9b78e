//! Winner tree over dense ids: the smallest key in O(1), updates in place in O(log n).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::rules::Key;

/// Keys of the ids `0..capacity`, and the winner of every subtree: 20 bytes an id.
#[derive(Debug, Default)]
pub struct WinnerTree {
    keys: Vec<Key>,
    /// `winners[i]` is the better of the winners of `2i` and `2i + 1`; the leaf of id `x` is number `capacity + x`.
    /// Number 1 is the root; 0 is not used.
    winners: Vec<u32>,
}

impl WinnerTree {
    /// Builds a tree over these keys.
    pub fn build(keys: Vec<Key>) -> Self {
        let mut tree = WinnerTree { winners: vec![0; keys.len()], keys };
        tree.replay();
        tree
    }

    /// Decides every match in O(n).
    fn replay(&mut self) {
        for at in (1..self.keys.len()).rev() {
            self.winners[at] = self.play(at);
        }
    }

    pub fn capacity(&self) -> usize {
        self.keys.len()
    }

    pub fn key(&self, id: u32) -> Key {
        self.keys[id as usize]
    }

    pub fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// Reads what [`WinnerTree::set`] mostly reads: the key and its first match. Returns a value made of them.
    pub fn fetch(&self, id: u32) -> u32 {
        let first = (self.keys.len() + id as usize) / 2;
        let is_valid = self.keys.get(id as usize).is_some_and(|key| key.is_valid());
        self.winners.get(first).copied().unwrap_or(0) ^ u32::from(is_valid)
    }

    pub fn bytes(&self) -> usize {
        self.keys.capacity() * size_of::<Key>() + self.winners.capacity() * size_of::<u32>()
    }

    /// Returns the id with the smallest key, and the key; ties go to the smallest id.
    pub fn best(&self) -> Option<(u32, Key)> {
        let id = self.winner(1)?;
        Some((id, self.key(id)))
    }

    /// Sets the key of `id`, which must be below the capacity.
    pub fn set(&mut self, id: u32, key: Key) {
        if std::mem::replace(&mut self.keys[id as usize], key) == key {
            return;
        }
        let mut at = (self.keys.len() + id as usize) / 2;
        while at >= 1 {
            let winner = self.play(at);
            // The winner and its key are unchanged, so nothing changes above.
            if self.winners[at] == winner && winner != id {
                break;
            }
            self.winners[at] = winner;
            at /= 2;
        }
    }

    /// Sets many keys and decides all matches once: cheaper than [`WinnerTree::set`] for a large share of the ids.
    pub fn set_all(&mut self, changes: impl Iterator<Item = (u32, Key)>) {
        for (id, key) in changes {
            self.keys[id as usize] = key;
        }
        self.replay();
    }

    /// Collects the `k` smallest keys, best first, in `into`.
    pub fn best_k(&self, k: usize, into: &mut Vec<(u32, Key)>) {
        into.clear();
        let mut open = BinaryHeap::new();
        let push = |open: &mut BinaryHeap<_>, at: usize| {
            if let Some(id) = self.winner(at) {
                open.push(Reverse((self.key(id), id, at)));
            }
        };
        push(&mut open, 1);
        while into.len() < k {
            let Some(Reverse((key, id, at))) = open.pop() else {
                return;
            };
            into.push((id, key));
            // The path from this subtree to its winner: the siblings along it hold the next candidates.
            let leaf = self.keys.len() + id as usize;
            let mut node = leaf;
            while node > at {
                push(&mut open, node ^ 1);
                node /= 2;
            }
        }
    }

    /// Returns the winner of the subtree `at`, if that subtree exists.
    fn winner(&self, at: usize) -> Option<u32> {
        let n = self.keys.len();
        if n == 0 || at >= 2 * n {
            return None;
        }
        Some(if at >= n { (at - n) as u32 } else { self.winners[at] })
    }

    fn play(&self, at: usize) -> u32 {
        let n = self.keys.len();
        let side = |child: usize| {
            if child >= n { (child - n) as u32 } else { self.winners[child] }
        };
        let (left, right) = (side(2 * at), side(2 * at + 1));
        if (self.key(left), left) <= (self.key(right), right) { left } else { right }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(n: u8) -> Key {
        Key::for_test(u64::from(n))
    }

    proptest! {
        #[test]
        fn after_any_changes_the_best_are_those_of_a_sorted_list(
            first in prop::collection::vec(any::<u8>(), 0..40),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..60),
            k in 0usize..50,
        ) {
            let mut keys: Vec<Key> = first.iter().map(|n| key(*n)).collect();
            let mut tree = WinnerTree::build(keys.clone());
            if !keys.is_empty() {
                for (at, n) in changes {
                    let id = at.index(keys.len());
                    keys[id] = key(n);
                    tree.set(id as u32, key(n));
                }
            }
            let mut sorted: Vec<_> = keys.iter().enumerate().map(|(id, key)| (*key, id as u32)).collect();
            sorted.sort();
            prop_assert_eq!(tree.best(), sorted.first().map(|(key, id)| (*id, *key)));
            let mut best = Vec::new();
            tree.best_k(k, &mut best);
            let expected: Vec<_> = sorted.iter().take(k).map(|(key, id)| (*id, *key)).collect();
            prop_assert_eq!(best, expected);
            let rebuilt = WinnerTree::build(keys.clone());
            prop_assert_eq!(&tree.winners, &rebuilt.winners);
            let mut bulk = WinnerTree::build(vec![Key::VACANT; keys.len()]);
            bulk.set_all(keys.iter().enumerate().map(|(id, key)| (id as u32, *key)));
            prop_assert_eq!(&bulk.winners, &rebuilt.winners);
        }
    }
}
