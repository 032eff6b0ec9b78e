//! What is remembered of pods between rounds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::recommend::UnixNanos;

/// Of pods and VPAs that are there.
#[derive(Debug, Default)]
pub struct Memory {
    /// By uid of the pod.
    pods: BTreeMap<Arc<str>, OfPod>,
    /// By uid of the VPA.
    vpas: BTreeMap<String, OfVpa>,
}

#[derive(Debug, Default, Clone, Copy)]
pub(super) struct OfPod {
    /// When it was last asked to be resized.
    pub asked: Option<UnixNanos>,
    /// Since when its kubelet is known to be at it.
    pub resizing: Option<UnixNanos>,
    /// Since when its node has had no room for it.
    pub without_room: Option<UnixNanos>,
}

#[derive(Debug, Default, Clone)]
pub(super) struct OfVpa {
    /// When a pod of it was last evicted, and the pods that were there then, by uid.
    pub evicted: Option<(UnixNanos, BTreeSet<Arc<str>>)>,
    /// When an eviction was last refused.
    pub refused: Option<UnixNanos>,
}

impl Memory {
    /// Only these pods and VPAs are there.
    pub fn retain(&mut self, pods: &BTreeSet<Arc<str>>, vpas: &BTreeSet<String>) {
        self.pods.retain(|uid, _| pods.contains(uid));
        self.vpas.retain(|uid, _| vpas.contains(uid));
    }

    /// The clock was set back if anything is ahead of it. That counts as of now: what rests for a while rests that long once more.
    pub fn without_the_future(&mut self, now: UnixNanos) {
        let limit = |time: &mut Option<UnixNanos>| *time = time.map(|time| time.min(now));
        for known in self.pods.values_mut() {
            [&mut known.asked, &mut known.resizing, &mut known.without_room].into_iter().for_each(limit);
        }
        for known in self.vpas.values_mut() {
            limit(&mut known.refused);
            if let Some((at, _)) = &mut known.evicted {
                *at = (*at).min(now);
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
