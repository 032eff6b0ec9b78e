//! Past usage: checkpoints, or the history of Prometheus, and checkpoints for what Prometheus does not know.
//!
//! It is loaded once for each VPA, when the VPA is first seen. Until then nothing is sampled, recommended or
//! saved for it, so that saved data is never replaced by less data.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use super::Recommender;
use super::keep::Kept;
use super::world::World;
use berth_config::Storage;
use berth_kube_io::vpa::FoundCheckpoint;
use berth_prometheus::QueriedNamespaces;
use berth_rightsizing::recommend::assign::by_pod_name;
use berth_rightsizing::recommend::feed::feed;
use berth_rightsizing::recommend::store::Workload;
use berth_rightsizing::recommend::{Aggregate, CheckpointError, Span, saved};
use berth_rightsizing::usage::{Sample, UsageKind};

/// A VPA whose past must be loaded.
#[derive(Clone, Copy)]
struct New<'a> {
    uid: &'a str,
    vpa: &'a str,
    workload: &'a Workload,
}

impl Recommender {
    pub(super) async fn learn_past(&mut self, world: &World) {
        let mut new: BTreeMap<Arc<str>, Vec<New>> = BTreeMap::new();
        for target in &world.targets {
            let Some(workload) = target.controls() else { continue };
            let vpa = &target.vpa;
            if self.loaded.get(&vpa.uid) == Some(workload) || !world.pods.contains_key(&workload.namespace) {
                continue;
            }
            let of = new.entry(workload.namespace.clone()).or_default();
            of.push(New { uid: &vpa.uid, vpa: &vpa.name, workload });
        }
        if new.is_empty() {
            return;
        }
        let began = Instant::now();
        match self.context.config.storage {
            Storage::Checkpoint => self.load_checkpoints(&new).await,
            Storage::Prometheus => self.load_history(world, &new).await,
        }
        self.context.metrics.took("LoadPast", began);
    }

    async fn load_checkpoints(&mut self, new: &BTreeMap<Arc<str>, Vec<New<'_>>>) {
        for (namespace, vpas) in new {
            let mut found = Vec::new();
            let by_name: BTreeMap<&str, &New> = vpas.iter().map(|new| (new.vpa, new)).collect();
            let ours = |it: &FoundCheckpoint| {
                by_name.contains_key(&*it.label.vpa)
                    && it.label.name == saved::name(&it.label.vpa, &it.label.container)
            };
            let listed = self.context.api.checkpoints(Some(namespace), |it| {
                if ours(&it) {
                    found.push(it);
                }
            });
            let listed = listed.await.map_err(|error| error.to_string());
            let topic = format!("checkpoints of {namespace}");
            let failed = listed.is_err();
            self.complaints.record(&topic, &topic, listed);
            if failed {
                continue;
            }
            for checkpoint in found {
                if let Some(new) = by_name.get(&*checkpoint.label.vpa) {
                    self.load_checkpoint(new, checkpoint);
                }
            }
            for new in vpas {
                self.loaded.insert(new.uid.to_owned(), new.workload.clone());
            }
        }
    }

    fn load_checkpoint(&mut self, new: &New<'_>, checkpoint: FoundCheckpoint) {
        let FoundCheckpoint { namespace, label, annotations, content, dimensions, .. } = checkpoint;
        let now = self.context.clock.now_ns();
        let mut kept = Kept { annotations, ..Kept::default() };
        let loaded = content.and_then(|(status, windows)| {
            kept.saved_at = status.last_update_time.min(now);
            kept.loaded_at = kept.saved_at;
            let loaded = self.store.load(new.workload, &label.container, &status, &windows, now);
            // Perhaps of a newer version: berth must not overwrite it.
            kept.is_foreign =
                matches!(&loaded, Err(CheckpointError::Version(version)) if !version.is_empty());
            loaded.map_err(|error| berth_model::with_causes(&error))
        });
        if let Some(text) = dimensions {
            self.load_dimensions(new.workload, &label, &text);
        }
        if loaded.is_ok() {
            kept.spans = self.spans(new.workload, &label.container);
        }
        self.context.metrics.checkpoint_loaded(loaded.is_ok());
        if let Err(error) = loaded {
            tracing::warn!(
                %error, %namespace, checkpoint = %label.name,
                "invalid checkpoint, measuring its container from scratch"
            );
        }
        self.kept.insert((namespace, label.name), kept);
    }

    async fn load_history(&mut self, world: &World, new: &BTreeMap<Arc<str>, Vec<New<'_>>>) {
        let Some(source) = self.context.source.clone() else { return };
        let workloads: BTreeMap<&str, BTreeSet<&Workload>> = new
            .iter()
            .map(|(namespace, vpas)| (&**namespace, vpas.iter().map(|new| new.workload).collect()))
            .collect();
        let mut live: BTreeMap<(&str, &str), (&Arc<str>, &Workload)> = BTreeMap::new();
        for (of, pods) in world.pods.values().flatten() {
            live.extend(pods.iter().map(|live| ((&*of.namespace, &*live.pod.name), (&live.pod.uid, of))));
        }
        let namespaces: Vec<String> = new.keys().map(|namespace| namespace.to_string()).collect();
        let (store, now) = (&mut self.store, self.context.clock.now_ns());
        let mut fed: BTreeSet<Arc<str>> = BTreeSet::new();
        let read = source.history(
            QueriedNamespaces::These(&namespaces),
            self.context.clock.now(),
            |kind, series| {
                let Some(workloads) = workloads.get(series.namespace) else { return };
                let (uid, workload) = match live.get(&(series.namespace, series.pod)) {
                    Some((uid, of)) => ((*uid).clone(), *of),
                    None => match by_pod_name(series.pod, workloads.iter().copied()) {
                        // The pod is deleted, or its uid is unknown: its name is used instead.
                        Some(of) => (format!("{}/{}", series.namespace, series.pod).into(), of),
                        None => return,
                    },
                };
                if !workloads.contains(&workload) {
                    return;
                }
                if fed.insert(uid.clone()) {
                    store.pod_runs(&uid, workload);
                }
                // A container that runs uses memory: what says otherwise says nothing.
                let is_true = |sample: &&Sample| kind != UsageKind::Memory || sample.value > 0.0;
                let samples: Vec<Sample> = series.samples.iter().filter(is_true).copied().collect();
                feed(store, kind, (&uid, series.container), &samples, now, |_, _| {});
            },
        );
        let read = read.await;
        let running: BTreeSet<&Arc<str>> = live.values().map(|(uid, _)| *uid).collect();
        for uid in fed.iter().filter(|uid| read.is_err() || !running.contains(uid)) {
            self.store.pod_ended(uid);
        }
        // What Prometheus does not know now, a former leader may have known.
        let mut unknown: BTreeMap<Arc<str>, Vec<New>> = BTreeMap::new();
        for (namespace, new) in
            new.iter().flat_map(|(namespace, all)| all.iter().map(move |it| (namespace, it)))
        {
            let has_memory = |(_, aggregate): (&Arc<str>, &Aggregate)| aggregate.memory_span != Span::EMPTY;
            let is_known = self.store.containers(new.workload).any(has_memory);
            if read.is_ok() && is_known {
                self.dimensions.await_history(new.workload);
                self.loaded.insert(new.uid.to_owned(), new.workload.clone());
                continue;
            }
            // A read that is repeated starts from scratch.
            self.store.forget(new.workload, |_| false);
            if read.is_ok() {
                self.dimensions.await_history(new.workload);
                unknown.entry(namespace.clone()).or_default().push(*new);
            }
        }
        self.load_checkpoints(&unknown).await;
        if let Ok(summary) = &read {
            tracing::info!(
                series = summary.series, samples = summary.samples, warnings = ?summary.warnings,
                "history of usage loaded"
            );
        }
        let read = read.map(drop).map_err(|error| berth_model::with_causes(&error));
        self.complaints.record("history", "the history of usage", read);
    }
}
