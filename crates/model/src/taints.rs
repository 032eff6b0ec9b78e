//! Taints and tolerations.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Taint {
    pub key: Arc<str>,
    pub value: Arc<str>,
    pub effect: Effect,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Effect {
    NoSchedule,
    PreferNoSchedule,
    NoExecute,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Toleration {
    /// Empty with `Exists`: every taint.
    pub key: Arc<str>,
    pub operator: TolerationOperator,
    /// Of `Equal`; otherwise empty.
    pub value: Arc<str>,
    /// `None`: every effect.
    pub effect: Option<Effect>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum TolerationOperator {
    Equal,
    Exists,
    /// Taints with a larger number (KEP-5471).
    Gt(i64),
    /// Taints with a smaller number.
    Lt(i64),
}

/// Parses a number as upstream does in taints and tolerations: decimal, without a plus sign or leading zeros.
pub fn taint_number(text: &str) -> Option<i64> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let is_plain = match digits.as_bytes() {
        [b'0'] => text == "0",
        [b'1'..=b'9', rest @ ..] => rest.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    if is_plain { text.parse().ok() } else { None }
}

impl Toleration {
    /// Returns whether this toleration tolerates `taint` (upstream: `Toleration.ToleratesTaint`).
    pub fn tolerates(&self, taint: &Taint) -> bool {
        if self.effect.is_some_and(|effect| effect != taint.effect) {
            return false;
        }
        if !self.key.is_empty() && self.key != taint.key {
            return false;
        }
        match self.operator {
            TolerationOperator::Exists => true,
            TolerationOperator::Equal => self.value == taint.value,
            TolerationOperator::Gt(than) => taint_number(&taint.value).is_some_and(|number| number > than),
            TolerationOperator::Lt(than) => taint_number(&taint.value).is_some_and(|number| number < than),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taint(effect: Effect) -> Taint {
        Taint { key: "gpu".into(), value: "a100".into(), effect }
    }

    fn toleration(
        key: &str,
        operator: TolerationOperator,
        value: &str,
        effect: Option<Effect>,
    ) -> Toleration {
        Toleration { key: key.into(), operator, value: value.into(), effect }
    }

    #[test]
    fn a_toleration_without_effect_tolerates_every_effect() {
        let tolerates = toleration("gpu", TolerationOperator::Equal, "a100", None);
        assert!(tolerates.tolerates(&taint(Effect::NoSchedule)));
        assert!(tolerates.tolerates(&taint(Effect::NoExecute)));
    }

    #[test]
    fn a_toleration_with_another_effect_key_or_value_does_not_tolerate() {
        use TolerationOperator::*;
        let no_schedule = taint(Effect::NoSchedule);
        assert!(!toleration("gpu", Equal, "a100", Some(Effect::NoExecute)).tolerates(&no_schedule));
        assert!(!toleration("cpu", Equal, "a100", None).tolerates(&no_schedule));
        assert!(!toleration("gpu", Equal, "h100", None).tolerates(&no_schedule));
        assert!(toleration("gpu", Exists, "", None).tolerates(&no_schedule));
        assert!(toleration("", Exists, "", None).tolerates(&no_schedule));
    }

    #[test]
    fn numbers_of_taints_are_compared_and_other_values_are_not_tolerated() {
        use TolerationOperator::*;
        let tolerates = |operator, value: &str| {
            let taint = Taint { value: value.into(), ..taint(Effect::NoExecute) };
            toleration("gpu", operator, "", None).tolerates(&taint)
        };
        assert!(tolerates(Gt(950), "951") && !tolerates(Gt(950), "950") && !tolerates(Gt(950), "-951"));
        assert!(tolerates(Lt(-1), "-2") && !tolerates(Lt(-1), "-1") && !tolerates(Lt(-1), "0"));
        for other in ["", "a", "01", "-0", "+2", "2.0", "-", "9223372036854775808"] {
            assert!(!tolerates(Gt(i64::MIN), other) && !tolerates(Lt(i64::MAX), other), "{other:?}");
        }
        assert_eq!(taint_number("-9223372036854775808"), Some(i64::MIN));
    }
}
