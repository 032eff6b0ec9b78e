//! Quotas: no maximum is exceeded, waiting pods are admitted in order, and guarantees are reclaimed.

use super::*;
use crate::gang::{Allocation, AllocationKind, AllocationName, GangRole, Phase, RoleMembers};
use crate::policy::SelectedNamespaces;
use crate::quota::{Limit, Limits, Quota, QuotaReport, QuotaResource, Reclaim, Scope};

/// Returns a quota with this guarantee and maximum, in milli-CPU.
pub(super) fn quota(name: &str, guaranteed: Option<i64>, maximum: Option<i64>) -> Quota {
    let limit = |amount: Option<i64>| {
        amount.map(|amount| (QuotaResource::Cpu, amount)).into_iter().collect::<Limit>()
    };
    Quota {
        name: name.into(),
        uid: format!("uid-{name}").into(),
        generation: 1,
        created: 1,
        scope: Scope { queue: None, namespaces: SelectedNamespaces::Named([Arc::from(name)].into()) },
        reclaim: Reclaim::Any,
        limits: Ok(Limits { guaranteed: limit(guaranteed), maximum: limit(maximum) }),
    }
}

/// Returns a pod in the namespace of the quota with this name.
pub(super) fn of(quota: &str, uid: &str, cpu_milli: i64) -> Pod {
    let labels = [("gang", uid.split('-').next().unwrap_or_default())].into_iter().collect();
    let identity = Identity { namespace: quota.into(), labels, ..Identity::default() };
    Pod { peer: Arc::new(Peer { identity, ..Peer::default() }), ..pod(uid, cpu_milli) }
}

fn important(priority: i32, pod: Pod) -> Pod {
    Pod { priority, ..pod }
}

fn bench(agents: usize, nodes: &[&str], quotas: &[Quota]) -> Bench {
    let mut bench = Bench::new(agents, nodes);
    bench.scheduler.cluster.config.preemption = true;
    quotas.iter().for_each(|quota| apply(&mut bench, quota.clone()));
    bench
}

fn apply(bench: &mut Bench, quota: Quota) {
    bench.scheduler.apply_object(ClusterObject::Quota(Box::new(quota)));
    bench.collect();
}

fn used(bench: &Bench, quota: &str) -> i128 {
    bench.scheduler.ledger().accounts().of(quota).used.get(&QuotaResource::Cpu)
}

/// Returns the reason and message of the latest condition.
pub(super) fn last_told<'a>(bench: &'a Bench, uid: &str) -> (&'a str, &'a str) {
    let (_, reason, message, _) = bench.told.iter().rfind(|told| told.0 == uid).expect("it has a condition");
    (reason, message)
}

fn delete(bench: &mut Bench, uid: &str) {
    bench.scheduler.delete_pod(&uid.into());
    bench.collect();
}

fn status<'a>(bench: &'a Bench, name: &str) -> &'a QuotaReport {
    bench.quotas.iter().rfind(|status| *status.name == *name).expect("it has a status")
}

#[test]
fn a_pod_beyond_the_maximum_waits_with_a_condition_and_is_admitted_in_order() {
    let mut bench = bench(1, &["n"], &[quota("a", None, Some(300))]);
    bench.apply(of("a", "first", 200));
    bench.apply(of("a", "second", 200));
    bench.apply(of("a", "third", 100));
    bench.apply(important(5, of("a", "urgent", 200)));
    bench.work();
    assert_eq!((bench.bound(), used(&bench, "a")), (vec!["urgent"], 200));
    assert_eq!((bench.in_state("over quota"), bench.scheduler.queue_lengths().over_quota), (3, 3));
    let told = ("QuotaExceeded", "quota a: requested cpu=200m, used cpu=200m, maximum cpu=300m");
    assert_eq!(last_told(&bench, "first"), told);
    // It would fit, but the first one in the queue has precedence.
    assert_eq!(
        last_told(&bench, "third"),
        (
            "QuotaExceeded",
            "quota a: there is free capacity, but it is reserved for pods queued before this one"
        )
    );
    delete(&mut bench, "urgent");
    bench.work();
    assert_eq!((bench.bound(), used(&bench, "a")), (vec!["urgent", "first"], 200));
    delete(&mut bench, "first");
    bench.work();
    assert_eq!(bench.bound(), ["urgent", "first", "second", "third"]);
    assert_eq!((used(&bench, "a"), bench.in_state("over quota")), (300, 0));
}

#[test]
fn a_pod_within_its_quota_that_fits_no_node_is_reported_as_unschedulable() {
    let mut bench = bench(1, &["n"], &[quota("a", None, Some(700))]);
    bench.apply(of("a", "first", 600));
    bench.apply(of("a", "second", 700));
    bench.apply(of("none", "other", 400));
    bench.work();
    assert_eq!(last_told(&bench, "second").0, "QuotaExceeded");
    delete(&mut bench, "first");
    bench.work();
    assert_eq!((bench.bound(), bench.in_state("parked")), (vec!["first", "other"], 1));
    assert_eq!(last_told(&bench, "second").0, "Unschedulable");
}

#[test]
fn agents_that_commit_at_once_never_go_beyond_the_maximum() {
    let mut bench = bench(4, &["a", "b", "c", "d"], &[quota("q", None, Some(250))]);
    (0..8).for_each(|at| bench.apply(of("q", &format!("p{at}"), 100)));
    let tasks: Vec<_> = (0..4).map(|agent| bench.take(agent)).collect();
    for (agent, task) in tasks.iter().enumerate() {
        let Some(task) = task else { continue };
        let answer = bench.choose(agent, task);
        assert_eq!(bench.settle(agent, task, answer), Settled::Done);
        assert!(used(&bench, "q") <= 250);
    }
    bench.work();
    assert_eq!((bench.binds.len(), used(&bench, "q"), bench.in_state("over quota")), (2, 200, 6));
    assert_eq!(bench.scheduler.stats().violations, 0);
}

#[test]
fn a_failed_bind_frees_quota_for_waiting_pods() {
    let mut bench = bench(1, &["n"], &[quota("a", None, Some(100))]);
    bench.apply(of("a", "first", 100));
    bench.apply(of("a", "second", 100));
    bench.work();
    let binding = bench.binds[0].clone();
    bench.finish(&binding, BindOutcome::Refused("no".into()));
    bench.work();
    assert_eq!((bench.bound(), used(&bench, "a")), (vec!["first", "second"], 100));
    bench.tick(2 * S);
    bench.work();
    assert_eq!((bench.binds.len(), bench.in_state("over quota")), (2, 1), "the first waits for it now");
}

#[test]
fn pods_of_others_count_and_what_is_there_already_is_never_taken_away() {
    let mut bench = bench(1, &["n"], &[]);
    bench.apply(on("n", Pod { scheduler_name: "other".into(), ..of("a", "theirs", 400) }));
    bench.apply(of("a", "ours", 100));
    bench.work();
    apply(&mut bench, quota("a", None, Some(300)));
    bench.apply(of("a", "late", 100));
    bench.apply(of("b", "free", 100));
    bench.work();
    assert_eq!((bench.bound(), used(&bench, "a")), (vec!["ours", "free"], 500));
    assert_eq!(last_told(&bench, "late").1, "quota a: requested cpu=100m, used cpu=500m, maximum cpu=300m");
    assert!(bench.evictions.is_empty());
}

#[test]
fn pods_are_admitted_when_their_quota_is_raised_moved_or_deleted() {
    let with = |maximum, scope: &str| {
        let quota = quota(scope, None, Some(maximum));
        Quota { name: "q".into(), ..quota }
    };
    let mut bench = bench(1, &["n"], &[with(100, "a")]);
    (0..4).for_each(|at| bench.apply(of("a", &format!("p{at}"), 100)));
    bench.work();
    assert_eq!(bench.binds.len(), 1);
    apply(&mut bench, with(200, "a"));
    bench.work();
    assert_eq!(bench.binds.len(), 2);
    apply(&mut bench, with(200, "b"));
    bench.work();
    assert_eq!((bench.binds.len(), used(&bench, "q"), bench.in_state("over quota")), (4, 0, 0));
    apply(&mut bench, with(200, "a"));
    bench.apply(of("a", "more", 100));
    bench.work();
    assert_eq!((used(&bench, "q"), bench.in_state("over quota")), (400, 1));
    let name = ObjectName { namespace: "".into(), name: "q".into() };
    bench.scheduler.delete_object(ObjectKind::Quota, &name);
    bench.work();
    assert_eq!((bench.binds.len(), used(&bench, "q")), (5, 0));
}

#[test]
fn a_choice_made_before_the_quota_came_counts_in_it() {
    let mut bench = bench(1, &["n"], &[]);
    bench.apply(of("a", "p", 100));
    let task = bench.take(0).expect("a pod waits");
    let answer = bench.choose(0, &task);
    apply(&mut bench, quota("a", None, Some(50)));
    bench.settle(0, &task, answer);
    bench.work();
    assert_eq!((bench.binds.len(), bench.in_state("over quota")), (0, 1));
    assert!(last_told(&bench, "p").1.ends_with("exceeds the maximum cpu=50m"));
}

#[test]
fn a_parked_pod_does_not_preempt_for_room_that_its_quota_does_not_have() {
    let mut bench = bench(1, &["n"], &[quota("a", None, Some(600))]);
    bench.apply(on("n", of("b", "low", 1000)));
    bench.scheduler.cluster.ledger.note_seen(cluster_events::pod_ref(&of("b", "low", 1000)), 1, Some(1));
    bench.apply(important(5, of("a", "high", 700)));
    bench.work();
    assert!(bench.evictions.is_empty());
    assert_eq!(bench.in_state("over quota"), 1);
}

#[test]
fn a_new_leader_writes_conditions_and_statuses_once() {
    let mut bench = bench(1, &["n"], &[quota("a", Some(50), Some(100))]);
    bench.scheduler.set_leading(false);
    bench.apply(of("a", "first", 100));
    bench.apply(of("a", "second", 200));
    bench.tick(S);
    assert!(bench.told.is_empty() && bench.quotas.is_empty());
    bench.scheduler.set_leading(true);
    bench.work();
    bench.tick(3 * S);
    assert_eq!(last_told(&bench, "second").0, "QuotaExceeded");
    let told = status(&bench, "a");
    assert_eq!((told.pods, told.waiting), (1, 1));
    let cpu = &told.standing[0];
    assert_eq!((cpu.used, cpu.borrowed, cpu.guaranteed, cpu.maximum), (100, 50, Some(50), Some(100)));
    let count = bench.quotas.len();
    (4..9).for_each(|at| bench.tick(at * S));
    assert_eq!(bench.quotas.len(), count, "nothing changed");
    assert_eq!(bench.told.len(), 1);
}

// Gangs.

fn gang(bench: &mut Bench, minimum: u32) {
    let operator = Operator::In([Arc::from("g")].into());
    let selector = LabelSelector::All([Requirement { key: "gang".into(), operator }].into());
    bench.scheduler.apply_object(ClusterObject::Allocation(Box::new(Allocation {
        name: AllocationName { kind: AllocationKind::Allocation, namespace: "a".into(), name: "g".into() },
        uid: "uid-g".into(),
        generation: 1,
        created_s: 100,
        roles: [GangRole { name: "".into(), members: RoleMembers::Selected(selector), minimum }].into(),
        timeout: None,
        topology: None,
        evicted_whole: false,
        was_scheduled: false,
        problem: None,
    })));
}

fn pass(bench: &mut Bench, at: Duration) {
    bench.tick(at);
    bench.work();
    bench.tick(at + Duration::from_millis(60));
    bench.work();
}

#[test]
fn a_gang_is_admitted_with_all_that_it_needs_and_others_do_not_take_its_room_meanwhile() {
    let mut bench = bench(1, &["m", "n"], &[quota("a", None, Some(350))]);
    bench.apply(of("a", "before", 100));
    bench.work();
    gang(&mut bench, 3);
    (0..4).for_each(|at| bench.apply(of("a", &format!("g-{at}"), 100)));
    bench.apply(of("a", "after", 100));
    pass(&mut bench, S);
    assert_eq!(bench.bound(), ["before"]);
    let why = "quota a: requested cpu=300m, used cpu=100m, maximum cpu=350m (for the pods that must be placed together)";
    assert_eq!(last_told(&bench, "g-0"), ("QuotaExceeded", why));
    pass(&mut bench, 3 * S);
    let told = bench.statuses.last().expect("it has a status");
    assert_eq!((told.phase, &*told.message), (Phase::Pending, why));
    delete(&mut bench, "before");
    pass(&mut bench, 5 * S);
    assert_eq!((bench.binds.len(), used(&bench, "a")), (4, 300), "no more than there is room for");
    assert!(bench.bound()[1..].iter().all(|uid| uid.starts_with("g-")), "{:?}", bench.bound());
    apply(&mut bench, quota("a", None, Some(500)));
    pass(&mut bench, 7 * S);
    pass(&mut bench, 9 * S);
    assert_eq!((bench.binds.len(), used(&bench, "a")), (6, 500));
}

#[test]
fn a_gang_that_loses_a_member_in_the_line_leaves_it() {
    let mut bench = bench(1, &["n"], &[quota("a", None, Some(200))]);
    gang(&mut bench, 3);
    (0..3).for_each(|at| bench.apply(of("a", &format!("g-{at}"), 100)));
    pass(&mut bench, S);
    assert_eq!(bench.scheduler.queue_lengths().over_quota, 1);
    delete(&mut bench, "g-1");
    bench.apply(of("a", "single", 100));
    pass(&mut bench, 3 * S);
    assert_eq!((bench.bound(), bench.scheduler.queue_lengths().over_quota), (vec!["single"], 0));
}

// Guarantees.

fn run_on(bench: &mut Bench, node: &str, pod: Pod) {
    bench.apply(Pod { started_s: Some(1), ..on(node, pod) });
}

fn evicted(bench: &Bench) -> Vec<&str> {
    bench.evictions.iter().map(|eviction| &*eviction.victim.uid).collect()
}

/// Deletes all evicted pods; their controller creates replacements.
fn replace_evicted(bench: &mut Bench, priority: i32, round: usize) -> usize {
    let gone: Vec<_> = bench.evictions.drain(..).map(|eviction| eviction.victim.uid).collect();
    for uid in &gone {
        bench.apply(important(priority, of("lent", &format!("again{round}-{uid}"), 250)));
    }
    bench.work();
    for uid in &gone {
        delete(bench, uid);
        bench.work();
    }
    gone.len()
}

#[test]
fn a_quota_takes_back_what_it_has_lent_up_to_its_guarantee_and_not_one_pod_more() {
    for priority in [0, 9] {
        let quotas = [quota("own", Some(1000), None), quota("lent", Some(1000), None)];
        let mut bench = bench(1, &["m", "n"], &quotas);
        for at in 0..8 {
            let node = if at < 4 { "m" } else { "n" };
            run_on(&mut bench, node, important(priority, of("lent", &format!("l{at}"), 250)));
        }
        (0..6).for_each(|at| bench.apply(of("own", &format!("o{at}"), 250)));
        let mut evictions = 0;
        for round in 0..12 {
            bench.work();
            bench.tick((round as u32 + 1) * 10 * S);
            bench.work();
            evictions += replace_evicted(&mut bench, priority, round);
        }
        assert_eq!((used(&bench, "own"), used(&bench, "lent")), (1000, 1000));
        assert_eq!(evictions, 4, "one eviction per reclaimed pod");
        // Two of one quota, four of the other: the cluster is full.
        assert_eq!(bench.in_state("parked"), 6);
        assert_eq!(status(&bench, "lent").reclaimed, 4);
    }
}

#[test]
fn borrowers_are_preempted_before_pods_of_lower_priority() {
    let mut bench = bench(1, &["m", "n"], &[quota("own", Some(500), None), quota("lent", Some(0), None)]);
    run_on(&mut bench, "m", of("none", "low", 1000));
    run_on(&mut bench, "n", important(9, of("lent", "high", 1000)));
    bench.apply(important(5, of("own", "p", 500)));
    bench.work();
    assert_eq!(evicted(&bench), ["high"]);
    assert_eq!(bench.scheduler.check(), []);
}

#[test]
fn a_gang_takes_back_what_all_its_members_need_if_that_fits_into_the_guarantee() {
    for (guaranteed, evicts) in [(1000, 2), (900, 0)] {
        let quotas = [quota("a", Some(guaranteed), None), quota("lent", Some(0), None)];
        let mut bench = bench(1, &["m", "n"], &quotas);
        gang(&mut bench, 2);
        for (node, uid) in [("m", "l0"), ("m", "l1"), ("n", "l2"), ("n", "l3")] {
            run_on(&mut bench, node, important(9, of("lent", uid, 500)));
        }
        bench.apply(of("a", "g-1", 500));
        bench.apply(of("a", "g-2", 500));
        pass(&mut bench, S);
        assert_eq!(evicted(&bench).len(), evicts);
        let victims: Vec<String> = evicted(&bench).into_iter().map(str::to_owned).collect();
        victims.iter().for_each(|uid| delete(&mut bench, uid));
        pass(&mut bench, 2 * S);
        assert_eq!(bench.bound().len(), evicts);
    }
}

#[test]
fn reclaimed_resources_go_to_the_quota_that_reclaimed_them() {
    let mut bench = bench(1, &["n"], &[quota("own", Some(1000), None), quota("lent", Some(0), None)]);
    for at in 0..2 {
        run_on(&mut bench, "n", important(9, of("lent", &format!("l{at}"), 500)));
    }
    bench.apply(of("own", "p", 1000));
    bench.work();
    assert_eq!(bench.evictions.len(), 2);
    bench.apply(important(9, of("lent", "again", 500)));
    bench.apply(important(9, of("none", "other", 500)));
    delete(&mut bench, "l0");
    bench.work();
    assert!(bench.binds.is_empty(), "{:?}", bench.bound());
    delete(&mut bench, "l1");
    bench.work();
    assert_eq!(bench.bound(), ["p"]);
}

#[test]
fn a_pod_beyond_its_guarantee_cannot_reclaim_from_other_quotas() {
    let quotas = [quota("own", Some(100), None), quota("covered", Some(1000), None)];
    let mut bench = bench(1, &["n"], &quotas);
    run_on(&mut bench, "n", of("covered", "low", 1000));
    bench.apply(important(9, of("own", "p", 500)));
    bench.work();
    assert!(bench.evictions.is_empty());
    // A pod without a quota still does.
    bench.apply(important(9, of("none", "free", 500)));
    bench.work();
    assert_eq!(evicted(&bench), ["low"]);
}

/// The room of one pod is free, and the first ones in the line cannot use it.
#[test]
fn room_that_an_admitted_pod_cannot_use_is_offered_to_the_next() {
    let mut bench = bench(1, &["n"], &[quota("a", None, Some(700))]);
    bench.apply(on("n", of("a", "placed", 600)));
    // As much as the quota has, but no node that is labelled so.
    for uid in ["nowhere-1", "nowhere-2"] {
        let mut pod = of("a", uid, 300);
        let spec = pod.spec.as_ref().unwrap();
        let node_selector = [("zone", "none")].into_iter().collect();
        pod.spec = Ok(Arc::new(PodSpec { node_selector, ..PodSpec::clone(spec) }));
        bench.apply(pod);
    }
    bench.apply(of("a", "gone", 300));
    bench.apply(of("a", "next", 300));
    bench.work();
    assert_eq!(bench.in_state("over quota"), 4);
    apply(&mut bench, quota("a", None, Some(900)));
    delete(&mut bench, "gone");
    bench.work();
    assert_eq!((bench.bound(), bench.in_state("parked"), bench.in_state("over quota")), (vec!["next"], 2, 0));
}

#[test]
fn what_reclaim_says_holds() {
    for (reclaim, priority, victims) in [
        (Reclaim::LowerPriority, 0, 0),
        (Reclaim::LowerPriority, 9, 1),
        (Reclaim::Never, 9, 0),
        (Reclaim::Any, 0, 1),
    ] {
        let own = Quota { reclaim, ..quota("own", Some(1000), None) };
        let mut bench = bench(1, &["n"], &[own, quota("lent", Some(0), None)]);
        run_on(&mut bench, "n", important(5, of("lent", "victim", 1000)));
        bench.apply(important(priority, of("own", "p", 500)));
        bench.work();
        assert_eq!(bench.evictions.len(), victims, "{reclaim:?} {priority}");
    }
}

#[test]
fn a_guarantee_that_is_given_later_is_taken_up() {
    let mut bench = bench(1, &["n"], &[quota("lent", Some(0), None)]);
    run_on(&mut bench, "n", of("lent", "victim", 1000));
    bench.apply(of("own", "p", 500));
    bench.work();
    bench.tick(S);
    assert!(bench.evictions.is_empty());
    apply(&mut bench, quota("own", Some(500), None));
    for at in 2..15 {
        bench.tick(at * S);
        bench.work();
    }
    assert_eq!(evicted(&bench), ["victim"]);
}

#[test]
fn a_process_that_starts_while_victims_leave_goes_on_where_the_last_one_was() {
    let quotas = [quota("own", Some(500), None), quota("lent", Some(0), None)];
    let mut bench = bench(1, &["n"], &quotas);
    let leaving = |uid: &str, leaves: bool| {
        let pod = important(9, of("lent", uid, 500));
        let peer = Arc::new(Peer { terminating: leaves, ..Peer::clone(&pod.peer) });
        Pod { peer, deleting: leaves, ..pod }
    };
    run_on(&mut bench, "n", leaving("l0", true));
    run_on(&mut bench, "n", leaving("l1", false));
    bench.apply(Pod { nominated_node: Some("n".into()), ..of("own", "p", 500) });
    bench.apply(important(9, of("lent", "again", 500)));
    bench.work();
    assert!(bench.evictions.is_empty() && bench.binds.is_empty());
    delete(&mut bench, "l0");
    bench.work();
    assert_eq!((bench.bound(), bench.evictions.len()), (vec!["p"], 0));
}

#[test]
fn a_pod_over_its_quota_adopts_no_nomination_that_its_status_still_has() {
    let mut bench = bench(1, &["n"], &[quota("q", None, Some(600))]);
    bench.apply(on("n", of("q", "first", 500)));
    bench.apply(Pod { nominated_node: Some("n".into()), ..of("q", "p", 500) });
    bench.work();
    let withdrawn = ("p".to_owned(), None);
    assert_eq!((bench.in_state("over quota"), bench.nominations.clone()), (1, vec![withdrawn.clone()]));
    // That was not written before another term begins.
    bench.scheduler.set_leading(false);
    bench.scheduler.set_leading(true);
    bench.collect();
    assert_eq!(bench.scheduler.nominated_pods().count(), 0);
    assert_eq!(bench.nominations, [withdrawn.clone(), withdrawn]);
}

#[test]
fn a_gang_whose_quota_is_lowered_while_its_victims_leave_keeps_no_room_also_in_another_term() {
    let mut bench = bench(1, &["m", "n"], &[quota("a", None, Some(1000)), quota("b", None, None)]);
    gang(&mut bench, 2);
    run_on(&mut bench, "m", of("b", "x", 1000));
    run_on(&mut bench, "n", of("b", "y", 1000));
    for uid in ["g-1", "g-2"] {
        bench.apply(important(9, of("a", uid, 500)));
    }
    pass(&mut bench, S);
    assert!(!evicted(&bench).is_empty());
    assert_eq!(bench.scheduler.nominated_pods().count(), 2);
    let nominated = |uid: &str| {
        let last = bench.nominations.iter().rev().find(|(of, _)| of == uid);
        last.and_then(|(_, node)| node.clone()).map(Arc::from)
    };
    let news =
        ["g-1", "g-2"].map(|uid| Pod { nominated_node: nominated(uid), ..important(9, of("a", uid, 500)) });

    apply(&mut bench, quota("a", None, Some(700)));
    pass(&mut bench, 2 * S);
    for victim in ["x", "y"] {
        delete(&mut bench, victim);
    }
    pass(&mut bench, 4 * S);
    assert_eq!((bench.bound(), bench.scheduler.nominated_pods().count()), (vec![], 0));
    assert_eq!(bench.scheduler.ledger().reserved().count(), 0);
    // Another term sees the nominations that the status still has.
    bench.scheduler.set_leading(false);
    news.into_iter().for_each(|pod| bench.apply(pod));
    bench.scheduler.set_leading(true);
    pass(&mut bench, 6 * S);
    pass(&mut bench, 8 * S);
    assert_eq!(bench.scheduler.nominated_pods().count(), 0);
    assert_eq!(bench.scheduler.ledger().reserved().count(), 0);
}
