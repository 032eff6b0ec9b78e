//! Metrics of quotas. A quota is named by people, as a namespace is: the first ones by name have series of their own.

use berth_telemetry::encode::Labels;
use berth_telemetry::encode::counters;
use berth_telemetry::encode::gauges;
use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;

use berth_scheduler::quota::{Resource, Standing};
use berth_scheduler::scheduler::QuotaStanding;

/// Quotas with series of their own.
pub(super) const MOST_QUOTAS: usize = 200;

type Read = fn(&Standing) -> Option<i128>;

pub(super) fn encode(to: &mut DescriptorEncoder, quotas: &[QuotaStanding]) -> fmt::Result {
    let help = [
        "What pods of a quota request together",
        "What of it is beyond the guarantee",
        "What is guaranteed to them",
        "The most they get",
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
                let resource: &Resource = &standing.resource;
                let labels = [("quota", &*quota.name), ("resource", resource.name())];
                ConstGauge::new(resource.base(amount)).encode(family.encode_family(&labels)?)?;
            }
        }
    }
    let labels: Vec<_> = quotas.iter().map(|quota| [("quota", &*quota.name)]).collect();
    let waiting: Vec<(Labels, usize)> =
        labels.iter().zip(quotas).map(|(label, quota)| (label.as_slice(), quota.waiting)).collect();
    gauges(to, "berth_quota_waiting", "Pods and gangs that wait for room in a quota", &waiting)?;
    let reclaimed: Vec<(Labels, u64)> =
        labels.iter().zip(quotas).map(|(label, quota)| (label.as_slice(), quota.reclaimed)).collect();
    let help = "Pods of a quota that were preempted because others took back what is guaranteed to them";
    counters(to, "berth_quota_reclaimed_pods", help, &reclaimed)
}
