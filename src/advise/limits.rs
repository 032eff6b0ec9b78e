//! Limits for advised requests.

use berth_model::PerResource;
use berth_rightsizing::recommend::{Amount, amount};

use super::advice::{Current, ResourceAdvice};

/// How limits are advised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum LimitStrategy {
    /// In the proportion of the present limit to the request, as the Vertical Pod Autoscaler; no new limits
    #[default]
    Proportional,
    /// As KRR: a limit of memory that equals the request, and no limit of CPU
    MemoryAsRequest,
    /// As they are; raised where a request would exceed its limit
    Unchanged,
}

/// How the limit of one resource is advised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitRule {
    Proportional,
    AsRequest,
    NoLimit,
    Unchanged,
}

/// What becomes of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitChange {
    /// It stays as it is, perhaps unset.
    Keep,
    Remove,
    /// Millicores or bytes; may be what it is now.
    Set(Amount),
}

impl LimitStrategy {
    pub fn rules(self) -> PerResource<LimitRule> {
        match self {
            LimitStrategy::Proportional => {
                PerResource { cpu: LimitRule::Proportional, memory: LimitRule::Proportional }
            }
            LimitStrategy::MemoryAsRequest => {
                PerResource { cpu: LimitRule::NoLimit, memory: LimitRule::AsRequest }
            }
            LimitStrategy::Unchanged => {
                PerResource { cpu: LimitRule::Unchanged, memory: LimitRule::Unchanged }
            }
        }
    }
}

impl ResourceAdvice {
    /// Returns what becomes of the limit. Nothing without a target.
    pub fn limit_change(&self) -> LimitChange {
        let Some(target) = self.target else { return LimitChange::Keep };
        match (self.limit_rule, self.limit) {
            (LimitRule::AsRequest, _) => LimitChange::Set(target),
            (LimitRule::NoLimit, Current::Set(_)) => LimitChange::Remove,
            (LimitRule::Proportional, Current::Set(limit)) => {
                LimitChange::Set(self.in_proportion(limit, target))
            }
            (LimitRule::Unchanged, Current::Set(limit)) if limit < target => LimitChange::Set(target),
            (LimitRule::NoLimit | LimitRule::Proportional | LimitRule::Unchanged, _) => LimitChange::Keep,
        }
    }

    fn in_proportion(&self, limit: Amount, target: Amount) -> Amount {
        match self.request {
            // A request that stays keeps its limit to the byte.
            Current::Set(request) if request == target => limit,
            Current::Set(request) if request > 0 => {
                amount::scale(target, limit as f64 / request as f64).max(target)
            }
            _ => limit.max(target),
        }
    }
}
