//! Checks of many seeds, on all cores.

use std::num::NonZero;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::Seen;
use crate::support::{busy_turn, wait_for};

const SEED: u64 = 1;

/// Returns the seeds that the environment asks for, `usual` of them by default, and prints them.
pub fn seeds(usual: u64) -> Range<u64> {
    let number = |name, default| match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")),
        Err(_) => default,
    };
    let (first, count) = (number("BERTH_DIFF_SEED", SEED), number("BERTH_DIFF_CLUSTERS", usual));
    println!("BERTH_DIFF_SEED={first} BERTH_DIFF_CLUSTERS={count}");
    first..first + count
}

/// Runs one thread per core, each with the oracle that `start` returns. `check` returns a report of a difference, after
/// which no new seed is started.
pub fn check_all<O>(
    seeds: Range<u64>,
    start: impl Fn() -> O + Sync,
    check: impl Fn(u64, &mut O, &mut Seen) -> Option<String> + Sync,
) -> (Seen, Vec<String>) {
    let _busy = wait_for(busy_turn());
    let (next, found) = (AtomicU64::new(seeds.start), AtomicBool::new(false));
    let work = || {
        let (mut oracle, mut seen) = (start(), Seen::new());
        while !found.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if !seeds.contains(&seed) {
                break;
            }
            if let Some(report) = check(seed, &mut oracle, &mut seen) {
                found.store(true, Ordering::Relaxed);
                return (seen, Some(report));
            }
        }
        (seen, None)
    };
    let threads = std::thread::available_parallelism().map_or(2, NonZero::get);
    let (mut all_seen, mut reports) = (Seen::new(), Vec::new());
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            let (seen, report) = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            seen.into_iter().for_each(|(what, count)| *all_seen.entry(what).or_default() += count);
            reports.extend(report);
        }
    });
    (all_seen, reports)
}
