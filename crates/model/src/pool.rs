//! Interning pool for shared values.

use std::{collections::HashSet, hash::Hash, sync::Arc};

/// Shares equal values. When the pool has doubled since the last sweep, values without other references are dropped, so
/// it never holds much more than twice the values alive at the last sweep.
#[derive(Debug)]
pub struct Pool<T: ?Sized> {
    values: HashSet<Arc<T>>,
    /// Sweep before growing beyond this.
    sweep_at: usize,
}

/// Small pools are not worth sweeping.
pub const SWEEP_AT_MIN: usize = 1024;

impl<T: ?Sized> Default for Pool<T> {
    fn default() -> Self {
        Pool { values: HashSet::new(), sweep_at: SWEEP_AT_MIN }
    }
}

impl<T: ?Sized + Eq + Hash> Pool<T> {
    pub fn get(&self, value: &T) -> Option<Arc<T>> {
        self.values.get(value).cloned()
    }

    pub fn add(&mut self, value: Arc<T>) -> Arc<T> {
        if self.values.len() >= self.sweep_at {
            self.values.retain(|held| Arc::strong_count(held) > 1);
            self.sweep_at = (self.values.len() * 2).max(SWEEP_AT_MIN);
            self.values.shrink_to(self.sweep_at);
        }
        self.values.insert(value.clone());
        value
    }

    pub fn len(&self) -> usize {
        self.values.len()
    }

    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

impl<T: Eq + Hash> Pool<T> {
    pub fn share(&mut self, value: T) -> Arc<T> {
        self.get(&value).unwrap_or_else(|| self.add(value.into()))
    }
}
