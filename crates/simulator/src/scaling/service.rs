//! Model of one service in steps of a second: fluid queues in front of its replicas, and a queueing formula within the second.
//!
//! Load is spread evenly over ready replicas. They have the same size, except for laggards: replicas whose node has no room, or
//! refused to let them grow. Excess work stays as a backlog; the part that would wait longer than the timeout fails. Requests of a
//! removed replica are served by the remaining ones.

use std::collections::VecDeque;

use super::latency::{Latencies, Wait};
use super::load::SimulatedService;
use super::signal::Shown;
use berth_rightsizing::scaling::Size;

/// Share of the replicas that are on the same node, or refuse together.
const LAGGING: u32 = 3;
/// Time for which a node refuses to let its replicas grow, in seconds.
const REFUSED_S: u32 = 3_600;

/// Assumptions for every service.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ServiceAssumptions {
    /// Seconds from the decision, or an OOM kill, until the replica is ready.
    pub startup_s: u32,
    /// Seconds from the decision until an in-place resize is complete.
    pub resize_s: u32,
    /// Ratio of CPU limits to requests. Memory limits equal the requests.
    pub burst: f64,
    /// Requests that wait longer fail.
    pub timeout_s: f64,
    /// Share of time in which the node of a third of the replicas is full: neighbours leave them no CPU beyond their requests, and
    /// growth is deferred.
    pub full_nodes: f64,
    /// Share of growths that a third of the replicas refuses for an hour.
    pub refused: f64,
}

/// Load on a service in one second.
#[derive(Debug, Clone, Copy)]
pub struct Arrivals {
    /// Expected requests per second.
    pub rate: f64,
    /// Requests that arrived.
    pub requests: f64,
    /// Their CPU time, in seconds.
    pub work_s: f64,
    /// Extra memory usage of all pods, as a share of their idle usage.
    pub memory_noise: f64,
    /// Whether the node of some replicas is full.
    pub full_node: bool,
}

impl Arrivals {
    fn part(self, share: f64) -> Self {
        Self { rate: self.rate * share, requests: self.requests * share, work_s: self.work_s * share, ..self }
    }
}

/// Replicas of equal size, and what they did in a second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Group {
    pub pods: u32,
    /// CPU that one of them can use.
    pub cores: f64,
    /// By all of them.
    pub used_cores: f64,
    /// Of one replica.
    pub memory_bytes: f64,
}

/// Result of one second.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Second {
    pub completed: f64,
    pub failed: f64,
    pub killed: u32,
    /// The last are laggards.
    pub groups: [Group; 2],
    pub shown: Shown,
}

impl Second {
    pub fn used_cores(&self) -> f64 {
        self.groups.iter().map(|group| group.used_cores).sum()
    }
}

/// Replicas that keep their size while others grow.
#[derive(Debug, Clone, Copy)]
struct Laggards {
    /// The size, unless the others have less.
    size: Size,
    full_node: bool,
    refused_until: u32,
}

/// Work that waits for some replicas.
#[derive(Debug, Clone, Copy, Default)]
struct Queue {
    backlog_s: f64,
    waiting: f64,
    concurrency: f64,
}

/// Current state of the service.
#[derive(Debug, Clone)]
pub struct State {
    pub size: Size,
    pub ready: u32,
    /// Whether a histogram of latencies is observed.
    pub histogram: bool,
    /// Times at which starting replicas become ready, soonest first.
    starting: VecDeque<u32>,
    resize: Option<(u32, Size)>,
    laggards: Option<Laggards>,
    /// Of the groups of [`Second::groups`].
    queues: [Queue; 2],
}

impl State {
    pub fn new(replicas: u32, size: Size) -> Self {
        Self {
            size,
            ready: replicas,
            histogram: false,
            starting: VecDeque::new(),
            resize: None,
            laggards: None,
            queues: Default::default(),
        }
    }

    pub fn replicas(&self) -> u32 {
        self.ready + self.starting.len() as u32
    }

    /// Returns the number of requests in the backlog.
    pub fn waiting(&self) -> f64 {
        self.queues.iter().map(|queue| queue.waiting).sum()
    }

    /// Applies a scaler's decision. Unready replicas are removed first. `refused`: some replicas refuse to grow.
    pub fn scale(&mut self, now: u32, replicas: u32, size: Size, refused: bool, rules: &ServiceAssumptions) {
        for _ in self.replicas()..replicas {
            self.starting.push_back(now + rules.startup_s);
        }
        for _ in replicas..self.replicas() {
            if self.starting.pop_back().is_none() {
                self.ready -= 1;
            }
        }
        let before = self.resize.map_or(self.size, |(_, size)| size);
        if before == size {
            return;
        }
        self.resize = Some((now + rules.resize_s, size));
        if refused && (size.cpu_milli > before.cpu_milli || size.memory_bytes > before.memory_bytes) {
            self.laggards(before).refused_until = now + REFUSED_S;
        }
    }

    fn laggards(&mut self, size: Size) -> &mut Laggards {
        self.laggards.get_or_insert(Laggards { size, full_node: false, refused_until: 0 })
    }

    pub fn step(
        &mut self,
        service: &SimulatedService,
        now: u32,
        arrivals: Arrivals,
        rules: &ServiceAssumptions,
        mut latencies: Option<&mut Latencies>,
    ) -> Second {
        self.change(now, arrivals.full_node);
        let mut second = Second::default();
        second.shown.seconds = 1.0;
        let ready = self.ready;
        for (at, (pods, size, burst)) in self.groups(rules).into_iter().enumerate() {
            if pods == 0 && (at == 1 || ready > 0) {
                continue;
            }
            let part = arrivals.part(if ready == 0 { 1.0 } else { f64::from(pods) / f64::from(ready) });
            let cores = size.cpu_milli as f64 / 1000.0 * burst;
            let capacity = cores * f64::from(pods);
            let queue = &mut self.queues[at];
            let before = queue.backlog_s;
            queue.backlog_s += part.work_s;
            queue.waiting += part.requests;
            let used_cores = queue.backlog_s.min(capacity);
            let completed = queue.take(used_cores);
            let failed = queue.take((queue.backlog_s - rules.timeout_s * capacity).max(0.0));
            let backlog_s = if capacity > 0.0 { (before + queue.backlog_s) / 2.0 / capacity } else { 0.0 };
            let busy = part.rate * service.demand.mean_s / capacity.max(1e-9);
            let wait = Wait::new(&service.demand, busy, cores, backlog_s);
            let buckets = &mut second.shown.latencies;
            wait.count(&service.demand, cores, completed, |seconds, requests| {
                if self.histogram {
                    buckets.add(seconds, requests);
                }
                if let Some(latencies) = &mut latencies {
                    latencies.add(seconds, requests);
                }
            });
            if let Some(latencies) = &mut latencies {
                latencies.add(rules.timeout_s, failed);
            }
            second.shown.add(&service.demand, &wait, (f64::from(pods), cores), (part.rate, used_cores));
            second.shown.pressure = second.shown.pressure.max(wait.pressure(busy));
            let served = part.rate.min(capacity / service.demand.mean_s);
            let serving = served * (service.demand.mean_s + wait.average() - wait.backlog_s);
            let idle = service.base_memory * (1.0 + part.memory_noise);
            let mut memory_bytes = idle + service.request_memory * queue.concurrency(serving, pods);
            let mut lost = 0.0;
            if memory_bytes > size.memory_bytes as f64 && pods > 0 {
                second.killed += 1;
                memory_bytes = size.memory_bytes as f64;
                lost = queue.take(queue.backlog_s / f64::from(pods));
                self.ready -= 1;
                self.starting.push_back(now + rules.startup_s);
            }
            second.completed += completed;
            second.failed += failed + lost;
            second.groups[at] = Group { pods, cores, used_cores, memory_bytes };
        }
        second
    }

    /// Applies what happens by this time.
    fn change(&mut self, now: u32, full_node: bool) {
        let before = self.ready;
        while self.starting.front().is_some_and(|at| *at <= now) {
            self.starting.pop_front();
            self.ready += 1;
        }
        // A replica that starts has no memory of requests.
        let old = f64::from(before) / f64::from(self.ready.max(1));
        self.queues.iter_mut().for_each(|queue| queue.concurrency *= old);
        if full_node {
            self.laggards(self.size).full_node = true;
        } else if let Some(laggards) = &mut self.laggards {
            laggards.full_node = false;
        }
        if let Some((_, size)) = self.resize.take_if(|(at, _)| *at <= now) {
            self.size = size;
        }
        if self.laggards.is_some_and(|it| !it.full_node && it.refused_until <= now) {
            self.laggards = None;
        }
        let lagging = self.lagging();
        let [some, laggards] = &mut self.queues;
        if lagging == 0 {
            some.append(laggards);
        } else if lagging == self.ready {
            laggards.append(some);
        }
    }

    fn lagging(&self) -> u32 {
        if self.laggards.is_some() { (self.ready / LAGGING).max(1).min(self.ready) } else { 0 }
    }

    /// Returns the pods of each group, their size, and the ratio of usable CPU to it.
    fn groups(&self, rules: &ServiceAssumptions) -> [(u32, Size, f64); 2] {
        let lagging = self.lagging();
        let (size, burst) = match self.laggards {
            Some(Laggards { size, full_node, .. }) => (
                Size {
                    cpu_milli: size.cpu_milli.min(self.size.cpu_milli),
                    memory_bytes: size.memory_bytes.min(self.size.memory_bytes),
                },
                if full_node { 1.0 } else { rules.burst },
            ),
            None => (self.size, rules.burst),
        };
        [(self.ready - lagging, self.size, rules.burst), (lagging, size, burst)]
    }
}

impl Queue {
    fn append(&mut self, other: &mut Queue) {
        let other = std::mem::take(other);
        self.backlog_s += other.backlog_s;
        self.waiting += other.waiting;
        self.concurrency = self.concurrency.max(other.concurrency);
    }

    /// Removes work from the backlog, with its requests.
    fn take(&mut self, work_s: f64) -> f64 {
        if work_s >= self.backlog_s {
            self.backlog_s = 0.0;
            return std::mem::take(&mut self.waiting);
        }
        let requests = self.waiting * work_s / self.backlog_s;
        self.backlog_s -= work_s;
        self.waiting -= requests;
        requests
    }

    /// Returns the number of requests for which a replica has memory: those that wait and those that it serves. Memory is released within
    /// some minutes.
    fn concurrency(&mut self, serving: f64, pods: u32) -> f64 {
        const KEPT: f64 = 1.0 - 1.0 / 300.0;
        let now = (self.waiting + serving) / f64::from(pods.max(1));
        self.concurrency = now.max(self.concurrency * KEPT);
        self.concurrency
    }
}
