//! List and watch, for the life of the process.
//!
//! A watch never ends and survives every error; it passes changes to a synchronous sink, objects by value. No event
//! is lost between list and watch: the watch starts at the list's resource version, and lists again when the server
//! has compacted that version (410).

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::{Stream, StreamExt};
use kube::runtime::WatchStreamExt;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, DefaultBackoff, Event};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::Throttle;
use super::guarded::{BadObject, Guarded, ObjectId};
use berth_model::with_causes;

/// Pods that still hold resources or wait for a node: all but the finished ones.
pub const LIVE_PODS: &str = "status.phase!=Succeeded,status.phase!=Failed";

/// A page of 500 pods is about 4 MB of JSON; parsing it keeps a thread busy for 10 ms.
const PAGE_SIZE: u32 = 500;

/// Shorter than client-go's 30 s: without its watch a scheduler acts on outdated state after an outage.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A change that a watch passes to its sink.
#[derive(Debug)]
pub enum WatchChange<K> {
    /// A complete list follows as `Apply`s. If it breaks off, another `ListBegins` replaces it.
    ListBegins,
    /// An object exists or was changed.
    Apply(Result<K, BadObject>),
    /// An object was deleted. Its uid may differ from that of the last observed object with this name.
    Delete(ObjectId),
    /// The list is complete: all other objects are gone.
    ListEnds,
    /// The server does not serve this optional kind: there are no objects.
    NotServed,
    /// The server does not have this kind, or forbids to list it. The watch retries.
    Refused,
}

/// Counters of a watch.
#[derive(Debug, Default)]
pub struct WatchCounters {
    /// Objects applied and deleted, including those of lists.
    pub events: AtomicU64,
    /// Complete lists, including the first one.
    pub lists: AtomicU64,
    /// Requests refused, connections lost, watches expired.
    pub errors: AtomicU64,
    /// Watches that ended because their resource version was too old (410): each is followed by a list.
    pub expired: AtomicU64,
    /// Applied objects that did not parse, counted each time.
    pub bad_objects: AtomicU64,
    pub progress: WatchProgress,
}

/// How much of the API server's history a sink has received; only for the counters of one watch.
#[derive(Debug, Default)]
pub struct WatchProgress {
    /// Number of lists begun.
    begun: AtomicU64,
    /// Number of the latest complete list.
    complete: AtomicU64,
    /// Resource version of the latest change; 0: unknown.
    version: AtomicU64,
}

impl WatchProgress {
    /// Returns the number of lists begun so far.
    pub fn lists_begun(&self) -> u64 {
        self.begun.load(Ordering::Acquire)
    }

    /// Returns whether a list is complete that began after the first `lists`: then the sink has received every change from before it.
    pub fn has_listed_after(&self, lists: u64) -> bool {
        self.complete.load(Ordering::Acquire) > lists
    }

    /// Returns whether the sink has received every change of the watched objects up to this resource version. `false` if that is
    /// unknown: the version of an object that did not change says little about the watch.
    pub fn has_reached(&self, version: u64) -> bool {
        self.version() >= version
    }

    /// Returns the resource version of the latest change that the sink has received; 0: unknown.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Creates the progress of a watch whose sink has received every change up to this version.
    pub fn reached(version: u64) -> Self {
        WatchProgress { version: AtomicU64::new(version), ..WatchProgress::default() }
    }

    fn advance(&self, version: u64) {
        self.version.fetch_max(version, Ordering::Release);
    }
}

/// Returns a resource version as a number: for objects in etcd it is the revision of the store, and versions of one kind compare.
/// `None`: it is not a number.
pub fn comparable_version(version: Option<&str>) -> Option<u64> {
    version?.parse().ok()
}

/// Watches all objects of a kind that match `field_selector`. Never returns; drop the future to stop.
///
/// The sink runs on the watch's own task, between two events: a slow one delays the watch.
pub async fn watch<K>(
    client: Client,
    field_selector: Option<&str>,
    counters: &WatchCounters,
    mut sink: impl FnMut(WatchChange<K>),
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    K::DynamicType: Default,
{
    let kind = K::DynamicType::default();
    let api: Api<Guarded<K>> = Api::all_with(client, &kind);
    let mut complaints = Complaints::new(K::plural(&kind).into_owned());
    let config = watcher::Config { field_selector: field_selector.map(str::to_owned), ..config() };
    let mut relists = Relists::default();
    loop {
        let stream =
            watcher::watcher(api.clone(), config.clone()).backoff(ShortBackoff(DefaultBackoff::default()));
        relists.begin();
        follow(stream, counters, &mut complaints, &mut relists, &mut sink, false).await;
        relists.pause(&complaints).await;
    }
}

/// Watches all objects of a kind until the server stops serving it.
pub(super) async fn watch_while_served<K>(
    client: Client,
    version: &K::DynamicType,
    counters: &WatchCounters,
    sink: &mut impl FnMut(WatchChange<K>),
) where
    K: Resource<DynamicType: Clone> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let api: Api<Guarded<K>> = Api::all_with(client, version);
    let mut complaints = Complaints::new(format!("{}.{}", K::plural(version), K::group(version)));
    let mut relists = Relists::default();
    loop {
        let stream = watcher::watcher(api.clone(), config()).backoff(ShortBackoff(DefaultBackoff::default()));
        relists.begin();
        if let End::NotServed = follow(stream, counters, &mut complaints, &mut relists, sink, true).await {
            return;
        }
        relists.pause(&complaints).await;
    }
}

fn config() -> watcher::Config {
    watcher::Config { page_size: Some(PAGE_SIZE), ..watcher::Config::default() }
}

/// The reason why a watch stream ended.
enum End {
    TooOld,
    NotServed,
}

/// A watch that lasts this long after its list may list again at once when it expires.
const STEADY: Duration = Duration::from_secs(60);
const FIRST_RELIST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_RELIST_PAUSE: Duration = Duration::from_secs(30);
/// Short watches in a row from which on their expiry is a fault.
const MANY_RELISTS: u32 = 3;

/// Pauses between the lists of a watch that expires soon after each of them. They double, and are no shorter than the
/// list took: so listing takes at most half of the time.
struct Relists {
    began: Instant,
    /// End of the list since then.
    listed: Option<Instant>,
    /// Watches in a row that were not steady.
    short: u32,
}

impl Default for Relists {
    fn default() -> Self {
        Relists { began: Instant::now(), listed: None, short: 0 }
    }
}

impl Relists {
    fn begin(&mut self) {
        (self.began, self.listed) = (Instant::now(), None);
    }

    fn listed(&mut self) {
        self.listed = Some(Instant::now());
    }

    /// Waits until the watch that just expired may list again.
    async fn pause(&mut self, complaints: &Complaints) {
        let now = Instant::now();
        let listed = self.listed.unwrap_or(now);
        if now - listed >= STEADY {
            self.short = 0;
            return;
        }
        let doubled = FIRST_RELIST_PAUSE.saturating_mul(1 << self.short.min(8)).min(LONGEST_RELIST_PAUSE);
        let pause = doubled.max(listed - self.began);
        self.short = self.short.saturating_add(1);
        if self.short >= MANY_RELISTS {
            complaints.keeps_expiring(self.short, pause);
        }
        tokio::time::sleep(pause).await;
    }
}

/// kube's backoff (from 0.8 s, doubling, with jitter), up to [`LONGEST_PAUSE`].
struct ShortBackoff(DefaultBackoff);

impl Iterator for ShortBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.0.next().map(|pause| pause.min(LONGEST_PAUSE))
    }
}

impl Backoff for ShortBackoff {
    fn reset(&mut self) {
        self.0.reset();
    }
}

/// Passes events to the sink until the watch has to be restarted: when its resource version is too old or, if `optional`, when
/// the server does not serve the kind.
async fn follow<K: Resource>(
    stream: impl Stream<Item = watcher::Result<Event<Guarded<K>>>>,
    counters: &WatchCounters,
    complaints: &mut Complaints,
    relists: &mut Relists,
    sink: &mut impl FnMut(WatchChange<K>),
    optional: bool,
) -> End {
    let mut stream = std::pin::pin!(stream);
    let count = |counter: &AtomicU64| {
        counter.fetch_add(1, Ordering::Relaxed);
    };
    let version_of = |object: &Guarded<K>| {
        comparable_version(object.meta().resource_version.as_deref()).unwrap_or_default()
    };
    // A list shows the state at one version, which is not below that of any object in it. `None`: no list is being received.
    let mut listed_version = None;
    while let Some(event) = stream.next().await {
        if !matches!(event, Ok(Event::Init) | Err(_)) {
            complaints.recovered();
        }
        match event {
            Ok(Event::Init) => {
                listed_version = Some(0);
                counters.progress.begun.fetch_add(1, Ordering::Release);
                sink(WatchChange::ListBegins);
            }
            Ok(Event::InitApply(object) | Event::Apply(object)) => {
                count(&counters.events);
                let version = version_of(&object);
                let object = object.into_result();
                if let Err(bad) = &object {
                    count(&counters.bad_objects);
                    complaints.bad_object(bad);
                }
                sink(WatchChange::Apply(object));
                match &mut listed_version {
                    Some(highest) => *highest = version.max(*highest),
                    None => counters.progress.advance(version),
                }
            }
            Ok(Event::Delete(mut object)) => {
                count(&counters.events);
                let version = version_of(&object);
                sink(WatchChange::Delete(ObjectId::take(object.meta_mut())));
                counters.progress.advance(version);
            }
            Ok(Event::InitDone) => {
                count(&counters.lists);
                relists.listed();
                sink(WatchChange::ListEnds);
                counters.progress.advance(listed_version.take().unwrap_or_default());
                let begun = counters.progress.lists_begun();
                counters.progress.complete.store(begun, Ordering::Release);
            }
            Err(error) if optional && status_code(&error) == Some(404) => return End::NotServed,
            Err(error) => {
                count(&counters.errors);
                complaints.error(&error);
                if matches!(error, watcher::Error::InitialListFailed(_))
                    && matches!(status_code(&error), Some(403 | 404))
                {
                    sink(WatchChange::Refused);
                }
                // kube's watcher lists again after a 410 in an event, but not when the watch request itself gets a 410.
                if matches!(status_code(&error), Some(410)) {
                    count(&counters.expired);
                    return End::TooOld;
                }
            }
        }
    }
    End::TooOld
}

fn status_code(error: &watcher::Error) -> Option<u16> {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => Some(status.code),
        _ => None,
    }
}

/// The throttled log of one watch.
struct Complaints {
    plural: String,
    errors: Throttle,
    bad_objects: Throttle,
    /// An error was logged, and no success since.
    failing: bool,
}

impl Complaints {
    fn new(plural: String) -> Self {
        Complaints { plural, errors: Throttle::default(), bad_objects: Throttle::default(), failing: false }
    }

    fn error(&mut self, error: &watcher::Error) {
        if !self.errors.is_due() {
            return;
        }
        self.failing = true;
        let plural = &self.plural;
        let error_text = with_causes(error);
        match status_code(error) {
            Some(403) => tracing::warn!(
                resource = plural,
                error = error_text,
                "berth's service account may not list and watch {plural}: check the ClusterRole; retrying"
            ),
            // The ordinary end of a watch whose history the server has compacted.
            Some(410) => tracing::info!(resource = plural, "the watch expired, listing again"),
            _ => tracing::warn!(resource = plural, error = error_text, "the watch failed, retrying"),
        }
    }

    fn keeps_expiring(&self, times: u32, pause: Duration) {
        tracing::warn!(
            resource = self.plural,
            times,
            pause_s = pause.as_secs_f64(),
            "the watch expires right after its list each time: check the API server and etcd's compaction; \
             {} are as old as the latest list until the next one",
            self.plural
        );
    }

    fn bad_object(&mut self, bad: &BadObject) {
        if self.bad_objects.is_due() {
            tracing::warn!(
                resource = self.plural,
                namespace = bad.id.namespace,
                name = bad.id.name,
                error = bad.error,
                "an object cannot be parsed and is ignored"
            );
        }
    }

    fn recovered(&mut self) {
        if std::mem::take(&mut self.failing) {
            tracing::info!(resource = self.plural, "the watch recovered");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;

    use http::{Request, Response};
    use k8s_openapi::api::core::v1::Pod;
    use kube::client::Body;
    use parking_lot::Mutex;

    use super::*;

    fn pod(name: &str, version: u32, containers: &str) -> String {
        format!(
            r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"name":"{name}","namespace":"x","uid":"u-{name}","resourceVersion":"{version}"}},"spec":{{"containers":{containers}}}}}"#
        )
    }

    fn list(version: u32, items: &[String]) -> String {
        let items = items.join(",");
        format!(
            r#"{{"kind":"PodList","apiVersion":"v1","metadata":{{"resourceVersion":"{version}"}},"items":[{items}]}}"#
        )
    }

    fn event(kind: &str, object: &str) -> String {
        format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n")
    }

    fn status(code: u16, reason: &str) -> String {
        format!(r#"{{"kind":"Status","status":"Failure","message":"no","reason":"{reason}","code":{code}}}"#)
    }

    /// Watches an API server that gives `answers` and then none. Returns the requests and the changes that the sink received.
    async fn watched(answers: Vec<(u16, String)>, counters: &WatchCounters) -> (Vec<String>, Vec<String>) {
        let answers = Mutex::new(VecDeque::from(answers));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let silence = Arc::new(tokio::sync::Notify::new());
        let service = {
            let (requests, silence) = (requests.clone(), silence.clone());
            tower::service_fn(move |request: Request<Body>| {
                let answer = answers.lock().pop_front();
                match answer {
                    Some(_) => requests.lock().push(request.uri().to_string()),
                    None => silence.notify_one(),
                }
                async move {
                    let Some((status, body)) = answer else {
                        std::future::pending::<()>().await;
                        unreachable!("pending for ever")
                    };
                    let response = Response::builder().status(status);
                    response.body(Body::from(body.into_bytes()))
                }
            })
        };
        let mut told = Vec::new();
        let sink = |change: WatchChange<Pod>| {
            told.push(match change {
                WatchChange::ListBegins => "begin".to_owned(),
                WatchChange::Apply(Ok(pod)) => format!("apply {}", pod.metadata.name.unwrap_or_default()),
                WatchChange::Apply(Err(bad)) => format!("bad {}", bad.id.name),
                WatchChange::Delete(id) => format!("delete {} {}", id.name, id.uid),
                WatchChange::ListEnds => "end".to_owned(),
                WatchChange::NotServed => "not served".to_owned(),
                WatchChange::Refused => "refused".to_owned(),
            });
        };
        tokio::select! {
            () = watch(Client::new(service, "default"), Some(LIVE_PODS), counters, sink) => {}
            () = silence.notified() => {}
        }
        let requests = requests.lock().clone();
        (requests, told)
    }

    #[tokio::test(start_paused = true)]
    async fn a_bad_object_is_told_as_such_and_stops_neither_list_nor_watch() {
        let counters = WatchCounters::default();
        let events = [
            event("MODIFIED", &pod("b", 11, "false")),
            event("BOOKMARK", r#"{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"12"}}"#),
            event("DELETED", &pod("b", 13, "false")),
            event("ADDED", &pod("c", 14, "[]")),
        ];
        let answers = vec![
            (200, list(10, &[pod("a", 1, "[]"), pod("b", 2, "7"), pod("d", 3, "[]")])),
            (200, events.concat()),
        ];
        let (requests, told) = watched(answers, &counters).await;
        assert_eq!(told, ["begin", "apply a", "bad b", "apply d", "end", "bad b", "delete b u-b", "apply c"]);
        assert!(requests[0].contains("limit=500"), "{requests:?}");
        for request in &requests {
            assert!(request.contains("fieldSelector=status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed"));
        }
        assert!(requests[1].contains("resourceVersion=10"), "{requests:?}");
        let progress = &counters.progress;
        assert!(progress.has_listed_after(0) && !progress.has_listed_after(progress.lists_begun()));
        assert!(progress.has_reached(14) && !progress.has_reached(15));
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        assert_eq!(
            (of(&counters.events), of(&counters.lists), of(&counters.bad_objects), of(&counters.errors)),
            (6, 1, 2, 0)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_is_too_old_lists_anew_however_the_server_says_so() {
        let list_of = |name: &str| (200, list(10, &[pod(name, 1, "[]")]));
        let by_event = (200, event("ERROR", &status(410, "Expired")));
        let by_answer = (410, status(410, "Expired"));
        for expired in [by_event, by_answer] {
            let counters = WatchCounters::default();
            let (_, told) = watched(vec![list_of("a"), expired, list_of("b")], &counters).await;
            assert_eq!(told, ["begin", "apply a", "end", "begin", "apply b", "end"]);
            assert_eq!(counters.errors.load(Ordering::Relaxed), 1);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_is_always_too_old_lists_less_and_less_often() {
        let list = || (200, list(10, &[pod("a", 1, "[]")]));
        let answers = |times: usize| -> Vec<(u16, String)> {
            (0..times).flat_map(|_| [list(), (410, status(410, "Expired"))]).collect()
        };
        let (counters, started) = (WatchCounters::default(), Instant::now());
        let (_, told) = watched(answers(3), &counters).await;
        assert_eq!((told.len(), told.last().map(String::as_str)), (10, Some("begin")), "{told:?}");
        assert_eq!(started.elapsed().as_secs(), 1 + 2 + 4);
        assert_eq!(counters.expired.load(Ordering::Relaxed), 3);
        let started = Instant::now();
        watched(answers(100), &counters).await;
        let longest = LONGEST_RELIST_PAUSE.as_secs();
        assert_eq!(started.elapsed().as_secs(), 1 + 2 + 4 + 8 + 16 + 95 * longest);
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_lasted_lists_again_at_once_and_a_slow_list_waits_as_long_as_it_took() {
        let complaints = Complaints::new("pods".to_owned());
        let mut relists = Relists::default();
        let round = async |relists: &mut Relists, list: Duration, watch: Duration| {
            relists.begin();
            tokio::time::advance(list).await;
            relists.listed();
            tokio::time::advance(watch).await;
            let expired = Instant::now();
            relists.pause(&complaints).await;
            expired.elapsed().as_secs()
        };
        let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
        assert_eq!(round(&mut relists, second, second).await, 1);
        assert_eq!(round(&mut relists, second, second).await, 2);
        assert_eq!(round(&mut relists, second, minute).await, 0);
        assert_eq!(round(&mut relists, second, second).await, 1);
        assert_eq!(round(&mut relists, 5 * minute, second).await, 300);
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_breaks_off_begins_again() {
        let counters = WatchCounters::default();
        let mut first_page = list(10, &[pod("a", 1, "[]")]);
        first_page = first_page.replace(
            r#""metadata":{"resourceVersion":"10"}"#,
            r#""metadata":{"resourceVersion":"10","continue":"more"}"#,
        );
        let answers = vec![
            (403, status(403, "Forbidden")),
            (200, first_page),
            (500, status(500, "InternalError")),
            (200, list(11, &[pod("b", 2, "[]")])),
        ];
        let (_, told) = watched(answers, &counters).await;
        assert_eq!(told, ["begin", "refused", "begin", "apply a", "begin", "apply b", "end"]);
        assert_eq!(counters.lists.load(Ordering::Relaxed), 1);
    }
}
