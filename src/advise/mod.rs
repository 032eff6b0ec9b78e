//! Advice for people: what the containers of a cluster request, what they should, and what to look at first.
//!
//! `workloads.rs` finds whose pods they are, `collect.rs` takes the usage in, `advice.rs` judges, `show/` writes it for people
//! and programs. For backtests, `recorder.rs` keeps usage, and `recording.rs` reads it from files. No I/O but that of files. May
//! not know: kube, tokio, clocks; nothing here changes a cluster.

mod advice;
mod collect;
mod recorder;
pub mod recording;
pub mod show;
mod workloads;

#[cfg(test)]
mod tests;

pub use advice::{Advice, Current, Report, Severity, Size, WorkloadsFrom};
pub use collect::{Choice, Collector, Left};
pub use recorder::Recorder;
pub use workloads::{Found, Owners, guess};
