//! What viewers get, in comparison with what the engine has.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use futures::StreamExt;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::feed::{Feed, StreamRefusal, VIEWERS_MAX};
use super::overview::{Overview, PageSources};
use berth_model::{Amounts, Image, Labels, Node, PerResource, Pod};
use berth_rightsizing::recommend::{Workload, WorkloadSurplus};
use berth_scheduler::engine::Engine;
use berth_scheduler::scheduler::OVERVIEW_SLICE;
use berth_scheduler::testing::{pod, with_engine};
use berth_telemetry::RecommenderMetrics;

/// A viewer: what a browser makes of the events.
#[derive(Debug, Default, Clone, PartialEq)]
struct Viewer {
    nodes: BTreeMap<u64, Value>,
    shares: BTreeMap<u64, Vec<i64>>,
    sections: BTreeMap<String, Value>,
}

impl Viewer {
    fn of(events: &str) -> Viewer {
        let mut viewer = Viewer::default();
        viewer.read(events);
        viewer
    }

    fn read(&mut self, events: &str) {
        for event in events.split_terminator("\n\n") {
            let (name, data) = event.split_once('\n').expect("two lines");
            let name = name.strip_prefix("event: ").expect("a name");
            let data = data.strip_prefix("data: ").expect("data");
            let data: Value = serde_json::from_str(data).expect("JSON");
            match name {
                "nodes" => {
                    for node in data["nodes"].as_array().expect("nodes") {
                        self.nodes.insert(node["id"].as_u64().expect("an id"), node.clone());
                    }
                    for id in data["gone"].as_array().expect("ids") {
                        self.nodes.remove(&id.as_u64().expect("an id"));
                        self.shares.remove(&id.as_u64().expect("an id"));
                    }
                }
                "use" => {
                    let numbers: Vec<i64> = serde_json::from_value(data["of"].clone()).expect("numbers");
                    for of in numbers.chunks_exact(6) {
                        self.shares.insert(of[0] as u64, of[1..].to_vec());
                    }
                }
                name => drop(self.sections.insert(name.to_owned(), data)),
            }
        }
    }

    fn section(&self, name: &str) -> &Value {
        self.sections.get(name).unwrap_or_else(|| panic!("no {name} in {:?}", self.sections.keys()))
    }
}

fn node(name: &str, zone: &str, cpu_milli: i64) -> Node {
    let allocatable = Amounts { cpu_milli, memory: 1 << 30, pods: 110, ..Amounts::default() };
    let labels: Labels =
        [("topology.kubernetes.io/zone", zone), ("karpenter.sh/nodepool", "pool")].into_iter().collect();
    Node { name: name.into(), labels, allocatable, ..Node::default() }
}

fn on(uid: &str, cpu_milli: i64, node: &str) -> Pod {
    Pod { node_name: Some(node.into()), ..pod(uid, cpu_milli) }
}

fn sync(engine: &Engine, nodes: &[&str], pods: &[&str]) {
    engine.retain_nodes(&nodes.iter().map(|name| Arc::from(*name)).collect::<HashSet<Arc<str>>>());
    engine.retain_pods(&pods.iter().map(|uid| Arc::from(*uid)).collect::<HashSet<Arc<str>>>());
}

#[test]
fn a_node_has_its_place_and_the_shares_that_pods_request() {
    with_engine(|engine, _| {
        engine.apply_node(node("n", "a", 4_000));
        engine.apply_pod(on("p", 1_000, "n"));
        let mut overview = Overview::default();
        let viewer = Viewer::of(&overview.advance(engine, &PageSources::default(), 5));
        let (id, shown) = viewer.nodes.first_key_value().expect("a node");
        assert_eq!(
            shown,
            &json!({
                "id": id, "name": "n", "zone": "a", "pool": "pool", "cpuMilli": 4_000, "memory": 1 << 30, "pods": 110,
                "cordoned": false, "ready": true, "extended": {},
            })
        );
        assert_eq!(viewer.shares[id], [250, 0, 9, -1, 0]);
        let totals = viewer.section("totals");
        assert_eq!((&totals["at"], &totals["nodes"], &totals["pods"]), (&json!(5), &json!(1), &json!(1)));
        assert_eq!(viewer.section("agents")["agents"].as_array().map(Vec::len), Some(1));
    });
}

#[test]
fn a_node_is_described_again_only_if_that_is_shown() {
    with_engine(|engine, _| {
        engine.apply_node(node("n", "a", 4_000));
        let mut overview = Overview::default();
        overview.advance(engine, &PageSources::default(), 0);
        let image = Image { name: "pause".into(), size_bytes: 1 };
        engine.apply_node(Node { images: [image].into(), ..node("n", "a", 4_000) });
        assert!(!overview.advance(engine, &PageSources::default(), 0).contains("event: nodes"));
        engine.apply_node(node("n", "b", 4_000));
        assert!(overview.advance(engine, &PageSources::default(), 0).contains("event: nodes"));
    });
}

#[test]
fn waiting_pods_are_grouped_the_oldest_first_and_their_messages_are_cut() {
    with_engine(|engine, _| {
        engine.apply_node(node("n", "a", 100));
        let mut uids = Vec::new();
        for at in 0..40 {
            // Two of each size, which are one class.
            let uid = format!("p{at:02}");
            let waiting = pod(&uid, 1_000 + at / 2);
            engine.apply_pod(Pod { created_s: 1_000 - at / 2, gates: ["wait".into()].into(), ..waiting });
            uids.push(uid);
        }
        sync(engine, &["n"], &uids.iter().map(String::as_str).collect::<Vec<_>>());
        let mut overview = Overview::default();
        let viewer = Viewer::of(&overview.advance(engine, &PageSources::default(), 0));
        let groups = viewer.section("queue")["groups"].as_array().expect("groups");
        assert_eq!(groups.len(), 20);
        assert_eq!(
            (&groups[0]["pod"], &groups[0]["pods"], &groups[0]["since"]),
            (&json!("p38"), &json!(2), &json!(981_000))
        );
        assert!(groups.iter().all(|group| group["state"] == "gated" && group["namespace"] == "ns"));
        assert_eq!(viewer.section("totals")["queues"]["gated"], 40);
        assert_eq!(viewer.section("queue")["leftOut"], 0);
    });
}

#[test]
fn each_of_many_waiting_pods_and_nodes_is_counted_once() {
    const MANY: usize = 3 * OVERVIEW_SLICE + 1;
    with_engine(|engine, _| {
        for at in 0..MANY {
            engine.apply_node(node(&format!("n{at}"), "a", 100));
            engine.apply_pod(Pod { gates: ["wait".into()].into(), ..pod(&format!("p{at}"), 1_000) });
        }
        let viewer = Viewer::of(&Overview::default().advance(engine, &PageSources::default(), 0));
        assert_eq!((viewer.nodes.len(), viewer.shares.len()), (MANY, MANY));
        assert_eq!(viewer.section("queue")["groups"][0]["pods"], MANY);
        assert_eq!(viewer.section("totals")["waiting"], MANY);
    });
}

#[test]
fn a_walk_that_took_long_is_not_repeated_at_once() {
    with_engine(|engine, _| {
        let mut overview = Overview::default();
        overview.walked = Some((Instant::now(), Duration::from_secs(60)));
        let viewer = Viewer::of(&overview.advance(engine, &PageSources::default(), 0));
        assert!(!viewer.sections.contains_key("queue"));
        overview.walked = Some((Instant::now(), Duration::ZERO));
        let viewer = Viewer::of(&overview.advance(engine, &PageSources::default(), 0));
        assert!(viewer.sections.contains_key("queue"));
    });
}

#[test]
fn text_is_cut_between_characters() {
    let short = "ä".repeat(150);
    assert_eq!(super::overview::cut(&short), short);
    let long = format!("x{}", "ä".repeat(200));
    let cut = super::overview::cut(&long);
    assert_eq!(cut, format!("x{}…", "ä".repeat(149)));
}

/// The budget of the stream: 50 KB a second with 5,000 nodes.
#[test]
fn while_all_nodes_change_all_the_time_events_stay_within_their_budget_and_each_node_has_its_turn() {
    with_engine(|engine, _| {
        let names: Vec<_> = (0..5_000).map(|at| format!("node-with-a-usual-name-{at:04}")).collect();
        for name in &names {
            engine.apply_node(node(name, "zone", 64_000));
        }
        let mut overview = Overview::default();
        let mut viewer = Viewer::of(&overview.advance(engine, &PageSources::default(), 0));
        for round in 1..=6_i64 {
            for (at, name) in names.iter().enumerate() {
                engine.apply_pod(on(&format!("{round}-{at}"), 1_000, name));
            }
            let events = overview.advance(engine, &PageSources::default(), round);
            assert!(events.len() < 50_000, "{} bytes", events.len());
            viewer.read(&events);
        }
        let old = viewer.shares.values().filter(|shares| shares[0] < 30).count();
        assert_eq!(old, 0, "nodes without news in the last four rounds");
        // As soon as nothing changes, the viewer has everything.
        (0..4).for_each(|_| viewer.read(&overview.advance(engine, &PageSources::default(), 7)));
        assert!(viewer.shares.values().all(|shares| shares[0] == 93), "6 of 64 CPUs");
        assert!(!overview.advance(engine, &PageSources::default(), 8).contains("event: use"));
    });
}

#[derive(Debug, Clone)]
enum Change {
    Node(usize, usize, i64),
    NoNode(usize),
    Pod(usize, i64, usize),
    NoPod(usize),
    Look,
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        (0..6_usize, 0..3_usize, 1..5_i64).prop_map(|(node, zone, cpu)| Change::Node(node, zone, cpu)),
        (0..6_usize).prop_map(Change::NoNode),
        (0..12_usize, 1..4_i64, 0..6_usize).prop_map(|(pod, cpu, node)| Change::Pod(pod, cpu, node)),
        (0..12_usize).prop_map(Change::NoPod),
        Just(Change::Look),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Ids of nodes are reused, nodes go before their pods and come back, and events may be one look behind.
    #[test]
    fn who_follows_the_events_sees_the_same_as_who_comes_later(changes in prop::collection::vec(change(), 1..80)) {
        with_engine(|engine, _| {
            let mut overview = Overview::default();
            overview.advance(engine, &PageSources::default(), 0);
            let mut viewer = Viewer::of(&overview.whole());
            for change in changes {
                match change {
                    Change::Node(at, zone, cpu) => engine.apply_node(node(&format!("n{at}"), &format!("z{zone}"), cpu * 1_000)),
                    Change::NoNode(at) => engine.delete_node(&format!("n{at}")),
                    Change::Pod(at, cpu, to) => engine.apply_pod(on(&format!("p{at}"), cpu * 100, &format!("n{to}"))),
                    Change::NoPod(at) => engine.delete_pod(&Arc::from(format!("p{at}"))),
                    Change::Look => viewer.read(&overview.advance(engine, &PageSources::default(), 0)),
                }
            }
            viewer.read(&overview.advance(engine, &PageSources::default(), 0));
            let whole = overview.whole();
            assert_eq!(viewer, Viewer::of(&whole));
            let mut fresh = Overview::default();
            fresh.advance(engine, &PageSources::default(), 0);
            assert_eq!(Viewer::of(&whole).nodes, Viewer::of(&fresh.whole()).nodes);
            assert_eq!(viewer.shares, Viewer::of(&fresh.whole()).shares);
        });
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

#[test]
fn too_many_viewers_are_refused_and_a_place_is_free_when_one_goes() {
    with_engine(|engine, _| {
        let counters = Arc::<super::UiCounters>::default();
        let feed = Feed::new(engine.clone(), PageSources::default(), counters.clone());
        let mut viewers: Vec<_> =
            (0..VIEWERS_MAX).map(|_| Box::pin(feed.watch().expect("a place"))).collect();
        assert_eq!(feed.watch().err(), Some(StreamRefusal::Full));
        assert_eq!(counters.viewers.load(Relaxed), VIEWERS_MAX);
        viewers.pop();
        assert_eq!(counters.viewers.load(Relaxed), VIEWERS_MAX - 1);
        assert!(feed.watch().is_ok());
    });
}

#[test]
fn a_viewer_that_does_not_read_loses_its_stream_and_others_do_not() {
    with_engine(|engine, _| {
        runtime().block_on(async {
            let counters = Arc::<super::UiCounters>::default();
            let feed = Arc::new(Feed::new(engine.clone(), PageSources::default(), counters.clone()));
            let mut slow = Box::pin(feed.watch().expect("a place"));
            let mut reads = Box::pin(feed.watch().expect("a place"));
            for _ in 0..20 {
                feed.tick();
                assert!(reads.next().await.is_some());
            }
            let first = slow.next().await.expect("what was there when it came");
            assert!(first.starts_with(b"event: hello"));
            assert!(slow.next().await.is_none());
            assert_eq!(counters.lagging.load(Relaxed), 1);
        });
    });
}

#[test]
fn streams_end_when_the_process_stops_and_nobody_may_come_any_more() {
    with_engine(|engine, _| {
        runtime().block_on(async {
            let feed = Arc::new(Feed::new(engine.clone(), PageSources::default(), Arc::default()));
            let mut viewer = Box::pin(feed.watch().expect("a place"));
            assert!(viewer.next().await.is_some());
            feed.clone().run(async {}).await;
            while viewer.next().await.is_some() {}
            assert_eq!(feed.watch().err(), Some(StreamRefusal::Stopping));
        });
    });
}

#[test]
fn what_workloads_request_beyond_their_recommendations_is_shown_while_it_is_known() {
    with_engine(|engine, _| {
        let recommender = Arc::new(RecommenderMetrics::default());
        let sources = PageSources { recommender: Some(recommender.clone()), ..PageSources::default() };
        let mut overview = Overview::default();
        let mut viewer = Viewer::of(&overview.advance(engine, &sources, 0));
        assert_eq!(viewer.section("recommendations"), &Value::Null);
        let workload = Workload { namespace: "shop".into(), kind: "Deployment".into(), name: "web".into() };
        let size = |cpu, memory| PerResource { cpu, memory };
        let web = WorkloadSurplus { workload, pods: 2, requested: size(900, 30), recommended: size(200, 10) };
        recommender.workloads_request([web].into_iter().collect());
        viewer.read(&overview.advance(engine, &sources, 0));
        let sizes = json!({"cpuMilli": [900, 200], "memory": [30, 10]});
        let web =
            json!({"namespace": "shop", "kind": "Deployment", "name": "web", "pods": 2, "sizes": sizes});
        let expected = json!({"workloads": 1, "sizes": sizes, "largest": [web], "leftOut": 0});
        assert_eq!(viewer.section("recommendations"), &expected);
        recommender.rests();
        viewer.read(&overview.advance(engine, &sources, 0));
        assert_eq!(viewer.section("recommendations"), &Value::Null, "another process leads");
    });
}

#[test]
fn while_nobody_watches_nothing_is_kept() {
    with_engine(|engine, _| {
        engine.apply_node(node("n", "a", 4_000));
        let feed = Feed::new(engine.clone(), PageSources::default(), Arc::default());
        let viewer = feed.watch().expect("a place");
        feed.tick();
        assert!(feed.keeps());
        drop(viewer);
        feed.tick();
        assert!(!feed.keeps());
    });
}
