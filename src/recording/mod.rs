//! Recordings as files: LZ4 frames, one after the other, each with its checksum and whole lines of [`berth_scheduler::recording`].
//!
//! A process that is killed loses at most its last frame. `lz4 -dc FILE` prints the lines, which can be read, too.

mod compare;
mod read;
mod replay;
mod rerun;
mod write;

#[cfg(test)]
mod rerun_tests;
#[cfg(test)]
mod tests;

pub use compare::{PodWaits, SettingsReport, compare, show_settings};
pub use read::{Ending, ReadError, open, read};
pub use replay::{DecidedOtherwise, ReplayOutcome, ReplayReport, replay, show};
pub use rerun::RunResult;
pub use write::{FileTape, Writing};
