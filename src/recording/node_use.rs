//! How full the nodes are, over time.

use std::time::Duration;

use berth_scheduler::inventory::Row;
use berth_scheduler::scheduler::Scheduler;

/// Shortest time between two measurements of the nodes.
const SAMPLE_EVERY: Duration = Duration::from_millis(100);

/// Sums of measurements, each times the seconds until the next one; without nodes nothing is measured.
#[derive(Debug, Default)]
pub(super) struct NodeUse {
    last: Option<(Duration, NodeMeans)>,
    seconds: f64,
    sums: NodeMeans,
}

/// Means over the time in which there were nodes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct NodeMeans {
    pub nodes: f64,
    /// Requested share of the allocatable CPU of all nodes.
    pub cpu: f64,
    pub memory: f64,
    /// Number of nodes with pods.
    pub in_use: f64,
    /// Share of the free CPU that is on nodes without pods.
    pub on_empty: f64,
}

impl NodeUse {
    /// Measures the nodes, if it is time.
    pub fn sample(&mut self, scheduler: &Scheduler, now: Duration) {
        if self.last.is_some_and(|(since, _)| now < since + SAMPLE_EVERY)
            || scheduler.inventory().node_count() == 0
        {
            return;
        }
        if let Some((since, measured)) = self.last {
            self.add(now.saturating_sub(since).as_secs_f64(), measured);
        }
        self.last = Some((now, NodeUse::measured(scheduler)));
    }

    fn add(&mut self, seconds: f64, measured: NodeMeans) {
        let NodeMeans { nodes, cpu, memory, in_use, on_empty } = measured;
        let sums = &mut self.sums;
        self.seconds += seconds;
        sums.nodes += nodes * seconds;
        sums.cpu += cpu * seconds;
        sums.memory += memory * seconds;
        sums.in_use += in_use * seconds;
        sums.on_empty += on_empty * seconds;
    }

    fn measured(scheduler: &Scheduler) -> NodeMeans {
        let rows = || scheduler.inventory().rows().filter(|row| row.node.is_some());
        let sum = |of: &dyn Fn(&Row) -> i64| rows().map(|row| of(row) as f64).sum::<f64>();
        let share = |part: f64, of: f64| if of > 0.0 { part / of } else { 0.0 };
        let free = |row: &Row| (row.allocatable.cpu_milli - row.requested.cpu_milli).max(0);
        let is_empty = |row: &Row| row.requested.pods == 0;
        NodeMeans {
            nodes: scheduler.inventory().node_count() as f64,
            cpu: share(sum(&|row| row.requested.cpu_milli), sum(&|row| row.allocatable.cpu_milli)),
            memory: share(sum(&|row| row.requested.memory), sum(&|row| row.allocatable.memory)),
            in_use: sum(&|row| i64::from(!is_empty(row))),
            on_empty: share(sum(&|row| if is_empty(row) { free(row) } else { 0 }), sum(&free)),
        }
    }

    pub fn means(&self) -> NodeMeans {
        let mean = |sum: f64| if self.seconds > 0.0 { sum / self.seconds } else { 0.0 };
        let NodeMeans { nodes, cpu, memory, in_use, on_empty } = self.sums;
        NodeMeans {
            nodes: mean(nodes),
            cpu: mean(cpu),
            memory: mean(memory),
            in_use: mean(in_use),
            on_empty: mean(on_empty),
        }
    }
}
