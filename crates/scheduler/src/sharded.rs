//! A hash map that never moves all of its entries at once.

use std::collections::HashMap;
use std::sync::Arc;

/// Number of parts. A million entries make each of them grow to about two thousand, which takes a fraction of a
/// millisecond.
const SHARDS: usize = 512;

/// Values by uid or name, in parts that grow on their own: a map of a million pods that doubles its room under the lock holds it
/// for hundreds of milliseconds.
#[derive(Debug)]
pub struct ShardedMap<V> {
    shards: Box<[HashMap<Arc<str>, V>]>,
    len: usize,
}

impl<V> Default for ShardedMap<V> {
    fn default() -> Self {
        ShardedMap { shards: (0..SHARDS).map(|_| HashMap::new()).collect(), len: 0 }
    }
}

impl<V> ShardedMap<V> {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn get(&self, uid: &str) -> Option<&V> {
        self.shards[shard(uid)].get(uid)
    }

    pub fn get_mut(&mut self, uid: &str) -> Option<&mut V> {
        self.shards[shard(uid)].get_mut(uid)
    }

    pub fn get_key_value(&self, uid: &str) -> Option<(&Arc<str>, &V)> {
        self.shards[shard(uid)].get_key_value(uid)
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn contains_key(&self, uid: &str) -> bool {
        self.get(uid).is_some()
    }

    pub fn insert(&mut self, uid: Arc<str>, value: V) -> Option<V> {
        let before = self.shards[shard(&uid)].insert(uid, value);
        self.len += usize::from(before.is_none());
        before
    }

    pub fn remove(&mut self, uid: &str) -> Option<V> {
        let removed = self.shards[shard(uid)].remove(uid)?;
        self.len -= 1;
        Some(removed)
    }

    /// Returns all entries, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &V)> {
        self.shards.iter().flatten()
    }

    /// Returns all keys, in no particular order.
    pub fn keys(&self) -> impl Iterator<Item = &Arc<str>> {
        self.iter().map(|(uid, _)| uid)
    }

    /// Returns all values, in no particular order.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }
}

/// Returns the part of a uid. Uids are random, those of static pods and of tests at least in their last characters.
fn shard(uid: &str) -> usize {
    let hash = uid
        .bytes()
        .rev()
        .take(8)
        .fold(0u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    (hash ^ (hash >> 29)) as usize % SHARDS
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_a_map(steps in prop::collection::vec((any::<u8>(), any::<Option<u8>>()), 0..200)) {
            let (mut map, mut expected) = (ShardedMap::default(), BTreeMap::new());
            for (uid, value) in steps {
                let uid: Arc<str> = format!("uid-{uid}").into();
                match value {
                    Some(value) => {
                        prop_assert_eq!(map.insert(uid.clone(), value), expected.insert(uid.clone(), value))
                    }
                    None => prop_assert_eq!(map.remove(&uid), expected.remove(&uid)),
                }
                prop_assert_eq!(map.get(&uid), expected.get(&uid));
                prop_assert_eq!((map.len(), map.iter().collect::<BTreeMap<_, _>>().len()), (expected.len(), expected.len()));
            }
            prop_assert!(map.iter().all(|(uid, value)| expected.get(uid) == Some(value)));
        }
    }

    #[test]
    fn uids_are_spread_over_all_parts() {
        let mut map = ShardedMap::default();
        for at in 0..100_000u64 {
            // The shape of a random UUID.
            let random = crate::rules::mix(at);
            map.insert(format!("{random:016x}-{:04x}-{:012x}", at % 7, random >> 16).into(), ());
        }
        let most = map.shards.iter().map(HashMap::len).max();
        assert!(most < Some(3 * 100_000 / SHARDS), "{most:?}");
    }
}
