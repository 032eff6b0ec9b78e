//! Dry runs compared with a naive implementation of upstream's `SelectVictimsOnNode`, and the choice among them.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::agent::{Agent, AgentConfig, CacheLimits};
use crate::class::{Class, Classifier};
use crate::objects::{Budgets, ClusterObject, DisruptionBudget, ObjectName, ObjectStores};
use crate::rules::Salt;
use berth_model::{
    Amounts, Holding, Identity, LabelSelector, Node, Operator, Peer, PodRef, PodSpec, Requirement, Usage,
};

const CPU: i64 = 1000;

/// Priority, CPU, start and app of a pod on the node.
type Running = (i32, i64, i64, u8);

fn usage(cpu_milli: i64) -> Arc<Usage> {
    let requests = Amounts { cpu_milli, pods: 1, ..Amounts::default() };
    Arc::new(Usage { requests, ..Usage::default() })
}

fn app(app: u8) -> Identity {
    let labels = [("app", &*app.to_string())].into_iter().collect();
    Identity { namespace: "ns".into(), labels, ..Identity::default() }
}

fn ledger(pods: &[Running]) -> Ledger {
    let mut ledger = Ledger::default();
    let allocatable = Amounts { cpu_milli: CPU, pods: 110, ..Amounts::default() };
    ledger.apply_node(Node { name: "n".into(), allocatable, ..Node::default() });
    for (at, (priority, cpu, started, of)) in pods.iter().enumerate() {
        let uid: Arc<str> = format!("u{at}").into();
        let peer = Arc::new(Peer { identity: app(*of), ..Peer::default() });
        let holding = Holding { usage: usage(*cpu), peer, priority: *priority, ..Holding::default() };
        ledger.bound(&uid, &"n".into(), &holding);
        let name = uid.clone();
        let pod = PodRef { namespace: "ns".into(), name, uid, scheduler_name: "berth".into() };
        ledger.note_seen(pod, 1, Some(*started));
    }
    ledger
}

fn budgets(allowed: &[i32]) -> Budgets {
    let mut objects = ObjectStores::default();
    for (of, allowed) in allowed.iter().enumerate() {
        let requirement =
            Requirement { key: "app".into(), operator: Operator::In([of.to_string().into()].into()) };
        objects.apply(ClusterObject::DisruptionBudget(DisruptionBudget {
            name: ObjectName { namespace: "ns".into(), name: of.to_string().into() },
            selector: LabelSelector::All([requirement].into()),
            allowed: *allowed,
            disrupted: Default::default(),
        }));
    }
    objects.budgets
}

fn agent(ledger: &Ledger) -> Agent {
    let cache = CacheLimits::unlimited();
    let mut agent = Agent::new(AgentConfig { cache, seed: 1 });
    agent.catch_up(ledger.inventory());
    agent
}

fn class(cpu_milli: i64, priority: i32) -> Arc<Class> {
    let spec = Arc::new(PodSpec { usage: usage(cpu_milli), ..PodSpec::default() });
    let mut classifier = Classifier::default();
    classifier.note_reservations();
    classifier.classify(&spec, &Identity::default(), priority)
}

fn run(pods: &[Running], allowed: &[i32], cpu_milli: i64, priority: i32) -> Result<Victims, Fruitless> {
    let ledger = ledger(pods);
    let (mut agent, class) = (agent(&ledger), class(cpu_milli, priority));
    let site = Site::new(&ledger, NodeId(0), priority, &|_| None);
    let found = agent.dry_run(&class, &site, &budgets(allowed), Default::default());
    assert_eq!(agent.view().alterations(), 0, "the simulation is reverted");
    found
}

/// Upstream's algorithm, line by line, for CPU only: returns the uids of the victims in order, and the violations.
fn naive(pods: &[Running], allowed: &[i32], cpu_milli: i64, priority: i32) -> Option<(Vec<String>, u32)> {
    let mut potential: Vec<usize> = (0..pods.len()).filter(|at| pods[*at].0 < priority).collect();
    let mut taken: i64 = pods.iter().filter(|pod| pod.0 >= priority).map(|pod| pod.1).sum();
    if potential.is_empty() || taken + cpu_milli > CPU {
        return None;
    }
    let more_important = |at: &usize| (std::cmp::Reverse(pods[*at].0), pods[*at].2, format!("u{at}"));
    potential.sort_by_key(more_important);
    let mut left = allowed.to_vec();
    let (mut violating, mut others) = (Vec::new(), Vec::new());
    for at in potential {
        let mut violates = false;
        if let Some(left) = left.get_mut(pods[at].3 as usize) {
            *left -= 1;
            violates = *left < 0;
        }
        if violates { violating.push(at) } else { others.push(at) }
    }
    let (mut victims, mut violations) = (Vec::new(), 0);
    let wanted_kept = violating.len();
    for (turn, at) in violating.into_iter().chain(others).enumerate() {
        if taken + pods[at].1 + cpu_milli <= CPU {
            taken += pods[at].1;
        } else {
            victims.push(at);
            violations += u32::from(turn < wanted_kept);
        }
    }
    victims.sort_by_key(more_important);
    Some((victims.into_iter().map(|at| format!("u{at}")).collect(), violations))
}

proptest! {
    #[test]
    fn a_dry_run_finds_upstreams_victims_and_never_one_of_the_same_or_a_higher_priority(
        pods in prop::collection::vec((-1i32..4, 1i64..400, 0i64..5, 0u8..3), 1..9),
        allowed in prop::collection::vec(0i32..3, 0..3),
        cpu in 1i64..1100,
        priority in 0i32..4,
    ) {
        let fits_already = pods.iter().map(|pod| pod.1).sum::<i64>() + cpu <= CPU;
        prop_assume!(!fits_already);
        let found = run(&pods, &allowed, cpu, priority).ok();
        if let Some(victims) = &found {
            prop_assert!(victims.pods.iter().all(|pod| pod.holding.priority < priority));
        }
        let found = found.map(|victims| {
            let uids = victims.pods.iter().map(|pod| pod.pod.uid.to_string()).collect::<Vec<_>>();
            (uids, victims.violations)
        });
        prop_assert_eq!(found, naive(&pods, &allowed, cpu, priority));
    }

    #[test]
    fn a_survey_leaves_out_no_node_where_a_dry_run_finds_victims_and_its_bound_holds(
        pods in prop::collection::vec((-1i32..4, 1i64..400, 0i64..5, 0u8..1), 1..9),
        cpu in 1i64..1100,
        priority in 0i32..4,
    ) {
        prop_assume!(pods.iter().map(|pod| pod.1).sum::<i64>() + cpu > CPU);
        let ledger = ledger(&pods);
        let survey = agent(&ledger).survey(&class(cpu, priority), priority, &[], Default::default(), |_| {});
        let candidate = !survey.expect("nothing fits").candidates.is_empty();
        prop_assert_eq!(candidate, run(&pods, &[], cpu, priority).is_ok());
    }
}

fn victims(pods: &[(i32, i64)], violations: u32, groups: u32) -> Victims {
    let running: Vec<Running> = pods.iter().map(|(priority, started)| (*priority, 1, *started, 0)).collect();
    let pods = ledger(&running).occupants(NodeId(0)).into_iter().map(Arc::new).collect();
    Victims { node: NodeId(0), pods, violations, groups, lent: Vec::new(), unlent: 0 }
}

#[test]
fn the_cheapest_is_that_with_the_fewest_violations_then_the_lowest_the_fewest_and_the_latest_victims() {
    let ascending = [
        victims(&[(1, 20)], 0, 0),
        victims(&[(1, 10)], 0, 0),
        victims(&[(1, 10), (0, 0)], 0, 0),
        victims(&[(1, 20), (1, 30)], 0, 0),
        victims(&[(1, 10), (1, 30)], 0, 0),
        victims(&[(2, 10)], 0, 0),
        victims(&[(0, 10)], 0, 1),
        victims(&[(-5, 10)], 1, 0),
    ];
    assert!(ascending.is_sorted_by_key(Victims::cost));
    // Fewer victims of a negative priority are better than more.
    assert!(victims(&[(-5, 0)], 0, 0).cost() < victims(&[(-5, 0), (-5, 0)], 0, 0).cost());
}

/// Returns a group `g` of these pods, all of one role, of which so many are spare.
fn group(members: impl IntoIterator<Item = Arc<Occupant>>, spare: usize) -> Arc<VictimGroup> {
    let members = members.into_iter().map(|pod| (pod.pod.uid.clone(), (pod, 0))).collect();
    Arc::new(VictimGroup { name: "g".into(), members, spare: vec![spare], unsettled: false })
}

fn uids(victims: &Victims) -> Vec<&str> {
    victims.pods.iter().map(|pod| &*pod.pod.uid).collect()
}

#[test]
fn of_a_group_on_one_node_the_least_important_spare_pods_go_one_by_one_and_all_pods_beyond_that() {
    // u0 is the most important pod of the group u0…u2, and u3 is alone and more important than u2.
    let ledger = ledger(&[(3, 200, 0, 0), (2, 200, 0, 0), (0, 200, 0, 0), (1, 200, 0, 0)]);
    let victims = |spare, cpu_milli, allowed: &[i32]| {
        let member = |uid: &str| Arc::new(ledger.occupant(uid).expect("it is there"));
        let group = group(["u0", "u1", "u2"].map(member), spare);
        let site = Site::new(&ledger, NodeId(0), 5, &|uid| (uid != "u3").then(|| group.clone()));
        let found =
            agent(&ledger).dry_run(&class(cpu_milli, 5), &site, &budgets(allowed), Default::default());
        let found = found.expect("all pods are less important");
        (uids(&found).join(" "), found.groups, found.violations)
    };
    assert_eq!(victims(0, 400, &[]), ("u3".to_owned(), 0, 0), "the group is more important");
    assert_eq!(victims(1, 400, &[]), ("u2".to_owned(), 0, 0));
    assert_eq!(victims(1, 600, &[]), ("u3 u2".to_owned(), 0, 0));
    assert_eq!(victims(2, 800, &[]), ("u1 u3 u2".to_owned(), 0, 0));
    assert_eq!(victims(1, 800, &[]), ("u0 u1 u2".to_owned(), 1, 0));
    // A budget that allows one disruption allows that of the spare pod.
    assert_eq!(victims(1, 400, &[1]), ("u2".to_owned(), 0, 0));
}

#[test]
fn a_group_has_no_spare_pods_left_where_others_have_gone_elsewhere() {
    let ledger = ledger(&[(3, 300, 0, 0), (2, 300, 0, 0), (0, 300, 0, 0)]);
    let members = ["u0", "u1", "u2", "far", "near"].map(|uid| {
        let mut member = ledger.occupant(if uid.starts_with('u') { uid } else { "u0" }).expect("it is there");
        member.pod.uid = uid.into();
        Arc::new(member)
    });
    let group = group(members, 2);
    let site = Site::new(&ledger, NodeId(0), 5, &|_| Some(group.clone()));
    let spare = |site: &Site| site.pods.iter().map(|known| known.spare).collect::<Vec<_>>();
    assert_eq!(spare(&site), [true, true, false]);
    let left = site.left_without(&["other".into()].into());
    assert_eq!(spare(&left), [true, true, false]);
    // One after the other, as victims are found.
    let left = left.left_without(&["far".into()].into());
    assert_eq!(spare(&left), [true, false]);
    let left = left.left_without(&["near".into()].into());
    assert_eq!(spare(&left), [false]);
    let found = agent(&ledger).dry_run(&class(300, 5), &left, &Budgets::default(), Default::default());
    assert_eq!(uids(&found.expect("the whole group")), ["u0", "u1", "u2"], "none that is gone already");
}

#[test]
fn a_spare_pod_goes_before_the_rest_of_its_group_also_if_it_is_more_important() {
    // u0 has another role, of which one more is elsewhere; the others are the minimum of theirs.
    let ledger = ledger(&[(3, 200, 0, 0), (1, 400, 0, 0), (1, 400, 0, 0)]);
    let member = |uid: &str| Arc::new(ledger.occupant(uid).expect("it is there"));
    let members = [("u0", 0), ("u1", 1), ("u2", 1)].map(|(uid, role)| (uid.into(), (member(uid), role)));
    let group = VictimGroup {
        name: "g".into(),
        members: members.into_iter().collect(),
        spare: vec![1, 0],
        unsettled: false,
    };
    let group = Arc::new(group);
    let site = Site::new(&ledger, NodeId(0), 5, &|_| Some(group.clone()));
    let found = agent(&ledger).dry_run(&class(200, 5), &site, &Budgets::default(), Default::default());
    let victims = found.expect("it is less important");
    assert_eq!((uids(&victims), victims.groups), (vec!["u0"], 0));
}

#[test]
fn a_group_goes_as_a_whole_but_for_those_that_are_too_important() {
    let pods = [(0, 400, 10, 0), (0, 400, 5, 0), (1, 200, 0, 0)];
    let ledger = ledger(&pods);
    let elsewhere = |priority: i32| {
        let mut far = ledger.occupant("u0").expect("it is there");
        far.pod.uid = "far".into();
        far.holding.priority = priority;
        Arc::new(far)
    };
    let dry_run = |far: Arc<Occupant>| {
        let member = |uid: &str| Arc::new(ledger.occupant(uid).expect("it is there"));
        let group = group([member("u0"), far], 0);
        let site = Site::new(&ledger, NodeId(0), 5, &|uid| (uid == "u0").then(|| group.clone()));
        let found = agent(&ledger).dry_run(&class(300, 5), &site, &Budgets::default(), Default::default());
        let victims = found.expect("other pods can be evicted");
        (uids(&victims).join(" "), victims.groups)
    };
    assert_eq!(dry_run(elsewhere(0)), ("far u0".to_owned(), 1));
    assert_eq!(dry_run(elsewhere(5)), ("u0".to_owned(), 1));
}

#[test]
fn a_group_of_which_some_are_being_bound_stays() {
    let ledger = ledger(&[(0, 400, 10, 0), (0, 600, 5, 0)]);
    let member = Arc::new(ledger.occupant("u0").expect("it is there"));
    let group = Arc::new(VictimGroup { unsettled: true, ..(*group([member], 0)).clone() });
    let victims = |cpu_milli| {
        let site = Site::new(&ledger, NodeId(0), 5, &|uid| (uid == "u0").then(|| group.clone()));
        agent(&ledger).dry_run(&class(cpu_milli, 5), &site, &Budgets::default(), Default::default())
    };
    assert_eq!(victims(300).map(|victims| uids(&victims).join(" ")), Ok("u1".to_owned()));
    assert_eq!(victims(700), Err(Fruitless::StillOut(Reasons::CPU)));
}

#[test]
fn pods_that_borrow_go_before_less_important_ones_of_their_node() {
    let ledger = ledger(&[(0, 500, 10, 0), (9, 500, 10, 0)]);
    let claim = |pod: &Occupant| match pod.holding.priority {
        9 => VictimClaim::Lent,
        _ => VictimClaim::Lower,
    };
    let site = Site::claimed(&ledger, NodeId(0), (5, true), claim, &|_| None);
    let found = agent(&ledger).dry_run(&class(500, 5), &site, &Budgets::default(), Default::default());
    let victims = found.expect("either is enough");
    assert_eq!((uids(&victims), victims.unlent), (vec!["u1"], 0));
}

#[test]
fn of_equally_important_pods_one_that_has_not_started_goes_first() {
    let mut ledger = ledger(&[(0, 500, 10, 0), (0, 500, 20, 0)]);
    let pod = ledger.occupant("u0").expect("it is there").pod;
    ledger.note_seen(pod, 1, None);
    let site = Site::new(&ledger, NodeId(0), 5, &|_| None);
    let found = agent(&ledger).dry_run(&class(500, 5), &site, &Budgets::default(), Default::default());
    assert_eq!(&*found.expect("one is enough").pods[0].pod.uid, "u0");
}

/// Surveys nodes of these pods for a pod of priority 5: each with its priority, CPU and quota.
fn surveyed(nodes: &[&[(i32, i64, Option<&str>)]], cpu_milli: i64, why: Option<Reasons>) -> Survey {
    let mut ledger = Ledger::default();
    let allocatable = Amounts { cpu_milli: CPU, pods: 110, ..Amounts::default() };
    for (at, pods) in nodes.iter().enumerate() {
        let name: Arc<str> = format!("n{at}").into();
        ledger.apply_node(Node { name: name.clone(), allocatable, ..Node::default() });
        for (pod, (priority, cpu, quota)) in pods.iter().enumerate() {
            let quota = quota.map(Arc::from);
            let holding = Holding { usage: usage(*cpu), priority: *priority, quota, ..Holding::default() };
            ledger.bound(&format!("{name}-{pod}").into(), &name, &holding);
        }
    }
    let ids = (0..nodes.len() as u32).map(NodeId);
    let rows = ids.map(|id| (id, ledger.inventory().row(id), why));
    survey(&class(cpu_milli, 5), 5, &["lender".into()], Salt(1), rows)
}

#[test]
fn of_nodes_with_equally_important_victims_the_one_with_least_to_free_is_tried_first() {
    let (full, half): (&[_], &[_]) = (&[(0, 1000, None)], &[(0, 600, None)]);
    assert_eq!(surveyed(&[full, half], 500, Some(Reasons::CPU)).candidates, [NodeId(0), NodeId(1)]);
    assert_eq!(surveyed(&[half, full], 500, Some(Reasons::CPU)).candidates, [NodeId(1), NodeId(0)]);
}

#[test]
fn pods_that_borrow_and_less_important_ones_may_be_needed_together() {
    let node: &[_] = &[(0, 400, None), (9, 400, Some("lender")), (9, 200, None)];
    let candidates = |cpu_milli| surveyed(&[node], cpu_milli, Some(Reasons::CPU)).candidates.len();
    assert_eq!([400, 800, 801].map(candidates), [1, 1, 0]);
}

#[test]
fn a_pod_stands_in_the_way_where_a_more_important_one_could_go_only_without_pods_such_as_it() {
    let ledger = ledger(&[(0, 300, 10, 0)]);
    let row = ledger.inventory().row(NodeId(0));
    let stands = |priority, cpu_milli| {
        let pod = Holding { usage: usage(200), priority, ..Holding::default() };
        stands_in_the_way(&pod, &usage(cpu_milli), 5, row)
    };
    assert_eq!([500, 501, 1000, 1001].map(|cpu| stands(0, cpu)), [false, true, true, false]);
    assert_eq!([800, 801].map(|cpu| stands(5, cpu)), [true, false], "it cannot be evicted itself");
}

#[test]
fn where_eviction_cannot_help_nothing_is_surveyed() {
    let survey = surveyed(&[&[(0, 1000, None)]], 500, Some(Reasons::TAINTS));
    assert_eq!((survey.candidates.len(), survey.unhelped.not_helpful), (0, 1));
    assert_eq!(surveyed(&[&[(0, 1000, None)]], 500, None).candidates.len(), 1, "more than one pod of it");
}

/// Prints the duration of a preemption that helps nowhere in a large cluster: `cargo test --profile dist -- --ignored
/// hopeless_survey`.
#[test]
#[ignore = "a measurement"]
fn the_time_of_a_failing_survey_of_5000_nodes_with_150000_pods() {
    let mut ledger = Ledger::default();
    let allocatable = Amounts { cpu_milli: 3000, pods: 110, ..Amounts::default() };
    for at in 0..5000 {
        ledger.apply_node(Node { name: format!("n{at}").into(), allocatable, ..Node::default() });
        for pod in 0..30 {
            let holding = Holding { usage: usage(100), priority: pod % 3 * 4, ..Holding::default() };
            ledger.bound(&format!("n{at}-{pod}").into(), &format!("n{at}").into(), &holding);
        }
    }
    let (mut agent, class) = (agent(&ledger), class(2500, 5));
    for round in ["first", "again"] {
        let began = std::time::Instant::now();
        let survey = agent.survey(&class, 5, &[], Default::default(), |_| {}).expect("nothing fits");
        println!("{round}: {:?}, {} candidates", began.elapsed(), survey.candidates.len());
    }
}
