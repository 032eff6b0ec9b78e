//! Placements as spans of OpenTelemetry.

use berth_model::InvalidField;
use berth_model::validate::{refuse, whole_number, within};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Placements as spans of OpenTelemetry, one trace for each placed pod. Needs rememberedDecisions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TracingConfig {
    /// URL of a collector that takes OTLP over HTTP, usually on port 4318; `/v1/traces` is added. Empty: no spans. Headers, such as
    /// credentials, are those of the environment variable `OTEL_EXPORTER_OTLP_HEADERS`.
    #[schemars(regex(pattern = "^(https?://.+)?$"))]
    pub endpoint: String,

    /// Of a million placements, this many are sent.
    #[serde(deserialize_with = "whole_number")]
    #[schemars(range(min = 0, max = 1000000))]
    pub sampling_rate_per_million: u32,
}

impl Default for TracingConfig {
    fn default() -> Self {
        Self { endpoint: String::new(), sampling_rate_per_million: 1_000_000 }
    }
}

impl TracingConfig {
    pub(super) fn validate(&self, remembered_decisions: u32) -> Result<(), InvalidField> {
        within("tracing.samplingRatePerMillion", self.sampling_rate_per_million, 0..=1_000_000)?;
        let host = self.endpoint.strip_prefix("http://").or_else(|| self.endpoint.strip_prefix("https://"));
        match (self.endpoint.is_empty(), host) {
            (true, _) => Ok(()),
            (false, None | Some("")) => refuse(
                "tracing.endpoint",
                format!("{:?} is not a URL such as http://collector:4318", self.endpoint),
            ),
            (false, Some(_)) if remembered_decisions == 0 => {
                refuse("tracing.endpoint", "it needs rememberedDecisions above 0")
            }
            (false, Some(_)) => Ok(()),
        }
    }
}
