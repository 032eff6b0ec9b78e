//! Metrics of quotas. Users name quotas, as they name namespaces: only the first quotas by name have their own series.

use berth_telemetry::encode::{MetricLabels, counters, gauges};
use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;

use berth_scheduler::quota::{QuotaResource, QuotaUsage};
use berth_scheduler::scheduler::QuotaStanding;

/// Maximum number of quotas with their own series.
pub(super) const MOST_QUOTAS: usize = 200;

type Read = fn(&QuotaUsage) -> Option<i128>;

pub(super) fn encode(to: &mut DescriptorEncoder, quotas: &[QuotaStanding]) -> fmt::Result {
    let help = [
        "Sum of the requests of a quota's pods",
        "Requests of a quota's pods beyond its guarantee",
        "Guarantee of a quota",
        "Maximum of a quota",
    ];
    let reads: [(&str, Read); 4] = [
        ("berth_quota_used", |standing| Some(standing.used)),
        ("berth_quota_borrowed", |standing| Some(standing.borrowed)),
        ("berth_quota_guaranteed", |standing| standing.guaranteed.map(i128::from)),
        ("berth_quota_maximum", |standing| standing.maximum.map(i128::from)),
    ];
    for ((name, read), help) in reads.into_iter().zip(help) {
        let text = format!("{help}; in cores, bytes and counts");
        let mut family = to.encode_descriptor(name, &text, None, ConstGauge::new(0f64).metric_type())?;
        for quota in quotas {
            for standing in &quota.standing {
                let Some(amount) = read(standing) else { continue };
                let resource: &QuotaResource = &standing.resource;
                let labels = [("quota", &*quota.name), ("resource", resource.name())];
                ConstGauge::new(resource.base(amount)).encode(family.encode_family(&labels)?)?;
            }
        }
    }
    let labels: Vec<_> = quotas.iter().map(|quota| [("quota", &*quota.name)]).collect();
    let waiting: Vec<(MetricLabels, usize)> =
        labels.iter().zip(quotas).map(|(label, quota)| (label.as_slice(), quota.waiting)).collect();
    gauges(to, "berth_quota_waiting", "Pods and gangs waiting for room in a quota", &waiting)?;
    let reclaimed: Vec<(MetricLabels, u64)> =
        labels.iter().zip(quotas).map(|(label, quota)| (label.as_slice(), quota.reclaimed)).collect();
    let help = "Pods of a quota that were preempted to give other quotas their guarantee";
    counters(to, "berth_quota_reclaimed_pods", help, &reclaimed)
}
