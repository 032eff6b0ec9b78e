//! VPA that a pod belongs to.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::*;
use crate::apply::index::{Kind, Name, Object};

fn name(of: &str) -> Name {
    ("shop".into(), of.into())
}

fn named(of: &str, created: i64, target: Owner, mode: &str) -> Object {
    let vpa = Vpa { name: of.into(), created, target: Some(target), ..vpa(mode, Vec::new()) };
    Object::Vpa(Box::new(vpa))
}

fn governing(index: &Index, pod: &SizedPod) -> Option<Arc<str>> {
    index.govern(pod).map(|governed| governed.vpa.name.clone())
}

#[test]
fn the_oldest_vpa_that_is_on_governs_the_pods_of_its_target() {
    let mut index = Index::default();
    let pod = pod("p", Vec::new());
    assert_eq!(index.govern(&pod), None);
    for (of, created, mode) in [("old", 1, "Off"), ("second", 2, "Initial"), ("third", 3, "Recreate")] {
        index.apply(Kind::Vpa, name(of), named(of, created, owner("Deployment", "web"), mode));
    }
    index.apply(Kind::Vpa, name("other"), named("other", 0, owner("Deployment", "api"), "Recreate"));
    assert_eq!(governing(&index, &pod).as_deref(), Some("second"));
    index.apply(Kind::Vpa, name("second"), named("second", 2, owner("Deployment", "web"), "Off"));
    assert_eq!(governing(&index, &pod).as_deref(), Some("third"));
    index.apply(Kind::Vpa, name("third"), named("third", 3, owner("Deployment", "api"), "Recreate"));
    assert_eq!(governing(&index, &pod), None, "its target has changed");
    let elsewhere = SizedPod { namespace: "bank".into(), ..pod };
    assert_eq!(governing(&index, &elsewhere), None);
}

#[test]
fn the_owner_of_a_replica_set_is_known_by_its_pods_until_a_watch_has_told() {
    let mut index = Index::default();
    index.apply(Kind::Vpa, name("web"), named("web", 1, owner("Deployment", "web"), "Recreate"));
    let pod = pod("p", Vec::new());
    assert!(governing(&index, &pod).is_some());
    let without_hash = SizedPod { template_hash: None, ..pod.clone() };
    assert!(governing(&index, &without_hash).is_none());
    index.apply(Kind::ReplicaSet, name("web-5d4f8"), Object::Owned(Some(owner("Deployment", "web"))));
    assert!(governing(&index, &without_hash).is_some());
    index.apply(Kind::ReplicaSet, name("web-5d4f8"), Object::Owned(None));
    assert!(governing(&index, &pod).is_none(), "no VPA controls it");
    index.retain(Kind::ReplicaSet, &BTreeSet::new());
    assert!(governing(&index, &pod).is_some());
}

#[test]
fn kinds_of_others_are_followed_to_where_a_vpa_looks() {
    let mut index = Index::default();
    let kafka = Owner { api_version: "kafka.example.com/v1".into(), kind: "Kafka".into(), name: "k".into() };
    index.apply(Kind::Vpa, name("k"), named("k", 1, kafka.clone(), "Recreate"));
    index.apply(Kind::StatefulSet, name("k-0"), Object::Owned(Some(kafka)));
    let pod = SizedPod { owner: Some(owner("StatefulSet", "k-0")), ..pod("p", Vec::new()) };
    assert!(governing(&index, &pod).is_some());
    // A cycle.
    index.apply(Kind::ReplicaSet, name("a"), Object::Owned(Some(owner("ReplicaSet", "a"))));
    let round = SizedPod { owner: Some(owner("ReplicaSet", "a")), ..pod };
    assert!(governing(&index, &round).is_none());
}

#[test]
fn all_limit_ranges_of_a_namespace_hold_together() {
    let mut index = Index::default();
    let with_max = |cpu: i64, memory: Option<i64>| {
        let container = Range { max: amounts(cpu, memory), min: amounts(cpu / 10, None), ..Range::default() };
        Object::LimitRange(Ranges { container, pod: Range::default() })
    };
    index.apply(Kind::LimitRange, name("a"), with_max(4_000, None));
    index.apply(Kind::LimitRange, name("b"), with_max(2_000, Some(MI)));
    let joined = index.ranges("shop");
    assert_eq!((joined.container.max, joined.container.min), (amounts(2_000, MI), amounts(400, None)));
    assert_eq!(*index.ranges("bank"), Ranges::default());
    index.delete(Kind::LimitRange, &name("b"));
    assert_eq!(index.ranges("shop").container.max, amounts(4_000, None));
    index.retain(Kind::LimitRange, &BTreeSet::new());
    assert_eq!(*index.ranges("shop"), Ranges::default());
}

#[test]
fn nothing_is_complete_before_every_kind_was_listed() {
    let mut index = Index::default();
    for kind in Kind::ALL {
        assert!(!index.is_complete());
        index.retain(kind, &BTreeSet::new());
    }
    assert!(index.is_complete());
}

#[test]
fn a_service_scaler_sizes_new_pods_that_no_vpa_controls_and_updates_none() {
    let mut index = Index::default();
    let pod = pod("p", Vec::new());
    let sizing = |index: &Index| index.size_new(&pod).map(|governed| governed.vpa.name.clone());
    let scaler = |of: &str, created: i64| {
        let target = Some(owner("Deployment", "web"));
        Object::ServiceScaler(Some(Box::new(Vpa {
            name: of.into(),
            created,
            target,
            ..vpa("Initial", Vec::new())
        })))
    };
    index.apply(Kind::ServiceScaler, name("second"), scaler("second", 2));
    index.apply(Kind::ServiceScaler, name("first"), scaler("first", 1));
    assert_eq!(sizing(&index).as_deref(), Some("first"));
    assert_eq!(governing(&index, &pod), None, "the updater has nothing to do with it");
    assert_eq!(index.vpas().count(), 0);
    index.apply(Kind::ServiceScaler, name("first"), Object::ServiceScaler(None));
    assert_eq!(sizing(&index).as_deref(), Some("second"), "the other sets no sizes now");
    index.apply(Kind::Vpa, name("off"), named("off", 1, owner("Deployment", "web"), "Off"));
    assert_eq!(sizing(&index).as_deref(), Some("second"));
    index.apply(Kind::Vpa, name("on"), named("on", 3, owner("Deployment", "web"), "Initial"));
    assert_eq!(sizing(&index).as_deref(), Some("on"));
    index.delete(Kind::Vpa, &name("on"));
    index.retain(Kind::ServiceScaler, &BTreeSet::from([name("second")]));
    assert_eq!(sizing(&index).as_deref(), Some("second"));
    index.retain(Kind::ServiceScaler, &BTreeSet::new());
    assert_eq!(sizing(&index), None);
}
