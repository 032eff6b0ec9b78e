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
    let checker = Protocol::new(bound, Safeguards::ALL).checker().threads(threads()).timeout(std::time::Duration::from_secs(15)).spawn_bfs().join();
    println!("{what}: {} states, depth {}, {:.1?}", checker.unique_state_count(), checker.max_depth(), started.elapsed());
    for broken in [I1_BOUND_ONCE, I1_ASSUMED, I2, I9] {
        if let Some(path) = checker.discovery(broken) {
            panic!("{what}: {broken}: {:?}\n{:#?}", path.clone().into_actions(), path.last_state());
        }
    }
    for reached in expected {
        assert!(checker.discovery(reached).is_some(), "{what}: never: {reached}");
    }
}

#[test]
fn quiet() {
    explore("quiet", PAIR, &[ALL_BOUND]);
}
#[test]
fn lossy() {
    explore("lossy", Bound { troubles: Troubles { network: 1, ..QUIET }, ..PAIR }, &[ALL_BOUND]);
}
#[test]
fn ends() {
    explore("ends", Bound { troubles: Troubles { ends: 1, ..QUIET }, ..PAIR }, &[ALL_BOUND]);
}
