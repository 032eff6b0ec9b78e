//! Several scheduling replicas with one guard.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// A Service for tests: forwards connections to the running replicas, in turn.
pub(super) struct Service {
    pub(super) address: SocketAddr,
    backends: Arc<Mutex<Vec<SocketAddr>>>,
}

impl Service {
    pub(super) async fn start() -> Service {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("its address");
        let backends: Arc<Mutex<Vec<SocketAddr>>> = Arc::default();
        let all = backends.clone();
        tokio::spawn(async move {
            while let Ok((mut from, _)) = listener.accept().await {
                let mut to = all.lock().clone();
                if let [_, ..] = &*to {
                    all.lock().rotate_left(1);
                }
                tokio::spawn(async move {
                    while let Some(backend) = to.pop() {
                        if let Ok(mut stream) = TcpStream::connect(backend).await {
                            let _ = tokio::io::copy_bidirectional(&mut from, &mut stream).await;
                            return;
                        }
                    }
                });
            }
        });
        Service { address, backends }
    }

    pub(super) fn set(&self, backends: Vec<SocketAddr>) {
        *self.backends.lock() = backends;
    }
}

/// Longer than the API server of a busy test machine leaves a request unanswered: only kills take leases away.
const ACTIVE_ACTIVE: &str = "leaderElection: {activeActive: true, namespace: default, leaseDuration: 6s, renewDeadline: 4s, \
                             retryPeriod: 500ms}";

async fn start_replica(cluster: &TestControlPlane, certificates: &Certificates) -> Berth {
    let berth = Berth::start(&cluster.kubeconfig(), &certificates.config(ACTIVE_ACTIVE));
    berth.await_ready().await;
    berth
}

/// Prints the replicas' explanations of an unbound pod, for readers of a failed test.
async fn explain_waiting(client: &Client, replicas: &[Berth]) {
    let pods = all_pods(client).await;
    let waiting: Vec<_> = pods.iter().filter(|pod| node_of(pod).is_none()).collect();
    println!("{} pods wait", waiting.len());
    let Some(name) = waiting.first().and_then(|pod| pod.metadata.name.as_deref()) else {
        return;
    };
    for replica in replicas {
        println!("{name}: {}", replica.get(&format!("/explain?pod={name}")).await.1);
        let (_, metrics) = replica.get("/metrics").await;
        for line in
            metrics.lines().filter(|line| line.contains("pending_pods{") || line.starts_with("berth_others"))
        {
            println!("{line}");
        }
    }
}

async fn scheduled_by(berth: &Berth) -> f64 {
    berth.metric(r#"scheduler_schedule_attempts_total{result="scheduled",profile="berth"}"#).await
}

/// `BERTH_KILLS=20` for 20 kills.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_that_all_schedule_share_the_classes_and_survive_any_kill() {
    let kills: usize = std::env::var("BERTH_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(3);
    const NODES: usize = 50;
    const BURST: usize = 200;
    let cluster = start_control_plane().await;
    let client = cluster.client();
    // Room for all bursts and not much more, so that two replicas without a guard would overcommit nodes.
    let slots = (kills + 1) * BURST / NODES + 1;
    let cpu: &'static str = format!("{}m", slots * 100).leak();
    create_nodes(&client, &Nodes { count: NODES, cpu, ..Nodes::default() }).await;
    let certificates = Certificates::new();
    let mut replicas =
        vec![start_replica(&cluster, &certificates).await, start_replica(&cluster, &certificates).await];
    let service = Service::start().await;
    let addresses = async |replicas: &[Berth]| {
        futures::future::join_all(replicas.iter().map(Berth::secure_address)).await
    };
    service.set(addresses(&replicas).await);
    install(&client, service.address, &certificates.ca, "Fail").await;
    let log = BindLog::start(&client);
    await_until(SOON, "both replicas schedule", async || {
        replicas[0].leads().await && replicas[1].leads().await
    })
    .await;

    let burst = async |at: usize| {
        let prefix: &'static str = format!("burst-{at}").leak();
        let pods = Pods { prefix, count: BURST, requests: json!({"cpu": "100m"}), ..Pods::default() };
        // Ten classes, so that both replicas have some.
        create_pods(&client, &pods, |index, pod| {
            let key = format!("class-{}", index % 10);
            pod["spec"]["tolerations"] = json!([{"key": key, "operator": "Exists"}]);
        })
        .await;
    };
    burst(0).await;
    log.await_len(SOON, BURST).await;
    for replica in &replicas {
        let share = scheduled_by(replica).await;
        assert!(share > 0.0 && share < BURST as f64, "a share of {share}");
    }

    let mut random = 7u64;
    for kill in 0..kills {
        random = ::berth_scheduler::rules::mix(random);
        let mut victim = replicas.remove(random as usize % replicas.len());
        tokio::join!(burst(kill + 1), async {
            log.await_len(SOON, (kill + 1) * BURST + BURST / 4).await;
            victim.kill();
        });
        service.set(addresses(&replicas).await);
        replicas.push(start_replica(&cluster, &certificates).await);
        service.set(addresses(&replicas).await);
        let all = log.await_len(SOON, (kill + 2) * BURST);
        let patience = tokio::time::sleep(SOON - Duration::from_secs(5));
        tokio::pin!(all);
        tokio::select! {
            () = &mut all => continue,
            () = patience => explain_waiting(&client, &replicas).await,
        }
        all.await;
    }
    log.assert_none_moved();
    assert_eq!(log.len(), (kills + 1) * BURST);
    assert_no_overcommit(&client).await;
    for replica in &replicas {
        replica.await_settled(SOON, (kills + 1) * BURST).await;
    }
}
