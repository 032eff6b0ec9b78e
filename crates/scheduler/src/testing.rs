//! An engine whose decisions are discarded, for the tests of the crates above.

use std::sync::Arc;
use std::time::Duration;

use crate::agent::{AgentConfig, CacheLimits};
use crate::dispatch::Estimator;
use crate::engine::{Engine, Operation, Outlet};
use crate::gang::GangStatus;
use crate::placement::{Binding, ClaimOrder};
use crate::policy::PolicyStatus;
use crate::quota::QuotaReport;
use crate::scheduler::{Eviction, LatencySample, SchedulerConfig};
use berth_devices::ClaimRelease;
use berth_model::{PodRef, PodReport};

pub(crate) struct Nowhere;

impl Outlet for Nowhere {
    fn bind(&self, _: Binding, _: u64) {}
    fn claim(&self, _: ClaimOrder) {}
    fn release_claim(&self, _: ClaimRelease) {}
    fn evict(&self, _: Eviction, _: u64) {}
    fn nominate(&self, _: PodRef, _: Option<Arc<str>>, _: u64) {}
    fn report(&self, _: PodReport) {}
    fn report_allocation(&self, _: GangStatus) {}
    fn report_policy(&self, _: PolicyStatus) {}
    fn report_quota(&self, _: QuotaReport) {}
    fn observe(&self, _: LatencySample) {}
    fn lock_held(&self, _: Operation, _: Duration) {}
}

/// Calls `body` with an engine whose decisions go nowhere.
pub fn with_engine(body: impl FnOnce(&Engine, AgentConfig)) {
    let agent = AgentConfig { cache: CacheLimits::unlimited(), seed: 1 };
    let config = SchedulerConfig::default();
    let (engine, threads) =
        Engine::start(config, vec![agent], Estimator::default(), Box::new(Nowhere)).expect("it starts");
    body(&engine, agent);
    engine.stop();
    threads.join().expect("no thread panics");
}
