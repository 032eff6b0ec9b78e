//! Who is compared.

mod autopilot;
mod hpa;
mod showar;
mod vpa;

use serde::Serialize;

use super::service::Rules;
use berth_rightsizing::scaling::Size;

/// What every scaler may see, every [`SCRAPE_S`] seconds.
#[derive(Debug, Clone)]
pub struct Scrape {
    pub time_s: i64,
    pub replicas: u32,
    pub ready: u32,
    pub size: Size,
    /// Of some ready pods, the mean of the last 15 s in millicores.
    pub cpu_milli: Vec<f64>,
    /// Of the same pods, in bytes.
    pub memory_bytes: Vec<f64>,
    /// The 95th percentile of what requests waited for CPU in the last minute, as a multiple of the CPU time of a request
    /// in the mean; `None` without requests.
    pub wait: Option<f64>,
    /// Share of the last minute's requests that did not fail.
    pub success: f64,
    pub kills: u32,
}

pub const SCRAPE_S: u32 = 15;
/// Usage of so many pods is told at most, which is what a window needs.
pub const PODS_MAX: u32 = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    pub replicas: u32,
    pub size: Size,
}

pub trait Scaler {
    fn scrape(&mut self, scrape: &Scrape) -> Plan;
}

/// What is set for the scalers. All keep between the same numbers of replicas.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tuning {
    pub min_replicas: u32,
    pub max_replicas: u32,
    /// HPA: share of the request that should be used. Upstream's default is 0.8.
    pub hpa_target: f64,
    /// SHOWAR: the wait for CPU that should be, see [`Scrape::wait`].
    pub setpoint: f64,
    /// SHOWAR: the window of the vertical half.
    pub window_s: i64,
    pub rules: Rules,
}

/// By what is scaled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScalerKind {
    /// berth's.
    Showar,
    /// Both on CPU, of which upstream warns.
    VpaHpa,
    /// The HPA on CPU, the VPA for memory only: as upstream tells to combine them.
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

    /// One for a service that begins with this plan.
    pub fn build(self, start: Plan, tuning: &Tuning) -> Box<dyn Scaler> {
        match self {
            ScalerKind::Showar => Box::new(showar::Showar::new(tuning)),
            ScalerKind::VpaHpa | ScalerKind::HpaVpaMemory => {
                let vpa = vpa::Vpa::new(self == ScalerKind::VpaHpa);
                Box::new(VpaHpa { vpa, hpa: hpa::Hpa::new(tuning) })
            }
            ScalerKind::Autopilot => Box::new(autopilot::Autopilot::new(start, tuning)),
            ScalerKind::Static => Box::new(Static(start)),
        }
    }
}

struct Static(Plan);

impl Scaler for Static {
    fn scrape(&mut self, _: &Scrape) -> Plan {
        self.0
    }
}

struct VpaHpa {
    vpa: vpa::Vpa,
    hpa: hpa::Hpa,
}

impl Scaler for VpaHpa {
    fn scrape(&mut self, scrape: &Scrape) -> Plan {
        Plan { replicas: self.hpa.replicas(scrape), size: self.vpa.size(scrape) }
    }
}

/// The mean; 0 of nothing.
fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}
