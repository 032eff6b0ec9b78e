//! Interning pool for shared values.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};
use std::sync::Arc;

/// Shares equal values. Its parts are swept on their own: when one has doubled since its last sweep, its values without
/// other references are dropped. So the pool never holds much more than twice the values alive at the last sweeps, and
/// no call visits more than a small part of them.
#[derive(Debug)]
pub struct Pool<T: ?Sized> {
    hasher: RandomState,
    parts: Box<[Part<T>]>,
}

/// Number of parts. Sweeping a pool of a million values at once takes a hundred milliseconds, as each of them is elsewhere
/// in memory.
const PARTS: usize = 256;

/// Small pools are not worth sweeping.
pub const SWEEP_AT_MIN: usize = 1024;

#[derive(Debug)]
struct Part<T: ?Sized> {
    /// By their hash. Of two values with the same hash, only one is shared.
    values: HashMap<u64, Arc<T>, BuildHasherDefault<Hashed>>,
    /// Sweep before growing beyond this.
    sweep_at: usize,
}

/// Hasher of values that are hashes.
#[derive(Debug, Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

impl<T: ?Sized> Default for Pool<T> {
    fn default() -> Self {
        let part = || Part { values: HashMap::default(), sweep_at: SWEEP_AT_MIN / PARTS };
        Pool { hasher: RandomState::new(), parts: (0..PARTS).map(|_| part()).collect() }
    }
}

/// Returns the part of a value with this hash. Other bits than those by which a part orders its values.
fn part_of(hash: u64) -> usize {
    (hash >> 32) as usize % PARTS
}

impl<T: ?Sized + Eq + Hash> Pool<T> {
    pub fn get(&self, value: &T) -> Option<Arc<T>> {
        let hash = self.hasher.hash_one(value);
        self.parts[part_of(hash)].values.get(&hash).filter(|held| ***held == *value).cloned()
    }

    pub fn add(&mut self, value: Arc<T>) -> Arc<T> {
        let hash = self.hasher.hash_one(&*value);
        let part = &mut self.parts[part_of(hash)];
        if part.values.len() >= part.sweep_at {
            part.values.retain(|_, held| Arc::strong_count(held) > 1);
            part.sweep_at = (part.values.len() * 2).max(SWEEP_AT_MIN / PARTS);
            part.values.shrink_to(part.sweep_at);
        }
        part.values.insert(hash, value.clone());
        value
    }

    pub fn len(&self) -> usize {
        self.parts.iter().map(|part| part.values.len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T: Eq + Hash> Pool<T> {
    pub fn share(&mut self, value: T) -> Arc<T> {
        self.get(&value).unwrap_or_else(|| self.add(value.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_visits_a_small_part_of_a_large_pool_and_all_garbage_goes_in_the_end() {
        const HELD: usize = 50_000;
        let mut pool = Pool::<str>::default();
        let held: Vec<Arc<str>> = (0..HELD).map(|at| pool.add(format!("held {at}").into())).collect();
        let largest = pool.parts.iter().map(|part| part.values.len()).max().unwrap_or(0);
        assert!(largest < 2 * HELD / PARTS, "{largest} in one part");
        for at in 0..4 * HELD {
            pool.add(format!("passing {at}").into());
            assert!(at % 1_000 != 0 || pool.len() <= 3 * HELD, "{} values are held", pool.len());
        }
        assert!(held.iter().all(|text| pool.get(text).is_some_and(|shared| Arc::ptr_eq(&shared, text))));
    }
}
