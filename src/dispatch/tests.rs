//! Tests of the dispatcher.

use super::*;
use crate::class::Classifier;
use crate::model::{Identity, PodSpec};
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
    objects.chain([CacheChange::ListAdded(class.id)]).collect()
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
    // Its next request is expected to hit there, behind the miss; but a cheaper miss elsewhere is not worth the wait.
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

proptest! {
    /// Kamino's theorem 1. The oracle: nothing is evicted, and every part takes exactly what is estimated.
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
            // Serve what ends before the arrival, in order of time.
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
