use std::collections::VecDeque;

use http::{Request, Response};
use serde_json::{Value, json};

use super::*;
use berth_scheduler::gang::{AllocationName, GangRoleStatus};

/// The status of an `Allocation` that does not fit.
pub(super) fn status() -> GangStatus {
    GangStatus {
        name: AllocationName {
            kind: AllocationKind::Allocation,
            namespace: "x".into(),
            name: "train".into(),
        },
        uid: "u1".into(),
        observed_generation: 2,
        phase: Phase::Unschedulable,
        message: "32 pods need 4 GPUs each".into(),
        help: Some("8 more nodes with 4 GPUs".into()),
        roles: [GangRoleStatus { name: "".into(), minimum: 32, members: 40, bound: 0 }].into(),
        placement: Box::default(),
        claimed_by_others: 0,
    }
}

fn scheduled() -> GangStatus {
    let mut status = status();
    status.phase = Phase::Scheduled;
    (status.message, status.help) = ("".into(), None);
    status.roles[0].bound = 32;
    status.placement = [("zone-a".into(), 32)].into();
    status
}

fn of_kind(mut status: GangStatus, kind: AllocationKind) -> GangStatus {
    status.name.kind = kind;
    status
}

fn time(text: &str) -> Timestamp {
    text.parse().expect("a time")
}

fn object(status: Value) -> Current {
    serde_json::from_value(json!({"metadata": {"uid": "u1", "resourceVersion": "7"}, "status": status}))
        .expect("an object")
}

/// Applies a merge patch as an API server does.
fn merged(mut to: Value, patch: &Value) -> Value {
    for (key, value) in patch["status"].as_object().expect("an object") {
        match value {
            Value::Null => to.as_object_mut().expect("an object").remove(key),
            value => to.as_object_mut().expect("an object").insert(key.clone(), value.clone()),
        };
    }
    to
}

const V: PodGroupVersion = PodGroupVersion::V1Beta1;
const EARLY: &str = "2026-03-04T05:06:07Z";
const LATE: &str = "2026-03-04T06:00:00Z";

#[test]
fn the_whole_status_of_an_allocation_is_written_with_the_object_that_was_read_as_precondition() {
    let change = change(&status(), V, &object(json!(null)), time(EARLY)).expect("a change");
    assert!(change.is_new_phase);
    let message = "32 pods need 4 GPUs each";
    assert_eq!(
        change.patch,
        json!({
            "metadata": {"uid": "u1", "resourceVersion": "7"},
            "status": {
                "phase": "Unschedulable", "observedGeneration": 2, "minimum": 32, "members": 40, "bound": 0,
                "roles": [{"name": "", "minimum": 32, "members": 40, "bound": 0}],
                "message": message, "help": "8 more nodes with 4 GPUs",
                "conditions": [
                    {"type": "Accepted", "status": "True", "reason": "Accepted", "message": "",
                     "observedGeneration": 2, "lastTransitionTime": EARLY},
                    {"type": "Scheduled", "status": "False", "reason": "Unschedulable", "message": message,
                     "observedGeneration": 2, "lastTransitionTime": EARLY},
                ],
            },
        })
    );
}

#[test]
fn what_the_object_says_already_is_not_written_again_and_what_is_gone_is_removed() {
    let first = change(&status(), V, &object(json!(null)), time(EARLY)).expect("a change");
    let known = merged(json!({}), &first.patch);
    assert_eq!(change(&status(), V, &object(known.clone()), time(LATE)), None);

    let second = change(&scheduled(), V, &object(known.clone()), time(LATE)).expect("a change");
    let known = merged(known, &second.patch);
    assert_eq!((known.get("help"), known.get("message")), (None, None));
    assert_eq!(known["placement"], json!([{"domain": "zone-a", "bound": 32}]));
    let times = |known: &Value| [0, 1].map(|i| known["conditions"][i]["lastTransitionTime"].clone());
    assert_eq!(times(&known), [json!(EARLY), json!(LATE)]);

    let mut more = scheduled();
    more.roles[0].bound = 33;
    let third = change(&more, V, &object(known.clone()), time("2026-03-05T00:00:00Z")).expect("a change");
    assert!(!third.is_new_phase);
    assert_eq!(times(&merged(known, &third.patch)), [json!(EARLY), json!(LATE)], "the status is the same");
}

#[test]
fn a_status_that_others_spoilt_is_written_anew() {
    for spoilt in
        [json!({"phase": 7, "conditions": "none"}), json!({"conditions": [7, null, {"type": "Scheduled"}]})]
    {
        let change = change(&status(), V, &object(spoilt.clone()), time(EARLY)).expect("a change");
        assert_eq!(merged(spoilt, &change.patch)["phase"], "Unschedulable");
    }
    // Not an object at all: the API server prunes it, but the reader must not panic.
    assert!(serde_json::from_value::<Current>(json!({"status": 7})).is_err());
}

#[test]
fn a_pod_group_gets_the_condition_of_its_version_and_keeps_that_it_was_scheduled() {
    let group = |status| of_kind(status, AllocationKind::PodGroup);
    for (version, kind) in
        [(V, "PodGroupInitiallyScheduled"), (PodGroupVersion::V1Alpha2, "PodGroupScheduled")]
    {
        let waits = change(&group(status()), version, &object(json!(null)), time(EARLY)).expect("a change");
        let condition = &waits.patch["status"]["conditions"][0];
        assert_eq!(
            (&condition["type"], &condition["status"], &condition["reason"]),
            (&json!(kind), &json!("False"), &json!("Unschedulable"))
        );
        assert_eq!(waits.content_type, "application/strategic-merge-patch+json");
        let known = json!({"conditions": [condition]});
        assert_eq!(change(&group(status()), version, &object(known.clone()), time(LATE)), None);
        let done = change(&group(scheduled()), version, &object(known), time(LATE)).expect("a change");
        let condition = &done.patch["status"]["conditions"][0];
        assert_eq!((&condition["status"], &condition["lastTransitionTime"]), (&json!("True"), &json!(LATE)));
        let known = object(json!({"conditions": [condition]}));
        assert_eq!(change(&group(scheduled()), version, &known, time(LATE)), None);
        assert_eq!(change(&group(status()), version, &known, time(LATE)), None, "it is terminal");
    }
    for phase in [Phase::Pending, Phase::Scheduling] {
        let status = group(GangStatus { phase, ..status() });
        assert_eq!(change(&status, V, &object(json!(null)), time(EARLY)), None);
    }
}

#[test]
fn the_phase_of_a_coscheduling_group_goes_forward_and_is_left_to_its_controller_once_pods_run() {
    let phase = |status: GangStatus, before: &str| {
        let group = of_kind(status, AllocationKind::Coscheduling);
        let change = change(&group, V, &object(json!({"phase": before, "running": 3})), time(EARLY))?;
        Some(change.patch["status"].clone())
    };
    let pending = GangStatus { phase: Phase::Pending, ..status() };
    assert_eq!(phase(pending.clone(), ""), Some(json!({"phase": "Pending", "scheduled": 0})));
    assert_eq!(phase(pending, "Scheduling"), None);
    assert_eq!(phase(status(), "Pending"), Some(json!({"phase": "Scheduling", "scheduled": 0})));
    assert_eq!(phase(scheduled(), "Scheduling"), Some(json!({"phase": "Scheduled", "scheduled": 32})));
    for later in ["Scheduled", "Running", "Finished", "Failed", "Unknown"] {
        assert_eq!((phase(status(), later), phase(scheduled(), later)), (None, None), "{later}");
    }
}

/// An API server with one allocation, which answers from a script first and records requests.
#[derive(Clone, Default)]
struct Server {
    status: Arc<Mutex<Value>>,
    script: Arc<Mutex<VecDeque<u16>>>,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn client(&self) -> Client {
        let server = self.clone();
        Client::new(
            tower::service_fn(move |request: Request<Body>| {
                let server = server.clone();
                async move {
                    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
                    let last = path.rsplit('/').next().unwrap_or_default().to_owned();
                    server.requests.lock().push(format!("{method} {last}"));
                    let body = request.into_body().collect_bytes().await?;
                    let scripted = server.script.lock().pop_front();
                    let status = scripted.unwrap_or(200);
                    if method == Method::PATCH && status == 200 {
                        let patch: Value = serde_json::from_slice(&body).expect("JSON");
                        let mut known = server.status.lock();
                        *known = merged(known.clone(), &patch);
                    }
                    let object = json!({
                        "metadata": {"uid": "u1", "resourceVersion": "7"}, "status": *server.status.lock(),
                    });
                    let response = Response::builder().status(status).header("retry-after", "1");
                    Ok::<_, kube::Error>(
                        response.body(Body::from(object.to_string().into_bytes())).expect("a response"),
                    )
                }
            }),
            "default",
        )
    }

    /// Writes statuses until none is left.
    async fn write(&self, allocations: &AllocationWriter, statuses: &[GangStatus]) -> Vec<String> {
        for status in statuses {
            allocations.enqueue(status.clone());
        }
        allocations.run(self.client(), "host", std::future::ready(()), Duration::from_secs(60)).await;
        std::mem::take(&mut self.requests.lock())
    }
}

fn new_server(script: &[u16]) -> Server {
    let server = Server::default();
    *server.status.lock() = json!({});
    server.script.lock().extend(script);
    server
}

#[tokio::test(start_paused = true)]
async fn a_status_is_written_once_and_told_to_people_once() {
    let (server, allocations) = (new_server(&[]), AllocationWriter::default());
    let wrote = server.write(&allocations, &[status()]).await;
    assert_eq!(wrote, ["GET train", "PATCH status", "POST events"]);
    assert_eq!(server.write(&allocations, &[status()]).await, ["GET train"]);
    let counters = allocations.counters();
    assert_eq!((counters.written.load(Relaxed), counters.unchanged.load(Relaxed)), (1, 1));
    let same_phase = GangStatus { message: "still".into(), ..status() };
    assert_eq!(server.write(&allocations, &[same_phase]).await, ["GET train", "PATCH status"]);
}

#[tokio::test(start_paused = true)]
async fn only_the_newest_of_many_statuses_is_written() {
    let (server, allocations) = (new_server(&[]), AllocationWriter::default());
    let pending = GangStatus { phase: Phase::Pending, ..status() };
    let wrote = server.write(&allocations, &[pending, status(), scheduled()]).await;
    assert_eq!(wrote, ["GET train", "PATCH status", "POST events"]);
    assert_eq!(server.status.lock()["phase"], "Scheduled");
}

#[tokio::test(start_paused = true)]
async fn a_conflict_and_a_busy_server_make_it_read_again() {
    let (server, allocations) = (new_server(&[503, 200, 409, 429]), AllocationWriter::default());
    let wrote = server.write(&allocations, &[status()]).await;
    let expected =
        ["GET train", "GET train", "PATCH status", "GET train", "GET train", "PATCH status", "POST events"];
    assert_eq!(wrote, expected);
    let counters = allocations.counters();
    assert_eq!(
        (counters.written.load(Relaxed), counters.retried.load(Relaxed), allocations.dropped()),
        (1, 3, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_gone_or_another_one_settles_it() {
    for other in [false, true] {
        let server = new_server(if other { &[] } else { &[404] });
        let allocations = AllocationWriter::default();
        let mut status = status();
        if other {
            status.uid = "u2".into();
        }
        assert_eq!(server.write(&allocations, &[status]).await, ["GET train"]);
        assert_eq!((allocations.counters().gone.load(Relaxed), allocations.dropped()), (1, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_status_that_is_forbidden_or_never_arrives_is_counted_as_dropped() {
    for (script, requests) in [(vec![403], 1), (vec![500; 20], BACKOFF.attempts as usize)] {
        let (server, allocations) = (new_server(&script), AllocationWriter::default());
        assert_eq!(server.write(&allocations, &[status()]).await.len(), requests);
        assert_eq!((allocations.dropped(), allocations.waiting()), (1, 0));
    }
}
