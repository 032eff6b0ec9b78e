//! Status updates, and the cases without one.

use super::{HOUR, MI, T0};
use crate::recommend::post::{OptionalAmounts, Recommendation};
use crate::recommend::status::{Thresholds, condition, next};
use crate::recommend::{Findings, Status, VpaCondition};

const ALWAYS: Thresholds = Thresholds { cpu_milli: 0, memory_bytes: 0 };

fn recommendation(container: &str, cpu: i64, mib: i64) -> Recommendation {
    let amounts = OptionalAmounts { cpu: Some(cpu), memory: Some(mib * MI) };
    Recommendation {
        container: container.into(),
        target: amounts,
        lower: amounts,
        upper: amounts,
        uncapped: amounts,
    }
}

fn found(recommendations: &[Recommendation]) -> Findings {
    Findings {
        pods: 2,
        containers: recommendations.iter().map(|it| it.container.clone()).collect(),
        recommendations: recommendations.to_vec(),
        ..Findings::default()
    }
}

fn first(found: &Findings) -> Status {
    next(&Status::default(), found, ALWAYS, T0).expect("it says something")
}

fn condition<'a>(status: &'a Status, kind: &str) -> Option<&'a VpaCondition> {
    status.conditions.iter().find(|condition| condition.kind == kind)
}

fn states(status: &Status) -> Vec<(&str, &str)> {
    status.conditions.iter().map(|it| (it.kind.as_str(), it.status.as_str())).collect()
}

#[test]
fn the_same_findings_are_written_once() {
    let found = found(&[recommendation("app", 100, 300)]);
    let status = first(&found);
    assert_eq!(states(&status), [("RecommendationProvided", "True")]);
    assert_eq!(next(&status, &found, ALWAYS, T0 + HOUR), None);
}

#[test]
fn a_difference_below_the_thresholds_is_not_written_and_small_ones_add_up() {
    let thresholds = Thresholds { cpu_milli: 100, memory_bytes: 100 * MI };
    let status = first(&found(&[recommendation("app", 1000, 300)]));
    for (cpu, mib, is_written) in
        [(1099, 399, false), (901, 201, false), (1100, 300, true), (1000, 400, true), (900, 300, true)]
    {
        let next = next(&status, &found(&[recommendation("app", cpu, mib)]), thresholds, T0);
        assert_eq!(next.is_some(), is_written, "{cpu} {mib}");
    }
    let other = found(&[recommendation("app", 1000, 300), recommendation("sidecar", 10, 10)]);
    assert!(next(&status, &other, thresholds, T0).is_some(), "another container");
    // A changed condition is written without the small change of an amount.
    let low = Findings { low_confidence: vec!["app".into()], ..found(&[recommendation("app", 1001, 300)]) };
    let written = next(&status, &low, thresholds, T0).unwrap();
    assert_eq!(written.recommendation, status.recommendation);
    assert!(next(&status, &found(&[recommendation("app", 1001, 300)]), ALWAYS, T0).is_some());
}

#[test]
fn conditions_say_what_is_wrong_and_go_when_it_is_not() {
    let nothing = first(&Findings::default());
    assert_eq!(states(&nothing), [("RecommendationProvided", "False"), ("NoPodsMatched", "True")]);
    let waits = next(&nothing, &Findings { pods: 1, ..Findings::default() }, ALWAYS, T0 + HOUR).unwrap();
    assert_eq!(states(&waits), [("RecommendationProvided", "False")]);
    assert_eq!(waits.conditions[0].reason, "NoSamples");
    assert_eq!(waits.conditions[0].since, nothing.conditions[0].since, "it is False as before");
    let provided = next(&waits, &found(&[recommendation("app", 1, 1)]), ALWAYS, T0 + 2 * HOUR).unwrap();
    assert_eq!(states(&provided), [("RecommendationProvided", "True")]);
    assert_ne!(provided.conditions[0].since, nothing.conditions[0].since);

    let unsupported =
        Findings { unsupported: Some("there is no Deployment web".into()), ..Findings::default() };
    let status = first(&unsupported);
    assert_eq!(states(&status), [("RecommendationProvided", "False"), ("ConfigUnsupported", "True")]);
    assert_eq!(
        condition(&status, condition::CONFIG_UNSUPPORTED).unwrap().message,
        "there is no Deployment web"
    );
    let fetches = Findings { pods: 1, fetches_history: true, ..Findings::default() };
    assert_eq!(condition(&first(&fetches), condition::FETCHING_HISTORY).unwrap().status, "True");
    let low = Findings { low_confidence: vec!["app".into()], ..found(&[recommendation("app", 1, 1)]) };
    assert_eq!(condition(&first(&low), condition::LOW_CONFIDENCE).unwrap().status, "True");
    let capped = Findings { capped: "CPU is capped".into(), ..found(&[recommendation("app", 1, 1)]) };
    assert_eq!(first(&capped).conditions[0].message, "CPU is capped");
}

#[test]
fn what_was_recommended_stays_while_there_is_nothing_better() {
    let status = first(&found(&[recommendation("app", 100, 300), recommendation("sidecar", 10, 10)]));
    let recommended = |found: &Findings| {
        let next = next(&status, found, ALWAYS, T0).unwrap_or_else(|| status.clone());
        let containers = next.recommendation.into_iter().flatten();
        containers.map(|it| (it.container, it.target.cpu.unwrap())).collect::<Vec<_>>()
    };
    let (app, sidecar) = (("app".to_owned(), 100), ("sidecar".to_owned(), 10));
    let both = [app.clone(), sidecar.clone()];
    assert_eq!(recommended(&Findings::default()), both, "scaled to nothing");
    let unsupported = Findings { unsupported: Some("gone".into()), ..Findings::default() };
    assert_eq!(recommended(&unsupported), both);
    let unmeasured =
        Findings { pods: 1, containers: vec!["app".into(), "sidecar".into()], ..Findings::default() };
    assert_eq!(recommended(&unmeasured), both, "just started");
    let mut one = found(&[recommendation("app", 200, 300)]);
    assert_eq!(recommended(&one), [("app".to_owned(), 200)], "the sidecar was taken away");
    one.containers.push("sidecar".into());
    assert_eq!(recommended(&one), [("app".to_owned(), 200), sidecar], "it is there, and not measured yet");
    let off = Findings { pods: 1, ..Findings::default() };
    assert_eq!(recommended(&off), [], "the policies of all containers are off");
    let fetches = Findings { fetches_history: true, ..off };
    assert_eq!(recommended(&fetches), both);
    let shadowed = Findings { is_shadowed: true, ..unsupported };
    assert_eq!(recommended(&shadowed), [], "another VPA says it");
}

#[test]
fn conditions_of_others_are_kept_and_their_order_is_no_difference() {
    let found = Findings { low_confidence: vec!["app".into()], ..found(&[recommendation("app", 1, 1)]) };
    let mut status = first(&found);
    let foreign =
        VpaCondition { kind: "Foreign".into(), status: "Unknown".into(), ..VpaCondition::default() };
    status.conditions.insert(0, foreign.clone());
    status.conditions.reverse();
    status.conditions[0].observed_generation = Some(7);
    assert_eq!(next(&status, &found, ALWAYS, T0 + HOUR), None);
    let next = next(&status, &Findings::default(), ALWAYS, T0 + HOUR).unwrap();
    assert!(next.conditions.contains(&foreign));
    assert_eq!(condition(&next, condition::LOW_CONFIDENCE), None);
}

#[test]
fn a_vpa_beyond_the_limit_says_so_and_keeps_its_recommendation() {
    let published = Status { recommendation: Some(vec![recommendation("app", 1, 1)]), ..Status::default() };
    let beyond =
        Findings { unsupported: Some("too many".into()), is_beyond_limit: true, ..Findings::default() };
    let status = next(&published, &beyond, ALWAYS, T0).unwrap();
    assert_eq!(status.recommendation, published.recommendation);
    let said = status.conditions.iter().find(|it| it.kind == condition::CONFIG_UNSUPPORTED).unwrap();
    assert_eq!(
        (&*said.status, &*said.reason, &*said.message),
        ("True", condition::LIMIT_REACHED, "too many")
    );
}

#[test]
fn the_observed_generation_is_written_with_a_change_and_followed_where_the_crd_keeps_it() {
    let found =
        |generation| Findings { generation: Some(generation), ..found(&[recommendation("app", 1000, 300)]) };
    let status = next(&Status::default(), &found(1), ALWAYS, T0).unwrap();
    assert_eq!(status.observed_generation, Some(1));
    assert_eq!(next(&status, &found(1), ALWAYS, T0 + HOUR), None);
    let edited = next(&status, &found(2), ALWAYS, T0 + HOUR).unwrap();
    assert_eq!(edited, Status { observed_generation: Some(2), ..status.clone() });
    // An older CRD: it would be written in every round.
    let dropped = Status { observed_generation: None, ..status };
    assert_eq!(next(&dropped, &found(2), ALWAYS, T0 + HOUR), None);
}
