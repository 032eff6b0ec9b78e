//! Effect of a recommendation on the containers of a pod: proportional limits, and the distance of requests from
//! it.
//!
//! Upstream: `pkg/utils/vpa/limit_and_request_scaling.go` and `pkg/updater/priority/priority_processor.go`.

use super::amount;
use super::amount::Amount;
use super::post::{OptionalAmounts, Recommendation};

/// Returns the limit that keeps the ratio of limit to request, or `None` when no limit is to be set.
///
/// Without a request Kubernetes uses the limit as the request, so the new limit equals the recommendation. The
/// result is truncated to a whole millicore or byte, and at most [`amount::AMOUNT_MAX`].
pub fn proportional_limit(
    limit: Option<Amount>,
    request: Option<Amount>,
    recommended: Option<Amount>,
) -> Option<Amount> {
    let set = |amount: Option<Amount>| amount.filter(|amount| *amount > 0);
    let (limit, recommended) = (set(limit)?, set(recommended)?);
    let request = set(request).unwrap_or(limit);
    let scaled = i128::from(limit) * i128::from(recommended) / i128::from(request);
    Some(Amount::try_from(scaled).unwrap_or(amount::AMOUNT_MAX).min(amount::AMOUNT_MAX))
}

/// Difference between the requests of a pod and its recommendation.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SizeDifference {
    /// Sum over CPU and memory of the differences, each as a share of the current requests.
    pub share: f64,
    /// Whether some container needs more than it requests.
    pub is_scale_up: bool,
    /// Whether some request is outside the recommended bounds, or unset.
    pub is_outside: bool,
}

/// Compares the requests of each container of a pod with its recommendation.
pub fn difference<'a>(
    containers: impl IntoIterator<Item = (OptionalAmounts, &'a Recommendation)>,
) -> SizeDifference {
    let (mut cpu, mut memory) = (Sums::default(), Sums::default());
    for (requests, it) in containers {
        cpu.add(requests.cpu, it.target.cpu, it.lower.cpu, it.upper.cpu);
        memory.add(requests.memory, it.target.memory, it.lower.memory, it.upper.memory);
    }
    SizeDifference {
        // Upstream computes both in thousandths of a unit, which matters where no request is set.
        share: cpu.share(1) + memory.share(1000),
        is_scale_up: cpu.is_scale_up || memory.is_scale_up,
        is_outside: cpu.is_outside || memory.is_outside,
    }
}

/// Sums of one resource over all containers that have a recommendation for it.
#[derive(Default)]
struct Sums {
    requested: i128,
    recommended: i128,
    is_scale_up: bool,
    is_outside: bool,
}

impl Sums {
    fn add(
        &mut self,
        request: Option<Amount>,
        target: Option<Amount>,
        lower: Option<Amount>,
        upper: Option<Amount>,
    ) {
        let Some(target) = target else { return };
        self.recommended += i128::from(target);
        let Some(request) = request else {
            (self.is_scale_up, self.is_outside) = (true, true);
            return;
        };
        self.requested += i128::from(request);
        self.is_scale_up |= target > request;
        self.is_outside |=
            lower.is_some_and(|lower| request < lower) || upper.is_some_and(|upper| request > upper);
    }

    fn share(&self, unit: i128) -> f64 {
        if self.recommended == 0 && self.requested == 0 {
            return 0.0;
        }
        let requested = (self.requested * unit).max(1);
        (requested - self.recommended * unit).abs() as f64 / requested as f64
    }
}

// Figures of upstream's `utils/vpa/limit_and_request_scaling_test.go` and `updater/priority/priority_processor_test.go`.
#[cfg(test)]
mod tests {
    use super::*;

    fn cpu(amount: Amount) -> OptionalAmounts {
        OptionalAmounts { cpu: Some(amount), memory: None }
    }

    fn recommendation(target: OptionalAmounts, bounds: Option<(Amount, Amount)>) -> Recommendation {
        let (lower, upper) = bounds.map_or(Default::default(), |(lower, upper)| (cpu(lower), cpu(upper)));
        Recommendation { container: "app".into(), target, lower, upper, uncapped: target }
    }

    fn of_one(request: Amount, target: Amount, bounds: Option<(Amount, Amount)>) -> SizeDifference {
        difference([(cpu(request), &recommendation(cpu(target), bounds))])
    }

    #[test]
    fn a_limit_keeps_its_proportion_to_the_request() {
        assert_eq!(proportional_limit(Some(2_000), Some(1_500), Some(1_000)), Some(1_333));
        assert_eq!(proportional_limit(Some(200), Some(150), Some(100)), Some(133));
        assert_eq!(
            proportional_limit(Some(Amount::MAX), Some(1), Some(Amount::MAX)),
            Some(amount::AMOUNT_MAX)
        );
    }

    #[test]
    fn a_limit_without_a_request_or_equal_to_it_becomes_what_is_recommended() {
        assert_eq!(proportional_limit(Some(2_000), None, Some(10)), Some(10));
        assert_eq!(proportional_limit(Some(2_000), Some(2_000), Some(10)), Some(10));
        for (limit, recommended) in
            [(None, Some(10)), (Some(0), Some(10)), (Some(10), None), (Some(10), Some(0))]
        {
            assert_eq!(proportional_limit(limit, Some(5), recommended), None);
        }
    }

    #[test]
    fn a_difference_is_a_share_of_what_is_requested() {
        let up = of_one(2_000, 10_000, None);
        assert_eq!((up.share, up.is_scale_up), (4.0, true));
        let down = of_one(4_000, 2_000, None);
        assert_eq!((down.share, down.is_scale_up), (0.5, false));
        assert_eq!(of_one(10, 900, None).share, 89.0);
    }

    #[test]
    fn a_request_outside_of_the_bounds_is_told_apart() {
        let low = of_one(4_000, 10_000, Some((6_000, 14_000)));
        assert_eq!((low.share, low.is_outside), (1.5, true));
        let high = of_one(8_000, 2_000, Some((1_000, 3_000)));
        assert_eq!((high.share, high.is_outside), (0.75, true));
        assert!(!of_one(6_000, 10_000, Some((6_000, 14_000))).is_outside);
        let unset = difference([(OptionalAmounts::default(), &recommendation(cpu(10), Some((1, 20))))]);
        assert!(unset.is_outside && unset.is_scale_up);
        assert_eq!(unset.share, 9.0);
    }

    #[test]
    fn containers_of_a_pod_count_together() {
        let [four, eight] = [4_000, 8_000].map(|target| recommendation(cpu(target), None));
        let up = difference([(cpu(1_000), &four), (cpu(2_000), &eight)]);
        assert_eq!((up.share, up.is_scale_up), (3.0, true));
        let [one, two] = [1_000, 2_000].map(|target| recommendation(cpu(target), None));
        let down = difference([(cpu(3_000), &one), (cpu(7_000), &two)]);
        assert_eq!((down.share, down.is_scale_up), (0.7, false));
        let both = OptionalAmounts { cpu: Some(2_000), memory: Some(100) };
        let of_both = difference([(
            OptionalAmounts { cpu: Some(1_000), memory: Some(200) },
            &recommendation(both, None),
        )]);
        assert_eq!(of_both.share, 1.5);
    }
}
