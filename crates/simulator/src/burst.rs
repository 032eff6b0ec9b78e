//! Burst of a workload: its most expensive sequence of requests, offered faster than it can be served (Kamino, figure
//! 7).

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::lru;
use super::workload::{ArrivalTrace, PodArrival};
use super::world::Setup;

/// Work of the burst, as a multiple of the agents' capacity at 80 % hits.
const OFFERED: f64 = 3.0;
/// Requests before the burst that warm up the caches, and those of the burst, as shares of all requests.
const WARM_UP: f64 = 0.1;
const BURST: f64 = 0.01;

/// Returns the sequence of requests in which an LRU of one agent's size misses most often.
pub fn stretch(setup: &Setup) -> Range<usize> {
    let arrivals = &setup.workload.arrivals;
    let length = ((arrivals.len() as f64 * BURST) as usize).clamp(1.min(arrivals.len()), arrivals.len());
    let misses = lru::misses(arrivals, setup.slots());
    let mut now: usize = misses[..length].iter().filter(|miss| **miss).count();
    let (mut most, mut first) = (now, 0);
    for from in 1..=arrivals.len() - length {
        now = now + usize::from(misses[from + length - 1]) - usize::from(misses[from - 1]);
        if now > most {
            (most, first) = (now, from);
        }
    }
    first..first + length
}

/// Returns the same simulation, limited to the warm-up and the burst, with compressed burst times; and the time of
/// the burst.
pub fn compressed(setup: &Setup, stretch: Range<usize>) -> (Setup, Range<Duration>) {
    let whole = &setup.workload;
    let warm_up = (whole.arrivals.len() as f64 * WARM_UP) as usize;
    let first = stretch.start.saturating_sub(warm_up);
    let time = |at: usize| whole.arrivals.get(at).map_or(0.0, |request| request.arrives_s);
    let (begin_s, burst_s) = (time(first), time(stretch.start));
    let length = stretch.len() as f64;
    let work_s = setup.costs.mean(0.8).as_secs_f64() * length / setup.agents as f64;
    let takes_s = work_s / OFFERED / setup.scale;
    let mut arrivals = whole.arrivals[first..stretch.end].to_vec();
    for (at, request) in arrivals.iter_mut().enumerate() {
        let index = first + at;
        let lives_s = request.leaves_s - request.arrives_s;
        if index < stretch.start {
            request.arrives_s -= begin_s;
        } else {
            // At a constant rate: real bursts come in batches, but here the rate is given.
            request.arrives_s = burst_s - begin_s + takes_s * (index - stretch.start) as f64 / length;
        }
        request.leaves_s = request.arrives_s + lives_s;
    }
    let before = whole.running.iter().chain(&whole.arrivals[..first]);
    let there = before.filter(|request| request.leaves_s > begin_s);
    let running =
        there.map(|r| PodArrival { arrives_s: 0.0, leaves_s: r.leaves_s - begin_s, ..*r }).collect();
    let workload = ArrivalTrace { arrivals, running, ..ArrivalTrace::clone(whole) };
    let setup = Setup { workload: Arc::new(workload), ..setup.clone() };
    let from = setup.at(burst_s - begin_s);
    let to = from + setup.at(takes_s);
    (setup, from..to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Costs;
    use berth_model::{Node, PodSpec};
    use berth_scheduler::agent::CacheLimits;
    use berth_scheduler::dispatch::DispatcherKind;

    /// 1,000 requests a second apart for one of two templates, except ten in a row for ten templates.
    fn setup() -> Setup {
        let template = |at: usize| if (600..610).contains(&at) { at as u32 - 600 } else { at as u32 % 2 };
        let request = |at: usize| PodArrival {
            template: template(at),
            arrives_s: at as f64,
            leaves_s: at as f64 + 50.0,
        };
        let workload = ArrivalTrace {
            templates: (0..10).map(|_| Arc::new(PodSpec::default())).collect(),
            running: vec![PodArrival { template: 0, arrives_s: 0.0, leaves_s: 520.0 }],
            arrivals: (0..1000).map(request).collect(),
            ..ArrivalTrace::default()
        };
        Setup {
            workload: Arc::new(workload),
            nodes: Arc::new(vec![Node::default()]),
            dispatcher: DispatcherKind::Protean,
            agents: 2,
            cache: CacheLimits { slots: 2, ..CacheLimits::unlimited() },
            costs: Costs::azure(),
            scale: 0.5,
            churn_per_s: 0.0,
            conflicts: true,
            placement: Arc::default(),
            seed: 1,
        }
    }

    #[test]
    fn the_stretch_that_brings_most_work_is_offered_three_times_as_fast_as_it_can_be_served() {
        let setup = setup();
        let stretch = stretch(&setup);
        assert_eq!(stretch.len(), 10);
        assert!(stretch.start >= 600 && stretch.start <= 604, "{stretch:?}");
        let (burst, window) = compressed(&setup, stretch.clone());
        let arrivals = &burst.workload.arrivals;
        assert_eq!(arrivals.len(), 100 + 10, "a tenth of all requests before it, and the burst");
        // 10 requests of 28.8 ms for two agents, in a third of the time that they take.
        let length = (window.end - window.start).as_secs_f64();
        assert!((length - 10.0 * 0.0288 / 2.0 / 3.0).abs() < 1e-6, "{length}");
        assert_eq!(burst.at(arrivals[100].arrives_s), window.start);
        assert!(burst.at(arrivals[109].arrives_s) < window.end);
        assert!(arrivals.iter().all(|request| (request.leaves_s - request.arrives_s - 50.0).abs() < 1e-9));
        // Requests still running at the start of the warm-up are part of the initial state.
        let began = stretch.start - 100;
        let there = 50 + usize::from(began < 520);
        assert!(burst.workload.running.len().abs_diff(there) <= 1, "{}", burst.workload.running.len());
    }
}
