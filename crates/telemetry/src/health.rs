//! Whether the process works, and whether it is of use yet.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set by the parts of the process, read by the probes. Clones share their state.
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
    /// A part of the process ended that never should.
    pub fn set_broken(&self) {
        self.shared.broken.store(true, Ordering::Relaxed);
    }

    /// All pods and nodes have been seen.
    pub fn set_synced(&self) {
        self.shared.synced.store(true, Ordering::Relaxed);
    }

    /// Whether a process that leads without an election has yet to see what was bound before it began.
    pub fn set_catching_up(&self, catching_up: bool) {
        self.shared.catching_up.store(catching_up, Ordering::Relaxed);
    }

    pub fn set_stopping(&self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
    }

    /// `Err` when the process should be restarted.
    pub fn alive(&self) -> Result<(), &'static str> {
        match self.shared.broken.load(Ordering::Relaxed) {
            true => Err("a part of berth has ended: see the log"),
            false => Ok(()),
        }
    }

    /// `Err` while it cannot schedule, or take over from the leader.
    pub fn ready(&self) -> Result<(), &'static str> {
        self.alive()?;
        if self.shared.stopping.load(Ordering::Relaxed) {
            return Err("stopping");
        }
        if !self.shared.synced.load(Ordering::Relaxed) {
            return Err("pods and nodes have not been listed yet");
        }
        match self.shared.catching_up.load(Ordering::Relaxed) {
            true => Err("not all that is bound has been seen yet"),
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
