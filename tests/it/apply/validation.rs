//! Invalid VPAs are refused by the policy of the chart.

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use kube::Resource;
use kube::api::DeleteParams;
use serde::de::DeserializeOwned;

use super::*;
use crate::chart::rendered;

async fn apply_policy<K>(client: &Client)
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug + serde::Serialize,
{
    let chart = rendered("apply: {webhook: {enabled: true}}");
    let object = chart.into_iter().find(|object| object["kind"] == K::kind(&()).as_ref()).expect("rendered");
    let object: K = serde_json::from_value(object).expect("an object");
    Api::<K>::all(client.clone()).create(&PostParams::default(), &object).await.expect("created");
}

/// A VPA with these fields in its spec.
fn with(spec: Value) -> Value {
    let mut all = json!({"targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}});
    for (key, value) in spec.as_object().expect("fields") {
        all[key] = value.clone();
    }
    json!({
        "apiVersion": "autoscaling.k8s.io/v1", "kind": "VerticalPodAutoscaler", "metadata": {"name": "web"},
        "spec": all,
    })
}

/// Creates the object and deletes it; returns why it was refused.
async fn refusal(client: &Client, vpa: &Value) -> Option<String> {
    let object = serde_json::from_value(vpa.clone()).expect("an object");
    match vpas(client).create(&PostParams::default(), &object).await {
        Ok(_) => {
            vpas(client).delete("web", &DeleteParams::default()).await.expect("deleted");
            None
        }
        Err(kube::Error::Api(status)) => Some(status.message),
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vpa_that_means_nothing_is_refused_with_what_is_wrong_and_others_are_not() {
    let control_plane = start_control_plane().await;
    let client = control_plane.client();
    create_crds(&client).await;
    // It is there before the policy.
    let old = with(json!({"recommenders": [{"name": "a"}, {"name": "b"}]}));
    let mut old = create(&vpas(&client), old).await;
    old.metadata.name = Some("old".to_owned());
    vpas(&client).delete("web", &DeleteParams::default()).await.expect("deleted");
    old.metadata.resource_version = None;
    vpas(&client).create(&PostParams::default(), &old).await.expect("created");
    apply_policy::<ValidatingAdmissionPolicy>(&client).await;
    apply_policy::<ValidatingAdmissionPolicyBinding>(&client).await;

    let policy = |fields: Value| {
        let mut policy = json!({"containerName": "app"});
        for (key, value) in fields.as_object().expect("fields") {
            policy[key] = value.clone();
        }
        json!({"resourcePolicy": {"containerPolicies": [policy]}})
    };
    let boost = |cpu: Value| json!({"startupBoost": {"cpu": cpu}});
    let first = with(json!({"recommenders": [{"name": "a"}, {"name": "b"}]}));
    await_until(SOON, "the policy is in force", async || refusal(&client, &first).await.is_some()).await;
    for (spec, why) in [
        (json!({"recommenders": [{"name": "a"}, {"name": "b"}]}), "one recommender"),
        (json!({"updatePolicy": {"minReplicas": 2}}), "updateMode is required"),
        (json!({"updatePolicy": {"updateMode": "Off", "minReplicas": 0}}), "minReplicas must be positive"),
        (json!({"updatePolicy": {"updateMode": "Off", "evictAfterOOMSeconds": 0}}), "evictAfterOOMSeconds"),
        (policy(json!({"containerName": ""})), "needs a containerName"),
        (
            policy(json!({"minAllowed": {"cpu": "2"}, "maxAllowed": {"cpu": "1900m"}})),
            "greater than maxAllowed",
        ),
        (
            policy(json!({"minAllowed": {"memory": "1Gi"}, "maxAllowed": {"memory": 5}})),
            "greater than maxAllowed",
        ),
        (policy(json!({"maxAllowed": {"cpu": "100u"}})), "whole millicores"),
        (policy(json!({"minAllowed": {"memory": "1500m"}})), "whole bytes"),
        (policy(json!({"controlledResources": ["cpu", "nvidia.com/gpu"]})), "controlledResources"),
        (policy(json!({"mode": "Off", "controlledValues": "RequestsAndLimits"})), "where mode is Off"),
        (policy(json!({"oomBumpUpRatio": "0.9"})), "oomBumpUpRatio"),
        (policy(json!({"oomMinBumpUp": "-1"})), "oomMinBumpUp"),
        (policy(json!({"memoryAggregationIntervalSeconds": 0})), "must be at least 1"),
        (policy(json!({"memoryAggregationIntervalCount": 0})), "must be at least 1"),
        (policy(boost(json!({"type": "Factor", "factor": 0}))), "factor of a startupBoost"),
        (boost(json!({"type": "Factor", "factor": -1})), "factor of a startupBoost"),
        (boost(json!({"type": "Quantity", "quantity": "0.1m"})), "whole millicores"),
    ] {
        let refused =
            refusal(&client, &with(spec.clone())).await.unwrap_or_else(|| panic!("accepted: {spec}"));
        assert!(refused.contains(why), "{spec}: {refused}");
    }
    for good in [
        json!({}),
        json!({"updatePolicy": {"updateMode": "InPlaceOrRecreate", "minReplicas": 1}, "recommenders": [{"name": "a"}]}),
        policy(
            json!({"minAllowed": {"cpu": "0.1", "memory": "1.5Gi"}, "maxAllowed": {"cpu": 64, "memory": "64Gi"}}),
        ),
        policy(
            json!({"minAllowed": {"cpu": "1001m"}, "maxAllowed": {"memory": "100M"}, "oomBumpUpRatio": "1.2"}),
        ),
        policy(json!({"containerName": "*", "mode": "Off", "controlledValues": "RequestsOnly"})),
        boost(json!({"type": "Quantity", "quantity": "333m", "durationSeconds": 30})),
        policy(boost(json!({"type": "Factor", "factor": 3}))),
    ] {
        assert_eq!(refusal(&client, &with(good.clone())).await, None, "{good}");
    }
    // An object that is invalid already can be labelled and gets its status, but not another invalid spec.
    let patch =
        async |patch: Value| vpas(&client).patch("old", &PatchParams::default(), &Patch::Merge(patch)).await;
    patch(json!({"metadata": {"labels": {"team": "a"}}})).await.expect("labelled");
    recommend(&client, "old", json!({"cpu": "1"})).await;
    let refused =
        patch(json!({"spec": {"updatePolicy": {"updateMode": "Off"}}})).await.expect_err("still two");
    assert!(refused.to_string().contains("one recommender"), "{refused}");
}
