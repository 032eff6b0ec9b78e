//! Benchmarks of the dispatcher alone: the time to choose an agent, by dispatcher and number of waiting requests.
//!
//! `cargo bench --bench dispatch`. Eight agents, 200 classes of skewed popularity, and caches of 12 lists an agent, which
//! evict all the time. Agents take no time: a request is started and finished as soon as its turn comes, and its cache changes as
//! in `agent/cache.rs`. Times are of one thread, with the two clock readings included (first line).

use std::collections::{BTreeMap, HashMap};
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_model::{Identity, PodSpec};
use berth_scheduler::agent::{CacheChange, Rng};
use berth_scheduler::class::{Class, ClassId, Classifier, TraitId};
use berth_scheduler::dispatch::{Dispatcher, DispatcherKind, Estimator};
use berth_scheduler::rules::{CachedRule, unit};

const AGENTS: usize = 8;
const CLASSES: usize = 200;
const LISTS: usize = 12;
const WAITING: [usize; 3] = [0, 100, 10_000];
const WARM_UP: usize = 20_000;
const MEASURED: usize = 50_000;
/// Maximum median time to choose an agent.
const TARGET_NS: u64 = 2_000;
/// Interval between arrivals on the virtual clock: it keeps eight agents some 70 % busy.
const PAUSE: Duration = Duration::from_micros(60);

fn main() {
    let mut clock: Vec<u64> = (0..10_001).map(|_| nanos(Instant::now().elapsed())).collect();
    println!("the clock itself: {} ns\n", quantile(&mut clock, 0.5));
    println!("{:>17}  {:>8}  {:>18}  {:>18}  {:>18}", "", "", "assign, ns", "start, ns", "finish, ns");
    print!("{:>17}  {:>8}", "dispatcher", "waiting");
    println!("{}", format!("  {:>9}{:>9}", "median", "p99").repeat(3));
    let mut slowest_ns = 0;
    for kind in DispatcherKind::ALL {
        for waiting in WAITING {
            let mut times = Bench::new(kind).run(waiting);
            let assign_ns = quantile(&mut times.assign, 0.5);
            if kind == DispatcherKind::default() {
                slowest_ns = slowest_ns.max(assign_ns);
            }
            print!("{kind:>17}  {waiting:>8}");
            for times in [&mut times.assign, &mut times.start, &mut times.finish] {
                print!("  {:>9}{:>9}", quantile(times, 0.5), quantile(times, 0.99));
            }
            println!();
        }
    }
    let verdict = if slowest_ns <= TARGET_NS { "yes" } else { "no" };
    println!("\nassign <= 2 us: {verdict} ({}, median, {AGENTS} agents)", DispatcherKind::default());
}

fn nanos(time: Duration) -> u64 {
    time.as_nanos() as u64
}

fn quantile(times: &mut [u64], q: f64) -> u64 {
    times.sort_unstable();
    times[((times.len() - 1) as f64 * q) as usize]
}

/// Times in nanoseconds.
#[derive(Default)]
struct Times {
    assign: Vec<u64>,
    start: Vec<u64>,
    finish: Vec<u64>,
}

struct Bench {
    dispatcher: Dispatcher,
    caches: Vec<Cache>,
    classes: Vec<Arc<Class>>,
    rng: Rng,
    uid: Arc<str>,
    seq: u64,
    now: Duration,
}

impl Bench {
    fn new(kind: DispatcherKind) -> Self {
        Bench {
            dispatcher: Dispatcher::new(kind, AGENTS, Estimator::default(), 1),
            caches: (0..AGENTS).map(|_| Cache::default()).collect(),
            classes: classes(),
            rng: Rng(1),
            uid: "uid".into(),
            seq: 0,
            now: Duration::ZERO,
        }
    }

    /// Runs with `waiting` requests ahead of each new one.
    fn run(mut self, waiting: usize) -> Times {
        let mut times = Times::default();
        (0..WARM_UP).for_each(|_| self.step(&mut times));
        (0..waiting).for_each(|_| self.assign(&mut times));
        // The queues have reached their depth; their content is stationary after another round.
        (0..WARM_UP.max(waiting)).for_each(|_| self.step(&mut times));
        times = Times::default();
        (0..MEASURED).for_each(|_| self.step(&mut times));
        assert_eq!(self.dispatcher.len(), waiting);
        times
    }

    /// Adds one request and finishes one.
    fn step(&mut self, times: &mut Times) {
        self.assign(times);
        let at = (0..AGENTS).map(|offset| (self.seq as usize + offset) % AGENTS);
        let agent = at.into_iter().find(|at| self.dispatcher.has_work(*at)).expect("something waits");
        let began = Instant::now();
        let request = black_box(self.dispatcher.start(agent, self.now)).expect("it has work");
        times.start.push(nanos(began.elapsed()));
        let changes = self.caches[agent].serve(&request.class);
        let began = Instant::now();
        self.dispatcher.cache_changed(agent, &changes);
        self.dispatcher.finish(agent);
        times.finish.push(nanos(began.elapsed()));
    }

    fn assign(&mut self, times: &mut Times) {
        self.seq += 1;
        self.now += PAUSE;
        // The square of an even number is skewed: a tenth of the classes have a third of the requests.
        let random = unit(self.rng.next());
        let class = &self.classes[(random * random * CLASSES as f64) as usize];
        let priority = (self.rng.next() % 3) as i32;
        let began = Instant::now();
        black_box(self.dispatcher.assign(&self.uid, class, priority, self.seq, self.now));
        times.assign.push(nanos(began.elapsed()));
    }
}

/// Returns the classes. Three cached rules apply to each; one of them reads a trait that ten classes share.
fn classes() -> Vec<Arc<Class>> {
    let mut classifier = Classifier::default();
    let class = |at: usize| {
        let node_selector = [("pool", format!("pool-{}", at / 10))].into_iter().collect();
        let images = [Arc::from(format!("image-{at}"))].into();
        let spec = PodSpec { node_selector, images, ..PodSpec::default() };
        classifier.classify(&Arc::new(spec), &Identity::default(), 0)
    };
    (0..CLASSES).map(class).collect()
}

/// Simulates the changes of an agent's caches, without the cached data: least recently used lists are evicted, and rule objects
/// with the last list built from them.
#[derive(Default)]
struct Cache {
    used: HashMap<ClassId, u64>,
    by_use: BTreeMap<u64, Arc<Class>>,
    pins: HashMap<(CachedRule, TraitId), usize>,
    uses: u64,
}

impl Cache {
    fn serve(&mut self, class: &Arc<Class>) -> Vec<CacheChange> {
        let mut changes = Vec::new();
        self.uses += 1;
        self.by_use.insert(self.uses, class.clone());
        if let Some(before) = self.used.insert(class.id, self.uses) {
            self.by_use.remove(&before);
            return changes;
        }
        for key in class.cached_rules() {
            let pins = self.pins.entry(key).or_default();
            *pins += 1;
            if *pins == 1 {
                changes.push(CacheChange::ObjectAdded(key.0, key.1));
            }
        }
        changes.push(CacheChange::ListAdded(class.id));
        if self.by_use.len() > LISTS
            && let Some((_, gone)) = self.by_use.pop_first()
        {
            self.used.remove(&gone.id);
            changes.push(CacheChange::ListEvicted(gone.id));
            for key in gone.cached_rules() {
                let pins = self.pins.get_mut(&key).expect("a cached list pins its rule objects");
                *pins -= 1;
                if *pins == 0 {
                    self.pins.remove(&key);
                    changes.push(CacheChange::ObjectEvicted(key.0, key.1));
                }
            }
        }
        changes
    }
}
