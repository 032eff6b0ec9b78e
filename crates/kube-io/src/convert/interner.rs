//! Interner: one shared copy of equal values.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_model::{Labels, Peer, PodAffinity, PodSpec, Pool, Usage};

/// Shares equal texts, usages and specs, as long as anybody else holds them.
#[derive(Debug, Default)]
pub struct Interner {
    texts: Pool<str>,
    usages: Pool<Usage>,
    specs: Pool<PodSpec>,
    peers: Pool<Peer>,
    pod_affinities: Pool<PodAffinity>,
}

impl Interner {
    pub fn text(&mut self, text: &str) -> Arc<str> {
        self.texts.get(text).unwrap_or_else(|| self.texts.add(text.into()))
    }

    pub fn labels(&mut self, labels: &BTreeMap<String, String>) -> Labels {
        labels.iter().map(|(key, value)| (self.text(key), self.text(value))).collect()
    }

    pub fn usage(&mut self, usage: Usage) -> Arc<Usage> {
        self.usages.share(usage)
    }

    pub fn spec(&mut self, spec: PodSpec) -> Arc<PodSpec> {
        self.specs.share(spec)
    }

    pub fn peer(&mut self, peer: Peer) -> Arc<Peer> {
        self.peers.share(peer)
    }

    pub fn pod_affinity(&mut self, affinity: PodAffinity) -> Arc<PodAffinity> {
        self.pod_affinities.share(affinity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_model::SWEEP_AT_MIN;

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
        let held = interner.texts.len();
        assert!((2000..=4000).contains(&held), "{held} held for 2000 in use");
        for (i, text) in kept.iter().enumerate() {
            assert!(Arc::ptr_eq(text, &interner.text(&format!("kept {i}"))));
        }
        drop(kept);
        for i in 0..50_000 {
            interner.text(&format!("later {i}"));
        }
        assert!(interner.texts.len() <= SWEEP_AT_MIN);
    }
}
