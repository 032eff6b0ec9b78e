//! `berth simulate`: the production classifier, dispatcher, agents, caches and ledger on a virtual clock (Kamino,
//! OSDI'25, section 6).
//!
//! Only the clock, the source of requests and the placement store differ from `berth run`. Deterministic by seed. May not
//! know: kube, tokio, clocks.

mod burst;
mod cost;
mod experiment;
mod figures;
mod lru;
mod measure;
mod quality;
pub mod report;
pub mod scaling;
pub mod synthetic;
pub mod trace;
mod traits;
mod workload;
mod world;

pub use cost::Costs;
pub use experiment::{CacheSize, Experiment};
pub use figures::{
    Compared, DispatchFigures, DispatchReport, DispatchSlice, DispatchSweep, RunOutcome, Varied,
};
pub use report::render;
pub use workload::{ArrivalTrace, Machine, PodArrival};
pub use world::Setup;

use std::time::Duration;

/// Runs a simulation and its burst. `progress` is called now and then with the number of requests that have arrived.
pub fn run(setup: &Setup, progress: &dyn Fn(u64)) -> RunOutcome {
    let mut outcome = run_without_burst(setup, progress);
    let stretch = burst::stretch(setup);
    let at = |index: usize| {
        setup.workload.arrivals.get(index).map_or(0.0, |request| setup.at(request.arrives_s).as_secs_f64())
    };
    outcome.burst = (at(stretch.start), at(stretch.end.saturating_sub(1)));
    let (burst, window) = burst::compressed(setup, stretch);
    outcome.figures.throughput_burst = world::run(&burst, window, &|_| ()).figures.throughput_burst;
    outcome
}

/// Same as [`run`], but without the throughput of the burst (0).
pub fn run_without_burst(setup: &Setup, progress: &dyn Fn(u64)) -> RunOutcome {
    world::run(setup, Duration::ZERO..Duration::ZERO, progress)
}
