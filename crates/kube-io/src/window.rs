//! How many requests of low priority are in flight at once, from the time that the API server takes for one. Pure.
//!
//! Requests beyond those that the server carries out at the same time only wait there, and binds wait behind them. As in TCP Vegas,
//! of `limit` requests in flight about `limit * (1 - alone / took)` wait: the limit grows while fewer than [`WAITING_MIN`] do, and
//! shrinks while more than [`WAITING_MAX`] do. `alone` is the time of a request beside no other one, which is measured once in a
//! [`PERIOD`], as in BBR: otherwise a queue that always stands would be taken for the server's own time.

use std::time::Duration;

const WAITING_MIN: f64 = 1.0;
const WAITING_MAX: f64 = 3.0;
/// The limit before it is known what the server can do.
const FIRST: f64 = 4.0;
/// Weight of one answer in the average.
const WEIGHT: f64 = 0.125;
const PERIOD: Duration = Duration::from_secs(10);
/// Number of requests that are sent alone; the fastest answer counts.
const PROBES: usize = 3;

#[derive(Debug)]
pub(crate) struct Window {
    limit: f64,
    most: f64,
    /// Seconds of a request alone.
    alone: f64,
    /// Moving average of the seconds of an answer.
    took: Option<f64>,
    probe: Option<Probe>,
    next_probe: Duration,
}

#[derive(Debug)]
struct Probe {
    /// Answers to earlier requests, which were not alone.
    skip: usize,
    left: usize,
    fastest: f64,
}

impl Probe {
    fn after(skip: usize) -> Self {
        Probe { skip, left: PROBES, fastest: f64::INFINITY }
    }
}

impl Window {
    /// Creates a window of at most `most` requests.
    pub fn new(most: usize) -> Self {
        let most = most as f64;
        Window {
            limit: FIRST.min(most),
            most,
            alone: 0.0,
            took: None,
            probe: Some(Probe::after(0)),
            next_probe: Duration::ZERO,
        }
    }

    /// Returns how many requests may be in flight, at least one.
    pub fn size(&self) -> usize {
        if self.probe.is_some() { 1 } else { self.limit as usize }
    }

    /// Notes an answer at `now`, on any monotonic clock, to a request that was sent when the window was full or not. A window that is
    /// not used up does not grow.
    pub fn answered(&mut self, took: Duration, was_full: bool, now: Duration) {
        let took = took.as_secs_f64();
        if let Some(probe) = &mut self.probe {
            if probe.skip > 0 {
                probe.skip -= 1;
                return;
            }
            probe.fastest = probe.fastest.min(took);
            probe.left -= 1;
            if probe.left == 0 {
                (self.alone, self.took) = (probe.fastest, None);
                self.next_probe = now + PERIOD;
                self.probe = None;
            }
            return;
        }
        if now >= self.next_probe {
            self.probe = Some(Probe::after(self.limit as usize));
            return;
        }
        let average = self.took.map_or(took, |before| before + WEIGHT * (took - before));
        self.took = Some(average);
        let waiting = if average > self.alone { self.limit * (1.0 - self.alone / average) } else { 0.0 };
        // As many answers as requests in flight make one step.
        if waiting > WAITING_MAX {
            self.limit -= 1.0 / self.limit;
        } else if waiting < WAITING_MIN && was_full {
            self.limit += 1.0 / self.limit;
        }
        self.limit = self.limit.clamp(1.0, self.most);
    }

    /// Notes that the server was too busy.
    pub fn refused(&mut self) {
        self.limit = (self.limit / 2.0).max(1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: f64 = 1e-3;

    /// Lets a server that carries out `cores` requests at once, each in `service_s`, answer for this long.
    fn settle(window: &mut Window, cores: usize, service_s: f64, from_s: f64, for_s: f64) {
        let mut now = from_s;
        while now < from_s + for_s {
            let size = window.size();
            // Those in flight share the cores.
            let took = service_s * (size as f64 / cores as f64).max(1.0);
            now += took;
            for _ in 0..size {
                window.answered(Duration::from_secs_f64(took), true, Duration::from_secs_f64(now));
            }
        }
    }

    #[test]
    fn a_server_gets_about_as_many_requests_as_it_carries_out_at_once() {
        for (cores, sizes) in [(1, 2..=4), (2, 3..=5), (8, 9..=11), (64, 16..=16)] {
            let mut window = Window::new(16);
            settle(&mut window, cores, 5.0 * MS, 0.0, 60.0);
            assert!(sizes.contains(&(window.limit as usize)), "{cores} cores: {window:?}");
        }
    }

    #[test]
    fn a_server_that_becomes_slower_for_good_is_learnt() {
        let mut window = Window::new(16);
        settle(&mut window, 8, 5.0 * MS, 0.0, 5.0);
        settle(&mut window, 8, 50.0 * MS, 5.0, 1.0);
        assert!(window.limit < 8.0, "it shrinks at first: {window:?}");
        settle(&mut window, 8, 50.0 * MS, 6.0, 60.0);
        assert!((8..=11).contains(&(window.limit as usize)), "{window:?}");
    }

    #[test]
    fn a_busy_server_halves_it_and_one_request_remains() {
        let mut window = Window::new(16);
        for expected in [2.0, 1.0, 1.0] {
            window.refused();
            assert_eq!(window.limit, expected);
        }
    }

    #[test]
    fn what_is_not_used_up_does_not_grow() {
        let mut window = Window::new(16);
        for at in 0..900 {
            window.answered(Duration::from_millis(5), false, Duration::from_millis(10 * at));
        }
        assert_eq!(window.size(), 4);
    }
}
