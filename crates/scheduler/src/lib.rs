//! The scheduler without I/O: inventory, rules, classes, agents, dispatch, queues, gangs, quotas and preemption.
//!
//! May not know: kube, tokio, HTTP, wall clocks. Time, randomness and the outcome of I/O are arguments.

pub mod agent;
pub mod class;
pub mod decisions;
pub mod dispatch;
pub mod engine;
pub mod gang;
pub mod hints;
pub mod invariants;
pub mod inventory;
pub mod live_selectors;
pub mod objects;
pub mod placement;
pub mod policy;
pub mod preempt;
pub mod profile;
pub mod queue;
pub mod quota;
pub mod recording;
pub mod repack;
pub mod rules;
pub mod scheduler;
mod sharded;
pub mod testing;
pub mod visits;
