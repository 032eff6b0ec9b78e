use ratatui::Terminal;
use ratatui::backend::TestBackend;
use serde_json::json;

use super::{EventReader, TopKey, TopScreen, TopState, draw};

const NOW: i64 = 1_700_000_000_000;

fn told() -> TopState {
    let mut state = TopState::default();
    let node = |id: u32, zone: &str, cordoned: bool| {
        json!({"id": id, "name": format!("n{id}"), "zone": zone, "pool": "", "cpuMilli": 4_000, "memory": 1, "pods": 110,
            "cordoned": cordoned, "ready": id != 3, "extended": {}})
    };
    let totals = |at: i64, scheduled: u64| {
        json!({"at": at, "leading": true, "nodes": 3, "pods": 40, "waiting": 2, "classes": 1, "queues": {"active": 0, "unschedulable": 2},
            "scheduled": scheduled, "conflicts": 1, "preemptions": 0, "listHits": 99, "listMisses": 1})
    };
    let mut hear =
        |event: &str, data: serde_json::Value| state.hear(event, &data.to_string()).expect("understood");
    hear("hello", json!({"apiVersion": "ui.berth.dev/v1", "version": "0.1.0"}));
    hear(
        "nodes",
        json!({"nodes": [node(1, "east", false), node(2, "east", true), node(3, "west", false), node(4, "", false)], "gone": []}),
    );
    hear(
        "use",
        json!({"of": [1, 900, 500, 100, -1, 0, 2, 100, 200, 10, 250, 50, 3, 0, 0, 0, -1, 0, 9, 1, 1, 1, 1, 1]}),
    );
    hear("nodes", json!({"nodes": [], "gone": [4]}));
    hear(
        "queue",
        json!({"groups": [{"namespace": "shop", "owner": "ReplicaSet web", "pod": "web-1", "scheduler": "berth", "pods": 2,
        "state": "parked", "priority": 7, "since": NOW - 400_000, "message": "0/3 nodes are available"}], "leftOut": 4}),
    );
    hear(
        "agents",
        json!({"agents": [{"dispatched": 30, "lists": 2, "bytes": 2 << 20, "evictions": 0}, {"dispatched": 10, "lists": 1, "bytes": 0, "evictions": 5}]}),
    );
    hear(
        "gangs",
        json!({"gangs": [{"namespace": "ml", "name": "train", "phase": "Unschedulable", "message": "too large", "help": null,
        "minimum": 8, "members": 9, "bound": 0}], "leftOut": 0}),
    );
    hear(
        "quotas",
        json!({"quotas": [{"name": "red", "waiting": 1, "reclaimed": 0, "resources": [
        {"resource": "cpu", "used": "3", "borrowed": "1", "guaranteed": "2", "maximum": null, "permille": 1_500}]}]}),
    );
    let sizes = json!({"cpuMilli": [6_000, 2_500], "memory": [3_i64 << 30, 1_i64 << 30]});
    hear(
        "recommendations",
        json!({"workloads": 7, "sizes": sizes, "leftOut": 2, "largest": [
            {"namespace": "shop", "kind": "Deployment", "name": "web", "pods": 4, "sizes": sizes}]}),
    );
    hear("fragmentation", json!(null));
    hear("totals", totals(NOW - 2_000, 100));
    hear("totals", totals(NOW, 350));
    state
}

fn drawn(state: &TopState, screen: &mut TopScreen, (width, height): (u16, u16)) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
    terminal.draw(|frame| draw(frame, state, screen, NOW)).expect("drawn");
    let line = |row: &[ratatui::buffer::Cell]| row.iter().map(|cell| cell.symbol()).collect::<String>();
    terminal.backend().buffer().content().chunks(width.into()).map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn each_view_shows_what_the_events_told() {
    let state = told();
    let mut screen = TopScreen::default();
    let text = drawn(&state, &mut screen, (160, 30));
    for expected in [
        "berth 0.1.0 leads · 3 nodes · 40 pods bound · 2 wait · 1 classes · 125 binds/s",
        "queues: unschedulable 2 · list hits 99.0 % · conflicts 1 · preemptions 0",
        "■■■■■■■■■·  90%",
        "not ready",
        "cordoned, 5% reserved",
    ] {
        assert!(text.contains(expected), "{expected}:\n{text}");
    }
    let at = |name: &str| text.find(name).expect("a node");
    assert!(at("n1 ") < at("n2 ") && at("n2 ") < at("n3 ") && !text.contains("n4"), "{text}");
    screen.press(TopKey::NextMeasure);
    assert!(drawn(&state, &mut screen, (160, 30)).contains("memory 0-100 %"));
    for (tab, expected) in [
        (
            1,
            &["6m", "shop/ReplicaSet web", "parked", "0/3 nodes are available", "and 4 more groups of pods"]
                [..],
        ),
        (2, &["ml/train", "Unschedulable", "too large"]),
        (3, &["red", "cpu", "guaranteed"]),
        (4, &["2.0 MiB", "75%", "25%"]),
        (
            5,
            &[
                "shop/Deployment web",
                "6.00",
                "2.50",
                "all 7 workloads: 6.00 cores requested",
                "and 2 more workloads",
            ],
        ),
    ] {
        screen.press(TopKey::Tab(tab));
        let text = drawn(&state, &mut screen, (160, 30));
        expected.iter().for_each(|expected| assert!(text.contains(expected), "{expected}:\n{text}"));
    }
}

#[test]
fn every_size_of_a_terminal_and_every_key_is_drawn() {
    let (state, empty) = (told(), TopState::default());
    let mut screen = TopScreen::default();
    for size in [(1, 1), (20, 3), (40, 5), (80, 24), (300, 100)] {
        for key in [
            TopKey::NextTab,
            TopKey::PreviousTab,
            TopKey::Down(50),
            TopKey::Up(1),
            TopKey::NextMeasure,
            TopKey::Tab(9),
            TopKey::NextTab,
        ] {
            screen.press(key);
            drawn(&state, &mut screen, size);
            drawn(&empty, &mut screen, size);
        }
    }
    screen.press(TopKey::Tab(0));
    screen.press(TopKey::Down(1_000));
    let text = drawn(&state, &mut screen, (160, 30));
    assert!(text.contains("n1") && text.contains("n3"), "all fit: nothing is scrolled away\n{text}");
}

#[test]
fn events_are_put_together_wherever_they_are_cut() {
    let stream = "event: a\ndata: {\"ä\":1}\n\n: comment\n\nevent: b\ndata: 2\n\nevent: c\ndata: ";
    let expected = [("a".to_owned(), "{\"ä\":1}".to_owned()), ("b".to_owned(), "2".to_owned())];
    for size in 1..stream.len() {
        let mut reader = EventReader::default();
        let read = stream.as_bytes().chunks(size).flat_map(|bytes| reader.add(bytes).expect("text"));
        assert_eq!(read.collect::<Vec<_>>(), expected, "{size}");
    }
    assert!(EventReader::default().add(b"event: a\ndata: \xff\n\n").is_err());
    let mut reader = EventReader::default();
    assert!(
        (0..9).map(|_| reader.add(&vec![b'x'; 1 << 20])).any(|added| added.is_err()),
        "an event without end"
    );
}

#[test]
fn another_version_and_broken_events_are_refused() {
    let mut state = TopState::default();
    let other = r#"{"apiVersion": "ui.berth.dev/v9", "version": "9"}"#;
    assert!(state.hear("hello", other).is_err_and(|error| error.to_string().contains("ui.berth.dev/v9")));
    for event in ["hello", "nodes", "use", "totals", "queue", "agents", "gangs", "quotas", "recommendations"]
    {
        assert!(state.hear(event, "7").is_err(), "{event}");
    }
    assert!(state.hear("later", "7").is_ok(), "events of a newer version");
}
