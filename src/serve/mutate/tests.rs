use std::collections::BTreeSet;

use super::*;
use crate::apply::index::{Kind, Object};
use crate::recommend::{Owner, PerResource, Recommendation, Vpa};
use serde_json::json;

fn mutate(is_complete: bool, config: &config::Recommender) -> Mutate {
    let mut index = Index::default();
    let target = Owner { api_version: "apps/v1".into(), kind: "StatefulSet".into(), name: "db".into() };
    let amounts = PerResource { cpu: Some(500), memory: None };
    let mut vpa = Vpa {
        namespace: "shop".into(),
        name: "db".into(),
        target: Some(target),
        update_mode: "Initial".into(),
        ..Vpa::default()
    };
    vpa.status.recommendation = Some(vec![Recommendation {
        container: "app".into(),
        target: amounts,
        lower: amounts,
        upper: amounts,
        uncapped: amounts,
    }]);
    if is_complete {
        Kind::ALL.iter().for_each(|kind| index.retain(*kind, &BTreeSet::new()));
    }
    index.apply(Kind::Vpa, ("shop".into(), "db".into()), Object::Vpa(Box::new(vpa)));
    Mutate::new(Arc::new(RwLock::new(index)), Histograms::default(), config)
}

fn outcome(mutate: &Mutate, namespace: &str, pod: Value) -> &'static str {
    let pod = pod.to_string();
    let request = wire::Request { uid: "r".into(), namespace: namespace.into(), pod: Some(&pod) };
    match mutate.outcome(&request) {
        Outcome::Patched(_) => "patched",
        Outcome::Unchanged(why) => why,
    }
}

#[test]
fn a_pod_of_a_vpa_is_patched_and_any_doubt_leaves_it_as_it_is() {
    let pod = |kind: &str, container: &str| {
        json!({
            "metadata": {"generateName": "db-", "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": kind, "name": "db", "controller": true}]},
            "spec": {"containers": [{"name": container}]},
        })
    };
    let config = config::Recommender::default();
    let ready = mutate(true, &config);
    assert_eq!(outcome(&ready, "shop", pod("StatefulSet", "app")), "patched");
    assert_eq!(outcome(&ready, "shop", pod("DaemonSet", "app")), "no_vpa");
    assert_eq!(outcome(&ready, "bank", pod("StatefulSet", "app")), "no_vpa");
    assert_eq!(outcome(&ready, "shop", pod("StatefulSet", "other")), "no_recommendation");
    assert_eq!(outcome(&ready, "shop", json!({"spec": 7})), "bad_pod");
    let mut whole = pod("StatefulSet", "app");
    whole["spec"]["resources"] = json!({"limits": {"cpu": "1"}});
    assert_eq!(outcome(&ready, "shop", whole), "pod_level_resources");
    assert_eq!(outcome(&mutate(false, &config), "shop", pod("StatefulSet", "app")), "not_ready");
    let ignoring = config::Recommender { ignored_namespaces: vec!["shop".into()], ..config };
    assert_eq!(outcome(&mutate(true, &ignoring), "shop", pod("StatefulSet", "app")), "no_vpa");
}
