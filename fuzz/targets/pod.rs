//! A scheduler that receives an arbitrary decoded pod.

use std::sync::Arc;
use std::time::Duration;

use berth_model::{Amounts, Node, Pod};
use berth_scheduler::dispatch::Estimator;
use berth_scheduler::placement::Binding;
use berth_scheduler::scheduler::{Requester, Scheduler, SchedulerConfig};

/// Checks that the scheduler accepts any pod, reviews a binding of it, and stays consistent.
pub fn schedule(pod: &Pod, binding: &Binding) {
    let now = Duration::ZERO;
    let config = SchedulerConfig {
        scheduler_names: [Arc::from("berth")].into(),
        knows_others: true,
        ..SchedulerConfig::default()
    };
    let mut scheduler = Scheduler::new(config, Estimator::default());
    let allocatable = Amounts { cpu_milli: 4_000, memory: 1 << 30, pods: 110, ..Amounts::default() };
    scheduler.apply_node(Node { name: "n".into(), allocatable, ..Node::default() });
    scheduler.apply_pod(pod.clone(), now);
    scheduler.review(binding, Some(pod), Some(now), Requester::Other);
    consistent(&scheduler);
    scheduler.delete_pod(&pod.uid);
    consistent(&scheduler);
}

fn consistent(scheduler: &Scheduler) {
    assert_eq!(scheduler.check(), []);
    assert_eq!(scheduler.ledger().consistency_check(), []);
}
