//! Coordination of vertical and horizontal scaling.
//!
//! SHOWAR's rules: (1) the vertical half runs first; (2) CPU beyond the cap is not granted: the size stays, and a
//! shared channel asks the horizontal half to add replicas. The paper leaves cases open in which the halves work
//! against each other: more replicas lower the usage of each, sizes follow it down, saturation rises again, until
//! there are many tiny pods. Therefore, beyond the paper:
//!
//! * Saturation is answered by a larger size first, as long as the cap and the nodes allow it: this takes effect
//!   immediately, a new pod does not.
//! * CPU shrinks only as far as saturation is expected to stay below its setpoint, judged by the highest recent
//!   signal. It does not shrink while one replica less would do, its load spread over the rest: then the replica is
//!   removed first, because each pod takes memory even when idle.
//! * CPU that was added is not removed soon: only where a quarter of the size is spare, and not within an hour
//!   after any growth. Too much for an hour costs less than too little for a minute.
//! * Samples are corrected to the current number of pods that share the load ([`super::shares`]).
//! * Usage at the limit does not show the need: without a saturation signal, throttled containers grow by a step.
//! * Nothing shrinks before usage of a day was observed: the peaks of a service that is new here are unknown. Replicas
//!   that were added since may go.
//! * Memory keeps a margin above its peak, and grows as soon as half of the margin is used: the OOM killer also
//!   acts when less than 15 % is missing.
//! * Far above the setpoint, steps are larger and do not wait for the interval.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::{Deserialize, Serialize};

use super::history::{ObservedSpan, ObservedSpans};
use super::horizontal::{self, Controller, Wish, Worst, step};
use super::observation::{Container, Observation, Seconds, Size};
use super::settings::{Horizontal, ReplicaRule, ScalingSettings, Vertical};
use super::shares::LoadShares;
use super::vertical::{Peaks, UsageUnknown, WindowUsage, after_kill, differs, is_spare, usage};
use crate::recommend::amount::{from_float, scale};

/// Maximum number of containers of a pod that are sized.
const CONTAINERS_MAX: usize = 64;
const REASON_MAX: usize = 600;
/// Share of the pods without samples above which nothing shrinks.
const UNHEARD_MAX: f64 = 0.1;
/// Share of throttled samples from which a container counts as throttled.
const THROTTLED_MIN: f64 = 0.2;

/// State of a workload between decisions.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ScalerMemory {
    /// Last decided replica count; a different one was set by another client.
    pub replicas: Option<u32>,
    /// Time of the last size decision.
    pub sized_s: Option<Seconds>,
    /// Time of the last replica decision.
    pub scaled_s: Option<Seconds>,
    /// Time of the last growth of a size or of replicas.
    pub grown_s: Option<Seconds>,
    /// Replicas at the first contact, or as another client set them last: fewer need a known past.
    pub given: Option<u32>,
    /// Time at which another client set the replicas.
    pub by_hand_s: Option<Seconds>,
    /// Since when no signal is known.
    pub deaf_s: Option<Seconds>,
    /// Since when there is no work.
    pub idle_s: Option<Seconds>,
    pub controller: Controller,
    /// Highest recent CPU need of the busiest containers, summed over all pods.
    pub need: Worst,
    /// Number of pods that shared the load.
    pub shares: LoadShares,
    /// Memory peaks by container.
    pub peaks: BTreeMap<String, Peaks>,
    /// Whether memory would be more than any node has: the largest node is needed for the next decision.
    pub memory_capped: bool,
    /// How long usage was observed, by container.
    pub observed: BTreeMap<String, ObservedSpans>,
    /// How long the signal was observed.
    pub signal_observed: ObservedSpan,
}

impl ScalerMemory {
    /// Clamps times in the future to now: they come from another clock, or from this one before it was set back. A
    /// hold time then starts again, and does not last longer.
    fn without_the_future(&mut self, now: Seconds) {
        let halves = [&mut self.sized_s, &mut self.scaled_s, &mut self.grown_s];
        let times = halves.into_iter().chain([&mut self.by_hand_s, &mut self.deaf_s, &mut self.idle_s]);
        for time in times.chain([&mut self.need.time_s, &mut self.controller.worst.time_s]) {
            *time = time.map(|time| time.min(now));
        }
    }
}

/// Decided state. It is complete: unchanged values are included.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Decision {
    pub replicas: u32,
    /// For each observed container; 0 where no size is set and none is known.
    pub sizes: Vec<(String, Size)>,
    pub replicas_changed: bool,
    pub sizes_changed: bool,
    /// One line with the reasons and inputs.
    pub reason: String,
}

/// Decides the sizes and replicas of a workload.
///
/// Replicas are within their bounds whatever is observed, except when another controller owns them or the workload
/// is switched off. Changed sizes are within their bounds.
pub fn decide(
    settings: &ScalingSettings,
    memory: &mut ScalerMemory,
    seen: &Observation,
    now: Seconds,
) -> Decision {
    let containers = &seen.containers[..seen.containers.len().min(CONTAINERS_MAX)];
    let exists = |name: &str| containers.iter().any(|container| container.name == name);
    memory.peaks.retain(|name, _| exists(name));
    memory.observed.retain(|name, _| exists(name));
    memory.peaks.values_mut().for_each(Peaks::limit);
    memory.without_the_future(now);
    memory.memory_capped &= seen.largest_memory.is_none();
    memory.shares.note(now, seen.ready, settings.vertical.window_s);
    let mut round = Round {
        settings,
        memory,
        seen,
        now,
        signal: None,
        wish: None,
        scale_out: false,
        shrunk: false,
        grown: false,
        need: None,
        cpu_unknown: None,
        covers_s: Seconds::MAX,
        reason: String::new(),
    };
    round.listen_for_work();
    if seen.replicas == 0 {
        return round.at_zero(containers);
    }
    round.memory.given.get_or_insert(seen.replicas);
    round.reset_if_scaled_externally();
    round.listen();
    let sizes: Vec<_> = round.sizes(containers);
    let replicas = round.replicas();
    let mut sizes = round.spread_over(replicas, sizes);
    for (name, size) in &mut sizes {
        *size = round.within_bounds(name, *size);
    }
    let mut reason = round.reason;
    if reason.len() > REASON_MAX {
        let end = (0..=REASON_MAX).rev().find(|at| reason.is_char_boundary(*at)).unwrap_or(0);
        reason.truncate(end);
    }
    memory.replicas = (replicas > 0).then_some(replicas);
    Decision {
        replicas,
        replicas_changed: replicas != seen.replicas,
        sizes_changed: containers.iter().zip(&sizes).any(|(container, (_, size))| container.size != *size),
        sizes,
        reason,
    }
}

/// State during one decision.
struct Round<'a> {
    settings: &'a ScalingSettings,
    memory: &'a mut ScalerMemory,
    seen: &'a Observation,
    now: Seconds,
    /// The signal, if it is valid.
    signal: Option<f64>,
    /// Change requested by the controller; taken by the half that carries it out.
    wish: Option<Wish>,
    /// Shared channel: the vertical half requests more replicas.
    scale_out: bool,
    /// Whether CPU was lowered in this round.
    shrunk: bool,
    /// Whether CPU was raised in this round.
    grown: bool,
    /// CPU need of the busiest container in each pod, with its index.
    need: Option<(usize, i64)>,
    /// Why the CPU usage of a container whose CPU is sized is unknown.
    cpu_unknown: Option<String>,
    /// Time that the samples of CPU usage cover, in seconds: of the container of which the least is known.
    covers_s: Seconds,
    reason: String,
}

impl<'a> Round<'a> {
    fn explain(&mut self, what: std::fmt::Arguments<'_>) {
        let between = if self.reason.is_empty() { "" } else { "; " };
        let _ = write!(self.reason, "{between}{what}");
    }

    /// Returns the seconds since then.
    fn since(&self, then: Option<Seconds>) -> Seconds {
        then.map_or(i64::MAX, |then| self.now.saturating_sub(then))
    }

    fn horizontal(&self) -> Option<&'a Horizontal> {
        self.settings.horizontal.as_ref().filter(|_| self.seen.frozen.is_none())
    }

    /// Resets the controller if another client set the replicas: its state belongs to the old number.
    fn reset_if_scaled_externally(&mut self) {
        let Some(ours) = self.memory.replicas.filter(|ours| *ours != self.seen.replicas) else { return };
        self.memory.controller.reset();
        self.memory.grown_s = Some(self.now);
        self.memory.given = Some(self.seen.replicas);
        if self.seen.frozen.is_none() {
            self.memory.by_hand_s = Some(self.now);
        }
        self.explain(format_args!(
            "replicas changed from {ours} to {} by another client",
            self.seen.replicas
        ));
    }

    /// Notes since when there is no work, and since when nothing is known.
    fn listen_for_work(&mut self) {
        let begin = |since: Option<Seconds>, is_so: bool| is_so.then(|| since.unwrap_or(self.now));
        let is_deaf = self.horizontal().is_some_and(|settings| {
            horizontal::signal(self.seen.signal, self.now, settings).is_err()
                && !(self.seen.replicas == 0 && self.seen.busy.is_some())
        });
        let (deaf_s, idle_s) =
            (begin(self.memory.deaf_s, is_deaf), begin(self.memory.idle_s, self.seen.busy == Some(false)));
        (self.memory.deaf_s, self.memory.idle_s) = (deaf_s, idle_s);
    }

    /// Returns the fewest replicas, if no signal was known for long enough.
    fn fallback(&self, settings: &Horizontal) -> Option<u32> {
        let fallback = settings.fallback?;
        let is_due = self.memory.deaf_s.is_some() && self.since(self.memory.deaf_s) >= fallback.after_s;
        is_due.then(|| settings.clamp(fallback.replicas))
    }

    /// Decides about a workload without replicas.
    fn at_zero(mut self, containers: &[Container]) -> Decision {
        let may_be_idle = self.horizontal().filter(|settings| settings.to_zero);
        let replicas = may_be_idle.and_then(|settings| match self.seen.busy {
            _ if settings.awake => Some(settings.clamp(1)),
            Some(true) => Some(settings.clamp(1)),
            Some(false) => None,
            None => self.fallback(settings),
        });
        let work = match self.seen.busy {
            Some(true) => "there is work",
            Some(false) => "there is no work",
            None => "it is unknown whether there is work",
        };
        match (may_be_idle, replicas) {
            (None, _) => self.explain(format_args!("switched off: spec.replicas is 0")),
            (Some(_), None) => self.explain(format_args!("no replicas: {work}")),
            (Some(_), Some(replicas)) => {
                self.memory.grown_s = Some(self.now);
                self.explain(format_args!("replicas 0 -> {replicas}: {work}"));
            }
        }
        self.memory.replicas = replicas;
        let sizes = containers.iter().map(|container| (container.name.clone(), container.size)).collect();
        let replicas = replicas.unwrap_or(0);
        Decision {
            replicas,
            replicas_changed: replicas > 0,
            sizes,
            reason: self.reason,
            ..Decision::default()
        }
    }

    /// Runs the controller, if it is due.
    fn listen(&mut self) {
        let Some(settings) = self.horizontal() else {
            if let Some(owner) = self.seen.frozen.as_ref() {
                self.memory.controller.reset();
                self.explain(format_args!("{owner} controls the replicas: replicas and CPU size stay"));
            }
            return;
        };
        let signal = match horizontal::signal(self.seen.signal, self.now, settings) {
            Ok(signal) => signal,
            Err(unknown) => {
                self.memory.controller.reset();
                return self.explain(format_args!("replicas stay: {unknown}"));
            }
        };
        self.signal = Some(signal);
        self.memory.signal_observed.extend(self.now);
        self.memory.controller.worst.observe(signal, self.now, settings.hold_s);
        let due = self.since(self.memory.scaled_s) >= settings.every_s;
        if !due && !Controller::is_urgent(signal, settings) {
            return;
        }
        self.wish = Some(self.memory.controller.turn(signal, settings));
        self.memory.scaled_s = Some(self.now);
        self.explain(format_args!("signal {signal:.4} of {:.4}", settings.setpoint));
    }

    /// Returns whether the replicas stay as another client has set them.
    fn stays_as_set(&mut self, settings: &Horizontal) -> bool {
        let since = self.since(self.memory.by_hand_s);
        let stays = since < settings.by_hand_s && self.wish != Some(Wish::GrowFast);
        if stays {
            self.explain(format_args!("replicas stay: another client set them {since} s ago"));
        }
        stays
    }

    /// Computes the sizes (vertical half).
    fn sizes(&mut self, containers: &[Container]) -> Vec<(String, Size)> {
        let due = self.since(self.memory.sized_s) >= self.settings.vertical.every_s;
        if due {
            self.memory.sized_s = Some(self.now);
        }
        let usages: Vec<_> = containers.iter().map(|container| self.cpu_usage(container)).collect();
        let load = |at: &usize| {
            usages[*at].as_ref().map_or(0.0, |usage| usage.mean)
                / containers[*at].size.cpu_milli.max(1) as f64
        };
        let busiest = (0..containers.len()).max_by(|a, b| load(a).total_cmp(&load(b)).then(b.cmp(a)));
        let mut sizes = Vec::new();
        for (at, container) in containers.iter().enumerate() {
            let memory_bytes = self.memory_size(container, due);
            let busy = busiest == Some(at);
            let cpu_milli = match &usages[at] {
                _ if !self.settings.of(&container.name).cpu || self.seen.frozen.is_some() => {
                    container.size.cpu_milli
                }
                Err(unknown) => {
                    let answered = busy.then(|| self.answer(container)).flatten();
                    if due && answered.is_none() {
                        self.explain(format_args!("cpu of {} stays: {unknown}", container.name));
                    }
                    self.cpu_unknown = Some(format!("cpu of {}: {unknown}", container.name));
                    answered.unwrap_or(container.size.cpu_milli)
                }
                Ok(usage) => self.cpu_size(container, usage, (at, busy), due),
            };
            sizes.push((container.name.clone(), Size { cpu_milli, memory_bytes }));
        }
        if self.grown {
            self.memory.grown_s = Some(self.now);
        }
        sizes
    }

    fn cpu_usage(&mut self, container: &Container) -> Result<WindowUsage, UsageUnknown> {
        let vertical = self.settings.of(&container.name);
        let throttle = container.size.cpu_milli as f64 * vertical.throttled_at;
        let usage = usage(&self.memory.shares.as_of_now(&container.cpu), self.now, throttle, vertical)?;
        self.memory.observed.entry(container.name.clone()).or_default().cpu.extend(self.now);
        self.covers_s = self.covers_s.min(usage.covers_s);
        Ok(usage)
    }

    fn memory_size(&mut self, container: &Container, due: bool) -> i64 {
        let vertical = self.settings.of(&container.name);
        let current = container.size.memory_bytes;
        if !vertical.memory {
            return current;
        }
        let usage = usage(&container.memory, self.now, 0.0, vertical);
        let peaks = self.memory.peaks.entry(container.name.clone()).or_default();
        if let Ok(usage) = &usage {
            // Trim only here, where samples confirm the clock: a clock that jumped ahead must not remove peaks.
            peaks.trim(self.now, self.settings.vertical.peak_hours);
            peaks.add(self.now, from_float(usage.max));
            self.memory.observed.entry(container.name.clone()).or_default().memory.extend(self.now);
        }
        if container.oom_kills > 0 {
            let highest = usage.as_ref().map_or(0, |usage| from_float(usage.max));
            peaks.add(self.now, after_kill(current.max(highest), vertical));
        }
        let peak = peaks.highest().unwrap_or(0);
        let needed = match &usage {
            Ok(usage) => container.estimate.memory.unwrap_or_else(|| usage.size(vertical.sigmas)).max(peak),
            Err(_) if container.oom_kills > 0 => peak.max(current),
            Err(unknown) => {
                if due {
                    self.explain(format_args!("memory of {} stays: {unknown}", container.name));
                }
                return current;
            }
        };
        // Too little memory causes OOM kills: growth waits neither for the interval nor for the minimum difference.
        let room = if vertical.memory_room.is_finite() { vertical.memory_room.clamp(0.0, 10.0) } else { 0.0 };
        let mut wanted = vertical.memory_bounds.clamp(scale(needed, 1.0 + room));
        if let Some(most) = self.most_memory(container).filter(|most| wanted > *most) {
            wanted = vertical.memory_bounds.clamp(most.max(current));
            self.memory.memory_capped = true;
            self.explain(format_args!(
                "memory of {} is not raised above {wanted}: no node that its pods may run on has more for it",
                container.name
            ));
        }
        let grows = needed > current || scale(needed, 1.0 + room / 2.0) > current;
        let shrinks = due && wanted < current && differs(current, wanted, vertical);
        if wanted == current || !(grows && wanted > current || shrinks) {
            return current;
        }
        let span = |spans: &ObservedSpans| spans.memory;
        if wanted < current
            && let Some(why) = self
                .blocked_by_missing_samples(container.unheard.memory)
                .or_else(|| self.blocked_by_short_history(&container.name, span))
        {
            self.explain(format_args!("memory of {} stays: {why}", container.name));
            return current;
        }
        let what = match &usage {
            Ok(usage) => format!("mean {:.0}, deviation {:.0}, peak {peak}", usage.mean, usage.deviation),
            Err(unknown) => unknown.to_string(),
        };
        let (name, kills) = (&container.name, container.oom_kills);
        self.explain(format_args!("memory of {name} {current} -> {wanted}: {what}, {kills} kills"));
        wanted
    }

    /// Returns the memory that the largest node has for this container beside the others of a pod.
    fn most_memory(&self, container: &Container) -> Option<i64> {
        let others = self.seen.containers.iter().filter(|other| other.name != container.name);
        let others = others.fold(0_i64, |sum, other| sum.saturating_add(other.size.memory_bytes.max(0)));
        Some(self.seen.largest_memory?.saturating_sub(others).max(0))
    }

    fn cpu_size(
        &mut self,
        container: &Container,
        usage: &WindowUsage,
        (at, busy): (usize, bool),
        due: bool,
    ) -> i64 {
        let vertical = self.settings.of(&container.name);
        let (current, cap) = (container.size.cpu_milli, vertical.cpu_cap_milli.max(1));
        let wanted = container.estimate.cpu.unwrap_or_else(|| usage.size(vertical.sigmas));
        if busy {
            self.need = Some((at, self.lately(wanted)));
            if let Some(answered) = self.answer(container) {
                return answered;
            }
        }
        if !due {
            return current;
        }
        // With a saturation signal, that signal shows better what usage at the limit means.
        let throttled = usage.throttled >= THROTTLED_MIN && current > 0 && self.signal.is_none();
        let wanted =
            if throttled { wanted.max(self.a_step_more(current, self.step_share())) } else { wanted };
        let wanted = if wanted > cap && throttled && current < cap { cap } else { wanted };
        let (name, mean, deviation) = (&container.name, usage.mean, usage.deviation);
        if wanted > current && current > 0 && self.replicas_come_first() {
            self.scale_out |= differs(current, wanted, vertical);
            self.explain(format_args!("cpu of {name} stays at {current}m: replicas are added first"));
            return current;
        }
        if wanted > cap {
            if self.horizontal().is_some() {
                self.scale_out = true;
            }
            self.explain(format_args!("cpu of {name} stays: {wanted}m is more than {cap}m"));
            // Without a size the pod has no CPU request at all.
            return if current > 0 { current } else { vertical.cpu_bounds.clamp(cap) };
        }
        let mut wanted = vertical.cpu_bounds.clamp(wanted);
        if !differs(current, wanted, vertical) {
            return current;
        }
        if wanted < current {
            let blocked = self
                .blocked_by_missing_samples(container.unheard.cpu)
                .or_else(|| self.blocked_by_short_history(name, |spans| spans.cpu))
                .or_else(|| self.blocked_by_short_window());
            let may_shrink = blocked.map_or_else(|| self.may_shrink(current, busy, vertical), Err);
            // At a smaller size the same usage would count as throttled, and CPU would be added again.
            let unthrottled = if self.signal.is_none() { usage.unthrottled(vertical) } else { 0 };
            let enough = match may_shrink {
                Ok(enough) => vertical.cpu_bounds.clamp(wanted.max(enough).max(unthrottled)),
                Err(why) => {
                    self.explain(format_args!("cpu of {name} stays at {current}m: {why}"));
                    return current;
                }
            };
            if !is_spare(current, enough, vertical) {
                return current;
            }
            wanted = enough;
            self.shrunk = true;
        }
        self.grown |= wanted > current;
        let count = usage.points;
        self.explain(format_args!(
            "cpu of {name} {current}m -> {wanted}m: mean {mean:.0}m, deviation {deviation:.0}m of {count} samples"
        ));
        wanted
    }

    /// Returns whether replicas are added before CPU grows.
    fn replicas_come_first(&self) -> bool {
        self.signal.is_some()
            && self.horizontal().is_some_and(|settings| settings.comes_first(self.seen.replicas))
    }

    /// Returns the highest recent need per pod, including the current one.
    fn lately(&mut self, need: i64) -> i64 {
        let hold_s = self.settings.horizontal.as_ref().map_or(0, |settings| settings.hold_s);
        let replicas = f64::from(self.seen.replicas);
        self.memory.need.observe(need as f64 * replicas, self.now, hold_s);
        from_float(self.memory.need.value / replicas).max(need)
    }

    /// Returns the share by which a step changes the replicas.
    fn step_share(&self) -> f64 {
        let share = self.settings.horizontal.as_ref().map_or(0.1, |settings| settings.step);
        f64::from(step(self.seen.replicas, share)) / f64::from(self.seen.replicas.max(1))
    }

    /// Returns a size increased by this share, and by at least the minimum difference.
    fn a_step_more(&self, current: i64, share: f64) -> i64 {
        scale(current, 1.0 + share.max(self.settings.vertical.change + 0.01))
    }

    /// Answers saturation by a larger size of the busiest container, if it is below the cap.
    fn answer(&mut self, container: &Container) -> Option<i64> {
        let current = container.size.cpu_milli;
        let vertical = self.settings.of(&container.name);
        let most = vertical.cpu_bounds.clamp(vertical.cpu_cap_milli.max(1));
        if current <= 0 || current >= most || self.replicas_come_first() || self.seen.has_no_room {
            return None;
        }
        let share = match self.wish {
            Some(Wish::Grow) => self.step_share(),
            Some(Wish::GrowFast) => self.horizontal()?.urgent_step.max(self.step_share()),
            _ => return None,
        };
        let wanted = self.a_step_more(current, share).min(most);
        self.wish = None;
        self.grown = true;
        self.memory.controller.reset();
        self.explain(format_args!("cpu of {} {current}m -> {wanted}m because of the signal", container.name));
        Some(wanted)
    }

    /// Returns why a container must not shrink, if too many pods have no recent samples.
    fn blocked_by_missing_samples(&self, unheard: u32) -> Option<String> {
        let ready = self.seen.ready;
        let few = f64::from(unheard) <= UNHEARD_MAX * f64::from(ready);
        (!few).then(|| format!("no recent samples of {unheard} of {ready} ready pods"))
    }

    /// Returns why nothing must shrink, if the samples are of the last moments only: this process has just begun to lead, or Prometheus
    /// has just come back. The mean of a minute may be below that of five.
    fn blocked_by_short_window(&self) -> Option<String> {
        let needed = self.settings.vertical.window_s / 3 * 2;
        let covers_s = self.covers_s;
        (covers_s < needed).then(|| format!("the samples cover {covers_s} s, of at least {needed} s"))
    }

    /// Returns why a container must not shrink, if its usage has not been observed for long enough.
    fn blocked_by_short_history(
        &self,
        name: &str,
        span: fn(&ObservedSpans) -> ObservedSpan,
    ) -> Option<String> {
        let observed = self.memory.observed.get(name).map_or(0, |spans| span(spans).length());
        let needed = self.settings.of(name).history_s;
        (observed < needed)
            .then(|| format!("usage was observed for {observed} s, a size shrinks after {needed} s"))
    }

    /// Returns why no replica may be removed, if neither CPU usage nor the signal has been observed for long enough.
    fn replicas_blocked_by_short_history(&self) -> Option<String> {
        let usage = self.memory.observed.values().map(|spans| spans.cpu);
        let observed =
            usage.chain([self.memory.signal_observed]).map(ObservedSpan::length).max().unwrap_or(0);
        let needed = self.settings.vertical.history_s;
        (observed < needed)
            .then(|| format!("usage was observed for {observed} s, replicas are removed after {needed} s"))
    }

    /// Returns the CPU size below which saturation would exceed the setpoint, or the reason not to shrink.
    fn may_shrink(&self, current: i64, busy: bool, vertical: &Vertical) -> Result<i64, String> {
        let since = self.since(self.memory.grown_s);
        if since < vertical.hold_s {
            return Err(format!("last growth was {since} s ago"));
        }
        let Some(settings) = self.horizontal() else { return Ok(0) };
        let Some(signal) = self.signal else { return Err("no saturation signal".into()) };
        if let Some(why) = &self.seen.partly_unknown {
            return Err(why.clone());
        }
        if signal >= settings.setpoint {
            return Err(format!("the signal is {signal:.4}, at or above the setpoint"));
        }
        let fewer = self.seen.replicas - 1;
        if self.seen.replicas > settings.min_replicas.max(1) && self.fits(settings, fewer) {
            return Err(format!("{fewer} replicas would be enough"));
        }
        let need = self.need.map_or(0, |(_, need)| need);
        Ok(scale(current, self.memory.controller.enough(settings)).max(if busy { need } else { 0 }))
    }

    /// Returns the CPU that each of `replicas` pods would need for the current load, judged by the usage and the
    /// highest recent signal.
    fn needed(&self, settings: &Horizontal, replicas: u32) -> Option<f64> {
        let (at, need) = self.need?;
        let current = self.seen.containers[at].size.cpu_milli;
        let each = (need as f64).max(current as f64 * self.memory.controller.enough(settings));
        Some(each * f64::from(self.seen.replicas) / f64::from(replicas.max(1)))
    }

    /// Returns the vertical settings of the busiest container, if one is known.
    fn busiest(&self) -> &Vertical {
        let name = self.need.and_then(|(at, _)| self.seen.containers.get(at)).map(|it| it.name.as_str());
        name.map_or(&self.settings.vertical, |name| self.settings.of(name))
    }

    /// Returns whether this number of replicas could carry the load, with some room below the cap.
    fn fits(&self, settings: &Horizontal, replicas: u32) -> bool {
        let vertical = self.busiest();
        let room = vertical.cpu_cap_milli as f64 * (1.0 - vertical.change.clamp(0.0, 1.0));
        replicas > 0 && self.needed(settings, replicas).is_some_and(|needed| needed <= room)
    }

    /// Applies the bounds to managed sizes, also without samples; sizes that are not managed stay.
    fn within_bounds(&self, name: &str, size: Size) -> Size {
        let vertical = self.settings.of(name);
        let cpu = vertical.cpu && self.seen.frozen.is_none() && size.cpu_milli > 0;
        let memory = vertical.memory && size.memory_bytes > 0;
        Size {
            cpu_milli: if cpu { vertical.cpu_bounds.clamp(size.cpu_milli) } else { size.cpu_milli },
            memory_bytes: if memory {
                vertical.memory_bounds.clamp(size.memory_bytes)
            } else {
                size.memory_bytes
            },
        }
    }

    /// Computes the replica count (horizontal half).
    fn replicas(&mut self) -> u32 {
        let Some(settings) = self.horizontal() else { return self.seen.replicas };
        let now = self.seen.replicas;
        let wanted = self.wanted_replicas(settings);
        if self.falls_asleep(settings, wanted) {
            self.explain(format_args!("replicas {now} -> 0: there is no work"));
            return 0;
        }
        let within = settings.clamp(wanted);
        if within != wanted {
            self.explain(format_args!(
                "replicas must be {} to {}",
                settings.min_replicas, settings.max_replicas
            ));
        }
        if within != now {
            self.memory.controller.reset();
            self.memory.scaled_s = Some(self.now);
            self.explain(format_args!("replicas {now} -> {within}"));
            if within > now {
                self.memory.grown_s = Some(self.now);
            }
        }
        within
    }

    /// Returns whether the last replica goes, because there has been no work for long enough.
    fn falls_asleep(&self, settings: &Horizontal, wanted: u32) -> bool {
        let (is_last, is_idle) = (self.seen.replicas == 1 && wanted <= 1, self.memory.idle_s.is_some());
        settings.to_zero
            && !settings.awake
            && is_last
            && is_idle
            && self.since(self.memory.idle_s) >= settings.hold_s
            && self.since(self.memory.by_hand_s) >= settings.by_hand_s
            && self.replicas_blocked_by_short_history().is_none()
    }

    fn wanted_replicas(&mut self, settings: &Horizontal) -> u32 {
        let now = self.seen.replicas;
        if let Some(replicas) = self.fallback(settings).filter(|replicas| *replicas > now) {
            self.explain(format_args!("no signal for {} s", self.since(self.memory.deaf_s)));
            return replicas;
        }
        if self.stays_as_set(settings) {
            return now;
        }
        let followed = self.followed(settings);
        let more = |share| now.saturating_add(step(now, share)).max(followed.unwrap_or(0));
        // Starting pods are part of the answer, unless they take too long.
        let starting = self.seen.ready < now && self.since(self.memory.grown_s) < settings.every_s;
        let success = horizontal::success(self.seen.success, self.now, settings);
        // Rule 1: an OOM-killed container fails with any number of replicas.
        let killed = self.seen.containers.iter().any(|container| container.oom_kills > 0);
        let failing = success.filter(|success| *success < settings.success_min && !killed);
        let grow = match (self.wish.take(), failing) {
            (Some(Wish::GrowFast), _) => Some(settings.urgent_step.max(settings.step)),
            (Some(Wish::Grow), _) => Some(settings.step),
            (_, Some(success)) if self.since(self.memory.grown_s) >= settings.every_s && !self.grown => {
                self.explain(format_args!("{:.2} % of requests succeed", success * 100.0));
                Some(settings.step)
            }
            // Without a signal, nothing would show that a scale-out was too large.
            _ if self.scale_out && self.signal.is_some() => {
                self.explain(format_args!("scale out for CPU"));
                Some(settings.step)
            }
            (Some(Wish::Shrink), _) => return now - self.fewer(settings).min(now.saturating_sub(1)),
            _ => None,
        };
        match grow {
            Some(_) if starting => {
                self.explain(format_args!(
                    "{} of {now} replicas are still starting",
                    now - self.seen.ready.min(now)
                ));
                now
            }
            Some(share) => more(share),
            None => now,
        }
    }

    /// Returns the number of replicas in proportion to the signal, if they follow it so.
    fn followed(&self, settings: &Horizontal) -> Option<u32> {
        let signal = self.signal.filter(|_| settings.rule == ReplicaRule::Proportional)?;
        Some(horizontal::proportional(self.seen.replicas, signal, settings))
    }

    /// Returns the number of replicas that may be removed.
    fn fewer(&mut self, settings: &Horizontal) -> u32 {
        let since = self.since(self.memory.grown_s);
        if since < settings.hold_s {
            self.explain(format_args!("replicas stay: last growth was {since} s ago"));
            return 0;
        }
        let unheard = self.need.map_or(0, |(at, _)| self.seen.containers[at].unheard.cpu);
        let why = self
            .blocked_by_missing_samples(unheard)
            .or_else(|| self.blocked_by_short_window())
            .or_else(|| self.seen.partly_unknown.clone())
            .or_else(|| self.cpu_unknown.clone());
        if let Some(why) = why {
            self.explain(format_args!("replicas stay: {why}"));
            return 0;
        }
        let mut least = settings.min_replicas.max(1);
        if let Some(why) = self.replicas_blocked_by_short_history() {
            least = least.max(self.memory.given.unwrap_or(self.seen.replicas));
            if least >= self.seen.replicas {
                self.explain(format_args!("replicas stay: {why}"));
                return 0;
            }
        }
        if self.shrunk {
            self.explain(format_args!("replicas stay: the CPU size shrinks first"));
            return 0;
        }
        let now = self.seen.replicas;
        let wanted = match self.followed(settings) {
            Some(followed) => now.saturating_sub(followed),
            None => step(now, settings.step),
        };
        let most = wanted.min(now.saturating_sub(least));
        let fewer = std::iter::successors(Some(most), |fewer| (*fewer > 1).then_some(fewer / 2))
            .find(|fewer| self.can_do(settings, now - fewer))
            .unwrap_or(0);
        if fewer == 0 && most > 0 {
            self.explain(format_args!("replicas stay: fewer would need more CPU than the cap"));
        }
        fewer
    }

    /// Returns whether this number of replicas can carry the load. Sizes that are not managed stay.
    fn can_do(&self, settings: &Horizontal, replicas: u32) -> bool {
        match self.need {
            Some(_) if self.busiest().cpu => self.fits(settings, replicas),
            _ if settings.rule == ReplicaRule::Proportional => true,
            _ => {
                let left = f64::from(replicas) / f64::from(self.seen.replicas.max(1));
                left >= self.memory.controller.enough(settings)
            }
        }
    }

    /// Raises the sizes when there are fewer replicas to carry the load.
    fn spread_over(&mut self, replicas: u32, mut sizes: Vec<(String, Size)>) -> Vec<(String, Size)> {
        let (Some(settings), Some((at, _))) = (self.horizontal(), self.need) else { return sizes };
        let vertical = self.busiest();
        if replicas >= self.seen.replicas || replicas == 0 || !vertical.cpu {
            return sizes;
        }
        let each = self.needed(settings, replicas).map_or(0, from_float);
        let wanted = vertical.cpu_bounds.clamp(each.min(vertical.cpu_cap_milli.max(1)));
        let (name, size) = &mut sizes[at];
        if wanted > size.cpu_milli {
            let text = format!(
                "cpu of {name} {}m -> {wanted}m, because fewer replicas carry the load",
                size.cpu_milli
            );
            size.cpu_milli = wanted;
            self.explain(format_args!("{text}"));
        }
        sizes
    }
}
