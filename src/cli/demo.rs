//! `berth demo`: nodes and pods of several classes, and a berth process, on a control plane of this machine or on an existing cluster.

mod child;
mod existing;
mod footprint;
mod heartbeats;
mod objects;
mod observer;
mod play;
mod summary;
mod verdict;
mod workload;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::existing::ExistingCluster;
use self::play::{DemoCluster, play};
use self::workload::DemoWorkload;
use super::Output;
use super::progress::ProgressBars;
use berth_testenv::{ControlPlane, Options};

/// Options of `berth demo`.
#[derive(Debug, Clone, Args)]
pub struct DemoOptions {
    /// Run on the cluster of this kubeconfig, beside its other users, and delete everything at the end. Default: start a control
    /// plane on this machine.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig. Default: its current context.
    #[arg(long, value_name = "NAME", requires = "kubeconfig")]
    pub context: Option<String>,
    /// Number of nodes to create. Default: 1000, or 100 on an existing cluster.
    #[arg(long, value_name = "N")]
    pub nodes: Option<usize>,
    /// Number of pods to create: at most 10 per node. Default: 5000, or 500 on an existing cluster.
    #[arg(long, value_name = "N")]
    pub pods: Option<usize>,
    /// Leave everything running until Ctrl-C, and print commands to try.
    #[arg(long)]
    pub keep: bool,
    /// Record in this folder what the scheduler hears and decides, for berth replay.
    #[arg(long, value_name = "FOLDER")]
    pub record: Option<PathBuf>,
    /// Format of the result; progress goes to standard error.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub output: Output,
}

/// Runs the demo; ends all its processes at the end, or on SIGINT, SIGTERM or SIGHUP.
///
/// # Errors
/// The control plane or berth cannot be started, a check of the demo fails, or something cannot be deleted at the end.
pub fn demo(options: DemoOptions) -> Result<()> {
    let is_existing = options.kubeconfig.is_some();
    let (nodes, pods) = if is_existing { (100, 500) } else { (1000, 5000) };
    let workload = DemoWorkload {
        nodes: options.nodes.unwrap_or(nodes),
        pods: options.pods.unwrap_or(pods),
        name: is_existing.then(existing::unique_name),
    };
    workload.check().map_err(anyhow::Error::msg)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(async {
        let mut signals = Signals::new()?;
        match &options.kubeconfig {
            None => on_own_control_plane(&workload, &options, &mut signals).await,
            Some(file) => {
                let cluster = ExistingCluster::new(file, options.context.as_deref(), &workload);
                let cluster = tokio::select! {
                    cluster = cluster => cluster?,
                    () = signals.next() => bail!("interrupted"),
                };
                cluster.play(&options, &mut signals).await
            }
        }
    });
    // Go may be building the control plane on a thread, which ends with this process.
    runtime.shutdown_background();
    result
}

async fn on_own_control_plane(
    workload: &DemoWorkload,
    options: &DemoOptions,
    signals: &mut Signals,
) -> Result<()> {
    let progress = ProgressBars::new();
    progress.println("starting etcd and kube-apiserver");
    let control_plane = tokio::select! {
        started = ControlPlane::start(Options { use_path: true, ..Options::default() }) => started?,
        () = signals.next() => bail!("interrupted"),
    };
    let kubeconfig = control_plane.kubeconfig();
    let cluster = DemoCluster {
        client: control_plane.client(),
        folder: kubeconfig.parent().context("the kubeconfig has no parent folder")?.to_owned(),
        kubectl: format!("kubectl --kubeconfig {}", kubeconfig.display()),
        users_kubeconfig: kubeconfig.clone(),
        kubeconfig,
        is_existing: false,
    };
    play(workload, options, &cluster, &progress, signals).await
}

/// Signals that end the demo.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// The terminal is gone.
    hangup: Signal,
}

impl Signals {
    fn new() -> Result<Self> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for any of them.
    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }

    /// Waits for Ctrl-C. The other signals may come in pairs.
    async fn ctrl_c(&mut self) {
        self.interrupt.recv().await;
    }
}
