//! Decoding of one series, and the reasons to skip it or a sample of it. No I/O.

use berth_rightsizing::usage::Sample;
use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::config::LabelNames;

/// Expected result type of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResultType {
    /// Series over time: the result of a range query.
    Matrix,
    /// One sample per series: the result of an instant query.
    Vector,
}

impl ResultType {
    pub(super) fn name(self) -> &'static str {
        match self {
            ResultType::Matrix => "matrix",
            ResultType::Vector => "vector",
        }
    }
}

/// The samples of one container, at least one, in strictly increasing time, all values finite.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Series<'a> {
    pub namespace: &'a str,
    pub pod: &'a str,
    /// Empty for a series of a whole pod.
    pub container: &'a str,
    pub samples: &'a [Sample],
}

/// Why a series or a sample of it was skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Skip {
    /// Series without a label that names its container.
    MissingLabel,
    /// Series with invalid JSON.
    Malformed,
    /// Series with more bytes than any response of Prometheus has.
    TooLong,
    /// Sample whose value is not a number.
    NotANumber,
    /// Sample whose value is NaN or infinite.
    NotFinite,
    /// Sample that is not later than the one before.
    OutOfOrder,
}

impl Skip {
    pub const ALL: [Skip; 6] = [
        Skip::MissingLabel,
        Skip::Malformed,
        Skip::TooLong,
        Skip::NotANumber,
        Skip::NotFinite,
        Skip::OutOfOrder,
    ];

    /// Returns the metric label.
    pub fn name(self) -> &'static str {
        match self {
            Skip::MissingLabel => "series_missing_label",
            Skip::Malformed => "series_malformed",
            Skip::TooLong => "series_too_long",
            Skip::NotANumber => "sample_not_a_number",
            Skip::NotFinite => "sample_not_finite",
            Skip::OutOfOrder => "sample_out_of_order",
        }
    }
}

/// Numbers of skipped series or samples, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Skipped([u64; Skip::ALL.len()]);

impl Skipped {
    pub fn get(&self, reason: Skip) -> u64 {
        self.0[reason as usize]
    }

    /// Whether nothing was skipped.
    pub fn is_empty(&self) -> bool {
        *self == Skipped::default()
    }

    pub(super) fn count(&mut self, reason: Skip) {
        self.0[reason as usize] += 1;
    }

    pub(super) fn add(&mut self, other: &Skipped) {
        for (sum, more) in self.0.iter_mut().zip(other.0) {
            *sum += more;
        }
    }
}

/// Reused buffers for one series.
#[derive(Default)]
pub(super) struct SeriesBuffers {
    namespace: String,
    pod: String,
    container: String,
    samples: Vec<Sample>,
    has_samples: bool,
}

impl SeriesBuffers {
    /// Decodes one element of a result; `None` if it has no samples, or all of them were skipped.
    ///
    /// # Errors
    /// Why the whole series is skipped.
    pub(super) fn read(
        &mut self,
        json: &[u8],
        expected: ResultType,
        labels: &LabelNames,
        skipped: &mut Skipped,
    ) -> Result<Option<Series<'_>>, Skip> {
        self.namespace.clear();
        self.pod.clear();
        self.container.clear();
        self.samples.clear();
        self.has_samples = false;
        let seed = SeriesSeed { expected, labels, found: self, skipped };
        let mut json = serde_json::Deserializer::from_slice(json);
        seed.deserialize(&mut json).map_err(|_| Skip::Malformed)?;
        // A series of a whole pod needs no container.
        let has_container = labels.container.is_empty() || !self.container.is_empty();
        if self.namespace.is_empty() || self.pod.is_empty() || !has_container {
            return Err(Skip::MissingLabel);
        }
        let SeriesBuffers { namespace, pod, container, samples, .. } = self;
        Ok((!samples.is_empty()).then_some(Series { namespace, pod, container, samples }))
    }
}

/// A string that is borrowed unless it has escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// Decodes one element of the result into `found`.
struct SeriesSeed<'s> {
    expected: ResultType,
    labels: &'s LabelNames,
    found: &'s mut SeriesBuffers,
    skipped: &'s mut Skipped,
}

impl<'de> DeserializeSeed<'de> for SeriesSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for SeriesSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a series")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(Text(key)) = map.next_key()? {
            match (&*key, self.expected) {
                ("metric", _) => map.next_value_seed(Labels { labels: self.labels, found: self.found })?,
                ("values", ResultType::Matrix) => {
                    map.next_value_seed(Samples { found: self.found, skipped: self.skipped })?;
                }
                ("value", ResultType::Vector) => {
                    let (at, Text(value)) = map.next_value()?;
                    take_sample(self.found, self.skipped, at, &value);
                    self.found.has_samples = true;
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        match self.found.has_samples {
            true => Ok(()),
            false => Err(serde::de::Error::missing_field("values")),
        }
    }
}

struct Labels<'s> {
    labels: &'s LabelNames,
    found: &'s mut SeriesBuffers,
}

impl<'de> DeserializeSeed<'de> for Labels<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Labels<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the labels of a series")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some((Text(name), Text(value))) = map.next_entry()? {
            let LabelNames { namespace, pod, container } = self.labels;
            let place = match &*name {
                name if name == namespace => &mut self.found.namespace,
                name if name == pod => &mut self.found.pod,
                name if name == container && !name.is_empty() => &mut self.found.container,
                _ => continue,
            };
            place.clear();
            place.push_str(&value);
        }
        Ok(())
    }
}

struct Samples<'s> {
    found: &'s mut SeriesBuffers,
    skipped: &'s mut Skipped,
}

impl<'de> DeserializeSeed<'de> for Samples<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Samples<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the samples of a series")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some((at, Text(value))) = list.next_element()? {
            take_sample(self.found, self.skipped, at, &value);
        }
        self.found.has_samples = true;
        Ok(())
    }
}

fn take_sample(found: &mut SeriesBuffers, skipped: &mut Skipped, at: f64, value: &str) {
    let Ok(value) = value.parse::<f64>() else {
        return skipped.count(Skip::NotANumber);
    };
    if !value.is_finite() {
        return skipped.count(Skip::NotFinite);
    }
    if found.samples.last().is_some_and(|last| at <= last.at) {
        return skipped.count(Skip::OutOfOrder);
    }
    found.samples.push(Sample { at, value });
}
