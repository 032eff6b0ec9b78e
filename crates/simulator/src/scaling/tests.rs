use std::sync::Arc;

use super::assumptions::CHANGES;
use super::compare::{MeanInterval, at_equal_p99};
use super::latency::{Demand, Latencies, Wait, alone};
use super::load::{normal, seeded};
use super::metrics::intervals;
use super::report::{ScalingReport, render};
use super::run::start;
use super::service::{Arrivals, ServiceAssumptions, State};
use super::signal::{RequestBuckets, Shown, throttling};
use super::*;
use berth_rightsizing::scaling::Size;

const RULES: ServiceAssumptions = ServiceAssumptions {
    startup_s: 30,
    resize_s: 0,
    burst: 1.0,
    timeout_s: 10.0,
    full_nodes: 0.0,
    refused: 0.0,
};
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
            start_milli: 500,
            hpa_target: 0.8,
            signal: BuiltInSignal::RequestLatency,
            setpoint: 5.0,
            keda_target: 5.0,
            window_s: 300,
            history_s: 0,
            scrape_s: 15,
            rate_window_s: None,
            rules: RULES,
        },
        seed: 1,
    }
}

fn run_all(scenario: &Scenario) -> [ScalingFigures; 8] {
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
        let full_node = now / 300 % 2 == 1;
        let arrivals =
            Arrivals { rate: 100.0, requests, work_s: requests * 0.01, memory_noise: 0.0, full_node };
        if now % 50 == 0 {
            let cpu_milli = 300 + i64::from(now % 400);
            let memory_bytes = if now == 1_000 { GIB / 6 } else { GIB / 4 };
            state.scale(now, 1 + now / 50 % 4, Size { cpu_milli, memory_bytes }, now % 100 == 0, &RULES);
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
        let mut buckets = RequestBuckets::default();
        wait.count(&demand, cores, 1_000.0, |seconds, requests| {
            all.add(seconds, requests);
            buckets.add(seconds, requests);
        });
        assert!((all.total - 1_000.0).abs() < 1e-9);
        (all.percentile(0.99), buckets.percentile(0.95))
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
        let load = ServiceLoads::synthetic(SyntheticTraffic {
            shape: LoadShape::Wikipedia,
            services: 2,
            seconds: 3_600,
            seed,
        });
        let scenario = Scenario { load, seed, ..scenario(vec![1.0], 20) };
        run(&scenario, ScalerKind::Showar, &|_| ())
    };
    assert_eq!(made(3), made(3));
    assert_ne!(made(3).figures, made(4).figures);
}

#[test]
fn scalers_answer_a_spike_and_no_scaling_does_not() {
    let [showar, _, hpa, keda, _, _, _, fixed] = run_all(&spike(50));
    for figures in [&showar, &hpa, &keda] {
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
    // Without the VPA, nothing adds memory where a queue at 80 % of the limit needs more than the operator foresaw.
    for figures in run_all(&calm).into_iter().filter(|figures| figures.scaler != "hpa") {
        // One hour; figures are per day.
        assert!(figures.horizontal_reversals <= 2.0 * 24.0 && figures.failed == 0.0, "{figures:?}");
    }
    let showar = run(&calm, ScalerKind::Showar, &|_| ()).figures;
    assert!(showar.slo_violations < 0.005, "{showar:?}");
}

#[test]
fn made_up_loads_have_a_day_and_the_peak_that_was_asked_for() {
    let load = ServiceLoads::synthetic(SyntheticTraffic {
        shape: LoadShape::Wikipedia,
        services: 5,
        seconds: 86_400,
        seed: 7,
    });
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

#[test]
fn a_rate_covers_the_scrapes_in_its_window() {
    // 38 s at scrapes of 15 s: the newest is up to 15 s old.
    assert_eq!([0, 7, 8, 14].map(|age| intervals(38, age, 15)), [2, 2, 1, 1]);
    assert_eq!([0, 14].map(|age| intervals(60, age, 15)), [3, 3]);
    assert_eq!(intervals(300, 0, 15), 19);
    assert_eq!([0, 29, 30, 59].map(|age| intervals(150, age, 60)), [2, 2, 1, 1]);
}

#[test]
fn signals_of_the_kernel_grow_with_the_load_of_a_container() {
    let demand = Demand::new(0.01, 1.0);
    let shown = |rate: f64, cores: f64| {
        let wait = Wait::new(&demand, rate * demand.mean_s / cores, cores, 0.0);
        let mut shown =
            Shown { seconds: 1.0, pressure: wait.pressure(rate * demand.mean_s / cores), ..Shown::default() };
        shown.add(&demand, &wait, (1.0, cores), (rate, rate * demand.mean_s));
        [BuiltInSignal::CpuThrottling, BuiltInSignal::CpuPressure, BuiltInSignal::RunQueueLatency]
            .map(|signal| shown.value(signal).unwrap())
    };
    let by_load = [10.0, 30.0, 50.0, 70.0, 90.0].map(|rate| shown(rate, 1.0));
    for signal in 0..3 {
        assert!(by_load.is_sorted_by(|a, b| a[signal] < b[signal]), "{by_load:?}");
    }
    assert!(
        by_load[0][0] < 0.01 && by_load[4][0] > 0.3 && by_load.iter().all(|all| all[0] <= 1.0),
        "{by_load:?}"
    );
    assert_eq!(throttling(&demand, 1.0, 10.0, 0.5), (1.0, 1.0), "a backlog uses every quota up");
    assert_eq!(
        Shown::default().value(BuiltInSignal::CpuThrottling),
        None,
        "without periods there is no share"
    );
}

#[test]
fn request_latency_is_as_coarse_as_the_buckets_of_istio() {
    let mut buckets = RequestBuckets::default();
    assert_eq!(buckets.percentile(0.95), None);
    buckets.add(0.060, 1_000.0);
    // All between 50 and 100 ms; where, the histogram does not know.
    assert_eq!(buckets.percentile(0.95), Some(97.5));
}

/// HPA pods had 500m whatever the user chose, while berth's may grow to a core.
#[test]
fn pods_of_an_autoscaler_have_the_size_that_was_chosen() {
    let mut scenario = scenario(vec![300.0], 20);
    for milli in [250, 1_000] {
        scenario.tuning.start_milli = milli;
        for kind in [ScalerKind::HpaVpaMemory, ScalerKind::Keda, ScalerKind::Static] {
            let figures = run(&scenario, kind, &|_| ()).figures;
            let each = figures.cpu_cores / figures.replicas;
            assert!((each * 1000.0 - milli as f64).abs() < 1e-6, "{milli}: {figures:?}");
        }
    }
}

/// The warm-up stood for the history, so that nothing shrank too early.
#[test]
fn before_a_day_was_seen_showar_shrinks_nothing_and_the_first_hours_are_counted_apart() {
    let mut scenario = scenario(vec![20.0], 30);
    scenario.warm_up_s = 1_800;
    scenario.tuning.history_s = 86_400;
    scenario.tuning.signal = BuiltInSignal::CpuThrottling;
    scenario.tuning.setpoint = 0.05;
    scenario.tuning.rules.burst = 2.0;
    let size = |scenario: &Scenario| {
        let outcome = run(scenario, ScalerKind::Showar, &|_| ());
        let (first, figures) = (outcome.first.unwrap(), outcome.figures);
        assert_eq!((first.from_h, first.hours, figures.from_h, figures.hours), (0.0, 0.5, 0.5, 0.5));
        figures.cpu_cores / figures.replicas
    };
    let cautious = size(&scenario);
    assert!(cautious >= 0.5 - 1e-9, "{cautious}");
    scenario.tuning.history_s = 0;
    let quick = size(&scenario);
    assert!(quick < cautious, "{quick} {cautious}");
    scenario.warm_up_s = 0;
    assert_eq!(run(&scenario, ScalerKind::Showar, &|_| ()).first, None);
}

#[test]
fn full_nodes_make_requests_slower() {
    let mut scenario = scenario(vec![100.0], 60);
    scenario.tuning.rules.burst = 2.0;
    let mut p99 = |share: f64| {
        scenario.tuning.rules.full_nodes = share;
        run(&scenario, ScalerKind::Static, &|_| ()).figures.p99_ms
    };
    assert!(p99(0.5) > p99(0.0));
}

#[test]
fn replicas_on_a_full_node_have_their_requests_only_and_grow_once_it_is_free() {
    let rules = ServiceAssumptions { burst: 2.0, ..RULES };
    let (small, large) =
        (Size { cpu_milli: 400, memory_bytes: GIB }, Size { cpu_milli: 800, memory_bytes: GIB });
    let mut state = State::new(6, small);
    let mut cores = |now: u32, full_node: bool| {
        if now == 1 {
            state.scale(0, 6, large, false, &rules);
        }
        let arrivals = Arrivals { rate: 1.0, requests: 1.0, work_s: 0.01, memory_noise: 0.0, full_node };
        let groups = state.step(&service(vec![1.0]), now, arrivals, &rules, None).groups;
        groups.map(|group| (group.pods, group.cores))
    };
    assert_eq!(cores(0, true), [(4, 0.8), (2, 0.4)]);
    assert_eq!(cores(1, true), [(4, 1.6), (2, 0.4)], "growth is deferred");
    assert_eq!(cores(2, false), [(6, 1.6), (0, 0.0)]);
}

#[test]
fn a_third_of_the_replicas_may_refuse_to_grow_and_shrinks_with_the_rest() {
    let sized = |cpu_milli| Size { cpu_milli, memory_bytes: GIB };
    let mut state = State::new(6, sized(400));
    let mut cores = |now: u32, milli: i64| {
        state.scale(now, 6, sized(milli), true, &RULES);
        let arrivals =
            Arrivals { rate: 1.0, requests: 1.0, work_s: 0.01, memory_noise: 0.0, full_node: false };
        let groups = state.step(&service(vec![1.0]), now, arrivals, &RULES, None).groups;
        groups.map(|group| (group.pods, group.cores))
    };
    assert_eq!(cores(0, 800), [(4, 0.8), (2, 0.4)]);
    assert_eq!(cores(10, 300), [(4, 0.3), (2, 0.3)]);
    assert_eq!(cores(3_600, 300), [(6, 0.3), (0, 0.0)], "an hour later they are as the rest");
}

/// Restarted pods had the memory of those that were killed, and were killed again, until all were.
#[test]
fn a_pod_that_was_killed_starts_without_the_memory_of_its_requests() {
    let service = service(vec![1.0]);
    let mut state = State::new(1, Size { cpu_milli: 500, memory_bytes: GIB / 4 });
    let arrivals = |requests: f64| {
        let work_s = requests * 0.01;
        Arrivals { rate: requests, requests, work_s, memory_noise: 0.0, full_node: false }
    };
    assert_eq!(state.step(&service, 0, arrivals(400.0), &RULES, None).killed, 1);
    let after = state.step(&service, 30, arrivals(0.0), &RULES, None);
    assert_eq!((after.killed, after.groups[0].memory_bytes), (0, service.base_memory));
}

#[test]
fn keda_follows_the_signal_that_showar_has() {
    let mut scenario = scenario(vec![60.0], 60);
    scenario.tuning.keda_target = 50.0;
    scenario.tuning.setpoint = 50.0;
    let cores = |scenario: &Scenario, kind| run(scenario, kind, &|_| ()).figures.cpu_cores;
    let loose = cores(&scenario, ScalerKind::Keda);
    scenario.tuning.hpa_target = 0.3;
    assert!(cores(&scenario, ScalerKind::KedaCpu) > loose, "the larger answer of both wins");
    assert_eq!(cores(&scenario, ScalerKind::Keda), loose, "without CPU");
    scenario.tuning.keda_target = 2.0;
    assert!(cores(&scenario, ScalerKind::Keda) > loose);
}

#[test]
fn social_network_is_one_load_that_reaches_its_services_in_published_proportions() {
    let options = SyntheticTraffic { shape: LoadShape::SocialNetwork, services: 1, seconds: 86_400, seed: 7 };
    let load = ServiceLoads::synthetic(options);
    let rate = |name: &str, second: usize| {
        load.services.iter().find(|service| service.name == name).unwrap().rate(second)
    };
    for second in [0, 40_000, 80_000] {
        let users = rate("nginx-thrift", second);
        for (name, calls) in
            [("home-timeline-service", 0.7), ("user-timeline-service", 0.4), ("text-service", 0.1)]
        {
            assert!((rate(name, second) / users - calls).abs() < 1e-4, "{name}");
        }
    }
}

#[test]
fn baselines_are_set_to_the_same_percentile_before_they_are_compared() {
    let shape = LoadShape::Wikipedia;
    let mut scenario = scenario(vec![1.0], 60);
    scenario.load = ServiceLoads::synthetic(SyntheticTraffic { shape, services: 1, seconds: 3_600, seed: 1 });
    scenario.tuning.rules.burst = 2.0;
    let compared = at_equal_p99(&scenario, &[ScalerKind::Hpa, ScalerKind::Keda], &[250, 500, 1_000]);
    let ours = compared.ours.figures.p99_ms;
    for matched in compared.baselines.iter().filter(|it| it.equal) {
        assert!(matched.outcome.figures.p99_ms <= 1.021 * ours, "{matched:?}, {ours}");
    }
    let best = compared.best().expect("an HPA can have any latency");
    assert!(best.outcome.figures.p99_ms > 0.8 * ours, "{best:?}, {ours}");
    for size in [250, 500, 1_000] {
        let one = at_equal_p99(&scenario, &[ScalerKind::Hpa], &[size]);
        let cost = |matched: &compare::Matched| matched.outcome.figures.cost();
        assert!(one.best().is_none_or(|one| cost(best) <= cost(one)), "{size}: {one:?}");
    }
}

#[test]
fn an_interval_is_students_and_one_value_has_none() {
    let interval = MeanInterval::of(&[1.0, 2.0, 3.0, 4.0, 5.0]);
    // 2.776 times the standard error.
    assert!((interval.mean - 3.0).abs() < 1e-12 && (interval.half - 1.963).abs() < 0.01, "{interval:?}");
    assert!(MeanInterval::of(&[1.0]).half.is_infinite());
}

#[test]
fn each_assumption_changes_the_scenario_and_the_first_changes_nothing() {
    let base = scenario(vec![1.0], 60);
    for (at, each) in CHANGES.iter().enumerate() {
        let mut other = base.clone();
        other.tuning.history_s = 86_400;
        other.tuning.signal = BuiltInSignal::CpuThrottling;
        other.tuning.rules = ServiceAssumptions { full_nodes: 0.1, refused: 0.1, burst: 2.0, ..RULES };
        let before = format!("{other:?}");
        (each.change)(&mut other);
        assert_eq!(before == format!("{other:?}"), at == 0 || each.sizes_milli.is_some(), "{}", each.what);
    }
}
