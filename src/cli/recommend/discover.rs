//! Discovery of the Prometheus of a cluster: by the labels that its charts and operators give its Service.

use std::collections::{BTreeMap, BTreeSet};

use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::{Api, Client};
use serde::Deserialize;

use berth_model::with_causes;

/// A Service in the cluster that serves the HTTP API of Prometheus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrometheusService {
    pub namespace: String,
    pub name: String,
    is_https: bool,
    /// Name or number.
    port: String,
    /// Before `/api/v1`; empty, or with a slash at the beginning.
    path: &'static str,
}

/// A namespace and a name of a Service, and perhaps a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceReference {
    namespace: String,
    name: String,
    port: Option<String>,
}

/// Labels by which Services are found.
struct KnownLabels {
    product: &'static str,
    /// All of them.
    labels: &'static [(&'static str, &'static str)],
    path: &'static str,
    /// Counts only if its namespace has no other one: it stands beside the Service of a chart.
    is_fallback: bool,
}

const NAME: &str = "app.kubernetes.io/name";
const COMPONENT: &str = "app.kubernetes.io/component";
/// Where vmselect serves the HTTP API for the first tenant.
const VMSELECT: &str = "/select/0/prometheus";

const KNOWN: [KnownLabels; 16] = [
    KnownLabels::new("Prometheus", &[("app", "kube-prometheus-stack-prometheus")], ""),
    KnownLabels::new("Prometheus", &[(NAME, "prometheus"), (COMPONENT, "server")], ""),
    KnownLabels::new("Prometheus", &[(NAME, "prometheus"), (COMPONENT, "prometheus")], ""),
    KnownLabels::new("Prometheus", &[("app", "prometheus"), ("component", "server")], ""),
    KnownLabels::new("Prometheus", &[("app", "prometheus-server")], ""),
    KnownLabels::new("Prometheus", &[("app", "prometheus-operator-prometheus")], ""),
    KnownLabels::new("Prometheus", &[("app", "rancher-monitoring-prometheus")], ""),
    KnownLabels {
        is_fallback: true,
        ..KnownLabels::new("Prometheus", &[("operated-prometheus", "true")], "")
    },
    KnownLabels::new("Thanos", &[(NAME, "thanos"), (COMPONENT, "query")], ""),
    KnownLabels::new("Thanos", &[(NAME, "thanos-query")], ""),
    KnownLabels::new("Thanos", &[("app", "thanos-query")], ""),
    KnownLabels::new("VictoriaMetrics", &[(NAME, "vmsingle")], ""),
    KnownLabels::new("VictoriaMetrics", &[(NAME, "victoria-metrics-single")], ""),
    KnownLabels::new("VictoriaMetrics", &[(NAME, "vmselect")], VMSELECT),
    KnownLabels::new("VictoriaMetrics", &[("app", "vmselect")], VMSELECT),
    KnownLabels::new("Mimir", &[(NAME, "mimir"), (COMPONENT, "query-frontend")], "/prometheus"),
];

impl KnownLabels {
    const fn new(
        product: &'static str,
        labels: &'static [(&'static str, &'static str)],
        path: &'static str,
    ) -> Self {
        Self { product, labels, path, is_fallback: false }
    }

    fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        self.labels.iter().all(|(key, value)| labels.get(*key).is_some_and(|own| own == value))
    }
}

/// The fields of a Service that matter here.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ServiceSpec {
    #[serde(rename = "clusterIP")]
    cluster_ip: String,
    selector: BTreeMap<String, String>,
    ports: Vec<ServicePort>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ServicePort {
    name: String,
    port: u16,
    app_protocol: String,
}

/// Names of ports that serve HTTP for clients, the best first.
const PORT_NAMES: [&str; 5] = ["web", "http-web", "http", "http-metrics", "https"];

impl ServiceSpec {
    /// Returns the port of the HTTP API: by its name, or the first one.
    fn port(&self) -> Option<&ServicePort> {
        let named = |name: &&str| self.ports.iter().find(|port| port.name == **name);
        PORT_NAMES.iter().find_map(named).or(self.ports.first())
    }
}

impl ServiceReference {
    /// Parses `NAMESPACE/NAME`, or `NAMESPACE/NAME:PORT`.
    ///
    /// # Errors
    /// It is neither.
    pub fn parse(text: &str) -> Result<Self, String> {
        let is_name = |text: &str| {
            !text.is_empty() && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        };
        let (service, port) = match text.split_once(':') {
            Some((service, port)) => (service, Some(port)),
            None => (text, None),
        };
        match service.split_once('/') {
            Some((namespace, name)) if [namespace, name].into_iter().chain(port).all(is_name) => Ok(Self {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                port: port.map(str::to_owned),
            }),
            _ => Err("use NAMESPACE/NAME, or NAMESPACE/NAME:PORT".to_owned()),
        }
    }
}

impl PrometheusService {
    fn new(known: Option<&KnownLabels>, object: &DynamicObject, port: Option<&str>) -> Result<Self, String> {
        let (namespace, name) = names(object);
        let spec = spec(object);
        let own = spec.port();
        let port = match (port, own) {
            (Some(port), _) => port.to_owned(),
            (None, Some(own)) => own.port.to_string(),
            (None, None) => return Err(format!("Service {namespace}/{name} has no ports")),
        };
        let chosen = spec.ports.iter().find(|own| own.name == port || own.port.to_string() == port);
        let is_https =
            chosen.is_some_and(|port| port.name.starts_with("https") || port.app_protocol == "https");
        let path = known.map_or("", |known| known.path);
        Ok(Self { namespace, name, is_https, port, path })
    }

    /// Returns the path of the API server that stands for the root of Prometheus' HTTP API, without a slash at its end.
    pub fn proxy_path(&self) -> String {
        let Self { namespace, name, port, path, .. } = self;
        let scheme = if self.is_https { "https:" } else { "" };
        format!("/api/v1/namespaces/{namespace}/services/{scheme}{name}:{port}/proxy{path}")
    }
}

fn names(object: &DynamicObject) -> (String, String) {
    let name = |name: &Option<String>| name.clone().unwrap_or_default();
    (name(&object.metadata.namespace), name(&object.metadata.name))
}

fn spec(object: &DynamicObject) -> ServiceSpec {
    // A Service that this cannot read has no ports that it knows.
    serde_json::from_value(object.data["spec"].clone()).unwrap_or_default()
}

/// Returns the Service of Prometheus.
///
/// # Errors
/// None was found, or several, or the API server refused: with what to do then.
pub async fn discover(client: &Client) -> Result<PrometheusService, String> {
    let services = Api::<DynamicObject>::all_with(client.clone(), &service_resource());
    let mut objects: BTreeMap<(String, String), DynamicObject> = BTreeMap::new();
    for selector in selectors() {
        let found = services.list(&ListParams::default().labels(&selector)).await;
        let found = found.map_err(|error| {
            let said = said(&error);
            format!("cannot list the Services of all namespaces ({said}): give --prometheus-service or --prometheus")
        })?;
        objects.extend(found.items.into_iter().map(|object| (names(&object), object)));
    }
    choose(objects.into_values().collect())
}

/// Returns this Service.
///
/// # Errors
/// It cannot be read, or has no ports.
pub async fn named(client: &Client, reference: &ServiceReference) -> Result<PrometheusService, String> {
    let ServiceReference { namespace, name, port } = reference;
    let services = Api::<DynamicObject>::namespaced_with(client.clone(), namespace, &service_resource());
    let object = services.get(name).await;
    let object =
        object.map_err(|error| format!("cannot read the Service {namespace}/{name}: {}", said(&error)))?;
    let labels = object.metadata.labels.clone().unwrap_or_default();
    PrometheusService::new(KNOWN.iter().find(|known| known.selects(&labels)), &object, port.as_deref())
}

/// Returns what the API server says, or why it cannot be reached.
fn said(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => with_causes(other),
    }
}

fn service_resource() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Service"))
}

/// Returns label selectors that together select at least all known Services: one for each key that stands first.
fn selectors() -> Vec<String> {
    let mut values: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (key, value) in KNOWN.iter().filter_map(|known| known.labels.first()) {
        values.entry(key).or_default().insert(value);
    }
    let selector = |(key, values): (&str, BTreeSet<&str>)| {
        format!("{key} in ({})", values.into_iter().collect::<Vec<_>>().join(","))
    };
    values.into_iter().map(selector).collect()
}

/// Returns the only Service among these with known labels.
fn choose(objects: Vec<DynamicObject>) -> Result<PrometheusService, String> {
    let labels = |object: &DynamicObject| object.metadata.labels.clone().unwrap_or_default();
    let mut found: Vec<(&KnownLabels, &DynamicObject)> = objects
        .iter()
        .filter_map(|object| Some((KNOWN.iter().find(|known| known.selects(&labels(object)))?, object)))
        .collect();
    let namespaces: Vec<_> =
        found.iter().filter(|(known, _)| !known.is_fallback).map(|(_, object)| names(object).0).collect();
    found.retain(|(known, object)| !known.is_fallback || !namespaces.contains(&names(object).0));
    // A chart may have a second, headless Service for the same pods.
    found.sort_by_key(|(_, object)| (spec(object).cluster_ip == "None", names(object)));
    let mut pods = BTreeSet::new();
    found.retain(|(_, object)| {
        let selector = spec(object).selector;
        selector.is_empty() || pods.insert((names(object).0, selector))
    });
    match &found[..] {
        [] => Err(none()),
        [(known, object)] => PrometheusService::new(Some(known), object, None),
        several => {
            let each = |(known, object): &(&KnownLabels, &DynamicObject)| {
                let (namespace, name) = names(object);
                format!("{namespace}/{name} ({})", known.product)
            };
            let names: Vec<String> = several.iter().map(each).collect();
            Err(format!(
                "the cluster has several Services of Prometheus: {}; choose one with --prometheus-service NAMESPACE/NAME",
                names.join(", ")
            ))
        }
    }
}

fn none() -> String {
    let each = |known: &KnownLabels| {
        let labels: Vec<String> = known.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        format!("{} ({})", labels.join(","), known.product)
    };
    let looked_for: Vec<String> = KNOWN.iter().map(each).collect();
    format!(
        "no Service of the cluster has labels of a Prometheus; give --prometheus-service NAMESPACE/NAME or \
         --prometheus URL. Looked for: {}",
        looked_for.join("; ")
    )
}

#[cfg(test)]
mod tests;
