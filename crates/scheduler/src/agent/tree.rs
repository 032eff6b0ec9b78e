//! Winner tree over dense ids: the smallest key in O(log n), updates in place in O(log n).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::rules::Key;

/// Members of a group. Groups of keys are two lines of the processor's cache, which it reads one after the other; with two
/// members, an update of the best key would read twelve pairs in as many places for 5,000 ids.
const WIDTH: usize = 8;

/// Keys of the ids `0..capacity`, and the smallest of every group of eight: 18.3 bytes an id.
#[derive(Debug, Default)]
pub struct WinnerTree {
    keys: Vec<Key>,
    /// The first level has the smallest key of each group of keys, each further level that of each group of the level
    /// before, and the last level one key. Without ids there is no level.
    minima: Vec<Vec<Key>>,
}

impl WinnerTree {
    /// Builds a tree over these keys.
    pub fn build(keys: Vec<Key>) -> Self {
        let above = |below: &[Key]| -> Vec<Key> { below.chunks(WIDTH).map(smallest).collect() };
        let mut minima = Vec::new();
        let mut level = above(&keys);
        while level.len() > 1 {
            let next = above(&level);
            minima.push(std::mem::replace(&mut level, next));
        }
        if !level.is_empty() {
            minima.push(level);
        }
        WinnerTree { keys, minima }
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

    /// Reads what [`WinnerTree::set`] mostly reads: the key and the smallest one of its group. Returns a value made of them.
    pub fn fetch(&self, id: u32) -> u32 {
        let group = self.minima.first().and_then(|level| level.get(id as usize / WIDTH));
        let is_valid = |key: Option<&Key>| key.is_some_and(|key| key.is_valid());
        u32::from(is_valid(self.keys.get(id as usize))) ^ u32::from(is_valid(group))
    }

    pub fn bytes(&self) -> usize {
        let keys = self.keys.capacity() + self.minima.iter().map(Vec::capacity).sum::<usize>();
        keys * size_of::<Key>()
    }

    /// Returns the id with the smallest key, and the key; ties go to the smallest id.
    pub fn best(&self) -> Option<(u32, Key)> {
        let best = *self.minima.last()?.first()?;
        let mut at = 0;
        for level in (0..self.minima.len()).rev() {
            let below = self.level(level);
            let start = at * WIDTH;
            at = start + group(below, at).iter().position(|key| *key == best)?;
        }
        Some((at as u32, best))
    }

    /// Sets the key of `id`, which must be below the capacity.
    pub fn set(&mut self, id: u32, key: Key) {
        let (mut at, mut is) = (id as usize, key);
        let mut was = std::mem::replace(&mut self.keys[at], key);
        let mut below = &self.keys;
        for level in &mut self.minima {
            at /= WIDTH;
            let minimum = level[at];
            let now = match was {
                _ if is <= minimum => is,
                was if was > minimum => return,
                _ => smallest(group(below, at)),
            };
            if now == minimum {
                return;
            }
            level[at] = now;
            (was, is, below) = (minimum, now, level);
        }
    }

    /// Sets many keys and compares all of them once: cheaper than [`WinnerTree::set`] for a large share of the ids.
    pub fn set_all(&mut self, changes: impl Iterator<Item = (u32, Key)>) {
        for (id, key) in changes {
            self.keys[id as usize] = key;
        }
        *self = WinnerTree::build(std::mem::take(&mut self.keys));
    }

    /// Returns the ids and keys, the smallest key first; equal keys by id.
    pub fn in_order(&self) -> InOrder<'_> {
        let mut open = BinaryHeap::new();
        if let Some(best) = self.minima.last().and_then(|top| top.first()) {
            open.push(Reverse(Open { key: *best, first: 0, level: Reverse(self.minima.len()) }));
        }
        InOrder { tree: self, open }
    }

    /// Returns the keys at this level: 0 are those of the ids.
    fn level(&self, level: usize) -> &[Key] {
        match level.checked_sub(1) {
            None => &self.keys,
            Some(at) => &self.minima[at],
        }
    }
}

/// The ids of a tree by their keys. Each step opens the group with the smallest key at each level.
pub struct InOrder<'a> {
    tree: &'a WinnerTree,
    open: BinaryHeap<Reverse<Open>>,
}

/// An id, or a group that has not been opened.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Open {
    key: Key,
    /// Its smallest id.
    first: usize,
    /// 0: an id.
    level: Reverse<usize>,
}

impl Iterator for InOrder<'_> {
    type Item = (u32, Key);

    fn next(&mut self) -> Option<(u32, Key)> {
        loop {
            let Reverse(Open { key, first, level: Reverse(level) }) = self.open.pop()?;
            let Some(below) = level.checked_sub(1) else {
                return Some((first as u32, key));
            };
            let size = WIDTH.pow(below as u32);
            let members = group(self.tree.level(below), first / size / WIDTH).iter();
            let members = members.zip((first..).step_by(size));
            self.open.extend(
                members.map(|(key, first)| Reverse(Open { key: *key, first, level: Reverse(below) })),
            );
        }
    }
}

/// Returns the members of a group.
#[inline]
fn group(keys: &[Key], at: usize) -> &[Key] {
    let start = at * WIDTH;
    &keys[start..keys.len().min(start + WIDTH)]
}

#[inline]
fn smallest(keys: &[Key]) -> Key {
    keys.iter().copied().fold(Key::VACANT, Key::min)
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
            first in prop::collection::vec(any::<u8>(), 0..200),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..60),
            k in 0usize..220,
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
            let best: Vec<_> = tree.in_order().take(k).collect();
            let expected: Vec<_> = sorted.iter().take(k).map(|(key, id)| (*id, *key)).collect();
            prop_assert_eq!(best, expected);
            let rebuilt = WinnerTree::build(keys.clone());
            prop_assert_eq!(&tree.minima, &rebuilt.minima);
            let mut bulk = WinnerTree::build(vec![Key::VACANT; keys.len()]);
            bulk.set_all(keys.iter().enumerate().map(|(id, key)| (id as u32, *key)));
            prop_assert_eq!(&bulk.minima, &rebuilt.minima);
        }
    }
}
