//! Default topology spread: pods of the same service or controller are spread even if they have no constraints.
//!
//! Upstream: `DefaultSelector` in plugins/helper/spread.go, and `buildDefaultConstraints` in
//! plugins/podtopologyspread/common.go.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{Affected, ObjectKind, ObjectName};
use berth_model::{
    Identity, LabelSelector, Operator, Pod, PodOwner, PodSelector, PodSpec, Requirement, Spread,
    SpreadConstraint,
};

/// Returns upstream's `systemDefaultConstraints`, without selectors, which are set per pod.
pub fn system_defaults() -> Spread {
    let soft = |topology_key: &str, max_skew| SpreadConstraint {
        max_skew,
        ..default_constraint(topology_key, false)
    };
    let constraints = [soft("kubernetes.io/hostname", 3), soft("topology.kubernetes.io/zone", 5)];
    Spread { constraints: constraints.into(), defaulted: true }
}

/// Returns a constraint with default values; `max_skew` 1.
pub fn default_constraint(topology_key: &str, hard: bool) -> SpreadConstraint {
    SpreadConstraint {
        topology_key: topology_key.into(),
        max_skew: 1,
        min_domains: 1,
        hard,
        selector: PodSelector::default(),
        self_match: false,
        honor_affinity: true,
        honor_taints: false,
    }
}

/// Services and controllers, whose pods have constraints by default.
#[derive(Debug, Default)]
pub(super) struct Spreading {
    namespaces: HashMap<Arc<str>, Together>,
}

/// Services and controllers of one namespace.
#[derive(Debug, Default)]
struct Together {
    services: HashMap<Arc<str>, LabelSelector>,
    /// Services by one label of their selector, as a pod is mostly selected by few of many services.
    by_label: HashMap<Label, Vec<Arc<str>>>,
    controllers: HashMap<(ObjectKind, Arc<str>), LabelSelector>,
}

type Label = (Arc<str>, Arc<str>);

impl Spreading {
    /// Upserts the selector of an object.
    pub fn apply(&mut self, kind: ObjectKind, object: ObjectName, selector: LabelSelector) -> Affected {
        let together = self.namespaces.entry(object.namespace.clone()).or_default();
        let news = match kind {
            ObjectKind::Service => together.put_service(&object.name, selector),
            kind => {
                let known = together.controllers.insert((kind, object.name.clone()), selector.clone());
                known.as_ref() != Some(&selector)
            }
        };
        if news { affected(kind, object) } else { Affected::Nothing }
    }

    pub fn delete(&mut self, kind: ObjectKind, object: &ObjectName) -> Affected {
        let Some(together) = self.namespaces.get_mut(&object.namespace) else {
            return Affected::Nothing;
        };
        let known = match kind {
            ObjectKind::Service => together.put_service(&object.name, LabelSelector::Nothing),
            kind => together.controllers.remove(&(kind, object.name.clone())).is_some(),
        };
        if together.services.is_empty() && together.controllers.is_empty() {
            self.namespaces.remove(&object.namespace);
        }
        if known { affected(kind, object.clone()) } else { Affected::Nothing }
    }

    pub fn has(&self, kind: ObjectKind, object: &ObjectName) -> bool {
        self.namespaces.get(&object.namespace).is_some_and(|together| match kind {
            ObjectKind::Service => together.services.contains_key(&object.name),
            kind => together.controllers.contains_key(&(kind, object.name.clone())),
        })
    }

    /// Returns the names of all objects of this kind, in no particular order.
    pub fn names(&self, kind: ObjectKind) -> Vec<ObjectName> {
        let mut names = Vec::new();
        for (namespace, together) in &self.namespaces {
            let name = |name: &Arc<str>| ObjectName { namespace: namespace.clone(), name: name.clone() };
            match kind {
                ObjectKind::Service => names.extend(together.services.keys().map(name)),
                kind => names
                    .extend(together.controllers.keys().filter(|(of, _)| *of == kind).map(|(_, n)| name(n))),
            }
        }
        names
    }

    /// Returns the default constraints for the pod, if it has none of its own and belongs to a service or controller.
    pub fn constraints(&self, defaults: &Spread, spec: &PodSpec, pod: &Pod) -> Option<Spread> {
        if !spec.spread.constraints.is_empty() || defaults.constraints.is_empty() {
            return None;
        }
        let identity = &pod.peer.identity;
        let together = self.namespaces.get(&identity.namespace)?;
        let requirements = together.requirements(identity, pod.owner.as_ref());
        if requirements.is_empty() {
            return None;
        }
        let labels = LabelSelector::All(requirements.into());
        let self_match = labels.matches(&identity.labels);
        let namespaces: Box<[_]> = [identity.namespace.clone()].into();
        let selector = PodSelector { namespaces, namespace_selector: LabelSelector::Nothing, labels };
        let constrain = |default: &SpreadConstraint| SpreadConstraint {
            selector: selector.clone(),
            self_match,
            ..default.clone()
        };
        let constraints = defaults.constraints.iter().map(constrain).collect();
        Some(Spread { constraints, defaulted: defaults.defaulted })
    }
}

impl Together {
    /// Returns whether the selector changed. A service with an empty selector is ignored.
    fn put_service(&mut self, name: &Arc<str>, selector: LabelSelector) -> bool {
        let first = first_label(&selector);
        let known = match first {
            Some(_) => self.services.insert(name.clone(), selector.clone()),
            None => self.services.remove(name),
        };
        if known.as_ref() == first.is_some().then_some(&selector) {
            return false;
        }
        if let Some(label) = known.as_ref().and_then(first_label)
            && let Some(services) = self.by_label.get_mut(&label)
        {
            services.retain(|service| service != name);
            if services.is_empty() {
                self.by_label.remove(&label);
            }
        }
        if let Some(label) = first {
            self.by_label.entry(label).or_default().push(name.clone());
        }
        true
    }

    /// Returns the requirements of all selectors that match this pod, sorted, without duplicates; empty if it belongs
    /// to no service or controller.
    fn requirements(&self, pod: &Identity, owner: Option<&PodOwner>) -> Vec<Requirement> {
        let services = pod.labels.pairs().filter_map(|label| self.by_label.get(label)).flatten();
        let selectors = services.filter_map(|name| self.services.get(name));
        let mut all: Vec<Requirement> = selectors
            .filter(|selector| selector.matches(&pod.labels))
            .flat_map(|selector| requirements_of(selector).iter().cloned())
            .collect();
        if let Some((kind, owner)) = owner.and_then(|owner| Some((kind_of(owner)?, owner)))
            && let Some(selector) = self.controllers.get(&(kind, owner.name.clone()))
        {
            let theirs = requirements_of(selector);
            if kind == ObjectKind::ReplicationController {
                // Merged like maps: where a label has another value in a service, the controller's value is used.
                let keys: HashSet<_> = selector.keys().collect();
                all.retain(|requirement| !keys.contains(&requirement.key));
            }
            all.extend(theirs.iter().cloned());
        }
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// Returns the affected pods: for a service all pods of its namespace, for a controller only its own.
fn affected(kind: ObjectKind, object: ObjectName) -> Affected {
    match kind {
        ObjectKind::Service => Affected::Waiting(object.namespace),
        _ => Affected::Owned { namespace: object.namespace, owner: object.name },
    }
}

fn requirements_of(selector: &LabelSelector) -> &[Requirement] {
    match selector {
        LabelSelector::Nothing => &[],
        LabelSelector::All(requirements) => requirements,
    }
}

/// Returns a label that every selected pod has, if the selector names one.
fn first_label(selector: &LabelSelector) -> Option<Label> {
    requirements_of(selector).iter().find_map(|requirement| match &requirement.operator {
        Operator::In(values) if values.len() == 1 => Some((requirement.key.clone(), values[0].clone())),
        _ => None,
    })
}

fn kind_of(owner: &PodOwner) -> Option<ObjectKind> {
    match (&*owner.api_version, &*owner.kind) {
        ("v1", "ReplicationController") => Some(ObjectKind::ReplicationController),
        ("apps/v1", "ReplicaSet") => Some(ObjectKind::ReplicaSet),
        ("apps/v1", "StatefulSet") => Some(ObjectKind::StatefulSet),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
