//! Selection of pods to update, and the way of updating.

use std::collections::BTreeMap;

use super::*;
use crate::apply::update::UpdateCandidate;
use crate::recommend::EvictionRequirement;

const MINUTE: i64 = 60_000_000_000;
const HOUR: i64 = 60 * MINUTE;
/// A time after all pods were started.
const NOW: i64 = 1_000 * HOUR;

fn running(name: &str, cpu: i64) -> SizedPod {
    let (created, started) = (Some(NOW - 25 * HOUR), Some(NOW - 24 * HOUR));
    SizedPod {
        created,
        started,
        ..pod(name, vec![container("app", amounts(cpu, MI), OptionalAmounts::default())])
    }
}

fn for_cpu(mode: &str, target: i64, bounds: (i64, i64)) -> Vpa {
    let it = recommendation("app", amounts(target, None));
    vpa(mode, vec![Recommendation { lower: amounts(bounds.0, None), upper: amounts(bounds.1, None), ..it }])
}

/// A round of these pods, all of which the controller desires.
fn with_round<R>(
    vpa: &Vpa,
    pods: &[SizedPod],
    memory: &mut UpdaterMemory,
    (rules, now): (DisruptionRules, i64),
    body: impl FnOnce(&mut Round) -> R,
) -> R {
    let replicas = BTreeMap::from([(owner("ReplicaSet", "web-5d4f8"), pods.len())]);
    let ranges = Ranges::default();
    body(&mut Round::new((vpa, pods), &ranges, &replicas, rules, memory, now))
}

/// The steps of a round, by pod, if each step succeeds.
fn steps_at(
    vpa: &Vpa,
    pods: &[SizedPod],
    memory: &mut UpdaterMemory,
    at: (DisruptionRules, i64),
) -> Vec<(String, UpdateStep)> {
    with_round(vpa, pods, memory, at, |round| {
        let (candidates, held) = round.candidates();
        let mut steps = Vec::new();
        for candidate in candidates {
            let step = round.step(&candidate);
            match step {
                UpdateStep::Resize => round.resized(&candidate),
                UpdateStep::Evict => {
                    round.evicted(&candidate);
                }
                UpdateStep::Hold(_) => {}
            }
            steps.push((pods[candidate.pod].name.to_string(), step));
        }
        steps.extend(held.into_iter().map(|(pod, why)| (pods[pod].name.to_string(), UpdateStep::Hold(why))));
        steps
    })
}

fn steps(vpa: &Vpa, pods: &[SizedPod]) -> Vec<UpdateStep> {
    let at = (DisruptionRules::default(), NOW);
    steps_at(vpa, pods, &mut UpdaterMemory::default(), at).into_iter().map(|(_, step)| step).collect()
}

fn candidates(vpa: &Vpa, pods: &[SizedPod]) -> Vec<UpdateCandidate> {
    let at = (DisruptionRules::default(), NOW);
    with_round(vpa, pods, &mut UpdaterMemory::default(), at, |round| round.candidates().0)
}

#[test]
fn those_outside_of_the_bounds_and_old_ones_that_are_far_off_are_due() {
    let inside = for_cpu("Recreate", 1_000, (500, 2_000));
    assert_eq!(candidates(&inside, &[running("a", 950)]).len(), 0, "5 % off");
    assert_eq!(candidates(&inside, &[running("a", 900)]).len(), 1, "11 % off");
    let young = SizedPod { started: Some(NOW - 11 * HOUR), ..running("a", 600) };
    assert_eq!(candidates(&inside, std::slice::from_ref(&young)).len(), 0);
    assert_eq!(candidates(&for_cpu("Recreate", 1_000, (700, 2_000)), &[young]).len(), 1, "below the bound");
    assert_eq!(candidates(&inside, &[SizedPod { started: None, ..running("a", 600) }]).len(), 0);
    let leaving = SizedPod { is_deleting: true, ..running("a", 100) };
    assert_eq!(candidates(&inside, &[leaving]).len(), 0);
    for mode in ["Off", "Initial", "Whatever"] {
        assert_eq!(candidates(&for_cpu(mode, 1_000, (500, 2_000)), &[running("a", 100)]).len(), 0, "{mode}");
    }
}

#[test]
fn a_pod_is_due_from_exactly_half_a_day_and_a_tenth_on() {
    let due = |target: i64, age: i64| {
        let pod = SizedPod { started: Some(NOW - age), ..running("a", 1_000) };
        candidates(&for_cpu("Recreate", target, (500, 2_000)), &[pod]).len()
    };
    assert_eq!([due(900, 12 * HOUR), due(901, 12 * HOUR), due(900, 12 * HOUR - 1)], [1, 0, 0]);
}

#[test]
fn a_container_that_was_killed_soon_after_its_start_is_due_if_something_would_change() {
    let killed = |after: i64, cpu: i64| {
        let mut pod = SizedPod { started: Some(NOW - MINUTE), ..running("a", cpu) };
        pod.containers[0].oom_after = Some(after);
        pod
    };
    let vpa = for_cpu("Recreate", 1_000, (500, 2_000));
    assert_eq!(candidates(&vpa, &[killed(9 * MINUTE, 980)]).len(), 1);
    assert_eq!(candidates(&vpa, &[killed(10 * MINUTE, 980)]).len(), 0);
    assert_eq!(candidates(&vpa, &[killed(MINUTE, 1_000)]).len(), 0);
    let mut shorter = vpa.clone();
    shorter.update.evict_after_oom_s = Some(30);
    assert_eq!(candidates(&shorter, &[killed(MINUTE, 980)]).len(), 0);
    let unseen = SizedPod { observed: Some(vec!["other".into()]), ..killed(MINUTE, 100) };
    assert_eq!(candidates(&vpa, &[unseen]).len(), 0, "added after the webhook");
}

#[test]
fn those_that_need_more_come_first_then_those_that_are_farther_off() {
    let vpa = for_cpu("Recreate", 1_000, (1_000, 1_000));
    let pods = [running("high", 9_000), running("low", 900), running("lowest", 100), running("low-too", 900)];
    let order: Vec<&str> = candidates(&vpa, &pods).iter().map(|it| &*pods[it.pod].name).collect();
    assert_eq!(order, ["lowest", "low", "low-too", "high"]);
}

#[test]
fn so_many_are_evicted_that_half_of_the_pods_stay() {
    let vpa = for_cpu("Auto", 1_000, (500, 2_000));
    let pods: Vec<SizedPod> = (0..5).map(|index| running(&index.to_string(), 100)).collect();
    let of = |step: UpdateStep, steps: &[UpdateStep]| steps.iter().filter(|it| **it == step).count();
    let steps_of_5 = steps(&vpa, &pods);
    assert_eq!((of(UpdateStep::Evict, &steps_of_5), of(UpdateStep::Hold(Hold::Budget), &steps_of_5)), (2, 3));
    assert_eq!(steps(&vpa, &pods[..2]), [UpdateStep::Evict, UpdateStep::Hold(Hold::Budget)]);
    assert_eq!(steps(&vpa, &pods[..1]), [UpdateStep::Hold(Hold::TooFewReplicas)]);
    let mut single = vpa.clone();
    single.update.min_replicas = Some(1);
    assert_eq!(steps(&single, &pods[..1]), [UpdateStep::Evict]);
    let lonely = SizedPod { owner: None, ..running("a", 100) };
    assert_eq!(steps(&vpa, &[lonely]), [UpdateStep::Hold(Hold::NoController)]);
    let elsewhere = SizedPod { owner: Some(owner("StatefulSet", "db")), ..running("a", 100) };
    assert_eq!(steps(&vpa, &[elsewhere.clone(), elsewhere]), [UpdateStep::Hold(Hold::UnknownReplicas); 2]);
}

#[test]
fn a_single_replica_is_resized_in_place_unless_that_restarts_it() {
    let single = [running("a", 100)];
    for mode in ["InPlace", "InPlaceOrRecreate"] {
        let vpa = for_cpu(mode, 1_000, (500, 2_000));
        assert_eq!(steps(&vpa, &single), [UpdateStep::Resize], "{mode}");
        let mut restarting = single.clone();
        restarting[0].containers[0].restarts.cpu = true;
        assert_eq!(steps(&vpa, &restarting), [UpdateStep::Hold(Hold::TooFewReplicas)], "{mode}");
    }
    let vpa = for_cpu("InPlaceOrRecreate", 1_000, (500, 2_000));
    let infeasible = SizedPod { resize: Some(Resize::Infeasible), ..running("a", 100) };
    assert_eq!(steps(&vpa, &[infeasible]), [UpdateStep::Hold(Hold::TooFewReplicas)], "it is not evicted");
}

#[test]
fn within_a_minute_no_more_pods_are_evicted_than_the_rate_of_the_cluster() {
    let vpa = for_cpu("Recreate", 1_000, (500, 2_000));
    let pods: Vec<SizedPod> = (0..20).map(|index| running(&index.to_string(), 100)).collect();
    let rules = DisruptionRules { evictions_per_minute: 3, ..DisruptionRules::default() };
    let mut memory = UpdaterMemory::default();
    let mut evicted = |vpa: &Vpa, now| {
        let steps = steps_at(vpa, &pods, &mut memory, (rules, now));
        let limited = steps.iter().any(|(_, step)| *step == UpdateStep::Hold(Hold::EvictionRate));
        (steps.iter().filter(|(_, step)| *step == UpdateStep::Evict).count(), limited)
    };
    assert_eq!(evicted(&vpa, NOW), (3, true));
    let other = Vpa { uid: "other".into(), ..vpa.clone() };
    assert_eq!(evicted(&other, NOW + MINUTE - 1), (0, true), "it is one rate for all");
    assert_eq!(evicted(&other, NOW + MINUTE), (3, true));
}

#[test]
fn outside_of_the_windows_nothing_that_runs_is_stopped() {
    let closed = DisruptionRules { may_disrupt: false, ..DisruptionRules::default() };
    let steps = |vpa: &Vpa, pods: &[SizedPod]| -> Vec<UpdateStep> {
        let steps = steps_at(vpa, pods, &mut UpdaterMemory::default(), (closed, NOW));
        steps.into_iter().map(|(_, step)| step).collect()
    };
    let pods = [running("a", 100), running("b", 100)];
    let recreate = for_cpu("Recreate", 1_000, (500, 2_000));
    assert_eq!(steps(&recreate, &pods), [UpdateStep::Hold(Hold::OutsideWindows); 2]);
    let pending = pods.clone().map(|pod| SizedPod { is_pending: true, ..pod });
    assert!(steps(&recreate, &pending).contains(&UpdateStep::Evict), "it does not run yet");
    let in_place = for_cpu("InPlace", 1_000, (500, 2_000));
    assert_eq!(steps(&in_place, &pods)[0], UpdateStep::Resize, "it restarts nothing");
    let mut restarting = pods.clone();
    restarting.iter_mut().for_each(|pod| pod.containers[0].restarts.cpu = true);
    assert_eq!(steps(&in_place, &restarting), [UpdateStep::Hold(Hold::OutsideWindows); 2]);
}

#[test]
fn requirements_of_a_vpa_decide_about_the_direction() {
    let mut vpa = for_cpu("Recreate", 1_000, (500, 2_000));
    let cpu = PerResource { cpu: true, memory: false };
    let requirement = |resources, change: &str| EvictionRequirement { resources, change: change.into() };
    vpa.update.requirements = vec![requirement(cpu, "TargetHigherThanRequests")];
    let first = |vpa: &Vpa, cpu: i64| steps(vpa, &[running("a", cpu), running("b", cpu)])[0];
    assert_eq!(first(&vpa, 100), UpdateStep::Evict);
    assert_eq!(first(&vpa, 9_000), UpdateStep::Hold(Hold::Requirements));
    vpa.update
        .requirements
        .push(requirement(PerResource { cpu: false, memory: true }, "TargetHigherThanRequests"));
    assert_eq!(first(&vpa, 100), UpdateStep::Hold(Hold::Requirements), "all of them");
    vpa.update.requirements =
        vec![requirement(PerResource { cpu: true, memory: true }, "TargetHigherThanRequests")];
    assert_eq!(first(&vpa, 100), UpdateStep::Evict, "one of the resources");
    vpa.update.requirements = vec![requirement(cpu, "Sideways")];
    assert_eq!(first(&vpa, 100), UpdateStep::Hold(Hold::Requirements));
}

#[test]
fn a_requirement_of_either_direction_is_not_met_by_a_resource_that_stays() {
    let mut vpa = for_cpu("Recreate", 1_000, (500, 2_000));
    vpa.status.recommendation.as_mut().unwrap()[0].target.memory = Some(MI);
    let resources = PerResource { cpu: false, memory: true };
    for change in ["TargetHigherThanRequests", "TargetLowerThanRequests"] {
        vpa.update.requirements = vec![EvictionRequirement { resources, change: change.into() }];
        let steps = steps(&vpa, &[running("a", 100), running("b", 100)]);
        assert_eq!(steps, [UpdateStep::Hold(Hold::Requirements); 2], "{change}");
    }
}

#[test]
fn in_place_is_tried_first_and_the_budget_holds_for_it_too() {
    let pods = [running("a", 100), running("b", 100)];
    for mode in ["InPlace", "InPlaceOrRecreate"] {
        let vpa = for_cpu(mode, 1_000, (500, 2_000));
        assert_eq!(steps(&vpa, &pods), [UpdateStep::Resize, UpdateStep::Hold(Hold::Budget)], "{mode}");
        let pending = SizedPod { is_pending: true, ..running("a", 100) };
        assert_eq!(steps(&vpa, &[pending.clone(), pending]), [UpdateStep::Hold(Hold::Pending); 2], "{mode}");
    }
    let vpa = for_cpu("InPlace", 1_000, (500, 2_000));
    let free = DisruptionRules { free_in_place: true, ..DisruptionRules::default() };
    let steps = |pods: &[SizedPod]| steps_at(&vpa, pods, &mut UpdaterMemory::default(), (free, NOW));
    assert!(steps(&pods).iter().all(|(_, step)| *step == UpdateStep::Resize));
    let mut restarting = pods.clone();
    restarting.iter_mut().for_each(|pod| pod.containers[0].restarts.memory = true);
    assert_eq!(steps(&restarting)[1].1, UpdateStep::Hold(Hold::Budget));
}

/// The first step for two pods that have both been in this state for a while.
fn after(mode: &str, resize: Resize, lasted: i64, target: i64) -> UpdateStep {
    let vpa = for_cpu(mode, target, (target, target));
    let mut pods = [running("a", 4_000), running("b", 4_000)];
    for pod in &mut pods {
        pod.resize = Some(resize);
        pod.containers[0].actual =
            Some(Resources { requests: amounts(100, MI), limits: OptionalAmounts::default() });
    }
    let mut memory = UpdaterMemory::default();
    steps_at(&vpa, &pods, &mut memory, (DisruptionRules::default(), NOW));
    steps_at(&vpa, &pods, &mut memory, (DisruptionRules::default(), NOW + lasted))[0].1
}

#[test]
fn a_resize_that_does_not_come_to_an_end_becomes_an_eviction_if_that_is_allowed() {
    let or_recreate = |resize, lasted| after("InPlaceOrRecreate", resize, lasted, 4_000);
    let waits = UpdateStep::Hold(Hold::Resizing);
    for (resize, lasted, step) in [
        (Resize::Deferred, 5 * MINUTE, waits),
        (Resize::Deferred, 5 * MINUTE + 1, UpdateStep::Evict),
        (Resize::InProgress, HOUR, waits),
        (Resize::InProgress, HOUR + 1, UpdateStep::Evict),
        (Resize::Infeasible, 0, UpdateStep::Evict),
        (Resize::Error, 0, UpdateStep::Evict),
        (Resize::Unknown, 0, UpdateStep::Evict),
    ] {
        assert_eq!(or_recreate(resize, lasted), step, "{resize:?} {lasted}");
    }
    for resize in [Resize::Deferred, Resize::InProgress, Resize::Unknown] {
        assert_eq!(after("InPlace", resize, 48 * HOUR, 4_000), waits, "{resize:?}");
    }
}

#[test]
fn what_is_infeasible_in_place_is_tried_again_only_when_less_is_recommended() {
    let infeasible = |target| after("InPlace", Resize::Infeasible, 0, target);
    assert_eq!(infeasible(4_000), UpdateStep::Hold(Hold::Infeasible));
    assert_eq!(infeasible(5_000), UpdateStep::Hold(Hold::Infeasible));
    assert_eq!(infeasible(3_999), UpdateStep::Resize);
}

#[test]
fn after_a_resize_that_failed_any_other_size_is_tried_every_five_minutes() {
    let failed = |lasted, target| after("InPlace", Resize::Error, lasted, target);
    assert_eq!(failed(HOUR, 4_000), UpdateStep::Hold(Hold::Infeasible));
    for target in [3_999, 5_000] {
        assert_eq!(failed(5 * MINUTE - 1, target), UpdateStep::Hold(Hold::JustResized));
        assert_eq!(failed(5 * MINUTE, target), UpdateStep::Resize);
    }
}

#[test]
fn a_pod_that_changes_all_the_time_is_resized_every_five_minutes_at_most() {
    let mut memory = UpdaterMemory::default();
    let mut resizes = 0;
    for minute in 0..60 {
        // The recommendation oscillates, and the kubelet resizes immediately.
        let vpa = for_cpu("InPlace", [500, 2_000][minute % 2], (0, 1));
        let pods = [running("a", 100), running("b", 100)];
        let now = NOW + minute as i64 * MINUTE;
        let steps = steps_at(&vpa, &pods, &mut memory, (DisruptionRules::default(), now));
        resizes += steps.iter().filter(|(name, step)| name == "a" && *step == UpdateStep::Resize).count();
    }
    assert!(resizes <= 12, "{resizes}");
}

#[test]
fn only_a_pod_that_is_killed_again_is_resized_soon_after_a_resize() {
    let vpa = for_cpu("InPlace", 1_000, (500, 2_000));
    for (oom_after, step) in [(None, UpdateStep::Hold(Hold::JustResized)), (Some(MINUTE), UpdateStep::Resize)]
    {
        let mut pods = [running("a", 100), running("b", 100)];
        pods.iter_mut().for_each(|pod| pod.containers[0].oom_after = oom_after);
        let mut memory = UpdaterMemory::default();
        let mut first = |now| steps_at(&vpa, &pods, &mut memory, (DisruptionRules::default(), now))[0].1;
        assert_eq!((first(NOW), first(NOW + MINUTE)), (UpdateStep::Resize, step));
    }
}

#[test]
fn what_the_spec_says_already_is_not_asked_for_again() {
    let vpa = for_cpu("InPlace", 1_000, (500, 2_000));
    let mut pods = [running("a", 1_000), running("b", 1_000)];
    for pod in &mut pods {
        pod.containers[0].actual = Some(Resources { requests: amounts(100, MI), ..Resources::default() });
    }
    assert_eq!(steps(&vpa, &pods), [UpdateStep::Hold(Hold::Asked); 2]);
}

#[test]
fn a_qos_class_never_changes_in_place() {
    let guaranteed = |name: &str| {
        let both = amounts(100, MI);
        let started = Some(NOW - 24 * HOUR);
        SizedPod { started, ..pod(name, vec![container("app", both, both)]) }
    };
    let pods = [guaranteed("a"), guaranteed("b")];
    let mut vpa = for_cpu("InPlace", 200, (200, 200));
    assert_eq!(steps(&vpa, &pods)[0], UpdateStep::Resize, "its limit follows");
    let only = crate::recommend::ContainerPolicy {
        container: "*".into(),
        requests_only: true,
        ..Default::default()
    };
    vpa.policies = vec![only];
    vpa.status.recommendation.as_mut().unwrap()[0].target.cpu = Some(50);
    assert_eq!(steps(&vpa, &pods)[0], UpdateStep::Hold(Hold::QosClass));
    vpa.update_mode = "InPlaceOrRecreate".into();
    assert_eq!(steps(&vpa, &pods)[0], UpdateStep::Evict);
    let best_effort = |name: &str| {
        pod(name, vec![container("app", OptionalAmounts::default(), OptionalAmounts::default())])
    };
    vpa.update_mode = "InPlace".into();
    assert_eq!(steps(&vpa, &[best_effort("a"), best_effort("b")])[0], UpdateStep::Hold(Hold::QosClass));
}

#[test]
fn a_node_without_room_is_waited_for_and_a_refused_resize_is_an_eviction_if_that_is_allowed() {
    let pods = [running("a", 100), running("b", 100)];
    for (mode, at_last) in
        [("InPlace", UpdateStep::Hold(Hold::NodeRoom)), ("InPlaceOrRecreate", UpdateStep::Evict)]
    {
        let vpa = for_cpu(mode, 1_000, (500, 2_000));
        let mut memory = UpdaterMemory::default();
        let mut without_room = |now| {
            with_round(&vpa, &pods, &mut memory, (DisruptionRules::default(), now), |round| {
                let candidate = round.candidates().0.remove(0);
                assert_eq!(round.step(&candidate), UpdateStep::Resize);
                round.without_room(&candidate)
            })
        };
        assert_eq!(without_room(NOW), UpdateStep::Hold(Hold::NodeRoom));
        assert_eq!(without_room(NOW + 5 * MINUTE), UpdateStep::Hold(Hold::NodeRoom));
        assert_eq!(without_room(NOW + 6 * MINUTE), at_last, "{mode}");
        let refused = with_round(
            &vpa,
            &pods,
            &mut UpdaterMemory::default(),
            (DisruptionRules::default(), NOW),
            |round| {
                let candidate = round.candidates().0.remove(0);
                round.refused(&candidate)
            },
        );
        let expected = if mode == "InPlace" { UpdateStep::Hold(Hold::Refused) } else { UpdateStep::Evict };
        assert_eq!(refused, expected, "{mode}");
    }
}

#[test]
fn nothing_is_evicted_while_no_webhook_would_change_what_comes_after() {
    let vpa = for_cpu("Recreate", 1_000, (500, 2_000));
    let pods = [running("a", 100), running("b", 100)];
    let without = DisruptionRules { has_webhook: false, ..DisruptionRules::default() };
    let steps = steps_at(&vpa, &pods, &mut UpdaterMemory::default(), (without, NOW));
    assert_eq!(steps[0].1, UpdateStep::Hold(Hold::NoWebhook));

    // It is configured, but the API server cannot reach it.
    let mut memory = UpdaterMemory::default();
    let first = steps_at(&vpa, &pods, &mut memory, (DisruptionRules::default(), NOW));
    assert_eq!(first[0].1, UpdateStep::Evict);
    let back = |observed: Option<Vec<String>>| {
        let again = SizedPod { observed, created: Some(NOW + 2), ..running("c", 100) };
        [again, running("b", 100)]
    };
    let mut first =
        |pods: &[SizedPod], now| steps_at(&vpa, pods, &mut memory, (DisruptionRules::default(), now))[0].1;
    assert_eq!(first(&back(None), NOW + MINUTE), UpdateStep::Hold(Hold::WebhookNotCalled));
    assert_eq!(first(&back(None), NOW + 23 * HOUR), UpdateStep::Hold(Hold::WebhookNotCalled));
    assert_eq!(first(&back(None), NOW + 24 * HOUR), UpdateStep::Evict, "it may work again");
    let created = Some(NOW + 25 * HOUR);
    let seen =
        [SizedPod { observed: Some(vec!["app".into()]), created, ..running("d", 100) }, running("b", 100)];
    assert_eq!(
        first(&seen, NOW + 24 * HOUR + MINUTE),
        UpdateStep::Evict,
        "it works, and more is recommended now"
    );
}

#[test]
fn a_new_leader_knows_that_pods_evicted_by_the_former_one_came_back_unchanged() {
    let pods = [running("a", 100), running("b", 100)];
    let vpa = for_cpu("Recreate", 1_000, (500, 2_000));
    let last =
        with_round(&vpa, &pods, &mut UpdaterMemory::default(), (DisruptionRules::default(), NOW), |round| {
            let candidate = round.candidates().0.remove(0);
            assert_eq!(round.step(&candidate), UpdateStep::Evict);
            round.evicted(&candidate)
        });
    let vpa = Vpa { last_eviction: Some(last), ..vpa };
    let first = |pods: &[SizedPod], now| {
        steps_at(&vpa, pods, &mut UpdaterMemory::default(), (DisruptionRules::default(), now))[0].1
    };
    assert_eq!(first(&pods, NOW + MINUTE), UpdateStep::Evict, "nothing has come back");
    let back = [SizedPod { created: Some(NOW + 2), ..running("c", 100) }, running("b", 100)];
    assert_eq!(first(&back, NOW + MINUTE), UpdateStep::Hold(Hold::WebhookNotCalled));
    assert_eq!(first(&back, NOW + 24 * HOUR), UpdateStep::Evict);
    assert_eq!(first(&back, NOW - 1), UpdateStep::Evict, "a time in the future says nothing");
}

#[test]
fn a_clock_that_is_set_back_makes_nobody_wait_for_longer() {
    let vpa = for_cpu("InPlace", 1_000, (500, 2_000));
    let pods = [running("a", 100), running("b", 100)];
    let mut memory = UpdaterMemory::default();
    let mut first = |now| {
        memory.without_the_future(now);
        steps_at(&vpa, &pods, &mut memory, (DisruptionRules::default(), now))[0].1
    };
    assert_eq!(first(NOW), UpdateStep::Resize);
    let back = NOW - 24 * HOUR;
    assert_eq!(first(back), UpdateStep::Hold(Hold::JustResized));
    assert_eq!(first(back + 4 * MINUTE), UpdateStep::Hold(Hold::JustResized));
    assert_eq!(first(back + 5 * MINUTE), UpdateStep::Resize);
}

#[test]
fn after_a_disruption_budget_has_refused_nothing_is_evicted_for_five_minutes() {
    let vpa = for_cpu("Recreate", 1_000, (500, 2_000));
    let pods = [running("a", 100), running("b", 100)];
    let mut memory = UpdaterMemory::default();
    let mut first = |now| {
        with_round(&vpa, &pods, &mut memory, (DisruptionRules::default(), now), |round| {
            let candidates = round.candidates().0;
            let step = round.step(&candidates[0]);
            round.eviction_refused();
            assert_ne!(round.step(&candidates[1]), UpdateStep::Evict);
            step
        })
    };
    assert_eq!(first(NOW), UpdateStep::Evict);
    memory.retain(&Default::default(), &["v".to_owned()].into());
    let mut at = |now| {
        with_round(&vpa, &pods, &mut memory, (DisruptionRules::default(), now), |round| {
            let candidates = round.candidates().0;
            round.step(&candidates[0])
        })
    };
    assert_eq!(at(NOW + 4 * MINUTE), UpdateStep::Hold(Hold::DisruptionBudget));
    assert_eq!(at(NOW + 5 * MINUTE), UpdateStep::Evict);
}
