//! Estimate of a container's requests from its aggregate.
//!
//! Upstream: `pkg/recommender/logic/{estimator,recommender}.go`. Each step truncates to whole millicores or bytes
//! before the next: percentile, margin, confidence, minimum. Another order gives different results.

use super::aggregate::Aggregate;
use super::amount::{self, Amount};
use super::buckets::power;
use super::post::{OptionalAmounts, Recommendation};
use super::settings::{RecommenderSettings, ResourceSettings};
use super::time;
use berth_model::PerResource;

/// Upper bound: at confidence `c` it is `(1 + 1/c)` times the estimate.
pub(super) const UPPER: Confidence = Confidence { multiplier: 1.0, exponent: 1 };

/// Lower bound: `(1 + 0.001/c)^-2` times the estimate.
pub(super) const LOWER: Confidence = Confidence { multiplier: 0.001, exponent: -2 };

/// Resources to recommend; upstream's `controlledResources`.
pub type Controlled = PerResource<bool>;

/// Both resources, the default.
pub const BOTH: Controlled = PerResource { cpu: true, memory: true };

/// Estimate for one resource, in whole millicores or bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Estimate {
    pub target: Amount,
    /// Lower bound: requests between this and the upper bound need no action.
    pub lower: Amount,
    pub upper: Amount,
}

/// Widening of a bound at low confidence.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Confidence {
    pub multiplier: f64,
    pub exponent: i32,
}

impl Confidence {
    /// Returns `base * (1 + multiplier/confidence)^exponent`. Without any confidence it is 0 or the maximum.
    pub fn apply(self, base: Amount, confidence: f64) -> Amount {
        amount::scale(base, self.factor(confidence))
    }

    /// Returns `(1 + multiplier/confidence)^exponent`: 0 or infinite without any confidence.
    pub fn factor(self, confidence: f64) -> f64 {
        let factor = power(1.0 + self.multiplier / confidence, self.exponent.unsigned_abs());
        if self.exponent < 0 { 1.0 / factor } else { factor }
    }
}

/// Adds the margin, a share of `base` that is itself truncated.
pub fn with_margin(base: Amount, margin: f64) -> Amount {
    base.saturating_add(amount::scale(base, margin))
}

/// Returns the minimum for one of the pod's `containers`.
pub fn minimum(pod_minimum: Amount, containers: usize) -> Amount {
    amount::scale(pod_minimum, 1.0 / containers.max(1) as f64)
}

/// Estimates one container of a pod with this number of `containers`.
pub fn estimate(
    aggregate: &Aggregate,
    settings: &RecommenderSettings,
    containers: usize,
) -> PerResource<Estimate> {
    let strict = settings.strict_upstream;
    settings.resources().zip(PerResource { cpu: true, memory: false }).map(|(resource, is_cpu)| {
        let base = |percentile| match is_cpu {
            true => amount::cpu_from_cores(aggregate.cpu.percentile(percentile)),
            false => amount::from_float(aggregate.memory.percentile(percentile)),
        };
        let confidence = aggregate.confidence(time::nanos(resource.confidence_interval), strict);
        of_resource(resource, base, confidence, containers)
    })
}

fn of_resource(
    settings: &ResourceSettings,
    base: impl Fn(f64) -> Amount,
    confidence: f64,
    containers: usize,
) -> Estimate {
    let minimum = minimum(settings.pod_minimum, containers);
    let with_margin = |percentile| with_margin(base(percentile), settings.margin);
    Estimate {
        target: with_margin(settings.target_percentile).max(minimum),
        lower: LOWER.apply(with_margin(settings.lower_percentile), confidence).max(minimum),
        upper: UPPER.apply(with_margin(settings.upper_percentile), confidence).max(minimum),
    }
}

/// Recommends for a container of a pod with this number of `containers`: estimates of the controlled resources,
/// rounded up to the units of the settings. The VPA's minimum and maximum are applied later, see [`super::post`].
pub fn recommend(
    container: &str,
    aggregate: &Aggregate,
    settings: &RecommenderSettings,
    containers: usize,
    controlled: Controlled,
) -> Recommendation {
    let rounded = estimate(aggregate, settings, containers).zip(settings.resources()).zip(controlled).map(
        |((estimate, resource), controlled)| {
            controlled.then(|| {
                let round = |amount| amount::round_up(amount, resource.round_to.max(1)).unwrap_or(amount);
                Estimate {
                    target: round(estimate.target),
                    lower: round(estimate.lower),
                    upper: round(estimate.upper),
                }
            })
        },
    );
    let pick =
        |part: fn(Estimate) -> Amount| -> OptionalAmounts { rounded.map(|estimate| estimate.map(part)) };
    let target = pick(|estimate| estimate.target);
    Recommendation {
        container: container.into(),
        target,
        lower: pick(|estimate| estimate.lower),
        upper: pick(|estimate| estimate.upper),
        uncapped: target,
    }
}
