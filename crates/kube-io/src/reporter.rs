//! Reporter of pod conditions and events: bounded and with lower priority than binds.
//!
//! Binds come first: while one is in flight, at most one report is. Otherwise there are as many as the API server carries out
//! without letting them wait ([`Window`]): the next bind waits behind them. Reports that are not sent are counted as dropped.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use http::{Method, Request};
use jiff::Timestamp;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::Throttle;
use super::backlog::{Backlog, Item};
use super::client::{self, STRATEGIC_MERGE_PATCH};
use super::report_json::{ConditionPatch, EventBody};
use super::retry::{self, Abandoned, BACKOFF, Failure, WriteReply, retry};
use super::window::Window;
use berth_model::PodReport;

/// At about 1 KiB per entry, at most 64 MiB: a condition and an event for each of 32,768 pods.
const BACKLOG_MAX: usize = 65_536;
/// Most reports in flight without and with pending binds.
const IN_FLIGHT_MAX: usize = 16;
const TRICKLE_MAX: usize = 1;
/// Interval between checks for pending binds.
const TRICKLE_CHECK: Duration = Duration::from_millis(100);

/// Results of reports.
#[derive(Debug, Default)]
pub struct ReportCounters {
    /// Accepted by the API server, or about a pod that is gone.
    pub sent: AtomicU64,
    /// Retries.
    pub retried: AtomicU64,
    /// Refused, out of attempts, or not sent at shutdown. [`Reporter::dropped`] also counts those dropped because the
    /// backlog was full.
    failed: AtomicU64,
}

/// Accepts reports from any thread. Clones share one backlog.
#[derive(Clone)]
pub struct Reporter {
    shared: Arc<Shared>,
}

struct Shared {
    backlog: Mutex<Backlog>,
    window: Mutex<Window>,
    /// As many reports are in flight as the window allows.
    is_full: AtomicBool,
    started: Instant,
    /// Something was pushed.
    pushed: Notify,
    counters: ReportCounters,
}

impl Reporter {
    pub fn new() -> Self {
        Reporter {
            shared: Arc::new(Shared {
                backlog: Mutex::new(Backlog::new(BACKLOG_MAX)),
                window: Mutex::new(Window::new(IN_FLIGHT_MAX)),
                is_full: AtomicBool::new(false),
                started: Instant::now(),
                pushed: Notify::new(),
                counters: ReportCounters::default(),
            }),
        }
    }

    /// Queues a report with the current time. Never waits for the network.
    pub fn report(&self, report: PodReport) {
        self.shared.backlog.lock().push(report, Timestamp::now());
        self.shared.pushed.notify_one();
    }

    /// Drops the waiting reports of a pod that is being placed: they are stale.
    pub fn withdraw(&self, uid: &str) {
        self.shared.backlog.lock().withdraw(uid);
    }

    /// Number of waiting items.
    pub fn waiting(&self) -> usize {
        self.shared.backlog.lock().len()
    }

    /// Number of reports that may be in flight while no bind is pending.
    pub fn window(&self) -> usize {
        self.shared.window.lock().size()
    }

    /// Number of items that were dropped and will never be sent.
    pub fn dropped(&self) -> u64 {
        self.shared.backlog.lock().dropped() + self.shared.counters.failed.load(Ordering::Relaxed)
    }

    pub fn counters(&self) -> &ReportCounters {
        &self.shared.counters
    }

    /// Sends reports until `stop` resolves, then flushes the rest for at most `flush`.
    ///
    /// `client` must not retry by itself ([`client::without_retries`]). `host` is the suffix of the events' reporting instance.
    /// `pending_binds` counts binds that wait or are in flight.
    pub async fn run(
        &self,
        client: Client,
        host: &str,
        pending_binds: &AtomicUsize,
        stop: impl Future<Output = ()>,
        flush: Duration,
    ) {
        let sender = Sender { client, host, shared: &self.shared, warnings: Throttle::default() };
        let mut stop = std::pin::pin!(stop);
        let mut flush_until: Option<Instant> = None;
        let mut in_flight = FuturesUnordered::new();
        loop {
            let trickling = flush_until.is_none() && pending_binds.load(Ordering::Relaxed) > 0;
            let limit = if trickling { TRICKLE_MAX } else { self.window() };
            while in_flight.len() < limit {
                let Some(item) = self.shared.backlog.lock().take() else {
                    break;
                };
                in_flight.push(sender.deliver(item));
            }
            self.shared.is_full.store(!trickling && in_flight.len() >= limit, Ordering::Relaxed);
            if flush_until.is_some() && in_flight.is_empty() {
                return;
            }
            tokio::select! {
                Some(()) = in_flight.next() => {}
                () = self.shared.pushed.notified() => {}
                () = &mut stop, if flush_until.is_none() => flush_until = Some(Instant::now() + flush),
                () = tokio::time::sleep(TRICKLE_CHECK), if trickling && in_flight.len() == limit => {}
                () = until(flush_until) => {
                    let left = in_flight.len() + self.waiting();
                    self.shared.counters.failed.fetch_add(left as u64, Ordering::Relaxed);
                    tracing::warn!(left, "shutting down with unsent events and conditions");
                    return;
                }
            }
        }
    }
}

impl Default for Reporter {
    fn default() -> Self {
        Reporter::new()
    }
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

struct Sender<'a> {
    client: Client,
    host: &'a str,
    shared: &'a Shared,
    warnings: Throttle,
}

impl Sender<'_> {
    /// Sends an item until it is settled or a newer one replaces it, and counts the result.
    async fn deliver(&self, item: Item) {
        let (shared, pod) = (self.shared, item.pod());
        let fence = |attempt| {
            let is_wanted = attempt == 1 || shared.backlog.lock().is_still_wanted(&item);
            shared.counters.retried.fetch_add(u64::from(is_wanted && attempt > 1), Ordering::Relaxed);
            is_wanted
        };
        let sent = retry(BACKOFF, &pod.name, fence, || self.attempt(&item)).await;
        match &sent {
            Ok(()) => drop(shared.counters.sent.fetch_add(1, Ordering::Relaxed)),
            Err(Abandoned::Stopped) => {}
            Err(Abandoned::Failed(why)) => {
                shared.counters.failed.fetch_add(1, Ordering::Relaxed);
                self.warn(&item, why);
            }
        }
        shared.backlog.lock().done(&item, sent.is_ok());
    }

    /// Sending an item twice is harmless: events have a unique name, and a patch is idempotent.
    async fn attempt(&self, item: &Item) -> Result<(), Failure> {
        let sent = Instant::now();
        let reply = retry::send(&self.client, request(item, self.host)).await;
        let shared = self.shared;
        match &reply {
            WriteReply::Done(_) => {
                let was_full = shared.is_full.load(Ordering::Relaxed);
                shared.window.lock().answered(sent.elapsed(), was_full, shared.started.elapsed());
            }
            WriteReply::RetryAfter(_) => shared.window.lock().refused(),
            _ => {}
        }
        match item {
            Item::Event(_) => reply.created(),
            Item::Condition(_) => reply.settled().map(drop),
        }
    }

    fn warn(&self, item: &Item, why: &str) {
        if !self.warnings.is_due() {
            return;
        }
        let (what, verb) = match item {
            Item::Condition(_) => {
                ("could not write a condition, which the scheduler will report again", "patch pods/status")
            }
            Item::Event(_) => ("dropped an event", "create events.events.k8s.io"),
        };
        let pod = item.pod();
        tracing::warn!(
            namespace = %pod.namespace, pod = %pod.name, error = why,
            "{what}; if it was forbidden, allow this in berth's ClusterRole: {verb}"
        );
    }
}

fn request(item: &Item, host: &str) -> Result<Request<Body>, String> {
    let pod = item.pod();
    match item {
        Item::Condition(condition) => client::json_request(
            Method::PATCH,
            &format!("/api/v1/namespaces/{}/pods/{}/status", pod.namespace, pod.name),
            STRATEGIC_MERGE_PATCH,
            &ConditionPatch::from(condition),
        ),
        Item::Event(event) => EventBody::new(event, host).request(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use http::Response;
    use tokio::sync::Semaphore;

    use super::*;
    use berth_model::PodRef;

    /// An API server that holds every request until it gets a permit, and answers from a script, then with 201.
    #[derive(Clone)]
    struct Server {
        permits: Arc<Semaphore>,
        arrived: Arc<Mutex<Vec<String>>>,
        script: Arc<Mutex<VecDeque<u16>>>,
    }

    impl Server {
        fn new(permits: usize, script: impl Into<VecDeque<u16>>) -> Self {
            Server {
                permits: Arc::new(Semaphore::new(permits)),
                arrived: Arc::default(),
                script: Arc::new(Mutex::new(script.into())),
            }
        }

        fn client(&self) -> Client {
            let server = self.clone();
            let service = tower::service_fn(move |request: Request<Body>| {
                server.arrived.lock().push(format!("{} {}", request.method(), request.uri().path()));
                let server = server.clone();
                async move {
                    server.permits.acquire().await.expect("never closed").forget();
                    let status = server.script.lock().pop_front().unwrap_or(201);
                    Response::builder().status(status).header("retry-after", "1").body(Body::empty())
                }
            });
            Client::new(service, "default")
        }

        fn on_reply(&self) -> usize {
            self.arrived.lock().len()
        }
    }

    fn failed(name: String) -> PodReport {
        let pod = PodRef {
            namespace: "x".into(),
            uid: format!("uid-{name}").into(),
            name: name.into(),
            scheduler_name: "berth".into(),
        };
        PodReport::Failed {
            pod,
            reason: "Unschedulable",
            message: "no room".into(),
            generation: 1,
            event: false,
        }
    }

    /// Lets the reporter run for `length`.
    async fn run_for(reporter: &Reporter, server: &Server, pending: &AtomicUsize, length: Duration) {
        let run = reporter.run(server.client(), "host", pending, std::future::pending(), Duration::ZERO);
        let _ = tokio::time::timeout(length, run).await;
    }

    fn of(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }

    #[tokio::test(start_paused = true)]
    async fn reports_trickle_while_binds_are_pending_and_flow_when_they_are_not() {
        for (binds, in_flight) in [(1, 1), (0, 16)] {
            let answered = 300;
            let (reporter, server) = (Reporter::new(), Server::new(answered, []));
            (0..400).for_each(|index| reporter.report(failed(format!("p{index}"))));
            run_for(&reporter, &server, &AtomicUsize::new(binds), Duration::from_secs(1)).await;
            assert_eq!(server.on_reply() - answered, in_flight, "with {binds} binds pending");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_trickle_opens_up_when_the_binds_are_over_though_its_report_hangs() {
        let answered = 10;
        let (reporter, server) = (Reporter::new(), Server::new(answered, []));
        (0..50).for_each(|index| reporter.report(failed(format!("p{index}"))));
        let pending = AtomicUsize::new(1);
        let binds_end = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert_eq!(server.on_reply() - answered, 1);
            pending.store(0, Ordering::Relaxed);
        };
        tokio::join!(run_for(&reporter, &server, &pending, Duration::from_secs(2)), binds_end);
        assert_eq!(server.on_reply() - answered, 4);
    }

    /// An API server that carries out `cores` requests at once, each in 5 ms. Returns the sent reports of a second, and the window.
    async fn send_to(cores: usize) -> (u64, usize) {
        let cores = Arc::new(Semaphore::new(cores));
        let service = tower::service_fn(move |_: Request<Body>| {
            let cores = cores.clone();
            async move {
                let _core = cores.acquire_owned().await.expect("never closed");
                tokio::time::sleep(Duration::from_millis(5)).await;
                Response::builder().status(201).body(Body::empty())
            }
        });
        let reporter = Reporter::new();
        (0..20_000).for_each(|index| reporter.report(failed(format!("p{index}"))));
        let client = Client::new(service, "default");
        let pending = AtomicUsize::new(0);
        let run = reporter.run(client, "host", &pending, std::future::pending(), Duration::ZERO);
        let _ = tokio::time::timeout(Duration::from_secs(1), run).await;
        (of(&reporter.counters().sent), reporter.window())
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_of_few_cores_is_kept_busy_and_not_flooded() {
        let (sent, window) = send_to(2).await;
        assert!(sent >= 390 && window <= 6, "{sent} of 400, {window} in flight");
        let (sent, window) = send_to(64).await;
        assert!(sent >= 2_500 && window == 16, "{sent} of 3,200, {window} in flight");
    }

    #[tokio::test(start_paused = true)]
    async fn a_busy_server_is_asked_again_and_a_report_about_a_pod_that_is_gone_is_settled() {
        let (reporter, server) = (Reporter::new(), Server::new(100, [429, 500, 409, 404]));
        reporter.report(failed("p".into()));
        run_for(&reporter, &server, &AtomicUsize::new(0), Duration::from_secs(60)).await;
        let counters = reporter.counters();
        assert_eq!((of(&counters.sent), of(&counters.retried), reporter.dropped()), (1, 3, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_report_that_cannot_be_delivered_is_counted_as_dropped() {
        for (answers, attempts) in [(vec![503; 20], BACKOFF.attempts as usize), (vec![403], 1)] {
            let (reporter, server) = (Reporter::new(), Server::new(100, answers));
            reporter.report(failed("p".into()));
            run_for(&reporter, &server, &AtomicUsize::new(0), Duration::from_secs(120)).await;
            assert_eq!((server.on_reply(), reporter.dropped()), (attempts, 1));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_not_told_again_once_the_pod_is_being_placed() {
        let (reporter, server) = (Reporter::new(), Server::new(100, [503, 503, 503]));
        reporter.report(failed("p".into()));
        let placed = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            reporter.withdraw("uid-p");
        };
        let pending = AtomicUsize::new(0);
        tokio::join!(run_for(&reporter, &server, &pending, Duration::from_secs(60)), placed);
        assert_eq!((server.on_reply(), reporter.dropped()), (1, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_sends_what_is_left_and_what_takes_too_long_is_counted() {
        for (permits, dropped) in [(100, 0), (20, 30)] {
            let (reporter, server) = (Reporter::new(), Server::new(permits, []));
            (0..50).for_each(|index| reporter.report(failed(format!("p{index}"))));
            let pending = AtomicUsize::new(7);
            let stop = std::future::ready(());
            reporter.run(server.client(), "host", &pending, stop, Duration::from_secs(5)).await;
            assert_eq!((of(&reporter.counters().sent), reporter.dropped()), (50 - dropped, dropped));
        }
    }
}
