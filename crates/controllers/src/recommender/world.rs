//! Existing objects: the VPAs of this recommender, the controllers of pods, and the pods of their targets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Recommender;
use berth_kube_io::vpa::{ApiError, TopOwner};
use berth_kube_io::{LivePod, VpasUnknown};
use berth_model::PerResource;
use berth_rightsizing::recommend::Vpa;
use berth_rightsizing::recommend::assign::controlling;
use berth_rightsizing::recommend::create::CreationRequests;
use berth_rightsizing::recommend::propose::Requests;
use berth_rightsizing::recommend::store::Workload;

/// Objects seen in one round.
#[derive(Default)]
pub(super) struct World {
    /// VPAs of this recommender.
    pub targets: Vec<Target>,
    /// VPAs of other recommenders.
    pub foreign: Vec<Vpa>,
    /// VPAs beyond the limit of their namespace.
    pub beyond: Vec<Arc<Vpa>>,
    /// Where VPAs are to be created; `None`: nowhere, or unknown.
    pub creation: Option<CreationRequests>,
    /// Pods of controlled workloads, for each namespace whose owners could be read.
    pub pods: BTreeMap<Arc<str>, PodsOf>,
}

/// The running pods of each workload that has any.
pub(super) type PodsOf = BTreeMap<Workload, Vec<Arc<LivePod>>>;

/// A VPA of this recommender.
pub(super) struct Target {
    pub vpa: Vpa,
    pub state: State,
}

pub(super) enum State {
    /// It controls this workload.
    Controls(Workload),
    /// Another VPA controls the workload, for this reason.
    Shadowed(String),
    Unsupported(String),
    /// The API server did not answer.
    Unknown,
}

impl Target {
    pub fn controls(&self) -> Option<&Workload> {
        match &self.state {
            State::Controls(workload) => Some(workload),
            _ => None,
        }
    }
}

impl World {
    /// Returns the running pods of a workload; `None` if the owners of pods in its namespace could not be read.
    pub fn pods_of(&self, workload: &Workload) -> Option<&[Arc<LivePod>]> {
        let pods = self.pods.get(&workload.namespace)?;
        Some(pods.get(workload).map_or(&[], Vec::as_slice))
    }

    /// Returns the containers of these pods with their highest requests.
    pub fn requests(&self, workload: &Workload) -> Requests {
        self.requests_of(workload, |_| true)
    }

    /// Returns the same of the pods that have started.
    pub fn requests_of_started(&self, workload: &Workload) -> Requests {
        self.requests_of(workload, |live| !live.pod.is_pending)
    }

    fn requests_of(&self, workload: &Workload, counts: impl Fn(&LivePod) -> bool) -> Requests {
        let mut requests = Requests::new();
        let pods = self.pods_of(workload).into_iter().flatten().filter(|live| counts(live));
        for container in pods.flat_map(|live| &live.pod.containers) {
            let now = container.requests();
            let most = requests.entry(container.name.clone()).or_default();
            *most = PerResource { cpu: most.cpu.max(now.cpu), memory: most.memory.max(now.memory) };
        }
        requests
    }
}

impl Recommender {
    pub(super) async fn look(&mut self) -> Result<World, VpasUnknown> {
        self.owners.next_round();
        let config = self.context.config.clone();
        let (all, mut beyond) = self.context.watches.vpas_and_beyond().await?;
        beyond.retain(|vpa| config.covers(&vpa.namespace));
        let covered = all.iter().filter(|vpa| config.covers(&vpa.namespace)).map(|vpa| Vpa::clone(vpa));
        let (ours, others): (Vec<Vpa>, Vec<Vpa>) = covered.partition(|vpa| vpa.is_of(&config.name));
        let controllers = controlling(&ours);
        let mut states = Vec::with_capacity(ours.len());
        for (index, vpa) in ours.iter().enumerate() {
            states.push(self.state(vpa, index, &controllers, &ours).await);
        }
        let targets: Vec<Target> =
            ours.into_iter().zip(states).map(|(vpa, state)| Target { vpa, state }).collect();
        let mut wanted: BTreeSet<Workload> = targets.iter().filter_map(Target::controls).cloned().collect();
        // Workloads whose VPA is currently unknown are still followed.
        wanted.extend(targets.iter().filter_map(|target| self.loaded.get(&target.vpa.uid)).cloned());
        let namespaces: BTreeSet<&Arc<str>> = wanted.iter().map(|workload| &workload.namespace).collect();
        let mut asked = self.opted_in_namespaces().await;
        let asking: BTreeSet<Arc<str>> = asked.iter().flat_map(|it| &it.namespaces).cloned().collect();
        self.context.watches.pods.listed().await;
        let mut pods = BTreeMap::new();
        for namespace in namespaces.into_iter().chain(&asking).collect::<BTreeSet<_>>() {
            let topic = format!("owners of pods in {namespace}");
            let asked = asked.as_mut().filter(|asked| asked.namespaces.contains(namespace));
            match self.owned_pods(namespace, &wanted, asked).await {
                Ok(owned) => {
                    self.complaints.record(&topic, &topic, Ok(()));
                    pods.insert(namespace.clone(), owned);
                }
                Err(error) => self.complaints.record(&topic, &topic, Err(error.to_string())),
            }
        }
        Ok(World { targets, foreign: others, beyond, creation: asked, pods })
    }

    async fn state(
        &mut self,
        vpa: &Vpa,
        index: usize,
        controllers: &BTreeMap<Workload, usize>,
        ours: &[Vpa],
    ) -> State {
        let (Some(target), Some(workload)) = (&vpa.target, vpa.workload()) else {
            return State::Unsupported("spec.targetRef has no kind or no name".to_owned());
        };
        let found = self.owners.top(&vpa.namespace, target).await;
        let topic = format!("the target of {}/{}", vpa.namespace, vpa.name);
        let read = found.as_ref().map(drop).map_err(ToString::to_string);
        self.complaints.record(&topic, &topic, read);
        let top = match found {
            Err(_) => return State::Unknown,
            Ok(TopOwner::Missing) => {
                return State::Unsupported(format!("there is no {} {}", target.kind, target.name));
            }
            Ok(TopOwner::Unsupported(why)) => return State::Unsupported(why),
            Ok(TopOwner::Top(top)) => top,
        };
        if top.workload(&vpa.namespace) != workload {
            return State::Unsupported(format!(
                "{} {} belongs to {} {}, which is what must be targeted",
                target.kind, target.name, top.kind, top.name
            ));
        }
        match controllers.get(&workload).map(|controller| (controller, &ours[*controller])) {
            Some((controller, _)) if *controller == index => State::Controls(workload),
            Some((_, other)) => State::Shadowed(format!(
                "{} {} is controlled by the older VPA {}",
                target.kind, target.name, other.name
            )),
            None => State::Unknown,
        }
    }

    /// Returns the pods of a namespace that belong to one of the workloads. Adds all workloads that have pods
    /// to `asked`.
    async fn owned_pods(
        &mut self,
        namespace: &Arc<str>,
        wanted: &BTreeSet<Workload>,
        mut asked: Option<&mut CreationRequests>,
    ) -> Result<PodsOf, ApiError> {
        let mut owned = PodsOf::new();
        let pods = self.context.watches.pods.of(namespace);
        for live in pods {
            let Some(owner) = &live.pod.owner else { continue };
            if let TopOwner::Top(top) = self.owners.top(namespace, owner).await? {
                let workload = top.workload(namespace);
                if let Some(asked) = &mut asked
                    && !asked.candidates.contains_key(&workload)
                    && let Some(candidate) = self.candidate(namespace, top)
                {
                    asked.candidates.insert(workload.clone(), candidate);
                }
                if wanted.contains(&workload) {
                    owned.entry(workload).or_default().push(live);
                }
            }
        }
        Ok(owned)
    }

    /// Drops workloads that no VPA of this recommender names any more, and deleted VPAs.
    pub(super) fn drop_deleted(&mut self, world: &World) {
        let named: BTreeSet<Workload> =
            world.targets.iter().filter_map(|target| target.vpa.workload()).collect();
        let gone: Vec<Workload> =
            self.store.workloads().filter(|workload| !named.contains(workload)).cloned().collect();
        for workload in gone {
            self.store.forget(&workload, |_| false);
        }
        self.dimensions.retain(|workload| named.contains(workload));
        let uids: BTreeSet<&str> = world.targets.iter().map(|target| target.vpa.uid.as_str()).collect();
        self.loaded.retain(|uid, _| uids.contains(uid.as_str()));
    }

    /// Applies the estimators of VPAs after their past has been loaded: the past arrives pod by pod, and
    /// other estimators need ascending times.
    pub(super) fn apply_methods(&mut self, world: &World) {
        for target in &world.targets {
            let Some(workload) = target.controls() else { continue };
            let vpa = &target.vpa;
            if self.loaded.get(&vpa.uid) != Some(workload) {
                continue;
            }
            let topic = format!("estimator of {}/{}", vpa.namespace, vpa.name);
            let (method, said) = match &vpa.estimator {
                None => (None, Ok(())),
                Some(Ok(method)) => (Some(*method), Ok(())),
                Some(Err(error)) => (None, Err(error.to_string())),
            };
            let what = format!("the annotation berth.dev/estimator of {}/{}", vpa.namespace, vpa.name);
            self.complaints.record(&topic, &what, said);
            let containers: Vec<_> = self.store.containers(workload).map(|(name, _)| name.clone()).collect();
            for container in containers {
                self.store.set_method(workload, &container, method);
            }
        }
    }

    /// Applies the windows and OOM settings of VPAs to containers that have or will have samples.
    pub(super) fn apply_rules(&mut self, world: &World) {
        let default = self.store.settings().memory_rules();
        let now = self.context.clock.now_ns();
        for target in &world.targets {
            let Some(workload) = target.controls() else { continue };
            for container in world.requests(workload).keys() {
                let rules = target.vpa.memory_rules(container, default);
                if rules.is_some() || self.store.aggregate(workload, container).is_some() {
                    self.store.set_rules(workload, container, rules, now);
                }
            }
        }
    }
}
