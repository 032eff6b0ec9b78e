//! Watches, reports, the lease and the placement store on a real API server.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use berth_kube_io::placement::{BindCounters, KubeStore, drive};
use berth_kube_io::{
    BadObject, Elector, LIVE_PODS, LeaseConfig, ObjectId, Reporter, WatchChange, WatchCounters, client, watch,
};
use berth_model::{PodRef, PodReport};
use berth_scheduler::placement::{BindOutcome, Binding, PlacementStore, Reply, Truth};
use berth_testenv::Options;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, VersionMatch};
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::{
    Nodes, Pods, TestControlPlane, await_closely, await_until, create_nodes, create_pods, quiet_turn,
    start_control_plane, start_control_plane_with,
};

const SOON: Duration = Duration::from_secs(20);

fn text(value: Option<&String>) -> Arc<str> {
    value.expect("the API server sets it").as_str().into()
}

fn binding_of(pod: &Pod, node: &str) -> Binding {
    Binding {
        uid: text(pod.metadata.uid.as_ref()),
        namespace: text(pod.metadata.namespace.as_ref()),
        name: text(pod.metadata.name.as_ref()),
        node: node.into(),
        decision: None,
    }
}

async fn create_pod(client: &Client, prefix: &'static str, customise: impl Fn(&mut Value)) -> Pod {
    let pods = Pods { prefix, ..Pods::default() };
    create_pods(client, &pods, |_, pod| customise(pod)).await.remove(0)
}

async fn delete_now(client: &Client, pod: &Pod) {
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let now = DeleteParams::default().grace_period(0);
    pods.delete(&pod.name_any(), &now).await.expect("deleted");
}

/// Binds `binding` to its end as a leader.
async fn bind(store: &KubeStore, binding: &Binding) -> BindOutcome {
    let started = Instant::now();
    let counters = BindCounters::default();
    drive(store, binding, || started.elapsed(), || true, &counters).await
}

#[tokio::test(flavor = "multi_thread")]
async fn binds_end_with_the_truth_of_the_api_server() {
    let control_plane = start_control_plane().await;
    let client = control_plane.client();
    let store = KubeStore::new(control_plane.config(), None).expect("a client");
    let pods: Api<Pod> = Api::default_namespaced(client.clone());

    // A bind, and the same bind repeated after a restart that lost the first.
    let pod = create_pod(&client, "twice", |_| {}).await;
    let binding = binding_of(&pod, "n1");
    assert_eq!(store.read(&binding).await, Truth::Unbound { bindable: true });
    assert_eq!(store.bind(&binding).await, Reply::Bound);
    let bound = pods.get("twice-0").await.expect("there");
    assert_eq!(bound.spec.and_then(|spec| spec.node_name).as_deref(), Some("n1"));
    let again = store.bind(&binding).await;
    assert!(
        matches!(&again, Reply::Conflict(why) if why.contains("already assigned to node \"n1\"")),
        "{again:?}"
    );
    assert_eq!(bind(&store, &binding).await, BindOutcome::Bound);

    // Another client was faster.
    assert_eq!(bind(&store, &binding_of(&pod, "n2")).await, BindOutcome::BoundElsewhere("n1".into()));

    // Another pod of the same name.
    let pod = create_pod(&client, "recreated", |_| {}).await;
    delete_now(&client, &pod).await;
    create_pod(&client, "recreated", |_| {}).await;
    let stale = binding_of(&pod, "n1");
    assert!(matches!(store.bind(&stale).await, Reply::Conflict(why) if why.contains("UID")));
    assert_eq!(bind(&store, &stale).await, BindOutcome::Vanished);
    let unharmed = pods.get("recreated-0").await.expect("there");
    assert_eq!(unharmed.spec.and_then(|spec| spec.node_name), None);

    // No such pod.
    let pod = create_pod(&client, "deleted", |_| {}).await;
    delete_now(&client, &pod).await;
    assert_eq!(store.bind(&binding_of(&pod, "n1")).await, Reply::NotFound);
    assert_eq!(bind(&store, &binding_of(&pod, "n1")).await, BindOutcome::Vanished);

    // A terminating pod, held by a finalizer.
    let pod =
        create_pod(&client, "going", |pod| pod["metadata"]["finalizers"] = json!(["berth.test/hold"])).await;
    delete_now(&client, &pod).await;
    assert_eq!(bind(&store, &binding_of(&pod, "n1")).await, BindOutcome::Vanished);

    let gate = |pod: &mut Value| pod["spec"]["schedulingGates"] = json!([{"name": "berth.test/wait"}]);
    let pod = create_pod(&client, "gated", gate).await;
    assert_eq!(bind(&store, &binding_of(&pod, "n1")).await, BindOutcome::Vanished);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bind_during_an_outage_of_the_api_server_is_settled_when_it_is_back() {
    let mut control_plane = start_control_plane().await;
    let client = control_plane.client();
    let store = KubeStore::new(control_plane.config(), None).expect("a client");
    let pod = create_pod(&client, "outage", |_| {}).await;
    let binding = binding_of(&pod, "n1");

    control_plane.kill_api_server();
    assert!(matches!(store.bind(&binding).await, Reply::Unknown(_)));
    assert!(matches!(store.read(&binding).await, Truth::Unreadable(_)));
    let driven = {
        let (store, binding) = (store.clone(), binding.clone());
        tokio::spawn(async move { bind(&store, &binding).await })
    };
    control_plane.restart_api_server().await.expect("up again");
    assert_eq!(driven.await.expect("no panic"), BindOutcome::Bound);
    assert_eq!(store.read(&binding).await, Truth::BoundTo("n1".into()));
}

/// A pod type that fails to parse some pods: a grace period above 255 s does not fit.
#[derive(Debug, Clone, Deserialize, kube::Resource)]
#[resource(inherit = "Pod")]
struct PickyPod {
    metadata: ObjectMeta,
    #[serde(rename = "spec")]
    _spec: PickySpec,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PickySpec {
    #[serde(rename = "terminationGracePeriodSeconds")]
    _grace: u8,
}

/// A minimal index: the objects that a watch reported, and whether they parsed.
#[derive(Default)]
struct Index {
    synced: bool,
    listing: Option<BTreeMap<String, bool>>,
    objects: BTreeMap<String, bool>,
}

impl Index {
    fn change(&mut self, change: WatchChange<PickyPod>) {
        match change {
            WatchChange::ListBegins => self.listing = Some(BTreeMap::new()),
            WatchChange::Apply(object) => {
                let (name, readable) = match object {
                    Ok(pod) => (pod.metadata.name.expect("named"), true),
                    Err(BadObject { id, .. }) => (id.name, false),
                };
                self.listing.as_mut().unwrap_or(&mut self.objects).insert(name, readable);
            }
            WatchChange::Delete(ObjectId { name, .. }) => {
                self.objects.remove(&name);
            }
            WatchChange::ListEnds => {
                self.objects = self.listing.take().expect("a list began");
                self.synced = true;
            }
            WatchChange::NotServed | WatchChange::Refused => {}
        }
    }
}

/// A watch of the live pods that ends with the test.
struct Watched {
    index: Arc<Mutex<Index>>,
    counters: Arc<WatchCounters>,
    task: JoinHandle<()>,
}

impl Watched {
    fn start(client: Client) -> Self {
        let (index, counters) = (Arc::<Mutex<Index>>::default(), Arc::<WatchCounters>::default());
        let task = tokio::spawn({
            let (index, counters) = (index.clone(), counters.clone());
            async move { watch(client, Some(LIVE_PODS), &counters, |it| index.lock().change(it)).await }
        });
        Watched { index, counters, task }
    }

    async fn sees(&self, expected: &[(&str, bool)]) {
        let expected: BTreeMap<_, _> = expected.iter().map(|&(name, good)| (name.to_owned(), good)).collect();
        await_until(SOON, &format!("the watch sees {expected:?}"), async || {
            let index = self.index.lock();
            index.synced && index.objects == expected
        })
        .await;
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_sees_what_happens_also_to_bad_objects_and_across_a_restart_of_the_api_server() {
    let mut control_plane = start_control_plane_with(Options {
        api_server_args: vec!["--etcd-compaction-interval=1s".to_owned()],
        ..Options::default()
    })
    .await;
    let client = control_plane.client();
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let unreadable = |pod: &mut Value| pod["spec"]["terminationGracePeriodSeconds"] = json!(300);

    let first = create_pod(&client, "first", |_| {}).await;
    let bad = create_pod(&client, "bad", unreadable).await;
    let watched = Watched::start(control_plane.client());
    watched.sees(&[("first-0", true), ("bad-0", false)]).await;

    let second = create_pod(&client, "second", |_| {}).await;
    let worse = create_pod(&client, "worse", unreadable).await;
    watched.sees(&[("first-0", true), ("bad-0", false), ("second-0", true), ("worse-0", false)]).await;
    delete_now(&client, &first).await;
    delete_now(&client, &bad).await;
    // A finished pod leaves the field selector: the watch reports it as deleted.
    let finished = json!({"status": {"phase": "Succeeded"}});
    pods.patch_status(&second.name_any(), &PatchParams::default(), &Patch::Strategic(finished))
        .await
        .expect("patched");
    watched.sees(&[("worse-0", false)]).await;
    assert_eq!(watched.counters.lists.load(Ordering::Relaxed), 1);

    // A restarted API server answers 410 for revisions that etcd has compacted meanwhile.
    await_compaction(&pods).await;
    control_plane.kill_api_server();
    control_plane.restart_api_server().await.expect("up again");
    create_pod(&client, "third", |_| {}).await;
    delete_now(&client, &worse).await;
    watched.sees(&[("third-0", true)]).await;
    assert_eq!(watched.counters.lists.load(Ordering::Relaxed), 2);
    create_pod(&client, "fourth", |_| {}).await;
    watched.sees(&[("third-0", true), ("fourth-0", true)]).await;
}

/// Waits until the current revision can no longer be read.
async fn await_compaction(pods: &Api<Pod>) {
    let now = pods.list(&ListParams::default()).await.expect("readable");
    let version = now.metadata.resource_version.expect("set");
    let as_of_now = ListParams::default().at(&version).matching(VersionMatch::Exact);
    let touch = Patch::Merge(json!({"metadata": {"annotations": {"berth.test/touched": "yes"}}}));
    let namespaces: Api<Namespace> = Api::all(pods.clone().into_client());
    namespaces.patch("default", &PatchParams::default(), &touch).await.expect("patched");
    await_until(
        SOON,
        "the history is compacted",
        async || matches!(pods.list(&as_of_now).await, Err(kube::Error::Api(status)) if status.code == 410),
    )
    .await;
}

fn pod_ref(pod: &Pod) -> PodRef {
    PodRef {
        namespace: text(pod.metadata.namespace.as_ref()),
        name: text(pod.metadata.name.as_ref()),
        uid: text(pod.metadata.uid.as_ref()),
        scheduler_name: text(pod.spec.as_ref().expect("a spec").scheduler_name.as_ref()),
    }
}

/// Reads the API server's raw JSON: fields in its order, none left out.
async fn raw(client: &Client, path: &str) -> Value {
    let request = http::Request::get(path).body(Vec::new()).expect("a path");
    let text = client.request_text(request).await.expect("readable");
    serde_json::from_str(&text).expect("JSON")
}

async fn pod_scheduled(client: &Client, pod: &str) -> Option<Value> {
    let pod = raw(client, &format!("/api/v1/namespaces/default/pods/{pod}")).await;
    let conditions = pod["status"]["conditions"].as_array()?;
    conditions.iter().find(|it| it["type"] == "PodScheduled").cloned()
}

/// Returns the event about a pod, without the fields that differ between any two events.
async fn event_about(client: &Client, pod: &str, reason: &str) -> Option<Value> {
    let list = raw(client, "/apis/events.k8s.io/v1/namespaces/default/events").await;
    let mut events = list["items"].as_array().expect("a list").iter();
    let mut event = events.find(|it| it["regarding"]["name"] == pod && it["reason"] == reason)?.clone();
    let name = event["metadata"]["name"].as_str().expect("named");
    let (of, nanos) = name.rsplit_once('.').expect("a dot");
    assert_eq!(of, pod);
    assert!(nanos.len() == 16 && nanos.bytes().all(|digit| digit.is_ascii_hexdigit()), "{name}");
    assert_eq!(event["eventTime"].as_str().map(str::len), Some("2026-01-01T00:00:00.000000Z".len()));
    for field in ["name", "uid", "resourceVersion", "creationTimestamp", "managedFields"] {
        event["metadata"].as_object_mut().expect("an object").remove(field);
    }
    for field in ["name", "uid", "resourceVersion"] {
        event["regarding"].as_object_mut().expect("an object").remove(field);
    }
    for field in ["eventTime", "reportingInstance"] {
        event.as_object_mut().expect("an object").remove(field);
    }
    let text =
        event.to_string().replace(pod, "POD").replace("theirs", "SCHEDULER").replace("ours", "SCHEDULER");
    Some(serde_json::from_str(&text).expect("still JSON"))
}

async fn soon<T>(what: &str, mut get: impl AsyncFnMut() -> Option<T>) -> T {
    let mut found = None;
    await_until(SOON, what, async || {
        found = get().await;
        found.is_some()
    })
    .await;
    found.expect("awaited")
}

/// Two pods of a scheduler: `{scheduler}-big-0` fits nowhere, `{scheduler}-small-0` fits.
async fn big_and_small(client: &Client, scheduler: &'static str, prefixes: [&'static str; 2]) -> [Pod; 2] {
    let [big, small] = prefixes.map(|prefix| Pods {
        prefix,
        scheduler,
        requests: json!({"cpu": if prefix.contains("big") { "64" } else { "1" }}),
        ..Pods::default()
    });
    [
        create_pods(client, &big, |_, _| {}).await.remove(0),
        create_pods(client, &small, |_, _| {}).await.remove(0),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn events_and_conditions_are_those_of_kube_scheduler() {
    let control_plane = start_control_plane().await;
    let client = control_plane.client();
    create_nodes(&client, &Nodes::default()).await;

    let profiles = "profiles:\n- schedulerName: theirs\n";
    let _scheduler = control_plane.start_scheduler(profiles, &[]).await.expect("a scheduler");
    big_and_small(&client, "theirs", ["theirs-big", "theirs-small"]).await;
    let mut condition =
        soon("kube-scheduler's condition", async || pod_scheduled(&client, "theirs-big-0").await).await;
    let message = condition["message"].as_str().expect("a text").to_owned();
    assert!(message.starts_with("0/1 nodes are available: 1 Insufficient cpu."), "{message}");

    let [big, small] = big_and_small(&client, "ours", ["ours-big", "ours-small"]).await;
    let reporter = Reporter::new();
    let failed = |pod: &Pod, message: &str| PodReport::Failed {
        pod: pod_ref(pod),
        reason: "Unschedulable",
        message: message.into(),
        generation: pod.metadata.generation.expect("set"),
        event: true,
    };
    reporter.report(failed(&big, &message));
    reporter.report(PodReport::Scheduled { pod: pod_ref(&small), node: "node-0".into() });
    let binds = Arc::new(AtomicUsize::new(1));
    let writer = client::without_retries(control_plane.config()).expect("a client");
    let running = tokio::spawn({
        let (reporter, binds) = (reporter.clone(), binds.clone());
        async move { reporter.run(writer, "host-1", &binds, pending(), Duration::ZERO).await }
    });

    let mut ours = soon("our condition", async || pod_scheduled(&client, "ours-big-0").await).await;
    let transition = ours["lastTransitionTime"].take();
    assert_eq!(transition.as_str().map(str::len), Some("2026-01-01T00:00:00Z".len()));
    condition["lastTransitionTime"].take();
    assert_eq!(ours.to_string(), condition.to_string());

    for (theirs, ours, reason) in
        [("theirs-big-0", "ours-big-0", "FailedScheduling"), ("theirs-small-0", "ours-small-0", "Scheduled")]
    {
        let theirs =
            soon("kube-scheduler's event", async || event_about(&client, theirs, reason).await).await;
        let ours = soon("our event", async || event_about(&client, ours, reason).await).await;
        assert_eq!(ours.to_string(), theirs.to_string());
    }

    // Another failure is no transition: the time stays, and the condition is not duplicated.
    reporter.report(failed(&big, "another reason"));
    let changed = soon("the newer message", async || {
        pod_scheduled(&client, "ours-big-0").await.filter(|it| it["message"] == "another reason")
    })
    .await;
    assert_eq!(changed["lastTransitionTime"], transition);

    // A report about a recreated pod does not change the new one.
    let mut gone = small.clone();
    gone.metadata.uid = Some("11111111-2222-3333-4444-555555555555".to_owned());
    reporter.report(failed(&gone, "not about you"));
    await_until(SOON, "all seven are settled, two for each failure", async || {
        reporter.counters().sent.load(Ordering::Relaxed) == 7
    })
    .await;
    assert_eq!(pod_scheduled(&client, "ours-small-0").await, None);
    assert_eq!(reporter.dropped(), 0);
    running.abort();
}

/// Candidates for one lease with short times, and an observer that checks whether two ever lead at once.
struct Election {
    control_plane: TestControlPlane,
    leases: Api<Lease>,
}

struct Candidate {
    leading: tokio::sync::watch::Receiver<bool>,
    stop: tokio::sync::oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Candidate {
    fn leads(&self) -> bool {
        *self.leading.borrow()
    }
}

const LEASE_DURATION: Duration = Duration::from_secs(3);

impl Election {
    async fn start() -> Self {
        let control_plane = start_control_plane().await;
        let leases = Api::default_namespaced(control_plane.client());
        Election { control_plane, leases }
    }

    fn candidate(&self, identity: &str) -> Candidate {
        let config = LeaseConfig {
            duration: LEASE_DURATION,
            renew_deadline: Duration::from_secs(2),
            retry_period: Duration::from_millis(200),
            ..LeaseConfig::new("default", "berth", identity)
        };
        let client = client::without_retries(self.control_plane.config()).expect("a client");
        let (elector, leading) = Elector::new(client, config).expect("a safe configuration");
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let task = tokio::spawn(elector.run(async move {
            // Only a message stops it, not the end of its sender.
            if stopped.await.is_err() {
                pending::<()>().await;
            }
        }));
        Candidate { leading, stop, task }
    }

    async fn transitions(&self) -> Option<i32> {
        let lease = self.leases.get("berth").await.expect("there");
        lease.spec.expect("a spec").lease_transitions
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_candidate_leads_at_a_time_through_death_release_and_outage() {
    let mut election = Election::start().await;
    let _quiet = quiet_turn().await;
    let first = election.candidate("first");
    await_closely(SOON, "the first candidate leads", async || first.leads()).await;
    let (second, third) = (election.candidate("second"), election.candidate("third"));
    let alone = |candidates: &[&Candidate]| candidates.iter().filter(|it| it.leads()).count() <= 1;

    // It leads for longer than an unrenewed lease lasts.
    let started = Instant::now();
    await_closely(SOON, "the lease was renewed", async || {
        assert!(first.leads() && alone(&[&first, &second, &third]));
        started.elapsed() > LEASE_DURATION + Duration::from_secs(1)
    })
    .await;
    assert_eq!(election.transitions().await, Some(0));

    // Crash: no release. Both other candidates see the lease expire; one acquires it, not before it can have expired.
    first.task.abort();
    let died = Instant::now();
    await_closely(SOON, "the dead leader is replaced", async || {
        assert!(alone(&[&second, &third]));
        second.leads() || third.leads()
    })
    .await;
    assert!(
        died.elapsed() > LEASE_DURATION - Duration::from_secs(1),
        "taken over after {:?}",
        died.elapsed()
    );
    assert!(!first.leads(), "receivers of the crashed one are notified");
    assert_eq!(election.transitions().await, Some(1));

    // Release: the other candidate takes over immediately.
    let (leader, other) = if second.leads() { (second, third) } else { (third, second) };
    let stopped = Instant::now();
    leader.stop.send(()).expect("it listens");
    leader.task.await.expect("no panic");
    await_closely(SOON, "the other one leads", async || other.leads()).await;
    assert!(stopped.elapsed() < LEASE_DURATION, "a released lease need not expire: {:?}", stopped.elapsed());
    assert!(!*leader.leading.borrow());
    assert_eq!(election.transitions().await, Some(2));

    // Outage: leadership ends before any candidate could acquire the lease, and is regained afterwards.
    election.control_plane.kill_api_server();
    let killed = Instant::now();
    await_closely(SOON, "leadership is given up", async || !other.leads()).await;
    assert!(killed.elapsed() < LEASE_DURATION, "given up after {:?}", killed.elapsed());
    election.control_plane.restart_api_server().await.expect("up again");
    await_closely(SOON, "leadership is regained", async || other.leads()).await;
    assert_eq!(election.transitions().await, Some(2), "no other candidate held it");
}
