//! Placements as spans of OpenTelemetry.
//!
//! The memory of decisions is read once a second, and each decision that is in the sample becomes a trace. See `README.md`.

mod trace;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime};

use berth_scheduler::decisions::DecisionPage;
use berth_telemetry::SpanCounters;
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SpanExporter as _;

use trace::{Origin, SPANS_MAX, spans};

/// Interval at which new decisions are read.
const READ_EVERY: Duration = Duration::from_secs(1);
/// Decisions that are read, and sent, at once: it bounds the time under the engine's lock and the size of a request.
const PAGE_MAX: usize = 256;
/// Time for one request.
const REQUEST_MAX: Duration = Duration::from_secs(10);
/// Interval between two warnings.
const WARN_EVERY: Duration = Duration::from_secs(60);
/// The path of OTLP over HTTP.
const PATH: &str = "/v1/traces";

/// Where spans go, and how many.
#[derive(Debug, Clone, Copy)]
pub struct SpanSettings<'a> {
    /// URL of a collector that takes OTLP over HTTP.
    pub endpoint: &'a str,
    /// Of a million placements, this many are sent.
    pub per_million: u32,
    /// Names this process.
    pub host: &'a str,
}

/// Why there are no spans.
#[derive(Debug, thiserror::Error)]
#[error("cannot send spans to {endpoint}: {why}")]
pub struct SpanError {
    endpoint: String,
    why: String,
}

/// Sends placements as spans.
pub struct SpanSender<Read> {
    /// Returns the decisions from this number on, at most so many.
    read: Read,
    exporter: SpanExporter,
    endpoint: String,
    counters: Arc<SpanCounters>,
    origin: Origin,
    per_million: u32,
    next: u64,
    warned: Option<Instant>,
}

impl<Read: Fn(u64, usize) -> DecisionPage> SpanSender<Read> {
    /// Headers for the collector, such as credentials, are those of OpenTelemetry's environment variables
    /// (`OTEL_EXPORTER_OTLP_HEADERS`). Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The endpoint is not a URL, or no client for it can be made.
    pub fn new(settings: SpanSettings, counters: Arc<SpanCounters>, read: Read) -> Result<Self, SpanError> {
        let endpoint = format!("{}{PATH}", settings.endpoint.trim_end_matches('/'));
        let exporter =
            SpanExporter::builder().with_http().with_endpoint(&endpoint).with_timeout(REQUEST_MAX).build();
        let mut exporter =
            exporter.map_err(|why| SpanError { endpoint: endpoint.clone(), why: why.to_string() })?;
        let resource = Resource::builder()
            .with_service_name("berth")
            .with_attribute(opentelemetry::KeyValue::new("host.name", settings.host.to_owned()))
            .with_attribute(opentelemetry::KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
        exporter.set_resource(&resource.build());
        let origin = Origin::new(SystemTime::now(), settings.host);
        let per_million = settings.per_million;
        Ok(SpanSender { read, exporter, endpoint, counters, origin, per_million, next: 0, warned: None })
    }

    /// Sends what is decided until `stop` resolves, and what is left then.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        let mut stop = std::pin::pin!(stop);
        let mut ticks = tokio::time::interval(READ_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let stops = tokio::select! {
                () = &mut stop => true,
                _ = ticks.tick() => false,
            };
            while self.send_page().await {}
            if stops {
                return;
            }
        }
    }

    /// Sends the next decisions. Returns whether there may be more.
    async fn send_page(&mut self) -> bool {
        let page = (self.read)(self.next, PAGE_MAX);
        let now = SystemTime::now();
        self.counters.missed.fetch_add(page.first.saturating_sub(self.next), Relaxed);
        let count = page.decisions.len();
        self.next = page.first + count as u64;
        let sampled = (page.first..).zip(&page.decisions);
        let sampled = sampled.filter(|(number, _)| self.origin.samples(*number, self.per_million));
        let (mut batch, mut placements) = (Vec::with_capacity(count * SPANS_MAX as usize), 0);
        for (number, (decision, age)) in sampled {
            batch.extend(spans(self.origin, number, decision, now.checked_sub(*age).unwrap_or(now)));
            placements += 1;
        }
        if placements > 0 {
            match self.exporter.export(batch).await {
                Ok(()) => self.counters.sent.fetch_add(placements, Relaxed),
                Err(error) => {
                    self.warn(&error.to_string());
                    self.counters.failed.fetch_add(placements, Relaxed)
                }
            };
        }
        count == PAGE_MAX
    }

    fn warn(&mut self, error: &str) {
        if self.warned.is_none_or(|last| last.elapsed() >= WARN_EVERY) {
            self.warned = Some(Instant::now());
            tracing::warn!(endpoint = self.endpoint, %error, "spans are lost: the collector did not take them");
        }
    }
}

#[cfg(test)]
mod tests;
