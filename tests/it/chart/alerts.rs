//! Alerts of the chart: `promtool`, which Debian has in its package `prometheus`, tests them on written series (`tests/alerts`).

use super::*;
use crate::docs::metrics::series;

const RUNBOOK: &str = "docs/alerts.md";

/// Returns the rules of the file, in its order.
fn alerts() -> Vec<Value> {
    let text = fs::read_to_string(chart().join("files/alerts.yaml")).unwrap();
    rules_of(&serde_saphyr::from_str(&text).unwrap())
}

fn rules_of(spec: &Value) -> Vec<Value> {
    let groups = spec["groups"].as_array().expect("groups");
    groups.iter().flat_map(|group| group["rules"].as_array().expect("rules").clone()).collect()
}

fn name(rule: &Value) -> &str {
    rule["alert"].as_str().expect("an alert")
}

/// Returns the files with series, sorted.
fn tests() -> Vec<PathBuf> {
    let folder = fs::read_dir(repository().join("tests/alerts")).unwrap();
    let mut files: Vec<PathBuf> = folder.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn promtool(args: &[&str], files: &[PathBuf]) {
    let output = Command::new("promtool").args(args).args(files).output();
    let output = output.expect("promtool");
    let text = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&text));
}

#[test]
fn each_alert_fires_for_the_series_for_which_it_should_and_no_others() {
    needs!("promtool");
    promtool(&["check", "rules"], &[chart().join("files/alerts.yaml")]);
    promtool(&["test", "rules"], &tests());
}

#[test]
fn each_alert_is_tested_both_ways() {
    let mut tested: BTreeMap<String, BTreeSet<bool>> = BTreeMap::new();
    for file in tests() {
        let cases: Value = serde_saphyr::from_str(&fs::read_to_string(file).unwrap()).unwrap();
        for case in cases["tests"].as_array().unwrap() {
            let title = case["name"].as_str().expect("a name");
            let (alert, _) = title.split_once(": ").expect("the name of an alert first");
            let [evaluation] = &case["promql_expr_test"].as_array().unwrap()[..] else { panic!("{case}") };
            assert_eq!(evaluation["expr"], format!(r#"ALERTS{{alertname="{alert}", alertstate="firing"}}"#));
            let fires = !evaluation["exp_samples"].as_array().unwrap().is_empty();
            tested.entry(alert.to_owned()).or_default().insert(fires);
        }
    }
    let alerts = alerts();
    assert!(alerts.iter().map(name).collect::<BTreeSet<_>>().into_iter().eq(tested.keys()), "{tested:?}");
    for (alert, ways) in tested {
        assert_eq!(ways.len(), 2, "{alert} is only tested one way");
    }
}

#[test]
fn each_alert_has_a_severity_and_a_section_in_the_runbook_and_the_other_way_round() {
    let runbook = fs::read_to_string(repository().join(RUNBOOK)).unwrap();
    let sections: Vec<&str> = runbook.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    let alerts = alerts();
    assert_eq!(sections, alerts.iter().map(name).collect::<Vec<_>>());
    for alert in &alerts {
        let annotations = &alert["annotations"];
        assert_eq!(annotations["runbook_url"], format!("{RUNBOOK}#{}", name(alert).to_lowercase()));
        assert!(annotations["summary"].is_string() && annotations["description"].is_string(), "{alert}");
        let severity = alert["labels"]["severity"].as_str().unwrap();
        assert!(["critical", "warning"].contains(&severity), "{alert}");
    }
    for section in runbook.split("\n### ").skip(1) {
        for part in ["Meaning", "Confirm", "Do", "Ignored"] {
            assert!(section.contains(&format!("\n* **{part}.** ")), "no {part} in {section}");
        }
    }
}

/// Returns the metrics in an expression, each with its matchers as (label, value).
fn metrics(expression: &str) -> Vec<(&str, Vec<(&str, &str)>)> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(start) = rest.find(is_name) {
        rest = &rest[start..];
        let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        rest = after;
        if !["berth_", "scheduler_", "vpa_", "process_"].iter().any(|prefix| word.starts_with(prefix)) {
            continue;
        }
        let braces = after.strip_prefix('{').and_then(|inner| inner.split('}').next()).unwrap_or_default();
        let matchers = braces.split(", ").filter_map(|matcher| matcher.split_once(['=', '!']));
        let matchers =
            matchers.map(|(label, value)| (label, value.trim_start_matches(['=', '~']).trim_matches('"')));
        found.push((word, matchers.collect()));
        rest = &after[braces.len()..];
    }
    found
}

#[tokio::test]
async fn alerts_read_only_metrics_and_labels_that_berth_exports() {
    let (exported, page) = (series(), fs::read_to_string(repository().join("docs/metrics.md")).unwrap());
    let mut count = 0;
    for alert in alerts() {
        for (metric, matchers) in metrics(alert["expr"].as_str().unwrap()) {
            assert!(exported.contains(metric), "{}: {metric} is not exported", name(&alert));
            let described = ["", "_bucket", "_sum", "_count"].iter().find_map(|end| {
                let row = format!("| `{}` |", metric.strip_suffix(end)?);
                page.lines().find(|line| line.starts_with(&row))
            });
            let row = described.unwrap_or_else(|| panic!("{metric} is not described"));
            for (label, values) in matchers {
                assert!(row.contains(&format!("`{label}`")), "{}: {metric} has no {label}", name(&alert));
                for value in values.split('|') {
                    assert!(page.contains(&format!("`{value}`")), "{metric}: no {label} is {value}");
                }
            }
            count += 1;
        }
    }
    assert!(count > 60, "{count}");
}

#[test]
fn expressions_are_split_into_metrics_and_matchers() {
    let expression = r#"sum by (job) (rate(berth_a_total{x="1|2", y!~"z"}[5m])) / on (berthed) vpa_b > 0"#;
    let expected = vec![("berth_a_total", vec![("x", "1|2"), ("y", "z")]), ("vpa_b", vec![])];
    assert_eq!(metrics(expression), expected);
}

#[test]
fn the_rule_has_the_alerts_of_the_file_and_the_changes_of_the_values() {
    assert!(rendered("").iter().all(|object| object["kind"] != "PrometheusRule"), "not by default");
    let objects = rendered("prometheusRule: {enabled: true, labels: {release: prometheus}}");
    let rule = the("PrometheusRule", &objects);
    assert_eq!(rule["metadata"]["labels"]["release"], "prometheus");
    assert_eq!(rules_of(&rule["spec"]), alerts());
    assert!(rule["spec"]["groups"][0]["interval"].is_null());

    let changed = rendered(
        r#"
prometheusRule:
  enabled: true
  interval: 2m
  alertLabels: {team: platform}
  runbookUrl: https://wiki.example.com/berth
  overrides:
    BerthAbsent: {enabled: false}
    BerthNoLeader: {for: 30s, severity: page, expr: sum(berth_leader) == 0}
"#,
    );
    let spec = &the("PrometheusRule", &changed)["spec"];
    let (rules, before) = (rules_of(spec), alerts());
    assert_eq!(spec["groups"][0]["interval"], "2m");
    assert!(rules.iter().all(|rule| rule["labels"]["team"] == "platform"));
    assert_eq!(rules.len(), before.len() - 1);
    assert!(rules.iter().all(|rule| name(rule) != "BerthAbsent"));
    let rule = rules.iter().find(|rule| name(rule) == "BerthNoLeader").expect("still there");
    assert_eq!(
        (&rule["for"], &rule["labels"]["severity"], &rule["expr"]),
        (&json!("30s"), &json!("page"), &json!("sum(berth_leader) == 0"))
    );
    let (old, new) = (before.last().unwrap(), rules.last().unwrap());
    let anchor = name(old).to_lowercase();
    assert_eq!(new["annotations"]["runbook_url"], format!("https://wiki.example.com/berth#{anchor}"));
    assert_eq!((&new["expr"], &new["for"]), (&old["expr"], &old["for"]));
    assert_eq!(new["annotations"]["description"], old["annotations"]["description"]);

    for (overrides, expected) in [
        ("{BerthNone: {for: 1m}}", "there is no alert BerthNone"),
        ("{BerthNoLeader: {fro: 1m}}", "fro"),
        ("{BerthNoLeader: {for: soon}}", "for"),
    ] {
        let error = template(&format!("prometheusRule: {{enabled: true, overrides: {overrides}}}"));
        let error = error.expect_err(overrides);
        assert!(error.contains(expected), "{overrides}: {error}");
    }
}
