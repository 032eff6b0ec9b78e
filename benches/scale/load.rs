//! Steady churn: rolling updates that replace the pods of some workloads, kubelets that start and stop pods, and the status of nodes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::store::Store;

const TICK: Duration = Duration::from_millis(10);
/// Workloads that are updated at the same time.
const ROLLING: usize = 40;
/// A pod runs, or is gone, this long after its bind or the begin of its deletion.
const KUBELET_DELAY: Duration = Duration::from_secs(1);
/// Interval of a kubelet's updates of an unchanged node status.
const NODE_STATUS_INTERVAL: Duration = Duration::from_secs(300);
/// No more pods are created while this many wait.
const BACKLOG_MAX: usize = 20_000;

/// What the load did.
#[derive(Default)]
pub struct Counts {
    pub created: AtomicU64,
    pub deleted: AtomicU64,
    pub updates: AtomicU64,
}

/// One workload in a rolling update.
struct Rolling {
    workload: u32,
    left: u32,
}

/// Creates and deletes `rate` pods a second, until it is dropped.
pub async fn churn(store: Arc<Store>, rate: f64, counts: Arc<Counts>) {
    let size = store.size;
    let parked = store.waiting();
    let pods_each = (size.pods / size.classes).max(1);
    let mut next_workload = 0;
    let mut begin = |store: &Store| {
        // Neighbours have similar requests and the same constraint: step over them.
        let workload = next_workload * 389 % size.classes;
        next_workload += 1;
        store.roll(workload);
        counts.updates.fetch_add(1, Relaxed);
        Rolling { workload, left: pods_each }
    };
    // They are at different stages.
    let mut rolling: Vec<Rolling> = (0..ROLLING.min(size.classes as usize))
        .map(|at| Rolling { left: pods_each * (at as u32 + 1) / ROLLING as u32 + 1, ..begin(&store) })
        .collect();
    let (mut starting, mut stopping) = (VecDeque::new(), VecDeque::new());
    let (began, mut due_pods, mut due_nodes, mut slot) = (Instant::now(), 0.0, 0.0, 0);
    let mut ticks = tokio::time::interval(TICK);
    let mut last = began;
    loop {
        ticks.tick().await;
        let now = Instant::now();
        let passed = (now - last).as_secs_f64();
        last = now;
        due_pods += rate * passed;
        due_nodes += f64::from(size.nodes) / NODE_STATUS_INTERVAL.as_secs_f64() * passed;
        if store.waiting() > parked + BACKLOG_MAX {
            due_pods = 0.0;
        }
        while due_pods >= 1.0 {
            due_pods -= 1.0;
            slot = (slot + 1) % rolling.len();
            let Rolling { workload, left } = &mut rolling[slot];
            store.create_pods(*workload, 1);
            counts.created.fetch_add(1, Relaxed);
            if let Some(serial) = store.delete_oldest(*workload) {
                counts.deleted.fetch_add(1, Relaxed);
                stopping.push_back((now, serial));
            }
            *left -= 1;
            if *left == 0 {
                rolling[slot] = begin(&store);
            }
        }
        let first_node = (began.elapsed().as_secs_f64() * 1e3) as u32 * 7;
        let nodes = due_nodes as u32;
        due_nodes -= f64::from(nodes);
        store.touch_nodes((0..nodes).map(|at| (first_node + at * 97) % size.nodes));
        starting.extend(store.take_fresh().into_iter().map(|serial| (now, serial)));
        store.run_pods(take_due(&mut starting, now).into_iter());
        store.finish_deletions(take_due(&mut stopping, now).into_iter());
    }
}

fn take_due(queue: &mut VecDeque<(Instant, u32)>, now: Instant) -> Vec<u32> {
    let due = queue.iter().take_while(|(at, _)| now - *at >= KUBELET_DELAY).count();
    queue.drain(..due).map(|(_, serial)| serial).collect()
}
