//! Estimation of metrics besides CPU and memory: read from Prometheus dimension by dimension, so that a
//! failed read affects one dimension only, reported in the annotation `berth.dev/usage` of VPAs, and saved
//! with their checkpoints.
//!
//! The data of a pod as a whole is saved with its first container, by name, that has a checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use futures::{StreamExt, stream};
use jiff::Timestamp;

use super::keep::has_samples;
use super::world::World;
use super::{Recommender, RecommenderContext};
use berth_config as config;
use berth_kube_io::vpa::{ApiError, USAGE};
use berth_model::with_causes;
use berth_prometheus::{Metric, PrometheusSource, QueriedNamespaces, ReadSummary, Series, SourceError};
use berth_rightsizing::apply::SizedPod;
use berth_rightsizing::recommend::assign::by_pod_name;
use berth_rightsizing::recommend::feed::time;
use berth_rightsizing::recommend::saved::Label;
use berth_rightsizing::recommend::store::Workload;
use berth_rightsizing::recommend::{DimensionStore, UnixNanos, Vpa};
use berth_rightsizing::usage::SeriesScope;
use berth_telemetry::DimensionRead;

/// Retry interval of a history that could not be read: the failed query may have taken Prometheus minutes.
const HISTORY_AGAIN: Duration = Duration::from_secs(600);

/// Dimensions and their state while this process leads.
pub(super) struct Dimensions {
    pub store: DimensionStore,
    /// Queried metrics, by index in the store's list.
    metrics: Vec<Metric>,
    /// By index in the list.
    histories: Vec<History>,
    /// Time of the newest samples, in seconds since 1970.
    read_at: i64,
    /// Annotations that were just written, by uid of the VPA: the previous and the written one.
    written: BTreeMap<String, (Option<Box<str>>, Box<str>)>,
    /// VPAs, by uid, whose truncated annotation was logged.
    truncated: BTreeSet<String>,
}

/// Pending history of one dimension. Nothing of it is sampled for a workload until its history is loaded.
#[derive(Default)]
struct History {
    awaited: BTreeSet<Workload>,
    not_before: Option<Duration>,
}

/// Number of samples taken and refused.
#[derive(Default)]
struct Tally {
    taken: u64,
    refused: u64,
}

/// Running pods by namespace and name.
type ByName<'a> = BTreeMap<(&'a str, &'a str), (&'a Workload, &'a SizedPod)>;

impl Dimensions {
    pub fn new(config: &config::Recommender) -> Result<Self> {
        let (dimensions, metrics): (Vec<_>, Vec<_>) = config.resolved_dimensions().into_iter().unzip();
        Ok(Self {
            histories: metrics.iter().map(|_| History::default()).collect(),
            store: DimensionStore::new(dimensions, config.expiry_ns())?,
            metrics,
            read_at: 0,
            written: BTreeMap::new(),
            truncated: BTreeSet::new(),
        })
    }

    pub fn is_empty(&self) -> bool {
        self.metrics.is_empty()
    }

    /// Drops all other workloads.
    pub fn retain(&mut self, keeps: impl Fn(&Workload) -> bool) {
        self.store.retain(&keeps);
        for history in &mut self.histories {
            history.awaited.retain(&keeps);
        }
    }

    /// Requests the history of a workload.
    pub fn await_history(&mut self, workload: &Workload) {
        for (place, history) in self.histories.iter_mut().enumerate() {
            self.store.forget(place, workload);
            history.awaited.insert(workload.clone());
        }
    }

    fn name(&self, place: usize) -> Arc<str> {
        self.store.dimensions()[place].name.clone()
    }

    /// Feeds the series of a container or pod of a workload to the store.
    fn feed(&mut self, place: usize, workload: &Workload, series: &Series<'_>, now: UnixNanos) -> Tally {
        let mut tally = Tally::default();
        for sample in series.samples {
            let times = (time(*sample), now);
            match self.store.add(place, workload, series.container, sample.value, times) {
                Ok(()) => tally.taken += 1,
                Err(_) => tally.refused += 1,
            }
        }
        tally
    }
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.taken += other.taken;
        self.refused += other.refused;
    }
}

impl Recommender {
    /// Loads the dimensions of a checkpoint.
    pub(super) fn load_dimensions(&mut self, workload: &Workload, label: &Label, text: &str) {
        if self.dimensions.is_empty() {
            return;
        }
        let loaded =
            self.dimensions.store.load(workload, &label.container, text, self.context.clock.now_ns());
        for error in loaded.err().into_iter().flatten() {
            let error = with_causes(&error);
            tracing::warn!(
                %error, namespace = %workload.namespace, checkpoint = %label.name,
                "a dimension of a checkpoint is invalid, measuring it from scratch"
            );
        }
    }

    /// Returns the data to save with the checkpoint of a container.
    pub(super) fn kept_dimensions(&self, workload: &Workload, container: &str) -> Option<String> {
        self.dimensions.store.save(workload, container, self.keeps_pod(workload, container))
    }

    /// Returns the number of samples in that data.
    pub(super) fn kept_samples(&self, workload: &Workload, container: &str) -> u64 {
        match self.dimensions.is_empty() {
            true => 0,
            false => self.dimensions.store.samples(workload, container, self.keeps_pod(workload, container)),
        }
    }

    /// Returns whether the data of the pod as a whole is saved with this container.
    fn keeps_pod(&self, workload: &Workload, container: &str) -> bool {
        let mut kept = self.store.containers(workload).filter(|(_, aggregate)| has_samples(aggregate));
        kept.next().is_some_and(|(first, _)| **first == *container)
    }

    /// Reads missing histories, and the newest samples.
    pub(super) async fn measure_dimensions(&mut self, world: &World) {
        let Some(source) = self.context.source.clone() else { return };
        // A Prometheus that just failed to return CPU and memory is not queried further.
        if self.complaints.has("samples") {
            return;
        }
        let known: BTreeSet<&Workload> = self.loaded.values().collect();
        let of_known = world.pods.values().flatten().filter(|(workload, _)| known.contains(workload));
        let pods: ByName = of_known
            .flat_map(|(of, pods)| {
                pods.iter().map(move |live| ((&*of.namespace, &*live.pod.name), (of, &live.pod)))
            })
            .collect();
        for place in 0..self.dimensions.metrics.len() {
            self.read_history(place, &source, &pods).await;
        }
        let now = self.context.clock.now();
        let namespaces: BTreeSet<&str> = pods.keys().map(|(namespace, _)| *namespace).collect();
        let namespaces: Vec<String> = namespaces.into_iter().map(str::to_owned).collect();
        // Two reads in one second would return the same samples.
        if namespaces.is_empty() || now.as_second() <= self.dimensions.read_at {
            return;
        }
        self.dimensions.read_at = now.as_second();
        for place in 0..self.dimensions.metrics.len() {
            self.read_latest(place, &source, (&namespaces, &pods), now).await;
        }
    }

    async fn read_history(&mut self, place: usize, source: &PrometheusSource, pods: &ByName<'_>) {
        let history = &self.dimensions.histories[place];
        let is_early = history.not_before.is_some_and(|time| self.context.clock.elapsed() < time);
        if history.awaited.is_empty() || is_early {
            return;
        }
        let awaited = history.awaited.clone();
        let mut workloads: BTreeMap<&str, Vec<&Workload>> = BTreeMap::new();
        for workload in &awaited {
            workloads.entry(&workload.namespace).or_default().push(workload);
        }
        let namespaces: Vec<String> = workloads.keys().map(|name| (*name).to_owned()).collect();
        let (metric, mut tally, now) =
            (self.dimensions.metrics[place].clone(), Tally::default(), self.context.clock.now_ns());
        let dimensions = &mut self.dimensions;
        let sink = |series: Series<'_>| {
            let workload = match pods.get(&(series.namespace, series.pod)) {
                Some((workload, _)) => Some(*workload),
                None => workloads
                    .get(series.namespace)
                    .and_then(|all| by_pod_name(series.pod, all.iter().copied())),
            };
            if let Some(workload) = workload.filter(|workload| awaited.contains(workload)) {
                tally.add(dimensions.feed(place, workload, &series, now));
            }
        };
        let read = source
            .history_of(&metric, QueriedNamespaces::These(&namespaces), self.context.clock.now(), sink)
            .await;
        match &read {
            Ok(_) => self.dimensions.histories[place] = History::default(),
            Err(_) => {
                // A read that is repeated starts from scratch.
                for workload in &awaited {
                    self.dimensions.store.forget(place, workload);
                }
                self.dimensions.histories[place].not_before =
                    Some(self.context.clock.elapsed() + HISTORY_AGAIN);
            }
        }
        let is_read = read.is_ok();
        self.count_reading(place, &read, &tally);
        let (topic, what) = {
            let name = self.dimensions.name(place);
            (format!("history of {name}"), format!("the history of the dimension {name}"))
        };
        let said = read.map(drop).map_err(|error| with_causes(&error));
        if is_read {
            tracing::info!(dimension = %self.dimensions.name(place), samples = tally.taken, "history loaded");
        }
        self.complaints.record(&topic, &what, said);
    }

    async fn read_latest(
        &mut self,
        place: usize,
        source: &PrometheusSource,
        (namespaces, pods): (&[String], &ByName<'_>),
        now: Timestamp,
    ) {
        let (metric, mut tally, time) =
            (self.dimensions.metrics[place].clone(), Tally::default(), self.context.clock.now_ns());
        let dimensions = &mut self.dimensions;
        let sink = |series: Series<'_>| {
            let Some((workload, pod)) = pods.get(&(series.namespace, series.pod)) else { return };
            let is_there = metric.scope == SeriesScope::Pod
                || pod.containers.iter().any(|container| *container.name == *series.container);
            if is_there && !dimensions.histories[place].awaited.contains(workload) {
                tally.add(dimensions.feed(place, workload, &series, time));
            }
        };
        let read = source.latest_of(&metric, QueriedNamespaces::These(namespaces), now, sink).await;
        self.count_reading(place, &read, &tally);
        let name = self.dimensions.name(place);
        let said = match read {
            Ok(ReadSummary { series: 0, .. }) => Err(format!(
                "Prometheus has no series of {} for these pods: scrape it, or check its labels",
                metric.name
            )),
            Ok(_) => Ok(()),
            Err(error) => Err(with_causes(&error)),
        };
        self.complaints.record(&format!("dimension {name}"), &format!("the dimension {name}"), said);
    }

    fn count_reading(&self, place: usize, read: &Result<ReadSummary, SourceError>, tally: &Tally) {
        let result = match read {
            Ok(ReadSummary { series: 0, .. }) => DimensionRead::Empty,
            Ok(_) => DimensionRead::Done,
            Err(_) => DimensionRead::Failed,
        };
        let name = self.dimensions.name(place);
        self.context.metrics.dimensions.read(&name, result, tally.taken, tally.refused);
    }

    /// Writes changed usage into the annotations of VPAs.
    pub(super) async fn publish_dimensions(&mut self, world: &World) {
        let mut due = Vec::new();
        for target in &world.targets {
            let vpa = &target.vpa;
            let Some(workload) = target.controls() else { continue };
            if self.loaded.get(&vpa.uid) != Some(workload) || world.pods_of(workload).is_none() {
                continue;
            }
            let running = world.requests(workload);
            // As with recommendations: running containers, or all known ones if none runs, except containers
            // in mode `Off`.
            let is_told = |name: &str| {
                (running.is_empty() || running.contains_key(name)) && vpa.controlled(name).is_some()
            };
            let report = self.dimensions.store.report(workload, is_told);
            // A list may be older than our last write.
            let written = match self.dimensions.written.get(&vpa.uid) {
                Some((before, after)) if *before == vpa.usage => Some(&**after),
                _ => vpa.usage.as_deref(),
            };
            if let Some(text) = report.next(written, self.dimensions.store.dimensions()) {
                due.push(UsageAnnotation::new(vpa, text, report.left_out));
            }
        }
        let uids: BTreeSet<&str> = world.targets.iter().map(|target| target.vpa.uid.as_str()).collect();
        self.dimensions.truncated.retain(|uid| uids.contains(uid.as_str()));
        for told in &due {
            self.complain_of_truncation(told);
        }
        let (place, term, workers) = (&self.context, self.term, self.context.config.update_workers as usize);
        let mut writes = Vec::with_capacity(due.len());
        for told in due {
            writes.push(write(place.clone(), term, told));
        }
        let written: Vec<_> = stream::iter(writes).buffer_unordered(workers).collect().await;
        self.dimensions.written = written.into_iter().flatten().collect();
    }

    fn complain_of_truncation(&mut self, told: &UsageAnnotation) {
        let UsageAnnotation { namespace, name, uid, left_out, .. } = told;
        if *left_out == 0 {
            self.dimensions.truncated.remove(uid);
        } else if self.dimensions.truncated.insert(uid.clone()) {
            tracing::warn!(
                %namespace, vpa = %name, left_out,
                "the annotation of a VPA is full, some dimensions or containers are missing"
            );
        }
    }
}

/// An annotation to write.
struct UsageAnnotation {
    namespace: Arc<str>,
    name: Arc<str>,
    uid: String,
    before: Option<Box<str>>,
    text: Box<str>,
    left_out: usize,
}

impl UsageAnnotation {
    fn new(vpa: &Vpa, text: String, left_out: usize) -> Self {
        Self {
            namespace: vpa.namespace.clone(),
            name: vpa.name.clone(),
            uid: vpa.uid.clone(),
            before: vpa.usage.clone(),
            text: text.into_boxed_str(),
            left_out,
        }
    }
}

/// A write: the uid of the VPA, the annotation that was read, and the written one.
type Write = (String, (Option<Box<str>>, Box<str>));

async fn write(place: RecommenderContext, term: u64, told: UsageAnnotation) -> Option<Write> {
    if !place.leadership.decides_in(term) {
        return None;
    }
    let UsageAnnotation { namespace, name, uid, before, text, left_out } = told;
    let written = place.api.annotate((&namespace, &name), &uid, (USAGE, &text)).await;
    place.metrics.dimensions.usage_written(written.is_ok(), left_out == 0);
    match written {
        Ok(()) => Some((uid, (before, text))),
        // Deleted or recreated: the next round reads it again.
        Err(ApiError::NotFound(_) | ApiError::Conflict(_)) => None,
        Err(error) => {
            tracing::warn!(%error, %namespace, vpa = %name, "cannot write the usage of a VPA");
            None
        }
    }
}
