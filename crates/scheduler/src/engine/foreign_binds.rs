//! Binds that other clients request: reviews of the guard, and binds for the extender.
//!
//! Each call but [`Engine::holds_due`] concerns one pod and one node. They evaluate only the rules that look at that node alone.

use std::borrow::Cow;
use std::time::Duration;

use super::{Engine, Operation};
use crate::placement::{BindOutcome, Binding, Truth};
use crate::recording::Input;
use crate::scheduler::{BindReview, ExtenderBind, Requester};
use berth_model::Pod;

impl Engine {
    /// Reviews a binding that a client requests from the API server, and if it fits reserves its room for `hold`, in which the request
    /// can take effect (`None`: never, and nothing is reserved). `pod`: the pod, if the caller has just read it.
    pub fn review(
        &self,
        binding: &Binding,
        pod: Option<&Pod>,
        hold: Option<Duration>,
        requester: Requester,
    ) -> BindReview {
        let heard = self.heard(|| Input::Review {
            binding: Cow::Borrowed(binding),
            pod: pod.map(Cow::Borrowed),
            hold,
            requester,
        });
        self.hear(Operation::Review, heard, |scheduler, now| {
            scheduler.review(binding, pod, hold.map(|hold| now + hold), requester)
        })
    }

    /// Returns the reviewed bindings whose hold has expired; the caller reads each pod and calls [`Engine::held_pod_read`]. Changes
    /// nothing. Bounded by the number of holds.
    pub fn holds_due(&self) -> Vec<Binding> {
        self.read(Operation::Review, |scheduler, now| scheduler.holds_due(now))
    }

    /// Ends an expired hold: releases the room, or charges the node that the pod is bound to. Keeps it if the pod could not be read,
    /// or if the hold had not expired when the read was sent, `asked`.
    pub fn held_pod_read(&self, binding: &Binding, truth: &Truth, asked: Duration) {
        let (of, read) = (Cow::Borrowed(binding), Cow::Borrowed(truth));
        let heard = self.heard(|| Input::HeldPodRead { binding: of, truth: read, asked });
        self.hear(Operation::Review, heard, |scheduler, now| {
            scheduler.held_pod_read(binding, truth, asked, now);
        });
    }

    /// Charges a pod of another scheduler to the wanted node if it fits; the caller then binds it and calls
    /// [`Engine::extender_bind_finished`]. `pod`: the pod, if the caller has just read it.
    pub fn begin_extender_bind(&self, wanted: &Binding, pod: Option<&Pod>) -> ExtenderBind {
        let (of, read) = (Cow::Borrowed(wanted), pod.map(Cow::Borrowed));
        let heard = self.heard(|| Input::BeginExtenderBind { wanted: of, pod: read });
        self.hear(Operation::ExtenderBind, heard, |scheduler, _| scheduler.begin_extender_bind(wanted, pod))
    }

    /// Settles a bind of [`ExtenderBind::Begin`]: confirms the charge or releases it. To be called exactly once for each.
    pub fn extender_bind_finished(&self, binding: &Binding, outcome: &BindOutcome) {
        let heard =
            self.heard(|| Input::ExtenderBindFinished(Cow::Borrowed(binding), Cow::Borrowed(outcome)));
        self.hear(Operation::ExtenderBind, heard, |scheduler, _| {
            scheduler.extender_bind_finished(binding, outcome);
        });
    }
}
