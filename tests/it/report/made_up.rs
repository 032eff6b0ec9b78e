//! A plausible report with made-up figures.

use berth_simulator::{
    Compared, DispatchFigures, DispatchReport, DispatchSlice, DispatchSweep, RunOutcome, Varied,
};

/// Name, average latency in ms and top-level hit rate.
const DISPATCHERS: [(&str, f64, f64); 8] = [
    ("protean", 41.0, 0.803),
    ("latcache-rule", 23.6, 0.951),
    ("latcache-request", 26.9, 0.934),
    ("latcache-cost", 19.8, 0.968),
    ("latcache-naive", 33.1, 0.902),
    ("hash-stealing", 37.4, 0.921),
    ("round-robin", 45.2, 0.779),
    ("random", 48.8, 0.776),
];
const SLICES: u32 = 600;
const SLICE_S: f64 = 12.0;
/// Seconds.
const BURST: (f64, f64) = (4_200.0, 4_680.0);

pub fn report() -> DispatchReport {
    let sweep = |what, xs: &[f64], factor: fn(f64) -> f64| DispatchSweep {
        what,
        points: xs.iter().map(|x| (*x, DISPATCHERS.map(|each| figures(each, factor(*x))).to_vec())).collect(),
    };
    let compared = |what, paper, ours: &str| Compared { what, paper, ours: ours.to_owned() };
    DispatchReport {
        title: "8 dispatchers, 4 agents, 86,400 requests of azure-packing-2020".to_owned(),
        setup: [
            ("Nodes", "1,500"),
            ("Agents", "4"),
            ("Requests", "86,400 in 2 h"),
            ("Classes", "487"),
            ("Ranked lists per agent", "12"),
            ("Load", "0.70 at 80 % hits"),
            ("Candidate width", "8"),
            ("Conflicts", "simulated"),
            ("Seed", "1"),
        ]
        .map(|(label, value)| (label, value.to_owned()))
        .to_vec(),
        outcomes: DISPATCHERS.map(outcome).to_vec(),
        sweeps: vec![
            sweep(Varied::Agents, &[1.0, 2.0, 4.0, 8.0, 16.0], |x| 1.6 - 0.3 * x.ln()),
            sweep(Varied::Load, &[1.0, 1.25, 1.5, 1.75, 2.0], |x| x.powi(3)),
            sweep(Varied::CacheSlots, &[4.0, 8.0, 16.0, 32.0], |x| 12.0 / x.powf(0.9)),
        ],
        compared: vec![
            compared("Average latency, latcache-rule against protean", "-42 %", "-42.4 %"),
            compared("90th percentile, latcache-rule against protean", "-50 %", "-44.0 %"),
            compared("Top-level hits, latcache-rule", "0.95", "0.951"),
            compared("Cache memory, latcache-rule against protean", "0.77", "0.79"),
        ],
        notes: vec![
            "All figures of this page are made up.".to_owned(),
            "The paper's traces are not public; the requests here are those of the Azure trace for packing, whose \
             types are fewer."
                .to_owned(),
        ],
        command: "berth simulate --trace azure-packing-2020.csv.gz --dispatcher all --agents 4 --cache-slots 12 \
                  --load 1 --seed 1 --report report.html"
            .to_owned(),
    }
}

fn figures((name, average, hit): (&str, f64, f64), factor: f64) -> DispatchFigures {
    let estimates = name.starts_with("latcache").then_some(hit);
    let avg_ms = average * factor.max(0.1);
    let hit = 1.0 - (1.0 - hit) * factor.clamp(0.2, 4.0);
    let processing_ms = 6.0 + 40.0 * (1.0 - hit);
    DispatchFigures {
        dispatcher: name.to_owned(),
        avg_ms,
        p50_ms: 0.38 * avg_ms,
        p90_ms: 2.7 * avg_ms,
        p99_ms: 6.1 * avg_ms,
        top_hit: hit,
        rule_hit: 0.55 + 0.4 * hit,
        memory_mib: 640.0 - 380.0 * (hit - 0.7),
        queue_ms: (avg_ms - processing_ms).max(0.0),
        processing_ms,
        prediction_accuracy: estimates.map(|share| 0.94 + 0.05 * share),
        time_error: estimates.map(|share| 0.4 * (1.0 - share)),
        best_agent: estimates,
        best_agent_gap: estimates.map(|share| 1.1 - share),
        conflicts: (1_000.0 * (1.0 - hit)) as u64,
        throughput_burst: 9_000.0 / average,
        placed: 86_388,
        unplaced: 12,
        intervals: Default::default(),
    }
}

fn outcome(dispatcher: (&str, f64, f64)) -> RunOutcome {
    let figures = figures(dispatcher, 1.0);
    // A logistic curve over the logarithm of latency, through the median, with both ends.
    let latency = |share: f64| figures.p50_ms * (share / (1.0 - share)).powf(0.75);
    let inner = (1..200).map(|at| f64::from(at) / 200.0).map(|share| (latency(share), share));
    let cdf = [(0.0, 0.0)].into_iter().chain(inner).chain([(latency(0.999), 1.0)]).collect();
    let mut waiting = 0.0;
    let slice = |at: u32| {
        let from_s = f64::from(at) * SLICE_S;
        let in_burst = (BURST.0..BURST.1).contains(&from_s);
        let wave = 1.0 + 0.25 * (from_s / 700.0).sin() + 0.1 * f64::from(at * 7_919 % 13) / 13.0;
        let arrived = if in_burst { 620.0 * wave } else { 110.0 * wave };
        let placed = (arrived + waiting / SLICE_S).min(figures.throughput_burst);
        waiting = (waiting + (arrived - placed) * SLICE_S).max(0.0);
        let warm = 1.0 - (-from_s / 900.0).exp();
        DispatchSlice {
            from_s,
            arrived,
            placed,
            waiting,
            memory_mib: figures.memory_mib * warm * (0.95 + 0.05 * wave),
        }
    };
    let timeline = (0..SLICES).map(slice).collect();
    RunOutcome { timeline, figures, cdf, burst: BURST }
}
