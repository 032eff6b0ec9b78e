//! A clock that stands still until it is moved.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_controllers::clock::{Clock, TimeSource};
use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::{Timestamp, ToSpan};
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

/// Maximum real time of what the controllers do in one moment.
const MOMENT_MAX: Duration = Duration::from_secs(120);

/// Those who sleep, each with the end of its sleep.
struct Sleepers {
    elapsed: Duration,
    next: u64,
    all: BTreeMap<u64, (Duration, oneshot::Sender<()>)>,
    count: watch::Sender<usize>,
}

/// The time of the test.
#[derive(Clone)]
pub struct DayClock {
    start: Timestamp,
    sleepers: Arc<Mutex<Sleepers>>,
}

impl DayClock {
    pub fn start(start: Timestamp) -> DayClock {
        let (count, _) = watch::channel(0);
        let sleepers = Sleepers { elapsed: Duration::ZERO, next: 0, all: BTreeMap::new(), count };
        DayClock { start, sleepers: Arc::new(Mutex::new(sleepers)) }
    }

    /// Returns the seconds since 1970.
    pub fn now_s(&self) -> i64 {
        self.start.as_second() + self.sleepers.lock().elapsed.as_secs().cast_signed()
    }

    /// Returns the clock of a machine, which is wrong by these seconds.
    pub fn skewed(&self, skew_s: i64) -> Clock {
        Clock::new(Skewed { clock: self.clone(), skew_s })
    }

    /// Moves it, and wakes those whose sleep has ended.
    pub fn advance(&self, by: Duration) {
        let mut sleepers = self.sleepers.lock();
        sleepers.elapsed += by;
        let elapsed = sleepers.elapsed;
        let woken: Vec<u64> =
            sleepers.all.iter().filter(|(_, (until, _))| *until <= elapsed).map(|(id, _)| *id).collect();
        for id in woken {
            if let Some((_, wake)) = sleepers.all.remove(&id) {
                let _ = wake.send(());
            }
        }
        sleepers.count.send_replace(sleepers.all.len());
    }

    /// Waits until this many sleep.
    pub async fn await_sleepers(&self, count: usize) {
        let mut sleeping = self.sleepers.lock().count.subscribe();
        let waits = timeout(MOMENT_MAX, sleeping.wait_for(|sleeping| *sleeping == count)).await;
        assert!(waits.is_ok(), "of {count} loops, some do not sleep after {MOMENT_MAX:?}");
    }
}

struct Skewed {
    clock: DayClock,
    skew_s: i64,
}

impl TimeSource for Skewed {
    fn now(&self) -> Timestamp {
        let elapsed = i64::try_from(self.elapsed().as_nanos()).expect("days");
        self.clock.start + elapsed.nanoseconds() + self.skew_s.seconds()
    }

    fn elapsed(&self) -> Duration {
        self.clock.sleepers.lock().elapsed
    }

    fn sleep_until(&self, elapsed: Duration) -> BoxFuture<'static, ()> {
        let mut sleepers = self.clock.sleepers.lock();
        if elapsed <= sleepers.elapsed {
            return std::future::ready(()).boxed();
        }
        let (wake, woken) = oneshot::channel();
        let id = sleepers.next;
        sleepers.next += 1;
        sleepers.all.insert(id, (elapsed, wake));
        sleepers.count.send_replace(sleepers.all.len());
        let sleep = Sleep { id, sleepers: self.clock.sleepers.clone() };
        async move {
            let _sleep = sleep;
            let _ = woken.await;
        }
        .boxed()
    }
}

/// Ends when it is dropped.
struct Sleep {
    id: u64,
    sleepers: Arc<Mutex<Sleepers>>,
}

impl Drop for Sleep {
    fn drop(&mut self) {
        let mut sleepers = self.sleepers.lock();
        if sleepers.all.remove(&self.id).is_some() {
            sleepers.count.send_replace(sleepers.all.len());
        }
    }
}
