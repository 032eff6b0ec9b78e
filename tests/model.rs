//! Commit and fencing as a model: every order of events within a bound is tried (`docs/model.md`).

#[path = "model/books.rs"]
mod books;
#[path = "model/protocol.rs"]
mod protocol;
#[path = "model/replica.rs"]
mod replica;
#[path = "model/safeguards.rs"]
mod safeguards;
#[path = "model/state.rs"]
mod state;
#[path = "model/store.rs"]
mod store;
#[path = "model/symmetry.rs"]
mod symmetry;

use std::time::Instant;

use protocol::{ALL_BOUND, CONFLICT, I1_ASSUMED, I1_BOUND_ONCE, I2, I9, Protocol, RESOLVED, TAKEOVER};
use safeguards::{Bound, Fresh, Mode, Safeguards};
use state::{REQUEST, Troubles};
use stateright::{Checker, HasDiscoveries, Model};

const QUIET: Troubles = Troubles { network: 0, ends: 0, deletions: 0, others: 0 };

/// Two replicas, two pods, two nodes with room for one.
const PAIR: Bound = Bound {
    mode: Mode::OneLeads,
    replicas: 2,
    rooms: [1, 1],
    two_names: true,
    recreates: false,
    marks: false,
    repeats: true,
    troubles: QUIET,
};

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn explore(what: &str, bound: Bound, expected: &[&'static str]) {
    let started = Instant::now();
    let checker = Protocol::new(bound, Safeguards::ALL).checker().threads(threads()).timeout(std::time::Duration::from_secs(60)).spawn_bfs().join();
    println!("{what}: {} states, depth {}, {:.1?} done {}", checker.unique_state_count(), checker.max_depth(), started.elapsed(), checker.is_done());
    for broken in [I1_BOUND_ONCE, I1_ASSUMED, I2, I9] {
        if let Some(path) = checker.discovery(broken) {
            panic!("{what}: {broken}: {:?}\n{:#?}", path.clone().into_actions(), path.last_state());
        }
    }
    for reached in expected {
        assert!(checker.discovery(reached).is_some(), "{what}: never: {reached}");
    }
}

fn breaks(what: &str, bound: Bound, safe: Safeguards, invariant: &'static str) {
    let started = Instant::now();
    let checker = Protocol::new(bound, safe).checker().threads(threads()).timeout(std::time::Duration::from_secs(60)).finish_when(HasDiscoveries::AnyOf([invariant].into())).spawn_bfs().join();
    let found = checker.discovery(invariant);
    println!("{what}: {} states, {:.1?}: {:?}", checker.unique_state_count(), started.elapsed(), found.map(|p|p.into_actions()));
    println!("  {:?}", checker.discoveries().keys().filter(|k| k.starts_with("I")).collect::<Vec<_>>());
}

const LOSSY: Bound = Bound { troubles: Troubles { network: 1, ..QUIET }, ..PAIR };
const ENDS: Bound = Bound { troubles: Troubles { ends: 1, ..QUIET }, ..PAIR };
const AGAIN: Bound = Bound { recreates: true, marks: true, troubles: Troubles { network: 1, deletions: 1, ..QUIET }, ..PAIR };
const STUBBORN: Bound = Bound { replicas: 1, two_names: false, repeats: false, troubles: Troubles { network: 7, ..QUIET }, ..PAIR };
const OTHERS: Bound = Bound { troubles: Troubles { others: 1, ..QUIET }, ..PAIR };

#[test]
fn explored() {
    explore("quiet", PAIR, &[ALL_BOUND, TAKEOVER]);
    explore("ends", ENDS, &[ALL_BOUND]);
    explore("stubborn", STUBBORN, &[ALL_BOUND, RESOLVED]);
    explore("others", OTHERS, &[CONFLICT]);
    explore("lossy", LOSSY, &[ALL_BOUND, RESOLVED]);
    explore("again", AGAIN, &[ALL_BOUND, RESOLVED]);
}

#[test]
fn mutants() {
    const S: Safeguards = Safeguards::ALL;
    breaks("no barrier", PAIR, Safeguards { fresh: Fresh::Unchecked, ..S }, I2);
    breaks("waiting", PAIR, Safeguards { fresh: Fresh::WaitingPods, ..S }, I2);
    breaks("no fence", PAIR, Safeguards { fence: false, ..S }, I2);
    breaks("other term", PAIR, Safeguards { same_term: false, ..S }, I2);
    breaks("timeout", PAIR, Safeguards { request_ticks: REQUEST + 1, ..S }, I2);
    breaks("release", ENDS, Safeguards { settle_first: false, ..S }, I2);
    breaks("identity", ENDS, Safeguards { new_identity: false, ..S }, I2);
    breaks("assumption", LOSSY, Safeguards { keep_assumption: false, ..S }, I1_ASSUMED);
    breaks("assumption", LOSSY, Safeguards { keep_assumption: false, ..S }, I2);
    breaks("uid", AGAIN, Safeguards { send_uid: false, ..S }, I1_BOUND_ONCE);
    breaks("stubborn", STUBBORN, Safeguards { bounded_requests: false, ..S }, I9);
}
