//! Assignment of VPAs, and the effect of their policies.

use super::{MI, SECOND};
use crate::recommend::assign::{by_pod_name, controlling};
use crate::recommend::container::MemoryRules;
use crate::recommend::post::{AllowedRange, OptionalAmounts};
use crate::recommend::settings::RecommenderSettings;
use crate::recommend::store::Workload;
use crate::recommend::{ContainerPolicy, OwnerRef, Status, Vpa};
use berth_model::PerResource;

pub fn owner(api_version: &str, kind: &str, name: &str) -> OwnerRef {
    OwnerRef { api_version: api_version.into(), kind: kind.into(), name: name.into() }
}

pub fn vpa(name: &str, created: i64, target: &str) -> Vpa {
    Vpa {
        namespace: "shop".into(),
        name: name.into(),
        uid: format!("uid-{name}"),
        generation: None,
        created,
        target: Some(owner("apps/v1", "Deployment", target)),
        recommenders: vec!["berth".into()],
        update_mode: "Off".into(),
        update: Default::default(),
        is_managed: false,
        resource_version: String::new(),
        startup_boost: None,
        policies: Vec::new(),
        integer_cpu: Vec::new(),
        estimator: None,
        usage: None,
        last_eviction: None,
        status: Status::default(),
    }
}

pub fn workload(kind: &str, name: &str) -> Workload {
    Workload { namespace: "shop".into(), kind: kind.into(), name: name.into() }
}

#[test]
fn a_vpa_is_of_those_it_names_and_of_the_default_one_when_it_names_none() {
    let mut vpa = vpa("a", 0, "web");
    assert_eq!(["berth", "default", "other"].map(|name| vpa.is_of(name)), [true, false, false]);
    vpa.recommenders = Vec::new();
    assert_eq!(["berth", "default", "other"].map(|name| vpa.is_of(name)), [false, true, false]);
    vpa.recommenders = vec!["default".into(), "other".into()];
    assert_eq!(["berth", "default", "other"].map(|name| vpa.is_of(name)), [false, true, true]);
}

#[test]
fn of_several_vpas_of_a_workload_the_oldest_controls_it_then_the_first_by_name() {
    let mut elsewhere = vpa("e", 1, "web");
    elsewhere.namespace = "other".into();
    let mut without = vpa("d", 0, "web");
    without.target = None;
    let vpas =
        [vpa("c", 5, "web"), vpa("b", 3, "web"), vpa("a", 3, "web"), vpa("f", 9, "api"), elsewhere, without];
    let chosen = controlling(&vpas);
    assert_eq!(chosen[&workload("Deployment", "web")], 2);
    assert_eq!(chosen[&workload("Deployment", "api")], 3);
    assert_eq!(chosen.len(), 3, "{chosen:?}");
    let mut reversed = vpas.to_vec();
    reversed.reverse();
    assert_eq!(controlling(&reversed)[&workload("Deployment", "web")], 3, "whatever their order");
}

#[test]
fn kinds_of_others_carry_their_group_and_built_in_ones_do_not() {
    let namespace = "shop".into();
    let kind = |api: &str, kind: &str| owner(api, kind, "x").workload(&namespace).kind.to_string();
    assert_eq!(kind("apps/v1", "Deployment"), "Deployment");
    assert_eq!(kind("apps/v1beta1", "Deployment"), "Deployment");
    assert_eq!(kind("", "Deployment"), "Deployment");
    assert_eq!(kind("argoproj.io/v1alpha1", "Rollout"), "Rollout.argoproj.io");
    assert_eq!(kind("example.com/v1", "Deployment"), "Deployment.example.com");
}

#[test]
fn pods_of_the_past_belong_to_the_workload_that_names_pods_so() {
    let workloads = [
        workload("Deployment", "web"),
        workload("Deployment", "web-api"),
        workload("StatefulSet", "db"),
        workload("DaemonSet", "agent"),
        workload("CronJob", "nightly"),
        workload("Job", "import"),
        workload("Rollout.argoproj.io", "shop"),
    ];
    let cases = [
        ("web-7d4b9c6f5-abcde", Some("web")),
        ("web-api-7d4b9c6f5-abcde", Some("web-api")),
        ("web-api-abcde", None),
        ("web-0", None),
        ("web", None),
        ("db-0", Some("db")),
        ("db-12", Some("db")),
        ("db-x", None),
        ("agent-x2x4z", Some("agent")),
        ("agent-7d4b9c6f5-abcde", None),
        ("nightly-28912345-abcde", Some("nightly")),
        ("nightly-abcde", None),
        ("import-abcde", Some("import")),
        ("shop-7d4b9c6f5-abcde", Some("shop")),
        ("shop-3", Some("shop")),
    ];
    for (pod, expected) in cases {
        let found = by_pod_name(pod, &workloads).map(|workload| &*workload.name);
        assert_eq!(found, expected, "{pod}");
    }
}

#[test]
fn the_own_policy_of_a_container_wins_wholly_over_the_one_for_all() {
    let mut vpa = vpa("a", 0, "web");
    assert_eq!(vpa.controlled("app"), Some(PerResource { cpu: true, memory: true }));
    let max = OptionalAmounts { cpu: Some(500), memory: None };
    let for_all = ContainerPolicy {
        container: "*".into(),
        off: true,
        allowed: AllowedRange { min: OptionalAmounts::default(), max },
        oom_bump_ratio: Some(3.0),
        ..ContainerPolicy::default()
    };
    let only_memory = ContainerPolicy {
        container: "app".into(),
        controlled: Some(PerResource { cpu: false, memory: true }),
        ..ContainerPolicy::default()
    };
    vpa.policies = vec![for_all, only_memory];
    assert_eq!(vpa.controlled("sidecar"), None);
    assert_eq!(vpa.controlled("app"), Some(PerResource { cpu: false, memory: true }));
    let default = RecommenderSettings::default().memory_rules();
    assert_eq!(vpa.memory_rules("app", default), None);
    assert_eq!(vpa.memory_rules("sidecar", default).map(|rules| rules.oom_bump_ratio), Some(3.0));
    assert_eq!(vpa.post_policy(OptionalAmounts::default()).allowed["*"].max, max);
}

#[test]
fn a_vpa_sets_windows_and_bumps_and_what_makes_no_sense_counts_as_not_said() {
    let mut vpa = vpa("a", 0, "web");
    let default = RecommenderSettings::default().memory_rules();
    vpa.policies = vec![ContainerPolicy {
        container: "app".into(),
        oom_bump_ratio: Some(1.5),
        oom_min_bump: Some(10 * MI),
        interval_s: Some(3600),
        interval_count: Some(24),
        ..ContainerPolicy::default()
    }];
    let expected = MemoryRules {
        interval_ns: 3600 * SECOND,
        interval_count: 24,
        oom_bump_ratio: 1.5,
        oom_min_bump: 10 * MI,
    };
    assert_eq!(vpa.memory_rules("app", default), Some(expected));
    vpa.policies = vec![ContainerPolicy {
        container: "app".into(),
        oom_bump_ratio: Some(0.1),
        oom_min_bump: Some(-1),
        interval_s: Some(0),
        interval_count: Some(-3),
        ..ContainerPolicy::default()
    }];
    assert_eq!(vpa.memory_rules("app", default), None);
    vpa.policies = vec![ContainerPolicy {
        container: "app".into(),
        oom_bump_ratio: Some(f64::NAN),
        ..ContainerPolicy::default()
    }];
    assert_eq!(vpa.memory_rules("app", default), None);
}

#[test]
fn a_vpa_can_not_set_windows_that_reach_far_ahead() {
    let mut vpa = vpa("a", 0, "web");
    vpa.policies = vec![ContainerPolicy {
        container: "app".into(),
        oom_bump_ratio: Some(f64::INFINITY),
        oom_min_bump: Some(i64::MAX),
        interval_s: Some(i64::MAX),
        interval_count: Some(i64::MAX),
        ..ContainerPolicy::default()
    }];
    let rules = vpa.memory_rules("app", RecommenderSettings::default().memory_rules()).expect("they are set");
    let month = 30 * 86_400 * SECOND;
    assert_eq!((rules.interval_ns, rules.interval_count, rules.oom_bump_ratio), (month, u32::MAX, 100.0));
    let shapes = RecommenderSettings::default().shapes().unwrap();
    let mut aggregate = crate::recommend::Aggregate::new(&shapes, 0);
    let mut state = crate::recommend::ContainerState::default();
    let needed = state.record_oom(&mut aggregate, 100 * MI, SECOND, &rules, false);
    assert_eq!(needed, Ok(i64::MAX), "more than there is, and no overflow");
    assert!(!aggregate.is_expired(i64::MAX, &rules, false), "nor here");
    let later = state.add_memory(&mut aggregate, 100 * MI, 2 * month, &rules, false);
    assert_eq!(later, Ok(()));
}
