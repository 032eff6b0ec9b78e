//! Queries of services' own, in a lane of their own: no round waits for them, and a slow one delays at most others of its namespace.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::readings::FRESH_S;
use crate::clock::Clock;
use berth_prometheus::PrometheusSource;
use berth_rightsizing::scaling::Measured;
use berth_telemetry::ScalerMetrics;

/// Maximum number of queries in flight, of all namespaces and of one.
const IN_FLIGHT_MAX: usize = 8;
const IN_NAMESPACE_MAX: usize = 2;
/// Value of the label of metrics.
const CUSTOM: &str = "custom";

/// What a query of a service measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Objective {
    /// Index of the signal.
    Signal(usize),
    Success,
}

/// A query of one service.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct QueryKey {
    pub namespace: Arc<str>,
    /// Uid of the ServiceScaler.
    pub service: Arc<str>,
    pub objective: Objective,
}

type QueryResult = Result<Option<Measured>, String>;

/// A query to send.
#[derive(Debug, Clone, PartialEq)]
struct Request {
    key: QueryKey,
    text: Arc<str>,
}

/// Order of the queries, and their newest results. No I/O.
#[derive(Default)]
struct Lane {
    queries: BTreeMap<QueryKey, Entry>,
    /// Namespaces with queries; the next one first.
    turns: VecDeque<Arc<str>>,
    /// Queries in flight, by namespace.
    in_flight: BTreeMap<Arc<str>, usize>,
}

struct Entry {
    text: Arc<str>,
    /// Whether it has not been sent since the last round.
    is_due: bool,
    /// Time of the last request that is in flight, or has ended.
    asked_s: Option<i64>,
    is_in_flight: bool,
    /// The newest result, and the time of its request.
    newest: Option<(i64, QueryResult)>,
}

impl Lane {
    /// Takes over the queries of a round: each is due once, unless it is in flight.
    fn want(&mut self, wanted: BTreeMap<QueryKey, Arc<str>>) {
        self.queries.retain(|key, entry| wanted.get(key).is_some_and(|text| *text == entry.text));
        for (key, text) in wanted {
            let new = Entry { text, is_due: true, asked_s: None, is_in_flight: false, newest: None };
            let entry = self.queries.entry(key).or_insert(new);
            entry.is_due = !entry.is_in_flight;
        }
        let mut namespaces: BTreeSet<Arc<str>> =
            self.queries.keys().map(|key| key.namespace.clone()).collect();
        self.turns.retain(|namespace| namespaces.remove(namespace));
        self.turns.extend(namespaces);
    }

    /// Returns the next query to send: of the next namespace that has one due and is within its limit, the one that was sent the
    /// longest ago.
    fn next(&mut self, now_s: i64) -> Option<Request> {
        if self.in_flight.values().sum::<usize>() >= IN_FLIGHT_MAX {
            return None;
        }
        for _ in 0..self.turns.len() {
            let namespace = self.turns.pop_front()?;
            self.turns.push_back(namespace.clone());
            if self.in_flight.get(&namespace).is_some_and(|count| *count >= IN_NAMESPACE_MAX) {
                continue;
            }
            let first = QueryKey {
                namespace: namespace.clone(),
                service: "".into(),
                objective: Objective::Signal(0),
            };
            let of_namespace =
                self.queries.range_mut(first..).take_while(|(key, _)| key.namespace == namespace);
            let due = of_namespace.filter(|(_, entry)| entry.is_due);
            let Some((key, entry)) = due.min_by_key(|(_, entry)| entry.asked_s) else { continue };
            (entry.is_due, entry.is_in_flight, entry.asked_s) = (false, true, Some(now_s));
            let request = Request { key: key.clone(), text: entry.text.clone() };
            *self.in_flight.entry(namespace).or_default() += 1;
            return Some(request);
        }
        None
    }

    /// Stores a result.
    fn finish(&mut self, request: &Request, asked_s: i64, result: QueryResult) {
        if let Some(count) = self.in_flight.get_mut(&request.key.namespace) {
            *count -= 1;
            if *count == 0 {
                self.in_flight.remove(&request.key.namespace);
            }
        }
        let entry = self.queries.get_mut(&request.key).filter(|entry| entry.text == request.text);
        if let Some(entry) = entry.filter(|entry| entry.asked_s == Some(asked_s)) {
            entry.is_in_flight = false;
            entry.newest = Some((asked_s, result));
        }
    }

    /// Returns the newest result.
    ///
    /// # Errors
    /// The query failed, or has no recent result.
    fn newest(&self, key: &QueryKey, now_s: i64) -> QueryResult {
        let Some(entry) = self.queries.get(key) else { return Err("its query was not sent yet".to_owned()) };
        if let Some((asked_s, result)) = &entry.newest
            && now_s.saturating_sub(*asked_s) <= FRESH_S
        {
            return result.clone();
        }
        Err(match entry.asked_s.filter(|_| entry.is_in_flight) {
            Some(asked_s) => {
                let for_s = now_s.saturating_sub(asked_s);
                format!("its query is slow: Prometheus has not answered for {for_s} s")
            }
            None => {
                "its query waits for its turn: others of the same namespace, or many namespaces, have slow \
                     queries"
                    .to_owned()
            }
        })
    }
}

/// The lane and the task that sends its queries, which is aborted when this is dropped.
pub(super) struct CustomQueries {
    lane: Arc<Mutex<Lane>>,
    wanted: Arc<Notify>,
    metrics: Arc<ScalerMetrics>,
    task: JoinHandle<()>,
}

impl Drop for CustomQueries {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl CustomQueries {
    /// `patience`: timeout of one query.
    pub fn start(
        source: PrometheusSource,
        clock: &Clock,
        patience: Duration,
        metrics: Arc<ScalerMetrics>,
    ) -> CustomQueries {
        let (lane, wanted) = (Arc::<Mutex<Lane>>::default(), Arc::<Notify>::default());
        let task = tokio::spawn(send(
            (source, clock.clone()),
            patience,
            metrics.clone(),
            lane.clone(),
            wanted.clone(),
        ));
        CustomQueries { lane, wanted, metrics, task }
    }

    /// Takes over the queries of a round.
    pub fn want(&self, wanted: BTreeMap<QueryKey, Arc<str>>) {
        let mut lane = self.lane.lock();
        lane.want(wanted);
        let unanswered = lane.queries.values().filter(|entry| entry.is_in_flight).count();
        drop(lane);
        (0..unanswered).for_each(|_| self.metrics.late(CUSTOM));
        self.wanted.notify_one();
    }

    /// Returns the newest result of a query.
    ///
    /// # Errors
    /// The query failed, or has no recent result.
    pub fn newest(&self, key: &QueryKey, now_s: i64) -> QueryResult {
        self.lane.lock().newest(key, now_s)
    }
}

/// Sends the queries of the lane. Never returns.
async fn send(
    (source, clock): (PrometheusSource, Clock),
    patience: Duration,
    metrics: Arc<ScalerMetrics>,
    lane: Arc<Mutex<Lane>>,
    wanted: Arc<Notify>,
) {
    let mut flights = FuturesUnordered::new();
    loop {
        loop {
            let now = clock.now();
            let Some(request) = lane.lock().next(now.as_second()) else { break };
            let (source, clock, metrics) = (&source, &clock, &metrics);
            flights.push(async move {
                let began = Instant::now();
                let ask = async {
                    clock.follow(source).await?;
                    let answer = source.number(&request.text, clock.now()).await;
                    answer.map_err(|error| error.to_string())
                };
                let result = match timeout(patience, ask).await {
                    Ok(result) => result,
                    Err(_) => {
                        Err(format!("its query is slow: Prometheus did not answer it within {patience:?}"))
                    }
                };
                metrics.read(CUSTOM, result.is_ok(), began.elapsed());
                let result = result.map(|sample| {
                    sample.map(|sample| Measured { time_s: sample.at as i64, value: sample.value })
                });
                (request, now.as_second(), result)
            });
        }
        tokio::select! {
            Some((request, asked_s, result)) = flights.next() => lane.lock().finish(&request, asked_s, result),
            () = wanted.notified() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(namespace: &str, service: usize) -> QueryKey {
        let service = format!("{service:03}").into();
        QueryKey { namespace: namespace.into(), service, objective: Objective::Signal(0) }
    }

    fn lane(wanted: &[(&str, usize)]) -> Lane {
        let mut lane = Lane::default();
        want(&mut lane, wanted);
        lane
    }

    /// Wants this number of queries of each namespace.
    fn want(lane: &mut Lane, wanted: &[(&str, usize)]) {
        let keys = wanted.iter().flat_map(|(namespace, count)| (0..*count).map(|at| key(namespace, at)));
        lane.want(keys.map(|key| (key, Arc::from("up"))).collect());
    }

    /// Sends all that may be sent.
    fn sent(lane: &mut Lane, now_s: i64) -> Vec<Request> {
        std::iter::from_fn(|| lane.next(now_s)).collect()
    }

    fn namespaces(requests: &[Request]) -> Vec<&str> {
        requests.iter().map(|request| &*request.key.namespace).collect()
    }

    #[test]
    fn namespaces_take_turns_and_each_has_two_queries_in_flight_at_most() {
        let mut lane = lane(&[("a", 20), ("b", 3), ("c", 1), ("d", 20), ("e", 20)]);
        let first = sent(&mut lane, 0);
        assert_eq!(namespaces(&first), ["a", "b", "c", "d", "e", "a", "b", "d"]);
        // Eight are in flight. Those that end make room for the next namespaces.
        lane.finish(&first[0], 0, Ok(None));
        lane.finish(&first[2], 0, Ok(None));
        assert_eq!(namespaces(&sent(&mut lane, 1)), ["e", "a"]);
    }

    #[test]
    fn a_namespace_whose_queries_hang_delays_no_other() {
        let mut lane = lane(&[("slow", 50), ("web", 5)]);
        let mut done = 0;
        for round in 0..5 {
            for request in sent(&mut lane, round) {
                if &*request.key.namespace == "web" {
                    lane.finish(&request, round, Ok(None));
                    done += 1;
                }
            }
        }
        assert_eq!(done, 5);
        assert_eq!(lane.in_flight.get("slow"), Some(&IN_NAMESPACE_MAX));
    }

    #[test]
    fn each_query_is_sent_once_per_round_and_the_oldest_first() {
        let mut lane = lane(&[("a", 3)]);
        let first = sent(&mut lane, 0);
        assert_eq!(first.len(), 2);
        first.iter().for_each(|request| lane.finish(request, 0, Ok(None)));
        // The third was not sent yet: it comes before the others of the next round.
        want(&mut lane, &[("a", 3)]);
        let next = sent(&mut lane, 15);
        assert_eq!(next[0].key, key("a", 2));
        next.iter().for_each(|request| lane.finish(request, 15, Ok(None)));
        let last = sent(&mut lane, 16);
        last.iter().for_each(|request| lane.finish(request, 16, Ok(None)));
        assert_eq!((next.len(), last.len(), lane.next(17)), (2, 1, None));
    }

    #[test]
    fn the_newest_answer_is_used_while_it_is_fresh_and_then_the_reason_is_said() {
        let mut lane = lane(&[("a", 1)]);
        let (key, measured) = (key("a", 0), Measured { time_s: 0, value: 5.0 });
        assert!(lane.newest(&key, 0).unwrap_err().contains("waits for its turn"));
        let request = lane.next(0).unwrap();
        lane.finish(&request, 0, Ok(Some(measured)));
        want(&mut lane, &[("a", 1)]);
        lane.next(15).unwrap();
        assert_eq!(lane.newest(&key, FRESH_S), Ok(Some(measured)));
        let slow = lane.newest(&key, FRESH_S + 1).unwrap_err();
        assert_eq!(slow, format!("its query is slow: Prometheus has not answered for {} s", FRESH_S - 14));
    }

    #[test]
    fn a_changed_query_forgets_its_answer() {
        let mut lane = lane(&[("a", 1)]);
        let request = lane.next(0).unwrap();
        lane.want([(key("a", 0), Arc::from("other"))].into());
        lane.finish(&request, 0, Ok(Some(Measured { time_s: 0, value: 5.0 })));
        assert!(lane.newest(&key("a", 0), 1).is_err());
        assert_eq!(lane.next(1).map(|it| it.text), Some(Arc::from("other")));
        lane.want(BTreeMap::new());
        assert!(lane.queries.is_empty() && lane.turns.is_empty());
    }
}
