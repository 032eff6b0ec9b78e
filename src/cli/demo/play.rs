//! One run of the demo against an API server: from the first node to the verdict.
//!
//! The demo is an ordinary client: its figures come from its own watch, from berth's `/metrics` and from
//! /proc, and it verifies the result with a fresh list at the end.

use std::future::{Future, ready};
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use kube::Client;
use serde_json::{Value, json};

use super::child::Berth;
use super::objects::create_object;
use super::observer::{Observer, StageCounts};
use super::summary::{DemoSummary, Latency, by_class, milliseconds};
use super::verdict::problems;
use super::workload::{DEMO_LABEL, DemoWorkload, Fate};
use super::{DemoOptions, Signals};
use crate::cli::Output;
use crate::cli::progress::{ProgressBars, write_line};
use berth_kube_io::list_cluster;
use berth_model::{Node, Pod};

/// Maximum number of concurrent create requests; more do not make a local API server faster.
const CREATIONS_IN_FLIGHT: usize = 48;
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Time without progress after which the demo fails.
const STALL_MAX: Duration = Duration::from_secs(30);

/// The API server of a run.
pub struct DemoCluster {
    pub client: Client,
    /// berth's.
    pub kubeconfig: PathBuf,
    /// The one that the user can use; it is shown.
    pub users_kubeconfig: PathBuf,
    /// Beginning of the commands for the user.
    pub kubectl: String,
    /// Temporary files.
    pub folder: PathBuf,
    /// Whether it is not the demo's own: the proxies of the environment apply, and berth's kubeconfig is a copy with credentials.
    pub is_existing: bool,
}

/// Runs the demo once, and prints its result. All processes that it starts have ended when it returns.
///
/// # Errors
/// A signal arrives before the result, berth cannot be started, or a check fails.
pub async fn play(
    workload: &DemoWorkload,
    options: &DemoOptions,
    cluster: &DemoCluster,
    progress: &ProgressBars,
    signals: &mut Signals,
) -> Result<()> {
    let mut played = tokio::select! {
        played = run(workload, options, cluster, progress) => played?,
        // Everything that was started has been dropped, which ends it.
        () = signals.next() => bail!("interrupted"),
    };
    if options.keep {
        write_line(&invitation(workload, cluster, &played.berth.page()));
        played.keep_until(signals.next()).await?;
    }
    played.verdict()
}

/// A finished run. Dropping it ends berth.
struct Played {
    berth: Berth,
    summary: DemoSummary,
}

async fn run(
    workload: &DemoWorkload,
    options: &DemoOptions,
    cluster: &DemoCluster,
    progress: &ProgressBars,
) -> Result<Played> {
    let client = &cluster.client;
    let mut bar = progress.stage("nodes created", workload.nodes);
    let mut nodes = 0;
    let count_node = |_: &str| {
        nodes += 1;
        bar.set(nodes);
    };
    create(client, NODES, workload.first_nodes(), count_node).await?;

    let mut berth = Berth::start(
        &cluster.kubeconfig,
        &cluster.folder,
        workload.scheduler_name(),
        cluster.is_existing,
        options.record.as_deref(),
    )
    .await?;
    if cluster.is_existing {
        // It has been read. A demo that is killed leaves no credentials behind.
        std::fs::remove_file(&cluster.kubeconfig).context("cannot delete berth's kubeconfig")?;
    }
    progress.println(&format!("watch it at {}", berth.page()));
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
    let pods = format!("/api/v1/namespaces/{}/pods", workload.namespace());
    tokio::try_join!(
        create(client, &pods, workload.pods(), |name| observer.created(name)),
        await_counts(&observer, &mut berth, at_first, show),
    )?;

    progress.println("adding nodes for the class that waits for them");
    let late_nodes = Instant::now();
    create(client, NODES, workload.late_nodes(), |_| {}).await?;
    let at_last = StageCounts { bound: placed_at_once + placed_late, ..at_first };
    await_counts(&observer, &mut berth, at_last, |_| {}).await?;

    let after = berth.usage()?;
    let metrics = berth.scrape().await?;
    let (pods, nodes) = list_own(client, workload).await?;
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
        problems: problems(workload, &pods, &nodes),
        kubeconfig: options.keep.then(|| cluster.users_kubeconfig.clone()),
    };
    print(&summary, options.output)?;
    Ok(Played { berth, summary })
}

const NODES: &str = "/api/v1/nodes";

/// Lists the pods and nodes of the demo.
async fn list_own(client: &Client, workload: &DemoWorkload) -> Result<(Vec<Pod>, Vec<Node>)> {
    let (mut pods, mut nodes) = list_cluster(client).await?;
    if let Some(name) = &workload.name {
        pods.retain(|pod| *pod.namespace == **name);
        nodes.retain(|node| node.labels.get(DEMO_LABEL) == Some(&**name));
    }
    Ok((pods, nodes))
}

/// Creates the objects; calls `created` with the name of each when its response arrives.
async fn create(
    client: &Client,
    collection: &str,
    objects: impl Iterator<Item = (String, Value)>,
    mut created: impl FnMut(&str),
) -> Result<()> {
    let creations = objects.map(|(name, object)| async move {
        create_object(client, collection, &object).await?;
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

impl Played {
    /// Keeps everything running until `stop` resolves.
    ///
    /// # Errors
    /// berth exits earlier.
    async fn keep_until(&mut self, stop: impl Future<Output = ()>) -> Result<()> {
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

/// Returns commands to try while the demo is kept.
fn invitation(workload: &DemoWorkload, cluster: &DemoCluster, page: &str) -> String {
    let mut spec = json!({"schedulerName": workload.scheduler_name()});
    if let Some(name) = &workload.name {
        spec["nodeSelector"] = json!({DEMO_LABEL: name});
        spec["tolerations"] = json!([{"operator": "Exists"}]);
    }
    let overrides = json!({"apiVersion": "v1", "spec": spec});
    let stays = match &workload.name {
        None => "The control plane and berth stay".to_owned(),
        Some(name) => format!("The namespace {name}, its nodes and berth stay"),
    };
    let (kubectl, kubeconfig) = (&cluster.kubectl, cluster.users_kubeconfig.display());
    format!(
        "\n{stays} up until Ctrl-C. Watch them at {page}\nThe kubeconfig is {kubeconfig}\n  \
         {kubectl} get pods --selector class=gpu --output wide\n  \
         {kubectl} describe pods --selector class=giant --show-events\n  \
         {kubectl} run mine --image=pause --overrides='{overrides}'",
    )
}
