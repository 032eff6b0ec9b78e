//! PodDisruptionBudgets: pods that preemption avoids if other victims suffice (upstream: `filterPodsWithPDBViolation`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::ObjectName;
use berth_model::{Identity, LabelSelector};

/// Disruptions currently allowed for the selected pods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DisruptionBudget {
    pub name: ObjectName,
    /// A selector that matches everything selects nothing, as upstream.
    pub selector: LabelSelector,
    pub allowed: i32,
    /// Names of pods whose disruption the API server has already counted.
    pub disrupted: BTreeSet<Arc<str>>,
}

/// All budgets. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Budgets {
    all: Arc<BTreeMap<ObjectName, DisruptionBudget>>,
    revision: u64,
}

impl Budgets {
    /// Increments with every change.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    pub(super) fn apply(&mut self, budget: DisruptionBudget) {
        if self.all.get(&budget.name) != Some(&budget) {
            self.revision += 1;
            Arc::make_mut(&mut self.all).insert(budget.name.clone(), budget);
        }
    }

    pub(super) fn delete(&mut self, name: &ObjectName) {
        if self.all.contains_key(name) {
            self.revision += 1;
            Arc::make_mut(&mut self.all).remove(name);
        }
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &ObjectName> {
        self.all.keys()
    }

    /// Starts an account of the remaining budgets, from which pods are subtracted one by one.
    pub fn spending(&self) -> Spending<'_> {
        Spending { budgets: self, left: BTreeMap::new() }
    }

    /// Returns the budgets that count the disruption of this pod.
    fn of_pod<'a>(
        &'a self,
        namespace: &Arc<str>,
        name: &str,
        pod: &Identity,
    ) -> impl Iterator<Item = &'a DisruptionBudget> {
        let labelled = pod.labels.pairs().next().is_some();
        self.of_namespace(namespace).filter(move |budget| {
            let empty = matches!(&budget.selector, LabelSelector::All(terms) if terms.is_empty());
            labelled && !empty && budget.selector.matches(&pod.labels) && !budget.disrupted.contains(name)
        })
    }

    fn of_namespace(&self, namespace: &Arc<str>) -> impl Iterator<Item = &DisruptionBudget> {
        let first = ObjectName { namespace: namespace.clone(), name: Arc::from("") };
        let namespace = namespace.clone();
        self.all.range(first..).map(|(_, budget)| budget).take_while(move |b| b.name.namespace == namespace)
    }
}

/// Remaining budgets, see [`Budgets::spending`].
#[derive(Debug, Clone)]
pub struct Spending<'a> {
    budgets: &'a Budgets,
    left: BTreeMap<&'a ObjectName, i64>,
}

impl Spending<'_> {
    /// Subtracts this pod. Returns whether that exceeds one of its budgets.
    pub fn violates(&mut self, namespace: &Arc<str>, name: &str, pod: &Identity) -> bool {
        let mut violated = false;
        for budget in self.budgets.of_pod(namespace, name, pod) {
            let left = self.left.entry(&budget.name).or_insert(budget.allowed.into());
            *left -= 1;
            violated |= *left < 0;
        }
        violated
    }

    /// Returns the first budget of this pod that allows no further disruption.
    pub fn exhausted(&self, namespace: &Arc<str>, name: &str, pod: &Identity) -> Option<&ObjectName> {
        let left = |budget: &DisruptionBudget| self.left.get(&budget.name).copied();
        let none_left = |budget: &&DisruptionBudget| left(budget).unwrap_or(budget.allowed.into()) < 1;
        self.budgets.of_pod(namespace, name, pod).find(none_left).map(|budget| &budget.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_model::{Operator, Requirement};

    fn budget(namespace: &str, name: &str, app: Option<&str>, allowed: i32) -> DisruptionBudget {
        let requirement =
            app.map(|app| Requirement { key: "app".into(), operator: Operator::In([app.into()].into()) });
        DisruptionBudget {
            name: ObjectName { namespace: namespace.into(), name: name.into() },
            selector: LabelSelector::All(requirement.into_iter().collect()),
            allowed,
            disrupted: BTreeSet::new(),
        }
    }

    fn pod(app: &str) -> Identity {
        Identity { labels: [("app", app)].into_iter().collect(), ..Identity::default() }
    }

    #[test]
    fn a_budget_bears_as_many_pods_of_its_namespace_as_it_allows_and_each_more_violates_it() {
        let mut budgets = Budgets::default();
        budgets.apply(budget("x", "web", Some("web"), 1));
        let x: Arc<str> = "x".into();
        let mut spending = budgets.spending();
        assert!(!spending.violates(&"y".into(), "a", &pod("web")), "another namespace");
        assert!(!spending.violates(&x, "a", &pod("db")), "not selected");
        assert!(!spending.violates(&x, "a", &pod("web")));
        assert!(spending.violates(&x, "b", &pod("web")));
        assert!(spending.violates(&x, "c", &pod("web")));
    }

    #[test]
    fn a_pod_that_the_api_server_has_counted_already_violates_nothing() {
        let mut budgets = Budgets::default();
        budgets
            .apply(DisruptionBudget { disrupted: ["a".into()].into(), ..budget("x", "web", Some("web"), 0) });
        let mut spending = budgets.spending();
        assert!(!spending.violates(&"x".into(), "a", &pod("web")));
        assert!(spending.violates(&"x".into(), "b", &pod("web")));
    }

    #[test]
    fn a_budget_without_requirements_selects_nothing_and_a_pod_without_labels_is_in_none() {
        let mut budgets = Budgets::default();
        budgets.apply(budget("x", "all", None, 0));
        assert!(!budgets.spending().violates(&"x".into(), "a", &pod("web")));
        assert!(!budgets.spending().violates(&"x".into(), "a", &Identity::default()));
    }

    #[test]
    fn only_what_changes_something_is_another_revision() {
        let mut budgets = Budgets::default();
        budgets.apply(budget("x", "web", Some("web"), 1));
        budgets.apply(budget("x", "web", Some("web"), 1));
        assert_eq!(budgets.revision(), 1);
        budgets.delete(&budget("x", "web", None, 0).name);
        assert_eq!((budgets.revision(), budgets.names().count()), (2, 0));
    }
}
