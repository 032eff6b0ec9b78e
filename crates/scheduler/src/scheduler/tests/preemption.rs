//! Preemption with the state machine and real agents: victims, nominations, and what is left behind.

use super::*;
use berth_model::HostPort;

/// Returns a bench with nodes of 1000 milli-CPU and preemption.
fn bench(nodes: &[&str]) -> Bench {
    let mut bench = Bench::new(1, nodes);
    bench.scheduler.cluster.config.preemption = true;
    bench
}

fn important(uid: &str, cpu_milli: i64, priority: i32) -> Pod {
    Pod { priority, ..pod(uid, cpu_milli) }
}

impl Bench {
    /// Adds a pod that runs since `started_s`.
    fn running(&mut self, node: &str, uid: &str, cpu_milli: i64, priority: i32, started_s: i64) {
        let pod = important(uid, cpu_milli, priority);
        self.apply(Pod { started_s: Some(started_s), ..on(node, pod) });
    }

    fn gone(&mut self, uid: &str) {
        self.scheduler.delete_pod(&Arc::from(uid));
        self.collect();
    }

    fn evicted(&self) -> Vec<&str> {
        self.evictions.iter().map(|eviction| &*eviction.victim.uid).collect()
    }

    fn nominated(&self) -> Vec<(String, String)> {
        let nominated = self.scheduler.nominated_pods();
        nominated.map(|(uid, node)| (uid.to_string(), node.to_string())).collect()
    }

    fn told_last(&self, uid: &str) -> &str {
        let of = |told: &&(String, &str, String, bool)| told.0 == uid;
        &self.told.iter().rev().find(of).expect("it has a condition").2
    }

    fn reserved(&self) -> usize {
        self.scheduler.ledger().reserved().count()
    }
}

#[test]
fn a_pod_that_fits_nowhere_evicts_the_least_important_and_gets_its_place_when_it_is_gone() {
    let mut bench = bench(&["n"]);
    bench.running("n", "old", 500, 0, 10);
    bench.running("n", "young", 500, 0, 20);
    bench.apply(important("p", 500, 5));
    bench.work();
    assert_eq!(bench.evicted(), ["young"]);
    assert_eq!(bench.nominations, [("p".to_owned(), Some("n".to_owned()))]);
    assert_eq!((bench.binds.len(), bench.in_state("parked"), bench.reserved()), (0, 1, 1));
    assert_eq!(bench.told_last("p"), "0/1 nodes are available: 1 Insufficient cpu.");
    let young = Pod { peer: terminating(), ..on("n", important("young", 500, 0)) };
    bench.apply(Pod { started_s: Some(20), deleting: true, ..young });
    bench.work();
    assert_eq!((bench.binds.len(), bench.evictions.len()), (0, 1), "it still has its room");
    bench.gone("young");
    bench.work();
    assert_eq!((bench.bound(), bench.reserved()), (vec!["p"], 0));
    assert_eq!(&*bench.binds[0].node, "n");
    assert_eq!(bench.nominations.len(), 1, "the API server clears it when it binds");
    assert_eq!(bench.scheduler.stats().preemption_attempts, 1);
}

#[test]
fn a_less_important_pod_that_comes_between_two_checks_is_noticed_by_every_pod_that_may_preempt() {
    let mut bench = bench(&["n", "m"]);
    bench.running("n", "hi", 1000, 9, 10);
    bench.running("m", "other", 900, 9, 10);
    bench.running("m", "early", 100, 0, 10);
    bench.tick(bench.now + S);
    bench.gone("early");
    // The first pod of the class may not preempt, the second one may.
    let never = Pod { preemption_policy: PreemptionPolicy::Never, ..important("a", 1000, 5) };
    bench.apply(never);
    bench.apply(important("b", 1000, 5));
    bench.work();
    assert_eq!((bench.in_state("parked"), bench.evictions.len()), (2, 0));
    bench.gone("hi");
    bench.running("n", "late", 1000, 0, 20);
    bench.work();
    bench.tick(bench.now + S);
    bench.work();
    assert_eq!(bench.evicted(), ["late"]);
}

pub(super) fn terminating() -> Arc<Peer> {
    Arc::new(Peer { terminating: true, ..Peer::default() })
}

#[test]
fn pods_of_the_same_or_a_higher_priority_are_never_preempted() {
    let mut bench = bench(&["n", "m"]);
    bench.running("n", "same", 800, 5, 10);
    bench.running("m", "higher", 500, 6, 10);
    bench.running("m", "lower", 100, 4, 10);
    bench.apply(important("p", 700, 5));
    bench.work();
    assert!(bench.evictions.is_empty() && bench.reserved() == 0);
    assert_eq!(
        bench.told_last("p"),
        "0/2 nodes are available: 2 Insufficient cpu. no new claims to deallocate, preemption: 0/2 nodes are available: \
         1 Insufficient cpu, 1 No preemption victims found for incoming pod."
    );
    assert_eq!(bench.told.len(), 1);
}

#[test]
fn pods_with_policy_never_do_not_preempt() {
    let mut bench = bench(&["n"]);
    bench.running("n", "low", 1000, 0, 10);
    let policy = PreemptionPolicy::Never;
    bench.apply(Pod { preemption_policy: policy, ..important("p", 500, 5) });
    bench.work();
    assert!(bench.evictions.is_empty());
    assert!(bench.told_last("p").ends_with("preemption: not eligible due to preemptionPolicy=Never."));
}

#[test]
fn the_node_with_the_least_important_victims_is_chosen_whatever_their_number() {
    let mut bench = bench(&["one", "two"]);
    bench.running("one", "middle", 1000, 3, 10);
    for uid in ["a", "b", "c", "d"] {
        bench.running("two", uid, 250, 1, 10);
    }
    bench.apply(important("p", 1000, 5));
    bench.work();
    let mut evicted = bench.evicted();
    evicted.sort_unstable();
    assert_eq!(evicted, ["a", "b", "c", "d"]);
}

#[test]
fn a_budget_that_allows_nothing_keeps_its_pods_where_others_can_go() {
    let mut bench = bench(&["n", "m"]);
    let labelled = |uid: &str, node: &str| {
        let identity = Identity {
            namespace: "ns".into(),
            labels: [("app", "kept")].into_iter().collect(),
            ..Identity::default()
        };
        Pod { peer: Arc::new(Peer { identity, ..Peer::default() }), ..on(node, important(uid, 1000, 0)) }
    };
    bench.apply(labelled("kept", "n"));
    bench.running("m", "other", 1000, 2, 10);
    bench.scheduler.apply_object(budget(0));
    bench.apply(important("p", 1000, 5));
    bench.work();
    assert_eq!(bench.evicted(), ["other"]);
    // No alternative is left: the budget is violated, as upstream does.
    bench.apply(important("q", 1000, 5));
    bench.work();
    assert_eq!(bench.evicted(), ["other", "kept"]);
}

#[test]
fn pods_of_one_class_each_get_a_node_of_their_own_by_one_survey() {
    let names: Vec<String> = (0..40).map(|at| format!("n{at}")).collect();
    let names: Vec<&str> = names.iter().map(|name| &**name).collect();
    let mut bench = bench(&names);
    for node in &names {
        bench.running(node, &format!("low-{node}"), 1000, 0, 10);
    }
    for at in 0..30 {
        bench.scheduler.apply_pod(important(&format!("p{at}"), 1000, 5), bench.now);
    }
    bench.work();
    assert_eq!((bench.evictions.len(), bench.reserved()), (30, 30));
    let nodes: HashSet<_> = bench.nominated().into_iter().map(|(_, node)| node).collect();
    assert_eq!(nodes.len(), 30);
    for eviction in bench.evictions.clone() {
        bench.gone(&eviction.victim.uid);
    }
    bench.work();
    assert_eq!((bench.binds.len(), bench.reserved(), bench.in_state("parked")), (30, 0, 0));
}

#[test]
fn several_pods_preempt_on_one_node_as_long_as_it_has_victims() {
    let mut bench = bench(&["n"]);
    for at in 0..4 {
        bench.running("n", &format!("low{at}"), 250, 0, at);
    }
    for at in 0..6 {
        bench.apply(important(&format!("p{at}"), 250, 5));
    }
    bench.work();
    assert_eq!((bench.evictions.len(), bench.reserved(), bench.in_state("parked")), (4, 4, 6));
    for eviction in bench.evictions.clone() {
        bench.gone(&eviction.victim.uid);
    }
    bench.work();
    assert_eq!((bench.binds.len(), bench.reserved(), bench.in_state("parked")), (4, 0, 2));
    assert!(bench.told_last("p5").ends_with("preemption: 0/1 nodes are available: 1 Insufficient cpu."));
}

#[test]
fn no_other_pod_takes_the_room_that_is_kept_but_a_more_important_one() {
    let mut bench = bench(&["n"]);
    bench.running("n", "low", 1000, 0, 10);
    bench.apply(important("p", 1000, 5));
    bench.work();
    bench.apply(important("same", 500, 5));
    bench.apply(important("below", 100, 1));
    bench.gone("low");
    bench.work();
    assert_eq!(bench.bound(), ["p"]);
    let bound = bench.binds[0].clone();
    bench.finish(&bound, BindOutcome::Bound);
    bench.apply(on("n", important("p", 1000, 5)));
    bench.apply(important("top", 1000, 9));
    bench.work();
    assert_eq!(bench.evicted(), ["low", "p"]);
}

#[test]
fn a_more_important_pod_takes_the_nomination_of_a_less_important_one() {
    let mut bench = bench(&["n"]);
    bench.running("n", "low", 1000, 0, 10);
    bench.apply(important("p", 1000, 5));
    bench.work();
    bench.apply(important("top", 1000, 9));
    bench.work();
    assert_eq!(bench.nominated(), [("top".to_owned(), "n".to_owned())]);
    assert_eq!(bench.nominations.last(), Some(&("p".to_owned(), None)));
    assert_eq!(bench.evicted(), ["low"], "once");
    bench.gone("low");
    bench.work();
    assert_eq!((bench.bound(), bench.reserved()), (vec!["top"], 0));
}

#[test]
fn a_nominated_pod_goes_elsewhere_if_there_is_room_first_and_leaves_no_reservation() {
    let mut bench = bench(&["n"]);
    bench.running("n", "low", 1000, 0, 10);
    bench.apply(important("p", 1000, 5));
    bench.work();
    bench.scheduler.apply_node(node("new", 1000));
    bench.work();
    assert_eq!((&*bench.binds[0].node, bench.reserved()), ("new", 0));
}

#[test]
fn whatever_becomes_of_the_pod_or_its_node_no_room_stays_kept() {
    let nominated = || {
        let mut bench = bench(&["n"]);
        bench.running("n", "low", 1000, 0, 10);
        bench.apply(important("p", 1000, 5));
        bench.work();
        assert_eq!(bench.reserved(), 1);
        bench
    };
    let ends = |name: &str, end: &dyn Fn(&mut Bench)| {
        let mut bench = nominated();
        end(&mut bench);
        bench.work();
        assert_eq!(bench.reserved(), 0, "{name}");
    };
    ends("the pod is deleted", &|bench| bench.gone("p"));
    ends("the pod is being deleted", &|bench| {
        bench.apply(Pod { deleting: true, ..important("p", 1000, 5) });
    });
    ends("another client binds it", &|bench| bench.apply(on("n", important("p", 1000, 5))));
    ends("its node goes", &|bench| {
        bench.scheduler.delete_node("n");
    });
    ends("its node is cordoned", &|bench| {
        bench.scheduler.apply_node(Node { unschedulable: true, ..node("n", 1000) });
    });
    ends("its node shrinks", &|bench| {
        bench.scheduler.apply_node(node("n", 900));
    });
    ends("leadership is lost", &|bench| bench.scheduler.set_leading(false));
    ends("a new list lacks it", &|bench| {
        bench.scheduler.retain_pods(&HashSet::from(["low".into()]));
    });
}

#[test]
fn a_refused_eviction_ends_the_nomination_and_the_pod_tries_again_after_a_pause() {
    let mut bench = bench(&["n"]);
    bench.running("n", "low", 1000, 0, 10);
    bench.apply(important("p", 1000, 5));
    bench.work();
    let eviction = bench.evictions[0].clone();
    bench.scheduler.eviction_finished(&eviction, Err("pods is forbidden".into()), bench.now);
    bench.work();
    assert_eq!((bench.reserved(), bench.in_state("backing off"), bench.evictions.len()), (0, 1, 1));
    assert_eq!(bench.nominations.last(), Some(&("p".to_owned(), None)));
    let told = "preemption: the pod ns/low could not be evicted: pods is forbidden";
    assert_eq!(bench.told_last("p"), told);
    bench.tick(S);
    bench.work();
    assert_eq!((bench.reserved(), bench.evictions.len()), (1, 2));
}

#[test]
fn a_new_leader_keeps_reservations_and_evicts_no_pod_twice() {
    let mut bench = bench(&["n"]);
    bench.scheduler.set_leading(false);
    let low = Pod { deleting: true, peer: terminating(), ..on("n", important("low", 1000, 0)) };
    bench.apply(low);
    bench.apply(Pod { nominated_node: Some("n".into()), ..important("p", 1000, 5) });
    bench.scheduler.lead(2);
    bench.work();
    assert_eq!((bench.reserved(), bench.evictions.len()), (1, 0));
    bench.gone("low");
    bench.work();
    assert_eq!((bench.bound(), bench.reserved()), (vec!["p"], 0));
}

#[test]
fn an_obsolete_nomination_is_cleared_and_preemption_is_retried() {
    let mut bench = bench(&["n", "m"]);
    bench.running("n", "top", 1000, 9, 10);
    bench.running("m", "low", 1000, 0, 10);
    bench.apply(Pod { nominated_node: Some("n".into()), ..important("p", 1000, 5) });
    bench.work();
    assert_eq!(bench.evicted(), ["low"]);
    assert_eq!(bench.nominated(), [("p".to_owned(), "m".to_owned())]);
    assert_eq!(bench.nominations.last(), Some(&("p".to_owned(), Some("m".to_owned()))));
}

#[test]
fn failed_preemption_is_retried_only_after_a_change_and_a_pause() {
    let mut bench = bench(&["n", "m"]);
    bench.running("n", "high", 1000, 9, 10);
    bench.running("m", "tiny", 10, 0, 10);
    bench.running("m", "big", 990, 9, 10);
    for at in 0..50 {
        bench.apply(important(&format!("p{at}"), 600, 5));
    }
    bench.work();
    let attempts = bench.scheduler.stats().preemption_attempts;
    assert_eq!(attempts, 1, "one for all");
    for second in 1..20 {
        bench.tick(second * S);
        bench.work();
    }
    assert_eq!(bench.scheduler.stats().preemption_attempts, attempts, "nothing changed");
    bench.gone("big");
    bench.running("m", "low", 990, 0, 10);
    bench.tick(40 * S);
    bench.work();
    assert_eq!(bench.evicted(), ["low"]);
}

#[test]
fn ports_and_anti_affinity_are_asked_of_the_node_without_its_victims() {
    let mut bench = bench(&["n", "m"]);
    let port = HostPort { ip: None, protocol: berth_model::Protocol::Tcp, port: 80 };
    let with_port = |uid: &str, priority: i32| {
        let requests = Amounts { cpu_milli: 100, pods: 1, ..Amounts::default() };
        let usage = Arc::new(Usage { requests, ports: [port.clone()].into(), ..Usage::default() });
        let spec = Ok(Arc::new(PodSpec { usage: usage.clone(), ..PodSpec::default() }));
        Pod { usage, spec, ..important(uid, 100, priority) }
    };
    bench.apply(on("n", with_port("holder", 0)));
    bench.apply(on("m", with_port("kept", 9)));
    bench.running("n", "bystander", 100, 0, 10);
    bench.apply(with_port("p", 5));
    bench.work();
    assert_eq!(bench.evicted(), ["holder"]);
    bench.gone("holder");
    bench.work();
    assert_eq!(bench.bound(), ["p"]);
}

#[test]
fn preemption_is_retried_after_assumed_pods_are_observed() {
    let mut bench = bench(&["n"]);
    bench.apply(important("low", 1000, 0));
    bench.work();
    let binding = bench.binds[0].clone();
    bench.finish(&binding, BindOutcome::Bound);
    bench.apply(important("p", 1000, 5));
    bench.work();
    assert!(bench.evictions.is_empty(), "no watch has reported it");
    // The node's sums do not change by that.
    bench.running("n", "low", 1000, 0, 10);
    bench.tick(2 * S);
    bench.work();
    assert_eq!(bench.evicted(), ["low"]);
}

#[test]
fn preemption_is_retried_after_a_pod_of_lower_priority_is_placed() {
    let mut bench = bench(&["n"]);
    bench.running("n", "high", 600, 9, 10);
    bench.running("n", "same", 400, 5, 10);
    bench.apply(important("p", 400, 5));
    bench.work();
    bench.gone("same");
    bench.running("n", "low", 400, 0, 10);
    bench.tick(S);
    bench.work();
    assert_eq!(bench.evicted(), ["low"]);
}

#[test]
fn while_room_comes_and_goes_all_the_time_parked_pods_are_told_and_preempt_within_ten_seconds() {
    let mut bench = bench(&["n", "small"]);
    bench.running("n", "victim", 1000, 0, 10);
    bench.running("small", "guest", 10, 9, 10);
    bench.apply(important("p", 900, 5));
    // Larger than any node, so that it cannot preempt.
    bench.apply(important("giant", 5000, 5));
    let mut changes = 0;
    let mut loosen = |bench: &mut Bench| {
        changes += 1;
        bench.scheduler.apply_node(node("small", 20 + changes % 7));
        bench.collect();
    };
    for step in 0..100 {
        bench.tick(step * S / 10);
        for _ in 0..4 {
            let Some(task) = bench.take(0) else { break };
            loop {
                let answer = bench.choose(0, &task);
                // Something always loosens between a search and its end.
                loosen(&mut bench);
                if bench.settle(0, &task, answer) == Settled::Done {
                    break;
                }
                bench.agents[0].catch_up(bench.scheduler.inventory());
            }
            loosen(&mut bench);
        }
    }
    assert!(bench.told_last("giant").starts_with("0/2 nodes are available"), "{:?}", bench.told);
    assert_eq!(bench.evicted(), ["victim"]);
}

#[test]
fn a_preemptor_that_looks_at_other_pods_keeps_its_room_from_less_important_ones_until_it_is_placed() {
    let mut bench = Bench::new(2, &["n"]);
    bench.scheduler.cluster.config.preemption = true;
    let labels = || [("host", "n")].into_iter().collect();
    bench.scheduler.apply_node(Node { labels: labels(), ..node("n", 1000) });
    bench.running("n", "victim", 1000, 0, 10);
    // It refuses pods like itself, so only an agent can place it.
    let operator = berth_model::Operator::In(["p".into()].into());
    let requirement = berth_model::Requirement { key: "app".into(), operator };
    let selector = berth_model::PodSelector {
        namespaces: ["ns".into()].into(),
        labels: berth_model::LabelSelector::All([requirement].into()),
        ..Default::default()
    };
    let term = berth_model::PodTerm { selector, topology_key: "host".into() };
    let affinity = Arc::new(berth_model::PodAffinity { required_anti: [term].into(), ..Default::default() });
    let plain = important("p", 900, 5);
    let identity = Identity {
        namespace: "ns".into(),
        labels: [("app", "p")].into_iter().collect(),
        ..Identity::default()
    };
    let peer = Peer { identity, affinity: affinity.clone(), ..Peer::default() };
    let spec = PodSpec { pod_affinity: affinity, ..PodSpec::clone(plain.spec.as_ref().unwrap()) };
    bench.apply(Pod { peer: Arc::new(peer), spec: Ok(Arc::new(spec)), ..plain });
    bench.work();
    assert_eq!(bench.evicted(), ["victim"]);
    bench.gone("victim");
    let takes = |bench: &mut Bench, agent: usize| Some((agent, bench.take(agent)?));
    let (agent, task) = [0, 1].into_iter().find_map(|agent| takes(&mut bench, agent)).expect("it is tried");
    // While an agent places it, less important pods do not fit, and its equals do.
    for (priority, fits) in [(1, false), (4, false), (5, true)] {
        let other = important("other", 900, priority);
        let Bench { scheduler, agents, .. } = &mut bench;
        let verdict = scheduler.verdict(&mut agents[1 - agent], &other);
        assert_eq!(verdict.chosen.is_some(), fits, "priority {priority}");
    }
    let answer = bench.choose(agent, &task);
    assert_eq!(bench.settle(agent, &task, answer), Settled::Done);
    bench.work();
    assert_eq!(bench.bound(), ["p"]);
    assert_eq!(bench.evictions.len(), 1);
    assert_eq!(bench.reserved(), 0);
}
