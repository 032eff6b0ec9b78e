//! Pods come and go; their samples stay with the workload.

use std::sync::Arc;

use super::{DAY, HOUR, MI, MINUTE, SECOND, T0};
use crate::recommend::container::{MemoryRules, Refused};
use crate::recommend::feed::feed;
use crate::recommend::settings::RecommenderSettings;
use crate::recommend::store::{Store, StoreCounts, Workload};
use crate::usage::{Sample, UsageKind};

fn workload(n: usize) -> Workload {
    Workload { namespace: "shop".into(), kind: "Deployment".into(), name: format!("web-{n}").into() }
}

fn store() -> Store {
    Store::new(RecommenderSettings::default()).unwrap()
}

/// A pod runs for an hour, with a sample of each resource every 10 minutes, and ends.
fn live(store: &mut Store, uid: &Arc<str>, workload: &Workload, start: i64) {
    store.pod_runs(uid, workload);
    for n in 0..6 {
        let time = start + n * 10 * MINUTE;
        store.add_cpu(uid, "app", 100 + 20 * n, time, time).unwrap();
        store.add_memory(uid, "app", (200 + 10 * n) * MI, time, time).unwrap();
    }
    store.pod_ended(uid);
}

#[test]
fn fifty_thousand_pods_of_a_thousand_rollouts_leave_no_more_than_the_first() {
    let mut store = store();
    let rollout = |store: &mut Store, n: usize| {
        for pod in 0..50 {
            let uid: Arc<str> = format!("{n}-{pod}").into();
            live(store, &uid, &workload(n % 100), T0 + n as i64 * MINUTE);
        }
    };
    for n in 0..100 {
        rollout(&mut store, n);
    }
    let (counts, bytes) = (store.counts(), store.aggregate_bytes());
    assert_eq!(counts, StoreCounts { workloads: 100, aggregates: 100, pods: 0, containers: 0 });
    for n in 100..1000 {
        rollout(&mut store, n);
    }
    assert_eq!(store.counts(), counts);
    assert_eq!(store.aggregate_bytes(), bytes);
    let aggregate = store.aggregate(&workload(0), "app").unwrap();
    assert_eq!(aggregate.cpu_span.count, 10 * 50 * 6);
}

#[test]
fn containers_of_a_workload_share_an_aggregate_and_have_windows_of_their_own() {
    let (mut store, workload) = (store(), workload(0));
    for (uid, mib) in [("a", 300), ("b", 500)] {
        store.pod_runs(&uid.into(), &workload);
        store.add_memory(uid, "app", mib * MI, T0, T0).unwrap();
    }
    store.add_memory("a", "app", 400 * MI, T0 + MINUTE, T0 + MINUTE).unwrap();
    assert_eq!(store.counts(), StoreCounts { workloads: 1, aggregates: 1, pods: 2, containers: 2 });
    let buckets: Vec<_> = store.aggregate(&workload, "app").unwrap().memory.weights().collect();
    assert_eq!(buckets.len(), 2, "one peak each: {buckets:?}");
    assert_eq!(buckets[0].1, buckets[1].1);
}

#[test]
fn samples_of_unknown_pods_and_from_the_future_are_refused() {
    let (mut store, workload) = (store(), workload(0));
    assert_eq!(store.add_cpu("a", "app", 100, T0, T0), Err(Refused::Unknown));
    store.pod_runs(&"a".into(), &workload);
    assert_eq!(store.add_cpu("a", "app", 100, T0 + HOUR, T0), Err(Refused::Future));
    assert_eq!(store.add_memory("a", "app", 100, i64::MAX, T0), Err(Refused::Future));
    assert_eq!(store.record_oom("a", "app", 100, T0 + HOUR, T0), Err(Refused::Future));
    assert_eq!(store.counts().aggregates, 0);
    assert_eq!(store.add_cpu("a", "app", 100, T0 + MINUTE, T0), Ok(()), "clocks differ a little");
}

#[test]
fn a_clock_may_be_five_minutes_ahead_and_no_more() {
    let (mut store, workload) = (store(), workload(0));
    store.pod_runs(&"a".into(), &workload);
    assert_eq!(store.add_memory("a", "app", 100, T0 + 5 * MINUTE + 1, T0), Err(Refused::Future));
    assert_eq!(store.add_memory("a", "app", 100, T0 + 5 * MINUTE, T0), Ok(()));
}

#[test]
fn samples_of_prometheus_are_cores_and_bytes_and_without_a_valid_one_there_is_no_aggregate() {
    let (mut store, workload) = (store(), workload(0));
    store.pod_runs(&"a".into(), &workload);
    let mut fed = |kind, pod, value| {
        let (mut outcomes, sample) = (Vec::new(), Sample { at: (T0 / SECOND) as f64, value });
        feed(&mut store, kind, (pod, "app"), &[sample], T0, |_, outcome| outcomes.push(outcome));
        (outcomes[0], store.counts().aggregates)
    };
    assert_eq!(fed(UsageKind::Cpu, "a", -1.0), (Err(Refused::Negative), 0));
    assert_eq!(fed(UsageKind::Cpu, "a", f64::NAN), (Err(Refused::Negative), 0));
    assert_eq!(fed(UsageKind::Cpu, "b", 0.25), (Err(Refused::Unknown), 0));
    assert_eq!(fed(UsageKind::Cpu, "a", 0.25), (Ok(()), 1));
    assert_eq!(fed(UsageKind::Memory, "a", 1e9), (Ok(()), 1));
    let aggregate = store.aggregate(&workload, "app").unwrap();
    let (cpu, memory) = (aggregate.cpu.percentile(1.0), aggregate.memory.percentile(1.0));
    assert!((0.25..0.3).contains(&cpu) && (1e9..1.1e9).contains(&memory), "{cpu} and {memory}");
}

#[test]
fn a_pod_that_changes_its_workload_begins_anew() {
    let mut store = store();
    store.pod_runs(&"a".into(), &workload(0));
    store.add_cpu("a", "app", 100, T0, T0).unwrap();
    store.pod_runs(&"a".into(), &workload(0));
    assert_eq!(store.add_cpu("a", "app", 100, T0, T0), Err(Refused::Stale), "it is known");
    store.pod_runs(&"a".into(), &workload(1));
    store.add_cpu("a", "app", 100, T0, T0).unwrap();
    assert_eq!(store.counts(), StoreCounts { workloads: 2, aggregates: 2, pods: 1, containers: 1 });
}

#[test]
fn what_does_not_exist_any_more_is_forgotten() {
    let mut store = store();
    for n in 0..3 {
        let uid: Arc<str> = format!("{n}").into();
        store.pod_runs(&uid, &workload(n));
        for container in ["app", "sidecar"] {
            store.add_cpu(&uid, container, 100, T0 + n as i64 * DAY, T0 + n as i64 * DAY).unwrap();
        }
    }
    store.forget(&workload(2), |container| container == "app");
    assert_eq!(store.counts().aggregates, 5);
    store.retain_pods(|uid| uid == "2");
    assert_eq!(store.counts().pods, 1);
    store.expire(T0 + 9 * DAY);
    assert_eq!(store.counts(), StoreCounts { workloads: 1, aggregates: 1, pods: 1, containers: 2 });
    assert_eq!(store.workloads().collect::<Vec<_>>(), [&workload(2)]);
    store.pod_ended("2");
    store.pod_ended("2");
    store.forget(&workload(2), |_| false);
    assert_eq!(store.counts(), StoreCounts { workloads: 0, aggregates: 0, pods: 0, containers: 0 });
}

#[test]
fn a_vpa_can_set_the_window_of_a_container() {
    let (mut store, workload) = (store(), workload(0));
    let rules = MemoryRules { interval_ns: HOUR, interval_count: 2, oom_bump_ratio: 2.0, oom_min_bump: 0 };
    store.set_rules(&workload, "app", Some(rules), T0);
    store.pod_runs(&"a".into(), &workload);
    store.add_memory("a", "app", 100 * MI, T0, T0).unwrap();
    store.record_oom("a", "app", 100 * MI, T0 + MINUTE, T0 + MINUTE).unwrap();
    store.pod_ended("a");
    let (status, _) = store.save(&workload, "app", T0 + HOUR).unwrap();
    assert_eq!(status.memory_histogram.bucket_weights.keys().collect::<Vec<_>>(), [&14], "200 MiB");
    store.expire(T0 + 2 * HOUR);
    assert_eq!(store.counts().aggregates, 1, "the kill was a sample");
    store.expire(T0 + 2 * HOUR + MINUTE);
    assert_eq!(store.counts().aggregates, 0);
}

#[test]
fn a_restart_goes_on_where_the_last_process_stopped() {
    let (mut before, workload) = (store(), workload(0));
    for uid in ["a", "b"] {
        before.pod_runs(&uid.into(), &workload);
        for n in 0..600 {
            let time = T0 + n * MINUTE;
            before.add_cpu(uid, "app", 100 + n % 50, time, time).unwrap();
            before.add_memory(uid, "app", (200 + n / 10) * MI, time, time).unwrap();
        }
    }
    let now = T0 + 600 * MINUTE;
    let mut after = store();
    let (status, windows) = before.save(&workload, "app", now).unwrap();
    after.load(&workload, "app", &status, &windows, now).unwrap();
    assert_eq!(after.counts(), before.counts());
    for store in [&mut before, &mut after] {
        store.add_memory("a", "app", 300 * MI, now, now).unwrap();
    }
    let weight = |store: &Store| store.aggregate(&workload, "app").unwrap().memory.total_weight();
    assert!((weight(&after) / weight(&before) - 1.0).abs() < 1e-9);
    let target = |store: &Store| store.aggregate(&workload, "app").unwrap().memory.percentile(0.9);
    assert_eq!(target(&after), target(&before));
}

#[test]
fn a_checkpoint_cannot_claim_a_pod_of_another_workload() {
    let mut store = store();
    store.pod_runs(&"a".into(), &workload(0));
    store.add_memory("a", "app", 100 * MI, T0, T0).unwrap();
    let (status, windows) = store.save(&workload(0), "app", T0 + MINUTE).unwrap();
    store.load(&workload(1), "app", &status, &windows, T0 + MINUTE).unwrap();
    assert_eq!(
        store.add_memory("a", "app", 200 * MI, T0 - 1, T0),
        Err(Refused::Stale),
        "it is known as before"
    );
    assert_eq!(store.counts(), StoreCounts { workloads: 2, aggregates: 2, pods: 1, containers: 1 });
}

#[test]
fn a_bad_checkpoint_leaves_nothing_behind() {
    let (mut store, workload) = (store(), workload(0));
    let error = store.load(&workload, "app", &Default::default(), &Default::default(), T0).unwrap_err();
    assert_eq!(error.to_string(), "unsupported checkpoint version ``, only `v3` can be read");
    assert_eq!(store.counts().workloads, 0);
}
