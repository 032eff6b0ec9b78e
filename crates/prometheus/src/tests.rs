//! Tests of the room: the pure parts, and reading from a Prometheus that is made up.

mod config;
mod decode;
mod fake;
mod refusals;
mod source;
