//! One copy of values that many objects hold.

use std::{collections::HashSet, hash::Hash, sync::Arc};

use crate::model::{PodSpec, Usage};

/// Shares equal texts, usages and specs. What nobody else holds any more is dropped whenever a pool has doubled
/// since it was last swept, so a pool is never much larger than twice what lived at its last sweep.
#[derive(Debug, Default)]
pub struct Interner {
    texts: Pool<str>,
    usages: Pool<Usage>,
    specs: Pool<PodSpec>,
}

impl Interner {
    pub fn text(&mut self, text: &str) -> Arc<str> {
        self.texts.get(text).unwrap_or_else(|| self.texts.add(text.into()))
    }

    pub fn usage(&mut self, usage: Usage) -> Arc<Usage> {
        self.usages.get(&usage).unwrap_or_else(|| self.usages.add(usage.into()))
    }

    pub fn spec(&mut self, spec: PodSpec) -> Arc<PodSpec> {
        self.specs.get(&spec).unwrap_or_else(|| self.specs.add(spec.into()))
    }
}

#[derive(Debug)]
struct Pool<T: ?Sized> {
    values: HashSet<Arc<T>>,
    /// Sweep before growing beyond this.
    sweep_at: usize,
}

/// Small pools are not worth sweeping.
const SWEEP_AT_MIN: usize = 1024;

impl<T: ?Sized> Default for Pool<T> {
    fn default() -> Self {
        Pool { values: HashSet::new(), sweep_at: SWEEP_AT_MIN }
    }
}

impl<T: ?Sized + Eq + Hash> Pool<T> {
    fn get(&self, value: &T) -> Option<Arc<T>> {
        self.values.get(value).cloned()
    }

    fn add(&mut self, value: Arc<T>) -> Arc<T> {
        if self.values.len() >= self.sweep_at {
            self.values.retain(|held| Arc::strong_count(held) > 1);
            self.sweep_at = (self.values.len() * 2).max(SWEEP_AT_MIN);
            self.values.shrink_to(self.sweep_at);
        }
        self.values.insert(value.clone());
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_share_memory() {
        let mut interner = Interner::default();
        assert!(Arc::ptr_eq(&interner.text("a"), &interner.text("a")));
        assert!(!Arc::ptr_eq(&interner.text("a"), &interner.text("b")));
        let spec = |containers| PodSpec { containers, ..PodSpec::default() };
        assert!(Arc::ptr_eq(&interner.spec(spec(1)), &interner.spec(spec(1))));
        assert_eq!(interner.spec(spec(2)).containers, 2);
        let usage = interner.usage(Usage::default());
        assert!(Arc::ptr_eq(&usage, &interner.usage(Usage::default())));
    }

    #[test]
    fn values_that_nobody_holds_are_dropped_and_the_others_stay_shared() {
        let mut interner = Interner::default();
        let kept: Vec<Arc<str>> = (0..2000).map(|i| interner.text(&format!("kept {i}"))).collect();
        for i in 0..100_000 {
            interner.text(&format!("passing {i}"));
        }
        let held = interner.texts.values.len();
        assert!((2000..=4000).contains(&held), "{held} held for 2000 in use");
        for (i, text) in kept.iter().enumerate() {
            assert!(Arc::ptr_eq(text, &interner.text(&format!("kept {i}"))));
        }
        drop(kept);
        for i in 0..5000 {
            interner.text(&format!("later {i}"));
        }
        assert!(interner.texts.values.len() <= SWEEP_AT_MIN);
    }
}
