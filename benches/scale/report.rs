//! The table.

use std::fmt;

use crate::workload::Size;

/// How long one operation held the engine's lock.
#[derive(Debug, Clone)]
pub struct LockHold {
    pub operation: String,
    pub count: f64,
    pub p999_ms: f64,
    pub longest_ms: f64,
}

/// Everything that is measured. Times under the lock are from the start of the process until the end of the phase.
#[derive(Default)]
pub struct Report {
    size: Option<Size>,
    pub start_cpu_s: f64,
    pub start_wall_s: f64,
    pub start_sent_bytes: u64,
    pub start_holds: Vec<LockHold>,
    pub bytes_per_bound_pod: f64,
    pub bytes_per_waiting_pod: f64,
    pub churn_created_per_s: f64,
    pub churn_updates_per_s: f64,
    pub churn_bound_per_s: f64,
    pub churn_cpu_us_per_bind: f64,
    pub churn_waiting: usize,
    pub churn_holds: Vec<LockHold>,
    /// Decisions, divided by the time that agents spent on them.
    pub decisions_per_agent_s: f64,
    /// Of a decision: the choice, waiting for the lock, and the commit.
    pub decision_p50_us: f64,
    pub decision_p99_us: f64,
    pub choice_p50_us: f64,
    pub choice_p99_us: f64,
    pub sli_p50_ms: f64,
    pub sli_p99_ms: f64,
    pub list_hits: f64,
    pub list_misses: f64,
    pub lists: f64,
    pub conflicts: f64,
    pub parked_checks_per_s: f64,
    pub bytes_per_node_and_list: f64,
    pub resident_bytes: u64,
    pub peak_bytes: u64,
    pub relist_wall_s: f64,
    pub relist_cpu_s: f64,
    pub relist_holds: Vec<LockHold>,
    pub takeover_s: f64,
    pub takeover_cpu_s: f64,
    pub follower_holds: Vec<LockHold>,
    pub self_check_peak_bytes: u64,
    pub healed: f64,
    pub refused: u64,
    pub errors: usize,
}

/// Name, value, target (whether it is a maximum, and the limit) and unit.
type Figure = (&'static str, f64, Option<(bool, f64)>, &'static str);

impl Report {
    pub fn new(size: Size) -> Self {
        Report { size: Some(size), ..Report::default() }
    }

    fn targets(&self) -> Vec<Figure> {
        let longest = |holds: &[LockHold]| holds.last().map_or(0.0, |hold| hold.longest_ms);
        let p999 = |holds: &[LockHold]| holds.last().map_or(0.0, |hold| hold.p999_ms);
        let most = |limit| Some((true, limit));
        let least = |limit| Some((false, limit));
        let mb = |bytes: u64| bytes as f64 / 1e6;
        vec![
            ("start to first bind, CPU", self.start_cpu_s, most(60.0), "s"),
            ("start to first bind, wall", self.start_wall_s, None, "s"),
            ("JSON received until then", mb(self.start_sent_bytes), None, "MB"),
            ("takeover: Lease to first bind", self.takeover_s, most(2.0), "s"),
            ("takeover: CPU from the leader's death", self.takeover_cpu_s, None, "s"),
            ("decisions a second of an agent", self.decisions_per_agent_s, least(20_000.0), "/s"),
            ("one decision, median", self.decision_p50_us, None, "us"),
            ("one decision, p99", self.decision_p99_us, None, "us"),
            ("one choice, median", self.choice_p50_us, None, "us"),
            ("one choice, p99", self.choice_p99_us, most(100.0), "us"),
            ("list hits", self.list_hits, None, ""),
            ("list misses", self.list_misses, None, ""),
            ("conflicts", self.conflicts, None, ""),
            ("checks of parked classes", self.parked_checks_per_s, None, "/s"),
            ("churn: pods created", self.churn_created_per_s, None, "/s"),
            ("churn: rolling updates begun", self.churn_updates_per_s, None, "/s"),
            ("churn: pods bound", self.churn_bound_per_s, None, "/s"),
            ("churn: pods waiting at the end", self.churn_waiting as f64, None, ""),
            ("churn: CPU a bind", self.churn_cpu_us_per_bind, None, "us"),
            ("arrival to bind, median", self.sli_p50_ms, None, "ms"),
            ("arrival to bind, p99", self.sli_p99_ms, None, "ms"),
            ("memory a bound pod", self.bytes_per_bound_pod, most(400.0), "B"),
            ("memory a waiting pod", self.bytes_per_waiting_pod, most(1_000.0), "B"),
            ("memory a node and list", self.bytes_per_node_and_list, most(24.0), "B"),
            ("lists cached", self.lists, None, ""),
            ("process after churn", mb(self.resident_bytes), most(2_500.0), "MB"),
            ("process, peak with a relist", mb(self.peak_bytes), most(2_500.0), "MB"),
            ("follower, peak with a self-check", mb(self.self_check_peak_bytes), None, "MB"),
            ("relist, wall", self.relist_wall_s, None, "s"),
            ("relist, CPU", self.relist_cpu_s, None, "s"),
            ("lock, start, p99.9", p999(&self.start_holds), most(2.0), "ms"),
            ("lock, start, longest", longest(&self.start_holds), most(10.0), "ms"),
            ("lock, with churn, p99.9", p999(&self.churn_holds), most(2.0), "ms"),
            ("lock, with churn, longest", longest(&self.churn_holds), most(10.0), "ms"),
            ("lock, with a relist, longest", longest(&self.relist_holds), most(10.0), "ms"),
            ("lock, follower and self-check, longest", longest(&self.follower_holds), most(10.0), "ms"),
            ("binds refused by the store", self.refused as f64, None, ""),
            ("differences found by the self-check", self.healed, most(0.0), ""),
            ("errors logged", self.errors as f64, most(0.0), ""),
        ]
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(size) = self.size {
            let mix = if size.lived_in { "lived-in" } else { "plain" };
            writeln!(
                f,
                "{} nodes, {} bound pods, {} + {} classes ({mix})\n",
                size.nodes, size.pods, size.classes, size.parked_classes
            )?;
        }
        writeln!(f, "| {:<38} | {:>12} | {:>10} | {:<3} |", "", "measured", "target", "met")?;
        writeln!(f, "| {:-<38} | {:->11}: | {:->9}: | {:-<3} |", "", "", "", "")?;
        for (name, value, target, unit) in self.targets() {
            let digits = if value.abs() < 100.0 && !unit.is_empty() { 2 } else { 0 };
            let measured = format!("{value:.digits$} {unit}");
            let (target, met) = match target {
                Some((true, limit)) => (format!("<= {limit}"), if value <= limit { "yes" } else { "no" }),
                Some((false, limit)) => (format!(">= {limit}"), if value >= limit { "yes" } else { "no" }),
                None => (String::new(), ""),
            };
            writeln!(f, "| {name:<38} | {:>12} | {target:>10} | {met:<3} |", measured.trim_end())?;
        }
        let phases = [
            ("start", &self.start_holds),
            ("churn", &self.churn_holds),
            ("relist", &self.relist_holds),
            ("follower", &self.follower_holds),
        ];
        writeln!(
            f,
            "\n| {:<8} | {:<13} | {:>9} | {:>9} | {:>10} |",
            "until", "lock held by", "times", "p99.9 ms", "longest ms"
        )?;
        writeln!(f, "| {:-<8} | {:-<13} | {:->8}: | {:->8}: | {:->9}: |", "", "", "", "", "")?;
        for (phase, holds) in phases {
            for hold in holds {
                let LockHold { operation, count, p999_ms, longest_ms } = hold;
                writeln!(
                    f,
                    "| {phase:<8} | {operation:<13} | {count:>9} | {p999_ms:>9.3} | {longest_ms:>10.3} |"
                )?;
            }
        }
        Ok(())
    }
}
