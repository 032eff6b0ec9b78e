//! Tables: medians of the runs, and their ratios to the null binder's and kube-scheduler's.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use berth::columns;
use berth_testenv::binaries::Environment;
use serde::Serialize;

use crate::measure::Run;
use crate::subject::Subject;
use crate::workload::Size;
use crate::workload::{WORKLOADS, Workload};

/// A file with text around a table, and the name of the section whose markers enclose the table.
pub struct Page<'a> {
    pub file: &'a Path,
    pub section: &'a str,
}

#[derive(Debug, Serialize)]
pub struct Report {
    pub machine: Machine,
    pub size: Size,
    pub runs: Vec<Run>,
}

#[derive(Debug, Serialize)]
pub struct Machine {
    pub cores: usize,
    pub memory_gib: u64,
    pub berth: &'static str,
    pub kubernetes: &'static str,
}

/// All runs of one subject with one workload.
struct Group<'a> {
    workload: &'static Workload,
    subject: Subject,
    runs: Vec<&'a Run>,
}

impl Group<'_> {
    fn median(&self, of: impl Fn(&Run) -> f64) -> f64 {
        let mut values: Vec<f64> = self.runs.iter().map(|run| of(run)).collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        if values.len().is_multiple_of(2) {
            (values[middle - 1] + values[middle]) / 2.0
        } else {
            values[middle]
        }
    }
}

impl Report {
    pub fn new(size: Size) -> Result<Self> {
        Ok(Report {
            machine: Machine {
                cores: std::thread::available_parallelism().map_or(1, usize::from),
                memory_gib: memory_gib().unwrap_or_default(),
                berth: env!("CARGO_PKG_VERSION"),
                kubernetes: Environment::of_process()?.kubernetes.version(),
            },
            size,
            runs: Vec::new(),
        })
    }

    /// Groups the runs in the order of the workloads, and of the subjects in each run.
    fn groups(&self) -> Vec<Group<'_>> {
        let mut groups: Vec<Group<'_>> = Vec::new();
        for workload in WORKLOADS {
            for run in self.runs.iter().filter(|run| run.workload == workload.name) {
                let is_its = |group: &&mut Group<'_>| {
                    group.workload.name == workload.name && group.subject == run.subject
                };
                match groups.iter_mut().find(is_its) {
                    Some(group) => group.runs.push(run),
                    None => groups.push(Group { workload, subject: run.subject, runs: vec![run] }),
                }
            }
        }
        groups
    }

    pub fn markdown(&self) -> String {
        let groups = self.groups();
        let Machine { cores, memory_gib, berth, kubernetes } = self.machine;
        let runs_each = groups.iter().map(|group| group.runs.len()).max().unwrap_or_default();
        let mut text = format!(
            "{} nodes, {} waiting pods; {cores} cores, {memory_gib} GiB; berth {berth}, Kubernetes {kubernetes}; {}.\n\n",
            thousands(self.size.nodes as f64),
            thousands(self.size.pods as f64),
            if runs_each == 1 { "one run each".to_owned() } else { format!("medians of {runs_each} runs") },
        );
        text.push_str(&main_table(&groups));
        let inner = inner_table(&groups);
        if let Some(inner) = inner {
            let _ = write!(text, "\nberth's own counters at the last decision:\n\n{inner}");
        }
        text.push('\n');
        let mut shown: Vec<&str> = Vec::new();
        for workload in groups.iter().map(|group| group.workload) {
            if !shown.contains(&workload.name) {
                shown.push(workload.name);
                let _ = writeln!(text, "* {}: {}", workload.name, workload.about);
            }
        }
        text
    }
}

fn main_table(groups: &[Group<'_>]) -> String {
    let header = [
        "workload",
        "subject",
        "pods/s",
        "÷ null",
        "s from start",
        "CPU us/pod",
        "÷ k-s",
        "API server us/pod",
        "peak MB",
        "÷ k-s",
        "events",
        "s behind",
    ];
    let rows = groups.iter().map(|group| {
        let ratio = |to: Subject, of: fn(&Run) -> f64| {
            let other =
                groups.iter().find(|other| other.workload.name == group.workload.name && other.subject == to);
            other.map_or("-".to_owned(), |other| format!("{:.2}", group.median(of) / other.median(of)))
        };
        vec![
            group.workload.name.to_owned(),
            group.subject.to_string(),
            thousands(group.median(|run| run.decisions_per_second)),
            ratio(Subject::Null, |run| run.decisions_per_second),
            format!("{:.1}", group.median(|run| run.seconds_to_last_decision)),
            thousands(group.median(|run| run.cpu_us_per_pod)),
            ratio(Subject::KubeScheduler, |run| run.cpu_us_per_pod),
            thousands(group.median(|run| run.api_server_cpu_us_per_pod)),
            thousands(group.median(|run| run.peak_resident_mb)),
            ratio(Subject::KubeScheduler, |run| run.peak_resident_mb),
            thousands(group.median(|run| run.events as f64)),
            format!("{:.1}", group.median(|run| run.seconds_to_last_event)),
        ]
    });
    table(&header, 2, rows)
}

/// Returns `None` without runs of berth.
fn inner_table(groups: &[Group<'_>]) -> Option<String> {
    let header = [
        "workload",
        "subject",
        "hits",
        "misses",
        "conflicts",
        "unschedulable",
        "binds refused",
        "events waiting",
        "events dropped",
        "CPU us/pod so far",
        "lock p99.9 ms",
        "longest ms",
        "in",
    ];
    let rows: Vec<_> = groups
        .iter()
        .filter(|group| group.subject.is_berth())
        .map(|group| {
            let median = |of: fn(&crate::subject::Inner) -> f64| {
                thousands(group.median(|run| run.inner.as_ref().map_or(f64::NAN, of)))
            };
            let millis = |of: fn(&crate::subject::Inner) -> f64| {
                format!("{:.2}", group.median(|run| run.inner.as_ref().map_or(f64::NAN, of)))
            };
            vec![
                group.workload.name.to_owned(),
                group.subject.to_string(),
                median(|inner| inner.list_hits),
                median(|inner| inner.list_misses),
                median(|inner| inner.conflicts),
                median(|inner| inner.attempts_unschedulable),
                thousands(group.median(|run| run.binds_refused as f64)),
                median(|inner| inner.reports_waiting),
                median(|inner| inner.reports_dropped),
                thousands(group.median(|run| run.cpu_us_per_pod_at_last_decision)),
                millis(|inner| inner.lock_p999_ms),
                millis(|inner| inner.lock_longest_ms),
                longest_in(group),
            ]
        })
        .collect();
    (!rows.is_empty()).then(|| table(&header, 1, rows.into_iter()))
}

/// Returns the operation that held the lock longest in any run.
fn longest_in(group: &Group<'_>) -> String {
    let inner = group.runs.iter().filter_map(|run| run.inner.as_ref());
    let longest = inner.max_by(|a, b| a.lock_longest_ms.total_cmp(&b.lock_longest_ms));
    longest.map(|inner| inner.lock_longest_in.clone()).unwrap_or_default()
}

/// Formats a markdown table that is readable as text: the first `names` columns left-aligned, numbers right-aligned.
fn table(header: &[&str], names: usize, rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut lines: Vec<Vec<String>> = vec![header.iter().map(|&cell| cell.to_owned()).collect()];
    lines.extend(rows);
    let widths = columns::widths(&lines);
    let rule = |(column, &width): (usize, &usize)| match column < names {
        true => "-".repeat(width),
        false => "-".repeat(width - 1) + ":",
    };
    lines.insert(1, widths.iter().enumerate().map(rule).collect());
    let left: Vec<usize> = (0..names).collect();
    let padded = |cells: &[String]| columns::padded(cells, &widths, &left).join(" | ");
    lines.iter().map(|cells| format!("| {} |\n", padded(cells))).collect()
}

/// Rounds to a whole number, with thousands separators.
fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn memory_gib() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    // The kernel reserves some memory, so round up.
    Some(kib.div_ceil(1 << 20))
}

impl Page<'_> {
    /// # Errors
    /// The file exists and has no markers for the table.
    pub fn check(&self) -> Result<()> {
        if self.file.exists() {
            self.split(&fs::read_to_string(self.file)?)?;
        }
        Ok(())
    }

    /// Replaces the text between the markers; creates the file if it does not exist.
    pub fn write(&self, markdown: &str) -> Result<()> {
        let whole = if self.file.exists() {
            let text = fs::read_to_string(self.file)?;
            let (before, after) = self.split(&text)?;
            let (begin, end) = self.markers();
            format!("{before}{begin}\n\n{markdown}\n{end}{after}")
        } else {
            markdown.to_owned()
        };
        fs::write(self.file, whole).with_context(|| format!("cannot write {}", self.file.display()))
    }

    fn markers(&self) -> (String, String) {
        (format!("<!-- {}: begin -->", self.section), format!("<!-- {}: end -->", self.section))
    }

    /// Returns the text before the first marker and after the second.
    fn split<'a>(&self, text: &'a str) -> Result<(&'a str, &'a str)> {
        let (begin, end) = self.markers();
        let parts =
            text.split_once(&begin).and_then(|(before, rest)| Some((before, rest.split_once(&end)?.1)));
        parts.with_context(|| {
            format!(
                "{} exists but has no lines {begin:?} and {end:?} to put the table between",
                self.file.display()
            )
        })
    }
}
