//! Waiting lines of quotas, in order of position.
//!
//! Pods with equal requests share one lane, so that checking the first of a lane covers the whole lane. What the first
//! of a lane requests and does not fit yet is reserved for it: later ones only get what remains. So a large pod is not
//! starved by small ones, and a pod that waits for devices does not block pods that need none. Every sixteenth release
//! goes to the one that waits longest, whatever its priority.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use super::{Account, Limit, Sums};
use crate::queue::{AGED_TURN, Place};
use crate::sharded::ShardedMap;

/// Maximum number of lanes of one quota that are checked at once. Pods seldom have this many sizes; the remaining lanes
/// are checked when these are gone.
const MOST_LANES: usize = 1024;

#[derive(Debug, Default)]
struct Line {
    lanes: BTreeMap<Sums, Lane>,
    pods: usize,
    released: u64,
}

/// Entries with equal requests.
#[derive(Debug, Default)]
struct Lane {
    places: BTreeMap<Place, Arc<str>>,
    /// Positions by order of arrival.
    arrivals: BTreeMap<u64, Place>,
}

/// All lines. Entries are pods by uid, or gangs by key.
#[derive(Debug, Default)]
pub struct QuotaLines {
    by_quota: BTreeMap<Arc<str>, Line>,
    /// Position of each entry.
    standing: ShardedMap<(Arc<str>, Sums, Place)>,
}

impl QuotaLines {
    pub fn is_empty(&self) -> bool {
        self.standing.is_empty()
    }

    pub fn len(&self) -> usize {
        self.standing.len()
    }

    /// Returns the number of entries that wait for this quota.
    pub fn waiting(&self, quota: &str) -> usize {
        self.by_quota.get(quota).map_or(0, |line| line.pods)
    }

    pub fn contains(&self, key: &str) -> bool {
        self.standing.contains_key(key)
    }

    /// Returns the quota that the entry waits for, and its request.
    pub fn standing(&self, key: &str) -> Option<(&Arc<str>, &Sums)> {
        self.standing.get(key).map(|(quota, wanted, _)| (quota, wanted))
    }

    /// Returns at most `most` entries of all quotas after this one, in a fixed order.
    pub fn after(
        &self,
        entry: Option<&(Arc<str>, Sums, Place)>,
        most: usize,
    ) -> Vec<(Arc<str>, Sums, Place, Arc<str>)> {
        let first_quota = entry.map_or(Bound::Unbounded, |(quota, ..)| Bound::Included(&**quota));
        let lines = self.by_quota.range::<str, _>((first_quota, Bound::Unbounded));
        let lanes = lines.flat_map(|(quota, line)| {
            let same = entry.filter(|(of, ..)| of == quota);
            let first_lane = same.map_or(Bound::Unbounded, |(_, wanted, _)| Bound::Included(wanted));
            let lanes = line.lanes.range((first_lane, Bound::Unbounded));
            lanes.map(move |(wanted, lane)| (quota, wanted, lane, same.filter(|(_, of, _)| of == wanted)))
        });
        let entries = lanes.flat_map(|(quota, wanted, lane, same)| {
            let first = same.map_or(Bound::Unbounded, |(_, _, place)| Bound::Excluded(*place));
            let places = lane.places.range((first, Bound::Unbounded));
            places.map(move |(place, key)| (quota.clone(), wanted.clone(), *place, key.clone()))
        });
        entries.take(most).collect()
    }

    /// Returns the quotas with waiting entries.
    pub fn quotas(&self) -> impl Iterator<Item = &Arc<str>> {
        self.by_quota.keys()
    }

    pub fn join(&mut self, quota: &Arc<str>, key: &Arc<str>, wanted: Sums, place: Place) {
        self.leave(key);
        let line = self.by_quota.entry(quota.clone()).or_default();
        let lane = line.lanes.entry(wanted.clone()).or_default();
        lane.places.insert(place, key.clone());
        lane.arrivals.insert(place.1, place);
        line.pods += 1;
        self.standing.insert(key.clone(), (quota.clone(), wanted, place));
    }

    /// Returns whether it waited.
    pub fn leave(&mut self, key: &str) -> bool {
        let Some((quota, wanted, place)) = self.standing.remove(key) else {
            return false;
        };
        if let Some(line) = self.by_quota.get_mut(&quota) {
            line.remove(&wanted, place);
            if line.pods == 0 {
                self.by_quota.remove(&quota);
            }
        }
        true
    }

    /// Returns whether an entry with a better position waits for this quota.
    pub fn is_before(&self, quota: &str, place: Place) -> bool {
        let mut lanes = self.by_quota.get(quota).into_iter().flat_map(|line| line.lanes.values());
        lanes.any(|lane| lane.places.first_key_value().is_some_and(|(first, _)| *first < place))
    }

    /// Removes and returns the entries that fit now, in order of admission.
    pub fn release(&mut self, quota: &str, maximum: &Limit, account: &Account) -> Vec<Arc<str>> {
        let Some(line) = self.by_quota.get_mut(quota) else {
            return Vec::new();
        };
        let released = line.release(maximum, account.clone());
        if line.pods == 0 {
            self.by_quota.remove(quota);
        }
        released.iter().for_each(|key| {
            self.standing.remove(key);
        });
        released
    }
}

impl Line {
    /// `taken`: the usage, plus what is released or reserved in this call.
    fn release(&mut self, maximum: &Limit, mut taken: Account) -> Vec<Arc<str>> {
        let nothing = Account::default();
        // An entry that exceeds the maximum alone can never be admitted, so it must not block the line.
        let possible = |wanted: &&Sums| nothing.lacks(maximum, wanted).is_none();
        let open = self.lanes.iter().filter(|(wanted, _)| possible(wanted));
        let mut firsts: BTreeMap<Place, Sums> =
            open.filter_map(|(wanted, lane)| Some((lane.first()?, wanted.clone()))).collect();
        while firsts.len() > MOST_LANES {
            firsts.pop_last();
        }
        let mut released = Vec::new();
        let mut longest_waits = false;
        loop {
            let aged = self.released % AGED_TURN == AGED_TURN - 1 && !longest_waits;
            let longest = if aged { self.longest(possible) } else { None };
            longest_waits |= aged;
            let Some((place, wanted)) = longest.or_else(|| firsts.pop_first()) else {
                return released;
            };
            let fits = taken.lacks(maximum, &wanted).is_none();
            taken.used.add(&wanted);
            if !fits {
                continue;
            }
            firsts.remove(&place);
            released.extend(self.remove(&wanted, place));
            self.released += 1;
            longest_waits = false;
            if let Some(next) = self.lanes.get(&wanted).and_then(Lane::first) {
                firsts.insert(next, wanted);
            }
        }
    }

    fn remove(&mut self, wanted: &Sums, place: Place) -> Option<Arc<str>> {
        let lane = self.lanes.get_mut(wanted)?;
        let key = lane.places.remove(&place)?;
        lane.arrivals.remove(&place.1);
        self.pods -= 1;
        if lane.places.is_empty() {
            self.lanes.remove(wanted);
        }
        Some(key)
    }

    /// Returns the position of the entry that waits longest, and its request.
    fn longest(&self, possible: impl Fn(&&Sums) -> bool) -> Option<(Place, Sums)> {
        let firsts = self.lanes.iter().filter(|(wanted, _)| possible(wanted)).filter_map(|(wanted, lane)| {
            let (arrival, place) = lane.arrivals.first_key_value()?;
            Some((*arrival, *place, wanted))
        });
        firsts.min_by_key(|(arrival, _, _)| *arrival).map(|(_, place, wanted)| (place, wanted.clone()))
    }
}

impl Lane {
    fn first(&self) -> Option<Place> {
        self.places.first_key_value().map(|(place, _)| *place)
    }
}
