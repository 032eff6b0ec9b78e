//! berth as users run it, on a real API server: pods are bound, get the reason why they wait, and are never bound
//! wrongly.

pub(crate) mod audit;
mod beside;
mod bursts;
mod devices;
mod faults;
mod leaders;
mod preemption;
mod profiles;
mod rbac;
mod texts;
mod volumes;
mod waiting;

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::support::*;

const SOON: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_several_classes_are_bound_and_reported_as_kube_scheduler_does() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    create_nodes(&client, &Nodes { prefix: "small", count: 5, cpu: "2", ..Nodes::default() }).await;
    create_nodes(&client, &Nodes { prefix: "large", count: 5, cpu: "8", ..Nodes::default() }).await;
    let berth = Berth::start(&cluster.kubeconfig(), "");
    let requests = json!({"cpu": "500m", "memory": "500Mi"});
    let pods =
        create_pods(&client, &Pods { prefix: "plain", count: 50, requests, ..Pods::default() }, |_, _| {})
            .await;
    let requests = json!({"cpu": "3", "memory": "1Gi"});
    create_pods(&client, &Pods { prefix: "big", count: 5, requests, ..Pods::default() }, |_, _| {}).await;
    await_bound(&client, SOON, 55, |_| true).await;
    assert_no_overcommit(&client).await;

    let pod = all_pods(&client).await.into_iter().find(|pod| name_of(pod) == "plain-0").expect("plain-0");
    let node = node_of(&pod).expect("bound").to_owned();
    let condition = scheduled_condition(&pod).expect("the API server sets it");
    assert_eq!(condition, ("True".into(), String::new(), String::new()));
    let mut events = Vec::new();
    await_until(SOON, "the pod's event arrives", async || {
        events = events_of(&client, &pods[0]).await;
        !events.is_empty()
    })
    .await;
    let event = &events[0];
    assert_eq!(event.reason.as_deref(), Some("Scheduled"));
    assert_eq!(event.action.as_deref(), Some("Binding"));
    assert_eq!(event.type_.as_deref(), Some("Normal"));
    assert_eq!(event.reporting_controller.as_deref(), Some("berth"));
    assert_eq!(event.note, Some(format!("Successfully assigned default/plain-0 to {node}")));
    // The API server may know the last bind before berth has its answer.
    await_until(SOON, "every pod is counted as scheduled", async || {
        berth.metric(r#"scheduler_schedule_attempts_total{result="scheduled",profile="berth"}"#).await == 55.0
    })
    .await;
}
