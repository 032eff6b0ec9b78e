//! Recordings of all that a scheduler hears and decides, and their replay.
//!
//! A scheduler and its agents are deterministic: the same inputs in the same order lead to the same decisions. So a recording holds
//! inputs, and decisions only to compare them: first an [`Opening`], then one [`RecordingEntry`] for each time that somebody had the lock
//! and changed something. They are written in the form of postcard, each after its length ([`records`]); as JSON, they can be read, too.
//!
//! May not know: files, compression, clocks.

mod anonymous;
mod input;
mod recorder;
mod renamed;
mod replay;
#[cfg(test)]
mod tests;

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use anonymous::{Pseudonyms, RecordedWords};
pub use input::{AgentStep, Did, Input};
pub use recorder::{EngineRecorder, InputBytes, Tape, framed};
pub use replay::{Difference, Replay, ReplayError};

use crate::agent::AgentConfig;
use crate::dispatch::Estimator;
use crate::scheduler::SchedulerConfig;

/// Version of all that is written here. A program reads only its own.
pub const FORMAT: u32 = 2;

/// The first record: what the scheduler began with.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Opening {
    pub format: u32,
    /// Version of the program.
    pub version: String,
    pub config: SchedulerConfig,
    pub agents: Vec<AgentConfig>,
    pub estimator: Estimator,
}

impl Opening {
    pub fn new(config: SchedulerConfig, agents: Vec<AgentConfig>, estimator: Estimator) -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Opening { format: FORMAT, version, config, agents, estimator }
    }
}

/// Returns the records of a block, each without its length; an error for what is none.
pub fn records(mut block: &[u8]) -> impl Iterator<Item = Result<&[u8], RecordError>> {
    std::iter::from_fn(move || {
        let (length, rest) = block.split_first_chunk::<LENGTH_BYTES>()?;
        let length = u32::from_le_bytes(*length) as usize;
        let Some((record, rest)) = rest.split_at_checked(length) else {
            block = &[];
            return Some(Err(RecordError("it is longer than its block".to_owned())));
        };
        block = rest;
        Some(Ok(record))
    })
}

/// Parses a record.
///
/// # Errors
/// It is none of this type, in this version.
pub fn parse<T: DeserializeOwned>(record: &[u8]) -> Result<T, RecordError> {
    postcard::from_bytes(record).map_err(|error| RecordError(error.to_string()))
}

/// Why a record cannot be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RecordError(String);

/// Bytes of the length before each record.
const LENGTH_BYTES: usize = size_of::<u32>();

/// Returns a time as it is written.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Any other record: an input, and what the scheduler decided then.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RecordingEntry {
    /// Nanoseconds since the start.
    pub at: u64,
    #[serde(rename = "in")]
    pub input: Input<'static>,
    /// In words, in their order.
    #[serde(default, rename = "out")]
    pub decisions: Vec<String>,
}
