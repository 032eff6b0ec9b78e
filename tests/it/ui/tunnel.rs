//! `berth ui`, `top` and `why` with a kubeconfig alone, through a real API server; kwok is the kubelet that forwards the port.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::api::DeleteParams;

use super::*;
use crate::chart::NAMESPACE;
use crate::explain::Ran;

/// A kubelet at an address of this machine, which forwards the port 10260 of each pod to another one.
fn kubelet(port: u16) -> String {
    format!(
        r"
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {{name: node-registers}}
spec:
  resourceRef: {{apiGroup: v1, kind: Node}}
  selector:
    matchExpressions:
    - {{key: '.status.nodeInfo.kubeletVersion', operator: NotIn, values: [kwok]}}
  next:
    statusTemplate: |
      nodeInfo: {{kubeletVersion: kwok, operatingSystem: linux}}
      addresses:
      - {{type: InternalIP, address: {{{{ NodeIP | Quote }}}}}}
      daemonEndpoints: {{kubeletEndpoint: {{Port: {{{{ NodePort }}}}}}}}
      conditions:
      - {{type: Ready, status: 'True', reason: KubeletReady, lastHeartbeatTime: {{{{ Now }}}}, lastTransitionTime: {{{{ Now }}}}}}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: ClusterPortForward
metadata: {{name: all}}
spec:
  forwards:
  - ports: [10260]
    target: {{address: 127.0.0.1, port: {port}}}
"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_kubeconfig_alone_berth_ui_top_and_why_reach_the_leader_through_the_api_server() {
    let cluster = start_control_plane().await;
    let client = cluster.client();
    let kubeconfig = cluster.kubeconfig();
    let ask = |args: &[&str]| -> Ran {
        let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
        crate::explain::run(command.args(args).arg("--kubeconfig").arg(&kubeconfig), b"")
    };
    let nowhere = ask(&["top", "--once"]);
    let why = "there is no Lease berth-system/berth: give --berth-namespace and --lease of the installation";
    assert!(nowhere.code == 1 && nowhere.err.contains(why), "{}", nowhere.err);

    // What the chart makes for viewers.
    crate::chart::create(
        &client,
        &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}),
    )
    .await;
    let objects = crate::chart::rendered("");
    let of_viewers =
        |object: &&Value| object["metadata"]["name"].as_str().is_some_and(|name| name.ends_with("-viewer"));
    for object in objects.iter().filter(of_viewers) {
        crate::chart::create(&client, object).await;
    }

    let election = format!("leaderElection: {{namespace: {NAMESPACE}}}");
    let berth = Berth::start(&kubeconfig, &format!("serving: {{address: '127.0.0.1:0'}}\n{election}"));
    berth.await_ready().await;
    let port = berth.secure_address().await.port();
    let held = Api::<Lease>::namespaced(client.clone(), NAMESPACE);
    await_until(SOON, "it leads", async || {
        let lease = held.get_opt("berth").await.expect("an answer");
        lease.and_then(|lease| lease.spec?.holder_identity).is_some_and(|holder| holder.starts_with(HOST))
    })
    .await;
    let missing = ask(&["top", "--once"]);
    assert!(missing.code == 1 && missing.err.contains("and no pod there is it"), "{}", missing.err);

    // The pod of the process, and the kubelet of its node.
    let _kubelet = cluster.start_kwok(&kubelet(port)).await.expect("kwok");
    create_node(&client, "n0", json!({"cpu": "4", "memory": "8Gi", "pods": "110"}), json!({})).await;
    let nodes = Api::<k8s_openapi::api::core::v1::Node>::all(client.clone());
    await_until(SOON, "the node has an address", async || {
        let node = nodes.get("n0").await.expect("a node");
        node.status.is_some_and(|status| status.daemon_endpoints.is_some() && status.addresses.is_some())
    })
    .await;
    let deployment = objects.iter().find(|object| object["kind"] == "Deployment").expect("a Deployment");
    let mut template = deployment["spec"]["template"].clone();
    template["apiVersion"] = "v1".into();
    template["kind"] = "Pod".into();
    template["metadata"]["name"] = HOST.into();
    template["metadata"]["namespace"] = NAMESPACE.into();
    template["spec"]["nodeName"] = "n0".into();
    crate::chart::create(&client, &template).await;
    create_pods(&client, &Pods { prefix: "web", count: 1, ..Pods::default() }, |_, _| {}).await;
    await_until(SOON, "the pod is bound", async || {
        let pods = Api::<Pod>::default_namespaced(client.clone());
        pods.get("web-0").await.is_ok_and(|pod| pod.spec.is_some_and(|spec| spec.node_name.is_some()))
    })
    .await;

    let top = ask(&["top", "--once"]);
    assert!(top.code == 0 && top.out.contains("1 nodes · 2 pods bound"), "{}{}", top.out, top.err);
    let told = ask(&["why", "default/web-0"]);
    assert!(
        told.code == 0 && told.out.contains("default/web-0 was placed on n0"),
        "{}{}",
        told.out,
        told.err
    );
    let unknown = ask(&["why", "default/nobody"]);
    let expected =
        "there is no pod default/nobody: this process remembers no decision about a pod default/nobody";
    assert!(unknown.code == 2 && unknown.err.contains(expected), "{}", unknown.err);

    let folder = tempfile::tempdir().expect("a folder");
    let options = ["--kubeconfig", kubeconfig.to_str().expect("a path")];
    let (_ui, address) = start_ui(folder.path().join("ui.log"), &options).await;
    let events = first_events(address).await;
    assert_eq!(
        (&find(&events, "totals")["nodes"], &find(&events, "totals")["leading"]),
        (&json!(1), &json!(true))
    );

    // Whoever may not read is told what is missing.
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), NAMESPACE);
    accounts.delete("berth-viewer", &DeleteParams::default()).await.expect("deleted");
    let refused = ask(&["top", "--once"]);
    let why = "cannot create a token of ServiceAccount berth-viewer: give --token-file";
    assert!(refused.code == 1 && refused.err.contains(why), "{}", refused.err);
}
