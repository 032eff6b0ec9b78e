//! State of pods and VPAs between rounds.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::recommend::{LastEviction, UnixNanos};

/// State of existing pods and VPAs.
#[derive(Debug, Default)]
pub struct UpdaterMemory {
    /// By pod uid.
    pods: BTreeMap<Arc<str>, OfPod>,
    /// By VPA uid.
    vpas: BTreeMap<String, OfVpa>,
    /// Times of evictions, oldest first.
    evictions: VecDeque<UnixNanos>,
}

#[derive(Debug, Default, Clone, Copy)]
pub(super) struct OfPod {
    /// Time of the last resize request.
    pub asked: Option<UnixNanos>,
    /// Time since which its kubelet is known to work on a resize.
    pub resizing: Option<UnixNanos>,
    /// Time since which its node has had no room for it.
    pub without_room: Option<UnixNanos>,
}

#[derive(Debug, Default, Clone, Copy)]
pub(super) struct OfVpa {
    pub evicted: Option<LastEviction>,
    /// Time of the last refused eviction.
    pub refused: Option<UnixNanos>,
}

impl UpdaterMemory {
    /// Keeps only the state of these pods and VPAs.
    pub fn retain(&mut self, pods: &BTreeSet<Arc<str>>, vpas: &BTreeSet<String>) {
        self.pods.retain(|uid, _| pods.contains(uid));
        self.vpas.retain(|uid, _| vpas.contains(uid));
    }

    /// Records an eviction.
    pub(super) fn note_eviction(&mut self, now: UnixNanos) {
        self.evictions.push_back(now);
    }

    /// Returns the number of evictions after this time, and forgets older ones.
    pub(super) fn evictions_since(&mut self, since: UnixNanos) -> u32 {
        while self.evictions.pop_front_if(|at| *at <= since).is_some() {}
        self.evictions.len().try_into().unwrap_or(u32::MAX)
    }

    /// Clamps times in the future to now, because the clock was set back. A waiting time then starts again.
    pub fn without_the_future(&mut self, now: UnixNanos) {
        let limit = |time: &mut Option<UnixNanos>| *time = time.map(|time| time.min(now));
        self.evictions.iter_mut().for_each(|at| *at = (*at).min(now));
        for known in self.pods.values_mut() {
            [&mut known.asked, &mut known.resizing, &mut known.without_room].into_iter().for_each(limit);
        }
        for known in self.vpas.values_mut() {
            limit(&mut known.refused);
            if let Some(last) = &mut known.evicted {
                last.at = last.at.min(now);
            }
        }
    }

    pub(super) fn pod(&mut self, uid: &Arc<str>) -> &mut OfPod {
        self.pods.entry(uid.clone()).or_default()
    }

    pub(super) fn vpa(&mut self, uid: &str) -> &mut OfVpa {
        self.vpas.entry(uid.to_owned()).or_default()
    }
}
