//! `berth demo`: a control plane on this machine, nodes and pods of several classes, and a berth process.
//!
//! The demo is an ordinary client: its figures come from its own watch, from berth's `/metrics` and from
//! /proc, and it verifies the result with a fresh list at the end.

mod child;
mod observer;
mod summary;
mod verdict;
mod workload;

use std::future::{Future, ready};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use futures::{StreamExt, TryStreamExt, stream};
use kube::Client;
use kube::api::PostParams;
use serde::de::IgnoredAny;
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

use self::child::Berth;
use self::observer::{Observer, StageCounts};
use self::summary::{DemoSummary, Latency, by_class, milliseconds};
use self::verdict::problems;
use self::workload::{DemoWorkload, Fate};
use super::Output;
use super::progress::{ProgressBars, write_line};
use berth_kube_io::list_cluster;
use berth_testenv::{ControlPlane, Options};

/// Options of `berth demo`.
#[derive(Debug, Clone, Args)]
pub struct DemoOptions {
    /// Number of nodes to create.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub nodes: usize,
    /// Number of pods to create: at most 10 per node.
    #[arg(long, value_name = "N", default_value_t = 5000)]
    pub pods: usize,
    /// Leave everything running until Ctrl-C, and print commands to try.
    #[arg(long)]
    pub keep: bool,
    /// Format of the result; progress goes to standard error.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub output: Output,
}

/// Maximum number of concurrent create requests; more do not make a local API server faster.
const CREATIONS_IN_FLIGHT: usize = 48;
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Time without progress after which the demo fails.
const STALL_MAX: Duration = Duration::from_secs(30);

/// Runs the demo; ends all its processes at the end, or on SIGINT or SIGTERM.
///
/// # Errors
/// The control plane or berth cannot be started, or a check of the demo fails.
pub fn demo(options: DemoOptions) -> Result<()> {
    let workload = DemoWorkload { nodes: options.nodes, pods: options.pods };
    workload.check().map_err(anyhow::Error::msg)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(async {
        let (mut interrupt, mut terminate) =
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let mut stop = std::pin::pin!(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        });
        let mut demo = tokio::select! {
            demo = run(workload, &options) => demo?,
            // Everything that was started has been dropped, which ends it.
            () = &mut stop => bail!("interrupted"),
        };
        if options.keep {
            demo.keep_until(stop).await?;
        }
        demo.verdict()
    });
    // Go may be building the control plane on a thread; it receives Ctrl-C itself.
    runtime.shutdown_background();
    result
}

/// A finished demo. Dropping it ends all processes.
struct Demo {
    // In this order: berth ends before its API server.
    berth: Berth,
    control_plane: ControlPlane,
    summary: DemoSummary,
}

async fn run(workload: DemoWorkload, options: &DemoOptions) -> Result<Demo> {
    let progress = ProgressBars::new();
    progress.println("starting etcd and kube-apiserver");
    let control_plane = ControlPlane::start(Options::default()).await?;
    let (client, kubeconfig) = (control_plane.client(), control_plane.kubeconfig());

    let mut stage = progress.stage("nodes created", workload.nodes);
    let mut nodes = 0;
    let count_node = |_: &str| {
        nodes += 1;
        stage.set(nodes);
    };
    create(&client, NODES, workload.first_nodes(), count_node).await?;

    let folder = kubeconfig.parent().context("the kubeconfig has no parent folder")?;
    let mut berth = Berth::start(&kubeconfig, folder).await?;
    let observer = Observer::new(workload);
    let mut watches = tokio::task::JoinSet::new();
    watches.spawn(observer.clone().watch(client.clone()));

    let before = berth.usage()?;
    let placed_at_once = workload.count(|class| class.fate == Fate::Placed);
    let placed_late = workload.count(|class| class.fate == Fate::PlacedLate);
    let mut created = progress.stage("pods created", workload.pods);
    let mut bound = progress.stage("pods bound", placed_at_once);
    let show = |counts: StageCounts| {
        created.set(counts.created);
        bound.set(counts.bound);
    };
    let at_first =
        StageCounts { created: workload.pods, bound: placed_at_once, told: workload.pods - placed_at_once };
    tokio::try_join!(
        create(&client, PODS, workload.pods(), |name| observer.created(name)),
        await_counts(&observer, &mut berth, at_first, show),
    )?;

    progress.println("adding nodes for the class that waits for them");
    let late_nodes = Instant::now();
    create(&client, NODES, workload.late_nodes(), |_| {}).await?;
    let at_last = StageCounts { bound: placed_at_once + placed_late, ..at_first };
    await_counts(&observer, &mut berth, at_last, |_| {}).await?;

    let after = berth.usage()?;
    let metrics = berth.scrape().await?;
    let (pods, nodes) = list_cluster(&client).await?;
    let bound = pods.iter().filter(|pod| pod.node_name.is_some()).count();
    let summary = DemoSummary {
        nodes: workload.nodes,
        pods: workload.pods,
        bound,
        waiting: pods.len() - bound,
        pods_per_second: (placed_at_once as f64 / observer.span().as_secs_f64()).round(),
        latency_ms: Latency::of(&observer.latencies()),
        late_ms: milliseconds(observer.late_bind(late_nodes)),
        list_hits: metrics.get(r#"berth_cache_lookups_total{level="list",result="hit"}"#)?,
        list_misses: metrics.get(r#"berth_cache_lookups_total{level="list",result="miss"}"#)?,
        conflicts: metrics.get("berth_placement_conflicts_total")?,
        cpu_us_per_pod: ((after.cpu - before.cpu).as_secs_f64() * 1e6 / bound as f64).round(),
        peak_memory_bytes: after.peak_resident_bytes,
        classes: by_class(&pods),
        problems: problems(workload.pods, &pods, &nodes),
        kubeconfig: options.keep.then_some(kubeconfig),
    };
    print(&summary, options.output)?;
    Ok(Demo { berth, control_plane, summary })
}

const NODES: &str = "/api/v1/nodes";
const PODS: &str = "/api/v1/namespaces/default/pods";

/// Creates the objects; calls `created` with the name of each when its response arrives.
async fn create(
    client: &Client,
    url: &str,
    objects: impl Iterator<Item = (String, Value)>,
    mut created: impl FnMut(&str),
) -> Result<()> {
    let creations = objects.map(|(name, object)| async move {
        let request =
            kube::core::Request::new(url).create(&PostParams::default(), serde_json::to_vec(&object)?)?;
        let answer = client.request::<IgnoredAny>(request).await;
        answer.with_context(|| format!("cannot create {name}"))?;
        anyhow::Ok(name)
    });
    stream::iter(creations)
        .buffer_unordered(CREATIONS_IN_FLIGHT)
        .try_for_each(|name| {
            created(&name);
            ready(Ok(()))
        })
        .await
}

/// Waits until the counts reach the goal.
///
/// # Errors
/// berth exits, or there is no more progress.
async fn await_counts(
    observer: &Observer,
    berth: &mut Berth,
    goal: StageCounts,
    mut show: impl FnMut(StageCounts),
) -> Result<()> {
    let (mut last, mut moved) = (StageCounts::default(), Instant::now());
    loop {
        let counts = observer.counts();
        show(counts);
        if counts == goal {
            return Ok(());
        }
        if counts != last {
            (last, moved) = (counts, Instant::now());
        }
        berth.check_alive()?;
        ensure!(
            moved.elapsed() < STALL_MAX,
            "no progress for {} s: {} of {} pods are created, {} of {} bound, {} of {} waiting pods have a condition; \
             the end of berth's log:\n{}",
            STALL_MAX.as_secs(),
            counts.created,
            goal.created,
            counts.bound,
            goal.bound,
            counts.told,
            goal.told,
            berth.log_tail(),
        );
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn print(summary: &DemoSummary, output: Output) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    match output {
        Output::Json => writeln!(stdout, "{}", serde_json::to_string_pretty(summary)?)?,
        Output::Table => {
            writeln!(stdout, "\n{summary}")?;
            if summary.problems.is_empty() {
                writeln!(
                    stdout,
                    "checked with a fresh list: no node is overcommitted, every pod that can be placed is bound to a node of \
                     its class, and every waiting pod has a condition that says why"
                )?;
            }
        }
    }
    Ok(stdout.flush()?)
}

impl Demo {
    /// Prints commands to try, and keeps everything running until `stop` resolves.
    ///
    /// # Errors
    /// berth exits earlier.
    async fn keep_until(&mut self, stop: impl Future<Output = ()>) -> Result<()> {
        write_line(&invitation(&self.control_plane.kubeconfig()));
        tokio::select! {
            () = stop => Ok(()),
            ended = async {
                loop {
                    self.berth.check_alive()?;
                    tokio::time::sleep(LOOK_EVERY).await;
                }
            } => ended,
        }
    }

    fn verdict(&self) -> Result<()> {
        let problems = &self.summary.problems;
        ensure!(problems.is_empty(), "checks of the demo failed:\n{}", problems.join("\n"));
        Ok(())
    }
}

fn invitation(kubeconfig: &Path) -> String {
    let kubectl = format!("  kubectl --kubeconfig {}", kubeconfig.display());
    let overrides = r#"'{"apiVersion": "v1", "spec": {"schedulerName": "berth"}}'"#;
    format!(
        "\nThe control plane and berth stay up until Ctrl-C. The kubeconfig is {}\n\
         {kubectl} get pods --selector class=gpu --output wide\n\
         {kubectl} describe pods --selector class=giant\n\
         {kubectl} run mine --image=pause --overrides={overrides}",
        kubeconfig.display()
    )
}
