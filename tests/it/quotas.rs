//! Quotas on a real API server: validation, kubectl output, and enforcement.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client, discovery::ApiResource};
use serde_json::{Value, json};

use berth_crds::quota::{Quota, QuotaStatus};

use crate::allocations::Kubectl;
use crate::support::*;

const SOON: Duration = Duration::from_secs(60);

async fn create_namespace(client: &Client, name: &str) {
    let namespace = json!({"metadata": {"name": name, "labels": {"team": name}}});
    let namespace: Namespace = serde_json::from_value(namespace).expect("a namespace");
    Api::all(client.clone())
        .create(&PostParams::default(), &namespace)
        .await
        .expect("the namespace is created");
}

/// Sends raw JSON: the types of the crate must not correct it.
async fn create(client: &Client, name: &str, spec: Value) -> Result<DynamicObject, String> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("berth.dev", "v1alpha1", "Quota"));
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
    let object = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Quota", "metadata": {"name": name}, "spec": spec});
    let object: DynamicObject = serde_json::from_value(object).expect("an object");
    api.create(&PostParams::default(), &object).await.map_err(|error| error.to_string())
}

async fn patch(client: &Client, name: &str, spec: Value) {
    let api: Api<Quota> = Api::all(client.clone());
    let patch = Patch::Merge(json!({"spec": spec}));
    api.patch(name, &PatchParams::default(), &patch).await.expect("the quota is patched");
}

/// Waits until the quota's status satisfies `is`.
async fn await_status(client: &Client, name: &str, what: &str, is: impl Fn(&QuotaStatus) -> bool) {
    let api: Api<Quota> = Api::all(client.clone());
    let mut last = None;
    let told = async {
        await_until(SOON, &format!("quota {name}: {what}"), async || {
            last = api.get(name).await.expect("it exists").status;
            last.as_ref().is_some_and(&is)
        })
        .await;
    };
    told.await;
}

/// Pods of one CPU each.
async fn create_work(
    client: &Client,
    namespace: &'static str,
    prefix: &'static str,
    count: usize,
    priority: i32,
) {
    let requests = json!({"cpu": "1", "memory": "1Gi"});
    let pods = Pods { namespace, prefix, count, requests, ..Pods::default() };
    create_pods(client, &pods, |_, pod| {
        pod["spec"]["terminationGracePeriodSeconds"] = json!(0);
        if priority > 0 {
            pod["spec"]["priorityClassName"] = json!("important");
        }
    })
    .await;
}

async fn bound_in(client: &Client, namespace: &str) -> usize {
    let pods = all_pods(client).await;
    pods.iter()
        .filter(|pod| pod.metadata.namespace.as_deref() == Some(namespace) && node_of(pod).is_some())
        .count()
}

async fn await_bound_in(client: &Client, namespace: &str, count: usize) {
    let what = format!("{count} pods of {namespace} have a node");
    await_until(SOON, &what, async || bound_in(client, namespace).await == count).await;
}

fn waits(pod: &Pod) -> Option<(String, String)> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let condition = conditions.iter().find(|condition| condition.type_ == "PodScheduled")?;
    Some((condition.reason.clone()?, condition.message.clone()?))
}

async fn important_class(client: &Client) {
    let class = json!({"metadata": {"name": "important"}, "value": 1000});
    let class: k8s_openapi::api::scheduling::v1::PriorityClass =
        serde_json::from_value(class).expect("a priority class");
    Api::all(client.clone()).create(&PostParams::default(), &class).await.expect("the class is created");
}

/// Recreates evicted pods, like a controller, until `own` pods of `blue` have their node.
async fn replace_what_is_evicted(client: &Client, berth: &Berth, own: usize) {
    let began = std::time::Instant::now();
    let red: Api<Pod> = Api::namespaced(client.clone(), "red");
    let mut made = 0;
    while bound_in(client, "blue").await < own {
        assert!(
            began.elapsed() < SOON,
            "{} of {own} came back\n{}",
            bound_in(client, "blue").await,
            berth.log()
        );
        let missing =
            12usize.saturating_sub(red.list(&Default::default()).await.expect("a list").items.len());
        for _ in 0..missing {
            made += 1;
            let pod = json!({
                "metadata": {"name": format!("again-{made}")},
                "spec": {
                    "schedulerName": "berth",
                    "priorityClassName": "important",
                    "terminationGracePeriodSeconds": 0,
                    "containers": [{"name": "main", "image": "pause", "resources": {"requests": {"cpu": "1"}}}],
                },
            });
            let pod: Pod = serde_json::from_value(pod).expect("a pod");
            red.create(&PostParams::default(), &pod).await.expect("the pod is created");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_teams_share_a_cluster_each_up_to_its_maximum_and_get_back_what_is_guaranteed() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    let kubectl = Kubectl::new(&cluster).await;
    kubectl.install_kinds().await;
    kubectl.must(&["wait", "--for=condition=Established", "crd/quotas.berth.dev"], "").await;
    kubectl.must(&["apply", "--dry-run=server", "-f", "manifests/example-quota.yaml"], "").await;
    refuses_what_says_nothing_sensible(&client).await;
    important_class(&client).await;
    for team in ["red", "blue"] {
        create_namespace(&client, team).await;
    }
    create_nodes(&client, &Nodes { count: 3, cpu: "4", ..Nodes::default() }).await;
    create(
        &client,
        "red",
        json!({"namespaces": ["red"], "guaranteed": {"cpu": 6}, "maximum": {"cpu": "10"}}),
    )
    .await
    .expect("a good quota");
    let selector = json!({"matchLabels": {"team": "blue"}});
    create(&client, "blue", json!({"namespaceSelector": selector, "guaranteed": {"cpu": "6000m"}}))
        .await
        .expect("a good quota");
    let berth = Berth::start(&cluster.kubeconfig(), "agents: 4\n");

    // The maximum holds for all agents, and waiting pods get the reason.
    create_work(&client, "red", "r", 12, 1).await;
    await_bound_in(&client, "red", 10).await;
    await_status(&client, "red", "ten of ten are used and two wait", |status| {
        status.used.get("cpu").map(String::as_str) == Some("10") && status.waiting == 2 && status.pods == 10
    })
    .await;
    // Conditions of pods and the status of the quota are written independently.
    let expected = "QuotaExceeded: quota red: requested cpu=1, used cpu=10, maximum cpu=10";
    let expected = BTreeMap::from([(expected.to_owned(), 2)]);
    await_until(SOON, &format!("the reasons are {expected:?}"), async || {
        let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
        let pods = all_pods(&client).await;
        for (reason, message) in pods.iter().filter(|pod| node_of(pod).is_none()).filter_map(waits) {
            *reasons.entry(format!("{reason}: {message}")).or_default() += 1;
        }
        reasons == expected
    })
    .await;

    // Changed on the fly.
    patch(&client, "red", json!({"maximum": {"cpu": "12"}})).await;
    await_bound_in(&client, "red", 12).await;
    await_status(&client, "red", "six are borrowed", |status| {
        status.borrowed.get("cpu").map(String::as_str) == Some("6") && status.waiting == 0
    })
    .await;
    let shown = kubectl.must(&["get", "quotas.berth.dev", "red", "--no-headers"], "").await;
    let shown: Vec<_> = shown.split("  ").map(str::trim).filter(|word| !word.is_empty()).collect();
    assert_eq!(shown[..8], ["red", "cpu 12", "cpu 6", "cpu 12", "cpu 6", "12", "0", "True"]);

    // Pods of lower priority reclaim their guarantee, and berth restarts during that.
    create_work(&client, "blue", "b", 8, 0).await;
    await_until(SOON, "some room came back", async || bound_in(&client, "blue").await > 0).await;
    drop(berth);
    let berth = Berth::start(&cluster.kubeconfig(), "agents: 4\n");
    replace_what_is_evicted(&client, &berth, 6).await;
    await_status(&client, "blue", "all of its guarantee is used", |status| {
        status.used.get("cpu").map(String::as_str) == Some("6") && status.borrowed.is_empty()
    })
    .await;
    // Not one pod more, and no further reclaim.
    let mut nodes = BTreeMap::new();
    for round in 0..15 {
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(
            (bound_in(&client, "red").await, bound_in(&client, "blue").await),
            (6, 6),
            "{}",
            berth.log()
        );
        let pods = all_pods(&client).await;
        let now: BTreeMap<_, _> =
            pods.iter().filter_map(|pod| Some((name_of(pod).to_owned(), node_of(pod)?.to_owned()))).collect();
        if round > 0 {
            assert_eq!(now, nodes);
        }
        nodes = now;
    }
    assert_no_overcommit(&client).await;
    assert_eq!(berth.metric("berth_quota_used{quota=\"red\",resource=\"cpu\"}").await, 6.0);
    assert_eq!(berth.metric("berth_quota_guaranteed{quota=\"blue\",resource=\"cpu\"}").await, 6.0);
    assert_eq!(berth.metric("berth_invariant_violations_total").await, 0.0);
    assert!(!berth.log().contains("panicked"));
}

async fn refuses_what_says_nothing_sensible(client: &Client) {
    let maximum = |amount: Value| json!({"maximum": {"cpu": amount}});
    let refused = [
        (json!({}), "the quota has no effect"),
        (json!({"namespaces": ["a"]}), "the quota has no effect"),
        (json!({"guaranteed": {}, "maximum": {}}), "the quota has no effect"),
        (
            json!({"guaranteed": {"cpu": 2}, "maximum": {"cpu": "1999m"}}),
            "guaranteed must not be more than maximum",
        ),
        (
            json!({"guaranteed": {"memory": "1Gi"}, "maximum": {"memory": "1G"}}),
            "guaranteed must not be more",
        ),
        (
            json!({"namespaces": ["a"], "namespaceSelector": {}, "maximum": {"cpu": 1}}),
            "give namespaces or namespaceSelector, not both",
        ),
        (maximum(json!("many")), "should match"),
        (maximum(json!("-1")), "should match"),
        (maximum(json!(-1)), "greater than or equal to 0"),
        (maximum(json!(0.5)), "must be of type integer,string"),
        (json!({"queue": "not a label", "maximum": {"cpu": 1}}), "should match"),
        (json!({"reclaim": "Some", "maximum": {"cpu": 1}}), "Unsupported value"),
        (json!({"namespaces": [], "maximum": {"cpu": 1}}), "spec.namespaces"),
    ];
    for (at, (spec, why)) in refused.into_iter().enumerate() {
        match create(client, &format!("refused-{at}"), spec.clone()).await {
            Ok(_) => panic!("accepted: {spec}"),
            Err(error) => assert!(error.contains(why), "{spec}: {error}"),
        }
    }
}
