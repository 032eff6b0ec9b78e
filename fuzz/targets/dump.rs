//! Dumps of a cluster for `berth explain --filename`. The same dump always gives the same answer, and searching for remedies and
//! moves changes nothing.

use std::sync::Arc;

use berth::explain::dump::Dump;
use berth::explain::show::{self, Style};
use berth::explain::{ExplainSettings, WhatIfSubject, Which, World, explain, show_moves, what_if};
use berth_config::Config;

const WIDTH: usize = 80;

pub fn check(data: &[u8]) {
    let dump = match Dump::read(data) {
        Ok(dump) => dump,
        Err(why) => return assert!(!why.to_string().is_empty()),
    };
    assert!(dump.bad().iter().chain(&dump.notes()).all(|text| !text.is_empty()));
    let config = Config::default();
    let mut world = dump.into_world(ExplainSettings {
        scheduler_names: config.scheduler_names.iter().map(|name| Arc::from(name.as_str())).collect(),
        profiles: config.profiles().into(),
    });
    assert_eq!(world.check(), [""; 0]);
    let first = answer(&mut world);
    assert_eq!(world.check(), [""; 0], "after the remedies");
    assert_eq!(answer(&mut world), first, "the second answer differs");
    moves(&mut world);
    assert_eq!(world.check(), [""; 0], "after the moves");
}

/// Returns the answer for all pods without a node.
fn answer(world: &mut World) -> String {
    let groups = explain(world, &Which::AllPending);
    let (mut table, mut json) = (Vec::new(), Vec::new());
    show::table(&groups, Style { width: WIDTH, all_nodes: true }, &mut table).expect("written to memory");
    show::json(&groups, &mut json).expect("written to memory");
    serde_json::from_slice::<serde_json::Value>(&json).expect("JSON");
    String::from_utf8(table).expect("UTF-8") + std::str::from_utf8(&json).expect("UTF-8")
}

fn moves(world: &mut World) {
    let report = match what_if(world, &WhatIfSubject::Everything) {
        Ok(report) => report,
        Err(why) => return assert!(!why.to_string().is_empty()),
    };
    let (mut table, mut json) = (Vec::new(), Vec::new());
    show_moves::table(&report, WIDTH, &mut table).expect("written to memory");
    show_moves::json(&report, &mut json).expect("written to memory");
    serde_json::from_slice::<serde_json::Value>(&json).expect("JSON");
}
