//! Both halves together.
//!
//! SHOWAR's rules: (1) the vertical half goes first; (2) CPU beyond the cap is not given: it holds the size, and tells the
//! horizontal half over a channel they share, which adds replicas. What the paper leaves open would let the halves work
//! against each other: replicas lower the usage of each, sizes follow it down, saturation rises again, until there are many
//! tiny pods. So, beyond the paper:
//!
//! * Saturation is answered by size first, as long as the cap allows it: that is there at once, a new pod is not.
//! * CPU shrinks only as far as the worst signal lately lets expect that saturation stays below its setpoint, and not while
//!   one replica less would do, with what it did given to the others: then that goes first, as a pod takes memory whatever
//!   it does.
//! * What a size has got is not soon taken away: only where a quarter of it is spare, and not within an hour after anything
//!   grew. Too much for an hour costs less than too little for a minute.
//! * Samples count as if as many pods as now had shared the load then ([`super::shares`]).
//! * Usage at the limit is no measure of need: where nothing is known of saturation, throttled containers grow by a step.
//! * Memory keeps some room above its peak, and grows as soon as half of that is used: less than 15 % too little kills, too.
//! * Far beyond the setpoint steps are larger, and do not wait for their turn.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::{Deserialize, Serialize};

use super::horizontal::{self, Controller, Wish, Worst, step};
use super::observation::{Container, Observation, Seconds, Size};
use super::settings::{Horizontal, Settings, Vertical};
use super::shares::Shares;
use super::vertical::{Peaks, Usage, after_kill, differs, is_spare, usage};
use crate::recommend::amount::{from_float, scale};

/// More containers of a pod than this are not sized.
const CONTAINERS_MAX: usize = 64;
const REASON_MAX: usize = 600;
/// Nothing shrinks while no samples come of more than so large a share of the pods.
const UNHEARD_MAX: f64 = 0.1;
/// So large a share of throttled samples counts.
const THROTTLED_MIN: f64 = 0.2;

/// What is remembered of a workload between decisions.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Memory {
    /// What was decided last; another number was set by somebody else.
    pub replicas: Option<u32>,
    /// When sizes were looked at last.
    pub sized_s: Option<Seconds>,
    /// When replicas were.
    pub scaled_s: Option<Seconds>,
    /// When anything grew.
    pub grown_s: Option<Seconds>,
    pub controller: Controller,
    /// What the busiest containers of all pods needed of CPU together, at most, lately.
    pub need: Worst,
    /// How many pods shared the load.
    pub shares: Shares,
    /// By container: its highest needs for memory.
    pub peaks: BTreeMap<String, Peaks>,
}

impl Memory {
    /// Times ahead of the clock are those of another clock, or of this one before it was set back. They are taken for now: what
    /// rests for a while rests that long once more, and no longer.
    fn without_the_future(&mut self, now: Seconds) {
        let times = [&mut self.sized_s, &mut self.scaled_s, &mut self.grown_s];
        for time in times.into_iter().chain([&mut self.need.time_s, &mut self.controller.worst.time_s]) {
            *time = time.map(|time| time.min(now));
        }
    }
}

/// What is to be done. Both are complete: what does not change is what it was.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Decision {
    pub replicas: u32,
    /// For each container that was observed; 0 where nothing was set and nothing is known.
    pub sizes: Vec<(String, Size)>,
    pub replicas_changed: bool,
    pub sizes_changed: bool,
    /// Why, in one line, with what it was decided from.
    pub reason: String,
}

/// Decides what the workload should be like now.
///
/// Replicas are within their bounds whatever is observed, but where somebody else owns them or has switched the workload
/// off. Sizes that are changed are within theirs.
pub fn decide(settings: &Settings, memory: &mut Memory, seen: &Observation, now: Seconds) -> Decision {
    let containers = &seen.containers[..seen.containers.len().min(CONTAINERS_MAX)];
    memory.peaks.retain(|name, _| containers.iter().any(|container| container.name == *name));
    memory.peaks.values_mut().for_each(Peaks::limit);
    memory.without_the_future(now);
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
        reason: String::new(),
    };
    if seen.replicas == 0 {
        round.memory.replicas = None;
        let sizes = containers.iter().map(|container| (container.name.clone(), container.size)).collect();
        return Decision {
            sizes,
            reason: "switched off: no replicas are asked for".into(),
            ..Decision::default()
        };
    }
    round.notice_others();
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
    memory.replicas = Some(replicas);
    Decision {
        replicas,
        replicas_changed: replicas != seen.replicas,
        sizes_changed: containers.iter().zip(&sizes).any(|(container, (_, size))| container.size != *size),
        sizes,
        reason,
    }
}

/// One decision in the making.
struct Round<'a> {
    settings: &'a Settings,
    memory: &'a mut Memory,
    seen: &'a Observation,
    now: Seconds,
    /// When it can be believed.
    signal: Option<f64>,
    /// What the controller wants; taken by whoever answers it.
    wish: Option<Wish>,
    /// The shared channel.
    scale_out: bool,
    /// CPU was taken away in this round.
    shrunk: bool,
    /// CPU was added in this round.
    grown: bool,
    /// What the busiest container needs of CPU in each pod, and its place.
    need: Option<(usize, i64)>,
    reason: String,
}

impl<'a> Round<'a> {
    fn say(&mut self, what: std::fmt::Arguments<'_>) {
        let between = if self.reason.is_empty() { "" } else { "; " };
        let _ = write!(self.reason, "{between}{what}");
    }

    /// Seconds since then.
    fn since(&self, then: Option<Seconds>) -> Seconds {
        then.map_or(i64::MAX, |then| self.now.saturating_sub(then))
    }

    fn horizontal(&self) -> Option<&'a Horizontal> {
        self.settings.horizontal.as_ref().filter(|_| self.seen.frozen.is_none())
    }

    /// Somebody else set the replicas: what was learnt belongs to another number.
    fn notice_others(&mut self) {
        let Some(ours) = self.memory.replicas.filter(|ours| *ours != self.seen.replicas) else { return };
        self.memory.controller.reset();
        self.memory.grown_s = Some(self.now);
        self.say(format_args!("replicas {ours} became {} by somebody else", self.seen.replicas));
    }

    /// Asks the controller, when it is its turn.
    fn listen(&mut self) {
        let Some(settings) = self.horizontal() else {
            if let Some(owner) = self.seen.frozen.as_ref() {
                self.memory.controller.reset();
                self.say(format_args!("{owner} decides about replicas: they and the CPU size stay"));
            }
            return;
        };
        let signal = match horizontal::signal(self.seen.signal, self.now, settings) {
            Ok(signal) => signal,
            Err(unknown) => {
                self.memory.controller.reset();
                return self.say(format_args!("replicas stay: {unknown}"));
            }
        };
        self.signal = Some(signal);
        self.memory.controller.worst.hear(signal, self.now, settings.hold_s);
        let due = self.since(self.memory.scaled_s) >= settings.every_s;
        if !due && !Controller::is_urgent(signal, settings) {
            return;
        }
        self.wish = Some(self.memory.controller.turn(signal, settings));
        self.memory.scaled_s = Some(self.now);
        self.say(format_args!("signal {signal:.4} of {:.4}", settings.setpoint));
    }

    /// The vertical half.
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
                        self.say(format_args!("cpu of {} stays: {unknown}", container.name));
                    }
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

    fn cpu_usage(&self, container: &Container) -> Result<Usage, super::vertical::Unknown> {
        let vertical = self.settings.of(&container.name);
        let throttle = container.size.cpu_milli as f64 * vertical.throttled_at;
        usage(&self.memory.shares.as_of_now(&container.cpu), self.now, throttle, vertical)
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
            // Only now the clock is known to be right: nothing is forgotten for one that jumped ahead.
            peaks.trim(self.now, self.settings.vertical.peak_hours);
            peaks.add(self.now, from_float(usage.max));
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
                    self.say(format_args!("memory of {} stays: {unknown}", container.name));
                }
                return current;
            }
        };
        // Too little kills: that cannot wait for its turn, nor for a difference that is worth it.
        let room = if vertical.memory_room.is_finite() { vertical.memory_room.clamp(0.0, 10.0) } else { 0.0 };
        let wanted = vertical.memory_bounds.clamp(scale(needed, 1.0 + room));
        let grows = needed > current || scale(needed, 1.0 + room / 2.0) > current;
        let shrinks = due && wanted < current && differs(current, wanted, vertical);
        if wanted == current || !(grows && wanted > current || shrinks) {
            return current;
        }
        if wanted < current
            && let Some(why) = self.unheard(container.unheard.memory)
        {
            self.say(format_args!("memory of {} stays: {why}", container.name));
            return current;
        }
        let what = match &usage {
            Ok(usage) => format!("mean {:.0}, deviation {:.0}, peak {peak}", usage.mean, usage.deviation),
            Err(unknown) => unknown.to_string(),
        };
        let (name, kills) = (&container.name, container.oom_kills);
        self.say(format_args!("memory of {name} {current} -> {wanted}: {what}, {kills} kills"));
        wanted
    }

    fn cpu_size(
        &mut self,
        container: &Container,
        usage: &Usage,
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
        // Where saturation is known, it says better what usage at the limit means.
        let throttled = usage.throttled >= THROTTLED_MIN && current > 0 && self.signal.is_none();
        let wanted =
            if throttled { wanted.max(self.a_step_more(current, self.step_share())) } else { wanted };
        let wanted = if wanted > cap && throttled && current < cap { cap } else { wanted };
        let (name, mean, deviation) = (&container.name, usage.mean, usage.deviation);
        if wanted > cap {
            if self.horizontal().is_some() {
                self.scale_out = true;
            }
            self.say(format_args!("cpu of {name} stays: it would be {wanted}m, more than {cap}m"));
            // Without a size the pod could not be counted on at all.
            return if current > 0 { current } else { vertical.cpu_bounds.clamp(cap) };
        }
        let mut wanted = vertical.cpu_bounds.clamp(wanted);
        if !differs(current, wanted, vertical) {
            return current;
        }
        if wanted < current {
            let may_shrink = self.unheard(container.unheard.cpu);
            let may_shrink = may_shrink.map_or_else(|| self.may_shrink(current, busy, vertical), Err);
            let enough = match may_shrink {
                Ok(enough) => vertical.cpu_bounds.clamp(wanted.max(enough)),
                Err(why) => {
                    self.say(format_args!("cpu of {name} stays at {current}m: {why}"));
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
        self.say(format_args!(
            "cpu of {name} {current}m -> {wanted}m: mean {mean:.0}m, deviation {deviation:.0}m of {count} samples"
        ));
        wanted
    }

    /// The most that each needed lately, when this is what it needs now.
    fn lately(&mut self, need: i64) -> i64 {
        let hold_s = self.settings.horizontal.as_ref().map_or(0, |settings| settings.hold_s);
        let replicas = f64::from(self.seen.replicas);
        self.memory.need.hear(need as f64 * replicas, self.now, hold_s);
        from_float(self.memory.need.value / replicas).max(need)
    }

    /// The share by which replicas would change.
    fn step_share(&self) -> f64 {
        let share = self.settings.horizontal.as_ref().map_or(0.1, |settings| settings.step);
        f64::from(step(self.seen.replicas, share)) / f64::from(self.seen.replicas.max(1))
    }

    /// A size that is larger by this share, and by enough to matter.
    fn a_step_more(&self, current: i64, share: f64) -> i64 {
        scale(current, 1.0 + share.max(self.settings.vertical.change + 0.01))
    }

    /// Answers saturation by the size of the busiest container, when there is room below the cap.
    fn answer(&mut self, container: &Container) -> Option<i64> {
        let current = container.size.cpu_milli;
        let vertical = self.settings.of(&container.name);
        let most = vertical.cpu_bounds.clamp(vertical.cpu_cap_milli.max(1));
        if current <= 0 || current >= most {
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
        self.say(format_args!("cpu of {} {current}m -> {wanted}m for it", container.name));
        Some(wanted)
    }

    /// Why what was heard of a container does not tell that less is enough, when nothing was of so many pods.
    fn unheard(&self, unheard: u32) -> Option<String> {
        let ready = self.seen.ready;
        let few = f64::from(unheard) <= UNHEARD_MAX * f64::from(ready);
        (!few).then(|| format!("nothing was heard of {unheard} of {ready} ready pods"))
    }

    /// What is left when CPU is taken away, as far as saturation lets it.
    fn may_shrink(&self, current: i64, busy: bool, vertical: &Vertical) -> Result<i64, String> {
        let since = self.since(self.memory.grown_s);
        if since < vertical.hold_s {
            return Err(format!("something grew {since} s ago"));
        }
        let Some(settings) = self.horizontal() else { return Ok(0) };
        let Some(signal) = self.signal else { return Err("nothing is known of saturation".into()) };
        if signal >= settings.setpoint {
            return Err(format!("the signal is {signal:.4}"));
        }
        let fewer = self.seen.replicas - 1;
        if self.seen.replicas > settings.min_replicas.max(1) && self.fits(settings, fewer) {
            return Err(format!("{fewer} replicas would do"));
        }
        let need = self.need.map_or(0, |(_, need)| need);
        Ok(scale(current, self.memory.controller.enough(settings)).max(if busy { need } else { 0 }))
    }

    /// What each of so many replicas would need to do what all do now, by what they use and by the worst signal lately.
    fn needed(&self, settings: &Horizontal, replicas: u32) -> Option<f64> {
        let (at, need) = self.need?;
        let current = self.seen.containers[at].size.cpu_milli;
        let each = (need as f64).max(current as f64 * self.memory.controller.enough(settings));
        Some(each * f64::from(self.seen.replicas) / f64::from(replicas.max(1)))
    }

    /// How the busiest container is sized, if one is known.
    fn busiest(&self) -> &Vertical {
        let name = self.need.and_then(|(at, _)| self.seen.containers.get(at)).map(|it| it.name.as_str());
        name.map_or(&self.settings.vertical, |name| self.settings.of(name))
    }

    /// Whether so many replicas could do it, with some room below the cap.
    fn fits(&self, settings: &Horizontal, replicas: u32) -> bool {
        let vertical = self.busiest();
        let room = vertical.cpu_cap_milli as f64 * (1.0 - vertical.change.clamp(0.0, 1.0));
        replicas > 0 && self.needed(settings, replicas).is_some_and(|needed| needed <= room)
    }

    /// Bounds hold for what is set, also when nothing else is known; what is not ours stays as it is.
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

    /// The horizontal half.
    fn replicas(&mut self) -> u32 {
        let Some(settings) = self.horizontal() else { return self.seen.replicas };
        let now = self.seen.replicas;
        let wanted = self.wanted_replicas(settings);
        let within = settings.clamp(wanted);
        if within != wanted {
            self.say(format_args!("replicas are {} to {}", settings.min_replicas, settings.max_replicas));
        }
        if within != now {
            self.memory.controller.reset();
            self.memory.scaled_s = Some(self.now);
            self.say(format_args!("replicas {now} -> {within}"));
            if within > now {
                self.memory.grown_s = Some(self.now);
            }
        }
        within
    }

    fn wanted_replicas(&mut self, settings: &Horizontal) -> u32 {
        let now = self.seen.replicas;
        let more = |share| now.saturating_add(step(now, share));
        // Pods that are to come are part of the answer, unless they do not come at all.
        let starting = self.seen.ready < now && self.since(self.memory.grown_s) < settings.every_s;
        let success = horizontal::success(self.seen.success, self.now, settings);
        // Rule 1: what is killed for want of memory fails however many there are.
        let killed = self.seen.containers.iter().any(|container| container.oom_kills > 0);
        let failing = success.filter(|success| *success < settings.success_min && !killed);
        let grow = match (self.wish.take(), failing) {
            (Some(Wish::GrowFast), _) => Some(settings.urgent_step.max(settings.step)),
            (Some(Wish::Grow), _) => Some(settings.step),
            (_, Some(success)) if self.since(self.memory.grown_s) >= settings.every_s && !self.grown => {
                self.say(format_args!("{:.2} % of requests succeed", success * 100.0));
                Some(settings.step)
            }
            // Without a signal nobody would notice that it was too much.
            _ if self.scale_out && self.signal.is_some() => {
                self.say(format_args!("scale out for CPU"));
                Some(settings.step)
            }
            (Some(Wish::Shrink), _) => return now - self.fewer(settings).min(now.saturating_sub(1)),
            _ => None,
        };
        match grow {
            Some(_) if starting => {
                self.say(format_args!(
                    "{} of {now} replicas are still starting",
                    now - self.seen.ready.min(now)
                ));
                now
            }
            Some(share) => more(share),
            None => now,
        }
    }

    /// How many replicas may go.
    fn fewer(&mut self, settings: &Horizontal) -> u32 {
        let since = self.since(self.memory.grown_s);
        if since < settings.hold_s {
            self.say(format_args!("replicas stay: something grew {since} s ago"));
            return 0;
        }
        if let Some(why) = self.need.and_then(|(at, _)| self.unheard(self.seen.containers[at].unheard.cpu)) {
            self.say(format_args!("replicas stay: {why}"));
            return 0;
        }
        if self.shrunk {
            self.say(format_args!("replicas stay: the CPU size shrinks first"));
            return 0;
        }
        let now = self.seen.replicas;
        let most = step(now, settings.step).min(now.saturating_sub(settings.min_replicas.max(1)));
        let fewer = std::iter::successors(Some(most), |fewer| (*fewer > 1).then_some(fewer / 2))
            .find(|fewer| self.can_do(settings, now - fewer))
            .unwrap_or(0);
        if fewer == 0 && most > 0 {
            self.say(format_args!("replicas stay: fewer would need more CPU than the cap"));
        }
        fewer
    }

    /// Whether so many replicas can do it. Sizes that are not ours stay as they are.
    fn can_do(&self, settings: &Horizontal, replicas: u32) -> bool {
        match self.need {
            Some(_) if self.busiest().cpu => self.fits(settings, replicas),
            _ => {
                let left = f64::from(replicas) / f64::from(self.seen.replicas.max(1));
                left >= self.memory.controller.enough(settings)
            }
        }
    }

    /// When there are fewer replicas, each must be able to do more.
    fn spread_over(&mut self, replicas: u32, mut sizes: Vec<(String, Size)>) -> Vec<(String, Size)> {
        let (Some(settings), Some((at, _))) = (self.horizontal(), self.need) else { return sizes };
        let vertical = self.busiest();
        if replicas >= self.seen.replicas || !vertical.cpu {
            return sizes;
        }
        let each = self.needed(settings, replicas).map_or(0, from_float);
        let wanted = vertical.cpu_bounds.clamp(each.min(vertical.cpu_cap_milli.max(1)));
        let (name, size) = &mut sizes[at];
        if wanted > size.cpu_milli {
            let text =
                format!("cpu of {name} {}m -> {wanted}m, as fewer replicas do the same", size.cpu_milli);
            size.cpu_milli = wanted;
            self.say(format_args!("{text}"));
        }
        sizes
    }
}
