//! Times of creation and bind of each pod, and its condition, as seen by a client of the API server.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::Client;
use parking_lot::Mutex;

use super::workload::{DemoClass, DemoWorkload, Fate};
use berth_kube_io::{ClusterSink, LIVE_PODS, LeanPod, PodIndex, WatchChange, WatchCounters, watch};
use berth_model::{Node, Pod};

/// Observations of one pod.
#[derive(Debug, Clone)]
struct Seen {
    fate: Fate,
    /// Time of the response to our create request.
    created: Option<Instant>,
    /// Time at which our watch saw it with a node.
    bound: Option<Instant>,
    /// Whether it has a condition with the reason why it is unschedulable.
    told: bool,
}

#[derive(Debug, Default)]
struct Record {
    namespace: String,
    pods: HashMap<String, Seen>,
    counts: StageCounts,
}

/// Number of pods in each stage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StageCounts {
    pub created: usize,
    pub bound: usize,
    /// Pods that cannot be placed, now or ever, and have a condition with the reason.
    pub told: usize,
}

/// Record of observations; clones share it.
#[derive(Clone)]
pub struct Observer(Arc<Mutex<Record>>);

impl Observer {
    pub fn new(workload: &DemoWorkload) -> Self {
        let seen = |class: &DemoClass| Seen { fate: class.fate, created: None, bound: None, told: false };
        let pods = workload.pods().zip(workload.classes());
        let pods = pods.map(|((name, _), class)| (name, seen(class))).collect();
        let namespace = workload.namespace().to_owned();
        Observer(Arc::new(Mutex::new(Record { namespace, pods, counts: StageCounts::default() })))
    }

    /// Watches the pods; never returns.
    pub async fn watch(self, client: Client) {
        let (mut index, mut record) = (PodIndex::default(), self);
        let sink = |change: WatchChange<LeanPod>| index.take(change, &mut record);
        watch(client, Some(LIVE_PODS), &WatchCounters::default(), sink).await;
    }

    pub fn created(&self, name: &str) {
        let now = Instant::now();
        let mut record = self.0.lock();
        record.counts.created += 1;
        if let Some(seen) = record.pods.get_mut(name) {
            seen.created = Some(now);
        }
    }

    pub fn counts(&self) -> StageCounts {
        self.0.lock().counts
    }

    /// Returns the time from the first creation to the last bind of the pods that could be placed at once.
    pub fn span(&self) -> Duration {
        let record = self.0.lock();
        let at_once = || record.pods.values().filter(|seen| seen.fate == Fate::Placed);
        let first = record.pods.values().filter_map(|seen| seen.created).min();
        let last = at_once().filter_map(|seen| seen.bound).max();
        first.zip(last).map_or(Duration::ZERO, |(first, last)| last.duration_since(first))
    }

    /// Returns the times from creation to bind of the pods that could be placed at once, ascending.
    pub fn latencies(&self) -> Vec<Duration> {
        let record = self.0.lock();
        let at_once = record.pods.values().filter(|seen| seen.fate == Fate::Placed);
        // A bind that was seen before the response to the creation took no time.
        let latency = |seen: &Seen| Some(seen.bound?.saturating_duration_since(seen.created?));
        let mut latencies: Vec<Duration> = at_once.filter_map(latency).collect();
        latencies.sort_unstable();
        latencies
    }

    /// Returns the time from `start` to the last bind of the pods that could be placed late.
    pub fn late_bind(&self, start: Instant) -> Duration {
        let record = self.0.lock();
        let late = record.pods.values().filter(|seen| seen.fate == Fate::PlacedLate);
        let last = late.filter_map(|seen| seen.bound).max();
        last.map_or(Duration::ZERO, |last| last.saturating_duration_since(start))
    }
}

impl ClusterSink for Observer {
    fn apply_pod(&mut self, pod: Pod) {
        let now = Instant::now();
        let mut record = self.0.lock();
        if *pod.namespace != *record.namespace {
            return;
        }
        let Record { pods, counts, .. } = &mut *record;
        let Some(seen) = pods.get_mut(&*pod.name) else {
            return;
        };
        if pod.node_name.is_some() && seen.bound.is_none() {
            seen.bound = Some(now);
            counts.bound += 1;
        }
        let waits = pod.scheduled.is_some_and(|condition| !condition.status);
        if waits && seen.fate != Fate::Placed && !seen.told {
            seen.told = true;
            counts.told += 1;
        }
    }

    // Deletions are ignored: observations of a pod stay valid.
    fn delete_pod(&mut self, _: &Arc<str>) {}
    fn retain_pods(&mut self, _: &HashSet<Arc<str>>) {}
    fn apply_node(&mut self, _: Node) {}
    fn delete_node(&mut self, _: &str) {}
    fn retain_nodes(&mut self, _: &HashSet<Arc<str>>) {}
}
