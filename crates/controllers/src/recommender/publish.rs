//! Writes changed recommendations into the status of VPAs.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::{StreamExt, stream};

use super::world::{State, Target, World};
use super::{Recommender, RecommenderContext};
use crate::node_rooms::{NodeRoom, node_rooms, sizes};
use berth_config::Storage;
use berth_kube_io::vpa::{ApiError, status_patch};
use berth_rightsizing::apply::index::VPAS_MAX;
use berth_rightsizing::recommend::propose::propose;
use berth_rightsizing::recommend::status::{condition, next};
use berth_rightsizing::recommend::store::Workload;
use berth_rightsizing::recommend::{Findings, Status, Surplus, UnixNanos, Vpa, WorkloadSurplus};
use berth_telemetry::VpaKind;

/// Maximum number of VPAs of a namespace whose conditions alone are written in one round: whoever creates thousands must not fill the
/// API server with these writes. Recommendations are always written.
const CONDITIONS_WRITTEN_MAX: usize = 100;
/// Maximum number of VPAs beyond the limit whose status is written in one round: fewer than the writes of other VPAs should wait for.
const BEYOND_WRITTEN_MAX: usize = 100;

impl Recommender {
    pub(super) async fn publish(&mut self, world: &World) {
        let nodes =
            if self.context.config.cap_to_nodes { node_rooms(&self.context.engine) } else { Vec::new() };
        let thresholds = self.context.config.thresholds();
        let now = self.context.clock.now_ns();
        let mut kinds: BTreeMap<VpaKind, usize> = BTreeMap::new();
        let mut due: Vec<(Vpa, Status, Status)> = Vec::new();
        let (mut recommended, mut surplus) = (Vec::new(), Vec::new());
        let mut conditions_written: BTreeMap<&Arc<str>, usize> = BTreeMap::new();
        for target in &world.targets {
            let vpa = &target.vpa;
            // A list may be older than our last write.
            let old = match self.written.get(&vpa.uid) {
                Some((before, after)) if *before == vpa.status => after.clone(),
                _ => vpa.status.clone(),
            };
            let found = self.findings(target, world, &nodes, &mut surplus);
            if let (Some(found), Some(workload)) = (&found, target.controls()) {
                recommended.push((workload.clone(), found.recommendations.clone()));
            }
            let status = found.as_ref().and_then(|found| next(&old, found, thresholds, now));
            *kinds.entry(kind(vpa, found.as_ref(), status.as_ref().unwrap_or(&old))).or_default() += 1;
            let Some(status) = status else { continue };
            if status.recommendation == old.recommendation {
                let written = conditions_written.entry(&vpa.namespace).or_default();
                *written += 1;
                if *written > CONDITIONS_WRITTEN_MAX {
                    continue;
                }
            }
            due.push((vpa.clone(), old, status));
        }
        self.context.metrics.workloads_request(surplus.into_iter().collect::<Surplus>());
        self.context.metrics.vpas(kinds);
        self.context.metrics.vpas_beyond_limit(world.beyond.len());
        due.extend(self.due_beyond(world, now));
        self.note_recommended(world, recommended);
        let (place, term, workers) = (&self.context, self.term, self.context.config.update_workers as usize);
        let mut writes = Vec::with_capacity(due.len());
        for (vpa, old, status) in due {
            writes.push(write(place.clone(), term, vpa, old, status));
        }
        let written: Vec<_> = stream::iter(writes).buffer_unordered(workers).collect().await;
        self.written = written.into_iter().flatten().collect();
    }

    /// Returns the statuses of VPAs beyond the limit that do not show it yet: some of them, those of this recommender.
    fn due_beyond(&self, world: &World, now: UnixNanos) -> Vec<(Vpa, Status, Status)> {
        let why = format!(
            "the {VPAS_MAX} oldest VerticalPodAutoscalers of a namespace count, and this is none of them: delete older ones"
        );
        let found = Findings { unsupported: Some(why), is_beyond_limit: true, ..Findings::default() };
        let shows_it =
            |vpa: &Vpa| vpa.status.conditions.iter().any(|it| it.reason == condition::LIMIT_REACHED);
        let ours = world.beyond.iter().filter(|vpa| vpa.is_of(&self.context.config.name) && !shows_it(vpa));
        let next = |vpa: &Arc<Vpa>| {
            let found = Findings { generation: vpa.generation, ..found.clone() };
            let status = next(&vpa.status, &found, self.context.config.thresholds(), now)?;
            Some((Vpa::clone(vpa), vpa.status.clone(), status))
        };
        ours.filter_map(next).take(BEYOND_WRITTEN_MAX).collect()
    }

    /// Returns the findings about a VPA; `None` if too little is known now. Adds the surplus of its workload.
    fn findings(
        &self,
        target: &Target,
        world: &World,
        nodes: &[NodeRoom],
        surplus: &mut Vec<WorkloadSurplus>,
    ) -> Option<Findings> {
        let known = || Findings { generation: target.vpa.generation, ..Findings::default() };
        let unsupported = |why: &str| Findings { unsupported: Some(why.to_owned()), ..known() };
        match &target.state {
            State::Unknown => None,
            State::Unsupported(why) => Some(unsupported(why)),
            State::Shadowed(why) => Some(Findings { is_shadowed: true, ..unsupported(why) }),
            State::Controls(workload) => {
                let pods = world.pods_of(workload)?.len();
                if self.loaded.get(&target.vpa.uid) != Some(workload) {
                    let from_history = self.context.config.storage == Storage::Prometheus;
                    return from_history.then(|| Findings { pods, fetches_history: true, ..known() });
                }
                Some(self.proposed(&target.vpa, workload, pods, world, nodes, surplus))
            }
        }
    }

    fn proposed(
        &self,
        vpa: &Vpa,
        workload: &Workload,
        pods: usize,
        world: &World,
        nodes: &[NodeRoom],
        surplus: &mut Vec<WorkloadSurplus>,
    ) -> Findings {
        let running = world.requests(workload);
        let spec = world.pods_of(workload).and_then(|pods| pods.iter().find_map(|live| live.spec.clone()));
        let max_allowed = self.context.config.max_allowed();
        let started = world.requests_of_started(workload);
        let requests = (&running, &started);
        let proposal =
            propose(vpa, &self.store, workload, requests, max_allowed, || sizes(nodes, spec.as_deref()));
        if !proposal.recommendations.is_empty() && pods > 0 {
            surplus.push(WorkloadSurplus::of(workload.clone(), pods, &running, &proposal.recommendations));
        }
        // Containers in mode `Off` get no recommendation, and lose an earlier one.
        let containers = running.into_keys().filter(|name| vpa.controlled(name).is_some());
        Findings {
            generation: vpa.generation,
            pods,
            containers: containers.collect(),
            recommendations: proposal.recommendations,
            low_confidence: proposal.low_confidence,
            capped: proposal.capped,
            ..Findings::default()
        }
    }
}

/// A write: the uid of the VPA, the status that was read, and the written one.
type Write = (String, (Status, Status));

async fn write(place: RecommenderContext, term: u64, vpa: Vpa, old: Status, status: Status) -> Option<Write> {
    if !place.leadership.decides_in(term) {
        return None;
    }
    let written = place.api.write_status(&vpa, &status_patch(&vpa.uid, &status)).await;
    place.metrics.status_written(written.is_ok());
    match written {
        Ok(()) => {
            if old.recommendation.is_none() && status.recommendation.is_some() {
                place.metrics.first_recommendation(place.clock.now_ns().saturating_sub(vpa.created));
            }
            Some((vpa.uid, (vpa.status, status)))
        }
        // Deleted or recreated: the next round reads it again.
        Err(ApiError::NotFound(_) | ApiError::Conflict(_)) => None,
        Err(error) => {
            tracing::warn!(%error, namespace = %vpa.namespace, vpa = %vpa.name, "cannot write the status of a VPA");
            None
        }
    }
}

fn kind(vpa: &Vpa, found: Option<&Findings>, status: &Status) -> VpaKind {
    let has = |kind: &str| status.conditions.iter().any(|it| it.kind == kind && it.status == "True");
    VpaKind {
        update_mode: vpa.update_mode.clone(),
        has_recommendation: status.recommendation.is_some(),
        matches_pods: found.map_or(!has(condition::NO_PODS_MATCHED), |found| found.pods > 0),
        unsupported_config: has(condition::CONFIG_UNSUPPORTED),
    }
}
