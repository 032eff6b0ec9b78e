//! The burst: the stretch of a workload whose requests bring most work, offered faster than it can be served (Kamino,
//! figure 7).

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::lru;
use super::workload::{Request, Workload};
use super::world::Setup;

/// Work that the burst brings, in what the agents could do at 80 % hits.
const OFFERED: f64 = 3.0;
/// Requests before the burst that warm up the caches, and those of the burst, as shares of all.
const WARM_UP: f64 = 0.1;
const BURST: f64 = 0.01;

/// The stretch of requests in which an LRU of one agent's size misses most often.
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

/// The same simulation, but of the requests before the burst and the burst, whose times are compressed; and when that is.
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
            // At an even pace: real bursts come in batches, but here the pace is given.
            request.arrives_s = burst_s - begin_s + takes_s * (index - stretch.start) as f64 / length;
        }
        request.leaves_s = request.arrives_s + lives_s;
    }
    let before = whole.running.iter().chain(&whole.arrivals[..first]);
    let there = before.filter(|request| request.leaves_s > begin_s);
    let running = there.map(|r| Request { arrives_s: 0.0, leaves_s: r.leaves_s - begin_s, ..*r }).collect();
    let workload = Workload { arrivals, running, ..Workload::clone(whole) };
    let setup = Setup { workload: Arc::new(workload), ..setup.clone() };
    let from = setup.at(burst_s - begin_s);
    let to = from + setup.at(takes_s);
    (setup, from..to)
}
