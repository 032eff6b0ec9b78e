//! The cache levels of an agent: ranked lists by class, common lists of classes, and below them rule objects by rule and trait.
//!
//! While a list is cached, its common list and its rule objects are pinned; a common list goes with its last list. Over
//! the memory limit the least recently used entries are evicted: first lists over the budget of their policy, then rule
//! objects that no list pins, then lists. Entries unused for longer than the age limit are evicted too (Kamino, section
//! 5). Lists that are built in the turn of a pod that was held back (`scheduler/crowds.rs`) evict no others: each takes
//! the place of the one before.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Part;
use super::common::{CommonList, ListObjects, ListSources};
use super::domains::{Domains, TopologyId};
use super::list::{RankedList, WholeList};
use super::object::RuleObject;
use super::scoped::{CommonGround, Scoped};
use super::view::View;
use crate::class::{Class, ClassId, TraitId};
use crate::inventory::Revision;
use crate::rules::{CachedRule, Salt};

/// Limits of one agent's caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheLimits {
    /// Bytes of lists, common lists, rule objects and domain counts together. Only the list in use may exceed it.
    pub bytes: usize,
    /// Number of lists; the same number of unpinned rule objects is kept.
    pub slots: usize,
    pub age: Duration,
}

impl CacheLimits {
    pub const fn unlimited() -> Self {
        CacheLimits { bytes: usize::MAX, slots: usize::MAX, age: Duration::MAX }
    }
}

/// Cache change that the dispatcher must know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheChange {
    ListAdded(ClassId),
    /// Evicted because a limit was exceeded.
    ListEvicted(ClassId),
    /// Dropped because it was unused for too long, or was built for a turn.
    ListExpired(ClassId),
    /// A list for the common part of classes.
    CommonAdded(ClassId),
    CommonEvicted(ClassId),
    ObjectAdded(CachedRule, TraitId),
    ObjectEvicted(CachedRule, TraitId),
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheStats {
    pub lists: usize,
    /// Number of lists that these share.
    pub commons: usize,
    pub objects: usize,
    pub bytes: usize,
    /// Number of lists evicted since the start.
    pub evictions: u64,
}

type ObjectKey = (CachedRule, TraitId);

/// A class that is the common part of others, and their coarse topologies.
type CommonKey = (ClassId, Box<[TopologyId]>);

#[derive(Debug)]
struct ListEntry {
    list: RankedList,
    common: CommonKey,
    used: Used,
}

#[derive(Debug)]
struct CommonEntry {
    list: CommonList,
    /// Number of cached lists that share it.
    users: usize,
}

#[derive(Debug)]
struct ObjectEntry {
    object: RuleObject,
    /// Number of cached lists, common ones included, that are built from it.
    pins: usize,
    used: Used,
}

/// Last use of an entry: a sequence number that orders uses, and a time.
#[derive(Debug, Clone, Copy)]
struct Used {
    order: u64,
    at: Duration,
}

#[derive(Debug)]
pub(super) struct Cache {
    limits: CacheLimits,
    salt: Salt,
    lists: HashMap<ClassId, ListEntry>,
    commons: HashMap<CommonKey, CommonEntry>,
    objects: HashMap<ObjectKey, ObjectEntry>,
    /// Least recently used first.
    lists_by_use: BTreeMap<u64, ClassId>,
    /// Unpinned rule objects only.
    free_objects_by_use: BTreeMap<u64, ObjectKey>,
    uses: u64,
    bytes: usize,
    evictions: u64,
    /// The list built for a turn, unless it has been used otherwise: the next one takes its place.
    of_turn: Option<ClassId>,
    changes: Vec<CacheChange>,
    repaired: Repaired,
}

/// The lists that are known to be as new as the view.
#[derive(Debug, Default)]
struct Repaired {
    /// Revision of the view.
    revision: Revision,
    /// Lists that were used until then were as new.
    order: u64,
}

impl Cache {
    pub fn new(limits: CacheLimits, salt: Salt) -> Self {
        Cache {
            limits,
            salt,
            lists: HashMap::new(),
            commons: HashMap::new(),
            objects: HashMap::new(),
            lists_by_use: BTreeMap::new(),
            free_objects_by_use: BTreeMap::new(),
            uses: 0,
            bytes: 0,
            evictions: 0,
            of_turn: None,
            changes: Vec::new(),
            repaired: Repaired::default(),
        }
    }

    /// Returns the list of `class`, up to date with `view`: repaired from the cache, or built.
    pub fn list(
        &mut self,
        class: &Arc<Class>,
        view: &View,
        domains: &mut Domains,
        now: Duration,
        mut lap: impl FnMut(Part),
    ) -> WholeList<'_> {
        self.expire(now, domains);
        self.uses += 1;
        let used = Used { order: self.uses, at: now };
        let id = class.id;
        if let Some(entry) = self.lists.get_mut(&id) {
            self.lists_by_use.remove(&entry.used.order);
            entry.used = used;
            self.lists_by_use.insert(used.order, id);
            self.refresh(id, view, domains);
            // The list may have grown with the cluster.
            self.shrink(id, domains);
            lap(Part::ListHit);
        } else {
            self.pin_objects(class, view, used, &mut lap);
            let scoped = Scoped::acquire(class, domains, view);
            let common = self.share_common(class, scoped.as_ref(), view, domains, used, &mut lap);
            let objects = objects_of(&self.objects, class);
            let sources = ListSources { salt: self.salt, objects, view, domains };
            let list = RankedList::build(class, scoped, sources, &self.commons[&common].list);
            self.bytes += list.bytes();
            self.lists.insert(id, ListEntry { list, common, used });
            self.lists_by_use.insert(used.order, id);
            self.changes.push(CacheChange::ListAdded(id));
            self.shrink(id, domains);
            lap(Part::ListMiss);
        }
        let entry = &self.lists[&id];
        WholeList::new(&entry.list, &self.commons[&entry.common].list)
    }

    /// Repairs or builds the common list of `class` for one more list, and returns its key. The rule objects of the class, apart from
    /// its images, are those of the common list.
    fn share_common(
        &mut self,
        class: &Arc<Class>,
        scoped: Option<&Scoped>,
        view: &View,
        domains: &mut Domains,
        used: Used,
        lap: &mut impl FnMut(Part),
    ) -> CommonKey {
        let common = Class::common(class);
        let coarse = scoped.map_or(&[][..], Scoped::coarse);
        let key: CommonKey = (common.id, coarse.into());
        if let Some(entry) = self.commons.get_mut(&key) {
            entry.users += 1;
            self.repair_common(&key, view, domains);
            lap(Part::CommonHit);
            return key;
        }
        let ground = CommonGround::acquire(common, coarse, domains, view);
        self.pin_objects(common, view, used, &mut |_| {});
        let objects = objects_of(&self.objects, common);
        let list = CommonList::build(common, ground, ListSources { salt: self.salt, objects, view, domains });
        self.bytes += list.bytes();
        self.commons.insert(key.clone(), CommonEntry { list, users: 1 });
        self.changes.push(CacheChange::CommonAdded(common.id));
        lap(Part::CommonMiss);
        key
    }

    fn repair_common(&mut self, key: &CommonKey, view: &View, domains: &Domains) {
        let Some(entry) = self.commons.get_mut(key).filter(|entry| entry.list.revision() != view.revision())
        else {
            return;
        };
        let class = entry.list.class().clone();
        self.bytes += repair_objects(&mut self.objects, &class, view);
        let objects = objects_of(&self.objects, &class);
        let before = entry.list.bytes();
        entry.list.repair(ListSources { salt: self.salt, objects, view, domains });
        self.bytes = self.bytes + entry.list.bytes() - before;
    }

    /// Gives up the share of one list.
    fn leave_common(&mut self, key: &CommonKey, at: Duration, domains: &mut Domains) {
        let Some(entry) = self.commons.get_mut(key) else {
            return;
        };
        entry.users -= 1;
        if entry.users > 0 {
            return;
        }
        if let Some(CommonEntry { list, .. }) = self.commons.remove(key) {
            self.bytes -= list.bytes();
            self.unpin_objects(list.class(), at);
            list.into_ground().release(domains);
            // The dispatcher does not distinguish their cells.
            if !self.commons.keys().any(|(other, _)| *other == key.0) {
                self.changes.push(CacheChange::CommonEvicted(key.0));
            }
        }
    }

    /// Repairs or builds the rule objects of `class`, and pins them for its list.
    fn pin_objects(&mut self, class: &Arc<Class>, view: &View, used: Used, lap: &mut impl FnMut(Part)) {
        for (rule, value) in class.cached_rules() {
            let key = (rule, value);
            if let Some(entry) = self.objects.get_mut(&key) {
                if entry.pins == 0 {
                    self.free_objects_by_use.remove(&entry.used.order);
                }
                entry.pins += 1;
                let before = entry.object.bytes();
                entry.object.repair(view);
                self.bytes = self.bytes + entry.object.bytes() - before;
                lap(Part::RuleHit(rule));
            } else {
                let object = RuleObject::build(rule, class, view);
                self.bytes += object.bytes();
                self.objects.insert(key, ObjectEntry { object, pins: 1, used });
                self.changes.push(CacheChange::ObjectAdded(rule, value));
                lap(Part::RuleMiss(rule));
            }
        }
    }

    fn unpin_objects(&mut self, class: &Class, at: Duration) {
        for key in class.cached_rules() {
            let Some(object) = self.objects.get_mut(&key) else {
                continue;
            };
            object.pins -= 1;
            if object.pins == 0 {
                // Unpinned from now on. A use number of its own keeps the order total.
                self.uses += 1;
                object.used = Used { order: self.uses, at };
                self.free_objects_by_use.insert(object.used.order, key);
            }
        }
    }

    /// Repairs the list of `class`, its common list and its rule objects if it is cached. Does not count as a use.
    pub fn refresh(&mut self, class: ClassId, view: &View, domains: &mut Domains) -> bool {
        domains.advance(view);
        match self.lists.get(&class) {
            None => return false,
            Some(entry) if entry.list.revision() == view.revision() => return true,
            Some(_) => {}
        }
        if let Some(mut entry) = self.lists.remove(&class) {
            self.refresh_entry(&mut entry, view, domains);
            self.lists.insert(class, entry);
        }
        true
    }

    fn refresh_entry(&mut self, entry: &mut ListEntry, view: &View, domains: &mut Domains) {
        let class = entry.list.class.clone();
        self.bytes += repair_objects(&mut self.objects, &class, view);
        let before = entry.list.bytes();
        if entry.list.is_outdated(view, domains) {
            // Acquires the new one first, so that what is used by both is kept.
            let scoped = Scoped::acquire(&class, domains, view);
            let common = self.share_common(&class, scoped.as_ref(), view, domains, entry.used, &mut |_| {});
            let former = std::mem::replace(&mut entry.common, common);
            self.leave_common(&former, entry.used.at, domains);
            if let Some(old) = entry.list.take_scoped() {
                old.release(&class, domains);
            }
            let objects = objects_of(&self.objects, &class);
            let sources = ListSources { salt: self.salt, objects, view, domains };
            entry.list = RankedList::build(&class, scoped, sources, &self.commons[&entry.common].list);
        } else {
            self.repair_common(&entry.common, view, domains);
            let objects = objects_of(&self.objects, &class);
            let sources = ListSources { salt: self.salt, objects, view, domains };
            entry.list.repair(sources, &self.commons[&entry.common].list);
        }
        self.bytes = self.bytes + entry.list.bytes() - before;
    }

    /// Repairs the least recently used list that is behind. Returns whether there was one. Visits each list once for each
    /// revision of the view.
    pub fn repair_one(&mut self, view: &View, domains: &mut Domains) -> bool {
        if self.repaired.revision != view.revision() {
            self.repaired = Repaired { revision: view.revision(), order: 0 };
        }
        // Lists that are used go to the end.
        while let Some((order, class)) = self.lists_by_use.range(self.repaired.order + 1..).next() {
            let class = *class;
            self.repaired.order = *order;
            if self.lists.get(&class).is_some_and(|entry| entry.list.revision() != view.revision()) {
                return self.refresh(class, view, domains);
            }
        }
        false
    }

    /// Returns what the cached list of a class adds to its common list, as of its own revision.
    pub fn own_part(&self, class: ClassId) -> Option<&RankedList> {
        self.lists.get(&class).map(|entry| &entry.list)
    }

    /// Returns the cached list of a class, which must have been refreshed since the view changed.
    pub fn peek(&self, class: ClassId) -> Option<WholeList<'_>> {
        let entry = self.lists.get(&class)?;
        let common = &self.commons.get(&entry.common)?.list;
        debug_assert_eq!(entry.list.revision(), common.revision(), "the list is behind its common list");
        Some(WholeList::new(&entry.list, common))
    }

    /// Prepares for the use of the list of `class`, in a turn or otherwise.
    pub fn expect(&mut self, class: ClassId, in_turn: bool, domains: &mut Domains) {
        if !in_turn {
            self.of_turn.take_if(|of_turn| *of_turn == class);
        } else if !self.lists.contains_key(&class)
            && let Some(former) = self.of_turn.replace(class)
        {
            self.drop_list(former, domains);
            self.changes.push(CacheChange::ListExpired(former));
        }
    }

    /// Evicts entries unused since `now - age`.
    pub fn expire(&mut self, now: Duration, domains: &mut Domains) {
        let age = self.limits.age;
        let old = |used: Used| now.saturating_sub(used.at) > age;
        while let Some(class) = self.lists_by_use.values().next().copied()
            && old(self.lists[&class].used)
        {
            self.drop_list(class, domains);
            self.changes.push(CacheChange::ListExpired(class));
        }
        while let Some(key) = self.free_objects_by_use.values().next().copied()
            && old(self.objects[&key].used)
        {
            self.evict_object(key);
        }
    }

    /// Evicts until the limits are met; never the list of `keep`.
    fn shrink(&mut self, keep: ClassId, domains: &mut Domains) {
        self.keep_budget(keep, domains);
        let CacheLimits { bytes, slots, .. } = self.limits;
        loop {
            let heavy = self.bytes + domains.bytes() > bytes;
            let oldest_object = self.free_objects_by_use.values().next().copied();
            if let Some(key) = oldest_object.filter(|_| heavy || self.free_objects_by_use.len() > slots) {
                self.evict_object(key);
                continue;
            }
            let oldest_list = self.lists_by_use.values().next().copied();
            match oldest_list.filter(|class| *class != keep && (heavy || self.lists.len() > slots)) {
                Some(class) => {
                    self.drop_list(class, domains);
                    self.changes.push(CacheChange::ListEvicted(class));
                }
                None => return,
            }
        }
    }

    /// Keeps the lists of classes under the policy of `keep` within that policy's budget: evicts the least recently
    /// used.
    fn keep_budget(&mut self, keep: ClassId, domains: &mut Domains) {
        let placement = self.lists.get(&keep).map(|entry| entry.list.class.placement.clone());
        let Some((placement, budget)) = placement.and_then(|p| p.cache_bytes.map(|bytes| (p, bytes))) else {
            return;
        };
        let of_policy = |class: &Class| class.placement == placement;
        let theirs: Vec<ClassId> = (self.lists_by_use.values().copied())
            .filter(|class| of_policy(&self.lists[class].list.class))
            .collect();
        let lists = theirs.iter().map(|class| self.lists[class].list.bytes());
        let commons = self.commons.values().filter(|entry| of_policy(entry.list.class()));
        let mut bytes = lists.chain(commons.map(|entry| entry.list.bytes())).sum::<usize>();
        for class in theirs.into_iter().filter(|class| *class != keep) {
            if bytes <= budget {
                return;
            }
            let before = self.bytes;
            self.drop_list(class, domains);
            bytes -= before - self.bytes;
            self.changes.push(CacheChange::ListEvicted(class));
        }
    }

    fn drop_list(&mut self, class: ClassId, domains: &mut Domains) {
        let Some(mut entry) = self.lists.remove(&class) else {
            return;
        };
        self.lists_by_use.remove(&entry.used.order);
        self.of_turn.take_if(|of_turn| *of_turn == class);
        self.bytes -= entry.list.bytes();
        if let Some(scoped) = entry.list.take_scoped() {
            scoped.release(&entry.list.class, domains);
        }
        self.evictions += 1;
        let at = entry.used.at;
        self.unpin_objects(&entry.list.class, at);
        self.leave_common(&entry.common, at, domains);
    }

    fn evict_object(&mut self, key: ObjectKey) {
        let Some(entry) = self.objects.remove(&key) else {
            return;
        };
        debug_assert_eq!(entry.pins, 0, "a pinned rule object is never evicted");
        self.free_objects_by_use.remove(&entry.used.order);
        self.bytes -= entry.object.bytes();
        self.changes.push(CacheChange::ObjectEvicted(key.0, key.1));
    }

    pub fn take_changes(&mut self) -> Vec<CacheChange> {
        std::mem::take(&mut self.changes)
    }

    pub fn stats(&self, domains: &Domains) -> CacheStats {
        CacheStats {
            lists: self.lists.len(),
            commons: self.commons.len(),
            objects: self.objects.len(),
            bytes: self.bytes + domains.bytes(),
            evictions: self.evictions,
        }
    }
}

/// Brings the rule objects of a class up to date. Returns by how many bytes they have grown.
fn repair_objects(objects: &mut HashMap<ObjectKey, ObjectEntry>, class: &Class, view: &View) -> usize {
    let mut grown = 0;
    for key in class.cached_rules() {
        if let Some(entry) = objects.get_mut(&key) {
            let before = entry.object.bytes();
            entry.object.repair(view);
            grown += entry.object.bytes() - before;
        }
    }
    grown
}

fn objects_of<'a>(objects: &'a HashMap<ObjectKey, ObjectEntry>, class: &Class) -> ListObjects<'a> {
    let mut found: ListObjects = [None; CachedRule::COUNT];
    for key in class.cached_rules() {
        found[key.0.index()] = objects.get(&key).map(|entry| &entry.object);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::{ClassContext, Classifier};
    use crate::inventory::Ledger;
    use crate::rules::PlacementSettings;
    use berth_model::{Amounts, Identity, Labels, Node, PodSelector, PodSpec, Spread, SpreadConstraint};

    const SALT: Salt = Salt(1);

    fn add_node(ledger: &mut Ledger, at: usize) {
        ledger.apply_node(Node { name: format!("n{at}").into(), ..Node::default() });
    }

    fn ledger(nodes: usize) -> Ledger {
        let mut ledger = Ledger::default();
        (0..nodes).for_each(|at| add_node(&mut ledger, at));
        ledger
    }

    fn view(nodes: usize) -> View {
        let mut view = View::default();
        view.catch_up(ledger(nodes).inventory());
        view
    }

    /// Returns a class with trait `a` under one rule and (a, b) under another, as in Kamino's table 1, where rule 1
    /// reads a and b, and rule 2 reads a.
    fn class(classifier: &mut Classifier, a: &str, b: &str) -> Arc<Class> {
        let node_selector: Labels = [("a", a)].into_iter().collect();
        let spec =
            PodSpec { node_selector, images: [Arc::from(format!("{a}{b}"))].into(), ..PodSpec::default() };
        classifier.classify(&Arc::new(spec), &Identity::default(), 0)
    }

    fn parts(cache: &mut Cache, class: &Arc<Class>, view: &View, at_s: u64) -> Vec<Part> {
        let mut parts = Vec::new();
        cache.list(class, view, &mut Domains::default(), Duration::from_secs(at_s), |part| parts.push(part));
        parts
    }

    #[test]
    fn hits_and_misses_of_both_levels_are_those_of_kaminos_table_1() {
        use CachedRule::*;
        let (mut classifier, view) = (Classifier::default(), view(3));
        let limits = CacheLimits::unlimited();
        let mut cache = Cache::new(limits, SALT);
        let (one, two) = (class(&mut classifier, "a1", "b1"), class(&mut classifier, "a1", "b2"));
        let first = parts(&mut cache, &one, &view, 0);
        let missed = [TaintToleration, NodeAffinity, ImageLocality].map(Part::RuleMiss);
        assert_eq!(first, [missed.as_slice(), &[Part::CommonMiss, Part::ListMiss]].concat());
        assert_eq!(
            parts(&mut cache, &two, &view, 1),
            [
                Part::RuleHit(TaintToleration),
                Part::RuleHit(NodeAffinity),
                Part::RuleMiss(ImageLocality),
                Part::CommonHit,
                Part::ListMiss
            ]
        );
        assert_eq!(parts(&mut cache, &one, &view, 2), [Part::ListHit]);
    }

    #[test]
    fn no_more_candidates_are_offered_than_asked_for() {
        let mut ledger = Ledger::default();
        for at in 0..9 {
            let labels = [("zone", ["a", "b"][at % 2])].into_iter().collect();
            let allocatable = Amounts { pods: 9, ..Amounts::default() };
            ledger.apply_node(Node { name: format!("n{at}").into(), labels, allocatable, ..Node::default() });
        }
        let mut view = View::default();
        view.catch_up(ledger.inventory());
        let soft = SpreadConstraint {
            topology_key: "zone".into(),
            max_skew: 1,
            min_domains: 1,
            hard: false,
            selector: PodSelector::default(),
            self_match: true,
            honor_affinity: true,
            honor_taints: false,
        };
        for constraints in [Vec::new(), vec![soft]] {
            let spread = Spread { constraints: constraints.into(), defaulted: false };
            let spec = Arc::new(PodSpec { spread, ..PodSpec::default() });
            let class = Classifier::default().classify(&spec, &Identity::default(), 0);
            let mut cache = Cache::new(CacheLimits::unlimited(), SALT);
            let mut domains = Domains::default();
            let list = cache.list(&class, &view, &mut domains, Duration::ZERO, |_| {});
            let offered = [2, 5, 10].map(|k| list.best_k(&domains, k).len());
            assert_eq!(offered, [2, 5, 9]);
        }
    }

    #[test]
    fn over_the_memory_limit_the_least_recently_used_list_goes_and_its_objects_only_when_unpinned() {
        let (mut classifier, view) = (Classifier::default(), view(100));
        let [a, b, c] = ["1", "2", "3"].map(|a| class(&mut classifier, a, "b"));
        let mut probe = Cache::new(CacheLimits::unlimited(), SALT);
        for class in [&a, &b] {
            parts(&mut probe, class, &view, 0);
        }
        let bytes = probe.stats(&Domains::default()).bytes;
        let mut cache = Cache::new(CacheLimits { bytes, ..CacheLimits::unlimited() }, SALT);
        for class in [&a, &b, &a, &c] {
            parts(&mut cache, class, &view, 0);
        }
        assert!(cache.peek(b.id).is_none() && cache.peek(a.id).is_some() && cache.peek(c.id).is_some());
        assert!(cache.stats(&Domains::default()).bytes <= probe.stats(&Domains::default()).bytes);
        let evicted: Vec<_> = cache
            .take_changes()
            .into_iter()
            .filter(|c| matches!(c, CacheChange::ListEvicted(_) | CacheChange::ObjectEvicted(..)))
            .collect();
        let object = |rule: CachedRule| CacheChange::ObjectEvicted(rule, b.traits[rule.index()].unwrap());
        let objects = [CachedRule::ImageLocality, CachedRule::NodeAffinity].map(object);
        assert_eq!(evicted, [&[CacheChange::ListEvicted(b.id)], &objects[..]].concat());
    }

    #[test]
    fn lists_of_a_policy_with_a_budget_only_push_out_each_other() {
        let (mut classifier, view) = (Classifier::default(), view(100));
        let mut probe = Cache::new(CacheLimits::unlimited(), SALT);
        let free = class(&mut classifier, "a", "free");
        parts(&mut probe, &free, &view, 0);
        let (own, common) = probe.peek(free.id).unwrap().bytes();
        let cache_bytes = Some(2 * (own + common));
        let placement = PlacementSettings { cache_bytes, ..PlacementSettings::default() };
        let placement = Arc::new(placement);
        let [a, b, c] = ["1", "2", "3"].map(|b| {
            let spec = class(&mut classifier, b, "b").spec.clone();
            let context = ClassContext { placement: placement.clone(), ..ClassContext::default() };
            classifier.classify_in(context, &spec, &Identity::default(), 0)
        });
        let mut cache = Cache::new(CacheLimits::unlimited(), SALT);
        for class in [&free, &a, &b, &a, &c] {
            parts(&mut cache, class, &view, 0);
        }
        let cached = [&free, &a, &b, &c].map(|class| cache.peek(class.id).is_some());
        assert_eq!(cached, [true, true, false, true]);
        assert!(cache.take_changes().contains(&CacheChange::ListEvicted(b.id)));
    }

    #[test]
    fn lists_of_turns_replace_each_other_unless_they_are_used_otherwise() {
        let (mut classifier, view) = (Classifier::default(), view(10));
        let mut cache = Cache::new(CacheLimits::unlimited(), SALT);
        let [kept, a, b, c] = ["kept", "1", "2", "3"].map(|b| class(&mut classifier, "a", b));
        parts(&mut cache, &kept, &view, 0);
        for in_turn in [&kept, &a, &a, &b] {
            cache.expect(in_turn.id, true, &mut Domains::default());
            parts(&mut cache, in_turn, &view, 0);
        }
        let cached = |cache: &Cache| [&kept, &a, &b, &c].map(|class| cache.peek(class.id).is_some());
        assert_eq!(cached(&cache), [true, false, true, false]);
        assert!(cache.take_changes().contains(&CacheChange::ListExpired(a.id)));
        cache.expect(b.id, false, &mut Domains::default());
        cache.expect(c.id, true, &mut Domains::default());
        parts(&mut cache, &c, &view, 0);
        assert_eq!(cached(&cache), [true, false, true, true]);
    }

    #[test]
    fn lists_that_outgrow_the_memory_limit_as_nodes_come_are_evicted_at_the_next_hit() {
        let mut classifier = Classifier::default();
        let [a, b] = ["1", "2"].map(|a| class(&mut classifier, a, "b"));
        let mut ledger = ledger(100);
        let mut view = View::default();
        view.catch_up(ledger.inventory());
        let mut cache = Cache::new(CacheLimits { bytes: 6500, ..CacheLimits::unlimited() }, SALT);
        for class in [&a, &b] {
            parts(&mut cache, class, &view, 0);
        }
        assert_eq!(cache.stats(&Domains::default()).evictions, 0);
        (100..200).for_each(|at| add_node(&mut ledger, at));
        view.catch_up(ledger.inventory());
        assert_eq!(parts(&mut cache, &a, &view, 1), [Part::ListHit]);
        assert!(cache.peek(a.id).is_some() && cache.peek(b.id).is_none());
        assert!(
            cache.stats(&Domains::default()).bytes <= 6500,
            "{} bytes",
            cache.stats(&Domains::default()).bytes
        );
    }

    #[test]
    fn what_is_not_used_for_longer_than_the_age_limit_goes_and_the_counts_return_to_zero() {
        let (mut classifier, view) = (Classifier::default(), view(10));
        let mut cache =
            Cache::new(CacheLimits { age: Duration::from_secs(60), ..CacheLimits::unlimited() }, SALT);
        let (a, b) = (class(&mut classifier, "a", "1"), class(&mut classifier, "b", "1"));
        parts(&mut cache, &a, &view, 0);
        parts(&mut cache, &b, &view, 50);
        cache.expire(Duration::from_secs(60), &mut Domains::default());
        assert!(cache.peek(a.id).is_some(), "not for longer than that");
        cache.expire(Duration::from_secs(70), &mut Domains::default());
        assert!(cache.peek(a.id).is_none() && cache.peek(b.id).is_some());
        cache.expire(Duration::from_secs(200), &mut Domains::default());
        assert_eq!(cache.stats(&Domains::default()), CacheStats { evictions: 2, ..CacheStats::default() });
    }
}
