//! The server of `serve::secure` alone, with the test's router.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use axum::http::{StatusCode, Version as HttpVersion};
use axum::routing::get;
use axum::{Extension, Router};
use berth_config::Serving;
use berth_kube_io::certificates::{Authority, Issued};
use berth_server::Secure;
use berth_server::secure::ClientCertificate;
use jiff::Timestamp;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::client::*;
use crate::support::await_until;

const SOON: Duration = Duration::from_secs(10);
const HOUR: i64 = 3_600;

struct Server {
    /// Number of slow requests started.
    begun: Arc<AtomicUsize>,
    secure: Secure,
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Server {
    async fn start(config: &Serving) -> Server {
        let secure = Secure::new(config).expect("the files are right");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let (stop, stopped) = oneshot::channel();
        let (server, begun) = (secure.clone(), Arc::default());
        let router = router(Arc::clone(&begun));
        let task = tokio::spawn(async move {
            let stop = async { stopped.await.unwrap_or(()) };
            server.serve(listener, router, stop).await;
        });
        Server { begun, secure, address, stop, task }
    }

    fn failures(&self) -> u64 {
        self.secure.counters().handshake_failures.load(Relaxed)
    }
}

fn router(begun: Arc<AtomicUsize>) -> Router {
    let who = async |version: HttpVersion, client: Option<Extension<ClientCertificate>>| {
        let client = client.map(|Extension(client)| client);
        let name = client.map(|it| format!("{} of {}", it.common_name, it.organizations.join("+")));
        format!("{version:?} {}", name.as_deref().unwrap_or("nobody"))
    };
    let slow = async move || {
        begun.fetch_add(1, Relaxed);
        tokio::time::sleep(Duration::from_millis(500)).await;
    };
    Router::new().route("/who", get(who)).route("/slow", get(slow))
}

/// Writes a server's files into the folder: a certificate of `ca`, and `clients` as the CAs of clients.
fn files(folder: &Path, pair: &Pair, clients: &str) -> Serving {
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::write(&path, text).expect("written");
        Some(path)
    };
    Serving {
        cert_file: write("tls.crt", &pair.certificate),
        key_file: write("tls.key", &pair.key),
        client_ca_file: write("clients.crt", clients),
        ..Serving::default()
    }
}

#[tokio::test]
async fn both_versions_of_http_are_served_with_the_clients_certificate_name() {
    let (servers, clients) = (Ca::new("servers"), Ca::new("clients"));
    let folder = tempfile::tempdir().expect("a folder");
    let server =
        Server::start(&files(folder.path(), &servers.server(in_seconds(HOUR)), &clients.certificate)).await;
    let shown = clients.client("kube-scheduler", "system:masters", in_seconds(HOUR));
    for (version, text) in [(Version::Http1, "HTTP/1.1"), (Version::Http2, "HTTP/2.0")] {
        let known = Client::new(&servers.certificate, Some(&shown), version);
        let answer = known.get(server.address, "/who").await;
        assert_eq!(answer, Ok((StatusCode::OK, format!("{text} kube-scheduler of system:masters"))));
        let unknown = Client::new(&servers.certificate, None, version);
        let answer = unknown.get(server.address, "/who").await;
        assert_eq!(answer, Ok((StatusCode::OK, format!("{text} nobody"))));
    }
    assert_eq!(server.failures(), 0);
}

#[tokio::test]
async fn a_client_certificate_that_is_not_valid_is_refused_in_the_handshake() {
    let (servers, clients, others) = (Ca::new("servers"), Ca::new("clients"), Ca::new("clients"));
    let folder = tempfile::tempdir().expect("a folder");
    let server =
        Server::start(&files(folder.path(), &servers.server(in_seconds(HOUR)), &clients.certificate)).await;
    // The other CA has the name of the right one, so that its client presents its certificate.
    for (shown, expected) in [
        (clients.client("late", "x", in_seconds(-60)), "CertificateExpired"),
        (others.client("other", "x", in_seconds(HOUR)), "DecryptError"),
        (clients.server(in_seconds(HOUR)), "Certificate"),
    ] {
        for version in [Version::Http1, Version::Http2] {
            let before = server.failures();
            let client = Client::new(&servers.certificate, Some(&shown), version);
            let error = client.get(server.address, "/who").await.expect_err("refused");
            assert!(error.contains(expected) || error.contains("UnknownCA"), "{error}");
            await_until(SOON, "the failure is counted", async || server.failures() == before + 1).await;
        }
    }
}

#[tokio::test]
async fn a_connection_ends_with_the_certificate_of_its_client() {
    let (servers, clients) = (Ca::new("servers"), Ca::new("clients"));
    let folder = tempfile::tempdir().expect("a folder");
    let server =
        Server::start(&files(folder.path(), &servers.server(in_seconds(HOUR)), &clients.certificate)).await;
    let shown = clients.client("soon over", "x", in_seconds(3));
    let client = Client::new(&servers.certificate, Some(&shown), Version::Http2);
    let mut connection = client.connect(server.address).await.expect("still valid");
    assert_eq!(connection.get("/who").await.expect("still valid").0, StatusCode::OK);
    await_until(SOON, "the connection ends", async || connection.is_closed()).await;
    await_until(SOON, "a new one is refused", async || client.get(server.address, "/who").await.is_err())
        .await;
}

#[tokio::test]
async fn changed_files_are_used_for_new_connections_and_older_ones_end() {
    let (old, new) = (Ca::new("old"), Ca::new("new"));
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(&files(folder.path(), &old.server(in_seconds(HOUR)), &old.certificate)).await;
    let secure = server.secure.clone();
    let watch = tokio::spawn(async move { secure.watch_files().await });
    let of_old = Client::new(
        &format!("{}{}", old.certificate, new.certificate),
        Some(&old.client("old", "x", in_seconds(HOUR))),
        Version::Http2,
    );
    let mut connection = of_old.connect(server.address).await.expect("accepted");
    assert_eq!(connection.get("/who").await.expect("served").1, "HTTP/2.0 old of x");

    files(folder.path(), &new.server(in_seconds(2 * HOUR)), &new.certificate);
    let of_new =
        Client::new(&new.certificate, Some(&new.client("new", "x", in_seconds(HOUR))), Version::Http1);
    await_until(3 * SOON, "the new files are used", async || {
        of_new.get(server.address, "/who").await == Ok((StatusCode::OK, "HTTP/1.1 new of x".to_owned()))
    })
    .await;
    await_until(SOON, "the older connection ends", async || connection.is_closed()).await;
    of_old.get(server.address, "/who").await.expect_err("its CA is not accepted any more");
    let expiry = server.secure.counters().certificate_expiry.load(Relaxed);
    assert!(expiry > in_seconds(HOUR + HOUR / 2).as_second());
    watch.abort();
}

#[tokio::test]
async fn without_files_a_certificate_is_made_and_can_be_replaced() {
    let config = Serving { names: vec!["berth.berth-system.svc".to_owned()], ..Serving::default() };
    let server = Server::start(&config).await;
    let authority = Authority::new(Timestamp::now()).expect("a CA");
    let client = Client::new(authority.certificate(), None, Version::Http2);
    let error = client.get(server.address, "/who").await.expect_err("made by another CA");
    assert!(error.contains("UnknownIssuer") || error.contains("invalid peer certificate"), "{error}");
    let issued = authority.issue(&config.names, Timestamp::now()).expect("issued");
    server.secure.install(&issued).expect("usable");
    assert_eq!(client.get(server.address, "/who").await, Ok((StatusCode::OK, "HTTP/2.0 nobody".to_owned())));

    let bad = Issued { certificate: String::new(), ..issued };
    server.secure.install(&bad).expect_err("no certificate");
    assert!(client.get(server.address, "/who").await.is_ok(), "the one before stays");
}

#[tokio::test]
async fn of_an_address_with_too_many_connections_the_oldest_is_closed() {
    let servers = Ca::new("servers");
    let folder = tempfile::tempdir().expect("a folder");
    let config = Serving {
        client_ca_file: None,
        // A quarter of them for connections without an admitted request, and a quarter of these for one address.
        max_connections: 32,
        ..files(folder.path(), &servers.server(in_seconds(HOUR)), "")
    };
    let server = Server::start(&config).await;
    let client = Client::new(&servers.certificate, None, Version::Http1);
    let mut first = client.connect(server.address).await.expect("the first");
    first.get("/who").await.expect("served");
    let mut second = client.connect(server.address).await.expect("the second");
    second.get("/who").await.expect("served");
    let mut third = client.connect(server.address).await.expect("the third");
    third.get("/who").await.expect("served");
    first.get("/who").await.expect_err("closed");
    second.get("/who").await.expect("not affected");
    let counters = server.secure.counters();
    assert_eq!((counters.open.load(Relaxed), counters.closed_for_newer.load(Relaxed)), (2, 1));
    drop(second);
    await_until(SOON, "it is closed", async || counters.open.load(Relaxed) == 1).await;
    client.get(server.address, "/who").await.expect("its slot is free");
    third.get("/who").await.expect("not affected");
}

#[tokio::test]
async fn clients_that_send_nothing_lose_their_connection() {
    let servers = Ca::new("servers");
    let folder = tempfile::tempdir().expect("a folder");
    let config =
        Serving { client_ca_file: None, ..files(folder.path(), &servers.server(in_seconds(HOUR)), "") };
    let server = Server::start(&config).await;
    let client = Client::new(&servers.certificate, None, Version::Http1);
    let started = Instant::now();
    let silent = async {
        let mut stream = TcpStream::connect(server.address).await.expect("connected");
        let _ = stream.read(&mut [0; 1]).await;
        started.elapsed()
    };
    let dripping = async {
        let mut stream = client.handshake(server.address).await.expect("connected");
        stream.write_all(b"GET /who HTTP/1.1\r\nHost: ").await.expect("sent");
        let _ = stream.read(&mut [0; 1]).await;
        started.elapsed()
    };
    let both = futures::future::join(silent, dripping);
    let (silent, dripping) = tokio::time::timeout(2 * SOON, both).await.expect("both end");
    assert!(
        silent >= Duration::from_secs(4) && dripping >= Duration::from_secs(9),
        "{silent:?} {dripping:?}"
    );
    await_until(SOON, "nothing is open", async || server.secure.counters().open.load(Relaxed) == 0).await;
}

#[tokio::test]
async fn a_stop_lets_requests_under_way_end() {
    let servers = Ca::new("servers");
    let folder = tempfile::tempdir().expect("a folder");
    let config =
        Serving { client_ca_file: None, ..files(folder.path(), &servers.server(in_seconds(HOUR)), "") };
    for version in [Version::Http1, Version::Http2] {
        let server = Server::start(&config).await;
        let client = Client::new(&servers.certificate, None, version);
        let mut connection = client.connect(server.address).await.expect("connected");
        connection.get("/who").await.expect("served");
        let slow = tokio::spawn(async move { connection.get("/slow").await });
        await_until(SOON, "the request is under way", async || server.begun.load(Relaxed) == 1).await;
        server.stop.send(()).expect("it serves");
        assert_eq!(slow.await.expect("no panic").expect("an answer").0, StatusCode::OK);
        tokio::time::timeout(SOON, server.task).await.expect("the server ends").expect("no panic");
        client.get(server.address, "/who").await.expect_err("the port is closed");
    }
}

#[tokio::test]
async fn a_server_that_will_stop_has_its_http_1_clients_connect_anew_and_goes_on() {
    let servers = Ca::new("servers");
    let folder = tempfile::tempdir().expect("a folder");
    let config =
        Serving { client_ca_file: None, ..files(folder.path(), &servers.server(in_seconds(HOUR)), "") };
    let server = Server::start(&config).await;
    for (version, closes) in [(Version::Http1, true), (Version::Http2, false)] {
        let client = Client::new(&servers.certificate, None, version);
        let mut connection = client.connect(server.address).await.expect("connected");
        for _ in 0..2 {
            connection.get("/who").await.expect("it stays open");
        }
        server.secure.drain();
        connection.get("/who").await.expect("it is still answered");
        match closes {
            true => await_until(SOON, "it is closed", async || connection.is_closed()).await,
            false => assert!(
                connection.get("/who").await.is_ok(),
                "it is ended with a frame, when the server stops"
            ),
        }
        client.get(server.address, "/who").await.expect("others are served, too");
    }
}
