use super::*;

use std::collections::HashSet;

use crate::agent::{Agent, AgentConfig, CacheLimits, Choice};
use crate::model::{Amounts, Labels, Node, PodSpec, SpecError};
use crate::placement::{Binding, Outcome};
use crate::rules::Packing;

const S: Duration = Duration::from_secs(1);

/// A scheduler with agents, and everything it wanted done so far.
struct Bench {
    scheduler: Scheduler,
    agents: Vec<Agent>,
    now: Duration,
    binds: Vec<Binding>,
    /// Uid, reason, message, event.
    told: Vec<(String, &'static str, String, bool)>,
    scheduled: Vec<String>,
    woken: HashSet<usize>,
    /// How many times an agent chose.
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

    /// Nothing has happened yet.
    fn silent(agents: usize) -> Self {
        let config = SchedulerConfig {
            scheduler_names: vec!["berth".into()],
            agents,
            max_waiting_binds: 64,
            max_tries: 3,
            backoff: BackoffLimits {
                initial: S,
                max: 10 * S,
            },
            refresh: 60 * S,
        };
        let agent = |seed: usize| {
            Agent::new(AgentConfig {
                packing: Packing::default(),
                candidate_width: 1,
                cache: CacheLimits {
                    bytes: usize::MAX,
                    age: Duration::MAX,
                },
                seed: seed as u64,
            })
        };
        Bench {
            scheduler: Scheduler::new(config, Estimator::default()),
            agents: (0..agents).map(agent).collect(),
            now: Duration::ZERO,
            binds: Vec::new(),
            told: Vec::new(),
            scheduled: Vec::new(),
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
                Action::Report(Report::Scheduled { pod, .. }) => self.scheduled.push(pod.uid.to_string()),
                Action::Report(Report::Failed {
                    pod,
                    reason,
                    message,
                    event,
                    ..
                }) => self
                    .told
                    .push((pod.uid.to_string(), reason, message.to_string(), event)),
                Action::WakeAgent(agent) => {
                    self.woken.insert(agent);
                }
                Action::Observe(_) => {}
            }
        }
        assert_eq!(self.scheduler.check(), []);
    }

    /// The next task of an agent, which catches up for it.
    fn take(&mut self, agent: usize) -> Option<Task> {
        let task = self.scheduler.next_task(agent, self.now);
        self.agents[agent].catch_up(self.scheduler.inventory());
        self.collect();
        task
    }

    fn choose(&mut self, agent: usize, task: &Task) -> (Choice, Revision) {
        self.choices += 1;
        let agent = &mut self.agents[agent];
        let choice = agent.choose(task.class(), self.now, |_| {});
        (choice, agent.revision())
    }

    fn settle(&mut self, agent: usize, task: &Task, (choice, seen): (Choice, Revision)) -> Settled {
        let settled = self.scheduler.settle(agent, task, choice, seen, self.now);
        self.collect();
        settled
    }

    /// Lets the agents that were woken work until there is nothing to do.
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

    fn finish(&mut self, binding: &Binding, outcome: Outcome) {
        self.scheduler.bind_finished(binding, outcome, self.now);
        self.collect();
    }

    fn tick(&mut self, at: Duration) {
        self.now = at;
        self.scheduler.tick(at);
        self.collect();
    }

    /// Pods bound so far, in order.
    fn bound(&self) -> Vec<&str> {
        self.binds.iter().map(|binding| &*binding.uid).collect()
    }

    /// How many pods are in this state.
    fn in_state(&self, state: &str) -> usize {
        self.scheduler.census().get(state).copied().unwrap_or(0)
    }

    fn cpu_taken(&self, node: &str) -> i64 {
        let inventory = self.scheduler.inventory();
        inventory
            .find(node)
            .map_or(0, |id| inventory.row(id).requested.cpu_milli)
    }
}

fn node(name: &str, cpu_milli: i64) -> Node {
    Node {
        name: name.into(),
        allocatable: Amounts {
            cpu_milli,
            memory: 1 << 30,
            ephemeral_storage: 0,
            pods: 20_000,
        },
        ..Node::default()
    }
}

fn pod(uid: &str, cpu_milli: i64) -> Pod {
    let usage = Arc::new(Usage {
        requests: Amounts {
            cpu_milli,
            pods: 1,
            ..Amounts::default()
        },
        ..Usage::default()
    });
    Pod {
        uid: uid.into(),
        namespace: "ns".into(),
        name: uid.into(),
        labels: Labels::default(),
        scheduler_name: "berth".into(),
        node_name: None,
        priority: 0,
        preemption_policy: PreemptionPolicy::default(),
        created_s: 0,
        generation: 1,
        deleting: false,
        finished: false,
        gates: [].into(),
        scheduled: None,
        usage: usage.clone(),
        spec: Ok(Arc::new(PodSpec {
            usage,
            ..PodSpec::default()
        })),
    }
}

fn on(node: &str, pod: Pod) -> Pod {
    Pod {
        node_name: Some(node.into()),
        ..pod
    }
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
fn a_standby_tells_pods_nothing_and_the_new_leader_tells_what_is_not_known() {
    let mut bench = Bench::new(1, &["n"]);
    bench.scheduler.set_leading(false);
    let unreadable = |uid: &str| Pod {
        spec: Err(SpecError {
            field: "spec.x".into(),
            problem: "is odd".into(),
        }),
        ..pod(uid, 0)
    };
    bench.apply(unreadable("a"));
    bench.apply(unreadable("b"));
    assert!(bench.told.is_empty());
    // The leader has told one of them; this process sees it.
    bench.apply(Pod {
        scheduled: Some(crate::model::ScheduledCondition {
            status: false,
            reason: "SchedulerError".into(),
            message: "the pod's spec cannot be understood: spec.x: is odd".into(),
        }),
        ..unreadable("a")
    });
    bench.scheduler.set_leading(true);
    bench.collect();
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
    bench.apply(Pod {
        deleting: true,
        ..pod("deleted", 100)
    });
    bench.apply(Pod {
        gates: ["wait".into()].into(),
        ..pod("gated", 100)
    });
    for binding in bench.binds.clone() {
        bench.finish(&binding, Outcome::Refused("no".into()));
    }
    bench.tick(20 * S);
    bench.work();
    assert_eq!((bench.binds.len(), bench.in_state("gated")), (2, 1));
    assert_eq!(bench.scheduler.census().len(), 1);
}
