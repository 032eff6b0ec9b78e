//! Preemption on a real API server: the visible state of victims and preemptors equals kube-scheduler's.

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::{DeleteParams, PostParams};

use super::*;

pub(super) async fn create_priority(client: &Client, name: &str, value: i32) {
    let api: Api<PriorityClass> = Api::all(client.clone());
    let class = json!({"metadata": {"name": name}, "value": value});
    let class = serde_json::from_value(class).expect("a priority class");
    api.create(&PostParams::default(), &class).await.expect("the priority class is created");
}

/// Allows no disruption of pods with this label.
async fn create_budget(client: &Client, app: &str) {
    let api: Api<PodDisruptionBudget> = Api::default_namespaced(client.clone());
    let budget = json!({
        "metadata": {"name": app},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": app}}},
    });
    let budget = serde_json::from_value(budget).expect("a budget");
    api.create(&PostParams::default(), &budget).await.expect("the budget is created");
}

async fn fill(client: &Client, prefix: &'static str, pool: &'static str, priority: &'static str) -> Vec<Pod> {
    let pods = Pods { prefix, count: 2, requests: json!({"cpu": "2"}), ..Pods::default() };
    create_pods(client, &pods, |_, pod| {
        pod["metadata"]["labels"] = json!({"app": prefix});
        pod["spec"]["nodeSelector"] = json!({"pool": pool});
        pod["spec"]["priorityClassName"] = json!(priority);
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn preemption_respects_budgets_and_reports_as_kube_scheduler_does() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    let room = json!({"cpu": "4", "memory": "8Gi", "pods": "110"});
    for node in ["first", "second"] {
        create_node(&client, node, room.clone(), json!({})).await;
    }
    for (name, value) in [("low", 10), ("middle", 20), ("high", 1000)] {
        create_priority(&client, name, value).await;
    }
    create_budget(&client, "kept").await;
    let berth = Berth::start(&cluster.kubeconfig(), "");
    fill(&client, "kept", "first", "low").await;
    let others = fill(&client, "other", "second", "middle").await;
    await_bound(&client, SOON, 4, |_| true).await;

    let wanted = Pods { prefix: "service", requests: json!({"cpu": "3"}), ..Pods::default() };
    let service =
        create_pods(&client, &wanted, |_, pod| pod["spec"]["priorityClassName"] = json!("high")).await;
    let api: Api<Pod> = Api::default_namespaced(client.clone());
    let deleting = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
    await_until(SOON, "both pods without a budget are being deleted", async || {
        all_pods(&client).await.iter().filter(|pod| deleting(pod)).count() == 2
    })
    .await;
    for victim in ["other-0", "other-1"] {
        let victim = api.get(victim).await.expect("it waits for its kubelet");
        assert!(deleting(&victim) && victim.metadata.deletion_grace_period_seconds == Some(30));
        let conditions = victim.status.and_then(|status| status.conditions).unwrap_or_default();
        let target = conditions.iter().find(|it| it.type_ == "DisruptionTarget").expect("the condition");
        assert_eq!(
            (target.status.as_str(), target.reason.as_deref(), target.message.as_deref()),
            (
                "True",
                Some("PreemptionByScheduler"),
                Some("berth: preempting to accommodate a higher priority pod")
            )
        );
        assert_eq!(target.observed_generation, Some(1));
    }
    await_until(SOON, "the service is nominated", async || {
        let pod = api.get("service-0").await.expect("the service");
        pod.status.and_then(|status| status.nominated_node_name).as_deref() == Some("second")
    })
    .await;
    await_message(&client, "default", "service-0", |message| {
        message == "0/2 nodes are available: 2 Insufficient cpu."
    })
    .await;
    // Pods of lower priority do not get the reserved room, however soon they arrive.
    let crumbs = Pods { prefix: "crumb", requests: json!({"cpu": "2"}), ..Pods::default() };
    create_pods(&client, &crumbs, |_, _| {}).await;
    for victim in ["other-0", "other-1"] {
        api.delete(victim, &DeleteParams::default().grace_period(0)).await.expect("its kubelet ends it");
    }
    await_bound(&client, SOON, 3, |_| true).await;
    let bound = api.get("service-0").await.expect("the service");
    assert_eq!(node_of(&bound), Some("second"));
    // It is the API server that clears this field, by default from 1.35 on.
    let left = (api_server_minor() < 35).then(|| "second".to_owned());
    assert_eq!(bound.status.and_then(|status| status.nominated_node_name), left);
    assert_no_overcommit(&client).await;

    let mut events = Vec::new();
    await_until(SOON, "the victim's event arrives", async || {
        events = events_of(&client, &others[0]).await;
        events.iter().any(|event| event.reason.as_deref() == Some("Preempted"))
    })
    .await;
    let event = events.iter().find(|event| event.reason.as_deref() == Some("Preempted")).expect("just seen");
    let preemptor = service[0].metadata.uid.clone().expect("a uid");
    assert_eq!(event.note, Some(format!("Preempted by pod {preemptor} on node second")));
    assert_eq!((event.action.as_deref(), event.type_.as_deref()), (Some("Preempting"), Some("Normal")));
    assert_eq!(event.reporting_controller.as_deref(), Some("berth"));
    assert_eq!(event.related.as_ref().and_then(|related| related.uid.clone()), Some(preemptor));
    assert_eq!(berth.metric("scheduler_preemption_victims_sum").await, 2.0);
    let forbidden = berth.log().to_lowercase().contains("forbidden");
    assert!(!forbidden, "{}", berth.log());
}
