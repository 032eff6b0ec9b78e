//! The command line of berth, and what only it needs: explanations of waiting pods, advice from Prometheus alone.
//!
//! `ARCHITECTURE.md` has the map. The decision modules (`model`, `inventory`, `rules`, `class`, `agent`, `dispatch`,
//! `queue`, `gang`, `policy`, `hints`, `correlate`, `scaling`, `recommend`, `apply`, `repack`, `scheduler`) are
//! synchronous and deterministic: time, randomness and results of I/O are arguments.

pub mod advise;
pub mod cli;
pub mod columns;
pub mod drain;
pub mod explain;
pub mod fit;
pub mod history;
pub mod recording;
pub mod top;
mod trial;
pub mod why;
