//! Liveness and readiness of the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The least time after which a loop that has not come around is stuck.
const ROUND_MIN: Duration = Duration::from_secs(60);

/// Set by the components of the process, read by the probes. Clones share their state.
#[derive(Clone, Default)]
pub struct Health {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    broken: AtomicBool,
    synced: AtomicBool,
    catching_up: AtomicBool,
    stopping: AtomicBool,
    loops: Mutex<Vec<WatchedLoop>>,
}

/// A loop that must always come around.
struct WatchedLoop {
    name: &'static str,
    /// It is stuck after this time without a round.
    most: Duration,
    rounds: Arc<AtomicU64>,
    /// Rounds at the last look, and when they changed.
    seen: (u64, Instant),
}

impl WatchedLoop {
    fn is_stuck(&mut self, now: Instant) -> bool {
        let rounds = self.rounds.load(Ordering::Relaxed);
        if rounds != self.seen.0 {
            self.seen = (rounds, now);
        }
        now.saturating_duration_since(self.seen.1) >= self.most
    }
}

impl Health {
    /// Records that a component ended that must never end.
    pub fn set_broken(&self) {
        self.shared.broken.store(true, Ordering::Relaxed);
    }

    /// Records that all pods and nodes have been listed.
    pub fn set_synced(&self) {
        self.shared.synced.store(true, Ordering::Relaxed);
    }

    /// Records whether a process that leads without an election still waits to observe pods that were bound before it started.
    pub fn set_catching_up(&self, catching_up: bool) {
        self.shared.catching_up.store(catching_up, Ordering::Relaxed);
    }

    pub fn set_stopping(&self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
    }

    /// Watches a loop that counts its rounds. `longest`: time of one round, however its work ends; after twice that time, and at
    /// least a minute, it is stuck.
    pub fn watch_loop(&self, name: &'static str, longest: Duration, rounds: Arc<AtomicU64>) {
        let (most, seen) = (ROUND_MIN.max(2 * longest), (rounds.load(Ordering::Relaxed), Instant::now()));
        self.shared.loops.lock().push(WatchedLoop { name, most, rounds, seen });
    }

    /// Returns `Err` if the process must be restarted.
    pub fn alive(&self) -> Result<(), String> {
        self.alive_at(Instant::now())
    }

    fn alive_at(&self, now: Instant) -> Result<(), String> {
        if self.shared.broken.load(Ordering::Relaxed) {
            return Err("a component of berth has ended: see the log".to_owned());
        }
        // All are looked at, so that each knows when it last came around.
        let mut loops = self.shared.loops.lock();
        let stuck: Vec<_> = loops.iter_mut().filter_map(|it| it.is_stuck(now).then_some(it.name)).collect();
        match &*stuck {
            [] => Ok(()),
            names => Err(format!("stuck: {}", names.join(", "))),
        }
    }

    /// Returns `Err` while the process cannot schedule, or take over from the leader.
    pub fn ready(&self) -> Result<(), String> {
        self.alive()?;
        let is = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        let Shared { stopping, synced, catching_up, .. } = &*self.shared;
        let why = match (is(stopping), is(synced), is(catching_up)) {
            (true, ..) => "stopping",
            (_, false, _) => "pods and nodes have not been listed yet",
            (.., true) => "not all bound pods have been observed yet",
            _ => return Ok(()),
        };
        Err(why.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_ready_from_its_first_sync_until_it_stops() {
        let health = Health::default();
        assert!(health.alive().is_ok() && health.ready().is_err());
        health.set_catching_up(true);
        health.set_synced();
        assert!(health.ready().is_err());
        health.set_catching_up(false);
        assert!(health.ready().is_ok());
        health.set_stopping();
        assert_eq!(health.ready(), Err("stopping".to_owned()));
        health.set_broken();
        assert!(health.alive().is_err());
    }

    #[test]
    fn a_process_whose_loop_no_longer_comes_around_is_to_be_restarted() {
        let (health, rounds, began) = (Health::default(), Arc::new(AtomicU64::new(3)), Instant::now());
        health.watch_loop("clock", Duration::from_secs(1), rounds.clone());
        health.watch_loop("slow", Duration::from_secs(600), Arc::default());
        let after = |seconds| health.alive_at(began + Duration::from_secs(seconds));
        assert!(after(50).is_ok());
        rounds.fetch_add(1, Ordering::Relaxed);
        assert!(after(55).is_ok() && after(110).is_ok(), "it came around since the last look");
        assert_eq!(after(120), Err("stuck: clock".to_owned()));
        rounds.fetch_add(1, Ordering::Relaxed);
        assert!(after(130).is_ok());
    }
}
