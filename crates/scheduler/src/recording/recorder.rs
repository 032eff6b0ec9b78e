//! Writes a recording while the scheduler works.

use std::time::Duration;

use super::{Input, Opening, nanos};
use crate::scheduler::Action;
use berth_model::PodReport;

/// Bytes after which a block is handed over.
const BLOCK_BYTES: usize = 64 << 10;
/// Time after which it is handed over, however small.
const BLOCK_AGE: Duration = Duration::from_secs(1);

/// Where a recording goes, in blocks of whole lines.
pub trait Tape: Send {
    /// Takes a block. Returns whether the recording goes on. Called with the engine's lock: must not block.
    fn write(&mut self, block: Vec<u8>) -> bool;
}

/// An input as it is written. Made without the lock.
pub struct Line(serde_json::Result<String>);

impl Line {
    pub fn of(input: &Input) -> Line {
        Line(serde_json::to_string(input))
    }
}

/// A recording under way.
pub struct EngineRecorder {
    tape: Box<dyn Tape>,
    block: Vec<u8>,
    /// When the block began.
    since: Duration,
}

impl EngineRecorder {
    pub fn begin(opening: &Opening, tape: Box<dyn Tape>) -> EngineRecorder {
        let mut block = serde_json::to_vec(opening).unwrap_or_default();
        block.push(b'\n');
        EngineRecorder { tape, block, since: Duration::ZERO }
    }

    /// Adds an entry. Returns whether the recording goes on.
    pub fn add(&mut self, now: Duration, line: Line, actions: &[Action]) -> bool {
        let Ok(input) = line.0 else {
            debug_assert!(false, "every input can be written: {:?}", line.0);
            return false;
        };
        let at = nanos(now);
        self.block.extend_from_slice(format!("{{\"at\":{at},\"in\":{input}").as_bytes());
        let decisions: Vec<String> = actions.iter().filter_map(decision).collect();
        if !decisions.is_empty() {
            let words = serde_json::to_string(&decisions).unwrap_or_default();
            self.block.extend_from_slice(format!(",\"out\":{words}").as_bytes());
        }
        self.block.extend_from_slice(b"}\n");
        if self.block.len() < BLOCK_BYTES && now < self.since + BLOCK_AGE {
            return true;
        }
        self.since = now;
        self.tape.write(std::mem::take(&mut self.block))
    }
}

impl Drop for EngineRecorder {
    fn drop(&mut self) {
        if !self.block.is_empty() {
            self.tape.write(std::mem::take(&mut self.block));
        }
    }
}

/// Returns a decision in words; `None`: it is none, or follows from another one.
pub(super) fn decision(action: &Action) -> Option<String> {
    let words = match action {
        Action::Bind(of) => format!("bind {}/{} to {}", of.namespace, of.name, of.node),
        Action::Claim(order) => format!("claim for {} on {}", order.uid, order.node),
        Action::ReleaseClaim(release) => {
            format!("release {}/{}", release.claim.namespace, release.claim.name)
        }
        Action::Evict(eviction) => {
            let (victim, by) = (&eviction.victim, &eviction.preemptor);
            format!("evict {}/{} for {}/{}", victim.namespace, victim.name, by.namespace, by.name)
        }
        Action::Nominate { pod, node } => {
            format!("nominate {} for {}/{}", node.as_deref().unwrap_or("nothing"), pod.namespace, pod.name)
        }
        Action::Report(PodReport::Failed { pod, message, .. }) => {
            format!("report {}/{}: {message}", pod.namespace, pod.name)
        }
        Action::TellAllocation(status) => format!("{status:?}"),
        Action::TellPolicy(status) => format!("{status:?}"),
        Action::TellQuota(status) => format!("{status:?}"),
        Action::Report(_) | Action::WakeAgent(_) | Action::Observe(_) => return None,
    };
    Some(words)
}
