//! Scalers under comparison.

mod autopilot;
mod hpa;
mod showar;
mod vpa;

use serde::Serialize;

use super::service::ServiceAssumptions;
use berth_rightsizing::scaling::Size;

/// Metrics available to every scaler, every [`SCRAPE_S`] seconds.
#[derive(Debug, Clone)]
pub struct Scrape {
    pub time_s: i64,
    pub replicas: u32,
    pub ready: u32,
    pub size: Size,
    /// CPU usage of some ready pods, mean of the last 15 s in millicores.
    pub cpu_milli: Vec<f64>,
    /// Memory usage of the same pods, in bytes.
    pub memory_bytes: Vec<f64>,
    /// The 95th percentile of the CPU wait of requests in the last minute, as a multiple of a request's mean CPU
    /// time; `None` without requests.
    pub wait: Option<f64>,
    /// Share of the last minute's requests that did not fail.
    pub success: f64,
    pub kills: u32,
}

pub const SCRAPE_S: u32 = 15;
/// Maximum number of pods with reported usage, which is enough for a window.
pub const PODS_MAX: u32 = 8;

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
    /// HPA: target utilisation of the request. Upstream's default is 0.8.
    pub hpa_target: f64,
    /// SHOWAR: target of the CPU wait, see [`Scrape::wait`].
    pub setpoint: f64,
    /// SHOWAR: window of the vertical scaler, in seconds.
    pub window_s: i64,
    pub rules: ServiceAssumptions,
}

/// Scaling method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScalerKind {
    /// berth's scaler.
    Showar,
    /// Both on CPU, which upstream advises against.
    VpaHpa,
    /// HPA on CPU, VPA on memory only: the combination that upstream recommends.
    HpaVpaMemory,
    Autopilot,
    Static,
}

impl ScalerKind {
    pub const ALL: [ScalerKind; 5] = [
        ScalerKind::Showar,
        ScalerKind::VpaHpa,
        ScalerKind::HpaVpaMemory,
        ScalerKind::Autopilot,
        ScalerKind::Static,
    ];

    pub fn name(self) -> &'static str {
        match self {
            ScalerKind::Showar => "showar",
            ScalerKind::VpaHpa => "vpa-hpa",
            ScalerKind::HpaVpaMemory => "hpa-vpa-memory",
            ScalerKind::Autopilot => "autopilot",
            ScalerKind::Static => "static",
        }
    }

    /// Builds a scaler for a service that starts with this plan.
    pub fn build(self, start: ScalerPlan, tuning: &Tuning) -> Box<dyn Scaler> {
        match self {
            ScalerKind::Showar => Box::new(showar::ShowarScaler::new(tuning)),
            ScalerKind::VpaHpa | ScalerKind::HpaVpaMemory => {
                let vpa = vpa::VpaScaler::new(self == ScalerKind::VpaHpa);
                Box::new(VpaHpa { vpa, hpa: hpa::Hpa::new(tuning) })
            }
            ScalerKind::Autopilot => Box::new(autopilot::Autopilot::new(start, tuning)),
            ScalerKind::Static => Box::new(Static(start)),
        }
    }
}

struct Static(ScalerPlan);

impl Scaler for Static {
    fn scrape(&mut self, _: &Scrape) -> ScalerPlan {
        self.0
    }
}

struct VpaHpa {
    vpa: vpa::VpaScaler,
    hpa: hpa::Hpa,
}

impl Scaler for VpaHpa {
    fn scrape(&mut self, scrape: &Scrape) -> ScalerPlan {
        ScalerPlan { replicas: self.hpa.replicas(scrape), size: self.vpa.size(scrape) }
    }
}

/// Returns the mean; 0 if empty.
fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}
