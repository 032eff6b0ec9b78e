//! Tests of the dispatcher.

mod model;

use super::*;
use crate::class::Classifier;
use crate::rules::{AgentLimit, PlacementSettings};
use berth_model::{Identity, PodSpec};
use model::Model;
use proptest::prelude::*;

fn classes(count: usize) -> Vec<Arc<Class>> {
    let mut classifier = Classifier::default();
    (0..count)
        .map(|at| {
            // Every second class shares its node selector with a neighbour, so that low-level hits occur.
            let node_selector = [("pool", format!("{}", at / 2))].into_iter().collect();
            let images = [Arc::from(format!("image-{at}"))].into();
            classifier.classify(
                &Arc::new(PodSpec { node_selector, images, ..PodSpec::default() }),
                &Identity::default(),
                0,
            )
        })
        .collect()
}

fn dispatcher(kind: DispatcherKind, agents: usize) -> Dispatcher {
    Dispatcher::new(kind, agents, Estimator::default(), 0)
}

fn uid(n: u64) -> Arc<str> {
    Arc::from(format!("u{n}"))
}

fn added(class: &Class) -> Vec<CacheChange> {
    let objects = class.cached_rules().map(|(rule, value)| CacheChange::ObjectAdded(rule, value));
    let lists = [CacheChange::CommonAdded(class.common_id()), CacheChange::ListAdded(class.id)];
    objects.chain(lists).collect()
}

#[test]
fn a_request_goes_where_its_list_is_and_waits_there_only_as_long_as_that_pays() {
    let classes = classes(4);
    let mut dispatcher = dispatcher(DispatcherKind::LatcacheRule, 2);
    dispatcher.cache_changed(0, &added(&classes[3]));
    dispatcher.cache_changed(1, &added(&classes[0]));
    let mut seq = 0;
    let mut assign = |class: &Arc<Class>| {
        seq += 1;
        dispatcher.assign(&uid(seq), class, 0, seq, Duration::ZERO).ticket.lane.unwrap()
    };
    assert_eq!(assign(&classes[0]), 1);
    // A miss goes where more of its rule objects are: class 2 shares its node selector with class 3.
    assert_eq!(assign(&classes[2]), 0);
    // Its next request is expected to hit there, behind the miss; a cheaper miss elsewhere is not worth the wait.
    assert_eq!(assign(&classes[2]), 0);
    assert_eq!(assign(&classes[1]), 1);
}

#[test]
fn higher_priorities_are_served_first_and_do_not_wait_behind_lower_ones() {
    let classes = classes(1);
    let mut dispatcher = dispatcher(DispatcherKind::LatcacheRule, 1);
    for (seq, priority) in [(0, 0), (1, 5), (2, 0), (3, 5)] {
        dispatcher.assign(&uid(seq), &classes[0], priority, seq, Duration::ZERO);
    }
    assert!(dispatcher.lanes[0].queue.time_ahead(5) < dispatcher.lanes[0].queue.time_ahead(0));
    assert_eq!(dispatcher.lanes[0].queue.time_ahead(6), Duration::ZERO);
    let mut order = Vec::new();
    while let Some(request) = dispatcher.start(0, Duration::ZERO) {
        order.push(request.uid.to_string());
        dispatcher.finish(0);
    }
    assert_eq!(order, ["u1", "u3", "u0", "u2"]);
    assert_eq!(dispatcher.lanes[0].queue.time_ahead(0), Duration::ZERO);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn where_many_requests_wait_those_of_a_class_go_in_bursts_that_overtake_a_bounded_number(
        waiting in prop::collection::vec((0usize..40, 1u64..8, 0i32..2), 1..3_000),
    ) {
        let classes = classes(40);
        let mut dispatcher = dispatcher(DispatcherKind::LatcacheRule, 1);
        dispatcher.aging = 0;
        // What waits, in its order.
        let mut ahead = std::collections::BTreeMap::new();
        let mut seq = 0;
        for (class, gap, priority) in waiting {
            seq += gap;
            dispatcher.assign(&uid(seq), &classes[class], priority, seq, Duration::ZERO);
            ahead.insert((Reverse(priority), seq), classes[class].id);
        }
        let (mut overtaking, mut runs, mut last) = (0, 0, None);
        let many = ahead.len();
        while let Some(request) = dispatcher.start(0, Duration::ZERO) {
            dispatcher.finish(0);
            let (first, _) = ahead.first_key_value().expect("it knows what waits");
            let (first, len) = (*first, ahead.len());
            let taken = *(ahead.keys().find(|place| uid(place.1) == request.uid)).expect("it waited");
            prop_assert_eq!(taken.0, first.0, "a higher priority is never overtaken");
            prop_assert!(taken.1 - first.1 < queue::BURST_WINDOW);
            prop_assert!(taken == first || len >= queue::BURST_FROM);
            let of_class = ahead.iter().find(|(place, class)| place.0 == taken.0 && **class == request.class.id);
            prop_assert_eq!(*of_class.expect("itself").0, taken, "in order within its class");
            runs += usize::from(last != Some((taken.0, request.class.id)));
            overtaking = if taken == first { 0 } else { overtaking + 1 };
            prop_assert!(overtaking < queue::BURST_MAX);
            last = Some((taken.0, request.class.id));
            ahead.remove(&taken);
        }
        prop_assert!(ahead.is_empty());
        // A class has more than a burst of requests waiting, most of them within the window.
        prop_assert!(many < 2_500 || runs < many / 2, "{runs} runs of {many} requests");
    }
}

#[test]
fn requests_tried_before_come_last_in_their_priority_but_in_every_aged_turn_by_their_age() {
    let classes = classes(1);
    let mut dispatcher = dispatcher(DispatcherKind::LatcachePriced, 1);
    for (seq, priority) in [(1, 0), (2, 0), (3, 5)] {
        dispatcher.assign(&uid(seq), &classes[0], priority, seq | TRIED_BEFORE, Duration::ZERO);
    }
    for seq in 4..=40 {
        dispatcher.assign(&uid(seq), &classes[0], 0, seq, Duration::ZERO);
    }
    let served: Vec<_> = (0..40)
        .map(|_| {
            let request = dispatcher.start(0, Duration::ZERO).expect("it waits");
            dispatcher.finish(0);
            request.uid
        })
        .collect();
    let at = |seq| served.iter().position(|served| *served == uid(seq)).expect("served");
    assert_eq!((at(3), at(4)), (0, 1), "of a higher priority, then the first that is new");
    assert_eq!((at(1), at(2)), (AGED_TURN as usize - 1, 2 * AGED_TURN as usize - 1));
    assert_eq!(at(40), 39);
}

/// Returns the turns a low-priority request waits while a high-priority one arrives whenever one is served.
fn turns_of_the_low_one(kind: DispatcherKind, aging: u64) -> Option<u64> {
    let classes = classes(1);
    let mut dispatcher = dispatcher(kind, 1);
    dispatcher.aging = aging;
    dispatcher.assign(&uid(0), &classes[0], 0, 0, Duration::ZERO);
    (1..=1000).find(|turn| {
        dispatcher.assign(&uid(*turn), &classes[0], 9, *turn, Duration::ZERO);
        let served = dispatcher.start(0, Duration::ZERO).expect("two wait");
        dispatcher.finish(0);
        served.uid == uid(0)
    })
}

#[test]
fn a_stream_of_more_important_requests_starves_none_that_waits_longer() {
    for kind in DispatcherKind::ALL {
        assert_eq!(turns_of_the_low_one(kind, 0), None, "without aging it starves");
        assert_eq!(turns_of_the_low_one(kind, AGED_TURN), Some(AGED_TURN), "{kind:?}");
    }
}

#[test]
fn a_withdrawn_request_leaves_nothing_behind() {
    let classes = classes(1);
    let mut dispatcher = dispatcher(DispatcherKind::LatcacheRule, 1);
    let ticket = dispatcher.assign(&uid(0), &classes[0], 0, 0, Duration::ZERO).ticket;
    assert!(dispatcher.withdraw(ticket));
    assert!(!dispatcher.withdraw(ticket));
    let lane = &dispatcher.lanes[0];
    assert!(lane.queue.is_empty());
    assert!(dispatcher.lists.is_empty() && dispatcher.objects.is_empty());
}

/// Queues a request at this agent.
fn queue_at(
    dispatcher: &mut Dispatcher,
    agent: usize,
    class: &Arc<Class>,
    priority: i32,
    seq: u64,
) -> Assigned {
    dispatcher.put(Some(agent), Request::of_pod(&uid(seq), class), (Reverse(priority), seq))
}

/// Finishes the agent's request and returns its next one.
fn serve_next(dispatcher: &mut Dispatcher, agent: usize) -> Option<String> {
    dispatcher.finish(agent);
    dispatcher.start(agent, Duration::ZERO).map(|request| request.uid.to_string())
}

fn lane_of(dispatcher: &mut Dispatcher, seq: u64, class: &Arc<Class>) -> usize {
    let assigned = dispatcher.assign(&uid(seq), class, 0, seq, Duration::ZERO);
    assigned.ticket.lane().expect("a request of its own agent")
}

#[test]
fn protean_any_idle_agent_takes_the_first_of_all_that_wait_for_it() {
    let class = &classes(1)[0];
    let mut dispatcher = dispatcher(DispatcherKind::Protean, 3);
    let mut put = |seq, priority| dispatcher.assign(&uid(seq), class, priority, seq, Duration::ZERO);
    assert_eq!(
        [put(0, 0), put(1, 5), put(2, 0)].map(|put| (put.ticket.lane(), put.wake)),
        [(None, 0), (None, 1), (None, 2)]
    );
    // Only one agent may take these.
    queue_at(&mut dispatcher, 2, class, 3, 3);
    queue_at(&mut dispatcher, 2, class, 0, 4);
    assert_eq!(serve_next(&mut dispatcher, 2).as_deref(), Some("u1"));
    assert_eq!(serve_next(&mut dispatcher, 2).as_deref(), Some("u3"));
    assert_eq!(serve_next(&mut dispatcher, 0).as_deref(), Some("u0"));
    assert_eq!(serve_next(&mut dispatcher, 2).as_deref(), Some("u2"));
    assert_eq!(serve_next(&mut dispatcher, 1), None, "the last one is for agent 2");
    assert_eq!(serve_next(&mut dispatcher, 2).as_deref(), Some("u4"));
}

#[test]
fn protean_an_agent_that_gets_a_request_of_its_own_on_the_way_to_a_shared_one_is_replaced() {
    let class = &classes(1)[0];
    let mut dispatcher = dispatcher(DispatcherKind::Protean, 2);
    assert_eq!(dispatcher.assign(&uid(0), class, 0, 0, Duration::ZERO).wake, 0);
    assert_eq!(queue_at(&mut dispatcher, 0, class, 5, 1).wake, 1);
}

#[test]
fn an_agent_that_came_and_was_turned_away_is_called_again() {
    let class = &classes(1)[0];
    let mut dispatcher = dispatcher(DispatcherKind::Protean, 2);
    let first = dispatcher.assign(&uid(0), class, 0, 0, Duration::ZERO);
    dispatcher.turned_away(first.wake);
    dispatcher.withdraw(first.ticket);
    let wakes = [1, 2].map(|seq| dispatcher.assign(&uid(seq), class, 0, seq, Duration::ZERO).wake);
    assert_eq!(wakes, [0, 1]);
}

#[test]
fn protean_an_agent_that_searches_instead_is_replaced_for_the_request_it_was_woken_for() {
    let class = &classes(1)[0];
    let mut dispatcher = dispatcher(DispatcherKind::Protean, 3);
    let check = Search { classes: vec![class], parts: None };
    assert_eq!(dispatcher.assign(&uid(0), class, 0, 0, Duration::ZERO).wake, 0);
    assert_eq!(dispatcher.start_search(0, &check, Duration::ZERO), Some(1));
    assert_eq!(dispatcher.assign(&uid(1), class, 0, 1, Duration::ZERO).wake, 2);
    assert_eq!(serve_next(&mut dispatcher, 1).as_deref(), Some("u0"));
    assert_eq!(serve_next(&mut dispatcher, 2).as_deref(), Some("u1"));
    dispatcher.finish(0);
    assert_eq!(dispatcher.start_search(0, &check, Duration::ZERO), None, "nothing waits");
}

#[test]
fn a_search_counts_as_long_as_its_lists_and_its_parts_are_expected_to_take() {
    let classes = classes(2);
    let mut dispatcher = dispatcher(DispatcherKind::LatcacheRule, 2);
    dispatcher.cache_changed(0, &added(&classes[0]));
    let part = Part::DryRun;
    let search = Search { classes: vec![&classes[0], &classes[1]], parts: Some((part, 3)) };
    assert_eq!(dispatcher.start_search(0, &search, Duration::ZERO), None);
    let [hit, miss] = [0, 1].map(|at| dispatcher.outlook_with_cached(&classes[at]).at(0).takes);
    assert!(hit < miss);
    let takes = hit + miss + 3 * dispatcher.estimator().estimate(part);
    assert_eq!(dispatcher.lanes[0].remaining(Duration::ZERO), takes);
    assert_eq!(dispatcher.lanes[0].remaining(takes / 4), takes - takes / 4);
    dispatcher.answered(0);
    assert_eq!(dispatcher.lanes[0].remaining(Duration::ZERO), Duration::ZERO);
    dispatcher.finish(0);
    assert!(dispatcher.lanes[0].is_idle());
}

#[test]
fn an_agent_that_starts_over_after_a_conflict_is_expected_to_find_its_list() {
    let class = &classes(1)[0];
    let mut dispatcher = dispatcher(DispatcherKind::LatcacheRule, 1);
    lane_of(&mut dispatcher, 0, class);
    dispatcher.start(0, Duration::ZERO);
    let later = Duration::from_secs(1);
    assert_eq!(dispatcher.lanes[0].remaining(later), Duration::ZERO);
    dispatcher.cache_changed(0, &added(class));
    dispatcher.answered(0);
    dispatcher.start_over(0, later);
    assert_eq!(dispatcher.lanes[0].remaining(later), dispatcher.estimator().estimate(Part::ListHit));
}

#[test]
fn a_gang_takes_the_time_of_each_of_its_classes_and_of_a_hit_for_each_further_member() {
    let classes = classes(3);
    let mut dispatcher = dispatcher(DispatcherKind::LatcacheRule, 2);
    dispatcher.cache_changed(1, &added(&classes[2]));
    let members = [0, 0, 2, 0, 2].map(|at| &classes[at]);
    let gang = Request::of_gang(&uid(0), members.into_iter()).expect("it has members");
    let takes =
        |dispatcher: &Dispatcher, class: &Class, at| dispatcher.outlook_with_queued(class).at(at).takes;
    let all =
        [0, 1].map(|at| [0, 2].map(|class| takes(&dispatcher, &classes[class], at)).iter().sum::<Duration>());
    let hit = dispatcher.estimator().estimate(Part::ListHit);
    assert_eq!([0, 1].map(|at| dispatcher.outlook(&gang).at(at).takes), all.map(|all| all + 3 * hit));
    let ticket = dispatcher.assign_request(gang, (Reverse(0), 0), None, Duration::ZERO).ticket;
    assert_eq!(ticket.lane(), Some(1));
    // All of its lists are expected there.
    assert_eq!([0, 1, 2].map(|at| takes(&dispatcher, &classes[at], 1) == hit), [true, false, true]);
    dispatcher.withdraw(ticket);
    assert_eq!([0, 1, 2].map(|at| takes(&dispatcher, &classes[at], 1) == hit), [false, false, true]);
}

#[test]
fn a_request_that_is_to_avoid_an_agent_goes_there_only_if_no_other_may_take_it() {
    for kind in DispatcherKind::ALL {
        let mut many = dispatcher(kind, 3);
        let only = &limited(1)[0];
        let mut lanes = |class: &Arc<Class>, seq| {
            let request = Request::of_pod(&uid(seq), class);
            many.assign_request(request, (Reverse(0), seq), Some(1), Duration::ZERO).ticket.lane()
        };
        assert!((0..40).all(|seq| lanes(&classes(1)[0], seq) != Some(1)), "{kind}");
        assert_eq!(lanes(only, 40), Some(1), "{kind}");
    }
}

#[test]
fn hash_stealing_keeps_a_class_at_one_agent_which_is_woken_if_it_has_nothing_to_do() {
    let classes = classes(40);
    let mut dispatcher = dispatcher(DispatcherKind::HashStealing, 4);
    let mut seen = [false; 4];
    for (at, class) in classes.iter().enumerate() {
        let put = dispatcher.assign(&uid(0), class, 0, 2 * at as u64, Duration::ZERO);
        let agent = put.ticket.lane().unwrap();
        assert_eq!(put.wake, agent);
        assert_eq!(serve_next(&mut dispatcher, agent).as_deref(), Some("u0"));
        // Busy now: another agent is woken to steal the next request.
        let next = dispatcher.assign(&uid(1), class, 0, 2 * at as u64 + 1, Duration::ZERO);
        assert_eq!(next.ticket.lane(), Some(agent));
        assert_ne!(next.wake, agent);
        assert_eq!(serve_next(&mut dispatcher, next.wake).as_deref(), Some("u1"));
        dispatcher.finish(agent);
        dispatcher.finish(next.wake);
        seen[agent] = true;
    }
    assert_eq!(seen, [true; 4]);
}

#[test]
fn another_agent_takes_over_only_its_share_of_the_classes() {
    const KEYS: u64 = 20_000;
    for agents in 1..12 {
        let bucket = |key, agents| consistent_hash(mix(key), agents);
        let moved: Vec<_> = (0..KEYS)
            .map(|key| (bucket(key, agents), bucket(key, agents + 1)))
            .filter(|(a, b)| a != b)
            .collect();
        assert!(moved.iter().all(|(_, to)| *to == agents), "only to the new one");
        let share = KEYS as f64 / (agents + 1) as f64;
        assert!((moved.len() as f64 / share - 1.0).abs() < 0.1, "{} of {share}", moved.len());
    }
}

#[test]
fn hash_stealing_takes_the_first_of_the_longest_queue_and_only_when_the_own_one_is_empty() {
    let class = &classes(1)[0];
    let mut dispatcher = dispatcher(DispatcherKind::HashStealing, 3);
    for (seq, agent) in [2, 1, 0, 2, 1, 2].into_iter().enumerate() {
        queue_at(&mut dispatcher, agent, class, 0, seq as u64);
    }
    let order = [0; 6].map(|agent| serve_next(&mut dispatcher, agent).unwrap());
    // First its own; then from the longer queue; on a tie from the first agent.
    assert_eq!(order, ["u2", "u0", "u1", "u3", "u4", "u5"]);
    assert!(dispatcher.is_empty() && !dispatcher.has_work(0));
}

#[test]
fn round_robin_takes_agents_in_turn_and_random_repeats_itself_with_its_seed() {
    let class = &classes(1)[0];
    let lanes = |kind, seed| -> Vec<usize> {
        let mut dispatcher = Dispatcher::new(kind, 3, Estimator::default(), seed);
        (0..300).map(|seq| lane_of(&mut dispatcher, seq, class)).collect()
    };
    assert_eq!(lanes(DispatcherKind::RoundRobin, 0)[..5], [0, 1, 2, 0, 1]);
    let random = lanes(DispatcherKind::Random, 1);
    assert_eq!(random, lanes(DispatcherKind::Random, 1));
    assert_ne!(random, lanes(DispatcherKind::Random, 2));
    for agent in 0..3 {
        let count = random.iter().filter(|lane| **lane == agent).count();
        assert!((70..130).contains(&count), "agent {agent} got {count} of 300");
    }
}

#[test]
fn latcache_rule_prefers_the_agent_with_more_rule_objects_and_latcache_request_does_not_look_at_them() {
    let classes = classes(2);
    let object = |class: &Class, rule: CachedRule| {
        CacheChange::ObjectAdded(rule, class.traits[rule.index()].expect("the rule applies"))
    };
    for (kind, agent) in [(DispatcherKind::LatcacheRule, 2), (DispatcherKind::LatcacheRequest, 0)] {
        let mut dispatcher = dispatcher(kind, 3);
        let affinity = object(&classes[0], CachedRule::NodeAffinity);
        dispatcher.cache_changed(1, &[affinity]);
        dispatcher.cache_changed(2, &[affinity, object(&classes[0], CachedRule::ImageLocality)]);
        assert_eq!(lane_of(&mut dispatcher, 0, &classes[0]), agent, "{kind}");
    }
}

#[test]
fn latcache_naive_looks_neither_at_lists_that_are_coming_nor_at_what_is_in_service() {
    let classes = classes(6);
    for (kind, coming, in_service) in
        [(DispatcherKind::LatcacheRule, 1, 1), (DispatcherKind::LatcacheNaive, 0, 0)]
    {
        let mut waits = dispatcher(kind, 2);
        assert_eq!([lane_of(&mut waits, 0, &classes[0]), lane_of(&mut waits, 1, &classes[2])], [0, 1]);
        assert_eq!(lane_of(&mut waits, 2, &classes[2]), coming, "{kind}");
        let mut serves = dispatcher(kind, 2);
        assert_eq!(lane_of(&mut serves, 0, &classes[0]), 0);
        assert!(serves.start(0, Duration::ZERO).is_some());
        assert_eq!(lane_of(&mut serves, 1, &classes[4]), in_service, "{kind}");
    }
}

/// Agent 0 has the list of the class, and agent 1 is full with other lists. Returns the number of requests of that
/// class that waited at agent 0 before one went to agent 1.
fn waiting_before_a_second_copy(kind: DispatcherKind, full: bool) -> u64 {
    let classes = classes(6);
    let mut dispatcher = dispatcher(kind, 2);
    dispatcher.cache_changed(0, &added(&classes[0]));
    let there = added(&classes[2]);
    dispatcher.cache_changed(1, &there);
    if full {
        let goes = [CacheChange::ListAdded(classes[4].id), CacheChange::ListEvicted(classes[4].id)];
        dispatcher.cache_changed(1, &goes);
    }
    let outlook = dispatcher.outlook_with_queued(&classes[0]);
    let (hit, miss) = (outlook.at(0).takes, outlook.at(1).takes);
    for seq in 0.. {
        let price = match full && kind == DispatcherKind::LatcachePriced {
            true => dispatcher.pressure.price(),
            false => 0.0,
        };
        let wait = dispatcher.lanes[0].queue.time_ahead(0);
        let pays = wait + hit > miss + (miss - hit).mul_f64(price);
        assert_eq!(lane_of(&mut dispatcher, seq, &classes[0]), usize::from(pays), "{kind} after {wait:?}");
        if pays {
            return seq;
        }
    }
    unreachable!("an unbounded wait pays")
}

#[test]
fn priced_a_full_cache_gets_a_second_copy_only_when_the_wait_is_longer_than_the_charged_price() {
    let rule = waiting_before_a_second_copy(DispatcherKind::LatcacheRule, true);
    assert_eq!(waiting_before_a_second_copy(DispatcherKind::LatcachePriced, false), rule);
    let priced = waiting_before_a_second_copy(DispatcherKind::LatcachePriced, true);
    // All arrive at once, so load and price are at their maximum.
    assert!(priced > 16 * rule && priced < 18 * rule, "{priced} and {rule}");
}

#[test]
fn priced_a_list_that_was_made_for_no_request_is_foreseen() {
    let classes = classes(4);
    let mut dispatcher = dispatcher(DispatcherKind::LatcachePriced, 2);
    let [a, b, c] = [0, 1, 2].map(|at| CacheChange::ListAdded(classes[at].id));
    // Agent 1 has capacity for two lists.
    dispatcher.cache_changed(1, &[a, b, c, CacheChange::ListEvicted(classes[0].id)]);
    assert_eq!([0, 1, 2].map(|at| dispatcher.outlook_with_queued(&classes[at]).lists), [0, 0b10, 0b10]);
    assert_eq!(lane_of(&mut dispatcher, 0, &classes[2]), 1);
}

#[test]
fn priced_a_list_that_was_to_go_for_a_request_that_was_withdrawn_stays() {
    let classes = classes(4);
    let mut dispatcher = dispatcher(DispatcherKind::LatcachePriced, 1);
    let [a, b] = [0, 1].map(|at| CacheChange::ListAdded(classes[at].id));
    dispatcher.cache_changed(0, &[a, b, CacheChange::ListEvicted(classes[0].id)]);
    let ticket = dispatcher.assign(&uid(0), &classes[2], 0, 0, Duration::ZERO).ticket;
    assert_eq!(dispatcher.outlook_with_queued(&classes[1]).lists, 0);
    dispatcher.withdraw(ticket);
    assert_eq!([1, 2].map(|at| dispatcher.outlook_with_queued(&classes[at]).lists), [1, 0]);
}

proptest! {
    #[test]
    fn nothing_waits_while_an_agent_sleeps_that_could_take_it_and_nothing_is_remembered_of_what_is_gone(
        events in model::all_events(),
        slots in 1usize..5,
    ) {
        for kind in DispatcherKind::ALL {
            let mut model = Model::new(kind, slots);
            for event in &events {
                model.happens(event);
                model.check_wake_ups()?;
            }
            model.drain()?;
            model.check_forgotten()?;
        }
    }

    #[test]
    fn priced_decides_as_latcache_rule_does_while_no_cache_is_full(events in model::all_events()) {
        let [rule, priced] = [DispatcherKind::LatcacheRule, DispatcherKind::LatcachePriced].map(|kind| {
            let mut model = Model::new(kind, model::CLASSES);
            events.iter().for_each(|event| model.happens(event));
            model.lanes
        });
        prop_assert_eq!(rule, priced);
    }

    #[test]
    fn priced_foresees_the_hits_and_misses_of_full_caches_that_are_served_in_order(
        events in model::plain_events(),
        slots in 1usize..5,
    ) {
        let mut model = Model::new(DispatcherKind::LatcachePriced, slots);
        // One list beyond the capacity reveals the capacity.
        for agent in 0..model::AGENTS {
            for class in 0..=slots {
                model.happens(&model::Event::Checks { agent, class });
                model.happens(&model::Event::Acts(agent));
            }
        }
        events.iter().for_each(|event| model.happens(event));
        model.drain()?;
        for served in &model.served {
            prop_assert_eq!(served.expected_hit, Some(served.hit));
        }
        prop_assert_eq!(model.served.len(), model.lanes.len());
    }

    /// Kamino's theorem 1. The oracle: no evictions, and every part takes exactly its estimate.
    #[test]
    fn with_an_oracle_estimator_waiting_times_never_differ_by_more_than_the_longest_processing_time(
        agents in 2usize..6,
        arrivals in prop::collection::vec((0u64..400, 0usize..10), 1..300),
    ) {
        let classes = classes(10);
        let mut dispatcher = dispatcher(DispatcherKind::LatcacheRule, agents);
        let mut free_at = vec![None::<(Duration, Arc<Class>)>; agents];
        let (mut now, mut longest) = (Duration::ZERO, Duration::ZERO);
        for (seq, (pause_us, class)) in arrivals.iter().enumerate() {
            let arrival = now + Duration::from_micros(*pause_us);
            // Serves the requests that end before the arrival, in order of time.
            while let Some((agent, at)) = free_at
                .iter()
                .enumerate()
                .filter_map(|(agent, busy)| Some((agent, busy.as_ref()?.0)))
                .min_by_key(|(agent, at)| (*at, *agent))
                .filter(|(_, at)| *at <= arrival)
            {
                let (_, class) = free_at[agent].take().unwrap();
                dispatcher.cache_changed(agent, &added(&class));
                dispatcher.finish(agent);
                serve(&mut dispatcher, &mut free_at, agent, at);
            }
            now = arrival;
            let ticket = dispatcher.assign(&uid(seq as u64), &classes[*class], 0, seq as u64, now).ticket;
            let agent = ticket.lane.unwrap();
            let estimate = dispatcher.lanes[agent].queue.get(ticket.key).unwrap().estimate;
            longest = longest.max(estimate);
            if free_at[agent].is_none() {
                serve(&mut dispatcher, &mut free_at, agent, now);
            }
            let waits = dispatcher.lanes.iter().map(|lane| lane.queue.time_ahead(0) + lane.remaining(now));
            let gap = waits.clone().max().unwrap() - waits.min().unwrap();
            prop_assert!(gap <= longest, "gap {gap:?} > {longest:?}");
        }
    }
}

fn serve(
    dispatcher: &mut Dispatcher,
    free_at: &mut [Option<(Duration, Arc<Class>)>],
    agent: usize,
    now: Duration,
) {
    if let Some(request) = dispatcher.start(agent, now) {
        let takes = dispatcher.lanes[agent].remaining(now);
        free_at[agent] = Some((now + takes, request.class));
    }
}

/// Returns classes of two policies that limit the number of agents to `most`, and one class without a policy.
fn limited(most: u8) -> Vec<Arc<Class>> {
    let of = |from: Option<u64>| {
        let agents = from.map(|from| AgentLimit { most, from });
        let mut classifier =
            Classifier::new(PlacementSettings { agents, ..PlacementSettings::default() }.into());
        classifier.classify(&Arc::new(PodSpec::default()), &Identity::default(), 0)
    };
    vec![of(Some(1)), of(Some(6)), of(None)]
}

#[test]
fn pods_limited_to_some_agents_are_never_stolen_by_others() {
    for kind in DispatcherKind::ALL {
        for most in [1, 2, 9] {
            let classes = limited(most);
            for (class, from) in [(&classes[0], 1), (&classes[1], 2)] {
                let mut dispatcher = dispatcher(kind, 4);
                for n in 0..40 {
                    dispatcher.assign(&uid(n), class, 0, n, Duration::ZERO);
                }
                let works = (0..4).filter(|agent| dispatcher.start(*agent, Duration::ZERO).is_some());
                let works: Vec<_> = works.collect();
                let may: Vec<_> = (0..4).filter(|at| (at + 4 - from) % 4 < usize::from(most)).collect();
                assert!(works.iter().all(|at| may.contains(at)), "{kind} {most}: {works:?}, not {may:?}");
                assert!(!works.is_empty(), "{kind} {most}");
            }
        }
    }
}
