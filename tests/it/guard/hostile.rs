//! Floods from strangers on the cluster network: pods are placed meanwhile as if there were none.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures::future::join_all;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};

use super::strangers::forged;
use super::*;

/// Hostile requests a second, by one sender each for a part of it: so many that this machine has time for the rest.
const RATE: usize = 2_000;
const SENDERS: usize = 8;
/// Pods a second, in bursts.
const PODS: usize = 200;
const BURSTS: usize = 10;
/// Address of the senders. One address gets a part of the connections, and the API server has another one.
const FLOODS: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
/// Connections that stay open, from so many addresses that their parts are more than all.
const IDLE: usize = 10_000;
const IDLE_ADDRESSES: usize = 20;
/// Memory limit of the chart.
const MEMORY: u64 = 2 << 30;

/// Creates pods at their rate for this time. Returns how many were bound a second until the last one was.
async fn placements(client: &Client, log: &BindLog, prefix: &'static str, time: Duration) -> f64 {
    let before = log.len();
    let (began, burst) = (Instant::now(), Duration::from_secs(1) / BURSTS as u32);
    let bursts = (time.as_secs_f64() / burst.as_secs_f64()).ceil() as u32;
    for at in 0..bursts {
        tokio::time::sleep_until((began + burst * at).into()).await;
        let prefix: &'static str = format!("{prefix}-{at}").leak();
        let requests = json!({"cpu": "1m"});
        create_pods(client, &Pods { prefix, count: PODS / BURSTS, requests, ..Pods::default() }, |_, _| {})
            .await;
    }
    let all = bursts as usize * (PODS / BURSTS);
    log.await_len(SOON, before + all).await;
    all as f64 / began.elapsed().as_secs_f64()
}

/// A stranger: no token, no certificate, no path.
struct Stranger<'a> {
    http: &'a reqwest::Client,
    address: SocketAddr,
    stops: &'a AtomicBool,
    sent: &'a AtomicUsize,
}

impl Stranger<'_> {
    /// Sends one request after another, at its part of the rate, and asserts that each is refused.
    async fn flood(&self, sender: usize) {
        let wrong = format!("/guard/{}", "0".repeat(64));
        let huge = "x".repeat(1 << 20);
        let mut at = sender;
        let mut ticks = tokio::time::interval(Duration::from_secs(1) * SENDERS as u32 / RATE as u32);
        while !self.stops.load(Ordering::Relaxed) {
            ticks.tick().await;
            at += 1;
            // Every hundredth has a huge body.
            let body = if at.is_multiple_of(100) { huge.clone() } else { forged(at) };
            let path = ["/guard", &wrong, "/extender/bind", "/extender/filter", "/mutate-pods"][at % 5];
            let answer = self.http.post(format!("https://{}{path}", self.address)).body(body).send().await;
            // The connection may be closed while a huge body is being sent.
            if let Ok(answer) = answer {
                let status = answer.status().as_u16();
                assert!([401, 403, 404, 413].contains(&status), "{path}: {status}");
                let _ = answer.bytes().await;
            }
            self.sent.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Opens connections, sends a byte on each, and never more.
    async fn hoard(&self) -> Vec<TcpStream> {
        let mut open = Vec::new();
        for at in 0..IDLE {
            let address = Ipv4Addr::new(127, 0, 1, (at % IDLE_ADDRESSES) as u8 + 1);
            let socket = TcpSocket::new_v4().expect("a socket");
            socket.bind((address, 0).into()).expect("an address of this machine");
            if let Ok(mut stream) = socket.connect(self.address).await {
                let _ = stream.write_all(b"\x16").await;
                open.push(stream);
            }
        }
        open
    }
}

/// `BERTH_HOSTILE=1000000` for a million requests.
#[tokio::test(flavor = "multi_thread")]
async fn floods_of_strangers_keep_no_pod_waiting_and_take_no_room() {
    let asked = std::env::var("BERTH_HOSTILE").ok().and_then(|n| n.parse().ok());
    let requests: usize = asked.unwrap_or(10_000);
    // In five seconds, one moment without a CPU counts for much.
    let least = if asked.is_some() { 0.9 } else { 0.75 };
    let time = Duration::from_secs(requests.div_ceil(RATE) as u64);
    let nodes = 3 * time.as_secs() as usize * PODS / 110 + 1;
    let cluster = start_control_plane().await;
    let client = cluster.client();
    create_nodes(&client, &Nodes { count: nodes, ..Nodes::default() }).await;
    let certificates = Certificates::new();
    let clients = Ca::new("clients");
    let ca_file = certificates.folder.path().join("clients.crt");
    std::fs::write(&ca_file, &clients.certificate).expect("written");
    let serving =
        json!({"webhookSecret": "berth-webhooks", "webhookConfiguration": "berth", "clientCaFile": ca_file});
    let more = "extender: {enabled: true}\nleaderElection: {namespace: default}";
    let berth = Berth::start(&cluster.kubeconfig(), &certificates.config_with(&serving, more));
    berth.await_ready().await;
    let address = berth.secure_address().await;
    install(&client, address, &certificates.ca, "Ignore").await;
    let _quiet = quiet_turn().await;

    let log = BindLog::start(&client);
    placements(&client, &log, "warm", Duration::from_secs(1)).await;
    let before = placements(&client, &log, "before", time).await;
    let ca = reqwest::Certificate::from_pem(certificates.ca.as_bytes()).expect("a CA");
    // A lost answer must not make the flood endless.
    let http = reqwest::Client::builder().add_root_certificate(ca).local_address(FLOODS).timeout(SOON);
    let http = http.build().expect("a client");
    let (stops, sent) = (AtomicBool::new(false), AtomicUsize::new(0));
    let stranger = Stranger { http: &http, address, stops: &stops, sent: &sent };
    let floods = join_all((0..SENDERS).map(|sender| stranger.flood(sender)));
    let work = async {
        let hoarded = stranger.hoard().await;
        let meanwhile = placements(&client, &log, "meanwhile", time).await;
        stops.store(true, Ordering::Relaxed);
        drop(hoarded);
        meanwhile
    };
    let ((), meanwhile) = tokio::join!(async { drop(floods.await) }, work);
    let (sent, memory) = (sent.load(Ordering::Relaxed), berth.resident_bytes());
    let ratio = meanwhile / before;
    println!(
        "{sent} hostile requests and {IDLE} idle connections: {meanwhile:.0} pods a second instead of {before:.0} ({ratio:.2}), {} MB",
        memory >> 20
    );
    assert!(ratio >= least, "{meanwhile:.1} pods a second instead of {before:.1}");
    assert!(memory < MEMORY, "{memory} bytes");
    assert_eq!(berth.metric(r#"berth_others{kind="held"}"#).await, 0.0, "no room is held");
    assert_no_overcommit(&client).await;
}
