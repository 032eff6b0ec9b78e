//! The settings of the estimator `hours`, chosen on published series and measured on those that did not choose.

use std::path::Path;

use berth::advise::recording::{Column, read};
use berth_rightsizing::recommend::amount::{self, Amount};
use berth_rightsizing::recommend::backtest::{
    BacktestEstimator, EstimatorKind, Measures, Pace, Recorded, RecordedResource, backtest, replay,
};
use berth_rightsizing::recommend::hours::{Hours, HoursSettings};
use berth_rightsizing::recommend::settings::RecommenderSettings;
use berth_rightsizing::recommend::time::UnixNanos;

use crate::simulate::traces::traces;

const HOUR_NS: i64 = 3_600_000_000_000;
const PACE: Pace = Pace { step_ns: HOUR_NS, warm_up_ns: 24 * HOUR_NS };
/// KRR's rule for CPU. On the series that choose, ours may be exceeded half as often: on others it is more.
const REFERENCE: EstimatorKind = EstimatorKind::P99;

/// `hours` with other settings.
struct Candidate {
    hours: Hours,
    minimum: Amount,
}

impl BacktestEstimator for Candidate {
    fn observe(&mut self, _: usize, time: UnixNanos, amount: Amount) {
        self.hours.add(time, amount::cores(amount));
    }

    fn oom(&mut self, _: usize, _: UnixNanos, _: Amount) {
        unreachable!("all series are CPU");
    }

    fn limit(&mut self, now: UnixNanos) -> Option<Amount> {
        self.hours.decide(now);
        self.hours.size().map(|cores| amount::from_float((cores * 1000.0 - 1e-3).ceil()).max(self.minimum))
    }
}

fn series(folder: &Path) -> Vec<Recorded> {
    let files = [
        ("crane/input0.csv.gz", 1.0),
        ("crane/input1.csv.gz", 1.0),
        ("crane/input2.csv.gz", 1.0),
        ("crane/input3.csv.gz", 1.0),
        ("nab/ec2_cpu_utilization_24ae8d.csv", 0.01),
        ("nab/ec2_cpu_utilization_5f5533.csv", 0.01),
        ("nab/rds_cpu_utilization_e47b3b.csv", 0.01),
        ("nab/elb_request_count_8c0756.csv", 0.01),
    ];
    let one = |(file, scale): (&str, f64)| {
        let columns = [Column { name: "value".to_owned(), resource: RecordedResource::Cpu, scale }];
        read(&folder.join(file), &columns).expect("a series").recorded
    };
    files.into_iter().flat_map(one).collect()
}

fn candidates() -> Vec<HoursSettings> {
    let mut all = Vec::new();
    for around in 0..=3 {
        for recent in [1, 2, 3, 6, 12] {
            for shrink_from in [0.1, 0.3] {
                for margin in [0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5] {
                    all.push(HoursSettings { days: 7, around, recent, margin, shrink_from });
                }
            }
        }
    }
    all
}

/// Mean slack, overrun and changes a day of some series.
fn means<'a>(all: impl Iterator<Item = &'a Measures>) -> [f64; 3] {
    let (mut sum, mut count) = ([0.0; 3], 0.0);
    for one in all {
        let of = [one.relative_slack, one.overrun_share, one.changes_per_day];
        sum.iter_mut().zip(of).for_each(|(sum, of)| *sum += of);
        count += 1.0;
    }
    sum.map(|sum| sum / count)
}

/// Returns the candidate with the least slack of those that are exceeded half as often as the reference, on all series but one.
fn chosen(measured: &[Vec<Measures>], reference: &[Measures], without: Option<usize>) -> usize {
    let is_in = |at: &usize| Some(*at) != without;
    let of = |all: &[Measures]| means((0..all.len()).filter(is_in).map(|at| &all[at]));
    let most = of(reference)[1] / 2.0;
    let allowed = (0..measured.len()).filter(|at| of(&measured[*at])[1] <= most);
    let best = allowed.min_by(|a, b| of(&measured[*a])[0].total_cmp(&of(&measured[*b])[0]));
    best.expect("a large margin is exceeded less often")
}

/// With `--nocapture` this prints the table of docs/benchmarks.md.
#[test]
fn settings_chosen_on_other_series_have_less_slack_than_each_estimator_that_is_not_exceeded_more_often() {
    let Some(folder) = traces("the choice of the settings of `hours`") else { return };
    let series = series(&folder.join("usage"));
    let settings = RecommenderSettings::default();
    let minimum = settings.cpu.pod_minimum;
    let candidates = candidates();
    let measured: Vec<Vec<Measures>> = (candidates.iter())
        .map(|of| {
            let new = || Candidate { hours: Hours::new(*of, true), minimum };
            series.iter().map(|recorded| replay(recorded, &mut new(), PACE).expect("measures")).collect()
        })
        .collect();
    let by = |kind: EstimatorKind| -> Vec<Measures> {
        let of = |recorded| backtest(recorded, kind, &settings, PACE).expect("measures").measures;
        series.iter().map(of).collect()
    };
    let reference = by(REFERENCE);
    let held_out: Vec<Measures> = (0..series.len())
        .map(|at| {
            let best = chosen(&measured, &reference, Some(at));
            println!("without {}: {:?}", series[at].name, candidates[best]);
            measured[best][at]
        })
        .collect();
    let all = chosen(&measured, &reference, None);
    println!("of all: {:?}", candidates[all]);
    println!("| estimator | slack | over the limit | changes/d |\n|---|---:|---:|---:|");
    let row = |name: &str, of: &[Measures]| {
        let [slack, overrun, changes] = means(of.iter());
        println!("| {name} | {:.1} % | {:.2} % | {changes:.1} |", slack * 100.0, overrun * 100.0);
        [slack, overrun]
    };
    let [slack, overrun] = row("`hours`, settings of the other series", &held_out);
    row("`hours`, settings of all series", &measured[all]);
    for kind in EstimatorKind::ALL {
        let [other, exceeded] = row(&format!("`{}`", kind.name()), &by(kind));
        if kind != EstimatorKind::Hours && exceeded <= overrun {
            assert!(slack < other, "{} has no more slack", kind.name());
        }
    }
    assert!(overrun <= means(reference.iter())[1], "{overrun}");
    assert_eq!(HoursSettings::defaults(), candidates[all], "the best settings");
}
