//! Recordings as files: LZ4 frames, one after the other, each with its checksum and whole records of [`berth_scheduler::recording`].
//!
//! A process that is killed loses at most its last frame. A recording can also be printed as JSON, a record a line, and read so.

mod account;
mod anonymise;
mod compare;
mod node_use;
mod read;
mod replay;
mod rerun;
mod write;

#[cfg(test)]
mod rerun_tests;
#[cfg(test)]
mod tests;

pub use account::{AccountComparison, RecordingAccount, StageTimes, account, against, show_accounts};
pub use anonymise::{AnonymiseError, anonymise};
pub use compare::{PodWaits, SettingsReport, compare, show_runs, show_settings, waits_that_differ};
pub use read::{Ending, ReadError, Record, open, read};
pub use replay::{DecidedOtherwise, ReplayOutcome, ReplayReport, replay, show};
pub use rerun::{Rerun, RunResult, RunTimes, longest_waits};
pub use write::{FileTape, Writing};
