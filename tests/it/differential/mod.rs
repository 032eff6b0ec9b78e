//! Differential test of berth against kube-scheduler's own plugins, on random clusters that change: the same nodes
//! are feasible, the rest are rejected for the same reasons, and berth's choice is not worse in a preference that is
//! the only one.
//!
//! `BERTH_DIFF_CLUSTERS` sets the number of clusters, `BERTH_DIFF_SEED` the first one's seed. A difference is printed
//! with its seed, minimized, and written to a file; such files are kept in `regressions/`, named after the bug.

mod compare;
mod devices;
mod generator;
mod oracle;
mod preemption;
mod regressions;
mod scenario;
mod seeds;
mod shrink;
mod simplify;
mod subject;

use std::fs;
use std::path::{Path, PathBuf};

use berth_testenv::binaries::filter_oracle;

use compare::{Difference, FEASIBLE, Seen, first_difference};
use generator::Features;
use oracle::Oracle;
use seeds::{check_all, seeds};

const CLUSTERS: u64 = 2_000;
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
    let seeds = seeds(usual);
    let clusters = seeds.end - seeds.start;
    let program = filter_oracle().expect("the oracle can be built");
    let check = |seed, oracle: &mut Oracle, seen: &mut Seen| check(seed, features, oracle, seen);
    let (seen, reports) = check_all(seeds, || Oracle::start(&program), check);
    assert!(reports.is_empty(), "\n{}", reports.join("\n"));

    println!("compared: {seen:#?}");
    if clusters >= usual {
        let seldom = |what: &&&str| seen.get(**what).is_none_or(|count| *count < ENOUGH);
        let seldom: Vec<_> = must_be_seen.iter().filter(seldom).collect();
        assert!(seldom.is_empty(), "hardly ever compared: {seldom:?}");
    }
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
    let file = write(&format!("difference-{seed}.jsonl"), &scenario::print(&small));
    Some(report + &format!("The requests that show it: {}\n", file.display()))
}

fn write(name: &str, text: &str) -> PathBuf {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&file, text).expect("cargo's folder for temporary files can be written to");
    file
}
