//! Samples of `metrics.k8s.io`.

use serde::Deserialize;

use super::objects::{Quantities, amounts};
use berth_model::PerResource;
use berth_rightsizing::recommend::{Amount, UnixNanos, time};

/// The usage of a pod at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodUsage {
    pub namespace: String,
    pub name: String,
    pub time: UnixNanos,
    pub containers: Vec<ContainerUsage>,
}

/// Millicores and bytes; `None`: not measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerUsage {
    pub name: String,
    pub usage: PerResource<Option<Amount>>,
}

/// Parses a `PodMetrics` of `metrics.k8s.io`.
pub(super) fn read_usage(json: &str) -> Result<PodUsage, String> {
    #[derive(Deserialize)]
    struct PodMetrics {
        metadata: Named,
        timestamp: String,
        #[serde(default)]
        containers: Vec<Measured>,
    }
    #[derive(Deserialize)]
    struct Named {
        #[serde(default)]
        namespace: String,
        name: String,
    }
    #[derive(Deserialize)]
    struct Measured {
        name: String,
        #[serde(default)]
        usage: Quantities,
    }
    let metrics: PodMetrics = serde_json::from_str(json).map_err(|error| error.to_string())?;
    let containers = metrics.containers.into_iter();
    Ok(PodUsage {
        namespace: metrics.metadata.namespace,
        name: metrics.metadata.name,
        time: time::from_text(&metrics.timestamp).map_err(|error| error.to_string())?,
        containers: containers
            .map(|it| ContainerUsage { name: it.name, usage: amounts(&it.usage) })
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_read_with_what_was_not_measured() {
        let text = r#"{"metadata":{"name":"p"},"timestamp":"1970-01-01T00:00:01Z","window":"15s","containers":[
            {"name":"app","usage":{"cpu":"12345678n","memory":"100Ki"}},{"name":"new","usage":{"cpu":"bad"}}]}"#;
        let usage = read_usage(text).unwrap();
        assert_eq!(usage.time, 1_000_000_000);
        assert_eq!(usage.containers[0].usage, PerResource { cpu: Some(13), memory: Some(102_400) });
        assert_eq!(usage.containers[1].usage, PerResource::default());
        assert!(read_usage(r#"{"metadata":{"name":"p"},"timestamp":"now"}"#).is_err());
    }
}
