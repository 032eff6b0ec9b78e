//! The updater: in each round it checks the pods of VPAs, and resizes or evicts those that differ from the
//! recommendation. `apply/update.rs` decides what is done; only the process that holds the Lease acts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use super::clock::Clock;
use super::leadership::Leadership;
use super::resizing::{Resized, Resizer};
use super::rounds::{self, Rounds};
use berth_config as config;
use berth_kube_io::WatchStore;
use berth_kube_io::apply::{Evicted, PodEvent, PodId};
use berth_kube_io::vpa::{ApiError, LAST_EVICTION, Recommending};
use berth_kube_io::webhook_configurations::WebhookConfiguration;
use berth_model::LabelSelector;
use berth_rightsizing::apply::update::UpdateCandidate;
use berth_rightsizing::apply::{
    DisruptionRules, Hold, Mode, Ranges, Round, SizedPod, UpdateStep, UpdaterMemory,
};
use berth_rightsizing::recommend::{LastEviction, OwnerRef, Vpa};
use berth_scheduler::engine::Engine;
use berth_telemetry::UpdaterMetrics;

/// Maximum number of events about unchanged pods, per round.
const TOLD_MAX: usize = 100;
/// Leases of upstream's components.
const UPSTREAM_UPDATER: &str = "vpa-updater";
const UPSTREAM_WEBHOOK: &str = "vpa-admission-controller";

/// Answers whether clients accept the serving certificate at a time.
pub type CertificateValid = Arc<dyn Fn(Timestamp) -> bool + Send + Sync>;

/// Dependencies of the updater.
#[derive(Clone)]
pub struct Updater {
    pub config: Arc<config::Recommender>,
    pub api: Recommending,
    pub watches: WatchStore,
    pub resizer: Arc<Resizer>,
    /// For the labels of namespaces.
    pub engine: Engine,
    /// Configuration of the webhook of new pods; `None`: berth does not know it.
    pub webhook: Option<WebhookConfiguration>,
    pub leadership: Leadership,
    pub clock: Clock,
    /// Validity of the certificate that the API server must accept.
    pub certificate: CertificateValid,
    pub metrics: Arc<UpdaterMetrics>,
}

/// The updater in one term of leadership.
struct InTerm<'a> {
    updater: &'a Updater,
    term: u64,
    state: UpdaterState,
}

/// State while this process leads.
#[derive(Default)]
struct UpdaterState {
    memory: UpdaterMemory,
    /// Reported reasons why pods stay unchanged; by uid.
    reported: BTreeMap<Arc<str>, Hold>,
    /// The last logged problem.
    complaint: Option<String>,
}

/// The pods of one VPA.
struct Group {
    vpa: Arc<Vpa>,
    ranges: Arc<Ranges>,
    pods: Vec<SizedPod>,
}

/// Result of one round.
#[derive(Default)]
struct Tally {
    held: BTreeMap<&'static str, usize>,
    reported: usize,
}

impl Rounds for InTerm<'_> {
    async fn round(&mut self) {
        let InTerm { updater, term, state: known } = self;
        let mut tally = Tally::default();
        let result = updater.update(*term, known, &mut tally).await;
        updater.metrics.round(result.is_ok(), tally.held);
        let complaint = result.err();
        if complaint != known.complaint {
            match &complaint {
                Some(why) => tracing::warn!(why, "updater: pods are not updated, retrying every round"),
                None => tracing::info!("updater: pods are updated again"),
            }
        }
        known.complaint = complaint;
    }

    fn leadership_ended(&self) {
        self.updater.metrics.rests();
    }
}

impl Updater {
    /// Updates pods while this process leads. Never returns.
    pub async fn run(self) {
        let begin = |term| Some(InTerm { updater: &self, term, state: UpdaterState::default() });
        let interval = self.config.apply.interval.get();
        rounds::run(|| self.leadership.decides(), (&self.clock, interval), begin, std::future::pending())
            .await;
    }

    /// # Errors
    /// The reason why not all pods were checked.
    async fn update(&self, term: u64, known: &mut UpdaterState, tally: &mut Tally) -> Result<(), String> {
        let (rules, webhook) = self.rules().await?;
        self.watches.pods.listed().await;
        known.memory.without_the_future(self.clock.now_ns());
        let namespaces = self.namespaces()?;
        let (mut uids, mut vpas) = (BTreeSet::new(), BTreeSet::new());
        for namespace in &namespaces {
            let has_webhook = rules.has_webhook && self.is_seen(namespace, webhook.as_deref());
            let rules = DisruptionRules { has_webhook, ..rules };
            for group in &self.groups(namespace) {
                uids.extend(group.pods.iter().map(|pod| pod.uid.clone()));
                vpas.insert(group.vpa.uid.clone());
                self.update_group(term, group, rules, known, tally).await;
                if !self.leadership.decides_in(term) {
                    return Ok(());
                }
            }
        }
        known.memory.retain(&uids, &vpas);
        known.reported.retain(|uid, _| uids.contains(uid));
        Ok(())
    }

    /// Returns whether a webhook with these selectors sees the pods of a namespace; without selectors it sees all.
    fn is_seen(&self, namespace: &str, webhook: Option<&[LabelSelector]>) -> bool {
        let Some(selectors) = webhook else { return true };
        let labels = self.engine.namespace_labels(namespace).unwrap_or_default();
        selectors.iter().any(|selector| selector.matches(&labels))
    }

    /// Returns the rules for disruptions now, and the selectors of the namespaces that berth's webhook sees, if it
    /// counts and they are known.
    async fn rules(&self) -> Result<(DisruptionRules, Option<Vec<LabelSelector>>), String> {
        let apply = &self.config.apply;
        let namespace = &apply.upstream_namespace;
        let explain = |error: ApiError| {
            format!("cannot check whether the upstream updater or admission controller runs: {error}")
        };
        let updater = self.api.lease_holder(namespace, UPSTREAM_UPDATER).await.map_err(explain)?;
        if let Some(holder) = updater {
            return Err(format!(
                "the upstream updater runs: {holder} holds the Lease {namespace}/{UPSTREAM_UPDATER}; stop it, or set \
                 recommender.apply.updater to false"
            ));
        }
        let now = self.clock.now();
        let is_refused = !(self.certificate)(now);
        let ours = apply.webhook && !is_refused;
        let has_webhook =
            ours || self.api.lease_holder(namespace, UPSTREAM_WEBHOOK).await.map_err(explain)?.is_some();
        let selectors = match &self.webhook {
            Some(webhook) if ours => Some(webhook.namespaces().await.map_err(|error| error.to_string())?),
            _ => None,
        };
        Ok((apply.rules(has_webhook, now.as_second()), selectors))
    }

    /// Returns the namespaces with VPAs that update pods, and with pods whose boost ends.
    fn namespaces(&self) -> Result<BTreeSet<Arc<str>>, String> {
        let index = self.watches.index.read();
        if !index.is_complete() {
            return Err("VPAs, LimitRanges and owners of pods have not all been listed yet".to_owned());
        }
        let updates = |vpa: &&Arc<Vpa>| {
            Mode::of(&vpa.update_mode).updates()
                && vpa.status.recommendation.as_ref().is_some_and(|all| !all.is_empty())
                && self.config.covers(&vpa.namespace)
        };
        let mut namespaces = self.watches.pods.boosted_namespaces();
        namespaces.retain(|namespace| self.config.covers(namespace));
        namespaces.extend(index.vpas().filter(updates).map(|vpa| vpa.namespace.clone()));
        Ok(namespaces)
    }

    /// Returns the VPAs of a namespace that update pods, with their pods. A boost ends whatever became of its VPA.
    fn groups(&self, namespace: &Arc<str>) -> Vec<Group> {
        let index = self.watches.index.read();
        let mut groups: BTreeMap<Arc<str>, Group> = BTreeMap::new();
        // No mode updates nothing.
        let without_vpa = Arc::new(Vpa { namespace: namespace.clone(), ..Vpa::default() });
        for live in self.watches.pods.of(namespace) {
            let is_boosted = !live.pod.boosts.is_empty();
            let governed = index.govern(&live.pod).filter(|it| it.mode.updates() || is_boosted);
            let (vpa, ranges) = match governed {
                Some(governed) => (governed.vpa, governed.ranges),
                None if is_boosted => (without_vpa.clone(), index.ranges(namespace)),
                None => continue,
            };
            let group =
                groups.entry(vpa.name.clone()).or_insert_with(|| Group { vpa, ranges, pods: Vec::new() });
            group.pods.push(live.pod.clone());
        }
        groups.into_values().collect()
    }

    async fn update_group(
        &self,
        term: u64,
        group: &Group,
        rules: DisruptionRules,
        known: &mut UpdaterState,
        tally: &mut Tally,
    ) {
        let now = self.clock.now_ns();
        let Group { vpa, ranges, pods } = group;
        let looked = (&**vpa, &pods[..]);
        let nobody = BTreeMap::new();
        let unknown = Round::new(looked, ranges, &nobody, rules, &mut known.memory, now).unknown_replicas();
        let replicas = self.replicas(group, &unknown);
        let mut memory = std::mem::take(&mut known.memory);
        let mut round = Round::new(looked, ranges, &replicas, rules, &mut memory, now);
        let (candidates, held) = round.candidates();
        for (pod, why) in held {
            self.hold(&pods[pod], vpa, (why, None), known, tally).await;
        }
        for candidate in &candidates {
            if !self.leadership.decides_in(term) {
                break;
            }
            let pod = &pods[candidate.pod];
            let mut detail = None;
            let mut step = round.step(candidate);
            if step == UpdateStep::Resize {
                (step, detail) = self.resize(pod, vpa, candidate, &mut round).await;
            }
            if step == UpdateStep::Evict {
                step = self.evict(pod, vpa, candidate, &mut round).await;
            }
            match step {
                UpdateStep::Hold(why) => self.hold(pod, vpa, (why, detail), known, tally).await,
                _ => drop(known.reported.remove(&pod.uid)),
            }
        }
        known.memory = memory;
    }

    /// Returns the desired replicas of these controllers, as far as they are known. A Job wants the pods that it has.
    fn replicas(&self, group: &Group, owners: &BTreeSet<OwnerRef>) -> BTreeMap<OwnerRef, usize> {
        let index = self.watches.index.read();
        let wanted = |owner: &OwnerRef| {
            let workload = index.workload(&group.vpa.namespace, owner)?;
            let running = || group.pods.iter().filter(|pod| pod.owner.as_ref() == Some(owner)).count();
            workload.replicas.or_else(|| (owner.kind == "Job").then(running))
        };
        owners.iter().filter_map(|owner| Some((owner.clone(), wanted(owner)?))).collect()
    }

    /// Resizes a pod in place, if its node has capacity. Returns the next step, and details of why it is
    /// held.
    async fn resize(
        &self,
        pod: &SizedPod,
        vpa: &Vpa,
        candidate: &UpdateCandidate,
        round: &mut Round<'_>,
    ) -> (UpdateStep, Option<String>) {
        let resized = self.resizer.resize(pod, &candidate.changes).await;
        if let Resized::Refused(error) | Resized::Unknown(error) = &resized {
            tracing::warn!(
                error, namespace = %pod.namespace, pod = %pod.name,
                "cannot resize a pod in place; if the request was forbidden, the ClusterRole of berth must allow: patch pods/resize"
            );
            self.metrics.update("resize_failed");
        }
        match resized {
            Resized::Asked => {
                tracing::info!(namespace = %pod.namespace, pod = %pod.name, vpa = %vpa.name, "resized a pod in place");
                self.metrics.update("resized");
                round.resized(candidate);
                let event = match candidate.ends_boost {
                    true => PodEvent::boost_ended(id(pod)),
                    false => PodEvent::resized(id(pod), &vpa.name),
                };
                self.resizer.writer.write_event(event).await;
                (UpdateStep::Resize, None)
            }
            Resized::Gone => {
                self.metrics.update("gone");
                (UpdateStep::Resize, None)
            }
            Resized::NotSeen => (UpdateStep::Hold(Hold::Resizing), None),
            Resized::NoRoom(why) => (round.without_room(candidate), Some(why)),
            Resized::Refused(why) => (round.refused(candidate), Some(why)),
            Resized::Unknown(why) => (UpdateStep::Hold(Hold::Resizing), Some(why)),
        }
    }

    async fn evict(
        &self,
        pod: &SizedPod,
        vpa: &Vpa,
        candidate: &UpdateCandidate,
        round: &mut Round<'_>,
    ) -> UpdateStep {
        match self.resizer.writer.evict(id(pod)).await {
            Evicted::Yes => {
                tracing::info!(namespace = %pod.namespace, pod = %pod.name, vpa = %vpa.name, "evicted a pod to apply its recommendation");
                self.metrics.update("evicted");
                let last = round.evicted(candidate);
                self.watches.pods.mark_deleting(pod);
                self.note_eviction(vpa, &last).await;
                self.resizer.writer.write_event(PodEvent::evicted(id(pod), &vpa.name)).await;
                UpdateStep::Evict
            }
            Evicted::Gone => {
                self.metrics.update("gone");
                UpdateStep::Evict
            }
            Evicted::Kept(why) => {
                tracing::info!(namespace = %pod.namespace, pod = %pod.name, why, "the API server refused an eviction");
                self.metrics.update("eviction_refused");
                round.eviction_refused();
                UpdateStep::Hold(Hold::DisruptionBudget)
            }
            Evicted::Failed(error) => {
                tracing::warn!(
                    error, namespace = %pod.namespace, pod = %pod.name,
                    "cannot evict a pod; if the request was forbidden, the ClusterRole of berth must allow: create pods/eviction"
                );
                self.metrics.update("eviction_failed");
                round.eviction_refused();
                UpdateStep::Hold(Hold::Refused)
            }
        }
    }

    /// Notes the eviction on the VPA, for the next leader.
    async fn note_eviction(&self, vpa: &Vpa, last: &LastEviction) {
        let text = serde_json::to_string(last).unwrap_or_default();
        let annotation = (LAST_EVICTION, &*text);
        match self.api.annotate((&vpa.namespace, &vpa.name), &vpa.uid, annotation).await {
            // Deleted or recreated: there is nothing to know of it any more.
            Ok(()) | Err(ApiError::NotFound(_) | ApiError::Conflict(_)) => {}
            Err(error) => tracing::warn!(
                %error, namespace = %vpa.namespace, vpa = %vpa.name,
                "cannot note an eviction on a VPA; if the request was forbidden, the ClusterRole of berth must allow: patch verticalpodautoscalers"
            ),
        }
    }

    /// Keeps the pod unchanged; writes an event if the reason is new.
    async fn hold(
        &self,
        pod: &SizedPod,
        vpa: &Vpa,
        (why, detail): (Hold, Option<String>),
        known: &mut UpdaterState,
        tally: &mut Tally,
    ) {
        *tally.held.entry(why.name()).or_default() += 1;
        let is_new = known.reported.get(&pod.uid) != Some(&why);
        if why.passes() || !is_new || tally.reported == TOLD_MAX {
            return;
        }
        tally.reported += 1;
        known.reported.insert(pod.uid.clone(), why);
        let text = detail.map_or_else(|| why.why().to_owned(), |detail| format!("{}: {detail}", why.why()));
        self.resizer.writer.write_event(PodEvent::held(id(pod), &vpa.name, &text)).await;
    }
}

fn id(pod: &SizedPod) -> PodId<'_> {
    PodId { namespace: &pod.namespace, name: &pod.name, uid: &pod.uid }
}
