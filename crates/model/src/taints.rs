//! Taints and tolerations.

use std::sync::Arc;

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Taint {
    pub key: Arc<str>,
    pub value: Arc<str>,
    pub effect: Effect,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Effect {
    NoSchedule,
    PreferNoSchedule,
    NoExecute,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Toleration {
    /// Empty with `Exists`: every taint.
    pub key: Arc<str>,
    pub operator: TolerationOperator,
    pub value: Arc<str>,
    /// `None`: every effect.
    pub effect: Option<Effect>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TolerationOperator {
    Equal,
    Exists,
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
}
