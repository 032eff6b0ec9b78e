//! Placements as spans of OpenTelemetry.

use std::sync::Arc;

use anyhow::Result;
use tokio::sync::watch;

use berth_config::TracingConfig;
use berth_controllers::tasks::{Tasks, ended, host_name};
use berth_scheduler::engine::Engine;
use berth_spans::{SpanSender, SpanSettings};
use berth_telemetry::SpanCounters;

/// Sends spans while `working`, if the configuration asks for it.
pub(super) fn send(
    tasks: &mut Tasks,
    engine: &Engine,
    config: &TracingConfig,
    counters: Option<&Arc<SpanCounters>>,
    working: watch::Receiver<bool>,
) -> Result<()> {
    let Some(counters) = counters else {
        return Ok(());
    };
    let host = host_name();
    let settings = SpanSettings {
        endpoint: &config.endpoint,
        per_million: config.sampling_rate_per_million,
        host: &host,
    };
    let engine = engine.clone();
    let sender = SpanSender::new(settings, counters.clone(), move |from, most| engine.decisions(from, most))?;
    tasks.spawn_ending("spans", sender.run(ended(working)));
    Ok(())
}
