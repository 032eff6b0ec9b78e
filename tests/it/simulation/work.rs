//! Work under the engine's lock: no operation visits more pods, rows, charges and classes than its bound, however many there
//! are.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_model::{Amounts, Identity, LabelSelector, Labels, Node, Peer, Pod, PodSpec, Usage};
use berth_scheduler::agent::{Agent, AgentConfig, CacheLimits};
use berth_scheduler::dispatch::Estimator;
use berth_scheduler::engine::Operation;
use berth_scheduler::inventory::NodeId;
use berth_scheduler::objects::{ClusterObject, ObjectKind, ObjectName};
use berth_scheduler::placement::{BindOutcome, Binding};
use berth_scheduler::policy::SelectedNamespaces;
use berth_scheduler::quota::{Limits, Quota, Reclaim, Scope};
use berth_scheduler::scheduler::{Action, Requester, Scheduler, SchedulerConfig, Settled, Task};

use super::gangs::allocation;
use super::sim::S;

/// More than any bounded operation may visit.
const MANY: usize = 5_000;
const FEW: usize = 20;

/// A cluster in which every collection but some is large.
struct Crowd {
    scheduler: Scheduler,
    agent: Agent,
    task: Option<Task>,
    now: Duration,
    binds: Vec<Binding>,
    /// The last object that was changed.
    object: String,
    /// Largest number of visits by operation.
    worst: BTreeMap<&'static str, u64>,
    exceeded: Vec<String>,
}

fn node(at: usize) -> Node {
    let labels: Labels = [("host", &*format!("n{at}"))].into_iter().collect();
    let allocatable = Amounts { cpu_milli: 1000, memory: 1 << 30, ephemeral_storage: 0, pods: 10 };
    Node { name: format!("n{at}").into(), labels, allocatable, ..Node::default() }
}

/// `class`: pods of another one fit on other nodes.
fn pod(uid: &str, cpu_milli: i64, class: usize) -> Pod {
    let requests = Amounts { cpu_milli, pods: 1, ..Amounts::default() };
    let usage = Arc::new(Usage { requests, nonzero_cpu_milli: cpu_milli, ..Usage::default() });
    let identity = Identity { namespace: "ns".into(), ..Identity::default() };
    let node_selector = [("class", &*format!("c{class}"))].into_iter().filter(|_| class > 0).collect();
    let spec = PodSpec { usage: usage.clone(), node_selector, ..PodSpec::default() };
    Pod {
        uid: uid.into(),
        namespace: "ns".into(),
        name: uid.into(),
        scheduler_name: "berth".into(),
        peer: Arc::new(Peer { identity, ..Peer::default() }),
        usage,
        spec: Ok(spec.into()),
        ..Pod::default()
    }
}

fn namespace(team: &str) -> ClusterObject {
    ClusterObject::Namespace { name: "ns".into(), labels: [("team", team)].into_iter().collect() }
}

/// Objects each of which concerns all pods, and a namespace without any.
fn objects() -> impl Iterator<Item = ClusterObject> {
    let all = |kind, name: &str| ClusterObject::Selecting {
        kind,
        name: ObjectName { namespace: "ns".into(), name: name.into() },
        selector: LabelSelector::All(Box::default()),
    };
    let quota = Quota {
        name: "q".into(),
        uid: "q".into(),
        generation: 1,
        created: 1,
        scope: Scope { queue: None, namespaces: SelectedNamespaces::Named(["ns".into()].into()) },
        reclaim: Reclaim::Never,
        limits: Ok(Limits::default()),
    };
    [
        namespace("b"),
        ClusterObject::Namespace { name: "empty".into(), labels: Labels::default() },
        all(ObjectKind::ReplicaSet, "set"),
        all(ObjectKind::Service, "service"),
        ClusterObject::Quota(Box::new(quota)),
        allocation("ns", "gang", LabelSelector::All(Box::default()), 2),
    ]
    .into_iter()
}

impl Crowd {
    /// Full nodes with a pod each, and waiting pods of as many classes that fit nowhere.
    fn new(nodes: usize, placed: usize, waiting: usize, classes: usize) -> Self {
        Crowd::limited(nodes, placed, (waiting, classes), usize::MAX)
    }

    /// Returns the same; of the waiting classes, as many take part at once.
    fn limited(
        nodes: usize,
        placed: usize,
        (waiting, classes): (usize, usize),
        max_waiting_classes: usize,
    ) -> Self {
        let config = SchedulerConfig {
            preemption: true,
            reserve_after: 5 * S,
            objects: [ObjectKind::Namespace].into(),
            max_waiting_classes,
            ..SchedulerConfig::default()
        };
        let mut scheduler = Scheduler::new(config, Estimator::default());
        scheduler.apply_object(namespace("a"));
        scheduler.retain_objects(
            ObjectKind::Namespace,
            &[super::objects::global(ObjectKind::Namespace, "ns").1].into(),
        );
        for at in 0..nodes {
            scheduler.apply_node(node(at));
        }
        scheduler.retain_nodes(&(0..nodes).map(|at| node(at).name).collect());
        for at in 0..placed {
            let host = Some(format!("n{}", at % nodes).into());
            let charged = pod(&format!("placed-{at}"), (1000 * nodes / placed.max(1)).min(1000) as i64, 0);
            scheduler.apply_pod(Pod { node_name: host, ..charged }, Duration::ZERO);
        }
        for at in 0..waiting {
            scheduler.apply_pod(pod(&format!("waiting-{at}"), 500, 1 + at % classes), Duration::ZERO);
        }
        let uids = (0..placed).map(|at| format!("placed-{at}").into());
        scheduler.retain_pods(&uids.chain((0..waiting).map(|at| format!("waiting-{at}").into())).collect());
        scheduler.set_leading(true);
        let cache = CacheLimits { slots: 64, ..CacheLimits::unlimited() };
        let agent = Agent::new(AgentConfig { cache, seed: 1 });
        let mut crowd = Crowd {
            scheduler,
            agent,
            task: None,
            now: Duration::ZERO,
            binds: Vec::new(),
            object: "nothing".into(),
            worst: BTreeMap::new(),
            exceeded: Vec::new(),
        };
        crowd.carry_out();
        crowd
    }

    /// Carries out one operation and compares its work with the bound.
    fn measure<R>(
        &mut self,
        operation: Operation,
        what: &str,
        body: impl FnOnce(&mut Scheduler, &mut Agent, Duration) -> R,
    ) -> R {
        let before = self.scheduler.visits();
        let result = body(&mut self.scheduler, &mut self.agent, self.now);
        self.carry_out();
        let visits = self.scheduler.visits() - before;
        let worst = self.worst.entry(operation.name()).or_default();
        *worst = visits.max(*worst);
        if operation.visits_max().is_some_and(|most| visits > most) {
            self.exceeded.push(format!("{what} visited {visits}, after {}", self.object));
        }
        result
    }

    fn carry_out(&mut self) {
        for action in self.scheduler.take_actions() {
            if let Action::Bind(binding) = action {
                self.binds.push(binding);
            }
        }
    }

    /// Lets the agent work, at most so many steps.
    fn work(&mut self, steps: usize) {
        for _ in 0..steps {
            let Some(task) = self.task.take() else {
                self.task = self.measure(Operation::Task, "the first task", |scheduler, _, now| {
                    scheduler.next_task(0, now)
                });
                self.agent.catch_up(self.scheduler.inventory());
                if self.task.is_none() {
                    return;
                }
                continue;
            };
            let answer = task.carry_out(&mut self.agent, self.now, |_| {});
            let (seen, what) = (self.agent.revision(), format!("after {task:?}: settling and the next task"));
            let what: String = what.chars().take(120).collect();
            let (settled, next) = self.measure(Operation::Task, &what, |scheduler, agent, now| {
                let settled = scheduler.settle(0, agent, &task, answer, seen, now);
                let next = (settled == Settled::Done).then(|| scheduler.next_task(0, now)).flatten();
                agent.catch_up(scheduler.inventory());
                (settled, next)
            });
            self.task = if settled == Settled::Again { Some(task) } else { next };
        }
    }

    fn ticks(&mut self, n: u32, apart: Duration) {
        for _ in 0..n {
            self.now += apart;
            self.measure(Operation::Tick, "a tick", |scheduler, _, now| scheduler.tick(now));
            self.work(20);
        }
    }

    /// What happens all the time.
    fn live(&mut self, objects: impl Iterator<Item = ClusterObject>) {
        self.work(3 * FEW);
        self.ticks(20, S);
        for object in objects {
            self.object = format!("{object:?}").chars().take(40).collect();
            self.measure(Operation::ObjectEvent, "an object", |scheduler, _, _| {
                scheduler.apply_object(object)
            });
            self.ticks(30, S / 10);
        }
        let mut next = Some(NodeId(0));
        while let Some(node) = next {
            let heal = |scheduler: &mut Scheduler, _: &mut Agent, _| scheduler.heal_from(node);
            let (wrong, more) = self.measure(Operation::SelfCheck, "a slice of the self-check", heal);
            assert!(wrong.is_empty(), "{wrong:?}");
            next = more;
        }
        for at in 0..FEW {
            let uid: Arc<str> = format!("placed-{at}").into();
            self.measure(Operation::PodEvent, "a deleted pod", |scheduler, _, _| scheduler.delete_pod(&uid));
            self.work(10);
            self.measure(Operation::PodEvent, "a new pod", |scheduler, _, now| {
                scheduler.apply_pod(pod(&format!("new-{at}"), 100, 0), now);
            });
            self.work(10);
            self.measure(Operation::NodeEvent, "a changed node", |scheduler, _, _| {
                let changed = node(at);
                scheduler.apply_node(Node { unschedulable: true, ..changed });
            });
            for binding in std::mem::take(&mut self.binds) {
                self.measure(Operation::Bind, "a bind", |scheduler, _, now| {
                    scheduler.bind_finished(&binding, BindOutcome::Bound, now);
                });
            }
            let foreign = Binding {
                uid: format!("waiting-{at}").into(),
                namespace: "ns".into(),
                name: format!("waiting-{at}").into(),
                node: node(FEW).name,
                decision: None,
            };
            self.measure(Operation::Review, "a review", |scheduler, _, now| {
                scheduler.review(&foreign, None, Some(now + S), Requester::Other)
            });
            self.ticks(2, S / 10);
        }
    }

    fn judge(&self) {
        println!("visits at most: {:?}", self.worst);
        assert!(self.exceeded.is_empty(), "{:#?}", &self.exceeded[..self.exceeded.len().min(20)]);
    }
}

#[test]
fn no_operation_visits_more_than_its_bound_however_many_pods_and_nodes_there_are() {
    let mut crowd = Crowd::new(MANY, 2 * MANY, 2 * MANY, FEW);
    crowd.live(objects());
    crowd.judge();
}

#[test]
fn no_operation_visits_more_than_its_bound_however_many_classes_are_parked() {
    let mut crowd = Crowd::new(FEW + 1, FEW, 2 * MANY, 2 * MANY);
    while crowd.task.is_some() || crowd.scheduler.queue_lengths().active > 0 {
        crowd.work(MANY);
    }
    assert!(crowd.scheduler.parked_classes() > MANY);
    crowd.live(objects());
    crowd.judge();
}

#[test]
fn no_operation_visits_more_than_its_bound_however_many_pods_are_held_back() {
    let mut crowd = Crowd::limited(FEW + 1, FEW, (2 * MANY, 2 * MANY), FEW);
    // Not the allocation, whose members are held back by no limit.
    crowd.live(objects().filter(|object| !matches!(object, ClusterObject::Allocation(_))));
    assert!(crowd.scheduler.parked_classes() <= FEW);
    assert!(crowd.scheduler.held_back() > MANY);
    crowd.judge();
}
