//! Reads usage and signals from Prometheus, and workloads and their pods from the API server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::StreamExt;
use jiff::Timestamp;

use super::{LOOKS_IN_FLIGHT, Scaler};
use berth_kube_io::VpasUnknown;
use berth_kube_io::scaling::{Other, Query, ScaledService, ScalingPlan, WorkloadScale, sizing};
use berth_prometheus::{QueriedNamespaces, ServiceName, filled, signal, success_rate};
use berth_rightsizing::apply::SizedPod;
use berth_rightsizing::recommend::OwnerRef;
use berth_rightsizing::scaling::{Measured, MeasuredKind, Point};
use berth_rightsizing::usage::UsageKind;

/// Data of one service.
pub(super) struct ServiceObservation {
    pub scale: WorkloadScale,
    pub pods: Vec<SizedPod>,
    /// `None`: no signal is configured, or Prometheus has none.
    pub signal: Result<Option<Measured>, String>,
    pub success: Result<Option<Measured>, String>,
}

impl Scaler {
    /// Adds the newest samples of all containers of these namespaces to the windows.
    pub(super) async fn read_usage(
        &mut self,
        namespaces: &BTreeSet<Arc<str>>,
        now: Timestamp,
    ) -> Result<(), String> {
        let names: Vec<String> = namespaces.iter().map(|name| name.to_string()).collect();
        let windows = &mut self.windows;
        let read = self.context.source.latest(QueriedNamespaces::These(&names), now, |kind, series| {
            let (kind, unit) = match kind {
                UsageKind::Cpu => (MeasuredKind::Cpu, 1_000.0),
                UsageKind::Memory => (MeasuredKind::Memory, 1.0),
            };
            for sample in series.samples {
                let point = Point { time_s: sample.at as i64, value: sample.value * unit };
                windows.add((series.namespace, series.pod, series.container), kind, point);
            }
        });
        let read = read.await.map(drop).map_err(|error| error.to_string());
        self.windows.forget(now.as_second());
        read
    }

    /// Reads the other autoscalers of these namespaces.
    pub(super) async fn read_autoscalers(
        &self,
        namespaces: &BTreeSet<Arc<str>>,
    ) -> BTreeMap<Arc<str>, Result<Vec<Other>, String>> {
        let api = &self.context.api;
        let vpas = match self.context.watches.vpas().await {
            Err(VpasUnknown::NotServed) => Ok(Vec::new()),
            vpas => vpas,
        };
        let vpas = &vpas;
        let of = |namespace: Arc<str>| async move {
            let others = match (api.autoscalers(&namespace).await, vpas) {
                (Err(error), _) => Err(error.to_string()),
                (_, Err(error)) => Err(error.to_string()),
                (Ok(mut others), Ok(vpas)) => {
                    let here = vpas.iter().filter(|vpa| vpa.namespace == namespace);
                    others.extend(here.filter_map(|vpa| sizing(vpa)));
                    Ok(others)
                }
            };
            (namespace, others)
        };
        let asked: Vec<_> = namespaces.iter().cloned().map(of).collect();
        futures::stream::iter(asked).buffer_unordered(LOOKS_IN_FLIGHT).collect().await
    }

    /// Reads services, several concurrently.
    pub(super) async fn look_at(
        &mut self,
        services: &[ScaledService],
        now: Timestamp,
    ) -> Vec<Result<ServiceObservation, String>> {
        let mut paths = Vec::new();
        for service in services {
            let path = self.owners.scale_path(&service.namespace, &service.target).await;
            paths.push(path.map_err(|error| error.to_string()).and_then(|path| path));
        }
        let looks: Vec<_> =
            services.iter().zip(paths).map(|(service, path)| self.look(service, path, now)).collect();
        futures::stream::iter(looks).buffered(LOOKS_IN_FLIGHT).collect().await
    }

    async fn look(
        &self,
        service: &ScaledService,
        path: Result<String, String>,
        now: Timestamp,
    ) -> Result<ServiceObservation, String> {
        let api = &self.context.api;
        let OwnerRef { kind, name, .. } = &service.target;
        let target = |error: String| format!("{kind} {name}: {error}");
        let scale = api.scale(&path?).await.map_err(|error| target(error.to_string()))?;
        let Some(selector) = &scale.labels else {
            return Err(target(format!(
                "its scale subresource has no valid pod selector: `{}`",
                scale.selector
            )));
        };
        self.context.watches.pods.listed().await;
        let pods = self.context.watches.pods.selected(&service.namespace, selector);
        let pods = pods.iter().map(|live| live.pod.clone()).collect();
        let query = |of: fn(&ScalingPlan) -> &Option<Query>| {
            service.plan.as_ref().ok().and_then(|plan| of(plan).as_ref())
        };
        let (signal, success) = futures::join!(
            self.measure(service, query(|plan| &plan.signal), now),
            self.measure(service, query(|plan| &plan.success), now)
        );
        Ok(ServiceObservation { scale, pods, signal, success })
    }

    async fn measure(
        &self,
        service: &ScaledService,
        query: Option<&Query>,
        now: Timestamp,
    ) -> Result<Option<Measured>, String> {
        let Some(query) = query else { return Ok(None) };
        let OwnerRef { kind, name, .. } = &service.target;
        let of = ServiceName { namespace: &service.namespace, kind, name };
        let config = self.context.source.config();
        let text = match query {
            Query::Signal(kind) => signal(config, *kind, of),
            Query::SuccessRate => success_rate(config, of),
            Query::Custom(text) => filled(text, of),
        };
        let sample = self.context.source.number(&text, now).await.map_err(|error| error.to_string())?;
        Ok(sample.map(|sample| Measured { time_s: sample.at as i64, value: sample.value }))
    }
}
