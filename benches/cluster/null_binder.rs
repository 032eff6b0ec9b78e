//! Upper bound of throughput: a client that binds pending pods round-robin, without decisions.
//!
//! It does only what every scheduler must do: it lists pods and nodes once, holds one JSON watch of all pods, and sends a bind
//! request for each pod, 48 at a time.

use std::path::PathBuf;
use std::pin::pin;

use anyhow::{Context, Result};
use berth_kube_io::client::without_retries;
use clap::Args;
use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Binding, Node, ObjectReference, Pod};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, Status};
use kube::api::{ListParams, PostParams, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, ResourceExt};

const BINDS_IN_FLIGHT: usize = 48;

#[derive(Debug, Args)]
pub struct Options {
    #[arg(long)]
    pub kubeconfig: PathBuf,
    /// Write an event for each pod after its bind, before the next one.
    #[arg(long)]
    pub events: bool,
}

/// Binds every pending pod; afterwards only watches, until it is killed.
pub async fn run(options: Options) -> Result<()> {
    let kubeconfig = Kubeconfig::read_from(&options.kubeconfig)?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let client = without_retries(config)?;
    let nodes = Api::<Node>::all(client.clone()).list(&ListParams::default()).await?;
    let nodes: Vec<String> = nodes.into_iter().map(|node| node.name_any()).collect();
    let list = Api::<Pod>::all(client.clone()).list(&ListParams::default()).await?;
    let version = list.metadata.resource_version.clone().unwrap_or_default();
    let watch = tokio::spawn(watch(client.clone(), version));
    let is_pending = |pod: &&Pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_none());
    let binds = list.items.iter().filter(is_pending).zip(nodes.iter().cycle());
    stream::iter(binds)
        .map(|(pod, node)| bind(&client, options.events, pod, node))
        .buffer_unordered(BINDS_IN_FLIGHT)
        .try_collect::<()>()
        .await?;
    drop((list, nodes));
    watch.await?
}

async fn watch(client: Client, version: String) -> Result<()> {
    let pods = Api::<Pod>::all(client);
    let mut events = pin!(pods.watch(&WatchParams::default(), &version).await?);
    while let Some(event) = events.try_next().await? {
        drop(event);
    }
    // The API server ends watches after some minutes; the binds are done by then.
    std::future::pending().await
}

async fn bind(client: &Client, with_event: bool, pod: &Pod, node: &str) -> Result<()> {
    let (name, namespace) = (pod.name_any(), pod.namespace().unwrap_or_default());
    let pods = Api::<Pod>::namespaced(client.clone(), &namespace);
    let binding = Binding {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            uid: pod.metadata.uid.clone(),
            ..ObjectMeta::default()
        },
        target: ObjectReference {
            kind: Some("Node".to_owned()),
            name: Some(node.to_owned()),
            ..ObjectReference::default()
        },
    };
    let _: Status = pods
        .create_subresource("binding", &name, &PostParams::default(), &binding)
        .await
        .with_context(|| format!("binding {name}"))?;
    if with_event {
        let events = Api::<Event>::namespaced(client.clone(), &namespace);
        events.create(&PostParams::default(), &event(pod, node)).await?;
    }
    Ok(())
}

/// Returns an event as large as a scheduler's.
fn event(pod: &Pod, node: &str) -> Event {
    let now = Timestamp::now();
    let name = pod.name_any();
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{name}.{:x}", now.as_nanosecond())),
            namespace: pod.namespace(),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(now)),
        reporting_controller: Some("null".to_owned()),
        reporting_instance: Some("null-binder".to_owned()),
        action: Some("Binding".to_owned()),
        reason: Some("Scheduled".to_owned()),
        type_: Some("Normal".to_owned()),
        note: Some(format!("Successfully assigned default/{name} to {node}")),
        regarding: Some(ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: pod.namespace(),
            name: Some(name),
            uid: pod.metadata.uid.clone(),
            ..ObjectReference::default()
        }),
        ..Event::default()
    }
}
