//! A fresh control plane full of waiting pods, and checks of where they were placed.

use std::collections::HashSet;
use std::fmt::Debug;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_crds::Allocation;
use berth_telemetry::process::usage_of;
use berth_testenv::{ControlPlane, Options, Process};
use futures::{StreamExt, TryStreamExt, stream};
use indicatif::ProgressBar;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Service};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, PostParams};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tempfile::TempDir;

use crate::audit;
use crate::lived_in;
use crate::workload::Size;
use crate::workload::{
    NODE_MEMORY_MIB, NODE_MILLI_CPU, NODE_PODS, Workload, claim_template, device_class, index_in,
    is_bystander, priority_class,
};

const CREATIONS_IN_FLIGHT: usize = 48;
/// After the objects are created, the API server and etcd do background work that must not count for the scheduler.
const QUIET_WINDOW: Duration = Duration::from_millis(500);
const QUIET_CPU_MAX: Duration = Duration::from_millis(40);
const QUIET_LIMIT: Duration = Duration::from_secs(30);
/// Flag of kube-apiserver and kube-scheduler for PodGroups, which are alpha.
pub const POD_GROUP_GATES: &str = "--feature-gates=GenericWorkload=true,GangScheduling=true";
/// Maximum time for the claims of all pods, and how often their number is read.
const CLAIMS_LIMIT: Duration = Duration::from_secs(300);
const CLAIMS_POLL: Duration = Duration::from_secs(2);
const ESTABLISHED_LIMIT: Duration = Duration::from_secs(30);

pub struct Cluster {
    pub control_plane: ControlPlane,
    pub client: Client,
    pub audit_log: PathBuf,
    pub folder: TempDir,
    pub workload: &'static Workload,
    size: Size,
    /// Makes claims from templates.
    _controllers: Option<Process>,
}

impl Cluster {
    /// Starts a control plane and creates the nodes and pods of a workload.
    pub async fn start(
        workload: &'static Workload,
        size: Size,
        scheduler: &str,
        progress: &ProgressBar,
    ) -> Result<Self> {
        progress.set_message("starting");
        let folder = tempfile::tempdir()?;
        let (mut api_server_args, audit_log) = audit::prepare(folder.path())?;
        if workload.pod_groups {
            api_server_args.push("--runtime-config=scheduling.k8s.io/v1alpha2=true".to_owned());
            api_server_args.push(POD_GROUP_GATES.to_owned());
        }
        let control_plane = ControlPlane::start(Options { api_server_args, ..Options::default() }).await?;
        let client = control_plane.client();
        progress.set_message("creating nodes");
        let nodes = (0..size.nodes).map(|index| workload.node_json(index));
        create::<Node>(&Api::all(client.clone()), nodes, progress).await?;
        let gangs = workload.gangs(workload.pod_count(size.pods));
        if gangs.len() > 0 {
            progress.set_message("creating gangs");
            if workload.pod_groups {
                create::<PodGroup>(&Api::default_namespaced(client.clone()), gangs, progress).await?;
            } else {
                install(&client, berth_crds::crds()).await?;
                create::<Allocation>(&Api::default_namespaced(client.clone()), gangs, progress).await?;
            }
        }
        if workload.devices > 0 {
            progress.set_message("creating devices");
            let class = std::iter::once(device_class());
            create::<DeviceClass>(&Api::all(client.clone()), class, progress).await?;
            let slices = workload.slices(size.nodes);
            create::<ResourceSlice>(&Api::all(client.clone()), slices, progress).await?;
        }
        let mut controllers = None;
        if workload.templates {
            let template = std::iter::once(claim_template());
            create::<ResourceClaimTemplate>(&Api::default_namespaced(client.clone()), template, progress)
                .await?;
            controllers = Some(control_plane.start_controller_manager(&["resourceclaim-controller"]).await?);
        }
        if workload.lived_in {
            progress.set_message("creating namespaces, controllers and Services");
            create::<Namespace>(&Api::all(client.clone()), lived_in::namespaces(), progress).await?;
            create_namespaced::<Service>(&client, lived_in::services(), progress).await?;
            create_namespaced::<ReplicaSet>(&client, lived_in::replica_sets(), progress).await?;
            create_namespaced::<StatefulSet>(&client, lived_in::stateful_sets(), progress).await?;
            create_namespaced::<Pod>(&client, lived_in::coredns(), progress).await?;
        }
        if workload.preempts {
            progress.set_message("filling nodes");
            let class = std::iter::once(priority_class());
            create::<PriorityClass>(&Api::all(client.clone()), class, progress).await?;
            create::<Pod>(&Api::default_namespaced(client.clone()), workload.victims(size.nodes), progress)
                .await?;
        }
        progress.set_message("creating pods");
        let pods =
            (0..workload.pod_count(size.pods)).map(|index| workload.pod_json(workload.pod(index), scheduler));
        create_namespaced::<Pod>(&client, pods, progress).await?;
        let cluster =
            Cluster { control_plane, client, audit_log, folder, workload, size, _controllers: controllers };
        if workload.templates {
            progress.set_message("waiting for claims");
            cluster.await_claims(workload.pod_count(size.pods)).await?;
        }
        progress.set_message("waiting for quiet");
        cluster.await_quiet().await;
        Ok(cluster)
    }

    /// Returns when each pod names the claim that was made for it.
    async fn await_claims(&self, pods: usize) -> Result<()> {
        let started = Instant::now();
        let api = Api::<Pod>::default_namespaced(self.client.clone());
        let has_claim =
            |pod: &Pod| pod.status.as_ref().is_some_and(|status| status.resource_claim_statuses.is_some());
        while api.list(&ListParams::default()).await?.iter().filter(|pod| has_claim(pod)).count() < pods {
            ensure!(started.elapsed() < CLAIMS_LIMIT, "kube-controller-manager has not made all claims");
            tokio::time::sleep(CLAIMS_POLL).await;
        }
        Ok(())
    }

    /// Returns when the control plane is idle, or has not become idle for long.
    async fn await_quiet(&self) {
        let started = Instant::now();
        while started.elapsed() < QUIET_LIMIT {
            let before = self.control_plane_cpu();
            tokio::time::sleep(QUIET_WINDOW).await;
            if self.control_plane_cpu().saturating_sub(before) <= QUIET_CPU_MAX {
                return;
            }
        }
    }

    fn control_plane_cpu(&self) -> Duration {
        [self.control_plane.api_server_pid(), self.control_plane.etcd_pid()]
            .map(|pid| usage_of(&pid.to_string()).unwrap_or_default().cpu)
            .into_iter()
            .sum()
    }

    pub async fn event_count(&self) -> Result<usize> {
        let events = Api::<Event>::all(self.client.clone());
        let page = events.list_metadata(&ListParams::default().limit(1)).await?;
        let more = page.metadata.remaining_item_count.unwrap_or_default();
        Ok(page.items.len() + usize::try_from(more)?)
    }

    /// # Errors
    /// A pod is on a node that is too small or not allowed for it, or has no node though it fits.
    pub async fn check_placements(&self) -> Result<()> {
        let pods = Api::<Pod>::all(self.client.clone()).list(&ListParams::default()).await?;
        let mut used = vec![[0; 3]; self.size.nodes];
        let mut apart = HashSet::new();
        for pod in pods {
            let name = pod.metadata.name.unwrap_or_default();
            if is_bystander(&name) {
                continue;
            }
            let pod_spec = index_in(&name).map(|index| self.workload.pod(index));
            let pod_spec = pod_spec.with_context(|| format!("an unknown pod: {name}"))?;
            let Some(node) = pod.spec.and_then(|spec| spec.node_name) else {
                ensure!(pod_spec.hopeless, "{name} has no node");
                continue;
            };
            let index = index_in(&node).with_context(|| format!("an unknown node: {node}"))?;
            ensure!(self.workload.allows(pod_spec, index), "{name} must not be on {node}");
            if self.workload.lived_in && lived_in::keeps_apart(lived_in::workload_of(pod_spec)) {
                let is_alone = apart.insert((lived_in::workload_of(pod_spec), index));
                ensure!(is_alone, "{name} is on {node} beside a pod that its anti-affinity excludes");
            }
            let sums = &mut used[index];
            *sums = [sums[0] + pod_spec.milli_cpu, sums[1] + pod_spec.memory_mib, sums[2] + 1];
        }
        let fits = |sums: &[usize; 3]| {
            sums[0] <= NODE_MILLI_CPU && sums[1] <= NODE_MEMORY_MIB && sums[2] <= NODE_PODS
        };
        ensure!(used.iter().all(fits), "a node has more pods than fit on it");
        let pods: Vec<usize> = used.iter().map(|sums| sums[2]).collect();
        ensure!(
            self.workload.are_mates_content(&pods),
            "pods violate their affinity, anti-affinity or spread"
        );
        self.check_devices(&pods).await
    }

    /// Each of the pods, whose number on each node this is, has a device of its node that no other has.
    async fn check_devices(&self, pods: &[usize]) -> Result<()> {
        if self.workload.devices == 0 {
            return Ok(());
        }
        let claims = Api::<ResourceClaim>::all(self.client.clone()).list(&ListParams::default()).await?;
        let mut given = vec![HashSet::new(); self.size.nodes];
        for claim in &claims {
            let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
            let results = allocation.and_then(|it| it.devices.as_ref()?.results.as_ref());
            for result in results.into_iter().flatten() {
                let node =
                    index_in(&result.pool).with_context(|| format!("an unknown pool: {}", result.pool))?;
                ensure!(
                    given[node].insert(&result.device),
                    "{} of {} was given twice",
                    result.device,
                    result.pool
                );
            }
        }
        let all_served = given.iter().map(HashSet::len).eq(pods.iter().copied());
        ensure!(all_served, "a pod has no device of its node");
        Ok(())
    }
}

/// Installs CRDs, and waits until they are served.
pub async fn install(
    client: &Client,
    crds: impl IntoIterator<Item = CustomResourceDefinition>,
) -> Result<()> {
    let api = Api::<CustomResourceDefinition>::all(client.clone());
    for crd in crds {
        let name = crd.name_any();
        api.create(&PostParams::default(), &crd).await?;
        let established = await_condition(api.clone(), &name, conditions::is_crd_established());
        tokio::time::timeout(ESTABLISHED_LIMIT, established).await.context("a CRD is not established")??;
    }
    Ok(())
}

async fn create<K>(
    api: &Api<K>,
    objects: impl ExactSizeIterator<Item = Value>,
    progress: &ProgressBar,
) -> Result<()>
where
    K: Resource + Clone + Debug + Serialize + DeserializeOwned,
{
    create_in(|_| api.clone(), objects, progress).await
}

/// Creates objects in their namespaces, or in the default one.
async fn create_namespaced<K>(
    client: &Client,
    objects: impl ExactSizeIterator<Item = Value>,
    progress: &ProgressBar,
) -> Result<()>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Clone + Debug + Serialize + DeserializeOwned,
{
    let api = |object: &K| match object.namespace() {
        Some(namespace) => Api::namespaced(client.clone(), &namespace),
        None => Api::default_namespaced(client.clone()),
    };
    create_in(api, objects, progress).await
}

async fn create_in<K>(
    api: impl Fn(&K) -> Api<K>,
    objects: impl ExactSizeIterator<Item = Value>,
    progress: &ProgressBar,
) -> Result<()>
where
    K: Resource + Clone + Debug + Serialize + DeserializeOwned,
{
    progress.set_length(objects.len() as u64);
    progress.set_position(0);
    let api = &api;
    stream::iter(objects)
        .map(|object| async move {
            let object: K = serde_json::from_value(object)?;
            api(&object).create(&PostParams::default(), &object).await.map_err(anyhow::Error::from)
        })
        .buffer_unordered(CREATIONS_IN_FLIGHT)
        .try_for_each(|_| async {
            progress.inc(1);
            Ok(())
        })
        .await
        .context("creating the cluster's objects")
}
