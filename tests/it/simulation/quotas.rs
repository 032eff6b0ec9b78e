//! Quotas of the simulation: one for the pods of each of some namespaces. They come, go and change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_model::Pod;
use berth_scheduler::agent::{Agent, AgentConfig, CacheLimits};
use berth_scheduler::objects::{ClusterObject, ObjectKind};
use berth_scheduler::policy::SelectedNamespaces;
use berth_scheduler::quota::{Limit, Limits, Quota, QuotaResource, Reclaim, Scope, Sums};
use berth_scheduler::scheduler::Scheduler;

use super::dice::Dice;
use super::gangs;
use super::objects::{NAMESPACES, ObjectKey, global};
use super::process::Shadow;
use super::sim::{Sim, Step};

fn quota(namespace: &str, created: i64, dice: &mut Dice) -> ClusterObject {
    let limit = |cpu_milli: Option<u64>, pods: Option<u64>| -> Limit {
        let cpu = cpu_milli.map(|amount| (QuotaResource::Cpu, amount as i64));
        cpu.into_iter().chain(pods.map(|n| (QuotaResource::Pods, n as i64))).collect()
    };
    let most_pods = dice.percent(40).then(|| 2 + dice.below(8));
    let maximum = limit(dice.percent(70).then(|| 500 + dice.below(5000)), most_pods);
    let guaranteed = limit(dice.percent(50).then(|| dice.below(2000)), None);
    let reclaim = match dice.below(4) {
        0 => Reclaim::LowerPriority,
        1 => Reclaim::Never,
        _ => Reclaim::Any,
    };
    ClusterObject::Quota(Box::new(Quota {
        name: name_of(namespace).into(),
        uid: format!("{namespace} {created}").into(),
        generation: 1,
        created,
        scope: Scope { queue: None, namespaces: SelectedNamespaces::Named([namespace.into()].into()) },
        reclaim,
        limits: match dice.percent(5) {
            true => Err("it is invalid".into()),
            false => Ok(Limits { guaranteed, maximum }),
        },
    }))
}

fn name_of(namespace: &str) -> String {
    format!("of-{namespace}")
}

/// Returns the quota that the pods of a namespace belong to.
pub fn quota_of<'a>(objects: &'a BTreeMap<ObjectKey, ClusterObject>, namespace: &str) -> Option<&'a Quota> {
    match objects.get(&global(ObjectKind::Quota, &name_of(namespace)))? {
        ClusterObject::Quota(quota) => Some(quota),
        _ => None,
    }
}

impl Shadow {
    /// Returns what the pods of a namespace hold, except the pod `except`.
    fn used_in(&self, namespace: &str, except: &str) -> Sums {
        let mut sums = Sums::default();
        let has_node = |pod: &&Pod| pod.node_name.is_some() || self.assumed.contains_key(&pod.uid);
        let placed = self.pods.values().filter(has_node).chain(self.held().map(|(pod, _)| pod));
        let counted = placed.filter(|pod| *pod.namespace == *namespace && *pod.uid != *except);
        counted.for_each(|pod| sums.charge(&pod.usage));
        sums
    }

    /// Checks that a pod that is being bound fits its quota.
    pub fn judge_quota(&self, pod: &Pod) -> Step {
        let Some(Ok(limits)) = quota_of(&self.objects, &pod.namespace).map(|quota| &quota.limits) else {
            return Ok(());
        };
        let (used, wanted) = (self.used_in(&pod.namespace, &pod.uid), Sums::from(&*pod.usage));
        for (resource, most) in limits.maximum.iter().filter(|(resource, _)| wanted.get(resource) > 0) {
            if used.get(resource) + wanted.get(resource) > most.into() {
                return Err(format!(
                    "I12 violated: {} is bound, its quota holds {used:?} of {limits:?}",
                    pod.uid
                ));
            }
        }
        Ok(())
    }

    /// Returns whether a pod may take back what the quota of this victim borrows.
    pub fn may_reclaim(&self, preemptor: &Pod, victim: &Pod) -> bool {
        let quota = |pod: &Pod| quota_of(&self.objects, &pod.namespace);
        let (Some(own), Some(other)) = (quota(preemptor), quota(victim)) else {
            return false;
        };
        let (Ok(own_limits), Ok(limits)) = (&own.limits, &other.limits) else {
            return false;
        };
        let used = self.used_in(&preemptor.namespace, &preemptor.uid);
        let wanted = Sums::from(&*preemptor.usage);
        let guaranteed = own_limits.guaranteed.iter().any(|(resource, _)| wanted.get(resource) > 0)
            && (own_limits.guaranteed.iter())
                .filter(|(resource, _)| wanted.get(resource) > 0)
                .all(|(resource, least)| used.get(resource) + wanted.get(resource) <= least.into());
        let theirs = self.used_in(&victim.namespace, "");
        let lent = |resource: &QuotaResource| {
            theirs.get(resource) > limits.guaranteed.get(resource).unwrap_or(0).into()
        };
        let borrows = lent(&QuotaResource::Cpu) || lent(&QuotaResource::Memory) || lent(&QuotaResource::Pods);
        own.name != other.name && own.reclaims() == Reclaim::Any && guaranteed && borrows
    }
}

impl Sim {
    pub fn change_quota(&mut self) {
        let namespace = *self.load.pick(&NAMESPACES).expect("there are some");
        let key = global(ObjectKind::Quota, &name_of(namespace));
        if self.cluster.objects.contains_key(&key) && self.load.percent(25) {
            self.note(|| format!("the quota of {namespace} is deleted"));
            return self.cluster.delete_object(&key);
        }
        let quota = quota(namespace, self.now.as_millis() as i64, &mut self.load);
        self.note(|| format!("{quota:?}"));
        self.tally.count("quota");
        self.cluster.apply_object(quota);
    }

    /// Returns whether the quota of a pod has no room for it.
    pub fn lacks_quota(&self, pod: &Pod, cold: &mut Scheduler) -> bool {
        let mut agent = Agent::new(AgentConfig { cache: CacheLimits::unlimited(), seed: 7 });
        cold.verdict(&mut agent, pod).refused.is_some()
    }

    /// At rest: returns the messages of the pods that wait for their quota. In each quota with such pods, one or more
    /// exceed it, or a gang does.
    pub fn judge_over_quota(&self, pods: &[&Pod], cold: &mut Scheduler) -> Result<Messages, String> {
        let mut messages = BTreeMap::new();
        let (mut waiting, mut lacking) = (BTreeSet::new(), BTreeSet::new());
        let mut agent = Agent::new(AgentConfig { cache: CacheLimits::unlimited(), seed: 7 });
        for pod in pods {
            let quota = name_of(&pod.namespace);
            let lack = cold.verdict(&mut agent, pod).refused;
            if lack.is_some() {
                lacking.insert(quota.clone());
            }
            let queued = || {
                format!("quota {quota}: there is free capacity, but it is reserved for pods queued before this one")
                    .into()
            };
            messages.insert(pod.uid.clone(), lack.unwrap_or_else(queued));
            waiting.insert(quota);
        }
        // Gangs wait for the quota of their namespace.
        lacking.insert(name_of(gangs::NAMESPACE));
        match waiting.difference(&lacking).next() {
            Some(quota) => {
                let account = cold.ledger().accounts().of(quota);
                Err(format!("pods wait for the quota {quota}, which has room for each of them: {account:?}"))
            }
            None => Ok(messages),
        }
    }
}

/// Messages of conditions, by uid.
pub type Messages = BTreeMap<Arc<str>, Arc<str>>;
