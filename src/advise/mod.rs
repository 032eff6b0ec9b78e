//! Resource advice for operators: current and recommended requests of all containers, most urgent first.
//!
//! `workloads.rs` maps pods to workloads, `collect.rs` collects usage, `advice.rs` rates requests, `show/` formats
//! the result as text, HTML, JSON and CSV. For backtests, `recorder.rs` keeps usage, and `recording.rs` reads it from
//! files. No I/O except files. May not know: kube, tokio, clocks; nothing here changes a cluster.

mod advice;
mod collect;
mod recorder;
pub mod recording;
pub mod show;
mod workloads;

#[cfg(test)]
mod tests;

pub use advice::{AdviceReport, ContainerAdvice, Current, ResourceAdvice, Severity, WorkloadsFrom};
pub use collect::{Collector, ContainerSelection, Left};
pub use recorder::Recorder;
pub use workloads::{OwnerIndex, WorkloadRef, guess};
