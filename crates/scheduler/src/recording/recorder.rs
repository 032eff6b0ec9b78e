//! Writes a recording while the scheduler works.

use std::time::Duration;

use serde::Serialize;

use super::{Input, Opening, RecordError, nanos};
use crate::scheduler::Action;
use berth_model::PodReport;

/// Bytes after which a block is handed over.
const BLOCK_BYTES: usize = 256 << 10;
/// Time after which it is handed over, however small.
const BLOCK_AGE: Duration = Duration::from_secs(1);

/// Where a recording goes, in blocks of whole records.
pub trait Tape: Send {
    /// Takes a block. Returns whether the recording goes on. Called with the engine's lock: must not block.
    fn write(&mut self, block: Vec<u8>) -> bool;
}

/// An input as it is written. Made without the lock.
pub struct InputBytes(postcard::Result<Vec<u8>>);

impl InputBytes {
    pub fn of(input: &Input) -> InputBytes {
        InputBytes(postcard::to_stdvec(input))
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
    /// Begins a recording.
    ///
    /// # Errors
    /// The opening cannot be written.
    pub fn begin(opening: &Opening, tape: Box<dyn Tape>) -> Result<EngineRecorder, RecordError> {
        Ok(EngineRecorder { tape, block: framed(opening)?, since: Duration::ZERO })
    }

    /// Adds an entry. Returns whether the recording goes on.
    pub fn add(&mut self, now: Duration, input: InputBytes, actions: &[Action]) -> bool {
        let decisions: Vec<String> = actions.iter().filter_map(decision).collect();
        // The fields of a `RecordingEntry`, one after the other.
        let (Ok(at), Ok(input), Ok(decisions)) =
            (postcard::to_stdvec(&nanos(now)), input.0, postcard::to_stdvec(&decisions))
        else {
            debug_assert!(false, "every input can be written");
            return false;
        };
        let length = at.len() + input.len() + decisions.len();
        self.block.extend_from_slice(&(length as u32).to_le_bytes());
        for field in [at, input, decisions] {
            self.block.extend_from_slice(&field);
        }
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

/// Returns a record as a block has it.
///
/// # Errors
/// It cannot be written.
pub fn framed(record: &impl Serialize) -> Result<Vec<u8>, RecordError> {
    let bytes = postcard::to_stdvec(record).map_err(|error| RecordError(error.to_string()))?;
    Ok([&(bytes.len() as u32).to_le_bytes()[..], &bytes].concat())
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
