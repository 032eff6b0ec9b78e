//! Upstream's `histogram_options_test.go`, and the default buckets to the last bit.

use super::tables::BUCKETS;
use super::{MI, shapes};
use crate::recommend::buckets::{Buckets, power};
use crate::recommend::settings::RecommenderSettings;

#[test]
fn linear_buckets_have_one_size_and_one_more_that_has_no_end() {
    let buckets = Buckets::linear(5.0, 0.3, 0.001).unwrap();
    assert_eq!(buckets.count(), 18);
    assert_eq!(buckets.start(0), 0.0);
    assert_eq!(buckets.start(17), 5.1);
    for (value, bucket) in [(-1.0, 0), (0.0, 0), (1.3, 4), (100.0, 17)] {
        assert_eq!(buckets.find(value), bucket, "{value}");
    }
}

#[test]
fn exponential_buckets_grow_by_the_ratio() {
    let buckets = Buckets::exponential(500.0, 40.0, 1.5, 0.001).unwrap();
    let starts: Vec<_> = (0..buckets.count()).map(|bucket| buckets.start(bucket)).collect();
    assert_eq!(starts, [0.0, 40.0, 100.0, 190.0, 325.0, 527.5]);
    for (value, bucket) in [(-1.0, 0), (39.99, 0), (40.0, 1), (100.0, 2), (900.0, 5)] {
        assert_eq!(buckets.find(value), bucket, "{value}");
    }
}

#[test]
fn the_default_buckets_start_where_upstreams_do_to_the_last_bit() {
    let shapes = shapes(&RecommenderSettings::default());
    let (cpu, memory) = (shapes.cpu.buckets(), shapes.memory.buckets());
    assert_eq!((cpu.count(), memory.count()), (176, 176));
    assert_eq!((cpu.epsilon(), memory.epsilon()), (1e-4, 1e-4));
    for (bucket, &(cpu_bits, memory_bits, _, _)) in (0..).zip(&BUCKETS) {
        assert_eq!(cpu.start(bucket).to_bits(), cpu_bits, "CPU bucket {bucket}");
        assert_eq!(memory.start(bucket).to_bits(), memory_bits, "memory bucket {bucket}");
    }
}

#[test]
fn each_default_bucket_takes_its_values_from_upstreams_smallest_on() {
    let shapes = shapes(&RecommenderSettings::default());
    for (bucket, &(_, _, millicores, bytes)) in (0..).zip(&BUCKETS).skip(1) {
        let cpu = |millicores: i64| shapes.cpu.buckets().find(millicores as f64 / 1000.0);
        assert_eq!((cpu(millicores - 1), cpu(millicores)), (bucket - 1, bucket));
        let memory = |bytes: i64| shapes.memory.buckets().find(bytes as f64);
        assert_eq!((memory(bytes - 1), memory(bytes)), (bucket - 1, bucket));
    }
}

#[test]
fn usual_amounts_fall_into_upstreams_buckets() {
    let shapes = shapes(&RecommenderSettings::default());
    let millicores = [
        (0, 0),
        (5, 0),
        (9, 0),
        (10, 1),
        (20, 1),
        (21, 2),
        (25, 2),
        (50, 4),
        (100, 8),
        (250, 16),
        (500, 25),
        (1000, 36),
        (1500, 43),
        (2000, 49),
        (3000, 56),
        (3140, 57),
        (4000, 62),
        (8000, 76),
        (16_000, 90),
        (64_000, 118),
        (100_000, 127),
        (500_000, 160),
        (999_000, 174),
        (1_000_000, 174),
        (1_000_000_000, 175),
    ];
    for (millicores, bucket) in millicores {
        assert_eq!(shapes.cpu.buckets().find(f64::from(millicores) / 1000.0), bucket, "{millicores} m");
    }
    let bytes = [
        (9_999_999, 0),
        (10_000_000, 1),
        (20_500_000, 1),
        (20_500_001, 2),
        (31_525_000, 2),
        (31_525_001, 3),
        (43_101_249, 3),
        (43_101_250, 4),
        (20 * MI, 2),
        (100_000_000, 8),
        (100 * MI, 8),
        (128 * MI, 10),
        (250 * MI, 17),
        (256 * MI, 17),
        (512 * MI, 26),
        (1_000_000_000, 36),
        (1024 * MI, 37),
        (2048 * MI, 50),
        (4_000_000_000, 62),
        (10_000_000_000, 80),
        (100_000_000_000, 127),
        (1_000_000_000_000, 174),
        (2_000_000_000_000, 175),
    ];
    for (bytes, bucket) in bytes {
        assert_eq!(shapes.memory.buckets().find(bytes as f64), bucket, "{bytes} bytes");
    }
    assert_eq!(shapes.cpu.buckets().find(0.0099999), 0);
    assert_eq!(shapes.cpu.buckets().find(0.011), 1);
}

#[test]
fn a_start_is_found_in_the_bucket_before_it_as_upstream_rounds() {
    let shapes = shapes(&RecommenderSettings::default());
    for buckets in [shapes.cpu.buckets(), shapes.memory.buckets()] {
        for bucket in 2..buckets.count() {
            assert_eq!(buckets.find(buckets.start(bucket)), bucket - 1);
        }
    }
}

/// FNV-1a, 64 bits.
fn digest(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

#[test]
fn three_million_amounts_fall_into_upstreams_buckets() {
    let shapes = shapes(&RecommenderSettings::default());
    let cpu = (0..=1_100_000).map(|n| shapes.cpu.buckets().find(f64::from(n) / 1000.0) as u8);
    assert_eq!(digest(cpu), 0x7343_1ef7_d3f5_badf);
    let memory = (0..=2_000_000_i64).map(|n| shapes.memory.buckets().find((n * 600_000) as f64) as u8);
    assert_eq!(digest(memory), 0x229b_ee1a_1561_2601);
}

#[test]
fn a_power_multiplies_its_squares() {
    for (base, exponent, expected) in [(1.5, 0, 1.0), (1.5, 1, 1.5), (2.0, 10, 1024.0), (3.0, 5, 243.0)] {
        assert_eq!(power(base, exponent), expected);
    }
    assert_eq!(power(2.0, u32::MAX), f64::INFINITY);
}

#[test]
fn values_that_are_none_have_a_bucket_all_the_same() {
    let linear = Buckets::linear(5.0, 0.3, 0.001).unwrap();
    let exponential = Buckets::exponential(500.0, 40.0, 1.5, 0.001).unwrap();
    for buckets in [linear, exponential] {
        for (value, bucket) in [
            (f64::NAN, 0),
            (f64::NEG_INFINITY, 0),
            (f64::INFINITY, buckets.last()),
            (f64::MAX, buckets.last()),
        ] {
            assert_eq!(buckets.find(value), bucket, "{value}");
        }
        assert_eq!(buckets.end(u16::MAX), buckets.start(buckets.last()));
    }
}

#[test]
fn sizes_that_make_no_buckets_are_refused() {
    for (max, first, ratio) in
        [(0.0, 1.0, 2.0), (1.0, -1.0, 2.0), (1.0, 1.0, 1.0), (f64::NAN, 1.0, 2.0), (1e300, 1e-300, 1.001)]
    {
        assert!(Buckets::exponential(max, first, ratio, 0.001).is_err(), "{max} {first} {ratio}");
    }
    for (max, size) in [(f64::INFINITY, 1.0), (1.0, 0.0), (1e9, 1.0), (f64::NAN, 1.0)] {
        assert!(Buckets::linear(max, size, 0.001).is_err(), "{max} {size}");
    }
}
