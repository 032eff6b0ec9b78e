use serde_json::{Value, json};

use super::*;
use crate::advise::show;

fn helm(report: &AdviceReport) -> (String, Value) {
    let text = show::helm(report).expect("text");
    let values: Value = serde_saphyr::from_str(&text).expect("YAML");
    (text, values["recommendedResources"].clone())
}

fn slack(report: &AdviceReport) -> Value {
    serde_json::from_str(&show::slack(report).expect("text")).expect("JSON")
}

/// The texts of all blocks.
fn texts(message: &Value) -> Vec<String> {
    let text = |block: &Value| match block["type"].as_str() {
        Some("context") => block["elements"][0]["text"].as_str().expect("a text").to_owned(),
        _ => block["text"]["text"].as_str().expect("a text").to_owned(),
    };
    message["blocks"].as_array().expect("blocks").iter().map(text).collect()
}

#[test]
fn helm_values_have_all_resources_of_a_container_also_those_that_stay() {
    let mut one = advice("app", (Current::Set(2_000), Some(350)), (Current::Set(512 * MI), None));
    one.size.memory.limit = Current::Set(1_024 * MI);
    let none = advice("idle", (Current::Set(100), None), (Current::Set(MI), None));
    let (text, values) = helm(&report(vec![one, none]));
    let resources = json!({"requests": {"cpu": "350m", "memory": "512Mi"}, "limits": {"memory": "1Gi"}});
    assert_eq!(values, json!({"shop": {"Deployment": {"web": {"app": resources}}}}));
    assert!(text.starts_with("# Requests and limits") && text.contains("dig .Release.Namespace"), "{text}");
}

#[test]
fn helm_values_leave_out_guesses_and_quote_what_yaml_would_misread() {
    let mut guess = advice("app", (Current::Set(2_000), Some(350)), (Current::Unset, None));
    let mut odd = guess.clone();
    guess.guessed = true;
    odd.workload = "true".into();
    odd.namespace = "1e3".into();
    let (text, values) = helm(&report(vec![guess, odd]));
    assert!(text.starts_with("# Containers that are left out"), "{text}");
    assert_eq!(values, json!({"1e3": {"Deployment": {"true": {"app": {"requests": {"cpu": "350m"}}}}}}));
}

#[test]
fn a_slack_message_lists_workloads_by_what_all_their_pods_save() {
    let cpu = |workload: &str, request, target| {
        let memory = (Current::Set(512 * MI), Some(512 * MI));
        ContainerAdvice {
            workload: workload.into(),
            ..advice("app", (Current::Set(request), Some(target)), memory)
        }
    };
    let message =
        slack(&report(vec![cpu("lacks", 100, 900), cpu("some", 2_000, 1_000), cpu("most", 4_000, 1_000)]));
    let texts = texts(&message);
    let [title, summary, heading, most, some, notes] = &texts[..] else { panic!("{texts:?}") };
    assert_eq!(title, "Sizes for containers");
    assert!(summary.contains("CPU requested 12200m → 5800m") && summary.contains("EUR a month"), "{summary}");
    assert_eq!(message["text"], **summary);
    assert!(heading.contains("2 of 2 workloads"), "{heading}");
    assert_eq!(most, "`shop/deploy/most`: CPU 8 → 2, memory 1Gi → 1Gi, 2 pods, 162.50 → 42.50 EUR a month");
    assert!(some.starts_with("`shop/deploy/some`"), "{some}");
    assert!(notes.contains("2 containers"), "{notes}");
}

#[test]
fn a_slack_message_keeps_slacks_limits_and_no_name_becomes_markup() {
    let mut all = Vec::new();
    for at in 0..200 {
        let name = format!("{at}`<!channel>&{}", "x".repeat(300));
        let saving = advice("app", (Current::Set(9_000), Some(10)), (Current::Set(MI), Some(MI)));
        all.push(ContainerAdvice { workload: name.clone(), namespace: name, ..saving });
    }
    let mut report = report(all);
    report.notes = vec!["<".repeat(5_000)];
    let message = slack(&report);
    let texts = texts(&message);
    assert!(texts.len() <= 50 && texts.len() > 10, "{}", texts.len());
    for text in &texts {
        assert!(text.chars().count() <= 3_000 && !text.contains('<'), "{text}");
    }
    assert!(texts[3].starts_with("`0'&lt;!channel&gt;&amp;xxx") && texts[3].contains('…'), "{}", texts[3]);
    assert_eq!(texts[3].matches('`').count(), 2, "{}", texts[3]);
}

#[test]
fn a_slack_message_without_savings_says_what_there_is() {
    let message = slack(&AdviceReport { prices: None, notes: Vec::new(), ..report(Vec::new()) });
    let texts = texts(&message);
    assert_eq!(texts.len(), 2, "{texts:?}");
    assert!(texts[1].starts_with("0 containers"), "{texts:?}");
}
