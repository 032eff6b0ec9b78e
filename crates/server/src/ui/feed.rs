//! One stream for all viewers of the page: a new viewer gets the whole state, then the changes, once a second.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use futures::Stream;
use parking_lot::Mutex;
use tokio::sync::broadcast::{self, Receiver, Sender};

use super::overview::{Overview, PageSources};
use berth_scheduler::engine::Engine;

/// Interval of the stream.
const EVERY: Duration = Duration::from_secs(1);
/// A viewer that comes sooner after the last look shares it.
const FRESH: Duration = Duration::from_millis(500);
/// Viewers at once.
pub const VIEWERS_MAX: usize = 32;
/// Seconds that a slow viewer may be behind; then its stream ends, and the browser connects again.
const BEHIND_MAX: usize = 8;

/// Counters of the page.
#[derive(Debug, Default)]
pub struct UiCounters {
    pub viewers: AtomicUsize,
    /// Bytes sent to all viewers together.
    pub bytes: AtomicU64,
    /// Streams that ended because the viewer was too slow.
    pub lagging: AtomicU64,
}

/// Looks at the engine while anybody watches.
pub struct Feed {
    engine: Engine,
    sources: PageSources,
    counters: Arc<UiCounters>,
    inner: Mutex<Inner>,
}

struct Inner {
    overview: Overview,
    looked: Option<Instant>,
    /// `None`: the process stops.
    viewers: Option<Sender<Bytes>>,
}

/// Reason why there is no stream for another viewer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StreamRefusal {
    #[error("{VIEWERS_MAX} viewers watch already, which is the maximum: close a page, or try again later")]
    Full,
    #[error("this process stops")]
    Stopping,
}

impl Feed {
    pub fn new(engine: Engine, sources: PageSources, counters: Arc<UiCounters>) -> Feed {
        let viewers = Some(broadcast::channel(BEHIND_MAX).0);
        Feed {
            engine,
            sources,
            counters,
            inner: Mutex::new(Inner { overview: Overview::default(), looked: None, viewers }),
        }
    }

    /// Sends what changes to the viewers until `stop` resolves; then their streams end.
    pub async fn run(self: Arc<Self>, stop: impl Future<Output = ()>) {
        let mut stop = std::pin::pin!(stop);
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = &mut stop => break,
                _ = ticks.tick() => {}
            }
            let feed = self.clone();
            // It walks over nodes and pods.
            if let Err(error) = tokio::task::spawn_blocking(move || feed.tick()).await {
                tracing::error!(%error, "the stream of the page failed");
            }
        }
        self.inner.lock().viewers = None;
    }

    /// Looks at the engine, or forgets it if nobody watches.
    pub(super) fn tick(&self) {
        let mut inner = self.inner.lock();
        if inner.viewers.as_ref().is_some_and(|viewers| viewers.receiver_count() > 0) {
            self.look(&mut inner);
        } else {
            (inner.overview, inner.looked) = (Overview::default(), None);
        }
    }

    fn look(&self, inner: &mut Inner) {
        let now = jiff::Timestamp::now().as_millisecond();
        let events = inner.overview.advance(&self.engine, &self.sources, now);
        inner.looked = Some(Instant::now());
        if let Some(viewers) = &inner.viewers {
            // An error says that nobody watches.
            let _ = viewers.send(events.into());
        }
    }

    /// Returns whether it keeps a state for viewers.
    #[cfg(test)]
    pub(super) fn keeps(&self) -> bool {
        self.inner.lock().looked.is_some()
    }

    /// Adds a viewer. Walks over nodes and pods, unless others watch already.
    ///
    /// # Errors
    /// There are too many, or the process stops.
    pub fn watch(&self) -> Result<impl Stream<Item = Bytes> + Send + use<>, StreamRefusal> {
        let mut inner = self.inner.lock();
        let viewers = inner.viewers.as_ref().ok_or(StreamRefusal::Stopping)?;
        if viewers.receiver_count() >= VIEWERS_MAX {
            return Err(StreamRefusal::Full);
        }
        if inner.looked.is_none_or(|looked| looked.elapsed() >= FRESH) {
            self.look(&mut inner);
        }
        let events = inner.viewers.as_ref().ok_or(StreamRefusal::Stopping)?.subscribe();
        let viewer = Viewer::new(self.counters.clone(), inner.overview.whole().into(), events);
        Ok(futures::stream::unfold(viewer, Viewer::next))
    }
}

/// One viewer; counted while it exists.
struct Viewer {
    counters: Arc<UiCounters>,
    first: Option<Bytes>,
    events: Receiver<Bytes>,
}

impl Viewer {
    fn new(counters: Arc<UiCounters>, first: Bytes, events: Receiver<Bytes>) -> Viewer {
        counters.viewers.fetch_add(1, Relaxed);
        Viewer { counters, first: Some(first), events }
    }

    /// Returns the next bytes of its stream; `None`: it ends.
    async fn next(mut self) -> Option<(Bytes, Viewer)> {
        let bytes = match self.first.take() {
            Some(first) => first,
            None => match self.events.recv().await {
                Ok(events) => events,
                Err(broadcast::error::RecvError::Closed) => return None,
                Err(broadcast::error::RecvError::Lagged(_)) => {
                    self.counters.lagging.fetch_add(1, Relaxed);
                    return None;
                }
            },
        };
        self.counters.bytes.fetch_add(bytes.len() as u64, Relaxed);
        Some((bytes, self))
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        self.counters.viewers.fetch_sub(1, Relaxed);
    }
}
