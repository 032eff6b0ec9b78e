//! The command line of berth, and what only it needs: explanations of waiting pods, advice from Prometheus alone.
//!
//! `ARCHITECTURE.md` has the table of crates; `crates/` has everything else.

pub mod advise;
pub mod cli;
pub mod columns;
pub mod explain;
