//! Pods that look at pods: affinity, anti-affinity and spread, and a judge of them by brute force.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_model::{
    Identity, Labels, Node, Peer, Pod, PodAffinity, PodSelector, PodSpec, PodTerm, Spread, SpreadConstraint,
    WeightedPodTerm,
};
use berth_scheduler::objects::{ClusterObject, ObjectKind};

use super::dice::Dice;
use super::objects::{APPS, TEAMS, global, one_of};
use super::process::Shadow;
use super::sim::Step;

const ZONE: &str = "zone";
pub const HOSTNAME: &str = "kubernetes.io/hostname";
/// Kinds that [`look_at_others`] knows.
pub const KINDS: u64 = 8;

fn in_namespace(namespace: &Arc<str>, app: &str) -> PodSelector {
    let namespaces = [namespace.clone()].into();
    PodSelector { namespaces, labels: one_of("app", app), ..PodSelector::default() }
}

/// Lets a new pod look at pods.
pub fn look_at_others(pod: &mut Pod, kind: u64, dice: &mut Dice) {
    let identity = &pod.peer.identity;
    let own_app = identity.labels.get("app").unwrap_or_default().to_owned();
    let other_app = *dice.pick(&APPS).expect("there are some");
    let term = |app: &str, key: &str| PodTerm {
        selector: in_namespace(&identity.namespace, app),
        topology_key: key.into(),
    };
    let of_team = |app: &str| {
        let namespace_selector = one_of("team", TEAMS[0]);
        let selector = PodSelector { namespaces: [].into(), namespace_selector, labels: one_of("app", app) };
        PodTerm { selector, topology_key: ZONE.into() }
    };
    let constraint = |key: &str, hard| SpreadConstraint {
        topology_key: key.into(),
        max_skew: 1,
        min_domains: 1,
        hard,
        selector: in_namespace(&identity.namespace, &own_app),
        self_match: true,
        honor_affinity: true,
        honor_taints: false,
    };
    let required = |term| PodAffinity { required: [term].into(), ..PodAffinity::default() };
    let required_anti = |term| PodAffinity { required_anti: [term].into(), ..PodAffinity::default() };
    let (mut affinity, mut constraints) = (PodAffinity::default(), Vec::new());
    match kind {
        0 => affinity = required_anti(term(&own_app, HOSTNAME)),
        1 => affinity = required(term(other_app, ZONE)),
        2 => affinity = required_anti(of_team(other_app)),
        3 => affinity = required(term(&own_app, ZONE)),
        4 => constraints = vec![constraint(ZONE, true)],
        5 => constraints = vec![constraint(HOSTNAME, true), constraint(ZONE, false)],
        6 => affinity = required(of_team(other_app)),
        _ => {
            let weighted = WeightedPodTerm { weight: -50, term: term(&own_app, HOSTNAME) };
            affinity.preferred = [weighted].into();
        }
    }
    let affinity = Arc::new(affinity);
    if let Ok(spec) = &mut pod.spec {
        let spec: &mut PodSpec = Arc::make_mut(spec);
        spec.pod_affinity = affinity.clone();
        spec.spread = Spread { constraints: constraints.into(), defaulted: false };
    }
    Arc::<Peer>::make_mut(&mut pod.peer).affinity = affinity;
}

fn label<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.labels.get(key)
}

impl Shadow {
    /// Returns what selectors read of a pod.
    fn identity(&self, pod: &Pod) -> Identity {
        let known = self.objects.get(&global(ObjectKind::Namespace, &pod.namespace));
        let namespace_labels = match known {
            Some(ClusterObject::Namespace { labels, .. }) => labels.clone(),
            _ => Labels::default(),
        };
        Identity { namespace_labels, ..pod.peer.identity.clone() }
    }

    /// Checks that the pod may go to the node, given all pods on nodes.
    pub fn judge_peers(&self, pod: &Pod, node: &Node) -> Step {
        let own = self.identity(pod);
        let place = |other: &Pod| {
            let assumed = self.assumed.get(&other.uid).map(|(node, _)| node);
            self.nodes.get(other.node_name.as_ref().or(assumed)?)
        };
        let placed = self.pods.values().filter_map(|other| Some((other, place(other)?)));
        let held = self.held().filter_map(|(other, node)| Some((other, self.nodes.get(node)?)));
        let placed: Vec<(&Pod, Identity, &Node)> = placed
            .chain(held)
            .filter(|(other, _)| other.uid != pod.uid)
            .map(|(other, there)| (other, self.identity(other), there))
            .collect();
        let near =
            |there: &Node, key: &str| label(node, key).is_some() && label(there, key) == label(node, key);
        let affinity = &pod.peer.affinity;
        for term in &affinity.required_anti {
            let key = &term.topology_key;
            if let Some((other, ..)) =
                placed.iter().find(|(_, id, there)| term.selector.matches(id) && near(there, key))
            {
                return Err(format!("I10 violated: {} is bound near {}", pod.uid, other.uid));
            }
        }
        for (other, _, there) in &placed {
            let rejects = |term: &PodTerm| term.selector.matches(&own) && near(there, &term.topology_key);
            if other.peer.affinity.required_anti.iter().any(rejects) {
                return Err(format!(
                    "I10 violated: {} is bound near {}, which rejects it",
                    pod.uid, other.uid
                ));
            }
        }
        for term in &affinity.required {
            let key = &term.topology_key;
            let mut meant = placed
                .iter()
                .filter(|(_, id, there)| term.selector.matches(id) && label(there, key).is_some());
            let is_first = meant.clone().next().is_none() && term.selector.matches(&own);
            if label(node, key).is_none() || !is_first && !meant.any(|(.., there)| near(there, key)) {
                return Err(format!("I10 violated: {} is bound far from the pods it needs", pod.uid));
            }
        }
        self.judge_spread(pod, node, &placed)
    }

    fn judge_spread(&self, pod: &Pod, node: &Node, placed: &[(&Pod, Identity, &Node)]) -> Step {
        let Ok(spec) = &pod.spec else {
            return Ok(());
        };
        let hard: Vec<_> = spec.spread.constraints.iter().filter(|constraint| constraint.hard).collect();
        let counts = |there: &Node| {
            let required = spec.node_affinity.required.as_ref();
            hard.iter().all(|constraint| label(there, &constraint.topology_key).is_some())
                && spec.node_selector.iter().all(|(key, value)| label(there, key) == Some(value))
                && required
                    .is_none_or(|terms| terms.iter().any(|term| term.matches(&there.name, &there.labels)))
        };
        for constraint in &hard {
            let key = &constraint.topology_key;
            let nodes = self.nodes.values().filter(|there| counts(there));
            let mut domains: BTreeMap<&str, i32> =
                nodes.filter_map(|there| Some((label(there, key)?, 0))).collect();
            for (other, identity, there) in placed.iter().filter(|(_, _, there)| counts(there)) {
                if !other.deleting
                    && constraint.selector.matches(identity)
                    && let Some(pods) = label(there, key).and_then(|domain| domains.get_mut(domain))
                {
                    *pods += 1;
                }
            }
            let least = domains.values().min().copied().unwrap_or(0);
            let here = label(node, key).and_then(|domain| domains.get(domain).copied());
            let skew = here.map(|pods| pods + i32::from(constraint.self_match) - least);
            if skew.is_none_or(|skew| skew > constraint.max_skew) {
                let matching = placed.iter().filter(|(_, identity, _)| constraint.selector.matches(identity));
                let matching: Vec<_> =
                    matching.map(|(other, _, there)| (&other.uid, &there.name, other.deleting)).collect();
                return Err(format!(
                    "I10 violated: {} is bound where the skew is {skew:?}: {domains:?} of {matching:?}",
                    pod.uid
                ));
            }
        }
        Ok(())
    }
}
