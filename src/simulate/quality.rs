//! How good a choice of agent was: what each agent would really have taken, known from what each one's caches will really
//! hold, with evictions, when all that waits there has been served.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::cost::Costs;
use super::world::Setup;
use crate::agent::{CacheLimits, Part};
use crate::class::{Class, ClassId, TraitId};
use crate::rules::CachedRule;

/// Bytes of one ranked list and of one rule object.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    pub list: usize,
    pub object: usize,
}

/// One shadow an agent.
pub struct Quality {
    costs: Costs,
    shadows: Vec<Shadow>,
}

/// What became of one assignment.
#[derive(Debug, Clone, Copy)]
pub struct Judged {
    /// From arrival to done, at the agent that was chosen and at the best one.
    takes: Duration,
    best: Duration,
    /// When it will be done, less the shadow's drift.
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

impl Quality {
    pub fn new(setup: &Setup, sizes: Sizes) -> Self {
        let shadow = || Shadow::new(setup.cache, sizes);
        Quality { costs: setup.costs.clone(), shadows: (0..setup.agents).map(|_| shadow()).collect() }
    }

    /// A request of this class, which takes `factor` times the usual, goes to `agent`.
    pub fn assigned(&mut self, class: &Arc<Class>, agent: usize, factor: f64, now: Duration) -> Judged {
        let now = now.as_nanos() as i128;
        let done = |shadow: &Shadow| {
            let start = shadow.free_at().max(now);
            start + self.costs.takes(shadow.look(class, start), class, factor).as_nanos() as i128
        };
        let all: Vec<i128> = self.shadows.iter().map(done).collect();
        let best = all.iter().copied().min().unwrap_or(now);
        let shadow = &mut self.shadows[agent];
        let start = shadow.free_at().max(now);
        shadow.serve(class, start);
        shadow.free_at = all[agent] - shadow.drift;
        let since = |done: i128| Duration::from_nanos((done - now).max(1) as u64);
        Judged { takes: since(all[agent]), best: since(best), done: all[agent] - shadow.drift }
    }

    /// A request was done later or earlier than foreseen (conflicts, parked classes): so will be what follows it.
    pub fn finished(&mut self, agent: usize, judged: &Judged, now: Duration) {
        self.shadows[agent].drift = now.as_nanos() as i128 - judged.done;
    }
}

impl Costs {
    fn takes(&self, found: Found, class: &Class, factor: f64) -> Duration {
        let parts = match found {
            Found::List => self.of(Part::ListHit),
            Found::Rules(found) => {
                let rules = class.cached_rules().map(|(rule, _)| {
                    let hit = found & (1 << rule.index()) != 0;
                    self.of(if hit { Part::RuleHit(rule) } else { Part::RuleMiss(rule) }).mul_f64(factor)
                });
                return rules.sum::<Duration>() + self.of(Part::ListMiss).mul_f64(factor);
            }
        };
        parts.mul_f64(factor)
    }
}

#[derive(Clone, Copy)]
enum Found {
    List,
    /// A bit a rule.
    Rules(u8),
}

type ObjectKey = (CachedRule, TraitId);

/// An agent's caches without their content: what `agent/cache.rs` does, for lists of one size.
struct Shadow {
    limits: CacheLimits,
    sizes: Sizes,
    lists: HashMap<ClassId, (u64, Arc<Class>)>,
    lists_by_use: BTreeMap<u64, (ClassId, i128)>,
    /// How many lists pin it, and its use if none does.
    objects: HashMap<ObjectKey, (usize, u64)>,
    free_by_use: BTreeMap<u64, (ObjectKey, i128)>,
    uses: u64,
    /// When all that waits is done, less the drift.
    free_at: i128,
    drift: i128,
}

impl Shadow {
    fn new(limits: CacheLimits, sizes: Sizes) -> Self {
        Shadow {
            limits,
            sizes,
            lists: HashMap::new(),
            lists_by_use: BTreeMap::new(),
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

    fn look(&self, class: &Class, now: i128) -> Found {
        if let Some((order, _)) = self.lists.get(&class.id)
            && !self.is_old(self.lists_by_use[order].1, now)
        {
            return Found::List;
        }
        let has = |(rule, value): (CachedRule, TraitId)| match self.objects.get(&(rule, value)) {
            Some((0, order)) if self.is_old(self.free_by_use[order].1, now) => 0,
            Some(_) => 1 << rule.index(),
            None => 0,
        };
        Found::Rules(class.cached_rules().map(has).fold(0, |all, bit| all | bit))
    }

    fn serve(&mut self, class: &Arc<Class>, now: i128) {
        self.expire(now);
        self.uses += 1;
        let order = self.uses;
        if let Some((before, _)) = self.lists.get_mut(&class.id) {
            self.lists_by_use.remove(before);
            *before = order;
            self.lists_by_use.insert(order, (class.id, now));
        } else {
            for key in class.cached_rules() {
                let (pins, free) = self.objects.entry(key).or_insert((0, 0));
                if *pins == 0 {
                    self.free_by_use.remove(free);
                }
                *pins += 1;
            }
            self.lists.insert(class.id, (order, class.clone()));
            self.lists_by_use.insert(order, (class.id, now));
        }
        self.shrink();
    }

    fn expire(&mut self, now: i128) {
        while let Some((_, (class, used))) = self.lists_by_use.first_key_value()
            && self.is_old(*used, now)
        {
            self.evict_list(*class);
        }
        while let Some((order, (key, used))) = self.free_by_use.first_key_value()
            && self.is_old(*used, now)
        {
            let (order, key) = (*order, *key);
            self.free_by_use.remove(&order);
            self.objects.remove(&key);
        }
    }

    fn shrink(&mut self) {
        loop {
            let bytes = self.lists.len() * self.sizes.list + self.objects.len() * self.sizes.object;
            let heavy = bytes > self.limits.bytes;
            let crowded = self.free_by_use.len() > self.limits.slots;
            if let Some((order, (key, _))) = self.free_by_use.first_key_value()
                && (heavy || crowded)
            {
                let (order, key) = (*order, *key);
                self.free_by_use.remove(&order);
                self.objects.remove(&key);
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

    fn evict_list(&mut self, class: ClassId) {
        let Some((order, class)) = self.lists.remove(&class) else {
            return;
        };
        let used = self.lists_by_use.remove(&order).map_or(0, |(_, used)| used);
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
}
