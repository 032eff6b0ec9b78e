//! Events about resized or evicted pods. The reasons are those of the upstream updater.

use jiff::Timestamp;

use super::writer::PodId;
use crate::report_json::{EventBody, Regarding, instance, note_of};

const CONTROLLER: &str = "berth";

/// An event about a pod.
#[derive(Debug, Clone)]
pub struct PodEvent<'a> {
    pub pod: PodId<'a>,
    pub reason: &'static str,
    pub note: String,
    pub is_warning: bool,
}

impl<'a> PodEvent<'a> {
    pub fn resized(pod: PodId<'a>, vpa: &str) -> Self {
        let note = format!("Pod was resized in place as VerticalPodAutoscaler {vpa} recommends");
        PodEvent { pod, reason: "InPlaceResizedByVPA", note, is_warning: false }
    }

    pub fn boost_ended(pod: PodId<'a>) -> Self {
        let note = "Pod was resized in place: its startup boost has ended".to_owned();
        PodEvent { pod, reason: "StartupBoostEnded", note, is_warning: false }
    }

    pub fn evicted(pod: PodId<'a>, vpa: &str) -> Self {
        let note = format!("Pod was evicted to apply what VerticalPodAutoscaler {vpa} recommends");
        PodEvent { pod, reason: "EvictedByVPA", note, is_warning: false }
    }

    /// The pod was not updated, for this reason.
    pub fn held(pod: PodId<'a>, vpa: &str, why: &str) -> Self {
        let note = format!("Not updated as VerticalPodAutoscaler {vpa} recommends: {why}");
        PodEvent { pod, reason: "NotUpdatedByVPA", note, is_warning: true }
    }

    pub(super) fn body(&self, host: &str) -> EventBody<'_> {
        let PodId { namespace, name, uid } = self.pod;
        let regarding = Regarding { api_version: "v1", kind: "Pod", namespace, name, uid };
        let kind = if self.is_warning { "Warning" } else { "Normal" };
        let said = (kind, self.reason, "Updating", note_of(&self.note));
        EventBody::about(regarding, said, (CONTROLLER, instance(CONTROLLER, host)), Timestamp::now())
    }
}
