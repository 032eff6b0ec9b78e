//! `berth run`: the scheduler in a cluster.

mod applying;
mod estimates;
mod evictions;
mod fragmentation;
mod hints;
mod limits;
mod outbox;
mod recorder;
mod self_check;
mod serving;
mod sink;
mod spans;
mod upstream;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::engine_settings::{agent_configs, agent_count, cores, scheduler_config};
use berth_config::{Config, FailurePolicy, LoadedConfig, NAMESPACE_FILE};
use berth_controllers::clock::Clock;
use berth_controllers::leadership::{self, Leadership};
use berth_controllers::tasks::{Tasks, ended, host_name};
use berth_controllers::{recommender, scaler};
use berth_devices::ClaimRelease;
use berth_kube_io::certificates::{FOLLOW_EVERY, Rotation};
use berth_kube_io::client::without_retries;
use berth_kube_io::placement::{BindCounters, KubeClaims, KubeStore, drive};
use berth_kube_io::webhook_configurations::{RetryWarnings, WebhookConfiguration};
use berth_kube_io::webhook_path::{self, WebhookPaths};
use berth_kube_io::{AllocationWriter, Evictor, PolicyWriter, QuotaWriter, Reporter};
use berth_model::{PodRef, PodReport};
use berth_scheduler::engine::{AgentThreads, Engine, Operation, Outlet};
use berth_scheduler::gang::GangStatus;
use berth_scheduler::placement::{Binding, ClaimOrder};
use berth_scheduler::policy::PolicyStatus;
use berth_scheduler::quota::QuotaReport;
use berth_scheduler::scheduler::{Eviction, LatencySample};
use berth_server::forward::BegunDecisions;
use berth_server::metrics::{Histograms, MetricSources};
use berth_server::{Access, Secure, Served, WebhookAccess, guard, listen, mutate, secure_routes, serve};
use berth_telemetry::{Health, RecommenderMetrics};
use evictions::{Order, carry_out_evictions};
use outbox::{Inbox, Outbox, queue};

/// Options of `berth run`; they override the configuration file.
#[derive(Debug, Clone, Default, Args)]
pub struct RunOptions {
    /// Kubeconfig file. Default: $KUBECONFIG, else the service account of the pod berth runs in.
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Configuration file (YAML): one of berth, a KubeSchedulerConfiguration of kube-scheduler, or both, each with its own
    /// --config. Default: every setting has its default.
    #[arg(long, value_name = "FILE")]
    pub config: Vec<PathBuf>,
    /// Use leader election, so that one of several processes schedules.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub leader_elect: Option<bool>,
    /// Recommend requests in the status of VerticalPodAutoscalers. The flags of the upstream recommender are
    /// accepted too: --help lists them.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub recommender: Option<bool>,
    /// Address and port of /healthz and /readyz, and of /metrics if it is a loopback address.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub health_address: Option<SocketAddr>,
    #[command(flatten)]
    pub upstream: upstream::UpstreamFlags,
}

/// Interval of checks that depend on time only.
const TICK: Duration = Duration::from_millis(50);
const CLAIMS_IN_FLIGHT: usize = 16;
/// Capacity of the channel of claims; more are parked, at most one current order per pod that waits for its
/// claims.
const CLAIMS_QUEUED_MAX: usize = 1_024;
/// Capacity of the channel of evictions and nominations. Its receiver takes them without waiting for
/// requests. What is parked meanwhile is bounded by the victims, each evicted once per term, and by the
/// preemptors whose nomination has changed.
const EVICTIONS_QUEUED_MAX: usize = 1_024;
const SAVE_ESTIMATES: Duration = Duration::from_secs(60);
/// Shutdown: time for binds in flight to settle and for reports to be sent.
const SETTLE_MAX: Duration = Duration::from_secs(20);
/// Shutdown: time until the watch has shown the last binds. Without it, the next leader needs longer.
const SEEN_MAX: Duration = Duration::from_millis(300);
const FLUSH_MAX: Duration = Duration::from_secs(5);
/// Interval at which a process that does not review looks whether it does by now.
const LOOK_FOR_TERM: Duration = Duration::from_millis(500);
/// Shutdown: time for another replica to take the released lease. Candidates look at it twenty times a second.
const SUCCESSOR_MAX: Duration = Duration::from_secs(3);
/// Shutdown: time for connections. Their requests in flight have 5 s.
const CONNECTIONS_MAX: Duration = Duration::from_secs(6);

/// Runs until SIGTERM or SIGINT.
pub fn run(options: RunOptions) -> Result<()> {
    let LoadedConfig { mut config, kubeconfig, notes: unused } = LoadedConfig::read(&options.config)?;
    config.leader_election.enabled = options.leader_elect.unwrap_or(config.leader_election.enabled);
    config.health_address = options.health_address.unwrap_or(config.health_address);
    config.recommender.enabled = options.recommender.unwrap_or(config.recommender.enabled);
    let env = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let notes = options.upstream.apply(&mut config, env)?;
    super::logging::init(config.log_format);
    for note in unused.iter().chain(&notes) {
        tracing::warn!("{note}");
    }
    let kubeconfig = options.kubeconfig.or(kubeconfig);
    io_runtime(cores())?.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let stop = async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        let cluster = cluster_config(kubeconfig.as_deref()).await?;
        run_until(cluster, config, Clock::of_system(), stop).await
    })
}

/// Returns the runtime of the I/O rooms. One thread carries a few thousand binds per second. Two threads that
/// pass tasks to each other spend more time waking up than working, so a second thread is only worth it with
/// spare cores.
fn io_runtime(cores: usize) -> std::io::Result<tokio::runtime::Runtime> {
    let threads = (cores / 4).min(4);
    let mut builder = match threads {
        0 | 1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    builder.worker_threads(threads.max(1)).enable_all().build()
}

async fn cluster_config(kubeconfig: Option<&Path>) -> Result<kube::Config> {
    let Some(file) = kubeconfig else {
        return kube::Config::incluster()
            .context("no cluster configured: give --kubeconfig FILE, set KUBECONFIG, or run berth in a pod");
    };
    let explain = || format!("cannot use the kubeconfig {}", file.display());
    let kubeconfig = Kubeconfig::read_from(file).with_context(explain)?;
    kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .with_context(explain)
}

/// Writes to the claims of a pod.
enum ClaimWork {
    Write(ClaimOrder),
    Release(ClaimRelease),
}

/// Sink of the engine's decisions.
struct ToCluster {
    binds: Outbox<(Binding, u64)>,
    claims: Outbox<ClaimWork>,
    evictions: Outbox<Order>,
    reporter: Reporter,
    allocations: AllocationWriter,
    policies: PolicyWriter,
    quotas: QuotaWriter,
    histograms: Histograms,
}

impl Outlet for ToCluster {
    fn bind(&self, binding: Binding, term: u64) {
        self.reporter.withdraw(&binding.uid);
        self.binds.send((binding, term));
    }

    fn claim(&self, order: ClaimOrder) {
        self.reporter.withdraw(&order.uid);
        self.claims.send(ClaimWork::Write(order));
    }

    fn release_claim(&self, release: ClaimRelease) {
        self.claims.send(ClaimWork::Release(release));
    }

    fn evict(&self, eviction: Eviction, term: u64) {
        self.evictions.send(Order::Evict(eviction, term));
    }

    fn nominate(&self, pod: PodRef, node: Option<Arc<str>>, term: u64) {
        self.evictions.send(Order::Nominate(pod, node, term));
    }

    fn report(&self, report: PodReport) {
        self.reporter.report(report);
    }

    fn report_allocation(&self, status: GangStatus) {
        self.allocations.enqueue(status);
    }

    fn report_policy(&self, status: PolicyStatus) {
        self.policies.enqueue(status);
    }

    fn report_quota(&self, status: QuotaReport) {
        self.quotas.enqueue(status);
    }

    fn observe(&self, sample: LatencySample) {
        self.histograms.observe(sample);
    }

    fn lock_held(&self, operation: Operation, held: Duration) {
        self.histograms.observe_lock(operation, held);
    }
}

/// Runs against this cluster until `stop` resolves, then shuts down in order. `clock`: of the recommender, the updater and the scaler.
pub async fn run_until(
    cluster: kube::Config,
    config: Config,
    clock: Clock,
    stop: impl Future<Output = ()>,
) -> Result<()> {
    let listener = listen(config.health_address, "healthAddress or --health-address").await?;
    let address = listener.local_addr()?;
    let secure = secure_listener(&config).await?;
    let access = Access::new(without_retries(cluster.clone())?);
    let client = Client::try_from(cluster.clone())?;
    // The scheduler's limit of binds, beyond which each agent may add one (invariant I11). If it adds a gang
    // instead, the other members may be parked.
    let (binds, bind_queue) = queue(config.max_waiting_binds as usize + agent_count(&config));
    let (claims, claim_queue) = queue(CLAIMS_QUEUED_MAX);
    let (evictions, eviction_queue) = queue(EVICTIONS_QUEUED_MAX);
    let (reporter, allocations, histograms) =
        (Reporter::new(), AllocationWriter::default(), Histograms::default());
    let (policies, quotas) = (PolicyWriter::default(), QuotaWriter::default());
    let outlet = ToCluster {
        binds,
        claims,
        evictions,
        reporter: reporter.clone(),
        allocations: allocations.clone(),
        policies: policies.clone(),
        quotas: quotas.clone(),
        histograms: histograms.clone(),
    };
    let estimator = estimates::read(config.estimator_file.as_deref());
    let (tape, recording) = recorder::begin(&config.recorder)?.unzip();
    let (engine, threads) = Engine::start_recorded(
        scheduler_config(&config),
        agent_configs(&config),
        estimator,
        Box::new(outlet),
        tape,
    )?;
    let sources = MetricSources {
        engine: engine.clone(),
        reporter: reporter.clone(),
        allocations: allocations.clone(),
        binds: Arc::default(),
        pod_watch: Arc::default(),
        node_watch: Arc::default(),
        claim_watch: Arc::default(),
        object_watches: Arc::default(),
        self_checks: Arc::default(),
        recorded: recording.as_ref().map_or_else(Arc::default, |recording| recording.bytes.clone()),
        lease_renewed: Arc::default(),
        clock_ahead: clock.ahead(),
        serving: secure.as_ref().map(|(_, secure)| (secure.counters(), access.clone())),
        recommender: config.recommender.enabled.then(|| Arc::new(RecommenderMetrics::default())),
        updater: config.recommender.apply.updater.then(Arc::default),
        scaler: config.scaling.enabled.then(Arc::default),
        fragmentation: config.fragmentation.every().map(|_| Arc::default()),
        ui: Arc::default(),
        fit: Arc::default(),
        spans: (!config.tracing.endpoint.is_empty()).then(Arc::default),
    };
    let health = Health::default();
    // Three stages of the shutdown: stop deciding, then stop reporting, then stop serving.
    let (stop_work, working) = watch::channel(true);
    let (stop_telling, telling) = watch::channel(true);
    let mut tasks = Tasks::default();
    let secure_address = secure.as_ref().map(|(listener, _)| listener.local_addr()).transpose()?;
    let place = leadership::ElectionContext {
        cluster: &cluster,
        config: &config,
        serving: secure_address,
        pods: &sources.pod_watch,
        claims: &sources.claim_watch,
        renewed: &sources.lease_renewed,
    };
    let leadership = leadership::lead(&mut tasks, &engine, place, &health, working.clone())?;
    let store = KubeStore::new(cluster.clone(), leadership.fence.as_ref())?;
    let begun = BegunDecisions::default();
    let asked = serving::ServingContext {
        engine: &engine,
        cluster: &cluster,
        store: &store,
        leadership: &leadership,
        begun: &begun,
    };
    let trust = serving::trust(&config, &cluster, secure.as_ref().map(|(_, secure)| secure.clone()));
    let hints = Arc::default();
    let watches = applying::watch_store(&config);
    let mutate = applying::webhook(&config, &watches, &histograms, &hints);
    let routes = serving::routes(&mut tasks, &config, asked, &health, (&histograms, &sources), trust)?;
    let routes = Served { mutate, ..routes };
    // Its streams are open connections, which would have to be waited for.
    tasks.spawn_ending("page", routes.ui.clone().run(ended(working.clone())));
    let callers = routes.extender.is_some() || routes.guard.is_some() || routes.mutate.is_some();
    let shutdown_delay = if callers { config.serving.shutdown_delay.get() } else { Duration::ZERO };
    let secure_server = secure.as_ref().map(|(_, secure)| secure.clone());
    if let Some((listener, secure)) = secure {
        follow_certificates(&mut tasks, &client, &config, &secure);
        let webhooks = follow_webhook_paths(&mut tasks, &client, &config);
        follow_failure_policy(&mut tasks, &client, &config, &leadership);
        let server = (listener, secure_routes(routes.clone(), &access, &webhooks));
        // A review of a new pod does not wait for other work of the process.
        let own_thread = config.recommender.apply.webhook;
        serve_https(&mut tasks, server, secure, telling.clone(), own_thread)?;
    }
    spans::send(&mut tasks, &engine, &config.tracing, sources.spans.as_ref(), telling.clone())?;
    let plaintext = config.extender.plaintext;
    tasks.spawn_ending("http server", async move {
        if let Err(error) = serve(listener, routes, plaintext, ended(telling)).await {
            tracing::error!(%error, "the HTTP server failed");
        }
    });
    sink::watch_cluster(&mut tasks, (&engine, &watches), &client, &sources, &health, &config);
    hints::follow(&mut tasks, &client, &config, &sources, &watches, (&engine, hints));
    run_timers(&mut tasks, &engine, &config, &health);
    self_check::self_check(&mut tasks, &engine, &client, &config, sources.self_checks.clone());
    if let (Some(every), Some(latest)) = (config.fragmentation.every(), &sources.fragmentation) {
        fragmentation::report(&mut tasks, &engine, every, latest.clone());
    }
    let recommends = recommender::recommend(
        &mut tasks,
        &cluster,
        &config.recommender,
        (&engine, &leadership),
        (&watches, &clock),
        sources.recommender.clone(),
    )?;
    let scaled = sources.scaler.clone();
    scaler::scale(&mut tasks, &cluster, &config, (&engine, &leadership), (&watches, &clock), scaled)?;
    applying::update(&mut tasks, &config, &cluster, (&engine, &leadership), (&watches, &clock), &sources)?;
    let in_flight = config.binds_in_flight as usize;
    let fences = (leadership.fence.as_ref(), leadership.device_fence.as_ref());
    let claims = KubeClaims::new(&cluster, fences)?;
    let leads = {
        let leadership = leadership.clone();
        move || leadership.term().is_some()
    };
    let in_term = {
        let leadership = leadership.clone();
        move |term| leadership.term() == Some(term)
    };
    let tells = {
        let (leadership, client) = (leadership.clone(), without_retries(cluster.clone())?);
        async move { policies.run(client, move || leadership.term().is_some()).await }
    };
    tasks.spawn("statuses of policies", tells);
    let tells = {
        let (leadership, client) = (leadership.clone(), without_retries(cluster.clone())?);
        async move { quotas.run(client, move || leadership.term().is_some()).await }
    };
    tasks.spawn("statuses of quotas", tells);
    tasks.spawn("claims", carry_out_claims(engine.clone(), claims, claim_queue, leads));
    let evictor = Evictor::new(cluster.clone(), leadership.fence.as_ref())?;
    let evictions =
        carry_out_evictions(engine.clone(), evictor, reporter.clone(), eviction_queue, in_term.clone());
    tasks.spawn("evictions", evictions);
    tasks.spawn(
        "binds",
        carry_out_binds(engine.clone(), store, in_flight, bind_queue, in_term, sources.binds.clone()),
    );
    let report = {
        let (engine, reporter, working) = (engine.clone(), reporter.clone(), working.clone());
        let client = without_retries(cluster.clone())?;
        async move {
            let host = host_name();
            reporter.run(client, &host, engine.pending_binds(), ended(working), FLUSH_MAX).await;
        }
    };
    let tell_allocations = {
        let (allocations, working) = (allocations.clone(), working.clone());
        let client = without_retries(cluster.clone())?;
        async move { allocations.run(client, &host_name(), ended(working), FLUSH_MAX).await }
    };
    let (report, tell_allocations) = (tokio::spawn(report), tokio::spawn(tell_allocations));
    tracing::info!(%address, agents = agent_count(&config), schedulers = ?config.scheduler_names, "berth started");
    if let Some(secure_address) = secure_address {
        tracing::info!(%secure_address, "HTTPS server started");
    }

    let result = tokio::select! {
        () = stop => Ok(()),
        why = tasks.first_end() => why,
        () = agent_ends(&threads) => Err(anyhow::anyhow!("an agent thread panicked: see the panic message above")),
    };
    if result.is_err() {
        health.set_broken();
    }
    health.set_stopping();
    if let Some(secure) = secure_server {
        secure.drain();
    }
    leadership.announce_exit();
    if result.is_ok() && !shutdown_delay.is_zero() {
        tracing::info!(?shutdown_delay, "stopping: clients go over to other replicas");
        tokio::time::sleep(shutdown_delay).await;
    }
    if let Some(recommends) = recommends {
        recommends.finish().await;
    }
    leadership.stop_deciding();
    engine.stop();
    // Only after the agents have ended no more binds can arrive.
    let agents_ended = tokio::task::spawn_blocking(|| threads.join()).await?;
    let binds_known =
        settle(&engine, &leadership, &begun).await.then(|| sources.pod_watch.progress.version());
    // Without reviews and binds in flight, nothing of this process can take effect any more.
    leadership.keep_leases_if(!engine.binds_under_way().are_settled(), binds_known);
    // Leadership is released only now that no request of this process is in flight.
    let _ = stop_work.send(false);
    let _ = tokio::join!(report, tell_allocations, leadership.released());
    relax_failure_policy(&client, &config, &leadership).await;
    estimates::save(config.estimator_file.as_deref(), &engine);
    engine.end_recording();
    if let Some(recording) = recording {
        recording.finish();
    }
    let _ = stop_telling.send(false);
    tasks.finish(CONNECTIONS_MAX).await;
    if let Err(names) = agents_ended {
        bail!("these threads panicked: {}", names.join(", "));
    }
    tracing::info!("berth stopped");
    result
}

/// Returns the listener of HTTPS, if configured.
async fn secure_listener(config: &Config) -> Result<Option<(TcpListener, Secure)>> {
    let Some(address) = config.serving.address else { return Ok(None) };
    let secure = Secure::new(&config.serving)?;
    Ok(Some((listen(address, "serving.address").await?, secure)))
}

/// Uses the certificate that the replicas share, if configured.
fn follow_certificates(tasks: &mut Tasks, client: &Client, config: &Config, secure: &Secure) {
    if config.serving.secret.is_empty() {
        return;
    }
    let namespace = config.leader_election.lease_namespace(Path::new(NAMESPACE_FILE));
    let rotation = Rotation::new(client.clone(), &namespace, &config.serving);
    let secure = secure.clone();
    tasks.spawn("certificates", rotation.follow(FOLLOW_EVERY, move |issued| secure.install(issued)));
}

/// Keeps the secret path of the webhooks, if configured.
fn follow_webhook_paths(tasks: &mut Tasks, client: &Client, config: &Config) -> WebhookAccess {
    let serving = &config.serving;
    if serving.webhook_secret.is_empty() {
        let is_open = config.guard.enabled && !config.guard.require_client_certificate;
        if is_open || config.recommender.apply.webhook {
            tracing::warn!(
                "everybody who reaches serving.address may call the webhooks: set serving.webhookSecret"
            );
        }
        return WebhookAccess::default();
    }
    let webhooks = WebhookAccess::closed();
    let namespace = config.leader_election.lease_namespace(Path::new(NAMESPACE_FILE));
    let paths = WebhookPaths::new(client.clone(), &namespace, serving, guard::PATH, mutate::PATH);
    let told = webhooks.clone();
    let follow = paths.follow(webhook_path::FOLLOW_EVERY, move |tokens| told.accept(tokens.accepted()));
    tasks.spawn("path of the webhooks", follow);
    webhooks
}

/// Has the API server refuse what this process does not review, while it reviews, if configured.
fn follow_failure_policy(tasks: &mut Tasks, client: &Client, config: &Config, leadership: &Leadership) {
    let Some(configuration) = own_failure_policy(client, config) else {
        return;
    };
    let leadership = leadership.clone();
    tasks.spawn("failure policy", async move {
        let mut warnings = RetryWarnings::default();
        loop {
            if leadership.reviews().is_none() {
                tokio::time::sleep(LOOK_FOR_TERM).await;
                continue;
            }
            if let Err(error) = configuration.set_failure_policy(FailurePolicy::Fail.name()).await {
                warnings.warn("the failurePolicy of the guard cannot be set", &error);
            }
            tokio::time::sleep(webhook_path::FOLLOW_EVERY).await;
        }
    });
}

/// Has the API server allow what nobody reviews any more, unless another replica takes over.
async fn relax_failure_policy(client: &Client, config: &Config, leadership: &Leadership) {
    let Some(configuration) = own_failure_policy(client, config) else {
        return;
    };
    if leadership.successor(SUCCESSOR_MAX).await {
        return;
    }
    let set = configuration.set_failure_policy(FailurePolicy::Ignore.name());
    match tokio::time::timeout(FLUSH_MAX, set).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(
            error = format!("{error:#}"),
            "no replica is left and the failurePolicy of the guard is still Fail"
        ),
        Err(_) => {
            tracing::warn!("no replica is left and the failurePolicy of the guard is still Fail: no answer")
        }
    }
}

/// Returns the webhook configuration whose failurePolicy this process sets.
fn own_failure_policy(client: &Client, config: &Config) -> Option<WebhookConfiguration> {
    let is_ours = config.guard.enabled && config.guard.failure_policy == FailurePolicy::Fail;
    WebhookConfiguration::validating(client, &config.serving).filter(|_| is_ours)
}

fn serve_https(
    tasks: &mut Tasks,
    (listener, routes): (TcpListener, axum::Router),
    secure: Secure,
    telling: watch::Receiver<bool>,
    own_thread: bool,
) -> Result<()> {
    let files = secure.clone();
    tasks.spawn("files of certificates", async move { files.watch_files().await });
    if !own_thread {
        tasks.spawn_ending(
            "https server",
            async move { secure.serve(listener, routes, ended(telling)).await },
        );
        return Ok(());
    }
    let listener = listener.into_std()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Dropped at the end, also by a panic.
    let (serves, ends) = tokio::sync::oneshot::channel::<()>();
    std::thread::Builder::new().name("https".to_owned()).spawn(move || {
        let _serves = serves;
        runtime.block_on(async {
            match TcpListener::from_std(listener) {
                Ok(listener) => secure.serve(listener, routes, ended(telling)).await,
                Err(error) => tracing::error!(%error, "the HTTPS server failed"),
            }
        });
    })?;
    tasks.spawn_ending("https server", async move {
        let _ = ends.await;
    });
    Ok(())
}

async fn agent_ends(threads: &AgentThreads) {
    while !threads.any_ended() {
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

fn run_timers(tasks: &mut Tasks, engine: &Engine, config: &Config, health: &Health) {
    let (to, rounds) = (engine.clone(), Arc::new(AtomicU64::new(0)));
    health.watch_loop("clock", TICK, rounds.clone());
    tasks.spawn("clock", async move {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            to.tick();
            rounds.fetch_add(1, Ordering::Relaxed);
        }
    });
    tasks.spawn("limits", limits::watch(engine.clone()));
    let (to, file) = (engine.clone(), config.estimator_file.clone());
    tasks.spawn("estimates", async move {
        loop {
            tokio::time::sleep(SAVE_ESTIMATES).await;
            estimates::save(file.as_deref(), &to);
        }
    });
}

/// Executes binds, at most `in_flight` at a time. `leads` is called before each request: whether this process
/// still leads in the term of the decision.
async fn carry_out_binds(
    engine: Engine,
    store: KubeStore,
    in_flight: usize,
    mut queue: Inbox<(Binding, u64)>,
    leads: impl Fn(u64) -> bool + Clone + Send + Sync + 'static,
    counters: Arc<BindCounters>,
) {
    let slots = Arc::new(tokio::sync::Semaphore::new(in_flight));
    while let Some((binding, term)) = queue.recv().await {
        let Ok(slot) = slots.clone().acquire_owned().await else {
            return;
        };
        let (engine, store, leads, counters) =
            (engine.clone(), store.clone(), leads.clone(), counters.clone());
        tokio::spawn(async move {
            let outcome = drive(&store, &binding, || engine.now(), || leads(term), &counters).await;
            tracing::debug!(pod = %binding.name, node = %binding.node, ?outcome, "bind");
            engine.bind_finished(&binding, outcome);
            drop(slot);
        });
    }
}

/// Writes and releases claims, for at most [`CLAIMS_IN_FLIGHT`] pods at a time. `leads` is called before each request.
async fn carry_out_claims(
    engine: Engine,
    claims: KubeClaims,
    mut queue: Inbox<ClaimWork>,
    leads: impl Fn() -> bool + Clone + Send + Sync + 'static,
) {
    let slots = Arc::new(tokio::sync::Semaphore::new(CLAIMS_IN_FLIGHT));
    while let Some(work) = queue.recv().await {
        let Ok(slot) = slots.clone().acquire_owned().await else {
            return;
        };
        let (engine, claims, leads) = (engine.clone(), claims.clone(), leads.clone());
        tokio::spawn(async move {
            match work {
                ClaimWork::Write(order) => {
                    let written = claims.write(&order, leads).await;
                    tracing::debug!(pod = %order.uid, node = %order.node, ?written, "claims");
                    engine.claims_written(&order, written);
                }
                ClaimWork::Release(release) => {
                    let released = claims.release(&release, leads).await;
                    tracing::debug!(claim = ?release.claim, ?released, "devices that were left behind");
                }
            }
            drop(slot);
        });
    }
}

/// Waits until `done`, at most for this time. Returns whether it was.
async fn await_most(most: Duration, done: impl Fn() -> bool) -> bool {
    let look = async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(most, look).await.is_ok()
}

/// Waits, with timeouts, until no bind is in flight, neither our own nor one that we allowed, and until the watch has shown the
/// last ones. Returns whether it has.
async fn settle(engine: &Engine, leadership: &Leadership, begun: &BegunDecisions) -> bool {
    let began = Instant::now();
    // Our own binds are reviewed, too: reviews go on until these have ended. Then they wait for the next leader.
    await_most(SETTLE_MAX, || begun.binds.is_none() && engine.binds_under_way().requested == 0).await;
    leadership.stop_reviewing();
    let left = SETTLE_MAX.saturating_sub(began.elapsed());
    // What has begun may still allow a bind.
    if await_most(left, || begun.reviews.is_none() && engine.binds_under_way().are_settled()).await {
        return await_most(SEEN_MAX, || engine.binds_under_way().unseen == 0).await;
    }
    let binds = engine.binds_under_way();
    tracing::warn!(
        requested = binds.requested,
        held = binds.held,
        "stopping with binds whose result is unknown; the next start reads their results"
    );
    false
}
