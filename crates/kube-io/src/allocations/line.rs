//! Queue of allocation statuses to write. Pure.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::backlog;
use berth_scheduler::gang::GangStatus;

/// First in, first out, with the newest status of each allocation; one write of each at a time, with a pause after it.
#[derive(Debug)]
pub(super) struct Line {
    waiting: backlog::Line<GangStatus>,
    /// Allocations that are being written (`None`), or pause until then.
    busy: HashMap<Arc<str>, Option<Instant>>,
    max: usize,
    dropped: u64,
}

impl Line {
    pub fn new(max: usize) -> Self {
        Line { waiting: backlog::Line::new(), busy: HashMap::new(), max, dropped: 0 }
    }

    /// Queues a status. A newer status keeps the position of the older one. If the queue is full, drops the oldest.
    pub fn push(&mut self, status: GangStatus) {
        self.waiting.put(status.uid.clone(), status);
        if self.waiting.len() > self.max && self.waiting.drop_oldest() {
            self.dropped += 1;
        }
    }

    /// Takes the first status whose allocation is neither being written nor pausing.
    pub fn take(&mut self, now: Instant) -> Option<GangStatus> {
        self.busy.retain(|_, until| until.is_none_or(|until| until > now));
        let status = self.waiting.take(&self.busy)?;
        self.busy.insert(status.uid.clone(), None);
        Some(status)
    }

    /// Settles a taken status; the next one of this allocation is not taken before the end of the pause.
    pub fn done(&mut self, uid: &Arc<str>, now: Instant, pause: Duration) {
        self.busy.insert(uid.clone(), Some(now + pause));
    }

    /// Ends all pauses.
    pub fn hurry(&mut self) {
        self.busy.retain(|_, until| until.is_none());
    }

    /// Whether a newer status waits.
    pub fn is_outdated(&self, uid: &str) -> bool {
        self.waiting.get(uid).is_some()
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Drops all waiting statuses and returns their number.
    pub fn drop_all(&mut self) -> usize {
        let left = std::mem::replace(&mut self.waiting, backlog::Line::new()).len();
        self.dropped += left as u64;
        left
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::status;
    use super::*;

    const PAUSE: Duration = Duration::from_secs(1);

    fn taken(line: &mut Line, now: Instant) -> Option<(String, u32)> {
        let status = line.take(now)?;
        Some((status.uid.to_string(), status.roles[0].bound))
    }

    fn of(uid: &str, bound: u32) -> GangStatus {
        let mut status = status();
        status.uid = uid.into();
        status.roles[0].bound = bound;
        status
    }

    #[test]
    fn only_the_newest_status_of_an_allocation_is_kept_in_the_turn_of_the_first() {
        let (mut line, now) = (Line::new(10), Instant::now());
        line.push(of("a", 1));
        line.push(of("b", 1));
        line.push(of("a", 2));
        assert_eq!(taken(&mut line, now), Some(("a".into(), 2)));
        assert_eq!(taken(&mut line, now), Some(("b".into(), 1)));
        assert_eq!((taken(&mut line, now), line.dropped()), (None, 0));
    }

    #[test]
    fn the_next_status_of_an_allocation_waits_for_the_one_that_is_being_written_and_a_pause() {
        let (mut line, now) = (Line::new(10), Instant::now());
        line.push(of("a", 1));
        let first = line.take(now).expect("one");
        line.push(of("a", 2));
        assert!(line.is_outdated("a"));
        assert_eq!(line.take(now), None);
        line.done(&first.uid, now, PAUSE);
        assert_eq!(line.take(now), None);
        assert_eq!(taken(&mut line, now + PAUSE), Some(("a".into(), 2)));
    }

    #[test]
    fn nobody_pauses_at_the_end() {
        let (mut line, now) = (Line::new(10), Instant::now());
        line.push(of("a", 1));
        let first = line.take(now).expect("one");
        line.done(&first.uid, now, PAUSE);
        line.push(of("a", 2));
        line.hurry();
        assert_eq!(taken(&mut line, now), Some(("a".into(), 2)));
    }

    #[test]
    fn a_full_line_drops_the_oldest_and_counts_it() {
        let (mut line, now) = (Line::new(2), Instant::now());
        for uid in ["a", "b", "c"] {
            line.push(of(uid, 1));
        }
        assert_eq!((line.len(), line.dropped()), (2, 1));
        assert_eq!(taken(&mut line, now), Some(("b".into(), 1)));
        assert_eq!((line.drop_all(), line.dropped()), (1, 2));
    }
}
