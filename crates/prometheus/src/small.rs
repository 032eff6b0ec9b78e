//! Decoder of responses to queries with few results, which are read as a whole. No I/O.

use berth_rightsizing::usage::Sample;
use serde::Deserialize;

use super::decode::DecodeError;

/// Maximum characters of a server's text that are quoted in errors.
pub(super) const SAID_CHARS_MAX: usize = 300;

/// The response to a query with few results: a vector or a scalar.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SmallAnswer {
    /// Number of results.
    pub found: usize,
    /// The first result; `None` if there is none, or its value is not a finite number.
    pub first: Option<Sample>,
}

#[derive(Deserialize)]
struct Answer {
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    result: VectorOrScalar,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum VectorOrScalar {
    Scalar((f64, String)),
    Vector(Vec<Element>),
}

#[derive(Deserialize)]
struct Element {
    value: (f64, String),
}

impl SmallAnswer {
    /// Decodes a response.
    ///
    /// # Errors
    /// It is no response of Prometheus to such a query.
    pub fn read(body: &[u8]) -> Result<SmallAnswer, DecodeError> {
        let sample = |(at, value): (f64, String)| {
            let value = value.parse().ok().filter(|value: &f64| value.is_finite())?;
            Some(Sample { at, value })
        };
        match serde_json::from_slice(body) {
            Ok(Answer { data: Data { result: VectorOrScalar::Scalar(value) } }) => {
                Ok(SmallAnswer { found: 1, first: sample(value) })
            }
            Ok(Answer { data: Data { result: VectorOrScalar::Vector(elements) } }) => {
                let found = elements.len();
                Ok(SmallAnswer { found, first: elements.into_iter().next().and_then(|it| sample(it.value)) })
            }
            Err(_) => Err(DecodeError::NotPrometheus {
                status: String::from_utf8_lossy(body).trim().chars().take(SAID_CHARS_MAX).collect(),
            }),
        }
    }
}
