//! Time as the controllers see it: that of the system, or of a simulation in which a day passes in minutes.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::Timestamp;
use tokio::time::Instant;

use berth_rightsizing::recommend::UnixNanos;

/// Where the time comes from.
pub trait TimeSource: Send + Sync {
    /// The time of day, which may jump.
    fn now(&self) -> Timestamp;

    /// Time since some beginning. It never goes back.
    fn elapsed(&self) -> Duration;

    /// Resolves once [`TimeSource::elapsed`] has reached this.
    fn sleep_until(&self, elapsed: Duration) -> BoxFuture<'static, ()>;
}

/// The clock of the controllers. Cheap to clone.
#[derive(Clone)]
pub struct Clock(Arc<dyn TimeSource>);

impl Clock {
    pub fn new(source: impl TimeSource + 'static) -> Clock {
        Clock(Arc::new(source))
    }

    /// Returns a clock that shows the time of the system.
    pub fn of_system() -> Clock {
        Clock::new(System(Instant::now()))
    }

    pub fn now(&self) -> Timestamp {
        self.0.now()
    }

    /// Returns the time in nanoseconds since 1970.
    pub fn now_ns(&self) -> UnixNanos {
        UnixNanos::try_from(self.now().as_nanosecond()).unwrap_or(UnixNanos::MAX)
    }

    /// Returns the time since some beginning, for intervals: it never goes back.
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    pub(crate) fn ticks(&self, interval: Duration) -> Ticks {
        Ticks { clock: self.clone(), interval, next: self.elapsed() }
    }
}

/// The time of the system, since this instant.
struct System(Instant);

impl TimeSource for System {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep_until(&self, elapsed: Duration) -> BoxFuture<'static, ()> {
        tokio::time::sleep_until(self.0 + elapsed).boxed()
    }
}

/// A tick that is late by no more than this is on time.
const LATE: Duration = Duration::from_millis(5);

/// Ticks at an interval. One that is late delays the next ones.
pub(crate) struct Ticks {
    clock: Clock,
    interval: Duration,
    next: Duration,
}

impl Ticks {
    /// Resolves at the next tick; the first one is at once. A call that is cancelled loses no tick.
    pub async fn tick(&mut self) {
        self.clock.0.sleep_until(self.next).await;
        let late = self.clock.elapsed().saturating_sub(self.next);
        self.next += self.interval + if late > LATE { late } else { Duration::ZERO };
    }
}
