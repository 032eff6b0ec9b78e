//! Status of quotas.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::resources::list;
use super::{Accounts, Index, Limit, Quota, QuotaLines, QuotaResource, Scope, Sums};
use crate::policy::{MOST_NAMES, SelectedNamespaces, StatusReason, names, names_of};
use berth_model::Labels;

/// Status of one quota.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaReport {
    pub name: Arc<str>,
    pub uid: Arc<str>,
    pub observed_generation: i64,
    pub reason: StatusReason,
    /// Human-readable explanation.
    pub message: Arc<str>,
    /// Equally specific quotas that take precedence for some of its pods.
    pub contested: Option<Arc<str>>,
    /// Number of bound pods.
    pub pods: u64,
    /// Number of pods that wait because the maximum is reached; a gang counts as one.
    pub waiting: usize,
    /// Number of pods that other quotas preempted to reclaim their guarantee, since the process started.
    pub reclaimed: u64,
    /// Usage by resource, for the resources that the quota lists.
    pub standing: Vec<QuotaUsage>,
    /// Amount by which the guarantees of all quotas exceed the cluster's capacity.
    pub shortfall: Option<Shortfall>,
}

/// Usage of one resource of a quota.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaUsage {
    pub resource: QuotaResource,
    pub used: i128,
    pub borrowed: i128,
    pub guaranteed: Option<i64>,
    pub maximum: Option<i64>,
}

/// All guarantees together exceed the allocatable resources of all nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortfall(pub Arc<str>);

impl QuotaUsage {
    /// Returns the usage of all resources that the quota lists, sorted.
    pub fn of(quota: &Quota, accounts: &Accounts) -> Vec<QuotaUsage> {
        let Some(limits) = quota.valid() else {
            return Vec::new();
        };
        let account = accounts.of(&quota.name);
        let borrowed = account.borrowed(limits);
        let mut all: BTreeMap<&QuotaResource, QuotaUsage> = BTreeMap::new();
        for (resource, _) in limits.guaranteed.iter().chain(limits.maximum.iter()) {
            all.entry(resource).or_insert_with(|| QuotaUsage {
                resource: resource.clone(),
                used: account.used.get(resource),
                borrowed: borrowed.get(resource),
                guaranteed: limits.guaranteed.get(resource),
                maximum: limits.maximum.get(resource),
            });
        }
        all.into_values().collect()
    }
}

/// Returns the statuses of all quotas, by name. `namespaces` are the existing ones, sorted; `cluster` is the sum of all
/// nodes' allocatable resources.
pub fn statuses(
    index: &Index,
    accounts: &Accounts,
    lines: &QuotaLines,
    reclaimed: &BTreeMap<Arc<str>, u64>,
    namespaces: &[(&Arc<str>, &Labels)],
    cluster: &Sums,
) -> Vec<QuotaReport> {
    let shortfall = shortfall(index, cluster);
    let contests = contests(index, namespaces);
    let status = |quota: &Arc<Quota>| {
        let bare = QuotaReport {
            name: quota.name.clone(),
            uid: quota.uid.clone(),
            observed_generation: quota.generation,
            reason: StatusReason::Applied,
            message: describe(&quota.scope, namespaces).into(),
            contested: None,
            pods: accounts.of(&quota.name).pods,
            waiting: lines.waiting(&quota.name),
            reclaimed: reclaimed.get(&quota.name).copied().unwrap_or(0),
            standing: QuotaUsage::of(quota, accounts),
            shortfall: None,
        };
        if let Err(why) = &quota.limits {
            let message = format!("the quota is not in force: {why}").into();
            return QuotaReport { reason: StatusReason::Invalid, message, ..bare };
        }
        let guarantees = quota.valid().is_some_and(|limits| !limits.guaranteed.is_empty());
        let shortfall = shortfall.clone().filter(|_| guarantees);
        match contests.get(&quota.name) {
            None => QuotaReport { shortfall, ..bare },
            Some((why, false)) => QuotaReport { shortfall, contested: Some(why.clone()), ..bare },
            Some((why, true)) => {
                let message =
                    "the quota is not in force: other quotas take precedence for all of its pods".into();
                let contested = Some(why.clone());
                QuotaReport { reason: StatusReason::Overruled, message, contested, shortfall, ..bare }
            }
        }
    };
    index.iter().map(status).collect()
}

fn shortfall(index: &Index, cluster: &Sums) -> Option<Shortfall> {
    let mut guaranteed = Sums::default();
    for limits in index.ranked().filter_map(|quota| quota.valid()) {
        add(&mut guaranteed, &limits.guaranteed);
    }
    let more = guaranteed.iter().filter(|(resource, amount)| *amount > cluster.get(resource));
    let text = list(more.map(|(resource, amount)| {
        let has = resource.show(cluster.get(resource));
        (resource.clone(), format!("{} of {has}", resource.show(amount)))
    }));
    let told = || {
        Shortfall(
            format!("the guarantees of all quotas exceed the allocatable resources of all nodes: {text}")
                .into(),
        )
    };
    (!text.is_empty()).then(told)
}

fn add(sums: &mut Sums, limit: &Limit) {
    limit.iter().for_each(|(resource, amount)| sums.change(resource.clone(), amount.into()));
}

/// A set of pods that a quota selects: a namespace or all, and a queue or none.
type Claim = (Option<Arc<str>>, Option<Arc<str>>);

/// Returns for each quota which quotas take precedence for which of its pods, and whether for all of them. Only equally
/// specific quotas contest each other; that a queue of a namespace takes precedence over the namespace is intended.
fn contests(index: &Index, namespaces: &[(&Arc<str>, &Labels)]) -> BTreeMap<Arc<str>, (Arc<str>, bool)> {
    let mut winners: BTreeMap<Claim, &Arc<str>> = BTreeMap::new();
    let mut found = BTreeMap::new();
    for quota in index.ranked() {
        let claims = claims(&quota.scope, namespaces);
        let all = claims.len();
        let mut lost: BTreeMap<&Arc<str>, Vec<String>> = BTreeMap::new();
        for claim in claims {
            match winners.get(&claim) {
                Some(winner) => lost.entry(winner).or_default().push(text_of(&claim)),
                None => {
                    winners.insert(claim, &quota.name);
                }
            }
        }
        let losses: usize = lost.values().map(Vec::len).sum();
        if losses > 0 {
            let each = lost
                .iter()
                .map(|(winner, claims)| format!("quota {winner} takes precedence for {}", names(claims)));
            let each: Vec<_> = each.take(MOST_NAMES).collect();
            let text = format!("{}: it is equally specific, and older or first by name", each.join("; "));
            found.insert(quota.name.clone(), (text.into(), losses == all));
        }
    }
    found
}

fn claims(scope: &Scope, namespaces: &[(&Arc<str>, &Labels)]) -> Vec<Claim> {
    match &scope.namespaces {
        SelectedNamespaces::All => vec![(None, scope.queue.clone())],
        meant => {
            names_of(meant, namespaces).into_iter().map(|name| (Some(name), scope.queue.clone())).collect()
        }
    }
}

fn text_of((namespace, queue): &Claim) -> String {
    match (namespace, queue) {
        (None, None) => "all pods".to_owned(),
        (None, Some(queue)) => format!("queue {queue}"),
        (Some(namespace), None) => format!("namespace {namespace}"),
        (Some(namespace), Some(queue)) => format!("queue {queue} in namespace {namespace}"),
    }
}

fn describe(scope: &Scope, namespaces: &[(&Arc<str>, &Labels)]) -> String {
    let within = match &scope.namespaces {
        SelectedNamespaces::All => String::new(),
        meant => match &*names_of(meant, namespaces) {
            [] => return "applies to no pods: no namespace matches the selector".to_owned(),
            [one] => format!(" of namespace {one}"),
            some => format!(" of namespaces {}", names(some)),
        },
    };
    match &scope.queue {
        Some(queue) => format!("applies to pods of queue {queue}{within}"),
        None if within.is_empty() => "applies to all pods that belong to no other quota".to_owned(),
        None => format!("applies to pods{within}"),
    }
}
