//! Model of one service in steps of a second: a fluid queue in front of its replicas, and a queueing formula within
//! the second.
//!
//! Load is spread evenly over ready replicas, which all have the same size. Excess work stays as a backlog; the part
//! that would wait longer than the timeout fails. Requests of a removed replica are served by the remaining ones.

use std::collections::VecDeque;

use super::latency::{Latencies, Wait};
use super::load::SimulatedService;
use berth_rightsizing::scaling::Size;

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
}

/// Result of one second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Second {
    pub completed: f64,
    pub failed: f64,
    /// Total of all replicas.
    pub used_cores: f64,
    pub wait_p95_s: f64,
    /// Of one replica.
    pub memory_bytes: f64,
    pub killed: u32,
}

/// Current state of the service.
#[derive(Debug, Clone)]
pub struct State {
    pub size: Size,
    pub ready: u32,
    /// Times at which starting replicas become ready, soonest first.
    starting: VecDeque<u32>,
    resize: Option<(u32, Size)>,
    backlog_s: f64,
    waiting: f64,
    concurrency: f64,
}

impl State {
    pub fn new(replicas: u32, size: Size) -> Self {
        Self {
            size,
            ready: replicas,
            starting: VecDeque::new(),
            resize: None,
            backlog_s: 0.0,
            waiting: 0.0,
            concurrency: 0.0,
        }
    }

    pub fn replicas(&self) -> u32 {
        self.ready + self.starting.len() as u32
    }

    /// Returns the number of requests in the backlog.
    pub fn waiting(&self) -> f64 {
        self.waiting
    }

    /// Applies a scaler's decision. Unready replicas are removed first.
    pub fn scale(&mut self, now: u32, replicas: u32, size: Size, rules: &ServiceAssumptions) {
        for _ in self.replicas()..replicas {
            self.starting.push_back(now + rules.startup_s);
        }
        for _ in replicas..self.replicas() {
            if self.starting.pop_back().is_none() {
                self.ready -= 1;
            }
        }
        if self.resize.map_or(self.size, |(_, size)| size) != size {
            self.resize = Some((now + rules.resize_s, size));
        }
    }

    pub fn step(
        &mut self,
        service: &SimulatedService,
        now: u32,
        arrivals: Arrivals,
        rules: &ServiceAssumptions,
        latencies: Option<&mut Latencies>,
    ) -> Second {
        while self.starting.front().is_some_and(|at| *at <= now) {
            self.starting.pop_front();
            self.ready += 1;
        }
        if let Some((_, size)) = self.resize.take_if(|(at, _)| *at <= now) {
            self.size = size;
        }
        let (cores, ready) = (self.size.cpu_milli as f64 / 1000.0 * rules.burst, f64::from(self.ready));
        let capacity = cores * ready;
        let before = self.backlog_s;
        self.backlog_s += arrivals.work_s;
        self.waiting += arrivals.requests;
        let done = self.backlog_s.min(capacity);
        let completed = self.take(done);
        let failed = self.take((self.backlog_s - rules.timeout_s * capacity).max(0.0));
        let backlog_s = if capacity > 0.0 { (before + self.backlog_s) / 2.0 / capacity } else { 0.0 };
        let busy = arrivals.rate * service.demand.mean_s / capacity.max(1e-9);
        let wait = Wait::new(&service.demand, busy, cores, backlog_s);
        if let Some(latencies) = latencies {
            wait.count(&service.demand, cores, completed, latencies);
            latencies.add(rules.timeout_s, failed);
        }
        let mut second = Second {
            completed,
            failed,
            used_cores: done,
            wait_p95_s: wait.p95(),
            memory_bytes: self.memory(service, arrivals, &wait),
            killed: 0,
        };
        if second.memory_bytes > self.size.memory_bytes as f64 && self.ready > 0 {
            second.killed = 1;
            second.memory_bytes = self.size.memory_bytes as f64;
            second.failed += self.take(self.backlog_s / ready);
            self.ready -= 1;
            self.starting.push_back(now + rules.startup_s);
        }
        second
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

    /// Returns the memory of a replica: its idle usage, plus an amount per recent request, which is released within
    /// some minutes.
    fn memory(&mut self, service: &SimulatedService, arrivals: Arrivals, wait: &Wait) -> f64 {
        const KEPT: f64 = 1.0 - 1.0 / 300.0;
        let each = f64::from(self.ready.max(1));
        let serving = arrivals.rate * (service.demand.mean_s + wait.average());
        let now = (self.waiting + serving) / each;
        self.concurrency = now.max(self.concurrency * KEPT);
        service.base_memory * (1.0 + arrivals.memory_noise) + self.concurrency * service.request_memory
    }
}
