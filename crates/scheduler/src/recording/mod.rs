//! Recordings of all that a scheduler hears and decides, and their replay.
//!
//! A scheduler and its agents are deterministic: the same inputs in the same order lead to the same decisions. So a recording holds
//! inputs, and decisions only to compare them. It is text, one JSON value a line: first an [`Opening`], then one [`RecordingEntry`] for each
//! time that somebody had the lock and changed something.
//!
//! May not know: files, compression, clocks.

mod input;
mod recorder;
mod replay;
#[cfg(test)]
mod tests;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use input::{AgentStep, Did, Input};
pub use recorder::{EngineRecorder, Line, Tape};
pub use replay::{Difference, Replay, ReplayError};

use crate::agent::AgentConfig;
use crate::dispatch::Estimator;
use crate::scheduler::SchedulerConfig;

/// Version of the lines. A program reads only its own.
pub const FORMAT: u32 = 1;

/// The first line of a recording: what the scheduler began with.
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

/// Returns a time as it is written.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Any other line: an input, and what the scheduler decided then.
#[derive(Debug, Serialize, Deserialize)]
pub struct RecordingEntry {
    /// Nanoseconds since the start.
    pub at: u64,
    #[serde(rename = "in")]
    pub input: Input<'static>,
    /// In words, in their order.
    #[serde(default, rename = "out")]
    pub decisions: Vec<String>,
}
