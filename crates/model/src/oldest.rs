//! Limit of the objects of a namespace: the oldest count.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Names of the objects of all namespaces. Of each namespace the oldest count, up to a limit; of two of the same age, the first by name.
#[derive(Debug)]
pub struct Oldest<N> {
    max: usize,
    namespaces: BTreeMap<Arc<str>, Ages<N>>,
}

/// Objects of one namespace, with the time of their creation.
#[derive(Debug)]
struct Ages<N> {
    counted: BTreeSet<(i64, N)>,
    /// Younger than all counted ones. Empty unless as many are counted as may be.
    beyond: BTreeSet<(i64, N)>,
}

/// Where a new object went.
#[derive(Debug, PartialEq, Eq)]
pub enum Ranked<N> {
    Counted,
    /// It counts, instead of this younger one.
    Displaced(N),
    Beyond,
}

impl<N: Ord + Clone> Oldest<N> {
    /// Creates a limit of `max` objects of a namespace; at least one.
    pub fn new(max: usize) -> Self {
        Oldest { max: max.max(1), namespaces: BTreeMap::new() }
    }

    /// Adds an object that is not known yet.
    pub fn insert(&mut self, namespace: &Arc<str>, created: i64, name: N) -> Ranked<N> {
        let ages = self
            .namespaces
            .entry(namespace.clone())
            .or_insert_with(|| Ages { counted: BTreeSet::new(), beyond: BTreeSet::new() });
        let age = (created, name);
        if ages.counted.len() == self.max && ages.counted.last().is_some_and(|last| *last < age) {
            ages.beyond.insert(age);
            return Ranked::Beyond;
        }
        ages.counted.insert(age);
        let displaced = if ages.counted.len() > self.max { ages.counted.pop_last() } else { None };
        match displaced {
            Some(youngest) => {
                ages.beyond.insert(youngest.clone());
                Ranked::Displaced(youngest.1)
            }
            None => Ranked::Counted,
        }
    }

    /// Removes an object. Returns the one that counts from now on in its place.
    pub fn remove(&mut self, namespace: &Arc<str>, created: i64, name: &N) -> Option<N> {
        let ages = self.namespaces.get_mut(namespace)?;
        let age = (created, name.clone());
        let has_room = ages.counted.remove(&age);
        let promoted = if has_room { ages.beyond.pop_first() } else { None };
        if let Some(oldest) = &promoted {
            ages.counted.insert(oldest.clone());
        } else {
            ages.beyond.remove(&age);
        }
        if ages.counted.is_empty() {
            self.namespaces.remove(namespace);
        }
        promoted.map(|(_, name)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_of_each_namespace_count_whatever_the_order_in_which_they_come() {
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        let mut oldest = Oldest::new(2);
        assert_eq!(oldest.insert(&a, 5, "five"), Ranked::Counted);
        assert_eq!(oldest.insert(&a, 7, "seven"), Ranked::Counted);
        assert_eq!(oldest.insert(&a, 9, "nine"), Ranked::Beyond);
        assert_eq!(oldest.insert(&b, 9, "nine"), Ranked::Counted, "each namespace has its own limit");
        assert_eq!(oldest.insert(&a, 1, "one"), Ranked::Displaced("seven"));
        assert_eq!(oldest.insert(&a, 5, "also five"), Ranked::Displaced("five"), "the first by name");
        assert_eq!(oldest.remove(&a, 9, &"nine"), None, "it did not count");
        assert_eq!(oldest.remove(&a, 1, &"one"), Some("five"));
        assert_eq!(oldest.remove(&a, 5, &"five"), Some("seven"));
        assert_eq!(oldest.remove(&a, 7, &"seven"), None);
        assert_eq!(oldest.remove(&a, 5, &"also five"), None);
        assert_eq!(oldest.remove(&b, 9, &"nine"), None);
        assert!(oldest.namespaces.is_empty());
    }
}
