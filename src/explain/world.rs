//! A scheduler that is fed once and queried many times, also for hypothetical clusters.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::Which;
use super::change::NodeChange;
use berth_model::{Node, Peer, Pod};
use berth_scheduler::agent::{Agent, AgentConfig, CacheLimits};
use berth_scheduler::class::Class;
use berth_scheduler::dispatch::Estimator;
use berth_scheduler::gang::AllocationName;
use berth_scheduler::inventory::{Inventory, NodeId, Row};
use berth_scheduler::objects::ClusterObject;
use berth_scheduler::profile::Profiles;
use berth_scheduler::scheduler::{Scheduler, SchedulerConfig, Standings, Verdict};

/// Settings that affect the answers.
#[derive(Debug, Clone)]
pub struct ExplainSettings {
    pub scheduler_names: Vec<Arc<str>>,
    pub profiles: Arc<Profiles>,
}

/// See the module documentation.
#[derive(Debug)]
pub struct World {
    scheduler: Scheduler,
    agent: Agent,
    settings: ExplainSettings,
    /// Bound, nominated and pending pods, sorted by namespace and name.
    pods: Vec<Pod>,
    /// Indexes into `pods`.
    by_node: HashMap<Arc<str>, Vec<usize>>,
}

/// Memory limit for the lists of all queried classes.
const CACHE_BYTES: usize = 256 << 20;

impl World {
    pub fn new(
        settings: ExplainSettings,
        objects: Vec<ClusterObject>,
        nodes: Vec<Node>,
        pods: Vec<Pod>,
    ) -> Self {
        let config = SchedulerConfig {
            scheduler_names: settings.scheduler_names.clone(),
            profiles: settings.profiles.clone(),
            advice: true,
            preemption: true,
            // Each pod is judged by itself.
            max_waiting_classes: usize::MAX,
            ..SchedulerConfig::default()
        };
        let mut scheduler = Scheduler::new(config, Estimator::default());
        let agent = Agent::new(AgentConfig {
            cache: CacheLimits { bytes: CACHE_BYTES, ..CacheLimits::unlimited() },
            seed: 1,
        });
        // Pods last: their classes depend on the other objects.
        objects.into_iter().for_each(|object| scheduler.apply_object(object));
        for node in nodes {
            scheduler.apply_node(node);
        }
        let mut pods: Vec<Pod> = pods.into_iter().filter(|pod| !pod.finished).collect();
        pods.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        let mut by_node: HashMap<Arc<str>, Vec<usize>> = HashMap::new();
        for (at, pod) in pods.iter().enumerate() {
            if let Some(node) = &pod.node_name {
                by_node.entry(node.clone()).or_default().push(at);
            }
            scheduler.apply_pod(pod.clone(), Duration::ZERO);
        }
        scheduler.take_actions();
        World { scheduler, agent, settings, pods, by_node }
    }

    /// Returns the selected pods, sorted by namespace and name.
    pub fn select(&self, which: &Which) -> Vec<Pod> {
        let asked = |pod: &&Pod| match which {
            Which::Waiting => {
                pod.node_name.is_none()
                    && !pod.deleting
                    && self.settings.scheduler_names.contains(&pod.scheduler_name)
            }
            Which::AllPending => pod.node_name.is_none(),
            Which::Named { namespace, name } => *pod.namespace == **namespace && *pod.name == **name,
        };
        self.pods.iter().filter(asked).cloned().collect()
    }

    /// Returns the violated invariants of the scheduler and its ledger; empty if there are none.
    pub fn check(&self) -> Vec<String> {
        let violations = self.scheduler.check().into_iter().map(|violation| violation.to_string());
        let discrepancies = self.scheduler.ledger().consistency_check();
        violations.chain(discrepancies.into_iter().map(|discrepancy| format!("{discrepancy:?}"))).collect()
    }

    pub fn nodes(&self) -> usize {
        self.inventory().node_count()
    }

    pub fn class_of(&mut self, pod: &Pod) -> Arc<Class> {
        self.scheduler.class_of(pod)
    }

    /// Returns the allocation that the waiting pod belongs to.
    pub(super) fn gang_of(&self, pod: &Pod) -> Option<AllocationName> {
        self.scheduler.gang_of_waiting(&pod.uid)
    }

    pub fn verdict(&mut self, pod: &Pod) -> Verdict {
        self.scheduler.verdict(&mut self.agent, pod)
    }

    /// See [`Scheduler::standings`].
    pub(super) fn evaluate(&mut self, pod: &Pod) -> (Arc<Class>, Standings) {
        self.scheduler.standings(&mut self.agent, pod)
    }

    /// Runs `question` while `pod` uses no resources.
    pub(super) fn without<T>(&mut self, pod: &Pod, question: impl FnOnce(&mut World) -> T) -> T {
        if !holds(pod) {
            return question(self);
        }
        self.scheduler.delete_pod(&pod.uid);
        let answer = question(self);
        self.scheduler.apply_pod(pod.clone(), Duration::ZERO);
        self.scheduler.take_actions();
        answer
    }

    /// Recomputes the classes of waiting pods now that all objects are known.
    pub(super) fn settle(&mut self) {
        self.scheduler.tick(Duration::ZERO);
        self.scheduler.take_actions();
    }

    /// Lets the scheduler place waiting pods: everything is known, and nobody else does.
    pub(crate) fn lead(&mut self) {
        self.settle();
        let nodes = self.node_names().into_iter().collect();
        self.scheduler.retain_nodes(&nodes);
        let pods = self.pods.iter().map(|pod| pod.uid.clone()).collect();
        self.scheduler.finish_pod_list(&pods);
        self.scheduler.lead(1);
        self.scheduler.take_actions();
    }

    /// Returns the scheduler name of pods that are tried out.
    pub(crate) fn scheduler_name(&self) -> Arc<str> {
        self.settings.scheduler_names.first().cloned().unwrap_or_else(|| "berth".into())
    }

    /// Returns the names of all nodes, sorted.
    pub(crate) fn node_names(&self) -> Vec<Arc<str>> {
        let mut names: Vec<_> = self.inventory().nodes().map(|node| node.name.clone()).collect();
        names.sort();
        names
    }

    pub(crate) fn parts(&mut self) -> (&mut Scheduler, &mut Agent) {
        (&mut self.scheduler, &mut self.agent)
    }

    /// Returns whether berth handles pods with this scheduler name.
    pub(super) fn schedules(&self, scheduler: &Arc<str>) -> bool {
        self.settings.scheduler_names.contains(scheduler)
    }

    pub(crate) fn inventory(&self) -> &Inventory {
        self.scheduler.inventory()
    }

    pub(super) fn row(&self, id: NodeId) -> &Row {
        self.inventory().row(id)
    }

    /// Returns the node's pods in the original state.
    pub(super) fn pods_on(&self, node: &str) -> impl Iterator<Item = (usize, &Pod)> {
        self.by_node.get(node).into_iter().flatten().map(|at| (*at, &self.pods[*at]))
    }

    /// Returns all bound pods in the original state.
    pub(crate) fn bound(&self) -> impl Iterator<Item = (usize, &Pod)> {
        self.pods.iter().enumerate().filter(|(_, pod)| pod.node_name.is_some())
    }

    /// Returns the pod as other pods' affinity rules see it, if it is still on its node.
    pub(super) fn peer(&self, pod: &Pod) -> Option<&Peer> {
        self.scheduler.ledger().charge_of(&pod.uid).map(|charge| &*charge.holding.peer)
    }

    /// Applies a change to the cluster, if it is one; [`World::undo`] reverts it.
    pub(super) fn apply(&mut self, change: &NodeChange, undo: &mut Undo) {
        if let NodeChange::Remove(removed) = change {
            let uid = self.pods[removed.pod].uid.clone();
            self.scheduler.delete_pod(&uid);
            undo.pods.push(removed.pod);
        } else if let Some(name) = change.node() {
            let found = self.inventory().find(name).and_then(|id| self.row(id).node.clone());
            let Some(before) = found else {
                return;
            };
            let mut after = Node::clone(&before);
            change.apply_to_node(&mut after);
            self.scheduler.apply_node(after);
            undo.nodes.push(before);
        }
        self.scheduler.take_actions();
    }

    pub(super) fn undo(&mut self, undo: Undo) {
        for node in undo.nodes.into_iter().rev() {
            self.scheduler.apply_node(Node::clone(&node));
        }
        for at in undo.pods {
            self.scheduler.apply_pod(self.pods[at].clone(), Duration::ZERO);
        }
        self.scheduler.take_actions();
    }
}

/// Returns whether the pod is bound, or nominated to a node.
pub(super) fn holds(pod: &Pod) -> bool {
    pod.node_name.is_some() || pod.nominated_node.is_some()
}

/// State before some changes.
#[derive(Debug, Default)]
pub(super) struct Undo {
    nodes: Vec<Arc<Node>>,
    pods: Vec<usize>,
}
