//! Simulation of thousands of short, random, reproducible runs of berth: real schedulers and agents around a model of
//! the API server, under a virtual clock, with every possible fault.
//!
//! `BERTH_SIM_SEEDS=n` runs more schedules than usual, `BERTH_SIM_SEED=n` runs one and prints its trace. A schedule
//! is a function of its seed: each purpose (load, faults, delays, interleaving, other schedulers) has its own
//! randomness, derived from it.

mod admission;
mod budgets;
mod chaos;
mod churn;
mod claim_server;
mod claim_writers;
mod cluster;
mod device_judge;
mod devices;
pub mod dice;
mod gangs;
mod guard;
mod holds;
mod judge;
mod objects;
mod others;
mod peers;
mod preemption;
mod process;
mod quotas;
mod replicas;
mod reports;
mod requests;
mod sim;
mod storage;
mod watches;
mod work;

use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use sim::{Sim, Tally};

use crate::support::{busy_turn, wait_for};

const SEEDS: u64 = 2_000;
/// Of a long trace, only the end is printed.
const TRACE_LINES: usize = 400;

#[test]
fn under_faults_every_pod_is_bound_once_or_reported() {
    if let Some(seed) = number("BERTH_SIM_SEED") {
        let (result, trace) = Sim::new(seed, true).run();
        println!("{}", trace.join("\n"));
        result.unwrap();
        return;
    }
    let seeds = number("BERTH_SIM_SEEDS").unwrap_or(SEEDS);
    let _busy = wait_for(busy_turn());
    let next = AtomicU64::new(0);
    let (tally, failed) = (Mutex::new(Tally::default()), Mutex::new(None::<u64>));
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds || failed.lock().unwrap().is_some() {
                        return;
                    }
                    let outcome = std::panic::catch_unwind(|| Sim::new(seed, false).run().0);
                    match outcome {
                        Ok(Ok(this)) => tally.lock().unwrap().add(&this),
                        _ => {
                            let mut failed = failed.lock().unwrap();
                            *failed = Some(failed.map_or(seed, |other| other.min(seed)));
                        }
                    }
                }
            });
        }
    });
    if let Some(seed) = *failed.lock().unwrap() {
        panic!("{}", report(seed));
    }
    let tally = tally.into_inner().unwrap();
    println!("{seeds} schedules: {tally:?}");
    // An event that never occurs in the simulation is not tested by it.
    let rare = tally.missing();
    assert!(seeds < SEEDS || rare.is_empty(), "never happened: {rare:?}");
}

/// Runs the failing schedule again, with a trace.
fn report(seed: u64) -> String {
    let mut sim = Sim::new(seed, true);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| sim.run_to_end()));
    let mut text = format!("seed {seed}\n");
    let trace = sim.trace();
    for line in &trace[trace.len().saturating_sub(TRACE_LINES)..] {
        let _ = writeln!(text, "{line}");
    }
    let _ = match result {
        Ok(Ok(())) => writeln!(text, "passed the second time: the schedule is not deterministic"),
        Ok(Err(why)) => writeln!(text, "{why}"),
        Err(_) => writeln!(text, "panicked (see above)"),
    };
    let _ =
        write!(text, "to reproduce: BERTH_SIM_SEED={seed} cargo test --test it simulation -- --nocapture");
    text
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is not a number")))
}

#[test]
fn a_schedule_is_the_same_every_time_it_is_run() {
    for seed in 0..20 {
        let (first, second) = (Sim::new(seed, true).run(), Sim::new(seed, true).run());
        assert_eq!(first.1, second.1, "seed {seed}");
    }
}
