use super::super::{ClusterObject, ObjectStores};
use super::*;
use crate::profile::{Profile, Profiles};
use berth_model::{Labels, Peer};

fn named(name: &str) -> ObjectName {
    ObjectName { namespace: "x".into(), name: name.into() }
}

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().copied().collect()
}

fn selects(pairs: &[(&str, &str)]) -> LabelSelector {
    let is = |(key, value): &(&str, &str)| Requirement {
        key: (*key).into(),
        operator: Operator::In([(*value).into()].into()),
    };
    LabelSelector::All(pairs.iter().map(is).collect())
}

fn pod(pairs: &[(&str, &str)], owner: Option<(&str, &str, &str)>) -> Pod {
    let identity = Identity { namespace: "x".into(), labels: labels(pairs), ..Identity::default() };
    let owner = owner.map(|(api_version, kind, name)| PodOwner {
        api_version: api_version.into(),
        kind: kind.into(),
        name: name.into(),
    });
    Pod { peer: Arc::new(Peer { identity, ..Peer::default() }), owner, ..Pod::default() }
}

const WEB: &[(&str, &str)] = &[("app", "web"), ("hash", "1")];
const OWNED: Option<(&str, &str, &str)> = Some(("apps/v1", "ReplicaSet", "web-1"));

/// The selector that the pod's default constraints have.
fn selector(spreading: &mut Spreading, pod: &Pod) -> Option<LabelSelector> {
    let spread = spreading.constraints(&system_defaults(), &PodSpec::default(), pod).unwrap_or_default();
    let selectors: Vec<_> = spread.constraints.iter().map(|c| c.selector.labels.clone()).collect();
    assert!(selectors.windows(2).all(|pair| pair[0] == pair[1]), "one selector for all");
    selectors.first().cloned()
}

#[test]
fn a_pod_that_belongs_to_nothing_is_not_spread() {
    let mut spreading = Spreading::default();
    spreading.apply(ObjectKind::Service, named("db"), selects(&[("app", "db")]));
    spreading.apply(ObjectKind::Service, named("headless"), LabelSelector::Nothing);
    spreading.apply(ObjectKind::Service, named("empty"), LabelSelector::All([].into()));
    assert_eq!(selector(&mut spreading, &pod(WEB, OWNED)), None);
    assert_eq!(selector(&mut spreading, &pod(WEB, None)), None);
}

#[test]
fn a_pod_gets_the_systems_constraints_with_the_labels_of_its_services_and_its_controller() {
    let mut spreading = Spreading::default();
    spreading.apply(ObjectKind::Service, named("web"), selects(&[("app", "web")]));
    spreading.apply(ObjectKind::Service, named("other"), selects(&[("app", "web"), ("hash", "2")]));
    spreading.apply(ObjectKind::ReplicaSet, named("web-1"), selects(&[("app", "web"), ("hash", "1")]));
    let pod = pod(WEB, OWNED);
    let spread = spreading.constraints(&system_defaults(), &PodSpec::default(), &pod).unwrap();
    assert!(spread.defaulted);
    let [host, zone] = &spread.constraints[..] else { panic!("{spread:?}") };
    assert_eq!((&*host.topology_key, host.max_skew, host.hard), ("kubernetes.io/hostname", 3, false));
    assert_eq!((&*zone.topology_key, zone.max_skew, zone.hard), ("topology.kubernetes.io/zone", 5, false));
    assert_eq!(zone.selector.labels, selects(&[("app", "web"), ("hash", "1")]));
    assert_eq!(&*zone.selector.namespaces, [Arc::from("x")]);
    assert!(zone.self_match && zone.honor_affinity && !zone.honor_taints && zone.min_domains == 1);
}

#[test]
fn pods_of_one_controller_share_what_they_get() {
    let profile = Profile { default_spread: system_defaults(), ..Profile::default() };
    let mut objects = ObjectStores::new(Profiles::from(profile).into());
    let (kind, selector) = (ObjectKind::StatefulSet, selects(&[("app", "db")]));
    objects.apply(ClusterObject::Selecting { kind, name: named("db"), selector });
    let spec = Arc::new(PodSpec { containers: 1, ..PodSpec::default() });
    let owner = Some(("apps/v1", "StatefulSet", "db"));
    let mut of = |labels| objects.effective_spec(&spec, &pod(labels, owner), &|_| false);
    let first = of(&[("app", "db"), ("pod-name", "db-0")]);
    let second = of(&[("app", "db"), ("pod-name", "db-1")]);
    assert_eq!(first.spread.constraints.len(), 2);
    assert!(Arc::ptr_eq(&first, &second));
    assert_eq!(first.containers, 1);
}

#[test]
fn only_an_owner_of_a_known_kind_and_version_counts() {
    let mut spreading = Spreading::default();
    spreading.apply(ObjectKind::ReplicaSet, named("web-1"), selects(WEB));
    assert!(selector(&mut spreading, &pod(WEB, OWNED)).is_some());
    for owner in [("extensions/v1beta1", "ReplicaSet"), ("apps/v1", "StatefulSet"), ("batch/v1", "Job")] {
        assert_eq!(selector(&mut spreading, &pod(WEB, Some((owner.0, owner.1, "web-1")))), None);
    }
    let elsewhere = Identity { namespace: "y".into(), ..Identity::default() };
    let elsewhere =
        Pod { peer: Arc::new(Peer { identity: elsewhere, ..Peer::default() }), ..pod(WEB, OWNED) };
    assert_eq!(selector(&mut spreading, &elsewhere), None);
}

#[test]
fn a_replication_controller_overrules_a_service_and_other_controllers_add_to_it() {
    let (mut spreading, pods) = (Spreading::default(), [("app", "web"), ("tier", "a")]);
    spreading.apply(ObjectKind::Service, named("web"), selects(&pods));
    spreading.apply(ObjectKind::ReplicationController, named("web"), selects(&[("app", "old")]));
    spreading.apply(ObjectKind::ReplicaSet, named("web"), selects(&[("app", "old")]));
    let merged = selector(&mut spreading, &pod(&pods, Some(("v1", "ReplicationController", "web"))));
    assert_eq!(merged, Some(selects(&[("app", "old"), ("tier", "a")])));
    let both = selector(&mut spreading, &pod(&pods, Some(("apps/v1", "ReplicaSet", "web"))));
    assert_eq!(both, Some(selects(&[("app", "old"), ("app", "web"), ("tier", "a")])));
}

#[test]
fn a_pod_with_constraints_of_its_own_keeps_them_and_without_defaults_nothing_is_added() {
    let own = Spread { constraints: [default_constraint("rack", true)].into(), defaulted: false };
    let own = PodSpec { spread: own, ..PodSpec::default() };
    let mut spreading = Spreading::default();
    spreading.apply(ObjectKind::ReplicaSet, named("web-1"), selects(WEB));
    let pod = pod(WEB, OWNED);
    assert_eq!(spreading.constraints(&system_defaults(), &own, &pod), None);
    assert_eq!(spreading.constraints(&Spread::default(), &PodSpec::default(), &pod), None);
    assert!(spreading.constraints(&system_defaults(), &PodSpec::default(), &pod).is_some());
}

#[test]
fn only_a_change_of_the_selector_is_news_and_a_deleted_object_selects_nothing_more() {
    let mut spreading = Spreading::default();
    let everyone = Affected::Waiting("x".into());
    let owned = Affected::Owned { namespace: "x".into(), owner: "web-1".into() };
    assert_eq!(spreading.apply(ObjectKind::Service, named("web"), selects(&[("app", "web")])), everyone);
    assert_eq!(
        spreading.apply(ObjectKind::Service, named("web"), selects(&[("app", "web")])),
        Affected::Nothing
    );
    assert_eq!(spreading.apply(ObjectKind::Service, named("web"), selects(&[("hash", "1")])), everyone);
    assert_eq!(selector(&mut spreading, &pod(WEB, None)), Some(selects(&[("hash", "1")])));
    assert_eq!(spreading.delete(ObjectKind::Service, &named("web")), everyone);
    assert_eq!(spreading.delete(ObjectKind::Service, &named("web")), Affected::Nothing);
    assert_eq!(spreading.apply(ObjectKind::ReplicaSet, named("web-1"), selects(WEB)), owned);
    assert_eq!(spreading.apply(ObjectKind::ReplicaSet, named("web-1"), selects(WEB)), Affected::Nothing);
    assert_eq!(spreading.names(ObjectKind::ReplicaSet), [named("web-1")]);
    assert_eq!(spreading.names(ObjectKind::StatefulSet), []);
    assert_eq!(spreading.delete(ObjectKind::ReplicaSet, &named("web-1")), owned);
    assert_eq!(selector(&mut spreading, &pod(WEB, OWNED)), None);
    assert!(spreading.namespaces.is_empty(), "nothing is left behind");
}
