//! Restarts while memory windows are open.

use std::collections::BTreeMap;

use super::{DAY, Fed, HOUR, MI, MINUTE, T0, bounds, shapes};
use crate::recommend::amount::Amount;
use crate::recommend::checkpoint::CheckpointStatus;
use crate::recommend::open::{NAMED_MAX, OpenWindows, load, save};
use crate::recommend::settings::RecommenderSettings;

/// Three days of rising memory; the last day's window is open.
fn fed(settings: RecommenderSettings) -> Fed {
    Fed::new(settings).feed(T0, 2 * 1440 + 720, |n| (500, (400 + n / 10) * MI))
}

const NOW: i64 = T0 + 2 * DAY + 12 * HOUR;

#[test]
fn the_checkpoint_is_what_upstream_writes_without_the_open_peak() {
    let settings = RecommenderSettings::default();
    let fed = fed(settings.clone());
    let (status, windows) = save(&fed.aggregate, [("uid", &fed.state)], NOW);
    let mut upstream = fed.aggregate.clone();
    upstream.subtract_peak(759 * MI, T0 + 3 * DAY);
    assert_eq!(status, CheckpointStatus::save(&upstream, NOW));
    assert_eq!(windows.containers["uid"].peak, Some(759 * MI));
    let closed = save(&fed.aggregate, [("uid", &fed.state)], T0 + 3 * DAY);
    assert_eq!(closed.0, CheckpointStatus::save(&fed.aggregate, T0 + 3 * DAY), "closed at its end");
    assert!(closed.1.containers.is_empty());
}

#[test]
fn a_restart_changes_neither_the_recommendation_nor_what_comes_after() {
    let settings = RecommenderSettings::default();
    let mut before = fed(settings.clone());
    let (status, windows) = save(&before.aggregate, [("uid", &before.state)], NOW);
    let status: CheckpointStatus = serde_json::from_str(&serde_json::to_string(&status).unwrap()).unwrap();
    let windows: OpenWindows = serde_json::from_str(&serde_json::to_string(&windows).unwrap()).unwrap();
    let (aggregate, states) = load(&status, &windows, &shapes(&settings), DAY, NOW).unwrap();
    assert_eq!(states, BTreeMap::from([("uid".to_string(), before.state)]));
    // The checkpoint keeps times to the second, and these are whole ones.
    assert_eq!(bounds(&aggregate, &settings, 1), before.bounds(1));
    assert_eq!(aggregate.memory_span, before.aggregate.memory_span);
    let mut after = Fed { settings, aggregate, state: states["uid"] };
    for fed in [&mut before, &mut after] {
        assert!(!fed.memory(MI, NOW - HOUR), "what was counted is not counted again");
        assert!(fed.memory(900 * MI, NOW));
        assert!(fed.oom(1000 * MI, NOW + MINUTE));
    }
    assert_eq!(after.bounds(1), before.bounds(1));
    let weight = |fed: &Fed| fed.aggregate.memory.total_weight();
    assert!((weight(&after) / weight(&before) - 1.0).abs() < 1e-9);
}

#[test]
fn windows_beside_a_checkpoint_that_another_has_written_since_do_not_count() {
    let settings = RecommenderSettings::default();
    let fed = fed(settings.clone());
    let (_, windows) = save(&fed.aggregate, [("uid", &fed.state)], NOW);
    let (later, _) = save(&fed.aggregate, [("uid", &fed.state)], NOW + HOUR);
    let (loaded, states) = load(&later, &windows, &shapes(&settings), DAY, NOW + HOUR).unwrap();
    assert!(states.is_empty());
    assert_eq!(loaded.memory.total_weight(), later.memory_histogram.total_weight);
}

#[test]
fn an_annotation_is_small() {
    let fed = fed(RecommenderSettings::default());
    let uid = "0f4c1f5e-7d0b-4ad0-a40e-6d4f4c4f2a11";
    let (_, windows) = save(&fed.aggregate, [(uid, &fed.state)], NOW);
    let text = serde_json::to_string(&windows).unwrap();
    assert!(text.len() < 300, "{} bytes: {text}", text.len());
    let nothing = Fed::new(RecommenderSettings::default());
    let (_, windows) = save(&nothing.aggregate, [(uid, &nothing.state)], NOW);
    assert_eq!(serde_json::to_string(&windows).unwrap(), format!(r#"{{"savedAt":{NOW}}}"#));
}

#[test]
fn of_very_many_open_windows_the_peaks_are_kept_together() {
    let settings = RecommenderSettings::default();
    let mut fed = Fed::new(settings.clone());
    let pods = 3 * NAMED_MAX;
    let states: Vec<_> = (0..pods as Amount)
        .map(|n| {
            fed.state = Default::default();
            assert!(fed.memory((300 + n) * MI, T0 + n * MINUTE));
            (format!("pod-{n:04}"), fed.state)
        })
        .collect();
    let now = T0 + 12 * HOUR;
    let running = states.iter().map(|(uid, state)| (uid.as_str(), state));
    let (status, windows) = save(&fed.aggregate, running, now);
    assert_eq!(windows.containers.len(), NAMED_MAX);
    assert!(status.memory_histogram.bucket_weights.is_empty());
    let (loaded, states) = load(&status, &windows, &shapes(&settings), DAY, now).unwrap();
    assert_eq!(states.len(), NAMED_MAX);
    assert_eq!(bounds(&loaded, &settings, 1)[0], fed.bounds(1)[0]);
    let share = loaded.memory.total_weight() / fed.aggregate.memory.total_weight();
    assert!((share - 1.0).abs() < 1e-9, "{share}");
}

#[test]
fn windows_that_cannot_be_are_left_out() {
    let settings = RecommenderSettings::default();
    let fed = fed(settings.clone());
    let (status, good) = save(&fed.aggregate, [("uid", &fed.state)], NOW);
    let window = good.containers["uid"];
    type Change = fn(&mut crate::recommend::OpenWindow);
    let changes: [Change; 8] = [
        |w| w.end = i64::MIN,
        |w| w.end += DAY,
        |w| w.end = i64::MAX,
        |w| w.last_memory += DAY,
        |w| w.last_cpu = Some(i64::MAX),
        |w| w.peak = Some(-1),
        |w| w.oom_peak = Some(i64::MIN),
        |w| w.peak = None,
    ];
    for (n, change) in changes.into_iter().enumerate() {
        let mut wrong = window;
        change(&mut wrong);
        let windows = OpenWindows {
            saved_at: good.saved_at,
            containers: BTreeMap::from([("uid".into(), wrong)]),
            memory_samples: Some((NOW, T0, 5)),
            others: None,
        };
        let (loaded, states) = load(&status, &windows, &shapes(&settings), DAY, NOW).unwrap();
        assert!(states.is_empty(), "change {n}");
        assert_eq!(loaded.memory.total_weight(), status.memory_histogram.total_weight);
        assert_eq!(loaded.memory_span.count, 0);
    }
}
