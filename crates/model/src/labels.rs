//! Label set, sorted by key.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Labels of an object, sorted by key, each key once. Copies share them, and the time to copy, hash and compare different
/// ones does not depend on their number: a pod is looked up by its labels and those of its namespace, which may have
/// thousands.
#[derive(Debug, Clone)]
pub struct Labels {
    /// Of all pairs.
    hash: u64,
    pairs: Arc<[(Arc<str>, Arc<str>)]>,
}

impl Labels {
    /// Returns the value of `key`, if set.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.pairs.binary_search_by(|(k, _)| (**k).cmp(key)).ok().map(|i| &*self.pairs[i].1)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.pairs.iter().map(|(k, v)| (&**k, &**v))
    }

    /// Iterates over the pairs as shared strings.
    pub fn pairs(&self) -> impl Iterator<Item = &(Arc<str>, Arc<str>)> {
        self.pairs.iter()
    }

    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }
}

impl<K: Into<Arc<str>>, V: Into<Arc<str>>> FromIterator<(K, V)> for Labels {
    /// The last of several equal keys wins, as in a map.
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        let mut all: Vec<(Arc<str>, Arc<str>)> =
            pairs.into_iter().map(|(k, v)| (k.into(), v.into())).collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all.reverse();
        all.dedup_by(|later, kept| later.0 == kept.0);
        all.reverse();
        let mut hasher = DefaultHasher::new();
        all.hash(&mut hasher);
        Labels { hash: hasher.finish(), pairs: all.into() }
    }
}

impl Default for Labels {
    fn default() -> Self {
        static NONE: LazyLock<Labels> = LazyLock::new(|| [("", ""); 0].into_iter().collect());
        NONE.clone()
    }
}

impl PartialEq for Labels {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && (Arc::ptr_eq(&self.pairs, &other.pairs) || self.pairs == other.pairs)
    }
}

impl Eq for Labels {}

impl Hash for Labels {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl Serialize for Labels {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let pairs: BTreeMap<Arc<str>, Arc<str>> = Deserialize::deserialize(deserializer)?;
        Ok(pairs.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_found_by_key_and_the_last_of_equal_keys_wins() {
        let labels: Labels = [("b", "1"), ("a", "2"), ("b", "3")].into_iter().collect();
        assert_eq!(labels.get("a"), Some("2"));
        assert_eq!(labels.get("b"), Some("3"));
        assert_eq!(labels.get("c"), None);
        assert_eq!(labels.len(), 2);
    }

    #[test]
    fn labels_are_equal_if_their_pairs_are_however_they_came() {
        let labels = |pairs: &[(&str, &str)]| pairs.iter().copied().collect::<Labels>();
        assert_eq!(labels(&[("a", "1"), ("b", "2")]), labels(&[("b", "2"), ("a", "0"), ("a", "1")]));
        assert_ne!(labels(&[("a", "1")]), labels(&[("a", "2")]));
        assert_ne!(labels(&[("a", "1")]), labels(&[("a", "1"), ("b", "1")]));
        assert_eq!(labels(&[]), Labels::default());
    }

    /// Two pods of a namespace with ten thousand labels must cost no more than two of any other.
    #[test]
    fn ten_thousand_labels_are_copied_hashed_and_compared_like_ten() {
        let of = |count: usize| {
            let labels: Labels = (0..count).map(|at| (format!("key-{at}"), "value")).collect();
            let least = (0..5).map(|_| {
                let started = std::time::Instant::now();
                let known: std::collections::HashSet<Labels> = (0..1_000).map(|_| labels.clone()).collect();
                assert_eq!(known.len(), 1);
                started.elapsed()
            });
            least.min().expect("five")
        };
        let (few, many) = (of(10), of(10_000));
        assert!(many < 20 * few, "{few:?} with 10, {many:?} with 10,000");
    }
}
