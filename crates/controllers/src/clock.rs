//! Time as the controllers see it: that of the system, or of a simulation in which a day passes in minutes.
//!
//! Prometheus dates samples by its own clock, and a leader reads what former ones, on other machines, have written. A leader whose clock
//! is minutes behind would take old samples for current ones, and relate them to the current number of replicas. So the controllers
//! follow the clock of Prometheus.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use berth_prometheus::PrometheusSource;
use berth_rightsizing::recommend::UnixNanos;

/// Time after which Prometheus is asked for the time again.
const FOLLOW_EVERY: Duration = Duration::from_secs(60);
/// The same after a failure.
const AGAIN_AFTER: Duration = Duration::from_secs(15);
/// Maximum time that is waited for the answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// A change of the difference that is not worth a line in the log, in milliseconds: it may be that of slow answers.
const TOLERANCE_MS: u64 = 5_000;
/// Maximum difference that is believed.
const AHEAD_MAX: SignedDuration = SignedDuration::from_hours(1);

/// Where the time comes from.
pub trait TimeSource: Send + Sync {
    /// The time of day, which may jump.
    fn now(&self) -> Timestamp;

    /// Time since some beginning. It never goes back.
    fn elapsed(&self) -> Duration;

    /// Resolves once [`TimeSource::elapsed`] has reached this.
    fn sleep_until(&self, elapsed: Duration) -> BoxFuture<'static, ()>;
}

/// The clock of the controllers. Cheap to clone; clones follow together.
#[derive(Clone)]
pub struct Clock {
    source: Arc<dyn TimeSource>,
    followed: Arc<Followed>,
    /// Milliseconds by which it was ahead of the source when Prometheus last said the time.
    ahead: Arc<AtomicI64>,
}

/// What Prometheus has said.
#[derive(Default)]
struct Followed {
    /// A time, and [`Clock::elapsed`] then: steps of this machine's clock do not matter from then on.
    known: parking_lot::Mutex<Option<(Timestamp, Duration)>>,
    /// When to ask again, by [`Clock::elapsed`]. Locked while Prometheus is being asked.
    next: Mutex<Duration>,
}

impl Clock {
    pub fn new(source: impl TimeSource + 'static) -> Clock {
        Clock { source: Arc::new(source), followed: Arc::default(), ahead: Arc::default() }
    }

    /// Returns a clock that shows the time of the system.
    pub fn of_system() -> Clock {
        Clock::new(System(Instant::now()))
    }

    pub fn now(&self) -> Timestamp {
        let known = *self.followed.known.lock();
        known.map_or_else(
            || self.source.now(),
            |(time, then)| after(time, self.elapsed().saturating_sub(then)),
        )
    }

    /// Returns the milliseconds by which it is ahead of the clock of this machine.
    pub fn ahead(&self) -> Arc<AtomicI64> {
        self.ahead.clone()
    }

    /// Asks Prometheus for the time once a minute, and goes by it from then on.
    ///
    /// # Errors
    /// Prometheus has never returned a time that is believed, so it is unknown which of its samples are current.
    pub(crate) async fn follow(&self, prometheus: &PrometheusSource) -> Result<(), String> {
        let is_known = || self.followed.known.lock().is_some();
        let mut next = match self.followed.next.try_lock() {
            Ok(next) => next,
            // Another task asks.
            Err(_) if is_known() => return Ok(()),
            Err(_) => self.followed.next.lock().await,
        };
        if is_known() && self.elapsed() < *next {
            return Ok(());
        }
        let (asked, asked_at) = (self.elapsed(), self.source.now());
        let said = match timeout(ANSWER_MAX, prometheus.time()).await {
            Ok(said) => said.map_err(|error| error.to_string()),
            Err(_) => Err(format!("there has been no answer for {ANSWER_MAX:?}")),
        };
        let half = self.elapsed().saturating_sub(asked) / 2;
        match said.and_then(|said| believed(said, after(asked_at, half))) {
            Ok((said, ahead)) => {
                *self.followed.known.lock() = Some((said, asked + half));
                let ahead = i64::try_from(ahead.as_millis()).unwrap_or(0);
                let before = self.ahead.swap(ahead, Relaxed);
                if (ahead - before).unsigned_abs() > TOLERANCE_MS {
                    tracing::warn!(
                        seconds = ahead / 1_000,
                        "the clock of Prometheus differs from that of this machine; following it"
                    );
                }
                *next = self.elapsed() + FOLLOW_EVERY;
                Ok(())
            }
            Err(error) if is_known() => {
                tracing::debug!(%error, "cannot read the time from Prometheus");
                *next = self.elapsed() + AGAIN_AFTER;
                Ok(())
            }
            Err(error) => Err(format!("the time of Prometheus is unknown: {error}")),
        }
    }

    /// Returns the time in nanoseconds since 1970.
    pub fn now_ns(&self) -> UnixNanos {
        UnixNanos::try_from(self.now().as_nanosecond()).unwrap_or(UnixNanos::MAX)
    }

    /// Returns the time since some beginning, for intervals: it never goes back.
    pub fn elapsed(&self) -> Duration {
        self.source.elapsed()
    }

    pub(crate) fn ticks(&self, interval: Duration) -> Ticks {
        Ticks { clock: self.clone(), interval, next: self.elapsed() }
    }
}

fn after(time: Timestamp, passed: Duration) -> Timestamp {
    time.checked_add(passed).unwrap_or(time)
}

/// Returns what Prometheus has said, and by how much that is ahead of this machine's clock.
fn believed(said: Option<Timestamp>, own: Timestamp) -> Result<(Timestamp, SignedDuration), String> {
    let said = said.ok_or("it returned no time")?;
    let ahead = said.duration_since(own);
    if ahead.abs() > AHEAD_MAX {
        let seconds = ahead.as_secs();
        return Err(format!(
            "its clock shows {said}, {seconds} s ahead of this machine's: set the one that is wrong"
        ));
    }
    Ok((said, ahead))
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
        self.clock.source.sleep_until(self.next).await;
        let late = self.clock.elapsed().saturating_sub(self.next);
        self.next += self.interval + if late > LATE { late } else { Duration::ZERO };
    }
}

/// A clock that began at these seconds since 1970, and stands still unless the second number, of seconds since then, is changed.
#[cfg(test)]
pub(crate) struct Still(pub i64, pub Arc<std::sync::atomic::AtomicU64>);

#[cfg(test)]
impl TimeSource for Still {
    fn now(&self) -> Timestamp {
        Timestamp::from_second(self.0).expect("a time") + self.elapsed()
    }

    fn elapsed(&self) -> Duration {
        Duration::from_secs(self.1.load(Relaxed))
    }

    fn sleep_until(&self, _: Duration) -> BoxFuture<'static, ()> {
        std::future::pending().boxed()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use berth_prometheus::PrometheusConfig;
    use berth_test_support::prometheus::{Fake, install_provider, scalar, vector};

    use super::*;

    const NOW_S: i64 = 1_700_000_000;

    /// Follows a Prometheus that answers this at each minute. Returns what the clock is ahead then, or why it is not followed, and the
    /// number of questions.
    async fn followed(answers: &'static [fn(i64) -> String]) -> (Vec<Result<i64, String>>, usize) {
        install_provider();
        let elapsed = Arc::<AtomicU64>::default();
        let answering = elapsed.clone();
        let fake = Fake::start(move |_, asked| {
            assert!(asked.is_time() && !asked.form.contains_key("time"), "{asked:?}");
            let elapsed = answering.load(Relaxed);
            answers[elapsed as usize / 60](NOW_S + elapsed.cast_signed())
        })
        .await;
        let config = PrometheusConfig { url: fake.url.clone(), ..PrometheusConfig::default() };
        let prometheus = PrometheusSource::new(config).unwrap();
        let clock = Clock::new(Still(NOW_S, elapsed.clone()));
        let mut ahead = Vec::new();
        for _ in answers {
            let own = clock.source.now();
            let result = clock.follow(&prometheus).await;
            ahead.push(result.map(|()| clock.now().duration_since(own).as_secs()));
            elapsed.fetch_add(30, Relaxed);
            let _ = clock.follow(&prometheus).await;
            elapsed.fetch_add(30, Relaxed);
        }
        (ahead, fake.asked().len())
    }

    #[tokio::test]
    async fn the_clock_of_prometheus_is_followed_and_it_is_asked_once_a_minute() {
        let answers: &[fn(i64) -> String] = &[
            |now| scalar(now + 300),
            |now| scalar(now + 301),
            |now| scalar(now - 45),
            |now| scalar(now + 1),
        ];
        let (ahead, asked) = followed(answers).await;
        assert_eq!(ahead, [Ok(300), Ok(301), Ok(-45), Ok(1)]);
        assert_eq!(asked, 4);
    }

    #[tokio::test]
    async fn a_time_that_cannot_be_true_is_not_followed() {
        let answers: &[fn(i64) -> String] = &[
            |now| scalar(now + 20),
            |_| scalar(0),
            |_| vector(""),
            |now| scalar(now + 3_601),
            |now| scalar(now),
        ];
        let (ahead, _) = followed(answers).await;
        assert_eq!(ahead, [Ok(20), Ok(20), Ok(20), Ok(20), Ok(0)], "what was known stays");

        let (mut ahead, _) =
            followed(&[|now| scalar(now + 7_200), |_| scalar(0), |now| scalar(now + 20)]).await;
        assert_eq!(ahead.pop(), Some(Ok(20)));
        let error = ahead.swap_remove(0).expect_err("two hours");
        assert_eq!(
            error,
            "the time of Prometheus is unknown: its clock shows 2023-11-15T00:13:20Z, 7200 s ahead of this machine's: set the one \
             that is wrong"
        );
        assert!(ahead[0].is_err(), "nothing was known before");
    }

    #[tokio::test]
    async fn a_prometheus_that_hangs_once_its_time_is_known_delays_nobody() {
        install_provider();
        let fake = Fake::start_async(|number, _| async move {
            if number > 0 {
                std::future::pending::<()>().await;
            }
            http::Response::new(scalar(NOW_S + 300).into())
        })
        .await;
        let config = PrometheusConfig { url: fake.url.clone(), ..PrometheusConfig::default() };
        let prometheus = PrometheusSource::new(config).unwrap();
        let elapsed = Arc::<AtomicU64>::default();
        let clock = Clock::new(Still(NOW_S, elapsed.clone()));
        clock.follow(&prometheus).await.expect("it is followed");
        elapsed.store(60, Relaxed);
        let asking = tokio::spawn({
            let (clock, prometheus) = (clock.clone(), prometheus.clone());
            async move { clock.follow(&prometheus).await }
        });
        while fake.asked().len() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        clock.follow(&prometheus).await.expect("another task asks");
        assert!(!asking.is_finished());
        asking.await.expect("it ends").expect("what was known stays");
        assert_eq!(clock.now().as_second(), NOW_S + 360);
    }
}
