//! Index of allocations: finds the allocation of a pod by the pod's labels, owner and group, without scanning all
//! allocations.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::{Allocation, AllocationKind, AllocationName, COSCHEDULING_LABEL, RoleMembers};
use berth_model::{LabelSelector, Operator, Peer};

/// The allocation that a pod belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership {
    pub name: AllocationName,
    /// Index of the pod's role in the allocation.
    pub role: usize,
    /// Younger allocations that also match the pod.
    pub losers: Box<[AllocationName]>,
}

/// All allocations, indexed by clue.
#[derive(Debug, Default)]
pub struct Allocations {
    all: BTreeMap<AllocationName, Arc<Allocation>>,
    by_clue: HashMap<Clue, BTreeSet<AllocationName>>,
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
    /// Upserts an allocation. Returns whether it changed.
    pub fn apply(&mut self, allocation: Allocation) -> bool {
        let known = self.all.get(&allocation.name);
        if known.is_some_and(|known| **known == allocation) {
            return false;
        }
        self.delete(&allocation.name.clone());
        for clue in clues_of(&allocation) {
            self.by_clue.entry(clue).or_default().insert(allocation.name.clone());
        }
        self.all.insert(allocation.name.clone(), Arc::new(allocation));
        true
    }

    pub fn delete(&mut self, name: &AllocationName) -> Option<Arc<Allocation>> {
        let gone = self.all.remove(name)?;
        for clue in clues_of(&gone) {
            if let Some(names) = self.by_clue.get_mut(&clue) {
                names.remove(name);
                if names.is_empty() {
                    self.by_clue.remove(&clue);
                }
            }
        }
        Some(gone)
    }

    pub fn get(&self, name: &AllocationName) -> Option<&Arc<Allocation>> {
        self.all.get(name)
    }

    /// Sorted.
    pub fn names(&self) -> impl Iterator<Item = &AllocationName> {
        self.all.keys()
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns the allocation of this pod: of several matching ones the oldest, then by kind and name.
    ///
    /// A pod that names a PodGroup belongs to it, even if the PodGroup does not exist yet.
    pub fn find(&self, pod: &Peer) -> Option<Membership> {
        let mut found: Vec<(&Arc<Allocation>, usize)> = Vec::new();
        if !self.all.is_empty() {
            self.each_clue(pod, |names| {
                for allocation in names.iter().filter_map(|name| self.all.get(name)) {
                    if found.iter().any(|(known, _)| Arc::ptr_eq(known, allocation)) {
                        continue;
                    }
                    if let Some(role) = allocation.role_of(pod) {
                        found.push((allocation, role));
                    }
                }
            });
        }
        let named = pod.group.as_ref().map(|group| AllocationName {
            kind: AllocationKind::PodGroup,
            namespace: pod.identity.namespace.clone(),
            name: group.clone(),
        });
        found.sort_by(|(a, _), (b, _)| precedence(a, b, named.as_ref()));
        let mut names = found.iter().map(|(allocation, role)| (allocation.name.clone(), *role));
        match named {
            Some(name) if found.first().is_none_or(|(first, _)| first.name != name) => {
                Some(Membership { name, role: 0, losers: names.map(|(name, _)| name).collect() })
            }
            _ => {
                let (name, role) = names.next()?;
                Some(Membership { name, role, losers: names.map(|(name, _)| name).collect() })
            }
        }
    }

    fn each_clue<'a>(&'a self, pod: &Peer, mut take: impl FnMut(&'a BTreeSet<AllocationName>)) {
        let namespace = || pod.identity.namespace.clone();
        let mut look = |clue: Clue| {
            if let Some(names) = self.by_clue.get(&clue) {
                take(names);
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

/// Orders allocations by precedence: the PodGroup that the pod names first, then the older one.
fn precedence(a: &Allocation, b: &Allocation, named: Option<&AllocationName>) -> Ordering {
    let rank = |x: &Allocation| (Some(&x.name) != named, x.created_s);
    rank(a).cmp(&rank(b)).then_with(|| a.name.cmp(&b.name))
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

    #[test]
    fn an_allocation_that_says_the_same_again_is_no_news() {
        let mut all = Allocations::default();
        let one = allocation(name(AllocationKind::Allocation, "a"), 9, with_label("job", &["x"]));
        assert!(all.apply(one.clone()));
        assert!(!all.apply(one.clone()));
        assert!(
            all.apply(Allocation { roles: [GangRole { minimum: 3, ..one.roles[0].clone() }].into(), ..one })
        );
        assert_eq!(all.names().count(), 1);
    }
}
