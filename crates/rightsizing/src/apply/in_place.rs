//! In-place resize: the next action for a pod, given the state of its last resize.
//!
//! Upstream: `pkg/updater/restriction/pods_inplace_restriction.go`. An infeasible size is remembered by the pod
//! itself, in its spec.

use super::hold::Hold;
use super::memory::OfPod;
use super::mode::Mode;
use super::pod::SizeChange;
use super::pod::{Resize, SizedPod};
use crate::recommend::{OptionalAmounts, UnixNanos};

const MINUTE_NS: i64 = 60_000_000_000;
/// Time after which a deferred resize is given up.
pub const DEFERRED_MAX: i64 = 5 * MINUTE_NS;
/// Time after which a resize in progress is given up.
pub const IN_PROGRESS_MAX: i64 = 60 * MINUTE_NS;
/// Minimum time between two resizes of a pod, because recommendations may fluctuate.
pub const REST: i64 = 5 * MINUTE_NS;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResizeAdvice {
    Resize,
    /// In-place resize does not work.
    Evict,
    Hold(Hold),
}

/// Decides the next action. `is_urgent`: the pod is OOM-killed repeatedly.
pub(super) fn advise(
    mode: Mode,
    pod: &SizedPod,
    changes: &[SizeChange],
    is_urgent: bool,
    known: &mut OfPod,
    now: UnixNanos,
) -> ResizeAdvice {
    if pod.is_pending {
        return ResizeAdvice::Hold(Hold::Pending);
    }
    let Some(resize) = pod.resize else {
        known.resizing = None;
        return rested(pod, changes, is_urgent, known, now);
    };
    let began = *known.resizing.get_or_insert(known.asked.unwrap_or(now));
    let lasted = now.saturating_sub(began);
    if mode == Mode::InPlace {
        return match resize {
            Resize::Infeasible if is_less(pod, changes) => ResizeAdvice::Resize,
            Resize::Infeasible => ResizeAdvice::Hold(Hold::Infeasible),
            // Another size may be possible: a limit cannot be lowered below the usage, but raised again.
            Resize::Error => match rested(pod, changes, is_urgent, known, now) {
                ResizeAdvice::Hold(Hold::Asked) => ResizeAdvice::Hold(Hold::Infeasible),
                advice => advice,
            },
            _ => ResizeAdvice::Hold(Hold::Resizing),
        };
    }
    let is_over = match resize {
        Resize::Infeasible | Resize::Error | Resize::Unknown => true,
        Resize::Deferred => lasted > DEFERRED_MAX,
        Resize::InProgress => lasted > IN_PROGRESS_MAX,
    };
    if is_over { ResizeAdvice::Evict } else { ResizeAdvice::Hold(Hold::Resizing) }
}

/// Decides for a pod without a resize that its kubelet knows of.
fn rested(
    pod: &SizedPod,
    changes: &[SizeChange],
    is_urgent: bool,
    known: &OfPod,
    now: UnixNanos,
) -> ResizeAdvice {
    let is_in = |change: &SizeChange| {
        pod.containers.get(change.container).is_none_or(|container| change.is_in(container.wanted))
    };
    if changes.iter().all(is_in) {
        return ResizeAdvice::Hold(Hold::Asked);
    }
    match known.asked {
        Some(asked) if now.saturating_sub(asked) < REST && !is_urgent => {
            ResizeAdvice::Hold(Hold::JustResized)
        }
        _ => ResizeAdvice::Resize,
    }
}

/// Returns whether some request would be lower than the one that is infeasible on its node.
pub fn is_less(pod: &SizedPod, changes: &[SizeChange]) -> bool {
    let lower = |now: OptionalAmounts, before: OptionalAmounts| {
        let lower = now.zip(before).map(|(now, before): (Option<i64>, Option<i64>)| {
            now.zip(before).is_some_and(|(now, before)| now < before)
        });
        lower.cpu || lower.memory
    };
    changes.iter().any(|change| {
        let container = pod.containers.get(change.container);
        container.is_some_and(|container| lower(change.requests, container.wanted.requests))
    })
}
