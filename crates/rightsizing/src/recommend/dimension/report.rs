//! What is told of the dimensions of a workload, as the text of an annotation:
//! `{"pod":{"networkReceive":{"target":…,"lowerBound":…,"upperBound":…,"samples":…,"confidence":…}},
//! "containers":{"app":{"diskRead":{…}}},"leftOut":…}`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, Serializer};

use super::{Dimension, Estimate, Usage};

/// So long a text is at most. The annotations of an object may have 256 KiB together, and all VPAs are listed every round.
pub const BYTES_MAX: usize = 16 << 10;

/// The most that one dimension takes, without its name: it is taken for each, so that what is left out does not change with
/// the values.
const ENTRY_BYTES: usize = 160;
/// What is around the dimensions of a container, without its name.
const CONTAINER_BYTES: usize = 8;
/// What is around it all.
const FRAME_BYTES: usize = 64;

/// By name of the dimension.
type Told = BTreeMap<String, Wire>;

/// Everything that is told of one workload.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Report {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pod: Told,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    containers: BTreeMap<String, Told>,
    /// Dimensions for which there was no room.
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
    /// When the estimates were written; more of them are no reason to write.
    samples: u64,
    confidence: f64,
}

impl Wire {
    fn of(estimate: Estimate) -> Self {
        let Estimate { target, lower, upper, samples, confidence } = estimate;
        // Only full confidence is written as 1.
        let confidence = (confidence * 100.0).floor() / 100.0;
        Self {
            target: short(target),
            lower_bound: short(lower),
            upper_bound: short(upper),
            samples,
            confidence,
        }
    }

    /// Whether it says the same as what is written, but for a difference of a bucket.
    fn is_about(self, written: &Self, dimension: &Dimension) -> bool {
        let is_close = |new: f64, old: f64| (new - old).abs() <= dimension.step(new.min(old));
        is_close(self.target, written.target)
            && is_close(self.lower_bound, written.lower_bound)
            && is_close(self.upper_bound, written.upper_bound)
            && (self.confidence < 1.0) == (written.confidence < 1.0)
    }
}

/// Six digits: far finer than a bucket.
fn short(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

/// Whole numbers without a point.
fn plain<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if value.fract() == 0.0 && (0.0..1e18).contains(value) {
        return serializer.serialize_u64(*value as u64);
    }
    serializer.serialize_f64(*value)
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// The length of a text in JSON.
fn json_bytes(text: &str) -> usize {
    serde_json::to_string(text).map_or(usize::MAX, |json| json.len())
}

/// What is known of the pods as a whole, and of containers in the order of their names, as far as there is room.
pub fn report<'a, U: Iterator<Item = (&'a Dimension, &'a Usage)>>(
    pod: U,
    containers: impl Iterator<Item = (&'a str, U)>,
) -> Report {
    let (mut report, mut room) = (Report::default(), BYTES_MAX - FRAME_BYTES);
    report.pod = told(pod, &mut room, &mut report.left_out);
    for (name, usages) in containers {
        // Names that leave no room for themselves have none for their dimensions.
        let mut rest = room.saturating_sub(json_bytes(name).saturating_add(CONTAINER_BYTES));
        let told = told(usages, &mut rest, &mut report.left_out);
        if !told.is_empty() {
            report.containers.insert(name.to_owned(), told);
            room = rest;
        }
    }
    report
}

fn told<'a>(
    usages: impl Iterator<Item = (&'a Dimension, &'a Usage)>,
    room: &mut usize,
    left_out: &mut usize,
) -> Told {
    let mut told = Told::new();
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

impl Report {
    pub fn is_empty(&self) -> bool {
        self.pod.is_empty() && self.containers.is_empty()
    }

    /// The text to write where `written` is now; `None` when that says about the same, or nothing is known.
    pub fn next(&self, written: Option<&str>, dimensions: &[Dimension]) -> Option<String> {
        if self.is_empty() {
            return None;
        }
        // What is no report, by whomever, is written over.
        let written = written.and_then(|text| serde_json::from_str::<Report>(text).ok());
        if written.is_some_and(|written| self.is_about(&written, dimensions)) {
            return None;
        }
        serde_json::to_string(self).ok()
    }

    fn is_about(&self, written: &Self, dimensions: &[Dimension]) -> bool {
        let same = |new: &Told, old: &Told| {
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
