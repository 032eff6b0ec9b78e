//! A day of faults in simulated time: the recommender, the updater and the scaler of berth, unchanged but for their clock, on a real API
//! server, with real Deployments, and kwok as the kubelets. Each hour the leader is killed at any point of its work, and another machine
//! takes over, whose clock is wrong by minutes. Prometheus is down, late, or lies; kubelets refuse resizes.

mod clock;
mod judge;
mod metrics;
mod services;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use berth::cli::run_until;
use berth_config::{Config, LoadedConfig};
use berth_controllers::clock::Clock;
use berth_scheduler::agent::Rng;
use berth_test_support::prometheus::Fake;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::DeleteParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use self::clock::DayClock;
use self::judge::{Judge, REPLICAS_MAX, REPLICAS_MIN, Shape, Step};
use self::metrics::{FAULTS, Known};
use self::services::{Container, Limits, SCRAPE_S, SERVICES, Service, latency};
use super::*;

/// Loops of the controllers: the recommender, the updater and the scaler.
const LOOPS: usize = 3;
/// Time between two moments in which a loop may have something to do.
const MOMENT: Duration = Duration::from_secs(5);
const STEP: Duration = Duration::from_secs(SCRAPE_S.unsigned_abs());
/// Seconds by which the clock of a leader is wrong.
const SKEWS_S: [i64; 6] = [0, 45, -45, 300, -300, 1_200];
/// Maximum real time for which the cluster is given to do what berth asked for.
const SETTLE: Duration = Duration::from_secs(3);
const HOUR_STEPS: i64 = 3_600 / SCRAPE_S;

/// A process of berth, on a thread that can be killed.
struct Leader {
    kill: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Leader {
    fn start(cluster: kube::Config, config: Config, clock: Clock) -> Leader {
        let (kill, killed) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                tokio::select! {
                    ended = run_until(cluster, config, clock, std::future::pending()) => panic!("{ended:?}"),
                    _ = killed => {}
                }
            });
        });
        Leader { kill, thread }
    }

    /// Ends it as SIGKILL does: at its next await, without a word.
    async fn kill(self) {
        let _ = self.kill.send(());
        let ended = tokio::task::spawn_blocking(|| self.thread.join()).await.expect("it is joined");
        ended.expect("it ran until it was killed");
    }
}

/// The cluster, and what is wrong with it.
struct Day {
    cluster: Cluster,
    config: Config,
    client_config: kube::Config,
    known: Arc<Mutex<Known>>,
    _prometheus: Fake,
    clock: DayClock,
    start: i64,
    seed: u64,
    dice: Rng,
    judge: Judge,
    leader: Option<Leader>,
    /// Steps until the next leader starts.
    leaderless: i64,
    skew_s: i64,
    resizes_refused: bool,
    /// As of the last step.
    pods: Vec<Pod>,
    deployments: Vec<Deployment>,
    done: BTreeMap<&'static str, u32>,
}

impl Day {
    async fn begin(seed: u64) -> Day {
        let cluster = prepare().await;
        let client = cluster.client.clone();
        recommender::create_crds(&client).await;
        create_nodes(&client, &Nodes { count: 6, cpu: "16", memory: "64Gi", ..Nodes::default() }).await;
        let known: Arc<Mutex<Known>> = Arc::default();
        let start = Timestamp::now().as_second();
        let clock = DayClock::start(Timestamp::from_second(start).expect("a time"));
        let prometheus = metrics::serve(known.clone(), clock.clone()).await;
        let text = format!(
            "healthAddress: 127.0.0.1:0\nleaderElection: {{namespace: default}}\nscaling: {{enabled: true, interval: 30s, hints: false}}\n\
             recommender: {{enabled: true, storage: prometheus, prometheus: {{url: '{}'}}, apply: {{updater: true}}}}",
            prometheus.url
        );
        let loaded = LoadedConfig::parse(vec![("berth.yaml".into(), text)]).expect("a configuration");
        let deployments: Api<Deployment> = Api::default_namespaced(client.clone());
        for service in &SERVICES {
            let deployment = serde_json::from_value(service.deployment()).expect("a Deployment");
            deployments.create(&PostParams::default(), &deployment).await.expect("it is created");
        }
        let client_config = config_of(&cluster.control_plane.kubeconfig()).await;
        Day {
            cluster,
            config: loaded.config,
            client_config,
            known,
            _prometheus: prometheus,
            clock,
            start,
            seed,
            dice: Rng(seed),
            judge: Judge::default(),
            leader: None,
            leaderless: 0,
            skew_s: 0,
            resizes_refused: false,
            pods: Vec::new(),
            deployments: Vec::new(),
            done: BTreeMap::new(),
        }
    }

    fn count(&mut self, what: &'static str) {
        *self.done.entry(what).or_default() += 1;
    }

    fn below(&mut self, limit: i64) -> i64 {
        (self.dice.next() % limit.unsigned_abs()).cast_signed()
    }

    async fn start_leader(&mut self) {
        let leases: Api<Lease> = Api::default_namespaced(self.cluster.client.clone());
        // It has long expired in the time of the day.
        let _ = leases.delete("berth", &DeleteParams::default()).await;
        let clock = self.clock.skewed(self.skew_s);
        self.leader = Some(Leader::start(self.client_config.clone(), self.config.clone(), clock));
        self.clock.await_sleepers(LOOPS).await;
    }

    /// The services run for a day, then berth is told of them.
    async fn first_contact(&mut self) {
        let pods: usize = SERVICES.iter().map(|service| service.replicas as usize).sum();
        await_until(SOON, "all pods run", async || {
            let running = all_pods(&self.cluster.client).await;
            running.len() == pods && running.iter().all(is_ready)
        })
        .await;
        self.pods = all_pods(&self.cluster.client).await;
        let with_past = |pod: &Pod| {
            let service = Service::of(pod).expect("one of the services");
            (name_of(pod).to_owned(), Container::with_past(service, self.start, self.seed))
        };
        let containers = self.pods.iter().map(with_past).collect();
        self.judge = Judge::after(&containers, self.start);
        self.known.lock().containers = containers;
        for service in &SERVICES {
            let Some(signal) = service.signal else {
                let vpa = json!({
                    "apiVersion": "autoscaling.k8s.io/v1", "kind": "VerticalPodAutoscaler",
                    "metadata": {"name": service.name},
                    "spec": {
                        "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": service.name},
                        "updatePolicy": {"updateMode": "InPlaceOrRecreate"},
                        "recommenders": [{"name": "berth"}],
                    },
                });
                recommender::create(&recommender::vpas(&self.cluster.client), vpa).await;
                continue;
            };
            let target = if signal == "RequestLatency" { "100" } else { "0.1" };
            let spec = json!({
                "objectives": {"signal": {"type": signal, "target": target}},
                "bounds": {"minReplicas": REPLICAS_MIN, "maxReplicas": REPLICAS_MAX},
                "behavior": {},
            });
            create_scaler(&self.cluster.client, service.name, spec).await;
        }
    }

    /// A quarter of a minute: services use what they need, then the controllers have their turn.
    async fn step(&mut self, step: i64) {
        let since_start_s = step * SCRAPE_S;
        self.run_services(since_start_s).await;
        for _ in 0..STEP.as_secs() / MOMENT.as_secs() {
            self.clock.advance(MOMENT);
            if self.leader.is_some() {
                self.clock.await_sleepers(LOOPS).await;
            }
        }
        self.settle().await;
    }

    async fn run_services(&mut self, since_start_s: i64) {
        let (at, client) = (self.start + since_start_s, self.cluster.client.clone());
        let mut killed = Vec::new();
        for service in &SERVICES {
            let is_running = |pod: &&Pod| service_of(pod) == service.name && is_ready(pod) && !leaves(pod);
            let pods: Vec<&Pod> = self.pods.iter().filter(is_running).collect();
            let needed = service.demand(since_start_s, self.seed);
            let (mut allowed, mut highest) = (0.0, 0.0_f64);
            let mut known = self.known.lock();
            for pod in &pods {
                let Some(limits) = Limits::of(pod, pods.len()) else { continue };
                let container = known
                    .containers
                    .entry(name_of(pod).to_owned())
                    .or_insert_with(|| Container::started_at(service.name, at));
                let (memory, is_killed) =
                    container.run(service, at, since_start_s, SCRAPE_S, limits, self.seed);
                allowed += limits.cores;
                highest = highest.max(memory.min(limits.memory));
                if is_killed {
                    killed.push(name_of(pod).to_owned());
                    let before = Limits::of_template(service).memory;
                    if memory <= before {
                        let hours = since_start_s as f64 / 3_600.0;
                        let text =
                            format!("{} at {hours:.2} h: {memory:.0} of {:.0}", name_of(pod), limits.memory);
                        self.judge.harmful.push(text);
                    }
                }
            }
            let millis = latency(needed / f64::max(allowed, 0.001));
            known.latencies.entry(service.name).or_default().push((at, millis));
            let fault = known.fault;
            drop(known);
            let replicas = self
                .deployments
                .iter()
                .find(|deployment| deployment.metadata.name.as_deref() == Some(service.name))
                .and_then(|deployment| deployment.spec.as_ref()?.replicas);
            let shape = replicas.filter(|_| !pods.is_empty()).map(|replicas| Shape {
                replicas: replicas.unsigned_abs(),
                cpu_milli: median(&pods, cpu_of),
                memory: median(&pods, memory_of),
            });
            let step = Step {
                at,
                since_start_s,
                fault,
                skew_s: self.skew_s,
                needed,
                allowed,
                memory: highest,
                shape,
            };
            self.judge.see(service, &step);
        }
        let pods: Api<Pod> = Api::default_namespaced(client);
        for name in killed {
            self.judge.kills += 1;
            let finished = Timestamp::from_second(at).expect("a time").to_string();
            let end = json!({"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": finished}});
            let status = json!({"status": {"containerStatuses": [{"name": "app", "lastState": end}]}});
            match pods.patch_status(&name, &PatchParams::default(), &Patch::Strategic(&status)).await {
                Ok(_) => {}
                // It was removed meanwhile.
                Err(kube::Error::Api(error)) if error.code == 404 => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Gives the other controllers and the kubelets time to do what berth asked for.
    async fn settle(&mut self) {
        let began = Instant::now();
        let client = self.cluster.client.clone();
        let api: Api<Deployment> = Api::default_namespaced(client.clone());
        loop {
            self.pods = all_pods(&client).await;
            self.deployments = api.list(&ListParams::default()).await.expect("Deployments").items;
            let is_scaled = |deployment: &Deployment| {
                let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(0);
                let name = deployment.metadata.name.as_deref().unwrap_or_default();
                let of = self.pods.iter().filter(|pod| service_of(pod) == name);
                let (ready, all) =
                    of.fold((0, 0), |(ready, all), pod| (ready + i32::from(is_ready(pod)), all + 1));
                (ready, all) == (wanted, wanted)
            };
            let is_done = self.deployments.iter().all(is_scaled)
                && (self.resizes_refused || self.pods.iter().all(is_resized));
            if is_done || self.leader.is_none() || began.elapsed() > SETTLE {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// What most of the pods request: new ones have the size of their template for a moment.
fn median(pods: &[&Pod], of: fn(&Pod) -> i64) -> i64 {
    let mut amounts: Vec<i64> = pods.iter().map(|pod| of(pod)).collect();
    amounts.sort_unstable();
    amounts[amounts.len() / 2]
}

async fn config_of(kubeconfig: &Path) -> kube::Config {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.expect("a cluster")
}

/// What goes wrong in the steps of one hour.
struct Hour {
    kill_at: i64,
    /// Real time from the beginning of a round to the kill.
    kill_after: Duration,
    faults: [std::ops::Range<i64>; 2],
    refusal: std::ops::Range<i64>,
}

impl Day {
    fn roll(&mut self) -> Hour {
        let half = HOUR_STEPS / 2;
        let faults = [0, half].map(|from| {
            let fault = from + self.below(half - 70);
            fault..fault + 8 + self.below(60)
        });
        let refusal = self.below(HOUR_STEPS - 60);
        Hour {
            kill_at: self.below(HOUR_STEPS - 20),
            kill_after: Duration::from_millis(self.below(60).unsigned_abs()),
            faults,
            refusal: refusal..refusal + 20 + self.below(40),
        }
    }

    async fn hour(&mut self, hour: i64) {
        let plan = self.roll();
        for step in 0..HOUR_STEPS {
            for (at, fault) in plan.faults.iter().enumerate() {
                if step == fault.start {
                    let number = hour.unsigned_abs() as usize * plan.faults.len() + at;
                    self.known.lock().fault = Some(FAULTS[number % FAULTS.len()]);
                    self.count("faults of Prometheus");
                } else if step == fault.end {
                    self.known.lock().fault = None;
                }
            }
            if step == plan.refusal.start || step == plan.refusal.end {
                self.resizes_refused = step == plan.refusal.start;
                let reason = match (self.resizes_refused, hour % 2) {
                    (false, _) => "",
                    (true, 0) => "Deferred",
                    (true, _) => "Infeasible",
                };
                faults::say_of_resizes(&self.cluster.kubectl, reason).await;
                if self.resizes_refused {
                    self.count("times in which kubelets refuse resizes");
                }
            }
            if step == plan.kill_at
                && let Some(leader) = self.leader.take()
            {
                self.run_services((hour * HOUR_STEPS + step) * SCRAPE_S).await;
                self.clock.advance(STEP);
                // In the middle of what it does.
                tokio::time::sleep(plan.kill_after).await;
                leader.kill().await;
                self.settle().await;
                self.leaderless = self.below(12);
                self.skew_s = SKEWS_S[self.below(SKEWS_S.len() as i64) as usize];
                self.count("kills of the leader");
                continue;
            }
            if self.leader.is_none() {
                if self.leaderless == 0 {
                    self.start_leader().await;
                }
                self.leaderless -= 1;
            }
            self.step(hour * HOUR_STEPS + step).await;
        }
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// `.ci/long day`: 24 hours.
#[tokio::test(flavor = "multi_thread")]
async fn a_day_of_faults_takes_nothing_away_that_was_used() {
    let (seed, hours) = (number("BERTH_SEED", 20_261_127), number("BERTH_DAY_HOURS", 4));
    println!("seed {seed} (BERTH_SEED), {hours} hours (BERTH_DAY_HOURS)");
    let began = Instant::now();
    let mut day = Day::begin(seed).await;
    day.start_leader().await;
    day.first_contact().await;
    for hour in 0..hours.cast_signed() {
        day.hour(hour).await;
        println!("{} hours in {:.0?}", hour + 1, began.elapsed());
    }
    if let Some(leader) = day.leader.take() {
        leader.kill().await;
    }
    day.judge.print();
    let (ours, hpa) = day.judge.reversals();
    println!(
        "{:?}; {} kills for memory; replicas turned {ours} times, an HPA's {hpa}",
        day.done, day.judge.kills
    );
    assert!(day.known.lock().odd.is_empty(), "{:?}", day.known.lock().odd);
    assert!(day.judge.harmful.is_empty(), "{:#?}", day.judge.harmful);
    assert!(day.judge.too_small.is_empty(), "{:#?}", day.judge.too_small);
    day.judge.assert_sized();
    assert!(hpa > 0, "the load does not change");
    assert!(ours <= hpa, "replicas turned {ours} times, an HPA's {hpa}");
}
