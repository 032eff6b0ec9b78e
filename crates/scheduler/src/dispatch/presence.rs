//! Cached entries by agent, including those that waiting requests will bring.

use std::collections::HashMap;
use std::hash::Hash;

/// Presence by key. At most 64 agents.
#[derive(Debug)]
pub(super) struct Presence<K> {
    agents: usize,
    places: HashMap<K, Place>,
}

#[derive(Debug)]
struct Place {
    /// Bit mask of the agents that have it cached.
    cached: u64,
    /// Bit mask of the agents where a waiting or running request brings it.
    coming: u64,
    /// Number of such requests, by agent.
    requests: Box<[u32]>,
}

impl<K: Hash + Eq> Presence<K> {
    pub fn new(agents: usize) -> Self {
        Presence { agents, places: HashMap::new() }
    }

    /// Returns a bit mask of the agents that have it cached.
    pub fn cached(&self, key: &K) -> u64 {
        self.places.get(key).map_or(0, |place| place.cached)
    }

    /// Returns a bit mask of the agents that have it cached, or will have it if nothing is evicted.
    pub fn augmented(&self, key: &K) -> u64 {
        self.places.get(key).map_or(0, |place| place.cached | place.coming)
    }

    pub fn insert(&mut self, agent: usize, key: K) {
        self.place(key).cached |= 1 << agent;
    }

    pub fn remove(&mut self, agent: usize, key: &K) {
        if let Some(place) = self.places.get_mut(key) {
            place.cached &= !(1 << agent);
            self.drop_if_unused(key);
        }
    }

    /// Records a queued request that will bring it.
    pub fn expect(&mut self, agent: usize, key: K) {
        let place = self.place(key);
        place.requests[agent] += 1;
        place.coming |= 1 << agent;
    }

    /// Records that such a request was served or withdrawn.
    pub fn unexpect(&mut self, agent: usize, key: &K) {
        let Some(place) = self.places.get_mut(key) else {
            return;
        };
        place.requests[agent] = place.requests[agent].saturating_sub(1);
        if place.requests[agent] == 0 {
            place.coming &= !(1 << agent);
            self.drop_if_unused(key);
        }
    }

    fn place(&mut self, key: K) -> &mut Place {
        let agents = self.agents;
        self.places.entry(key).or_insert_with(|| Place {
            cached: 0,
            coming: 0,
            requests: vec![0; agents].into_boxed_slice(),
        })
    }

    fn drop_if_unused(&mut self, key: &K) {
        if self.augmented(key) == 0 {
            self.places.remove(key);
        }
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }
}
