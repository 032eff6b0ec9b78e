//! A way to the leading `berth run` through the API server alone: the holder of the Lease, a forwarded port, and a token of the chart's
//! ServiceAccount for viewers.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use parking_lot::Mutex;
use reqwest::Url;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::cluster::{ClusterOptions, cluster_config};

/// Name of the container port of `serving.address` in the chart's Deployment.
const PORT_NAME: &str = "https";
/// The chart's pods.
const PODS: &str = "app.kubernetes.io/component=scheduler";
/// Validity of a token.
const TOKEN_SECONDS: i64 = 3600;
/// Time without a byte from the process after which a connection counts as broken: the stream of the page has some each second.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Pause after a connection could not be taken.
const PAUSE: Duration = Duration::from_millis(100);
/// Longest host name of a pod, which is cut off there.
const HOST_MAX: usize = 63;
const NO_CLUSTER: &str = "no cluster configured: give --kubeconfig FILE, or --server URL";

/// The release that is asked.
#[derive(Clone)]
struct Release {
    client: Client,
    namespace: String,
    lease: String,
    problem: Arc<Mutex<Option<String>>>,
}

/// An address on this machine that leads to the process.
pub struct Tunnel {
    pub server: Url,
    tokens: ViewerTokens,
    /// Why the last connection was not made.
    problem: Arc<Mutex<Option<String>>>,
}

/// Where the process listens.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    pod: String,
    port: u16,
    service_account: String,
}

/// Tokens of the ServiceAccount for viewers, each used for half of its life.
struct ViewerTokens {
    accounts: Api<ServiceAccount>,
    name: String,
    /// With the time at which it is replaced.
    current: tokio::sync::Mutex<Option<(String, Timestamp)>>,
}

/// Listens on this machine. Each connection goes to the holder of the Lease at its time.
///
/// # Errors
/// No cluster is configured, or there is no such process.
pub async fn open(options: &ClusterOptions) -> Result<Tunnel> {
    let config = cluster_config(options.kubeconfig.as_deref(), options.context.as_deref(), NO_CLUSTER);
    let client = Client::try_from(config.await?).context("cannot create a client")?;
    let (namespace, lease) = (options.berth_namespace.clone(), options.lease.clone());
    let problem = Arc::<Mutex<_>>::default();
    let release = Release { client: client.clone(), namespace, lease, problem: problem.clone() };
    let place = release.place().await?;
    let accounts = Api::namespaced(client, &release.namespace);
    let name = format!("{}-viewer", place.service_account);
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("cannot listen on this machine")?;
    let port = listener.local_addr().context("the port")?.port();
    tokio::spawn(release.forward(listener));
    let server = Url::parse(&format!("https://127.0.0.1:{port}")).context("the address")?;
    Ok(Tunnel { server, tokens: ViewerTokens { accounts, name, current: Default::default() }, problem })
}

impl Release {
    async fn forward(self, listener: TcpListener) {
        loop {
            // It never gives the port away: others would be sent the token.
            let Ok((connection, _)) = listener.accept().await else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            let release = self.clone();
            tokio::spawn(async move {
                let carried = release.carry(connection).await;
                *release.problem.lock() = carried.err().map(|error| format!("{error:#}"));
            });
        }
    }

    /// Carries a connection to the process, until one of them ends it, or the process is silent for too long.
    async fn carry(&self, connection: TcpStream) -> Result<()> {
        let Place { pod, port, .. } = self.place().await?;
        let cannot = || format!("cannot forward port {port} of pod {}/{pod}", self.namespace);
        let mut forwarder = self.pods().portforward(&pod, &[port]).await.with_context(cannot)?;
        let error = forwarder.take_error(port);
        let stream = forwarder.take_stream(port).with_context(cannot)?;
        // A connection that breaks off is made again by who needs it.
        let (mut from_us, mut to_us) = connection.into_split();
        let (mut from_pod, mut to_pod) = tokio::io::split(stream);
        let there = tokio::io::copy(&mut from_us, &mut to_pod);
        let back = async {
            let mut bytes = vec![0; 16 << 10];
            while let Ok(Ok(read @ 1..)) = tokio::time::timeout(SILENCE_MAX, from_pod.read(&mut bytes)).await
            {
                to_us.write_all(&bytes[..read]).await?;
            }
            std::io::Result::Ok(())
        };
        tokio::select! {
            _ = there => {}
            _ = back => {}
        }
        drop((from_pod, to_pod));
        let error = async { error?.await };
        match tokio::time::timeout(Duration::from_millis(100), error).await {
            Ok(Some(why)) => Err(anyhow!(why).context(cannot())),
            _ => Ok(()),
        }
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Returns where the holder of the Lease listens.
    async fn place(&self) -> Result<Place> {
        let Release { namespace, lease: name, .. } = self;
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), namespace);
        let lease = leases.get_opt(name).await;
        let lease = lease.with_context(|| format!("cannot read Lease {namespace}/{name}"))?;
        let pods = self.pods().list(&ListParams::default().labels(PODS)).await;
        let pods = pods.with_context(|| format!("cannot list the pods in namespace {namespace}"))?.items;
        let Some(lease) = lease else {
            // Without leader election there is one process.
            return match &pods[..] {
                [pod] => listens(pod),
                _ => bail!(
                    "there is no Lease {namespace}/{name}: give --berth-namespace and --lease of the installation, or --server URL"
                ),
            };
        };
        let holder = lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
        if holder.is_empty() {
            bail!("nobody holds Lease {namespace}/{name}: no replica of berth is ready");
        }
        let pod = pods.iter().find(|pod| is_of(pod, &holder));
        let pod =
            pod.with_context(|| format!("{holder} holds Lease {namespace}/{name}, and no pod there is it"))?;
        listens(pod)
    }
}

/// Whether the candidate for a Lease with this identity, `HOST_PROCESS_RUN`, runs in the pod.
fn is_of(pod: &Pod, identity: &str) -> bool {
    let host = identity.rsplitn(3, '_').last().unwrap_or_default();
    let spec = pod.spec.as_ref();
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let of_node =
        spec.is_some_and(|spec| spec.host_network == Some(true) && spec.node_name.as_deref() == Some(host));
    of_node || name == host || host.len() == HOST_MAX && name.starts_with(host)
}

fn listens(pod: &Pod) -> Result<Place> {
    let name = pod.metadata.name.clone().unwrap_or_default();
    let spec = pod.spec.clone().unwrap_or_default();
    let mut ports = spec.containers.iter().flat_map(|container| container.ports.iter().flatten());
    let port = ports.find(|port| port.name.as_deref() == Some(PORT_NAME));
    let port = port.and_then(|port| u16::try_from(port.container_port).ok());
    let port = port.with_context(|| {
        format!("pod {name} has no port named {PORT_NAME}: set config.serving.address, or give --server URL")
    })?;
    let service_account = spec.service_account_name.unwrap_or_else(|| "default".to_owned());
    Ok(Place { pod: name, port, service_account })
}

impl Tunnel {
    /// Returns a token that is valid for some time yet.
    ///
    /// # Errors
    /// The API server gives none.
    pub async fn token(&self) -> Result<String> {
        self.tokens.get().await
    }

    /// Returns why the last connection was not made.
    pub fn problem(&self) -> Option<String> {
        self.problem.lock().clone()
    }
}

impl ViewerTokens {
    async fn get(&self) -> Result<String> {
        let mut current = self.current.lock().await;
        let now = Timestamp::now();
        if let Some((token, until)) = &*current
            && now < *until
        {
            return Ok(token.clone());
        }
        let spec =
            TokenRequestSpec { expiration_seconds: Some(TOKEN_SECONDS), ..TokenRequestSpec::default() };
        let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
        let made = self.accounts.create_token_request(&self.name, &PostParams::default(), &request).await;
        let made = made.with_context(|| {
            format!("cannot create a token of ServiceAccount {}: give --token-file", self.name)
        })?;
        let status = made.status.unwrap_or_default();
        let token = status.token.context("the API server answers without a token")?;
        // It may have given less time.
        let expires = status.expiration_timestamp.map_or(now, |expires| expires.0);
        *current = Some((token.clone(), now + expires.duration_since(now) / 2));
        Ok(token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(name: &str, host_network: bool) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {
                "hostNetwork": host_network, "nodeName": "worker_1", "serviceAccountName": "berth",
                "containers": [
                    {"name": "proxy"},
                    {"name": "berth", "ports": [
                        {"name": "health", "containerPort": 10261}, {"name": "https", "containerPort": 10260},
                    ]},
                ],
            },
        }))
        .expect("a pod")
    }

    #[test]
    fn the_holder_of_the_lease_is_the_pod_with_its_name_or_that_of_its_host() {
        assert!(is_of(&pod("berth-7d9f_x", false), "berth-7d9f_x_1_0badcafe"));
        assert!(!is_of(&pod("berth-7d9f", false), "berth-7d9f_x_1_0badcafe"));
        assert!(is_of(&pod("berth-7d9f", true), "worker_1_1_0badcafe"));
        assert!(!is_of(&pod("berth-7d9f", false), "worker_1_1_0badcafe"));
        let long = "b".repeat(HOST_MAX);
        assert!(is_of(&pod(&format!("{long}-x2x4k"), false), &format!("{long}_1_0badcafe")));
        assert!(!is_of(&pod("berth-7d9f", false), "berth_1_0badcafe"));
    }

    #[test]
    fn a_pod_listens_at_its_port_for_https() {
        let place = Place { pod: "a".to_owned(), port: 10260, service_account: "berth".to_owned() };
        assert_eq!(listens(&pod("a", false)).expect("a place"), place);
        let mut without = pod("a", false);
        without.spec.as_mut().expect("a spec").containers.pop();
        let why = listens(&without).expect_err("no port").to_string();
        assert!(why.contains("set config.serving.address"), "{why}");
    }
}
