use super::*;
use berth_kube_io::scaling::{PlannedSignal, Query, ScheduledBounds};
use berth_rightsizing::apply::Resources;
use berth_rightsizing::recommend::time;

fn pod(cpu: Option<Amount>, limit: Option<Amount>) -> SizedPod {
    let wanted = Resources {
        requests: PerResource { cpu, memory: Some(1 << 30) },
        limits: PerResource { cpu: limit, memory: None },
    };
    SizedPod {
        uid: "u".into(),
        name: "web-0".into(),
        node: Some("n".into()),
        is_ready: true,
        containers: vec![apply::SizedContainer {
            name: "app".into(),
            wanted,
            ..apply::SizedContainer::default()
        }],
        ..SizedPod::default()
    }
}

fn sizes(cpu_milli: i64) -> BTreeMap<String, Size> {
    BTreeMap::from([("app".to_owned(), Size { cpu_milli, memory_bytes: 1 << 30 })])
}

fn amounts(cpu: impl Into<Option<Amount>>, memory: impl Into<Option<Amount>>) -> PerResource<Option<Amount>> {
    PerResource { cpu: cpu.into(), memory: memory.into() }
}

#[test]
fn a_pod_is_resized_with_its_limits_in_proportion() {
    let changes = resize(&pod(Some(200), Some(400)), &sizes(300)).unwrap();
    let [change] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!((change.requests, change.limits), (amounts(300, None), amounts(600, None)));
}

#[test]
fn a_pod_that_has_its_size_or_waits_or_requests_nothing_is_left_alone() {
    assert_eq!(resize(&pod(Some(300), None), &sizes(300)), Ok(Vec::new()));
    assert_eq!(resize(&pod(None, None), &sizes(300)), Ok(Vec::new()));
    let waits = SizedPod { node: None, ..pod(Some(200), None) };
    assert_eq!(resize(&waits, &sizes(300)), Ok(Vec::new()));
    for stuck in [Resizing::Deferred, Resizing::Infeasible] {
        let pending = SizedPod { resize: Some(stuck), ..pod(Some(200), None) };
        assert_eq!(resize(&pending, &sizes(300)), Ok(Vec::new()), "{stuck:?}");
        assert_eq!(resize(&pending, &sizes(150)).unwrap().len(), 1, "{stuck:?}");
    }
}

#[test]
fn after_a_shrink_that_the_kubelet_cannot_do_a_pod_still_grows() {
    for failed in [Resizing::Error, Resizing::Unknown] {
        let pod = SizedPod { resize: Some(failed), ..pod(Some(200), None) };
        assert_eq!(resize(&pod, &sizes(300)).unwrap().len(), 1, "{failed:?}");
    }
}

#[test]
fn a_container_is_never_restarted_for_its_size() {
    let mut pod = pod(Some(200), None);
    pod.containers[0].restarts.cpu = true;
    assert_eq!(resize(&pod, &sizes(300)), Ok(Vec::new()));
    let more = Size { cpu_milli: 300, memory_bytes: 2 << 30 };
    let more_memory = BTreeMap::from([("app".to_owned(), more)]);
    assert_eq!(resize(&pod, &more_memory).unwrap()[0].requests, amounts(None, 2 << 30));
}

#[test]
fn what_cannot_be_in_place_is_held_with_its_reason() {
    let whole = SizedPod { is_sized_as_a_whole: true, ..pod(Some(200), None) };
    assert_eq!(resize(&whole, &sizes(300)), Err(Hold::PodLevelResources));
    // Its limit, and so its request, would become 1m, which it already has.
    let mut odd = pod(Some(2), Some(3));
    odd.containers[0].wanted.limits.memory = Some(1 << 30);
    assert_eq!(resize(&odd, &sizes(1)), Err(Hold::QosClass));
}

const ALL_OURS: PerResource<bool> = PerResource { cpu: true, memory: true };

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn killed_at(text: &str) -> SizedPod {
    let mut killed = pod(Some(200), None);
    killed.containers[0].oom_killed = time::from_text(text).ok();
    killed
}

#[test]
fn a_kill_counts_once_and_not_when_it_was_before_us() {
    let before = killed_at("2026-11-22T09:59:00Z");
    let mut remembered = Remembered::default();
    assert!(remembered.new_kills(&[&before], at("2026-11-22T10:00:00Z")).is_empty());
    let killed = killed_at("2026-11-22T10:00:30Z");
    assert_eq!(remembered.new_kills(&[&killed], at("2026-11-22T10:01:00Z")).get("app"), Some(&1));
    assert!(remembered.new_kills(&[&killed], at("2026-11-22T10:02:00Z")).is_empty());
    // Across a restart.
    let mut next = Remembered { killed_until: remembered.killed_until, ..Remembered::default() };
    assert!(next.new_kills(&[&killed], at("2026-11-22T10:03:00Z")).is_empty());
    let again = killed_at("2026-11-22T10:03:30Z");
    assert_eq!(next.new_kills(&[&again], at("2026-11-22T10:04:00Z")).get("app"), Some(&1));
}

#[test]
fn a_kill_is_noticed_before_it_is_counted_and_not_after() {
    let mut remembered = Remembered::default();
    remembered.new_kills(&[&pod(Some(200), None)], at("2026-11-22T10:00:00Z"));
    let killed = killed_at("2026-11-22T10:00:30Z");
    assert!(remembered.has_new_kill(&killed) && !remembered.has_new_kill(&pod(Some(200), None)));
    remembered.new_kills(&[&killed], at("2026-11-22T10:00:35Z"));
    assert!(!remembered.has_new_kill(&killed));
    assert!(remembered.has_new_kill(&killed_at("2026-11-22T10:00:40Z")));
    // Of a pod that was not seen before.
    let other = SizedPod { uid: "other".into(), ..killed };
    assert!(!remembered.has_new_kill(&other), "it was before the last decision");
}

/// With Prometheus hanging there are no samples, and an OOM kill must not wait for them.
#[test]
fn a_kill_adds_memory_without_any_sample() {
    let mut bench = Bench::new(2);
    bench.round();
    let before = bench.pods[0].containers[0].wanted.requests.memory;
    let now = Timestamp::from_second(bench.now).unwrap();
    bench.pods[0].containers[0].oom_killed = UnixNanos::try_from(now.as_nanosecond() + 1).ok();
    bench.now += 5;
    let settled = bench.round();
    let grown: Vec<_> = bench.pods.iter().map(|pod| pod.containers[0].wanted.requests.memory).collect();
    assert!(grown.iter().all(|memory| *memory > before), "{before:?} -> {grown:?}");
    assert!(settled.decision.reason.contains("1 kills"), "{}", settled.decision.reason);
}

#[test]
fn nodes_are_looked_at_after_a_kill_and_while_they_limit_memory() {
    let mut bench = Bench::new(1);
    bench.round();
    assert!(!bench.remembered.needs_nodes(&bench.pods));
    let now = Timestamp::from_second(bench.now).unwrap();
    bench.pods[0].containers[0].oom_killed = UnixNanos::try_from(now.as_nanosecond() + 1).ok();
    assert!(bench.remembered.needs_nodes(&bench.pods));
    let before = bench.pods[0].containers[0].wanted.requests.memory.unwrap();
    bench.largest_memory = Some(before + (50 << 20));
    bench.now += 5;
    bench.round();
    assert_eq!(bench.pods[0].containers[0].wanted.requests.memory, bench.largest_memory);
    assert!(bench.remembered.needs_nodes(&bench.pods), "it would be more");
    // A larger node comes.
    bench.largest_memory = Some(64 << 30);
    bench.use_cpu(1, 200.0);
    bench.round();
    assert!(bench.pods[0].containers[0].wanted.requests.memory > Some(before + (50 << 20)));
    assert!(!bench.remembered.needs_nodes(&bench.pods));
}

#[test]
fn usage_that_no_node_or_limit_allows_changes_nothing_and_is_forgotten() {
    let mut bench = Bench::new(2);
    bench.use_cpu(2, 800.0);
    bench.round();
    let before = bench.pods.clone();
    // Without limits, only the largest node shows what cannot be true.
    bench.memory *= 1_000.0;
    bench.use_cpu(2, 800.0);
    assert!(is_heavy("shop", &bench.pods, &bench.windows));
    bench.largest_memory = Some(64 << 30);
    let lie = bench.round();
    let memory = |pods: &[SizedPod]| -> Vec<_> {
        pods.iter().map(|pod| pod.containers[0].wanted.requests.memory).collect()
    };
    assert_eq!(memory(&bench.pods), memory(&before), "{}", lie.decision.reason);
    bench.memory /= 1_000.0;
    bench.now += 3_600;
    bench.windows.forget(bench.now);
    bench.use_cpu(2, 800.0);
    assert!(!is_heavy("shop", &bench.pods, &bench.windows));
    bench.largest_memory = None;
    let truth = bench.round();
    assert_eq!(memory(&bench.pods), memory(&before), "{}", truth.decision.reason);

    let used = std::mem::take(&mut bench.memory);
    bench.now += 3_600;
    bench.windows.forget(bench.now);
    bench.use_cpu(2, 800.0);
    let none = bench.round();
    assert_eq!(memory(&bench.pods), memory(&before));
    assert!(none.decision.reason.contains("memory of app stays: 30 of 30"), "{}", none.decision.reason);
    bench.memory = used;
    for pod in &mut bench.pods {
        pod.containers[0].wanted.limits = amounts(1_800, 2 << 30);
    }
    let limited = bench.pods.clone();
    bench.memory *= 10.0;
    bench.now += 300;
    bench.use_cpu(2, 800_000.0);
    let lie = bench.round();
    assert_eq!(bench.pods, limited, "{}", lie.decision.reason);
    assert!(lie.decision.reason.contains("are invalid"), "{}", lie.decision.reason);
}

#[test]
fn after_an_hour_without_samples_the_past_is_asked_for_again() {
    let mut bench = Bench::new(2);
    bench.remembered.past_known = true;
    for (pause, is_known) in [(0, true), (1_800, true), (3_700, false)] {
        bench.now += pause;
        bench.use_cpu(2, 800.0);
        bench.round();
        assert_eq!(bench.remembered.past_known, is_known, "a pause of {pause} s");
    }
}

#[test]
fn growth_is_told_from_what_only_saves() {
    let grows = |before: Amount, decided: Amount| {
        let mut bench = Bench::new(1);
        bench.set_cpu(before);
        bench.use_cpu(1, decided as f64);
        let pods = bench.pods.clone();
        let settled = bench.settle(1, None);
        assert_eq!(settled.resizes.len(), 1, "{}", settled.decision.reason);
        let scale = berth_kube_io::scaling::WorkloadScale::of(1);
        settled.grows(&ServiceObservation {
            scale,
            pods,
            spec: None,
            largest_memory: None,
            possible_memory: None,
            signals: Vec::new(),
            success: Ok(None),
        })
    };
    assert!(grows(500, 800));
    assert!(!grows(900, 300));
}

#[test]
fn a_kill_counts_whatever_the_clock_of_its_node_says() {
    for of_node in ["2026-11-22T09:10:00Z", "2026-11-22T11:00:00Z"] {
        let mut remembered = Remembered::default();
        remembered.new_kills(&[&pod(Some(200), None)], at("2026-11-22T10:00:00Z"));
        let killed = killed_at(of_node);
        assert_eq!(remembered.new_kills(&[&killed], at("2026-11-22T10:00:15Z")).get("app"), Some(&1));
        assert!(remembered.new_kills(&[&killed], at("2026-11-22T10:00:30Z")).is_empty(), "{of_node}");
    }
}

#[test]
fn the_size_is_what_was_decided_or_what_most_pods_have() {
    let pods = [pod(Some(100), None), pod(Some(200), None), pod(Some(200), None)];
    let pods: Vec<_> = pods.iter().collect();
    let mut remembered = Remembered::default();
    assert_eq!(remembered.size_of("app", &pods, ALL_OURS).cpu_milli, 200);
    remembered.sizes.insert("app".into(), Size { cpu_milli: 700, memory_bytes: 1 });
    assert_eq!(remembered.size_of("app", &pods, ALL_OURS).cpu_milli, 700);
    let ours = PerResource { cpu: false, memory: true };
    assert_eq!(remembered.size_of("app", &pods, ours), Size { cpu_milli: 200, memory_bytes: 1 });
}

/// A service, its pods and their usage, across rounds.
struct Bench {
    plan: ScalingPlan,
    pods: Vec<SizedPod>,
    others: InTheWay,
    remembered: Remembered,
    windows: Windows,
    /// Usage of each pod, in bytes.
    memory: f64,
    largest_memory: Option<i64>,
    now: i64,
}

impl Bench {
    fn new(pods: usize) -> Bench {
        let plan = ScalingPlan {
            settings: ScalingSettings {
                vertical: Vertical { history_s: 0, ..Vertical::default() },
                ..ScalingSettings::default()
            },
            estimator: None,
            signals: Vec::new(),
            schedule: Vec::new(),
            success: None,
            needs_success: false,
            behavior: Default::default(),
            dry_run: false,
        };
        let pod = |at: usize| {
            let (uid, name) = (format!("u{at}").into(), format!("web-{at}").into());
            SizedPod { uid, name, ..pod(Some(900), None) }
        };
        Bench {
            plan,
            pods: (0..pods).map(pod).collect(),
            others: InTheWay::default(),
            remembered: Remembered::default(),
            windows: Windows::new(std::time::Duration::from_secs(15)),
            memory: 930e6,
            largest_memory: None,
            now: 1_700_000_000,
        }
    }

    /// Almost four minutes of this CPU usage of the first `pods` pods.
    fn use_cpu(&mut self, pods: usize, milli: f64) {
        for _ in 0..15 {
            self.now += 15;
            for pod in &self.pods[..pods] {
                let key = ("shop", &*pod.name, "app");
                let point = |value| Point { time_s: self.now, value };
                self.windows.add(key, MeasuredKind::Cpu, point(milli));
                self.windows.add(key, MeasuredKind::Memory, point(self.memory));
            }
        }
    }

    fn settle(&mut self, replicas: u32, signal: Option<Point>) -> Settled {
        self.settle_with(replicas, vec![Ok(signal)])
    }

    fn settle_with(&mut self, replicas: u32, signals: Vec<Result<Option<Point>, String>>) -> Settled {
        let service = ScaledService {
            namespace: "shop".into(),
            name: "web".into(),
            uid: "s".into(),
            generation: 1,
            created: 0,
            target: berth_rightsizing::recommend::OwnerRef {
                api_version: "apps/v1".into(),
                kind: "Deployment".into(),
                name: "web".into(),
            },
            plan: Ok(self.plan.clone()),
            status: None,
        };
        let scale = berth_kube_io::scaling::WorkloadScale::of(replicas);
        let pods = self.pods.clone();
        let look = ServiceObservation {
            scale,
            pods,
            spec: None,
            largest_memory: self.largest_memory,
            possible_memory: self.largest_memory,
            signals,
            success: Ok(None),
        };
        let now = Timestamp::from_second(self.now).unwrap();
        let plan = (&service, &self.plan);
        self.remembered.settle(plan, &look, &self.others, &self.windows, now)
    }

    /// Runs one round and executes its decision.
    fn round(&mut self) -> Settled {
        let settled = self.settle(self.pods.len().try_into().unwrap(), None);
        for resize in &settled.resizes {
            let container = &mut self.pods[resize.pod].containers[0];
            container.wanted = resize.changes[0].applied_to(container.wanted);
        }
        settled
    }

    /// Sets the CPU request, as another client would.
    fn set_cpu(&mut self, milli: Amount) {
        self.pods.iter_mut().for_each(|pod| pod.containers[0].wanted.requests.cpu = Some(milli));
    }

    fn cpu(&self) -> Vec<Amount> {
        self.pods.iter().filter_map(|pod| pod.containers[0].wanted.requests.cpu).collect()
    }
}

#[test]
fn what_is_not_ours_to_size_is_never_set_back() {
    type Give = fn(&mut Bench);
    let cases: [Give; 3] = [
        |bench| bench.plan.settings.vertical.cpu = false,
        |bench| bench.others.replicas = Some("HorizontalPodAutoscaler web".into()),
        |bench| {
            let vertical = bench.plan.settings.vertical.clone();
            let off = Vertical { cpu: false, memory: false, ..vertical };
            bench.plan.settings.containers.insert("app".into(), off);
        },
    ];
    for give in cases {
        let mut bench = Bench::new(2);
        bench.use_cpu(2, 300.0);
        bench.round();
        assert_eq!(bench.cpu(), [316, 316]);
        give(&mut bench);
        bench.round();
        // A rollout with another template.
        bench.set_cpu(2_000);
        bench.use_cpu(2, 300.0);
        bench.round();
        assert_eq!(bench.cpu(), [2_000, 2_000]);
    }
}

#[test]
fn sizes_from_before_somebody_else_had_them_do_not_come_back() {
    let mut bench = Bench::new(2);
    bench.use_cpu(2, 300.0);
    bench.round();
    bench.others.sizes = Some("VerticalPodAutoscaler web".into());
    bench.round();
    bench.set_cpu(2_000);
    bench.round();
    bench.others.sizes = None;
    // No samples since then.
    bench.now += 3_600;
    let settled = bench.round();
    assert_eq!(bench.cpu(), [2_000, 2_000], "{}", settled.decision.reason);
    // One failed read drops nothing.
    bench.use_cpu(2, 400.0);
    bench.round();
    bench.others =
        InTheWay { sizes: Some("perhaps".into()), replicas: Some("perhaps".into()), perhaps: true };
    bench.round();
    bench.others = InTheWay::default();
    assert_eq!(bench.remembered.sizes["app"].cpu_milli, 422);
}

#[test]
fn nothing_shrinks_by_the_samples_of_some_of_the_pods() {
    let mut bench = Bench::new(4);
    bench.memory = 400e6;
    bench.use_cpu(3, 100.0);
    let settled = bench.round();
    assert_eq!(bench.cpu(), [900; 4]);
    assert!(settled.decision.reason.contains("no recent samples of 1 of 4"), "{}", settled.decision.reason);
    assert!(settled.decision.reason.contains("memory of app stays"), "{}", settled.decision.reason);
    // More is needed regardless of the last decision.
    let mut bench = Bench::new(4);
    bench.set_cpu(500);
    bench.use_cpu(3, 800.0);
    bench.round();
    assert_eq!(bench.cpu(), [800; 4]);
}

#[test]
fn a_resize_that_a_kubelet_puts_off_or_refuses_is_told_and_not_asked_for_again() {
    let mut bench = Bench::new(3);
    bench.set_cpu(600);
    bench.pods[0].resize = Some(Resizing::Deferred);
    bench.pods[1].resize = Some(Resizing::Infeasible);
    bench.use_cpu(3, 800.0);
    let settled = bench.round();
    assert_eq!(settled.resizes.iter().map(|it| it.pod).collect::<Vec<_>>(), [2]);
    let told = settled.held.unwrap();
    assert!(told.contains("(Deferred)") && told.contains("1 pods: their nodes can never"), "{told}");
    bench.now += bench.plan.settings.vertical.hold_s;
    bench.use_cpu(3, 200.0);
    assert_eq!(bench.round().resizes.len(), 3, "less is asked for");
}

mod garbage {
    use proptest::prelude::*;

    use super::*;
    use berth_rightsizing::scaling::Horizontal;
    use berth_rightsizing::scaling::behavior::{self, Behavior, DirectionRules, RatePolicy, Select};

    fn any_text() -> impl Strategy<Value = String> {
        let time =
            || prop_oneof![Just(i64::MIN), Just(i64::MAX), any::<i64>(), 1_699_990_000_i64..1_700_010_000];
        let changes = prop::collection::vec((time(), prop_oneof![any::<i64>(), -9_i64..9]), 0..300);
        let sizes = (any::<i64>(), any::<i64>());
        (changes, sizes, time(), time(), prop::option::of(any::<u32>())).prop_map(
            |(changes, (cpu, memory), grown, killed, replicas)| {
                serde_json::json!({
                    "memory": {"replicas": replicas, "grownS": grown, "scaledS": killed},
                    "history": {"changes": changes},
                    "sizes": {"app": {"cpuMilli": cpu, "memoryBytes": memory}},
                    "killedUntil": killed,
                })
                .to_string()
            },
        )
    }

    fn any_pod() -> impl Strategy<Value = SizedPod> {
        let amount = || prop::option::of(prop_oneof![0_i64..3_000, Just(i64::MAX)]);
        let flags = any::<(bool, bool, bool)>();
        (0_usize..5, amount(), amount(), amount(), flags, prop::option::of(any::<i64>())).prop_map(
            |(at, cpu, memory, limit, (is_ready, is_deleting, pending), oom_killed)| {
                let mut pod = SizedPod {
                    uid: format!("u{at}").into(),
                    name: format!("web-{at}").into(),
                    is_ready,
                    is_deleting,
                    resize: pending.then_some(Resizing::Deferred),
                    ..pod(cpu, limit)
                };
                pod.containers[0].wanted.requests.memory = memory;
                pod.containers[0].oom_killed = oom_killed;
                pod
            },
        )
    }

    proptest! {
        /// With any status, pods and samples: replicas stay within their bounds or the existing number, never
        /// become 0, and pods are resized only within bounds.
        #[test]
        fn no_status_and_no_pod_brings_a_service_beyond_its_bounds(
            text in any_text(),
            rounds in prop::collection::vec(
                (prop::collection::vec(any_pod(), 0..6), 0_u32..20, -100_000_i64..100_000, any::<f64>()), 1..5),
        ) {
            let mut bench = Bench::new(0);
            bench.remembered = serde_json::from_str(&text).unwrap();
            let (min, max) = (2, 8);
            let horizontal = Horizontal { setpoint: 10.0, min_replicas: min, max_replicas: max, ..Horizontal::default() };
            bench.plan.settings.horizontal = Some(horizontal);
            let policy = RatePolicy { amount: behavior::StepAmount::Percent(u32::MAX), period_s: i64::MAX };
            let rules = DirectionRules { stabilization_s: 60, select: Select::Max, policies: vec![policy] };
            bench.plan.behavior = Behavior { up: Some(rules.clone()), down: Some(rules) };
            for (pods, replicas, later, signal) in rounds {
                bench.now += later;
                bench.pods = pods;
                let signal = Point { time_s: bench.now, value: signal };
                let settled = bench.settle(replicas, Some(signal));
                let allowed = settled.allowed.replicas;
                prop_assert!(allowed <= replicas.max(max) && allowed >= replicas.min(min));
                prop_assert_eq!(allowed == 0, replicas == 0);
                let vertical = &bench.plan.settings.vertical;
                for change in settled.resizes.iter().flat_map(|resize| &resize.changes) {
                    if let Some(cpu) = change.requests.cpu {
                        prop_assert_eq!(vertical.cpu_bounds.clamp(cpu), cpu);
                    }
                    if let Some(memory) = change.requests.memory {
                        prop_assert_eq!(vertical.memory_bounds.clamp(memory), memory);
                    }
                }
            }
        }
    }
}

/// A service whose replicas follow the share of throttling and the length of a queue.
fn with_two_signals(pods: usize) -> Bench {
    let mut bench = Bench::new(pods);
    let throttling = Query::Signal(berth_prometheus::SignalKind::CpuThrottling);
    let queue = Query::Custom("queue".into());
    bench.plan.signals = vec![
        PlannedSignal { query: throttling, target: 0.1, activation: None },
        PlannedSignal { query: queue, target: 30.0, activation: Some(2.0) },
    ];
    let vertical = Vertical { cpu: false, memory: false, history_s: 0, ..Vertical::default() };
    bench.plan.settings = ScalingSettings {
        vertical,
        horizontal: Some(Horizontal { setpoint: 0.1, max_replicas: 20, ..Horizontal::default() }),
        ..ScalingSettings::default()
    };
    bench
}

#[test]
fn the_signal_that_is_highest_relative_to_its_target_wins_and_none_is_removed_while_one_is_unknown() {
    let decided = |throttling: Option<f64>, queue: Result<Option<f64>, String>| {
        let mut bench = with_two_signals(4);
        bench.use_cpu(4, 300.0);
        let at = |value| Point { time_s: bench.now, value };
        let signals = vec![Ok(throttling.map(at)), queue.map(|queue| queue.map(at))];
        bench.settle_with(10, signals).decision
    };
    assert!(decided(Some(0.01), Ok(Some(60.0))).replicas > 10, "the queue is twice as long as it should be");
    assert!(decided(Some(0.2), Ok(Some(0.0))).replicas > 10);
    assert!(decided(Some(0.01), Ok(Some(1.0))).replicas < 10);
    assert!(decided(None, Ok(Some(60.0))).replicas > 10, "growth needs one signal");
    for unknown in [Ok(None), Err("no answer".to_owned()), Ok(Some(f64::NAN))] {
        let decision = decided(Some(0.01), unknown);
        assert_eq!(decision.replicas, 10);
        assert!(decision.reason.contains("1 of 2 signals are unknown"), "{}", decision.reason);
    }
}

#[test]
fn bounds_follow_the_schedule() {
    // A Thursday, 22:13 UTC.
    let now = 1_700_000_000 - 5 * 86_400;
    let bounds = |window: &str, min_replicas: u32, max_replicas: u32| ScheduledBounds {
        window: window.parse().unwrap(),
        min_replicas,
        max_replicas,
    };
    let replicas = |schedule: Vec<ScheduledBounds>| {
        let mut bench = with_two_signals(2);
        bench.now = now;
        bench.plan.schedule = schedule;
        bench.settle_with(2, vec![Ok(None), Ok(None)]).decision.replicas
    };
    assert_eq!(replicas(vec![]), 2);
    assert_eq!(replicas(vec![bounds("Mon-Fri 22:00-23:00", 6, 20)]), 6);
    assert_eq!(replicas(vec![bounds("Mon-Fri 22:00-23:00", 6, 20), bounds("Thu 00:00-24:00", 9, 9)]), 9);
    assert_eq!(replicas(vec![bounds("Mon-Fri 21:00-22:00", 6, 20), bounds("Sun 00:00-24:00", 9, 9)]), 2);
}

#[test]
fn an_idle_service_has_no_replicas_until_there_is_work() {
    let mut bench = with_two_signals(1);
    if let Some(horizontal) = &mut bench.plan.settings.horizontal {
        *horizontal = Horizontal { to_zero: true, hold_s: 60, ..horizontal.clone() };
    }
    let settle = |bench: &mut Bench, replicas: u32, queue: Option<f64>| {
        bench.now += 15;
        let at = |value| Point { time_s: bench.now, value };
        let signals = vec![Ok((replicas > 0).then(|| at(0.0))), Ok(queue.map(at))];
        bench.settle_with(replicas, signals).decision
    };
    for _ in 0..4 {
        assert_eq!(settle(&mut bench, 1, Some(2.0)).replicas, 1, "not for long enough");
    }
    // For so long as it is unknown, nothing is known of a pause.
    assert_eq!(settle(&mut bench, 1, None).replicas, 1);
    for _ in 0..4 {
        assert_eq!(settle(&mut bench, 1, Some(2.0)).replicas, 1);
    }
    let decision = settle(&mut bench, 1, Some(1.0));
    assert_eq!(decision.replicas, 0, "{}", decision.reason);
    bench.pods.clear();
    for queue in [Some(1.0), None] {
        assert_eq!(settle(&mut bench, 0, queue).replicas, 0);
    }
    let decision = settle(&mut bench, 0, Some(3.0));
    assert_eq!((decision.replicas, decision.replicas_changed), (1, true), "{}", decision.reason);
    // Where the schedule wants some, it does not wait for work.
    let all_week = "Mon-Sun 00:00-24:00".parse().unwrap();
    bench.plan.schedule = vec![ScheduledBounds { window: all_week, min_replicas: 4, max_replicas: 9 }];
    let decision = settle(&mut bench, 0, Some(0.0));
    assert_eq!(decision.replicas, 4, "{}", decision.reason);
    bench.plan.schedule.clear();
    // Who may not have 0 replicas was switched off by somebody.
    bench.plan.settings.horizontal = Some(Horizontal { setpoint: 0.1, ..Horizontal::default() });
    let decision = settle(&mut bench, 0, Some(3.0));
    assert!(decision.replicas == 0 && decision.reason.contains("switched off"), "{}", decision.reason);
}

#[test]
fn a_service_whose_pods_wait_for_room_gets_replicas_instead_of_larger_ones() {
    let grown = |waits: Option<Resizing>| {
        let mut bench = Bench::new(2);
        let horizontal = Horizontal { setpoint: 0.1, max_replicas: 20, ..Horizontal::default() };
        bench.plan.settings.horizontal = Some(horizontal);
        bench.use_cpu(2, 800.0);
        bench.pods[0].resize = waits;
        let decision = bench.settle(2, Some(Point { time_s: bench.now, value: 0.2 })).decision;
        (decision.replicas > 2, decision.sizes[0].1.cpu_milli > 900)
    };
    assert_eq!(grown(None), (false, true));
    assert_eq!(grown(Some(Resizing::Deferred)), (true, false));
}
