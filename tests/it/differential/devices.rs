//! Differential test of berth's device allocation against kube-scheduler's own allocator, on random devices and claims:
//! the claims of a pod fit the same nodes, and the devices that berth proposes pass a checker that shares no code with
//! either.
//!
//! `BERTH_DIFF_CLUSTERS` and `BERTH_DIFF_SEED` as in the tests of whole clusters. A difference is printed with its seed,
//! minimized, and written to a file.

mod check;
mod features;
mod generator;
mod json;
mod oddity;
mod oracle;
mod pools;
mod quantity;
mod refusals;
mod subject;

use std::collections::BTreeMap;

use berth_testenv::binaries::devices_oracle;
use serde_json::Value;

use super::Seen;
use super::seeds::{check_all, seeds};
use super::simplify::simplify;

use check::check;
use json::{list, text};
use oracle::{Answer, Oracle};

const SCENARIOS: u64 = 2_000;
/// Of them, the share whose objects are validated as by the API server.
const VALIDATED_EVERY: u64 = 10;

const FITS: &str = "nodes that fit";
const FITS_NOT: &str = "nodes that do not fit";
const FAILS: &str = "nodes that do not fit, with an error";
const FAILS_POD: &str = "nodes that do not fit, with an error for the whole pod";
/// Of the nodes, in percent.
const ENOUGH_NODES: u64 = 25;
/// Of the scenarios, in percent.
const ENOUGH_SCENARIOS: u64 = 3;

/// The devices of one claim.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClaimResult {
    pub devices: Vec<DeviceResult>,
}

/// One of `status.allocation.devices.results`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceResult {
    /// `request` or `request/alternative`.
    pub request: String,
    pub driver: String,
    pub pool: String,
    pub device: String,
    /// Amounts of a shareable device, by the name of the capacity.
    pub consumed: BTreeMap<String, String>,
    pub admin: bool,
}

#[test]
fn on_random_devices_the_claims_of_a_pod_fit_the_nodes_that_kube_scheduler_finds() {
    let program = devices_oracle().expect("the oracle can be built");
    let check = |seed, oracle: &mut Oracle, _: &mut Seen| report(seed, oracle);
    let (_, reports) = check_all(seeds(SCENARIOS), || Oracle::start(&program), check);
    assert!(reports.is_empty(), "\n{}", reports.join("\n"));
}

#[test]
fn the_checker_accepts_what_kube_scheduler_allocates_on_valid_and_varied_scenarios() {
    let program = devices_oracle().expect("the oracle can be built");
    let seeds = seeds(SCENARIOS);
    let scenarios = seeds.end - seeds.start;
    let (seen, reports) = check_all(seeds, || Oracle::start(&program), upstream_report);
    assert!(reports.is_empty(), "\n{}", reports.join("\n"));

    println!("compared: {seen:#?}");
    if scenarios >= SCENARIOS {
        let count = |what: &str| seen.get(what).copied().unwrap_or_default();
        let nodes = count(FITS) + count(FITS_NOT);
        for what in [FITS, FITS_NOT] {
            assert!(
                count(what) * 100 >= nodes * ENOUGH_NODES,
                "hardly any {what}: {} of {nodes}",
                count(what)
            );
        }
        let seldom = |what: &String| count(what) * 100 < scenarios * ENOUGH_SCENARIOS;
        let both = |feature: &&str| [feature_seen(feature, true), feature_seen(feature, false)];
        let seldom: Vec<_> = features::MUST_BE_SEEN.iter().flat_map(both).filter(seldom).collect();
        assert!(seldom.is_empty(), "hardly ever compared: {seldom:?}");
    }
}

fn feature_seen(feature: &str, fits: bool) -> String {
    format!("{feature}, {}", if fits { "fits" } else { "does not fit" })
}

/// Returns a report if the generator, the oracle and the checker do not agree on the scenario of this seed.
fn upstream_report(seed: u64, oracle: &mut Oracle, seen: &mut Seen) -> Option<String> {
    let scenario = generator::scenario(seed);
    let mut text = oddity::oddity(&scenario).map(|why| format!("kube-scheduler {why}")).unwrap_or_default();
    let answer = match seed % VALIDATED_EVERY {
        0 => oracle.ask_validated(&scenario),
        _ => oracle.ask(&scenario),
    };
    let answer = answer.expect("the oracle answers");
    text += &answer.invalid.join("\n");
    for (node, upstream) in list(&scenario["nodes"]).iter().zip(&answer.nodes) {
        let mut count = |what: &str| *seen.entry(what.to_owned()).or_default() += 1;
        count(if upstream.fits { FITS } else { FITS_NOT });
        if !upstream.error.is_empty() {
            count(if upstream.fatal { FAILS_POD } else { FAILS });
            count(&format!("error: {}", kind_of_error(&upstream.error)));
        }
        if upstream.fits
            && let Err(why) = check(&scenario, node, &upstream.allocation(), &answer.selectors)
        {
            text += &format!("{}: {why}\n{:#?}\n", node["metadata"]["name"], upstream.allocation());
        }
    }
    for feature in features::features(&scenario, &answer) {
        for fits in [true, false] {
            if answer.nodes.iter().any(|node| node.fits == fits) {
                *seen.entry(feature_seen(feature, fits)).or_default() += 1;
            }
        }
    }
    (!text.is_empty()).then(|| format!("BERTH_DIFF_SEED={seed}:\n{text}\n{scenario:#}"))
}

/// Returns an error without names.
fn kind_of_error(error: &str) -> &str {
    const KINDS: [&str; 6] = [
        "CEL runtime error",
        "could not retrieve device class",
        "currently being updated",
        "currently invalid",
        "claim constraint would not be satisfied",
        "invalid resource pools",
    ];
    KINDS.into_iter().find(|kind| error.contains(kind)).unwrap_or(error)
}

/// Returns a report of the first difference on the scenario of this seed.
fn report(seed: u64, oracle: &mut Oracle) -> Option<String> {
    let scenario = generator::scenario(seed);
    let answer = oracle.ask(&scenario).expect("the oracle answers");
    let found = difference(&scenario, &answer)?;
    let small = shrink(scenario, found.kind, oracle);
    let small_answer = oracle.ask(&small).expect("the oracle answers");
    let small_text = difference(&small, &small_answer).map(|found| found.text).unwrap_or_default();
    let file = super::write(&format!("devices-{seed}.json"), &format!("{small}\n"));
    Some(format!(
        "BERTH_DIFF_SEED={seed}: {}\nMade small: {small_text}\n{small:#}\nThe scenario that shows it: {}",
        found.text,
        file.display()
    ))
}

/// A node on which berth and kube-scheduler differ.
struct Difference {
    kind: DifferenceKind,
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DifferenceKind {
    OnlyBerthFits,
    OnlyUpstreamFits,
    /// Both fit, but the devices that berth proposes are wrong.
    WrongDevices,
}

fn difference(scenario: &Value, answer: &Answer) -> Option<Difference> {
    if oddity::is_contested(scenario) {
        return None;
    }
    let berth = subject::subject(scenario);
    assert_eq!(berth.len(), answer.nodes.len(), "berth answers for each node");
    let nodes = list(&scenario["nodes"]).iter().zip(&answer.nodes).zip(&berth);
    nodes.filter(|((_, upstream), _)| !upstream.timed_out()).find_map(|((node, upstream), berth)| {
        let name = text(&node["metadata"]["name"]);
        let (kind, text) = match berth {
            // Where kube-scheduler gave up, for instance as a selector failed, other devices may serve nevertheless.
            Ok(devices) if upstream.fits || !upstream.error.is_empty() => {
                let why = check(scenario, node, devices, &answer.selectors).err()?;
                (DifferenceKind::WrongDevices, format!("berth proposes wrong devices: {why}\n{devices:#?}"))
            }
            Ok(devices) => {
                let why = &upstream.error;
                let text = format!("kube-scheduler finds no devices ({why:?}), berth proposes {devices:#?}");
                (DifferenceKind::OnlyBerthFits, text)
            }
            // kube-scheduler stops after a time, berth after a number of devices.
            Err(why) if upstream.fits && why.contains("TooMuchWork") => return None,
            Err(why) if upstream.fits => {
                let theirs = upstream.allocation();
                let text = format!("berth finds no devices ({why:?}), kube-scheduler allocates {theirs:#?}");
                (DifferenceKind::OnlyUpstreamFits, text)
            }
            Err(_) => return None,
        };
        Some(Difference { kind, text: format!("{name}: {text}") })
    })
}

/// Removes everything possible while there is still a difference of the same kind.
fn shrink(mut scenario: Value, kind: DifferenceKind, oracle: &mut Oracle) -> Value {
    let parts = ["nodes", "classes", "slices", "claims", "allocated"];
    let mut differs = |smaller: &Value| {
        let is_whole =
            parts.iter().all(|part| smaller[part].is_array()) && !list(&smaller["claims"]).is_empty();
        if !is_whole || oddity::oddity(smaller).is_some() {
            return false;
        }
        let Ok(answer) = oracle.ask_validated(smaller) else { return false };
        answer.invalid.is_empty() && difference(smaller, &answer).is_some_and(|found| found.kind == kind)
    };
    loop {
        let before = scenario.to_string().len();
        simplify(&mut scenario, "", &mut differs);
        if scenario.to_string().len() == before {
            return scenario;
        }
    }
}
