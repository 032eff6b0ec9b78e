//! How nodes were chosen, for the memory of decisions.

use std::sync::Arc;
use std::time::Duration;

use super::{Scheduler, Waiting};
use crate::agent::Candidate;
use crate::decisions::{Circumstances, Considered, DecisionMemory, PlacementDecision};
use crate::inventory::NodeId;

impl Scheduler {
    /// Notes why a pod has got its node, until it is bound. `agent`: `None` if the node was kept for it.
    pub(super) fn note_decision(
        &mut self,
        uid: &Arc<str>,
        node: NodeId,
        agent: Option<usize>,
        candidates: &[Candidate],
        now: Duration,
    ) {
        if !self.decisions.is_enabled() {
            return;
        }
        let Some(pod) = self.cluster.waiting.get_mut(uid) else {
            return;
        };
        let inventory = self.cluster.ledger.inventory();
        let considered =
            |candidate: &Candidate| Considered::new(candidate, inventory.name(candidate.node).clone());
        let circumstances = Circumstances {
            policy: self.policies.governing(&pod.holding.peer.identity, &pod.pod.scheduler_name).cloned(),
            gang: pod.gang.as_ref().map(|gang| gang.name.to_string().into()),
            nominated: agent.is_none(),
            hints: pod.class.hints.clone(),
        };
        let is_plain = circumstances == Circumstances::default();
        let choice = agent.and_then(|agent| self.turns[agent].choice);
        pod.decision = Some(Box::new(PlacementDecision {
            namespace: pod.pod.namespace.clone(),
            name: pod.pod.name.clone(),
            node: inventory.name(node).clone(),
            class: pod.class.fingerprint(),
            placed_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
            placement: pod.class.placement.clone(),
            circumstances: (!is_plain).then(|| Box::new(circumstances)),
            candidates: candidates.iter().map(considered).collect(),
            waited_ms: millis(now.saturating_sub(pod.arrived)),
            choice_us: choice.map_or(0, |(_, took)| u32::try_from(took.as_micros()).unwrap_or(u32::MAX)),
            bind_ms: 0,
            attempts: pod.attempts,
            conflicts: u16::try_from(pod.tries.saturating_sub(1)).unwrap_or(u16::MAX),
            agent: agent.and_then(|agent| u8::try_from(agent).ok()),
            list: choice.map(|(list, _)| list),
        }));
    }

    /// Remembers why a pod that has just been bound has its node.
    pub(super) fn remember(&mut self, pod: &mut Waiting, now: Duration) {
        if let Some(mut decision) = pod.decision.take() {
            decision.bind_ms = millis(now.saturating_sub(Duration::from_millis(decision.placed_ms)));
            self.decisions.remember(*decision);
        }
    }

    /// Returns what is remembered of decisions.
    pub fn decisions(&self) -> &DecisionMemory {
        &self.decisions
    }
}

fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}
