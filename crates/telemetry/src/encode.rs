//! Counters and gauges that are read when they are scraped.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Label names and values of one sample.
pub type MetricLabels<'a> = &'a [(&'a str, &'a str)];

/// Writes a counter with one value for each label set. `_total` is added to the name.
pub fn counters(
    to: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    values: &[(MetricLabels, u64)],
) -> fmt::Result {
    let kind = ConstCounter::new(0u64).metric_type();
    let mut family = to.encode_descriptor(name, help, None, kind)?;
    // An empty label set would be written as `{}`, which no one looks for.
    if let [([], value)] = values {
        return ConstCounter::new(*value).encode(family);
    }
    for (labels, value) in values {
        ConstCounter::new(*value).encode(family.encode_family(labels)?)?;
    }
    Ok(())
}

/// Writes a gauge with one value for each label set.
pub fn gauges(
    to: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    values: &[(MetricLabels, usize)],
) -> fmt::Result {
    let kind = ConstGauge::new(0i64).metric_type();
    let mut family = to.encode_descriptor(name, help, None, kind)?;
    let gauge = |value: usize| ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
    if let [([], value)] = values {
        return gauge(*value).encode(family);
    }
    for (labels, value) in values {
        gauge(*value).encode(family.encode_family(labels)?)?;
    }
    Ok(())
}
