//! Pools, their slices and devices.

use serde_json::{Map, Value, json};

use super::{Generator, NODES};

const SLICES_MAX: usize = 8;
const COUNTER_SETS: [&str; 2] = ["set0", "set1"];
const COUNTERS: [&str; 2] = ["memory", "parts"];

/// The nodes that reach the slices of a pool.
#[derive(Clone, Copy, PartialEq)]
enum Reach {
    Node(&'static str),
    Selected,
    All,
    PerDevice,
    /// Each slice another one.
    Mixed,
}

/// What the slices of one pool have in common.
struct Pool {
    driver: &'static str,
    name: &'static str,
    reach: Reach,
    generation: u64,
    /// The number of slices that the slices declare.
    declared: u64,
    counters: bool,
    shareable: bool,
    /// Number of device names used up.
    named: u64,
}

impl Generator {
    pub(super) fn add_pools(&mut self) {
        for _ in 0..self.pick(&[0, 2, 3, 4, 4, 5, 5, 6, 6, 7]) {
            self.add_pool();
        }
    }

    fn add_pool(&mut self) {
        let driver = self.driver();
        let node = NODES[self.dice.below(self.nodes as u64) as usize];
        let (reach, name) = match self.dice.below(100) {
            0..26 => (Reach::Node(node), node),
            26..45 => (Reach::Selected, self.pick(&["shared", "fabric"])),
            45..68 => (Reach::All, self.pick(&["shared", "fabric"])),
            68..86 => (Reach::PerDevice, self.pick(&["shared", "fabric"])),
            _ => (Reach::Mixed, self.pick(&["shared", "fabric"])),
        };
        if !self.pools.insert((driver, name)) {
            return;
        }
        // Upstream takes the counters of pools of one name for the same, even those of different drivers.
        let counters = self.dice.percent(self.theme.counters) && self.counted.insert(name);
        let parts = if reach == Reach::Mixed { 2 } else { 1 + u64::from(self.dice.percent(35)) };
        let incomplete = self.dice.percent(self.theme.incomplete);
        let mut pool = Pool {
            driver,
            name,
            reach,
            generation: self.dice.below(3),
            declared: parts + u64::from(counters) + u64::from(incomplete),
            counters,
            shareable: self.dice.percent(self.theme.shareable),
            named: 0,
        };
        let first = self.slices.len();
        for part in 0..parts {
            if part > 0 && self.dice.percent(12) {
                // A duplicate name.
                pool.named = 0;
            }
            self.add_devices(&mut pool);
        }
        if counters {
            self.add_counters(&pool);
        }
        if pool.generation > 0 && self.dice.percent(25) {
            pool.generation -= 1;
            pool.declared = 1;
            pool.counters = false;
            pool.named = if self.dice.percent(50) { 0 } else { pool.named };
            self.add_devices(&mut pool);
        }
        if self.slices.len() > SLICES_MAX {
            self.slices.truncate(first);
        }
    }

    fn add_slice(&mut self, pool: &Pool, (reach, value): (&str, Value), content: (&str, Value)) {
        // Upstream sorts by name, so names are in another order than slices.
        let name = format!("s{}-{}", self.dice.below(10), self.slices.len());
        let mut spec = json!({
            "driver": pool.driver,
            "pool": {"name": pool.name, "generation": pool.generation, "resourceSliceCount": pool.declared},
        });
        spec[reach] = value;
        spec[content.0] = content.1;
        self.slices.push(json!({"metadata": {"name": name}, "spec": spec}));
    }

    fn reach(&mut self, reach: Reach) -> (&'static str, Value) {
        match reach {
            Reach::Node(node) => ("nodeName", node.into()),
            Reach::Selected => ("nodeSelector", self.node_selector()),
            Reach::All => ("allNodes", true.into()),
            Reach::PerDevice => ("perDeviceNodeSelection", true.into()),
            Reach::Mixed => {
                let node = NODES[self.dice.below(self.nodes as u64) as usize];
                let one = self.pick(&[Reach::Node(node), Reach::Selected, Reach::All]);
                self.reach(one)
            }
        }
    }

    fn add_counters(&mut self, pool: &Pool) {
        let mut sets = Vec::new();
        for set in COUNTER_SETS {
            let mut counters = Map::new();
            for name in COUNTERS {
                counters.insert(name.to_owned(), json!({"value": self.pick(&["2", "3", "4"])}));
            }
            sets.push(json!({"name": set, "counters": counters}));
        }
        let reach = self.reach(pool.reach);
        self.add_slice(pool, reach, ("sharedCounters", sets.into()));
    }

    fn add_devices(&mut self, pool: &mut Pool) {
        let reach = self.reach(pool.reach);
        let mut devices = Vec::new();
        for _ in 0..self.pick(&[1, 2, 3, 4, 4, 5]) {
            let mut device = self.device(pool);
            if reach.0 == "perDeviceNodeSelection" {
                let node = NODES[self.dice.below(self.nodes as u64) as usize];
                let one = self.pick(&[Reach::Node(node), Reach::Selected, Reach::All]);
                let (name, value) = self.reach(one);
                device[name] = value;
            }
            devices.push(device);
        }
        self.add_slice(pool, reach, ("devices", devices.into()));
    }

    fn device(&mut self, pool: &mut Pool) -> Value {
        let mut device = json!({"name": format!("d{}", pool.named), "attributes": self.attributes(pool)});
        pool.named += 1;
        let shareable = pool.shareable && self.dice.percent(80);
        if shareable || self.dice.percent(5) {
            device["allowMultipleAllocations"] = shareable.into();
        }
        let capacity = self.capacity(shareable);
        if !capacity.is_empty() {
            device["capacity"] = capacity.into();
        }
        if self.dice.percent(self.theme.taints) {
            let effect = self.pick(&["NoSchedule", "NoSchedule", "NoExecute", "None"]);
            let mut taint = json!({"key": self.pick(&["broken", "old"]), "effect": effect});
            if self.dice.percent(50) {
                taint["value"] = self.pick(&["x", "y"]).into();
            }
            device["taints"] = json!([taint]);
        }
        // Of a shared device without capacity, kube-scheduler sees no shares, and charges counters for each.
        let is_counted_once = !shareable || device["capacity"].is_object();
        if pool.counters && is_counted_once && self.dice.percent(80) {
            device["consumesCounters"] = self.consumption();
        }
        if self.dice.percent(4) {
            device["bindingConditions"] = json!(["attached"]);
            device["bindingFailureConditions"] = json!(["failed"]);
        }
        device
    }

    fn attributes(&mut self, pool: &Pool) -> Value {
        let mut attributes = Map::new();
        let mut set = |name: String, kind: &str, value: Value| attributes.insert(name, json!({kind: value}));
        // The driver's domain may be written or not.
        let own =
            |written: bool, id: &str| if written { format!("{}/{id}", pool.driver) } else { id.to_owned() };
        if self.dice.percent(95) {
            set(own(self.dice.percent(20), "model"), "string", self.pick(&["a", "a", "b", "c"]).into());
        }
        if self.dice.percent(90) {
            set(own(self.dice.percent(20), "index"), "int", self.dice.below(4).into());
        }
        if self.dice.percent(85) {
            set(own(self.dice.percent(20), "healthy"), "bool", self.dice.percent(80).into());
        }
        if self.dice.percent(85) {
            let version = self.pick(&["1.0.0", "1.2.0", "1.10.0", "2.0.0-rc.1", "2.0.0", "2.0.0+build.5"]);
            set(own(self.dice.percent(20), "version"), "version", version.into());
        }
        if self.dice.percent(92) {
            let numa = self.dice.below(2);
            // A driver that does not write it as others do.
            let (kind, value) =
                if self.dice.percent(4) { ("string", numa.to_string().into()) } else { ("int", numa.into()) };
            set("example.org/numa".to_owned(), kind, value);
        }
        if self.dice.percent(80) {
            set("example.org/link".to_owned(), "string", self.pick(&["A", "b", "c"]).into());
        }
        if self.dice.percent(70) {
            set("example.org/secure".to_owned(), "bool", self.dice.percent(50).into());
        }
        if self.dice.percent(70) {
            set("example.org/api".to_owned(), "version", self.pick(&["1.9.9", "2.0.0", "3.0.0"]).into());
        }
        attributes.into()
    }

    fn capacity(&mut self, shareable: bool) -> Map<String, Value> {
        let mut capacity = Map::new();
        if self.dice.percent(85) {
            let mut memory = json!({"value": self.pick(&["8Gi", "16Gi", "40G"])});
            if shareable {
                let policy = match self.dice.below(5) {
                    0 => json!({"default": "3Gi"}),
                    1 => json!({"default": "2Gi", "validValues": ["1Gi", "2Gi", "4Gi"]}),
                    2 => {
                        json!({"default": "2Gi", "validRange": {"min": "1Gi", "max": "6Gi", "step": "512Mi"}})
                    }
                    3 => json!({"default": "2Gi", "validRange": {"min": "2Gi"}}),
                    _ => Value::Null,
                };
                if !policy.is_null() {
                    memory["requestPolicy"] = policy;
                }
            }
            capacity.insert("memory".to_owned(), memory);
        }
        if self.dice.percent(55) {
            let mut cores = json!({"value": self.pick(&["4", "10"])});
            if shareable {
                let policy = match self.dice.below(4) {
                    0 => json!({"default": "1"}),
                    1 => json!({"default": "1", "validValues": ["1", "2", "4"]}),
                    2 => json!({"default": "2", "validRange": {"min": "1", "max": "4", "step": "1"}}),
                    _ => Value::Null,
                };
                if !policy.is_null() {
                    cores["requestPolicy"] = policy;
                }
            }
            capacity.insert("example.org/cores".to_owned(), cores);
        }
        capacity
    }

    fn consumption(&mut self) -> Value {
        let mut sets = vec![self.pick(&COUNTER_SETS)];
        if self.dice.percent(15) {
            sets = COUNTER_SETS.to_vec();
        }
        let mut consumptions = Vec::new();
        for set in sets {
            let mut counters = Map::new();
            let name = if self.dice.percent(1) { "unknown" } else { self.pick(&COUNTERS) };
            counters.insert(name.to_owned(), json!({"value": self.pick(&["1", "1", "2", "3", "500m"])}));
            if self.dice.percent(30) {
                counters.insert(self.pick(&COUNTERS).to_owned(), json!({"value": self.pick(&["1", "2"])}));
            }
            consumptions.push(json!({"counterSet": set, "counters": counters}));
        }
        consumptions.into()
    }
}
