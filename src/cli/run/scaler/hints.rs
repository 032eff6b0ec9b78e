//! Which services peak together: their usage, window after window, and what the scheduler is told of it.

use std::sync::Arc;

use jiff::Timestamp;

use super::Scaler;
use super::look::Look;
use crate::cluster::scaling::Service;
use crate::correlate::{Correlations, Direction, Resource, Settings, Window};
use crate::hints::{Hint, Workload};
use crate::model::LabelSelector;
use crate::scaling::Kind;
use crate::usage::{Metric, MetricKind, Namespaces, Scope};

/// Points of a window are not closer than this.
const STEP_S_MIN: i64 = 3;

/// What is known of services that peak together.
pub(super) struct Affinity {
    window_s: i64,
    step_s: i64,
    correlations: Correlations,
    /// When the window that is open ends.
    ends_s: i64,
    /// What the scheduler was told.
    told: Vec<Hint>,
}

impl Affinity {
    /// With windows of so many seconds, and samples so often.
    pub fn new(window_s: i64, interval_s: i64) -> Self {
        Affinity {
            window_s: window_s.max(1),
            step_s: interval_s.max(STEP_S_MIN.min(window_s / 20)).max(1),
            correlations: Correlations::new(Settings::default()),
            ends_s: i64::MIN,
            told: Vec::new(),
        }
    }

    /// Whether a window ends now; the next one begins.
    fn ends(&mut self, now_s: i64) -> bool {
        let first = self.ends_s == i64::MIN;
        // A clock that was set back begins anew.
        if !first && now_s < self.ends_s && now_s >= self.ends_s - self.window_s {
            return false;
        }
        self.ends_s = now_s + self.window_s;
        !first
    }
}

impl Scaler {
    /// Adds what pods send and receive to the windows.
    pub(super) async fn read_network(&mut self, namespaces: &[String], now: Timestamp) -> Result<(), String> {
        let windows = &mut self.windows;
        for metric in [network("receive"), network("transmit")] {
            let read = self.place.source.latest_of(&metric, Namespaces::These(namespaces), now, |series| {
                for sample in series.samples {
                    windows.add_to((series.namespace, series.pod), sample.at as i64, sample.value);
                }
            });
            read.await.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// When a window ends: looks which services peaked together in it, and tells the scheduler.
    pub(super) fn correlate(&mut self, services: &[Service], looks: &[Result<Look, String>], now: Timestamp) {
        let now_s = now.as_second();
        let Some(affinity) = &mut self.affinity else { return };
        if !affinity.ends(now_s) {
            return;
        }
        let seen: Vec<(Arc<str>, &Service, &Look)> = (services.iter().zip(looks))
            .filter_map(|(service, look)| {
                if service.plan.as_ref().is_ok_and(|plan| plan.dry_run) {
                    return None;
                }
                let name = format!("{}/{}", service.namespace, service.name);
                Some((Arc::from(name), service, look.as_ref().ok()?))
            })
            .collect();
        let points = usize::try_from(affinity.window_s / affinity.step_s).unwrap_or(0);
        let from_s = (now_s - affinity.window_s) as f64 + affinity.step_s as f64 / 2.0;
        let names = seen.iter().map(|(name, ..)| name.clone());
        let mut window = match Window::new(from_s, affinity.step_s as f64, points, names) {
            Ok(window) => window,
            Err(error) => return tracing::warn!(%error, "services are not compared"),
        };
        for (name, service, look) in &seen {
            for pod in look.pods.iter().filter(|pod| !pod.is_deleting) {
                let mut add = |resource, container: &str, kind| {
                    let key = (&*service.namespace, &*pod.name, container);
                    let samples = self.windows.of(key, kind);
                    for sample in samples {
                        window.add(name, resource, sample.time_s as f64, sample.value);
                    }
                };
                for container in &pod.containers {
                    add(Resource::Cpu, &container.name, Kind::Cpu);
                    add(Resource::Memory, &container.name, Kind::Memory);
                }
                add(Resource::Network, "", Kind::Network);
            }
        }
        if let Err(error) = affinity.correlations.observe(&window) {
            return tracing::warn!(%error, "services are not compared");
        }
        let workload = |name: &str| {
            let (_, service, look) = seen.iter().find(|(known, ..)| **known == *name)?;
            let selector: LabelSelector = look.scale.labels.clone()?;
            Some(Workload { namespace: service.namespace.clone(), selector })
        };
        let hints = affinity.correlations.hints();
        let hint = |hint: &crate::correlate::Hint| {
            let weight = match hint.direction {
                Direction::Apart => -i32::from(hint.weight),
                Direction::Together => i32::from(hint.weight),
            };
            Some(Hint { of: workload(&hint.service)?, other: workload(&hint.other)?, weight })
        };
        let told: Vec<Hint> = hints.iter().filter_map(hint).collect();
        if told == affinity.told {
            return;
        }
        let taken = self.place.engine.with(|scheduler, _| scheduler.hints_changed(told.clone()));
        tracing::info!(
            services = seen.len(),
            hints = taken.in_force,
            refused = taken.refused,
            concerned = taken.concerned,
            "services that peak together, or in turn, are placed by it"
        );
        self.place.metrics.hints(taken.in_force);
        affinity.told = told;
    }
}

fn network(direction: &str) -> Metric {
    Metric {
        name: format!("container_network_{direction}_bytes_total"),
        kind: MetricKind::Rate,
        scope: Scope::Pod,
        matchers: Vec::new(),
        sum_over: vec!["interface".to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_follow_each_other_and_begin_anew_when_the_clock_is_set_back() {
        let mut affinity = Affinity::new(300, 15);
        let ends: Vec<_> = [1_000, 1_015, 1_299, 1_300, 1_500, 1_600, 200, 499, 500]
            .into_iter()
            .filter(|now| affinity.ends(*now))
            .collect();
        assert_eq!(ends, [1_300, 1_600, 200, 500]);
    }
}
