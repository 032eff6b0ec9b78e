//! Resizes that the API server refused are asked for again, but later and later, not in every round.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::settle::{Resize, Resources};
use crate::cluster::scaling::ServicePod;
use crate::scheduler::Growth;

/// The longest pause between two tries.
const PAUSE_S_MAX: i64 = 300;

/// By uid of the pod.
#[derive(Debug, Clone, Default)]
pub(super) struct Refusals(BTreeMap<Arc<str>, Refusal>);

#[derive(Debug, Clone)]
struct Refusal {
    asked: Vec<Resources>,
    why: String,
    tries: u32,
    again_s: i64,
    /// What stays charged, as nobody knows what became of the request.
    room: Option<Growth>,
}

impl Refusals {
    /// Why the same is not to be asked for yet; `None`: it is.
    pub fn pause(&self, resize: &Resize, now_s: i64) -> Option<&str> {
        let refusal = self.0.get(&resize.uid)?;
        (refusal.asked == resize.containers && now_s < refusal.again_s).then_some(refusal.why.as_str())
    }

    pub fn add(&mut self, resize: &Resize, why: String, room: Option<Growth>, now_s: i64) {
        let before = self.0.remove(&resize.uid).filter(|before| before.asked == resize.containers);
        let tries = before.map_or(0, |before| before.tries).saturating_add(1);
        let pause_s = 1_i64.checked_shl(tries.min(32)).map_or(PAUSE_S_MAX, |pause| pause.min(PAUSE_S_MAX));
        let again_s = now_s.saturating_add(pause_s);
        let asked = resize.containers.clone();
        self.0.insert(resize.uid.clone(), Refusal { asked, why, tries, again_s, room });
    }

    /// Room that an earlier request of this pod still holds.
    pub fn take_room(&mut self, uid: &str) -> Option<Growth> {
        self.0.get_mut(uid)?.room.take()
    }

    /// Forgets pods that want no resize any more, or are gone. What comes back is room that nobody will use: the pods are not as they
    /// were asked to be.
    pub fn forget(&mut self, resizes: &[Resize], pods: &[ServicePod]) -> Vec<(Arc<str>, Growth)> {
        let mut unused = Vec::new();
        self.0.retain(|uid, refusal| {
            let wanted = resizes.iter().any(|resize| resize.uid == *uid);
            let done = pods.iter().any(|pod| pod.uid == *uid && is_as_asked(pod, &refusal.asked));
            if !wanted && !done {
                unused.extend(refusal.room.take().map(|room| (uid.clone(), room)));
            }
            wanted
        });
        unused
    }
}

fn is_as_asked(pod: &ServicePod, asked: &[Resources]) -> bool {
    asked.iter().all(|asked| {
        pod.containers.iter().any(|it| it.name == asked.name && it.requests == asked.requests)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recommend::PerResource;

    fn resize(cpu: i64) -> Resize {
        let requests = PerResource { cpu: Some(cpu), memory: None };
        let app = Resources { name: "app".into(), requests, ..Resources::default() };
        Resize { pod: "web-0".into(), uid: "u".into(), containers: vec![app] }
    }

    #[test]
    fn what_was_refused_is_asked_for_later_and_later_and_something_else_at_once() {
        let mut refusals = Refusals::default();
        assert_eq!(refusals.pause(&resize(300), 0), None);
        let (mut now, mut pauses) = (0, Vec::new());
        for _ in 0..10 {
            refusals.add(&resize(300), "a LimitRange".into(), None, now);
            let from = now;
            while refusals.pause(&resize(300), now).is_some() {
                now += 1;
            }
            pauses.push(now - from);
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        refusals.add(&resize(300), "a LimitRange".into(), None, now);
        assert_eq!(refusals.pause(&resize(300), now), Some("a LimitRange"));
        assert_eq!(refusals.pause(&resize(310), now), None);
        refusals.add(&resize(310), "a LimitRange".into(), None, now);
        assert_eq!(refusals.pause(&resize(310), now + 2), None);
    }

    #[test]
    fn pods_that_want_nothing_any_more_are_forgotten() {
        let mut refusals = Refusals::default();
        refusals.add(&resize(300), "a quota".into(), None, 0);
        refusals.forget(&[resize(310)], &[]);
        assert_eq!(refusals.pause(&resize(300), 1), Some("a quota"));
        refusals.forget(&[], &[]);
        assert_eq!(refusals.pause(&resize(300), 1), None);
    }
}
