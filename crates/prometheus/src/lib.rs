//! Usage of containers, read from Prometheus: CPU, memory and other metrics (`metric.rs`), the history in slices of time and the
//! newest samples; and metadata of pods and workloads from kube-state-metrics (`facts.rs`, `workload_labels.rs`).
//!
//! Responses are decoded while they arrive, so memory is bounded by one series, whatever the length of the history.
//! `query.rs` (queries), `decode.rs` and `split.rs` (responses) do no I/O; `client.rs` sends one request, `source.rs` sends all
//! queries in the right order. Must not know: estimators, the API server, decisions.

mod client;
mod config;
mod counters;
mod decode;
mod error;
mod facts;
mod metric;
mod query;
mod series;
mod signal;
mod small;
mod source;
mod split;
mod workload_labels;

#[cfg(test)]
pub(crate) mod tests;

pub use config::is_name;
pub use config::{BasicAuth, HttpHeader, LabelNames, PrometheusConfig, Secret};
pub use counters::{QueryCounters, REQUEST_SECONDS, RequestCount};
pub use decode::{DecodeError, Decoder, ResponseSummary};
pub use error::SourceError;
pub use facts::{Fact, FactRow, Missing};
pub use metric::{Matcher, MatcherError, Metric, MetricKind};
pub use query::{Points, QueriedNamespaces, rate_window};
pub use series::{ResultType, Series, Skip, Skipped};
pub use signal::{RequestSource, ServiceName, SignalKind, SignalValues, filled};
pub use small::SmallAnswer;
pub use source::{PrometheusSource, ReadSummary};
pub use workload_labels::{LabelledKind, SelectorError, WorkloadSelector};
