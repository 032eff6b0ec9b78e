//! List and watch, for as long as the process lives.
//!
//! A watch never ends and never stops at an error; what it sees goes to a synchronous sink, objects by value. Between
//! list and watch no event is lost: the watch starts at the list's resource version, and begins with a new list when
//! the server no longer has it (410).

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

use super::client::with_causes;
use super::guarded::{BadObject, Guarded, ObjectId};

/// Pods that still hold resources or wait for a node: all but the finished ones.
pub const LIVE_PODS: &str = "status.phase!=Succeeded,status.phase!=Failed";

/// A page of 500 pods is about 4 MB of JSON; parsing it keeps a thread busy for 10 ms.
const PAGE_SIZE: u32 = 500;

/// A scheduler without its watch is blind: client-go's 30 s are too long after an outage.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A watch that fails for hours says so twice a minute.
const WARN_EVERY: Duration = Duration::from_secs(30);

/// What a watch tells its sink.
#[derive(Debug)]
pub enum Change<K> {
    /// A complete list follows as `Apply`s. If the list breaks off, another `ListBegins` comes: forget the first one.
    ListBegins,
    /// An object is there, or is different now.
    Apply(Result<K, BadObject>),
    /// An object is gone. Its uid may be another than that of the object known by this name.
    Delete(ObjectId),
    /// The list was complete: whatever was not in it is gone.
    ListEnds,
}

/// What a watch has seen.
#[derive(Debug, Default)]
pub struct WatchCounters {
    /// Objects applied and deleted, those of lists included.
    pub events: AtomicU64,
    /// Complete lists; the first one too.
    pub lists: AtomicU64,
    /// Requests refused, connections lost, watches expired.
    pub errors: AtomicU64,
    /// Applied objects that did not parse, counted each time.
    pub bad_objects: AtomicU64,
}

/// Watches all objects of a kind that match `field_selector`. Never returns; drop the future to stop.
///
/// The sink runs on the watch's own task, between two events: a slow one delays the watch.
pub async fn watch<K>(
    client: Client,
    field_selector: Option<&str>,
    counters: &WatchCounters,
    mut sink: impl FnMut(Change<K>),
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    K::DynamicType: Default,
{
    let api: Api<Guarded<K>> = Api::all(client);
    let mut complaints = Complaints::new(K::plural(&K::DynamicType::default()).into_owned());
    let config = watcher::Config {
        field_selector: field_selector.map(str::to_owned),
        page_size: Some(PAGE_SIZE),
        ..watcher::Config::default()
    };
    loop {
        let stream =
            watcher::watcher(api.clone(), config.clone()).backoff(ShortBackoff(DefaultBackoff::default()));
        follow(stream, counters, &mut complaints, &mut sink).await;
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

/// Passes events on until the watch has to be started anew.
async fn follow<K: Resource>(
    stream: impl Stream<Item = watcher::Result<Event<Guarded<K>>>>,
    counters: &WatchCounters,
    complaints: &mut Complaints,
    sink: &mut impl FnMut(Change<K>),
) {
    let mut stream = std::pin::pin!(stream);
    let count = |counter: &AtomicU64| {
        counter.fetch_add(1, Ordering::Relaxed);
    };
    while let Some(event) = stream.next().await {
        if !matches!(event, Ok(Event::Init) | Err(_)) {
            complaints.recovered();
        }
        match event {
            Ok(Event::Init) => sink(Change::ListBegins),
            Ok(Event::InitApply(object) | Event::Apply(object)) => {
                count(&counters.events);
                let object = object.into_result();
                if let Err(bad) = &object {
                    count(&counters.bad_objects);
                    complaints.bad_object(bad);
                }
                sink(Change::Apply(object));
            }
            Ok(Event::Delete(mut object)) => {
                count(&counters.events);
                sink(Change::Delete(ObjectId::from(object.meta_mut())));
            }
            Ok(Event::InitDone) => {
                count(&counters.lists);
                sink(Change::ListEnds);
            }
            Err(error) => {
                count(&counters.errors);
                complaints.error(&error);
                // kube's watcher lists anew when an event says 410, but not when the watch request itself is answered so.
                if matches!(status_code(&error), Some(410)) {
                    return;
                }
            }
        }
    }
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

/// The log of one watch, bounded in rate.
struct Complaints {
    plural: String,
    last_error: Option<Instant>,
    last_bad_object: Option<Instant>,
    /// An error was logged, and no success since.
    failing: bool,
}

impl Complaints {
    fn new(plural: String) -> Self {
        Complaints {
            plural,
            last_error: None,
            last_bad_object: None,
            failing: false,
        }
    }

    fn error(&mut self, error: &watcher::Error) {
        if !due(&mut self.last_error) {
            return;
        }
        self.failing = true;
        let plural = &self.plural;
        let error_text = with_causes(error);
        match status_code(error) {
            Some(403) => tracing::warn!(
                resource = plural,
                error = error_text,
                "berth's service account may not list and watch {plural}: check the ClusterRole; trying again"
            ),
            // The ordinary end of a watch whose history the server has compacted.
            Some(410) => tracing::info!(resource = plural, "the watch is too old, listing anew"),
            _ => tracing::warn!(
                resource = plural,
                error = error_text,
                "the watch failed, trying again"
            ),
        }
    }

    fn bad_object(&mut self, bad: &BadObject) {
        if due(&mut self.last_bad_object) {
            tracing::warn!(
                resource = self.plural,
                namespace = bad.id.namespace,
                name = bad.id.name,
                error = bad.error,
                "an object cannot be read and is left out; berth_watch_bad_objects_total counts them"
            );
        }
    }

    fn recovered(&mut self) {
        if std::mem::take(&mut self.failing) {
            tracing::info!(resource = self.plural, "the watch works again");
        }
    }
}

fn due(last: &mut Option<Instant>) -> bool {
    let now = Instant::now();
    let due = last.is_none_or(|last| now - last >= WARN_EVERY);
    if due {
        *last = Some(now);
    }
    due
}
