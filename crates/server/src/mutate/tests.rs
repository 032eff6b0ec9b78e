use std::collections::BTreeSet;

use super::*;
use berth_model::{LabelSelector, Operator, PerResource, Requirement};
use berth_rightsizing::apply::index::{SizingKind, SizingObject};
use berth_rightsizing::recommend::{OwnerRef, Recommendation, Vpa};
use berth_scheduler::hints::{Hint, SelectedPods};
use serde_json::json;

fn mutate(is_complete: bool, config: &config::Recommender) -> Mutate {
    let mut index = SizingIndex::default();
    let target = OwnerRef { api_version: "apps/v1".into(), kind: "StatefulSet".into(), name: "db".into() };
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
        SizingKind::ALL.iter().for_each(|kind| index.retain(*kind, &BTreeSet::new()));
    }
    index.apply(SizingKind::Vpa, ("shop".into(), "db".into()), SizingObject::Vpa(Arc::new(vpa)));
    Mutate::new(Arc::new(RwLock::new(index)), Histograms::default(), config, None)
}

fn outcome(mutate: &Mutate, namespace: &str, pod: Value) -> &'static str {
    outcome_of(
        mutate,
        json!({
            "uid": "r", "namespace": namespace, "operation": "CREATE", "resource": {"group": "", "resource": "pods"},
            "object": pod,
        }),
    )
}

fn outcome_of(mutate: &Mutate, request: Value) -> &'static str {
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request});
    let review = review.to_string();
    match mutate.outcome(&ReviewRequest::read(review.as_bytes()).expect("a review")) {
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

#[test]
fn only_pods_that_are_created_are_of_interest() {
    let mutate = mutate(true, &config::Recommender::default());
    let of = |resource: &str, sub_resource: &str, operation: &str| {
        let request = json!({
            "uid": "r", "namespace": "shop", "operation": operation, "subResource": sub_resource,
            "resource": {"group": "", "resource": resource}, "object": {"metadata": {}, "spec": {}},
        });
        outcome_of(&mutate, request)
    };
    assert_eq!(of("pods", "", "CREATE"), "no_vpa");
    for (resource, sub_resource, operation) in
        [("pods", "", "UPDATE"), ("pods", "binding", "CREATE"), ("nodes", "", "CREATE")]
    {
        assert_eq!(of(resource, sub_resource, operation), "other");
    }
}

/// `cargo test --lib -- --nocapture a_review_costs` shows the times.
#[tokio::test]
async fn a_review_costs_little_also_among_ten_thousand_vpas() {
    let config = config::Recommender::default();
    let mutate = mutate(true, &config);
    for at in 0..10_000 {
        let name = format!("other-{at}");
        let target =
            OwnerRef { api_version: "apps/v1".into(), kind: "Deployment".into(), name: name.clone() };
        let vpa = Vpa {
            namespace: "shop".into(),
            name: name.as_str().into(),
            target: Some(target),
            ..Vpa::default()
        };
        let object = SizingObject::Vpa(Arc::new(vpa));
        mutate.index.write().apply(SizingKind::Vpa, ("shop".into(), name.into()), object);
    }
    let env: Vec<Value> =
        (0..50).map(|at| json!({"name": format!("VARIABLE_{at}"), "value": "x".repeat(40)})).collect();
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "r", "namespace": "shop", "operation": "CREATE",
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "object": {
                "metadata": {"name": "db-0", "ownerReferences": [
                    {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "controller": true}]},
                "spec": {"containers": [{"name": "app", "env": env}, {"name": "proxy", "env": env}]},
            },
        },
    });
    let router = axum::Router::new().route(PATH, webhook(Arc::new(mutate)));
    let body = review.to_string();
    let mut took = Vec::new();
    for _ in 0..1_000 {
        let request = axum::http::Request::post(PATH).body(Body::from(body.clone())).unwrap();
        let began = Instant::now();
        let answer = tower::ServiceExt::oneshot(router.clone(), request).await.unwrap();
        let answer = axum::body::to_bytes(answer.into_body(), MAX_BODY).await.unwrap();
        took.push(began.elapsed());
        assert!(String::from_utf8_lossy(&answer).contains("JSONPatch"));
    }
    took.sort();
    println!("half within {:?}, 99 % within {:?}", took[500], took[990]);
    assert!(took[500] < Duration::from_millis(5), "{:?}", took[500]);
}

#[test]
fn a_pod_that_another_scheduler_places_gets_the_hints_also_when_no_vpa_has_it() {
    let workload = |app: &str| {
        let app = Requirement { key: "app".into(), operator: Operator::In([app.into()].into()) };
        SelectedPods { namespace: "shop".into(), selector: LabelSelector::All([app].into()) }
    };
    let hints = Hints::new([Hint { of: workload("web"), other: workload("db"), weight: -80 }]).0;
    let config = config::Recommender::default();
    let placing = Placing { hints: Arc::new(RwLock::new(hints)), own_schedulers: vec!["berth".into()] };
    let mutate = Mutate { placing: Some(placing), ..mutate(true, &config) };
    let pod = |scheduler: &str, app: &str, affinity: Value| {
        json!({
            "metadata": {"generateName": "web-", "labels": {"app": app}},
            "spec": {"schedulerName": scheduler, "affinity": affinity, "containers": [{"name": "app"}]},
        })
    };
    let of_nodes = || json!({"nodeAffinity": {}});
    assert_eq!(outcome(&mutate, "shop", pod("default-scheduler", "web", of_nodes())), "patched");
    assert_eq!(outcome(&mutate, "shop", pod("berth", "web", of_nodes())), "no_vpa", "it knows them itself");
    assert_eq!(outcome(&mutate, "shop", pod("default-scheduler", "cart", of_nodes())), "no_vpa");
    assert_eq!(outcome(&mutate, "bank", pod("default-scheduler", "web", of_nodes())), "no_vpa");
    let own = json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}});
    assert_eq!(outcome(&mutate, "shop", pod("default-scheduler", "web", own)), "no_vpa");
}
