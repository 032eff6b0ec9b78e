//! CPU and memory usage of containers over eight days.

use std::fmt::Write;

use berth_scheduler::rules::mix;

use super::workloads::Workload;
use crate::simulation::dice::Dice;

pub const STEP: i64 = 600;
pub const STEPS_PER_HOUR: i64 = 3_600 / STEP;
pub const STEPS_PER_DAY: i64 = 24 * STEPS_PER_HOUR;
/// Eight days.
pub const STEPS: i64 = 8 * STEPS_PER_DAY;
/// Time before the eight days, so that the first rate has a whole window.
const STEPS_BEFORE: i64 = 2 * STEPS_PER_HOUR;
/// Idle time at a container's start and end: the rate over an hour in which it did not run all the time would depend
/// on the moment of the query.
const IDLE: i64 = STEPS_PER_HOUR + 1;
/// The same holds for the rate of a counter near zero.
const COUNTER_START: f64 = 1e6;
const MIB: f64 = 1_048_576.0;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Form {
    Constant,
    Saw,
    Step,
    Growing,
    Spikes,
    Tiny,
    Huge,
    HalfTheTime,
    StartsLate,
    Noisy,
    Falling,
    Daily,
}

const FORMS: [Form; 12] = [
    Form::Constant,
    Form::Saw,
    Form::Step,
    Form::Growing,
    Form::Spikes,
    Form::Tiny,
    Form::Huge,
    Form::HalfTheTime,
    Form::StartsLate,
    Form::Noisy,
    Form::Falling,
    Form::Daily,
];

/// Usage at one time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Usage {
    pub cores: f64,
    pub bytes: f64,
}

/// The usage of one container of one pod, which runs from one step to before another.
#[derive(Debug, Clone)]
pub struct Shape {
    form: Form,
    cores: f64,
    bytes: f64,
    noise: u64,
    lives: (i64, i64),
}

impl Shape {
    /// Returns the shape of the container with this index in its pod, which is the `pod`th of its workload. Pods of a
    /// workload are similar.
    pub fn new(seed: u64, workload: &Workload, pod: usize, container: usize) -> Self {
        let mut dice = Dice::new(seed, (workload.number * 4 + container) as u64);
        let form = FORMS[(workload.number + 5 * container) % FORMS.len()];
        // Evenly on a logarithmic scale.
        let mut between = |low: f64, high: f64| low * (high / low).powf(dice.below(10_000) as f64 / 10_000.0);
        let (cores, bytes) = match form {
            Form::Tiny => (between(0.0005, 0.004), between(2e6, 9e6)),
            Form::Huge => (between(30.0, 200.0), between(50e9, 700e9)),
            _ => (between(0.01, 8.0), between(15.0 * MIB, 16_384.0 * MIB)),
        };
        let start = match form {
            Form::StartsLate => STEPS_PER_DAY + dice.below(5 * STEPS_PER_DAY as u64) as i64,
            _ => -STEPS_BEFORE,
        };
        let is_old = pod == workload.pods.len();
        let lives = if is_old { (-STEPS_BEFORE, STEPS / 2) } else { (start, 2 * STEPS) };
        Self { form, cores, bytes, noise: dice.any().wrapping_add(pod as u64), lives }
    }

    /// From 0 to 1.
    fn random(&self, step: i64) -> f64 {
        (mix(self.noise ^ (step as u64)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns `None` when it does not run.
    pub fn at(&self, step: i64) -> Option<Usage> {
        let (mut start, mut end) = self.lives;
        if !(start..end).contains(&step) {
            return None;
        }
        if self.form == Form::HalfTheTime {
            let half_days = step.div_euclid(STEPS_PER_DAY / 2);
            if half_days.rem_euclid(2) == 1 {
                return None;
            }
            start = half_days * (STEPS_PER_DAY / 2);
            end = start + STEPS_PER_DAY / 2;
        }
        let day = step as f64 / STEPS_PER_DAY as f64;
        let share = match self.form {
            Form::Constant | Form::Tiny | Form::Huge => (1.0, 1.0),
            Form::Saw => (0.2 + 0.8 * day.rem_euclid(1.0), 0.3 + 0.7 * (day * 3.0).rem_euclid(1.0)),
            Form::Step => {
                if day < 5.3 {
                    (1.0, 1.0)
                } else {
                    (0.2, 2.5)
                }
            }
            Form::Growing => (1.0 + 0.01 * day, 0.5 + 0.4 * day.max(0.0)),
            Form::Falling => (0.7, 4.0 - 0.45 * day),
            Form::Spikes => {
                if self.random(step / STEPS_PER_HOUR) < 0.04 {
                    (20.0, 6.0)
                } else {
                    (1.0, 1.0)
                }
            }
            Form::HalfTheTime | Form::StartsLate => {
                (0.5 + self.random(step / STEPS_PER_HOUR), 0.8 + 0.4 * self.random(step))
            }
            Form::Noisy => (2.0 * self.random(step), 0.5 + self.random(step)),
            Form::Daily => {
                let wave = (day * std::f64::consts::TAU).sin();
                (1.0 + 0.8 * wave, 1.0 + 0.3 * wave)
            }
        };
        let idles = step - start < IDLE || end - step <= IDLE;
        let cores = if idles { 0.0 } else { self.cores * share.0 };
        Some(Usage { cores, bytes: (self.bytes * share.1).round() })
    }
}

/// Returns the data of a Prometheus that scraped cAdvisor every ten minutes, last at `end`, and kube-state-metrics.
pub fn openmetrics(seed: u64, workloads: &[Workload], end: i64) -> String {
    let (mut cpu, mut memory, mut labels) = (String::new(), String::new(), String::new());
    for workload in workloads {
        for (index, pod) in workload.pods.iter().chain(&workload.old_pod).enumerate() {
            for (position, container) in workload.containers.iter().enumerate() {
                let shape = Shape::new(seed, workload, index, position);
                let of = format!(r#"namespace="default",pod="{pod}",container="{container}",job="kubelet""#);
                let mut total = COUNTER_START;
                for step in -STEPS_BEFORE..=STEPS {
                    let Some(Usage { cores, bytes }) = shape.at(step) else { continue };
                    total += cores * STEP as f64;
                    let time = end - (STEPS - step) * STEP;
                    writeln!(cpu, "container_cpu_usage_seconds_total{{{of}}} {total} {time}")
                        .expect("a text");
                    writeln!(memory, "container_memory_working_set_bytes{{{of}}} {bytes} {time}")
                        .expect("a text");
                }
            }
            let of = format!(r#"namespace="default",pod="{pod}",label_app="{}""#, workload.name);
            let last = if index < workload.pods.len() { end } else { end - STEPS / 2 * STEP };
            writeln!(labels, "kube_pod_labels{{{of}}} 1 {last}").expect("a text");
        }
    }
    format!(
        "# TYPE container_cpu_usage_seconds counter\n{cpu}\
         # TYPE container_memory_working_set_bytes gauge\n{memory}\
         # TYPE kube_pod_labels gauge\n{labels}# EOF\n"
    )
}
