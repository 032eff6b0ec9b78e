//! Recent samples of all containers of some services, bounded in time and number.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::observation::{Point, Seconds};
use crate::usage::{Sample, UsageKind};

/// Maximum age of samples; the estimators use no older ones.
const KEPT_S: Seconds = 600;
/// Maximum number of containers with samples.
const CONTAINERS_MAX: usize = 200_000;

/// Kind of measurement of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MeasuredKind {
    /// Millicores.
    Cpu,
    /// Bytes.
    Memory,
    /// Bytes per second, of a pod as a whole.
    Network,
}

impl From<UsageKind> for MeasuredKind {
    fn from(kind: UsageKind) -> Self {
        match kind {
            UsageKind::Cpu => MeasuredKind::Cpu,
            UsageKind::Memory => MeasuredKind::Memory,
        }
    }
}

impl Point {
    /// Converts a sample of this kind to millicores or bytes.
    pub fn of(kind: UsageKind, sample: &Sample) -> Point {
        let unit = match kind {
            UsageKind::Cpu => 1_000.0,
            UsageKind::Memory => 1.0,
        };
        Point { time_s: sample.at as i64, value: sample.value * unit }
    }
}

type Key = (Arc<str>, Arc<str>, Arc<str>, MeasuredKind);

/// Samples by namespace, pod, container and kind.
#[derive(Debug)]
pub struct Windows {
    points_max: usize,
    samples: BTreeMap<Key, VecDeque<Point>>,
}

impl Windows {
    /// Creates an empty window for samples at this interval.
    pub fn new(interval: Duration) -> Self {
        let every = interval.as_secs().max(1);
        let points_max = usize::try_from(KEPT_S.unsigned_abs() / every + 1).unwrap_or(1);
        Windows { points_max, samples: BTreeMap::new() }
    }

    /// Adds a sample. One that is not later than the last is ignored: it was read twice, or its clock was set back.
    pub fn add(&mut self, (namespace, pod, container): (&str, &str, &str), kind: MeasuredKind, point: Point) {
        let full = self.samples.len() >= CONTAINERS_MAX;
        let key = (namespace.into(), pod.into(), container.into(), kind);
        let samples = match self.samples.entry(key) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(_) if full => return,
            std::collections::btree_map::Entry::Vacant(entry) => entry.insert(VecDeque::new()),
        };
        if samples.back().is_some_and(|last| last.time_s >= point.time_s) {
            return;
        }
        if samples.len() >= self.points_max {
            samples.pop_front();
        }
        samples.push_back(point);
    }

    /// Adds to the bytes that a pod sent or received at this time; values for the same time are summed.
    pub fn add_to(&mut self, (namespace, pod): (&str, &str), time_s: Seconds, value: f64) {
        let key = (namespace.into(), pod.into(), "".into(), MeasuredKind::Network);
        match self.samples.get_mut(&key).and_then(VecDeque::back_mut) {
            Some(last) if last.time_s == time_s => last.value += value,
            _ => self.add((namespace, pod, ""), MeasuredKind::Network, Point { time_s, value }),
        }
    }

    /// Returns the samples of a container, oldest first.
    pub fn of<'a>(
        &'a self,
        (namespace, pod, container): (&str, &str, &str),
        kind: MeasuredKind,
    ) -> impl Iterator<Item = Point> + use<'a> {
        let key = (namespace.into(), pod.into(), container.into(), kind);
        self.samples.get(&key).into_iter().flatten().copied()
    }

    /// Removes samples that are too old, or in the future because a clock was set back.
    pub fn forget(&mut self, now: Seconds) {
        let keep =
            |point: &Point| (now.saturating_sub(KEPT_S)..=now.saturating_add(KEPT_S)).contains(&point.time_s);
        self.samples.retain(|_, samples| {
            samples.retain(keep);
            !samples.is_empty()
        });
    }

    /// Returns the number of containers with samples, counted once per kind.
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const APP: (&str, &str, &str) = ("shop", "web-0", "app");

    fn at(time_s: Seconds) -> Point {
        Point { time_s, value: 1.0 }
    }

    #[test]
    fn samples_come_once_in_order_and_go_when_they_are_old() {
        let mut windows = Windows::new(Duration::from_secs(60));
        for time in [100, 100, 90, 160, 220] {
            windows.add(APP, MeasuredKind::Cpu, at(time));
        }
        let times =
            |windows: &Windows| windows.of(APP, MeasuredKind::Cpu).map(|it| it.time_s).collect::<Vec<_>>();
        assert_eq!(times(&windows), [100, 160, 220]);
        assert_eq!(windows.of(APP, MeasuredKind::Memory).count(), 0);
        windows.forget(761);
        assert_eq!(times(&windows), [220]);
        windows.forget(5_000);
        assert!(windows.is_empty());
    }

    #[test]
    fn bytes_of_a_pod_at_one_time_are_summed() {
        let mut windows = Windows::new(Duration::from_secs(60));
        for (time_s, value) in [(100, 2.0), (100, 3.0), (160, 7.0)] {
            windows.add_to(("shop", "web-0"), time_s, value);
        }
        let sums: Vec<_> = windows.of(("shop", "web-0", ""), MeasuredKind::Network).collect();
        assert_eq!(sums, [Point { time_s: 100, value: 5.0 }, Point { time_s: 160, value: 7.0 }]);
    }

    #[test]
    fn no_more_samples_are_kept_than_the_time_has_room_for() {
        let mut windows = Windows::new(Duration::from_secs(60));
        (0..50).for_each(|time| windows.add(APP, MeasuredKind::Memory, at(time)));
        assert_eq!(windows.of(APP, MeasuredKind::Memory).count(), 11);
    }
}
