//! berth: a Kubernetes scheduler that keeps a ranked list of nodes for every class of pods.
//!
//! `ARCHITECTURE.md` has the map. The decision modules (`model`, `inventory`, `rules`, `class`, `agent`, `dispatch`,
//! `queue`, `gang`, `policy`, `hints`, `correlate`, `scaling`, `recommend`, `apply`, `repack`, `scheduler`) are
//! synchronous and deterministic: time, randomness and results of I/O are arguments.

pub mod advise;
pub mod agent;
pub mod api;
pub mod apply;
pub mod class;
pub mod cli;
pub mod cluster;
pub mod config;
pub mod control_plane;
pub mod correlate;
pub mod dispatch;
pub mod engine;
pub mod explain;
pub mod gang;
pub mod hints;
pub mod invariants;
pub mod inventory;
pub mod model;
pub mod objects;
pub mod placement;
pub mod policy;
pub mod preempt;
pub mod process;
pub mod queue;
pub mod quota;
pub mod recommend;
pub mod repack;
pub mod rules;
pub mod scaling;
pub mod scheduler;
pub mod serve;
pub mod simulate;
pub mod usage;
