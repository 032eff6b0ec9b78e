//! Outcomes of what the engine has handed to its [`Outlet`](super::Outlet). Each call settles one pod.

use std::borrow::Cow;

use super::{Engine, Operation};
use crate::placement::{BindOutcome, Binding, ClaimOrder};
use crate::recording::Input;
use crate::scheduler::{BindsUnderWay, Eviction};

impl Engine {
    /// Settles a bind: confirms the charge of the pod, or releases it and requeues the pod. To be called exactly once for each bind.
    /// Bounded by the pod.
    pub fn bind_finished(&self, binding: &Binding, outcome: BindOutcome) {
        let heard = self.heard(|| Input::BindFinished(Cow::Borrowed(binding), Cow::Borrowed(&outcome)));
        self.hear(Operation::Bind, heard, |scheduler, now| scheduler.bind_finished(binding, outcome, now));
    }

    /// Records which claims of a pod were written, or why not: the pod waits until they are bound, or is requeued. Bounded by the pod's
    /// claims.
    pub fn claims_written(&self, order: &ClaimOrder, written: Result<Vec<u64>, String>) {
        let heard = self.heard(|| Input::ClaimsWritten(Cow::Borrowed(order), Cow::Borrowed(&written)));
        self.hear(Operation::Bind, heard, |scheduler, now| scheduler.claims_written(order, written, now));
    }

    /// Records the result of an eviction. If it failed, the pods and gangs that wait for the room back off. Bounded by the number of
    /// nominated pods and their gangs.
    pub fn eviction_finished(&self, eviction: &Eviction, ended: Result<(), String>) {
        let heard = self.heard(|| Input::EvictionFinished(Cow::Borrowed(eviction), Cow::Borrowed(&ended)));
        self.hear(Operation::Bind, heard, |scheduler, now| scheduler.eviction_finished(eviction, ended, now));
    }

    /// Returns the numbers of binds whose outcome is not known, or not yet seen. Constant time.
    pub fn binds_under_way(&self) -> BindsUnderWay {
        self.read(Operation::Bind, |scheduler, _| scheduler.binds_under_way())
    }
}
