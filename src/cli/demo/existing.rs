//! A demo on an existing cluster: it may be used by others, so the demo keeps apart from them and removes all that it creates.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::footprint::{NAME_PREFIX, SILENCE, create_footprint, ended_demos, list_demos, remove_footprint};
use super::heartbeats::Heartbeats;
use super::objects::post;
use super::play::{DemoCluster, play};
use super::workload::DemoWorkload;
use super::{DemoOptions, Signals};
use crate::cli::progress::{ProgressBars, write_line};

/// Verb, API group, resource and namespace of what the demo's user must be allowed to do, besides creating pods.
const NEEDED: [(&str, &str, &str, &str); 7] = [
    ("create", "", "nodes", ""),
    ("delete", "", "nodes", ""),
    ("create", "", "namespaces", ""),
    ("delete", "", "namespaces", ""),
    ("create", "rbac.authorization.k8s.io", "clusterroles", ""),
    ("patch", "coordination.k8s.io", "leases", "kube-node-lease"),
    ("impersonate", "", "users", ""),
];

const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// Returns a name that no other demo has.
pub fn unique_name() -> Arc<str> {
    // The state is random.
    let random = RandomState::new().build_hasher().finish();
    format!("{NAME_PREFIX}{:08x}", random as u32).into()
}

/// A cluster that is ready for a demo: nothing is created yet, and no killed demo has left anything.
pub struct ExistingCluster {
    client: Client,
    kubeconfig: Kubeconfig,
    file: PathBuf,
    context: String,
    server: String,
    demo: Arc<str>,
    workload: DemoWorkload,
    progress: ProgressBars,
}

impl ExistingCluster {
    /// Connects, checks the permissions, and removes what killed demos have left behind.
    ///
    /// # Errors
    /// The kubeconfig is invalid, the cluster does not answer, or its user may not do what the demo needs.
    pub async fn new(file: &Path, context: Option<&str>, workload: &DemoWorkload) -> Result<Self> {
        let explain = || format!("cannot use the kubeconfig {}", file.display());
        let mut kubeconfig = Kubeconfig::read_from(file).with_context(explain)?;
        let context = context.map(str::to_owned).or_else(|| kubeconfig.current_context.clone());
        let context = context.with_context(|| {
            format!("{} has no current context: choose one with --context", file.display())
        })?;
        kubeconfig.current_context = Some(context.clone());
        let config =
            kube::Config::from_custom_kubeconfig(kubeconfig.clone(), &KubeConfigOptions::default()).await;
        let config = config.with_context(explain)?;
        let server = config.cluster_url.to_string();
        let client = Client::try_from(config).with_context(explain)?;
        let demo = workload.name.clone().context("the demo has no name")?;
        let (workload, progress) = (workload.clone(), ProgressBars::new());
        let file = file.to_owned();
        let cluster = ExistingCluster { client, kubeconfig, file, context, server, demo, workload, progress };
        cluster.check_permissions().await?;
        cluster.remove_leftovers().await?;
        Ok(cluster)
    }

    async fn check_permissions(&self) -> Result<()> {
        let mut missing = Vec::new();
        for (verb, group, resource, namespace) in NEEDED {
            let attributes =
                json!({"verb": verb, "group": group, "resource": resource, "namespace": namespace});
            let review = json!({"spec": {"resourceAttributes": attributes}});
            let reviewed = post(&self.client, ACCESS_REVIEWS, &review).await;
            let review: Value = reviewed.with_context(|| {
                format!("the cluster at {} (context {}) does not answer", self.server, self.context)
            })?;
            if review["status"]["allowed"] != true {
                missing.push(format!("{verb} {resource}"));
            }
        }
        ensure!(
            missing.is_empty(),
            "the user of context {} may not {}: choose the context of a cluster administrator with --context, or run \
             berth demo without --kubeconfig, which starts a control plane of its own",
            self.context,
            missing.join(", "),
        );
        Ok(())
    }

    async fn remove_leftovers(&self) -> Result<()> {
        let demos = list_demos(&self.client).await?;
        if demos.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = demos.iter().map(String::as_str).collect();
        self.progress.println(&format!(
            "context {}, server {}: there are objects of {}; checking for {} s whether it runs",
            self.context,
            self.server,
            names.join(", "),
            SILENCE.as_secs()
        ));
        for demo in ended_demos(&self.client, demos).await? {
            self.progress.println(&format!("removing what {demo} left behind, which was killed"));
            remove_footprint(&self.client, &demo).await?;
        }
        Ok(())
    }

    /// Runs the demo, and removes all that it has created, also after an error or a signal.
    ///
    /// # Errors
    /// As [`play`], or something cannot be deleted.
    pub async fn play(&self, options: &DemoOptions, signals: &mut Signals) -> Result<()> {
        self.progress.println(&self.announcement());
        let nodes = self.workload.first_nodes().chain(self.workload.late_nodes()).map(|(name, _)| name);
        let nodes: Vec<String> = nodes.collect();
        let heartbeats = Heartbeats::start(self.client.clone(), self.demo.clone(), nodes);
        let played = self.play_there(options, signals).await;
        self.progress.println(&format!("deleting all objects of {}", self.demo));
        let removed = async {
            heartbeats.stop().await;
            remove_footprint(&self.client, &self.demo).await
        };
        let removed = tokio::select! {
            removed = removed => removed,
            () = signals.ctrl_c() => bail!(
                "interrupted while it deleted its objects: the next berth demo with this kubeconfig deletes the rest of {}",
                self.demo
            ),
        };
        match &removed {
            Ok(()) => write_line("all of them are deleted"),
            // The other error is returned.
            Err(error) if played.is_err() => write_line(&format!("berth: {error:#}")),
            Err(_) => {}
        }
        played.and(removed)
    }

    async fn play_there(&self, options: &DemoOptions, signals: &mut Signals) -> Result<()> {
        tokio::select! {
            created = create_footprint(&self.client, &self.demo) => created?,
            () = signals.next() => bail!("interrupted"),
        }
        let folder = tempfile::Builder::new().prefix("berth-demo-").tempdir()?;
        let cluster = DemoCluster {
            client: self.client.clone(),
            kubeconfig: self.write_kubeconfig(&folder)?,
            users_kubeconfig: self.file.clone(),
            kubectl: format!(
                "kubectl --kubeconfig {} --context {} --namespace {}",
                self.file.display(),
                self.context,
                self.demo
            ),
            folder: folder.path().to_owned(),
            is_existing: true,
        };
        play(&self.workload, options, &cluster, &self.progress, signals).await
    }

    /// Writes berth's kubeconfig: it acts as the user `demo`, so that the API server refuses any write to other namespaces.
    fn write_kubeconfig(&self, folder: &TempDir) -> Result<PathBuf> {
        let mut kubeconfig = self.kubeconfig.clone();
        for user in &mut kubeconfig.auth_infos {
            let user = user.auth_info.get_or_insert_default();
            user.impersonate = Some(self.demo.to_string());
            user.impersonate_groups = None;
            user.impersonate_uid = None;
            user.impersonate_user_extra = None;
        }
        let path = folder.path().join("kubeconfig");
        // The folder is only for this user.
        std::fs::write(&path, serde_json::to_vec(&kubeconfig)?).context("cannot write berth's kubeconfig")?;
        Ok(path)
    }

    fn announcement(&self) -> String {
        let late = self.workload.late_nodes().count();
        format!(
            "context {}, server {}\n\
             creating the namespace {demo} with {} pods, {} nodes {demo}-… (no machines: tainted, cordoned, each with a Lease \
             in kube-node-lease), and the roles {demo} of the berth that runs here: it can write only in this namespace.\n\
             Nothing else is changed. All of it is deleted at the end, also after Ctrl-C.",
            self.context,
            self.server,
            self.workload.pods,
            self.workload.nodes + late,
            demo = self.demo,
        )
    }
}
