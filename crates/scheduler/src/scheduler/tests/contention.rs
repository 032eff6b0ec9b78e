//! Benefit of hints: services that peak at different times of a period, placed by the real scheduler with and without
//! hints.

use std::f64::consts::TAU;

use super::hints::{app, host, of_app, workload};
use super::*;
use crate::hints::Hint;
use berth_rightsizing::correlate::{
    CorrelatedResource, CorrelationSettings, Correlations, Direction, Window,
};

const SERVICES: usize = 40;
const REPLICAS: usize = 3;
const NODES: usize = 20;
/// Services of one group peak together.
const GROUPS: usize = 4;
/// Points of a period of the rhythm, 10 s each.
const PERIOD: usize = 20;

/// splitmix64.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn shuffle<T>(&mut self, all: &mut [T]) {
        for at in (1..all.len()).rev() {
            all.swap(at, self.next() as usize % (at + 1));
        }
    }
}

/// Usage of one pod of each service at a point: a rhythm with the phase of its group and its own amplitude, and noise.
struct Load {
    group: Vec<usize>,
    height: Vec<f64>,
}

impl Load {
    fn new(dice: &mut Dice) -> Load {
        let mut group: Vec<_> = (0..SERVICES).map(|service| service % GROUPS).collect();
        dice.shuffle(&mut group);
        Load { group, height: (0..SERVICES).map(|_| 0.5 + dice.share()).collect() }
    }

    /// Returns the load without noise, from -1 to 1.
    fn wave(&self, service: usize, at: usize) -> f64 {
        let phase = self.group[service] as f64 / GROUPS as f64;
        ((at as f64 / PERIOD as f64 - phase) * TAU).cos()
    }

    fn usage(&self, service: usize, at: usize) -> f64 {
        self.height[service] * (1.0 + 0.8 * self.wave(service, at))
    }
}

fn name(service: usize) -> String {
    format!("service-{service}")
}

/// Returns the hints measured over half an hour.
fn measured(load: &Load, dice: &mut Dice) -> Vec<Hint> {
    let mut known = Correlations::new(CorrelationSettings::default());
    let points = 30;
    for number in 0..6 {
        let from_s = (number * points) as f64 * 10.0;
        let services = (0..SERVICES).map(|service| name(service).into());
        let mut window = Window::new(from_s, 10.0, points, services).expect("a window");
        for service in 0..SERVICES {
            for at in 0..points {
                let noise = 1.0 + 0.2 * (dice.share() - 0.5);
                let usage = load.usage(service, number * points + at) * noise;
                window.add(&name(service), CorrelatedResource::Cpu, from_s + 10.0 * at as f64, usage);
            }
        }
        known.observe(&window).expect("in order");
    }
    let hint = |hint: berth_rightsizing::correlate::CorrelationHint| Hint {
        of: workload(&hint.service),
        other: workload(&hint.other),
        weight: i32::from(hint.weight) * if hint.direction == Direction::Apart { -1 } else { 1 },
    };
    known.hints().into_iter().map(hint).collect()
}

/// Returns a scheduler as `berth run` has it: services are spread by default.
fn product() -> Bench {
    let config = SchedulerConfig {
        profiles: Profiles::from(Profile { default_spread: system_defaults(), ..Profile::default() }).into(),
        ..SchedulerConfig::default()
    };
    let mut bench = Bench { scheduler: Scheduler::new(config, Estimator::default()), ..Bench::silent(1) };
    for at in 0..NODES {
        bench.scheduler.apply_node(host(&format!("n{at}")));
    }
    for service in 0..SERVICES {
        let object = ObjectName { namespace: "x".into(), name: name(service).into() };
        let selector = app(&name(service));
        bench.scheduler.apply_object(ClusterObject::Selecting {
            kind: ObjectKind::Service,
            name: object,
            selector,
        });
    }
    bench.scheduler.retain_nodes(&(0..NODES).map(|at| format!("n{at}").into()).collect());
    bench.scheduler.retain_pods(&HashSet::new());
    bench.scheduler.set_leading(true);
    bench
}

/// Returns the services of the pods on each node, all placed one after the other.
fn placed(bench: &mut Bench, pods: &[(usize, usize)]) -> Vec<Vec<usize>> {
    let mut nodes = vec![Vec::new(); NODES];
    for (service, replica) in pods {
        let pod = of_app(&format!("{}-{replica}", name(*service)), &name(*service), 100);
        bench.apply(pod.clone());
        bench.work();
        let binding = bench.binds.last().expect("it fits").clone();
        bench.finish(&binding, BindOutcome::Bound);
        bench.apply(on(&binding.node, pod));
        nodes[binding.node[1..].parse::<usize>().expect("a number")].push(*service);
    }
    nodes
}

/// Returns the average number of pairs on one node that are at their peak (the highest fifth of their swing) at the
/// same time, and the average excess of a node's highest load over its mean load.
fn contention(load: &Load, nodes: &[Vec<usize>]) -> (f64, f64) {
    let (mut pairs, mut above) = (0, 0.0);
    for pods in nodes.iter().filter(|pods| !pods.is_empty()) {
        let loads: Vec<f64> =
            (0..PERIOD).map(|at| pods.iter().map(|service| load.usage(*service, at)).sum()).collect();
        let (highest, mean) =
            (loads.iter().copied().fold(0.0, f64::max), loads.iter().sum::<f64>() / PERIOD as f64);
        above += (highest / mean - 1.0) / nodes.len() as f64;
        for at in 0..PERIOD {
            let peaking = pods.iter().filter(|service| load.wave(**service, at) >= 0.6).count();
            pairs += peaking * peaking.saturating_sub(1) / 2;
        }
    }
    (pairs as f64 / PERIOD as f64, above)
}

#[test]
fn with_hints_a_fifth_fewer_peaks_of_neighbours_coincide_and_loads_of_nodes_are_evener() {
    let (mut without, mut with) = ((0.0, 0.0), (0.0, 0.0));
    for seed in 1..=5 {
        let mut dice = Dice(seed);
        let load = Load::new(&mut dice);
        let mut pods: Vec<_> =
            (0..SERVICES).flat_map(|service| (0..REPLICAS).map(move |replica| (service, replica))).collect();
        dice.shuffle(&mut pods);
        let hints = measured(&load, &mut dice);
        let plain = contention(&load, &placed(&mut product(), &pods));
        let mut bench = product();
        let taken = bench.scheduler.hints_changed(hints);
        let hinted = contention(&load, &placed(&mut bench, &pods));
        println!(
            "seed {seed}: {} hints; pairs that peak together {:.1} without, {:.1} with; highest load above the mean {:.1} % and {:.1} %",
            taken.in_force,
            plain.0,
            hinted.0,
            100.0 * plain.1,
            100.0 * hinted.1
        );
        (without.0, without.1) = (without.0 + plain.0, without.1 + plain.1);
        (with.0, with.1) = (with.0 + hinted.0, with.1 + hinted.1);
        assert!(hinted.0 <= 0.8 * plain.0, "seed {seed}: {hinted:?}, without hints {plain:?}");
        assert!(hinted.1 <= 0.8 * plain.1, "seed {seed}: {hinted:?}, without hints {plain:?}");
    }
    println!(
        "all seeds: {:.0} % fewer pairs, {:.0} % less above the mean",
        100.0 * (1.0 - with.0 / without.0),
        100.0 * (1.0 - with.1 / without.1)
    );
}
