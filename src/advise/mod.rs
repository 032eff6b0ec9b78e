//! Resource advice for operators: current and recommended requests of all containers, most urgent first.
//!
//! `workloads.rs` maps pods to workloads, `collect.rs` collects usage, `sizing.rs` has the strategies, `advice.rs` rates requests,
//! `limits.rs` sets their limits, `costs.rs` prices them, `show/` formats the result as text, HTML, JSON, CSV, patches and messages. For
//! backtests, `recorder.rs` keeps usage, and `recording.rs` reads it from files. No I/O except files. May not know: kube, tokio, clocks;
//! nothing here changes a cluster.

mod advice;
mod collect;
mod costs;
mod limits;
mod recorder;
pub mod recording;
pub mod show;
mod sizing;
mod workloads;

#[cfg(test)]
mod tests;

pub use advice::{AdviceReport, ContainerAdvice, Current, Reason, ResourceAdvice, Severity, WorkloadsFrom};
pub use collect::{Collector, ContainerSelection, Left};
pub use costs::{MonthlyCost, PriceList, Prices, WorkloadCost};
pub use limits::{LimitChange, LimitRule, LimitStrategy};
pub use recorder::Recorder;
pub use sizing::{Sizing, Strategy};
pub use workloads::{OwnerIndex, WorkloadRef, guess};
