//! More CPU for the start of a pod, and its end.

use serde_json::{Value, json};

use super::*;
use crate::apply::boost::{self, BoostState, Boosted, Boosts};
use crate::apply::patch;
use crate::recommend::{ContainerPolicy, CpuBoost, StartupBoost};

const SECOND: i64 = 1_000_000_000;

fn with_boost(mut vpa: Vpa, cpu: CpuBoost, seconds: i64) -> Vpa {
    vpa.startup_boost = Some(StartupBoost { cpu, seconds });
    vpa
}

fn app(requests: OptionalAmounts, limits: OptionalAmounts) -> SizedPod {
    pod("p", vec![container("app", requests, limits)])
}

fn created(pod: &SizedPod, vpa: &Vpa) -> (OptionalAmounts, OptionalAmounts, Boosts) {
    let (changes, boosts) = boost::at_creation(pod, vpa, &Ranges::default(), true).expect("it changes");
    (changes[0].requests, changes[0].limits, boosts)
}

/// Returns the pod as it runs after its creation, ready since this second.
fn started(pod: &SizedPod, vpa: &Vpa, ready: Option<i64>) -> SizedPod {
    let (changes, boosts) = boost::at_creation(pod, vpa, &Ranges::default(), true).expect("it changes");
    let mut pod = pod.clone();
    for change in changes {
        let wanted = &mut pod.containers[change.container].wanted;
        *wanted = change.applied_to(*wanted);
    }
    let boosts = boost::read(&serde_json::to_string(&boosts).expect("JSON"));
    SizedPod { boosts, is_ready: ready.is_some(), ready_since: ready.map(|at| at * SECOND), ..pod }
}

fn ends(pod: &SizedPod, vpa: &Vpa, now: i64) -> Option<(OptionalAmounts, OptionalAmounts)> {
    match boost::state(pod, vpa, &Ranges::default(), now * SECOND) {
        BoostState::Ends(changes) => Some((changes[0].requests, changes[0].limits)),
        _ => None,
    }
}

#[test]
fn a_boost_multiplies_or_adds_to_the_recommended_cpu_and_limits_keep_their_proportion() {
    let target = vpa("Initial", vec![recommendation("app", amounts(300, 100 * MI))]);
    let pod = app(amounts(500, 50 * MI), amounts(1_000, None));
    let (requests, limits, boosts) = created(&pod, &with_boost(target.clone(), CpuBoost::Factor(3), 10));
    assert_eq!((requests, limits), (amounts(900, 100 * MI), amounts(1_800, None)));
    let said = Boosted { milli_cpu: 900, request: Some(500), limit: Some(1_000), seconds: 10 };
    assert_eq!(boosts, Boosts::from([("app".to_owned(), said)]));
    let (requests, ..) = created(&pod, &with_boost(target, CpuBoost::Added(250), 0));
    assert_eq!(requests, amounts(550, 100 * MI));
}

#[test]
fn without_a_recommendation_and_with_mode_off_the_template_is_boosted() {
    let pod = app(amounts(200, MI), OptionalAmounts::default());
    let (requests, _, boosts) = created(&pod, &with_boost(vpa("Initial", vec![]), CpuBoost::Factor(2), 0));
    assert_eq!((requests, boosts.len()), (amounts(400, None), 1));
    let off = vpa("Off", vec![recommendation("app", amounts(1_000, 9 * MI))]);
    assert_eq!(created(&pod, &with_boost(off, CpuBoost::Factor(2), 0)).0, amounts(400, None));
    let nothing = app(OptionalAmounts::default(), OptionalAmounts::default());
    let boosting = with_boost(vpa("Initial", vec![]), CpuBoost::Factor(2), 0);
    let refused = boost::at_creation(&nothing, &boosting, &Ranges::default(), true);
    assert_eq!(refused.expect_err("there is nothing to multiply"), Hold::NoRecommendation);
}

#[test]
fn without_an_updater_that_takes_it_back_no_boost_is_given() {
    let pod = app(amounts(500, 50 * MI), OptionalAmounts::default());
    let target = vpa("Initial", vec![recommendation("app", amounts(300, 100 * MI))]);
    let boosting = with_boost(target, CpuBoost::Factor(3), 10);
    let (changes, boosts) = boost::at_creation(&pod, &boosting, &Ranges::default(), false).expect("sized");
    assert_eq!((changes[0].requests, boosts), (amounts(300, 100 * MI), Boosts::new()));
    let off = Vpa { update_mode: "Off".into(), ..boosting };
    let refused = boost::at_creation(&pod, &off, &Ranges::default(), false);
    assert_eq!(refused.expect_err("nothing is applied"), Hold::NoRecommendation);
}

#[test]
fn what_cannot_be_taken_back_in_place_or_is_not_allowed_is_not_given() {
    let target = vpa("Initial", vec![recommendation("app", amounts(300, None))]);
    let boosting = with_boost(target, CpuBoost::Factor(4), 0);
    let mut restarting = app(amounts(300, None), OptionalAmounts::default());
    restarting.containers[0].restarts.cpu = true;
    assert_eq!(created(&restarting, &boosting), (amounts(300, None), amounts(None, None), Boosts::new()));
    // Nor above the limit, where limits stay, nor above what the LimitRange of the namespace accepts.
    let mut only_requests = boosting.clone();
    let policy =
        ContainerPolicy { container: "app".into(), requests_only: true, ..ContainerPolicy::default() };
    only_requests.policies = vec![policy];
    let limited = app(amounts(300, None), amounts(700, None));
    assert_eq!(created(&limited, &only_requests).0, amounts(700, None));
    let container = Range { max: amounts(800, None), ..Range::default() };
    let ranges = Ranges { container, pod: Range::default() };
    let (changes, _) = boost::at_creation(&limited, &boosting, &ranges, true).expect("it changes");
    assert_eq!(changes[0].limits, amounts(798, None), "342 times 7 / 3");
    let whole = Range { max: amounts(500, None), ..Range::default() };
    let ranges = Ranges { container: Range::default(), pod: whole };
    let free = app(amounts(300, None), OptionalAmounts::default());
    let (changes, boosts) = boost::at_creation(&free, &boosting, &ranges, true).expect("it changes");
    assert_eq!((changes[0].requests, boosts), (amounts(300, None), Boosts::new()));
    // A container that the VPA leaves alone.
    let mut off = boosting;
    off.policies = vec![ContainerPolicy { container: "*".into(), off: true, ..ContainerPolicy::default() }];
    assert_eq!(
        boost::at_creation(&free, &off, &Ranges::default(), true).map(drop),
        Err(Hold::NoRecommendation)
    );
}

#[test]
fn a_boost_lasts_until_the_pod_has_been_ready_for_its_time_and_ends_once() {
    let target = vpa("Initial", vec![recommendation("app", amounts(300, 9 * MI))]);
    let boosting = with_boost(target, CpuBoost::Factor(2), 30);
    let pod = app(amounts(500, 50 * MI), amounts(1_000, None));
    let starting = started(&pod, &boosting, None);
    assert_eq!(boost::state(&starting, &boosting, &Ranges::default(), SECOND), BoostState::Lasts);
    let ready = started(&pod, &boosting, Some(100));
    assert_eq!(boost::state(&ready, &boosting, &Ranges::default(), 129 * SECOND), BoostState::Lasts);
    // Memory is none of its business.
    assert_eq!(ends(&ready, &boosting, 130), Some((amounts(300, None), amounts(600, None))));
    let mut after = ready;
    after.containers[0].wanted = Resources { requests: amounts(300, 9 * MI), limits: amounts(600, None) };
    assert_eq!(boost::state(&after, &boosting, &Ranges::default(), 200 * SECOND), BoostState::Over);
}

#[test]
fn without_its_vpa_a_boost_ends_with_the_sizes_of_the_template() {
    let target = vpa("InPlace", vec![recommendation("app", amounts(300, None))]);
    let boosting = with_boost(target, CpuBoost::Factor(2), 30);
    let pod = app(amounts(500, None), amounts(1_000, None));
    let ready = started(&pod, &boosting, Some(100));
    let gone = Vpa::default();
    assert_eq!(boost::state(&ready, &gone, &Ranges::default(), 129 * SECOND), BoostState::Lasts);
    assert_eq!(ends(&ready, &gone, 130), Some((amounts(500, None), amounts(1_000, None))));
    for nonsense in ["", "7", r#"{"app":{"milliCpu":"x"}}"#] {
        assert_eq!(boost::read(nonsense), Boosts::new(), "{nonsense}");
    }
}

#[test]
fn a_boosted_pod_is_not_evicted_for_it_and_its_end_needs_no_budget() {
    let mut target = recommendation("app", amounts(300, 9 * MI));
    (target.lower, target.upper) = (amounts(200, MI), amounts(400, 99 * MI));
    let boosting = with_boost(vpa("Recreate", vec![target]), CpuBoost::Factor(4), 30);
    let pod = app(amounts(300, 9 * MI), OptionalAmounts::default());
    let ready = [started(&pod, &boosting, Some(100))];
    let nobody = std::collections::BTreeMap::new();
    let rules = DisruptionRules::default();
    let mut memory = UpdaterMemory::default();
    let round = Round::new((&boosting, &ready), &RANGES, &nobody, rules, &mut memory, 120 * SECOND);
    assert_eq!(round.candidates(), (vec![], vec![(0, Hold::StartupBoost)]));
    // Unless it is killed for want of memory while it starts.
    let mut killed = ready.clone();
    killed[0].containers[0].oom_after = Some(SECOND);
    let round = Round::new((&boosting, &killed), &RANGES, &nobody, rules, &mut memory, 120 * SECOND);
    let (candidates, _) = round.candidates();
    assert!(candidates[0].is_urgent && !candidates[0].ends_boost, "{candidates:?}");
    let mut round = Round::new((&boosting, &ready), &RANGES, &nobody, rules, &mut memory, 130 * SECOND);
    let (candidates, held) = round.candidates();
    assert!(held.is_empty() && candidates[0].ends_boost, "{candidates:?}");
    assert_eq!(candidates[0].changes[0].requests, amounts(300, None));
    assert_eq!(round.unknown_replicas(), std::collections::BTreeSet::new());
    assert_eq!(round.step(&candidates[0]), UpdateStep::Resize);
    // Not evicted either when it is refused, and asked again only after a while.
    assert_eq!(round.without_room(&candidates[0]), UpdateStep::Hold(Hold::NodeRoom));
    assert_eq!(round.refused(&candidates[0]), UpdateStep::Hold(Hold::Refused));
    assert_eq!(round.step(&candidates[0]), UpdateStep::Hold(Hold::JustResized));
}

const RANGES: Ranges = Ranges { container: NO_RANGE, pod: NO_RANGE };
const NOTHING: OptionalAmounts = PerResource { cpu: None, memory: None };
const NO_RANGE: Range = Range { min: NOTHING, max: NOTHING, default_limit: NOTHING, ratio_milli: NOTHING };

#[test]
fn the_patch_notes_the_boost_in_an_annotation() {
    let boosting = with_boost(vpa("Initial", vec![]), CpuBoost::Factor(2), 5);
    let pod = SizedPod { has_annotations: true, ..app(amounts(200, None), OptionalAmounts::default()) };
    let (changes, boosts) =
        boost::at_creation(&pod, &boosting, &Ranges::default(), true).expect("it changes");
    let text = r#"{"app":{"milliCpu":400,"request":200,"seconds":5}}"#;
    assert_eq!(
        Value::from(patch::at_creation(&pod, "web", &changes, &boosts)),
        json!([
            {"op": "add", "path": "/spec/containers/0/resources/requests/cpu", "value": "400m"},
            {"op": "add", "path": "/metadata/annotations/vpaUpdates",
             "value": "Pod resources updated by web: container 0: cpu boosted for the start, cpu request"},
            {"op": "add", "path": "/metadata/annotations/vpaObservedContainers", "value": "app"},
            {"op": "add", "path": "/metadata/annotations/berth.dev~1startup-boost", "value": text},
        ])
    );
    assert_eq!(boost::read(text), boosts);
}
