//! Wire format of conditions and events: as kube-scheduler writes them, since autoscalers and people parse them.
//!
//! Sources: upstream `pkg/scheduler/schedule_one.go` (texts, truncation), `client-go/tools/events/event_recorder.go`
//! (the event), `pkg/api/v1/pod/util.go` (the condition).

use http::{Method, Request};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use kube::client::Body;
use serde::Serialize;

use super::backlog::{Event, PodEventKind, UnscheduledCondition};
use super::client;
use berth_model::PodRef;

/// Upstream `validation.NoteLengthLimit`, in bytes. Events with longer notes are refused.
const NOTE_BYTES_MAX: usize = 1024;
/// Upstream `ReportingInstanceLengthLimit`, in bytes.
const INSTANCE_BYTES_MAX: usize = 128;
/// Maximum length of an object name, in bytes.
const NAME_BYTES_MAX: usize = 253;

/// A strategic merge patch of `pods/status` with one condition. The uid is a precondition.
#[derive(Debug, Serialize)]
pub(crate) struct ConditionPatch<'a> {
    metadata: PatchMeta<'a>,
    status: PatchStatus<'a>,
}

#[derive(Debug, Serialize)]
struct PatchMeta<'a> {
    uid: &'a str,
}

#[derive(Debug, Serialize)]
struct PatchStatus<'a> {
    conditions: [PodCondition<'a>; 1],
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PodCondition<'a> {
    pub last_probe_time: Option<Time>,
    /// If left out, the existing one stays.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    pub message: &'a str,
    pub observed_generation: i64,
    pub reason: &'a str,
    pub status: &'static str,
    #[serde(rename = "type")]
    pub kind: &'static str,
}

impl<'a> ConditionPatch<'a> {
    pub fn new(uid: &'a str, condition: PodCondition<'a>) -> Self {
        ConditionPatch { metadata: PatchMeta { uid }, status: PatchStatus { conditions: [condition] } }
    }
}

impl<'a> From<&'a UnscheduledCondition> for ConditionPatch<'a> {
    fn from(condition: &'a UnscheduledCondition) -> Self {
        ConditionPatch::new(
            &condition.pod.uid,
            PodCondition {
                last_probe_time: None,
                last_transition_time: condition.transition.map(Time),
                message: &condition.message,
                observed_generation: condition.generation,
                reason: condition.reason,
                status: "False",
                kind: "PodScheduled",
            },
        )
    }
}

/// `events.k8s.io/v1` `Event`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EventBody<'a> {
    api_version: &'static str,
    kind: &'static str,
    metadata: EventMeta<'a>,
    event_time: MicroTime,
    reporting_controller: &'a str,
    reporting_instance: String,
    action: &'static str,
    reason: &'static str,
    regarding: Regarding<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    related: Option<Regarding<'a>>,
    note: String,
    #[serde(rename = "type")]
    event_type: &'static str,
}

#[derive(Debug, Serialize)]
struct EventMeta<'a> {
    name: String,
    namespace: &'a str,
}

/// The object that an event is about.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Regarding<'a> {
    pub api_version: &'static str,
    pub kind: &'static str,
    pub namespace: &'a str,
    pub name: &'a str,
    pub uid: &'a str,
}

impl<'a> Regarding<'a> {
    fn of(pod: &'a PodRef) -> Self {
        let PodRef { namespace, name, uid, .. } = pod;
        Regarding { api_version: "v1", kind: "Pod", namespace, name, uid }
    }
}

impl<'a> EventBody<'a> {
    /// Builds the body of an event. `host` identifies the replica of the scheduler.
    pub fn new(event: &'a Event, host: &str) -> Self {
        let pod = &event.pod;
        let (event_type, reason, action, note) = match &event.what {
            PodEventKind::Scheduled { node } => (
                "Normal",
                "Scheduled",
                "Binding",
                format!("Successfully assigned {}/{} to {node}", pod.namespace, pod.name),
            ),
            PodEventKind::FailedScheduling { message } => {
                ("Warning", "FailedScheduling", "Scheduling", note_of(message))
            }
            PodEventKind::Preempted { by, group, node } => {
                let who = match group {
                    Some(group) => format!("podgroup {group}"),
                    None => format!("pod {}", by.uid),
                };
                ("Normal", "Preempted", "Preempting", format!("Preempted by {who} on node {node}"))
            }
        };
        let related = match &event.what {
            PodEventKind::Preempted { by, .. } => Some(by),
            _ => None,
        };
        // Reported by the preemptor's scheduler: a victim may be a pod of another scheduler.
        let scheduler = &related.unwrap_or(pod).scheduler_name;
        let said = (event_type, reason, action, note);
        let body =
            EventBody::about(Regarding::of(pod), said, (scheduler, instance(scheduler, host)), event.at);
        EventBody { related: related.map(Regarding::of), ..body }
    }

    /// Builds an event from its type, reason, action and note, reported by this controller on this host.
    pub fn about(
        regarding: Regarding<'a>,
        (event_type, reason, action, note): (&'static str, &'static str, &'static str, String),
        (reporting_controller, reporting_instance): (&'a str, String),
        at: Timestamp,
    ) -> Self {
        EventBody {
            api_version: "events.k8s.io/v1",
            kind: "Event",
            metadata: EventMeta {
                name: event_name(regarding.name, regarding.uid, at),
                namespace: regarding.namespace,
            },
            event_time: MicroTime(at),
            reporting_controller,
            reporting_instance,
            action,
            reason,
            regarding,
            related: None,
            note,
            event_type,
        }
    }

    /// Builds the request that creates the event.
    pub fn request(&self) -> Result<Request<Body>, String> {
        let path = format!("/apis/events.k8s.io/v1/namespaces/{}/events", self.metadata.namespace);
        client::json_request(Method::POST, &path, "application/json", self)
    }
}

/// Names the reporting instance of a controller on a host.
pub(crate) fn instance(controller: &str, host: &str) -> String {
    head(&format!("{controller}-{host}"), INSTANCE_BYTES_MAX).to_owned()
}

/// Returns `<pod>.<hex nanoseconds>`; if that is too long for a name, the uid replaces the pod's name.
fn event_name(pod: &str, uid: &str, at: Timestamp) -> String {
    let nanos = at.as_nanosecond();
    let name = format!("{pod}.{nanos:x}");
    if name.len() <= NAME_BYTES_MAX { name } else { format!("{uid}.{nanos:x}") }
}

/// Truncates a message as upstream does, but never within a character, so that it stays valid UTF-8.
pub(crate) fn note_of(message: &str) -> String {
    const MORE: &str = " ...";
    if message.len() <= NOTE_BYTES_MAX {
        return message.to_owned();
    }
    let mut note = head(message, NOTE_BYTES_MAX - MORE.len()).to_owned();
    note.push_str(MORE);
    note
}

/// Returns the longest prefix of `text` with at most `bytes_max` bytes.
pub(crate) fn head(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod() -> PodRef {
        PodRef {
            namespace: "prod".into(),
            name: "web-0".into(),
            uid: "u1".into(),
            scheduler_name: "berth".into(),
        }
    }

    fn time() -> Timestamp {
        "2026-03-04T05:06:07.123456789Z".parse().expect("a time")
    }

    #[test]
    fn a_condition_is_written_as_kube_scheduler_writes_it() {
        let mut condition = UnscheduledCondition {
            pod: pod(),
            reason: "Unschedulable",
            message: "0/1 nodes are available: 1 Insufficient cpu.".into(),
            generation: 3,
            transition: Some(time()),
        };
        let first = serde_json::to_string(&ConditionPatch::from(&condition)).expect("JSON");
        assert_eq!(
            first,
            concat!(
                r#"{"metadata":{"uid":"u1"},"status":{"conditions":[{"lastProbeTime":null,"#,
                r#""lastTransitionTime":"2026-03-04T05:06:07Z","message":"0/1 nodes are available: 1 Insufficient cpu.","#,
                r#""observedGeneration":3,"reason":"Unschedulable","status":"False","type":"PodScheduled"}]}}"#
            )
        );
        condition.transition = None;
        let later = serde_json::to_string(&ConditionPatch::from(&condition)).expect("JSON");
        assert!(!later.contains("lastTransitionTime"));
    }

    #[test]
    fn events_are_written_as_kube_scheduler_writes_them() {
        let scheduled = Event { pod: pod(), what: PodEventKind::Scheduled { node: "n1".into() }, at: time() };
        assert_eq!(
            serde_json::to_value(EventBody::new(&scheduled, "host-1")).expect("JSON"),
            json!({
                "apiVersion": "events.k8s.io/v1", "kind": "Event",
                "metadata": {"name": "web-0.18998b018cfa8315", "namespace": "prod"},
                "eventTime": "2026-03-04T05:06:07.123456Z",
                "reportingController": "berth", "reportingInstance": "berth-host-1",
                "action": "Binding", "reason": "Scheduled", "type": "Normal",
                "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": "prod", "name": "web-0", "uid": "u1"},
                "note": "Successfully assigned prod/web-0 to n1",
            })
        );
        let failed = Event {
            what: PodEventKind::FailedScheduling { message: "no nodes available to schedule pods".into() },
            ..scheduled
        };
        let failed = EventBody::new(&failed, "host-1");
        assert_eq!(
            (failed.event_type, failed.reason, failed.action, failed.note.as_str()),
            ("Warning", "FailedScheduling", "Scheduling", "no nodes available to schedule pods")
        );
        let preempted = |group: Option<&str>| {
            let by = PodRef { uid: "u2".into(), ..pod() };
            let what = PodEventKind::Preempted { by, group: group.map(Into::into), node: "n1".into() };
            EventBody::new(&Event { pod: pod(), what, at: time() }, "host-1").note
        };
        assert_eq!(preempted(None), "Preempted by pod u2 on node n1");
        assert_eq!(preempted(Some("g1")), "Preempted by podgroup g1 on node n1");
    }

    #[test]
    fn a_note_of_1024_bytes_stays_whole_and_a_longer_one_is_cut_to_1024() {
        let fits = "x".repeat(1024);
        assert_eq!(note_of(&fits), fits);
        assert_eq!(note_of(&"x".repeat(1025)), "x".repeat(1020) + " ...");
        // Byte 1,020 is inside the two bytes of the 510th character.
        let cut = note_of(&format!("x{}", "é".repeat(600)));
        assert_eq!(cut, format!("x{} ...", "é".repeat(509)));
    }

    #[test]
    fn a_pod_name_that_leaves_no_room_for_the_time_is_replaced_by_the_uid() {
        assert_eq!(event_name(&"p".repeat(240), "u1", time()), "u1.18998b018cfa8315");
    }
}
