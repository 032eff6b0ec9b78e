//! Which agents have something in their caches, and which will have it once they have served what waits there.

use std::collections::HashMap;
use std::hash::Hash;

/// By key. At most 64 agents.
#[derive(Debug)]
pub(super) struct Presence<K> {
    agents: usize,
    places: HashMap<K, Place>,
}

#[derive(Debug)]
struct Place {
    /// A bit an agent: it is cached there.
    cached: u64,
    /// A bit an agent: a request that waits there, or is in service, brings it.
    coming: u64,
    /// By agent: how many such requests.
    requests: Box<[u32]>,
}

impl<K: Hash + Eq> Presence<K> {
    pub fn new(agents: usize) -> Self {
        Presence { agents, places: HashMap::new() }
    }

    /// A bit for each agent that has it cached.
    pub fn cached(&self, key: &K) -> u64 {
        self.places.get(key).map_or(0, |place| place.cached)
    }

    /// A bit for each agent that has it cached, or will have it if nothing is evicted.
    pub fn augmented(&self, key: &K) -> u64 {
        self.places.get(key).map_or(0, |place| place.cached | place.coming)
    }

    pub fn insert(&mut self, agent: usize, key: K) {
        self.place(key).cached |= 1 << agent;
    }

    pub fn remove(&mut self, agent: usize, key: &K) {
        if let Some(place) = self.places.get_mut(key) {
            place.cached &= !(1 << agent);
            self.forget_if_nowhere(key);
        }
    }

    /// A request that will bring it was put there.
    pub fn expect(&mut self, agent: usize, key: K) {
        let place = self.place(key);
        place.requests[agent] += 1;
        place.coming |= 1 << agent;
    }

    /// That request is served, or gone.
    pub fn unexpect(&mut self, agent: usize, key: &K) {
        let Some(place) = self.places.get_mut(key) else {
            return;
        };
        place.requests[agent] = place.requests[agent].saturating_sub(1);
        if place.requests[agent] == 0 {
            place.coming &= !(1 << agent);
            self.forget_if_nowhere(key);
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

    fn forget_if_nowhere(&mut self, key: &K) {
        if self.augmented(key) == 0 {
            self.places.remove(key);
        }
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }
}
