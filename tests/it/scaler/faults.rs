//! Faults around a service: it stays unchanged, and its ServiceScaler reports the reason.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::LimitRange;

use super::*;

/// Duration without any change.
const QUIET: Duration = Duration::from_secs(8);

/// Returns status, reason and message of a condition.
async fn said(client: &Client, name: &str, type_: &str) -> Option<(String, String, String)> {
    let api: Api<ServiceScaler> = Api::default_namespaced(client.clone());
    let status = api.get(name).await.expect("it exists").status?;
    let condition = status.conditions.into_iter().find(|condition| condition.type_ == type_)?;
    Some((condition.status, condition.reason, condition.message))
}

async fn await_said(client: &Client, name: &str, type_: &str, expected: (&str, &str, &str)) {
    let (status, reason, part) = expected;
    await_until(SOON, &format!("{type_} of {name} is {expected:?}"), async || {
        said(client, name, type_)
            .await
            .is_some_and(|it| it.0 == status && it.1 == reason && it.2.contains(part))
    })
    .await;
}

/// Asserts that this stays the same for some rounds.
async fn stays<T: PartialEq + std::fmt::Debug>(what: &str, mut look: impl AsyncFnMut() -> T) {
    let (began, before) = (std::time::Instant::now(), look().await);
    await_until(QUIET + SOON, "some time passes", async || {
        assert_eq!(look().await, before, "{what}");
        began.elapsed() > QUIET
    })
    .await;
}

async fn set_replicas(client: &Client, replicas: u32) {
    let api: Api<Deployment> = Api::default_namespaced(client.clone());
    let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
    api.patch("web", &PatchParams::default(), &patch).await.expect("a user scales it");
}

/// Sets the kubelets' report for later resizes; empty: they perform them.
pub(super) async fn say_of_resizes(kubectl: &Kubectl, reason: &str) {
    let annotation = match reason {
        "" => "kubelet.test/resize-".to_owned(),
        reason => format!("kubelet.test/resize={reason}"),
    };
    kubectl.must(&["annotate", "--overwrite", "pods", "--all", &annotation], "").await;
}

/// Rejects more than this number of millicores as the limit of a container.
async fn limit_cpu(client: &Client, most: i64) -> Api<LimitRange> {
    let limits: Api<LimitRange> = Api::default_namespaced(client.clone());
    let limit = json!({
        "metadata": {"name": "cpu"},
        "spec": {"limits": [{"type": "Container", "max": {"cpu": format!("{most}m")}}]},
    });
    let limit = serde_json::from_value(limit).expect("a LimitRange");
    limits.create(&PostParams::default(), &limit).await.expect("it is created");
    limits
}

async fn cpus(client: &Client) -> Vec<i64> {
    web_pods(client).await.iter().map(cpu_of).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_goes_wrong_leaves_a_service_as_it_is_and_is_said() {
    needs!("prometheus", "promtool");
    let cluster = prepare().await;
    let Cluster { kubectl, client, control_plane, .. } = &cluster;
    create_nodes(client, &Nodes { count: 2, ..Nodes::default() }).await;
    let load = Load::start(client).await;
    let prometheus = usage::start_scraping(load.address).await;
    load.set("web", 1.0);
    let _berth = berth_for(control_plane, &prometheus);
    let no_replicas = json!({"dimensions": ["CPU", "Memory"]});
    let daemons = json!({"target": {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent"}});
    create_scaler(client, "web", no_replicas).await;
    create_scaler(client, "agent", daemons).await;
    await_said(client, "agent", "Active", ("False", "TargetUnreadable", "DaemonSet agent has no scale"))
        .await;
    await_said(client, "web", "Active", ("False", "TargetUnreadable", "Deployment web: not found")).await;

    create_deployment(client, "web", 2, None).await;
    await_bound(client, SOON, 2, |_| true).await;
    await_until(SOON, "the pods are smaller", async || {
        cpus(client).await.iter().all(|cpu| (400..700).contains(cpu))
    })
    .await;
    await_until(SOON, "they all are", async || web_pods(client).await.iter().all(is_resized)).await;

    // First the namespace rejects larger sizes, then the nodes cannot provide them.
    let small = cpus(client).await;
    let limits = limit_cpu(client, 2 * small[0]).await;
    load.set("web", 3.0);
    await_said(client, "web", "Limited", ("True", "Held", "maximum cpu usage per Container")).await;
    assert_eq!(cpus(client).await, small);
    say_of_resizes(kubectl, "Infeasible").await;
    limits.delete("cpu", &Default::default()).await.expect("it is deleted");
    for reason in ["Infeasible", "Deferred"] {
        say_of_resizes(kubectl, reason).await;
        await_said(client, "web", "Limited", ("True", "Held", reason)).await;
    }
    await_said(client, "web", "Limited", ("True", "Held", "2 pods")).await;
    // There is a round each second. Usage is measured with noise, so sometimes less is requested than was deferred.
    let mut asked = BTreeMap::new();
    stays("pods have what their kubelets had put off", async || {
        for pod in web_pods(client).await {
            let generation = pod.metadata.generation.unwrap_or(0);
            let first = *asked.entry(name_of(&pod).to_owned()).or_insert(generation);
            assert!(generation <= first + 3, "a resize that kubelets put off is asked for in every round");
        }
        web_pods(client).await.iter().map(|pod| given_cpu(pod) <= Some(small[0])).collect::<Vec<_>>()
    })
    .await;
    // In the round after such a request, nothing is deferred.
    await_until(SOON, "kubectl shows what is deferred", async || {
        let told = kubectl.must(&["describe", "servicescaler", "web"], "").await;
        told.contains("Limited") && told.contains("(Deferred)")
    })
    .await;
    let pod = web_pods(client).await.swap_remove(0);
    await_until(SOON, "kubectl shows which pod waits", async || {
        let told = kubectl.must(&["describe", "pod", name_of(&pod)], "").await;
        told.contains("PodResizePending") && told.contains("ResizeDeferred")
    })
    .await;
    say_of_resizes(kubectl, "").await;
    await_until(SOON, "the pods grow again", async || {
        web_pods(client).await.iter().all(|pod| given_cpu(pod) > Some(700))
    })
    .await;
    await_said(client, "web", "Limited", ("False", "Free", "")).await;

    // A user disables it, and enables it again below its minimum, and then above what is needed.
    let scalers: Api<ServiceScaler> = Api::default_namespaced(client.clone());
    let replicas_too = json!({"spec": {"dimensions": ["CPU", "Memory", "Replicas"]}});
    set_replicas(client, 0).await;
    let params = PatchParams::default();
    scalers.patch("web", &params, &Patch::Merge(replicas_too)).await.expect("it is changed");
    await_said(client, "web", "Active", ("False", "SwitchedOff", "0 replicas")).await;
    stays("a service that is switched off is scaled", async || replicas(client).await).await;
    load.set("web", 0.2);
    set_replicas(client, 1).await;
    await_until(SOON, "the minimum is running", async || replicas(client).await == 2).await;
    set_replicas(client, 4).await;
    await_until(SOON, "it is said that somebody else did that", async || {
        status(client).await.decision.contains("by another client")
    })
    .await;
}
