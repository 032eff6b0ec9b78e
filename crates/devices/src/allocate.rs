//! Which devices of one node a pod's claims would get.
//!
//! The search is complete: if any choice of devices serves all claims, one is found, whatever the order of the devices.
//! Upstream (`k8s.io/dynamic-resource-allocation/structured`) searches in the order of the driver's slices; here those
//! devices come first that leave most behind: devices that are shared already, and partitions that consume least. What
//! is equivalent to a device that failed is not tried again, and the search gives up after [`STEPS_MAX`] devices.
//!
//! It differs from upstream where a selector fails on a device (for instance as an attribute is missing): such a device
//! does not serve, but others may. Upstream gives up the pod when it comes across one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use berth_model::{
    DeviceAlternative, DeviceConstraint, DeviceRequest, DeviceRequests, FieldRequirement, Labels,
    NodeSelectorTerm, Quantity, Shared,
};

use crate::capacity::consumption;
use crate::pools::change_counters;
use crate::{
    AllocatedDevice, Attribute, ClaimAllocation, Counters, DeviceId, DeviceUse, Model, NodeDevices,
    PoolDevice, PoolState, PoolUse, Reach,
};

/// Most devices that one claim can have (upstream: `AllocationResultsMaxSize`).
pub const DEVICES_OF_CLAIM_MAX: usize = 32;
/// Most devices for all claims of one pod together: the search is as deep.
pub const DEVICES_OF_POD_MAX: u64 = 512;
/// Most devices that are tried for the claims of one pod on one node.
pub const STEPS_MAX: usize = 20_000;

/// Why a node has no devices for a pod's claims: what became of the request that the search got furthest with.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NoDevices {
    /// Position of the claim.
    pub claim: usize,
    /// `request`, or `request/subrequest`.
    pub request: Arc<str>,
    pub class: Arc<str>,
    pub why: Shortage,
}

/// What became of the devices that a node reaches.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Shortage {
    /// Of those that match the selectors, too few are left. By what excluded them; `wanted` of `matching` were needed.
    TooFew { wanted: u64, matching: usize, counts: Exclusions },
    /// A request for all devices, and the driver is still publishing this pool.
    Incomplete(Arc<str>),
    /// A request for all devices, and the slices of this pool contradict each other.
    Invalid(Arc<str>),
    /// More than [`DEVICES_OF_CLAIM_MAX`] devices for one claim, or [`DEVICES_OF_POD_MAX`] for all.
    TooMany,
    /// A selector failed on a device that a request for all devices must decide about.
    Selector(Arc<str>),
    /// The search was given up after [`STEPS_MAX`] devices.
    TooMuchWork,
}

impl fmt::Display for NoDevices {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "request {} of class {}: {}", self.request, self.class, self.why)
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shortage::TooFew {
                matching: 0, counts: Exclusions { unselected: 0, failed: None, .. }, ..
            } => to.write_str("the node has no device"),
            Shortage::TooFew { matching: 0, counts: Exclusions { unselected, failed: None, .. }, .. } => {
                match unselected {
                    1 => to.write_str("the selectors are false for its only device"),
                    _ => write!(to, "the selectors are false for all {unselected} devices"),
                }
            }
            Shortage::TooFew { matching: 0, counts: Exclusions { failed: Some(error), .. }, .. } => {
                write!(to, "no device matches, and a selector fails ({error})")
            }
            Shortage::TooFew { wanted, matching, counts } => {
                write!(to, "wants {wanted} of {matching} matching devices")?;
                let parts = [
                    (counts.taken, "taken"),
                    (counts.tainted, "with a taint that is not tolerated"),
                    (counts.constrained, "against a constraint"),
                    (counts.counters, "without counters left in the pool"),
                    (counts.capacity, "without the capacity"),
                ];
                for (at, (count, what)) in parts.iter().filter(|(count, _)| *count > 0).enumerate() {
                    write!(to, "{} {count} {what}", if at == 0 { ":" } else { "," })?;
                }
                match &counts.failed {
                    Some(error) => write!(to, "; on others a selector fails ({error})"),
                    None => Ok(()),
                }
            }
            Shortage::Incomplete(pool) => write!(to, "wants all devices, and pool {pool} is being updated"),
            Shortage::Invalid(pool) => {
                write!(to, "wants all devices, and the slices of pool {pool} are invalid")
            }
            Shortage::TooMany => write!(
                to,
                "more than {DEVICES_OF_CLAIM_MAX} devices for a claim, or {DEVICES_OF_POD_MAX} for the pod"
            ),
            Shortage::Selector(error) => write!(to, "wants all devices, and {error}"),
            Shortage::TooMuchWork => write!(to, "the search was given up after {STEPS_MAX} devices"),
        }
    }
}

/// Number of matching devices by what excluded them.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Exclusions {
    /// Other claims have them.
    pub taken: usize,
    /// Their taints are not tolerated.
    pub tainted: usize,
    /// They miss a constraint of the claim.
    pub constrained: usize,
    /// Their pool has too little left of what they share.
    pub counters: usize,
    /// They have too little capacity left, or none of what is requested.
    pub capacity: usize,
    /// Devices of the node that the selectors do not match.
    pub unselected: usize,
    /// Why selectors failed on a device, if they did.
    pub failed: Option<Arc<str>>,
}

/// Returns what each claim would get on the node of this name and labels, in their order.
///
/// Shares of devices are not named yet: [`AllocatedDevice::share`] is `Some` of an empty text.
///
/// # Errors
/// Why the node cannot serve all of them.
pub fn allocate(
    claims: &[Shared<DeviceRequests>],
    devices: &NodeDevices,
    node: &str,
    labels: &Labels,
) -> Result<Vec<ClaimAllocation>, Box<NoDevices>> {
    Ok(Search::run(claims, devices, node, labels)?.result(node))
}

/// How a node serves claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fit {
    /// Number of more wanted alternatives that were passed over; `None`: no request has a choice.
    pub alternatives: Option<u16>,
    /// What would be left of the pools that the devices come from, in thousandths.
    pub left_permille: u16,
}

/// Returns how the node of this name and labels would serve the claims; `None`: not at all, for the reason that [`allocate`] gives.
pub fn fit(
    claims: &[Shared<DeviceRequests>],
    devices: &NodeDevices,
    node: &str,
    labels: &Labels,
) -> Option<Fit> {
    match Plain::of(claims, devices) {
        Some(plain) => plain.fit(devices, node, labels),
        None => Some(Search::run(claims, devices, node, labels).ok()?.fit()),
    }
}

/// The most common question: some devices of one kind, on a node with whole devices that only it reaches. Needs no search.
struct Plain<'a> {
    wanted: &'a DeviceAlternative,
    count: usize,
}

impl<'a> Plain<'a> {
    fn of(claims: &'a [Shared<DeviceRequests>], devices: &NodeDevices) -> Option<Plain<'a>> {
        let [claim] = claims else { return None };
        let [request] = &*claim.requests else { return None };
        let [wanted] = &*request.alternatives else { return None };
        let count = wanted.count.filter(|count| (1..=DEVICES_OF_CLAIM_MAX as u64).contains(count))?;
        let is_plain = |pool: &Arc<PoolUse>| pool.pool.is_plain && pool.pool.state == PoolState::Complete;
        let all_plain = devices.shared.is_empty() && devices.own.iter().all(is_plain);
        let whole = wanted.capacity.is_empty() && !wanted.admin_access && claim.constraints.is_empty();
        (all_plain && whole).then_some(Plain { wanted, count: count as usize })
    }

    fn fit(&self, devices: &NodeDevices, node: &str, labels: &Labels) -> Option<Fit> {
        let (mut missing, mut left, mut pools) = (self.count, 0, 0);
        let mut last: Option<(&Arc<Model>, bool)> = None;
        for pool in &devices.own {
            let reached = pool.pool.reached(node, labels);
            let (before, mut free) = (missing, 0);
            for at in reached.iter() {
                if pool.used[*at] != DeviceUse::default() {
                    continue;
                }
                free += 1;
                let device = &pool.pool.devices[*at];
                if missing > 0 && device.taints.iter().all(|taint| self.wanted.tolerates(taint)) {
                    let known = last.filter(|(model, _)| Arc::ptr_eq(model, &device.model));
                    let is_match = || (&device.model, matches(self.wanted, device) == Ok(true));
                    let (model, serves) = known.unwrap_or_else(is_match);
                    last = Some((model, serves));
                    missing -= usize::from(serves);
                }
            }
            let taken = before - missing;
            if taken > 0 {
                left += (free - taken) as u128 * 1000 / reached.len() as u128;
                pools += 1;
            }
        }
        (missing == 0).then(|| Fit { alternatives: None, left_permille: (left / pools) as u16 })
    }
}

/// A device that the node reaches.
struct Candidate<'a> {
    pool: usize,
    device: &'a PoolDevice,
    used: &'a DeviceUse,
    /// Claims of this pod that have it.
    claims: Vec<usize>,
    /// What shares for this pod take of it, and how many there are.
    shares: u32,
    consumed: Amounts,
}

/// Whether all selectors match a device, or why one of them failed.
type Match = Result<bool, Arc<str>>;
/// Amounts of capacity, by name.
type Amounts = Vec<(Arc<str>, Quantity)>;

/// What serves an alternative of a request.
struct Choice {
    /// Candidates that the selectors match, best first.
    matching: Vec<usize>,
    /// What each of them would give, in the order of `matching`; `None`: it cannot give what is requested.
    taken: Vec<Option<Amounts>>,
    wanted: u64,
    unselected: usize,
    failed: Option<Arc<str>>,
}

/// A device that a request has in the current state of the search.
struct Chosen {
    request: usize,
    alternative: usize,
    candidate: usize,
    consumed: Option<Amounts>,
}

struct Search<'a> {
    claims: &'a [Shared<DeviceRequests>],
    /// Claim and request, in the order in which they are served.
    turns: Vec<(usize, usize)>,
    pools: Vec<&'a Arc<PoolUse>>,
    /// What is left of the counters of each pool.
    left: Vec<BTreeMap<Arc<str>, Counters>>,
    candidates: Vec<Candidate<'a>>,
    /// By claim, request and alternative.
    choices: Vec<Vec<Vec<Choice>>>,
    chosen: Vec<Vec<Chosen>>,
    steps: usize,
    /// How far the search got, and why it got no further.
    furthest: Option<((usize, usize, usize), NoDevices)>,
}

impl<'a> Search<'a> {
    /// Returns a search that has served all claims.
    fn run(
        claims: &'a [Shared<DeviceRequests>],
        devices: &'a NodeDevices,
        node: &str,
        labels: &Labels,
    ) -> Result<Search<'a>, Box<NoDevices>> {
        let mut search = Search::new(claims, devices, node, labels)?;
        match search.serve(0) {
            true => Ok(search),
            false => Err(Box::new(search.why())),
        }
    }

    fn new(
        claims: &'a [Shared<DeviceRequests>],
        devices: &'a NodeDevices,
        node: &str,
        labels: &Labels,
    ) -> Result<Search<'a>, Box<NoDevices>> {
        let pools: Vec<_> =
            devices.pools().into_iter().filter(|pool| pool.pool.is_seen_from(node, labels)).collect();
        let mut candidates = Vec::new();
        for (at, pool) in pools.iter().enumerate().filter(|(_, pool)| pool.pool.state == PoolState::Complete)
        {
            let reached = pool.pool.reached(node, labels);
            candidates.reserve(reached.len());
            for position in reached.iter() {
                candidates.push(Candidate {
                    pool: at,
                    device: &pool.pool.devices[*position],
                    used: &pool.used[*position],
                    claims: Vec::new(),
                    shares: 0,
                    consumed: Vec::new(),
                });
            }
        }
        let mut search = Search {
            left: pools.iter().map(|pool| pool.left.clone()).collect(),
            pools,
            candidates,
            choices: Vec::new(),
            chosen: claims.iter().map(|_| Vec::new()).collect(),
            turns: turns(claims),
            claims,
            steps: 0,
            furthest: None,
        };
        let mut least = 0;
        for (at, claim) in claims.iter().enumerate() {
            let mut choices = Vec::new();
            for request in &claim.requests {
                let of = |alternative| {
                    search.choice(alternative).map_err(|why| {
                        let (request, class) = (request.name_of(alternative), alternative.class.clone());
                        Box::new(NoDevices { claim: at, request, class, why })
                    })
                };
                let of_request = request.alternatives.iter().map(of).collect::<Result<Vec<_>, _>>()?;
                let fewest = of_request.iter().map(|choice| choice.wanted.max(1)).min().unwrap_or(1);
                least = fewest.saturating_add(least);
                choices.push(of_request);
                if least > DEVICES_OF_POD_MAX {
                    let first = request.alternatives.first();
                    let class = first.map(|alternative| alternative.class.clone()).unwrap_or_default();
                    let request = request.name.clone();
                    return Err(Box::new(NoDevices { claim: at, request, class, why: Shortage::TooMany }));
                }
            }
            search.choices.push(choices);
        }
        Ok(search)
    }

    fn choice(&self, alternative: &DeviceAlternative) -> Result<Choice, Shortage> {
        if alternative.count.is_none() {
            for pool in &self.pools {
                let name = &pool.pool.id.name;
                match &pool.pool.state {
                    PoolState::Complete => {}
                    PoolState::Incomplete => return Err(Shortage::Incomplete(name.clone())),
                    PoolState::Invalid(_) => return Err(Shortage::Invalid(name.clone())),
                }
            }
        }
        let (mut matching, mut unselected, mut failed) = (Vec::new(), 0, None);
        // Most devices of a node are of one model, and those match alike.
        let mut last: Option<(&Arc<Model>, Match)> = None;
        for (at, candidate) in self.candidates.iter().enumerate() {
            let device = candidate.device;
            let known = last.take_if(|(model, _)| Arc::ptr_eq(model, &device.model));
            let (model, answer) = known.unwrap_or_else(|| (&device.model, matches(alternative, device)));
            last = Some((model, answer.clone()));
            match answer {
                Ok(true) => matching.push(at),
                Ok(false) => unselected += 1,
                Err(error) if alternative.count.is_none() => return Err(Shortage::Selector(error)),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        let give = |at: &usize| {
            let capacity = &self.candidates[*at].device.model.traits().capacity;
            consumption(&alternative.capacity, capacity)
        };
        let wanted = match alternative.count {
            Some(count) => {
                if !matching.iter().all(|at| self.candidates[*at].is_plain()) {
                    matching.sort_by_key(|at| self.cost(*at));
                }
                count
            }
            None => {
                // Devices that could never give what is requested are not among "all".
                matching.retain(|at| {
                    let candidate = &self.candidates[*at];
                    give(at).is_some_and(|taken| candidate.has_room(&taken))
                });
                matching.len() as u64
            }
        };
        let taken = matching.iter().map(give).collect();
        Ok(Choice { matching, taken, wanted, unselected, failed })
    }

    /// What allocating the device would cost the claims to come; the least comes first.
    fn cost(&self, at: usize) -> (bool, u128, usize) {
        let candidate = &self.candidates[at];
        let is_new = candidate.device.model.traits().multiple && candidate.used.shares == 0;
        let pool = &self.pools[candidate.pool].pool;
        let parts = candidate.device.consumes.iter().flat_map(|(set, counters)| {
            let published = pool.counters.get(set);
            counters.iter().filter_map(move |(name, amount)| {
                let whole = published?.get(name)?.nano().max(1).unsigned_abs();
                Some(amount.nano().max(0).unsigned_abs().saturating_mul(1_000_000) / whole)
            })
        });
        (is_new, parts.fold(0, u128::saturating_add), at)
    }

    /// Serves the request of this turn and all after it. Returns whether that is possible.
    fn serve(&mut self, turn: usize) -> bool {
        let Some((claim, request)) = self.turns.get(turn).copied() else {
            return true;
        };
        let alternatives = self.claims[claim].requests[request].alternatives.len();
        (0..alternatives).any(|alternative| self.devices(turn, (claim, request, alternative), 0, 0))
    }

    /// Chooses the devices of an alternative from this one on, among its candidates from `start` on, then serves all later
    /// requests.
    fn devices(&mut self, turn: usize, at: (usize, usize, usize), have: u64, start: usize) -> bool {
        let (claim, request, alternative) = at;
        let choice = &self.choices[claim][request][alternative];
        let (wanted, all) = (choice.wanted, self.alternative(at).count.is_none());
        if (all && wanted == 0)
            || choice.matching.len() as u64 - (start as u64).min(choice.matching.len() as u64) < wanted - have
        {
            self.fell_short(at, have);
            return false;
        }
        if have == wanted {
            return self.serve(turn + 1);
        }
        if self.chosen[claim].len() as u64 + (wanted - have) > DEVICES_OF_CLAIM_MAX as u64 {
            self.stopped(at, have, Shortage::TooMany);
            return false;
        }
        let mut failed: Vec<usize> = Vec::new();
        let end = if all { start + 1 } else { self.choices[claim][request][alternative].matching.len() };
        for position in start..end {
            if self.steps >= STEPS_MAX {
                self.stopped((usize::MAX, 0, 0), 0, Shortage::TooMuchWork);
                return false;
            }
            self.steps += 1;
            if self.excluded(at, position).is_some() {
                continue;
            }
            let candidate = self.choices[claim][request][alternative].matching[position];
            self.take(at, position);
            if !failed.iter().any(|other| self.are_alike(*other, candidate, claim)) {
                if self.devices(turn, at, have + 1, position + 1) {
                    return true;
                }
                failed.push(candidate);
            }
            self.give_back(claim);
        }
        self.fell_short(at, have);
        false
    }

    fn alternative(&self, (claim, request, alternative): (usize, usize, usize)) -> &'a DeviceAlternative {
        &self.claims[claim].requests[request].alternatives[alternative]
    }

    /// Returns why this candidate of the alternative cannot be given to the claim now.
    fn excluded(&self, at: (usize, usize, usize), position: usize) -> Option<Excluded> {
        let (claim, request, alternative) = at;
        let wanted = self.alternative(at);
        let choice = &self.choices[claim][request][alternative];
        let candidate = &self.candidates[choice.matching[position]];
        let is_taken = match wanted.admin_access {
            true => candidate.claims.contains(&claim),
            false => candidate.used.wholes > 0 || !candidate.claims.is_empty(),
        };
        if is_taken {
            return Some(Excluded::Taken);
        }
        if !choice.taken[position].as_ref().is_some_and(|consumed| candidate.has_room(consumed)) {
            return Some(Excluded::Capacity);
        }
        if candidate.uses_counters() && !has_counters(&self.left[candidate.pool], candidate.device) {
            return Some(Excluded::Counters);
        }
        if !candidate.device.taints.iter().all(|taint| wanted.tolerates(taint)) {
            return Some(Excluded::Tainted);
        }
        let requests = &self.claims[claim];
        for constraint in &requests.constraints {
            let concerns = |request: usize, alternative: usize| {
                let request = &requests.requests[request];
                applies(constraint, request, &request.alternatives[alternative])
            };
            if !concerns(request, alternative) {
                continue;
            }
            let Some(value) = attribute(candidate.device, &constraint.attribute) else {
                return Some(Excluded::Constrained);
            };
            let others =
                self.chosen[claim].iter().filter(|chosen| concerns(chosen.request, chosen.alternative));
            let mut others = others
                .map(|chosen| attribute(self.candidates[chosen.candidate].device, &constraint.attribute));
            let holds = match constraint.distinct {
                true => others.all(|other| other != Some(value)),
                false => others.all(|other| other == Some(value)),
            };
            if !holds || *value == Attribute::Unknown {
                return Some(Excluded::Constrained);
            }
        }
        None
    }

    /// Gives the claim a candidate of the alternative that nothing excludes.
    fn take(&mut self, at: (usize, usize, usize), position: usize) {
        let (claim, request, alternative) = at;
        let choice = &self.choices[claim][request][alternative];
        let number = choice.matching[position];
        let consumed = choice.taken[position].clone().unwrap_or_default();
        let candidate = &mut self.candidates[number];
        let multiple = candidate.device.model.traits().multiple;
        if candidate.uses_counters() {
            change_counters(&mut self.left[candidate.pool], candidate.device, Quantity::saturating_sub);
        }
        if multiple {
            candidate.shares += 1;
            for (name, amount) in &consumed {
                match candidate.consumed.iter_mut().find(|(known, _)| known == name) {
                    Some((_, sum)) => *sum = sum.saturating_add(*amount),
                    None => candidate.consumed.push((name.clone(), *amount)),
                }
            }
        } else {
            candidate.claims.push(claim);
        }
        let consumed = multiple.then_some(consumed);
        self.chosen[claim].push(Chosen { request, alternative, candidate: number, consumed });
    }

    /// Takes back what the claim got last.
    fn give_back(&mut self, claim: usize) {
        let Some(chosen) = self.chosen[claim].pop() else {
            return;
        };
        let candidate = &mut self.candidates[chosen.candidate];
        match chosen.consumed {
            Some(consumed) => {
                candidate.shares -= 1;
                for (name, amount) in consumed {
                    if let Some((_, sum)) = candidate.consumed.iter_mut().find(|(known, _)| *known == name) {
                        *sum = sum.saturating_sub(amount);
                    }
                }
            }
            None => candidate.claims.retain(|other| *other != claim),
        }
        if candidate.uses_counters() {
            change_counters(&mut self.left[candidate.pool], candidate.device, Quantity::saturating_add);
        }
    }

    /// Returns whether two candidates would serve alike from here on.
    fn are_alike(&self, a: usize, b: usize, claim: usize) -> bool {
        let (a, b) = (&self.candidates[a], &self.candidates[b]);
        // `b` is taken at the moment, `a` is not.
        let is_free = |candidate: &Candidate, own: bool| {
            let others = candidate.claims.iter().filter(|other| !own || **other != claim).count();
            others == 0 && candidate.shares == 0
        };
        Arc::ptr_eq(&a.device.model, &b.device.model)
            && !a.device.model.traits().multiple
            && a.used == b.used
            && (a.pool == b.pool || a.device.consumes.is_empty())
            && a.device.consumes == b.device.consumes
            && a.device.taints == b.device.taints
            && is_free(a, false)
            && is_free(b, true)
    }

    /// Notes what became of the candidates, if the search got further than ever.
    fn fell_short(&mut self, at: (usize, usize, usize), have: u64) {
        if !self.is_furthest(at, have) {
            return;
        }
        let (claim, request, alternative) = at;
        let choice = &self.choices[claim][request][alternative];
        let mut counts = Exclusions {
            unselected: choice.unselected,
            failed: choice.failed.clone(),
            ..Exclusions::default()
        };
        let is_own =
            |chosen: &Chosen, candidate: usize| chosen.request == request && chosen.candidate == candidate;
        for (position, candidate) in choice.matching.iter().enumerate() {
            if !self.chosen[claim].iter().any(|chosen| is_own(chosen, *candidate))
                && let Some(excluded) = self.excluded(at, position)
            {
                excluded.count(&mut counts);
            }
        }
        let (wanted, matching) = (choice.wanted.max(1), choice.matching.len());
        self.stopped(at, have, Shortage::TooFew { wanted, matching, counts });
    }

    fn is_furthest(&self, at: (usize, usize, usize), have: u64) -> bool {
        self.furthest.as_ref().is_none_or(|(furthest, _)| *furthest < (at.0, at.1, have as usize))
    }

    fn stopped(&mut self, at: (usize, usize, usize), have: u64, why: Shortage) {
        if !self.is_furthest(at, have) {
            return;
        }
        let depth = (at.0, at.1, have as usize);
        let at = if why == Shortage::TooMuchWork { (0, 0, 0) } else { at };
        let request = &self.claims[at.0].requests[at.1];
        let alternative = &request.alternatives[at.2];
        let (request, class) = (request.name_of(alternative), alternative.class.clone());
        self.furthest = Some((depth, NoDevices { claim: at.0, request, class, why }));
    }

    fn why(self) -> NoDevices {
        let nothing = || NoDevices {
            claim: 0,
            request: "".into(),
            class: "".into(),
            why: Shortage::TooFew { wanted: 1, matching: 0, counts: Exclusions::default() },
        };
        self.furthest.map_or_else(nothing, |(_, why)| why)
    }

    fn fit(&self) -> Fit {
        let has_choice = |request: &DeviceRequest| request.alternatives.len() > 1;
        let chooses = self.claims.iter().any(|claim| claim.requests.iter().any(has_choice));
        let (mut passed_over, mut touched) = (BTreeMap::new(), BTreeSet::new());
        for (claim, chosen) in self.chosen.iter().enumerate() {
            for chosen in chosen {
                passed_over.insert((claim, chosen.request), chosen.alternative);
                touched.insert(self.candidates[chosen.candidate].pool);
            }
        }
        let left = touched.iter().map(|pool| self.left_of(*pool)).sum::<u128>();
        Fit {
            alternatives: chooses
                .then(|| passed_over.values().sum::<usize>().min(usize::from(u16::MAX)) as u16),
            left_permille: (left / touched.len().max(1) as u128) as u16,
        }
    }

    /// Returns what is left of a pool for this node, in thousandths: of its counters if it has some, else of its devices.
    fn left_of(&self, pool: usize) -> u128 {
        let published = &self.pools[pool].pool.counters;
        let parts = published.iter().flat_map(|(set, counters)| {
            counters.iter().filter_map(move |(name, whole)| {
                let left = self.left[pool].get(set)?.get(name)?.nano().max(0).unsigned_abs();
                Some((left.saturating_mul(1000) / whole.nano().max(1).unsigned_abs()).min(1000))
            })
        });
        let (sum, count) = parts.fold((0, 0), |(sum, count), part| (sum + part, count + 1));
        if let Some(average) = u128::checked_div(sum, count) {
            return average;
        }
        let of_pool = self.candidates.iter().filter(|candidate| candidate.pool == pool);
        let is_free = |candidate: &&Candidate| {
            candidate.used.wholes == 0
                && candidate.used.shares + candidate.shares == 0
                && candidate.claims.is_empty()
        };
        let free = of_pool.clone().filter(is_free).count() as u128;
        free * 1000 / of_pool.count().max(1) as u128
    }

    fn result(&self, node: &str) -> Vec<ClaimAllocation> {
        let of_claim = |(claim, chosen): (usize, &Vec<Chosen>)| {
            let device = |chosen: &Chosen| {
                let request = &self.claims[claim].requests[chosen.request];
                let alternative = &request.alternatives[chosen.alternative];
                let candidate = &self.candidates[chosen.candidate];
                let pool = self.pools[candidate.pool].pool.id.clone();
                AllocatedDevice {
                    request: request.name_of(alternative),
                    id: DeviceId { pool, device: candidate.device.name.clone() },
                    admin_access: alternative.admin_access,
                    share: chosen.consumed.is_some().then(|| "".into()),
                    consumed: chosen.consumed.clone().unwrap_or_default().into(),
                    tolerations: alternative.tolerations.clone(),
                    binding_conditions: candidate.device.binding_conditions.clone(),
                    binding_failure_conditions: candidate.device.binding_failure_conditions.clone(),
                }
            };
            let given = chosen.iter().map(|chosen| self.candidates[chosen.candidate].device);
            let nodes = nodes_of(given, node);
            let mut chosen: Vec<_> = chosen.iter().collect();
            chosen.sort_by_key(|chosen| chosen.request);
            ClaimAllocation { devices: chosen.into_iter().map(device).collect(), nodes }
        };
        self.chosen.iter().enumerate().map(of_claim).collect()
    }
}

impl Candidate<'_> {
    /// Returns whether the device has this much capacity left.
    fn has_room(&self, taken: &[(Arc<str>, Quantity)]) -> bool {
        let capacity = &self.device.model.traits().capacity;
        taken.iter().all(|(name, amount)| {
            let before = self.used.consumed.get(name).copied().unwrap_or_default();
            let here = self.consumed.iter().find(|(known, _)| known == name);
            let here = here.map_or(Quantity::default(), |(_, sum)| *sum);
            let sum = before.saturating_add(here).saturating_add(*amount);
            capacity.get(name).is_some_and(|capacity| sum <= capacity.value)
        })
    }

    /// Returns whether its cost is that of any other such device, apart from its place.
    fn is_plain(&self) -> bool {
        self.device.consumes.is_empty() && !self.device.model.traits().multiple
    }

    /// Returns whether one more use of the device consumes counters: all but the first share do not.
    fn uses_counters(&self) -> bool {
        let shared = self.device.model.traits().multiple && self.used.shares + self.shares > 0;
        !self.device.consumes.is_empty() && !shared
    }
}

/// What excludes a candidate.
enum Excluded {
    Taken,
    Tainted,
    Constrained,
    Counters,
    Capacity,
}

impl Excluded {
    fn count(self, counts: &mut Exclusions) {
        let count = match self {
            Excluded::Taken => &mut counts.taken,
            Excluded::Tainted => &mut counts.tainted,
            Excluded::Constrained => &mut counts.constrained,
            Excluded::Counters => &mut counts.counters,
            Excluded::Capacity => &mut counts.capacity,
        };
        *count += 1;
    }
}

/// Returns the requests in the order in which they are served: first those for all devices, which have no choice. With
/// administrators the order of the claims matters, as upstream, and stays.
fn turns(claims: &[Shared<DeviceRequests>]) -> Vec<(usize, usize)> {
    let has_no_choice =
        |request: &DeviceRequest| request.alternatives.len() == 1 && request.alternatives[0].count.is_none();
    let is_admin = |request: &DeviceRequest| request.alternatives.iter().any(|wanted| wanted.admin_access);
    let all = claims.iter().enumerate().flat_map(|(claim, requests)| {
        requests.requests.iter().enumerate().map(move |(at, request)| ((claim, at), request))
    });
    let mut all: Vec<_> = all.collect();
    if !all.iter().any(|(_, request)| is_admin(request)) {
        all.sort_by_key(|(_, request)| !has_no_choice(request));
    }
    all.into_iter().map(|(turn, _)| turn).collect()
}

/// Returns whether all selectors match, or why one of them failed.
fn matches(alternative: &DeviceAlternative, device: &PoolDevice) -> Match {
    for (at, expression) in alternative.selectors.iter().enumerate() {
        match device.model.matches(expression) {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(error) => {
                let of_class = alternative.selectors_of_class;
                let text = match at < of_class {
                    true => format!("class {}: selector #{at}: {error}", alternative.class),
                    false => format!("selector #{}: {error}", at - of_class),
                };
                return Err(text.into());
            }
        }
    }
    Ok(true)
}

fn applies(constraint: &DeviceConstraint, request: &DeviceRequest, alternative: &DeviceAlternative) -> bool {
    let is_named = |name: &Arc<str>| {
        *name == request.name
            || (!alternative.name.is_empty()
                && name.split_once('/') == Some((&*request.name, &*alternative.name)))
    };
    constraint.requests.is_empty() || constraint.requests.iter().any(is_named)
}

/// Returns the attribute of this fully qualified name.
fn attribute<'a>(device: &'a PoolDevice, name: &str) -> Option<&'a Attribute> {
    let attributes = &device.model.traits().attributes;
    attributes.get(name).or_else(|| {
        let (domain, name) = name.split_once('/')?;
        attributes.get(name).filter(|_| *domain == **device.model.driver())
    })
}

/// Returns whether the pool has what the device consumes. One of which more is in use than there is gives nothing more, as
/// upstream.
fn has_counters(left: &BTreeMap<Arc<str>, Counters>, device: &PoolDevice) -> bool {
    if left.values().flatten().any(|(_, left)| left.is_negative()) {
        return false;
    }
    device.consumes.iter().all(|(set, counters)| {
        counters.iter().all(|(name, amount)| {
            let left = left.get(set).and_then(|set| set.get(name));
            left.is_some_and(|left| *amount <= *left)
        })
    })
}

/// Returns the term that only this node satisfies.
fn named(node: &str) -> NodeSelectorTerm {
    NodeSelectorTerm { expressions: [].into(), fields: [FieldRequirement::NameIs(node.into())].into() }
}

/// Returns the nodes that reach all of these devices; `None`: every node.
fn nodes_of<'a>(
    devices: impl Iterator<Item = &'a PoolDevice>,
    node: &str,
) -> Option<Box<[NodeSelectorTerm]>> {
    let (mut expressions, mut fields) = (Vec::new(), Vec::new());
    for device in devices {
        match &device.reach {
            _ if device.binds_to_node => return Some([named(node)].into()),
            Reach::Node(_) => return Some([named(node)].into()),
            // Validation allows one term only.
            Reach::Nodes(terms) => {
                for term in terms {
                    expressions.extend(term.expressions.iter().cloned());
                    fields.extend(term.fields.iter().cloned());
                }
            }
            Reach::All | Reach::PerDevice | Reach::Unknown => {}
        }
    }
    expressions.sort();
    expressions.dedup();
    fields.sort();
    fields.dedup();
    let found = !expressions.is_empty() || !fields.is_empty();
    found.then(|| [NodeSelectorTerm { expressions: expressions.into(), fields: fields.into() }].into())
}

#[cfg(test)]
mod tests;
