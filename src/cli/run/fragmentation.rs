//! Periodic fragmentation report: a few pods whose move makes room for pending pods and allocations.
//!
//! A pass runs on its own thread, with its own agent that lives as long as the pass. The scheduler's lock is
//! held to copy the rows and the pending pods (once), for the pods of one node at a time, and for the class
//! of one pod at a time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_controllers::tasks::Tasks;
use berth_scheduler::agent::{Agent, AgentConfig, CacheLimits};
use berth_scheduler::engine::{AdviceInput, Engine};
use berth_scheduler::repack::{Case, Entry, FragmentationReport, Repacker, Waits};
use berth_server::fragmentation::{FragmentationPass, Latest};

/// Interval of the check whether anything is pending and a pass is due.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Time limit of a pass.
const LONGEST_PASS: Duration = Duration::from_secs(5);
/// Maximum number of pending classes and allocations in one pass.
const MOST_CASES: usize = 64;
/// Size of the agent's cache.
const CACHE_BYTES: usize = 64 << 20;

pub(super) fn report(tasks: &mut Tasks, engine: &Engine, every: Duration, latest: Arc<Latest>) {
    let engine = engine.clone();
    tasks.spawn("fragmentation", async move {
        let mut looks = tokio::time::interval(LOOK_EVERY.min(every));
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut last: Option<Instant> = None;
        loop {
            looks.tick().await;
            if last.is_some_and(|last| last.elapsed() < every) {
                continue;
            }
            let (engine, latest) = (engine.clone(), latest.clone());
            let pass = tokio::task::spawn_blocking(move || look(&engine, &latest)).await;
            match pass {
                Ok(true) => last = Some(Instant::now()),
                Ok(false) => {}
                Err(error) => tracing::error!(%error, "the fragmentation report failed"),
            }
        }
    });
}

/// Returns whether a pass was made because something is pending.
fn look(engine: &Engine, latest: &Latest) -> bool {
    let began = Instant::now();
    let mut agent = Agent::new(AgentConfig {
        cache: CacheLimits { bytes: CACHE_BYTES, ..CacheLimits::unlimited() },
        seed: 1,
    });
    let Some(AdviceInput { cases, more, budgets }) = engine.advice_input(&mut agent, MOST_CASES) else {
        latest.clear();
        return false;
    };
    if cases.is_empty() {
        if latest.clear() {
            engine.withdraw_advice();
        }
        return false;
    }
    let locked = began.elapsed();
    let mut residents = engine.clone();
    let mut go_on = || began.elapsed() < LONGEST_PASS;
    let mut findings = Vec::new();
    let mut repacker = Repacker::new(&mut agent, &mut residents, &budgets, &mut go_on);
    for case in &cases {
        if began.elapsed() >= LONGEST_PASS {
            break;
        }
        findings.push(repacker.advise(case));
    }
    let effort = repacker.effort();
    let told = cases.iter().zip(&findings);
    let waiting: Vec<Entry> =
        told.map(|(case, finding)| Entry::new(case, finding, &|node| engine.node_name(node))).collect();
    let left_out = more + cases.len() - findings.len();
    let mut report = FragmentationReport { waiting, left_out, ..FragmentationReport::default() };
    report.note(effort);
    engine.advise(helps(&cases, &report));
    let took = began.elapsed();
    tracing::info!(
        waiting = report.waiting.len() + left_out,
        helped = report.helped(),
        nodes = report.nodes().len(),
        ?took,
        ?locked,
        "searched for pods whose move makes room"
    );
    latest.set(FragmentationPass { report, took });
    true
}

fn helps(
    cases: &[Case],
    report: &FragmentationReport,
) -> BTreeMap<berth_scheduler::gang::AllocationName, Arc<str>> {
    let told = cases.iter().zip(&report.waiting);
    let of_allocation = |(case, entry): (&Case, &Entry)| match &case.what {
        Waits::Allocation(name) => Some((name.clone(), entry.help.clone()?)),
        Waits::Pods(_) => None,
    };
    told.filter_map(of_allocation).collect()
}
