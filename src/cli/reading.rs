//! Reading a cluster: from the API server, or from a dump of it.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::Client;

use super::cluster::cluster_config;
use super::failure::Failure;
use crate::explain::ExplainSettings;
use crate::explain::dump::Dump;
use berth_config::Config;
use berth_kube_io::{
    LIVE_PODS, LeanAllocation, LeanAllocationPolicy, LeanCoschedulingPodGroup, LeanCsiDriver, LeanCsiNode,
    LeanCsiStorageCapacity, LeanDeviceClass, LeanNamespace, LeanObject, LeanPersistentVolume,
    LeanPersistentVolumeClaim, LeanPodDisruptionBudget, LeanPodGroup, LeanQuota, LeanReplicaSet,
    LeanReplicationController, LeanResourceClaim, LeanResourceSlice, LeanService, LeanStatefulSet,
    LeanStorageClass, LeanVolumeAttachment, OptionalKind, list_all, list_version,
};

/// Options of commands that read a cluster.
#[derive(Debug, Clone, Default, Args)]
pub struct ReadOptions {
    /// Read the cluster from this file, or from standard input if it is `-`: the output of `kubectl get
    /// nodes,pods,namespaces,pv,pvc,storageclasses,csinodes,csidrivers,csistoragecapacities,volumeattachments,resourceclaims,resourceslices,deviceclasses,services,replicationcontrollers,replicasets,statefulsets,poddisruptionbudgets,allocations,allocationpolicies,quotas.berth.dev,podgroups
    /// -A -o json`. Default: read from the API server.
    #[arg(short, long, value_name = "FILE")]
    pub filename: Option<PathBuf>,
    /// Kubeconfig file. Default: $KUBECONFIG, ~/.kube/config, or the service account of the pod.
    #[arg(long, value_name = "FILE", conflicts_with = "filename")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig file.
    #[arg(long, value_name = "NAME", conflicts_with = "filename")]
    pub context: Option<String>,
}

/// What is read besides what every answer needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Also {
    Nothing,
    DisruptionBudgets,
    PriorityClasses,
}

impl ReadOptions {
    /// Reads the cluster, and says on standard error what cannot be read.
    ///
    /// # Errors
    /// The dump is none, or nodes or pods cannot be listed.
    pub fn dump(&self, also: Also) -> Result<Dump, Failure> {
        let dump = match &self.filename {
            Some(file) => Dump::read(&read(file)?).map_err(|error| Failure::Input(error.into()))?,
            None => list(self, also)?,
        };
        for note in dump.notes() {
            eprintln!("berth: {note}");
        }
        for bad in dump.bad() {
            eprintln!("berth: skipped, cannot be read: {bad}");
        }
        Ok(dump)
    }

    /// Returns a client of the cluster.
    ///
    /// # Errors
    /// No cluster is configured.
    pub async fn client(&self) -> Result<Client> {
        Ok(Client::try_from(self.cluster().await?)?)
    }

    /// Returns how to reach the cluster.
    ///
    /// # Errors
    /// None is configured.
    pub async fn cluster(&self) -> Result<kube::Config> {
        const NO_CLUSTER: &str =
            "no cluster configured: give --kubeconfig FILE, or -f FILE with a dump of the cluster";
        cluster_config(self.kubeconfig.as_deref(), self.context.as_deref(), NO_CLUSTER).await
    }
}

/// Returns what affects the answers: `names` are those of schedulers, else those of the configuration.
pub fn settings(config: &[PathBuf], names: &[String]) -> Result<ExplainSettings> {
    let config = Config::load(config)?;
    let names = match names {
        [] => &config.scheduler_names[..],
        names => names,
    };
    Ok(ExplainSettings {
        scheduler_names: names.iter().map(|name| Arc::from(name.as_str())).collect(),
        profiles: config.profiles().into(),
    })
}

/// Returns the runtime of a command that asks an API server.
///
/// # Errors
/// The system refuses one.
pub fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// Reads a file; `-`: standard input.
///
/// # Errors
/// It cannot be read.
pub fn read(file: &Path) -> Result<Vec<u8>> {
    if file == Path::new("-") {
        let mut bytes = Vec::new();
        io::stdin().lock().read_to_end(&mut bytes).context("cannot read standard input")?;
        return Ok(bytes);
    }
    std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))
}

/// Lists everything from the cluster.
fn list(options: &ReadOptions, also: Also) -> Result<Dump> {
    let runtime = runtime()?;
    runtime.block_on(async {
        let client = options.client().await?;
        let mut dump = Dump::default();
        let nodes = list_all(&client, None, |node| dump.add_node(node)).await;
        nodes.context("cannot list nodes")?;
        let pods = list_all(&client, Some(LIVE_PODS), |pod| dump.add_pod(pod)).await;
        pods.context("cannot list pods")?;
        list_objects::<LeanNamespace>(&client, &mut dump, "namespace selectors match nothing").await;
        const VOLUMES: &str = "volumes are judged without them";
        list_objects::<LeanPersistentVolume>(&client, &mut dump, VOLUMES).await;
        list_objects::<LeanPersistentVolumeClaim>(&client, &mut dump, VOLUMES).await;
        list_objects::<LeanStorageClass>(&client, &mut dump, VOLUMES).await;
        list_objects::<LeanCsiNode>(&client, &mut dump, VOLUMES).await;
        list_objects::<LeanCsiDriver>(&client, &mut dump, VOLUMES).await;
        list_objects::<LeanCsiStorageCapacity>(&client, &mut dump, VOLUMES).await;
        list_objects::<LeanVolumeAttachment>(&client, &mut dump, VOLUMES).await;
        const DEVICES: &str = "devices are judged without them";
        list_objects::<LeanResourceSlice>(&client, &mut dump, DEVICES).await;
        list_objects::<LeanDeviceClass>(&client, &mut dump, DEVICES).await;
        list_objects::<LeanResourceClaim>(&client, &mut dump, DEVICES).await;
        const SPREAD: &str = "default topology spread ignores them";
        list_objects::<LeanService>(&client, &mut dump, SPREAD).await;
        list_objects::<LeanReplicationController>(&client, &mut dump, SPREAD).await;
        list_objects::<LeanReplicaSet>(&client, &mut dump, SPREAD).await;
        list_objects::<LeanStatefulSet>(&client, &mut dump, SPREAD).await;
        list_own_kinds::<LeanAllocationPolicy>(&client, &mut dump).await;
        list_own_kinds::<LeanQuota>(&client, &mut dump).await;
        list_served::<LeanAllocation>(&client, &mut dump).await;
        list_served::<LeanPodGroup>(&client, &mut dump).await;
        list_served::<LeanCoschedulingPodGroup>(&client, &mut dump).await;
        if also == Also::PriorityClasses {
            let classes: kube::Api<PriorityClass> = kube::Api::all(client.clone());
            match classes.list(&kube::api::ListParams::default()).await {
                Ok(classes) => {
                    let classes = classes.items.iter().filter_map(|class| serde_json::to_value(class).ok());
                    classes.for_each(|class| dump.add_priority_class(class));
                }
                Err(error) => eprintln!("berth: cannot list priorityclasses: {error:#}"),
            }
        }
        if also == Also::DisruptionBudgets {
            const MOVES: &str = "moves are advised as if none existed";
            list_objects::<LeanPodDisruptionBudget>(&client, &mut dump, MOVES).await;
        }
        Ok(dump)
    })
}

/// Lists a kind of berth, whose CRD may be missing in the cluster.
async fn list_own_kinds<K>(client: &Client, dump: &mut Dump)
where
    K: LeanObject + kube::Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    match list_all(client, None, |object: Result<K, _>| dump.add_object(object)).await {
        Ok(_) => {}
        Err(kube::Error::Api(error)) if error.code == 404 => {}
        Err(error) => {
            let error = anyhow::Error::from(error);
            eprintln!("berth: cannot list {}, pods are judged without them: {error:#}", K::plural(&()));
        }
    }
}

/// Lists a kind that may be missing in the cluster, in the best served version.
async fn list_served<K>(client: &Client, dump: &mut Dump)
where
    K: OptionalKind
        + LeanObject
        + kube::Resource<DynamicType: Default>
        + Clone
        + serde::de::DeserializeOwned
        + std::fmt::Debug,
{
    for version in K::VERSIONS {
        let add = |object: Result<K, _>| dump.add_object(object);
        match list_version(client, version, None, add).await {
            Err(kube::Error::Api(error)) if error.code == 404 => {}
            Ok(()) => return,
            Err(error) => {
                let (kind, error) = (K::plural(version), anyhow::Error::from(error));
                return eprintln!("berth: cannot list {kind}, pods are judged individually: {error:#}");
            }
        }
    }
}

/// Lists a kind without which most answers are still correct.
async fn list_objects<K>(client: &Client, dump: &mut Dump, without: &str)
where
    K: LeanObject + kube::Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    if let Err(error) = list_all(client, None, |object: Result<K, _>| dump.add_object(object)).await {
        let error = anyhow::Error::from(error);
        eprintln!("berth: cannot list {}, {without}: {error:#}", K::plural(&()));
    }
}
