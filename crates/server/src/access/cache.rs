//! Short-lived cache of verdicts.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ring::digest::{Context, SHA256};

use super::{Caller, Refusal};

const ALLOWED_FOR: Duration = Duration::from_secs(10);
const REFUSED_FOR: Duration = Duration::from_secs(5);
const ENTRIES_MAX: usize = 1_024;

pub(super) type Verdict = Result<Caller, Refusal>;

/// A hash of verb, path and credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key([u8; 32]);

impl Key {
    pub fn of<'a>(parts: impl Iterator<Item = &'a str>) -> Key {
        let mut context = Context::new(&SHA256);
        for part in parts {
            // The length prefix keeps different lists of parts from hashing the same bytes.
            context.update(&(part.len() as u64).to_be_bytes());
            context.update(part.as_bytes());
        }
        let mut key = [0; 32];
        key.copy_from_slice(context.finish().as_ref());
        Key(key)
    }
}

#[derive(Default)]
pub(super) struct Cache(HashMap<Key, Entry>);

struct Entry {
    until: Instant,
    verdict: Verdict,
}

impl Cache {
    pub fn get(&self, key: &Key, now: Instant) -> Option<Verdict> {
        self.0.get(key).filter(|entry| now < entry.until).map(|entry| entry.verdict.clone())
    }

    /// Caches the verdict unless it is `Unavailable`. Returns whether an unexpired entry was evicted for it.
    pub fn put(&mut self, key: Key, verdict: &Verdict, now: Instant) -> bool {
        let time = match verdict {
            Ok(_) => ALLOWED_FOR,
            Err(Refusal::Unavailable(_)) => return false,
            Err(_) => REFUSED_FOR,
        };
        let mut evicts = false;
        if self.0.len() >= ENTRIES_MAX {
            self.0.retain(|_, entry| now < entry.until);
            evicts = self.0.len() >= ENTRIES_MAX;
        }
        if evicts
            && let Some(soonest) = self.0.iter().min_by_key(|(_, entry)| entry.until).map(|(key, _)| *key)
        {
            self.0.remove(&soonest);
        }
        self.0.insert(key, Entry { until: now + time, verdict: verdict.clone() });
        evicts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Key {
        Key::of([number.to_string().as_str()].into_iter())
    }

    fn allowed() -> Verdict {
        Ok(Caller { name: "me".into(), groups: Vec::new() })
    }

    const REFUSED: Verdict = Err(Refusal::Unauthenticated("no"));

    #[test]
    fn parts_that_are_split_otherwise_have_another_key() {
        assert_ne!(Key::of(["ab", "c"].into_iter()), Key::of(["a", "bc"].into_iter()));
    }

    #[test]
    fn an_answer_is_kept_for_some_seconds_and_the_lack_of_one_is_not() {
        let (mut cache, now) = (Cache::default(), Instant::now());
        cache.put(key(1), &allowed(), now);
        cache.put(key(2), &REFUSED, now);
        cache.put(key(3), &Err(Refusal::Unavailable("down".into())), now);
        let after = |seconds| now + Duration::from_secs(seconds);
        assert_eq!(cache.get(&key(1), after(9)), Some(allowed()));
        assert_eq!(cache.get(&key(1), after(10)), None);
        assert_eq!(cache.get(&key(2), after(4)), Some(REFUSED));
        assert_eq!(cache.get(&key(2), after(5)), None);
        assert_eq!(cache.get(&key(3), now), None);
    }

    #[test]
    fn a_full_cache_first_forgets_what_is_over_and_then_what_is_over_soonest() {
        let (mut cache, now) = (Cache::default(), Instant::now());
        for number in 0..ENTRIES_MAX - 1 {
            assert!(!cache.put(key(number), &allowed(), now));
        }
        assert!(!cache.put(key(5_000), &REFUSED, now));
        assert!(cache.put(key(5_001), &allowed(), now));
        assert_eq!((cache.0.len(), cache.get(&key(5_000), now)), (ENTRIES_MAX, None));
        assert!(!cache.put(key(5_002), &allowed(), now + ALLOWED_FOR));
        assert_eq!(cache.0.len(), 1);
    }
}
