//! Binds of other schedulers: reviewed by the guard, or requested from the extender; and shares of replicas.

use super::*;
use crate::inventory::{GRANTED, KEPT_FROM_ALL};
use crate::placement::Truth;
use crate::scheduler::{BindRefusal, BindReview, ExtenderBind, ForeignCounts, Requester, Share};

/// Returns a scheduler that tracks pods of other schedulers, with nodes of 1000 milli-CPU.
fn guard(nodes: &[&str]) -> Bench {
    let mut bench = Bench::new(1, nodes);
    bench.scheduler.cluster.config.knows_others = true;
    bench
}

fn foreign(uid: &str, cpu: i64) -> Pod {
    Pod { scheduler_name: "default-scheduler".into(), ..pod(uid, cpu) }
}

fn to(uid: &str, node: &str) -> Binding {
    Binding { uid: uid.into(), namespace: "ns".into(), name: uid.into(), node: node.into(), decision: None }
}

impl Bench {
    fn review(&mut self, uid: &str, node: &str) -> BindReview {
        let review = self.scheduler.review(&to(uid, node), None, Some(self.now + 60 * S), Requester::Other);
        self.collect();
        review
    }

    fn asked(&mut self, uid: &str, node: &str) -> ExtenderBind {
        let asked = self.scheduler.begin_extender_bind(&to(uid, node), None);
        self.collect();
        asked
    }

    /// Reads the pod of a hold that has expired.
    fn read(&mut self, uid: &str, node: &str, truth: Truth) {
        self.read_at(self.now + 60 * S, uid, node, truth);
    }

    fn read_at(&mut self, asked: Duration, uid: &str, node: &str, truth: Truth) {
        self.scheduler.held_pod_read(&to(uid, node), &truth, asked, self.now);
        self.collect();
    }

    fn counts(&self) -> (usize, usize, usize) {
        let ForeignCounts { pods, holds, binds } = self.scheduler.foreign_counts();
        (pods, holds, binds)
    }
}

#[test]
fn room_that_was_granted_is_taken_until_the_pod_is_seen() {
    let mut bench = guard(&["a"]);
    bench.apply(foreign("p", 600));
    bench.apply(foreign("q", 600));
    assert_eq!(bench.review("p", "a"), BindReview::Allowed);
    assert_eq!(bench.review("p", "a"), BindReview::Allowed, "the same again");
    let BindReview::Refused(why) = bench.review("q", "a") else { panic!("there is no room") };
    assert_eq!(why.to_string(), "the pod no longer fits node a: Insufficient cpu");
    assert_eq!((bench.counts(), bench.cpu_taken("a")), ((2, 1, 0), 600));
    bench.apply(on("a", foreign("p", 600)));
    assert_eq!((bench.counts(), bench.cpu_taken("a")), ((1, 0, 0), 600));
    bench.scheduler.delete_pod(&Arc::from("p"));
    assert_eq!(bench.review("q", "a"), BindReview::Allowed);
}

#[test]
fn room_granted_to_a_pod_that_is_younger_than_a_list_stays_taken_when_the_list_ends() {
    let mut bench = guard(&["a"]);
    // The list was made before these pods were created.
    let young = foreign("young", 600);
    let review = bench.scheduler.review(&to("young", "a"), Some(&young), Some(60 * S), Requester::Other);
    assert_eq!(review, BindReview::Allowed);
    bench.apply(foreign("asked", 300));
    assert!(matches!(bench.asked("asked", "a"), ExtenderBind::Begin(_)));
    bench.scheduler.retain_pods(&HashSet::new());
    bench.collect();
    assert_eq!(bench.cpu_taken("a"), 900);
    assert!(matches!(
        bench.scheduler.review(&to("late", "a"), Some(&foreign("late", 300)), Some(60 * S), Requester::Other),
        BindReview::Refused(_)
    ));
    bench.read("young", "a", Truth::Gone);
    assert_eq!(bench.cpu_taken("a"), 300);
}

#[test]
fn room_on_a_former_node_outlives_a_list_like_that_on_the_present_one() {
    let mut bench = guard(&["a", "b"]);
    bench.apply(foreign("p", 600));
    bench.review("p", "a");
    bench.review("p", "b");
    bench.read("p", "b", Truth::Unbound { bindable: true });
    bench.scheduler.retain_pods(&HashSet::new());
    bench.collect();
    assert_eq!(bench.counts().1, 1);
    bench.read("p", "a", Truth::Gone);
    assert_eq!(bench.counts(), (0, 0, 0));
}

#[test]
fn room_kept_for_a_pod_of_berth_does_not_refuse_binds_of_others() {
    for (priority, allowed) in [(KEPT_FROM_ALL, true), (GRANTED, false)] {
        let mut bench = guard(&["a"]);
        bench.apply(foreign("p", 600));
        let usage = pod("aged", 600).usage;
        bench.scheduler.cluster.ledger.reserve(&"aged".into(), Some((&"a".into(), priority, &usage)));
        assert_eq!(bench.review("p", "a") == BindReview::Allowed, allowed, "priority {priority}");
    }
}

#[test]
fn a_dry_run_holds_nothing_and_an_unknown_pod_is_asked_for() {
    let mut bench = guard(&["a"]);
    bench.apply(foreign("p", 600));
    assert_eq!(bench.scheduler.review(&to("p", "a"), None, None, Requester::Other), BindReview::Allowed);
    assert_eq!(bench.counts(), (1, 0, 0));
    assert_eq!(bench.review("stranger", "a"), BindReview::Unknown);
    let read = foreign("stranger", 600);
    assert_eq!(
        bench.scheduler.review(&to("stranger", "a"), Some(&read), Some(S), Requester::Other),
        BindReview::Allowed
    );
    assert_eq!(bench.cpu_taken("a"), 600);
    assert!(
        matches!(bench.review("p", "nowhere"), BindReview::Refused(why) if why.to_string().contains("node nowhere is not in"))
    );
}

#[test]
fn room_is_given_back_only_when_the_pod_is_read_without_a_node() {
    let mut bench = guard(&["a"]);
    bench.apply(foreign("p", 600));
    assert_eq!(bench.review("p", "a"), BindReview::Allowed);
    assert_eq!(bench.scheduler.holds_due(59 * S), []);
    assert_eq!(bench.scheduler.holds_due(60 * S), [to("p", "a")]);
    bench.read("p", "a", Truth::Unreadable("no answer".into()));
    assert_eq!(bench.cpu_taken("a"), 600, "nothing is known");
    bench.read("p", "a", Truth::Unbound { bindable: true });
    assert_eq!((bench.cpu_taken("a"), bench.counts()), (0, (1, 0, 0)));
    assert_eq!(bench.review("p", "a"), BindReview::Allowed, "and asked again");
    bench.read("p", "a", Truth::Gone);
    assert_eq!((bench.cpu_taken("a"), bench.counts()), (0, (0, 0, 0)));
}

#[test]
fn a_binding_to_another_node_leaves_room_on_both_until_the_truth_is_known() {
    let mut bench = guard(&["a", "b"]);
    bench.apply(foreign("p", 600));
    bench.apply(foreign("q", 600));
    assert_eq!(bench.review("p", "a"), BindReview::Allowed);
    assert_eq!(bench.review("p", "b"), BindReview::Allowed);
    assert!(
        matches!(bench.review("q", "a"), BindReview::Refused(_)),
        "the first request may still be carried out"
    );
    assert!(matches!(bench.review("q", "b"), BindReview::Refused(_)));
    // A new list of all pods does not contain the name of the former hold.
    bench.scheduler.retain_pods(&[Arc::from("p"), Arc::from("q")].into());
    assert!(matches!(bench.review("q", "a"), BindReview::Refused(_)));
    bench.apply(on("b", foreign("p", 600)));
    bench.read("p", "a", Truth::BoundTo("b".into()));
    assert_eq!((bench.cpu_taken("a"), bench.cpu_taken("b")), (0, 600));
    assert_eq!(bench.review("q", "a"), BindReview::Allowed);
}

#[test]
fn a_read_ends_no_hold_that_a_later_request_has_extended_or_made_anew() {
    let free = Truth::Unbound { bindable: true };
    let mut bench = guard(&["a", "b"]);
    bench.apply(foreign("p", 600));
    assert_eq!(bench.review("p", "a"), BindReview::Allowed);
    bench.now = 61 * S;
    // The same bind is requested again while the read is in flight.
    assert_eq!(bench.review("p", "a"), BindReview::Allowed);
    bench.read_at(60 * S, "p", "a", free.clone());
    assert_eq!((bench.cpu_taken("a"), bench.counts()), (600, (1, 1, 0)));
    bench.read_at(121 * S, "p", "a", free.clone());
    assert_eq!((bench.cpu_taken("a"), bench.counts()), (0, (1, 0, 0)));

    // A former node is held anew: the room stays taken until neither request can have an effect.
    let mut bench = guard(&["a", "b"]);
    bench.apply(foreign("p", 400));
    for (at, node) in [(0, "a"), (10, "b"), (20, "a")] {
        bench.now = at * S;
        assert_eq!(bench.review("p", node), BindReview::Allowed);
    }
    assert_eq!(bench.scheduler.holds_due(60 * S), []);
    bench.read_at(60 * S, "p", "a", free);
    assert_eq!((bench.cpu_taken("a"), bench.counts()), (400, (1, 2, 0)));
}

#[test]
fn room_on_a_former_node_is_given_back_when_the_pod_is_seen_bound_or_gone() {
    for gone in [false, true] {
        let mut bench = guard(&["a", "b"]);
        bench.apply(foreign("p", 600));
        bench.apply(foreign("q", 600));
        assert_eq!(bench.review("p", "a"), BindReview::Allowed);
        assert_eq!(bench.review("p", "b"), BindReview::Allowed);
        match gone {
            true => bench.scheduler.delete_pod(&"p".into()),
            false => bench.apply(on("b", foreign("p", 600))),
        }
        assert_eq!(bench.counts(), (1, 0, 0));
        assert_eq!(bench.review("q", "a"), BindReview::Allowed, "gone: {gone}");
    }
}

#[test]
fn a_request_to_a_former_node_takes_the_room_that_is_held_there() {
    let mut bench = guard(&["a", "b"]);
    bench.apply(foreign("p", 600));
    for node in ["a", "b", "a"] {
        assert_eq!(bench.review("p", node), BindReview::Allowed);
    }
    assert_eq!((bench.cpu_taken("a"), bench.cpu_taken("b"), bench.counts()), (600, 0, (1, 2, 0)));
    bench.read("p", "a", Truth::Unbound { bindable: true });
    assert_eq!((bench.cpu_taken("a"), bench.counts()), (0, (1, 1, 0)));
}

#[test]
fn room_on_a_former_node_stays_taken_until_the_pod_that_is_read_there_is_seen() {
    let mut bench = guard(&["a", "b"]);
    bench.apply(foreign("p", 600));
    bench.apply(foreign("q", 600));
    assert_eq!(bench.review("p", "a"), BindReview::Allowed);
    assert_eq!(bench.review("p", "b"), BindReview::Allowed);
    bench.read("p", "b", Truth::Unbound { bindable: true });
    // The first request wins, and the watch lags.
    bench.read("p", "a", Truth::BoundTo("a".into()));
    assert!(matches!(bench.review("q", "a"), BindReview::Refused(_)));
    bench.apply(on("a", foreign("p", 600)));
    assert_eq!((bench.cpu_taken("a"), bench.counts()), (600, (1, 0, 0)));
}

#[test]
fn a_waiting_pod_is_reviewed_for_the_quota_that_it_belongs_to_now() {
    let mut bench = guard(&["a"]);
    bench.apply(quotas::of("q", "p", 600));
    bench.scheduler.apply_object(ClusterObject::Quota(Box::new(quotas::quota("q", None, Some(500)))));
    assert!(matches!(bench.review("p", "a"), BindReview::Refused(BindRefusal::OverQuota { .. })));
}

#[test]
fn a_held_pod_counts_once_against_its_quota() {
    let mut bench = guard(&["a", "b"]);
    let quota = quotas::quota("q", None, Some(1000));
    bench.scheduler.apply_object(ClusterObject::Quota(Box::new(quota)));
    bench.apply(quotas::of("q", "p", 600));
    assert_eq!(bench.review("p", "a"), BindReview::Allowed);
    assert_eq!(bench.review("p", "b"), BindReview::Allowed);
}

#[test]
fn the_first_request_may_win_after_all() {
    let mut bench = guard(&["a", "b"]);
    bench.apply(foreign("p", 600));
    assert_eq!(bench.review("p", "a"), BindReview::Allowed);
    assert_eq!(bench.review("p", "b"), BindReview::Allowed);
    bench.read("p", "b", Truth::BoundTo("a".into()));
    assert_eq!((bench.cpu_taken("a"), bench.cpu_taken("b")), (600, 0));
}

#[test]
fn our_own_binds_are_allowed_where_we_send_them_and_refused_elsewhere() {
    let mut bench = guard(&["a", "b"]);
    bench.apply(pod("p", 600));
    bench.work();
    let (ours, other) = match &*bench.binds[0].node {
        "a" => ("a", "b"),
        _ => ("b", "a"),
    };
    assert_eq!(bench.review("p", ours), BindReview::Allowed);
    assert!(
        matches!(bench.review("p", other), BindReview::Refused(why) if why.to_string().contains("berth is binding the pod"))
    );
    let binding = bench.binds[0].clone();
    bench.finish(&binding, BindOutcome::Bound);
    assert_eq!(bench.review("p", other), BindReview::Allowed, "the API server rejects it itself");
}

#[test]
fn a_hold_for_our_own_late_request_ends_when_the_store_says_that_it_has_no_effect() {
    let mut bench = guard(&["a"]);
    bench.apply(pod("p", 600));
    bench.work();
    // It has been bound, has run and ended, and the reply was lost; the request is repeated and reviewed.
    bench.scheduler.delete_pod(&"p".into());
    let read = pod("p", 600);
    let review =
        bench.scheduler.review(&to("p", "a"), Some(&read), Some(bench.now + 60 * S), Requester::Other);
    assert_eq!((review, bench.counts().1, bench.cpu_taken("a")), (BindReview::Allowed, 1, 600));
    let binding = bench.binds[0].clone();
    bench.finish(&binding, BindOutcome::Vanished);
    assert_eq!((bench.counts().1, bench.cpu_taken("a")), (0, 0));
}

#[test]
fn when_our_own_bind_fails_the_room_stays_that_of_another_client_that_binds_the_pod_there() {
    for (requester, cpu, held) in [(Requester::Other, 1000, 1), (Requester::ThisProcess, 0, 0)] {
        let mut bench = guard(&["a"]);
        bench.apply(pod("p", 1000));
        bench.work();
        let until = Some(bench.now + 60 * S);
        let review = bench.scheduler.review(&to("p", "a"), None, until, requester);
        assert_eq!(review, BindReview::Allowed);
        bench.finish(&to("p", "a"), BindOutcome::Refused("another webhook denies it".into()));
        assert_eq!((bench.cpu_taken("a"), bench.in_state("held")), (cpu, held), "{requester:?}");
        bench.tick(61 * S);
        bench.read_at(bench.now, "p", "a", Truth::Unbound { bindable: true });
        bench.work();
        assert_eq!((bench.counts(), bench.bound()), ((0, 0, 0), vec!["p", "p"]), "it is placed again");
    }
}

#[test]
fn a_pod_of_ours_that_another_replica_binds_waits_for_what_comes_of_it() {
    let mut bench = guard(&["a"]);
    bench.apply(pod("p", 600));
    bench.collect();
    assert_eq!(bench.review("p", "a"), BindReview::Allowed);
    bench.work();
    assert_eq!((bench.binds.len(), bench.cpu_taken("a")), (0, 600), "it is not placed here, too");
    // Its labels change in the meantime, and it is not bound in the end: it is queued again.
    bench.apply(Pod { generation: 2, ..pod("p", 600) });
    bench.read("p", "a", Truth::Unbound { bindable: true });
    bench.work();
    assert_eq!(bench.binds.len(), 1);
    let binding = bench.binds[0].clone();
    bench.finish(&binding, BindOutcome::Bound);
    assert_eq!(bench.cpu_taken("a"), 600);
}

#[test]
fn a_pod_of_ours_that_is_read_where_another_replica_bound_it_waits_no_more() {
    let mut bench = guard(&["a"]);
    bench.apply(pod("p", 600));
    assert_eq!(bench.review("p", "a"), BindReview::Allowed);
    assert_eq!(bench.in_state("held"), 1);
    // The watch lags.
    bench.read("p", "a", Truth::BoundTo("a".into()));
    assert_eq!(bench.scheduler.check(), []);
    assert_eq!((bench.in_state("held"), bench.cpu_taken("a")), (0, 600));
    bench.apply(on("a", pod("p", 600)));
    assert_eq!((bench.scheduler.check(), bench.cpu_taken("a")), (vec![], 600));
}

#[test]
fn an_extenders_bind_goes_through_the_ledger_and_is_asked_for_once() {
    let mut bench = guard(&["a"]);
    bench.apply(foreign("p", 600));
    bench.apply(foreign("q", 600));
    assert_eq!(bench.asked("p", "a"), ExtenderBind::Begin(to("p", "a")));
    assert_eq!(bench.asked("p", "a"), ExtenderBind::InFlight);
    let ExtenderBind::Refused(why) = bench.asked("q", "a") else { panic!("there is no room") };
    assert_eq!(why.to_string(), "the pod no longer fits node a: Insufficient cpu");
    assert_eq!(bench.review("p", "a"), BindReview::Allowed, "the guard knows it");
    bench.scheduler.extender_bind_finished(&to("p", "a"), &BindOutcome::Bound);
    bench.collect();
    assert_eq!(bench.asked("p", "a"), ExtenderBind::Done);
    assert_eq!((bench.counts(), bench.cpu_taken("a")), ((1, 0, 0), 600));
    // Pods of berth see the reduced resources, too.
    bench.apply(pod("ours", 600));
    bench.work();
    assert_eq!(bench.binds.len(), 0);
}

#[test]
fn an_extenders_bind_that_fails_leaves_nothing_behind() {
    let mut bench = guard(&["a"]);
    for outcome in [BindOutcome::Refused("gates".into()), BindOutcome::Vanished] {
        bench.apply(foreign("p", 600));
        assert_eq!(bench.asked("p", "a"), ExtenderBind::Begin(to("p", "a")));
        bench.scheduler.extender_bind_finished(&to("p", "a"), &outcome);
        bench.collect();
        assert_eq!((bench.cpu_taken("a"), bench.counts().2), (0, 0));
    }
    assert_eq!(
        bench.asked("p", "a"),
        ExtenderBind::Unknown,
        "it is gone, so that it is read before it is bound"
    );
    bench.apply(foreign("p", 600));
    assert_eq!(bench.asked("p", "a"), ExtenderBind::Begin(to("p", "a")));
    bench.scheduler.extender_bind_finished(&to("p", "a"), &BindOutcome::BoundElsewhere("b".into()));
    bench.collect();
    assert!(
        matches!(bench.asked("p", "a"), ExtenderBind::Refused(why) if why.to_string().contains("bound to node b"))
    );
    bench.scheduler.set_leading(false);
    assert!(
        matches!(bench.asked("q", "a"), ExtenderBind::Refused(why) if why.to_string().contains("is not the leader"))
    );
}

#[test]
fn room_that_is_kept_for_a_preemptor_does_not_keep_itself_out() {
    let mut bench = guard(&["a"]);
    let preemptor = Pod { nominated_node: Some("a".into()), priority: 10, ..foreign("p", 600) };
    bench.apply(preemptor.clone());
    let class = bench.scheduler.class_of(&preemptor);
    let (_, standing) = bench.scheduler.nominated(&class, &preemptor).expect("there is such a node");
    assert!(standing.is_ok());
    bench.apply(foreign("q", 600));
    assert!(matches!(bench.asked("q", "a"), ExtenderBind::Refused(_)), "it is of a lower priority");
    assert!(matches!(bench.asked("p", "a"), ExtenderBind::Begin(_)));
}

#[test]
fn only_victims_that_make_room_make_a_node_right() {
    let mut bench = guard(&["a", "b"]);
    for (uid, node) in [("v", "a"), ("w", "a"), ("x", "b")] {
        bench.apply(on(node, foreign(uid, 500)));
    }
    let pod = foreign("p", 800);
    let class = bench.scheduler.class_of(&pod);
    let admits = |node: &str, victims: &[&str]| bench.scheduler.admits_without(&class, &pod, node, victims);
    assert!(!admits("a", &[]) && !admits("a", &["v"]) && admits("a", &["v", "w"]));
    assert!(!admits("b", &["v", "w"]), "they are elsewhere");
    assert!(admits("b", &["x"]) && !admits("nowhere", &["x"]));
}

#[test]
fn a_replica_places_its_share_and_takes_over_what_falls_to_it() {
    let mut benches = [guard(&["a"]), guard(&["a"])];
    let names = ["one", "two"];
    for (bench, me) in benches.iter_mut().zip(names) {
        bench.scheduler.set_share(Some(Share::new(me, names)));
        for class in 1..=20 {
            // Each request is a class of its own.
            bench.apply(pod(&format!("p{class}"), class));
        }
        bench.work();
    }
    let shares = benches.each_ref().map(|bench| bench.binds.len());
    assert!(shares[0] > 0 && shares[1] > 0 && shares[0] + shares[1] == 20, "{shares:?}");
    // The other replica is gone.
    let [one, _] = &mut benches;
    one.scheduler.set_share(Some(Share::new("one", ["one"])));
    one.work();
    assert_eq!(one.binds.len(), 20);
    let placed: HashSet<_> = one.binds.iter().map(|binding| binding.uid.clone()).collect();
    assert_eq!(placed.len(), 20);
}

#[test]
fn a_second_request_holds_the_room_until_it_can_have_no_effect_either() {
    let mut bench = guard(&["a"]);
    bench.apply(foreign("p", 600));
    assert_eq!(bench.review("p", "a"), BindReview::Allowed);
    bench.now = 30 * S;
    assert_eq!(bench.review("p", "a"), BindReview::Allowed);
    assert_eq!(bench.scheduler.holds_due(89 * S), []);
    assert_eq!(bench.scheduler.holds_due(90 * S), [to("p", "a")]);
}

#[test]
fn what_we_assumed_before_we_were_the_guard_is_looked_at_again() {
    let mut bench = guard(&["a"]);
    bench.apply(pod("ours", 600));
    bench.work();
    assert_eq!(bench.review("ours", "a"), BindReview::Allowed);
    // The previous guard granted the resources to another pod; the watch reports it now.
    bench.apply(on("a", foreign("theirs", 600)));
    assert!(
        matches!(bench.review("ours", "a"), BindReview::Refused(why) if why.to_string().contains("granted to other pods"))
    );
}

#[test]
fn room_on_a_former_node_counts_when_our_own_bind_is_looked_at_again() {
    let mut bench = guard(&["a", "b"]);
    bench.apply(on("b", foreign("resident", 700)));
    bench.apply(foreign("p", 300));
    assert_eq!(bench.review("p", "a"), BindReview::Allowed);
    assert_eq!(bench.review("p", "b"), BindReview::Allowed);
    bench.apply(pod("ours", 600));
    bench.work();
    assert_eq!(bench.review("ours", "a"), BindReview::Allowed);
    bench.scheduler.apply_node(node("a", 800));
    assert!(matches!(bench.review("ours", "a"), BindReview::Refused(_)));
}

#[test]
fn a_pod_that_was_held_before_we_heard_of_it_is_ours_to_place_when_the_bind_never_comes() {
    let mut bench = guard(&["a"]);
    let read = pod("ours", 600);
    assert_eq!(
        bench.scheduler.review(&to("ours", "a"), Some(&read), Some(60 * S), Requester::Other),
        BindReview::Allowed
    );
    bench.apply(read);
    assert_eq!((bench.counts(), bench.cpu_taken("a")), ((0, 1, 0), 600));
    assert_eq!(bench.scheduler.check(), []);
    bench.now = 60 * S;
    bench.read("ours", "a", Truth::Unbound { bindable: true });
    bench.work();
    assert_eq!(bench.binds, [to("ours", "a")]);
}
