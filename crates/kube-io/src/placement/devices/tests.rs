//! Tests of the writes to resource claims, against an API server that keeps one claim.

use std::collections::VecDeque;
use std::future::Future;

use http::{Request, Response, StatusCode};
use parking_lot::Mutex;

use super::*;
use crate::placement::KubeClaims;
use berth_devices::{AllocatedDevice, ClaimAllocation, DeviceId, NewAllocation, PoolId};
use berth_model::ClaimName;
use berth_scheduler::objects::{ClaimRequest, WantedVolume};
use berth_scheduler::placement::ClaimOrder;

/// What happens to one write.
enum Turn {
    /// It is carried out, if its precondition holds.
    Take,
    /// It is answered with this status and not carried out.
    Refuse(u16),
    /// It is carried out, and its answer is lost.
    Lose,
    /// Another client changes the claim first.
    Overtake(fn(&mut Value)),
    /// Somebody deletes the claim first.
    Delete,
}

/// An API server with one claim; writes take their turns from a script, later ones are taken.
#[derive(Default)]
struct ClaimServer {
    claim: Option<Value>,
    turns: VecDeque<Turn>,
    writes: Vec<(String, Value)>,
    reads: usize,
}

fn merge(target: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let fields = target.as_object_mut().expect("an object");
    for (key, value) in patch {
        match value {
            Value::Null => drop(fields.remove(key)),
            value => merge(fields.entry(key.clone()).or_insert(Value::Null), value),
        }
    }
}

fn bump(claim: &mut Value) {
    let version: u64 =
        claim["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok()).expect("a number");
    claim["metadata"]["resourceVersion"] = (version + 1).to_string().into();
}

impl Answers for ClaimServer {
    fn answer(&mut self, method: &Method, path: &str, body: &[u8]) -> Option<(u16, Value)> {
        if *method == Method::GET {
            self.reads += 1;
            return Some(self.claim.clone().map_or_else(not_found, |claim| (200, claim)));
        }
        let patch: Value = serde_json::from_slice(body).expect("JSON");
        self.writes.push((path.rsplit('/').next().unwrap_or_default().to_owned(), patch.clone()));
        let turn = self.turns.pop_front().unwrap_or(Turn::Take);
        match turn {
            Turn::Refuse(status) => return Some((status, json!({"message": format!("status {status}")}))),
            Turn::Delete => self.claim = None,
            Turn::Overtake(change) => {
                let claim = self.claim.as_mut().expect("a claim");
                change(claim);
                bump(claim);
            }
            Turn::Take | Turn::Lose => {}
        }
        let Some(claim) = &mut self.claim else { return Some(not_found()) };
        if claim["metadata"]["uid"] != patch["metadata"]["uid"] {
            return Some((422, json!({"message": "metadata.uid: Invalid value: field is immutable"})));
        }
        if claim["metadata"]["resourceVersion"] != patch["metadata"]["resourceVersion"] {
            return Some((409, json!({"reason": "Conflict", "message": "the object has been modified"})));
        }
        merge(claim, &patch);
        bump(claim);
        (!matches!(turn, Turn::Lose)).then(|| (200, claim.clone()))
    }
}

fn not_found() -> (u16, Value) {
    (404, json!({"reason": "NotFound", "message": "not found", "details": {"name": "c"}}))
}

/// Answers a request with a status and an object; `None`: the answer is lost.
trait Answers: Send + 'static {
    fn answer(&mut self, method: &Method, path: &str, body: &[u8]) -> Option<(u16, Value)>;
}

fn client<S: Answers>(server: &Arc<Mutex<S>>) -> Client {
    let server = server.clone();
    let serve = move |request: Request<Body>| {
        let server = server.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await.expect("whole");
            let answer = server.lock().answer(&parts.method, parts.uri.path(), &body);
            let (status, answer) = answer.ok_or("connection reset")?;
            let response = Response::builder().status(StatusCode::from_u16(status).expect("valid"));
            Ok::<_, &str>(response.body(Body::from(answer.to_string().into_bytes())).expect("valid"))
        }
    };
    Client::new(tower::service_fn(serve), "default")
}

struct Written {
    result: Result<u64, String>,
    server: ClaimServer,
}

impl Written {
    /// `status` or the name of the claim, for each write.
    fn paths(&self) -> Vec<&str> {
        self.server.writes.iter().map(|(path, _)| &**path).collect()
    }

    fn status(&self) -> &Value {
        &self.server.claim.as_ref().expect("a claim")["status"]
    }

    fn refusal(&self) -> &str {
        self.result.as_ref().expect_err("it is refused")
    }
}

async fn run(claim: Value, update: &ClaimUpdate, turns: Vec<Turn>, leads: impl Fn() -> bool) -> Written {
    let server = ClaimServer { claim: Some(claim), turns: turns.into(), writes: Vec::new(), reads: 0 };
    let server = Arc::new(Mutex::new(server));
    let client = client(&server);
    let result = write(&client, update, "1", leads).await;
    let server = std::mem::take(&mut *server.lock());
    Written { result, server }
}

fn pod(uid: &str) -> ClaimUser {
    ClaimUser { api_group: "".into(), resource: "pods".into(), name: "p".into(), uid: uid.into() }
}

fn pod_json(uid: &str) -> Value {
    json!({"resource": "pods", "name": "p", "uid": uid})
}

fn allocation(device: &str) -> Arc<ClaimAllocation> {
    let pool = PoolId { driver: "d".into(), name: "p".into() };
    let device = AllocatedDevice {
        request: "r".into(),
        id: DeviceId { pool, device: device.into() },
        ..AllocatedDevice::default()
    };
    Arc::new(ClaimAllocation { devices: [device].into(), nodes: None })
}

fn allocation_of(device: &str) -> Value {
    json!({"devices": {"results": [{"request": "r", "driver": "d", "pool": "p", "device": device}]}})
}

/// An update that allocates `gpu-0`, of a claim that has another finalizer only.
fn allocate() -> ClaimUpdate {
    ClaimUpdate {
        new: None,
        claim: ClaimName { namespace: "ns".into(), name: "c".into() },
        uid: "u".into(),
        version: 7,
        finalizers: ["other".into()].into(),
        reserved: [pod("1")].into(),
        allocation: Some(NewAllocation { allocation: allocation("gpu-0"), config: [].into() }),
        held: None,
    }
}

/// An update of a claim that has `gpu-0` and another user.
fn reserve() -> ClaimUpdate {
    ClaimUpdate {
        finalizers: [CLAIM_FINALIZER.into()].into(),
        reserved: [pod("0"), pod("1")].into(),
        allocation: None,
        held: Some(allocation("gpu-0")),
        ..allocate()
    }
}

fn free() -> Value {
    json!({"metadata": {
        "name": "c", "namespace": "ns", "uid": "u", "resourceVersion": "7", "finalizers": ["other"],
    }})
}

fn allocated() -> Value {
    let mut claim = free();
    claim["metadata"]["finalizers"] = json!([CLAIM_FINALIZER]);
    claim["status"] = json!({"allocation": allocation_of("gpu-0"), "reservedFor": [pod_json("0")]});
    claim
}

fn relabel(claim: &mut Value) {
    claim["metadata"]["labels"] = json!({"a": "b"});
}

#[tokio::test(start_paused = true)]
async fn a_free_claim_gets_the_finalizer_and_then_its_devices_and_the_pod_without_a_read() {
    let written = run(free(), &allocate(), vec![], || true).await;
    assert_eq!(written.result, Ok(9));
    assert_eq!(written.server.reads, 0);
    let finalizers = json!(["other", CLAIM_FINALIZER]);
    let first = json!({"metadata": {"uid": "u", "resourceVersion": "7", "finalizers": finalizers}});
    let status = json!({"allocation": allocation_of("gpu-0"), "reservedFor": [pod_json("1")]});
    let second = json!({"metadata": {"uid": "u", "resourceVersion": "8"}, "status": status});
    assert_eq!(written.server.writes, [("c".to_owned(), first), ("status".to_owned(), second)]);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_has_the_finalizer_is_written_once() {
    let mut claim = free();
    claim["metadata"]["finalizers"] = json!([CLAIM_FINALIZER]);
    let update = ClaimUpdate { finalizers: [CLAIM_FINALIZER.into()].into(), ..allocate() };
    let written = run(claim, &update, vec![], || true).await;
    assert_eq!((written.paths(), written.server.reads), (vec!["status"], 0));
    assert_eq!(written.result, Ok(8));
}

#[tokio::test(start_paused = true)]
async fn a_write_whose_answer_was_lost_is_found_by_a_read() {
    let written = run(free(), &allocate(), vec![Turn::Take, Turn::Lose], || true).await;
    assert_eq!((&written.result, written.server.reads), (&Ok(9), 1));
    assert_eq!(written.paths(), ["c", "status"]);
    // The finalizer is not added twice.
    let written = run(free(), &allocate(), vec![Turn::Lose], || true).await;
    assert_eq!((&written.result, written.paths()), (&Ok(9), vec!["c", "status"]));
    let written = run(allocated(), &reserve(), vec![Turn::Lose], || true).await;
    assert_eq!((&written.result, written.paths()), (&Ok(8), vec!["status"]));
    assert_eq!(written.status()["reservedFor"], json!([pod_json("0"), pod_json("1")]));
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_others_changed_in_ways_that_do_not_matter_is_written_with_its_new_version() {
    for turns in [vec![Turn::Overtake(relabel)], vec![Turn::Take, Turn::Overtake(relabel)]] {
        let written = run(free(), &allocate(), turns, || true).await;
        assert_eq!((&written.result, written.server.reads), (&Ok(10), 1));
        assert_eq!(written.status()["allocation"], allocation_of("gpu-0"));
        let claim = written.server.claim.as_ref().expect("a claim");
        assert_eq!(claim["metadata"]["labels"], json!({"a": "b"}));
        assert_eq!(claim["metadata"]["finalizers"], json!(["other", CLAIM_FINALIZER]));
    }
}

#[tokio::test(start_paused = true)]
async fn users_that_came_and_went_meanwhile_are_not_overwritten() {
    let turn = Turn::Overtake(|claim| claim["status"]["reservedFor"] = json!([pod_json("2")]));
    let written = run(allocated(), &reserve(), vec![turn], || true).await;
    assert_eq!(written.result, Ok(9));
    assert_eq!(written.status()["reservedFor"], json!([pod_json("2"), pod_json("1")]));
    assert_eq!(written.status()["allocation"], allocation_of("gpu-0"));
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_another_client_allocated_is_not_touched() {
    let turn = Turn::Overtake(|claim| claim["status"] = json!({"allocation": allocation_of("gpu-1")}));
    let written = run(free(), &allocate(), vec![Turn::Take, turn], || true).await;
    assert_eq!(written.refusal(), "resourceclaim \"c\" was allocated by another client");
    assert_eq!(*written.status(), json!({"allocation": allocation_of("gpu-1")}));
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_deleted_or_made_anew_fails_for_good() {
    let dies: fn(&mut Value) = |claim| claim["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let remade: fn(&mut Value) = |claim| claim["metadata"]["uid"] = json!("v");
    for (turn, why) in [
        (Turn::Delete, "was deleted, or"),
        (Turn::Overtake(dies), "is being deleted"),
        (Turn::Overtake(remade), "created again"),
    ] {
        let written = run(free(), &allocate(), vec![turn], || true).await;
        assert!(written.refusal().contains(why), "{}", written.refusal());
        assert_eq!(written.server.writes.len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_joins_an_allocated_claim_only_while_it_has_the_same_devices() {
    let written = run(allocated(), &reserve(), vec![], || true).await;
    let status = json!({"reservedFor": [pod_json("0"), pod_json("1")]});
    let patch = json!({"metadata": {"uid": "u", "resourceVersion": "7"}, "status": status});
    assert_eq!(written.server.writes, [("status".to_owned(), patch)]);
    assert_eq!((written.result, written.server.reads), (Ok(8), 0));

    let deallocated: fn(&mut Value) = |claim| claim["status"] = json!({});
    let moved: fn(&mut Value) = |claim| claim["status"] = json!({"allocation": allocation_of("gpu-1")});
    for (change, why) in [(deallocated, "lost its devices"), (moved, "with other devices")] {
        let written = run(allocated(), &reserve(), vec![Turn::Overtake(change)], || true).await;
        assert!(written.refusal().contains(why), "{}", written.refusal());
        assert_eq!(written.status()["reservedFor"], Value::Null);
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_with_as_many_users_as_it_can_have_is_refused_without_a_write() {
    let users = |count: usize| (2..count + 2).map(|uid| pod(&uid.to_string())).chain([pod("1")]).collect();
    let full = ClaimUpdate { reserved: users(CLAIM_USERS_MAX), ..reserve() };
    let written = run(allocated(), &full, vec![], || true).await;
    assert!(written.refusal().contains("in use by 256 others"), "{}", written.refusal());
    assert!(written.server.writes.is_empty());
    let last = ClaimUpdate { reserved: users(CLAIM_USERS_MAX - 1), ..reserve() };
    assert_eq!(run(allocated(), &last, vec![], || true).await.result, Ok(8));
}

#[tokio::test(start_paused = true)]
async fn a_busy_server_is_asked_again_a_few_times_and_a_forbidden_write_is_not_repeated() {
    let written = run(free(), &allocate(), vec![Turn::Refuse(429), Turn::Refuse(503)], || true).await;
    assert_eq!((&written.result, written.server.writes.len()), (&Ok(9), 4));
    let always = || (0..9).map(|_| Turn::Refuse(500)).collect();
    let written = run(free(), &allocate(), always(), || true).await;
    assert_eq!((written.refusal(), written.server.writes.len()), ("status 500", 5));
    let written = run(free(), &allocate(), vec![Turn::Refuse(403)], || true).await;
    assert_eq!((written.refusal(), written.server.writes.len()), ("status 403", 1));
}

#[tokio::test(start_paused = true)]
async fn a_claim_without_a_version_is_read_before_it_is_written() {
    let update = ClaimUpdate { version: 0, ..allocate() };
    let written = run(free(), &update, vec![], || true).await;
    assert_eq!((written.result, written.server.reads), (Ok(9), 1));
    assert_eq!(written.server.writes[0].1["metadata"]["resourceVersion"], "7");
}

#[tokio::test(start_paused = true)]
async fn without_leadership_no_claim_is_written() {
    let written = run(free(), &allocate(), vec![], || false).await;
    assert!(written.refusal().contains("leadership") && written.server.writes.is_empty());
    let asked = std::sync::atomic::AtomicUsize::new(0);
    let leads = || asked.fetch_add(1, Ordering::Relaxed) == 0;
    let written = run(free(), &allocate(), vec![Turn::Refuse(500)], leads).await;
    assert!(written.refusal().contains("leadership") && written.server.writes.len() == 1);
}

#[tokio::test(start_paused = true)]
async fn an_update_that_leaves_out_its_pod_is_not_written() {
    let update = ClaimUpdate { reserved: [pod("0")].into(), ..allocate() };
    let written = run(free(), &update, vec![], || true).await;
    assert!(written.refusal().contains("does not reserve it") && written.server.writes.is_empty());
}

#[tokio::test(start_paused = true)]
async fn volumes_are_requested_before_devices_are_allocated() {
    /// Writes an order through a server that answers every request with the object of its path.
    fn serve(request: Request<Body>) -> impl Future<Output = Result<Response<Body>, &'static str>> {
        let is_claim = request.uri().path().contains("resource.k8s.io");
        let version = if is_claim { "30" } else { "20" };
        let object = json!({"metadata": {"name": "c", "uid": "u", "resourceVersion": version}});
        async move { Ok(Response::new(Body::from(object.to_string().into_bytes()))) }
    }
    let claim = ClaimName { namespace: "ns".into(), name: "v".into() };
    let requests = [ClaimRequest { claim, uid: "u".into(), wanted: WantedVolume::Volume("pv".into()) }];
    let order = ClaimOrder {
        uid: "1".into(),
        work: 1,
        node: "n".into(),
        requests: requests.into(),
        devices: [allocate()].into(),
    };
    let claims = KubeClaims::with_client(Client::new(tower::service_fn(serve), "default"));
    assert_eq!(claims.write(&order, || true).await, Ok(vec![20, 30]));
}

mod extended {
    //! Against an API server with at most one claim, and the pod that it is made for.

    use super::*;
    use berth_devices::{ClaimRelease, NewClaim, NewRequest};
    use berth_model::ContainerRequest;

    /// Answers a create, a read, a patch or a deletion of the claim, and a patch of the pod's status. Of the requests, those at
    /// `lost` are carried out without an answer.
    #[derive(Default)]
    struct Server {
        claim: Option<Value>,
        pod_status: Option<Value>,
        requests: Vec<String>,
        lost: Vec<usize>,
        /// The API server does not know the field of the pod's status.
        drops_status: bool,
    }

    impl Answers for Server {
        fn answer(&mut self, method: &Method, path: &str, body: &[u8]) -> Option<(u16, Value)> {
            let what =
                path.split('/').rev().take(2).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>();
            self.requests.push(format!("{method} {}", what.join("/")));
            let body: Value = serde_json::from_slice(body).unwrap_or_default();
            let answer = match (method, &mut self.claim) {
                (&Method::PATCH, _) if path.contains("/pods/") => {
                    self.pod_status = Some(body.clone());
                    (200, if self.drops_status { json!({"status": {}}) } else { body })
                }
                (&Method::POST, Some(_)) => (409, json!({"reason": "AlreadyExists", "message": "exists"})),
                (&Method::POST, none) => {
                    let mut claim = body;
                    claim["metadata"]["uid"] = "made".into();
                    claim["metadata"]["resourceVersion"] = "5".into();
                    *none = Some(claim.clone());
                    (201, claim)
                }
                (_, None) => not_found(),
                (&Method::GET, Some(claim)) => (200, claim.clone()),
                (_, Some(claim)) if body["preconditions"]["uid"].is_string() => {
                    let is_same = claim["metadata"]["uid"] == body["preconditions"]["uid"];
                    if is_same {
                        self.claim = None;
                    }
                    if is_same { (200, json!({})) } else { (409, json!({"message": "UID in precondition"})) }
                }
                (_, Some(claim)) => {
                    if claim["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"] {
                        return Some((409, json!({"reason": "Conflict", "message": "modified"})));
                    }
                    merge(claim, &body);
                    bump(claim);
                    (200, claim.clone())
                }
            };
            (!self.lost.contains(&self.requests.len())).then_some(answer)
        }
    }

    fn update() -> ClaimUpdate {
        let served = ContainerRequest { container: "main".into(), request: "container-0-request-0".into() };
        let new = NewClaim {
            requests: [NewRequest { name: "container-0-request-0".into(), class: "gpu".into(), count: 2 }]
                .into(),
            containers: [("example.com/gpu".into(), served)].into(),
        };
        ClaimUpdate { new: Some(new), uid: "".into(), version: 0, finalizers: [].into(), ..allocate() }
    }

    async fn run(server: Server, leads: bool) -> (Result<u64, String>, Server) {
        let server = Arc::new(Mutex::new(server));
        let result = write(&client(&server), &update(), "1", || leads).await;
        let seen = std::mem::take(&mut *server.lock());
        (result, seen)
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_is_created_for_the_pod_allocated_and_named_in_its_status() {
        let (result, server) = run(Server::default(), true).await;
        assert_eq!(result, Ok(6));
        assert_eq!(server.requests, ["POST ns/resourceclaims", "PATCH c/status", "PATCH p/status"]);
        let claim = server.claim.expect("created");
        assert_eq!(
            claim["metadata"]["annotations"]["resource.kubernetes.io/extended-resource-claim"],
            "true"
        );
        assert_eq!(claim["metadata"]["ownerReferences"][0]["uid"], "1");
        let request = json!({
            "name": "container-0-request-0",
            "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2},
        });
        assert_eq!(claim["spec"]["devices"]["requests"], json!([request]));
        assert!(claim["status"]["allocation"].is_object());
        let mapping = json!({
            "containerName": "main", "resourceName": "example.com/gpu", "requestName": "container-0-request-0",
        });
        let status = json!({"resourceClaimName": "c", "requestMappings": [mapping]});
        let expected = json!({"metadata": {"uid": "1"}, "status": {"extendedResourceClaimStatus": status}});
        assert_eq!(server.pod_status, Some(expected));
    }

    #[tokio::test(start_paused = true)]
    async fn each_lost_answer_is_found_to_have_been_carried_out() {
        for lost in 1..=3 {
            let (result, server) = run(Server { lost: vec![lost], ..Server::default() }, true).await;
            assert!(result.is_ok() && server.pod_status.is_some(), "{lost}: {result:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_of_that_name_that_was_made_for_something_else_is_left_alone() {
        let theirs =
            json!({"metadata": {"name": "c", "namespace": "ns", "uid": "u", "resourceVersion": "5"}});
        let (result, server) = run(Server { claim: Some(theirs.clone()), ..Server::default() }, true).await;
        assert!(result.is_err_and(|why| why.contains("exists already")));
        assert_eq!(server.claim, Some(theirs));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_is_not_bound_where_its_kubelet_would_not_learn_of_its_devices() {
        let (result, _) = run(Server { drops_status: true, ..Server::default() }, true).await;
        assert!(result.is_err_and(|why| why.contains("feature gate DRAExtendedResource")));
    }

    #[tokio::test(start_paused = true)]
    async fn without_leadership_no_claim_is_created() {
        let (result, server) = run(Server::default(), false).await;
        assert!(result.is_err_and(|why| why.contains("leadership")) && server.requests.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_that_was_left_behind_is_deleted_or_deallocated_unless_it_has_changed() {
        let left = json!({
            "metadata": {"name": "c", "namespace": "ns", "uid": "u", "resourceVersion": "5", "finalizers": ["f"]},
        });
        let claim = ClaimName { namespace: "ns".into(), name: "c".into() };
        let delete = ClaimRelease { claim, uid: "u".into(), version: 5, delete: Some([].into()) };
        let run = async |release: &ClaimRelease, server: Server| {
            let server = Arc::new(Mutex::new(server));
            let result = super::super::extended::release(&client(&server), release, || true).await;
            let seen = std::mem::take(&mut *server.lock());
            (result, seen)
        };
        let there = || Server { claim: Some(left.clone()), ..Server::default() };
        let (result, server) = run(&delete, there()).await;
        assert_eq!((result, server.claim), (Ok(()), None));
        assert_eq!(server.requests, ["PATCH resourceclaims/c", "DELETE resourceclaims/c"]);
        let (result, server) = run(&ClaimRelease { version: 4, ..delete.clone() }, there()).await;
        assert!(result.is_err() && server.claim == Some(left.clone()));
        let (result, server) = run(&delete, Server::default()).await;
        assert_eq!((result, server.requests.len()), (Ok(()), 1), "it is gone already");
        // One that a person made only loses its devices and its users.
        let mut server = there();
        if let Some(claim) = &mut server.claim {
            claim["status"] = json!({"allocation": {}, "reservedFor": [pod_json("1")]});
        }
        let (result, server) = run(&ClaimRelease { delete: None, ..delete }, server).await;
        assert_eq!((result, server.requests), (Ok(()), vec!["PATCH c/status".to_owned()]));
        assert_eq!(server.claim.map(|claim| claim["status"].clone()), Some(json!({})));
    }
}
