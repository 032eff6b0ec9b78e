use super::*;
use crate::advise::advice::{sort, totals};
use crate::advise::{
    Collector, ContainerSelection, Left, LimitStrategy, OwnerIndex, Recorder, Sizing, Strategy,
};
use berth_prometheus::{Fact, FactRow, Series};
use berth_rightsizing::recommend::RecommenderSettings;
use berth_rightsizing::recommend::backtest::RecordedResource;
use berth_rightsizing::usage::{Sample, UsageKind};

const HOUR_NS: i64 = 3_600_000_000_000;
const NOW_S: f64 = 1_700_000_000.0;
const ALL: ContainerSelection =
    ContainerSelection { ended_after_ns: 2 * HOUR_NS, all: true, severity_min: Severity::Unknown };

/// Adds hourly samples of `value` between two times, given in hours before now.
fn use_up(
    collector: &mut Collector,
    kind: UsageKind,
    pod: &str,
    container: &str,
    from: i32,
    until: i32,
    value: f64,
) {
    let at = |hour: i32| Sample { at: NOW_S - f64::from(hour) * 3_600.0, value };
    let samples: Vec<Sample> = (until..=from).rev().map(at).collect();
    collector.usage(kind, &Series { namespace: "shop", pod, container, samples: &samples });
}

const SIZING: Sizing = Sizing {
    strategy: Strategy::Vpa,
    memory_margin: 0.15,
    minimum: PerResource { cpu: 10, memory: 100 * MI },
    limits: LimitStrategy::Proportional,
    despite_autoscalers: false,
};

fn collector(told: &[(Fact, &str, &str)]) -> Collector {
    sizing(SIZING, told)
}

fn sizing(sizing: Sizing, told: &[(Fact, &str, &str)]) -> Collector {
    let mut owners = OwnerIndex::default();
    for (fact, object, about) in told {
        owners.add(*fact, FactRow { namespace: "shop", object, about, value: 1.0 });
    }
    Collector::new(RecommenderSettings::default(), sizing, owners, NOW_S as i64 * 1_000_000_000)
        .expect("the usual settings")
}

fn tell(collector: &mut Collector, fact: Fact, object: &str, about: &str, value: f64) {
    collector.add_fact(fact, FactRow { namespace: "shop", object, about, value });
}

#[test]
fn pods_of_a_workload_are_one_and_the_newest_has_its_requests() {
    let (old, new) = ("web-59f9fb6b8-x2x4z", "web-7c5ddbdf54-b5x2w");
    let mut collector = collector(&[
        (Fact::PodOwner, old, "ReplicaSet/web-59f9fb6b8"),
        (Fact::PodOwner, new, "ReplicaSet/web-7c5ddbdf54"),
        (Fact::ReplicaSetOwner, "web-59f9fb6b8", "Deployment/web"),
        (Fact::ReplicaSetOwner, "web-7c5ddbdf54", "Deployment/web"),
    ]);
    for kind in UsageKind::ALL {
        let value = if kind == UsageKind::Cpu { 0.4 } else { 400.0 * MI as f64 };
        use_up(&mut collector, kind, old, "app", 190, 100, value);
        use_up(&mut collector, kind, new, "app", 99, 0, value);
    }
    tell(&mut collector, Fact::Request(UsageKind::Cpu), old, "app", 8.0);
    tell(&mut collector, Fact::Request(UsageKind::Cpu), new, "app", 2.0);
    tell(&mut collector, Fact::Limit(UsageKind::Memory), new, "app", 4.0 * 1024.0 * MI as f64);
    tell(&mut collector, Fact::Request(UsageKind::Cpu), "nobody", "app", 1.0);
    let (advice, left) = collector.advice(ALL);
    assert_eq!(left, Left::default());
    let [web] = &advice[..] else { panic!("{advice:?}") };
    assert_eq!(
        (&*web.kind, &*web.workload, web.guessed, web.pods, web.pods_seen),
        ("Deployment", "web", false, 1, 2)
    );
    let PerResource { cpu, memory } = web.size;
    assert_eq!((cpu.request, cpu.limit), (Current::Set(2000), Current::Unset));
    assert_eq!((memory.request, memory.limit), (Current::Unset, Current::Set(4096 * MI)));
    let target = cpu.target.expect("there was usage");
    assert!((460..500).contains(&target), "0.4 cores, a bucket's width, and 15 %: {target}");
    assert_eq!(
        (cpu.severity, memory.severity, web.severity),
        (Severity::Critical, Severity::Warning, Severity::Critical)
    );
    assert!(cpu.lower <= cpu.target && cpu.target <= cpu.upper);
    assert!((web.days - 190.0 / 24.0).abs() < 1e-9);
    assert_eq!(web.samples, 191);
}

#[test]
fn without_kube_state_metrics_requests_are_unknown_and_not_unset() {
    let mut collector = collector(&[]);
    use_up(&mut collector, UsageKind::Cpu, "db-0", "db", 48, 0, 1.0);
    let (advice, _) = collector.advice(ALL);
    let [db] = &advice[..] else { panic!("{advice:?}") };
    assert_eq!((&*db.kind, &*db.workload, db.guessed), ("StatefulSet", "db", true));
    assert_eq!((db.size.cpu.request, db.severity), (Current::Unknown, Severity::Unknown));
    // Unmeasured memory gets no advice.
    assert_eq!((db.size.memory.target, db.size.memory.severity), (None, Severity::Unknown));
}

#[test]
fn what_does_not_run_any_more_is_left_out_but_for_jobs() {
    let mut collector = collector(&[]);
    let mut pod = |pod: &str, container: &str, from, until| {
        use_up(&mut collector, UsageKind::Cpu, pod, container, from, until, 1.0);
    };
    pod("gone-0", "app", 100, 50);
    pod("here-0", "app", 100, 1);
    pod("here-0", "removed", 100, 90);
    pod("backup-28456720-x2x4z", "app", 30, 29);
    pod("web-59f9fb6b8-x2x4z", "old", 100, 20);
    pod("web-7c5ddbdf54-b5x2w", "new", 19, 0);
    let running = ContainerSelection { all: false, ..ALL };
    let names = |advice: &[ContainerAdvice]| -> Vec<String> {
        advice.iter().map(|each| format!("{}/{} {}", each.workload, each.container, each.pods)).collect()
    };
    let (advice, left) = collector.advice(running);
    assert_eq!(names(&advice), ["backup/app 0", "web/new 1", "here/app 1"]);
    assert_eq!(left, Left { ended: 3, less_severe: 0 });
    assert_eq!(collector.advice(ALL).0.len(), 6);
    let critical = ContainerSelection { severity_min: Severity::Critical, ..running };
    assert_eq!(collector.advice(critical), (Vec::new(), Left { ended: 3, less_severe: 3 }));
}

#[test]
fn bad_samples_are_counted_and_spoil_nothing() {
    let mut collector = collector(&[]);
    use_up(&mut collector, UsageKind::Memory, "db-0", "db", 10, 1, 300.0 * MI as f64);
    use_up(&mut collector, UsageKind::Memory, "db-0", "db", 0, 0, -5.0);
    use_up(&mut collector, UsageKind::Memory, "db-0", "db", -24, -24, 9e12);
    assert_eq!(collector.refused(), 2);
    let (advice, _) = collector.advice(ALL);
    let target = advice[0].size.memory.target.expect("there was usage");
    assert!((345 * MI..380 * MI).contains(&target), "{target}");
}

#[test]
fn a_pods_minimum_is_shared_by_its_containers() {
    let mut collector = collector(&[]);
    for container in ["a", "b"] {
        use_up(&mut collector, UsageKind::Cpu, "db-0", container, 48, 0, 0.0);
    }
    let targets: Vec<_> = collector.advice(ALL).0.iter().map(|each| each.size.cpu.target).collect();
    assert_eq!(targets, [Some(12), Some(12)]);
}

#[test]
fn a_container_that_was_killed_gets_more_than_it_had() {
    let mut collector = collector(&[]);
    for pod in ["db-0", "db-1", "cache-0"] {
        use_up(&mut collector, UsageKind::Memory, pod, "db", 48, 0, 300.0 * MI as f64);
    }
    tell(&mut collector, Fact::Limit(UsageKind::Memory), "db-0", "db", 1024.0 * MI as f64);
    tell(&mut collector, Fact::OomKill, "db-0", "db", 1.0);
    tell(&mut collector, Fact::OomKill, "cache-0", "db", 1.0);
    let (advice, _) = collector.advice(ALL);
    let memory = |workload: &str| {
        let found = advice.iter().find(|each| each.workload == workload).expect("advice");
        (found.size.memory.target.expect("a target"), found.size.memory.reason)
    };
    // A fifth more than its limit; without a known limit 100 MiB more than its peak.
    assert_eq!(memory("db"), (1024 * MI * 12 / 10, Reason::OomKill));
    assert_eq!(memory("cache"), (400 * MI, Reason::OomKill));
}

#[test]
fn a_resource_by_which_an_autoscaler_scales_gets_no_advice_unless_it_is_allowed() {
    let advice = |despite_autoscalers| {
        let facts =
            [(Fact::PodOwner, "web-1-x", "StatefulSet/web"), (Fact::PodOwner, "db-0", "StatefulSet/db")];
        let mut collector = sizing(Sizing { despite_autoscalers, ..SIZING }, &facts);
        for kind in UsageKind::ALL {
            let value = if kind == UsageKind::Cpu { 0.4 } else { 400.0 * MI as f64 };
            use_up(&mut collector, kind, "web-1-x", "app", 48, 0, value);
            use_up(&mut collector, kind, "db-0", "app", 48, 0, value);
        }
        tell(&mut collector, Fact::AutoscalerTarget, "by-cpu", "StatefulSet/web", 1.0);
        tell(&mut collector, Fact::AutoscalerResource, "by-cpu", "cpu", 1.0);
        tell(&mut collector, Fact::AutoscalerTarget, "by-queue", "StatefulSet/db", 1.0);
        tell(&mut collector, Fact::AutoscalerResource, "by-queue", "queue_length", 1.0);
        collector.advice(ALL).0
    };
    let of = |advice: &[ContainerAdvice], workload: &str| {
        let found = advice.iter().find(|each| each.workload == workload).expect("advice");
        let PerResource { cpu, memory } = found.size;
        (cpu.target.is_some(), cpu.reason, memory.reason, found.autoscaler.clone())
    };
    let kept = advice(false);
    assert_eq!(of(&kept, "web"), (false, Reason::Autoscaler, Reason::Usage, Some("by-cpu".to_owned())));
    assert_eq!(of(&kept, "db"), (true, Reason::Usage, Reason::Usage, None));
    assert_eq!(of(&advice(true), "web"), (true, Reason::Usage, Reason::Usage, None));
}

#[test]
fn krrs_sizes_are_those_of_the_largest_pod_rounded_up() {
    let mut collector = sizing(Sizing { strategy: Strategy::Krr, ..SIZING }, &[]);
    for pod in ["db-0", "db-1"] {
        use_up(&mut collector, UsageKind::Cpu, pod, "db", 48, 0, 0.1);
        use_up(&mut collector, UsageKind::Memory, pod, "db", 48, 0, 300.0 * MI as f64);
    }
    let (advice, _) = collector.advice(ALL);
    assert_eq!(advice[0].size.map(|size| size.target), PerResource { cpu: None, memory: None });
    let quantile = Fact::CpuQuantile { per_mille: 950 };
    for (pod, cores, bytes) in [("db-0", 0.2001, 200.0 * MI as f64), ("db-1", 0.1, 201.0 * MI as f64)] {
        tell(&mut collector, quantile, pod, "db", cores);
        tell(&mut collector, Fact::MemoryPeak, pod, "db", bytes);
    }
    let (advice, _) = collector.advice(ALL);
    // 201 MiB and 15 % are 231.15 MiB.
    assert_eq!(
        advice[0].size.map(|size| size.target),
        PerResource { cpu: Some(201), memory: Some(232 * MI) }
    );
}

#[test]
fn graphs_have_the_highest_usage_of_each_part_of_the_history() {
    let mut collector = collector(&[]).with_graphs(4 * HOUR_NS, 4);
    use_up(&mut collector, UsageKind::Cpu, "db-0", "db", 4, 3, 0.25);
    use_up(&mut collector, UsageKind::Cpu, "db-1", "db", 3, 3, 0.5);
    use_up(&mut collector, UsageKind::Cpu, "db-1", "db", 0, 0, 1.0);
    let (advice, _) = collector.advice(ALL);
    let [first, second, third, last] = advice[0].history.cpu[..] else { panic!("{:?}", advice[0].history) };
    assert!((first, second, last) == (0.25, 0.5, 1.0) && third.is_nan(), "{:?}", advice[0].history);
}

#[test]
fn severity_is_how_far_off_the_request_is_up_or_down() {
    let of = |request, target| advice("c", (request, target), (Current::Unknown, None)).size.cpu.severity;
    for (difference, severity) in [
        (0, Severity::Good),
        (99, Severity::Good),
        (100, Severity::Ok),
        (249, Severity::Ok),
        (250, Severity::Warning),
        (499, Severity::Warning),
        (500, Severity::Critical),
        (90_000, Severity::Critical),
    ] {
        assert_eq!(of(Current::Set(1000 + difference), Some(1000)), severity, "{difference} too much");
        assert_eq!(of(Current::Set(1000), Some(1000 + difference)), severity, "{difference} too little");
    }
    assert_eq!(of(Current::Unset, Some(1000)), Severity::Warning);
    assert_eq!(of(Current::Unset, None), Severity::Unknown);
    assert_eq!(of(Current::Unknown, Some(1000)), Severity::Unknown);
    let memory = |difference: Amount| {
        let request = Current::Set(1000 * MI + difference);
        advice("c", (Current::Set(10), Some(10)), (request, Some(1000 * MI))).severity
    };
    assert_eq!(memory(100 * MI - 1), Severity::Good);
    assert_eq!(memory(100 * MI), Severity::Ok);
    assert_eq!(memory(250 * MI), Severity::Warning);
    assert_eq!(memory(-500 * MI), Severity::Critical);
}

#[test]
fn the_worst_come_first_and_of_them_those_that_save_most() {
    let cpu = |name, request| advice(name, (Current::Set(request), Some(1000)), (Current::Unknown, None));
    let memory = |name, request| {
        advice(name, (Current::Set(1000), Some(1000)), (Current::Set(request), Some(1000 * MI)))
    };
    let mut all = vec![
        cpu("good", 1000),
        cpu("saves 600m", 1600),
        memory("saves 4Gi, half a core", 1000 * MI + (4 << 30)),
        cpu("lacks 600m", 400),
        memory("saves 16Gi", 1000 * MI + (16 << 30)),
        advice("unknown", (Current::Unknown, Some(10)), (Current::Unknown, None)),
        cpu("warning", 1300),
    ];
    sort(&mut all);
    let names: Vec<_> = all.iter().map(|each| &*each.container).collect();
    let expected =
        ["saves 16Gi", "saves 600m", "saves 4Gi, half a core", "lacks 600m", "warning", "good", "unknown"];
    assert_eq!(names, expected);
    // Two pods each; an unknown request is left out of both totals.
    let totals = totals(&all);
    assert_eq!(totals.cpu, Some((2 * (1000 + 1600 + 1000 + 400 + 1000 + 1300), 2 * 6 * 1000)));
    assert_eq!(totals.memory.map(|(_, then)| then), Some(2 * 2 * 1000 * MI));
}

#[test]
fn a_recorder_keeps_each_pod_by_itself() {
    let mut recorder = Recorder::new(OwnerIndex::default());
    let samples =
        [Sample { at: 1.0, value: 0.25 }, Sample { at: 2.0, value: -1.0 }, Sample { at: 3.5, value: 0.5 }];
    for (pod, samples) in [("db-1", &samples[2..]), ("db-0", &samples)] {
        recorder.usage(UsageKind::Cpu, &Series { namespace: "shop", pod, container: "db", samples });
    }
    let recorded = recorder.recorded();
    let [db] = &recorded[..] else { panic!("{recorded:?}") };
    assert_eq!((&*db.name, db.resource), ("shop/db/db", RecordedResource::Cpu));
    let samples: Vec<Vec<_>> =
        db.pods.iter().map(|pod| pod.iter().map(|sample| (sample.time, sample.amount)).collect()).collect();
    assert_eq!(samples, [vec![(1_000_000_000, 250), (3_500_000_000, 500)], vec![(3_500_000_000, 500)]]);
}
