use super::*;
use crate::profile::{Profile, Profiles};
use berth_model::{Operator, Requirement};

fn names(names: &[&str]) -> Box<[Arc<str>]> {
    names.iter().map(|name| Arc::from(*name)).collect()
}

fn of(namespaces: &[&str], schedulers: &[&str]) -> Governs {
    let namespaces = match namespaces {
        [] => SelectedNamespaces::All,
        some => SelectedNamespaces::Named(names(some)),
    };
    Governs { namespaces, schedulers: names(schedulers) }
}

fn policy(name: &str, governs: Governs, created: i64) -> ObservedPolicy {
    let wishes = PolicySettings { candidate_width: Some(created as usize), ..PolicySettings::default() };
    let (name, uid) = (name.into(), name.into());
    ObservedPolicy { name, uid, generation: 1, created, governs, settings: Ok(wishes) }
}

fn policies(all: &[ObservedPolicy]) -> Policies {
    let mut policies = Policies::default();
    for policy in all {
        assert!(policies.apply(policy.clone()));
    }
    policies
}

fn pod(namespace: &str) -> Identity {
    Identity { namespace: namespace.into(), ..Identity::default() }
}

fn governing(policies: &Policies, namespace: &str, scheduler: &str) -> String {
    policies.governing(&pod(namespace), scheduler).map_or("none".to_owned(), |name| name.to_string())
}

fn tell(policies: &mut Policies, namespaces: &[(&str, &str)]) -> Vec<PolicyStatus> {
    let namespaces: Vec<(Arc<str>, Labels)> = namespaces
        .iter()
        .map(|(name, team)| (Arc::from(*name), [("team", *team)].into_iter().collect()))
        .collect();
    policies.take_news(|| namespaces.iter().map(|(name, labels)| (name, labels)))
}

#[test]
fn the_most_specific_policy_governs_a_pod_then_the_older_one_then_the_first_by_name() {
    let all = [
        policy("both", of(&["a"], &["x"]), 9),
        policy("namespace", of(&["a", "b"], &[]), 8),
        policy("scheduler", of(&[], &["x"]), 7),
        policy("anybody", of(&[], &[]), 6),
        policy("younger", of(&["a", "c"], &[]), 10),
        policy("twin-2", of(&["d"], &[]), 5),
        policy("twin-1", of(&["d"], &[]), 5),
    ];
    let policies = policies(&all);
    for (namespace, scheduler, expected) in [
        ("a", "x", "both"),
        ("a", "y", "namespace"),
        ("b", "x", "namespace"),
        ("c", "x", "younger"),
        ("d", "x", "twin-1"),
        ("e", "x", "scheduler"),
        ("e", "y", "anybody"),
    ] {
        assert_eq!(governing(&policies, namespace, scheduler), expected, "{namespace} {scheduler}");
    }
    assert_eq!(policies.placement(&pod("a"), "x").candidate_width, 9);
}

#[test]
fn pods_that_no_policy_governs_are_placed_by_default_and_what_a_policy_leaves_out_is_the_default() {
    let default = PlacementSettings {
        packing: Packing::MostAllocated,
        candidate_width: 3,
        ..PlacementSettings::default()
    };
    let profile =
        |placement: PlacementSettings| Profile { placement: placement.into(), ..Profile::default() };
    let steady = PlacementSettings { candidate_width: 1, ..default.clone() };
    let named = [(Arc::from("steady"), profile(steady.clone()))].into();
    let mut policies = Policies::new(Profiles { default: profile(default.clone()), named }.into());
    assert_eq!(*policies.placement(&pod("a"), "steady"), steady);
    assert_eq!(*policies.placement(&pod("a"), "berth"), default);
    policies.apply(policy("one", of(&["a"], &[]), 5));
    let expected = PlacementSettings { candidate_width: 5, ..default.clone() };
    assert_eq!(*policies.placement(&pod("a"), "berth"), expected);
    assert_eq!(*policies.placement(&pod("b"), "berth"), default);
    assert_eq!(*policies.placement(&pod("a"), "steady"), expected, "the profile packs, too");
    assert_eq!(*policies.placement(&pod("b"), "steady"), steady);
    assert!(policies.delete("one"));
    assert_eq!(*policies.placement(&pod("a"), "berth"), default);
}

#[test]
fn only_what_changes_placing_is_news_for_pods() {
    let one = policy("one", of(&["a"], &[]), 5);
    let mut policies = policies(std::slice::from_ref(&one));
    assert!(!policies.apply(one.clone()));
    assert!(!policies.apply(ObservedPolicy { generation: 2, ..one.clone() }), "the spec says the same");
    assert!(policies.apply(ObservedPolicy { settings: Err("bad".into()), ..one.clone() }));
    assert_eq!(governing(&policies, "a", "berth"), "none");
    assert!(policies.apply(one));
    assert!(policies.retain(&HashSet::new()));
    assert!(!policies.retain(&HashSet::new()));
}

#[test]
fn a_policy_that_others_go_before_says_for_which_pods() {
    let all = [
        policy("older", of(&["a", "b"], &[]), 1),
        policy("part", of(&["b", "c"], &[]), 2),
        policy("whole", of(&["a", "c"], &[]), 3),
        policy("other", of(&["a"], &["x"]), 4),
        ObservedPolicy { settings: Err("it is upside down".into()), ..policy("bad", of(&[], &[]), 5) },
    ];
    let mut policies = policies(&all);
    let told = tell(&mut policies, &[]);
    let by_name: BTreeMap<&str, &PolicyStatus> = told.iter().map(|status| (&*status.name, status)).collect();
    let reason = |name: &str| (by_name[name].reason, by_name[name].effective.is_some());
    assert_eq!(reason("older"), (StatusReason::Applied, true));
    assert_eq!(reason("part"), (StatusReason::Applied, true));
    assert_eq!(reason("whole"), (StatusReason::Overruled, false));
    assert_eq!(reason("other"), (StatusReason::Applied, true));
    assert_eq!(reason("bad"), (StatusReason::Invalid, false));
    assert_eq!(by_name["other"].contradiction, None, "it is more specific");
    assert_eq!(&*by_name["bad"].message, "the policy is not in force: it is upside down");
    assert_eq!(
        by_name["whole"].contradiction.as_deref(),
        Some(
            "policy older takes precedence for namespace a; policy part takes precedence for namespace c: it is equally specific, \
             and older or first by name"
        )
    );
    assert!(tell(&mut policies, &[]).is_empty(), "nothing new");
    policies.delete("older");
    let told: Vec<_> =
        tell(&mut policies, &[]).into_iter().map(|status| (status.name, status.reason)).collect();
    assert_eq!(told, [("part".into(), StatusReason::Applied), ("whole".into(), StatusReason::Applied)]);
}

#[test]
fn namespaces_selected_by_labels_follow_their_labels() {
    let requirement = Requirement { key: "team".into(), operator: Operator::In(names(&["blue"])) };
    let selector = LabelSelector::All([requirement].into());
    let governs = Governs { namespaces: SelectedNamespaces::Selected(selector), ..Governs::default() };
    let mut policies = policies(&[policy("blue", governs, 1)]);
    let told = tell(&mut policies, &[("a", "blue"), ("b", "red")]);
    assert_eq!((&*told[0].governs, told[0].reason), ("pods of namespace a", StatusReason::Applied));
    policies.namespace_changed();
    let told = tell(&mut policies, &[("a", "red"), ("b", "red")]);
    assert_eq!(&*told[0].governs, "no pods: no namespace matches the selector");
    let labels = [("team", "blue")].into_iter().collect();
    let blue = Identity { namespace: "z".into(), namespace_labels: labels, ..Identity::default() };
    assert_eq!(policies.governing(&blue, "berth").map(|name| &**name), Some("blue"));
    assert_eq!(governing(&policies, "z", "berth"), "none");
}
