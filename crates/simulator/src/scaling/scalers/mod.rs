//! Scalers under comparison.

mod autopilot;
mod hpa;
mod showar;
mod vpa;

use serde::Serialize;

use super::service::ServiceAssumptions;
use super::signal::BuiltInSignal;
use berth_rightsizing::scaling::Size;
use hpa::Targets;

/// Metrics available to every scaler, every [`super::metrics::SYNC_S`] seconds.
#[derive(Debug, Clone)]
pub struct Scrape {
    pub time_s: i64,
    pub replicas: u32,
    pub ready: u32,
    pub size: Size,
    /// Prometheus: CPU rates of some ready pods in millicores, and their memory in bytes.
    pub cpu_milli: Vec<f64>,
    pub memory_bytes: Vec<f64>,
    /// metrics-server: the same, as of its last interval.
    pub usage_milli: Vec<f64>,
    pub working_set_bytes: Vec<f64>,
    /// Prometheus: the signal in its unit; `None` if nothing happened.
    pub signal: Option<f64>,
    /// Prometheus: share of the requests that did not fail.
    pub success: f64,
    pub kills: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScalerPlan {
    pub replicas: u32,
    pub size: Size,
}

pub trait Scaler {
    fn scrape(&mut self, scrape: &Scrape) -> ScalerPlan;
}

/// Settings of the scalers. All use the same bounds for replicas.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tuning {
    pub min_replicas: u32,
    pub max_replicas: u32,
    /// CPU request of each replica at the start. Scalers of replicas keep it.
    pub start_milli: i64,
    /// HPA: target utilisation of the request. Upstream's default is 0.8.
    pub hpa_target: f64,
    /// BuiltInSignal of showar and KEDA.
    pub signal: BuiltInSignal,
    /// showar: target of the signal, see [`BuiltInSignal::target`].
    pub setpoint: f64,
    /// KEDA: the same.
    pub keda_target: f64,
    /// showar: window of the vertical scaler, in seconds.
    pub window_s: i64,
    /// showar: span of usage before a size shrinks, in seconds.
    pub history_s: i64,
    /// Interval of Prometheus' scrapes, a multiple of 15 s.
    pub scrape_s: u32,
    /// Window of CPU rates; `None`: that of production.
    pub rate_window_s: Option<u32>,
    pub rules: ServiceAssumptions,
}

/// Scaling method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScalerKind {
    /// berth's scaler.
    Showar,
    /// HPA on CPU; memory as at the start.
    Hpa,
    /// HPA on CPU, VPA on memory only: the combination that upstream recommends.
    HpaVpaMemory,
    /// KEDA on showar's signal, VPA on memory.
    Keda,
    /// KEDA on CPU and on showar's signal at showar's target, VPA on memory.
    KedaCpu,
    /// Both on CPU, which upstream advises against.
    VpaHpa,
    Autopilot,
    Static,
}

impl ScalerKind {
    pub const ALL: [ScalerKind; 8] = [
        ScalerKind::Showar,
        ScalerKind::Hpa,
        ScalerKind::HpaVpaMemory,
        ScalerKind::Keda,
        ScalerKind::KedaCpu,
        ScalerKind::VpaHpa,
        ScalerKind::Autopilot,
        ScalerKind::Static,
    ];

    pub fn name(self) -> &'static str {
        match self {
            ScalerKind::Showar => "showar",
            ScalerKind::Hpa => "hpa",
            ScalerKind::HpaVpaMemory => "hpa-vpa-memory",
            ScalerKind::Keda => "keda",
            ScalerKind::KedaCpu => "keda-cpu",
            ScalerKind::VpaHpa => "vpa-hpa",
            ScalerKind::Autopilot => "autopilot",
            ScalerKind::Static => "static",
        }
    }

    /// Builds a scaler for a service that starts with this plan. `unit`: [`BuiltInSignal::unit`].
    pub fn build(self, start: ScalerPlan, unit: f64, tuning: &Tuning) -> Box<dyn Scaler> {
        let cpu = Some(tuning.hpa_target);
        let targets = match self {
            ScalerKind::Showar => return Box::new(showar::ShowarScaler::new(unit, tuning)),
            ScalerKind::Autopilot => return Box::new(autopilot::Autopilot::new(start, tuning)),
            ScalerKind::Static => return Box::new(Static(start)),
            ScalerKind::Keda => Targets { cpu: None, signal: Some(tuning.keda_target * unit) },
            ScalerKind::KedaCpu => Targets { cpu, signal: Some(tuning.setpoint * unit) },
            ScalerKind::Hpa | ScalerKind::HpaVpaMemory | ScalerKind::VpaHpa => Targets { cpu, signal: None },
        };
        let vpa = (self != ScalerKind::Hpa).then(|| vpa::VpaScaler::new(self == ScalerKind::VpaHpa));
        Box::new(VpaHpa { vpa, hpa: hpa::Hpa::new(targets, tuning) })
    }
}

struct Static(ScalerPlan);

impl Scaler for Static {
    fn scrape(&mut self, _: &Scrape) -> ScalerPlan {
        self.0
    }
}

struct VpaHpa {
    vpa: Option<vpa::VpaScaler>,
    hpa: hpa::Hpa,
}

impl Scaler for VpaHpa {
    fn scrape(&mut self, scrape: &Scrape) -> ScalerPlan {
        let size = self.vpa.as_mut().map_or(scrape.size, |vpa| vpa.size(scrape));
        ScalerPlan { replicas: self.hpa.replicas(scrape), size }
    }
}

/// Returns the mean; 0 if empty.
fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}
