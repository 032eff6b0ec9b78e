//! Differential test of berth against kube-scheduler's own plugins, on random clusters that change: the same nodes
//! are feasible, the rest are rejected for the same reasons, and berth's choice is not worse in a preference that is
//! the only one.
//!
//! `BERTH_DIFF_CLUSTERS` sets the number of clusters, `BERTH_DIFF_SEED` the first one's seed. A difference is printed
//! with its seed, minimized, and written to a file; such files are kept in `regressions/`, named after the bug.

mod compare;
mod generator;
mod oracle;
mod preemption;
mod regressions;
mod scenario;
mod shrink;
mod subject;

use std::fs;
use std::num::NonZero;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use berth_testenv::binaries::filter_oracle;

use compare::{Difference, FEASIBLE, Seen, first_difference};
use generator::Features;
use oracle::Oracle;
use scenario::Scenario;

use crate::support::{busy_turn, wait_for};

const CLUSTERS: u64 = 2_000;
const SEED: u64 = 1;
const FEATURES: Features =
    Features { domains: true, owners: true, volumes: true, sizes: true, nominated: true, preemption: false };

/// Answers that must have been compared often for the test to be meaningful.
const MUST_BE_SEEN: &[&str] = &[
    FEASIBLE,
    "pod affinity terms conflict",
    "node(s) were unschedulable",
    "node(s) had untolerated taint(s)",
    "node(s) didn't match Pod's node affinity/selector",
    "node(s) didn't satisfy plugin(s) [NodeAffinity]",
    "node(s) didn't have free ports for the requested pod ports",
    "Too many pods",
    "Insufficient cpu",
    "Insufficient memory",
    "Insufficient ephemeral-storage",
    "Insufficient example.com/gpu",
    "Insufficient hugepages-2Mi",
    "node(s) didn't match pod topology spread constraints",
    "node(s) didn't match pod topology spread constraints (missing required label)",
    "node(s) didn't match pod affinity rules",
    "node(s) didn't match pod anti-affinity rules",
    "node(s) didn't satisfy existing pods anti-affinity rules",
    "TaintToleration",
    "NodeAffinity",
    "InterPodAffinity",
    "PodTopologySpread",
];
/// Minimum number of each of them, unless the test runs on fewer clusters than usual.
const ENOUGH: u64 = 5;

#[test]
fn on_random_clusters_every_answer_is_kube_schedulers() {
    agree_on_random_clusters(FEATURES, CLUSTERS, MUST_BE_SEEN);
}

fn agree_on_random_clusters(features: Features, usual: u64, must_be_seen: &[&str]) {
    let number = |name, default| match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")),
        Err(_) => default,
    };
    let (first, clusters) = (number("BERTH_DIFF_SEED", SEED), number("BERTH_DIFF_CLUSTERS", usual));
    println!("BERTH_DIFF_SEED={first} BERTH_DIFF_CLUSTERS={clusters}");
    let (seen, reports) = check_all(first..first + clusters, features);
    assert!(reports.is_empty(), "\n{}", reports.join("\n"));

    println!("compared: {seen:#?}");
    if clusters >= usual {
        let seldom = |what: &&&str| seen.get(**what).is_none_or(|count| *count < ENOUGH);
        let seldom: Vec<_> = must_be_seen.iter().filter(seldom).collect();
        assert!(seldom.is_empty(), "hardly ever compared: {seldom:?}");
    }
}

/// One thread and one oracle per core. After a difference, no new cluster is started.
fn check_all(seeds: Range<u64>, features: Features) -> (Seen, Vec<String>) {
    let _busy = wait_for(busy_turn());
    let program = filter_oracle().expect("the oracle can be built");
    let (next, found) = (AtomicU64::new(seeds.start), AtomicBool::new(false));
    let work = || {
        let (mut oracle, mut seen) = (Oracle::start(&program), Seen::new());
        while !found.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if !seeds.contains(&seed) {
                break;
            }
            if let Some(report) = check(seed, features, &mut oracle, &mut seen) {
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

/// Returns a report of the first difference on the cluster of this seed.
fn check(seed: u64, features: Features, oracle: &mut Oracle, seen: &mut Seen) -> Option<String> {
    let scenario = generator::scenario(seed, features);
    let difference = first_difference(&scenario, oracle, seen).expect("the oracle answers")?;
    let Difference { step, question, text } = &difference;
    let mut report = format!("BERTH_DIFF_SEED={seed}, step {step}, question {question}:\n{text}");
    let small = shrink::shrink(scenario, &difference, oracle);
    if let Ok(Some(difference)) = first_difference(&small, oracle, seen) {
        report += &format!("Made small: {}", difference.text);
    }
    let file = write(seed, &small);
    Some(report + &format!("The requests that show it: {}\n", file.display()))
}

fn write(seed: u64, scenario: &Scenario) -> PathBuf {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("difference-{seed}.jsonl"));
    fs::write(&file, scenario::print(scenario))
        .expect("cargo's folder for temporary files can be written to");
    file
}
