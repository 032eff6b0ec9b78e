//! Report: measured figures beside those of the paper, and the differences of the setups.

use std::time::Duration;

use super::{BaseLoad, CostSource, NodeSource, SimulateOptions};
use berth_scheduler::dispatch::DispatcherKind;
use berth_simulator::{Compared, DispatchFigures, DispatchReport, DispatchSweep, Experiment, RunOutcome};

/// Returns an age limit that is short enough to matter: the time in which two requests arrive for each list
/// that all agents may keep.
pub fn short_age(experiment: &Experiment) -> Duration {
    experiment.time_of((2 * experiment.agents * experiment.slots()) as f64)
}

/// Returns the report. `aged`: Protean, LatCache and the default with this age limit.
pub fn report(
    experiment: &Experiment,
    outcomes: Vec<RunOutcome>,
    sweeps: Vec<DispatchSweep>,
    aged: (Duration, Vec<DispatchFigures>),
    command: String,
) -> DispatchReport {
    let workload = &experiment.workloads[0];
    let mut setup = vec![
        ("requests", format!("{} of {} kinds", workload.arrivals.len(), workload.kinds())),
        ("running at the start", workload.running.len().to_string()),
        ("nodes", experiment.nodes.len().to_string()),
        ("agents", experiment.agents.to_string()),
        ("lists per agent", experiment.slots().to_string()),
        (
            "costs",
            format!(
                "hit {:.3} ms, miss {:.3} ms",
                experiment.costs.list_hit.as_secs_f64() * 1e3,
                experiment.costs.list_miss.as_secs_f64() * 1e3
            ),
        ),
        ("conflicts", if experiment.conflicts { "simulated" } else { "off" }.to_owned()),
        ("node changes", format!("{} per second", experiment.churn_per_s)),
        ("repetitions", experiment.workloads.len().to_string()),
        ("seed", experiment.seed.to_string()),
    ];
    if let Some(load) = experiment.load {
        setup.push(("load at 80 % hits", format!("{load:.3}")));
    }
    let mut notes = workload.notes.clone();
    notes.extend(differences(experiment));
    notes.push(format!(
        "The memory with an age limit is from runs that drop lists after {:.1} s without use.",
        aged.0.as_secs_f64()
    ));
    DispatchReport {
        title: workload.source.clone(),
        setup,
        compared: compared(&outcomes, &aged.1),
        outcomes,
        sweeps,
        notes,
        command,
    }
}

fn differences(experiment: &Experiment) -> Vec<String> {
    let mut all = vec![
        format!(
            "Kamino's traces had 500 to 1,700 request types at rates that are not published; this workload has {}. Its \
             number of cache slots is not published either: here it follows from Protean's hit rate. The plot over the cache \
             size shows how much depends on it: with larger caches the hit rate rises and the differences shrink.",
            experiment.workloads[0].kinds()
        ),
        "Kamino replays measured times that differ up to fivefold between types; here --costs, --class-spread and \
         --request-spread set them. The more they differ from the averages that LatCache keeps, the less often it \
         finds the best agent."
            .to_owned(),
    ];
    if experiment.conflicts {
        all.push(
            "Conflicts and retries are simulated; Kamino's simulation does not include them. --no-conflicts disables them here, \
             too."
                .to_owned(),
        );
    }
    all
}

/// Returns the published figures of latcache-rule against Protean, and the measured ones.
fn compared(outcomes: &[RunOutcome], aged: &[DispatchFigures]) -> Vec<Compared> {
    let of = |kind: DispatcherKind| {
        outcomes.iter().map(|outcome| &outcome.figures).find(|figures| figures.dispatcher == kind.name())
    };
    let mut all = Vec::new();
    let (Some(protean), Some(rule)) = (of(DispatcherKind::Protean), of(DispatcherKind::LatcacheRule)) else {
        return all;
    };
    let mut add = |what, paper, ours| all.push(Compared { what, paper, ours });
    let change = |ours: f64, theirs: f64| format!("{:+.1} %", (ours / theirs - 1.0) * 100.0);
    let share = |share: f64| format!("{share:.3}");
    add("average latency, latcache-rule against protean", "-42 %", change(rule.avg_ms, protean.avg_ms));
    add("p90 latency, latcache-rule against protean", "-50 %", change(rule.p90_ms, protean.p90_ms));
    add("top-level hits, protean", "0.807", share(protean.top_hit));
    add("top-level hits, latcache-rule", "0.950", share(rule.top_hit));
    if let [protean, rule, ..] = aged {
        let ours = format!("{:.2} at {:.3} hits", rule.memory_mib / protean.memory_mib, rule.top_hit);
        add("cache memory with an age limit, against protean", "0.77", ours);
    }
    if let (Some(predicted), Some(best)) = (rule.prediction_accuracy, rule.best_agent) {
        add("hits and misses predicted, latcache-rule", "0.991", share(predicted));
        add("best agent chosen, latcache-rule", "0.919", share(best));
    }
    if let Some(error) = rule.time_error {
        add("error of predicted times, latcache-rule", "29 %", format!("{:.1} %", error * 100.0));
    }
    if let Some(best) = of(DispatcherKind::LatcacheNaive).and_then(|naive| naive.best_agent) {
        add("best agent chosen, naive estimates", "0.654", share(best));
    }
    let burst = rule.throughput_burst / protean.throughput_burst;
    add("throughput in a burst, latcache-rule against protean", "about 2x", format!("{burst:.2}x"));
    if let Some(ours) = of(DispatcherKind::default()) {
        let name = "average latency, berth's default against latcache-rule";
        add(name, "-", change(ours.avg_ms, rule.avg_ms));
    }
    all
}

/// Returns the command that makes the same figures, without output options.
pub fn command(options: &SimulateOptions) -> String {
    let mut words = vec!["berth simulate".to_owned()];
    let mut add = |word: String| words.push(word);
    if let Some(trace) = &options.trace {
        add(format!("--trace {}", trace.display()));
        if options.widen > 0 {
            add(format!("--widen {}", options.widen));
        }
    } else {
        add(format!("--requests {} --types {}", options.requests, options.types));
    }
    match &options.nodes {
        Some(NodeSource::Count(count)) => add(format!("--nodes {count}")),
        Some(NodeSource::File(file)) => add(format!("--nodes {}", file.display())),
        None => {}
    }
    add(format!("--agents {}", options.agents));
    if let Some(slots) = options.cache_slots {
        add(format!("--cache-slots {slots}"));
    }
    if let Some(mib) = options.cache_mib {
        add(format!("--cache-mib {mib}"));
    }
    if let Some(age) = options.cache_age {
        add(format!("--cache-age {age}"));
    }
    match options.base_load {
        BaseLoad(Some(load)) => add(format!("--base-load {load}")),
        BaseLoad(None) => add("--base-load none".to_owned()),
    }
    add(format!("--load {}", options.load));
    match &options.costs {
        CostSource::Azure => {}
        CostSource::AzureRules => add("--costs azure-rules".to_owned()),
        CostSource::Berth => add("--costs berth".to_owned()),
        CostSource::File(file) => add(format!("--costs {}", file.display())),
    }
    for (name, value) in [("class", options.class_spread), ("request", options.request_spread)] {
        if value > 0.0 {
            add(format!("--{name}-spread {value}"));
        }
    }
    add(format!("--churn {}", options.churn));
    if options.no_conflicts {
        add("--no-conflicts".to_owned());
    }
    if options.repeat > 1 {
        add(format!("--repeat {}", options.repeat));
    }
    let names: Vec<_> = options.dispatcher.0.iter().map(|kind| kind.name()).collect();
    add(format!("--dispatcher {}", names.join(",")));
    add(format!("--seed {}", options.seed));
    words.join(" ")
}
