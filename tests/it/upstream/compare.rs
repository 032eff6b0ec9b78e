//! Comparison of two recommenders on the same data.

use std::collections::BTreeMap;

use berth_model::Quantity;
use berth_rightsizing::recommend::{CheckpointStatus, HistogramCheckpoint};
use kube::Client;
use kube::api::DynamicObject;
use serde_json::Value;

use super::workloads::{Of, Workload};
use crate::recommender::{checkpoints, vpas};

/// A workload and its container.
pub type Key = (String, String);

const BOUNDS: [&str; 4] = ["target", "lowerBound", "upperBound", "uncappedTarget"];
const RESOURCES: [&str; 2] = ["cpu", "memory"];

/// Millicores and bytes for each of [`BOUNDS`].
pub type Recommendation = [[Option<i64>; 2]; 4];

pub type Recommendations = BTreeMap<Key, Recommendation>;

/// Returns the workload whose VPA has this name, if the VPA belongs to `of`.
fn workload(vpa: &str, of: Of) -> Option<&str> {
    let (name, whose) = match vpa.strip_suffix("-berth") {
        Some(name) => (name, Of::Berth),
        None => (vpa, Of::Upstream),
    };
    (whose == of).then_some(name)
}

pub async fn recommendations(client: &Client, of: Of) -> Recommendations {
    let all = vpas(client).list(&Default::default()).await.expect("VPAs").items;
    let mut found = Recommendations::new();
    for vpa in all {
        let name = vpa.metadata.name.as_deref().unwrap_or_default();
        let Some(name) = workload(name, of) else { continue };
        let list = vpa.data["status"]["recommendation"]["containerRecommendations"].as_array();
        for recommendation in list.into_iter().flatten() {
            let container = recommendation["containerName"].as_str().unwrap_or_default();
            let amounts = BOUNDS.map(|bound| RESOURCES.map(|name| amount(&recommendation[bound], name)));
            found.insert((name.to_owned(), container.to_owned()), amounts);
        }
    }
    found
}

fn amount(amounts: &Value, resource: &str) -> Option<i64> {
    let quantity = Quantity::parse(amounts[resource].as_str()?).expect("a quantity");
    Some(if resource == "cpu" { quantity.milli_value() } else { quantity.value() })
}

/// Returns whether exactly the expected containers have a recommendation.
pub fn is_whole(found: &Recommendations, workloads: &[Workload]) -> bool {
    let of =
        |it: &Workload| it.recommended().map(|name| (it.name.clone(), name.to_owned())).collect::<Vec<_>>();
    found.keys().cloned().eq(workloads.iter().flat_map(of))
}

/// Similarity of two sets of recommendations.
#[derive(Debug, Default)]
pub struct Likeness {
    pub containers: usize,
    /// Number of recommendations that are equal in every number.
    pub equal: usize,
    /// The remaining ones, as text.
    pub unequal: Vec<String>,
    /// Those that differ by more than one bucket of the histograms.
    pub beyond: Vec<String>,
}

pub fn compare(left: &Recommendations, right: &Recommendations) -> Likeness {
    assert_eq!(left.keys().collect::<Vec<_>>(), right.keys().collect::<Vec<_>>());
    let mut likeness = Likeness { containers: left.len(), ..Likeness::default() };
    for (key, ours) in left {
        let theirs = &right[key];
        if ours == theirs {
            likeness.equal += 1;
            continue;
        }
        let text = format!("{key:?}: {ours:?}, not {theirs:?}");
        if !is_near(ours, theirs) {
            likeness.beyond.push(text.clone());
        }
        likeness.unequal.push(text);
    }
    likeness
}

/// Returns whether no number differs by more than one bucket.
///
/// The width of a bucket at a usage is that of the first one plus 5 % of the usage. A recommendation is the end of a
/// bucket plus 15 %; bounds are scaled by a factor that depends on the confidence.
fn is_near(left: &Recommendation, right: &Recommendation) -> bool {
    const MARGIN: f64 = 1.15;
    let first = [10.0, 1e7];
    left.iter().zip(right).all(|(ours, theirs)| {
        (0..2).all(|resource| match (ours[resource], theirs[resource]) {
            (Some(ours), Some(theirs)) => {
                let most = ours.max(theirs) as f64;
                let target = left[3][resource].map_or(most, |target| target as f64);
                let bucket = 0.05 * most + first[resource] * MARGIN * (most / target).max(1.0);
                (ours - theirs).abs() as f64 <= bucket + 1.0
            }
            (ours, theirs) => ours == theirs,
        })
    })
}

pub type Checkpoints = BTreeMap<Key, CheckpointStatus>;

pub async fn read_checkpoints(client: &Client, of: Of) -> Checkpoints {
    let all = checkpoints(client).list(&Default::default()).await.expect("checkpoints").items;
    let read = |checkpoint: DynamicObject| {
        let text = |name: &str| checkpoint.data["spec"][name].as_str().unwrap_or_default().to_owned();
        let workload = workload(&text("vpaObjectName"), of)?.to_owned();
        let status = serde_json::from_value(checkpoint.data["status"].clone()).expect("a checkpoint");
        Some(((workload, text("containerName")), status))
    };
    all.into_iter().filter_map(read).collect()
}

/// Returns the differences of two checkpoints, except for their write times; empty if there are none.
///
/// Sums of weights may be added in another order, so they and the values rounded from them may differ minimally.
pub fn difference(ours: &CheckpointStatus, theirs: &CheckpointStatus) -> String {
    let counts = |it: &CheckpointStatus| {
        (it.version.clone(), it.first_sample_start, it.last_sample_start, it.total_samples_count)
    };
    let mut problems = Vec::new();
    if counts(ours) != counts(theirs) {
        problems.push(format!("{:?}, not {:?}", counts(ours), counts(theirs)));
    }
    for (ours, theirs) in
        [(&ours.cpu_histogram, &theirs.cpu_histogram), (&ours.memory_histogram, &theirs.memory_histogram)]
    {
        if !is_same_histogram(ours, theirs) {
            problems.push(format!("{ours:?}, not {theirs:?}"));
        }
    }
    problems.join("; ")
}

fn is_same_histogram(ours: &HistogramCheckpoint, theirs: &HistogramCheckpoint) -> bool {
    let weights = ours.bucket_weights.iter().zip(&theirs.bucket_weights);
    ours.reference_timestamp == theirs.reference_timestamp
        && ours.bucket_weights.len() == theirs.bucket_weights.len()
        && weights.into_iter().all(|(ours, theirs)| ours.0 == theirs.0 && (ours.1 - theirs.1).abs() <= 1)
        && (ours.total_weight - theirs.total_weight).abs() <= 1e-12 * theirs.total_weight
}
