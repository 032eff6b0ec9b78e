//! Errors of reading usage, with texts that say what to do.

use std::path::PathBuf;
use std::time::Duration;

use super::decode::DecodeError;

/// Why a query to Prometheus failed. `url` is the configured address.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] berth_model::InvalidField),
    /// `file` is the CA file, or the file of a token or password.
    #[error("cannot read {}, which prometheus.{field} names", file.display())]
    File {
        field: &'static str,
        file: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The content of the file is invalid.
    #[error("prometheus.{field} cannot be used: {problem}")]
    Credentials { field: &'static str, problem: String },
    /// Connecting failed, or the connection broke, `tries` times.
    #[error(
        "Prometheus at {url} cannot be reached ({problem}, {tries} tries); check prometheus.url, and that a network policy lets \
         berth connect"
    )]
    Unreachable { url: String, problem: String, tries: u32 },
    #[error(
        "Prometheus at {url} did not answer within {timeout:?}; raise prometheus.queryTimeout, or shorten prometheus.slice"
    )]
    TimedOut { url: String, timeout: Duration },
    /// The HTTP status is not 200, after `tries` tries if a retry could help.
    #[error("Prometheus at {url} answered {status} ({said}); {advice}")]
    Status { url: String, status: u16, said: String, advice: &'static str },
    /// Even the smallest part of the query exceeds a limit.
    #[error(
        "Prometheus at {url} cannot evaluate even the shortest query ({said}); raise its --query.max-samples or --query.timeout, or \
         choose a coarser prometheus.historyResolution"
    )]
    TooMuch { url: String, said: String },
    #[error(
        "an answer of Prometheus at {url} has more than {bytes_max} bytes; raise prometheus.maxResponseBytes, or shorten \
         prometheus.slice"
    )]
    TooLong { url: String, bytes_max: u64 },
    /// The connection broke in the middle of a response. Series before that have been passed on.
    #[error("the answer of Prometheus at {url} broke off after {bytes} bytes ({problem})")]
    Broken { url: String, bytes: u64, problem: String },
    /// The query must give one number.
    #[error(
        "the query `{query}` returns {several} series, but must return one: aggregate them, for example with sum() or max()"
    )]
    Several { query: String, several: usize },
    /// The response is invalid.
    #[error("Prometheus at {url} sent an invalid answer to the query `{query}`")]
    Answer {
        url: String,
        query: String,
        #[source]
        source: DecodeError,
    },
    /// A bug: the task that waits for a response ended.
    #[error("the request to Prometheus at {url} was aborted: {problem}")]
    Ended { url: String, problem: String },
}
