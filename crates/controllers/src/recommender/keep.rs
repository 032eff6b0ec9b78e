//! Checkpoints: written for new samples, deleted when unused.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use futures::{StreamExt, stream};

use super::world::{State, World};
use super::{Recommender, RecommenderContext};
use berth_kube_io::vpa::{ApiError, FoundCheckpoint, Saved, Written};
use berth_rightsizing::recommend::saved::{self, Keeper};
use berth_rightsizing::recommend::store::Workload;
use berth_rightsizing::recommend::time::NEVER;
use berth_rightsizing::recommend::vpa::DEFAULT_RECOMMENDER;
use berth_rightsizing::recommend::{Aggregate, Span, UnixNanos, Vpa};

/// The samples of CPU and memory of a container, and the number of samples of its dimensions.
pub(super) type Spans = (Span, Span, u64);

/// State of one checkpoint.
pub(super) struct Kept {
    /// Time of the last write by this process.
    pub saved_at: UnixNanos,
    /// Time of the write that this process loaded.
    pub loaded_at: UnixNanos,
    /// The samples that it contains.
    pub spans: Option<Spans>,
    /// Whether berth must not write it.
    pub is_foreign: bool,
    /// Annotations of other clients.
    pub annotations: BTreeMap<String, String>,
}

impl Default for Kept {
    fn default() -> Self {
        Self {
            saved_at: NEVER,
            loaded_at: NEVER,
            spans: None,
            is_foreign: false,
            annotations: BTreeMap::new(),
        }
    }
}

/// A checkpoint to write. Ordered by name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    namespace: String,
    vpa: String,
    container: String,
    workload: Workload,
}

impl Due {
    fn key(&self) -> (String, String) {
        (self.namespace.clone(), saved::name(&self.vpa, &self.container))
    }
}

impl Recommender {
    pub(super) async fn maintain_checkpoints(&mut self, world: &World) {
        let config = self.context.config.clone();
        let elapsed = self.context.clock.elapsed();
        let is_due = |at: Option<Duration>, every| at.is_none_or(|at| elapsed.saturating_sub(at) >= every);
        if is_due(self.saved_at, config.checkpoints_interval.get()) {
            self.saved_at = Some(elapsed);
            self.save(world, config.checkpoints_timeout.get()).await;
        }
        if is_due(self.collected_at, config.checkpoints_gc_interval.get()) {
            self.collected_at = Some(elapsed);
            let now = self.context.clock.now_ns();
            self.store.expire(now);
            self.dimensions.store.expire(now);
            self.collect_garbage(world).await;
        }
    }

    /// Saves all unsaved checkpoints, at shutdown.
    pub(super) async fn save_all(&mut self) {
        let world = std::mem::take(&mut self.world);
        self.save(&world, super::LAST_SAVE_MAX).await;
    }

    /// Writes the checkpoints of containers with new samples, until the timeout. At least some are written,
    /// however short it is.
    async fn save(&mut self, world: &World, budget: Duration) {
        let due = saved::oldest_first(self.due(world));
        let began = Instant::now();
        let workers = self.context.config.update_workers as usize;
        for some in due.chunks(workers * 4) {
            self.save_some(some, workers).await;
            if began.elapsed() > budget {
                tracing::warn!(
                    checkpoints = due.len(),
                    "timeout of checkpoint writes, the rest is written first in the next round"
                );
                return;
            }
        }
    }

    fn due(&self, world: &World) -> Vec<(UnixNanos, Due)> {
        let mut due = Vec::new();
        for target in &world.targets {
            let Some(workload) = target.controls() else { continue };
            if self.loaded.get(&target.vpa.uid) != Some(workload) {
                continue;
            }
            for (container, aggregate) in self.store.containers(workload) {
                if !has_samples(aggregate) {
                    continue;
                }
                let one = Due {
                    namespace: workload.namespace.to_string(),
                    vpa: target.vpa.name.to_string(),
                    container: container.to_string(),
                    workload: workload.clone(),
                };
                let (kept, spans) = (self.kept.get(&one.key()), self.spans(workload, container));
                if kept.is_some_and(|kept| kept.is_foreign || kept.spans == spans) {
                    continue;
                }
                due.push((kept.map_or(NEVER, |kept| kept.saved_at), one));
            }
        }
        due
    }

    /// Returns the samples of a container's checkpoint if it is written now.
    pub(super) fn spans(&self, workload: &Workload, container: &str) -> Option<Spans> {
        let aggregate = self.store.aggregate(workload, container)?;
        Some((aggregate.cpu_span, aggregate.memory_span, self.kept_samples(workload, container)))
    }

    async fn save_some(&mut self, some: &[Due], workers: usize) {
        let now = self.context.clock.now_ns();
        let saved = some.iter().filter_map(|due| {
            let spans = self.spans(&due.workload, &due.container)?;
            let (status, windows) = self.store.save(&due.workload, &due.container, now)?;
            let annotations = self.kept.get(&due.key()).map(|kept| kept.annotations.clone());
            let saved = Saved {
                namespace: due.namespace.clone(),
                vpa: due.vpa.clone(),
                container: due.container.clone(),
                annotations: annotations.unwrap_or_default(),
                status,
                windows,
                dimensions: self.kept_dimensions(&due.workload, &due.container),
            };
            Some((due.clone(), spans, saved))
        });
        let saved: Vec<_> = saved.collect();
        let mut writes = Vec::with_capacity(some.len());
        for (due, spans, saved) in saved {
            writes.push(write(self.context.clone(), self.term, due, spans, saved));
        }
        let written: Vec<_> = stream::iter(writes).buffer_unordered(workers).collect().await;
        for (due, spans, written) in written.into_iter().flatten() {
            let (namespace, checkpoint) = due.key();
            match written {
                Ok(Written::Yes) => {
                    let kept = self.kept.entry(due.key()).or_default();
                    (kept.saved_at, kept.spans) = (now, Some(spans));
                }
                Ok(Written::NameTaken) => {
                    tracing::warn!(%namespace, checkpoint, "the name of a checkpoint is used by another VPA, checkpoint not saved");
                    self.kept.entry(due.key()).or_default().is_foreign = true;
                }
                Err(error) => {
                    tracing::warn!(%namespace, checkpoint, %error, "cannot write a checkpoint")
                }
            }
        }
    }

    /// Deletes checkpoints that two searches found unused: a list may be older than the objects it is
    /// compared with.
    async fn collect_garbage(&mut self, world: &World) {
        let keepers = self.keepers(world);
        let config = self.context.config.clone();
        let takes_over = config.name == DEFAULT_RECOMMENDER;
        let none = BTreeMap::new();
        let mut garbage: Vec<FoundCheckpoint> = Vec::new();
        let mut there = BTreeSet::new();
        let mut take = |mut found: FoundCheckpoint| {
            if !config.covers(&found.namespace) {
                return;
            }
            there.insert((found.namespace.clone(), found.label.name.clone()));
            if saved::is_garbage(&found.label, keepers.get(&found.namespace).unwrap_or(&none), takes_over) {
                // The content is large and not needed.
                found.content = Err(String::new());
                garbage.push(found);
            }
        };
        let mut listed = Ok(());
        for namespace in config.lists() {
            let list = self.context.api.checkpoints(namespace, &mut take).await;
            listed = listed.and(list.map_err(|error| error.to_string()));
        }
        let failed = listed.is_err();
        self.complaints.record("checkpoints", "checkpoints", listed);
        if failed {
            return;
        }
        // A checkpoint that another client deleted is written again.
        self.kept.retain(|key, kept| kept.is_foreign || there.contains(key));
        let before = std::mem::take(&mut self.suspects);
        for found in garbage {
            let key = (found.namespace.clone(), found.label.name.clone());
            if !before.contains(&key) {
                self.suspects.insert(key);
                continue;
            }
            if !self.leads() {
                return;
            }
            match self.context.api.delete_checkpoint(&found.namespace, &found.label.name, &found.uid).await {
                Ok(()) => {
                    tracing::info!(namespace = %found.namespace, checkpoint = %found.label.name, "deleted an unused checkpoint");
                    self.kept.remove(&key);
                    self.forget_container(world, &found);
                }
                Err(error) => {
                    tracing::warn!(namespace = %found.namespace, checkpoint = %found.label.name, %error, "cannot delete a checkpoint");
                }
            }
        }
    }

    /// Drops the state of a container that no longer exists: it would be saved again.
    fn forget_container(&mut self, world: &World, found: &FoundCheckpoint) {
        let vpa = world
            .targets
            .iter()
            .find(|target| *target.vpa.namespace == *found.namespace && *target.vpa.name == *found.label.vpa);
        if let Some(workload) = vpa.and_then(|target| target.controls()) {
            self.store.forget(workload, |container| container != found.label.container);
            self.dimensions.store.forget_container(workload, &found.label.container);
        }
    }

    /// Returns the users of checkpoints, by namespace and name of the VPA.
    fn keepers(&self, world: &World) -> BTreeMap<String, BTreeMap<String, Keeper>> {
        let mut keepers: BTreeMap<String, BTreeMap<String, Keeper>> = BTreeMap::new();
        // One beyond the limit may count again.
        for Vpa { namespace, name, .. } in world.foreign.iter().chain(world.beyond.iter().map(|vpa| &**vpa)) {
            keepers.entry(namespace.to_string()).or_default().insert(name.to_string(), Keeper::Other);
        }
        for target in &world.targets {
            let vpa = &target.vpa;
            let keeper = match &target.state {
                State::Controls(workload) if self.loaded.get(&vpa.uid) == Some(workload) => {
                    let running: BTreeSet<String> = world.requests(workload).into_keys().collect();
                    match running.is_empty() {
                        // Scaled to 0: it may come back unchanged.
                        true => Keeper::Unknown,
                        false => Keeper::Containers(running.into_iter().collect()),
                    }
                }
                _ => Keeper::Unknown,
            };
            keepers.entry(vpa.namespace.to_string()).or_default().insert(vpa.name.to_string(), keeper);
        }
        keepers
    }
}

/// A container without any sample has no checkpoint.
pub(super) fn has_samples(aggregate: &Aggregate) -> bool {
    (aggregate.cpu_span, aggregate.memory_span) != (Span::EMPTY, Span::EMPTY)
}

/// A finished write, with the samples it contains.
type Write = (Due, Spans, Result<Written, ApiError>);

async fn write(place: RecommenderContext, term: u64, due: Due, spans: Spans, saved: Saved) -> Option<Write> {
    if !place.leadership.decides_in(term) {
        return None;
    }
    let written = place.api.save(&saved).await;
    place.metrics.checkpoint_saved(written == Ok(Written::Yes));
    Some((due, spans, written))
}
