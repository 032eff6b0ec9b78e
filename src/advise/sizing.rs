//! How targets are computed from usage.

use super::limits::LimitStrategy;
use berth_model::PerResource;
use berth_rightsizing::recommend::{Amount, MemoryRules, amount};

const MIB: Amount = 1 << 20;

/// Strategy of sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Strategy {
    /// As the Vertical Pod Autoscaler: percentiles of all usage, recent usage first, with a margin
    #[default]
    Vpa,
    /// As KRR's simple strategy: the 95th percentile of the busiest pod's CPU, and the highest memory with a margin
    Krr,
}

/// Strategy and its parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sizing {
    pub strategy: Strategy,
    /// `Krr`: share that is added to the highest memory.
    pub memory_margin: f64,
    /// `Krr`: minimum of a container.
    pub minimum: PerResource<Amount>,
    pub limits: LimitStrategy,
    /// Whether resources get advice by whose utilisation a HorizontalPodAutoscaler scales.
    pub despite_autoscalers: bool,
}

impl Sizing {
    /// Returns the memory that a container needs which was OOM-killed with this much. `rules`: those of the Vertical Pod Autoscaler.
    pub fn after_kill(&self, memory: Amount, rules: &MemoryRules) -> Amount {
        match self.strategy {
            Strategy::Vpa => rules.after_kill(memory),
            Strategy::Krr => amount::scale(memory, 1.25),
        }
    }

    /// Returns the sizes of KRR's strategy from a quantile of CPU and the highest memory: rounded up to whole millicores and MiB.
    pub fn of_summary(&self, summary: PerResource<Option<Amount>>) -> PerResource<Option<Amount>> {
        let with_margin = |peak| {
            let wanted = amount::scale(peak, 1.0 + self.memory_margin);
            amount::round_up(wanted, MIB).unwrap_or(wanted)
        };
        let wanted = PerResource { cpu: summary.cpu, memory: summary.memory.map(with_margin) };
        wanted
            .zip(self.minimum)
            .map(|(wanted, minimum): (Option<Amount>, _)| wanted.map(|it| it.max(minimum)))
    }
}
