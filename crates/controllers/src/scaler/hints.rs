//! Services that peak together: their usage, window by window, and the hints in their statuses.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use super::Scaler;
use super::look::ServiceObservation;
use berth_config::Scaling;
use berth_crds::service_scaler::{HintPlacement, HintResource, HintStatus};
use berth_kube_io::scaling::ScaledService;
use berth_prometheus::{Metric, MetricKind};
use berth_rightsizing::correlate::{
    CorrelatedResource, CorrelationHint, CorrelationSettings, Correlations, Direction, Window,
};
use berth_rightsizing::scaling::MeasuredKind;
use berth_rightsizing::usage::SeriesScope;

/// Minimum step between the points of a window, in seconds.
const STEP_S_MIN: i64 = 3;

/// State of services that peak together. The hints in force are in the statuses of ServiceScalers: every
/// scheduling process reads them there, and so does the next leader.
pub(super) struct Affinity {
    window_s: i64,
    step_s: i64,
    correlations: Correlations,
    /// End of the open window.
    ends_s: i64,
    /// Selectors of services that hints refer to.
    selectors: BTreeMap<Arc<str>, String>,
    /// Hints of each service that has any.
    in_force: BTreeMap<Arc<str>, Vec<HintStatus>>,
    /// Which services may know of each other.
    tenancy: Arc<Scaling>,
}

impl Affinity {
    /// `window_s`: length of windows; `interval_s`: interval of samples.
    pub fn new(window_s: i64, interval_s: i64, tenancy: Arc<Scaling>) -> Self {
        Affinity {
            tenancy,
            window_s: window_s.max(1),
            step_s: interval_s.max(STEP_S_MIN.min(window_s / 20)).max(1),
            correlations: Correlations::new(CorrelationSettings::default()),
            ends_s: i64::MIN,
            selectors: BTreeMap::new(),
            in_force: BTreeMap::new(),
        }
    }

    fn is_new(&self) -> bool {
        self.ends_s == i64::MIN
    }

    /// Returns whether a window ends now; if so, the next one begins.
    fn ends(&mut self, now_s: i64) -> bool {
        let first = self.is_new();
        // If the clock was set back, a new window begins.
        if !first && now_s < self.ends_s && now_s >= self.ends_s - self.window_s {
            return false;
        }
        self.ends_s = now_s + self.window_s;
        !first
    }

    /// Resumes from the statuses that another process wrote.
    fn resume(&mut self, services: &[ScaledService]) {
        let mut known = Vec::new();
        for service in services {
            let Some(status) = &service.status else { continue };
            let name = name_of(service);
            let hints = status.hints.iter().filter(|hint| self.may_know(&name, &hint.service));
            let hints: Vec<HintStatus> = hints.cloned().collect();
            for hint in &hints {
                self.selectors.insert(hint.service.as_str().into(), hint.selector.clone());
                known.push(CorrelationHint {
                    service: name.clone(),
                    other: hint.service.as_str().into(),
                    direction: match hint.placement {
                        HintPlacement::Apart => Direction::Apart,
                        HintPlacement::Together => Direction::Together,
                    },
                    weight: hint.weight.clamp(1, 100) as u8,
                    resource: match hint.resource {
                        HintResource::Cpu => CorrelatedResource::Cpu,
                        HintResource::Memory => CorrelatedResource::Memory,
                        HintResource::Network => CorrelatedResource::Network,
                    },
                });
            }
            if !hints.is_empty() {
                self.in_force.insert(name, hints);
            }
        }
        self.correlations = Correlations::resumed(CorrelationSettings::default(), known);
    }

    /// Returns whether hints may name one service to another.
    fn may_know(&self, one: &str, other: &str) -> bool {
        let namespace = |service: &str| service.split_once('/').map(|(namespace, _)| namespace.to_owned());
        let (one, other) = (namespace(one).unwrap_or_default(), namespace(other).unwrap_or_default());
        self.tenancy.compares(&one, &other)
    }

    /// Updates the hints from the correlations, in the format of the statuses.
    fn update_hints(&mut self, seen: &[(Arc<str>, &ScaledService, &ServiceObservation)]) {
        let hints = self.correlations.hints_between(|one, other| self.may_know(one, other));
        let about: BTreeSet<&Arc<str>> = hints.iter().map(|hint| &hint.other).collect();
        self.selectors.retain(|name, _| about.contains(name));
        for (name, _, look) in seen.iter().filter(|(.., look)| look.scale.labels.is_some()) {
            self.selectors.insert(name.clone(), look.scale.selector.clone());
        }
        self.in_force.clear();
        for hint in hints {
            let Some(selector) = self.selectors.get(&hint.other).cloned() else { continue };
            let status = HintStatus {
                service: hint.other.to_string(),
                selector,
                placement: match hint.direction {
                    Direction::Apart => HintPlacement::Apart,
                    Direction::Together => HintPlacement::Together,
                },
                weight: i32::from(hint.weight),
                resource: match hint.resource {
                    CorrelatedResource::Cpu => HintResource::Cpu,
                    CorrelatedResource::Memory => HintResource::Memory,
                    CorrelatedResource::Network => HintResource::Network,
                },
            };
            self.in_force.entry(hint.service).or_default().push(status);
        }
    }

    pub fn of(&self, service: &ScaledService) -> Vec<HintStatus> {
        self.in_force.get(&name_of(service)).cloned().unwrap_or_default()
    }
}

/// Returns the name of a service in hints.
fn name_of(service: &ScaledService) -> Arc<str> {
    format!("{}/{}", service.namespace, service.name).into()
}

impl Scaler {
    /// At the end of a window: compares the usage of the services in it. `counts`: which services are
    /// included.
    pub(super) fn correlate(
        &mut self,
        services: &[ScaledService],
        looks: &[Result<ServiceObservation, String>],
        counts: &[bool],
        now: Timestamp,
    ) {
        let now_s = now.as_second();
        let Some(affinity) = &mut self.affinity else { return };
        if affinity.is_new() {
            affinity.resume(services);
        }
        if !affinity.ends(now_s) {
            return;
        }
        let seen: Vec<(Arc<str>, &ScaledService, &ServiceObservation)> =
            (services.iter().zip(looks).zip(counts))
                .filter(|(_, counts)| **counts)
                .filter_map(|((service, look), _)| Some((name_of(service), service, look.as_ref().ok()?)))
                .collect();
        let points = usize::try_from(affinity.window_s / affinity.step_s).unwrap_or(0);
        let from_s = (now_s - affinity.window_s) as f64 + affinity.step_s as f64 / 2.0;
        let names = seen.iter().map(|(name, ..)| name.clone());
        let mut window = match Window::new(from_s, affinity.step_s as f64, points, names) {
            Ok(window) => window,
            Err(error) => return tracing::warn!(%error, "services are not compared"),
        };
        let windows = self.readings.windows.lock();
        for (name, service, look) in &seen {
            for pod in look.pods.iter().filter(|pod| !pod.is_deleting) {
                let mut add = |resource, container: &str, kind| {
                    let key = (&*service.namespace, &*pod.name, container);
                    let samples = windows.of(key, kind);
                    for sample in samples {
                        window.add(name, resource, sample.time_s as f64, sample.value);
                    }
                };
                for container in &pod.containers {
                    add(CorrelatedResource::Cpu, &container.name, MeasuredKind::Cpu);
                    add(CorrelatedResource::Memory, &container.name, MeasuredKind::Memory);
                }
                add(CorrelatedResource::Network, "", MeasuredKind::Network);
            }
        }
        drop(windows);
        match affinity.correlations.observe(&window) {
            Ok(pass) if pass.entered + pass.left > 0 => tracing::info!(
                services = pass.services,
                pairs = pass.in_force,
                new = pass.entered,
                gone = pass.left,
                "hints of services changed"
            ),
            Ok(_) => {}
            Err(error) => return tracing::warn!(%error, "services are not compared"),
        }
        affinity.update_hints(&seen);
    }
}

/// Returns the metrics whose sum is the network usage of pods.
pub(super) fn network_metrics() -> [Metric; 2] {
    ["receive", "transmit"].map(|direction| Metric {
        name: format!("container_network_{direction}_bytes_total"),
        kind: MetricKind::Rate,
        scope: SeriesScope::Pod,
        matchers: Vec::new(),
        sum_over: vec!["interface".to_owned()],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_config::Scaling;
    use berth_crds::service_scaler::ServiceScalerStatus;

    #[test]
    fn windows_follow_each_other_and_begin_anew_when_the_clock_is_set_back() {
        let mut affinity = Affinity::new(300, 15, Arc::default());
        let ends: Vec<_> = [1_000, 1_015, 1_299, 1_300, 1_500, 1_600, 200, 499, 500]
            .into_iter()
            .filter(|now| affinity.ends(*now))
            .collect();
        assert_eq!(ends, [1_300, 1_600, 200, 500]);
    }

    #[test]
    fn what_another_process_wrote_is_in_force_until_it_is_known_better() {
        let hint = |service: &str, selector: &str, weight| HintStatus {
            service: service.to_owned(),
            selector: selector.to_owned(),
            placement: HintPlacement::Apart,
            weight,
            resource: HintResource::Memory,
        };
        let service = |name: &str, hints: Vec<HintStatus>| {
            let status = ServiceScalerStatus { hints, ..ServiceScalerStatus::default() };
            let object = serde_json::json!({
                "apiVersion": "berth.dev/v1alpha1", "kind": "ServiceScaler",
                "metadata": {"namespace": "shop", "name": name},
                "spec": {"target": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}},
                "status": status,
            });
            ScaledService::read(&object.to_string()).expect("a ServiceScaler")
        };
        let of_web = vec![hint("shop/web", "app=web", 100), hint("shop/db", "app=db", 80)];
        let of_db = vec![hint("shop/db", "app=db", 100), hint("shop/web", "app=web", 80)];
        let services =
            [service("db", of_db.clone()), service("new", Vec::new()), service("web", of_web.clone())];
        let mut affinity = Affinity::new(300, 15, Arc::default());
        affinity.resume(&services);
        let found = || services.iter().map(|it| affinity.of(it)).collect::<Vec<_>>();
        assert_eq!(found(), [of_db, Vec::new(), of_web]);
        // Nothing was compared yet: the hints stay the same, with the known selectors.
        let before = found();
        affinity.update_hints(&[]);
        assert_eq!(services.iter().map(|it| affinity.of(it)).collect::<Vec<_>>(), before);
    }

    #[test]
    fn a_service_learns_of_services_of_other_namespaces_only_where_both_may() {
        let hint = |service: &str| HintStatus {
            service: service.to_owned(),
            selector: "app=x".to_owned(),
            placement: HintPlacement::Apart,
            weight: 80,
            resource: HintResource::Cpu,
        };
        let service = |namespace: &str, name: &str, other: &str| {
            let status = ServiceScalerStatus { hints: vec![hint(other)], ..ServiceScalerStatus::default() };
            let object = serde_json::json!({
                "apiVersion": "berth.dev/v1alpha1", "kind": "ServiceScaler",
                "metadata": {"namespace": namespace, "name": name},
                "spec": {"target": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}},
                "status": status,
            });
            ScaledService::read(&object.to_string()).expect("a ServiceScaler")
        };
        let services = [service("shop", "web", "bank/db"), service("bank", "db", "shop/web")];
        let known = |across: &[&str]| {
            let hints_across = across.iter().map(|&namespace| namespace.to_owned()).collect();
            let mut affinity =
                Affinity::new(300, 15, Arc::new(Scaling { hints_across, ..Scaling::default() }));
            affinity.resume(&services);
            let resumed = services.each_ref().map(|it| affinity.of(it).len());
            affinity.update_hints(&[]);
            let others = |it: &ScaledService| {
                affinity.of(it).iter().filter(|hint| *hint.service != *name_of(it)).count()
            };
            assert_eq!(services.each_ref().map(others), resumed);
            resumed
        };
        assert_eq!(known(&[]), [0, 0]);
        assert_eq!(known(&["shop"]), [0, 0]);
        assert_eq!(known(&["shop", "bank"]), [1, 1]);
        assert_eq!(known(&["*"]), [1, 1]);
    }
}
