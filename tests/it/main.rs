//! Everything that is tested from outside the library, in one binary: one link step instead of many.

mod support;

mod chart;
mod cluster_io;
mod control_plane;
mod docs;
mod scheduling;
