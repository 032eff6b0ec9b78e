//! Disruption budgets of the simulation: the disruption controller counts them, and other clients evict pods through the API
//! that heeds them. Preemption deletes its victims, as kube-scheduler's does: the API server refuses no deletion for a budget,
//! which for preemption is a cost.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use berth_model::{LabelSelector, Operator, Pod, Requirement};
use berth_scheduler::invariants;
use berth_scheduler::objects::{Budgets, ClusterObject, DisruptionBudget, ObjectKind, ObjectName};
use berth_scheduler::scheduler::Eviction;

use super::gangs::gang_of;
use super::objects::{APPS, NAMESPACES, ObjectKey};
use super::process::Who;
use super::sim::{Event, MS, S, Sim, Step};

/// A pod that the API server has counted as disrupted counts as healthy again after this time. Upstream: two minutes.
const DISRUPTED_FOR: Duration = Duration::from_secs(20);
/// Rules may have changed between a dry run and its choice, which are this far apart at most.
const DRY_RUN_AGE: Duration = Duration::from_secs(2);

/// What the disruption controller knows beyond the objects.
#[derive(Default)]
pub struct DisruptionController {
    /// Number of pods that are to stay healthy.
    least_healthy: BTreeMap<ObjectKey, usize>,
    /// When a pod of this name was counted as disrupted.
    disrupted_at: BTreeMap<(ObjectKey, Arc<str>), Duration>,
    count_is_due: bool,
}

fn key(namespace: &str, app: &str) -> ObjectKey {
    (ObjectKind::DisruptionBudget, ObjectName { namespace: namespace.into(), name: app.into() })
}

fn budgets(
    objects: &BTreeMap<ObjectKey, ClusterObject>,
) -> impl Iterator<Item = (&ObjectKey, &DisruptionBudget)> {
    objects.iter().filter_map(|(key, object)| match object {
        ClusterObject::DisruptionBudget(budget) => Some((key, budget)),
        _ => None,
    })
}

fn covers(budget: &DisruptionBudget, pod: &Pod) -> bool {
    budget.name.namespace == pod.namespace && budget.selector.matches(&pod.peer.identity.labels)
}

impl Sim {
    pub fn build_budgets(&mut self) {
        if !self.settings.budgets {
            return;
        }
        for namespace in NAMESPACES {
            for app in APPS {
                if self.load.percent(50) {
                    self.apply_budget(namespace, app);
                }
            }
        }
    }

    pub fn change_budget(&mut self) {
        let namespace = *self.load.pick(&NAMESPACES).expect("there are some");
        let app = *self.load.pick(&APPS).expect("there are some");
        let key = key(namespace, app);
        if self.cluster.objects.contains_key(&key) && self.load.percent(30) {
            self.note(|| format!("the budget of {app} in {namespace} is deleted"));
            return self.cluster.delete_object(&key);
        }
        self.apply_budget(namespace, app);
    }

    /// A new or changed budget allows nothing until the controller has counted its pods.
    fn apply_budget(&mut self, namespace: &str, app: &str) {
        let mut apps: Vec<Arc<str>> = vec![app.into()];
        if self.load.percent(15) {
            apps.push((*self.load.pick(&APPS).expect("there are some")).into());
        }
        let least = self.load.below(4) as usize;
        self.note(|| format!("of the pods of {apps:?} in {namespace} {least} are to stay healthy"));
        self.tally.count("budget");
        let requirement = Requirement { key: "app".into(), operator: Operator::In(apps.into()) };
        let key = key(namespace, app);
        self.cluster.apply_object(ClusterObject::DisruptionBudget(DisruptionBudget {
            name: key.1.clone(),
            selector: LabelSelector::All([requirement].into()),
            allowed: 0,
            disrupted: BTreeSet::new(),
        }));
        self.disruptions.least_healthy.insert(key, least);
        self.count_budgets_soon();
    }

    /// Pods or budgets have changed: the controller counts them after a while.
    pub fn count_budgets_soon(&mut self) {
        if !self.settings.budgets || self.disruptions.count_is_due {
            return;
        }
        self.disruptions.count_is_due = true;
        let pause = match self.delays.below(5) {
            0 => self.delays.up_to(2 * S),
            _ => self.delays.up_to(20 * MS),
        };
        self.after(pause, Event::CountBudgets);
    }

    pub fn count_budgets(&mut self) {
        self.disruptions.count_is_due = false;
        let pods = self.cluster.store.list();
        let known: Vec<_> =
            budgets(&self.cluster.objects).map(|(key, budget)| (key.clone(), budget.clone())).collect();
        for (key, before) in known {
            let mut budget = before.clone();
            let counted_at =
                |name: &Arc<str>| self.disruptions.disrupted_at.get(&(key.clone(), name.clone()));
            budget.disrupted.retain(|name| {
                let is_there =
                    pods.iter().any(|pod| pod.name == *name && covers(&before, pod) && !pod.deleting);
                is_there && counted_at(name).is_some_and(|at| self.now < *at + DISRUPTED_FOR)
            });
            let is_healthy = |pod: &&Pod| {
                covers(&budget, pod)
                    && pod.node_name.is_some()
                    && !pod.deleting
                    && !pod.finished
                    && !budget.disrupted.contains(&pod.name)
            };
            let healthy = pods.iter().filter(is_healthy).count();
            budget.allowed = healthy.saturating_sub(self.disruptions.least_healthy[&key]) as i32;
            if budget != before {
                self.note(|| format!("{budget:?}"));
                self.cluster.apply_object(ClusterObject::DisruptionBudget(budget));
            }
        }
    }

    /// Another client evicts a pod through the API.
    pub fn drain(&mut self) {
        if !self.settings.budgets {
            return;
        }
        let Some(pod) = self.some_pod(|pod| pod.node_name.is_some() && !pod.deleting && !pod.finished) else {
            return;
        };
        let of_pod = budgets(&self.cluster.objects).filter(|(_, budget)| covers(budget, &pod));
        let of_pod: Vec<_> = of_pod.map(|(key, budget)| (key.clone(), budget.clone())).collect();
        match &*of_pod {
            [] => {}
            [(key, budget)] if budget.allowed > 0 => {
                let mut budget = budget.clone();
                budget.allowed -= 1;
                budget.disrupted.insert(pod.name.clone());
                self.disruptions.disrupted_at.insert((key.clone(), pod.name.clone()), self.now);
                self.cluster.apply_object(ClusterObject::DisruptionBudget(budget));
                self.after(DISRUPTED_FOR, Event::CountBudgets);
                if self.fates.percent(20) {
                    self.tally.count("disruption without effect");
                    return self.note(|| format!("{} counts as disrupted, but is not deleted", pod.uid));
                }
            }
            [_] => {
                self.tally.count("eviction forbidden");
                return self.note(|| format!("the budget of {} forbids its eviction", pod.uid));
            }
            // The API server evicts no pod that has several budgets.
            [_, ..] => return,
        }
        self.tally.count("drained");
        let grace = self.fates.up_to(3 * S);
        self.note(|| format!("{} is evicted by another client, gone in {grace:?}", pod.uid));
        self.terminate(&pod, grace);
    }

    /// A process evicts these pods together: if on its node a preemptor can go without pods whose eviction violates a budget,
    /// it evicts none of them.
    pub fn judge_budgets(&mut self, who: Who, evictions: &[Eviction]) -> Step {
        let mut by_preemptor: BTreeMap<&Arc<str>, Vec<&Eviction>> = BTreeMap::new();
        for eviction in evictions {
            by_preemptor.entry(&eviction.preemptor.uid).or_default().push(eviction);
        }
        for (uid, evictions) in by_preemptor {
            if let Some(what) = self.judge_violations(who, uid, &evictions)? {
                self.tally.count(what);
            }
        }
        Ok(())
    }

    /// Returns what happened to the budgets; `None`: no budget mattered, or other rules decide, too.
    fn judge_violations(
        &self,
        (slot, _): Who,
        uid: &Arc<str>,
        evictions: &[&Eviction],
    ) -> Step<Option<&'static str>> {
        let process = &self.processes[slot];
        let shadow = &process.shadow;
        let budgets = process.dry_run_budgets.as_ref().unwrap_or(process.scheduler.budgets());
        let (Some(preemptor), Some(node)) = (shadow.pods.get(uid), shadow.nodes.get(&evictions[0].node))
        else {
            return Ok(None);
        };
        let there = || shadow.pods.values().filter(|pod| pod.node_name.as_ref() == Some(&node.name));
        let only_node_matters = preemptor.peer.affinity == Arc::default()
            && preemptor.spec.as_ref().is_ok_and(|spec| spec.spread.constraints.is_empty())
            && shadow.pods.values().all(|pod| pod.peer.affinity.required_anti.is_empty());
        let is_alone = gang_of(preemptor).is_none() && there().all(|pod| gang_of(pod).is_none());
        let ruled = |(kind, _): &ObjectKey| matches!(kind, ObjectKind::AllocationPolicy | ObjectKind::Quota);
        let is_ruled = shadow.objects.keys().any(ruled) || self.now < shadow.rules_changed + DRY_RUN_AGE;
        // A pod that was not seen there when the dry run began was no possible victim.
        let arrived = shadow.arrivals.get(&node.name).is_some_and(|at| self.now < *at + DRY_RUN_AGE);
        if !only_node_matters || !is_alone || is_ruled || arrived {
            return Ok(None);
        }
        let mut lower: Vec<&Pod> = there().filter(|pod| pod.priority < preemptor.priority).collect();
        lower.sort_by_key(|pod| (Reverse(pod.priority), &pod.uid));
        let mut spending = budgets.spending();
        lower.retain(|pod| spending.violates(&pod.namespace, &pod.name, &pod.peer.identity));
        let violating: BTreeSet<&Arc<str>> = lower.iter().map(|pod| &pod.uid).collect();
        if violating.is_empty() {
            return Ok(None);
        }
        let Some(victim) = evictions.iter().find(|eviction| violating.contains(&eviction.victim.uid)) else {
            return Ok(Some("budget heeded"));
        };
        // Without the pods of lower priority that violate no budget. Room that is kept for other pods stays theirs.
        let stays = |pod: &&Pod| pod.priority >= preemptor.priority || violating.contains(&pod.uid);
        let reserved =
            process.scheduler.nominated_pods().filter(|(other, at)| *other != uid && **at == node.name);
        let assumed = shadow.assumed.values().filter(|(at, _)| *at == node.name).map(|(_, usage)| usage);
        let kept: Vec<_> = there()
            .filter(stays)
            .chain(reserved.filter_map(|(other, _)| shadow.pods.get(other)))
            .map(|pod| &pod.usage)
            .chain(assumed)
            .chain(shadow.held_on(&node.name, uid))
            .collect();
        let Ok(spec) = &preemptor.spec else {
            return Ok(None);
        };
        match invariants::admits(spec, node, kept.into_iter()) {
            Ok(()) => {
                Err(format!("{} violates a budget for {uid}, which needs no such victim", victim.victim.uid))
            }
            Err(_) => Ok(Some("budget violated")),
        }
    }

    /// At rest: every process knows the budgets that are exhausted.
    pub fn judge_known_budgets(&self, known: &Budgets, pods: &[Pod]) -> Step {
        for pod in pods {
            let exhausted = |budget: &DisruptionBudget| {
                covers(budget, pod) && budget.allowed < 1 && !budget.disrupted.contains(&pod.name)
            };
            let expected =
                budgets(&self.cluster.objects).map(|(_, budget)| budget).find(|budget| exhausted(budget));
            let spending = known.spending();
            let found = spending.exhausted(&pod.namespace, &pod.name, &pod.peer.identity);
            if found != expected.map(|budget| &budget.name) {
                return Err(format!(
                    "{}: the budget {found:?} is exhausted, should be {expected:?}",
                    pod.uid
                ));
            }
        }
        Ok(())
    }
}
