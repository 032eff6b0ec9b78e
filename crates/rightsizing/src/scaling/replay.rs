//! What the sizes of a workload would have been, had they been decided all the time: a look back before they are set.
//!
//! The decisions are those of [`decide`]; each round sees the sizes of the round before. Usage is that of the past,
//! which had other sizes: a container that was throttled then used less than it would have.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::coordinate::{ScalerMemory, decide};
use super::observation::{Container, Observation, Point, Seconds, Size};
use super::settings::ScalingSettings;
use super::window::MeasuredKind;

/// Usage of one container of one pod.
#[derive(Debug, Clone, PartialEq)]
pub struct PastSeries {
    pub pod: String,
    pub container: String,
    /// CPU or memory; others are ignored.
    pub kind: MeasuredKind,
    /// Oldest first.
    pub points: Vec<Point>,
}

/// Times of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplayTimes {
    /// Begin of the reported time. What was before is only known to the decisions.
    pub from_s: Seconds,
    pub until_s: Seconds,
    /// Time between two decisions.
    pub every_s: Seconds,
}

/// The sizes of one resource of a container in the replay: millicores or bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplayedSizes {
    /// Before the replay.
    pub first: i64,
    pub lowest: i64,
    pub highest: i64,
    pub last: i64,
    pub changes: u32,
    /// Samples in the reported time, and those of them above the size of that moment.
    pub samples: u64,
    pub above: u64,
}

impl ReplayedSizes {
    fn new(size: i64) -> ReplayedSizes {
        ReplayedSizes { first: size, lowest: size, highest: size, last: size, ..ReplayedSizes::default() }
    }

    fn note(&mut self, size: i64, is_reported: bool) {
        if is_reported {
            self.changes += u32::from(size != self.last);
            (self.lowest, self.highest) = (self.lowest.min(size), self.highest.max(size));
        } else {
            (self.lowest, self.highest) = (size, size);
        }
        self.last = size;
    }

    fn compare(&mut self, points: &[Point], size: i64) {
        self.samples += points.len() as u64;
        self.above += points.iter().filter(|point| point.value > size as f64).count() as u64;
    }
}

/// The sizes of a container.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplayedContainer {
    pub container: String,
    /// `None`: the resource is not sized.
    pub cpu: Option<ReplayedSizes>,
    pub memory: Option<ReplayedSizes>,
}

/// Decides about the sizes of these containers at each time. Replicas are as many as had usage.
pub fn replay(
    settings: &ScalingSettings,
    mut sizes: BTreeMap<String, Size>,
    series: &[PastSeries],
    times: ReplayTimes,
) -> Vec<ReplayedContainer> {
    let every = times.every_s.max(1);
    let settings = for_steps(settings, every);
    let mut memory = ScalerMemory::default();
    let mut containers: BTreeMap<String, ReplayedContainer> = sizes
        .iter()
        .map(|(name, size)| {
            let vertical = settings.of(name);
            let container = ReplayedContainer {
                container: name.clone(),
                cpu: vertical.cpu.then(|| ReplayedSizes::new(size.cpu_milli)),
                memory: vertical.memory.then(|| ReplayedSizes::new(size.memory_bytes)),
            };
            (name.clone(), container)
        })
        .collect();
    let first = series.iter().filter_map(|series| series.points.first()).map(|point| point.time_s).min();
    let window = settings.vertical.window_s;
    let mut now = first.unwrap_or(Seconds::MAX);
    while now <= times.until_s {
        let is_reported = now >= times.from_s;
        let mut seen: BTreeMap<&str, Container> = sizes
            .iter()
            .map(|(name, size)| {
                (name.as_str(), Container { name: name.clone(), size: *size, ..Container::default() })
            })
            .collect();
        let mut pods = BTreeSet::new();
        for series in series {
            let Some(container) = seen.get_mut(series.container.as_str()) else { continue };
            let points = between(&series.points, now.saturating_sub(window), now);
            let Some(replayed) = containers.get_mut(&series.container).filter(|_| !points.is_empty()) else {
                continue;
            };
            pods.insert(series.pod.as_str());
            let new = between(points, now.saturating_sub(every), now);
            let (samples, sizes, size) = match series.kind {
                MeasuredKind::Cpu => (&mut container.cpu, &mut replayed.cpu, container.size.cpu_milli),
                MeasuredKind::Memory => {
                    (&mut container.memory, &mut replayed.memory, container.size.memory_bytes)
                }
                MeasuredKind::Network => continue,
            };
            samples.extend(points);
            if let Some(sizes) = sizes.as_mut().filter(|_| is_reported) {
                sizes.compare(new, size);
            }
        }
        let replicas = u32::try_from(pods.len()).unwrap_or(u32::MAX);
        let observation = Observation {
            replicas,
            ready: replicas,
            containers: seen.into_values().collect(),
            ..Observation::default()
        };
        if replicas > 0 {
            for (name, size) in decide(&settings, &mut memory, &observation, now).sizes {
                let Some(replayed) = containers.get_mut(&name) else { continue };
                if let Some(cpu) = &mut replayed.cpu {
                    cpu.note(size.cpu_milli, is_reported);
                }
                if let Some(memory) = &mut replayed.memory {
                    memory.note(size.memory_bytes, is_reported);
                }
                sizes.insert(name, size);
            }
            memory.replicas = Some(replicas);
        }
        now = now.saturating_add(every);
    }
    containers.into_values().collect()
}

/// Returns the settings for sizes, with windows that hold enough samples at steps of this length.
fn for_steps(settings: &ScalingSettings, every: Seconds) -> ScalingSettings {
    let mut settings = ScalingSettings { horizontal: None, ..settings.clone() };
    for vertical in settings.containers.values_mut().chain([&mut settings.vertical]) {
        let samples = Seconds::try_from(vertical.points_min.max(1)).unwrap_or(Seconds::MAX);
        vertical.window_s = vertical.window_s.max(every.saturating_mul(samples));
        vertical.stale_s = vertical.stale_s.max(every.saturating_mul(2));
    }
    settings
}

/// Returns the points after `from_s`, until `until_s`.
fn between(points: &[Point], from_s: Seconds, until_s: Seconds) -> &[Point] {
    let at = |time: Seconds| points.partition_point(|point| point.time_s <= time);
    &points[at(from_s)..at(until_s).max(at(from_s))]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scaling::Vertical;

    const NOW: Seconds = 1_700_000_000;
    const HOUR: Seconds = 3_600;
    const MI: i64 = 1 << 20;

    fn series(pod: &str, kind: MeasuredKind, usage: impl Fn(Seconds) -> f64) -> PastSeries {
        let points = (-48 * 60..=0).map(|minute| {
            let time_s = NOW + minute * 60;
            Point { time_s, value: usage(time_s) }
        });
        PastSeries { pod: pod.into(), container: "app".into(), kind, points: points.collect() }
    }

    fn replayed(cpu: impl Fn(Seconds) -> f64, memory: impl Fn(Seconds) -> f64) -> ReplayedContainer {
        let series = [
            series("web-0", MeasuredKind::Cpu, &cpu),
            series("web-1", MeasuredKind::Cpu, &cpu),
            series("web-0", MeasuredKind::Memory, &memory),
        ];
        let sizes = BTreeMap::from([("app".to_owned(), Size { cpu_milli: 900, memory_bytes: 900 * MI })]);
        let times = ReplayTimes { from_s: NOW - 24 * HOUR, until_s: NOW, every_s: 60 };
        replay(&ScalingSettings::default(), sizes, &series, times).remove(0)
    }

    #[test]
    fn what_was_too_large_shrinks_once_a_day_is_known_and_stays_above_the_usage() {
        let app = replayed(|_| 300.0, |_| (200 * MI) as f64);
        let (cpu, memory) = (app.cpu.expect("sized"), app.memory.expect("sized"));
        assert_eq!((cpu.first, memory.first), (900, 900 * MI));
        assert!((300..400).contains(&cpu.last) && cpu.changes <= 3, "{cpu:?}");
        assert!((200 * MI..300 * MI).contains(&memory.last), "{memory:?}");
        assert_eq!((cpu.above, memory.above), (0, 0));
        // Two pods, a sample a minute.
        assert_eq!((cpu.samples, memory.samples), (2 * 24 * 60 + 2, 24 * 60 + 1));
    }

    #[test]
    fn a_peak_of_the_day_before_is_known_and_a_new_one_is_told() {
        let daily = |time: Seconds| if (time - NOW).rem_euclid(24 * HOUR) < HOUR { 800.0 } else { 200.0 };
        let app = replayed(|_| 300.0, |time| daily(time) * MI as f64);
        let memory = app.memory.expect("sized");
        assert_eq!(memory.above, 0, "{memory:?}");
        assert!(memory.lowest >= 800 * MI, "{memory:?}");
        let new = |time: Seconds| if time > NOW - HOUR { 800.0 } else { 200.0 };
        let memory = replayed(|_| 300.0, |time| new(time) * MI as f64).memory.expect("sized");
        assert!(memory.lowest < 300 * MI && memory.last >= 800 * MI, "{memory:?}");
        assert!((1..=3).contains(&memory.above), "it grows in the next round: {memory:?}");
    }

    #[test]
    fn without_usage_nothing_is_decided_and_what_is_not_sized_is_left_out() {
        let sizes = BTreeMap::from([("app".to_owned(), Size { cpu_milli: 900, memory_bytes: 900 * MI })]);
        let times = ReplayTimes { from_s: NOW - 24 * HOUR, until_s: NOW, every_s: 60 };
        let vertical = Vertical { memory: false, ..Vertical::default() };
        let settings = ScalingSettings { vertical, ..ScalingSettings::default() };
        let [app] = &replay(&settings, sizes, &[], times)[..] else { panic!("one container") };
        assert_eq!((app.cpu, app.memory), (Some(ReplayedSizes::new(900)), None));
    }
}
