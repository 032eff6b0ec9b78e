//! Hit rates of plain LRU caches, without a simulation: to choose a cache size, and to find the most expensive
//! sequence of requests.

use std::collections::{BTreeMap, HashMap};

use super::workload::PodArrival;

/// One LRU cache of templates.
struct Lru {
    slots: usize,
    used: HashMap<u32, usize>,
    by_use: BTreeMap<usize, u32>,
}

impl Lru {
    fn new(slots: usize) -> Self {
        Lru { slots, used: HashMap::new(), by_use: BTreeMap::new() }
    }

    /// Records use number `at`, which increases. Returns whether the template was cached.
    fn look(&mut self, template: u32, at: usize) -> bool {
        let before = self.used.insert(template, at);
        if let Some(before) = before {
            self.by_use.remove(&before);
        }
        self.by_use.insert(at, template);
        if self.by_use.len() > self.slots
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.used.remove(&oldest);
        }
        before.is_some()
    }
}

/// Returns for each request whether its template is not among the last `slots` used.
pub fn misses(arrivals: &[PodArrival], slots: usize) -> Vec<bool> {
    let mut lru = Lru::new(slots);
    arrivals.iter().enumerate().map(|(at, request)| !lru.look(request.template, at)).collect()
}

/// Returns the fewest slots per agent, at most `most`, for which this share of requests hits if agents are used in
/// turn.
pub fn slots_for(arrivals: &[PodArrival], agents: usize, share: f64, most: usize) -> usize {
    // More slots never hit less: a larger LRU holds everything that a smaller one holds.
    let (mut too_few, mut enough) = (0, most);
    while enough - too_few > 1 {
        let middle = too_few + (enough - too_few) / 2;
        match hits(arrivals, agents, middle) < share {
            true => too_few = middle,
            false => enough = middle,
        }
    }
    enough
}

/// Returns the share of requests that hit if the agents, with `slots` slots each, are used in turn.
fn hits(arrivals: &[PodArrival], agents: usize, slots: usize) -> f64 {
    let mut agents: Vec<_> = (0..agents).map(|_| Lru::new(slots)).collect();
    let count = agents.len();
    let hit = |(at, request): (usize, &PodArrival)| agents[at % count].look(request.template, at);
    arrivals.iter().enumerate().map(hit).filter(|hit| *hit).count() as f64 / arrivals.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(templates: &[u32]) -> Vec<PodArrival> {
        let request = |template: &u32| PodArrival { template: *template, arrives_s: 0.0, leaves_s: 1.0 };
        templates.iter().map(request).collect()
    }

    #[test]
    fn the_template_used_longest_ago_is_missed() {
        let missed = misses(&requests(&[1, 2, 1, 3, 1, 2]), 2);
        assert_eq!(missed, [true, true, false, true, false, true]);
    }

    #[test]
    fn the_size_is_the_smallest_that_hits_often_enough() {
        // Two agents in turn each see 1, 2, 1, 2, 1, 2: no hits with one slot, two thirds with two.
        let arrivals = requests(&[1, 1, 2, 2, 1, 1, 2, 2, 1, 1, 2, 2]);
        assert_eq!([0.0, 0.3, 0.66, 0.7].map(|share| slots_for(&arrivals, 2, share, 8)), [1, 2, 2, 8]);
        assert_eq!(hits(&arrivals, 2, 2), 8.0 / 12.0);
    }
}
