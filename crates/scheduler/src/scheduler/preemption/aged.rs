//! Aging: a pod that has been unschedulable for long gets a reservation on one node, against pods of any priority,
//! until it fits there. So no pod starves behind a stream of higher-priority pods that take all freed resources.
//!
//! It is a nomination without victims that is not written to the API server. Few pods have one at a time, those that
//! have waited longest, and of one namespace at most half as many. System-critical pods do not mind it. A pod that is still not placed after the same time again loses it, and gets one on another node
//! in its next turn. That comes only after some pod has left a node: where nothing ends no reservation can help, and
//! reservations that moved nevertheless would keep every waiting class busy for ever.
//!
//! A search looks at a bounded number of pods and nodes per tick and carries on in the next one, so that no tick holds the
//! lock for long, however many classes fit nowhere.
//!
//! [`Aged`] reads the cluster, the parked pods and the nominations, and changes only itself: its caller keeps and ends
//! the nominations.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use super::nominations::Nominations;
use crate::class::{Class, ClassId};
use crate::inventory::{NodeId, Row};
use crate::queue::Parked;
use crate::rules;
use crate::scheduler::Cluster;

/// Number of nodes per additional reservation; there is always one.
const NODES_EACH: usize = 100;
/// Maximum number of pods checked per class.
const MOST_OF_CLASS: usize = 16;
/// Minimum interval between searches for aged pods.
const PACE: Duration = Duration::from_secs(1);
/// Maximum number of pods and nodes examined per tick.
pub(in crate::scheduler) const WORK_MAX: usize = 512;

/// Reservations due to aging.
#[derive(Debug, Default)]
pub(super) struct Aged {
    /// By uid.
    kept: BTreeMap<Arc<str>, Kept>,
    /// Waiting pods whose reservation did not help, by uid.
    in_vain: BTreeMap<Arc<str>, InVain>,
    /// Position where the clean-up of `in_vain` continues.
    tidied: Option<Arc<str>>,
    /// Parked classes that no node would take even if it were empty: time of the search.
    impossible: BTreeMap<ClassId, Duration>,
    /// The search in progress.
    search: Option<Search>,
    next_check: Duration,
    /// Number of pods and nodes examined so far.
    examined: u64,
}

/// A reservation that has begun.
#[derive(Debug)]
struct Kept {
    since: Duration,
    node: Arc<str>,
    /// Namespace of the pod.
    namespace: Arc<str>,
}

/// A reservation that did not help.
#[derive(Debug)]
struct InVain {
    /// The end of its time, even if it has ended before: its node did not take the pod after all.
    ended: Duration,
    node: Arc<str>,
    /// [`crate::inventory::Ledger::departures`] at its end.
    departures: u64,
}

/// State of a search between two ticks.
#[derive(Debug)]
enum Search {
    /// For the pod that has waited longest, in the classes after this one.
    Pod { after: Option<ClassId>, longest: Option<LongestWaiting> },
    /// For a node for this pod, from this row on.
    Node { uid: Arc<str>, class: Arc<Class>, from: usize, best: Option<NodeChoice> },
}

/// A pod and its node.
type Reservation = (Arc<str>, Arc<str>);
/// Beginning of the wait, sequence number, and uid.
type LongestWaiting = (Duration, u64, Arc<str>);
/// Whether the pod had this node before, its shortage, its CPU, and its row. The least one is chosen.
type NodeChoice = (bool, u16, Reverse<i64>, usize);

impl Aged {
    /// Returns the number of pods with a reservation due to aging.
    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }

    /// Continues the count of a former search.
    pub(super) fn count_on_from(&mut self, former: &Aged) {
        self.examined = former.examined;
    }

    /// Returns whether the pod has a reservation due to aging.
    pub(super) fn keeps_for(&self, uid: &str) -> bool {
        self.kept.contains_key(uid)
    }

    /// Returns the number of pods and nodes examined so far.
    pub(super) fn examined(&self) -> u64 {
        self.examined
    }

    /// Begins a search for aged pods, if it is time and none is in progress. Returns the pods whose reservation did not
    /// help in time and is to end.
    pub(super) fn begin(&mut self, cluster: &Cluster, parked: &Parked, now: Duration) -> Vec<Arc<str>> {
        let after = cluster.config.reserve_after;
        if after.is_zero() || !cluster.leading {
            self.search = None;
            return Vec::new();
        }
        if self.search.is_some() || now < self.next_check {
            return Vec::new();
        }
        self.next_check = now + PACE;
        self.search = Some(Search::Pod { after: None, longest: None });
        self.impossible
            .retain(|class, since| parked.get(*class).is_some() && now.saturating_sub(*since) < after);
        self.tidy(cluster);
        let over = self.kept.iter().filter(|(_, kept)| now.saturating_sub(kept.since) >= after);
        over.map(|(uid, _)| uid.clone()).collect()
    }

    /// Records that a nomination has ended. If it was a reservation, and the pod still waits, it did not help.
    pub(super) fn ended(&mut self, uid: &str, cluster: &Cluster) {
        if let Some((uid, Kept { since, node, .. })) = self.kept.remove_entry(uid) {
            let (ended, departures) = (since + cluster.config.reserve_after, cluster.ledger.departures());
            self.in_vain.insert(uid, InVain { ended, node, departures });
        }
    }

    /// Removes pods that no longer wait from `in_vain`, a part of them each time.
    fn tidy(&mut self, cluster: &Cluster) {
        let after = self.tidied.take().map_or(Bound::Unbounded, Bound::Excluded);
        let part = self.in_vain.range((after, Bound::Unbounded)).take(WORK_MAX);
        let part: Vec<Arc<str>> = part.map(|(uid, _)| uid.clone()).collect();
        self.tidied = part.last().cloned();
        for uid in part {
            // One that is tried in between may park again.
            if cluster.waiting.get(&uid).is_none() {
                self.in_vain.remove(&uid);
            }
        }
    }

    /// Carries the search on until `work` is used up. Returns the next pod that is to get a reservation, and its node.
    pub(super) fn next(
        &mut self,
        cluster: &Cluster,
        parked: &Parked,
        nominations: &Nominations,
        now: Duration,
        work: &mut usize,
    ) -> Option<Reservation> {
        let most = most_kept(cluster);
        while let Some(search) = self.search.take().filter(|_| self.kept.len() < most) {
            if *work == 0 {
                self.search = Some(search);
                return None;
            }
            let before = *work;
            let mut found = None;
            self.search = match search {
                Search::Pod { after, longest } => {
                    self.search_pods(after, longest, (cluster, parked, nominations), now, work)
                }
                Search::Node { uid, class, from, best } => {
                    let waits = cluster.waiting.get(&uid).is_some_and(|pod| pod.class.id == class.id);
                    let search = match waits && !nominations.has(&uid) {
                        true => self.search_nodes((uid, class), from, best, cluster, now, work),
                        false => Ok(None),
                    };
                    search.map_or_else(Some, |reserved| {
                        found = reserved;
                        Some(Search::Pod { after: None, longest: None })
                    })
                }
            };
            self.examined += (before - *work) as u64;
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// Looks for the pod, of the first ones of each class, that has waited longest since its arrival or its last
    /// reservation. Returns how the search goes on; `None`: no pod has waited long enough.
    fn search_pods(
        &self,
        mut after: Option<ClassId>,
        mut longest: Option<LongestWaiting>,
        (cluster, parked, nominations): (&Cluster, &Parked, &Nominations),
        now: Duration,
        work: &mut usize,
    ) -> Option<Search> {
        let mut of_namespace: BTreeMap<&str, usize> = BTreeMap::new();
        self.kept.values().for_each(|kept| *of_namespace.entry(&kept.namespace).or_default() += 1);
        let share = (most_kept(cluster) / 2).max(1);
        let has_share = |namespace: &str| of_namespace.get(namespace).is_some_and(|kept| *kept >= share);
        let candidate = |uid: &Arc<str>| {
            let pod = cluster.waiting.get(uid).filter(|_| !nominations.has(uid))?;
            if has_share(&pod.source.namespace) {
                return None;
            }
            let former = self.in_vain.get(uid);
            let since = former.map_or(pod.arrived, |former| former.ended);
            let aged = now.saturating_sub(since) >= cluster.config.reserve_after
                && former.is_none_or(|former| former.departures != cluster.ledger.departures());
            aged.then(|| (since, pod.seq, uid.clone()))
        };
        for group in parked.groups_after(after) {
            if *work < MOST_OF_CLASS {
                *work = 0;
                return Some(Search::Pod { after, longest });
            }
            after = Some(group.class.id);
            *work -= 1;
            if self.impossible.contains_key(&group.class.id) {
                continue;
            }
            let first = group.pods.values().take(MOST_OF_CLASS - 1).find_map(|uid| {
                *work -= 1;
                candidate(uid)
            });
            longest = longest.into_iter().chain(first).min();
        }
        let (_, _, uid) = longest?;
        let class = cluster.waiting.get(&uid)?.class.clone();
        Some(Search::Node { uid, class, from: 0, best: None })
    }

    /// Looks for the node with the smallest shortage among those that would fit the pod if enough of their pods ended.
    /// Avoids the pod's last reserved node if there is another, and nodes reserved for other aged pods. `Err`: how the
    /// search goes on.
    fn search_nodes(
        &mut self,
        (uid, class): (Arc<str>, Arc<Class>),
        from: usize,
        mut best: Option<NodeChoice>,
        cluster: &Cluster,
        now: Duration,
        work: &mut usize,
    ) -> Result<Option<Reservation>, Search> {
        let inventory = cluster.inventory();
        let name = |at: usize| inventory.name(NodeId(at as u32));
        let row = |at: usize| inventory.row(NodeId(at as u32));
        let taken: BTreeSet<&Arc<str>> = self.kept.values().map(|kept| &kept.node).collect();
        let last = self.in_vain.get(&uid).map(|former| &former.node);
        let to = inventory.len().min(from + *work).max(from);
        *work -= to - from;
        for at in (from..to).filter(|at| could_take(&class, row(*at)) && !taken.contains(name(*at))) {
            let missing = rules::shortage(&class.spec.usage, row(at));
            let choice = (last == Some(name(at)), missing, Reverse(row(at).allocatable.cpu_milli), at);
            best = best.into_iter().chain([choice]).min();
        }
        if to < inventory.len() {
            return Err(Search::Node { uid, class, from: to, best });
        }
        let Some((.., at)) = best else {
            self.impossible.insert(class.id, now);
            return Ok(None);
        };
        // Rows may have changed since they were examined.
        if !could_take(&class, row(at)) {
            return Ok(None);
        }
        let (node, pod) = (name(at).clone(), cluster.waiting.get(&uid));
        let namespace = pod.map(|pod| pod.source.namespace.clone()).unwrap_or_default();
        self.kept.insert(uid.clone(), Kept { since: now, node: node.clone(), namespace });
        Ok(Some((uid, node)))
    }

    /// Returns whether this pod has a reservation due to aging on a node that could still take it.
    pub(super) fn is_kept(&self, uid: &str, node: NodeId, cluster: &Cluster) -> bool {
        let class = cluster.waiting.get(uid).map(|pod| &pod.class);
        self.kept.contains_key(uid)
            && class.is_some_and(|class| could_take(class, cluster.inventory().row(node)))
    }
}

/// Returns how many reservations there may be at a time.
fn most_kept(cluster: &Cluster) -> usize {
    1 + cluster.inventory().node_count() / NODES_EACH
}

/// Returns whether a node would take a pod of the class if its pods ended.
fn could_take(class: &Class, row: &Row) -> bool {
    if row.node.is_none() {
        return false;
    }
    let out = rules::rank_uncached(class, row).reasons();
    let empty =
        Row { requested: Default::default(), extended: None, ports: None, reserved: None, ..row.clone() };
    out.is_none_or(|reasons| reasons.resolvable_by_eviction())
        && rules::lacking(&class.spec.usage, &empty).is_empty()
}
