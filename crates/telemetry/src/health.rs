//! Liveness and readiness of the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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

    /// Returns `Err` if the process must be restarted.
    pub fn alive(&self) -> Result<(), &'static str> {
        match self.shared.broken.load(Ordering::Relaxed) {
            true => Err("a component of berth has ended: see the log"),
            false => Ok(()),
        }
    }

    /// Returns `Err` while the process cannot schedule, or take over from the leader.
    pub fn ready(&self) -> Result<(), &'static str> {
        self.alive()?;
        if self.shared.stopping.load(Ordering::Relaxed) {
            return Err("stopping");
        }
        if !self.shared.synced.load(Ordering::Relaxed) {
            return Err("pods and nodes have not been listed yet");
        }
        match self.shared.catching_up.load(Ordering::Relaxed) {
            true => Err("not all bound pods have been observed yet"),
            false => Ok(()),
        }
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
        assert_eq!(health.ready(), Err("stopping"));
        health.set_broken();
        assert!(health.alive().is_err());
    }
}
