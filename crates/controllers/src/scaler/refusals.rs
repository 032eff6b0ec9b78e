//! Backoff of resizes that the API server refused.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Maximum backoff, in seconds.
const PAUSE_S_MAX: i64 = 300;

/// By uid of the pod; `T` is the requested size.
#[derive(Debug, Clone)]
pub(super) struct Refusals<T>(BTreeMap<Arc<str>, Refusal<T>>);

#[derive(Debug, Clone)]
struct Refusal<T> {
    requested: T,
    why: String,
    tries: u32,
    again_s: i64,
}

impl<T> Default for Refusals<T> {
    fn default() -> Self {
        Refusals(BTreeMap::new())
    }
}

impl<T: PartialEq> Refusals<T> {
    /// Returns the error that blocks the same request for now; `None`: it may be sent.
    pub fn pause(&self, uid: &str, asked: &T, now_s: i64) -> Option<&str> {
        let refusal = self.0.get(uid)?;
        (refusal.requested == *asked && now_s < refusal.again_s).then_some(refusal.why.as_str())
    }

    pub fn add(&mut self, uid: &Arc<str>, asked: T, why: String, now_s: i64) {
        let before = self.0.remove(uid).filter(|before| before.requested == asked);
        let tries = before.map_or(0, |before| before.tries).saturating_add(1);
        let pause_s = 1_i64.checked_shl(tries.min(32)).map_or(PAUSE_S_MAX, |pause| pause.min(PAUSE_S_MAX));
        let again_s = now_s.saturating_add(pause_s);
        self.0.insert(uid.clone(), Refusal { requested: asked, why, tries, again_s });
    }

    /// Drops all other pods: they are deleted, or need no resize any more.
    pub fn keep(&mut self, is_wanted: impl Fn(&str) -> bool) {
        self.0.retain(|uid, _| is_wanted(uid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_refused_is_asked_for_later_and_later_and_something_else_at_once() {
        let (uid, mut refusals) = (Arc::from("u"), Refusals::default());
        assert_eq!(refusals.pause(&uid, &300, 0), None);
        let (mut now, mut pauses) = (0, Vec::new());
        for _ in 0..10 {
            refusals.add(&uid, 300, "a LimitRange".to_owned(), now);
            let from = now;
            while refusals.pause(&uid, &300, now).is_some() {
                now += 1;
            }
            pauses.push(now - from);
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        refusals.add(&uid, 300, "a LimitRange".to_owned(), now);
        assert_eq!(refusals.pause(&uid, &300, now), Some("a LimitRange"));
        assert_eq!(refusals.pause(&uid, &310, now), None);
        refusals.add(&uid, 310, "a LimitRange".to_owned(), now);
        assert_eq!(refusals.pause(&uid, &310, now + 2), None);
    }

    #[test]
    fn pods_that_want_nothing_any_more_are_forgotten() {
        let (uid, mut refusals) = (Arc::from("u"), Refusals::default());
        refusals.add(&uid, 300, "a quota".to_owned(), 0);
        refusals.keep(|uid| uid == "u");
        assert_eq!(refusals.pause(&uid, &300, 1), Some("a quota"));
        refusals.keep(|_| false);
        assert_eq!(refusals.pause(&uid, &300, 1), None);
    }
}
