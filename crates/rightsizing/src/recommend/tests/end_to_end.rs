//! Complete recommendations and checkpoints with the default configuration, measured with upstream 1.8.1: one
//! sample per minute from the start of 2026.

use std::collections::BTreeMap;

use super::{Amount, DAY, Fed, HOUR, MI, MINUTE, bounds, shapes};
use crate::recommend::aggregate::Aggregate;
use crate::recommend::amount::AMOUNT_MAX;
use crate::recommend::checkpoint::CheckpointStatus;
use crate::recommend::settings::RecommenderSettings;
use crate::recommend::time::{UnixNanos, from_text, to_text};

const GI: Amount = 1 << 30;

fn start() -> UnixNanos {
    from_text("2026-01-01T00:00:00Z").unwrap()
}

fn fed() -> Fed {
    Fed::new(RecommenderSettings::default())
}

/// CPU varies between 100 m and 395 m, memory between 200 and 319 MiB; memory grows by `mib_per_day`.
fn saw(days: i64, mib_per_day: Amount) -> Fed {
    fed()
        .feed(start(), days * 1440, |n| (100 + 5 * (n % 60), (200 + n % 120 + mib_per_day * (n / 1440)) * MI))
}

fn ten_samples(from: &str) -> Fed {
    fed().feed(from_text(from).unwrap(), 10, |_| (100, 300 * MI))
}

const SAW: [(Amount, Amount); 3] = [(442, 410_771_395), (295, 409_950_513), (884, 821_828_246)];
const GROWING_SAW: [(Amount, Amount); 3] = [(442, 764_046_746), (295, 763_828_472), (505, 873_207_110)];

const SAW_CPU: [(i64, i64); 15] = [
    (8, 4873),
    (9, 4880),
    (10, 4887),
    (11, 4894),
    (12, 6536),
    (13, 6549),
    (14, 6562),
    (15, 6574),
    (16, 6587),
    (17, 8252),
    (18, 8271),
    (19, 8291),
    (20, 8311),
    (21, 10_000),
    (22, 3340),
];

/// Reference, total weight and weights of a saved histogram.
fn assert_histogram(
    saved: &crate::recommend::HistogramCheckpoint,
    reference: &str,
    total_weight: f64,
    weights: &[(i64, i64)],
) {
    assert_eq!(to_text(saved.reference_timestamp).as_deref(), Some(reference));
    assert_eq!(saved.bucket_weights, weights.iter().copied().collect::<BTreeMap<_, _>>());
    assert_eq!(saved.total_weight, total_weight);
}

fn assert_span(saved: &CheckpointStatus, first: &str, last: &str, count: i64) {
    assert_eq!(saved.version, "v3");
    assert_eq!(to_text(saved.first_sample_start).as_deref(), Some(first));
    assert_eq!(to_text(saved.last_sample_start).as_deref(), Some(last));
    assert_eq!(saved.total_samples_count, count);
}

/// The saved checkpoint, and the recommendation after it was loaded.
fn saved(aggregate: &Aggregate) -> (CheckpointStatus, [(Amount, Amount); 3]) {
    let (settings, now) = (RecommenderSettings::default(), start() + 365 * DAY);
    let status = CheckpointStatus::save(aggregate, now);
    let loaded = status.load(&shapes(&settings), DAY, now).unwrap();
    (status, bounds(&loaded, &settings, 1))
}

#[test]
fn bounds_around_a_constant_usage_close_in_as_samples_come() {
    let cases = [
        (1, (25, 262_144_000), (AMOUNT_MAX, AMOUNT_MAX)),
        (2, (98, 262_144_000), (845_867, 1_784_908_735_775)),
        (5, (317, 669_690_622), (211_907, 447_156_178_775)),
        (6, (353, 746_655_568), (169_643, 357_972_674_975)),
        (30, (532, 1_124_239_225), (29_734, 62_744_524_464)),
        (31, (534, 1_127_793_192), (28_763, 60_694_328_975)),
        (60, (559, 1_180_340_057), (14_913, 31_470_355_978)),
        (61, (559, 1_181_278_014), (14_675, 30_966_494_375)),
        (720, (584, 1_233_713_110), (1762, 3_719_424_832)),
        (721, (584, 1_233_719_960), (1761, 3_715_979_325)),
        (1440, (585, 1_236_184_450), (1174, 2_478_180_328)),
        (1441, (585, 1_236_186_166), (1174, 2_477_319_550)),
        (2880, (586, 1_237_421_614), (880, 1_858_204_782)),
        (10_080, (586, 1_238_305_912), (670, 1_415_628_727)),
    ];
    for (samples, lower, upper) in cases {
        let fed = fed().feed(start(), samples, |_| (500, GI));
        assert_eq!(fed.bounds(1), [(587, 1_238_659_775), lower, upper], "{samples} samples");
    }
}

#[test]
fn a_day_of_varied_usage() {
    let fed = saw(1, 0);
    assert_eq!(fed.bounds(1), SAW);
    let (status, reloaded) = saved(&fed.aggregate);
    assert_histogram(&status.cpu_histogram, "2026-01-01T00:00:00Z", 207.698_089_899_278_73, &SAW_CPU);
    assert_histogram(&status.memory_histogram, "2026-01-02T00:00:00Z", 1.0, &[(20, 10_000)]);
    assert_span(&status, "2026-01-01T00:00:00Z", "2026-01-01T23:59:00Z", 1440);
    assert_eq!(reloaded, SAW);
}

#[test]
fn a_week_of_growing_memory() {
    let fed = saw(7, 50);
    assert_eq!(fed.bounds(1), GROWING_SAW);
    let (status, reloaded) = saved(&fed.aggregate);
    assert_histogram(&status.cpu_histogram, "2026-01-01T00:00:00Z", 26_377.657_417_208_327, &SAW_CPU);
    let memory = [(20, 156), (22, 313), (23, 625), (25, 1250), (26, 2500), (28, 5000), (29, 10_000)];
    assert_histogram(&status.memory_histogram, "2026-01-02T00:00:00Z", 127.0, &memory);
    assert_span(&status, "2026-01-01T00:00:00Z", "2026-01-07T23:59:00Z", 10_080);
    assert_eq!(reloaded, GROWING_SAW);
    // Both are far above the minimum, so the number of containers does not matter.
    assert_eq!((saw(1, 0).bounds(2), fed.bounds(2)), (SAW, GROWING_SAW));
}

#[test]
fn a_chain_of_oom_kills() {
    let mut fed = fed().feed(start(), 60, |_| (200, 400 * MI));
    let cpu = [247, 235, 6275];
    let memory = |fed: &Fed| {
        let bounds = fed.bounds(1);
        assert_eq!(bounds.map(|(cpu, _)| cpu), cpu);
        bounds.map(|(_, memory)| memory)
    };
    assert_eq!(memory(&fed), [511_772_986, 487_677_220, 13_002_503_491]);
    let cases = [
        (60, 512 * MI, [764_046_746, 728_073_195, 19_411_967_326]),
        (61, 612 * MI, [920_733_364, 877_382_550, 23_392_869_705]),
        (62, 2 * GI, [2_975_900_105, 2_835_786_042, 75_608_038_260]),
    ];
    for (minute, requested, expected) in cases {
        assert!(fed.oom(requested, start() + minute * MINUTE));
        assert_eq!(memory(&fed), expected, "after minute {minute}");
    }
}

#[test]
fn a_step_down_is_followed_on_the_third_day() {
    let high = (1168, 1_238_659_775);
    let low = (126, 323_522_422);
    let cases = [
        (1, [high, (125, 323_199_029), (1752, 1_858_204_782)]),
        (2, [high, (125, 323_306_798), (1557, 1_651_641_964)]),
        (3, [low, (125, 323_360_693), (1460, 1_548_378_489)]),
        (4, [low, (125, 323_393_033), (151, 388_235_894)]),
        (5, [low, (125, 323_414_595), (147, 377_449_067)]),
        (6, [low, (125, 323_429_997), (144, 369_744_496)]),
        (7, [low, (125, 323_441_549), (141, 363_966_235)]),
        (8, [low, (125, 323_450_534), (140, 359_472_131)]),
    ];
    for (days, expected) in cases {
        let usage = |n| if n < 1440 { (1000, GI) } else { (100, 256 * MI) };
        let fed = fed().feed(start(), (1 + days) * 1440, usage);
        assert_eq!(fed.bounds(1), expected, "{days} days after");
    }
}

#[test]
fn the_reference_is_the_midnight_next_to_the_first_sample() {
    let expected = [(126, 380_258_472), (93, 282_593_989), (20_286, 61_221_613_992)];
    let cases = [
        (
            "13",
            ("2026-01-02T00:00:00Z", 0.729_405_531_463_998_4),
            ("2026-01-03T00:00:00Z", 0.727_826_591_421_093_7),
        ),
        (
            "11",
            ("2026-01-01T00:00:00Z", 1.376_934_289_353_613_8),
            ("2026-01-02T00:00:00Z", 1.373_953_647_458_089_1),
        ),
    ];
    for (hour, cpu, memory) in cases {
        let fed = ten_samples(&format!("2026-01-01T{hour}:00:00Z"));
        let (status, reloaded) = saved(&fed.aggregate);
        assert_histogram(&status.cpu_histogram, cpu.0, cpu.1, &[(8, 10_000)]);
        assert_histogram(&status.memory_histogram, memory.0, memory.1, &[(19, 10_000)]);
        let (first, last) = (format!("2026-01-01T{hour}:00:00Z"), format!("2026-01-01T{hour}:09:00Z"));
        assert_span(&status, &first, &last, 10);
        assert_eq!(reloaded, expected);
    }
}

#[test]
fn tiny_containers_get_their_share_of_the_pods_minimum() {
    let fed = fed().feed(start(), 1440, |_| (1, 5 * MI));
    let cases = [
        (1, [(25, 262_144_000), (25, 262_144_000), (25, 262_144_000)]),
        (2, [(12, 131_072_000), (12, 131_072_000), (22, 131_072_000)]),
        (3, [(11, 87_381_333), (10, 87_381_333), (22, 87_381_333)]),
    ];
    for (containers, expected) in cases {
        assert_eq!(fed.bounds(containers), expected, "{containers} containers");
    }
}

#[test]
fn a_container_without_samples_gets_the_minimum() {
    assert_eq!(fed().bounds(1), [(25, 262_144_000); 3]);
}

#[test]
fn merged_aggregates() {
    let mut merged = saw(1, 0).aggregate;
    merged.merge(&ten_samples("2026-01-01T13:00:00Z").aggregate);
    let (status, reloaded) = saved(&merged);
    let mut cpu = SAW_CPU;
    cpu[0] = (8, 5567);
    // Merged floats depend on the order of addition, which varies even between two runs of upstream.
    let close = |value: f64, expected: f64| (value / expected - 1.0).abs() < 1e-14;
    assert!(close(status.cpu_histogram.total_weight, 104.578_450_481_103_36));
    assert!(close(status.memory_histogram.total_weight, 1.227_826_591_421_093_7));
    let exact = |saved: &crate::recommend::HistogramCheckpoint| saved.total_weight;
    let (cpu_total, memory_total) = (exact(&status.cpu_histogram), exact(&status.memory_histogram));
    assert_histogram(&status.cpu_histogram, "2026-01-02T00:00:00Z", cpu_total, &cpu);
    let memory = [(19, 10_000), (20, 6870)];
    assert_histogram(&status.memory_histogram, "2026-01-03T00:00:00Z", memory_total, &memory);
    assert_span(&status, "2026-01-01T00:00:00Z", "2026-01-01T23:59:00Z", 1450);
    assert_eq!(reloaded, [(442, 410_771_395), (295, 379_498_567), (884, 821_828_246)]);
}

#[test]
fn an_aggregate_of_varied_usage_takes_less_than_600_bytes() {
    let week = saw(7, 50).aggregate;
    let touched = week.cpu.weights().count() + week.memory.weights().count();
    assert_eq!((touched, week.bytes() <= 450), (22, true), "{} bytes", week.bytes());
    // A CPU usage between 20 m and 350 m, and memory between 100 and 800 MiB.
    let varied = fed().feed(start(), 20 * 1440, |n| (20 + 7 * n % 330, (100 + n / 1440 * 35) * MI)).aggregate;
    let touched = varied.cpu.weights().count() + varied.memory.weights().count();
    assert!(touched > 35 && varied.bytes() <= 600, "{touched} buckets, {} bytes", varied.bytes());
}

#[test]
fn a_settled_container_takes_no_more_memory_as_time_goes_by() {
    let mut fed = fed().feed(start(), 1440, |n| (100 + n % 60, 300 * MI));
    let bytes = fed.aggregate.bytes();
    for hour in 25..24 * 365 {
        assert!(fed.cpu(100 + hour % 60, start() + hour * HOUR));
        assert!(fed.memory(300 * MI, start() + hour * HOUR));
    }
    assert_eq!(fed.aggregate.bytes(), bytes);
}
