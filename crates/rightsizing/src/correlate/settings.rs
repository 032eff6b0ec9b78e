//! Settings of correlations.

/// Plain values; values out of range are clamped where they are used.
#[derive(Debug, Clone, PartialEq)]
pub struct CorrelationSettings {
    /// Minimum absolute correlation for a pair to count as correlated (SHOWAR: 0.8).
    pub enter: f64,
    /// Minimum correlation, with the hint's sign, that confirms a hint in force.
    pub leave: f64,
    /// Consecutive windows in which a pair must be correlated before it becomes a hint. Two random walks of 20 to
    /// 60 points are correlated at 0.8 in about every twelfth window.
    pub confirmations: u8,
    /// Consecutive windows in which a hint may go unconfirmed; each halves its weight.
    pub patience: u8,
    /// Minimum number of common points of both services in a window.
    pub points_min: usize,
    /// A series whose standard deviation is below this share of its mean is flat: it has no peaks and no
    /// correlation.
    pub variation_min: f64,
    /// Maximum lag between two series in points; the strongest correlation counts. Values above what unaligned
    /// scrapes need produce false correlations.
    pub lag_points: usize,
    /// Maximum number of services; those with the highest CPU usage are used.
    pub services_max: usize,
    /// Weight of being together relative to being apart at the same correlation. At 1, pods of two services that
    /// fit together gather on few nodes, where each meets pods of its own service.
    pub together_share: f64,
    /// Maximum number of hints per service; the strongest are kept.
    pub hints_max: usize,
    /// Minimum change of a published weight: every new weight creates new pod classes.
    pub weight_slack: u8,
}

impl Default for CorrelationSettings {
    fn default() -> Self {
        CorrelationSettings {
            enter: 0.8,
            leave: 0.6,
            confirmations: 3,
            patience: 2,
            points_min: 15,
            variation_min: 0.01,
            lag_points: 0,
            services_max: 1000,
            together_share: 0.5,
            hints_max: 16,
            weight_slack: 10,
        }
    }
}

/// Maximum number of services: more give too many pairs, and links number them in 16 bits.
const SERVICES_MAX: usize = 4096;

impl CorrelationSettings {
    pub(super) fn services(&self) -> usize {
        self.services_max.min(SERVICES_MAX)
    }

    /// Returns the patience, clamped. Services that are gone are remembered that long, so it bounds their number,
    /// too.
    pub(super) fn patience(&self) -> u8 {
        self.patience.min(8)
    }

    pub(super) fn points(&self) -> u32 {
        self.points_min.clamp(3, super::POINTS_MAX) as u32
    }
}
