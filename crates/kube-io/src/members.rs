//! Membership of active-active replicas: each holds its own member lease and reads those of the other replicas.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{DeleteParams, ListParams, Preconditions};
use kube::{Api, Client, ResourceExt};
use tokio::sync::watch;
use tokio::time::Instant;

use super::elector::{MEMBER_OF, record_of};
use super::lease::{LeaseConfig, Observed};
use berth_model::with_causes;

/// A member lease is deleted after this number of lease durations without a renewal.
const BURIED_AFTER: u32 = 20;

/// Polls the member leases of a group.
pub struct MemberLeases {
    api: Api<Lease>,
    config: LeaseConfig,
    group: String,
    started: Instant,
    observed: BTreeMap<String, Observed>,
    members: watch::Sender<BTreeSet<String>>,
}

impl MemberLeases {
    /// Creates the poller. `config` is that of this replica's lease. The receiver has the identities of all replicas that may be
    /// alive; empty until the leases have been read once.
    pub fn new(
        client: Client,
        config: LeaseConfig,
        group: String,
    ) -> (Self, watch::Receiver<BTreeSet<String>>) {
        let (members, receiver) = watch::channel(BTreeSet::new());
        let api = Api::namespaced(client, &config.namespace);
        let observed = BTreeMap::new();
        (MemberLeases { api, config, group, started: Instant::now(), observed, members }, receiver)
    }

    /// Polls the leases. Never returns; drop the future to stop.
    pub async fn run(mut self) {
        let mut failing = false;
        loop {
            match tokio::time::timeout(self.config.renew_deadline, self.look()).await {
                Ok(Ok(())) => failing = false,
                // Keep the last known members: a failure only delays the detection of a dead replica.
                failed if !failing => {
                    failing = true;
                    let error = match failed {
                        Ok(Err(error)) => with_causes(&error),
                        _ => "no answer".to_owned(),
                    };
                    tracing::warn!(error, "reading the leases of other replicas failed, retrying");
                }
                _ => {}
            }
            tokio::time::sleep(self.config.retry_period / 2).await;
        }
    }

    async fn look(&mut self) -> kube::Result<()> {
        let params = ListParams::default().labels(&format!("{MEMBER_OF}={}", self.group));
        let leases = self.api.list(&params).await?;
        let now = self.started.elapsed();
        let mut seen = BTreeMap::new();
        let mut buried = Vec::new();
        for lease in leases {
            let name = lease.name_any();
            let mut observed = self.observed.remove(&name);
            Observed::update(&mut observed, record_of(&lease), now);
            if let Some(observed) = observed {
                if now.saturating_sub(observed.since) > silence(&observed, &self.config) {
                    buried.push((name.clone(), lease.resource_version()));
                }
                seen.insert(name, observed);
            }
        }
        self.observed = seen;
        let alive = self.observed.values().filter(|lease| lease.is_held(&self.config, now));
        let alive: BTreeSet<String> = alive.map(|lease| lease.record.holder.clone()).collect();
        self.members.send_if_modified(|known| {
            let changed = *known != alive;
            if changed {
                tracing::info!(members = ?alive, "scheduling replicas changed");
                known.clone_from(&alive);
            }
            changed
        });
        for (name, resource_version) in buried {
            let preconditions = Preconditions { resource_version, ..Preconditions::default() };
            let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
            // Another replica may have deleted it first, or its holder renewed it meanwhile.
            let _ = self.api.delete(&name, &params).await;
        }
        Ok(())
    }
}

fn silence(observed: &Observed, config: &LeaseConfig) -> Duration {
    observed.record.duration.max(config.duration) * BURIED_AFTER
}
