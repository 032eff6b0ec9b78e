//! The upstream recommender 1.8.1 next to `berth run`, on one API server and one Prometheus: both must recommend the
//! same for 200 containers, and continue from each other's checkpoints.

mod compare;
mod peer;
mod shapes;
mod workloads;

use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use jiff::{Timestamp, ToSpan};
use kube::Client;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::recommender::{create_crds, metrics, rounds, vpas};
use crate::support::{Berth, TestControlPlane, await_until, start_control_plane};
use crate::usage;
use compare::{
    Checkpoints, Likeness, Recommendations, compare, difference, is_whole, read_checkpoints, recommendations,
};
use peer::Upstream;
use shapes::Shape;
use workloads::{Of, Workload, create_all, workloads};

const SEED: u64 = 20_779;
const LIMIT: Duration = Duration::from_secs(120);
/// Polling interval of metrics and lists.
const PAUSE: Duration = Duration::from_millis(100);
const MAX_ALLOWED_MEMORY: &str = "300Gi";
const PATCHES_IN_FLIGHT: usize = 16;

/// `BERTH_UPSTREAM_SEED=n` generates other usage.
fn seed() -> u64 {
    let seed = std::env::var("BERTH_UPSTREAM_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or(SEED);
    println!("BERTH_UPSTREAM_SEED={seed}");
    seed
}

async fn start() -> (TestControlPlane, Client, Vec<Workload>) {
    let control_plane = start_control_plane().await;
    let client = control_plane.client();
    create_crds(&client).await;
    let workloads = workloads();
    create_all(&client, &workloads).await;
    (control_plane, client, workloads)
}

/// Returns berth's configuration, with `more` in the recommender's part. Capping to node sizes is off, as upstream
/// does not do it.
fn config(more: &str) -> String {
    format!(
        "recommender: {{enabled: true, interval: 1s, checkpointsInterval: 5s, capToNodes: false, \
         maxAllowedMemory: {MAX_ALLOWED_MEMORY}, {more}}}"
    )
}

/// Same as [`await_until`], but polls less often: polling costs the polled processes CPU.
async fn await_seldom(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    await_until(LIMIT, what, async || {
        let held = holds().await;
        if !held {
            tokio::time::sleep(PAUSE).await;
        }
        held
    })
    .await;
}

async fn await_whole(client: &Client, workloads: &[Workload], of: Of) -> Recommendations {
    let mut found = Recommendations::new();
    await_seldom(&format!("all containers have recommendations ({of:?})"), async || {
        found = recommendations(client, of).await;
        is_whole(&found, workloads)
    })
    .await;
    found
}

fn print(what: &str, likeness: &Likeness, began: Instant) {
    let Likeness { containers, equal, unequal, beyond } = likeness;
    println!(
        "{what}: {containers} containers, {equal} equal, {} beyond a bucket, {:?}",
        beyond.len(),
        began.elapsed()
    );
    unequal.iter().for_each(|text| println!("  {text}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn upstream_and_berth_recommend_the_same_from_the_history_of_a_real_prometheus() {
    needs!("prometheus", "promtool");
    let (seed, began) = (seed(), Instant::now());
    let (control_plane, client, workloads) = start().await;
    // Both query the newest sample before each full hour before now, which is the same one for up to ten minutes.
    let scraped = Timestamp::now().as_second() - 5;
    let openmetrics = shapes::openmetrics(seed, &workloads, scraped);
    let prometheus = usage::start(&openmetrics, &["--query.lookback-delta=10m"]).await;
    println!("Prometheus has {} MB after {:?}", openmetrics.len() >> 20, began.elapsed());

    let more = format!("storage: prometheus, prometheus: {{url: '{}', jobName: kubelet}}", prometheus.url);
    let berth = Berth::start(&control_plane.kubeconfig(), &config(&more));
    let flags = [
        "--storage=prometheus",
        &format!("--prometheus-address={}", prometheus.url),
        "--prometheus-cadvisor-job-name=kubelet",
        "--container-pod-name-label=pod",
        "--container-name-label=container",
        "--pod-namespace-label=namespace",
        "--pod-name-label=pod",
        "--pod-label-prefix=label_",
        "--metric-for-pod-labels=kube_pod_labels[8d]",
    ];
    let upstream = Upstream::start(&control_plane.kubeconfig(), &flags.map(str::to_owned)).await;
    let theirs = await_whole(&client, &workloads, Of::Upstream).await;
    let ours = await_whole(&client, &workloads, Of::Berth).await;
    let likeness = compare(&ours, &theirs);
    print("history", &likeness, began);
    assert!(likeness.containers >= 200 && likeness.beyond.is_empty(), "{}", upstream.log_tail());
    // They did not query in the same second, so their samples have other times, and all weights differ.
    assert!(likeness.equal * 100 >= likeness.containers * 99, "{}", upstream.log_tail());
    drop(berth);
}

const ROUNDS: i64 = 14;
/// Interval between two samples of a container.
const PAUSE_H: i64 = 13;
/// The last samples are old enough that no memory window is open any more, however they are shifted.
const LAST_H: i64 = 28;
/// After these rounds some containers are OOM killed.
const KILLS_AFTER: [i64; 2] = [5, 10];

/// Returns whether the workload's first container is OOM killed.
fn is_killed(workload: &Workload) -> bool {
    workload.number % 7 == 2
}

/// Returns whether the workload has another sample at the end, so that some windows are open.
fn is_open(workload: &Workload) -> bool {
    workload.number.is_multiple_of(10)
}

/// Publishes samples like a metrics server; both recommenders read them from there.
struct Metrics {
    client: Client,
    seed: u64,
    start: Timestamp,
    /// Number of published samples of CPU and memory.
    told: usize,
}

impl Metrics {
    fn time(&self, workload: &Workload, round: i64) -> Timestamp {
        self.start + (round * PAUSE_H).hours() + (37 * workload.number as i64).seconds()
    }

    /// Publishes the usage of these workloads' pods at a time.
    async fn tell<'a>(
        &mut self,
        round: i64,
        of: impl Iterator<Item = &'a Workload>,
        time: impl Fn(&Self, &Workload) -> Timestamp,
    ) {
        let mut patches = Vec::new();
        for workload in of {
            for (index, pod) in workload.pods.iter().enumerate() {
                let step = round * PAUSE_H * shapes::STEPS_PER_HOUR;
                let used = |(position, name): (usize, &&str)| {
                    let usage = Shape::new(self.seed, workload, index, position).at(step)?;
                    let (cpu, memory) = (format!("{:.0}n", usage.cores * 1e9), format!("{:.0}", usage.bytes));
                    Some(json!({"name": name, "usage": {"cpu": cpu, "memory": memory}}))
                };
                let containers: Vec<Value> =
                    workload.containers.iter().enumerate().filter_map(used).collect();
                self.told += 2 * containers.len();
                let time = time(self, workload).strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
                let object = json!({
                    "apiVersion": "metrics.k8s.io/v1beta1", "kind": "PodMetrics", "metadata": {"name": pod},
                    "timestamp": time, "window": "15s", "containers": containers,
                });
                patches.push((pod, object));
            }
        }
        let api = metrics(&self.client);
        let api = &api;
        let tell = |(pod, object): (&'a String, Value)| async move {
            let told = match round {
                0 => api.create(&Default::default(), &serde_json::from_value(object).expect("metrics")).await,
                _ => api.patch(pod, &PatchParams::default(), &Patch::Merge(&object)).await,
            };
            told.expect("metrics are published");
        };
        stream::iter(patches.into_iter().map(tell)).buffer_unordered(PATCHES_IN_FLIGHT).count().await;
    }

    /// Waits until both have read all samples.
    async fn await_taken(&self, berth: &Berth, upstream: &mut Upstream) {
        const TAKEN: &str = r#"berth_recommender_samples_total{result="done"}"#;
        let told = self.told as f64;
        let berth_has_them =
            await_seldom("berth has taken all samples", async || berth.metric(TAKEN).await >= told);
        tokio::join!(berth_has_them, upstream.await_round());
        assert_eq!(berth.metric(TAKEN).await, told);
    }
}

/// The first container of some workloads is OOM killed, and restarts.
async fn kill(
    client: &Client,
    workloads: &[Workload],
    metrics: &Metrics,
    round: i64,
    restarts: u32,
) -> usize {
    let killed: Vec<&Workload> = workloads.iter().filter(|it| is_killed(it)).collect();
    for workload in &killed {
        let time = (metrics.time(workload, round) + 60.seconds()).strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let end = json!({"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": time}});
        workload.patch_pod(client, &workload.pods[0], restarts, end).await;
    }
    killed.len()
}

async fn forget_recommendations(client: &Client, workloads: &[Workload]) {
    let nothing = json!({"status": {"recommendation": null, "conditions": null}});
    for workload in workloads {
        for of in [Of::Upstream, Of::Berth] {
            let (name, params) = (of.vpa(&workload.name), PatchParams::default());
            let patched = vpas(client).patch_status(&name, &params, &Patch::Merge(&nothing)).await;
            patched.expect("the status is emptied");
        }
    }
}

/// Returns the recommendations without workloads that had open windows, which upstream does not save.
fn closed(all: &Recommendations, workloads: &[Workload]) -> Recommendations {
    let is_closed = |name: &str| workloads.iter().any(|it| it.name == name && !is_open(it));
    all.iter().filter(|((name, _), _)| is_closed(name)).map(|(key, it)| (key.clone(), *it)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_samples_make_the_same_checkpoints_and_each_goes_on_from_those_of_the_other() {
    let (seed, began) = (seed(), Instant::now());
    let (control_plane, client, workloads) = start().await;
    let mut berth = Berth::start(&control_plane.kubeconfig(), &config("name: berth"));
    let mut upstream = Upstream::start(&control_plane.kubeconfig(), &[]).await;
    rounds(&berth, 1).await;
    upstream.await_round().await;
    println!("both run after {:?}", began.elapsed());

    let start = Timestamp::now().as_second() - ((ROUNDS - 1) * PAUSE_H + LAST_H) * 3_600;
    let start = Timestamp::from_second(start).expect("a time");
    let mut metrics = Metrics { client: client.clone(), seed, start, told: 0 };
    let mut kills = 0;
    for round in 0..ROUNDS {
        metrics.tell(round, workloads.iter(), |metrics, workload| metrics.time(workload, round)).await;
        metrics.await_taken(&berth, &mut upstream).await;
        if let Some(earlier) = KILLS_AFTER.iter().position(|after| *after == round) {
            kills += kill(&client, &workloads, &metrics, round, earlier as u32 + 1).await;
            const TAKEN: &str = r#"berth_recommender_oom_kills_total{result="done"}"#;
            await_seldom("both have heard of the kills", async || {
                berth.metric(TAKEN).await == kills as f64 && upstream.said("OOM detected") == kills
            })
            .await;
        }
    }
    let now = Timestamp::now() - 60.seconds();
    metrics.tell(ROUNDS - 1, workloads.iter().filter(|it| is_open(it)), |_, _| now).await;
    metrics.await_taken(&berth, &mut upstream).await;
    rounds(&berth, 2).await;
    println!("all samples are taken after {:?}", began.elapsed());

    let theirs = await_whole(&client, &workloads, Of::Upstream).await;
    let ours = await_whole(&client, &workloads, Of::Berth).await;
    let likeness = compare(&ours, &theirs);
    print("samples", &likeness, began);
    assert!(likeness.containers >= 200, "{}", upstream.log_tail());
    assert_eq!(likeness.equal, likeness.containers, "{}", upstream.log_tail());

    // They have a resolution of a second.
    let since = (Timestamp::now() + 1.second()).as_nanosecond();
    let mut their_checkpoints = Checkpoints::new();
    await_seldom("upstream has saved everything", async || {
        their_checkpoints = read_checkpoints(&client, Of::Upstream).await;
        their_checkpoints.values().all(|it| i128::from(it.last_update_time) >= since)
    })
    .await;
    drop(upstream);
    // The samples of CPU came last.
    let mut our_checkpoints = Checkpoints::new();
    let counts = |all: &Checkpoints| all.values().map(|it| it.total_samples_count).collect::<Vec<_>>();
    await_seldom("berth has saved everything", async || {
        our_checkpoints = read_checkpoints(&client, Of::Berth).await;
        counts(&our_checkpoints) == counts(&their_checkpoints)
    })
    .await;
    assert!(berth.terminate().await.success());
    assert_eq!(our_checkpoints.keys().collect::<Vec<_>>(), their_checkpoints.keys().collect::<Vec<_>>());
    let pairs = our_checkpoints.iter().map(|(key, ours)| (key, difference(ours, &their_checkpoints[key])));
    let different: Vec<_> = pairs.filter(|(_, difference)| !difference.is_empty()).collect();
    println!("{} checkpoints, {} differ, {:?}", our_checkpoints.len(), different.len(), began.elapsed());
    assert!(different.is_empty(), "{different:#?}");

    // Each continues from the other's checkpoints.
    let all = (Default::default(), Default::default());
    crate::recommender::metrics(&client)
        .delete_collection(&all.0, &all.1)
        .await
        .expect("metrics are deleted");
    forget_recommendations(&client, &workloads).await;
    let berth = Berth::start(&control_plane.kubeconfig(), &config("name: default"));
    let flags = ["--recommender-name=berth".to_owned()];
    let upstream = Upstream::start(&control_plane.kubeconfig(), &flags).await;
    let ours_of_theirs = await_whole(&client, &workloads, Of::Upstream).await;
    let theirs_of_ours = await_whole(&client, &workloads, Of::Berth).await;
    let likeness = compare(&ours_of_theirs, &theirs_of_ours);
    print("from each other's checkpoints", &likeness, began);
    assert_eq!(likeness.equal, likeness.containers, "{}", upstream.log_tail());
    for (what, now, before) in [
        ("berth from upstream's checkpoints", &ours_of_theirs, &theirs),
        ("upstream from berth's checkpoints", &theirs_of_ours, &ours),
    ] {
        let likeness = compare(&closed(now, &workloads), &closed(before, &workloads));
        print(what, &likeness, began);
        // A checkpoint rounds weights, so a percentile right at the end of a bucket may be found in the next
        // non-empty one.
        assert!(likeness.equal * 100 >= likeness.containers * 97);
    }
    drop(berth);
}
