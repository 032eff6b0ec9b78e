//! What can be set of correlations.

/// Plain values; what is out of range is brought into it where it is used.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// A pair is correlated from this much on, of either sign (SHOWAR: 0.8).
    pub enter: f64,
    /// A hint in force is confirmed from this much on, of its sign.
    pub leave: f64,
    /// Windows in a row in which a pair must be correlated before it becomes a hint. Two random walks of 20 to 60 points are
    /// correlated at 0.8 in about every twelfth window.
    pub confirmations: u8,
    /// Windows in a row in which a hint may go unconfirmed; each halves its weight.
    pub patience: u8,
    /// Points that both services must have in a window.
    pub points_min: usize,
    /// A series whose standard deviation is below this share of its mean is flat: it has no peaks, and no correlation.
    pub variation_min: f64,
    /// One series may be so many points late against the other; the strongest correlation counts. More than what scrapes that are
    /// not aligned need finds correlations where there are none.
    pub lag_points: usize,
    /// Of more services, those are looked at that use the most CPU.
    pub services_max: usize,
    /// What being together weighs against being apart by the same correlation. At 1, pods of two services that fit together
    /// gather on few nodes, where each meets its own kind.
    pub together_share: f64,
    /// Hints for one service, the strongest first.
    pub hints_max: usize,
    /// A hint keeps the weight that it was told with until that is so far off: another weight makes other classes of pods.
    pub weight_slack: u8,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
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

/// More services make more pairs than anybody can use; links count them in 16 bits.
const SERVICES_MAX: usize = 4096;

impl Settings {
    pub(super) fn services(&self) -> usize {
        self.services_max.min(SERVICES_MAX)
    }

    /// Services that are gone are remembered for so long, so this bounds them, too.
    pub(super) fn patience(&self) -> u8 {
        self.patience.min(8)
    }

    pub(super) fn points(&self) -> u32 {
        self.points_min.clamp(3, super::POINTS_MAX) as u32
    }
}
