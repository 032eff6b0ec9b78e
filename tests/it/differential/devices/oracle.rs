//! kube-scheduler's device allocator as oracle: a process that runs it.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::super::oracle::LineServer;
use super::{ClaimResult, DeviceResult};

/// kube-scheduler's answer for one scenario.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Answer {
    /// In the order of the scenario.
    pub nodes: Vec<NodeAnswer>,
    pub selectors: Selectors,
    /// What the API server would refuse of the scenario; with it, there is nothing else.
    pub invalid: Vec<String>,
}

/// By expression, then `slice/device`: `true`, `false` or the error.
pub type Selectors = BTreeMap<String, BTreeMap<String, String>>;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeAnswer {
    pub fits: bool,
    /// Why not, unless the devices just do not suffice.
    pub error: String,
    /// With such an error, kube-scheduler gives up the pod on all nodes.
    pub fatal: bool,
    /// Results of each claim, if it fits.
    claims: Vec<Vec<AllocatedDevice>>,
}

/// `DeviceRequestAllocationResult`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AllocatedDevice {
    request: String,
    driver: String,
    pool: String,
    device: String,
    #[serde(default)]
    admin_access: bool,
    #[serde(default)]
    consumed_capacity: BTreeMap<String, String>,
}

impl NodeAnswer {
    /// kube-scheduler stopped the search.
    pub fn timed_out(&self) -> bool {
        self.error.contains("filter operation aborted")
    }

    pub fn allocation(&self) -> Vec<ClaimResult> {
        let device = |it: &AllocatedDevice| DeviceResult {
            request: it.request.clone(),
            driver: it.driver.clone(),
            pool: it.pool.clone(),
            device: it.device.clone(),
            consumed: it.consumed_capacity.clone(),
            admin: it.admin_access,
        };
        let claim = |results: &Vec<_>| ClaimResult { devices: results.iter().map(device).collect() };
        self.claims.iter().map(claim).collect()
    }
}

pub struct Oracle(LineServer);

impl Oracle {
    pub fn start(program: &Path) -> Self {
        Oracle(LineServer::start(program))
    }

    /// # Errors
    /// The program has exited.
    pub fn ask(&mut self, scenario: &Value) -> anyhow::Result<Answer> {
        Ok(serde_json::from_str(self.0.ask(scenario)?)?)
    }

    /// Asks after a check of the objects, which takes longer than the rest.
    ///
    /// # Errors
    /// The program has exited.
    pub fn ask_validated(&mut self, scenario: &Value) -> anyhow::Result<Answer> {
        let mut scenario = scenario.clone();
        scenario["validate"] = true.into();
        self.ask(&scenario)
    }
}
