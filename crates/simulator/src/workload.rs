//! Input of a simulation: requests with their times, and the nodes.

use std::sync::Arc;

use berth_model::{Amounts, Extended, Node, PodSpec};

/// Requests in order of arrival. Times are seconds of the source; the simulation scales them.
#[derive(Debug, Clone, Default)]
pub struct ArrivalTrace {
    /// Display name of the source.
    pub source: String,
    /// Distinct pod specs; requests with equal specs are one class.
    pub templates: Vec<Arc<PodSpec>>,
    /// Requests running when the clock starts.
    pub running: Vec<PodArrival>,
    /// By arrival; simultaneous requests stay in the order of the source.
    pub arrivals: Vec<PodArrival>,
    /// The machine for generated nodes.
    pub machine: Machine,
    /// Notes on made-up or omitted parts, in whole sentences.
    pub notes: Vec<String>,
}

/// One pod.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PodArrival {
    /// Index into [`ArrivalTrace::templates`].
    pub template: u32,
    /// Seconds since the workload began; 0 for requests running at the start.
    pub arrives_s: f64,
    /// Seconds since the workload began; infinite: never.
    pub leaves_s: f64,
}

/// A node template without a name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Machine {
    /// All fields except the name, which each generated node gets.
    pub node: Node,
}

impl Machine {
    /// Generates `count` nodes: `n0`, `n1`…
    pub fn nodes(&self, count: usize) -> Vec<Node> {
        let named = |at| Node { name: format!("n{at}").into(), ..self.node.clone() };
        (0..count).map(named).collect()
    }
}

impl ArrivalTrace {
    /// Returns the time from the first to the last arrival, in seconds.
    pub fn span_s(&self) -> f64 {
        self.arrivals.last().map_or(0.0, |last| last.arrives_s)
    }

    /// Returns the number of templates used by arriving requests.
    pub fn kinds(&self) -> usize {
        let mut asked = vec![false; self.templates.len()];
        self.arrivals.iter().for_each(|request| asked[request.template as usize] = true);
        asked.into_iter().filter(|asked| *asked).count()
    }

    /// Returns the peak of simultaneous requests, if each is placed when it arrives.
    pub fn peak(&self) -> Amounts {
        self.peaks().0
    }

    fn peaks(&self) -> (Amounts, Extended) {
        let mut steps = Vec::with_capacity(2 * (self.running.len() + self.arrivals.len()));
        for request in self.running.iter().chain(&self.arrivals) {
            steps.push((request.arrives_s, true, request.template));
            if request.leaves_s.is_finite() {
                steps.push((request.leaves_s, false, request.template));
            }
        }
        // At the same time, departures go first; but a request never leaves before it arrives.
        steps.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let (mut now, mut peak) = (Amounts::default(), Amounts::default());
        let (mut extended_now, mut extended_peak) = (Extended::default(), Extended::default());
        for (_, comes, template) in steps {
            let usage = &self.templates[template as usize].usage;
            if comes {
                now.add(&usage.requests);
            } else {
                now.sub(&usage.requests);
            }
            peak.cpu_milli = peak.cpu_milli.max(now.cpu_milli);
            peak.memory = peak.memory.max(now.memory);
            peak.pods = peak.pods.max(now.pods);
            for (name, amount) in usage.extended.iter() {
                extended_now.add(name, if comes { amount } else { -amount });
                let more = extended_now.get(name) - extended_peak.get(name);
                extended_peak.add(name, more.max(0));
            }
        }
        (peak, extended_peak)
    }

    /// Returns the number of [`ArrivalTrace::machine`]s, at least one, for which the peak uses at most this share of
    /// every resource.
    pub fn nodes_for_peak(&self, full: f64) -> usize {
        let ((peak, extended), each) = (self.peaks(), self.machine.node.allocatable);
        let needed = |wanted: i64, has: i64| (wanted as f64 / (has.max(1) as f64 * full)).ceil() as usize;
        let cpu = needed(peak.cpu_milli, each.cpu_milli);
        // A resource that the machine lacks cannot be provided by any number of them.
        let has = |name: &str| self.machine.node.extended.get(name);
        let extended = extended.iter().filter(|(name, _)| has(name) > 0);
        let extended = extended.map(|(name, wanted)| needed(wanted, has(name))).max().unwrap_or(0);
        let others = needed(peak.memory, each.memory).max(needed(peak.pods, each.pods));
        cpu.max(others).max(extended).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_model::Usage;

    #[test]
    fn the_scarcest_resource_of_the_peak_says_how_many_machines_are_needed() {
        let gpu: Arc<str> = "gpu".into();
        let spec = |cpu_milli, gpus| {
            let requests = Amounts { cpu_milli, memory: 1, pods: 1, ..Amounts::default() };
            let extended = [(gpu.clone(), gpus)].into_iter().collect();
            Arc::new(PodSpec {
                usage: Arc::new(Usage { requests, extended, ..Usage::default() }),
                ..PodSpec::default()
            })
        };
        let request = |template, arrives_s, leaves_s| PodArrival { template, arrives_s, leaves_s };
        let allocatable = Amounts { cpu_milli: 1000, memory: 10, pods: 10, ..Amounts::default() };
        let extended = [(gpu.clone(), 1)].into_iter().collect();
        let mut workload = ArrivalTrace {
            templates: vec![spec(500, 0), spec(100, 2)],
            running: vec![request(0, 0.0, 5.0)],
            // The second arrives when the first leaves; four of 500 never run together.
            arrivals: vec![request(0, 1.0, 3.0), request(0, 3.0, 4.0), request(0, 3.5, f64::INFINITY)],
            machine: Machine { node: Node { allocatable, extended, ..Node::default() } },
            ..ArrivalTrace::default()
        };
        assert_eq!(workload.peak().cpu_milli, 1500);
        assert_eq!((workload.nodes_for_peak(1.0), workload.nodes_for_peak(0.5)), (2, 3));
        workload.arrivals.push(request(1, 9.0, 10.0));
        assert_eq!(workload.nodes_for_peak(0.5), 4, "two GPUs, and every machine has one");
        workload.machine.node.extended = Extended::default();
        assert_eq!(workload.nodes_for_peak(0.5), 3, "no number of machines has GPUs");
    }
}
