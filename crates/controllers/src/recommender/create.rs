//! VPAs are made for the workloads of namespaces that ask for it. `recommend::create` decides which ones.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::{StreamExt, stream};

use super::world::World;
use super::{Place, Recommender};
use berth_kube_io::vpa::ApiError;
use berth_rightsizing::recommend::create::{self, Asked, Candidate, plan};
use berth_rightsizing::recommend::{Owner, Vpa};

/// So many in one round; the others follow in the next ones.
const CREATED_MAX: usize = 100;
/// One that was refused is tried again after so many rounds, so that it does not stand in the way of others.
const ROUNDS_REFUSED: u32 = 10;

/// What is remembered between rounds.
#[derive(Default)]
pub(super) struct Making {
    /// VPAs that nobody seemed to need the last time, by uid: a list may be older than what it is compared with.
    suspects: BTreeSet<String>,
    /// Those that the API server did not take, by namespace and name, and for how many rounds they wait.
    refused: BTreeMap<(Arc<str>, String), u32>,
}

impl Place {
    /// The label of namespaces that ask, and of workloads that do not want; `None`: nothing is made.
    pub(super) fn label(&self) -> Option<String> {
        self.config.auto_create.enabled.then(|| self.config.auto_create.label.clone())
    }
}

impl Recommender {
    /// The namespaces that ask for VPAs; `None` when nothing is made, or it cannot be told now.
    pub(super) async fn asking_namespaces(&mut self) -> Option<Asked> {
        let label = self.place.label()?;
        let found = self.place.api.namespaces_with(&label).await;
        let read = found.as_ref().map(drop).map_err(ToString::to_string);
        self.complaints.say("namespaces", "the labels of namespaces", read);
        let mut namespaces = found.ok()?;
        namespaces.retain(|namespace| self.place.config.covers(namespace));
        Some(Asked { namespaces, candidates: BTreeMap::new() })
    }

    /// A workload that was found at the top of a pod's owners.
    pub(super) fn candidate(&self, namespace: &Arc<str>, owner: Owner) -> Option<Candidate> {
        let (uid, label) = self.owners.about(namespace, &owner)?;
        let (uid, is_excluded) = (uid.to_owned(), label == Some("false"));
        Some(Candidate { namespace: namespace.clone(), owner, uid, is_excluded })
    }

    pub(super) async fn make_vpas(&mut self, world: &World) {
        let Some(asked) = &world.asked else { return };
        let vpas: Vec<&Vpa> = world.targets.iter().map(|target| &target.vpa).chain(&world.others).collect();
        let plan = plan(asked, &vpas, &self.place.config.name);
        self.create(&plan.create).await;
        self.delete(&plan.superfluous).await;
    }

    async fn create(&mut self, wanted: &[&Candidate]) {
        let refused = &mut self.making.refused;
        refused.retain(|_, rounds| {
            *rounds -= 1;
            *rounds > 0
        });
        let key = |it: &Candidate| (it.namespace.clone(), create::name(&it.owner));
        let due: Vec<&Candidate> =
            wanted.iter().copied().filter(|it| !refused.contains_key(&key(it))).collect();
        self.place.metrics.vpas_wait(due.len().saturating_sub(CREATED_MAX));
        let mut writes = Vec::new();
        for candidate in due.into_iter().take(CREATED_MAX) {
            writes.push(write(self.place.clone(), self.term, candidate.clone()));
        }
        let workers = self.place.config.update_workers as usize;
        let written: Vec<_> = stream::iter(writes).buffer_unordered(workers).collect().await;
        for (candidate, error) in written.into_iter().flatten() {
            let (namespace, name) = key(&candidate);
            tracing::warn!(%error, %namespace, vpa = name, "a VPA could not be made for its workload");
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
            let deleted = self.place.api.delete_vpa(vpa).await;
            self.place.metrics.vpa_deleted(deleted.is_ok());
            match deleted {
                Ok(()) => {
                    tracing::info!(namespace = %vpa.namespace, vpa = %vpa.name, "deleted a VPA that nobody needs");
                }
                // It was changed: the next round sees by whom.
                Err(ApiError::Conflict(_)) => drop(self.making.suspects.insert(vpa.uid.clone())),
                Err(error) => {
                    tracing::warn!(%error, namespace = %vpa.namespace, vpa = %vpa.name, "a VPA could not be deleted");
                }
            }
        }
    }
}

/// Why it could not be made, if it could not.
async fn write(place: Place, term: u64, candidate: Candidate) -> Option<(Candidate, ApiError)> {
    if !place.leads(term) {
        return None;
    }
    let made = place.api.make_vpa(&candidate, &place.config.name).await;
    place.metrics.vpa_created(made.is_ok());
    made.err().map(|error| (candidate, error))
}
