//! Load model of services, and the kubelets' metrics of it for Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use super::{given_cpu, is_ready, leaves, service_of};
use crate::support::name_of;

const STEP: Duration = Duration::from_millis(500);
const MEMORY: u64 = 200 << 20;

/// Services whose ready pods share the load equally, and are throttled at the CPU that their kubelets have applied.
#[derive(Default)]
struct Model {
    /// Cores, by service.
    demand: BTreeMap<&'static str, f64>,
    pods: BTreeMap<String, Counters>,
}

/// The kubelet's counters of one container.
#[derive(Default)]
struct Counters {
    cpu_seconds: f64,
    periods: u64,
    throttled: u64,
}

/// The running model, and the address of its metrics.
pub struct Load {
    model: Arc<Mutex<Model>>,
    pub address: SocketAddr,
    tasks: [JoinHandle<()>; 2],
}

impl Drop for Load {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Load {
    pub async fn start(client: &Client) -> Load {
        let model: Arc<Mutex<Model>> = Arc::default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let app = Router::new().route("/metrics", get(metrics)).with_state(model.clone());
        let serves = tokio::spawn(async move { axum::serve(listener, app).await.expect("it serves") });
        let (api, of) = (Api::<Pod>::default_namespaced(client.clone()), model.clone());
        let runs = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(STEP);
            loop {
                ticks.tick().await;
                if let Ok(pods) = api.list(&ListParams::default()).await {
                    run(&mut of.lock(), &pods.items);
                }
            }
        });
        Load { model, address, tasks: [serves, runs] }
    }

    pub fn set(&self, service: &'static str, demand: f64) {
        self.model.lock().demand.insert(service, demand);
    }
}

/// One step of time.
fn run(model: &mut Model, pods: &[Pod]) {
    let pods: Vec<&Pod> = pods.iter().filter(|pod| is_ready(pod) && !leaves(pod)).collect();
    for pod in &pods {
        let service = service_of(pod);
        let sharing = pods.iter().filter(|other| service_of(other) == service).count();
        let each = model.demand.get(service).copied().unwrap_or(0.0) / sharing as f64;
        let size = given_cpu(pod).unwrap_or(0) as f64 / 1_000.0;
        let counters = model.pods.entry(name_of(pod).to_owned()).or_default();
        counters.cpu_seconds += each.min(size) * STEP.as_secs_f64();
        counters.periods += 5;
        counters.throttled += if each > size * 0.98 { 5 } else { 0 };
    }
    model.pods.retain(|name, _| pods.iter().any(|pod| name_of(pod) == name));
}

async fn metrics(State(model): State<Arc<Mutex<Model>>>) -> String {
    let mut text = String::new();
    for (pod, counters) in &model.lock().pods {
        let labels = format!(r#"{{namespace="default",pod="{pod}",container="app"}}"#);
        for (name, value) in [
            ("container_cpu_usage_seconds_total", counters.cpu_seconds),
            ("container_cpu_cfs_periods_total", counters.periods as f64),
            ("container_cpu_cfs_throttled_periods_total", counters.throttled as f64),
            ("container_memory_working_set_bytes", MEMORY as f64),
        ] {
            writeln!(text, "{name}{labels} {value}").expect("a text");
        }
    }
    text
}
