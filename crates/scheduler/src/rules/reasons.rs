//! Reasons why nodes are not valid, and their texts: kube-scheduler's words, which autoscalers and users parse.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::{BitOr, BitOrAssign};

use crate::class::Class;
use berth_model::{PreemptionPolicy, Usage};

/// Set of reasons why one node is not valid: only those of the first rule that failed, as upstream reports them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reasons(u128);

/// Maximum number of extended resources of a class with their own reason; further ones share the last reason.
pub(super) const MAX_EXTENDED: usize = 40;

const FIRST_EXTENDED: u32 = 8;

/// Upstream's DynamicResources reports this in PostFilter for a pod without resource claims, or whose claims exclude every
/// node.
const NO_CLAIMS: &str = "no new claims to deallocate";
/// The same for other pods.
const STILL_NOT: &str = "still not schedulable";

impl Reasons {
    pub const NONE: Reasons = Reasons(0);
    pub const UNSCHEDULABLE: Reasons = Reasons(1);
    pub const TAINTS: Reasons = Reasons(1 << 1);
    pub const AFFINITY: Reasons = Reasons(1 << 2);
    pub const PORTS: Reasons = Reasons(1 << 3);
    pub const PODS: Reasons = Reasons(1 << 4);
    pub const CPU: Reasons = Reasons(1 << 5);
    pub const MEMORY: Reasons = Reasons(1 << 6);
    pub const EPHEMERAL_STORAGE: Reasons = Reasons(1 << 7);
    /// The pod's affinity lists node names, and not this one.
    pub const NOT_NAMED: Reasons = Reasons(1 << 50);
    /// The request exceeds the node's allocatable resources: evicting pods cannot help.
    pub const UNRESOLVABLE: Reasons = Reasons(1 << 51);
    pub const SPREAD: Reasons = Reasons(1 << 64);
    /// The node lacks a label that topology spread requires.
    pub const SPREAD_LABEL: Reasons = Reasons(1 << 65);
    pub const POD_AFFINITY: Reasons = Reasons(1 << 66);
    pub const POD_ANTI_AFFINITY: Reasons = Reasons(1 << 67);
    /// Required anti-affinity of existing pods excludes this pod.
    pub const EXISTING_ANTI_AFFINITY: Reasons = Reasons(1 << 68);
    /// The kubelet lacks a required feature.
    pub const FEATURES: Reasons = Reasons(1 << 69);
    /// A disk of the pod is in use by another pod on the node.
    pub const DISK: Reasons = Reasons(1 << 70);
    /// A `ReadWriteOncePod` claim is in use by another pod on any node.
    pub const CLAIM_IN_USE: Reasons = Reasons(1 << 71);
    pub const TOO_MANY_VOLUMES: Reasons = Reasons(1 << 72);
    /// A bound volume does not reach the node.
    pub const VOLUME_NOT_REACHED: Reasons = Reasons(1 << 73);
    pub const NO_FREE_VOLUME: Reasons = Reasons(1 << 74);
    pub const NO_SPACE: Reasons = Reasons(1 << 75);
    pub const VOLUME_MISSING: Reasons = Reasons(1 << 76);
    pub const VOLUME_ZONE: Reasons = Reasons(1 << 77);
    /// The pod's claims exclude every node; the class has the text.
    pub const VOLUMES_REFUSED: Reasons = Reasons(1 << 78);
    /// The utilisation limit of the class's policy reserves this capacity for other pods.
    pub const LIMIT: Reasons = Reasons(1 << 79);
    /// The pod's resource claims exclude every node; the class has the text.
    pub const DEVICES_REFUSED: Reasons = Reasons(1 << 80);
    /// The devices of an allocated claim cannot be reached from the node.
    pub const DEVICES_NOT_REACHED: Reasons = Reasons(1 << 81);
    /// The node has too few devices for the pod's claims.
    pub const NO_DEVICES: Reasons = Reasons(1 << 82);
    const OF_DEVICES: u128 = 0b111 << 80;
    /// The node does not match the affinity of the scheduler's profile.
    pub const NOT_ENFORCED: Reasons = Reasons(1 << 83);

    /// Returns the reason for too little of the `at`-th extended resource that the class requests.
    pub fn extended(at: usize) -> Reasons {
        Reasons(1 << (FIRST_EXTENDED + at as u32))
    }

    pub(super) fn bits(self) -> u128 {
        self.0
    }

    pub(super) fn from_bits(bits: u128) -> Reasons {
        Reasons(bits)
    }

    /// Returns whether they come from PodTopologySpread or InterPodAffinity, which are evaluated last.
    pub fn are_of_domains(self) -> bool {
        const OF_DOMAINS: u128 = 0b11111 << 64;
        self.0 & OF_DOMAINS != 0
    }

    /// Returns whether they come from rules that upstream evaluates after those over domains.
    pub fn come_last(self) -> bool {
        self.0 & (Reasons::FEATURES.0 | Reasons::OF_DEVICES) != 0
    }

    /// Returns which of two refusals by rules over domains comes first; `None`: both are of topology spread, whose
    /// constraints have an order of their own.
    pub fn first_of_domains(self, other: Reasons) -> Option<Reasons> {
        let order = |reasons: Reasons| {
            let order = [
                Reasons::LIMIT,
                Reasons::SPREAD | Reasons::SPREAD_LABEL,
                Reasons::POD_AFFINITY,
                Reasons::POD_ANTI_AFFINITY,
                Reasons::EXISTING_ANTI_AFFINITY,
            ];
            order.into_iter().position(|rule| reasons.has(rule))
        };
        match order(self).cmp(&order(other)) {
            Ordering::Less => Some(self),
            Ordering::Greater => Some(other),
            Ordering::Equal => (self == other).then_some(self),
        }
    }

    pub fn has(self, other: Reasons) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns whether the node could become valid if pods left it (upstream: `Unschedulable`, not `…AndUnresolvable`).
    pub fn resolvable_by_eviction(self) -> bool {
        const PORTS_AND_RESOURCES: u128 = (1 << (FIRST_EXTENDED + MAX_EXTENDED as u32)) - (1 << 3);
        const BY_EVICTION: u128 = PORTS_AND_RESOURCES
            | Reasons::SPREAD.0
            | Reasons::POD_ANTI_AFFINITY.0
            | Reasons::EXISTING_ANTI_AFFINITY.0
            | Reasons::DISK.0
            | Reasons::CLAIM_IN_USE.0
            | Reasons::TOO_MANY_VOLUMES.0
            | Reasons::LIMIT.0;
        self.0 & BY_EVICTION != 0 && !self.has(Reasons::UNRESOLVABLE)
    }

    /// Returns the texts of kube-scheduler.
    pub fn texts(self, class: &Class) -> Vec<String> {
        let volumes = class.spec.volumes.as_ref().filter(|_| self.has(Reasons::VOLUMES_REFUSED));
        let refusal = volumes.and_then(|needs| needs.refusal.as_ref()).map(|refusal| refusal.to_string());
        let devices = class.spec.devices.as_ref().filter(|_| self.has(Reasons::DEVICES_REFUSED));
        let no_claim = devices.and_then(|needs| needs.refusal.as_ref()).map(|refusal| refusal.to_string());
        self.texts_of_usage(&class.spec.usage).into_iter().chain(refusal).chain(no_claim).collect()
    }

    /// Returns the same texts for a caller that only knows the usage of the pod.
    pub(super) fn texts_of_usage(self, usage: &Usage) -> Vec<String> {
        const FIXED: [(Reasons, &str); 27] = [
            (Reasons::UNSCHEDULABLE, "node(s) were unschedulable"),
            (Reasons::TAINTS, "node(s) had untolerated taint(s)"),
            (Reasons::NOT_ENFORCED, "node(s) didn't match scheduler-enforced node affinity"),
            (Reasons::AFFINITY, "node(s) didn't match Pod's node affinity/selector"),
            (Reasons::NOT_NAMED, "node(s) didn't satisfy plugin(s) [NodeAffinity]"),
            (Reasons::PORTS, "node(s) didn't have free ports for the requested pod ports"),
            (Reasons::PODS, "Too many pods"),
            (Reasons::CPU, "Insufficient cpu"),
            (Reasons::MEMORY, "Insufficient memory"),
            (Reasons::EPHEMERAL_STORAGE, "Insufficient ephemeral-storage"),
            (Reasons::LIMIT, "node(s) exceeded the utilisation limit of their cell"),
            (Reasons::DISK, "node(s) had no available disk"),
            (
                Reasons::CLAIM_IN_USE,
                "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by \
                 another pod",
            ),
            (Reasons::TOO_MANY_VOLUMES, "node(s) exceed max volume count"),
            (Reasons::VOLUME_NOT_REACHED, "node(s) didn't match PersistentVolume's node affinity"),
            (Reasons::NO_FREE_VOLUME, "node(s) didn't find available persistent volumes to bind"),
            (Reasons::NO_SPACE, "node(s) did not have enough free storage"),
            (
                Reasons::VOLUME_MISSING,
                "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)",
            ),
            (Reasons::VOLUME_ZONE, "node(s) had no available volume zone"),
            (Reasons::SPREAD, "node(s) didn't match pod topology spread constraints"),
            (
                Reasons::SPREAD_LABEL,
                "node(s) didn't match pod topology spread constraints (missing required label)",
            ),
            (Reasons::POD_AFFINITY, "node(s) didn't match pod affinity rules"),
            (Reasons::POD_ANTI_AFFINITY, "node(s) didn't match pod anti-affinity rules"),
            (Reasons::FEATURES, "node(s) didn't match Pod's required features"),
            (Reasons::DEVICES_NOT_REACHED, "resourceclaim not available on the node"),
            (Reasons::NO_DEVICES, "cannot allocate all claims"),
            (Reasons::EXISTING_ANTI_AFFINITY, "node(s) didn't satisfy existing pods anti-affinity rules"),
        ];
        let fixed = FIXED.iter().filter(|(reason, _)| self.has(*reason)).map(|(_, text)| (*text).to_owned());
        let extended = usage.extended.iter().take(MAX_EXTENDED).enumerate();
        let extended = extended
            .filter(|(at, _)| self.has(Reasons::extended(*at)))
            .map(|(_, (name, _))| format!("Insufficient {name}"));
        fixed.chain(extended).collect()
    }
}

impl BitOr for Reasons {
    type Output = Reasons;
    fn bitor(self, other: Reasons) -> Reasons {
        Reasons(self.0 | other.0)
    }
}

impl BitOrAssign for Reasons {
    fn bitor_assign(&mut self, other: Reasons) {
        self.0 |= other.0;
    }
}

/// Why a class fits on no node: the number of nodes per set of reasons.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Diagnosis {
    counts: BTreeMap<Reasons, usize>,
}

impl FromIterator<Reasons> for Diagnosis {
    fn from_iter<I: IntoIterator<Item = Reasons>>(nodes: I) -> Self {
        let mut diagnosis = Diagnosis::default();
        diagnosis.extend(nodes);
        diagnosis
    }
}

impl Extend<Reasons> for Diagnosis {
    fn extend<I: IntoIterator<Item = Reasons>>(&mut self, nodes: I) {
        // Adjacent nodes are often alike, so most of them only increment a counter.
        let mut run = (Reasons::NONE, 0);
        for reasons in nodes {
            if reasons != run.0 {
                self.add(run.0, run.1);
                run = (reasons, 0);
            }
            run.1 += 1;
        }
        self.add(run.0, run.1);
    }
}

impl Diagnosis {
    /// Adds this many nodes that are not valid for these reasons.
    pub fn add(&mut self, reasons: Reasons, nodes: usize) {
        if nodes > 0 {
            *self.counts.entry(reasons).or_default() += nodes;
        }
    }

    /// Removes as many of the nodes with these reasons.
    pub fn remove(&mut self, reasons: Reasons, nodes: usize) {
        if let Some(left) = self.counts.get_mut(&reasons) {
            *left = left.saturating_sub(nodes);
            if *left == 0 {
                self.counts.remove(&reasons);
            }
        }
    }

    /// Returns the number of nodes by their reasons.
    pub fn iter(&self) -> impl Iterator<Item = (Reasons, usize)> {
        self.counts.iter().map(|(reasons, nodes)| (*reasons, *nodes))
    }

    /// Returns whether this is a reason of some node.
    pub fn has(&self, reason: Reasons) -> bool {
        self.counts.keys().any(|reasons| reasons.has(reason))
    }

    /// Returns the number of nodes.
    pub fn nodes(&self) -> usize {
        self.counts.values().sum()
    }

    /// Returns the text of the event and the condition (upstream: `FitError.Error`, with the texts of DynamicResources
    /// and of DefaultPreemption when preemption cannot help).
    pub fn message(&self, class: &Class, policy: PreemptionPolicy) -> String {
        let nodes = self.nodes();
        let helped = |(reasons, _): &(&Reasons, &usize)| reasons.resolvable_by_eviction();
        let no_victims = self.counts.iter().filter(helped).map(|(_, count)| count).sum();
        let unhelped = Unhelped { no_victims, not_helpful: nodes - no_victims, ..Unhelped::default() };
        self.message_of(class, policy, Some(&unhelped))
    }

    /// Returns the text after preemption was tried: it helps on no node, for these reasons, or the pod has been
    /// nominated for a node (`None`).
    pub fn message_of(&self, class: &Class, policy: PreemptionPolicy, unhelped: Option<&Unhelped>) -> String {
        let nodes = self.nodes();
        if nodes == 0 {
            return "no nodes available to schedule pods".to_owned();
        }
        let mut text = format!("0/{nodes} nodes are available: ");
        if super::node_affinity::names_conflict(&class.spec) {
            // Upstream's PreFilter ends here, so that DynamicResources does not find its own state in PostFilter and
            // fails with the last two words.
            text.push_str("pod affinity terms conflict. not found");
            return text;
        }
        if let Some(refusal) = class.spec.volumes.as_ref().and_then(|needs| needs.refusal.as_ref()) {
            let _ = write!(text, "{refusal}. not found");
            return text;
        }
        let needs = class.spec.devices.as_ref();
        let refusal = needs.and_then(|needs| needs.refusal.as_ref());
        match refusal {
            Some(refusal) => {
                let _ = write!(text, "{refusal}.");
            }
            None => {
                let mut by_text: BTreeMap<String, usize> = BTreeMap::new();
                for (reasons, count) in &self.counts {
                    for reason in reasons.texts(class) {
                        *by_text.entry(reason).or_default() += count;
                    }
                }
                let _ = write!(text, "{}.", histogram(by_text));
            }
        }
        let deallocated = if needs.is_some() && refusal.is_none() { STILL_NOT } else { NO_CLAIMS };
        match (policy, unhelped) {
            (PreemptionPolicy::Never, _) => {
                let _ =
                    write!(text, " {deallocated}, preemption: not eligible due to preemptionPolicy=Never.");
            }
            (PreemptionPolicy::PreemptLowerPriority, Some(unhelped)) => {
                let why = histogram(unhelped.by_text(class));
                let _ = write!(text, " {deallocated}, preemption: 0/{nodes} nodes are available: {why}.");
            }
            (PreemptionPolicy::PreemptLowerPriority, None) => {}
        }
        text
    }
}

/// Number of nodes on which preemption does not help, by reason.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unhelped {
    pub no_victims: usize,
    pub not_helpful: usize,
    /// The node is not valid even without all pods that may be preempted.
    still_out: BTreeMap<Reasons, usize>,
}

impl Unhelped {
    /// Adds a node that is not valid for these reasons even without all pods that may be preempted; no reasons: there
    /// are no such pods.
    pub fn add(&mut self, reasons: Reasons) {
        match reasons == Reasons::NONE {
            true => self.no_victims += 1,
            false => *self.still_out.entry(reasons).or_default() += 1,
        }
    }

    fn by_text(&self, class: &Class) -> BTreeMap<String, usize> {
        let mut by_text = BTreeMap::from([
            ("No preemption victims found for incoming pod".to_owned(), self.no_victims),
            ("Preemption is not helpful for scheduling".to_owned(), self.not_helpful),
        ]);
        for (reasons, count) in &self.still_out {
            for text in reasons.texts(class) {
                *by_text.entry(text).or_default() += count;
            }
        }
        by_text
    }
}

/// Formats `"3 this, 5 that"`, sorted as text (so 10 comes before 9), as upstream does.
fn histogram(counts: BTreeMap<String, usize>) -> String {
    let mut entries: Vec<String> = counts
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(text, count)| format!("{count} {text}"))
        .collect();
    entries.sort();
    entries.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_model::{FieldRequirement, NodeAffinity, NodeSelectorTerm, PodSpec, Usage};
    use std::sync::Arc;

    fn class(extended: &[(&str, i64)]) -> Class {
        let extended = extended.iter().map(|(name, amount)| (Arc::from(*name), *amount)).collect();
        let usage = Arc::new(Usage { extended, ..Usage::default() });
        Class::for_test(PodSpec { usage, ..PodSpec::default() })
    }

    #[test]
    fn the_text_counts_sorts_and_ends_as_kube_scheduler_does() {
        let diagnosis: Diagnosis =
            [Reasons::CPU, Reasons::CPU, Reasons::UNSCHEDULABLE, Reasons::CPU, Reasons::TAINTS]
                .into_iter()
                .collect();
        assert_eq!(
            diagnosis.message(&class(&[]), PreemptionPolicy::PreemptLowerPriority),
            "0/5 nodes are available: 1 node(s) had untolerated taint(s), 1 node(s) were unschedulable, \
             3 Insufficient cpu. no new claims to deallocate, preemption: 0/5 nodes are available: 2 Preemption is not helpful for scheduling, \
             3 No preemption victims found for incoming pod."
        );
    }

    #[test]
    fn a_node_lacking_two_resources_counts_for_both_and_is_unresolvable_if_too_small() {
        let both = Reasons::CPU | Reasons::extended(1) | Reasons::UNRESOLVABLE;
        let diagnosis: Diagnosis = std::iter::repeat_n(both, 10).chain([Reasons::MEMORY; 9]).collect();
        assert_eq!(
            diagnosis
                .message(&class(&[("a.com/x", 1), ("b.com/y", 2)]), PreemptionPolicy::PreemptLowerPriority),
            "0/19 nodes are available: 10 Insufficient b.com/y, 10 Insufficient cpu, 9 Insufficient memory. \
             no new claims to deallocate, preemption: 0/19 nodes are available: 10 Preemption is not helpful for scheduling, \
             9 No preemption victims found for incoming pod."
        );
    }

    #[test]
    fn exclusive_label_names_are_rejected_with_upstreams_message() {
        let name = |name: &str| FieldRequirement::NameIs(name.into());
        let term = NodeSelectorTerm { expressions: [].into(), fields: [name("a"), name("b")].into() };
        let node_affinity = NodeAffinity { required: Some([term].into()), ..NodeAffinity::default() };
        let class = Class::for_test(PodSpec { node_affinity, ..PodSpec::default() });
        let two: Diagnosis = [Reasons::NOT_NAMED; 2].into_iter().collect();
        for policy in [PreemptionPolicy::PreemptLowerPriority, PreemptionPolicy::Never] {
            assert_eq!(
                two.message(&class, policy),
                "0/2 nodes are available: pod affinity terms conflict. not found"
            );
        }
    }

    #[test]
    fn of_two_refusals_over_domains_that_of_the_earlier_rule_comes_first() {
        let (spread, label, affinity) = (Reasons::SPREAD, Reasons::SPREAD_LABEL, Reasons::POD_AFFINITY);
        assert_eq!([spread.first_of_domains(affinity), affinity.first_of_domains(spread)], [Some(spread); 2]);
        assert_eq!(Reasons::LIMIT.first_of_domains(spread), Some(Reasons::LIMIT));
        assert_eq!(
            [spread.first_of_domains(spread), label.first_of_domains(label)],
            [Some(spread), Some(label)]
        );
        assert_eq!(spread.first_of_domains(label), None, "constraints have an order of their own");
    }

    #[test]
    fn without_nodes_and_with_preemption_never_the_texts_are_upstreams() {
        let class = class(&[]);
        let none = Diagnosis::default();
        assert_eq!(none.message(&class, PreemptionPolicy::Never), "no nodes available to schedule pods");
        let one: Diagnosis = [Reasons::PORTS].into_iter().collect();
        assert_eq!(
            one.message(&class, PreemptionPolicy::Never),
            "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports. \
             no new claims to deallocate, preemption: not eligible due to preemptionPolicy=Never."
        );
    }
}
