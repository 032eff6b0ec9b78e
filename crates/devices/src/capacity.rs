//! What a request takes of a device's capacity (KEP-5075).

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_model::Quantity;

use crate::{DeviceCapacity, RequestPolicy, ValidRange};

/// Returns what this request takes of each capacity of a device; `None`: the device does not have what is requested, or
/// its policy forbids the amount.
pub(crate) fn consumption(
    requested: &[(Arc<str>, Quantity)],
    capacity: &BTreeMap<Arc<str>, DeviceCapacity>,
) -> Option<Vec<(Arc<str>, Quantity)>> {
    if requested.is_empty() && capacity.is_empty() {
        return Some(Vec::new());
    }
    if requested.iter().any(|(name, _)| !capacity.contains_key(name)) {
        return None;
    }
    let of = |name: &Arc<str>| {
        let at = requested.binary_search_by(|(known, _)| known.cmp(name)).ok()?;
        Some(requested[at].1)
    };
    let taken = capacity.iter().map(|(name, capacity)| {
        let amount = amount(of(name), capacity);
        let allowed = capacity.policy.as_ref().is_none_or(|policy| policy.allows(amount));
        (allowed && amount <= capacity.value).then(|| (name.clone(), amount))
    });
    taken.collect()
}

/// Returns what is consumed for a request of this amount, rounded up as the policy wants; without a request it is the
/// default, or everything.
fn amount(requested: Option<Quantity>, capacity: &DeviceCapacity) -> Quantity {
    let policy = capacity.policy.as_ref();
    let Some(requested) = requested else {
        return policy.and_then(|policy| policy.default).unwrap_or(capacity.value);
    };
    match policy {
        Some(RequestPolicy { valid_range: Some(ValidRange { min: Some(min), step, .. }), .. }) => {
            match step.filter(|step| *step > Quantity::ZERO) {
                _ if requested < *min => *min,
                None => requested,
                Some(step) => {
                    let (value, step, min) = (requested.value(), step.value().max(1), min.value());
                    let steps = value.saturating_sub(min).div_euclid(step);
                    let steps = steps + i64::from(value.saturating_sub(min).rem_euclid(step) != 0);
                    Quantity::from_units(min.saturating_add(step.saturating_mul(steps)))
                }
            }
        }
        Some(policy) => {
            policy.valid_values.iter().copied().find(|valid| requested <= *valid).unwrap_or(requested)
        }
        None => requested,
    }
}

impl RequestPolicy {
    fn allows(&self, amount: Quantity) -> bool {
        if self.default == Some(amount) {
            return true;
        }
        match &self.valid_range {
            Some(range) => {
                let step = range.step.map(|step| step.value()).filter(|step| *step > 0);
                let above_min = amount.value().saturating_sub(range.min.unwrap_or_default().value());
                range.max.is_none_or(|max| amount <= max) && step.is_none_or(|step| above_min % step == 0)
            }
            None => self.valid_values.is_empty() || self.valid_values.contains(&amount),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gi(units: i64) -> Quantity {
        Quantity::from_units(units)
    }

    fn capacity(value: i64, policy: Option<RequestPolicy>) -> BTreeMap<Arc<str>, DeviceCapacity> {
        BTreeMap::from([("memory".into(), DeviceCapacity { value: gi(value), policy })])
    }

    fn taken(requested: Option<i64>, value: i64, policy: Option<RequestPolicy>) -> Option<Quantity> {
        let requested: Vec<_> = requested.map(|amount| ("memory".into(), gi(amount))).into_iter().collect();
        consumption(&requested, &capacity(value, policy)).map(|taken| taken[0].1)
    }

    #[test]
    fn without_a_policy_a_request_takes_what_it_says_and_no_request_takes_all() {
        assert_eq!(taken(Some(3), 8, None), Some(gi(3)));
        assert_eq!(taken(None, 8, None), Some(gi(8)));
        assert_eq!(taken(Some(9), 8, None), None, "more than there is");
        let other = [("bandwidth".into(), gi(1))];
        assert_eq!(consumption(&other, &capacity(8, None)), None, "the device has none of it");
    }

    #[test]
    fn a_range_rounds_up_to_its_steps_and_refuses_more_than_its_maximum() {
        let range = ValidRange { min: Some(gi(2)), max: Some(gi(6)), step: Some(gi(2)) };
        let policy =
            RequestPolicy { default: Some(gi(1)), valid_range: Some(range), ..RequestPolicy::default() };
        let taken = |requested| taken(requested, 8, Some(policy.clone()));
        assert_eq!((taken(Some(1)), taken(Some(3)), taken(Some(4))), (Some(gi(2)), Some(gi(4)), Some(gi(4))));
        assert_eq!(taken(Some(7)), None);
        assert_eq!(taken(None), Some(gi(1)), "the default is always allowed");
    }

    #[test]
    fn listed_values_are_the_only_ones() {
        let policy = RequestPolicy { valid_values: [gi(2), gi(5)].into(), ..RequestPolicy::default() };
        let taken = |requested| taken(requested, 8, Some(policy.clone()));
        assert_eq!((taken(Some(1)), taken(Some(3)), taken(Some(6))), (Some(gi(2)), Some(gi(5)), None));
        assert_eq!(taken(None), None, "all of it is not listed");
    }
}
