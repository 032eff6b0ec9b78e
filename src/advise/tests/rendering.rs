use std::path::Path;

use serde_json::Value;

use super::*;
use crate::advise::show;
use berth_rightsizing::recommend::AMOUNT_MAX;
use berth_rightsizing::recommend::backtest::{EstimatorKind, Measures, Outcome, RecordedResource, overall};

/// Compares with a golden file; `UPDATE=1` rewrites it.
fn assert_golden(name: &str, text: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/advise/tests/golden").join(name);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&file, text).expect("the golden file is written");
    }
    let golden = std::fs::read_to_string(&file).expect("a golden file: make it with UPDATE=1");
    assert_eq!(text, golden, "{name} differs from the golden file; run with UPDATE=1 to accept the change");
}

/// Containers with every kind of value, and hostile names.
fn three() -> AdviceReport {
    let mut first = advice("app", (Current::Set(2000), Some(350)), (Current::Set(4 << 30), Some(512 * MI)));
    first.size.memory.limit = Current::Set(4 << 30);
    let mut second = advice("=\"x\",y", (Current::Unset, Some(25)), (Current::Unknown, None));
    second.guessed = true;
    second.namespace = "a-namespace-with-a-long-name".into();
    second.workload = "a-workload-with-a-name-that-is-much-longer-than-a-table-has-room-for".into();
    second.kind = "Rollout".into();
    second.size.cpu.upper = Some(AMOUNT_MAX);
    let third = advice("<b>\u{1b}", (Current::Set(100), Some(100)), (Current::Set(300 * MI), Some(250 * MI)));
    report(vec![first, second, third])
}

#[test]
fn the_table_fits_its_width() {
    let table = show::table(&three(), 120);
    assert_golden("table.txt", &table);
    assert!(!table.contains('\u{1b}'));
    // The costs need a column more.
    let unpriced = AdviceReport { prices: None, ..three() };
    for (report, width) in
        [(&unpriced, 90), (&unpriced, 100), (&unpriced, 120), (&three(), 110), (&three(), 120)]
    {
        let table = show::table(report, width);
        assert!(table.lines().skip(3).all(|line| line.chars().count() <= width), "{table}");
    }
    let mut guessed = report(Vec::new());
    guessed.workloads_from = WorkloadsFrom::PodNames;
    assert_golden("empty.txt", &show::table(&guessed, 120));
}

#[test]
fn json_and_yaml_have_all_figures_in_base_units() {
    let json: Value = serde_json::from_str(&show::json(&three()).expect("text")).expect("JSON");
    let yaml: Value = serde_saphyr::from_str(&show::yaml(&three()).expect("text")).expect("YAML");
    assert_eq!(json, yaml);
    assert_eq!(json["workloadsFrom"], "kube-state-metrics");
    let [first, second, _] = &json["containers"].as_array().expect("a list")[..] else { panic!("{json}") };
    assert_eq!(
        first["cpu"],
        serde_json::json!({
            "severity": "critical", "request": 2.0, "limit": null, "reason": "usage", "target": 0.35, "limitTarget": null,
            "lowerBound": 0.175, "upperBound": 0.7,
        })
    );
    assert_eq!(
        (&first["memory"]["request"], &first["memory"]["target"]),
        (&(4_i64 << 30).into(), &(512 * MI).into())
    );
    assert_eq!(
        (&first["days"], &first["samples"], &first["podsSeen"]),
        (&7.5.into(), &181.into(), &5.into())
    );
    // Two pods; the memory of the second container is unknown, and costs nothing that is known.
    assert_eq!(first["monthlyCost"], serde_json::json!({"current": 100.0, "advised": 16.5}));
    assert_eq!(second["monthlyCost"], serde_json::json!({"current": 0.0, "advised": 1.0}));
    assert_eq!((&json["currency"], &json["workloads"][0]["workload"]), (&"EUR".into(), &"web".into()));
    // Unset and unknown.
    assert_eq!((&second["cpu"]["request"], &second["memory"]["request"]), (&Value::Null, &"?".into()));
    assert_eq!(second["guessed"], true);
}

#[test]
fn csv_has_a_line_for_each_container_and_runs_nothing_in_a_spreadsheet() {
    let csv = show::csv(&three());
    assert_golden("advice.csv", &csv);
    assert!(csv.contains(",\"'=\"\"x\"\",y\","), "{csv}");
    let columns = csv.lines().next().expect("a header").split(',').count();
    let last = csv.lines().last().expect("a line");
    assert_eq!(last.split(',').count(), columns);
}

#[test]
fn the_page_needs_no_network_and_believes_no_name() {
    let page = show::page(&three());
    assert!(
        page.contains("default-src 'none'")
            && !page.contains("src=\"http")
            && !page.contains("<link rel=\"style")
    );
    assert!(page.contains("&lt;b&gt;\u{fffd}") && !page.contains("<b>\u{1b}"));
    for expected in [
        "2 → 350m",
        "4Gi → 512Mi",
        "unset → 25m",
        "any",
        "1 critical, 1 warning",
        "CPU requested by their pods",
        "<td>100.00 → 16.50</td>",
        "22.72 EUR",
    ] {
        assert!(page.contains(expected), "no {expected:?} in\n{page}");
    }
    assert_eq!(page, show::page(&three()));
}

#[test]
fn patches_set_what_changes_with_limits_in_proportion() {
    let commands = show::kubectl(&three()).expect("text");
    assert_golden("commands.sh", &commands);
    // Names are quoted, and guesses are comments.
    assert!(
        commands.lines().all(|line| line.starts_with("kubectl ") || line.starts_with("# ")),
        "{commands}"
    );
    let yaml = show::kustomize(&three()).expect("text");
    assert_golden("kustomization.yaml", &yaml);
    let component: Value = serde_saphyr::from_str(&yaml).expect("YAML");
    assert_eq!(component["patches"].as_array().map(Vec::len), Some(1));
    let patch = component["patches"][0]["patch"].as_str().expect("a text");
    let patch: Value = serde_saphyr::from_str(patch).expect("YAML");
    let containers = &patch["spec"]["template"]["spec"]["containers"];
    assert_eq!(
        containers[0]["resources"],
        serde_json::json!({"requests": {"cpu": "350m", "memory": "512Mi"}, "limits": {"memory": "512Mi"}})
    );
}

#[test]
fn a_backtest_is_a_line_for_each_series_and_estimator() {
    let outcome = |name: &str, resource, estimator, relative_slack| Outcome {
        name: name.into(),
        resource,
        estimator,
        measures: Measures {
            days: 7.0,
            pod_days: 7.0,
            mean_limit: if resource == RecordedResource::Cpu { 1.25 } else { 3e9 },
            mean_usage: if resource == RecordedResource::Cpu { 1.0 } else { 2e9 },
            relative_slack,
            overrun_share: 0.0123,
            throttle_minutes_per_day: 17.712,
            ooms: 2,
            ooms_per_pod_day: 2.0 / 7.0,
            changes_per_day: 1.5,
            ..Measures::default()
        },
    };
    let one = [
        outcome("cpu.csv", RecordedResource::Cpu, EstimatorKind::Vpa, 0.2),
        outcome("cpu.csv", RecordedResource::Cpu, EstimatorKind::Max, 0.4),
    ];
    // One series needs no total.
    assert_eq!(show::backtests_table(&one, &overall(&one)).lines().count(), 3);
    let two =
        [&one[..], &[outcome("memory.csv", RecordedResource::Memory, EstimatorKind::P99, -0.1)]].concat();
    assert_golden("backtest.txt", &show::backtests_table(&two, &overall(&two)));
    let many = vec![one[0].clone(); 121];
    let table = show::backtests_table(&many, &overall(&many));
    assert!(table.lines().count() <= 3 && table.contains("-o json"), "{table}");
    let json = show::backtests_json(&two, &overall(&two)).expect("text");
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["series"][2]["estimator"], "p99");
    assert_eq!((&json["series"][2]["ooms"], &json["overall"][0]["meanLimit"]), (&2.into(), &1.25.into()));
}
