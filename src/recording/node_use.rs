//! How full the nodes are, over time.

use std::time::Duration;

use berth_scheduler::inventory::Row;
use berth_scheduler::scheduler::Scheduler;

/// Shortest time between two measurements of the nodes.
const SAMPLE_EVERY: Duration = Duration::from_millis(100);

/// Sums of measurements, each times the seconds since the one before; without nodes nothing is measured.
#[derive(Debug, Default)]
pub(super) struct NodeUse {
    last: Option<Duration>,
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
    /// Measures the nodes, if it is time: they count for the time since the last measurement.
    pub fn sample(&mut self, scheduler: &Scheduler, now: Duration) {
        let last = *self.last.get_or_insert(now);
        if now >= last + SAMPLE_EVERY {
            self.last = Some(now);
            self.add((now - last).as_secs_f64(), scheduler);
        }
    }

    fn add(&mut self, seconds: f64, scheduler: &Scheduler) {
        if scheduler.inventory().node_count() == 0 {
            return;
        }
        let NodeMeans { nodes, cpu, memory, in_use, on_empty } = NodeUse::measured(scheduler);
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

    /// Returns the means until now.
    pub fn means(mut self, scheduler: &Scheduler, now: Duration) -> NodeMeans {
        let rest = self.last.map_or(0.0, |last| now.saturating_sub(last).as_secs_f64());
        // If no time has passed, what is there now.
        let seconds = if self.seconds + rest > 0.0 { rest } else { 1.0 };
        self.add(seconds, scheduler);
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
