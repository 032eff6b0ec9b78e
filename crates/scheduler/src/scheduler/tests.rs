mod aging;
mod between_pods;
mod claims;
mod contention;
mod crowds;
mod decisions;
mod devices;
mod dispatch;
mod foreign_binds;
mod gang_preemption;
mod gangs;
mod growth;
mod hints;
mod policies;
mod precedence;
mod preemption;
mod quotas;
mod read_back;
mod shares;
mod slices;

use super::*;

use std::collections::HashSet;

use crate::agent::{Agent, AgentConfig, CacheLimits};
use crate::objects::{ClusterObject, DisruptionBudget, ObjectKind, ObjectName, system_defaults};
use crate::placement::{BindOutcome, Binding};
use crate::profile::{Profile, Profiles};
use crate::testing::pod;
use berth_model::{
    Amounts, Identity, LabelSelector, Node, Operator, Peer, Pod, PodOwner, PodSpec, PreemptionPolicy,
    Requirement, ScheduledCondition, SpecError, Toleration, TolerationOperator, Unsupported, Usage,
};

const S: Duration = Duration::from_secs(1);

/// A scheduler with agents, and all its actions so far.
struct Bench {
    scheduler: Scheduler,
    agents: Vec<Agent>,
    now: Duration,
    binds: Vec<Binding>,
    releases: Vec<berth_devices::ClaimRelease>,
    orders: Vec<crate::placement::ClaimOrder>,
    evictions: Vec<Eviction>,
    /// Uid and node.
    nominations: Vec<(String, Option<String>)>,
    /// Uid, reason, message, event.
    told: Vec<(String, &'static str, String, bool)>,
    scheduled: Vec<String>,
    statuses: Vec<crate::gang::GangStatus>,
    quotas: Vec<crate::quota::QuotaReport>,
    woken: HashSet<usize>,
    /// Number of choices by agents.
    choices: usize,
}

impl Bench {
    /// Synced and leading, with nodes of 1000 milli-CPU.
    fn new(agents: usize, nodes: &[&str]) -> Self {
        let mut bench = Bench::silent(agents);
        for name in nodes {
            bench.scheduler.apply_node(node(name, 1000));
        }
        let names = nodes.iter().map(|name| Arc::from(*name)).collect();
        bench.scheduler.retain_nodes(&names);
        bench.scheduler.retain_pods(&HashSet::new());
        bench.scheduler.set_leading(true);
        bench
    }

    /// Returns a bench without nodes, pods or leadership.
    fn silent(agents: usize) -> Self {
        let config =
            SchedulerConfig { agents, max_tries: 3, remembered_decisions: 100, ..SchedulerConfig::default() };
        let agent =
            |seed: usize| Agent::new(AgentConfig { cache: CacheLimits::unlimited(), seed: seed as u64 });
        Bench {
            scheduler: Scheduler::new(config, Estimator::default()),
            agents: (0..agents).map(agent).collect(),
            now: Duration::ZERO,
            binds: Vec::new(),
            orders: Vec::new(),
            releases: Vec::new(),
            evictions: Vec::new(),
            nominations: Vec::new(),
            told: Vec::new(),
            scheduled: Vec::new(),
            statuses: Vec::new(),
            quotas: Vec::new(),
            woken: HashSet::new(),
            choices: 0,
        }
    }

    fn apply(&mut self, pod: Pod) {
        self.scheduler.apply_pod(pod, self.now);
        self.collect();
    }

    fn collect(&mut self) {
        for action in self.scheduler.take_actions() {
            match action {
                Action::Bind(binding) => self.binds.push(binding),
                Action::Claim(order) => self.orders.push(order),
                Action::ReleaseClaim(release) => self.releases.push(release),
                Action::Report(PodReport::Scheduled { pod, .. }) => self.scheduled.push(pod.uid.to_string()),
                Action::Report(PodReport::Failed { pod, reason, message, event, .. }) => {
                    self.told.push((pod.uid.to_string(), reason, message.to_string(), event))
                }
                Action::Report(PodReport::Preempted { .. }) => {}
                Action::Evict(eviction) => self.evictions.push(*eviction),
                Action::Nominate { pod, node } => {
                    self.nominations.push((pod.uid.to_string(), node.map(|node| node.to_string())));
                }
                Action::WakeAgent(agent) => {
                    self.woken.insert(agent);
                }
                Action::TellAllocation(status) => self.statuses.push(*status),
                Action::Observe(_) | Action::TellPolicy(_) => {}
                Action::TellQuota(status) => self.quotas.push(*status),
            }
        }
        assert_eq!(self.scheduler.check(), []);
    }

    /// Returns the next task of an agent after it caught up.
    fn take(&mut self, agent: usize) -> Option<Task> {
        let task = self.scheduler.next_task(agent, self.now);
        self.agents[agent].catch_up(self.scheduler.inventory());
        self.collect();
        task
    }

    fn choose(&mut self, agent: usize, task: &Task) -> (TaskResult, Revision) {
        self.choices += 1;
        let agent = &mut self.agents[agent];
        let answer = task.carry_out(agent, self.now, |_| {});
        (answer, agent.revision())
    }

    fn settle(&mut self, agent: usize, task: &Task, (answer, seen): (TaskResult, Revision)) -> Settled {
        let settled = self.scheduler.settle(agent, &mut self.agents[agent], task, answer, seen, self.now);
        self.collect();
        settled
    }

    /// Lets woken agents work until there are no tasks.
    fn work(&mut self) {
        self.collect();
        while let Some(agent) = self.woken.iter().min().copied() {
            self.woken.remove(&agent);
            while let Some(task) = self.take(agent) {
                loop {
                    let answer = self.choose(agent, &task);
                    if self.settle(agent, &task, answer) == Settled::Done {
                        break;
                    }
                    self.agents[agent].catch_up(self.scheduler.inventory());
                }
            }
        }
    }

    fn finish(&mut self, binding: &Binding, outcome: BindOutcome) {
        self.scheduler.bind_finished(binding, outcome, self.now);
        self.collect();
    }

    fn tick(&mut self, at: Duration) {
        self.now = at;
        self.scheduler.tick(at);
        self.collect();
    }

    /// Returns the pods bound so far, in order.
    fn bound(&self) -> Vec<&str> {
        self.binds.iter().map(|binding| &*binding.uid).collect()
    }

    /// Returns the number of pods in this state.
    fn in_state(&self, state: &str) -> usize {
        self.scheduler.census().get(state).copied().unwrap_or(0)
    }

    fn cpu_taken(&self, node: &str) -> i64 {
        let inventory = self.scheduler.inventory();
        inventory.find(node).map_or(0, |id| inventory.row(id).requested.cpu_milli)
    }
}

fn node(name: &str, cpu_milli: i64) -> Node {
    Node {
        name: name.into(),
        allocatable: Amounts { cpu_milli, memory: 1 << 30, ephemeral_storage: 0, pods: 20_000 },
        ..Node::default()
    }
}

/// Returns a budget that allows so many disruptions of pods with the label `app`.
fn budget(allowed: i32) -> ClusterObject {
    let requirement = Requirement { key: "app".into(), operator: Operator::Exists };
    ClusterObject::DisruptionBudget(DisruptionBudget {
        name: ObjectName { namespace: "ns".into(), name: "budget".into() },
        selector: LabelSelector::All([requirement].into()),
        allowed,
        disrupted: Default::default(),
    })
}

/// Returns the condition of a pod that fits nowhere.
fn unschedulable(message: &str) -> ScheduledCondition {
    ScheduledCondition { status: false, reason: UNSCHEDULABLE.into(), message: message.into() }
}

fn on(node: &str, pod: Pod) -> Pod {
    Pod { node_name: Some(node.into()), ..pod }
}

#[test]
fn without_leadership_there_is_no_task_and_with_it_agents_wake() {
    let mut bench = Bench::new(2, &["n"]);
    bench.scheduler.set_leading(false);
    bench.apply(pod("a", 100));
    bench.work();
    assert!(bench.bound().is_empty());
    bench.scheduler.set_leading(true);
    bench.work();
    assert_eq!(bench.bound(), ["a"]);
}

#[test]
fn what_an_agent_chose_before_leadership_was_lost_is_not_bound_after_it() {
    let mut bench = Bench::new(1, &["n"]);
    bench.apply(pod("a", 100));
    let task = bench.take(0).unwrap();
    let answer = bench.choose(0, &task);
    bench.scheduler.set_leading(false);
    assert_eq!(bench.settle(0, &task, answer), Settled::Done);
    assert_eq!((bench.binds.len(), bench.cpu_taken("n")), (0, 0));
    bench.scheduler.set_leading(true);
    bench.work();
    assert_eq!(bench.bound(), ["a"]);
}

#[test]
fn a_new_leader_places_pods_that_nobody_has_tried_before_those_that_fitted_nowhere() {
    let mut bench = Bench::new(1, &["n"]);
    bench.scheduler.set_leading(false);
    let condition = unschedulable("0/1 nodes are available: 1 Insufficient cpu.");
    for at in 0..3 {
        let hopeless = pod(&format!("hopeless-{at}"), 90_000 + at);
        bench.apply(hopeless.clone());
        // The leader reports while this process already knows the pod.
        bench.apply(Pod { scheduled: Some(condition.clone()), ..hopeless });
    }
    bench.apply(pod("new", 100));
    bench.scheduler.set_leading(true);
    let task = bench.take(0).expect("a task");
    assert!(matches!(&task, Task::Place { request, .. } if *request.uid == *"new"), "{task:?}");
    let answer = bench.choose(0, &task);
    bench.settle(0, &task, answer);
    bench.work();
    assert_eq!((bench.bound(), bench.in_state("parked")), (vec!["new"], 3));
}

#[test]
fn a_standby_writes_no_conditions_and_a_new_leader_writes_missing_ones() {
    let mut bench = Bench::new(1, &["n"]);
    bench.scheduler.set_leading(false);
    let unreadable = |uid: &str| Pod {
        spec: Err(SpecError { field: "spec.x".into(), problem: "is odd".into() }),
        ..pod(uid, 0)
    };
    bench.apply(unreadable("a"));
    bench.apply(unreadable("b"));
    assert!(bench.told.is_empty());
    // The previous leader wrote one condition; this process sees it.
    bench.apply(Pod {
        scheduled: Some(ScheduledCondition {
            status: false,
            reason: "SchedulerError".into(),
            message: "the pod's spec is invalid: spec.x: is odd".into(),
        }),
        ..unreadable("a")
    });
    bench.scheduler.set_leading(true);
    bench.work();
    let told: Vec<_> = bench.told.iter().map(|(uid, ..)| &**uid).collect();
    assert_eq!(told, ["b"]);
}

#[test]
fn what_changes_while_a_bind_is_under_way_counts_once_the_bind_is_refused() {
    let mut bench = Bench::new(1, &["n"]);
    for uid in ["deleted", "gated"] {
        bench.apply(pod(uid, 100));
    }
    bench.work();
    bench.apply(Pod { deleting: true, ..pod("deleted", 100) });
    bench.apply(Pod { gates: ["wait".into()].into(), ..pod("gated", 100) });
    for binding in bench.binds.clone() {
        bench.finish(&binding, BindOutcome::Refused("no".into()));
    }
    bench.tick(20 * S);
    bench.work();
    assert_eq!((bench.binds.len(), bench.in_state("gated")), (2, 1));
    assert_eq!(bench.scheduler.census().len(), 1);
}

#[test]
fn ten_thousand_unschedulable_pods_of_one_class_cost_one_evaluation() {
    let mut bench = Bench::new(1, &["n"]);
    for at in 0..10_000 {
        bench.scheduler.apply_pod(pod(&format!("p{at}"), 5000), bench.now);
    }
    bench.work();
    assert_eq!(bench.choices, 1);
    assert_eq!((bench.in_state("parked"), bench.told.len()), (10_000, 10_000));
    let (_, reason, message, event) = &bench.told[9_999];
    assert_eq!((*reason, *event), ("Unschedulable", true));
    assert_eq!(
        message,
        "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: \
         0/1 nodes are available: 1 Preemption is not helpful for scheduling."
    );
}

#[test]
fn parked_pods_wake_when_a_node_is_added_as_many_as_fit_and_most_important_first() {
    let mut bench = Bench::new(2, &["n"]);
    for (uid, priority) in [("low", 0), ("high", 9), ("middle", 5)] {
        let pod = pod(uid, 1500);
        bench.apply(Pod { priority, ..pod });
    }
    bench.work();
    let before = bench.choices;
    bench.work();
    assert_eq!((bench.choices, bench.binds.len()), (before, 0), "nothing changed");
    bench.scheduler.apply_node(node("big", 3200));
    bench.work();
    assert_eq!(bench.bound(), ["high", "middle"]);
    assert_eq!(bench.in_state("parked"), 1);
}

#[test]
fn pods_of_higher_priority_are_placed_first_and_of_one_priority_in_order_of_arrival() {
    let mut bench = Bench::new(1, &["n"]);
    for (uid, priority) in [("a", 0), ("b", 5), ("c", 0), ("d", 5)] {
        bench.apply(Pod { priority, ..pod(uid, 100) });
    }
    bench.work();
    assert_eq!(bench.bound(), ["b", "d", "a", "c"]);
}

#[test]
fn a_gated_pod_is_placed_once_its_gates_are_gone() {
    let mut bench = Bench::new(1, &["n"]);
    bench.apply(Pod { gates: ["wait".into()].into(), ..pod("a", 100) });
    bench.work();
    assert_eq!((bench.choices, bench.in_state("gated"), bench.scheduler.queue_lengths().gated), (0, 1, 1));
    bench.apply(pod("a", 100));
    bench.work();
    assert_eq!(bench.bound(), ["a"]);
}

#[test]
fn a_cordoned_node_takes_only_pods_that_tolerate_it() {
    let mut bench = Bench::new(1, &["n"]);
    bench.scheduler.apply_node(Node { unschedulable: true, ..node("n", 1000) });
    let key = "node.kubernetes.io/unschedulable".into();
    let cordon = Toleration { key, operator: TolerationOperator::Exists, value: "".into(), effect: None };
    let tolerant = pod("tolerant", 100);
    let spec = PodSpec { tolerations: [cordon].into(), ..PodSpec::clone(tolerant.spec.as_ref().unwrap()) };
    bench.apply(pod("plain", 100));
    bench.apply(Pod { spec: Ok(Arc::new(spec)), ..tolerant });
    bench.work();
    assert_eq!((bench.bound(), bench.in_state("parked")), (vec!["tolerant"], 1));
}

#[test]
fn a_node_that_lost_its_label_after_it_was_chosen_is_not_taken() {
    let in_zone = |zone| Node { labels: [("zone", zone)].into_iter().collect(), ..node("n", 1000) };
    let mut bench = Bench::new(1, &["n"]);
    bench.scheduler.apply_node(in_zone("a"));
    let plain = pod("p", 100);
    let node_selector = [("zone", "a")].into_iter().collect();
    let spec = PodSpec { node_selector, ..PodSpec::clone(plain.spec.as_ref().unwrap()) };
    bench.apply(Pod { spec: Ok(Arc::new(spec)), ..plain });
    let task = bench.take(0).expect("it is tried");
    let answer = bench.choose(0, &task);
    bench.scheduler.apply_node(in_zone("b"));
    assert_eq!(bench.settle(0, &task, answer), Settled::Again);
    assert!(bench.binds.is_empty());
}

#[test]
fn a_pod_that_another_scheduler_binds_is_let_go_wherever_it_is() {
    // Queued.
    let mut bench = Bench::new(1, &["n", "other"]);
    bench.apply(pod("a", 100));
    bench.apply(on("other", pod("a", 100)));
    bench.work();
    assert_eq!((bench.choices, bench.cpu_taken("other")), (0, 100));
    // Placing.
    bench.apply(pod("b", 100));
    let task = bench.take(0).unwrap();
    let answer = bench.choose(0, &task);
    bench.apply(on("other", pod("b", 100)));
    assert_eq!(bench.settle(0, &task, answer), Settled::Done);
    assert_eq!((bench.cpu_taken("n"), bench.cpu_taken("other")), (0, 200));
    // Binding: its charge moves, and the result of our bind changes nothing.
    bench.apply(pod("c", 100));
    bench.work();
    let ours = bench.binds[0].clone();
    assert_eq!(&*ours.node, "n");
    bench.apply(on("other", pod("c", 100)));
    assert_eq!((bench.cpu_taken("n"), bench.cpu_taken("other")), (0, 300));
    bench.finish(&ours, BindOutcome::BoundElsewhere("other".into()));
    assert_eq!((bench.cpu_taken("n"), bench.cpu_taken("other")), (0, 300));
    assert!(bench.scheduler.census().is_empty() && bench.scheduled.is_empty());
}

#[test]
fn a_deleted_pod_leaves_nothing_behind_wherever_it_was() {
    let deleted = |bench: &mut Bench, uid: &str| {
        bench.scheduler.delete_pod(&Arc::from(uid));
        bench.collect();
        assert!(bench.scheduler.census().is_empty(), "{uid}");
    };
    let mut bench = Bench::new(1, &["n"]);
    bench.apply(pod("queued", 100));
    deleted(&mut bench, "queued");

    bench.apply(pod("placing", 100));
    let task = bench.take(0).unwrap();
    let answer = bench.choose(0, &task);
    deleted(&mut bench, "placing");
    bench.settle(0, &task, answer);
    assert!(bench.binds.is_empty());

    bench.apply(pod("binding", 100));
    bench.work();
    deleted(&mut bench, "binding");
    assert_eq!((bench.cpu_taken("n"), bench.scheduler.binds()), (0, 1));
    bench.finish(&bench.binds[0].clone(), BindOutcome::Vanished);
    assert_eq!(bench.scheduler.binds(), 0);

    bench.apply(pod("backing off", 100));
    bench.work();
    bench.finish(&bench.binds[1].clone(), BindOutcome::Refused("no".into()));
    assert_eq!(bench.in_state("backing off"), 1);
    deleted(&mut bench, "backing off");

    bench.apply(pod("parked", 5000));
    bench.work();
    deleted(&mut bench, "parked");
    assert_eq!(bench.scheduler.parked_classes(), 0);

    // Woken: the next pod of its class gets its turn.
    for uid in ["woken", "next"] {
        bench.apply(pod(uid, 5000));
    }
    bench.work();
    bench.scheduler.apply_node(node("big", 5000));
    let check = bench.take(0).unwrap();
    let answer = bench.choose(0, &check);
    bench.settle(0, &check, answer);
    bench.scheduler.delete_pod(&Arc::from("woken"));
    bench.work();
    assert_eq!(bench.bound().last(), Some(&"next"));
}

#[test]
fn a_pod_backs_off_after_the_maximum_of_conflicts_in_a_row() {
    let mut bench = Bench::new(1, &["n"]);
    bench.apply(pod("a", 600));
    let task = bench.take(0).unwrap();
    for attempt in 1..=3 {
        let answer = bench.choose(0, &task);
        // Another pod takes the node before the answer arrives, and is deleted later.
        bench.apply(on("n", pod("thief", 600)));
        let settled = bench.settle(0, &task, answer);
        assert_eq!(settled == Settled::Again, attempt < 3);
        bench.scheduler.delete_pod(&Arc::from("thief"));
        bench.agents[0].catch_up(bench.scheduler.inventory());
    }
    assert_eq!(bench.scheduler.stats().conflicts, 3);
    assert_eq!(bench.told[0].1, "SchedulerError");
    bench.tick(S - Duration::from_millis(1));
    bench.work();
    assert!(bench.bound().is_empty());
    bench.tick(S);
    bench.work();
    assert_eq!(bench.bound(), ["a"]);
}

#[test]
fn a_pod_with_an_unsupported_spec_is_reported_once() {
    let mut bench = Bench::new(1, &["n"]);
    let volumes = Arc::new(PodSpec { unsupported: [Unsupported::Volumes].into(), ..PodSpec::default() });
    for generation in 1..4 {
        bench.apply(Pod { generation, spec: Ok(volumes.clone()), ..pod("a", 0) });
    }
    bench.work();
    assert_eq!(bench.told.len(), 1);
    assert!(bench.told[0].2.contains("spec.volumes"));
    assert_eq!((bench.choices, bench.in_state("refused")), (0, 1));
}

#[test]
fn a_changed_diagnosis_updates_the_condition_after_a_minute_without_an_event() {
    let mut bench = Bench::new(1, &["n"]);
    bench.apply(pod("a", 5000));
    bench.work();
    // The watch shows what was written.
    let (reason, message) = (bench.told[0].1.into(), bench.told[0].2.as_str().into());
    let scheduled = Some(ScheduledCondition { status: false, reason, message });
    bench.apply(Pod { scheduled, ..pod("a", 5000) });
    bench.tick(10 * S);
    bench.scheduler.apply_node(node("m", 1000));
    bench.work();
    bench.tick(59 * S);
    assert_eq!(bench.told.len(), 1);
    bench.tick(60 * S);
    assert_eq!(bench.told.len(), 2);
    let (_, _, message, event) = &bench.told[1];
    assert!(message.starts_with("0/2 nodes are available: 2 Insufficient cpu.") && !event);
    bench.tick(200 * S);
    assert_eq!(bench.told.len(), 2);
}

#[test]
fn a_scheduler_started_in_the_middle_counts_as_one_that_saw_everything() {
    let mut bench = Bench::new(1, &["n"]);
    bench.apply(pod("a", 100));
    bench.apply(pod("b", 200));
    bench.work();
    for binding in bench.binds.clone() {
        bench.finish(&binding, BindOutcome::Bound);
    }
    assert_eq!(bench.scheduled, ["a", "b"]);
    let mut cold = Bench::silent(1);
    for pod in [on("n", pod("b", 200)), on("n", pod("a", 100))] {
        cold.apply(pod);
    }
    cold.scheduler.apply_node(node("n", 1000));
    let same = crate::invariants::same_accounting(bench.scheduler.inventory(), cold.scheduler.inventory());
    assert_eq!(same, Ok(()));
}

fn owned(uid: &str, owner: &str) -> Pod {
    let owner = PodOwner { api_version: "apps/v1".into(), kind: "ReplicaSet".into(), name: Arc::from(owner) };
    let identity = Identity {
        namespace: "ns".into(),
        labels: [("app", &*owner.name)].into_iter().collect(),
        ..Identity::default()
    };
    let peer = Arc::new(Peer { identity, ..Peer::default() });
    Pod { owner: Some(owner), peer, ..pod(uid, 5000) }
}

fn replica_set(name: &str) -> ClusterObject {
    let requirement = Requirement { key: "app".into(), operator: Operator::In([name.into()].into()) };
    let selector = LabelSelector::All([requirement].into());
    let object = ObjectName { namespace: "ns".into(), name: name.into() };
    ClusterObject::Selecting { kind: ObjectKind::ReplicaSet, name: object, selector }
}

#[test]
fn pods_that_come_before_their_controller_are_spread_once_it_is_known_and_no_others() {
    let mut bench = Bench::new(1, &["n"]);
    bench.scheduler.cluster.objects = ObjectStores::new(
        Profiles::from(Profile { default_spread: system_defaults(), ..Profile::default() }).into(),
    );
    for (uid, owner) in [("a", "web"), ("b", "web"), ("c", "db")] {
        bench.apply(owned(uid, owner));
    }
    bench.work();
    let class =
        |bench: &Bench, uid: &str| bench.scheduler.cluster.waiting.get(uid).expect("it waits").class.clone();
    assert_eq!(class(&bench, "a").id, class(&bench, "c").id);
    bench.scheduler.apply_object(replica_set("web"));
    bench.work();
    assert_eq!(class(&bench, "a").spec.spread.constraints.len(), 2);
    assert_eq!(class(&bench, "a").id, class(&bench, "b").id, "still one class");
    assert!(class(&bench, "c").spec.spread.constraints.is_empty());
    bench.scheduler.apply_object(replica_set("web"));
    assert!(bench.scheduler.stale.is_empty(), "a status update changes nothing");
    let gone = ObjectName { namespace: "ns".into(), name: "web".into() };
    bench.scheduler.delete_object(ObjectKind::ReplicaSet, &gone);
    bench.work();
    assert_eq!(class(&bench, "a").id, class(&bench, "c").id);
}
