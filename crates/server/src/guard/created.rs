//! Room for pods that are created on a node.
//!
//! Such a pod does not exist while it is reviewed, and whoever may create pods can make sure that it never will: a
//! ResourceQuota, which is checked after the webhooks, refuses it. So its room is held only shortly, only for few pods
//! of a namespace, and for a while not at all in a namespace whose pod did not appear. Without it, the pod is still
//! reviewed; a pod that takes the room meanwhile may make a kubelet reject one of the two.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How long the room of one pod is held: creation ends some milliseconds after its review.
const HOLD: Duration = Duration::from_secs(1);
/// Pods of a namespace whose room is held at the same time.
const HELD_MAX: usize = 16;
/// How long a namespace holds nothing after one of its pods did not appear.
const BARRED: Duration = Duration::from_secs(600);
/// Time after which a hold has been read.
const FORGOTTEN: Duration = Duration::from_secs(60);

/// Pods that were reviewed at their creation, by namespace.
#[derive(Debug, Default)]
pub(super) struct CreatedPods {
    namespaces: Mutex<BTreeMap<Arc<str>, Namespace>>,
}

#[derive(Debug, Default)]
struct Namespace {
    /// Time of the review, by uid.
    held: BTreeMap<Arc<str>, Instant>,
    barred: Option<Instant>,
}

impl CreatedPods {
    /// Returns how long the room of this pod may be held.
    pub fn hold(&self, namespace: &Arc<str>, uid: &Arc<str>, now: Instant) -> Option<Duration> {
        let mut namespaces = self.namespaces.lock();
        namespaces.retain(|_, namespace| {
            namespace.held.retain(|_, since| now.duration_since(*since) < FORGOTTEN);
            namespace.barred = namespace.barred.filter(|since| now.duration_since(*since) < BARRED);
            !namespace.held.is_empty() || namespace.barred.is_some()
        });
        let namespace = namespaces.entry(namespace.clone()).or_default();
        let held = namespace.held.values().filter(|since| now.duration_since(**since) < HOLD).count();
        if namespace.barred.is_some() || held >= HELD_MAX {
            return None;
        }
        namespace.held.insert(uid.clone(), now);
        Some(HOLD)
    }

    /// Records that nothing is held for this pod after all.
    pub fn refused(&self, namespace: &str, uid: &str) {
        if let Some(namespace) = self.namespaces.lock().get_mut(namespace) {
            namespace.held.remove(uid);
        }
    }

    /// Records that a pod whose room was held does not exist.
    pub fn missing(&self, namespace: &str, uid: &str, now: Instant) {
        if let Some(namespace) = self.namespaces.lock().get_mut(namespace)
            && namespace.held.remove(uid).is_some()
        {
            namespace.barred = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_whose_pods_do_not_appear_holds_nothing_for_a_while() {
        let created = CreatedPods::default();
        let start = Instant::now();
        let (bad, good): (Arc<str>, Arc<str>) = ("bad".into(), "good".into());
        // For an hour, twenty pods a second that never appear; each is read two seconds later.
        let mut held = 0;
        for step in 0..20 * 3600u32 {
            let now = start + Duration::from_millis(50) * step;
            held += usize::from(created.hold(&bad, &step.to_string().into(), now).is_some());
            if let Some(before) = step.checked_sub(40) {
                created.missing(&bad, &before.to_string(), now);
            }
        }
        assert!(held <= 6 * (2 * HELD_MAX + 1), "{held} pods held room");
        assert_eq!(created.hold(&good, &"g".into(), start), Some(HOLD));
    }

    #[test]
    fn few_pods_of_a_namespace_hold_room_at_a_time() {
        let created = CreatedPods::default();
        let (now, namespace): (_, Arc<str>) = (Instant::now(), "apps".into());
        let uid = |at: usize| Arc::<str>::from(at.to_string());
        let held = (0..100).filter(|at| created.hold(&namespace, &uid(*at), now).is_some()).count();
        assert_eq!(held, HELD_MAX);
        created.refused("apps", "0");
        assert!(created.hold(&namespace, &uid(100), now).is_some());
        assert!(created.hold(&namespace, &uid(101), now).is_none());
        assert!(created.hold(&namespace, &uid(102), now + HOLD).is_some());
        // A pod that was never held bars nobody.
        created.missing("apps", "101", now);
        assert!(created.hold(&namespace, &uid(103), now + HOLD).is_some());
    }
}
