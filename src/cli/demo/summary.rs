//! Result of the demo: a table for people, JSON for programs.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use indicatif::{HumanBytes, HumanCount};
use serde::Serialize;

use super::verdict::class_of;
use super::workload::CLASSES;
use berth_model::Pod;

#[derive(Debug, Serialize)]
pub struct DemoSummary {
    /// Nodes created at the start.
    pub nodes: usize,
    pub pods: usize,
    pub bound: usize,
    pub waiting: usize,
    /// Rate of the pods that could be placed at once, from the first creation to the last bind.
    pub pods_per_second: f64,
    pub latency_ms: Latency,
    /// Time from the creation of the nodes for the class `late` to the bind of its last pod.
    pub late_ms: f64,
    pub list_hits: u64,
    pub list_misses: u64,
    pub conflicts: u64,
    /// CPU time of berth from the first pod to the last, per bound pod.
    pub cpu_us_per_pod: f64,
    pub peak_memory_bytes: u64,
    pub classes: Vec<ClassSummary>,
    /// Failed checks.
    pub problems: Vec<String>,
    /// Set while the control plane is kept running.
    pub kubeconfig: Option<PathBuf>,
}

/// Latency from the response to the create request until the demo's watch saw the pod with a node.
#[derive(Debug, Serialize)]
pub struct Latency {
    pub p50: f64,
    pub p99: f64,
    pub max: f64,
}

#[derive(Debug, Serialize)]
pub struct ClassSummary {
    pub class: &'static str,
    pub about: &'static str,
    pub pods: usize,
    pub bound: usize,
    /// Reason and message of the condition of one waiting pod.
    pub reason: Option<String>,
    pub message: Option<String>,
}

impl Latency {
    /// `ascending`: times of single pods.
    pub fn of(ascending: &[Duration]) -> Self {
        // Nearest rank: the smallest time that is at least as long as this share of the times.
        let percentile = |percent: usize| {
            let rank = (ascending.len() * percent).div_ceil(100).max(1);
            milliseconds(ascending.get(rank - 1).copied().unwrap_or_default())
        };
        Latency { p50: percentile(50), p99: percentile(99), max: percentile(100) }
    }
}

pub fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e5).round() / 100.0
}

/// Returns a row for each class, in the order of the workload.
pub fn by_class(pods: &[Pod]) -> Vec<ClassSummary> {
    let summary = |class: &'static super::workload::DemoClass| {
        let of_class =
            || pods.iter().filter(|pod| class_of(pod).is_some_and(|other| other.name == class.name));
        let waiting = of_class().find(|pod| pod.node_name.is_none());
        let condition = waiting.and_then(|pod| pod.scheduled.as_ref());
        ClassSummary {
            class: class.name,
            about: class.about,
            pods: of_class().count(),
            bound: of_class().filter(|pod| pod.node_name.is_some()).count(),
            reason: condition.map(|condition| condition.reason.to_string()),
            message: condition.map(|condition| condition.message.to_string()),
        }
    };
    CLASSES.iter().map(summary).collect()
}

impl fmt::Display for DemoSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |count: usize| HumanCount(count as u64).to_string();
        writeln!(f, "{:<10} {:>8} {:>8} {:>8}", "class", "pods", "bound", "waiting")?;
        for class in &self.classes {
            let (pods, bound) = (count(class.pods), count(class.bound));
            let waiting = count(class.pods - class.bound);
            let (name, about) = (class.class, class.about);
            writeln!(f, "{name:<10} {pods:>8} {bound:>8} {waiting:>8}  {about}")?;
        }
        let (pods, bound, waiting) = (count(self.pods), count(self.bound), count(self.waiting));
        writeln!(f, "{:<10} {pods:>8} {bound:>8} {waiting:>8}  on {} nodes", "all", count(self.nodes))?;
        for class in &self.classes {
            if let (Some(reason), Some(message)) = (&class.reason, &class.message) {
                writeln!(f, "\n{} pods wait, {reason}: {message}", class.class)?;
            }
        }

        let Latency { p50, p99, max } = &self.latency_ms;
        let lookups = self.list_hits + self.list_misses;
        let share = 100.0 * self.list_hits as f64 / lookups.max(1) as f64;
        writeln!(f)?;
        let mut row = |name: &str, value: String, note: &str| writeln!(f, "{name:<22} {value:>26}  {note}");
        row(
            "pods per second",
            HumanCount(self.pods_per_second.round() as u64).to_string(),
            "from the first creation to the last bind",
        )?;
        row(
            "latency p50, p99, max",
            format!("{p50:.1}, {p99:.1}, {max:.1} ms"),
            "from the create response until the watch saw the pod's node",
        )?;
        row(
            "late class",
            format!("{:.1} ms", self.late_ms),
            "from the creation of its nodes to its last bind",
        )?;
        row(
            "ranked-list hits",
            format!("{} of {} ({share:.1} %)", HumanCount(self.list_hits), HumanCount(lookups)),
            "the agent had a list of the class and only repaired it",
        )?;
        row("conflicts", HumanCount(self.conflicts).to_string(), "placements that no longer fit at commit")?;
        row(
            "CPU time per bound pod",
            format!("{:.0} us", self.cpu_us_per_pod),
            "of berth alone, including requests to the API server",
        )?;
        row("peak memory", HumanBytes(self.peak_memory_bytes).to_string(), "of berth alone")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let times: Vec<Duration> = (1..=200).map(Duration::from_millis).collect();
        let latency = Latency::of(&times);
        assert_eq!((latency.p50, latency.p99, latency.max), (100.0, 198.0, 200.0));
        assert_eq!(Latency::of(&times[..1]).p99, 1.0);
        assert_eq!(Latency::of(&[]).max, 0.0);
    }
}
