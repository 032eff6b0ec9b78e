//! Model of commit and fencing: every order of events within a bound is explored. Its scope, the sizes of the bounds,
//! and its findings are in `docs/model.md`.
//!
//! `cargo test --test model -- --nocapture` prints the number of states of each bound; `--ignored` explores larger ones.

#[path = "model/books.rs"]
mod books;
#[path = "model/properties.rs"]
mod properties;
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

use properties::{ALL_BOUND, CONFLICT, GRANTED, I1_ASSUMED, I1_BOUND_ONCE, I2, I9, RESOLVED, TAKEOVER};
use protocol::Protocol;
use safeguards::{Bound, Fresh, Mode, Safeguards};
use state::{REQUEST, Troubles};
use stateright::{Checker, HasDiscoveries, Model};

const QUIET: Troubles = Troubles { network: 0, ends: 0, deletions: 0, others: 0 };
const LOSS: Troubles = Troubles { network: 1, ..QUIET };
const END: Troubles = Troubles { ends: 1, ..QUIET };
const DELETION: Troubles = Troubles { deletions: 1, ..QUIET };
const OTHER: Troubles = Troubles { others: 1, ..QUIET };

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
/// The pods compete for the same place.
const RIVALS: Bound = Bound { rooms: [1, 0], ..PAIR };
/// A pod that is deleted and recreated under its name, while messages are lost and repeated.
const AGAIN: Bound =
    Bound { two_names: false, recreates: true, troubles: Troubles { network: 1, ..DELETION }, ..RIVALS };
/// One replica, whose requests are never answered.
const DEAF: Bound = Bound {
    replicas: 1,
    two_names: false,
    repeats: false,
    troubles: Troubles { network: 7, ..QUIET },
    ..RIVALS
};
const GUARDED: Bound = Bound { mode: Mode::Guarded, ..RIVALS };

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Asserts that no state within the bound breaks an invariant, and that each of `reached` is reachable.
fn holds(what: &str, bound: Bound, reached: &[&'static str]) {
    let began = Instant::now();
    let checker = Protocol::new(bound, Safeguards::ALL).checker().threads(threads()).spawn_bfs().join();
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    println!("{what}: {states} states, {depth} deep, {:.1?}", began.elapsed());
    for broken in [I1_BOUND_ONCE, I1_ASSUMED, I2, I9] {
        if let Some(path) = checker.discovery(broken) {
            panic!("{what}: {broken}: {:#?}\n{:?}", path.last_state(), path.clone().into_actions());
        }
    }
    for reached in reached {
        assert!(checker.discovery(reached).is_some(), "{what}: it never happens that {reached}");
    }
}

/// Asserts that the invariant breaks without this safeguard.
fn breaks(what: &str, bound: Bound, safe: Safeguards, invariant: &'static str) {
    let enough = HasDiscoveries::AnyOf([invariant].into());
    let checker =
        Protocol::new(bound, safe).checker().threads(threads()).finish_when(enough).spawn_bfs().join();
    let path = checker.discovery(invariant);
    let actions = path.unwrap_or_else(|| panic!("{what}: nothing breaks \"{invariant}\"")).into_actions();
    println!("{what}: {} states; {invariant}: {actions:?}", checker.unique_state_count());
}

#[test]
fn with_one_leader_the_invariants_hold_in_all_states_of_the_bound() {
    holds("no trouble", PAIR, &[ALL_BOUND, TAKEOVER]);
    holds("an end", Bound { troubles: END, ..PAIR }, &[ALL_BOUND, TAKEOVER]);
    holds(
        "two losses",
        Bound { troubles: Troubles { network: 2, ..QUIET }, ..RIVALS },
        &[RESOLVED, CONFLICT],
    );
    holds("a loss and an end", Bound { troubles: Troubles { network: 1, ..END }, ..RIVALS }, &[RESOLVED]);
    holds("another scheduler", Bound { troubles: OTHER, ..RIVALS }, &[CONFLICT]);
    holds("a pod again", AGAIN, &[ALL_BOUND, CONFLICT]);
    holds("deaf", DEAF, &[ALL_BOUND, RESOLVED]);
}

#[test]
fn with_the_guard_the_invariants_hold_in_all_states_of_the_bound() {
    holds("guard: no trouble", GUARDED, &[GRANTED, CONFLICT]);
    holds("guard: an end", Bound { troubles: END, ..GUARDED }, &[GRANTED, CONFLICT]);
    holds("guard: a loss", Bound { repeats: false, troubles: LOSS, ..GUARDED }, &[GRANTED, RESOLVED]);
    holds("guard: another scheduler", Bound { troubles: OTHER, ..GUARDED }, &[GRANTED, CONFLICT]);
}

#[test]
#[ignore = "minutes; gigabytes of memory"]
fn the_invariants_hold_in_all_states_of_larger_bounds() {
    holds("a loss, two nodes", Bound { troubles: LOSS, ..PAIR }, &[ALL_BOUND, RESOLVED, TAKEOVER]);
    holds(
        "a loss, one node for two",
        Bound { rooms: [2, 0], troubles: LOSS, ..PAIR },
        &[ALL_BOUND, RESOLVED],
    );
    holds("another scheduler, two nodes", Bound { troubles: OTHER, ..PAIR }, &[CONFLICT]);
    let marks = Bound { marks: true, ..AGAIN };
    holds("a pod marked and made again", marks, &[ALL_BOUND, CONFLICT]);
    let rival = Bound { two_names: true, troubles: DELETION, ..marks };
    holds("a pod made again, and a rival", rival, &[CONFLICT]);
    holds("guard: two nodes", Bound { rooms: [1, 1], ..GUARDED }, &[ALL_BOUND, GRANTED]);
    holds("guard: one node for two", Bound { rooms: [2, 0], ..GUARDED }, &[ALL_BOUND, GRANTED]);
    holds("guard: a deletion", Bound { troubles: DELETION, ..GUARDED }, &[GRANTED, CONFLICT]);
}

#[test]
fn with_one_leader_each_safeguard_is_needed() {
    const ALL: Safeguards = Safeguards::ALL;
    let (loss, end) = (Bound { troubles: LOSS, ..PAIR }, Bound { troubles: END, ..PAIR });
    breaks("no barrier", PAIR, Safeguards { fresh: Fresh::Unchecked, ..ALL }, I2);
    breaks("a barrier for waiting pods only", PAIR, Safeguards { fresh: Fresh::WaitingPods, ..ALL }, I2);
    breaks("no fence", PAIR, Safeguards { fence: false, ..ALL }, I2);
    breaks("a bind of an earlier term", PAIR, Safeguards { same_term: false, ..ALL }, I2);
    breaks("a timeout above the slack", PAIR, Safeguards { request_ticks: REQUEST + 1, ..ALL }, I2);
    breaks("a lease released too early", end, Safeguards { settle_first: false, ..ALL }, I2);
    breaks(
        "a version handed over before all binds are seen",
        end,
        Safeguards { see_first: false, ..ALL },
        I2,
    );
    breaks("the identity of the last run", end, Safeguards { new_identity: false, ..ALL }, I2);
    for invariant in [I1_ASSUMED, I2] {
        let forgets = Safeguards { keep_assumption: false, ..ALL };
        breaks("an unknown outcome frees the assumption", loss, forgets, invariant);
    }
    breaks("no uid", AGAIN, Safeguards { send_uid: false, ..ALL }, I1_BOUND_ONCE);
    breaks("no uid", Bound { two_names: true, ..AGAIN }, Safeguards { send_uid: false, ..ALL }, I2);
    breaks("requests without end", DEAF, Safeguards { bounded_requests: false, ..ALL }, I9);
}

#[test]
fn with_the_guard_each_safeguard_is_needed() {
    const ALL: Safeguards = Safeguards::ALL;
    let (loss, end) = (Bound { troubles: LOSS, ..GUARDED }, Bound { troubles: END, ..GUARDED });
    breaks("a guard that does not assume", GUARDED, Safeguards { guard_assumes: false, ..ALL }, I2);
    breaks("a guard without a barrier", GUARDED, Safeguards { fresh: Fresh::Unchecked, ..ALL }, I2);
    let waiting = Safeguards { fresh: Fresh::WaitingPods, ..ALL };
    breaks("a guard with a barrier for waiting pods only", GUARDED, waiting, I2);
    breaks("a guard past its deadline", GUARDED, Safeguards { fence: false, ..ALL }, I2);
    breaks(
        "a guarded request above the slack",
        GUARDED,
        Safeguards { request_ticks: REQUEST + 1, ..ALL },
        I2,
    );
    breaks("a guard that trusts its own assumptions", GUARDED, Safeguards { review_own: false, ..ALL }, I2);
    breaks("a guard that holds room once", loss, Safeguards { hold_again: false, ..ALL }, I2);
    breaks("a guard that leaves too early", end, Safeguards { settle_first: false, ..ALL }, I2);
    breaks("a guard that has not seen what it hands over", end, Safeguards { see_first: false, ..ALL }, I2);
}
