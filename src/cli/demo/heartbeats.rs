//! Leases of a demo on an existing cluster: that of the demo, which shows that it runs, and those of its nodes.
//!
//! Without renewals, the node lifecycle controller reports nodes as unknown after 40 to 50 s, and a cloud controller manager
//! deletes those that its cloud does not have.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::objects::apply_object;
use super::workload::DEMO_LABEL;

pub const NODE_LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
/// Name of the demo's Lease, in its namespace.
pub const DEMO_LEASE: &str = "demo";
/// Interval at which a demo shows that it runs.
pub const DEMO_EVERY: Duration = Duration::from_secs(2);
/// As kubelets do.
const NODES_EVERY: Duration = Duration::from_secs(10);
const NODE_LEASE_SECONDS: u32 = 40;
const RENEWALS_IN_FLIGHT: usize = 16;

/// Returns the collection of the demo's Lease.
pub fn leases_of(demo: &str) -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{demo}/leases")
}

/// Renewals of the Leases on a task of their own.
pub struct Heartbeats {
    stop: watch::Sender<()>,
    task: JoinHandle<()>,
}

impl Heartbeats {
    /// Starts to renew the Leases, and creates them if necessary. A failed renewal is retried in the next round.
    pub fn start(client: Client, demo: Arc<str>, nodes: Vec<String>) -> Self {
        let (stop, stopped) = watch::channel(());
        Heartbeats { stop, task: tokio::spawn(renew(client, demo, nodes, stopped)) }
    }

    /// Returns when no renewal is in flight any more, which could create a deleted Lease again.
    pub async fn stop(self) {
        drop(self.stop);
        let _ = self.task.await;
    }
}

async fn renew(client: Client, demo: Arc<str>, nodes: Vec<String>, mut stopped: watch::Receiver<()>) {
    let collection = leases_of(&demo);
    let mut ticks = interval(DEMO_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut nodes_due = Instant::now();
    loop {
        tokio::select! {
            _ = stopped.changed() => return,
            _ = ticks.tick() => {}
        }
        let _ = apply_object(&client, &collection, DEMO_LEASE, &lease(DEMO_LEASE, &demo)).await;
        if Instant::now() >= nodes_due {
            nodes_due = Instant::now() + NODES_EVERY;
            let renewals = nodes.iter().cloned().map(|node| {
                let (client, lease) = (client.clone(), lease(&node, &demo));
                async move {
                    let _ = apply_object(&client, NODE_LEASES, &node, &lease).await;
                }
            });
            stream::iter(renewals).buffer_unordered(RENEWALS_IN_FLIGHT).collect::<()>().await;
        }
    }
}

fn lease(name: &str, demo: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "labels": {DEMO_LABEL: demo}},
        "spec": {"leaseDurationSeconds": NODE_LEASE_SECONDS, "renewTime": format!("{:.6}", Timestamp::now())},
    })
}
