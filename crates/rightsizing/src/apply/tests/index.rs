//! VPA that a pod belongs to.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::*;
use crate::apply::index::{ListState, NamespacedName, SizingKind, SizingObject, VPAS_MAX, WorkloadObject};
use crate::recommend::{CpuBoost, StartupBoost};

fn name(of: &str) -> NamespacedName {
    ("shop".into(), of.into())
}

fn named(of: &str, created: i64, target: OwnerRef, mode: &str) -> SizingObject {
    let vpa = Vpa { name: of.into(), created, target: Some(target), ..vpa(mode, Vec::new()) };
    SizingObject::Vpa(Arc::new(vpa))
}

fn owned_by(owner: Option<OwnerRef>) -> SizingObject {
    SizingObject::Workload(WorkloadObject { owner, ..WorkloadObject::default() })
}

fn governing(index: &SizingIndex, pod: &SizedPod) -> Option<Arc<str>> {
    index.govern(pod).map(|governed| governed.vpa.name.clone())
}

#[test]
fn the_oldest_vpa_that_is_on_governs_the_pods_of_its_target() {
    let mut index = SizingIndex::default();
    let pod = pod("p", Vec::new());
    assert_eq!(index.govern(&pod), None);
    for (of, created, mode) in [("old", 1, "Off"), ("second", 2, "Initial"), ("third", 3, "Recreate")] {
        index.apply(SizingKind::Vpa, name(of), named(of, created, owner("Deployment", "web"), mode));
    }
    index.apply(SizingKind::Vpa, name("other"), named("other", 0, owner("Deployment", "api"), "Recreate"));
    assert_eq!(governing(&index, &pod).as_deref(), Some("second"));
    index.apply(SizingKind::Vpa, name("second"), named("second", 2, owner("Deployment", "web"), "Off"));
    assert_eq!(governing(&index, &pod).as_deref(), Some("third"));
    index.apply(SizingKind::Vpa, name("third"), named("third", 3, owner("Deployment", "api"), "Recreate"));
    assert_eq!(governing(&index, &pod), None, "its target has changed");
    let elsewhere = SizedPod { namespace: "bank".into(), ..pod };
    assert_eq!(governing(&index, &elsewhere), None);
}

#[test]
fn one_that_is_off_and_boosts_starts_counts_where_nothing_else_sizes_the_pod() {
    let mut index = SizingIndex::default();
    let pod = pod("p", Vec::new());
    let of = |index: &SizingIndex| {
        let new = index.size_new(&pod).map(|governed| governed.vpa.name.to_string());
        (new, governing(index, &pod).map(|name| name.to_string()))
    };
    let both = |name: &str| (Some(name.to_owned()), Some(name.to_owned()));
    let startup_boost = Some(StartupBoost { cpu: CpuBoost::Factor(2), seconds: 0 });
    let target = Some(owner("Deployment", "web"));
    let boosting = Vpa { name: "boost".into(), target, startup_boost, ..vpa("Off", Vec::new()) };
    index.apply(SizingKind::Vpa, name("boost"), SizingObject::Vpa(Arc::new(boosting)));
    assert_eq!(of(&index), both("boost"));
    let SizingObject::Vpa(sizes) = named("web", 9, owner("Deployment", "web"), "Initial") else { panic!() };
    index.apply(SizingKind::ServiceScaler, name("web"), SizingObject::ServiceScaler(Some(sizes)));
    assert_eq!(of(&index), (Some("web".to_owned()), Some("boost".to_owned())));
    index.apply(SizingKind::Vpa, name("on"), named("on", 7, owner("Deployment", "web"), "Recreate"));
    assert_eq!(of(&index), both("on"));
}

#[test]
fn vpas_beyond_the_limit_of_their_namespace_have_no_effect_until_an_older_one_goes() {
    let mut index = SizingIndex::default();
    let of = |at: usize| format!("vpa-{at}");
    let mut apply = |at: usize, target: &str| {
        let vpa = named(&of(at), at as i64, owner("Deployment", target), "Recreate");
        index.apply(SizingKind::Vpa, name(&of(at)), vpa);
    };
    // The youngest comes first, as in a list.
    apply(VPAS_MAX, "web");
    (0..VPAS_MAX).for_each(|at| apply(at, "api"));
    let pod = pod("p", Vec::new());
    assert_eq!((index.vpas().count(), governing(&index, &pod)), (VPAS_MAX, None));
    let beyond: Vec<_> = index.vpas_beyond().map(|vpa| vpa.name.clone()).collect();
    assert_eq!(beyond, [Arc::from(of(VPAS_MAX))]);
    index.delete(SizingKind::Vpa, &name(&of(7)));
    assert_eq!(governing(&index, &pod), Some(of(VPAS_MAX).into()));
    assert_eq!(index.vpas_beyond().count(), 0);
    index.retain(SizingKind::Vpa, &BTreeSet::new());
    assert_eq!(index.vpas().count(), 0);
}

#[test]
fn the_owner_of_a_replica_set_is_known_by_its_pods_until_a_watch_has_told() {
    let mut index = SizingIndex::default();
    index.apply(SizingKind::Vpa, name("web"), named("web", 1, owner("Deployment", "web"), "Recreate"));
    let pod = pod("p", Vec::new());
    assert!(governing(&index, &pod).is_some());
    let without_hash = SizedPod { template_hash: None, ..pod.clone() };
    assert!(governing(&index, &without_hash).is_none());
    index.apply(SizingKind::ReplicaSet, name("web-5d4f8"), owned_by(Some(owner("Deployment", "web"))));
    assert!(governing(&index, &without_hash).is_some());
    index.apply(SizingKind::ReplicaSet, name("web-5d4f8"), owned_by(None));
    assert!(governing(&index, &pod).is_none(), "no VPA controls it");
    index.retain(SizingKind::ReplicaSet, &BTreeSet::new());
    assert!(governing(&index, &pod).is_some());
}

#[test]
fn kinds_of_others_are_followed_to_where_a_vpa_looks() {
    let mut index = SizingIndex::default();
    let kafka =
        OwnerRef { api_version: "kafka.example.com/v1".into(), kind: "Kafka".into(), name: "k".into() };
    index.apply(SizingKind::Vpa, name("k"), named("k", 1, kafka.clone(), "Recreate"));
    index.apply(SizingKind::StatefulSet, name("k-0"), owned_by(Some(kafka)));
    let pod = SizedPod { owner: Some(owner("StatefulSet", "k-0")), ..pod("p", Vec::new()) };
    assert!(governing(&index, &pod).is_some());
    // A cycle.
    index.apply(SizingKind::ReplicaSet, name("a"), owned_by(Some(owner("ReplicaSet", "a"))));
    let round = SizedPod { owner: Some(owner("ReplicaSet", "a")), ..pod };
    assert!(governing(&index, &round).is_none());
}

#[test]
fn all_limit_ranges_of_a_namespace_hold_together() {
    let mut index = SizingIndex::default();
    let with_max = |cpu: i64, memory: Option<i64>| {
        let container = Range { max: amounts(cpu, memory), min: amounts(cpu / 10, None), ..Range::default() };
        SizingObject::LimitRange(Ranges { container, pod: Range::default() })
    };
    index.apply(SizingKind::LimitRange, name("a"), with_max(4_000, None));
    index.apply(SizingKind::LimitRange, name("b"), with_max(2_000, Some(MI)));
    let joined = index.ranges("shop");
    assert_eq!((joined.container.max, joined.container.min), (amounts(2_000, MI), amounts(400, None)));
    assert_eq!(*index.ranges("bank"), Ranges::default());
    index.delete(SizingKind::LimitRange, &name("b"));
    assert_eq!(index.ranges("shop").container.max, amounts(4_000, None));
    index.retain(SizingKind::LimitRange, &BTreeSet::new());
    assert_eq!(*index.ranges("shop"), Ranges::default());
}

#[test]
fn nothing_is_complete_before_every_kind_was_listed() {
    let mut index = SizingIndex::default();
    for kind in SizingKind::ALL {
        assert!(!index.is_complete());
        index.retain(kind, &BTreeSet::new());
    }
    assert!(index.is_complete());
}

#[test]
fn an_index_of_some_kinds_is_complete_without_the_others() {
    let mut index = SizingIndex::new([SizingKind::Vpa, SizingKind::Job].into());
    index.retain(SizingKind::Job, &BTreeSet::new());
    assert!(!index.is_complete());
    index.retain(SizingKind::Vpa, &BTreeSet::new());
    assert!(index.is_complete() && index.follows(SizingKind::Vpa) && !index.follows(SizingKind::LimitRange));
}

#[test]
fn a_kind_that_is_not_served_has_no_objects_and_a_forbidden_one_keeps_them() {
    let mut index = SizingIndex::default();
    assert_eq!(index.state(SizingKind::Vpa), ListState::NotListed);
    index.forbidden(SizingKind::Vpa);
    assert_eq!(index.state(SizingKind::Vpa), ListState::Forbidden);
    index.apply(SizingKind::Vpa, name("web"), named("web", 1, owner("Deployment", "web"), "Recreate"));
    index.retain(SizingKind::Vpa, &BTreeSet::from([name("web")]));
    assert_eq!(index.state(SizingKind::Vpa), ListState::Listed);
    index.forbidden(SizingKind::Vpa);
    assert_eq!((index.state(SizingKind::Vpa), index.vpas().count()), (ListState::Forbidden, 1));
    index.not_served(SizingKind::Vpa);
    assert_eq!((index.state(SizingKind::Vpa), index.vpas().count()), (ListState::NotServed, 0));
}

#[test]
fn workloads_are_found_by_the_references_of_their_pods() {
    let mut index = SizingIndex::default();
    let daemons = WorkloadObject { uid: "u".into(), replicas: Some(3), ..WorkloadObject::default() };
    index.apply(SizingKind::DaemonSet, name("log"), SizingObject::Workload(daemons.clone()));
    let shop = Arc::from("shop");
    assert_eq!(index.workload(&shop, &owner("DaemonSet", "log")), Some(&daemons));
    assert_eq!(index.workload(&shop, &owner("StatefulSet", "log")), None);
    let of_others = OwnerRef { api_version: "example.com/v1".into(), ..owner("DaemonSet", "log") };
    assert_eq!(index.workload(&shop, &of_others), None);
    index.delete(SizingKind::DaemonSet, &name("log"));
    assert_eq!(index.workload(&shop, &owner("DaemonSet", "log")), None);
}

#[test]
fn a_service_scaler_sizes_new_pods_that_no_vpa_controls_and_updates_none() {
    let mut index = SizingIndex::default();
    let pod = pod("p", Vec::new());
    let sizing = |index: &SizingIndex| index.size_new(&pod).map(|governed| governed.vpa.name.clone());
    let scaler = |of: &str, created: i64| {
        let target = Some(owner("Deployment", "web"));
        SizingObject::ServiceScaler(Some(Arc::new(Vpa {
            name: of.into(),
            created,
            target,
            ..vpa("Initial", Vec::new())
        })))
    };
    index.apply(SizingKind::ServiceScaler, name("second"), scaler("second", 2));
    index.apply(SizingKind::ServiceScaler, name("first"), scaler("first", 1));
    assert_eq!(sizing(&index).as_deref(), Some("first"));
    assert_eq!(governing(&index, &pod), None, "the updater has nothing to do with it");
    assert_eq!(index.vpas().count(), 0);
    index.apply(SizingKind::ServiceScaler, name("first"), SizingObject::ServiceScaler(None));
    assert_eq!(sizing(&index).as_deref(), Some("second"), "the other sets no sizes now");
    index.apply(SizingKind::Vpa, name("off"), named("off", 1, owner("Deployment", "web"), "Off"));
    assert_eq!(sizing(&index).as_deref(), Some("second"));
    index.apply(SizingKind::Vpa, name("on"), named("on", 3, owner("Deployment", "web"), "Initial"));
    assert_eq!(sizing(&index).as_deref(), Some("on"));
    index.delete(SizingKind::Vpa, &name("on"));
    index.retain(SizingKind::ServiceScaler, &BTreeSet::from([name("second")]));
    assert_eq!(sizing(&index).as_deref(), Some("second"));
    index.retain(SizingKind::ServiceScaler, &BTreeSet::new());
    assert_eq!(sizing(&index), None);
}
