//! Tests of the usage module: the pure parts, and reading from a fake Prometheus.

mod config;
mod decode;
mod fake;
mod refusals;
mod source;
