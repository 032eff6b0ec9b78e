//! Random claims and devices, from a seed: objects that the API server accepts, in small vocabularies, so that a claim
//! often finds some devices but not all it needs.

mod claims;
mod selectors;
mod slices;

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::simulation::dice::Dice;

const DRIVERS: [&str; 2] = ["gpu.example.com", "nic.example.com"];
const NODES: [&str; 4] = ["n0", "n1", "n2", "n3"];

/// Frequencies of features in one scenario, in percent, so that scenarios differ clearly.
struct Theme {
    /// Devices that several claims may share.
    shareable: u64,
    /// Pools with shared counters.
    counters: u64,
    taints: u64,
    /// Pools of which a slice is missing.
    incomplete: u64,
    /// Selectors that fail for some devices.
    unguarded: u64,
    constraints: u64,
    /// Requests for all devices.
    all: u64,
    /// Requests with alternatives.
    alternatives: u64,
    admin: u64,
    /// Requests for an amount of a capacity.
    amounts: u64,
    /// Requests with selectors of their own.
    selectors: u64,
    /// Requests for more than one device.
    several: u64,
    /// Allocated claims at most.
    allocated: u64,
}

struct Generator {
    dice: Dice,
    theme: Theme,
    /// Number of nodes.
    nodes: usize,
    /// Number of classes.
    classes: usize,
    slices: Vec<Value>,
    /// Driver and name of each pool.
    pools: BTreeSet<(&'static str, &'static str)>,
    /// Names of the pools with shared counters.
    counted: BTreeSet<&'static str>,
}

/// The scenario of `seed`, in the format of `tools/control-plane/devices-oracle`.
pub fn scenario(seed: u64) -> Value {
    let mut dice = Dice::new(seed, 1);
    let mut dial = |often: u64, most: u64| if dice.percent(often) { 1 + dice.below(most) } else { 0 };
    let theme = Theme {
        shareable: dial(50, 100),
        counters: dial(40, 100),
        taints: dial(40, 50),
        incomplete: dial(40, 50),
        unguarded: dial(70, 70),
        constraints: dial(75, 100),
        all: dial(45, 70),
        alternatives: dial(60, 90),
        admin: dial(35, 60),
        amounts: dial(50, 60),
        selectors: dial(85, 80),
        several: dial(60, 50),
        allocated: dial(70, 6),
    };
    let nodes = *dice.pick(&[1, 2, 2, 3, 4]).expect("there is a choice");
    let classes = 1 + dice.below(3) as usize;
    let (slices, pools, counted) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    Generator { dice, theme, nodes, classes, slices, pools, counted }.scenario()
}

impl Generator {
    fn scenario(mut self) -> Value {
        let nodes: Vec<_> = (0..self.nodes).map(|at| self.node(NODES[at])).collect();
        let classes: Vec<_> = (0..self.classes).map(|at| self.class(at)).collect();
        self.add_pools();
        let allocated = self.allocated();
        let claims = self.claims();
        let mut slices = std::mem::take(&mut self.slices);
        for at in (1..slices.len()).rev() {
            slices.swap(at, self.dice.below(at as u64 + 1) as usize);
        }
        json!({
            "nodes": nodes, "classes": classes, "slices": slices, "claims": claims, "allocated": allocated,
        })
    }

    fn node(&mut self, name: &str) -> Value {
        let mut labels = Map::new();
        labels.insert("zone".to_owned(), self.pick(&["a", "b"]).into());
        if self.dice.percent(70) {
            labels.insert("kind".to_owned(), self.pick(&["x", "y"]).into());
        }
        if self.dice.percent(50) {
            labels.insert("rack".to_owned(), self.pick(&["1", "2", "30"]).into());
        }
        json!({"metadata": {"name": name, "labels": labels}})
    }

    fn node_selector(&mut self) -> Value {
        let mut expressions: Vec<Value> = Vec::new();
        for _ in 0..=self.dice.below(2) {
            expressions.push(match self.dice.below(6) {
                0 | 1 => json!({"key": "zone", "operator": "In", "values": [self.pick(&["a", "b"])]}),
                2 => json!({"key": "kind", "operator": "NotIn", "values": [self.pick(&["x", "y"])]}),
                3 => json!({"key": "kind", "operator": "Exists"}),
                4 => json!({"key": "rack", "operator": "DoesNotExist"}),
                _ => json!({"key": "rack", "operator": self.pick(&["Gt", "Lt"]), "values": ["2"]}),
            });
        }
        let name = NODES[self.dice.below(self.nodes as u64) as usize];
        let field = json!([{"key": "metadata.name", "operator": "In", "values": [name]}]);
        let term = match self.dice.below(5) {
            0 => json!({"matchFields": field}),
            1 => json!({"matchFields": field, "matchExpressions": [expressions[0]]}),
            _ => json!({"matchExpressions": expressions}),
        };
        json!({"nodeSelectorTerms": [term]})
    }

    fn class(&mut self, at: usize) -> Value {
        let mut selectors = Vec::new();
        if self.dice.percent(40) {
            let driver = self.driver();
            selectors.push(cel(&format!("device.driver == \"{driver}\"")));
        }
        if self.dice.percent(self.theme.selectors / 2) {
            selectors.push(self.selector());
        }
        let mut class = json!({"metadata": {"name": format!("c{at}")}, "spec": {}});
        if !selectors.is_empty() {
            class["spec"]["selectors"] = selectors.into();
        }
        class
    }

    fn driver(&mut self) -> &'static str {
        DRIVERS[usize::from(self.dice.percent(15))]
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        *self.dice.pick(from).expect("there is a choice")
    }
}

fn cel(expression: &str) -> Value {
    json!({"cel": {"expression": expression}})
}
