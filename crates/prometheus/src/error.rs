//! Why there is no usage, in words that say what to do.

use std::path::PathBuf;
use std::time::Duration;

use super::decode::DecodeError;

/// Why Prometheus could not be asked, or did not answer. `url` is the configured address.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The configuration cannot work.
    #[error(transparent)]
    Config(#[from] berth_model::InvalidField),
    /// `file` is the CA file, or that of a token or password.
    #[error("cannot read {}, which prometheus.{field} names", file.display())]
    File {
        field: &'static str,
        file: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// What was read is not what it should be.
    #[error("prometheus.{field} cannot be used: {problem}")]
    Credentials { field: &'static str, problem: String },
    /// No connection, or it broke, `tries` times.
    #[error(
        "Prometheus at {url} cannot be reached ({problem}, {tries} tries); check prometheus.url, and that a network policy lets \
         berth connect"
    )]
    Unreachable { url: String, problem: String, tries: u32 },
    #[error(
        "Prometheus at {url} did not answer within {timeout:?}; raise prometheus.queryTimeout, or shorten prometheus.slice"
    )]
    TimedOut { url: String, timeout: Duration },
    /// The HTTP status is not 200, after `tries` tries if another one could help.
    #[error("Prometheus at {url} answered {status} ({said}); {advice}")]
    Status { url: String, status: u16, said: String, advice: &'static str },
    /// Even the smallest part of the query.
    #[error(
        "Prometheus at {url} cannot do even the shortest query ({said}); raise its --query.max-samples or --query.timeout, or \
         choose a coarser prometheus.historyResolution"
    )]
    TooMuch { url: String, said: String },
    #[error(
        "an answer of Prometheus at {url} has more than {bytes_max} bytes; raise prometheus.maxResponseBytes, or shorten \
         prometheus.slice"
    )]
    TooLong { url: String, bytes_max: u64 },
    /// The connection broke in the middle of an answer. Series before that have been handed on.
    #[error("the answer of Prometheus at {url} broke off after {bytes} bytes ({problem})")]
    Broken { url: String, bytes: u64, problem: String },
    /// One number was asked for.
    #[error(
        "the query `{query}` gives {several} series, and one number is needed: aggregate them, such as with sum() or max()"
    )]
    Several { query: String, several: usize },
    /// What came is no answer to the query.
    #[error("Prometheus at {url} answered the query `{query}` with something else")]
    Answer {
        url: String,
        query: String,
        #[source]
        source: DecodeError,
    },
    /// A bug: the task that waits for an answer ended.
    #[error("the request to Prometheus at {url} was given up: {problem}")]
    Ended { url: String, problem: String },
}
