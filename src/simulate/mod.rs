//! `berth simulate`: the production classifier, dispatcher, agents, caches and ledger on a virtual clock (Kamino,
//! OSDI'25, section 6).
//!
//! Only the clock, the source of requests and the placement store differ from `berth run`. Deterministic by seed. May not
//! know: kube, tokio, clocks.

mod cost;
mod figures;
mod measure;
mod quality;
mod report;
pub mod synthetic;
pub mod trace;
mod traits;
mod workload;
mod world;

pub use cost::Costs;
pub use figures::{Compared, Figures, Outcome, Report, Slice, Sweep, Varied};
pub use report::render;
pub use workload::{Machine, Request, Workload};
pub use world::{Setup, run};
