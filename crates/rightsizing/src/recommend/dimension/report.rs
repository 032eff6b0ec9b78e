//! Published dimension estimates of a workload, as the text of an annotation:
//! `{"pod":{"networkReceive":{"target":…,"lowerBound":…,"upperBound":…,"samples":…,"confidence":…}},
//! "containers":{"app":{"diskRead":{…}}},"leftOut":…}`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, Serializer};

use super::{Dimension, DimensionEstimate, DimensionUsage};

/// Maximum length of the text. All annotations of an object together may take 256 KiB, and all VPAs are listed
/// every round.
pub const BYTES_MAX: usize = 16 << 10;

/// Maximum length of one dimension's entry, without its name. It is charged for every entry, so that the set of
/// entries left out does not change with the values.
const ENTRY_BYTES: usize = 160;
/// Length of what surrounds the dimensions of a container, without its name.
const CONTAINER_BYTES: usize = 8;
/// Length of what surrounds the whole report.
const FRAME_BYTES: usize = 64;

/// By dimension name.
type ByDimension = BTreeMap<String, Wire>;

/// Report for one workload.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DimensionReport {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pod: ByDimension,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    containers: BTreeMap<String, ByDimension>,
    /// Number of dimensions left out because they did not fit.
    #[serde(skip_serializing_if = "is_zero")]
    pub left_out: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wire {
    #[serde(serialize_with = "plain")]
    target: f64,
    #[serde(serialize_with = "plain")]
    lower_bound: f64,
    #[serde(serialize_with = "plain")]
    upper_bound: f64,
    /// Number of samples at the time of writing; a change of this alone causes no write.
    samples: u64,
    confidence: f64,
}

impl Wire {
    fn of(estimate: DimensionEstimate) -> Self {
        let DimensionEstimate { target, lower, upper, samples, confidence } = estimate;
        // Round down: only full confidence is written as 1.
        let confidence = (confidence * 100.0).floor() / 100.0;
        Self {
            target: short(target),
            lower_bound: short(lower),
            upper_bound: short(upper),
            samples,
            confidence,
        }
    }

    /// Returns whether it differs by at most a bucket from the written entry.
    fn is_about(self, written: &Self, dimension: &Dimension) -> bool {
        let is_close = |new: f64, old: f64| (new - old).abs() <= dimension.step(new.min(old));
        is_close(self.target, written.target)
            && is_close(self.lower_bound, written.lower_bound)
            && is_close(self.upper_bound, written.upper_bound)
            && (self.confidence < 1.0) == (written.confidence < 1.0)
    }
}

/// Rounds to six digits, which is far finer than a bucket.
fn short(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

/// Serializes whole numbers without a decimal point.
fn plain<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if value.fract() == 0.0 && (0.0..1e18).contains(value) {
        return serializer.serialize_u64(*value as u64);
    }
    serializer.serialize_f64(*value)
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// Returns the length of a text in JSON.
fn json_bytes(text: &str) -> usize {
    serde_json::to_string(text).map_or(usize::MAX, |json| json.len())
}

/// Reports the pods as a whole, then the containers in name order, as far as they fit.
pub fn report<'a, U: Iterator<Item = (&'a Dimension, &'a DimensionUsage)>>(
    pod: U,
    containers: impl Iterator<Item = (&'a str, U)>,
) -> DimensionReport {
    let (mut report, mut room) = (DimensionReport::default(), BYTES_MAX - FRAME_BYTES);
    report.pod = reported(pod, &mut room, &mut report.left_out);
    for (name, usages) in containers {
        // A container whose name does not fit has no room for its dimensions either.
        let mut rest = room.saturating_sub(json_bytes(name).saturating_add(CONTAINER_BYTES));
        let told = reported(usages, &mut rest, &mut report.left_out);
        if !told.is_empty() {
            report.containers.insert(name.to_owned(), told);
            room = rest;
        }
    }
    report
}

fn reported<'a>(
    usages: impl Iterator<Item = (&'a Dimension, &'a DimensionUsage)>,
    room: &mut usize,
    left_out: &mut usize,
) -> ByDimension {
    let mut told = ByDimension::new();
    for (dimension, usage) in usages {
        let bytes = json_bytes(&dimension.name).saturating_add(ENTRY_BYTES);
        match room.checked_sub(bytes) {
            Some(rest) => {
                *room = rest;
                told.insert(dimension.name.to_string(), Wire::of(dimension.estimate(usage)));
            }
            None => *left_out += 1,
        }
    }
    told
}

impl DimensionReport {
    pub fn is_empty(&self) -> bool {
        self.pod.is_empty() && self.containers.is_empty()
    }

    /// Returns the text to write, or `None` when `written` is about the same or there are no estimates.
    pub fn next(&self, written: Option<&str>, dimensions: &[Dimension]) -> Option<String> {
        if self.is_empty() {
            return None;
        }
        // Text that does not parse as a report is overwritten, even if another client wrote it.
        let written = written.and_then(|text| serde_json::from_str::<DimensionReport>(text).ok());
        if written.is_some_and(|written| self.is_about(&written, dimensions)) {
            return None;
        }
        serde_json::to_string(self).ok()
    }

    fn is_about(&self, written: &Self, dimensions: &[Dimension]) -> bool {
        let same = |new: &ByDimension, old: &ByDimension| {
            new.len() == old.len()
                && new.iter().zip(old).all(|((name, new), (old_name, old))| {
                    let dimension = dimensions.iter().find(|dimension| *dimension.name == **name);
                    name == old_name && dimension.is_some_and(|dimension| new.is_about(old, dimension))
                })
        };
        self.left_out == written.left_out
            && same(&self.pod, &written.pod)
            && self.containers.len() == written.containers.len()
            && self
                .containers
                .iter()
                .zip(&written.containers)
                .all(|((name, new), (old_name, old))| name == old_name && same(new, old))
    }
}
