use std::sync::Arc;

use super::latency::{Demand, Latencies, Wait, alone};
use super::load::{normal, seeded};
use super::report::{ScalingReport, render};
use super::run::start;
use super::service::{Arrivals, ServiceAssumptions, State};
use super::*;
use berth_rightsizing::scaling::Size;

const RULES: ServiceAssumptions =
    ServiceAssumptions { startup_s: 30, resize_s: 0, burst: 1.0, timeout_s: 10.0 };
const GIB: i64 = 1 << 30;

/// A service with 10 ms of CPU per request.
fn service(rates: Vec<f32>) -> SimulatedService {
    let peak_cores = rates.iter().copied().fold(0.0, f32::max) as f64 * 0.01;
    SimulatedService {
        name: "web".into(),
        demand: Demand::new(0.01, 1.0),
        base_memory: 200.0 * (1 << 20) as f64,
        request_memory: 1.0 * (1 << 20) as f64,
        rates: Arc::new(rates),
        peak_cores,
    }
}

fn scenario(rates: Vec<f32>, minutes: u32) -> Scenario {
    Scenario {
        load: ServiceLoads { source: "test".into(), services: vec![service(rates)] },
        warm_up_s: 0,
        measured_s: minutes * 60,
        slo_ms: 200.0,
        tuning: Tuning {
            min_replicas: 2,
            max_replicas: 50,
            hpa_target: 0.8,
            setpoint: 5.0,
            window_s: 300,
            rules: RULES,
        },
        seed: 1,
    }
}

fn run_all(scenario: &Scenario) -> [ScalingFigures; 5] {
    ScalerKind::ALL.map(|kind| run(scenario, kind, &|_| ()).figures)
}

/// Calm at 100 requests/s, then four times the rate.
fn spike(minutes: u32) -> Scenario {
    let mut scenario = scenario([vec![100.0; 1_800], vec![400.0; 1_800]].concat(), minutes);
    // The initial setup does not anticipate the spike.
    scenario.load.services[0].peak_cores = 1.0;
    scenario
}

#[test]
fn every_request_that_came_is_done_or_failed_or_waits() {
    let service = service(vec![100.0]);
    let (mut state, mut draws) =
        (State::new(2, Size { cpu_milli: 400, memory_bytes: GIB / 4 }), seeded(1, 9, 9));
    let (mut came, mut gone, mut kills) = (0.0, 0.0, 0);
    for now in 0..3_000 {
        let requests = (100.0 + 40.0 * normal(&mut draws)).round().max(0.0);
        let arrivals = Arrivals { rate: 100.0, requests, work_s: requests * 0.01, memory_noise: 0.0 };
        if now % 50 == 0 {
            let cpu_milli = 300 + i64::from(now % 400);
            let memory_bytes = if now == 1_000 { GIB / 6 } else { GIB / 4 };
            state.scale(now, 1 + now / 50 % 4, Size { cpu_milli, memory_bytes }, &RULES);
        }
        let second = state.step(&service, now, arrivals, &RULES, None);
        came += requests;
        gone += second.completed + second.failed;
        kills += second.killed;
        assert!((came - gone - state.waiting()).abs() < 1e-6 * came.max(1.0), "second {now}");
    }
    assert!(kills > 0 && gone > 100_000.0, "{kills} kills, {gone} gone");
}

#[test]
fn more_cpu_never_makes_requests_slower() {
    let demand = Demand::new(0.02, 1.0);
    let p99 = |cores: f64, replicas: f64| {
        let mut all = Latencies::default();
        let wait = Wait::new(&demand, 30.0 * demand.mean_s / (cores * replicas), cores, 0.0);
        wait.count(&demand, cores, 1_000.0, &mut all);
        assert!((all.total - 1_000.0).abs() < 1e-9);
        (all.percentile(0.99), wait.p95())
    };
    let sizes = [0.25, 0.3, 0.4, 0.5, 0.7, 1.0, 2.0, 4.0];
    let by_size = sizes.map(|cores| p99(cores, 4.0));
    assert!(by_size.is_sorted_by(|a, b| a.0 >= b.0 && a.1 >= b.1), "{by_size:?}");
    let by_count = [2.0, 3.0, 4.0, 8.0, 16.0].map(|replicas| p99(0.5, replicas));
    assert!(by_count.is_sorted_by(|a, b| a.0 >= b.0 && a.1 >= b.1), "{by_count:?}");
}

#[test]
fn a_queue_alone_is_pollaczek_and_khinchines() {
    // M/M/1 at 80 %: a wait of 0.8 / 0.2 of a service time.
    let wait = Wait::new(&Demand::new(0.01, 1.0), 0.8, 1.0, 0.0);
    assert!((wait.average() - 0.04).abs() < 1e-9 && (wait.share - 0.8).abs() < 1e-9, "{wait:?}");
    assert_eq!(alone(0.03, 1.0), 0.03);
    // A quarter of a core runs 25 ms, waits 75, and runs the rest.
    assert!((alone(0.03, 0.25) - 0.105).abs() < 1e-12);
}

#[test]
fn demands_and_latencies_have_the_mean_they_should() {
    let mut all = Latencies::default();
    for millis in 1..=1_000 {
        all.add(f64::from(millis) / 1_000.0, 1.0);
    }
    for share in [0.5, 0.9, 0.99] {
        let found = all.percentile(share);
        assert!((found / share - 1.0).abs() < 0.02, "{share}: {found}");
    }
    assert!((all.share_above(0.9) - 0.1).abs() < 0.02);
}

#[test]
fn the_same_seed_gives_the_same_figures_and_another_others() {
    let made = |seed| {
        let load = ServiceLoads::synthetic(SyntheticTraffic { services: 2, seconds: 3_600, seed });
        let scenario = Scenario { load, seed, ..scenario(vec![1.0], 20) };
        run(&scenario, ScalerKind::Showar, &|_| ())
    };
    assert_eq!(made(3), made(3));
    assert_ne!(made(3).figures, made(4).figures);
}

#[test]
fn scalers_answer_a_spike_and_no_scaling_does_not() {
    let [showar, _, hpa, _, fixed] = run_all(&spike(50));
    for figures in [&showar, &hpa] {
        assert!(figures.failed < fixed.failed / 2.0, "{figures:?}, without scaling {fixed:?}");
        assert!(figures.cpu_cores > fixed.cpu_cores, "{figures:?}");
    }
    assert!(fixed.failed > 0.1 && fixed.horizontal_changes + fixed.vertical_changes == 0.0, "{fixed:?}");
    assert!(showar.failed <= hpa.failed, "{showar:?} {hpa:?}");
}

#[test]
fn a_load_that_stays_is_left_alone_after_a_while() {
    let mut calm = scenario(vec![200.0], 60);
    calm.warm_up_s = 3_600;
    for figures in run_all(&calm) {
        // One hour; figures are per day.
        assert!(figures.horizontal_reversals <= 2.0 * 24.0 && figures.failed == 0.0, "{figures:?}");
    }
    let showar = run(&calm, ScalerKind::Showar, &|_| ()).figures;
    assert!(showar.slo_violations < 0.005, "{showar:?}");
}

#[test]
fn made_up_loads_have_a_day_and_the_peak_that_was_asked_for() {
    let load = ServiceLoads::synthetic(SyntheticTraffic { services: 5, seconds: 86_400, seed: 7 });
    for service in &load.services {
        let mean = |from: usize| service.rates[from..from + 3_600].iter().sum::<f32>() / 3_600.0;
        let hours: Vec<f32> = (0..24).map(|hour| mean(hour * 3_600)).collect();
        let (low, high) =
            hours.iter().fold((f32::MAX, 0.0_f32), |(low, high), hour| (low.min(*hour), high.max(*hour)));
        assert!(low / high > 0.3 && low / high < 0.75, "{}: {low} to {high}", service.name);
        let plan = start(service, &scenario(vec![1.0], 1).tuning);
        assert!(f64::from(plan.replicas) * 0.5 * 0.6 >= service.peak_cores - 1e-6, "{plan:?}");
    }
}

#[test]
fn a_page_has_every_scaler_and_no_number_that_is_none() {
    let scenario = scenario(vec![100.0], 5);
    let outcomes = ScalerKind::ALL.map(|kind| run(&scenario, kind, &|_| ())).to_vec();
    let figures = vec![outcomes[0].figures.clone()];
    let sweeps = vec![report::ScalingSweep {
        what: "showar: setpoint, ms",
        points: vec![(1.0, figures.clone()), (9.0, figures)],
    }];
    let page = render(&ScalingReport {
        source: "<b>".into(),
        setup: vec![("seed", "1".into())],
        outcomes,
        sweeps,
        notes: Vec::new(),
        command: "berth".into(),
    });
    assert!(ScalerKind::ALL.iter().all(|kind| page.contains(kind.name())));
    assert!(page.contains("plot-cpu") && page.contains("plot-frontier") && !page.contains("<b>&"));
    let body = &page[page.find("<main>").unwrap()..page.find("</main>").unwrap()];
    let wrong = body.split(|c: char| !c.is_ascii_alphanumeric()).find(|word| ["NaN", "inf"].contains(word));
    assert_eq!(wrong, None);
    assert!(
        render(&ScalingReport {
            source: String::new(),
            setup: Vec::new(),
            outcomes: Vec::new(),
            sweeps: Vec::new(),
            notes: Vec::new(),
            command: String::new(),
        })
        .contains("</html>")
    );
}
