//! State of one running container: the times of its last samples, and its peak in the open window.
//!
//! Upstream: `pkg/recommender/model/container.go`. Everything else goes into the [`Aggregate`] immediately, so
//! nothing is lost when the container ends.

use super::aggregate::Aggregate;
use super::amount::{self, Amount};
use super::time::{NEVER, UnixNanos};

/// Rules by which memory samples become peaks. A VPA can override them for a container.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MemoryRules {
    /// Window length in nanoseconds, at least 1.
    pub interval_ns: i64,
    /// Number of windows without samples after which an aggregate expires.
    pub interval_count: u32,
    pub oom_bump_ratio: f64,
    pub oom_min_bump: Amount,
}

impl MemoryRules {
    /// Returns the memory that a container needs which was OOM-killed with this much.
    pub fn after_kill(&self, used: Amount) -> Amount {
        used.saturating_add(self.oom_min_bump).max(amount::scale(used, self.oom_bump_ratio))
    }
}

/// Reason why a sample is not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("usage is negative")]
    Negative,
    #[error("sample is not newer than the last one")]
    Stale,
    #[error("OOM event is too old")]
    OldOom,
    #[error("sample is in the future")]
    Future,
    #[error("container is unknown")]
    Unknown,
}

/// State of one running container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContainerState {
    pub(super) last_cpu: UnixNanos,
    pub(super) last_memory: UnixNanos,
    /// [`NEVER`] before the first memory sample.
    pub(super) window_end: UnixNanos,
    /// Highest usage in the open window.
    pub(super) memory_peak: Option<Amount>,
    /// Highest memory needed after an OOM kill in the open window.
    pub(super) oom_peak: Option<Amount>,
}

impl Default for ContainerState {
    fn default() -> Self {
        Self { last_cpu: NEVER, last_memory: NEVER, window_end: NEVER, memory_peak: None, oom_peak: None }
    }
}

impl ContainerState {
    /// Adds a CPU usage, measured from `time` on.
    pub fn add_cpu(
        &mut self,
        aggregate: &mut Aggregate,
        millicores: Amount,
        time: UnixNanos,
    ) -> Result<(), Refused> {
        if millicores < 0 {
            return Err(Refused::Negative);
        }
        if time <= self.last_cpu {
            return Err(Refused::Stale);
        }
        aggregate.add_cpu(millicores, time);
        self.last_cpu = time;
        Ok(())
    }

    /// Adds a memory usage.
    ///
    /// With `strict_upstream`, a window whose first sample is 0 bytes ignores all later ones, even OOM kills.
    pub fn add_memory(
        &mut self,
        aggregate: &mut Aggregate,
        bytes: Amount,
        time: UnixNanos,
        rules: &MemoryRules,
        strict_upstream: bool,
    ) -> Result<(), Refused> {
        if bytes < 0 {
            return Err(Refused::Negative);
        }
        if time < self.last_memory {
            return Err(Refused::Stale);
        }
        self.last_memory = time;
        aggregate.count_memory_sample(time);
        if self.is_new_peak(aggregate, bytes, time, rules, strict_upstream) {
            self.memory_peak = Some(bytes);
        }
        Ok(())
    }

    /// Records an OOM kill; `requested` is the memory request at that time. Returns the memory needed.
    ///
    /// The memory needed is derived from the request and usage, not from earlier OOM kills, so that it cannot grow
    /// without limit.
    pub fn record_oom(
        &mut self,
        aggregate: &mut Aggregate,
        requested: Amount,
        time: UnixNanos,
        rules: &MemoryRules,
        strict_upstream: bool,
    ) -> Result<Amount, Refused> {
        if time < self.last_memory.saturating_sub(rules.interval_ns) {
            return Err(Refused::OldOom);
        }
        let used = requested.max(self.memory_peak.unwrap_or(0));
        let needed = rules.after_kill(used);
        if needed < 0 {
            return Err(Refused::Negative);
        }
        // In upstream, an OOM kill reported late turns the clock back, so that samples are counted twice.
        self.last_memory = if strict_upstream { time } else { self.last_memory.max(time) };
        aggregate.count_memory_sample(time);
        if self.is_new_peak(aggregate, needed, time, rules, strict_upstream) {
            self.oom_peak = Some(needed);
        }
        Ok(needed)
    }

    /// Returns the peak that the aggregate contains for the window open at `now`, and the window's end.
    pub fn open_peak(&self, now: UnixNanos) -> Option<(Amount, UnixNanos)> {
        let peak = self.memory_peak.max(self.oom_peak)?;
        (now < self.window_end).then_some((peak, self.window_end))
    }

    /// Puts `bytes` into the aggregate if it is a new peak of the window of `time`.
    fn is_new_peak(
        &mut self,
        aggregate: &mut Aggregate,
        bytes: Amount,
        time: UnixNanos,
        rules: &MemoryRules,
        strict_upstream: bool,
    ) -> bool {
        if self.window_end == NEVER {
            self.window_end = time;
        }
        if time < self.window_end {
            match self.memory_peak.max(self.oom_peak) {
                Some(0) if strict_upstream => return false,
                Some(peak) if bytes <= peak => return false,
                Some(peak) => aggregate.subtract_peak(peak, self.window_end),
                None => {}
            }
        } else {
            self.open_window(time, rules.interval_ns.max(1));
        }
        aggregate.add_peak(bytes, self.window_end);
        true
    }

    /// Advances the window to `time`. Windows follow one another without gaps from the first sample on.
    fn open_window(&mut self, time: UnixNanos, interval_ns: i64) {
        let late = time.saturating_sub(self.window_end);
        let whole = late - late % interval_ns;
        self.window_end = self.window_end.saturating_add(whole).saturating_add(interval_ns);
        self.memory_peak = None;
        self.oom_peak = None;
    }
}
