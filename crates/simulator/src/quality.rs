//! Quality of agent choices: compares the chosen agent with the completion times of all agents, given the actual
//! content of their caches, with evictions, once all queued work is done.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::cost::Costs;
use super::world::Setup;
use berth_scheduler::agent::{CacheLimits, Part};
use berth_scheduler::class::{Class, ClassId, TraitId};
use berth_scheduler::rules::CachedRule;

/// Size in bytes of one ranked list, of one common list and of one rule object.
#[derive(Debug, Clone, Copy)]
pub struct CacheSizes {
    pub list: usize,
    pub common: usize,
    pub object: usize,
}

impl CacheSizes {
    /// Returns the size of a list that shares nothing.
    pub fn alone(&self) -> usize {
        (self.list + self.common).max(1)
    }
}

/// One shadow cache per agent.
pub struct CacheQuality {
    costs: Costs,
    shadows: Vec<Shadow>,
}

/// Evaluation of one assignment.
#[derive(Debug, Clone, Copy)]
pub struct Judged {
    /// Time from arrival to completion, at the chosen agent and at the best one.
    takes: Duration,
    best: Duration,
    /// Predicted completion time, minus the shadow's drift.
    done: i128,
}

impl Judged {
    pub fn is_best(&self) -> bool {
        self.takes <= self.best
    }

    pub fn gap(&self) -> f64 {
        self.takes.as_secs_f64() / self.best.as_secs_f64() - 1.0
    }
}

impl CacheQuality {
    pub fn new(setup: &Setup, sizes: CacheSizes) -> Self {
        let shadow = || Shadow::new(setup.cache, sizes);
        CacheQuality { costs: setup.costs.clone(), shadows: (0..setup.agents).map(|_| shadow()).collect() }
    }

    /// Evaluates the assignment of a request of this class to `agent`. It takes `factor` times the usual time.
    pub fn assigned(&mut self, class: &Arc<Class>, agent: usize, factor: f64, now: Duration) -> Judged {
        let now = now.as_nanos() as i128;
        let costs = &self.costs;
        let done = |shadow: &mut Shadow| {
            let start = shadow.free_at().max(now);
            start + costs.takes(shadow.look(class, start), class, factor).as_nanos() as i128
        };
        let all: Vec<i128> = self.shadows.iter_mut().map(done).collect();
        let best = all.iter().copied().min().unwrap_or(now);
        let shadow = &mut self.shadows[agent];
        let start = shadow.free_at().max(now);
        shadow.serve(class, start);
        shadow.free_at = all[agent] - shadow.drift;
        let since = |done: i128| Duration::from_nanos((done - now).max(1) as u64);
        Judged { takes: since(all[agent]), best: since(best), done: all[agent] - shadow.drift }
    }

    /// A request was completed later or earlier than predicted (conflicts, parked classes); requests behind it shift
    /// by the same amount.
    pub fn finished(&mut self, agent: usize, judged: &Judged, now: Duration) {
        self.shadows[agent].drift = now.as_nanos() as i128 - judged.done;
    }
}

impl Costs {
    fn takes(&self, found: Found, class: &Class, factor: f64) -> Duration {
        let takes = |part| self.of(part).mul_f64(factor);
        match found {
            Found::List => takes(Part::ListHit),
            Found::Parts { rules: found, common } => {
                let common = takes(if common { Part::CommonHit } else { Part::CommonMiss });
                let rules = class.cached_rules().map(|(rule, _)| match found & (1 << rule.index()) {
                    0 => takes(Part::RuleMiss(rule)),
                    _ => takes(Part::RuleHit(rule)),
                });
                rules.sum::<Duration>() + common + takes(Part::ListMiss)
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Found {
    List,
    /// A bit per rule, and whether the common list.
    Parts {
        rules: u8,
        common: bool,
    },
}

type ObjectKey = (CachedRule, TraitId);

/// An agent's caches without their content: same behaviour as `agent/cache.rs`, for lists of one size.
struct Shadow {
    limits: CacheLimits,
    sizes: CacheSizes,
    lists: HashMap<ClassId, (u64, Arc<Class>)>,
    lists_by_use: BTreeMap<u64, (ClassId, i128)>,
    /// Number of lists that share it.
    commons: HashMap<ClassId, usize>,
    /// Number of lists that pin it, and its last use if none does.
    objects: HashMap<ObjectKey, (usize, u64)>,
    free_by_use: BTreeMap<u64, (ObjectKey, i128)>,
    uses: u64,
    /// Completion time of all queued work, minus the drift.
    free_at: i128,
    drift: i128,
}

impl Shadow {
    fn new(limits: CacheLimits, sizes: CacheSizes) -> Self {
        Shadow {
            limits,
            sizes,
            lists: HashMap::new(),
            lists_by_use: BTreeMap::new(),
            commons: HashMap::new(),
            objects: HashMap::new(),
            free_by_use: BTreeMap::new(),
            uses: 0,
            free_at: 0,
            drift: 0,
        }
    }

    fn free_at(&self) -> i128 {
        self.free_at + self.drift
    }

    fn is_old(&self, used: i128, now: i128) -> bool {
        now - used > self.limits.age.as_nanos() as i128
    }

    /// Returns the cache hits of a request that starts at `now`; calls are in order of start time.
    fn look(&mut self, class: &Class, now: i128) -> Found {
        self.expire(now);
        if self.lists.contains_key(&class.id) {
            return Found::List;
        }
        let has = |key: (CachedRule, TraitId)| u8::from(self.objects.contains_key(&key)) << key.0.index();
        let rules = class.cached_rules().map(has).fold(0, |all, bit| all | bit);
        Found::Parts { rules, common: self.commons.contains_key(&class.common_id()) }
    }

    /// Serves a request that starts at `now`, after [`Shadow::look`].
    fn serve(&mut self, class: &Arc<Class>, now: i128) {
        self.uses += 1;
        let order = self.uses;
        if let Some((before, _)) = self.lists.get_mut(&class.id) {
            self.lists_by_use.remove(before);
            *before = order;
            self.lists_by_use.insert(order, (class.id, now));
        } else {
            self.pin_objects(class);
            let users = self.commons.entry(class.common_id()).or_default();
            *users += 1;
            if *users == 1 {
                self.pin_objects(Class::common(class));
            }
            self.lists.insert(class.id, (order, class.clone()));
            self.lists_by_use.insert(order, (class.id, now));
        }
        self.shrink();
    }

    fn pin_objects(&mut self, class: &Class) {
        for key in class.cached_rules() {
            let (pins, free) = self.objects.entry(key).or_insert((0, 0));
            if *pins == 0 {
                self.free_by_use.remove(free);
            }
            *pins += 1;
        }
    }

    fn unpin_objects(&mut self, class: &Class, used: i128) {
        for key in class.cached_rules() {
            if let Some((pins, free)) = self.objects.get_mut(&key) {
                *pins -= 1;
                if *pins == 0 {
                    self.uses += 1;
                    *free = self.uses;
                    self.free_by_use.insert(self.uses, (key, used));
                }
            }
        }
    }

    fn expire(&mut self, now: i128) {
        while let Some((_, (class, used))) = self.lists_by_use.first_key_value()
            && self.is_old(*used, now)
        {
            self.evict_list(*class);
        }
        while let Some((_, (_, used))) = self.free_by_use.first_key_value()
            && self.is_old(*used, now)
        {
            self.evict_oldest_object();
        }
    }

    fn shrink(&mut self) {
        loop {
            let CacheSizes { list, common, object } = self.sizes;
            let bytes = self.lists.len() * list + self.commons.len() * common + self.objects.len() * object;
            let heavy = bytes > self.limits.bytes;
            let crowded = self.free_by_use.len() > self.limits.slots;
            if crowded || heavy && !self.free_by_use.is_empty() {
                self.evict_oldest_object();
            } else if self.lists.len() > 1
                && (heavy || self.lists.len() > self.limits.slots)
                && let Some((_, (class, _))) = self.lists_by_use.first_key_value()
            {
                self.evict_list(*class);
            } else {
                return;
            }
        }
    }

    fn evict_oldest_object(&mut self) {
        if let Some((_, (key, _))) = self.free_by_use.pop_first() {
            self.objects.remove(&key);
        }
    }

    fn evict_list(&mut self, class: ClassId) {
        let Some((order, class)) = self.lists.remove(&class) else {
            return;
        };
        let used = self.lists_by_use.remove(&order).map_or(0, |(_, used)| used);
        self.unpin_objects(&class, used);
        if let Some(users) = self.commons.get_mut(&class.common_id()) {
            *users -= 1;
            if *users == 0 {
                self.commons.remove(&class.common_id());
                self.unpin_objects(Class::common(&class), used);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_model::{Identity, Node, PodSpec};
    use berth_scheduler::agent::{Agent, AgentConfig, Rng};
    use berth_scheduler::class::Classifier;
    use berth_scheduler::inventory::Ledger;

    fn classes() -> Vec<Arc<Class>> {
        let mut classifier = Classifier::default();
        let class = |at: usize| {
            let node_selector = [("pool", format!("{}", at / 3))].into_iter().collect();
            let images = [Arc::from(format!("image-{}", at / 2))].into();
            let spec = PodSpec { node_selector, images, containers: 1 + at as u32, ..PodSpec::default() };
            classifier.classify(&Arc::new(spec), &Identity::default(), 0)
        };
        (0..12).map(class).collect()
    }

    /// Returns a real agent's cache hits in the form of a shadow's.
    fn parts(agent: &mut Agent, class: &Arc<Class>, now: Duration) -> (bool, u8, bool) {
        let (mut list, mut rules, mut common) = (false, 0, false);
        agent.choose(class, now, |part| match part {
            Part::ListHit => list = true,
            Part::RuleHit(rule) => rules |= 1 << rule.index(),
            Part::CommonHit => common = true,
            _ => {}
        });
        (list, rules, common)
    }

    #[test]
    fn a_shadow_finds_what_a_real_agent_finds_whatever_limits_its_cache() {
        let (classes, mut ledger) = (classes(), Ledger::default());
        for at in 0..50 {
            ledger.apply_node(Node { name: format!("n{at}").into(), ..Node::default() });
        }
        let age = Duration::from_secs(40);
        for (limits, misses) in [
            (CacheLimits { slots: 4, ..CacheLimits::unlimited() }, 100..1900),
            (CacheLimits { slots: 6, age, ..CacheLimits::unlimited() }, 100..1900),
            (CacheLimits { bytes: 5_000, ..CacheLimits::unlimited() }, 100..1900),
            (CacheLimits::unlimited(), 12..13),
        ] {
            let config = AgentConfig { cache: limits, seed: 1 };
            let mut agent = Agent::new(config);
            agent.catch_up(ledger.inventory());
            let mut probe = Agent::new(AgentConfig { cache: CacheLimits::unlimited(), ..config });
            probe.catch_up(ledger.inventory());
            probe.choose(&classes[0], Duration::ZERO, |_| ());
            let ((list, common), stats) = (probe.list(classes[0].id).unwrap().bytes(), probe.cache_stats());
            let object = (stats.bytes - list - common) / stats.objects;
            let mut shadow = Shadow::new(limits, CacheSizes { list, common, object });
            let (mut rng, mut now, mut missed) = (Rng(7), Duration::ZERO, 0);
            for step in 0..2000 {
                // Low numbers are more frequent, so that some entries stay and some are evicted.
                let class = &classes[(rng.next() % 12).min(rng.next() % 12) as usize];
                now += Duration::from_secs(rng.next() % 12);
                let expected = match shadow.look(class, now.as_nanos() as i128) {
                    Found::List => (true, 0, false),
                    Found::Parts { rules, common } => (false, rules, common),
                };
                shadow.serve(class, now.as_nanos() as i128);
                let found = parts(&mut agent, class, now);
                assert_eq!(expected, found, "step {step}, {limits:?}");
                missed += usize::from(!found.0);
            }
            assert!(misses.contains(&missed), "{missed} misses with {limits:?}");
        }
    }

    #[test]
    fn an_agent_that_is_late_is_late_for_what_follows() {
        let limits = CacheLimits::unlimited();
        let shadow = || Shadow::new(limits, CacheSizes { list: 1, common: 1, object: 1 });
        let mut quality = CacheQuality { costs: Costs::azure(), shadows: vec![shadow(), shadow()] };
        let (class, ms) = (&classes()[0], Duration::from_millis);
        let first = quality.assigned(class, 0, 1.0, ms(0));
        assert_eq!((first.takes, first.best, first.is_best()), (ms(88), ms(88), true));
        // A hit behind it completes sooner than a miss elsewhere: 102 ms against 88 + 88.
        let second = quality.assigned(class, 1, 1.0, ms(0));
        assert_eq!((second.takes, second.best), (ms(88), ms(88)));
        quality.finished(0, &first, ms(100));
        let third = quality.assigned(class, 0, 1.0, ms(90));
        assert_eq!((third.takes, third.best), (ms(24), ms(14)), "12 ms late, and then a hit");
        assert!(!third.is_best() && (third.gap() - 10.0 / 14.0).abs() < 1e-9);
    }
}
