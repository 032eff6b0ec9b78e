//! Reads the workloads of services and other autoscalers from the API server, and pods from the watch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::StreamExt;

use super::Scaler;
use super::budget::IN_FLIGHT_MAX;
use super::custom::{Objective, QueryKey};
use super::readings::Reading;
use berth_kube_io::VpasUnknown;
use berth_kube_io::scaling::{Other, Query, ScaledService, WorkloadScale, sizing};
use berth_prometheus::{ServiceName, filled};
use berth_rightsizing::apply::SizedPod;
use berth_rightsizing::recommend::OwnerRef;
use berth_rightsizing::scaling::Measured;

/// Maximum number of namespaces whose autoscalers are listed one by one. More are listed at once, with those of other namespaces.
const NAMESPACES_LISTED_MAX: usize = 16;

/// Data of one service.
pub(super) struct ServiceObservation {
    pub scale: WorkloadScale,
    pub pods: Vec<SizedPod>,
    /// `None`: no signal is configured, or Prometheus has none.
    pub signal: Result<Option<Measured>, String>,
    pub success: Result<Option<Measured>, String>,
}

/// Other autoscalers by namespace; or the error, if they could not be read.
pub(super) type Autoscalers = BTreeMap<Arc<str>, Result<Vec<Other>, String>>;

impl Scaler {
    /// Reads the other autoscalers of these namespaces.
    pub(super) async fn read_autoscalers(&self, namespaces: &BTreeSet<Arc<str>>) -> Autoscalers {
        let mut others: Autoscalers = namespaces.iter().map(|name| (name.clone(), Ok(Vec::new()))).collect();
        if namespaces.len() <= NAMESPACES_LISTED_MAX {
            for (namespace, others) in &mut others {
                *others = self.list_autoscalers(Some(namespace)).await;
            }
        } else {
            match self.list_autoscalers(None).await {
                Ok(listed) => add(listed, &mut others),
                Err(error) => others.values_mut().for_each(|of| *of = Err(error.clone())),
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
        let pods = self.context.watches.pods.selected(&service.namespace, selector);
        let pods = pods.iter().map(|live| live.pod.clone()).collect();
        Ok(ServiceObservation { scale, pods, signal: Ok(None), success: Ok(None) })
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
                        let text = filled(self.readings.config(), text, name_of(service));
                        custom.insert(key_of(service, objective), text.into());
                    }
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
                Query::Custom(_) => self.custom.newest(&key_of(service, objective), now_s),
            };
            match objective {
                Objective::Signal => look.signal = measured,
                Objective::Success => look.success = measured,
            }
        }
    }
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
    let signal = plan.and_then(|plan| plan.signal.as_ref()).map(|query| (Objective::Signal, query));
    let success = plan.and_then(|plan| plan.success.as_ref()).map(|query| (Objective::Success, query));
    signal.into_iter().chain(success)
}

fn name_of(service: &ScaledService) -> ServiceName<'_> {
    let OwnerRef { kind, name, .. } = &service.target;
    ServiceName { namespace: &service.namespace, kind, name }
}

fn key_of(service: &ScaledService, objective: Objective) -> QueryKey {
    QueryKey { namespace: service.namespace.clone(), service: service.uid.as_str().into(), objective }
}
