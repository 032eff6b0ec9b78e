//! An engine whose decisions go to a test, and a pod, for tests and benchmarks of this crate and of those above.

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
use berth_model::{Amounts, Pod, PodRef, PodReport, PodSpec, Usage};

/// Takes decisions; discards them by default.
pub struct FakeOutlet {
    pub bind: Box<dyn Fn(Binding) + Send + Sync>,
    pub evict: Box<dyn Fn(Eviction) + Send + Sync>,
}

impl Default for FakeOutlet {
    fn default() -> Self {
        FakeOutlet { bind: Box::new(|_| {}), evict: Box::new(|_| {}) }
    }
}

impl Outlet for FakeOutlet {
    fn bind(&self, binding: Binding, _: u64) {
        (self.bind)(binding);
    }
    fn claim(&self, _: ClaimOrder) {}
    fn release_claim(&self, _: ClaimRelease) {}
    fn evict(&self, eviction: Eviction, _: u64) {
        (self.evict)(eviction);
    }
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
        Engine::start(config, vec![agent], Estimator::default(), Box::<FakeOutlet>::default())
            .expect("it starts");
    body(&engine, agent);
    engine.stop();
    threads.join().expect("no thread panics");
}

/// Returns a waiting pod of namespace `ns` that requests this CPU; its uid is also its name.
pub fn pod(uid: &str, cpu_milli: i64) -> Pod {
    let usage = Arc::new(Usage {
        requests: Amounts { cpu_milli, pods: 1, ..Amounts::default() },
        nonzero_cpu_milli: cpu_milli,
        ..Usage::default()
    });
    Pod {
        uid: uid.into(),
        namespace: "ns".into(),
        name: uid.into(),
        scheduler_name: "berth".into(),
        generation: 1,
        usage: usage.clone(),
        spec: Ok(Arc::new(PodSpec { usage, ..PodSpec::default() })),
        ..Pod::default()
    }
}
