//! Streaming decoder of Prometheus responses: passes on one series after the other. No I/O.
//!
//! The response (<https://prometheus.io/docs/prometheus/latest/querying/api/>):
//! `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{…},"values":[[ts,"v"],…]},…]},"warnings":[…]}`,
//! with keys in any order. A bad series never affects the rest.

use super::config::LabelNames;
use super::series::{ResultType, Series, SeriesBuffers, Skip, Skipped};
use super::split::{NotJson, Part, Splitter};

/// Summary of a response besides its series.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResponseSummary {
    /// Series passed on.
    pub series: u64,
    /// Samples passed on.
    pub samples: u64,
    pub skipped: Skipped,
    /// Results may be incomplete, or not what was meant.
    pub warnings: Vec<String>,
    /// Hints for the author of the query.
    pub infos: Vec<String>,
}

/// Why a response is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("the answer breaks off after {bytes} bytes")]
    Truncated { bytes: u64 },
    #[error("the answer is not JSON: it has {found:?} at byte {at}")]
    NotJson { at: u64, found: char },
    #[error("the answer is JSON, but not from Prometheus: its status is {status:?}")]
    NotPrometheus { status: String },
    #[error("{error_type}: {error}")]
    Refused { error_type: String, error: String },
    #[error("the result is a {found:?} and not a {expected}")]
    WrongType { expected: &'static str, found: String },
}

/// Decodes one response. Not usable after an error.
pub struct Decoder {
    splitter: Splitter,
    reader: Reader,
}

impl Decoder {
    pub fn new(expected: ResultType, labels: LabelNames) -> Self {
        Self { splitter: Splitter::new(), reader: Reader::new(expected, labels) }
    }

    /// Decodes the next bytes, of any length, and passes on the series that end in them.
    ///
    /// # Errors
    /// The bytes cannot be JSON, or the result has another type.
    pub fn push(&mut self, bytes: &[u8], mut sink: impl FnMut(Series<'_>)) -> Result<(), DecodeError> {
        let reader = &mut self.reader;
        let outcome = self.splitter.push(bytes, &mut |part| reader.take(part, &mut sink));
        // Reported before a syntax error, if both are in these bytes.
        if let Some(wrong) = &self.reader.wrong_type {
            return Err(wrong.clone());
        }
        outcome.map_err(|NotJson { at, found }| DecodeError::NotJson { at, found: char::from(found) })
    }

    /// Ends the response; call it after the last bytes.
    ///
    /// # Errors
    /// The response is incomplete, Prometheus rejected the query, or it is not a Prometheus response of this type.
    pub fn finish(self) -> Result<ResponseSummary, DecodeError> {
        if !self.splitter.is_complete() {
            return Err(DecodeError::Truncated { bytes: self.splitter.bytes() });
        }
        self.reader.finish()
    }
}

/// Handles the parts of a response.
struct Reader {
    expected: ResultType,
    labels: LabelNames,
    status: String,
    error_type: String,
    error: String,
    has_type: bool,
    wrong_type: Option<DecodeError>,
    has_list: bool,
    answer: ResponseSummary,
    found: SeriesBuffers,
}

impl Reader {
    fn new(expected: ResultType, labels: LabelNames) -> Self {
        Self {
            expected,
            labels,
            status: String::new(),
            error_type: String::new(),
            error: String::new(),
            has_type: false,
            wrong_type: None,
            has_list: false,
            answer: ResponseSummary::default(),
            found: SeriesBuffers::default(),
        }
    }

    fn take(&mut self, part: Part<'_>, sink: &mut impl FnMut(Series<'_>)) {
        match part {
            Part::Field("status", json) => self.status = text(json),
            Part::Field("errorType", json) => self.error_type = text(json),
            Part::Field("error", json) => self.error = text(json),
            Part::Field("resultType", json) => self.result_type(text(json)),
            Part::Field("warnings", json) => self.answer.warnings = texts(json),
            Part::Field("infos", json) => self.answer.infos = texts(json),
            Part::Field(_, _) => {}
            Part::List => self.has_list = true,
            Part::TooLong => self.answer.skipped.count(Skip::TooLong),
            Part::Element(_) if self.wrong_type.is_some() => {}
            Part::Element(json) => self.element(json, sink),
        }
    }

    fn element(&mut self, json: &[u8], sink: &mut impl FnMut(Series<'_>)) {
        let series = match self.found.read(json, self.expected, &self.labels, &mut self.answer.skipped) {
            Ok(Some(series)) => series,
            Ok(None) => return,
            Err(reason) => return self.answer.skipped.count(reason),
        };
        self.answer.series += 1;
        self.answer.samples += series.samples.len() as u64;
        sink(series);
    }

    // The error of Prometheus takes precedence over a wrong result type.
    fn result_type(&mut self, found: String) {
        self.has_type = true;
        // Of several, the first one: it does not depend on the pieces in which the response arrives.
        if self.wrong_type.is_none() && found != self.expected.name() && self.status != "error" {
            self.wrong_type = Some(DecodeError::WrongType { expected: self.expected.name(), found });
        }
    }

    fn finish(self) -> Result<ResponseSummary, DecodeError> {
        if self.status == "error" {
            return Err(DecodeError::Refused { error_type: self.error_type, error: self.error });
        }
        if self.status != "success" {
            return Err(DecodeError::NotPrometheus { status: self.status });
        }
        if !self.has_type || !self.has_list {
            let found = "missing result".to_owned();
            return Err(DecodeError::WrongType { expected: self.expected.name(), found });
        }
        Ok(self.answer)
    }
}

fn text(json: &[u8]) -> String {
    serde_json::from_slice(json).unwrap_or_else(|_| String::from_utf8_lossy(json).into_owned())
}

fn texts(json: &[u8]) -> Vec<String> {
    serde_json::from_slice(json).unwrap_or_else(|_| vec![String::from_utf8_lossy(json).into_owned()])
}
