//! Creation and deletion of VPAs.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::vpa::vpa;
use crate::recommend::create::{CreationCandidate, CreationRequests, NAME_BYTES_MAX, is_made, name, plan};
use crate::recommend::{ContainerPolicy, OwnerRef, Vpa};

fn owner(api_version: &str, kind: &str, name: &str) -> OwnerRef {
    OwnerRef { api_version: api_version.into(), kind: kind.into(), name: name.into() }
}

fn deployment(name: &str) -> OwnerRef {
    owner("apps/v1", "Deployment", name)
}

fn asked(workloads: &[(OwnerRef, bool)]) -> CreationRequests {
    let namespace: Arc<str> = "shop".into();
    let candidate = |(owner, is_excluded): &(OwnerRef, bool)| {
        let candidate = CreationCandidate {
            namespace: namespace.clone(),
            owner: owner.clone(),
            uid: format!("uid-{}", owner.name),
            is_excluded: *is_excluded,
        };
        (owner.workload(&namespace), candidate)
    };
    CreationRequests {
        namespaces: BTreeSet::from([namespace.clone()]),
        candidates: workloads.iter().map(candidate).collect(),
    }
}

/// A VPA as created.
fn made(owner: &OwnerRef) -> Vpa {
    Vpa {
        namespace: "shop".into(),
        target: Some(owner.clone()),
        recommenders: vec!["berth".into()],
        update_mode: "Off".into(),
        is_managed: true,
        policies: Vec::new(),
        ..vpa(&name(owner), 0, &owner.name)
    }
}

fn of_somebody(name: &str, target: OwnerRef) -> Vpa {
    Vpa { namespace: "shop".into(), target: Some(target), ..vpa(name, 0, "web") }
}

fn names(plan: &crate::recommend::create::CreationPlan<'_>) -> (Vec<String>, Vec<String>) {
    (
        plan.create.iter().map(|it| it.owner.name.clone()).collect(),
        plan.superfluous.iter().map(|it| it.name.to_string()).collect(),
    )
}

#[test]
fn every_workload_without_a_vpa_gets_one_and_an_excluded_one_does_not() {
    let asked = asked(&[(deployment("web"), false), (deployment("api"), false), (deployment("own"), true)]);
    let (create, superfluous) = names(&plan(&asked, &[], "berth"));
    assert_eq!((create, superfluous), (vec!["api".to_owned(), "web".to_owned()], vec![]));
    let there = made(&deployment("web"));
    assert_eq!(names(&plan(&asked, &[&there], "berth")).0, ["api"]);
}

#[test]
fn a_vpa_of_anybody_in_any_mode_and_spelling_is_enough() {
    let asked = asked(&[(deployment("web"), false), (owner("argoproj.io/v1", "Rollout", "web"), false)]);
    for (target, left) in [
        (deployment("web"), "Rollout"),
        (owner("", "Deployment", "web"), "Rollout"),
        (owner("extensions/v1beta1", "Deployment", "web"), "Rollout"),
        (owner("", "Rollout", "web"), "Deployment"),
    ] {
        let theirs = of_somebody("theirs", target);
        let plan = plan(&asked, &[&theirs], "berth");
        let kinds: Vec<&str> = plan.create.iter().map(|it| it.owner.kind.as_str()).collect();
        assert_eq!((kinds, plan.superfluous.len()), (vec![left], 0));
    }
    let elsewhere = Vpa { namespace: "bank".into(), ..of_somebody("theirs", deployment("web")) };
    assert_eq!(plan(&asked, &[&elsewhere], "berth").create.len(), 2);
}

#[test]
fn ours_gives_way_to_one_of_somebody_else() {
    let asked = asked(&[(deployment("web"), false)]);
    let (ours, theirs) = (made(&deployment("web")), of_somebody("theirs", owner("", "Deployment", "web")));
    let (create, superfluous) = names(&plan(&asked, &[&ours, &theirs], "berth"));
    assert_eq!((create, superfluous), (vec![], vec!["berth-deployment-web".to_owned()]));
}

#[test]
fn ours_goes_when_the_namespace_or_the_workload_wants_none_any_more() {
    let ours = made(&deployment("web"));
    let nobody_asks = CreationRequests::default();
    assert_eq!(plan(&nobody_asks, &[&ours], "berth").superfluous, [&ours]);
    assert_eq!(plan(&asked(&[(deployment("web"), true)]), &[&ours], "berth").superfluous, [&ours]);
    // Without pods the workload is unknown: its VPA stays for when they come back.
    assert!(plan(&asked(&[]), &[&ours], "berth").superfluous.is_empty());
}

#[test]
fn what_somebody_changed_is_theirs_and_stays() {
    let ours = made(&deployment("web"));
    assert!(is_made(&ours, "berth"));
    let changed = [
        Vpa { update_mode: "Recreate".into(), ..ours.clone() },
        Vpa { is_managed: false, ..ours.clone() },
        Vpa { recommenders: vec!["default".into()], ..ours.clone() },
        Vpa { policies: vec![ContainerPolicy::default()], ..ours.clone() },
        Vpa { target: Some(deployment("api")), ..ours.clone() },
        Vpa { name: "berth-deployment-api".into(), ..ours.clone() },
    ];
    for vpa in &changed {
        assert!(!is_made(vpa, "berth"), "{vpa:?}");
        assert!(plan(&CreationRequests::default(), &[vpa], "berth").superfluous.is_empty(), "{vpa:?}");
    }
    assert!(!is_made(&ours, "another"));
}

#[test]
fn names_are_different_for_different_workloads_and_never_too_long() {
    let long = "a".repeat(253);
    let dots = format!("{}.-{}", "a".repeat(155), "b".repeat(90));
    let all = [
        deployment("web"),
        owner("apps/v1", "StatefulSet", "web"),
        owner("argoproj.io/v1alpha1", "Rollout", "web"),
        owner("other.io/v1", "Rollout", "web"),
        owner("other.io/v1", "Deployment", "web"),
        deployment(&long),
        deployment(&format!("{}b", &long[..252])),
        owner("x.io/v1", &"K".repeat(63), &long),
        deployment(&dots),
        deployment(&"ü".repeat(120)),
    ];
    let names: BTreeSet<String> = all.iter().map(name).collect();
    assert_eq!(names.len(), all.len(), "{names:?}");
    for name in &names {
        assert!(name.len() <= NAME_BYTES_MAX && !name.contains(".-") && !name.contains("--"), "{name}");
    }
    assert!(names.contains("berth-deployment-web") && names.contains("berth-rollout.argoproj.io-web"));
}
