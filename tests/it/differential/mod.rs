//! berth against kube-scheduler's own plugins, on random clusters that change: the same nodes are feasible, the others are
//! rejected for the same reasons, and what berth chooses is not worse in a preference that is the only one.
//!
//! `BERTH_DIFF_CLUSTERS` says how many clusters, `BERTH_DIFF_SEED` the first one's seed. A difference is printed with its
//! seed, made small, and written to a file; named after what was wrong, such files are kept in `regressions/`.

mod compare;
mod generator;
mod oracle;
mod regressions;
mod scenario;
mod shrink;
mod subject;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use berth::control_plane::binaries::filter_oracle;

use compare::{Difference, first_difference};
use generator::Features;
use oracle::Oracle;
use scenario::Scenario;

const CLUSTERS: u64 = 2_000;
const SEED: u64 = 1;

#[test]
fn on_random_clusters_every_answer_is_kube_schedulers() {
    let number = |name, default| match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")),
        Err(_) => default,
    };
    let (first, clusters) = (number("BERTH_DIFF_SEED", SEED), number("BERTH_DIFF_CLUSTERS", CLUSTERS));
    println!("BERTH_DIFF_SEED={first} BERTH_DIFF_CLUSTERS={clusters}");
    let program = filter_oracle().expect("the oracle can be built");
    let (next, found) = (AtomicU64::new(first), AtomicBool::new(false));
    let reports: Vec<String> = std::thread::scope(|scope| {
        let work = || {
            let mut oracle = Oracle::start(&program);
            while !found.load(Ordering::Relaxed) {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= first + clusters {
                    break;
                }
                if let Some(report) = check(seed, &mut oracle) {
                    found.store(true, Ordering::Relaxed);
                    return Some(report);
                }
            }
            None
        };
        let threads = std::thread::available_parallelism().map_or(2, |threads| threads.get());
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().filter_map(|worker| worker.join().expect("a worker panicked")).collect()
    });
    assert!(reports.is_empty(), "\n{}", reports.join("\n"));
}

/// A report of the first difference on the cluster of this seed.
fn check(seed: u64, oracle: &mut Oracle) -> Option<String> {
    let scenario = generator::scenario(seed, Features { domains: true, owners: false });
    let difference = first_difference(&scenario, oracle).expect("the oracle answers")?;
    let Difference { step, question, text } = &difference;
    let mut report = format!("BERTH_DIFF_SEED={seed}, step {step}, question {question}:\n{text}");
    let small = shrink::shrink(scenario, &difference, oracle);
    if let Ok(Some(difference)) = first_difference(&small, oracle) {
        report += &format!("Made small: {}", difference.text);
    }
    let file = write(seed, &small);
    Some(report + &format!("The requests that show it: {}\n", file.display()))
}

fn write(seed: u64, scenario: &Scenario) -> PathBuf {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("difference-{seed}.jsonl"));
    fs::write(&file, scenario::print(scenario)).expect("cargo's folder for temporary files can be written to");
    file
}
