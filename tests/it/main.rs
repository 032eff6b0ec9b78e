//! Integration tests of the library and the binary, in one test binary: one link step instead of many. More of them run
//! at once than there are cores: `support/turns.rs`.

#[macro_use]
mod support;

mod agent_lists;
mod allocations;
mod apply;
mod chart;
mod cluster_io;
mod control_plane;
mod demo;
mod differential;
mod docs;
mod drain;
mod explain;
mod extender;
mod fit;
mod guard;
mod layers;
mod policies;
mod questions;
mod quotas;
mod recommend;
mod recommender;
mod release;
mod replay;
mod report;
mod scaler;
mod scheduling;
mod serving;
mod shell;
mod simulate;
mod simulation;
mod ui;
mod upstream;
mod usage;
mod why;
