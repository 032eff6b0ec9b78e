//! Reads the workloads of services and other autoscalers from the API server, and pods from the watch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::StreamExt;

use super::Scaler;
use super::budget::IN_FLIGHT_MAX;
use super::custom::{Objective, QueryKey};
use super::readings::{NO_PROMETHEUS, Reading};
use berth_kube_io::VpasUnknown;
use berth_kube_io::scaling::{Other, Query, ScaledService, WorkloadScale, sizing};
use berth_kube_io::vpa::lists_of;
use berth_model::PodSpec;
use berth_prometheus::{ServiceName, filled};
use berth_rightsizing::apply::SizedPod;
use berth_rightsizing::recommend::OwnerRef;
use berth_rightsizing::scaling::{Measured, MeasuredKind, Vertical, Windows};

/// Data of one service.
pub(super) struct ServiceObservation {
    pub scale: WorkloadScale,
    pub pods: Vec<SizedPod>,
    /// What one of the pods asks of nodes.
    pub spec: Option<Arc<PodSpec>>,
    /// Memory of the largest node that the pods may run on, in bytes; `None`: unknown, or of no interest.
    pub largest_memory: Option<i64>,
    /// Memory of the largest node of the cluster, in bytes: no container uses more. `None`: unknown, or of no interest.
    pub possible_memory: Option<i64>,
    /// In the order of the plan. `None`: not measured.
    pub signals: Vec<Result<Option<Measured>, String>>,
    pub success: Result<Option<Measured>, String>,
}

/// Other autoscalers by namespace; or the error, if they could not be read.
pub(super) type Autoscalers = BTreeMap<Arc<str>, Result<Vec<Other>, String>>;

impl Scaler {
    /// Reads the other autoscalers of these namespaces.
    pub(super) async fn read_autoscalers(&self, namespaces: &BTreeSet<Arc<str>>) -> Autoscalers {
        let mut others: Autoscalers = namespaces.iter().map(|name| (name.clone(), Ok(Vec::new()))).collect();
        for namespace in lists_of(namespaces.iter().map(|name| &**name)) {
            let listed = self.list_autoscalers(namespace).await;
            match (listed, namespace) {
                (Ok(listed), _) => add(listed, &mut others),
                (Err(error), None) => others.values_mut().for_each(|of| *of = Err(error.clone())),
                (Err(error), Some(namespace)) => drop(others.insert(namespace.into(), Err(error))),
            }
        }
        match self.context.watches.vpas().await {
            Ok(vpas) => add(vpas.iter().filter_map(|vpa| sizing(vpa)), &mut others),
            Err(VpasUnknown::NotServed) => {}
            Err(error) => others.values_mut().for_each(|of| *of = Err(error.to_string())),
        }
        others
    }

    async fn list_autoscalers(&self, namespace: Option<&str>) -> Result<Vec<Other>, String> {
        let _permit = self.context.budget.read().await;
        self.context.api.autoscalers(namespace).await.map_err(|error| error.to_string())
    }

    /// Reads the workloads of services, several concurrently.
    pub(super) async fn look_at(
        &mut self,
        services: &[&ScaledService],
    ) -> Vec<Result<ServiceObservation, String>> {
        self.context.watches.pods.listed().await;
        let mut paths = Vec::new();
        for service in services {
            let path = self.owners.scale_path(&service.namespace, &service.target).await;
            paths.push(path.map_err(|error| error.to_string()).and_then(|path| path));
        }
        let looks: Vec<_> =
            services.iter().zip(paths).map(|(service, path)| self.look(service, path)).collect();
        futures::stream::iter(looks).buffered(IN_FLIGHT_MAX).collect().await
    }

    async fn look(
        &self,
        service: &ScaledService,
        path: Result<String, String>,
    ) -> Result<ServiceObservation, String> {
        let OwnerRef { kind, name, .. } = &service.target;
        let target = |error: String| format!("{kind} {name}: {error}");
        let path = path?;
        let scale = {
            let _permit = self.context.budget.read().await;
            self.context.api.scale(&path).await.map_err(|error| target(error.to_string()))?
        };
        let Some(selector) = &scale.labels else {
            return Err(target(format!(
                "its scale subresource has no valid pod selector: `{}`",
                scale.selector
            )));
        };
        let live = self.context.watches.pods.selected(&service.namespace, selector);
        Ok(ServiceObservation {
            scale,
            pods: live.iter().map(|live| live.pod.clone()).collect(),
            spec: live.iter().find_map(|live| live.spec.clone()),
            largest_memory: None,
            possible_memory: None,
            signals: Vec::new(),
            success: Ok(None),
        })
    }

    /// Returns what to read for these services: of each kind, the namespaces that need it; and their own queries.
    pub(super) fn wanted(
        &self,
        services: &[ScaledService],
    ) -> (BTreeMap<Reading, Vec<String>>, BTreeMap<QueryKey, Arc<str>>) {
        let mut readings: BTreeMap<Reading, BTreeSet<Arc<str>>> = BTreeMap::new();
        let mut custom = BTreeMap::new();
        let network = self.affinity.is_some().then_some(Reading::Network);
        for service in services {
            let mut wants = |reading| {
                readings.entry(reading).or_default().insert(service.namespace.clone());
            };
            [Some(Reading::Usage), network].into_iter().flatten().for_each(&mut wants);
            for (objective, query) in objectives(service) {
                match query {
                    Query::Signal(kind) => wants(Reading::Signal(*kind)),
                    Query::Custom(text) => {
                        if let Some(config) = self.readings.config() {
                            let text = filled(config, text, name_of(service));
                            custom.insert(key_of(service, objective), text.into());
                        }
                    }
                    // Of the usage, which is read for all.
                    Query::CpuUtilization => {}
                }
            }
        }
        let names = |namespaces: BTreeSet<Arc<str>>| namespaces.iter().map(|name| name.to_string()).collect();
        (readings.into_iter().map(|(reading, of)| (reading, names(of))).collect(), custom)
    }

    /// Adds the newest signals of a service.
    pub(super) fn measure(&self, service: &ScaledService, look: &mut ServiceObservation, now_s: i64) {
        for (objective, query) in objectives(service) {
            let measured = match query {
                Query::Signal(kind) => {
                    let pods = look.pods.iter().map(|pod| &*pod.name);
                    self.readings.signal(*kind, service, pods, now_s)
                }
                Query::Custom(_) => match &self.custom {
                    Some(custom) => custom.newest(&key_of(service, objective), now_s),
                    None => Err(NO_PROMETHEUS.to_owned()),
                },
                Query::CpuUtilization => {
                    let windows = self.readings.windows.lock();
                    Ok(utilization(&service.namespace, &look.pods, &windows, now_s))
                }
            };
            match objective {
                Objective::Signal(_) => look.signals.push(measured),
                Objective::Success => look.success = measured,
            }
        }
    }
}

/// Returns the CPU usage as a share of the requests, of the ready pods whose containers all have recent samples.
fn utilization(namespace: &str, pods: &[SizedPod], windows: &Windows, now_s: i64) -> Option<Measured> {
    let since = now_s.saturating_sub(Vertical::default().stale_s);
    let (mut used, mut requested, mut newest) = (0.0, 0.0, i64::MIN);
    for pod in pods.iter().filter(|pod| pod.is_ready && !pod.is_deleting) {
        let of_containers = pod.containers.iter().map(|container| {
            let key = (namespace, &*pod.name, container.name.as_str());
            let recent = windows.of(key, MeasuredKind::Cpu).filter(|point| point.time_s >= since);
            recent.max_by_key(|point| point.time_s).zip(container.wanted.requests.cpu)
        });
        let Some(of_containers) = of_containers.collect::<Option<Vec<_>>>() else { continue };
        for (point, request) in of_containers {
            used += point.value;
            requested += request as f64;
            newest = newest.max(point.time_s);
        }
    }
    (requested > 0.0).then(|| Measured { time_s: newest, value: used / requested })
}

/// Adds autoscalers to those of their namespaces, if the others there are known.
fn add(more: impl IntoIterator<Item = Other>, others: &mut Autoscalers) {
    for other in more {
        if let Some(Ok(of_namespace)) = others.get_mut(&other.namespace) {
            of_namespace.push(other);
        }
    }
}

/// Returns the queries of a service, unless its plan is invalid.
fn objectives(service: &ScaledService) -> impl Iterator<Item = (Objective, &Query)> {
    let plan = service.plan.as_ref().ok();
    let signals = plan.into_iter().flat_map(|plan| plan.signals.iter().enumerate());
    let success = plan.and_then(|plan| plan.success.as_ref()).map(|query| (Objective::Success, query));
    signals.map(|(at, signal)| (Objective::Signal(at), &signal.query)).chain(success)
}

fn name_of(service: &ScaledService) -> ServiceName<'_> {
    let OwnerRef { kind, name, .. } = &service.target;
    ServiceName { namespace: &service.namespace, kind, name }
}

fn key_of(service: &ScaledService, objective: Objective) -> QueryKey {
    QueryKey { namespace: service.namespace.clone(), service: service.uid.as_str().into(), objective }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_model::PerResource;
    use berth_rightsizing::apply::{Resources, SizedContainer};
    use berth_rightsizing::scaling::Point;
    use std::time::Duration;

    #[test]
    fn utilization_is_the_usage_of_ready_pods_as_a_share_of_their_requests() {
        const NOW: i64 = 1_700_000_000;
        let pod = |name: &str, cpu: Option<i64>, is_ready: bool| {
            let requests = PerResource { cpu, memory: None };
            let wanted = Resources { requests, ..Resources::default() };
            let container = SizedContainer { name: "app".into(), wanted, ..SizedContainer::default() };
            SizedPod { name: name.into(), is_ready, containers: vec![container], ..SizedPod::default() }
        };
        let pods = [
            pod("a", Some(500), true),
            pod("b", Some(1_500), true),
            pod("starting", Some(500), false),
            pod("unheard", Some(500), true),
            pod("unsized", None, true),
        ];
        let mut windows = Windows::new(Duration::from_secs(15));
        let mut uses = |pod: &str, seconds_ago: i64, value: f64| {
            let point = Point { time_s: NOW - seconds_ago, value };
            windows.add(("shop", pod, "app"), MeasuredKind::Cpu, point);
        };
        uses("a", 30, 100.0);
        uses("a", 15, 400.0);
        uses("b", 15, 800.0);
        uses("starting", 15, 2_000.0);
        uses("unheard", 200, 2_000.0);
        uses("unsized", 15, 2_000.0);
        let measured = utilization("shop", &pods, &windows, NOW).map(|it| (it.time_s, it.value));
        assert_eq!(measured, Some((NOW - 15, 0.6)));
        assert_eq!(utilization("shop", &pods[2..], &windows, NOW), None);
    }
}
