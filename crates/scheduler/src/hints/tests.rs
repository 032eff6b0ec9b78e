use super::*;
use berth_model::Requirement;

fn app(name: &str) -> LabelSelector {
    let operator = Operator::In([name.into()].into());
    LabelSelector::All([Requirement { key: "app".into(), operator }].into())
}

fn workload(name: &str) -> SelectedPods {
    SelectedPods { namespace: "x".into(), selector: app(name) }
}

fn hint(of: &str, other: &str, weight: i32) -> Hint {
    Hint { of: workload(of), other: workload(other), weight }
}

fn pod(namespace: &str, labels: &[(&str, &str)]) -> Identity {
    Identity { namespace: namespace.into(), labels: labels.iter().copied().collect(), ..Identity::default() }
}

/// The weights of the terms of a pod of `web`.
fn weights(hints: &Hints, pod: &Identity) -> Vec<i32> {
    hints.terms(pod, &PodAffinity::default()).iter().map(|term| term.weight).collect()
}

#[test]
fn a_pod_gets_the_terms_of_the_workloads_that_select_it_in_its_namespace() {
    let (hints, refused) =
        Hints::new([hint("web", "db", -80), hint("web", "cache", 90), hint("db", "web", -80)]);
    assert_eq!((hints.len(), refused), (3, 0));
    let web = pod("x", &[("app", "web"), ("tier", "front")]);
    assert_eq!(weights(&hints, &web), [-80, 90]);
    assert_eq!(weights(&hints, &pod("x", &[("app", "db")])), [-80]);
    assert!(weights(&hints, &pod("y", &[("app", "web")])).is_empty());
    assert!(weights(&hints, &pod("x", &[])).is_empty());
    let term = &hints.terms(&web, &PodAffinity::default())[0].term;
    assert_eq!((&*term.topology_key, &term.selector.labels), ("kubernetes.io/hostname", &app("db")));
    assert!(term.selector.matches(&pod("x", &[("app", "db")])));
    assert!(!term.selector.matches(&pod("y", &[("app", "db")])));
}

#[test]
fn a_pod_of_two_workloads_gets_the_strongest_terms_of_both_each_once() {
    let front = SelectedPods {
        namespace: "x".into(),
        selector: LabelSelector::All([Requirement { key: "tier".into(), operator: Operator::Exists }].into()),
    };
    let of_front = |other: &str, weight| Hint { of: front.clone(), other: workload(other), weight };
    let (hints, _) = Hints::new([hint("web", "db", -80), of_front("db", -95), of_front("cache", 70)]);
    assert_eq!(weights(&hints, &pod("x", &[("app", "web"), ("tier", "front")])), [-95, 70]);
    assert_eq!(weights(&hints, &pod("x", &[("app", "web")])), [-80]);
}

#[test]
fn terms_are_bounded_and_the_strongest_stay() {
    let many = (1..=40).map(|at| hint("web", &format!("other-{at}"), if at % 2 == 0 { at } else { -at }));
    let (hints, refused) = Hints::new(many);
    assert_eq!((hints.len(), refused), (40, 0));
    assert_eq!(
        weights(&hints, &pod("x", &[("app", "web")])),
        [-39, -37, -35, -33, -31, -29, -27, -25, 26, 28, 30, 32, 34, 36, 38, 40]
    );
    let beyond = (0..HINTS_MAX + 10).map(|at| hint(&format!("w{at}"), "db", 50));
    let (hints, refused) = Hints::new(beyond);
    assert_eq!((hints.len(), refused), (HINTS_MAX, 10));
}

#[test]
fn a_hint_that_says_nothing_is_refused() {
    let nothing = |selector| SelectedPods { namespace: "x".into(), selector };
    let wrong = [
        hint("web", "db", 0),
        hint("web", "db", 101),
        hint("web", "db", i32::MIN),
        Hint { of: nothing(LabelSelector::Nothing), ..hint("web", "db", 50) },
        Hint { other: nothing(LabelSelector::All([].into())), ..hint("web", "db", 50) },
        Hint { of: SelectedPods { namespace: "".into(), selector: app("web") }, ..hint("web", "db", 50) },
    ];
    let (hints, refused) = Hints::new(wrong);
    assert_eq!((hints.len(), refused), (0, 6));
    assert!(hints.is_empty() && hints.namespaces.is_empty());
}

#[test]
fn what_a_pods_own_terms_speak_of_is_left_to_them() {
    let (hints, _) = Hints::new([hint("web", "db", -80), hint("web", "cache", 90)]);
    let own = PodAffinity { required: [hint("web", "db", 1).term().term].into(), ..PodAffinity::default() };
    let terms = hints.terms(&pod("x", &[("app", "web")]), &own);
    assert_eq!(terms.iter().map(|term| term.weight).collect::<Vec<_>>(), [90]);
}

#[test]
fn the_order_in_which_hints_come_does_not_matter() {
    let all: Vec<_> =
        (0..30).map(|at| hint(&format!("w{}", at % 3), &format!("o{at}"), 50 + at % 5)).collect();
    let reversed: Vec<_> = all.iter().rev().cloned().collect();
    let (one, other) = (Hints::new(all).0, Hints::new(reversed).0);
    for at in 0..3 {
        let pod = pod("x", &[("app", &format!("w{at}"))]);
        let own = PodAffinity::default();
        assert_eq!(one.terms(&pod, &own), other.terms(&pod, &own));
    }
}
