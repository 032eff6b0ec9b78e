//! Faults of the recommender: killed at any time, while the API server rejects or loses its writes.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::http::{Method, StatusCode};
use berth_scheduler::agent::Rng;
use futures::StreamExt;
use kube::runtime::watcher;
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use super::*;
use crate::support::{Fate, Flaky};

/// By checkpoint: its number of samples in each observed state.
type Totals = Arc<Mutex<BTreeMap<String, Vec<i64>>>>;

/// Observes every state of every checkpoint.
struct Watch {
    totals: Totals,
    task: JoinHandle<()>,
}

impl Watch {
    fn start(client: &Client) -> Self {
        let totals = Totals::default();
        let (seen, api) = (totals.clone(), checkpoints(client));
        let task = tokio::spawn(async move {
            let mut events = watcher(api, watcher::Config::default()).boxed();
            while let Some(event) = events.next().await {
                match event.expect("the watch goes on") {
                    watcher::Event::Apply(it) | watcher::Event::InitApply(it) => {
                        let total = it.data["status"]["totalSamplesCount"].as_i64().unwrap_or(0);
                        seen.lock().entry(it.metadata.name.expect("a name")).or_default().push(total);
                    }
                    watcher::Event::Delete(it) => panic!("a checkpoint was deleted: {:?}", it.metadata.name),
                    watcher::Event::Init | watcher::Event::InitDone => {}
                }
            }
        });
        Self { totals, task }
    }

    fn last(&self, checkpoint: &str) -> i64 {
        self.totals.lock().get(checkpoint).and_then(|totals| totals.last().copied()).unwrap_or(0)
    }

    /// Asserts that no checkpoint ever lost samples.
    fn assert_never_less(&self) {
        assert!(!self.task.is_finished(), "the watch ended");
        for (name, totals) in &*self.totals.lock() {
            assert!(totals.is_sorted(), "{name} was overwritten by an emptier one: {totals:?}");
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

const WORKLOADS: [&str; 3] = ["web", "api", "db"];
const EVERY_SECOND: &str =
    "recommender: {enabled: true, interval: 1s, checkpointsInterval: 1s, checkpointsGcInterval: 1s}";

async fn prepare(client: &Client) {
    create_crds(client).await;
    create_nodes(client, &Nodes::default()).await;
    for name in WORKLOADS {
        create_workload(client, name, 1).await;
        create(&vpas(client), vpa(name, name, "berth")).await;
    }
}

async fn measure_all(client: &Client, time: Timestamp) {
    for name in WORKLOADS {
        measure(client, &format!("{name}-7d4b9c6f5-pod00"), time, "250m", "300Mi").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_checkpoint_ever_loses_samples_across_kills() {
    let control_plane = start_control_plane().await;
    let client = control_plane.client();
    prepare(&client).await;
    let watch = Watch::start(&client);
    let mut time = Timestamp::now();
    // Its last action before it is killed, in the order of a process's life.
    let phases = [
        "berth_recommender_rounds_total",
        "berth_recommender_checkpoint_loads_total",
        "berth_recommender_status_writes_total",
        "berth_recommender_checkpoint_writes_total",
    ];
    for phase in ["start", "ready"].into_iter().chain(phases).chain(["all saved"]).cycle().take(14) {
        time += 1.seconds();
        measure_all(&client, time).await;
        let saved = watch.last("web-app");
        let mut berth = Berth::start(&control_plane.kubeconfig(), EVERY_SECOND);
        match phase {
            "start" => drop(berth.address().await),
            "ready" => berth.await_ready().await,
            "all saved" => {
                await_until(LIMIT, "the new sample is saved", async || watch.last("web-app") > saved).await
            }
            metric => {
                await_until(LIMIT, &format!("{metric} is counted"), async || {
                    let (_, text) = berth.get("/metrics").await;
                    // Nothing is loaded before the first save.
                    let counted = text.lines().filter(|line| line.starts_with(metric));
                    saved == 0 || counted.filter_map(|line| line.rsplit(' ').next()).any(|value| value != "0")
                })
                .await;
            }
        }
        berth.kill();
        watch.assert_never_less();
    }
    assert!(watch.last("web-app") >= 2, "{:?}", watch.totals.lock());
    let mut berth = Berth::start(&control_plane.kubeconfig(), EVERY_SECOND);
    let saved = watch.last("web-app");
    measure_all(&client, time + 1.seconds()).await;
    await_until(LIMIT, "it goes on", async || watch.last("web-app") > saved).await;
    assert!(berth.terminate().await.success());
    watch.assert_never_less();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_api_server_refuses_or_loses_is_written_in_the_end() {
    let seed = std::env::var("BERTH_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(20_261_122);
    println!("seed {seed} (BERTH_SEED)");
    let control_plane = start_control_plane().await;
    let client = control_plane.client();
    prepare(&client).await;
    let watch = Watch::start(&client);
    let random = Mutex::new(Rng(seed));
    // Half of the recommender's writes fail, and a fifth of its reads: a round needs many answers.
    let proxy = Flaky::start(client.clone(), move |_, method, uri| {
        let path = uri.path();
        let is_ours = ["/autoscaling.k8s.io/", "/metrics.k8s.io/", "/deployments", "/replicasets/"];
        if !is_ours.iter().any(|part| path.contains(part)) {
            return Fate::Pass;
        }
        match (method == Method::GET, random.lock().next() % 10) {
            (_, 0) => Fate::Refuse(StatusCode::INTERNAL_SERVER_ERROR),
            (_, 1) => Fate::Refuse(StatusCode::TOO_MANY_REQUESTS),
            (false, 2) => Fate::Refuse(StatusCode::CONFLICT),
            (false, 3) => Fate::Refuse(StatusCode::UNPROCESSABLE_ENTITY),
            (false, 4) => Fate::LoseAnswer,
            _ => Fate::Pass,
        }
    })
    .await;
    let mut berth = Berth::start(&proxy.kubeconfig(), EVERY_SECOND);
    berth.await_ready().await;
    let mut time = Timestamp::now();
    for sample in 1..=5 {
        time += 1.seconds();
        measure_all(&client, time).await;
        for name in WORKLOADS {
            let checkpoint = format!("{name}-app");
            await_until(LIMIT * 2, &format!("{checkpoint} has {sample} samples"), async || {
                watch.last(&checkpoint) == sample
            })
            .await;
        }
    }
    for name in WORKLOADS {
        await_until(LIMIT, "every VPA has its recommendation", async || {
            is_true(&status(&client, name).await, "RecommendationProvided")
        })
        .await;
    }
    watch.assert_never_less();
    berth.terminate().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recommender_that_was_frozen_past_its_lease_writes_nothing_until_it_leads_again() {
    const QUICK: &str = "leaderElection: {leaseDuration: 3s, renewDeadline: 2s, retryPeriod: 500ms}";
    let control_plane = start_control_plane().await;
    let client = control_plane.client();
    prepare(&client).await;
    let a = Berth::start(&control_plane.kubeconfig(), &format!("{QUICK}\n{EVERY_SECOND}"));
    let versions = async || {
        let all = [vpas(&client), checkpoints(&client)].map(|api| async move {
            let all = api.list(&Default::default()).await.expect("a list").items;
            all.into_iter().map(|it| (it.metadata.name, it.metadata.resource_version)).collect::<Vec<_>>()
        });
        futures::future::join_all(all).await
    };
    let saved = async || {
        let checkpoint = checkpoints(&client).get_opt("web-app").await.expect("an answer");
        checkpoint.map_or(0, |it| it.data["status"]["totalSamplesCount"].as_i64().unwrap_or(0))
    };
    let mut time = Timestamp::now();
    for turn in 0..3 {
        let before = saved().await;
        time += 1.seconds();
        measure_all(&client, time).await;
        await_until(LIMIT, "the leader saves samples", async || saved().await > before).await;
        // With something to write, at any point of a round.
        time += 1.seconds();
        measure_all(&client, time).await;
        tokio::time::sleep(std::time::Duration::from_millis(200 + 300 * turn)).await;
        a.signal("STOP");
        // Another process leads, without a recommender.
        let mut b = Berth::start(&control_plane.kubeconfig(), QUICK);
        await_until(LIMIT, "another one leads", async || b.leads().await).await;
        time += 1.seconds();
        measure_all(&client, time).await;
        let written = versions().await;
        a.signal("CONT");
        await_until(LIMIT, "the frozen one knows", async || a.find_metric("berth_leader").await == Some(0.0))
            .await;
        // A request that it sent before it knew is answered before this one.
        a.await_ready().await;
        assert_eq!(versions().await, written, "turn {turn}");
        assert!(b.terminate().await.success());
        await_until(LIMIT, "it leads again", async || a.leads().await).await;
    }
}
