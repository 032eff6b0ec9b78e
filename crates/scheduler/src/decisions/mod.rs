//! Memory of decisions: why each of the latest placed pods has its node. Bounded by a number of pods.
//!
//! May not know: the scheduler, kube, clocks.

mod report;

pub use report::{
    ANNOTATION, CandidateReport, DecisionReport, HintReport, ListUse, StageReport, WHY_API_VERSION,
};

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use crate::agent::Candidate;
use crate::hints::Terms;
use crate::rules::{PlacementSettings, Scores};

/// Maximum number of nodes that are compared for one decision, with the chosen one.
pub const CANDIDATES_MAX: usize = 3;

/// Why a pod has its node. As small as possible: very many are kept.
#[derive(Debug, Clone, PartialEq)]
pub struct PlacementDecision {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub node: Arc<str>,
    /// [`Class::fingerprint`](crate::class::Class::fingerprint).
    pub class: u64,
    /// Time at which it got the node, in milliseconds since the start of the process.
    pub placed_ms: u64,
    pub placement: Arc<PlacementSettings>,
    /// `None`: nothing of it applies.
    pub circumstances: Option<Box<Circumstances>>,
    /// Best first. Empty: no agent compared nodes for this pod alone.
    pub candidates: Box<[Considered]>,
    /// Time from its arrival to the choice, over all attempts.
    pub waited_ms: u32,
    /// Time that the agent needed for the choice; 0: not measured.
    pub choice_us: u32,
    /// Time from the choice to the end of the bind, with its claims.
    pub bind_ms: u32,
    pub attempts: u32,
    pub conflicts: u16,
    pub agent: Option<u8>,
    pub list: Option<ListUse>,
}

/// What applies to few decisions.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Circumstances {
    pub policy: Option<Arc<str>>,
    /// Gang with which it was placed, as NAMESPACE/NAME.
    pub gang: Option<Arc<str>>,
    /// Pods were preempted for it.
    pub nominated: bool,
    /// The hints that counted.
    pub hints: Terms,
}

/// A node that was compared, with what told it apart; less is better in each score.
#[derive(Debug, Clone, PartialEq)]
pub struct Considered {
    pub node: Arc<str>,
    /// Not requested by other pods.
    pub free_cpu_milli: i32,
    pub free_memory_mib: i32,
    pub pod_affinity: i32,
    pub spread: f32,
    pub node_affinity: u16,
    pub taints: u8,
    pub share: u8,
    pub balance: u8,
    pub images: u8,
}

impl Considered {
    pub fn new(candidate: &Candidate, node: Arc<str>) -> Self {
        let Scores { taints, node_affinity, pod_affinity, spread, share, balance, images } = candidate.scores;
        Considered {
            node,
            free_cpu_milli: saturated(candidate.free_cpu_milli),
            free_memory_mib: saturated(candidate.free_memory >> 20),
            pod_affinity: saturated(pod_affinity),
            spread: spread as f32,
            node_affinity,
            taints: small(taints),
            share: small(share),
            balance: small(balance),
            images: small(images),
        }
    }
}

fn saturated(value: i64) -> i32 {
    value.clamp(i32::MIN.into(), i32::MAX.into()) as i32
}

/// The scores of these rules have fewer than 256 steps.
fn small(score: u16) -> u8 {
    score.min(u8::MAX.into()) as u8
}

/// Decisions that follow each other, each with the time since.
#[derive(Debug, Clone, PartialEq)]
pub struct DecisionPage {
    /// Number of the first one, counted from the start of the process.
    pub first: u64,
    pub decisions: Vec<(PlacementDecision, Duration)>,
}

/// The latest decisions.
#[derive(Debug, Default)]
pub struct DecisionMemory {
    most: usize,
    decisions: VecDeque<PlacementDecision>,
    /// Number of decisions that were forgotten: the number of the first one.
    forgotten: u64,
    /// By hash of namespace and name: the number of its latest decision.
    latest: HashMap<u64, u64>,
}

impl DecisionMemory {
    /// Remembers at most this number of decisions; 0: none.
    pub fn new(most: usize) -> Self {
        // All at once: growing would copy megabytes while the scheduler waits. Memory that is not used yet is not resident.
        DecisionMemory {
            most,
            decisions: VecDeque::with_capacity(most),
            latest: HashMap::with_capacity(most),
            forgotten: 0,
        }
    }

    pub fn is_enabled(&self) -> bool {
        self.most > 0
    }

    pub fn remember(&mut self, decision: PlacementDecision) {
        if !self.is_enabled() {
            return;
        }
        if self.decisions.len() == self.most
            && let Some(oldest) = self.decisions.pop_front()
        {
            let key = hash(&oldest.namespace, &oldest.name);
            if self.latest.get(&key) == Some(&self.forgotten) {
                self.latest.remove(&key);
            }
            self.forgotten += 1;
        }
        let number = self.forgotten + self.decisions.len() as u64;
        self.latest.insert(hash(&decision.namespace, &decision.name), number);
        self.decisions.push_back(decision);
    }

    /// Returns the latest decision about a pod of this name.
    pub fn recall(&self, namespace: &str, name: &str) -> Option<&PlacementDecision> {
        let number = self.latest.get(&hash(namespace, name))?;
        let decision = self.decisions.get((number - self.forgotten) as usize)?;
        // Another pod may have the same hash.
        (*decision.namespace == *namespace && *decision.name == *name).then_some(decision)
    }

    /// Returns the decisions from this number on that it still has, at most so many. `now`: since the start of the process.
    pub fn page(&self, from: u64, most: usize, now: Duration) -> DecisionPage {
        let first = from.max(self.forgotten);
        let known = self.decisions.iter().skip((first - self.forgotten) as usize).take(most);
        DecisionPage {
            first,
            decisions: known.map(|decision| (decision.clone(), decision.age(now))).collect(),
        }
    }

    /// Returns the number of decisions that it has.
    pub fn len(&self) -> usize {
        self.decisions.len()
    }

    pub fn is_empty(&self) -> bool {
        self.decisions.is_empty()
    }

    /// Returns its size, with the names of pods, which nothing else needs once they are gone. Names of nodes and namespaces are shared.
    pub fn bytes(&self) -> usize {
        // As glibc's allocator rounds, with its own eight bytes.
        let allocated = |bytes: usize| (bytes + 8).next_multiple_of(16);
        const COUNTERS: usize = 2 * size_of::<usize>();
        let own = |decision: &PlacementDecision| {
            let circumstances = decision.circumstances.as_ref();
            let circumstances = circumstances.map_or(0, |_| allocated(size_of::<Circumstances>()));
            allocated(decision.candidates.len() * size_of::<Considered>())
                + circumstances
                + allocated(COUNTERS + decision.name.len())
        };
        let entries = self.latest.capacity() * 8 / 7 * (size_of::<(u64, u64)>() + 1);
        self.decisions.capacity() * size_of::<PlacementDecision>()
            + entries
            + self.decisions.iter().map(own).sum::<usize>()
    }
}

fn hash(namespace: &str, name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (namespace, name).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(name: &str, node: &str) -> PlacementDecision {
        let node: Arc<str> = node.into();
        let candidate = Candidate {
            node: crate::inventory::NodeId(0),
            scores: Scores {
                taints: 0,
                node_affinity: 0,
                pod_affinity: i64::MIN,
                spread: 0.0,
                share: 7,
                balance: 0,
                images: 7,
            },
            free_cpu_milli: i64::MAX,
            free_memory: 3 << 30,
        };
        PlacementDecision {
            namespace: "ns".into(),
            name: name.into(),
            node: node.clone(),
            class: 1,
            placed_ms: 0,
            placement: Arc::default(),
            circumstances: None,
            candidates: vec![Considered::new(&candidate, node); CANDIDATES_MAX].into(),
            waited_ms: 0,
            choice_us: 0,
            bind_ms: 0,
            attempts: 1,
            conflicts: 0,
            agent: Some(0),
            list: Some(ListUse::Hit),
        }
    }

    #[test]
    fn the_oldest_decisions_are_forgotten_and_of_one_name_the_latest_is_told() {
        let mut memory = DecisionMemory::new(3);
        for (name, node) in [("a", "1"), ("b", "1"), ("a", "2"), ("c", "1")] {
            memory.remember(decision(name, node));
        }
        let node = |memory: &DecisionMemory, name| memory.recall("ns", name).map(|it| it.node.to_string());
        assert_eq!(node(&memory, "a").as_deref(), Some("2"), "the first one is forgotten, this one is not");
        assert_eq!((node(&memory, "b").is_some(), memory.len()), (true, 3));
        assert_eq!(memory.recall("other", "a"), None);
        memory.remember(decision("d", "1"));
        memory.remember(decision("e", "1"));
        let known = ["a", "b", "c", "d", "e"].map(|name| memory.recall("ns", name).is_some());
        assert_eq!(known, [false, false, true, true, true]);
        assert_eq!(memory.latest.len(), 3, "what is forgotten leaves nothing behind");
    }

    #[test]
    fn without_a_limit_above_zero_nothing_is_remembered() {
        let mut memory = DecisionMemory::new(0);
        memory.remember(decision("a", "1"));
        assert!(memory.is_empty() && !memory.is_enabled() && memory.bytes() == 0);
    }

    #[test]
    fn very_large_amounts_are_cut_and_not_wrapped() {
        let decision = decision("a", "1");
        let considered = &decision.candidates[0];
        assert_eq!((considered.free_cpu_milli, considered.pod_affinity), (i32::MAX, i32::MIN));
        assert_eq!(considered.free_memory_mib, 3 << 10);
    }

    #[test]
    fn a_hundred_thousand_decisions_take_at_most_32_mebibytes() {
        let mut memory = DecisionMemory::new(100_000);
        for at in 0..100_000 {
            memory.remember(decision(&format!("web-frontend-7f9c6d5b8-{at:05}"), "n"));
        }
        assert_eq!(memory.len(), 100_000);
        assert!(memory.bytes() <= 32 << 20, "{} bytes", memory.bytes());
    }
}
