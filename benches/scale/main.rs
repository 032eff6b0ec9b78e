//! Benchmark of one `berth run` at the size of the largest clusters; `docs/benchmarks.md` describes the measurements.
//!
//! This program is the API server, the controllers and the kubelets, with a store in memory; berth is the real program, in a process
//! of its own, of which CPU time and memory are measured from outside.

mod api;
mod load;
mod metrics;
mod report;
mod store;
mod subject;
mod workload;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Parser;

use metrics::Scrape;
use report::{LockHold, Report};
use store::Store;
use subject::Subject;
use workload::Size;

/// Measures berth at the size of the largest clusters, against a store in memory.
#[derive(Debug, Parser)]
#[command(name = "scale", bin_name = "cargo bench --bench scale --")]
struct Options {
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(100..=200_000))]
    nodes: u32,
    /// Pods with a node at the start.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1_000..=4_000_000))]
    pods: u32,
    /// Workloads whose pods fit.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(10..=100_000))]
    classes: u32,
    /// Workloads whose pods fit nowhere.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    parked_classes: u32,
    /// Pods that fit nowhere.
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    parked_pods: u32,
    /// Pods that come, and pods that go, in a second of churn.
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    churn: u32,
    /// Length of the churn.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    seconds: u32,
    /// Number of agents; 0: as berth chooses.
    #[arg(long, default_value_t = 0)]
    agents: u32,
    /// Dispatcher of berth.
    #[arg(long, default_value = "latcache-priced")]
    dispatcher: String,
    /// Pods without Services, affinity and spread.
    #[arg(long)]
    plain: bool,
    /// 2,000 nodes and 20,000 pods, within a minute.
    #[arg(long)]
    quick: bool,
    /// Set by `cargo bench` and not by `cargo test`.
    #[arg(long, hide = true)]
    bench: bool,
}

/// Longest time for a start or a takeover.
const START_LIMIT: Duration = Duration::from_secs(900);
/// Pods that wait at the start and fit.
const FIRST_PODS_EACH: u32 = 1;
/// Memory and queues settle.
const PAUSE: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    berth::cli::install_tls_provider();
    let mut options = Options::parse();
    if !options.bench {
        println!("nothing measured: run it with cargo bench --bench scale");
        return ExitCode::SUCCESS;
    }
    if options.quick {
        (options.nodes, options.pods, options.classes) = (2_000, 20_000, 100);
        (options.parked_classes, options.parked_pods) = (10, 5_000);
        (options.churn, options.seconds) = (500, 10);
    }
    let run = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    match run.map_err(Into::into).and_then(|runtime| runtime.block_on(measure(&options))) {
        Ok(report) => {
            println!("\n{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("scale: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn measure(options: &Options) -> Result<Report> {
    let size = Size {
        nodes: options.nodes,
        pods: options.pods,
        classes: options.classes,
        parked_classes: options.parked_classes,
        lived_in: !options.plain,
    };
    let folder = tempfile::tempdir()?;
    let settings = format!(
        "dispatcher: {}\nagents: {}\nselfCheckInterval: 9h\nleaderElection: {{namespace: kube-system}}\n",
        options.dispatcher, options.agents
    );
    let empty_bytes = empty(folder.path(), size, &settings).await?;
    eprintln!("nodes only: {:.0} MB", empty_bytes as f64 / 1e6);

    let store = Arc::new(Store::new(size));
    let url = api::serve(store.clone()).await?;
    let mut report = Report::new(size);
    let mut berth = start(&store, &url, folder.path(), &settings, &mut report).await?;

    tokio::time::sleep(PAUSE).await;
    let bound = size.pods + size.classes * FIRST_PODS_EACH;
    let bound_bytes = without_lists(&berth).await?;
    report.bytes_per_bound_pod = (bound_bytes as f64 - empty_bytes as f64) / f64::from(bound);
    eprintln!("{bound} bound pods, without lists: {:.0} MB", bound_bytes as f64 / 1e6);

    park(options, &store, &mut berth, &mut report).await?;
    churn(options, &store, &mut berth, &mut report).await?;
    relist(&store, &mut berth, &mut report).await?;
    let settings = settings.replace("selfCheckInterval: 9h", "selfCheckInterval: 20s");
    // A failure of the last part loses no figures.
    println!("\nBefore the takeover:\n\n{report}");
    take_over(options, &store, &url, folder.path(), &settings, (berth, &mut report)).await?;
    Ok(report)
}

/// Returns the memory of berth with all nodes and no pods.
async fn empty(folder: &Path, size: Size, settings: &str) -> Result<u64> {
    let store = Arc::new(Store::new(Size { pods: 0, ..size }));
    let url = api::serve(store.clone()).await?;
    let mut berth = Subject::start(folder, "empty", &url, settings)?;
    berth.until_logged("this process schedules", START_LIMIT).await?;
    tokio::time::sleep(PAUSE).await;
    Ok(berth.usage()?.resident_bytes)
}

/// Returns the memory of berth without its ranked lists and rule objects, which have a limit of their own.
async fn without_lists(berth: &Subject) -> Result<u64> {
    let lists = berth.metrics().await?.total("berth_cache_bytes", "") as u64;
    Ok(berth.usage()?.resident_bytes.saturating_sub(lists))
}

/// Starts berth with a pod of each class waiting, and waits until they are bound.
async fn start(
    store: &Arc<Store>,
    url: &str,
    folder: &Path,
    settings: &str,
    report: &mut Report,
) -> Result<Subject> {
    for workload in 0..store.size.classes {
        store.create_pods(workload, FIRST_PODS_EACH);
    }
    let mut berth = Subject::start(folder, "berth", url, settings)?;
    berth.until("the first bind", START_LIMIT, || store.binds.load(Relaxed) > 0).await?;
    report.start_wall_s = berth.started.elapsed().as_secs_f64();
    report.start_cpu_s = berth.usage()?.cpu.as_secs_f64();
    report.start_sent_bytes = store.sent.load(Relaxed);
    eprintln!("first bind after {:.1} s, {:.1} s of CPU", report.start_wall_s, report.start_cpu_s);
    berth.until("the first pods", START_LIMIT, || store.waiting() == 0).await?;
    report.start_holds = holds(&berth.metrics().await?)?;
    Ok(berth)
}

/// Lets pods wait that fit nowhere.
async fn park(options: &Options, store: &Store, berth: &mut Subject, report: &mut Report) -> Result<()> {
    let before = without_lists(berth).await?;
    let each = (options.parked_pods / options.parked_classes).max(1);
    for at in 0..options.parked_classes {
        store.create_pods(store.size.classes + at, each);
    }
    tokio::time::sleep(PAUSE * 2).await;
    let after = without_lists(berth).await?;
    report.bytes_per_waiting_pod = (after as f64 - before as f64) / f64::from(each * options.parked_classes);
    let scrape = berth.metrics().await?;
    eprintln!(
        "parked, without lists: {:.0} MB, {} classes",
        after as f64 / 1e6,
        scrape.total("berth_parked_classes", "")
    );
    Ok(())
}

async fn churn(
    options: &Options,
    store: &Arc<Store>,
    berth: &mut Subject,
    report: &mut Report,
) -> Result<()> {
    const ATTEMPTS: &str = "scheduler_scheduling_attempt_duration_seconds";
    const CHOICES: &str = "scheduler_scheduling_algorithm_duration_seconds";
    const SLI: &str = "scheduler_pod_scheduling_sli_duration_seconds";
    let counts = Arc::new(load::Counts::default());
    let load = tokio::spawn(load::churn(store.clone(), f64::from(options.churn), counts.clone()));
    let (before, binds, began) = (berth.metrics().await?, store.binds.load(Relaxed), Instant::now());
    let cpu = berth.usage()?.cpu;
    let ends = began + Duration::from_secs(options.seconds.into());
    while Instant::now() < ends {
        tokio::time::sleep(Duration::from_secs(1).min(ends - Instant::now())).await;
        ensure!(!load.is_finished(), "the load has ended");
        berth.usage()?;
    }
    load.abort();
    let seconds = began.elapsed().as_secs_f64();
    let after = berth.metrics().await?;
    let scheduled = r#"result="scheduled""#;
    let attempts = after.histogram(ATTEMPTS, scheduled)?.since(&before.histogram(ATTEMPTS, scheduled)?);
    let choices = after.histogram(CHOICES, "")?.since(&before.histogram(CHOICES, "")?);
    let waited = after.histogram(SLI, "")?.since(&before.histogram(SLI, "")?);
    let growth = |name: &str, label: &str| after.total(name, label) - before.total(name, label);
    report.churn_created_per_s = counts.created.load(Relaxed) as f64 / seconds;
    report.churn_updates_per_s = counts.updates.load(Relaxed) as f64 / seconds;
    report.churn_bound_per_s = (store.binds.load(Relaxed) - binds) as f64 / seconds;
    report.churn_cpu_us_per_bind =
        (berth.usage()?.cpu - cpu).as_secs_f64() * 1e6 / (store.binds.load(Relaxed) - binds).max(1) as f64;
    report.churn_waiting = store.waiting();
    report.decisions_per_agent_s = attempts.count() / attempts.sum;
    report.decision_p50_us = attempts.quantile(0.5) * 1e6;
    report.decision_p99_us = attempts.quantile(0.99) * 1e6;
    report.choice_p50_us = choices.quantile(0.5) * 1e6;
    report.choice_p99_us = choices.quantile(0.99) * 1e6;
    report.sli_p50_ms = waited.quantile(0.5) * 1e3;
    report.sli_p99_ms = waited.quantile(0.99) * 1e3;
    report.list_hits = growth("berth_cache_lookups_total", r#"level="list",result="hit""#);
    report.list_misses = growth("berth_cache_lookups_total", r#"level="list",result="miss""#);
    report.conflicts = growth("berth_placement_conflicts_total", "");
    report.parked_checks_per_s = growth("berth_parked_checks_total", "") / seconds;
    let lists = after.total("berth_cache_lists", "");
    report.lists = lists;
    report.bytes_per_node_and_list =
        after.total("berth_cache_bytes", "") / lists.max(1.0) / f64::from(store.size.nodes);
    report.resident_bytes = berth.usage()?.resident_bytes;
    report.churn_holds = holds(&after)?;
    eprintln!("churn: {:.0} binds/s", report.churn_bound_per_s);
    Ok(())
}

/// Expires all watches.
async fn relist(store: &Store, berth: &mut Subject, report: &mut Report) -> Result<()> {
    let lists = |scrape: &Scrape| scrape.total("berth_watch_lists_total", r#"resource="pods""#);
    let (before, cpu, began) = (berth.metrics().await?, berth.usage()?.cpu, Instant::now());
    store.compact();
    loop {
        ensure!(began.elapsed() < START_LIMIT, "the pods were not listed again");
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = berth.metrics().await?;
        if lists(&now) > lists(&before) {
            report.relist_wall_s = began.elapsed().as_secs_f64();
            report.relist_cpu_s = (berth.usage()?.cpu - cpu).as_secs_f64();
            report.relist_holds = holds(&now)?;
            break;
        }
    }
    report.peak_bytes = berth.usage()?.peak_resident_bytes;
    eprintln!(
        "listed again after {:.1} s, peak {:.0} MB",
        report.relist_wall_s,
        report.peak_bytes as f64 / 1e6
    );
    Ok(())
}

/// Starts a follower, kills the leader during churn, and waits for the follower's first bind and its first self-check.
async fn take_over(
    options: &Options,
    store: &Arc<Store>,
    url: &str,
    folder: &Path,
    settings: &str,
    (mut leader, report): (Subject, &mut Report),
) -> Result<()> {
    let mut follower = Subject::start(folder, "follower", url, settings)?;
    follower.until_logged("pods are listed", START_LIMIT).await?;
    let load = tokio::spawn(load::churn(store.clone(), f64::from(options.churn), Arc::default()));
    tokio::time::sleep(PAUSE).await;
    let (elected_before, _) = store.marks();
    leader.kill();
    let cpu = follower.usage()?.cpu;
    let bound = || {
        let (elected, first_bind) = store.marks();
        elected != elected_before && first_bind.is_some()
    };
    follower.until("the first bind of the follower", START_LIMIT, bound).await?;
    let (elected, first_bind) = store.marks();
    if let (Some(elected), Some(first_bind)) = (elected, first_bind) {
        report.takeover_s = (first_bind - elected).as_secs_f64();
    }
    report.takeover_cpu_s = (follower.usage()?.cpu - cpu).as_secs_f64();
    eprintln!("taken over after {:.2} s", report.takeover_s);
    load.abort();
    let began = Instant::now();
    let checks = |scrape: &Scrape| scrape.total("berth_self_checks_total", r#"result="done""#);
    let before = checks(&follower.metrics().await?);
    while checks(&follower.metrics().await?) <= before {
        ensure!(began.elapsed() < START_LIMIT, "there was no self-check");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let scrape = follower.metrics().await?;
    report.healed = scrape.total("berth_self_check_healed_total", "");
    report.self_check_peak_bytes = follower.usage()?.peak_resident_bytes;
    report.follower_holds = holds(&scrape)?;
    report.refused = store.refused.load(Relaxed);
    let problems = [leader.log_lines(" ERROR ")?, follower.log_lines(" ERROR ")?].concat();
    report.errors = problems.len();
    for line in problems.iter().take(10) {
        eprintln!("{line}");
    }
    Ok(())
}

/// Returns how long each operation has held the engine's lock so far.
fn holds(scrape: &Scrape) -> Result<Vec<LockHold>> {
    let mut all = Vec::new();
    for (labels, longest_s) in scrape.samples("berth_engine_lock_hold_longest_seconds") {
        let held = scrape.histogram("berth_engine_lock_hold_seconds", labels)?;
        if held.count() > 0.0 {
            let operation = labels.split('"').nth(1).unwrap_or_default().to_owned();
            all.push(LockHold {
                operation,
                count: held.count(),
                p999_ms: held.quantile(0.999) * 1e3,
                longest_ms: longest_s * 1e3,
            });
        }
    }
    let held = scrape.histogram("berth_engine_lock_hold_seconds", "")?;
    let longest_ms = all.iter().map(|hold| hold.longest_ms).fold(0.0, f64::max);
    all.push(LockHold {
        operation: "all".to_owned(),
        count: held.count(),
        p999_ms: held.quantile(0.999) * 1e3,
        longest_ms,
    });
    Ok(all)
}
