//! Index of allocations: finds the allocation of a pod by the pod's labels, owner and group, without scanning all
//! allocations.
//!
//! Allocations that every member of which shares an attribute are found by it, the oldest first, and only the oldest
//! [`CONSIDERED_MAX`] of one attribute: so looking for the allocation of a pod is bounded, whoever creates how many.
//! Of all allocations of a namespace the oldest [`ALLOCATIONS_MAX`] count.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::{Allocation, AllocationKind, AllocationName, COSCHEDULING_LABEL, RoleMembers};
use berth_model::{LabelSelector, Oldest, Operator, Peer, Ranked};

/// The allocation that a pod belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership {
    pub name: AllocationName,
    /// Index of the pod's role in the allocation.
    pub role: usize,
    /// Next younger allocations that also match the pod, at most [`LOSERS_MAX`].
    pub losers: Box<[AllocationName]>,
}

/// Maximum number of allocations of a namespace, of all kinds: the oldest count.
pub const ALLOCATIONS_MAX: usize = 4_096;
/// Maximum number of allocations with one clue that may have pods.
pub const CONSIDERED_MAX: usize = 256;
/// Maximum number of allocations that are recorded as losers of one pod.
pub const LOSERS_MAX: usize = 16;

/// All allocations, indexed by clue.
#[derive(Debug)]
pub struct Allocations {
    all: BTreeMap<AllocationName, Arc<Allocation>>,
    /// Those beyond the limit of their namespace, which have no pods.
    beyond: BTreeMap<AllocationName, Arc<Allocation>>,
    oldest: Oldest<AllocationName>,
    by_clue: HashMap<Clue, BTreeSet<Age>>,
    /// Number of allocations with a clue that too many older ones have.
    ignored: usize,
}

impl Default for Allocations {
    fn default() -> Self {
        Allocations::new(ALLOCATIONS_MAX)
    }
}

/// Effects of one change on other allocations.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Shift {
    /// It counts from now on.
    pub promoted: Option<AllocationName>,
    /// It does not count any more.
    pub displaced: Option<Arc<Allocation>>,
}

/// Time of creation and name of an allocation: of two that match a pod, the lesser one has it.
type Age = (i64, AllocationName);

fn age_of(allocation: &Allocation) -> Age {
    (allocation.created_s, allocation.name.clone())
}

/// An attribute that every member of a role has.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Clue {
    Label {
        namespace: Arc<str>,
        key: Arc<str>,
        value: Arc<str>,
    },
    Owner {
        namespace: Arc<str>,
        kind: Arc<str>,
        name: Arc<str>,
    },
    Group {
        namespace: Arc<str>,
        name: Arc<str>,
    },
    /// Only the namespace.
    Any {
        namespace: Arc<str>,
    },
}

impl Allocations {
    /// Creates an index that counts the oldest `max` allocations of each namespace.
    pub fn new(max: usize) -> Self {
        Allocations {
            all: BTreeMap::new(),
            beyond: BTreeMap::new(),
            oldest: Oldest::new(max),
            by_clue: HashMap::new(),
            ignored: 0,
        }
    }

    /// Upserts an allocation. Returns what that changed for others; `None`: it did not change.
    pub fn apply(&mut self, allocation: Allocation) -> Option<Shift> {
        let known = self.all.get(&allocation.name).or_else(|| self.beyond.get(&allocation.name));
        let known = known.cloned();
        if known.as_ref().is_some_and(|known| **known == allocation) {
            return None;
        }
        let allocation = Arc::new(allocation);
        let (name, mut shift) = (allocation.name.clone(), Shift::default());
        if known.is_some_and(|known| known.created_s == allocation.created_s) {
            match self.discount(&name) {
                Some(_) => self.count(allocation),
                None => drop(self.beyond.insert(name, allocation)),
            }
            return Some(shift);
        }
        shift.promoted = self.delete(&name).and_then(|(_, promoted)| promoted);
        match self.oldest.insert(&name.namespace, allocation.created_s, name.clone()) {
            Ranked::Beyond => drop(self.beyond.insert(name, allocation)),
            Ranked::Counted => self.count(allocation),
            Ranked::Displaced(youngest) => {
                shift.displaced = self.discount(&youngest);
                self.beyond.extend(shift.displaced.clone().map(|displaced| (youngest, displaced)));
                self.count(allocation);
            }
        }
        Some(shift)
    }

    /// Deletes an allocation. Returns it and the one that counts from now on in its place; `None`: it was not known.
    pub fn delete(&mut self, name: &AllocationName) -> Option<(Arc<Allocation>, Option<AllocationName>)> {
        let gone = self.beyond.remove(name).or_else(|| self.discount(name))?;
        let promoted = self.oldest.remove(&name.namespace, gone.created_s, name);
        if let Some(next) = promoted.as_ref().and_then(|next| self.beyond.remove(next)) {
            self.count(next);
        }
        Some((gone, promoted))
    }

    fn count(&mut self, allocation: Arc<Allocation>) {
        for clue in clues_of(&allocation) {
            let ages = self.by_clue.entry(clue).or_default();
            self.ignored += usize::from(ages.insert(age_of(&allocation)) && ages.len() > CONSIDERED_MAX);
        }
        self.all.insert(allocation.name.clone(), allocation);
    }

    fn discount(&mut self, name: &AllocationName) -> Option<Arc<Allocation>> {
        let gone = self.all.remove(name)?;
        for clue in clues_of(&gone) {
            if let Some(ages) = self.by_clue.get_mut(&clue) {
                self.ignored -= usize::from(ages.remove(&age_of(&gone)) && ages.len() >= CONSIDERED_MAX);
                if ages.is_empty() {
                    self.by_clue.remove(&clue);
                }
            }
        }
        Some(gone)
    }

    /// Returns an allocation beyond the limit of its namespace.
    pub fn beyond(&self, name: &AllocationName) -> Option<&Arc<Allocation>> {
        self.beyond.get(name)
    }

    /// Returns an allocation that counts.
    pub fn get(&self, name: &AllocationName) -> Option<&Arc<Allocation>> {
        self.all.get(name)
    }

    /// Returns all names, also of those that do not count.
    pub fn names(&self) -> impl Iterator<Item = &AllocationName> {
        self.all.keys().chain(self.beyond.keys())
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns the number of allocations that can have no pods: beyond the limit of their namespace, or because
    /// [`CONSIDERED_MAX`] older ones have the same clue. One with several roles counts once for each.
    pub fn ignored(&self) -> usize {
        self.ignored + self.beyond.len()
    }

    /// Returns whether this allocation is among the [`CONSIDERED_MAX`] oldest with the clue of one of its roles.
    pub fn is_considered(&self, allocation: &Allocation) -> bool {
        let is_there = |ages: &BTreeSet<Age>| {
            ages.len() <= CONSIDERED_MAX
                || ages.iter().take(CONSIDERED_MAX).any(|(_, name)| *name == allocation.name)
        };
        clues_of(allocation).iter().any(|clue| self.by_clue.get(clue).is_none_or(is_there))
    }

    /// Returns the allocation of this pod: of several matching ones the oldest, then by kind and name.
    ///
    /// A pod that names a PodGroup belongs to it, even if the PodGroup does not exist yet.
    pub fn find(&self, pod: &Peer) -> Option<Membership> {
        let named = pod.group.as_ref().map(|group| AllocationName {
            kind: AllocationKind::PodGroup,
            namespace: pod.identity.namespace.clone(),
            name: group.clone(),
        });
        let mut found: BTreeMap<(bool, &Age), usize> = BTreeMap::new();
        if !self.all.is_empty() {
            self.each_clue(pod, |ages| {
                for age in ages.iter().take(CONSIDERED_MAX) {
                    // The PodGroup that the pod names comes first.
                    let rank = (Some(&age.1) != named.as_ref(), age);
                    let role = || self.all.get(&age.1)?.role_of(pod);
                    if !found.contains_key(&rank)
                        && let Some(role) = role()
                    {
                        found.insert(rank, role);
                    }
                }
            });
        }
        let mut found = found.into_iter().map(|((_, (_, name)), role)| (name.clone(), role)).peekable();
        let (name, role) = match named {
            Some(named) => {
                let first = found.next_if(|(name, _)| *name == named);
                (named, first.map_or(0, |(_, role)| role))
            }
            None => found.next()?,
        };
        Some(Membership { name, role, losers: found.map(|(name, _)| name).take(LOSERS_MAX).collect() })
    }

    fn each_clue<'a>(&'a self, pod: &Peer, mut take: impl FnMut(&'a BTreeSet<Age>)) {
        let namespace = || pod.identity.namespace.clone();
        let mut look = |clue: Clue| {
            if let Some(ages) = self.by_clue.get(&clue) {
                take(ages);
            }
        };
        for (key, value) in pod.identity.labels.pairs() {
            look(Clue::Label { namespace: namespace(), key: key.clone(), value: value.clone() });
        }
        if let Some(owner) = &pod.owner {
            look(Clue::Owner { namespace: namespace(), kind: owner.kind.clone(), name: owner.name.clone() });
        }
        if let Some(name) = &pod.group {
            look(Clue::Group { namespace: namespace(), name: name.clone() });
        }
        look(Clue::Any { namespace: namespace() });
    }
}

/// Returns one clue per role: the most selective one.
fn clues_of(allocation: &Allocation) -> BTreeSet<Clue> {
    let AllocationName { kind, namespace, name } = &allocation.name;
    let namespace = || namespace.clone();
    let clue = |members: &RoleMembers| match members {
        RoleMembers::Selected(LabelSelector::Nothing) => None,
        RoleMembers::Selected(LabelSelector::All(requirements)) => {
            let single = requirements.iter().find_map(|requirement| match &requirement.operator {
                Operator::In(values) if values.len() == 1 => {
                    Some((requirement.key.clone(), values[0].clone()))
                }
                _ => None,
            });
            Some(match single {
                Some((key, value)) => Clue::Label { namespace: namespace(), key, value },
                None => Clue::Any { namespace: namespace() },
            })
        }
        RoleMembers::Owned(owner) => {
            Some(Clue::Owner { namespace: namespace(), kind: owner.kind.clone(), name: owner.name.clone() })
        }
        RoleMembers::Grouped if *kind == AllocationKind::Coscheduling => {
            Some(Clue::Label { namespace: namespace(), key: COSCHEDULING_LABEL.into(), value: name.clone() })
        }
        RoleMembers::Grouped => Some(Clue::Group { namespace: namespace(), name: name.clone() }),
    };
    allocation.roles.iter().filter_map(|role| clue(&role.members)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gang::{GangRole, OwnerName};
    use berth_model::{Identity, PodOwner, Requirement};

    fn name(kind: AllocationKind, name: &str) -> AllocationName {
        AllocationName { kind, namespace: "ns".into(), name: name.into() }
    }

    fn allocation(of: AllocationName, created_s: i64, members: RoleMembers) -> Allocation {
        Allocation {
            uid: format!("uid-{}", of.name).into(),
            name: of,
            generation: 1,
            created_s,
            roles: [GangRole { name: "".into(), members, minimum: 2 }].into(),
            timeout: None,
            topology: None,
            evicted_whole: false,
            was_scheduled: false,
            problem: None,
        }
    }

    fn with_label(key: &str, values: &[&str]) -> RoleMembers {
        let operator = match values {
            [] => Operator::Exists,
            values => Operator::In(values.iter().map(|value| Arc::from(*value)).collect()),
        };
        RoleMembers::Selected(LabelSelector::All([Requirement { key: key.into(), operator }].into()))
    }

    fn pod(namespace: &str, labels: &[(&str, &str)]) -> Peer {
        let labels = labels.iter().copied().collect();
        Peer {
            identity: Identity { namespace: namespace.into(), labels, ..Identity::default() },
            ..Peer::default()
        }
    }

    fn found(allocations: &Allocations, pod: &Peer) -> Option<String> {
        allocations.find(pod).map(|membership| membership.name.name.to_string())
    }

    #[test]
    fn a_pod_is_found_by_its_labels_its_owner_or_the_group_that_it_names() {
        use AllocationKind::{Allocation as Ours, Coscheduling, PodGroup};
        let mut all = Allocations::default();
        all.apply(allocation(name(Ours, "one"), 5, with_label("job", &["one"])));
        all.apply(allocation(name(Ours, "some"), 5, with_label("gpu", &[])));
        let owner = OwnerName { kind: "Job".into(), name: "train".into() };
        all.apply(allocation(name(Ours, "owned"), 5, RoleMembers::Owned(owner)));
        all.apply(allocation(name(Coscheduling, "cos"), 5, RoleMembers::Grouped));
        all.apply(allocation(name(PodGroup, "group"), 5, RoleMembers::Grouped));
        assert_eq!(found(&all, &pod("ns", &[("job", "one")])).as_deref(), Some("one"));
        assert_eq!(found(&all, &pod("ns", &[("gpu", "any")])).as_deref(), Some("some"));
        assert_eq!(found(&all, &pod("ns", &[(COSCHEDULING_LABEL, "cos")])).as_deref(), Some("cos"));
        assert_eq!(found(&all, &pod("elsewhere", &[("job", "one")])), None);
        let owner = PodOwner { api_version: "batch/v1".into(), kind: "Job".into(), name: "train".into() };
        assert_eq!(found(&all, &Peer { owner: Some(owner), ..pod("ns", &[]) }).as_deref(), Some("owned"));
        assert_eq!(
            found(&all, &Peer { group: Some("group".into()), ..pod("ns", &[]) }).as_deref(),
            Some("group")
        );
        assert_eq!(
            all.find(&Peer { group: Some("later".into()), ..pod("ns", &[]) }).map(|m| m.role),
            Some(0)
        );
    }

    #[test]
    fn of_two_that_claim_a_pod_the_older_one_has_it_until_it_goes() {
        let mut all = Allocations::default();
        let (young, old) = (name(AllocationKind::Allocation, "a"), name(AllocationKind::Allocation, "b"));
        all.apply(allocation(young.clone(), 9, with_label("job", &["x"])));
        all.apply(allocation(old.clone(), 3, with_label("job", &["x", "y"])));
        let membership = all.find(&pod("ns", &[("job", "x")])).expect("claimed twice");
        assert_eq!((&membership.name, &*membership.losers), (&old, &[young.clone()][..]));
        all.delete(&old);
        assert_eq!(found(&all, &pod("ns", &[("job", "x")])).as_deref(), Some("a"));
        all.delete(&young);
        assert!(all.is_empty() && all.by_clue.is_empty());
    }

    /// Far more than a pod's search looks at: with a search that looks at all of them, this takes minutes.
    #[test]
    fn of_very_many_that_claim_a_pod_only_the_oldest_are_considered() {
        let many = 100_000;
        let mut all = Allocations::new(many);
        let own = |at: usize| name(AllocationKind::Allocation, &format!("a-{at:06}"));
        for at in 0..many {
            all.apply(allocation(own(at), (many - at) as i64, with_label("job", &["x"])));
        }
        assert_eq!(all.ignored(), many - CONSIDERED_MAX);
        let x = pod("ns", &[("job", "x")]);
        for _ in 0..1_000 {
            let membership = all.find(&x).expect("it has one");
            assert_eq!(membership.name, own(many - 1));
            assert_eq!(membership.losers.len(), LOSERS_MAX);
            assert_eq!(membership.losers[0], own(many - 2));
        }
        assert_eq!(found(&all, &pod("ns", &[("job", "y")])), None);
        let is_considered = |at: usize| all.is_considered(all.get(&own(at)).expect("there"));
        assert!(is_considered(many - CONSIDERED_MAX) && !is_considered(many - CONSIDERED_MAX - 1));
        (0..many).for_each(|at| drop(all.delete(&own(at))));
        assert!(all.is_empty() && all.by_clue.is_empty());
        assert_eq!(all.ignored(), 0);
    }

    #[test]
    fn of_the_allocations_of_a_namespace_the_oldest_count_and_the_next_takes_the_place_of_one_that_goes() {
        let mut all = Allocations::new(2);
        let own = |at: i64| name(AllocationKind::PodGroup, &format!("a-{at}"));
        let of = |at: i64| allocation(own(at), at, RoleMembers::Grouped);
        let counted =
            |all: &Allocations| (1..=5).filter(|at| all.get(&own(*at)).is_some()).collect::<Vec<i64>>();
        for at in [3, 5, 4, 1] {
            all.apply(of(at));
        }
        assert_eq!((counted(&all), all.ignored()), (vec![1, 3], 2));
        assert!(all.beyond(&own(4)).is_some() && all.beyond(&own(3)).is_none());
        // A change of one that does not count is kept.
        let roles = [GangRole { minimum: 7, ..of(4).roles[0].clone() }].into();
        assert_eq!(all.apply(Allocation { roles, ..of(4) }), Some(Shift::default()));
        let (_, promoted) = all.delete(&own(1)).expect("it is there");
        assert_eq!((promoted, counted(&all)), (Some(own(4)), vec![3, 4]));
        assert_eq!(all.get(&own(4)).map(|it| it.minimum()), Some(7));
        let shift = all.apply(of(2)).expect("it is new");
        assert_eq!(shift.displaced.map(|it| it.name.clone()), Some(own(4)));
        // Recreated, and so the youngest.
        let shift = all.apply(Allocation { created_s: 9, ..of(2) }).expect("it is another one");
        assert_eq!((shift.promoted, counted(&all)), (Some(own(4)), vec![3, 4]));
        assert_eq!(all.names().count(), 4);
        for at in 2..=5 {
            assert!(all.delete(&own(at)).is_some());
        }
        assert!(all.is_empty() && all.by_clue.is_empty() && all.ignored() == 0);
    }

    #[test]
    fn an_allocation_that_says_the_same_again_is_no_news() {
        let mut all = Allocations::default();
        let one = allocation(name(AllocationKind::Allocation, "a"), 9, with_label("job", &["x"]));
        assert_eq!(all.apply(one.clone()), Some(Shift::default()));
        assert_eq!(all.apply(one.clone()), None);
        let roles = [GangRole { minimum: 3, ..one.roles[0].clone() }].into();
        assert!(all.apply(Allocation { roles, ..one }).is_some());
        assert_eq!(all.names().count(), 1);
    }
}
