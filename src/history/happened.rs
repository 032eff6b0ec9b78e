//! What happened by itself: pods have the nodes that another scheduler gave them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::ClusterHistory;
use crate::recording::{Rerun, RunResult, RunTimes, StageTimes, longest_waits};
use berth_scheduler::dispatch::Estimator;
use berth_scheduler::recording::{Input, Opening};
use berth_scheduler::scheduler::SchedulerConfig;

struct Known {
    name: Arc<str>,
    arrived: Duration,
    placed: Option<Duration>,
    is_gone: bool,
}

/// Returns what became of the pods and nodes, and how long pods waited, by name.
pub fn as_it_happened(history: &ClusterHistory) -> (RunResult, BTreeMap<Arc<str>, Duration>) {
    // It places nothing, and counts what is on the nodes.
    let config = SchedulerConfig {
        scheduler_names: [].into(),
        objects: history.objects.clone(),
        ..SchedulerConfig::default()
    };
    let opening = Opening::new(config.clone(), Vec::new(), Estimator::default());
    let mut observer = Rerun::begin(config, &[], &opening, RunTimes::default().into());
    let mut pods: HashMap<Arc<str>, Known> = HashMap::new();
    let mut now = Duration::ZERO;
    for entry in &history.entries {
        now = Duration::from_nanos(entry.at);
        observer.hear(entry);
        match &entry.input {
            Input::Pod(pod) => match (&pod.node_name, pods.get_mut(&pod.uid)) {
                (None, None) if !Rerun::is_tied(pod) => {
                    let name = format!("{}/{}", pod.namespace, pod.name).into();
                    pods.insert(pod.uid.clone(), Known { name, arrived: now, placed: None, is_gone: false });
                }
                (Some(_), Some(known)) => known.placed = known.placed.or(Some(now)),
                _ => {}
            },
            Input::PodGone(uid) => {
                if let Some(known) = pods.get_mut(uid) {
                    known.is_gone = true;
                }
            }
            _ => {}
        }
    }
    let (seen, _) = observer.finish();
    let placed = || {
        pods.values().filter_map(|known| Some((known.placed?.saturating_sub(known.arrived)).as_secs_f64()))
    };
    let wait = StageTimes::of(placed());
    let result = RunResult {
        pods: pods.len(),
        placed: placed().count(),
        waiting: pods.values().filter(|known| known.placed.is_none() && !known.is_gone).count(),
        wait_median: wait.median,
        wait_p99: wait.p99,
        wait_max: wait.longest,
        preempted: None,
        ..seen
    };
    let waits = pods.into_values().filter(|known| known.placed.is_some() || !known.is_gone);
    let waits = waits.map(|known| (known.name, known.placed.unwrap_or(now).saturating_sub(known.arrived)));
    (result, longest_waits(waits))
}
