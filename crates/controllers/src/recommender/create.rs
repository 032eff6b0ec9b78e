//! Creation of VPAs for the workloads of namespaces that request it. `recommend::create` selects the
//! workloads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::{StreamExt, stream};

use super::world::World;
use super::{Recommender, RecommenderContext};
use berth_kube_io::vpa::ApiError;
use berth_rightsizing::recommend::create::{self, CreationCandidate, CreationRequests, plan};
use berth_rightsizing::recommend::{OwnerRef, Vpa};

/// Maximum number of VPAs created in one round; the rest follow in the next rounds.
const CREATED_MAX: usize = 100;
/// Rounds before a refused VPA is retried, so that it does not block the rest.
const ROUNDS_REFUSED: u32 = 10;

/// State between rounds.
#[derive(Default)]
pub(super) struct Making {
    /// VPAs that were unused in the last round, by uid: a list may be older than the objects it is compared
    /// with.
    suspects: BTreeSet<String>,
    /// VPAs that the API server refused, by namespace and name, with the remaining rounds before a retry.
    refused: BTreeMap<(Arc<str>, String), u32>,
}

impl RecommenderContext {
    /// Returns the label of namespaces that request VPAs, and of workloads that opt out; `None` if disabled.
    pub(super) fn label(&self) -> Option<String> {
        self.config.auto_create.enabled.then(|| self.config.auto_create.label.clone())
    }
}

impl Recommender {
    /// Returns the namespaces that request VPAs; `None` if disabled or currently unknown.
    pub(super) async fn opted_in_namespaces(&mut self) -> Option<CreationRequests> {
        let label = self.context.label()?;
        let found = self.context.api.namespaces_with(&label).await;
        let read = found.as_ref().map(drop).map_err(ToString::to_string);
        self.complaints.record("namespaces", "the labels of namespaces", read);
        let mut namespaces = found.ok()?;
        namespaces.retain(|namespace| self.context.config.covers(namespace));
        Some(CreationRequests { namespaces, candidates: BTreeMap::new() })
    }

    /// Records a workload at the top of a pod's owners.
    pub(super) fn candidate(&self, namespace: &Arc<str>, owner: OwnerRef) -> Option<CreationCandidate> {
        let (uid, label) = self.owners.about(namespace, &owner)?;
        let is_excluded = label.as_deref() == Some("false");
        Some(CreationCandidate { namespace: namespace.clone(), owner, uid, is_excluded })
    }

    pub(super) async fn make_vpas(&mut self, world: &World) {
        let Some(asked) = &world.creation else { return };
        let vpas: Vec<&Vpa> = world.targets.iter().map(|target| &target.vpa).chain(&world.foreign).collect();
        let plan = plan(asked, &vpas, &self.context.config.name);
        // Another VPA would be beyond the limit, too.
        let full: BTreeSet<&Arc<str>> = world.beyond.iter().map(|vpa| &vpa.namespace).collect();
        let create: Vec<_> = plan.create.into_iter().filter(|it| !full.contains(&it.namespace)).collect();
        self.create(&create).await;
        self.delete(&plan.superfluous).await;
    }

    async fn create(&mut self, wanted: &[&CreationCandidate]) {
        let refused = &mut self.making.refused;
        refused.retain(|_, rounds| {
            *rounds -= 1;
            *rounds > 0
        });
        let key = |it: &CreationCandidate| (it.namespace.clone(), create::name(&it.owner));
        let due: Vec<&CreationCandidate> =
            wanted.iter().copied().filter(|it| !refused.contains_key(&key(it))).collect();
        self.context.metrics.vpas_wait(due.len().saturating_sub(CREATED_MAX));
        let mut writes = Vec::new();
        for candidate in due.into_iter().take(CREATED_MAX) {
            writes.push(write(self.context.clone(), self.term, candidate.clone()));
        }
        let workers = self.context.config.update_workers as usize;
        let written: Vec<_> = stream::iter(writes).buffer_unordered(workers).collect().await;
        for (candidate, error) in written.into_iter().flatten() {
            let (namespace, name) = key(&candidate);
            tracing::warn!(%error, %namespace, vpa = name, "cannot create a VPA for a workload");
            self.making.refused.insert((namespace, name), ROUNDS_REFUSED);
        }
    }

    async fn delete(&mut self, superfluous: &[&Vpa]) {
        let before = std::mem::take(&mut self.making.suspects);
        for vpa in superfluous {
            if !before.contains(&vpa.uid) {
                self.making.suspects.insert(vpa.uid.clone());
                continue;
            }
            if !self.leads() {
                return;
            }
            let deleted = self.context.api.delete_vpa(vpa).await;
            self.context.metrics.vpa_deleted(deleted.is_ok());
            match deleted {
                Ok(()) => {
                    tracing::info!(namespace = %vpa.namespace, vpa = %vpa.name, "deleted an unused VPA");
                }
                // It was changed meanwhile: the next round reads it.
                Err(ApiError::Conflict(_)) => drop(self.making.suspects.insert(vpa.uid.clone())),
                Err(error) => {
                    tracing::warn!(%error, namespace = %vpa.namespace, vpa = %vpa.name, "cannot delete a VPA");
                }
            }
        }
    }
}

/// Creates a VPA; returns the error, if any.
async fn write(
    place: RecommenderContext,
    term: u64,
    candidate: CreationCandidate,
) -> Option<(CreationCandidate, ApiError)> {
    if !place.leadership.decides_in(term) {
        return None;
    }
    let made = place.api.make_vpa(&candidate, &place.config.name).await;
    place.metrics.vpa_created(made.is_ok());
    made.err().map(|error| (candidate, error))
}
